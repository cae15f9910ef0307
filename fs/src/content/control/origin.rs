//! What the objects of the control tree's changing part stand for.

use tensorfs_layout::{Ino, SegmentId};

use crate::content::index::DirId;

/// What an object of the tree stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// A directory of the pool.
    Mirror(Ino),
    /// A directory of tensors, and the one that it is in. A file of several names has a directory for each: a directory
    /// can be in one place only. `place` tells them apart.
    Directory { file: Ino, dir: DirId, parent: Ino, place: u64 },
    /// A tensor of what a file holds as long as it has that stamp.
    Tensor { file: Ino, segment: SegmentId, stamp: u64, ordinal: u32 },
    /// A directory of tensors of the checkpoint in parts that a directory is, and the one that it is in.
    Checkpoint { dir: Ino, inside: DirId, parent: Ino },
    /// One of these tensors as long as plan and parts have that stamp.
    Assembled { dir: Ino, stamp: u64, ordinal: u32 },
}

impl Origin {
    /// The directory of the pool that is a checkpoint in parts, if it is of one.
    pub fn checkpoint(&self) -> Option<Ino> {
        match *self {
            Origin::Checkpoint { dir, .. } | Origin::Assembled { dir, .. } => Some(dir),
            Origin::Mirror(_) | Origin::Directory { .. } | Origin::Tensor { .. } => None,
        }
    }

    /// True if it is a tensor, and not a directory.
    pub fn is_tensor(&self) -> bool {
        matches!(self, Origin::Tensor { .. } | Origin::Assembled { .. })
    }
}
