//! What a path on the command line stands for: a file or directory as the kernel shows it, or one in a pool that is not
//! mounted, `POOL` or `POOL:/path`.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

use tensorfs_fs::FileState;
use tensorfs_layout::check::Contents;
use tensorfs_layout::medium::Direct;
use tensorfs_layout::pool::looks_like_pool;
use tensorfs_layout::segment::Gone;
use tensorfs_layout::tree::{DEEPEST, Object};
use tensorfs_layout::{Error, Ino, ROOT};

use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::target::out_of_sight;
use crate::mounting::{foreign, paths, sight};
use crate::show::failure::{At, Failure, reason};
use crate::tensors::attribute;
use crate::tensors::called::{Called, Identity};
use crate::tensors::pool_path::{joined, separator, split};
use crate::tensors::recorded::Recorded;

/// A file or a directory.
pub struct Place {
    called: Called,
    /// As it is called in print, once that was asked. A clone does not keep it, nor does what is left of a walk.
    path: OnceCell<PathBuf>,
    at: Where,
}

impl Clone for Place {
    fn clone(&self) -> Place {
        Place::new(self.called.clone(), self.at.clone())
    }
}

#[derive(Clone)]
enum Where {
    Host,
    Pool(Rc<Contents>, Ino),
}

/// The directories of pools that a walk has gone into. Each is gone into once: what is damaged, or was written by
/// somebody who wants nobody to come to an end, may have several names for one, and lead back. Elsewhere one directory
/// may be in several places, and only one that is in itself is not gone into again.
#[derive(Default)]
pub struct Entered {
    directories: HashSet<Identity>,
    /// The last filesystem that was met, and whether it is a mount of ours.
    is_ours: Option<(u64, bool)>,
}

impl Entered {
    /// Fails if the walk has gone into a directory before.
    pub fn enter(&mut self, place: &Place, about: &About) -> Result<(), Failure> {
        let leads_on = place.called.identify(about.identity);
        if (place.is_in_pool() || self.is_ours(about.identity.0)) && !self.directories.insert(about.identity) {
            return Err(Failure::at(place.path(), "a directory that has another name already"));
        }
        if leads_on { Ok(()) } else { Err(Failure::at(place.path(), "a directory that is in itself")) }
    }

    fn is_ours(&mut self, device: u64) -> bool {
        if let Some((_, is_ours)) = self.is_ours.filter(|(known, _)| *known == device) {
            return is_ours;
        }
        let numbers = (libc::major(device), libc::minor(device));
        // Where there is no table, there is no mount of ours.
        let is_it = |mount: &Mount| mount.is_tensorfs() && mount.device() == numbers;
        let is_ours = Table::read().is_ok_and(|table| table.latest_first().any(is_it));
        self.is_ours = Some((device, is_ours));
        is_ours
    }
}

/// Who is shown a directory and what is in it, before that is gone through.
pub type Enter<'a> = dyn FnMut(&Place, &mut Vec<Place>) -> Result<bool, Failure> + 'a;

/// Who is shown a regular file.
pub type Visit<'a> = dyn FnMut(&Place, &About) -> Result<bool, Failure> + 'a;

/// Who hears why something cannot be looked at.
pub type Trouble<'a> = dyn FnMut(Failure) + 'a;

/// What it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Link,
    Other,
}

impl Kind {
    /// Its name in print.
    pub fn name(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Directory => "directory",
            Kind::Link => "symlink",
            Kind::Other => "other",
        }
    }

    fn of_mode(mode: u32) -> Kind {
        match mode & libc::S_IFMT {
            libc::S_IFREG => Kind::File,
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFLNK => Kind::Link,
            _ => Kind::Other,
        }
    }
}

/// What a listing tells of it.
#[derive(Clone, Debug)]
pub struct About {
    /// Which object it is.
    identity: Identity,
    kind: Kind,
    size: u64,
    modified: SystemTime,
}

impl About {
    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// When it was last changed.
    pub fn modified(&self) -> SystemTime {
        self.modified
    }
}

impl Place {
    /// What a path stands for. A pool that is mounted stands for its mount.
    pub fn of(path: &Path) -> Result<Place, Failure> {
        match fs::metadata(path) {
            Ok(_) if looks_like_pool(path) => Place::in_pool(path, OsStr::new("")),
            Ok(_) => Ok(Place::new(Called::named(path.as_os_str()), Where::Host)),
            Err(error) => match split(path) {
                Some((pool, inside)) => Place::in_pool(pool, inside),
                None => Err(error).at(path),
            },
        }
    }

    fn new(called: Called, at: Where) -> Place {
        Place { called, path: OnceCell::new(), at }
    }

    /// As it is called in print.
    pub fn path(&self) -> &Path {
        self.path.get_or_init(|| self.called.path())
    }

    /// What it is called in its directory.
    pub fn name(&self) -> &OsStr {
        match self.called.is_named() {
            true => self.path().file_name().unwrap_or_default(),
            false => self.called.name(),
        }
    }

    fn in_pool(pool: &Path, inside: &OsStr) -> Result<Place, Failure> {
        let real = paths::real(pool)?;
        let contents = match Contents::read(&real) {
            Ok(contents) => Rc::new(contents),
            Err(Error::Busy { pid, .. }) => {
                let mount = sight::of_pool(&real)?.filter(|mount| !mount.is_dead());
                return Place::on_mount(&mount.ok_or_else(|| out_of_sight(pool, pid))?, inside);
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(damage) = contents.damage() {
            log::warn!("{}: {damage}", pool.display());
        }
        let mut ino = ROOT;
        for part in inside.as_bytes().split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
            let found = contents.view().lookup(ino, part);
            ino = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT)).at(&joined(pool, inside))?;
        }
        let path = if inside.is_empty() { pool.to_owned() } else { joined(pool, inside) };
        Ok(Place::new(Called::named_in_pool(path.as_os_str(), inside), Where::Pool(contents, ino)))
    }

    fn on_mount(mount: &Mount, inside: &OsStr) -> Result<Place, Failure> {
        let path = sight::path_on(mount, Path::new(inside))?;
        fs::metadata(&path).at(&path)?;
        Ok(Place::new(Called::named(path.as_os_str()), Where::Host))
    }

    /// True if it is in a pool that is not mounted.
    pub fn is_in_pool(&self) -> bool {
        matches!(self.at, Where::Pool(..))
    }

    /// The pool that it is in, if that is not mounted, and where in it.
    pub fn in_which_pool(&self) -> Option<(PathBuf, PathBuf)> {
        let Where::Pool(contents, ino) = &self.at else { return None };
        let path = contents.view().path_of(*ino).unwrap_or_default();
        let inside = path.strip_prefix(b"/").unwrap_or(&path);
        Some((contents.path().to_owned(), PathBuf::from(OsStr::from_bytes(inside))))
    }

    /// What it is. A link is followed if it was named itself, not if it was found in a directory.
    pub fn about(&self, follow: bool) -> Result<About, Failure> {
        match &self.at {
            Where::Host => {
                let found = if follow { fs::metadata(self.path()) } else { fs::symlink_metadata(self.path()) };
                let found: Metadata = found.at(self.path())?;
                let modified = found.modified().at(self.path())?;
                let identity = (found.dev(), found.ino());
                Ok(About { identity, kind: Kind::of_mode(found.mode()), size: found.len(), modified })
            }
            Where::Pool(contents, ino) => {
                let object = object(contents, *ino).at(self.path())?;
                let (kind, modified) = (Kind::of_mode(object.attributes.mode), object.attributes.mtime.into());
                Ok(About { identity: (0, ino.0), kind, size: object.size(), modified })
            }
        }
    }

    /// The number of the file.
    pub fn ino(&self) -> Result<Ino, Failure> {
        match &self.at {
            Where::Host => Ok(Ino(fs::metadata(self.path()).at(self.path())?.ino())),
            Where::Pool(_, ino) => Ok(*ino),
        }
    }

    /// True if a regular file, which is open, has this name still.
    pub fn is_still(&self, file: &File) -> bool {
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        match &self.at {
            Where::Host => match (fs::metadata(self.path()), file.metadata()) {
                (Ok(named), Ok(open)) => identity(named) == identity(open),
                _ => false,
            },
            Where::Pool(..) => true,
        }
    }

    /// True of a file on a mount whose bytes are in a remote yet: opening it has them come.
    pub fn is_away(&self) -> bool {
        let state = || attribute::get(self.path(), "user.tensorfs.state").ok().flatten();
        matches!(&self.at, Where::Host) && state().is_some_and(|state| state == FileState::Away.name())
    }

    /// Why the bytes of a regular file cannot be had, if that is because of its tier.
    pub fn gone(&self) -> Option<(FileState, String)> {
        match &self.at {
            Where::Host => {
                // Who is not told why finds out when opening it.
                let attribute = |name| attribute::get(self.path(), name).ok().flatten();
                let state = match &*attribute("user.tensorfs.state")? {
                    "lost" => FileState::Lost,
                    "missing" => FileState::Missing,
                    _ => return None,
                };
                let tier = attribute("user.tensorfs.tier").unwrap_or_default();
                Some((state, why_gone(state, &tier)))
            }
            Where::Pool(contents, ino) => {
                let segment = object(contents, *ino).ok()?.attributes.segment?;
                match contents.segments().gone(segment)? {
                    Gone::Lost { tier } => Some((FileState::Lost, why_gone(FileState::Lost, &tier))),
                    Gone::Missing { tier, .. } => Some((FileState::Missing, why_gone(FileState::Missing, &tier))),
                    Gone::Away { .. } => Some((FileState::Away, "away: mount the pool, and its bytes come".to_owned())),
                    Gone::Left { .. } => None,
                }
            }
        }
    }

    /// Why the bytes of a regular file that cannot be opened are not to be had, if it is damaged.
    pub fn damage(&self) -> Option<String> {
        match &self.at {
            Where::Host => {
                let state = attribute::get(self.path(), "user.tensorfs.state").ok().flatten()?;
                let why = "its bytes are damaged or not there; the server's log, and tensorfs check POOL once it is \
                           unmounted, say what is wrong";
                (state == "damaged").then(|| why.to_owned())
            }
            Where::Pool(contents, ino) => {
                let segment = object(contents, *ino).ok()?.attributes.segment?;
                if contents.segments().gone(segment).is_some() {
                    return None;
                }
                let error = contents.segments().stat(segment).err()?;
                let why = match error.kind() {
                    io::ErrorKind::NotFound => "is missing".to_owned(),
                    _ => format!("cannot be used: {}", reason(&error)),
                };
                Some(format!("its bytes are not there: its segment {why}"))
            }
        }
    }

    /// Opens a regular file to read it. Where that is allowed, looking at it is no access.
    pub fn open(&self) -> Result<File, Failure> {
        self.open_with(0).at(self.path())
    }

    /// Opens a regular file that was found in a directory, and was one then. What has its name by now is not followed,
    /// if it is a link, nor read, if it is anything else.
    pub fn open_found(&self) -> Result<File, Failure> {
        let file = self.open_with(libc::O_NOFOLLOW).at(self.path())?;
        // In a pool its contents say what it is.
        match self.is_in_pool() || file.metadata().at(self.path())?.is_file() {
            true => Ok(file),
            false => Err(Failure::at(self.path(), "no regular file")),
        }
    }

    /// Opens a regular file to read what its medium holds.
    pub fn open_direct(&self) -> Result<Direct, Failure> {
        Direct::open(|flags| self.open_with(flags)).at(self.path())
    }

    fn open_with(&self, flags: i32) -> io::Result<File> {
        let open = |flags| match &self.at {
            Where::Host => File::options().read(true).custom_flags(flags | libc::O_NONBLOCK).open(self.path()),
            Where::Pool(contents, ino) => {
                let object = object(contents, *ino)?;
                match object.attributes.segment {
                    // A file that was made and never opened.
                    None if object.is_file() => File::open("/dev/null"),
                    None => Err(io::Error::from_raw_os_error(libc::EISDIR)),
                    Some(segment) => contents.segments().open(segment, libc::O_RDONLY | flags).map(File::from),
                }
            }
        };
        match open(flags | libc::O_NOATIME) {
            // Only the owner may.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => open(flags),
            opened => opened,
        }
    }

    /// What is recorded of a regular file, which is open: nothing if it is not on a mount of ours.
    pub fn recorded(&self, file: &File) -> Result<Option<Recorded>, Failure> {
        match &self.at {
            Where::Host => Recorded::ask(file).at(self.path()),
            Where::Pool(contents, ino) => {
                let object = object(contents, *ino).at(self.path())?;
                Ok(Some(Recorded::of(object, contents.is_known_damaged(*ino))))
            }
        }
    }

    /// How many bytes the host has of a sealed file, which is open; nothing if that cannot be told.
    pub fn host_size(&self, file: &File) -> Result<Option<u64>, Failure> {
        match &self.at {
            Where::Host => Recorded::ask_host_size(file).at(self.path()),
            Where::Pool(contents, ino) => {
                let has_segment = object(contents, *ino).at(self.path())?.attributes.segment.is_some();
                let is_known = has_segment && !contents.may_have_grown();
                Ok(if is_known { Some(file.metadata().at(self.path())?.len()) } else { None })
            }
        }
    }

    /// As [`Place::recorded`], but of what the file holds it may say no more than its summary.
    pub fn glanced(&self, file: &File) -> Result<Option<Recorded>, Failure> {
        match &self.at {
            Where::Host => Recorded::glance(file).at(self.path()),
            Where::Pool(contents, ino) => {
                let object = object(contents, *ino).at(self.path())?;
                Ok(Some(Recorded::of(object, contents.is_known_damaged(*ino))))
            }
        }
    }

    /// Fails if a pool that was not in use is by now.
    pub fn check_unused(&self) -> Result<(), Failure> {
        match &self.at {
            Where::Pool(contents, _) => Ok(contents.check_unused()?),
            Where::Host => Ok(()),
        }
    }

    /// What has this name in a directory: a file that was found there, or a directory on the way to it.
    pub fn named_in(&self, name: &str) -> Result<Place, Failure> {
        let called = self.called.inside(self.separator(), OsStr::new(name));
        let at = match &self.at {
            Where::Host => Where::Host,
            Where::Pool(contents, dir) => {
                let found = contents.view().lookup(*dir, name.as_bytes());
                let found = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT));
                Where::Pool(contents.clone(), found.at(&called.path())?)
            }
        };
        Ok(Place::new(called, at))
    }

    /// What stands between a directory and the names in it.
    fn separator(&self) -> &'static str {
        match &self.at {
            Where::Host if self.path().as_os_str().as_bytes().ends_with(b"/") => "",
            Where::Pool(..) if self.called.is_named() => separator(self.path()),
            _ => "/",
        }
    }

    /// What is in a directory, by name.
    pub fn inside(&self) -> Result<Vec<Place>, Failure> {
        self.inside_at_most(usize::MAX).map(|(places, _)| places)
    }

    /// Some of what is in a directory, no more than so many, and whether that is all.
    pub fn inside_at_most(&self, most: usize) -> Result<(Vec<Place>, bool), Failure> {
        if self.called.len() > DEEPEST {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG)).at(self.path());
        }
        let mut is_all = true;
        let mut places = match &self.at {
            Where::Host => {
                let mut places = Vec::new();
                let foreign = foreign::table()?;
                let separator = self.separator();
                for entry in fs::read_dir(self.path()).at(self.path())? {
                    let entry = entry.at(self.path())?;
                    if places.len() >= most {
                        is_all = false;
                        break;
                    }
                    // Somebody has mounted something there.
                    match foreign::check_in(&foreign, &entry.path()) {
                        Ok(()) => {
                            let called = self.called.inside(separator, &entry.file_name());
                            places.push(Place::new(called, Where::Host));
                        }
                        Err(failure) => log::warn!("left out: {failure}"),
                    }
                }
                places
            }
            Where::Pool(contents, dir) => {
                let mut entries = contents.view().entries_after(*dir, 0);
                let separator = self.separator();
                let place = |(_, name, ino): (u64, &[u8], Ino)| {
                    let called = self.called.inside(separator, OsStr::from_bytes(name));
                    Place::new(called, Where::Pool(contents.clone(), ino))
                };
                let places = entries.by_ref().take(most).map(place).collect();
                is_all = entries.next().is_none();
                places
            }
        };
        places.sort_by(|a, b| a.called.name().cmp(b.called.name()));
        Ok((places, is_all))
    }

    /// True if nothing of its name is there any more.
    pub fn is_gone(&self) -> bool {
        match &self.at {
            Where::Host => fs::symlink_metadata(self.path()).is_err_and(|error| is_nothing_there(&error)),
            Where::Pool(..) => false,
        }
    }

    /// The regular file that this is, or all those below the directory that it is, in the order of their paths. Links
    /// are not followed. `visit` says whether to go on; `trouble` hears of what cannot be looked at.
    pub fn files(&self, visit: &mut Visit<'_>, trouble: &mut Trouble<'_>) -> Result<bool, Failure> {
        self.walk(&mut |_, _| Ok(true), visit, trouble)
    }

    /// As [`Place::files`]. Before it goes into a directory `enter` is shown it and what is in it, may take some of
    /// that out, and says whether to go on.
    ///
    /// What cannot be looked at is left out, `trouble` hears of it, and the rest is gone through. So it is with a
    /// directory that was gone through under another name. What was removed meanwhile is no trouble.
    pub fn walk(
        &self,
        enter: &mut Enter<'_>,
        visit: &mut Visit<'_>,
        trouble: &mut Trouble<'_>,
    ) -> Result<bool, Failure> {
        let top = self.about(true).and_then(|about| match about.kind {
            Kind::File => Ok((about, None)),
            Kind::Directory => Ok((about, Some(self.inside()?))),
            Kind::Link | Kind::Other => Err(Failure::at(self.path(), "neither a file nor a directory")),
        });
        let mut entered = Entered::default();
        let mut left = match top {
            Ok((about, Some(inside))) => {
                entered.enter(self, &about)?;
                inside
            }
            Ok((about, None)) => return visit(self, &about),
            Err(failure) => {
                trouble(failure);
                return Ok(true);
            }
        };
        if !enter(self, &mut left)? {
            return Ok(false);
        }
        forget_paths(&mut left);
        left.reverse();
        while let Some(place) = left.pop() {
            let Some(about) = place.looked_at(Place::about_itself, trouble) else { continue };
            match about.kind {
                Kind::File if !visit(&place, &about)? => return Ok(false),
                Kind::Directory => {
                    if let Err(failure) = entered.enter(&place, &about) {
                        trouble(failure);
                        continue;
                    }
                    let Some(mut inside) = place.looked_at(Place::inside, trouble) else { continue };
                    if !enter(&place, &mut inside)? {
                        return Ok(false);
                    }
                    forget_paths(&mut inside);
                    inside.reverse();
                    left.append(&mut inside);
                }
                _ => {}
            }
        }
        Ok(true)
    }

    /// What it is, be it a link.
    pub fn about_itself(&self) -> Result<About, Failure> {
        self.about(false)
    }

    /// What comes of looking at what was found in a directory: nothing if it was removed meanwhile, and nothing but
    /// `trouble` if it cannot be looked at.
    pub fn looked_at<T>(&self, look: impl Fn(&Place) -> Result<T, Failure>, trouble: &mut Trouble<'_>) -> Option<T> {
        // Another one may have got its name in between.
        match look(self).or_else(|failure| if self.is_gone() { Err(failure) } else { look(self) }) {
            Ok(found) => Some(found),
            Err(_) if self.is_gone() => None,
            Err(failure) => {
                trouble(failure);
                None
            }
        }
    }
}

/// Of what has to wait for its turn.
fn forget_paths(places: &mut [Place]) {
    places.iter_mut().for_each(|place| drop(place.path.take()));
}

/// An error that says that nothing has such a name.
fn is_nothing_there(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// In a few words: what is wrong with the tier itself, `info` says.
fn why_gone(state: FileState, tier: &str) -> String {
    match state {
        FileState::Lost => Gone::Lost { tier: tier.to_owned() }.to_string(),
        _ => format!("tier {tier} is missing"),
    }
}

fn object(contents: &Contents, ino: Ino) -> io::Result<&Object> {
    contents.view().object(ino).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}
