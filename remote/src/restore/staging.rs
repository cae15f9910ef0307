//! The directory that a pool is made in before it has its name.

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{geteuid, mkdir};

use crate::error::Error;

/// The directory that a pool is made in. Where others may make names, too, one may have been there, or be put in its
/// place: it is this process's own, and is opened once.
pub struct Staging {
    fd: OwnedFd,
    shown: PathBuf,
}

impl Staging {
    /// Makes it, or opens the one that is there if that is the caller's own.
    pub fn make(path: &Path) -> std::result::Result<Self, String> {
        let cannot = |errno: nix::Error| format!("cannot be made: {}", errno.desc());
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(above).map_err(|error| format!("cannot be made: {error}"))?;
        match mkdir(path, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(cannot(errno)),
        }
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let fd = open(path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::ELOOP | Errno::ENOTDIR => "there is something else than a directory; remove it".to_owned(),
            errno => cannot(errno),
        })?;
        let found = fstat(&fd).map_err(cannot)?;
        if found.st_uid != geteuid().as_raw() || found.st_mode & 0o022 != 0 {
            return Err(format!(
                "is a directory of user {} with mode {:o}, who could write to what is restored there; remove it, or \
                 choose another place",
                found.st_uid,
                found.st_mode & 0o7777
            ));
        }
        Ok(Self { fd, shown: path.to_owned() })
    }

    /// What stands for it as long as it is open, whatever has its name.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd()).into()
    }

    /// An error with the name that the caller knows.
    pub fn named(&self, error: Error) -> Error {
        let (text, path) = (error.to_string(), self.path().display().to_string());
        if !text.contains(&path) {
            return error;
        }
        Error::Refused(text.replace(&path, &self.shown.display().to_string()))
    }
}

/// Where a pool is made before it has its name.
pub fn beside(to: &Path) -> Option<PathBuf> {
    let mut name = to.file_name()?.to_owned();
    name.push(".restoring");
    Some(to.with_file_name(name))
}

/// True of a directory on which something is mounted.
pub fn is_mount_point(path: &Path) -> io::Result<bool> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let at = found.as_mut_ptr();
    // SAFETY: the path ends with a zero, and there is room for what is found.
    let done = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_TYPE, at) };
    Errno::result(done)?;
    // SAFETY: zeroes are a value of this type, and the call has filled it.
    let found = unsafe { found.assume_init() };
    Ok(found.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0)
}
