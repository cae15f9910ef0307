//! Files and directories below a directory of a mount, with the projects that they count for. Users may change what is
//! there meanwhile: each is opened, and no link followed, before anything is done with it.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat};

use crate::show::failure::{At, Failure};

const PROJECT: &CStr = c"trusted.tensorfs.project";

/// Where a mount tells about itself.
const CONTROL: &str = ".tensorfs";

const ANY: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// A file or a directory.
pub struct Found {
    path: PathBuf,
    opened: OwnedFd,
    device: u64,
    is_dir: bool,
}

impl Found {
    /// What is at a path, or None if it is neither.
    pub fn at(path: &Path) -> Result<Option<Self>, Failure> {
        let opened = nix::fcntl::open(path, ANY, Mode::empty()).at(path)?;
        Self::of(path.to_owned(), opened)
    }

    fn of(path: PathBuf, opened: OwnedFd) -> Result<Option<Self>, Failure> {
        let stat = fstat(&opened).at(&path)?;
        let kind = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits());
        let wanted = kind == SFlag::S_IFDIR || kind == SFlag::S_IFREG;
        Ok(wanted.then_some(Self { path, opened, device: stat.st_dev, is_dir: kind == SFlag::S_IFDIR }))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn is_dir(&self) -> bool {
        self.is_dir
    }

    /// A path that leads there whatever its names are by now.
    fn held(&self) -> CString {
        CString::new(format!("/proc/self/fd/{}", self.opened.as_raw_fd())).unwrap_or_default()
    }

    /// The project that it counts for; 0 for none.
    pub fn project(&self) -> Result<u32, Failure> {
        let (held, mut value) = (self.held(), [0_u8; 16]);
        // SAFETY: two strings that end with NUL, and a buffer of the length that is told.
        let got = unsafe { libc::getxattr(held.as_ptr(), PROJECT.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
        match Errno::result(got) {
            Ok(len) => {
                let text = usize::try_from(len).ok().and_then(|len| std::str::from_utf8(value.get(..len)?).ok());
                text.and_then(|text| text.parse().ok()).ok_or_else(|| Failure::at(&self.path, "no number of a project"))
            }
            Err(Errno::ENODATA) => Ok(0),
            Err(errno) => Err(errno).at(&self.path),
        }
    }

    /// Has it count for another project; 0 for none.
    pub fn set_project(&self, number: u32) -> Result<(), Failure> {
        let (held, value) = (self.held(), number.to_string());
        // SAFETY: two strings that end with NUL, and a value of the length that is told.
        let done = unsafe {
            match number {
                0 => libc::removexattr(held.as_ptr(), PROJECT.as_ptr()),
                _ => libc::setxattr(held.as_ptr(), PROJECT.as_ptr(), value.as_ptr().cast(), value.len(), 0),
            }
        };
        Errno::result(done).map(drop).at(&self.path)
    }

    /// Goes through what is in a directory of the mount whose root is given, and through the directories that `enter`
    /// says. What cannot be looked at is told, and the rest goes on.
    pub fn below(
        &self,
        root: &Path,
        enter: &mut dyn FnMut(&Found) -> Result<bool, Failure>,
        trouble: &mut dyn FnMut(Failure),
    ) {
        let listed =
            fs::read_dir(self.held().to_string_lossy().as_ref()).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let names = match listed.at(&self.path) {
            Ok(listed) => listed,
            Err(failure) => return trouble(failure),
        };
        for name in names.iter().map(fs::DirEntry::file_name) {
            if self.path == root && name == CONTROL {
                continue;
            }
            match self.open(&name) {
                Ok(Some(found)) => match enter(&found) {
                    Ok(true) if found.is_dir => found.below(root, enter, trouble),
                    Ok(_) => {}
                    Err(failure) if found.is_gone() => drop(failure),
                    Err(failure) => trouble(failure),
                },
                Ok(None) => {}
                Err(failure) => trouble(failure),
            }
        }
    }

    /// What has a name in a directory. None of what is gone, is none of both, or is another filesystem's.
    fn open(&self, name: &OsStr) -> Result<Option<Self>, Failure> {
        let path = self.path.join(name);
        match openat(&self.opened, name, ANY, Mode::empty()) {
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
            opened => Ok(Self::of(path.clone(), opened.at(&path)?)?.filter(|found| found.device == self.device)),
        }
    }

    /// True if it has lost its last name.
    fn is_gone(&self) -> bool {
        fstat(&self.opened).map_or(true, |stat| stat.st_nlink == 0)
    }
}
