//! A tier: a directory beside the pool's own that holds segments too. This module knows what a tier is, and how its
//! directory is made, told from others, and opened; which tiers a pool has is a matter of records (`tiers`).
//!
//! The directory has the shape that the pool's has, `segments/SS/NNNN`, and a file `tier.json` that says whose tier it
//! is. One without it, or of another pool, is never touched. What is on tmpfs is *volatile*: `tier.json` also says in
//! which boot of the machine the tier was filled, and nothing in it counts in another one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, OpenHow, ResolveFlag, fcntl};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, FsType, fstatfs, statfs};
use serde::{Deserialize, Serialize};

use crate::error::reason;
use crate::log::tier::Tier;
use crate::medium::domain::is_volatile;
use crate::medium::file_lock::exclusive;
use crate::medium::owner::Owner;
use crate::medium::regular;

/// Says whose tier a directory is.
const IDENTITY: &str = "tier.json";

/// The identity while it is being written.
const IDENTITY_NEW: &str = "tier.json.new";

/// Whose tiers are opened, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whose {
    pub pool: [u8; 16],
    pub boot: [u8; 16],
}

/// What a tier's directory says of itself.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    pool: String,
    tier: u8,
    nonce: String,
    /// The boot in which it was filled; zeroes if that is not known.
    boot: String,
}

/// The directory of a tier, opened.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Where its segments are.
    pub segments: PathBuf,
    /// Keeps others from using it.
    pub lock: Option<File>,
}

/// What came of opening a tier.
#[derive(Debug)]
pub(crate) enum Opened {
    Ready(Directory),
    /// It was volatile, and nothing of it is left. It would be made anew.
    Lost,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Identity {
    fn new(whose: Whose, number: u8, tier: &Tier) -> Self {
        Self { pool: hex(&whose.pool), tier: number, nonce: hex(&tier.nonce), boot: hex(&whose.boot) }
    }
}

fn why(what: &str, error: impl Into<io::Error>) -> String {
    format!("{what}: {}", reason(&error.into()))
}

/// Opens the directory of a tier; to `write`, it is made anew if it was volatile and nothing of it counts any more. An
/// error says in a few words why it cannot be used, and then nothing of it was changed.
pub(crate) fn open(
    whose: Whose,
    number: u8,
    tier: &Tier,
    owner: Owner,
    write: bool,
) -> std::result::Result<Opened, String> {
    let path = tier.path();
    match look_at(path) {
        Ok(()) => {}
        Err(Errno::ENOENT) if tier.volatile => {
            // Below what is volatile itself, and nowhere else: an empty mount point would be filled.
            let above = path.ancestors().find(|above| above.exists()).unwrap_or(Path::new("/"));
            if !statfs(above).is_ok_and(|fs| is_volatile(fs.filesystem_type())) {
                return Err(format!("{} is not there", path.display()));
            }
            if !write {
                return Ok(Opened::Lost);
            }
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(|error| why("cannot be made", error))?;
            regular::open_directory(path)
                .and_then(|made| owner.give(made))
                .map_err(|error| why("cannot be given", error))?;
        }
        Err(Errno::ENOENT) => return Err(format!("{} is not there", path.display())),
        Err(error) => return Err(why("cannot be opened", error)),
    }
    check_owner(path, owner)?;
    let volatile_now = statfs(path).map_err(|error| why("cannot be asked", error))?.filesystem_type();
    if tier.volatile && !is_volatile(volatile_now) {
        return Err("it was on a volatile filesystem, and is not any more".into());
    }
    match read_identity(path)? {
        Some(found) => {
            let ours = Identity::new(whose, number, tier);
            if found.pool != ours.pool {
                return Err("it is a tier of another pool".into());
            }
            if (found.tier, &found.nonce) != (ours.tier, &ours.nonce) {
                return Err("it is another tier of this pool, or one that was removed".into());
            }
            let none = hex(&[0; 16]);
            if tier.volatile && found.boot != ours.boot && found.boot != none && ours.boot != none {
                if !write {
                    return Ok(Opened::Lost);
                }
                let _lock = take_lock(path)?;
                empty(path).map_err(|error| why("cannot be emptied", error))?;
                make(whose, number, tier, owner).map_err(|error| why("cannot be made anew", error))?;
            }
        }
        None if tier.volatile && is_empty(path) => {
            if !write {
                return Ok(Opened::Lost);
            }
            make(whose, number, tier, owner).map_err(|error| why("cannot be made anew", error))?;
        }
        None => return Err(format!("{} is no tier of this pool: it has no {IDENTITY}", path.display())),
    }
    let lock = if write { Some(take_lock(path)?) } else { None };
    let segments = path.join("segments");
    look_at(&segments).map_err(|error| why("its segments cannot be opened", error))?;
    Ok(Opened::Ready(Directory { segments, lock }))
}

/// That a directory is there, with no link on the way to it.
fn look_at(path: &Path) -> nix::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    match nix::fcntl::openat2(nix::fcntl::AT_FDCWD, path, how) {
        Err(Errno::ENOSYS | Errno::EPERM) => nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty()).map(drop),
        opened => opened.map(drop),
    }
}

/// That nobody but the pool's owner and root can change what is in a directory.
fn check_owner(path: &Path, owner: Owner) -> std::result::Result<(), String> {
    let found = fs::symlink_metadata(path).map_err(|error| why("cannot be asked", error))?;
    let euid = nix::unistd::geteuid().as_raw();
    if found.uid() != owner.uid().unwrap_or(euid) && found.uid() != euid && found.uid() != 0 {
        return Err(format!("{} belongs to another user", path.display()));
    }
    if found.mode() & 0o022 != 0 {
        return Err(format!("others may write to {}", path.display()));
    }
    Ok(())
}

fn read_identity(path: &Path) -> std::result::Result<Option<Identity>, String> {
    let text = match regular::read(&path.join(IDENTITY), 4096) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| why(&format!("its {IDENTITY} cannot be read"), error))?,
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| format!("its {IDENTITY} cannot be read: {error}"))
}

fn take_lock(path: &Path) -> std::result::Result<File, String> {
    let file = regular::open(&path.join(IDENTITY), libc::O_RDWR);
    let file = file.map_err(|error| why(&format!("its {IDENTITY} cannot be opened"), error))?;
    match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&exclusive())) {
        Ok(_) => Ok(file),
        Err(Errno::EAGAIN | Errno::EACCES) => Err("a copy of this pool has it in use".into()),
        Err(error) => Err(why("cannot be locked", error)),
    }
}

fn is_empty(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Writes what makes a directory a tier.
fn make(whose: Whose, number: u8, tier: &Tier, owner: Owner) -> io::Result<()> {
    let path = tier.path();
    let segments = path.join("segments");
    match fs::DirBuilder::new().mode(0o700).create(&segments) {
        Ok(()) => owner.give(regular::open_directory(&segments)?)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let new = path.join(IDENTITY_NEW);
    let mut file = regular::open(&new, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC)?;
    owner.give(&file)?;
    serde_json::to_writer_pretty(&mut file, &Identity::new(whose, number, tier))?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(&new, path.join(IDENTITY))?;
    regular::open_directory(path)?.sync_all()
}

/// Removes all segments of a tier of which nothing counts any more.
fn empty(path: &Path) -> io::Result<()> {
    for shard in fs::read_dir(path.join("segments"))? {
        let shard = shard?;
        if !shard.file_type()?.is_dir() {
            continue;
        }
        for segment in fs::read_dir(shard.path())? {
            let segment = segment?;
            if segment.file_type()?.is_file() {
                fs::remove_file(segment.path())?;
            }
        }
    }
    Ok(())
}

/// Makes a new tier in a directory that is not there yet, or empty, or was left half-way by an earlier attempt. Sets
/// whether the tier is volatile. An error says in a few words what is in the way.
pub(crate) fn create(whose: Whose, number: u8, tier: &mut Tier, owner: Owner) -> std::result::Result<(), String> {
    let path = tier.path().to_owned();
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)
                .map_err(|error| why("cannot be made", error))?;
            regular::open_directory(&path)
                .and_then(|made| owner.give(made))
                .map_err(|error| why("cannot be given", error))?;
            if let Some(parent) = path.parent() {
                let synced = regular::open_directory(parent).and_then(|parent| parent.sync_all());
                synced.map_err(|error| why("cannot be synced", error))?;
            }
        }
        Err(error) => return Err(why("cannot be opened", error)),
        Ok(found) if !found.is_dir() => return Err("not a directory".into()),
        Ok(_) => {}
    }
    let directory = regular::open_directory(&path).map_err(|error| why("cannot be opened", error))?;
    check_owner(&path, owner)?;
    let kind: FsType = fstatfs(&directory).map_err(|error| why("cannot be asked", error))?.filesystem_type();
    if kind == FUSE_SUPER_MAGIC {
        return Err("it is on a FUSE filesystem, perhaps on a mount of tensorfs".into());
    }
    tier.volatile = is_volatile(kind);
    if let Some(found) = read_identity(&path)? {
        let mut segments = fs::read_dir(path.join("segments")).map_err(|error| why("cannot be read", error))?;
        if found.pool != hex(&whose.pool) || segments.next().is_some() {
            return Err("it is a tier of a pool already".into());
        }
    } else if path.join("log").exists() && path.join("quarantine").exists() {
        return Err("there is a pool in it".into());
    } else if !is_unfinished(&path) {
        return Err("it is not empty".into());
    }
    make(whose, number, tier, owner).map_err(|error| why("cannot be made a tier", error))
}

/// True if a directory holds no more than an interrupted [`make`] leaves.
fn is_unfinished(path: &Path) -> bool {
    let Ok(entries) = fs::read_dir(path) else { return false };
    entries.flatten().all(|entry| match entry.file_name().to_str() {
        Some("segments") => is_empty(&entry.path()),
        Some(IDENTITY_NEW) => true,
        _ => false,
    })
}

/// Removes what makes a directory a tier, if no segment is in it. The directory itself stays.
pub(crate) fn destroy(path: &Path) -> io::Result<()> {
    let segments = path.join("segments");
    for shard in fs::read_dir(&segments)? {
        fs::remove_dir(shard?.path())?;
    }
    fs::remove_file(path.join(IDENTITY))?;
    fs::remove_dir(segments)
}

/// For tests: a volatile tier seems to have been filled in another boot of the machine.
pub(crate) fn change_boot_id(path: &Path) -> io::Result<()> {
    let Some(mut found) = read_identity(path).map_err(io::Error::other)? else { return Ok(()) };
    found.boot = found.boot.chars().map(|digit| if digit == 'f' { 'e' } else { 'f' }).collect();
    fs::write(path.join(IDENTITY), serde_json::to_vec(&found)?)
}
