//! Checkpoints in parts: what the plans in a directory say, kept within a bound of memory.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorfs_formats::Tensor;
use tensorfs_layout::Ino;

use crate::file::Version;

use super::index::Index;
use super::plan::Plan;

/// What is kept of all directories, at most, unless a single one takes more.
const KEPT_MAX: usize = 64 << 20;
/// So many files are remembered to be plans, or none.
const VERDICTS_MAX: usize = 1 << 14;

/// The tensors of a directory's plans.
pub(super) struct Checkpoint {
    /// It stays for as long as the plans are what they are.
    pub stamp: u64,
    /// Where its tensors are in the control tree.
    pub index: Index,
    /// The directory, and its plans as they were when they were read.
    pub dir: Ino,
    pub plans: Vec<(Ino, Version)>,
    /// What they say.
    pub plan: Plan,
    /// They say nothing, as none of them can be read.
    pub is_broken: bool,
}

/// What is known of directories, within a bound of memory.
#[derive(Default)]
pub(super) struct Checkpoints(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    directories: HashMap<Ino, Slot>,
    clock: u64,
    bytes: usize,
    verdicts: HashMap<Ino, (Version, bool)>,
}

struct Slot {
    checkpoint: Arc<Checkpoint>,
    bytes: usize,
    used: u64,
}

impl Checkpoint {
    /// A tensor as its plan describes it, without what only its part says.
    pub fn tensor(&self, nth: u32) -> Option<Tensor> {
        self.plan.tensor(nth as usize)
    }

    /// The name of a part.
    pub fn name_of(&self, file: u32) -> &str {
        self.plan.files().get(file as usize).map_or("", |name| name)
    }

    fn memory(&self) -> usize {
        size_of::<Checkpoint>() + self.plan.memory() + self.index.bytes()
    }
}

impl Checkpoints {
    /// What is known of a directory, if it has these plans.
    pub fn get(&self, dir: Ino, plans: &[(Ino, Version)]) -> Option<Arc<Checkpoint>> {
        let mut kept = self.0.lock();
        kept.clock += 1;
        let now = kept.clock;
        let slot = kept.directories.get_mut(&dir).filter(|slot| slot.checkpoint.plans == plans)?;
        slot.used = now;
        Some(slot.checkpoint.clone())
    }

    /// Keeps what is known of a directory. What was not asked for longest is let go of.
    pub fn put(&self, dir: Ino, checkpoint: Arc<Checkpoint>) {
        let bytes = checkpoint.memory();
        let mut kept = self.0.lock();
        let used = kept.clock;
        kept.bytes += bytes;
        let mut dropped = vec![kept.directories.insert(dir, Slot { checkpoint, bytes, used })];
        loop {
            kept.bytes -= dropped.last().and_then(Option::as_ref).map_or(0, |slot| slot.bytes);
            if kept.bytes <= KEPT_MAX || kept.directories.len() < 2 {
                break;
            }
            let coldest = kept.directories.iter().filter(|(other, _)| **other != dir).min_by_key(|(_, slot)| slot.used);
            let coldest = coldest.map(|(ino, _)| *ino);
            dropped.push(coldest.and_then(|coldest| kept.directories.remove(&coldest)));
        }
        drop(kept);
        drop(dropped);
    }

    /// Whether a version of a file is a plan, if that is known.
    pub fn verdict(&self, plan: Ino, version: &Version) -> Option<bool> {
        self.0.lock().verdicts.get(&plan).filter(|(of, _)| of == version).map(|(_, verdict)| *verdict)
    }

    /// Keeps in mind whether a version of a file is a plan.
    pub fn judge(&self, plan: Ino, version: Version, verdict: bool) {
        let mut kept = self.0.lock();
        if kept.verdicts.len() >= VERDICTS_MAX {
            kept.verdicts.clear();
        }
        kept.verdicts.insert(plan, (version, verdict));
    }
}
