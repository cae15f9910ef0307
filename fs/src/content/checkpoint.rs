//! Checkpoints in parts: what the plans in a directory say, kept within a bound of memory.

use std::sync::Arc;

use tensorfs_formats::Tensor;
use tensorfs_layout::Ino;

use crate::error::Result;
use crate::file::Version;
use crate::shares::{Share, Shares};

use super::cache::Verdicts;
use super::databases::{Databases, ReadFrom};
use super::index::Index;
use super::kept::Kept;
use super::plan::Plan;
use super::turns::{Turn, Turns};

/// What all plans take that somebody reads, has read, or that are kept, in lots.
const ROOM: usize = (512 << 20) / LOT;
const LOT: usize = 4 << 10;
/// What is kept of all directories that nobody asks for, at most, unless a single one takes more.
const KEPT_MAX: usize = 64 << 20;
/// What it takes to remember, of some 60,000 files, whether they are plans.
const VERDICTS_MAX: usize = 10 << 20;
/// Reading the plans of a directory takes no more than this. Mostly it is a few times their length.
pub(super) const READING_MAX: usize = 128 << 20;
const READING_LEAST: usize = 1 << 20;
const READING_TIMES: u64 = 4;

/// The tensors of a directory's plans.
pub(super) struct Checkpoint {
    /// It stays for as long as the plans are what they are.
    pub stamp: u64,
    /// Where its tensors are in the control tree.
    pub index: Index,
    /// The directory, and its plans as they were when they were read.
    pub dir: Ino,
    pub plans: Vec<(Ino, Version)>,
    /// Other files that what they say was read from.
    pub read_from: ReadFrom,
    /// What they say.
    pub plan: Plan,
    /// They say nothing, as none of them can be read.
    pub is_broken: bool,
    /// What it takes.
    pub room: Share,
}

/// What is known of directories, within a bound of memory.
pub(super) struct Checkpoints {
    kept: Kept<Arc<Checkpoint>>,
    /// Whether files are plans; and whether databases have something that can be put together.
    pub verdicts: Verdicts,
    pub databases: Databases,
    room: Shares,
    turns: Turns,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self {
            kept: Kept::new(KEPT_MAX),
            verdicts: Verdicts::new(VERDICTS_MAX),
            databases: Databases::default(),
            room: Shares::new(ROOM),
            turns: Turns::default(),
        }
    }
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
        size_of::<Checkpoint>() + self.plan.memory() + self.index.bytes() + self.read_from.memory()
    }
}

/// What reading plans may take that have so many bytes: first, and if that is not enough.
pub(super) fn readings(size: u64) -> [usize; 2] {
    let few = usize::try_from(size.saturating_mul(READING_TIMES)).unwrap_or(READING_MAX);
    [few.saturating_add(READING_LEAST).min(READING_MAX), READING_MAX]
}

impl Checkpoints {
    /// What is known of a directory, if it has these plans.
    pub fn get(&self, dir: Ino, plans: &[(Ino, Version)]) -> Option<Arc<Checkpoint>> {
        self.kept.get(dir, |checkpoint| checkpoint.plans == plans)
    }

    /// The turn to read the plans of a directory: while one does, others wait for what he finds.
    pub fn turn(&self, dir: Ino, wanted: impl Fn() -> Result<()>) -> Result<Turn<'_>> {
        self.turns.wait(dir, wanted)
    }

    /// Room for so many bytes, for a user who waits for it as others do. What nobody asks for gives way.
    pub fn room(&self, uid: Option<u32>, bytes: usize, wanted: impl Fn() -> Result<()>) -> Result<Share> {
        let lots = bytes.div_ceil(LOT);
        self.room.wait_for(uid, lots, || {
            wanted()?;
            Ok(self.room.would_have(uid, lots, self.kept.bytes().div_ceil(LOT)) && self.kept.let_go_of_one())
        })
    }

    /// What was read, which takes less than the room that there was for it. It is kept if it is to be.
    pub fn take_in(&self, mut checkpoint: Checkpoint, is_kept: bool) -> Arc<Checkpoint> {
        let lots = checkpoint.memory().div_ceil(LOT);
        checkpoint.room.shrink_to(lots);
        if is_kept {
            checkpoint.room.be_nobodys();
        }
        let checkpoint = Arc::new(checkpoint);
        if is_kept {
            // As much as of the room: what is let go of is so much that others find.
            self.kept.put(checkpoint.dir, checkpoint.clone(), lots * LOT);
        }
        checkpoint
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crate::error::Fault;

    use super::*;

    /// Proves B16.
    #[test]
    fn small_ones_that_are_kept_give_way_to_large_ones_that_are_read() {
        let all = Checkpoints::default();
        for n in 0..20_000 {
            let room = all.room(None, 100, || Ok(())).unwrap();
            let (index, plan) = (Index::default(), Plan::default());
            let (plans, read_from) = (Vec::new(), ReadFrom::default());
            let one = Checkpoint { stamp: n, index, dir: Ino(n), plans, read_from, plan, is_broken: false, room };
            all.take_in(one, true);
        }
        let looks = Cell::new(0);
        let wanted = || if looks.replace(looks.get() + 1) < 100_000 { Ok(()) } else { Err(Fault::new(libc::EINTR)) };
        let large: Vec<_> = (0..4).map(|_| all.room(None, READING_MAX, wanted).unwrap()).collect();
        assert_eq!((large.len(), all.kept.bytes()), (4, 0));
        let gone = || Err(Fault::new(libc::EINTR));
        assert!(all.room(None, READING_MAX, gone).is_err(), "a fifth waits until one is done");
        drop(large);
        assert!(all.room(None, READING_MAX, gone).is_ok());
    }
}
