//! What a pool's carrier notes beside the log: where the second copy is, and how far it has come. The pool itself does
//! not rest on it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use crate::error::{Error, Result};
use crate::log::file::open_pool;
use crate::medium::dir::Dir;
use crate::medium::file_lock::{exclusive, of_byte};
use crate::medium::remote_note::{NEW_REMOTE, REMOTE, REMOTE_LOCK};
use crate::pool::turns::{self, Turn};

/// The most that is read of a note.
pub const NOTE_MOST: u64 = 64 << 10;
/// The byte of the lock file that the carrier has locked. Another one is locked in turns by whoever has files leave.
const BYTE: i64 = 0;

/// The one carrier of a pool, as long as this lives. It may use the pool while others have it open.
#[derive(Debug)]
pub struct Carrying {
    dir: Dir,
    lock: File,
}

impl Carrying {
    /// Takes the place of the pool's carrier; `None` if there is one.
    pub fn take(pool: &Path) -> Result<Option<Self>> {
        let dir = open_pool(pool)?;
        let failed = |error| Error::in_pool(pool, REMOTE_LOCK, "lock", error);
        let lock = match dir.create(REMOTE_LOCK) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => dir.open_only(REMOTE_LOCK, libc::O_RDWR),
            made => made,
        };
        let lock = lock.map_err(failed)?;
        match fcntl(lock.as_fd(), FcntlArg::F_OFD_SETLK(&of_byte(BYTE, exclusive()))) {
            Ok(_) => {
                turns::make_room(&lock).map_err(failed)?;
                Ok(Some(Self { dir, lock }))
            }
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(None),
            Err(error) => Err(failed(error.into())),
        }
    }

    /// True if a pool has a carrier now. Nobody is kept from becoming it.
    pub fn is_taken(pool: &Path) -> Result<bool> {
        is_taken_in(&open_pool(pool)?)
    }

    /// The note that is kept, if there is one.
    pub fn note(&self) -> Result<Option<Carried>> {
        carried_in(&self.dir)
    }

    /// A time in which no file leaves the pool for its remote, until what is returned is dropped. Whoever has looked
    /// before at what is noted has to look again. Nothing if files leave all the while.
    pub fn own_time(&self) -> Result<Option<Turn<'_>>> {
        turns::own_time(&self.dir, &self.lock)
    }

    /// How many files were let leave: as long as it is the same, none has left.
    pub fn left(&self) -> Result<u64> {
        turns::left(&self.dir, &self.lock)
    }

    /// For messages: the pool.
    pub fn pool(&self) -> &Path {
        self.dir.path()
    }

    /// Keeps a note, durably, in the place of the one before.
    pub fn write(&self, note: &[u8]) -> Result<()> {
        let written = || {
            let write = |file: &mut File| file.write_all(note).and_then(|()| file.sync_all());
            self.dir.replace_note(REMOTE, NEW_REMOTE, write)?;
            self.dir.sync()
        };
        written().map_err(|error| Error::in_pool(self.dir.path(), REMOTE, "write", error))
    }

    /// Forgets the note.
    pub fn forget(&self) -> Result<()> {
        let forgotten = self.dir.remove_note(REMOTE).and_then(|()| self.dir.sync());
        forgotten.map_err(|error| Error::in_pool(self.dir.path(), REMOTE, "remove", error))
    }
}

/// The ioctl(2), without an argument, by which a carrier has a mount commit what was done on it. It is no fsync(2):
/// what that says of files that could not be synced is said once, and is for a program.
pub const COMMIT: u32 = nix::request_code_none!(0xa7, 4) as u32;

/// Has the mount that a directory is in commit what was done on it.
///
/// # Errors
/// What its server says; `ENOTTY` of one that does not know this, and where there is none.
pub fn have_committed(mount: &File) -> io::Result<()> {
    // An ioctl is only for whom it is meant: another driver could take it for something else.
    if nix::sys::statfs::fstatfs(mount)?.filesystem_type() != nix::sys::statfs::FUSE_SUPER_MAGIC {
        return Err(io::Error::from_raw_os_error(libc::ENOTTY));
    }
    // SAFETY: the descriptor is open, and the ioctl has no argument.
    let done = unsafe { libc::ioctl(mount.as_raw_fd(), COMMIT as libc::Ioctl) };
    Errno::result(done).map(drop).map_err(io::Error::from)
}

/// What a pool's carrier has noted.
#[derive(Clone, Debug)]
pub struct Carried {
    /// The note.
    pub note: Vec<u8>,
    /// Whose the directory is that it was read from, whatever has its path by now.
    pub owner: u32,
    /// Whether the pool has a carrier now. Nobody is kept from becoming it.
    pub is_taken: bool,
}

/// The note of a pool's carrier, if there is one.
pub fn carried(pool: &Path) -> Result<Option<Carried>> {
    carried_in(&open_pool(pool)?)
}

fn is_taken_in(dir: &Dir) -> Result<bool> {
    let failed = |error| Error::in_pool(dir.path(), REMOTE_LOCK, "look at", error);
    let lock = match dir.open_only(REMOTE_LOCK, libc::O_RDONLY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        lock => lock.map_err(failed)?,
    };
    let mut found = of_byte(BYTE, exclusive());
    fcntl(lock.as_fd(), FcntlArg::F_OFD_GETLK(&mut found)).map_err(|errno| failed(errno.into()))?;
    Ok(libc::c_int::from(found.l_type) != libc::F_UNLCK)
}

pub(crate) fn carried_in(dir: &Dir) -> Result<Option<Carried>> {
    match dir.read(REMOTE, NOTE_MOST) {
        Ok(note) => Ok(Some(Carried { note, owner: dir.owner().uid(), is_taken: is_taken_in(dir)? })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::in_pool(dir.path(), REMOTE, "read", error)),
    }
}
