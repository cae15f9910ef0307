//! The way to a directory that somebody else has named. He may have mounted something on it himself, by `fusermount3`,
//! and answer what he likes, or nothing: then whoever asks waits, and not even SIGKILL ends that. So each directory on
//! the way is looked at before anything in it is asked for; what tells of it is the kernel, and no filesystem.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::Mode;

use crate::medium::foreign::Foreign;

/// To go on from there, which asks nothing of what it is.
const STEP: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// Opens a directory with these flags, with no link and no mount of another user on the way to it.
pub(super) fn open_asking_nobody(path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    let mut at = openat(AT_FDCWD, if path.is_absolute() { "/" } else { "." }, STEP, Mode::empty())?;
    // Where that is, this process was put by somebody who may be trusted; of the root of a `chroot` the table may
    // know nothing.
    let mut mount = mount_of(&at)?;
    for part in path.components() {
        let name = match part {
            Component::Normal(name) => name,
            Component::ParentDir => OsStr::new(".."),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
        };
        at = step(&at, name)?;
        let of_it = mount_of(&at)?;
        if of_it != mount {
            mount = of_it;
            check(mount)?;
        }
    }
    Ok(openat(&at, ".", flags, Mode::empty())?)
}

/// From a directory to one in it.
fn step(at: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    let how = OpenHow::new().flags(STEP).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    match openat2(at, name, how) {
        Err(Errno::ENOSYS | Errno::EPERM) => Ok(openat(at, name, STEP | OFlag::O_NOFOLLOW, Mode::empty())?),
        opened => Ok(opened?),
    }
}

/// The number of the mount that something is on.
fn mount_of(fd: &OwnedFd) -> io::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    let number = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    number.ok_or_else(|| io::Error::other("the kernel does not say on which mount it is"))
}

/// Fails for what another user has mounted and serves.
fn check(mount: u64) -> io::Result<()> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let number = mount.to_string();
    let lines = table.split(|byte| *byte == b'\n');
    let mut fields = lines.map(|line| line.split(|byte| *byte == b' '));
    let found = fields.find(|fields| fields.clone().next() == Some(number.as_bytes()));
    // One that is in no directory any more, or is outside of this process's root, is as little to be trusted.
    let user = match found {
        Some(fields) => fuse_user(fields.map(OsStr::from_bytes).filter_map(OsStr::to_str)),
        None => Some("another".to_owned()),
    };
    user.map_or(Ok(()), |user| Err(Foreign::Served { user }.into()))
}

/// Who serves a mount that is in the table with these fields, if it is a user's.
fn fuse_user<'a>(fields: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut behind = fields.skip_while(|field| *field != "-").skip(1);
    let kind = behind.next()?;
    let options = behind.nth(1)?;
    let is_fuse = kind == "fuse" || kind.starts_with("fuse.");
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id="))?;
    (is_fuse && user != "0").then(|| user.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_a_mount_is_stands_in_the_table() {
        let user = |line: &str| fuse_user(line.split(' '));
        let of_a_user = "9 1 0:42 / /a/b rw,nosuid shared:1 - fuse.sshfs a-b rw,user_id=1000,group_id=7";
        assert_eq!(user(of_a_user).as_deref(), Some("1000"));
        assert_eq!(user("9 1 0:42 / /a rw - fuse x rw,user_id=0,group_id=0"), None);
        assert_eq!(user("9 1 8:1 / /a rw - ext4 /dev/x rw,user_id=1000"), None);
    }

    #[test]
    fn the_way_leads_where_a_path_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(path.join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", path.join("l")).unwrap();
        let number = |path: &Path| {
            let fd = open_asking_nobody(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
            io::Result::Ok(nix::sys::stat::fstat(&fd)?.st_ino)
        };
        let same = std::os::unix::fs::MetadataExt::ino(&path.join("a/b").metadata().unwrap());
        assert_eq!(number(&path.join("a/b")).unwrap(), same);
        assert_eq!(number(&path.join("a/../a/./b")).unwrap(), same);
        assert_eq!(number(&path.join("l/b")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        assert_eq!(number(&path.join("c")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(number(Path::new("/proc/self")).is_err(), "a link");
        assert!(number(Path::new("/proc/1")).is_ok());
    }
}
