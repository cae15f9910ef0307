//! The one way to open what a pool consists of.
//!
//! A pool may be damaged, or somebody else's: where a file of it should be may stand a FIFO, whose open waits for
//! another program, a device, or a link that leads out of the pool. So nothing is followed, nothing is waited for, and
//! what is opened is a regular file, or an error that says what it is instead.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{Mode, SFlag, fstat};

/// With these, everything is opened.
const ALWAYS: OFlag = OFlag::O_CLOEXEC.union(OFlag::O_NOFOLLOW).union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY);
/// With these, it is one that was just made.
const NEW: OFlag = OFlag::O_CREAT.union(OFlag::O_EXCL);

/// What a file is, if it is not a regular one.
pub(crate) fn other_kind(mode: libc::mode_t) -> Option<&'static str> {
    match SFlag::from_bits_truncate(mode & libc::S_IFMT) {
        SFlag::S_IFREG => None,
        SFlag::S_IFDIR => Some("a directory"),
        SFlag::S_IFLNK => Some("a symbolic link"),
        SFlag::S_IFIFO => Some("a FIFO"),
        SFlag::S_IFSOCK => Some("a socket"),
        _ => Some("a device"),
    }
}

/// The error for what is not a regular file.
pub(crate) fn wrong_kind(kind: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("it is {kind}, not a regular file"))
}

/// Opens a regular file, with access and flags as for open(2). Who makes one makes it private.
pub(crate) fn open(path: &Path, flags: libc::c_int) -> io::Result<File> {
    open_at(AT_FDCWD, path, flags).map(File::from)
}

/// As [`open`], in a directory. Only the last part of the name is not followed.
pub(crate) fn open_at<P: ?Sized + NixPath>(dir: impl AsFd, name: &P, flags: libc::c_int) -> io::Result<OwnedFd> {
    opened(flags, |flags, mode| openat(&dir, name, flags, mode))
}

/// As [`open_at`], with no link on the way. A kernel or a container that lacks this gives `ENOSYS` or `EPERM`.
pub(crate) fn open_beneath<P: ?Sized + NixPath>(dir: impl AsFd, name: &P, flags: libc::c_int) -> io::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH;
    opened(flags, |flags, mode| openat2(&dir, name, OpenHow::new().flags(flags).mode(mode).resolve(resolve)))
}

fn opened(flags: libc::c_int, open: impl Fn(OFlag, Mode) -> nix::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let flags = OFlag::from_bits_retain(flags);
    let mode = if flags.contains(OFlag::O_CREAT) { Mode::S_IRUSR | Mode::S_IWUSR } else { Mode::empty() };
    match open(flags | ALWAYS, mode) {
        Ok(file) if flags.contains(NEW) => Ok(file),
        Ok(file) => match other_kind(fstat(&file)?.st_mode) {
            None => Ok(file),
            Some(kind) => Err(wrong_kind(kind)),
        },
        Err(errno @ (Errno::ENOENT | Errno::EEXIST)) => Err(errno.into()),
        Err(errno) => {
            // Looked at without being opened: what it is says more than why it could not be.
            let Ok(there) = open(OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW, Mode::empty()) else {
                return Err(errno.into());
            };
            match other_kind(fstat(&there)?.st_mode) {
                Some(kind) => Err(wrong_kind(kind)),
                // Somebody has a lease on it, and was told to give it back.
                None if errno == Errno::EAGAIN => reopen(&there, flags),
                None => Err(errno.into()),
            }
        }
    }
}

/// Opens a file that is known to be a regular one, and waits for whoever has a lease on it.
fn reopen(there: &OwnedFd, flags: OFlag) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", there.as_raw_fd());
    let flags = flags.difference(OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK) | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(path.as_str(), flags, Mode::empty())?)
}

/// Reads a regular file that is not larger than `most`.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, libc::O_RDONLY)?.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(bytes),
    }
}

/// Opens a directory that is no link.
pub(crate) fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    match nix::fcntl::open(path, flags, Mode::empty()) {
        Ok(directory) => Ok(directory.into()),
        Err(errno @ (Errno::ENOTDIR | Errno::ELOOP)) => match kind_at(path) {
            Ok(Some("a directory")) | Err(_) => Err(errno.into()),
            Ok(kind) => {
                let kind = kind.unwrap_or("a regular file");
                Err(io::Error::new(io::ErrorKind::NotADirectory, format!("it is {kind}, not a directory")))
            }
        },
        Err(errno) => Err(errno.into()),
    }
}

/// What is at a path, if it is not a regular file.
pub(crate) fn kind_at(path: &Path) -> io::Result<Option<&'static str>> {
    Ok(other_kind(std::os::unix::fs::MetadataExt::mode(&fs::symlink_metadata(path)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    fn odd_files() -> (tempfile::TempDir, Vec<(&'static str, &'static str)>) {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        fs::create_dir(at("directory")).unwrap();
        fs::write(at("plain"), b"bytes").unwrap();
        symlink("plain", at("link")).unwrap();
        drop(UnixListener::bind(at("socket")).unwrap());
        let kinds =
            vec![("fifo", "a FIFO"), ("directory", "a directory"), ("link", "a symbolic link"), ("socket", "a socket")];
        (dir, kinds)
    }

    #[test]
    fn nothing_but_a_regular_file_is_opened_and_nothing_is_waited_for() {
        let (dir, kinds) = odd_files();
        let here = File::open(dir.path()).unwrap();
        for (name, kind) in kinds {
            for flags in [
                libc::O_RDONLY,
                libc::O_WRONLY,
                libc::O_RDWR,
                libc::O_RDWR | libc::O_CREAT,
                libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC,
                libc::O_RDONLY | libc::O_DIRECT,
            ] {
                let expected = format!("it is {kind}, not a regular file");
                let ways = [
                    open(&dir.path().join(name), flags).map(drop),
                    open_at(&here, name, flags).map(drop),
                    open_beneath(&here, name, flags).map(drop),
                ];
                for opened in ways {
                    assert_eq!(opened.unwrap_err().to_string(), expected, "{name} {flags:#o}");
                }
            }
            assert_eq!(kind_at(&dir.path().join(name)).unwrap(), Some(kind));
            assert_eq!(open_directory(&dir.path().join(name)).is_ok(), kind == "a directory", "{name}");
        }
        assert_eq!(read(&dir.path().join("plain"), 5).unwrap(), b"bytes");
        assert!(read(&dir.path().join("plain"), 4).is_err());
        let missing = open(&dir.path().join("missing"), libc::O_RDONLY).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn whoever_has_a_lease_is_waited_for() {
        let (dir, _) = odd_files();
        let path = dir.path().join("plain");
        let leased = File::open(&path).unwrap();
        let lease = |kind: libc::c_int| {
            // SAFETY: F_SETLEASE takes an integer and touches no memory of ours.
            unsafe { libc::fcntl(leased.as_raw_fd(), libc::F_SETLEASE, kind) }
        };
        // SAFETY: the signal that asks for the lease is ignored, and nothing else is changed.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        assert_eq!(lease(libc::F_RDLCK), 0);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| open(&path, libc::O_RDWR));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!writer.is_finished());
            assert_eq!(lease(libc::F_UNLCK), 0);
            assert!(writer.join().unwrap().is_ok());
        });
    }
}
