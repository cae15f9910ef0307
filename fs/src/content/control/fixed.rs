//! The part of the control tree that does not change, and where the rest of it begins.

use tensorfs_layout::{Ino, ROOT};

/// Numbers of the control tree's objects are above all that a pool hands out.
pub(super) const FIRST: u64 = 1 << 63;
/// Beside [`FIRST`] and a pool's number of a directory: that directory in the tree.
pub(super) const MIRROR: u64 = 1 << 62;

pub(super) const DIRECTORY: Ino = Ino(FIRST);
pub(super) const INFO: Ino = Ino(FIRST + 1);
pub(super) const README: Ino = Ino(FIRST + 2);
pub(super) const PLACEMENT: Ino = Ino(FIRST + 3);
pub(super) const ACCESSES: Ino = Ino(FIRST + 4);
pub(super) const METRICS: Ino = Ino(FIRST + 5);
pub(super) const TRACE: Ino = Ino(FIRST + 6);
/// The root of the pool in the tree.
pub(super) const TENSORS: Ino = Ino(FIRST | MIRROR | ROOT.0);

/// What stands behind the name of a directory for the tensors of the checkpoint in parts that it is.
pub(super) const CHECKPOINT: &[u8] = b".checkpoint";

/// What is in the control directory: number, name, type.
pub(super) const FIXED: [(Ino, &[u8], u32); 7] = [
    (INFO, b"info", libc::S_IFREG),
    (README, b"README", libc::S_IFREG),
    (PLACEMENT, b"placement", libc::S_IFREG),
    (ACCESSES, b"accesses", libc::S_IFREG),
    (METRICS, b"metrics", libc::S_IFREG),
    (TRACE, b"trace", libc::S_IFREG),
    (TENSORS, b"tensors", libc::S_IFDIR),
];

pub(super) const README_TEXT: &[u8] = include_bytes!("README.txt");

/// True for an object of the control tree.
pub(crate) fn is_control(ino: Ino) -> bool {
    ino.0 >= FIRST
}

/// True of the file by which requests are looked at.
pub(crate) fn is_trace(ino: Ino) -> bool {
    ino == TRACE
}

/// True for an object whose directory has to be looked into, which may take long.
pub(super) fn is_slow(ino: Ino) -> bool {
    is_control(ino) && ![DIRECTORY, INFO, METRICS, README, PLACEMENT, ACCESSES, TRACE].contains(&ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_tree_is_apart_from_the_pool() {
        assert!(!is_control(ROOT) && FIXED.iter().all(|(ino, ..)| is_control(*ino)));
        assert!(is_slow(TENSORS) && !is_slow(DIRECTORY) && !is_slow(ROOT));
    }
}
