//! Whose a pool is: whoever its directory belongs to. Everything in it belongs to him, also what root makes in it while
//! it serves it; otherwise he could not use it again. What belongs to somebody else is not the pool's.

use std::io;
use std::os::fd::AsFd;

use nix::sys::stat::FileStat;
use nix::unistd::{Gid, Uid, fchown, getegid, geteuid};

use crate::medium::acting::Acting;
use crate::medium::foreign::Foreign;

/// Whose a pool is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    uid: Uid,
    gid: Gid,
    /// This process.
    process: Uid,
}

impl Owner {
    /// As a pool's directory has it.
    pub fn of(directory: &FileStat) -> Self {
        let (uid, gid) = (Uid::from_raw(directory.st_uid), Gid::from_raw(directory.st_gid));
        Self { uid, gid, process: geteuid() }
    }

    /// This process itself, with the group that it has.
    pub fn own(self) -> Self {
        Self { uid: self.process, gid: getegid(), process: self.process }
    }

    /// True if root has the pool of somebody else in use. Nobody else may give files away.
    pub fn is_other(self) -> bool {
        self.process.is_root() && self.uid != self.process
    }

    /// Acts as the owner, if root has the pool of somebody else in use.
    pub fn act(self) -> Acting {
        if self.is_other() { Acting::as_user(self.uid, self.gid) } else { Acting::itself() }
    }

    /// The user.
    pub fn uid(self) -> u32 {
        self.uid.as_raw()
    }

    /// This process.
    pub fn process(self) -> Uid {
        self.process
    }

    /// That a file or directory is the pool's. Who is not root has made his own files in a directory of another's.
    pub fn check(self, found: &FileStat) -> Result<(), Foreign> {
        let whose = Uid::from_raw(found.st_uid);
        if whose == self.uid || whose == self.process && !self.process.is_root() {
            return Ok(());
        }
        Err(Foreign::Owner { found: found.st_uid, owner: self.uid() })
    }

    /// Gives a file or directory that this process just made to the owner.
    pub fn give(self, made: impl AsFd) -> io::Result<()> {
        if self.is_other() {
            fchown(made.as_fd(), Some(self.uid), Some(self.gid))?;
        }
        Ok(())
    }
}
