//! Which of the two trees of the mount a request is about. It is asked once, where the request comes in.

use tensorfs_layout::Ino;

use crate::content::control::is_control;
use crate::error::{Fault, Result};
use crate::store::reserved::is_control_name;

/// One of the two trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Realm {
    /// What users make.
    Tree,
    /// `.tensorfs`, which the server makes up.
    Control,
}

impl Realm {
    /// The tree that an inode is in.
    pub fn of(ino: Ino) -> Self {
        if is_control(ino) { Self::Control } else { Self::Tree }
    }

    /// `Err` unless a name can be made in a directory.
    pub fn check_new_name(dir: Ino, name: &[u8]) -> Result<()> {
        if Self::of(dir) == Self::Control {
            return Err(Fault::new(libc::EPERM));
        }
        if is_control_name(dir, name) {
            return Err(Fault::new(libc::EEXIST));
        }
        Ok(())
    }

    /// `Err` unless a name can be removed from a directory, or moved.
    pub fn check_old_name(dir: Ino, name: &[u8]) -> Result<()> {
        if Self::of(dir) == Self::Control || is_control_name(dir, name) {
            return Err(Fault::new(libc::EPERM));
        }
        Ok(())
    }
}
