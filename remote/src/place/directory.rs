//! A directory as a store.
//!
//! It may belong to somebody whom the one who reads it does not trust, or be changed by others meanwhile: where an
//! object should be may stand a link that leads out of it, a FIFO whose open waits, a device. So it is opened once,
//! nothing is reached from there through a link or another filesystem, nothing is waited for, and an object is a
//! regular file. What is put is durable, names included.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path as HostPath, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::{BoxStream, StreamExt};
use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, renameat};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{LinkatFlags, UnlinkatFlags, fsync, linkat, unlinkat};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// With these, everything is opened.
const ALWAYS: OFlag = OFlag::O_CLOEXEC.union(OFlag::O_NOFOLLOW).union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY);
const DIRECTORY: OFlag = ALWAYS.union(OFlag::O_DIRECTORY);
const BENEATH: ResolveFlag = ResolveFlag::RESOLVE_BENEATH
    .union(ResolveFlag::RESOLVE_NO_SYMLINKS)
    .union(ResolveFlag::RESOLVE_NO_MAGICLINKS)
    .union(ResolveFlag::RESOLVE_NO_XDEV);
/// Directories in each other that a listing looks into: no object lies deeper.
const DEPTH: usize = 3;
/// What is between a name and a number in the name of what is not whole yet; no object has it in its name.
const STAGED: char = '#';
/// So many may have been left there by programs that were killed.
const STAGED_MAX: u32 = 1000;

/// A directory, opened.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    fd: Arc<OwnedFd>,
    /// For messages.
    shown: PathBuf,
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown.display().fmt(f)
    }
}

impl Directory {
    /// Opens one that is there.
    pub fn open(path: &HostPath) -> io::Result<Self> {
        // The way there is the caller's: links on it are his.
        let fd = nix::fcntl::open(path, OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK, Mode::empty())?;
        Ok(Self { fd: Arc::new(fd), shown: path.to_owned() })
    }

    /// One of the directories in it; a link leads nowhere.
    pub fn below(&self, name: &str) -> io::Result<Self> {
        let fd = Arc::new(self.at(name, DIRECTORY)?);
        Ok(Self { fd, shown: self.shown.join(name) })
    }

    /// The directories in it, but those that have no text as their name.
    fn directories(&self) -> Result<Vec<Path>> {
        let top = self.above("").map_err(|errno| told(&Path::default(), errno.into()))?;
        let failed = |errno: Errno| told(&Path::default(), errno.into());
        let mut found = Vec::new();
        for entry in
            Dir::from_fd(top.try_clone().map_err(|error| told(&Path::default(), error))?).map_err(failed)?.iter()
        {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let Ok(path) = Path::parse(name) else { continue };
            let is_directory = fstatat(&top, name, AtFlags::AT_SYMLINK_NOFOLLOW)
                .is_ok_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFDIR);
            found.extend(is_directory.then_some(path));
        }
        Ok(found)
    }

    fn at(&self, way: &str, flags: OFlag) -> nix::Result<OwnedFd> {
        let flags = flags | ALWAYS;
        match openat2(&*self.fd, way, OpenHow::new().flags(flags).resolve(BENEATH)) {
            // A kernel or a container that lacks the call, or a refusal that comes again.
            Err(Errno::ENOSYS | Errno::EPERM) => {
                let (above, name) = way.rsplit_once('/').unwrap_or((".", way));
                let open = |at: OwnedFd, part: &str| openat(at, part, DIRECTORY, Mode::empty());
                let above = above.split('/').try_fold(openat(&*self.fd, ".", DIRECTORY, Mode::empty())?, open)?;
                openat(above, name, flags, Mode::empty())
            }
            opened => opened,
        }
    }

    /// The directory that an object is in.
    fn above(&self, way: &str) -> nix::Result<OwnedFd> {
        self.at(if way.is_empty() { "." } else { way }, DIRECTORY)
    }

    /// As [`Directory::above`]; made where it is not there. Its name is durable.
    fn make_above(&self, way: &str) -> nix::Result<OwnedFd> {
        match self.above(way) {
            Err(Errno::ENOENT) if !way.is_empty() => {}
            opened => return opened,
        }
        let (higher, name) = way.rsplit_once('/').unwrap_or(("", way));
        let higher = self.make_above(higher)?;
        match mkdirat(&higher, name, Mode::from_bits_truncate(0o777)) {
            Ok(()) | Err(Errno::EEXIST) => fsync(&higher)?,
            Err(errno) => return Err(errno),
        }
        self.above(way)
    }

    /// An object, and what is known of it.
    fn get(&self, location: &Path) -> io::Result<(File, ObjectMeta)> {
        let file = File::from(self.at(location.as_ref(), OFlag::O_RDONLY)?);
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(Errno::ELOOP.into());
        }
        let (size, time) = (found.len(), found.modified()?);
        let meta =
            ObjectMeta { location: location.clone(), last_modified: time.into(), size, e_tag: None, version: None };
        Ok((file, meta))
    }

    fn put(&self, location: &Path, payload: &PutPayload, is_new: bool) -> io::Result<()> {
        let (way, name) = split(location);
        let above = self.make_above(way)?;
        let (staged, mut file) = stage(&above, name)?;
        let mut published = || -> io::Result<()> {
            payload.iter().try_for_each(|bytes| file.write_all(bytes))?;
            file.sync_all()?;
            match is_new {
                true => {
                    linkat(&above, staged.as_str(), &above, name, LinkatFlags::empty())?;
                    unlinkat(&above, staged.as_str(), UnlinkatFlags::NoRemoveDir)?;
                }
                false => renameat(&above, staged.as_str(), &above, name)?,
            }
            Ok(fsync(&above)?)
        };
        let outcome = published();
        if outcome.is_err() {
            let _ = unlinkat(&above, staged.as_str(), UnlinkatFlags::NoRemoveDir);
        }
        outcome
    }

    /// Makes the names in a directory, and in those in it, durable.
    pub fn sync(&self, way: &str) -> io::Result<()> {
        let top = match self.above(way) {
            Err(Errno::ENOENT) => return Ok(()),
            top => top?,
        };
        for name in Dir::from_fd(top.try_clone()?)?.iter() {
            let name = name?;
            let Some(name) = name.file_name().to_str().ok().filter(|name| *name != "." && *name != "..") else {
                continue;
            };
            match self.above(&format!("{way}/{name}")) {
                Ok(below) => fsync(&below)?,
                // Where others put something else than directories are no objects.
                Err(Errno::ENOENT | Errno::ELOOP | Errno::ENOTDIR | Errno::EXDEV) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(fsync(&top)?)
    }

    /// What programs that were killed have left of objects that they were putting: names, bytes, and when.
    pub fn staged(&self) -> Result<Vec<ObjectMeta>> {
        let walk = Walk { staged: true, ..Walk::new(self.clone(), None) };
        let is_staged = |found: &Result<ObjectMeta>| found.as_ref().map_or(true, |found| object_of(found).is_some());
        walk.filter(is_staged).collect()
    }

    /// Removes an object, or what is staged of one.
    pub fn delete(&self, location: &Path) -> io::Result<()> {
        let (way, name) = split(location);
        let above = self.above(way)?;
        unlinkat(&above, name, UnlinkatFlags::NoRemoveDir)?;
        Ok(fsync(&above)?)
    }
}

/// The object that something is staged of.
pub(super) fn object_of(staged: &ObjectMeta) -> Option<&str> {
    let (object, number) = staged.location.as_ref().rsplit_once(STAGED)?;
    number.parse::<u32>().is_ok().then_some(object)
}

/// The directory and the name of an object.
fn split(location: &Path) -> (&str, &str) {
    location.as_ref().rsplit_once('/').unwrap_or(("", location.as_ref()))
}

/// A new file beside an object.
fn stage(above: &impl AsFd, name: &str) -> io::Result<(String, File)> {
    let new = ALWAYS | OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
    for number in 1..=STAGED_MAX {
        let staged = format!("{name}{STAGED}{number}");
        match openat(above, staged.as_str(), new, Mode::from_bits_truncate(0o666)) {
            Err(Errno::EEXIST) => {}
            opened => return Ok((staged, opened?.into())),
        }
    }
    Err(io::Error::other(format!("{STAGED_MAX} files {name}{STAGED}N are in the way; remove them")))
}

/// What came of a call, as an object store says it.
fn told(location: &Path, error: io::Error) -> Error {
    let path = location.to_string();
    match error.raw_os_error().map(Errno::from_raw) {
        // A directory is none.
        Some(Errno::ENOENT) => Error::NotFound { path, source: error.into() },
        Some(Errno::EEXIST) => Error::AlreadyExists { path, source: error.into() },
        Some(Errno::EACCES) => Error::PermissionDenied { path, source: error.into() },
        Some(Errno::ELOOP | Errno::ENOTDIR | Errno::EXDEV | Errno::ENXIO) => Error::Generic {
            store: "directory",
            source: "there is a link, a device or another filesystem, and no object".into(),
        },
        _ => Error::Generic { store: "directory", source: error.into() },
    }
}

/// What waits for a disk is done beside whoever asks for it.
async fn beside<T: Send + 'static>(
    location: &Path,
    call: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let location = location.clone();
    let done = tokio::task::spawn_blocking(move || call(&location).map_err(|error| told(&location, error))).await;
    done.map_err(|error| Error::Generic { store: "directory", source: error.into() })?
}

#[async_trait]
impl ObjectStore for Directory {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let is_new = match options.mode {
            PutMode::Overwrite => false,
            PutMode::Create => true,
            PutMode::Update(_) => return nobody("put_opts", self),
        };
        let this = self.clone();
        beside(location, move |location| this.put(location, &payload, is_new)).await?;
        Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let this = self.clone();
        let (file, meta) = beside(location, move |location| this.get(location)).await?;
        options.check_preconditions(&meta)?;
        let range = match options.range {
            Some(range) => range
                .as_range(meta.size)
                .map_err(|error| Error::Generic { store: "directory", source: error.into() })?,
            None => 0..meta.size,
        };
        let payload = GetResultPayload::File(file, self.shown.join(location.as_ref()));
        Ok(GetResult { payload, range, meta, attributes: Default::default(), extensions: Default::default() })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let delete = move |location: Result<Path>| {
            let this = this.clone();
            async move {
                let location = location?;
                beside(&location, move |location| this.delete(location)).await.map(|()| location)
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        futures_util::stream::iter(Walk::new(self.clone(), prefix)).boxed()
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        nobody("put_multipart_opts", self)
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        let this = self.clone();
        let common_prefixes = tokio::task::spawn_blocking(move || this.directories()).await;
        let common_prefixes =
            common_prefixes.map_err(|error| Error::Generic { store: "directory", source: error.into() })??;
        Ok(ListResult { common_prefixes, objects: Vec::new(), extensions: Default::default() })
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        nobody("copy_opts", self)
    }
}

/// What nobody asks for here.
fn nobody<T>(operation: &str, store: &Directory) -> Result<T> {
    Err(Error::NotImplemented { operation: operation.into(), implementer: store.to_string() })
}

/// The regular files below a directory, one after the other.
struct Walk {
    directory: Directory,
    /// The directories that it is in, one in the other, with their ways.
    open: Vec<(Path, OwningIter)>,
    /// Also those that are not whole yet.
    staged: bool,
    failed: Option<Error>,
}

impl Walk {
    fn new(directory: Directory, prefix: Option<&Path>) -> Self {
        let mut walk = Self { directory, open: Vec::new(), staged: false, failed: None };
        let top = prefix.cloned().unwrap_or_default();
        walk.failed = walk.enter(top).err();
        walk
    }

    fn enter(&mut self, way: Path) -> Result<()> {
        let opened = self.directory.above(way.as_ref()).and_then(Dir::from_fd);
        match opened {
            Ok(opened) => self.open.push((way, opened.into_iter())),
            Err(Errno::ENOENT) => {}
            // Where others put something else than directories are no objects.
            Err(Errno::ELOOP | Errno::ENOTDIR | Errno::EXDEV) if !self.open.is_empty() => {}
            Err(errno) => return Err(told(&way, errno.into())),
        }
        Ok(())
    }

    /// What a name is of, if that is an object; a directory is entered.
    fn look(&mut self, name: &str) -> Result<Option<ObjectMeta>> {
        let Some((way, _)) = self.open.last() else { return Ok(None) };
        let Ok(location) = Path::parse(if way.as_ref().is_empty() { name.to_owned() } else { format!("{way}/{name}") })
        else {
            return Ok(None);
        };
        let above = self.directory.above(way.as_ref()).map_err(|errno| told(&location, errno.into()))?;
        let found = match fstatat(&above, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => return Ok(None),
            found => found.map_err(|errno| told(&location, errno.into()))?,
        };
        match found.st_mode & libc::S_IFMT {
            libc::S_IFDIR if self.open.len() < DEPTH => self.enter(location).map(|()| None),
            libc::S_IFREG => {
                let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(found.st_mtime.max(0) as u64);
                let size = found.st_size.max(0) as u64;
                Ok(Some(ObjectMeta { location, last_modified: time.into(), size, e_tag: None, version: None }))
            }
            _ => Ok(None),
        }
    }
}

impl Iterator for Walk {
    type Item = Result<ObjectMeta>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.failed.take() {
            self.open.clear();
            return Some(Err(error));
        }
        loop {
            let (way, names) = self.open.last_mut()?;
            let looked = match names.next() {
                None => {
                    self.open.pop();
                    continue;
                }
                Some(Err(errno)) => Err(told(way, errno.into())),
                Some(Ok(entry)) => match entry.file_name().to_str() {
                    Ok(name) if name != "." && name != ".." && (self.staged || !name.contains(STAGED)) => {
                        self.look(name)
                    }
                    _ => Ok(None),
                },
            };
            match looked {
                Ok(None) => {}
                Ok(Some(found)) => return Some(Ok(found)),
                Err(error) => {
                    self.open.clear();
                    return Some(Err(error));
                }
            }
        }
    }
}
