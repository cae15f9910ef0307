//! The pool's lock: one process at a time may open a pool. The lock file also says who that is, for messages.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::medium::file_lock::exclusive;
use crate::medium::regular;

/// Who holds a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Holder {
    /// Its process.
    pub pid: u32,
    /// Where it has mounted the pool.
    #[serde(with = "path")]
    pub mountpoint: Option<PathBuf>,
}

/// The lock, held until dropped.
#[derive(Debug)]
pub(crate) struct PoolLock {
    file: Mutex<File>,
}

/// The most that is read of what the holder says of itself.
const MOST: u64 = 64 << 10;

/// The name of the file.
pub(crate) const LOCK: &str = "lock";

fn path(pool: &Path) -> PathBuf {
    pool.join(LOCK)
}

impl PoolLock {
    /// Takes the lock; `create` also makes the file.
    pub fn take(pool: &Path, create: bool, holder: &Holder) -> Result<Self> {
        let path = path(pool);
        // Nobody else may even read it: who can, can lock it too, and so keep the pool from being opened.
        let mut file = match regular::open(&path, libc::O_RDWR | if create { libc::O_CREAT } else { 0 }) {
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
    fn announce(&self, holder: &Holder) -> io::Result<()> {
        let file = self.file.lock();
        let text = serde_json::to_string(holder)?;
        // In one write, so that no reader finds half of it; what an earlier holder wrote may be longer.
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)
    }
}

/// The process that has a pool in use, if any. Looks at nothing but the lock.
pub fn holder(pool: &Path) -> Result<Option<Holder>> {
    let path = path(pool);
    let mut file = match regular::open(&path, libc::O_RDONLY) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path, "open", error)),
    };
    let mut lock = exclusive();
    fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut lock)).map_err(|error| Error::io(path, "lock", error.into()))?;
    Ok((i32::from(lock.l_type) != libc::F_UNLCK).then(|| announced(&mut file)))
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
            let lock = PoolLock::take(dir.path(), true, &Holder { pid: 7, mountpoint: None }).unwrap();
            lock.announce(&Holder { pid: 7, mountpoint: Some(mountpoint.clone()) }).unwrap();
            let found = holder(dir.path()).unwrap().unwrap();
            assert_eq!((found.pid, found.mountpoint.as_ref()), (7, Some(&mountpoint)));
            let refused = PoolLock::take(dir.path(), true, &Holder::default()).unwrap_err();
            assert!(matches!(refused, Error::Busy { pid: 7, .. }));
            drop(lock);
            assert!(holder(dir.path()).unwrap().is_none());
        }
    }
}
