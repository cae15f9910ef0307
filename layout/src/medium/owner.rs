//! Who a pool's files belong to: whoever made the pool, also where root has it in use. Otherwise its maker could not
//! use it again.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{Gid, Uid, fchown, geteuid};

/// The owner of new files in a directory of a pool, if that is not this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner(Option<(Uid, Gid)>);

impl Owner {
    /// As the directory has it.
    pub fn of(directory: &Path) -> io::Result<Self> {
        let found = fs::metadata(directory)?;
        let (uid, gid) = (Uid::from_raw(found.uid()), Gid::from_raw(found.gid()));
        // Nobody else may give files away.
        Ok(Self((geteuid().is_root() && uid != geteuid()).then_some((uid, gid))))
    }

    /// True if every file belongs to this process as it is.
    pub fn is_self(self) -> bool {
        self.0.is_none()
    }

    /// The user, if that is not this process.
    pub fn uid(self) -> Option<u32> {
        self.0.map(|(uid, _)| uid.as_raw())
    }

    /// Gives a file or directory that was just made to the owner.
    pub fn give(self, file: impl AsFd) -> io::Result<()> {
        match self.0 {
            Some((uid, gid)) => Ok(fchown(file.as_fd(), Some(uid), Some(gid))?),
            None => Ok(()),
        }
    }
}

/// Gives a file that was just made to whoever its directory belongs to.
pub(crate) fn give(file: &File, directory: &Path) -> io::Result<()> {
    Owner::of(directory)?.give(file)
}
