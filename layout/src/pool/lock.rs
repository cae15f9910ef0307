//! The pool's lock: one process at a time may open a pool. The lock file also says who that is, for messages.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::medium::dir::Dir;
use crate::medium::file_lock::{exclusive, shared};

/// Who holds a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Holder {
    /// Its process; 0 if that is not known.
    pub pid: u32,
    /// Where it has mounted the pool.
    #[serde(with = "path")]
    pub mountpoint: Option<PathBuf>,
}

/// The lock of a pool's directory, held until dropped; longer if it was shared.
#[derive(Debug)]
pub(crate) struct PoolLock {
    dir: Arc<Dir>,
    file: File,
    /// Nothing of the pool can be written, and the file says nothing of its holder.
    is_read_only: bool,
    /// Another process holds on to it, too.
    is_shared: AtomicBool,
}

/// The most that is read of what the holder says of itself.
const MOST: u64 = 64 << 10;

/// The name of the file.
pub(crate) const LOCK: &str = "lock";

impl PoolLock {
    /// Takes the lock of what was found to be a pool.
    pub fn take(dir: impl Into<Arc<Dir>>, holder: &Holder) -> Result<Self> {
        let dir = dir.into();
        match dir.open_only(LOCK, libc::O_RDWR) {
            Ok(file) => Self::take_file(dir, file, holder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(Error::NotAPool { pool: dir.path().into(), reason: "it has no file \"lock\"".into() })
            }
            Err(error) => Err(Error::in_pool(dir.path(), LOCK, "open", error)),
        }
    }

    /// Takes the lock of a pool that cannot be written: who can write it is kept out.
    pub fn take_to_read(dir: impl Into<Arc<Dir>>) -> Result<Self> {
        let dir = dir.into();
        let file = dir.open_only(LOCK, libc::O_RDONLY);
        let file = file.map_err(|error| Error::in_pool(dir.path(), LOCK, "open", error))?;
        Self::take_file_to_read(dir, file)
    }

    fn take_file_to_read(dir: Arc<Dir>, mut file: File) -> Result<Self> {
        match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&shared())) {
            Ok(_) => Ok(Self { dir, file, is_read_only: true, is_shared: AtomicBool::new(false) }),
            Err(Errno::EAGAIN | Errno::EACCES) => {
                let Holder { pid, mountpoint } = announced(&mut file);
                Err(Error::Busy { pool: dir.path().into(), pid, mountpoint })
            }
            Err(error) => Err(Error::in_pool(dir.path(), LOCK, "lock", error.into())),
        }
    }

    /// True if nothing of the pool can be written.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Goes on with a lock that is held: the descriptor is that of whoever took it.
    pub fn inherit(dir: impl Into<Arc<Dir>>, lock: &OwnedFd, holder: &Holder) -> Result<Self> {
        let dir = dir.into();
        let failed = |what, error| Error::in_pool(dir.path(), LOCK, what, error);
        let file = File::from(lock.try_clone().map_err(|error| failed("open", error))?);
        let number = |file: &File| file.metadata().map(|found| (found.dev(), found.ino()));
        let own = dir.open_only(LOCK, libc::O_RDONLY).map_err(|error| failed("open", error))?;
        let same = number(&own).and_then(|own| Ok(own == number(&file)?)).map_err(|error| failed("stat", error))?;
        if !same {
            let what = "the lock that was handed over is not that of this pool".into();
            return Err(Error::Invalid { pool: dir.path().into(), what });
        }
        let flags = fcntl(file.as_fd(), FcntlArg::F_GETFL).map_err(|error| failed("ask", error.into()))?;
        let inherited = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => Self::take_file_to_read(dir, file),
            _ => Self::take_file(dir, file, holder),
        };
        inherited.inspect(|inherited| inherited.is_shared.store(true, Ordering::Relaxed))
    }

    /// Lets go of the lock, also where somebody else holds on to it.
    pub fn release(&self) -> io::Result<()> {
        let unlocked = libc::flock { l_type: libc::F_UNLCK as _, ..exclusive() };
        fcntl(self.file.as_fd(), FcntlArg::F_OFD_SETLK(&unlocked))?;
        Ok(())
    }

    /// The lock for whoever is to hold on to it.
    pub fn share(&self) -> io::Result<OwnedFd> {
        let shared = self.file.try_clone()?;
        self.is_shared.store(true, Ordering::Relaxed);
        Ok(shared.into())
    }

    /// Takes the lock of what is to become a pool, or is to be one again. Makes the file if it is not there.
    pub fn make(dir: impl Into<Arc<Dir>>, holder: &Holder) -> Result<Self> {
        let dir = dir.into();
        // Nobody else may even read it: who can, can lock it too, and so keep the pool from being opened.
        let made = match dir.create(LOCK) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => dir.open_only(LOCK, libc::O_RDWR),
            made => made,
        };
        match made {
            Ok(file) => Self::take_file(dir, file, holder),
            Err(error) => Err(Error::in_pool(dir.path(), LOCK, "open", error)),
        }
    }

    fn take_file(dir: Arc<Dir>, mut file: File, holder: &Holder) -> Result<Self> {
        let failed = |what, error| Error::in_pool(dir.path(), LOCK, what, error);
        match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&exclusive())) {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EACCES) => {
                let Holder { pid, mountpoint } = announced(&mut file);
                return Err(Error::Busy { pool: dir.path().into(), pid, mountpoint });
            }
            Err(error) => return Err(failed("lock", error.into())),
        }
        announce(&file, holder).map_err(|error| failed("write", error))?;
        Ok(Self { file, dir, is_read_only: false, is_shared: AtomicBool::new(false) })
    }

    /// The directory.
    pub fn dir(&self) -> &Arc<Dir> {
        &self.dir
    }
}

impl Drop for PoolLock {
    /// Closing it is not enough: a child that another thread has just started holds a copy until it executes its
    /// program.
    fn drop(&mut self) {
        if !*self.is_shared.get_mut() {
            let _ = self.release();
        }
    }
}

/// Writes who holds the lock.
fn announce(file: &File, holder: &Holder) -> io::Result<()> {
    let text = serde_json::to_string(holder)?;
    // In one write, so that no reader finds half of it; what an earlier holder wrote may be longer.
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}

/// The process that has a pool in use, if any. Looks at nothing but the lock.
pub fn holder(pool: &Path) -> Result<Option<Holder>> {
    match Dir::open(pool) {
        Ok(dir) => holder_of(&dir),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(pool, "open", error)),
    }
}

/// The device and the number of the file that is a pool's lock. Nothing is followed on the way, and nothing waited for.
pub fn lock_of(pool: &Path) -> Option<(u64, u64)> {
    let found = File::from(Dir::open(pool).ok()?.open_file(LOCK, libc::O_RDONLY).ok()?).metadata().ok()?;
    Some((found.dev(), found.ino()))
}

/// That a descriptor is the lock of a pool, and that nobody else holds that: takes it if nobody does.
pub fn could_inherit(pool: &Path, lock: &OwnedFd) -> io::Result<()> {
    let found = File::from(lock.try_clone()?).metadata()?;
    if lock_of(pool) != Some((found.dev(), found.ino())) {
        return Err(io::Error::other("it is not the lock of this pool"));
    }
    let written = fcntl(lock, FcntlArg::F_GETFL)? & libc::O_ACCMODE != libc::O_RDONLY;
    match fcntl(lock, FcntlArg::F_OFD_SETLK(&if written { exclusive() } else { shared() })) {
        Ok(_) => Ok(()),
        Err(Errno::EAGAIN | Errno::EACCES) => Err(io::Error::other("somebody else holds the lock of this pool")),
        Err(errno) => Err(errno.into()),
    }
}

/// As [`holder`], of a pool whose directory is open.
pub(crate) fn holder_of(dir: &Dir) -> Result<Option<Holder>> {
    let failed = |what, error| Error::in_pool(dir.path(), LOCK, what, error);
    let mut file = match dir.open_file(LOCK, libc::O_RDONLY) {
        Ok(file) => File::from(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("open", error)),
    };
    let mut lock = exclusive();
    fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut lock)).map_err(|error| failed("lock", error.into()))?;
    Ok(match i32::from(lock.l_type) {
        libc::F_UNLCK => None,
        // Whoever has it could not write who that is.
        libc::F_RDLCK => Some(Holder::default()),
        _ => Some(announced(&mut file)),
    })
}

/// That nobody has a pool in use.
pub(crate) fn check_unused(dir: &Dir) -> Result<()> {
    match holder_of(dir)? {
        Some(Holder { pid, mountpoint }) => Err(Error::Busy { pool: dir.path().into(), pid, mountpoint }),
        None => Ok(()),
    }
}

/// What the holder says of itself; nothing yet if it has only just taken the lock.
fn announced(file: &mut File) -> Holder {
    let mut text = String::new();
    let _ = file.take(MOST).read_to_string(&mut text);
    // A longer text of an earlier holder may still end it.
    let mut values = serde_json::Deserializer::from_str(&text).into_iter();
    values.next().and_then(std::result::Result::ok).unwrap_or_default()
}

/// A path as text, or as an array of bytes where it is none.
mod path {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Form {
        Text(String),
        Bytes(Vec<u8>),
    }

    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        let form = path.as_ref().map(|path| match path.to_str() {
            Some(text) => Form::Text(text.to_owned()),
            None => Form::Bytes(path.as_os_str().as_bytes().to_vec()),
        });
        form.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<Form>::deserialize(deserializer)?.map(|form| match form {
            Form::Text(text) => text.into(),
            Form::Bytes(bytes) => OsString::from_vec(bytes).into(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn the_holder_is_named_wherever_it_has_mounted_the_pool() {
        let dir = tempfile::tempdir().unwrap();
        for mountpoint in [&b"/mnt/tensors"[..], b"/mnt/\xff", b"/m"] {
            let mountpoint = PathBuf::from(OsStr::from_bytes(mountpoint));
            let open = || Dir::open(dir.path()).unwrap();
            let lock = PoolLock::make(open(), &Holder { pid: 7, mountpoint: None }).unwrap();
            announce(&lock.file, &Holder { pid: 7, mountpoint: Some(mountpoint.clone()) }).unwrap();
            let found = holder(dir.path()).unwrap().unwrap();
            assert_eq!((found.pid, found.mountpoint.as_ref()), (7, Some(&mountpoint)));
            let refused = PoolLock::make(open(), &Holder::default()).unwrap_err();
            assert!(matches!(refused, Error::Busy { pid: 7, .. }));
            drop(lock);
            assert!(holder(dir.path()).unwrap().is_none());
        }
    }

    #[test]
    fn a_child_that_has_not_yet_executed_its_program_keeps_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Dir::open(dir.path()).unwrap();
        let lock = PoolLock::make(open(), &Holder::default()).unwrap();
        let copy = lock.file.try_clone().unwrap();
        drop(lock);
        let lock = PoolLock::make(open(), &Holder::default()).unwrap();
        drop(copy);
        // Who holds on to a shared one does so.
        let shared = lock.share().unwrap();
        drop(lock);
        let inherited = PoolLock::inherit(open(), &shared, &Holder::default()).unwrap();
        drop(inherited);
        assert!(matches!(PoolLock::make(open(), &Holder::default()), Err(Error::Busy { .. })));
        drop(shared);
        assert!(holder(dir.path()).unwrap().is_none());
    }
}
