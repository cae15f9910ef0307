//! What stands where something of a pool should be, and is not the pool's.

use std::io;

use nix::sys::stat::{FileStat, SFlag};

/// Why something in a pool's directory is not touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Foreign {
    /// Not a regular file.
    #[error("it is {0}, not a regular file")]
    NoFile(&'static str),
    /// Not a directory.
    #[error("it is {0}, not a directory")]
    NoDirectory(&'static str),
    /// A file or directory of somebody else: it may be a second name of one that is no business of the pool's owner.
    #[error("it belongs to user {found}, not to user {owner} as the pool does")]
    Owner {
        /// Whose it is.
        found: u32,
        /// Whose it should be.
        owner: u32,
    },
    /// A file that has a second name, and is written in place.
    #[error("it has another name elsewhere (a hard link)")]
    Linked,
    /// The way leads to a FUSE filesystem of a user, who may leave whoever asks it waiting.
    #[error("the way to it leads to a FUSE filesystem that user {user} serves")]
    Served {
        /// Who has mounted it.
        user: String,
    },
    /// The way leads to another filesystem.
    #[error("another filesystem is mounted there")]
    Mounted,
}

impl From<Foreign> for io::Error {
    fn from(why: Foreign) -> Self {
        Self::new(io::ErrorKind::InvalidInput, why)
    }
}

impl Foreign {
    /// Why a call was refused, if that is because something is not the pool's.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// What something is, if it is not a regular file.
pub(crate) fn other_kind(found: &FileStat) -> Option<&'static str> {
    match SFlag::from_bits_truncate(found.st_mode & libc::S_IFMT) {
        SFlag::S_IFREG => None,
        kind => Some(kind_name(kind)),
    }
}

/// What something is, in words.
pub(crate) fn kind_name(kind: SFlag) -> &'static str {
    match kind {
        SFlag::S_IFREG => "a regular file",
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFLNK => "a symbolic link",
        SFlag::S_IFIFO => "a FIFO",
        SFlag::S_IFSOCK => "a socket",
        _ => "a device",
    }
}
