//! A directory of a pool, opened: the one way to what is in it.
//!
//! A pool may be damaged, or belong to somebody whom the one who serves it does not trust: where a file should be may
//! stand a FIFO, whose open waits for another program, a device, a link that leads out of the pool, or a second name of
//! a file that its owner may not even read; and it may be changed while it is looked at. So nothing is reached by a
//! path, nothing is followed, nothing is waited for, and what was opened, and nothing else, is looked at before it is
//! used: it is a regular file or a directory, and belongs to whoever the pool belongs to. Where a path is kept, it is
//! for messages.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{LinkatFlags, UnlinkatFlags, linkat, unlinkat};

use crate::medium::acting::Acting;
use crate::medium::foreign::{Foreign, kind_name, other_kind};
use crate::medium::owner::Owner;
use crate::medium::way::open_asking_nobody;

/// With these, everything is opened.
const ALWAYS: OFlag = OFlag::O_CLOEXEC.union(OFlag::O_NOFOLLOW).union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY);
/// With these, it is one that was just made.
const NEW: OFlag = OFlag::O_CREAT.union(OFlag::O_EXCL);
/// A directory, to look into it and to sync it.
const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC).union(OFlag::O_NONBLOCK);
/// What something is can be seen without opening it.
const LOOK: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC).union(OFlag::O_NOFOLLOW);
/// The way from a directory to what is below it.
const BENEATH: ResolveFlag =
    ResolveFlag::RESOLVE_BENEATH.union(ResolveFlag::RESOLVE_NO_SYMLINKS).union(ResolveFlag::RESOLVE_NO_MAGICLINKS);
/// Directories in each other that are removed with what they are in.
const DEPTH: usize = 128;

/// A directory of a pool or of a tier.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    /// Whose everything in it has to be.
    owner: Owner,
    /// Whether it is his as well: else only this process may change what is in it.
    is_owners: bool,
    /// For messages.
    path: PathBuf,
}

/// A name in a directory.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The name itself.
    pub name: CString,
    /// What it is of.
    pub kind: SFlag,
}

impl Entry {
    /// The name, if it is text, as all that we give are.
    pub fn text(&self) -> Option<&str> {
        self.name.to_str().ok()
    }

    /// For messages.
    pub fn shown(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }
}

impl Dir {
    /// Opens the directory of a pool, as its user calls it. Whose it is everything in it has to be.
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = nix::fcntl::open(path, DIRECTORY, Mode::empty())?;
        let owner = Owner::of(&fstat(&fd)?);
        Ok(Self { fd, owner, is_owners: true, path: path.to_owned() })
    }

    /// Opens a directory elsewhere, with no link on the way to it. What is in it has to be the owner's. Where root has
    /// somebody else's pool in use, nothing is asked of what a user has mounted.
    pub fn elsewhere(path: &Path, owner: Owner) -> io::Result<Self> {
        if owner.is_other() {
            let fd = open_asking_nobody(path, DIRECTORY | OFlag::O_NOFOLLOW)?;
            let is_owners = owner.check(&fstat(&fd)?).is_ok();
            return Ok(Self { fd, owner, is_owners, path: path.to_owned() });
        }
        let how = OpenHow::new().flags(DIRECTORY | OFlag::O_NOFOLLOW).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        let fd = match openat2(AT_FDCWD, path, how) {
            Err(Errno::ENOSYS | Errno::EPERM) => nix::fcntl::open(path, DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty())?,
            opened => opened?,
        };
        let is_owners = owner.check(&fstat(&fd)?).is_ok();
        Ok(Self { fd, owner, is_owners, path: path.to_owned() })
    }

    /// Makes a directory where none is, with those above it, and opens it. Its name is durable.
    pub fn make_at(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let above =
            path.ancestors().skip(1).find_map(|above| match nix::fcntl::open(above, DIRECTORY, Mode::empty()) {
                Err(Errno::ENOENT) => None,
                opened => Some((above, opened)),
            });
        let Some((above, opened)) = above else { return Err(Errno::ENOENT.into()) };
        let fd = opened?;
        let owner = Owner::of(&fstat(&fd)?);
        let missing = path.strip_prefix(above).unwrap_or(&path);
        let mut made = Self { fd, owner: owner.own(), is_owners: true, path: above.to_owned() }.make_below(missing)?;
        made.owner = Owner::of(&made.stat_self()?);
        Ok(made)
    }

    /// The nearest directory above something that is there, with no link on the way to it; and the way from there.
    pub fn nearest(path: &Path, owner: Owner) -> io::Result<(Self, PathBuf)> {
        for above in path.ancestors().skip(1) {
            match Self::elsewhere(above, owner) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                found => return Ok((found?, path.strip_prefix(above).unwrap_or(path).to_owned())),
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    /// Makes directories below each other, for the owner, and opens the last one. Their names are durable.
    pub fn make_below(&self, way: &Path) -> io::Result<Self> {
        let mut at = self.again()?;
        for part in way {
            let made = at.make_dir(part)?;
            at.sync()?;
            at = made;
        }
        Ok(at)
    }

    /// Opened once more.
    fn again(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, path: self.path.clone(), ..*self })
    }

    /// What is asked of the host for something in it is asked as its owner.
    fn act(&self) -> Acting {
        if self.is_owners { self.owner.act() } else { Acting::itself() }
    }

    /// For messages, and for nothing else.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// For messages: where something in it is.
    pub fn path_of(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Whose everything in it has to be.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// What the host says of the directory itself.
    pub fn stat_self(&self) -> io::Result<FileStat> {
        Ok(fstat(&self.fd)?)
    }

    /// Makes the names in it durable.
    pub fn sync(&self) -> io::Result<()> {
        Ok(nix::unistd::fsync(&self.fd)?)
    }

    fn resolve(&self) -> ResolveFlag {
        // The owner of a pool may be able to mount a filesystem of his own in it, which answers or does not.
        if self.owner.is_other() { BENEATH | ResolveFlag::RESOLVE_NO_XDEV } else { BENEATH }
    }

    fn at<P: ?Sized + NixPath>(&self, name: &P, flags: OFlag, mode: Mode) -> nix::Result<OwnedFd> {
        let _acting = self.act();
        match openat2(&self.fd, name, OpenHow::new().flags(flags).mode(mode).resolve(self.resolve())) {
            // A kernel or a container that lacks the call, or a refusal that comes again.
            Err(Errno::ENOSYS | Errno::EPERM) => self.at_step_by_step(name, flags, mode),
            opened => opened,
        }
    }

    /// As [`Dir::at`], one directory after the other.
    fn at_step_by_step<P: ?Sized + NixPath>(&self, name: &P, flags: OFlag, mode: Mode) -> nix::Result<OwnedFd> {
        name.with_nix_path(|name| {
            let mut parts = name.to_bytes().split(|byte| *byte == b'/').map(OsStr::from_bytes).peekable();
            let mut dir: Option<OwnedFd> = None;
            while let Some(part) = parts.next() {
                if part.is_empty() || part == ".." {
                    return Err(Errno::EXDEV);
                }
                let at = dir.as_ref().map_or(self.fd.as_fd(), AsFd::as_fd);
                if parts.peek().is_none() {
                    return openat(at, part, flags | OFlag::O_NOFOLLOW, mode);
                }
                dir = Some(openat(at, part, DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty())?);
            }
            Err(Errno::ENOENT)
        })?
    }

    /// Opens a directory in it, which belongs to the pool.
    pub fn below<P: ?Sized + NixPath + AsRef<OsStr>>(&self, name: &P) -> io::Result<Self> {
        let path = self.path_of(name.as_ref());
        let fd = match self.at(name, DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::EXDEV) => return Err(Foreign::Mounted.into()),
            Err(errno @ (Errno::ENOTDIR | Errno::ELOOP)) => {
                let kind = self.kind(name).unwrap_or(SFlag::S_IFDIR);
                return Err(match kind == SFlag::S_IFDIR {
                    true => errno.into(),
                    false => Foreign::NoDirectory(kind_name(kind)).into(),
                });
            }
            Err(errno) => return Err(errno.into()),
        };
        self.owner.check(&fstat(&fd)?)?;
        Ok(Self { fd, owner: self.owner, is_owners: true, path })
    }

    fn kind<P: ?Sized + NixPath>(&self, name: &P) -> io::Result<SFlag> {
        Ok(SFlag::from_bits_truncate(self.stat(name)?.st_mode & libc::S_IFMT))
    }

    /// Opens a regular file of the pool's, with access and flags as for open(2). One that is made is private, and has
    /// to be given to the owner.
    pub fn open_file<P: ?Sized + NixPath>(&self, name: &P, flags: libc::c_int) -> io::Result<OwnedFd> {
        let flags = OFlag::from_bits_retain(flags);
        let mode = if flags.contains(OFlag::O_CREAT) { Mode::S_IRUSR | Mode::S_IWUSR } else { Mode::empty() };
        match self.at(name, flags | ALWAYS, mode) {
            Ok(file) if flags.contains(NEW) => Ok(file),
            Ok(file) => {
                self.check_file(&fstat(&file)?)?;
                Ok(file)
            }
            Err(errno @ (Errno::ENOENT | Errno::EEXIST)) => Err(errno.into()),
            Err(Errno::EXDEV) => Err(Foreign::Mounted.into()),
            Err(errno) => {
                // Looked at without being opened: what it is says more than why it could not be.
                let Ok(there) = self.at(name, LOOK, Mode::empty()) else { return Err(errno.into()) };
                self.check_file(&fstat(&there)?)?;
                match errno {
                    // Somebody has a lease on it, and was told to give it back.
                    Errno::EAGAIN => {
                        let _acting = self.act();
                        reopen(&there, flags)
                    }
                    errno => Err(errno.into()),
                }
            }
        }
    }

    /// As [`Dir::open_file`], for what is written in place and has one name. Where others may put names into this
    /// directory, it may be a second name of a file of the owner's that stands elsewhere.
    pub fn open_only<P: ?Sized + NixPath>(&self, name: &P, flags: libc::c_int) -> io::Result<File> {
        let file = self.open_file(name, flags)?;
        if fstat(&file)?.st_nlink > 1 && self.is_open_to_others()? {
            return Err(Foreign::Linked.into());
        }
        Ok(file.into())
    }

    /// That something is a regular file of the pool's.
    pub fn check_file(&self, found: &FileStat) -> Result<(), Foreign> {
        match other_kind(found) {
            Some(kind) => Err(Foreign::NoFile(kind)),
            None => self.owner.check(found),
        }
    }

    /// Makes a file that is not there yet, and gives it to the owner.
    pub fn create<P: ?Sized + NixPath>(&self, name: &P) -> io::Result<File> {
        let made = self.open_file(name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)?;
        self.owner.give(&made)?;
        Ok(made.into())
    }

    /// As [`Dir::create`], in place of what has the name, unless that is somebody else's.
    pub fn create_anew<P: ?Sized + NixPath>(&self, name: &P) -> io::Result<File> {
        match self.stat(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => {
                self.owner.check(&found?)?;
                self.unlink_if_there(name)?;
            }
        }
        self.create(name)
    }

    /// Writes a note under the name `new`, and then puts it in the place of the one before: there is a whole one at any
    /// moment. What has one of the names and is none of the pool's stays, and is an error.
    pub fn replace_note<P: ?Sized + NixPath>(
        &self,
        name: &P,
        new: &P,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        self.is_note(name)?;
        self.remove_note(new)?;
        let mut file = self.create(new)?;
        // It may be another one by now.
        let written = write(&mut file).and_then(|()| self.is_note(name));
        written.and_then(|_| self.rename(new, self, name)).inspect_err(|_| drop(self.remove_note(new)))
    }

    /// Removes a note; one that is not there is fine. What has the name and is none of the pool's stays, and is an
    /// error.
    pub fn remove_note<P: ?Sized + NixPath>(&self, name: &P) -> io::Result<()> {
        if self.is_note(name)? { self.unlink_if_there(name) } else { Ok(()) }
    }

    /// True if what has a name is a note of the pool's, false if nothing has it. Anything else is an error: to take the
    /// name from it would change a file that may be elsewhere, too. Who has a pool of his own may have copied it with
    /// links, if only he can put names into it.
    fn is_note<P: ?Sized + NixPath>(&self, name: &P) -> io::Result<bool> {
        let found = match self.stat(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            found => found?,
        };
        self.check_file(&found)?;
        if found.st_nlink > 1 && (self.owner.is_other() || self.is_open_to_others()?) {
            return Err(Foreign::Linked.into());
        }
        Ok(true)
    }

    /// True if others than the owner may put names into it.
    fn is_open_to_others(&self) -> io::Result<bool> {
        Ok(self.stat_self()?.st_mode & 0o022 != 0)
    }

    /// Makes a directory that is not there yet, and gives it to the owner.
    pub fn make_dir<P: ?Sized + NixPath + AsRef<OsStr>>(&self, name: &P) -> io::Result<Self> {
        self.make_dir_for(name, |_| false)
    }

    /// As [`Dir::make_dir`], where others of this process may make `expected` entries in it meanwhile.
    pub fn make_dir_for<P: ?Sized + NixPath + AsRef<OsStr>>(
        &self,
        name: &P,
        expected: impl Fn(&Entry) -> bool,
    ) -> io::Result<Self> {
        let acting = self.act();
        nix::sys::stat::mkdirat(&self.fd, name, Mode::S_IRWXU)?;
        let path = self.path_of(name.as_ref());
        let fd = self.at(name, DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty())?;
        let mut made = Self { fd, owner: self.owner, is_owners: acting.is_another(), path };
        if self.owner.is_other() && !acting.is_another() {
            // Nobody gives a directory away that he did not make: another one may have taken its name meanwhile.
            let found = made.stat_self()?;
            let is_new = found.st_uid == self.owner.process().as_raw() && found.st_mode & 0o777 == 0o700;
            if !is_new || !made.entries()?.iter().all(expected) {
                return Err(Foreign::Owner { found: found.st_uid, owner: self.owner.uid() }.into());
            }
            self.owner.give(&made.fd)?;
        }
        self.owner.check(&made.stat_self()?)?;
        made.is_owners = true;
        Ok(made)
    }

    /// What the host says of a name. Nothing is followed.
    pub fn stat<P: ?Sized + NixPath>(&self, name: &P) -> io::Result<FileStat> {
        if self.owner.is_other() {
            return match self.at(name, LOOK, Mode::empty()) {
                Err(Errno::EXDEV) => Err(Foreign::Mounted.into()),
                there => Ok(fstat(&there?)?),
            };
        }
        Ok(fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW)?)
    }

    /// True if there is anything of the name.
    pub fn has<P: ?Sized + NixPath>(&self, name: &P) -> bool {
        self.stat(name).is_ok()
    }

    /// Reads a file that is not larger than `most`.
    pub fn read<P: ?Sized + NixPath>(&self, name: &P, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::from(self.open_file(name, libc::O_RDONLY)?).take(most + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > most {
            true => Err(io::ErrorKind::FileTooLarge.into()),
            false => Ok(bytes),
        }
    }

    /// The names in it.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let _acting = self.act();
        let mut opened = nix::dir::Dir::openat(&self.fd, c".", DIRECTORY, Mode::empty())?;
        let mut entries = Vec::new();
        for entry in opened.iter() {
            let entry = entry?;
            let name = entry.file_name().to_owned();
            if [c".", c".."].contains(&name.as_c_str()) {
                continue;
            }
            use nix::dir::Type;
            let kind = match entry.file_type() {
                Some(Type::File) => SFlag::S_IFREG,
                Some(Type::Directory) => SFlag::S_IFDIR,
                Some(Type::Symlink) => SFlag::S_IFLNK,
                Some(Type::Fifo) => SFlag::S_IFIFO,
                Some(Type::Socket) => SFlag::S_IFSOCK,
                Some(Type::CharacterDevice | Type::BlockDevice) => SFlag::S_IFCHR,
                None => match self.kind(name.as_c_str()) {
                    // Gone by now.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    kind => kind?,
                },
            };
            entries.push(Entry { name, kind });
        }
        Ok(entries)
    }

    /// True if there is nothing in it.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.entries()?.is_empty())
    }

    /// Removes a name of anything but a directory.
    pub fn unlink<P: ?Sized + NixPath>(&self, name: &P) -> io::Result<()> {
        let _acting = self.act();
        Ok(unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// As [`Dir::unlink`]; one that is not there is fine.
    pub fn unlink_if_there<P: ?Sized + NixPath>(&self, name: &P) -> io::Result<()> {
        let _acting = self.act();
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(Errno::EISDIR) => Err(Foreign::NoFile("a directory").into()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes an empty directory.
    pub fn remove_dir<P: ?Sized + NixPath>(&self, name: &P) -> io::Result<()> {
        let _acting = self.act();
        Ok(unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir)?)
    }

    /// Removes a name, and if it is a directory all that is in it. One that is not there is fine.
    pub fn remove_all(&self, name: &str) -> io::Result<()> {
        self.remove_below(&CString::new(name)?, DEPTH)
    }

    fn remove_below(&self, name: &CStr, depth: usize) -> io::Result<()> {
        let _acting = self.act();
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            Err(Errno::EISDIR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if depth == 0 {
            return Err(io::Error::other("directories in it lie too deep in each other; remove them first"));
        }
        let shown = OsStr::from_bytes(name.to_bytes());
        let inside = self.below(shown)?;
        for entry in inside.entries()? {
            inside.remove_below(&entry.name, depth - 1)?;
        }
        self.remove_dir(name)
    }

    /// Gives what has a name in this directory another one, in a directory of the same pool.
    pub fn rename<P, Q>(&self, name: &P, to: &Self, new: &Q) -> io::Result<()>
    where
        P: ?Sized + NixPath,
        Q: ?Sized + NixPath,
    {
        let _acting = self.act();
        Ok(nix::fcntl::renameat(&self.fd, name, &to.fd, new)?)
    }

    /// Gives a file that has a name in this directory a second one, in a directory of the same pool. `file` is that
    /// file: what is found to be another one by then gets none.
    pub fn link<P, Q>(&self, name: &P, file: impl AsFd, to: &Self, new: &Q) -> io::Result<()>
    where
        P: ?Sized + NixPath,
        Q: ?Sized + NixPath,
    {
        let _acting = self.act();
        linkat(&self.fd, name, &to.fd, new, LinkatFlags::empty())?;
        let (wanted, linked) = (fstat(file)?, to.stat(new)?);
        if (wanted.st_dev, wanted.st_ino) != (linked.st_dev, linked.st_ino) {
            to.unlink(new)?;
            return Err(io::Error::other("it was replaced by something else meanwhile"));
        }
        Ok(())
    }

    /// The directory and the last name of something that lies some directories below.
    pub fn walk<'a>(&self, way: &'a Path) -> io::Result<(Self, &'a OsStr)> {
        let mut at = self.again()?;
        let name = way.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        for part in way.parent().into_iter().flat_map(Path::iter) {
            at = at.below(part)?;
        }
        Ok((at, name))
    }

    /// The space of the filesystem that it is on.
    pub fn space(&self) -> io::Result<nix::sys::statvfs::Statvfs> {
        Ok(nix::sys::statvfs::fstatvfs(&self.fd)?)
    }

    /// The filesystem that it is on.
    pub fn filesystem(&self) -> io::Result<nix::sys::statfs::FsType> {
        Ok(nix::sys::statfs::fstatfs(&self.fd)?.filesystem_type())
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a file that is known to be a regular one, and waits for whoever has a lease on it.
fn reopen(there: &OwnedFd, flags: OFlag) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", there.as_raw_fd());
    let flags = flags.difference(OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK) | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(path.as_str(), flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, chown, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    const KINDS: [(&str, &str); 4] =
        [("fifo", "a FIFO"), ("directory", "a directory"), ("link", "a symbolic link"), ("socket", "a socket")];

    fn odd_files() -> (tempfile::TempDir, Dir) {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        fs::create_dir(at("directory")).unwrap();
        fs::write(at("plain"), b"bytes").unwrap();
        symlink("plain", at("link")).unwrap();
        symlink("directory", at("way")).unwrap();
        drop(UnixListener::bind(at("socket")).unwrap());
        let dir = Dir::open(scratch.path()).unwrap();
        (scratch, dir)
    }

    fn why<T: std::fmt::Debug>(done: io::Result<T>) -> Foreign {
        Foreign::of(&done.unwrap_err()).unwrap().clone()
    }

    #[test]
    fn nothing_but_a_regular_file_is_opened_and_nothing_is_waited_for() {
        let (_scratch, dir) = odd_files();
        for (name, kind) in KINDS {
            for flags in [
                libc::O_RDONLY,
                libc::O_WRONLY,
                libc::O_RDWR,
                libc::O_RDWR | libc::O_CREAT,
                libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC,
                libc::O_RDONLY | libc::O_DIRECT,
            ] {
                let refused = dir.open_file(name, flags).unwrap_err();
                assert_eq!(refused.to_string(), format!("it is {kind}, not a regular file"), "{name} {flags:#o}");
            }
            let mode = OFlag::O_RDONLY | ALWAYS;
            assert_eq!(dir.at_step_by_step(name, mode, Mode::empty()).is_ok(), ["fifo", "directory"].contains(&name));
            assert_eq!(dir.below(name).is_ok(), kind == "a directory", "{name}");
            assert_eq!(dir.create(name).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(dir.read("plain", 5).unwrap(), b"bytes");
        assert!(dir.read("plain", 4).is_err());
        assert_eq!(dir.open_file("missing", libc::O_RDONLY).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn no_way_leads_out() {
        let (scratch, dir) = odd_files();
        fs::write(scratch.path().join("directory/inside"), b"").unwrap();
        let inner = dir.below("directory").unwrap();
        for way in ["../plain", "/etc/passwd"] {
            assert!(inner.open_file(way, libc::O_RDONLY).is_err(), "{way}");
            assert!(inner.at_step_by_step(way, OFlag::O_RDONLY, Mode::empty()).is_err(), "{way}");
        }
        assert!(dir.open_file("directory/inside", libc::O_RDONLY).is_ok());
        assert!(dir.at_step_by_step("directory/inside", OFlag::O_RDONLY, Mode::empty()).is_ok());
        assert!(dir.open_file("way/inside", libc::O_RDONLY).is_err());
        assert!(dir.at_step_by_step("way/inside", OFlag::O_RDONLY, Mode::empty()).is_err());
        assert_eq!(why(dir.below("way")), Foreign::NoDirectory("a symbolic link"));
        assert_eq!(why(dir.walk(Path::new("way/inside"))), Foreign::NoDirectory("a symbolic link"));
        assert!(dir.walk(Path::new("directory/../plain")).is_err());
        assert!(Dir::elsewhere(&scratch.path().canonicalize().unwrap().join("way"), dir.owner()).is_err());
        dir.remove_all("way").unwrap();
        dir.remove_all("directory").unwrap();
        assert!(!dir.has("way") && !dir.has("directory") && dir.has("plain"));
    }

    #[test]
    fn what_belongs_to_others_is_left_alone() {
        let (scratch, _) = odd_files();
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let at = |name: &str| scratch.path().join(name);
        chown(scratch.path(), Some(12_345), Some(23_456)).unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        let foreign = Foreign::Owner { found: 0, owner: 12_345 };
        assert_eq!(why(dir.open_file("plain", libc::O_RDONLY)), foreign);
        assert_eq!(why(dir.below("directory")), foreign);
        chown(at("plain"), Some(12_345), None).unwrap();
        assert!(dir.open_file("plain", libc::O_RDONLY).is_ok());
        let made = dir.make_dir("made").unwrap();
        drop(made.create("file").unwrap());
        for name in ["made", "made/file"] {
            let found = dir.stat(name).unwrap();
            assert_eq!((found.st_uid, found.st_gid), (12_345, 23_456));
        }
    }

    #[test]
    fn the_host_is_asked_as_the_owner() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let (scratch, _) = odd_files();
        for name in ["", "plain", "directory"] {
            chown(scratch.path().join(name), Some(12_345), Some(23_456)).unwrap();
        }
        let dir = Dir::open(scratch.path()).unwrap();
        let mode = |name: &str, mode: u32| {
            fs::set_permissions(scratch.path().join(name), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        };
        let denied = |done: io::Result<()>, what: &str| {
            assert_eq!(done.map_err(|error| error.kind()), Err(io::ErrorKind::PermissionDenied), "{what}");
        };
        assert!(dir.open_file("plain", libc::O_RDWR).is_ok());
        let inner = dir.below("directory").unwrap();
        mode("plain", 0);
        mode("directory", 0);
        denied(dir.open_file("plain", libc::O_RDONLY).map(drop), "opening a file");
        denied(dir.below("directory").map(drop), "opening a directory");
        denied(inner.stat("anything").map(drop), "looking");
        denied(inner.create("made").map(drop), "making a file");
        denied(inner.make_dir("made").map(drop), "making a directory");
        denied(inner.unlink("anything"), "removing");
        denied(inner.entries().map(drop), "listing");
        denied(dir.rename("plain", &inner, "plain"), "renaming");
        denied(dir.link("plain", &dir, &inner, "plain"), "linking");
        mode("directory", 0o700);
        // Root's own directory, in which a tier may be, is root's to change.
        chown(scratch.path().join("directory"), Some(0), Some(0)).unwrap();
        let roots = Dir::elsewhere(&scratch.path().canonicalize().unwrap().join("directory"), dir.owner()).unwrap();
        let made = roots.make_dir("made").unwrap();
        assert_eq!(made.stat_self().unwrap().st_uid, 12_345);
        assert_eq!(roots.create("file").unwrap().metadata().unwrap().uid(), 12_345);
        // Whoever asks is himself again.
        assert_eq!(nix::unistd::setfsuid(nix::unistd::Uid::from_raw(u32::MAX)).as_raw(), 0);
    }

    #[test]
    fn a_file_with_a_second_name_is_not_written_where_others_may_have_given_it_one() {
        let (scratch, dir) = odd_files();
        fs::hard_link(scratch.path().join("plain"), scratch.path().join("second")).unwrap();
        let open = |mode| {
            fs::set_permissions(scratch.path(), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            dir.open_only("second", libc::O_RDWR)
        };
        assert!(open(0o755).is_ok());
        assert_eq!(why(open(0o777)), Foreign::Linked);
    }

    #[test]
    fn a_note_takes_the_place_of_nothing_but_a_note() {
        let (scratch, dir) = odd_files();
        let at = |name: &str| scratch.path().join(name);
        let write = |file: &mut File| io::Write::write_all(file, b"note");
        dir.replace_note("note", "note.new", write).unwrap();
        dir.replace_note("note", "note.new", write).unwrap();
        assert_eq!(dir.read("note", 4).unwrap(), b"note");
        let odd = |name: &str, expected: &Foreign| {
            assert_eq!(why(dir.replace_note(name, "other.new", write)), *expected, "{name}");
            assert_eq!(why(dir.replace_note("other", name, write)), *expected, "{name}");
            assert_eq!(why(dir.remove_note(name)), *expected, "{name}");
            assert!(dir.has(name) && !dir.has("other") && !dir.has("other.new"), "{name}");
        };
        for (name, kind) in KINDS {
            odd(name, &Foreign::NoFile(kind));
        }
        // What could not be written leaves the one before.
        let full = |_: &mut File| Err(io::ErrorKind::StorageFull.into());
        assert!(dir.replace_note("note", "note.new", full).is_err());
        assert!(dir.has("note") && !dir.has("note.new"));
        fs::hard_link(at("plain"), at("second")).unwrap();
        let mode = |mode| fs::set_permissions(scratch.path(), std::os::unix::fs::PermissionsExt::from_mode(mode));
        mode(0o777).unwrap();
        odd("second", &Foreign::Linked);
        mode(0o755).unwrap();
        dir.remove_note("second").unwrap();
        for _ in 0..2 {
            dir.remove_note("note").unwrap();
            assert!(!dir.has("note") && !dir.has("second"));
        }
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        fs::hard_link(at("plain"), at("second")).unwrap();
        chown(scratch.path(), Some(12_345), Some(23_456)).unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        let refused = |expected: &Foreign| {
            assert_eq!(why(dir.replace_note("second", "other.new", write)), *expected);
            assert_eq!(why(dir.remove_note("second")), *expected);
        };
        refused(&Foreign::Owner { found: 0, owner: 12_345 });
        chown(at("second"), Some(12_345), None).unwrap();
        refused(&Foreign::Linked);
        assert_eq!(fs::metadata(at("plain")).unwrap().nlink(), 2);
        dir.replace_note("note", "note.new", write).unwrap();
        assert_eq!(dir.stat("note").unwrap().st_uid, 12_345);
    }

    #[test]
    fn directories_that_lie_deep_in_each_other_end_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        let mut at = dir.make_dir("deep").unwrap();
        for _ in 0..DEPTH + 5 {
            at = at.make_dir("d").unwrap();
        }
        assert!(dir.remove_all("deep").unwrap_err().to_string().contains("too deep"));
    }

    #[test]
    fn whoever_has_a_lease_is_waited_for() {
        let (scratch, dir) = odd_files();
        let leased = File::open(scratch.path().join("plain")).unwrap();
        let lease = |kind: libc::c_int| {
            // SAFETY: F_SETLEASE takes an integer and touches no memory of ours.
            unsafe { libc::fcntl(leased.as_raw_fd(), libc::F_SETLEASE, kind) }
        };
        // SAFETY: the signal that asks for the lease is ignored, and nothing else is changed.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        assert_eq!(lease(libc::F_RDLCK), 0);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| dir.open_file("plain", libc::O_RDWR));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!writer.is_finished());
            assert_eq!(lease(libc::F_UNLCK), 0);
            assert!(writer.join().unwrap().is_ok());
        });
    }
}
