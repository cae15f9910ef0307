//! Damage that was found since the mount: which runs of which files no longer have the bytes that were sealed. It is kept in
//! memory, and forgotten when the file is written again. It changes nothing about the file: what can be read is read.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tensorfs_formats::Source;
use tensorfs_layout::check::{Finding, Subject, is_hurt, segment_path};
use tensorfs_layout::{Ino, SegmentId};

use super::Store;

/// Findings that are kept; what is more is in the log.
const MOST: usize = 1000;
/// Tensors of one run that are named.
const NAMED: usize = 16;
/// The longest name of a tensor that is kept, in characters.
const NAME_LEN: usize = 200;

/// What has been found.
#[derive(Default)]
pub(crate) struct Damage(Mutex<BTreeMap<Ino, Hurt>>);

struct Hurt {
    version: (SegmentId, u64),
    findings: Vec<Finding>,
}

/// A run that does not have the bytes that were sealed.
pub(crate) struct BadRun {
    pub offset: u64,
    pub len: u64,
    pub what: String,
}

impl Store {
    /// Says in the log what is wrong with a file, and keeps it in mind; or that nothing is. The caller holds the file's lock,
    /// and has seen to it that nothing could write it meanwhile.
    pub fn settle_damage(&self, ino: Ino, file: &dyn Source, faults: &[BadRun]) -> Vec<Finding> {
        if faults.is_empty() {
            self.damage.0.lock().remove(&ino);
            return Vec::new();
        }
        let view = self.pool.view();
        let Some(object) = view.object(ino) else { return Vec::new() };
        let (Some(chain), Some(segment)) = (object.chain().cloned(), object.attributes.segment) else {
            return Vec::new();
        };
        let path = view.path_of(ino).map(|path| String::from_utf8_lossy(&path).into_owned());
        drop(view);
        let finding = |fault: &BadRun| {
            let hurt = chain.tensors().filter(|entry| is_hurt(file, entry, fault.offset, fault.len));
            let names = hurt.take(NAMED).map(|entry| entry.tensor.label().chars().take(NAME_LEN).collect());
            Finding {
                subject: Subject::File,
                path: path.clone(),
                ino: Some(ino),
                host_file: segment_path(segment),
                offset: Some(fault.offset),
                tensors: names.collect(),
                what: fault.what.clone(),
                meaning: "these bytes are not what was written; other parts of the file are not affected".into(),
            }
        };
        let findings: Vec<Finding> = faults.iter().map(finding).collect();
        for finding in &findings {
            let tensors =
                if finding.tensors.is_empty() { "none that is known".into() } else { finding.tensors.join(", ") };
            let path = path.as_deref().unwrap_or("a file without a name");
            log::error!("{}: {}; tensors: {}", path.escape_debug(), finding.what, tensors.escape_debug());
        }
        let mut known = self.damage.0.lock();
        if known.len() < MOST || known.contains_key(&ino) {
            let kept = findings.iter().take(MOST).cloned().collect();
            known.insert(ino, Hurt { version: (segment, chain.version()), findings: kept });
        }
        findings
    }

    /// True if a file is known to be damaged, and has not been written since.
    pub fn is_known_damaged(&self, ino: Ino) -> bool {
        let version = self.damage.0.lock().get(&ino).map(|hurt| hurt.version);
        version.is_some_and(|version| self.is_version(ino, version))
    }

    /// Everything that is known.
    pub fn known_damage(&self) -> Vec<Finding> {
        let all: Vec<(Ino, (SegmentId, u64))> =
            self.damage.0.lock().iter().map(|(ino, hurt)| (*ino, hurt.version)).collect();
        let (still, over): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(ino, version)| self.is_version(*ino, *version));
        let mut known = self.damage.0.lock();
        for (ino, _) in over {
            known.remove(&ino);
        }
        still.iter().filter_map(|(ino, _)| known.get(ino)).flat_map(|hurt| hurt.findings.clone()).take(MOST).collect()
    }

    fn is_version(&self, ino: Ino, (segment, version): (SegmentId, u64)) -> bool {
        let view = self.pool.view();
        let found = view.object(ino).and_then(|object| Some((object.attributes.segment?, object.chain()?.version())));
        found == Some((segment, version))
    }
}
