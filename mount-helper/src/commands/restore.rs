//! `tensorfs restore`: versions of files that were set aside.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, renameat};
use nix::sys::stat::{FileStat, Mode, fchmod, fstatat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, Whence, fchown, lseek, unlinkat};
use serde::Deserialize;
use tensorfs_layout::Ino;
use tensorfs_layout::segment::{Quarantine, QuarantineEntry, Reason, TierInfo, TierState};

use crate::ask::about;

use crate::cli::Restore;
use crate::mounting::target::Target;
use crate::show::failure::{At, Failure, reason};
use crate::show::{clock, output, size, text};

const BENEATH: ResolveFlag =
    ResolveFlag::RESOLVE_BENEATH.union(ResolveFlag::RESOLVE_NO_SYMLINKS).union(ResolveFlag::RESOLVE_NO_XDEV);

/// Runs the command.
pub fn run(arguments: &Restore) -> Result<(), Failure> {
    let target = Target::of(&arguments.target)?;
    let pool = target.pool().to_owned();
    let (quarantine, incomplete) = open(&arguments.target, &pool)?;
    let entries = match quarantine.list() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(not_a_pool(&pool)),
        result => result.map_err(|error| in_quarantine(&pool, &error))?,
    };
    if let Some(failure) = incomplete {
        output::complain(format!("what is in quarantine of tiers is not shown: {failure}"));
    }
    let Some(name) = &arguments.name else {
        return output::print(&listing(&pool, &entries));
    };
    let entry = entries.iter().find(|entry| entry.name == *name).ok_or_else(|| {
        Failure::at(&pool, format!("nothing named {name:?} in quarantine; without a name, restore lists what is"))
    })?;
    if arguments.discard {
        quarantine.discard(name).map_err(|error| in_quarantine(&pool, &error))?;
        return output::print(&format!("discarded {name}\n"));
    }
    let source = quarantine.open(name).map_err(|error| in_quarantine(&pool, &error))?;
    let destination = match &arguments.to {
        Some(path) => Destination::anywhere(path)?,
        None => {
            let ino = entry.note.as_ref().and_then(|note| note.ino);
            let place = former_place(entry, &pool)?;
            let destination = Destination::inside(target.whole()?.mount_point(), place, ino)?;
            // An earlier program has noted names that are no text with other characters in them.
            if place.to_str().is_some_and(|text| text.contains(char::REPLACEMENT_CHARACTER)) && destination.is_new() {
                let what = "nothing is there; give a place with --to PATH";
                return Err(Failure::at(&destination.shown, what));
            }
            destination
        }
    };
    destination.put(source)?;
    quarantine.discard(name).map_err(|error| in_quarantine(&pool, &error))?;
    output::print(&format!("restored {}\n", destination.shown.display()))
}

/// What is asked of whoever has the pool, or of the pool itself.
#[derive(Deserialize)]
struct Known {
    uuid: String,
    tiers: Vec<TierInfo>,
}

/// The quarantine of a pool, with the parts of it that are in tiers; and why without them, if so.
fn open(target: &Path, pool: &Path) -> Result<(Quarantine, Option<Failure>), Failure> {
    let known = about::json(target).and_then(|about| {
        serde_json::from_str::<Known>(&about.json)
            .map_err(|error| Failure::at(pool, format!("what info says: {error}")))
    });
    let (Known { uuid, tiers }, incomplete) = match known {
        Ok(known) => (known, None),
        Err(failure) => (Known { uuid: String::new(), tiers: Vec::new() }, Some(failure)),
    };
    let there = tiers.iter().skip(1).filter(|tier| tier.state == TierState::Ready);
    let quarantine = Quarantine::at(pool, &uuid, there.map(|tier| Path::new(&tier.directory))).at(pool)?;
    Ok((quarantine, incomplete))
}

fn in_quarantine(pool: &Path, error: &io::Error) -> Failure {
    Failure::at(pool, format!("quarantine: {}", reason(error)))
}

fn not_a_pool(path: &Path) -> Failure {
    match tensorfs_layout::check::inspect(path) {
        Err(error) => error.into(),
        Ok(_) => Failure::at(path, "its quarantine is missing"),
    }
}

/// The path that an entry was the whole content of.
fn former_place<'a>(entry: &'a QuarantineEntry, pool: &Path) -> Result<&'a Path, Failure> {
    let note = entry.note.as_ref();
    if let Some(note) = note.filter(|note| note.reason == Reason::UncommittedTail) {
        let what = format!("{:?} is only what followed byte {} of its file", entry.name, note.offset);
        return Err(Failure::at(pool, format!("{what}; give a place for it with --to PATH")));
    }
    let path = note.and_then(|note| text::told_path(note.path.as_deref(), note.path_bytes.as_deref()));
    path.ok_or_else(|| {
        Failure::at(pool, format!("it is not known where {:?} was; give a place with --to PATH", entry.name))
    })
}

fn listing(pool: &Path, entries: &[QuarantineEntry]) -> String {
    if entries.is_empty() {
        return format!("{}: nothing in quarantine\n", pool.display());
    }
    entries.iter().map(describe).collect()
}

fn describe(entry: &QuarantineEntry) -> String {
    let (name, size) = (&entry.name, size::humane(entry.bytes));
    let Some(note) = &entry.note else {
        return format!("{name}  {size}, without a note\n");
    };
    let path = note.path.as_deref().unwrap_or("(path unknown)").escape_debug();
    let time = clock::utc(note.time.sec);
    let reason = match note.reason {
        Reason::InterruptedReplace if entry.partial => {
            "the version before a replace whose writer died; itself left by one that died".to_owned()
        }
        Reason::InterruptedReplace => "the version before a replace whose writer died".to_owned(),
        Reason::UnfinishedReplace => "the new version, which was not complete when power was lost".to_owned(),
        Reason::UncommittedTail => format!("what followed byte {}, not yet durable when power was lost", note.offset),
        Reason::UncommittedBytes => "what the file held when power was lost, not yet durable".to_owned(),
        Reason::DamagedLog => "the pool's log before it was repaired".to_owned(),
        Reason::LostBytes => format!("only a note: bytes from {} on are lost", note.offset),
        Reason::UnknownSegment => "bytes that no durable record speaks of".to_owned(),
    };
    format!("{name}  {path}\n    {size}, {time}\n    {reason}\n")
}

/// Where a file is to go: a name in an open directory.
struct Destination {
    dir: OwnedFd,
    name: PathBuf,
    /// The one file that may be replaced there, if not any.
    only: Option<Ino>,
    /// For messages.
    shown: PathBuf,
}

impl Destination {
    fn anywhere(path: &Path) -> Result<Destination, Failure> {
        let path = std::path::absolute(path).at(path)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Failure::at(&path, "not a file's path"));
        };
        let dir = File::open(parent).at(parent)?.into();
        Ok(Destination { dir, name: name.into(), only: None, shown: path.clone() })
    }

    /// Below `root`, where the version's file was: whatever links, mounts and other files others may have put there
    /// since, nothing else is reached.
    fn inside(root: &Path, path: &Path, only: Option<Ino>) -> Result<Destination, Failure> {
        let names = path.components().filter(|part| matches!(part, Component::Normal(_)));
        let path: PathBuf = names.collect();
        let shown = root.join(&path);
        let Some(name) = path.file_name() else {
            return Err(Failure::at(root, "it is not known where this version was; give a place with --to PATH"));
        };
        let top: OwnedFd = File::open(root).at(root)?.into();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let dir = match parent {
            None => top,
            Some(parent) => {
                let how = OpenHow::new().flags(OFlag::O_DIRECTORY | OFlag::O_CLOEXEC).resolve(BENEATH);
                openat2(&top, parent, how).map_err(|errno| {
                    let why = match errno {
                        Errno::ELOOP => "there is a symbolic link on the way to it",
                        Errno::EXDEV => "another filesystem is mounted on the way to it",
                        errno => errno.desc(),
                    };
                    Failure::at(&shown, format!("its directory: {why}; give a place with --to PATH"))
                })?
            }
        };
        Ok(Destination { dir, name: name.into(), only, shown })
    }

    /// True if nothing has the name.
    fn is_new(&self) -> bool {
        fstatat(&self.dir, &self.name, AtFlags::AT_SYMLINK_NOFOLLOW) == Err(Errno::ENOENT)
    }

    /// Copies under a temporary name, then renames: whoever looks sees the old file or the new one, whole.
    fn put(&self, mut source: File) -> Result<(), Failure> {
        let current = fstatat(&self.dir, &self.name, AtFlags::AT_SYMLINK_NOFOLLOW);
        let current = match current {
            Err(Errno::ENOENT) => None,
            result => Some(result.at(&self.shown)?),
        };
        if current.is_some_and(|found| found.st_mode & libc::S_IFMT != libc::S_IFREG) {
            return Err(Failure::at(
                &self.shown,
                "something that is not a file is there now; give a place with --to PATH",
            ));
        }
        // Whoever put another one there since need not be whose this version is.
        if let (Some(found), Some(only)) = (&current, self.only)
            && found.st_ino != only.0
        {
            let what = "another file is there by now than this version is of; give a place with --to PATH";
            return Err(Failure::at(&self.shown, what));
        }
        let temporary = PathBuf::from(format!(".tensorfs-restore.{}", std::process::id()));
        let result = self.write(&temporary, &mut source, current.as_ref());
        if result.is_err() {
            let _ = unlinkat(&self.dir, &temporary, UnlinkatFlags::NoRemoveDir);
        }
        result.at(&self.shown)
    }

    fn write(&self, temporary: &Path, source: &mut File, current: Option<&FileStat>) -> io::Result<()> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.dir, temporary, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        copy(source, &file)?;
        if let Some(current) = current {
            fchown(&file, Some(Uid::from_raw(current.st_uid)), Some(Gid::from_raw(current.st_gid)))?;
            fchmod(&file, Mode::from_bits_truncate(current.st_mode))?;
        }
        file.sync_all()?;
        renameat(&self.dir, temporary, &self.dir, &self.name)?;
        nix::unistd::fsync(self.dir.as_fd())?;
        Ok(())
    }
}

/// Copies a file. Holes stay holes: they may be much longer than the room there is for bytes.
fn copy(from: &mut File, to: &File) -> io::Result<()> {
    let size = from.metadata()?.len();
    let mut at = 0;
    while at < size {
        let (data, hole) = match lseek(&*from, at as i64, Whence::SeekData) {
            Ok(data) => (data, lseek(&*from, data, Whence::SeekHole)?),
            Err(Errno::ENXIO) => break,
            // The filesystem does not tell.
            Err(Errno::EINVAL) => (at as i64, size as i64),
            Err(errno) => return Err(errno.into()),
        };
        lseek(&*from, data, Whence::SeekSet)?;
        lseek(to, data, Whence::SeekSet)?;
        let mut to = to;
        io::copy(&mut from.take((hole - data) as u64), &mut to)?;
        at = hole as u64;
    }
    to.set_len(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn version(dir: &Path) -> File {
        let path = dir.join("version");
        fs::write(&path, "old").unwrap();
        File::open(path).unwrap()
    }

    #[test]
    fn replaces_a_file_and_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/f"), "new").unwrap();
        fs::set_permissions(root.join("d/f"), fs::Permissions::from_mode(0o640)).unwrap();
        let destination = Destination::inside(&root, Path::new("/d/f"), None).unwrap();
        destination.put(version(&root)).unwrap();
        assert_eq!(fs::read(root.join("d/f")).unwrap(), b"old");
        assert_eq!(fs::metadata(root.join("d/f")).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(fs::read_dir(root.join("d")).unwrap().count(), 1);
    }

    /// Proves P3.
    #[test]
    fn never_leaves_the_mount() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        symlink("/etc", root.join("away")).unwrap();
        let refused = Destination::inside(&root, Path::new("/away/f"), None).err().unwrap();
        assert!(refused.to_string().contains("--to PATH"), "{refused}");
        // Nor does it go where a link within it leads to.
        fs::create_dir(root.join("victim")).unwrap();
        symlink("victim", root.join("a")).unwrap();
        let refused = Destination::inside(&root, Path::new("/a/f"), None).err().unwrap();
        assert!(refused.to_string().contains("symbolic link"), "{refused}");
        // What another file has the name of is left alone.
        fs::write(root.join("victim/f"), "precious").unwrap();
        let ino = fs::metadata(root.join("victim/f")).unwrap().ino();
        let other = Destination::inside(&root, Path::new("/victim/f"), Some(Ino(ino + 1))).unwrap();
        let refused = other.put(version(&root)).unwrap_err();
        assert!(refused.to_string().contains("--to PATH"), "{refused}");
        assert_eq!(fs::read(root.join("victim/f")).unwrap(), b"precious");
        Destination::inside(&root, Path::new("/victim/f"), Some(Ino(ino))).unwrap().put(version(&root)).unwrap();
        assert_eq!(fs::read(root.join("victim/f")).unwrap(), b"old");
        assert!(Destination::inside(&root, Path::new("/"), None).is_err());
        // parts that are no names are not followed
        let destination = Destination::inside(&root, Path::new("/../f"), None).unwrap();
        assert_eq!(destination.shown, root.join("f"));
    }

    #[test]
    fn holes_stay_holes() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let root = dir.path().canonicalize().unwrap();
        let version = File::options().read(true).write(true).create_new(true).open(root.join("version")).unwrap();
        std::os::unix::fs::FileExt::write_at(&version, b"end", 1 << 33).unwrap();
        version.set_len(1 << 34).unwrap();
        Destination::inside(&root, Path::new("/f"), None).unwrap().put(version).unwrap();
        let found = File::open(root.join("f")).unwrap();
        let mut bytes = [1; 8];
        std::os::unix::fs::FileExt::read_exact_at(&found, &mut bytes, (1 << 33) - 2).unwrap();
        assert_eq!(&bytes, b"\0\0end\0\0\0");
        let host = found.metadata().unwrap();
        assert!(host.len() == 1 << 34 && host.blocks() < 100, "{host:?}");
    }

    #[test]
    fn does_not_replace_what_is_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir(root.join("d")).unwrap();
        let destination = Destination::anywhere(&root.join("d")).unwrap();
        assert!(destination.put(version(&root)).is_err());
        assert!(Destination::anywhere(Path::new("/")).is_err());
    }
}
