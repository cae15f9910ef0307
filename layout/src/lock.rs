//! The pool's lock: one process at a time may open a pool. The lock file also says who that is, for messages.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Who holds a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Holder {
    /// Its process.
    pub pid: u32,
    /// Where it has mounted the pool.
    pub mountpoint: Option<PathBuf>,
}

/// The lock, held until dropped.
#[derive(Debug)]
pub(crate) struct PoolLock {
    file: Mutex<File>,
}

fn path(pool: &Path) -> PathBuf {
    pool.join("lock")
}

impl PoolLock {
    /// Takes the lock; `create` also makes the file.
    pub fn take(pool: &Path, create: bool, holder: &Holder) -> Result<Self> {
        let path = path(pool);
        let file = File::options().read(true).write(true).create(create).truncate(false).open(&path);
        let mut file = match file {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::NotAPool { pool: pool.into(), reason: "it has no file \"lock\"".into() });
            }
            Err(error) => return Err(Error::io(path, "open", error)),
        };
        match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&exclusive())) {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EACCES) => {
                let Holder { pid, mountpoint } = announced(&mut file);
                return Err(Error::Busy { pool: pool.into(), pid, mountpoint });
            }
            Err(error) => return Err(Error::io(path, "lock", error.into())),
        }
        let lock = Self { file: Mutex::new(file) };
        lock.announce(holder).map_err(|error| Error::io(path, "write", error))?;
        Ok(lock)
    }

    /// Writes who holds the lock.
    pub fn announce(&self, holder: &Holder) -> io::Result<()> {
        let mut file = self.file.lock();
        let text = serde_json::to_string(holder)?;
        file.rewind()?;
        file.set_len(0)?;
        file.write_all(text.as_bytes())
    }
}

/// The process that has a pool in use, if any. Looks at nothing but the lock.
pub fn holder(pool: &Path) -> Result<Option<Holder>> {
    let path = path(pool);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path, "open", error)),
    };
    let mut lock = exclusive();
    fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut lock)).map_err(|error| Error::io(path, "lock", error.into()))?;
    Ok((i32::from(lock.l_type) != libc::F_UNLCK).then(|| announced(&mut file)))
}

/// An exclusive lock on the whole file. It belongs to the open file, not to the process, and asking who holds one does
/// not get in anybody's way.
fn exclusive() -> libc::flock {
    libc::flock { l_type: libc::F_WRLCK as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 }
}

/// What the holder says of itself; nothing yet if it has only just taken the lock.
fn announced(file: &mut File) -> Holder {
    let mut text = String::new();
    let _ = file.read_to_string(&mut text);
    serde_json::from_str(&text).unwrap_or_default()
}
