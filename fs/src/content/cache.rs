//! What is known of the tensors of files, within a bound of memory.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorfs_layout::Ino;

use crate::file::Version;

use super::tensors::Tensors;

/// What is kept of all files, at most, unless a single one takes more.
const CACHE_MAX: usize = 96 << 20;
/// So many files are remembered to have no tensors, or some.
const VERDICTS_MAX: usize = 1 << 16;

/// What is known of the tensors of files.
#[derive(Default)]
pub(super) struct TensorCache(Mutex<Known>);

#[derive(Default)]
struct Known {
    files: HashMap<Ino, Slot>,
    clock: u64,
    bytes: usize,
    /// Files that have tensors, or none.
    verdicts: HashMap<Ino, (Version, bool)>,
}

struct Slot {
    tensors: Arc<Tensors>,
    bytes: usize,
    used: u64,
    /// A later change would have shown in the version.
    settled: bool,
}

impl TensorCache {
    /// The tensors of a file as they were when they were looked for, and whether a later change would have shown in
    /// their version.
    pub fn get(&self, ino: Ino) -> Option<(Arc<Tensors>, bool)> {
        let mut known = self.0.lock();
        known.clock += 1;
        let now = known.clock;
        let slot = known.files.get_mut(&ino)?;
        slot.used = now;
        Some((slot.tensors.clone(), slot.settled))
    }

    /// Keeps the tensors of a file. What was not asked for longest is let go of for it.
    pub fn put(&self, ino: Ino, tensors: Arc<Tensors>, settled: bool) {
        let bytes = tensors.memory();
        let mut dropped = Vec::new();
        let mut known = self.0.lock();
        let used = known.clock;
        known.bytes += bytes;
        let old = known.files.insert(ino, Slot { tensors, bytes, used, settled });
        known.bytes -= old.as_ref().map_or(0, |slot| slot.bytes);
        dropped.extend(old);
        while known.bytes > CACHE_MAX && known.files.len() > 1 {
            let coldest = known.files.iter().filter(|(other, _)| **other != ino).min_by_key(|(_, slot)| slot.used);
            let Some(coldest) = coldest.map(|(ino, _)| *ino) else { break };
            let slot = known.files.remove(&coldest);
            known.bytes -= slot.as_ref().map_or(0, |slot| slot.bytes);
            dropped.extend(slot);
        }
        drop(known);
        drop(dropped);
    }

    /// Whether a version of a file has tensors, if that is known.
    pub fn verdict(&self, ino: Ino, version: &Version) -> Option<bool> {
        let known = self.0.lock();
        known.verdicts.get(&ino).filter(|(of, _)| of == version).map(|(_, verdict)| *verdict)
    }

    /// Keeps in mind whether a version of a file has tensors.
    pub fn judge(&self, ino: Ino, version: Version, verdict: bool) {
        let mut known = self.0.lock();
        if known.verdicts.len() >= VERDICTS_MAX && !known.verdicts.contains_key(&ino) {
            known.verdicts.clear();
        }
        known.verdicts.insert(ino, (version, verdict));
    }
}
