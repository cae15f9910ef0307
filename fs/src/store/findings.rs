//! What was found damaged is told, and kept in mind for as long as the file is not written again.

use std::collections::BTreeMap;

use tensorfs_formats::Source;
use tensorfs_layout::check::{Finding, LastScrub, Subject, Unfinished, is_hurt, segment_path};
use tensorfs_layout::segment::QuarantineEntry;
use tensorfs_layout::tree::{View, spelled};
use tensorfs_layout::{Ino, SegmentId};

use crate::clock;
use crate::protocol::Damaged;

use super::Store;
use super::damage::{BadRun, Scrub, Version};

/// So many paths are kept in mind.
const SHOWN: usize = 4096;
/// Tensors of one run that are named.
const NAMED: usize = 16;
/// The longest name of a tensor that is kept, and the longest reason that is told, in characters.
const NAME_LEN: usize = 200;
/// What numbers and lengths take, at most, where a damaged file is told of.
const PER_FILE: usize = 32;

impl Store {
    /// Says in the log what is wrong with a file, and keeps it in mind; or that nothing is. The caller holds the file's
    /// lock, and has seen to it that nothing could write it meanwhile.
    pub fn settle_damage(&self, ino: Ino, file: &dyn Source, faults: &[BadRun]) -> Vec<Finding> {
        if faults.is_empty() {
            self.damage.forget(ino);
            return Vec::new();
        }
        let view = self.pool.view();
        let Some(object) = view.object(ino) else { return Vec::new() };
        let (Some(chain), Some(segment)) = (object.chain().cloned(), object.attributes.segment) else {
            return Vec::new();
        };
        let (path, path_bytes) = spelled(view.path_of(ino));
        drop(view);
        let finding = |fault: &BadRun| {
            let hurt = chain.tensors().filter(|entry| is_hurt(file, entry, fault.offset, fault.len));
            let names = hurt.map(|entry| entry.tensor.label()).chain(fault.tensors.iter().cloned());
            let names = names.take(NAMED).map(|name| name.chars().take(NAME_LEN).collect());
            Finding {
                subject: Subject::File,
                path: path.clone(),
                path_bytes: path_bytes.clone(),
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
        self.damage.keep(ino, (segment, chain.version()), &findings);
        findings
    }

    /// A file is not sealed, as bytes that were sealed before are others now: told as [`Store::settle_damage`] does,
    /// and kept in mind for who would seal it next.
    pub fn settle_unlike(&self, ino: Ino, (segment, file): (SegmentId, &dyn Source), faults: Vec<BadRun>) {
        self.settle_damage(ino, file, &faults);
        self.damage.set_unlike(ino, segment, faults);
    }

    /// Why a file with this segment was not sealed when that was tried last, if it was for other bytes.
    pub fn unlike(&self, ino: Ino, segment: SegmentId) -> Vec<BadRun> {
        self.damage.unlike(ino, segment)
    }

    /// True if a file is known to be damaged, and has not been written since.
    pub fn is_known_damaged(&self, ino: Ino) -> bool {
        self.damage.version(ino).is_some_and(|version| self.is_version(ino, version))
    }

    /// The files that are known to be damaged; one that was written since may be among them.
    pub fn known_damaged(&self) -> Vec<Ino> {
        self.damage.versions().into_iter().map(|(ino, _)| ino).collect()
    }

    /// The path of an object. Asked for again, it is found without a search if nothing was moved.
    pub fn path_to_show(&self, view: &View, ino: Ino) -> Option<Vec<u8>> {
        let known = self.damage.shown().paths.get(&ino).cloned();
        if let Some(path) = known.filter(|path| view.resolve(path) == Some(ino)) {
            return Some(path);
        }
        let path = view.path_of(ino);
        let mut shown = self.damage.shown();
        match &path {
            Some(path) if shown.paths.len() < SHOWN => drop(shown.paths.insert(ino, path.clone())),
            _ => drop(shown.paths.remove(&ino)),
        }
        path
    }

    /// What is in quarantine. It is read anew if one of its directories was changed.
    pub fn quarantined(&self) -> Vec<QuarantineEntry> {
        let (at, changed) = (clock::now(), self.pool.quarantine().changes());
        if let Some((then, seen, entries)) = &self.damage.shown().quarantine
            && *then == changed
            && changed.last().is_some_and(|changed| clock::is_past_tick(changed, *seen))
        {
            return entries.clone();
        }
        let entries = self.pool.quarantine().list().unwrap_or_default();
        self.damage.shown().quarantine = Some((changed, at, entries.clone()));
        entries
    }

    /// Everything that is known, with the paths that the files have now.
    pub fn known_damage(&self) -> Vec<Finding> {
        for (ino, version) in self.damage.versions() {
            if !self.is_version(ino, version) {
                self.damage.forget(ino);
            }
        }
        let mut all = self.damage.all();
        let view = self.pool.view();
        for finding in &mut all {
            let path = finding.ino.and_then(|ino| self.path_to_show(&view, ino));
            (finding.path, finding.path_bytes) = spelled(path);
        }
        all
    }

    /// Files that are known to be damaged, or were lost with their tier and wanted since, in the order of their numbers
    /// from behind one on: the first, and as many more as are told in so many bytes.
    pub fn damaged_behind(&self, behind: Ino, room: usize) -> Vec<Damaged> {
        let mut found: BTreeMap<Ino, String> = BTreeMap::new();
        for finding in self.known_damage() {
            let (Some(ino), Finding { host_file, offset, what, .. }) = (finding.ino, finding) else { continue };
            let told = found.entry(ino).or_default();
            if told.len() < NAME_LEN {
                *told += &format!("{host_file} {offset:?} {what}; ");
            }
        }
        let view = self.pool.view();
        for ino in view.damaged().chain(self.pool.unrecorded_failures()) {
            found.entry(ino).or_insert_with(|| "may have lost bytes".to_owned());
        }
        for ino in self.wanted(&view) {
            found.entry(ino).or_insert_with(|| "was lost with its tier".to_owned());
        }
        let (mut told, mut bytes) = (Vec::new(), 0);
        for (ino, what) in found.into_iter().filter(|(ino, _)| *ino > behind) {
            let Some(path) = self.path_to_show(&view, ino) else { continue };
            let what: String = what.chars().take(NAME_LEN).collect();
            bytes += path.len() + what.len() + PER_FILE;
            if bytes > room && !told.is_empty() {
                break;
            }
            told.push(Damaged { ino, path, what });
        }
        told
    }

    /// The last scrub that came to its end.
    pub fn last_scrub(&self) -> Option<LastScrub> {
        self.damage.last_scrub()
    }

    /// The last scrub, if it was interrupted.
    pub fn unfinished_scrub(&self) -> Option<Unfinished> {
        self.damage.unfinished()
    }

    /// Keeps in the pool what is known, and how far a scrub has come.
    pub fn keep_damage(&self, scrub: Scrub) {
        if self.pool.is_read_only().is_some() {
            return;
        }
        // What was written again since is forgotten.
        self.known_damage();
        if let Err(error) = self.damage.keep_all(scrub, |scrubbed| scrubbed.write(&self.pool)) {
            log::warn!("{}: the next mount will not know what scrubbing found: {error}", self.pool.path().display());
        }
    }

    fn is_version(&self, ino: Ino, (segment, version): Version) -> bool {
        let view = self.pool.view();
        let found = view.object(ino).and_then(|object| Some((object.attributes.segment?, object.chain()?.version())));
        found == Some((segment, version))
    }
}
