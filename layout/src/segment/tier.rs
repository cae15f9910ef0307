//! A tier: a directory beside the pool's own that holds segments too. This module knows what a tier is, and how its
//! directory is made, told from others, and opened; which tiers a pool has is a matter of records (`tiers`).
//!
//! The directory has the shape that the pool's has, `segments/SS/NNNN`, and a file `tier.json` that says whose tier it
//! is. One without it, or of another pool, is never touched. What is on tmpfs is *volatile*: `tier.json` also says in
//! which boot of the machine the tier was filled, and nothing in it counts in another one.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::SFlag;
use nix::sys::statfs::FUSE_SUPER_MAGIC;
use serde::{Deserialize, Serialize};

use crate::error::reason;
use crate::log::tier::Tier;
use crate::medium::dir::Dir;
use crate::medium::domain::is_volatile;
use crate::medium::file_lock::exclusive;
use crate::medium::foreign::Foreign;
use crate::medium::owner::Owner;
use crate::segment::home::{SEGMENTS, shard_of};
use crate::segment::place::QUARANTINE;

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
    /// The directory itself.
    pub above: Dir,
    /// Where its segments are.
    pub segments: Dir,
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
///
/// Where it is only the pool's log says, and its owner could have written that.
pub(crate) fn open(
    whose: Whose,
    number: u8,
    tier: &Tier,
    owner: Owner,
    write: bool,
) -> std::result::Result<Opened, String> {
    let path = tier.path();
    let dir = match Dir::elsewhere(path, owner) {
        Ok(dir) => dir,
        Err(error) if error.kind() == io::ErrorKind::NotFound => match make_volatile(tier, owner, write)? {
            Some(dir) => dir,
            None => return Ok(Opened::Lost),
        },
        Err(error) => return Err(why("cannot be opened", error)),
    };
    check_owner(&dir)?;
    let filesystem = dir.filesystem().map_err(|error| why("cannot be asked", error))?;
    if filesystem == FUSE_SUPER_MAGIC {
        return Err(ON_FUSE.into());
    }
    if tier.volatile && !is_volatile(filesystem) {
        return Err("it was on a volatile filesystem, and is not any more".into());
    }
    match read_identity(&dir)? {
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
                let _lock = take_lock(&dir)?;
                empty(&dir).map_err(|error| why("cannot be emptied", error))?;
                make(&dir, whose, number, tier).map_err(|error| why("cannot be made anew", error))?;
            }
        }
        None if tier.volatile && is_unmade(&dir).unwrap_or(false) => {
            if !write {
                return Ok(Opened::Lost);
            }
            // The log alone says that it is one, and that makes nobody put anything into a directory of root's.
            if owner.is_other() && dir.stat_self().map_or(true, |found| owner.check(&found).is_err()) {
                return Err(format!("{} does not belong to the pool's owner", path.display()));
            }
            make(&dir, whose, number, tier).map_err(|error| why("cannot be made anew", error))?;
        }
        None => return Err(format!("{} is no tier of this pool: it has no {IDENTITY}", path.display())),
    }
    let lock = if write { Some(take_lock(&dir)?) } else { None };
    let segments = dir.below(SEGMENTS).map_err(|error| why("its segments cannot be opened", error))?;
    if write && !dir.has(QUARANTINE) {
        // While there is room. Where there is none now it is made when it is needed.
        let made = dir.make_dir(QUARANTINE).and_then(|_| dir.sync());
        made.unwrap_or_else(|error| log::debug!("{}: {error}", dir.path_of(QUARANTINE).display()));
    }
    Ok(Opened::Ready(Directory { above: dir, segments, lock }))
}

/// True if nothing is in a directory but what [`make`] may have left when it failed, or was killed.
fn is_unmade(dir: &Dir) -> io::Result<bool> {
    for entry in dir.entries()? {
        let is_left = match entry.text() {
            Some(IDENTITY_NEW) => entry.kind == SFlag::S_IFREG,
            Some(name @ (SEGMENTS | QUARANTINE)) => dir.below(name)?.is_empty()?,
            _ => false,
        };
        if !is_left {
            return Ok(false);
        }
    }
    Ok(true)
}

const ON_FUSE: &str = "it is on a FUSE filesystem, perhaps on a mount of tensorfs";

/// Makes the directory of a volatile tier again. Nothing if it is to be looked at only, and could be made.
fn make_volatile(tier: &Tier, owner: Owner, write: bool) -> std::result::Result<Option<Dir>, String> {
    const NOT_THERE: &str = "its directory is not there";
    let path = tier.path();
    if !tier.volatile {
        return Err(NOT_THERE.to_owned());
    }
    // Below what is volatile itself, and nowhere else: an empty mount point would be filled.
    let (above, missing) = Dir::nearest(path, owner).map_err(|error| why("cannot be opened", error))?;
    if !above.filesystem().is_ok_and(is_volatile) {
        return Err(NOT_THERE.to_owned());
    }
    // And only where the pool's owner could make it himself.
    if owner.is_other() {
        let found = above.stat_self().map_err(|error| why("cannot be asked", error))?;
        if found.st_uid != owner.uid() && found.st_mode & 0o002 == 0 {
            return Err(format!("{NOT_THERE}, and the pool's owner may not make it"));
        }
    }
    if !write {
        return Ok(None);
    }
    above.make_below(&missing).map(Some).map_err(|error| why("cannot be made", error))
}

/// That nobody but the pool's owner and root can change what is in a directory.
fn check_owner(dir: &Dir) -> std::result::Result<(), String> {
    let found = dir.stat_self().map_err(|error| why("cannot be asked", error))?;
    if dir.owner().check(&found).is_err() && found.st_uid != 0 {
        return Err(format!("{} belongs to another user", dir.path().display()));
    }
    if found.st_mode & 0o022 != 0 {
        return Err(format!("others may write to {}", dir.path().display()));
    }
    Ok(())
}

fn read_identity(dir: &Dir) -> std::result::Result<Option<Identity>, String> {
    let text = match dir.read(IDENTITY, 4096) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| why(&format!("its {IDENTITY} cannot be read"), error))?,
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| format!("its {IDENTITY} cannot be read: {error}"))
}

fn take_lock(dir: &Dir) -> std::result::Result<File, String> {
    let file = dir.open_only(IDENTITY, libc::O_RDWR);
    let file = file.map_err(|error| why(&format!("its {IDENTITY} cannot be opened"), error))?;
    match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&exclusive())) {
        Ok(_) => Ok(file),
        Err(Errno::EAGAIN | Errno::EACCES) => Err("a copy of this pool has it in use".into()),
        Err(error) => Err(why("cannot be locked", error)),
    }
}

/// Writes what makes a directory a tier.
fn make(dir: &Dir, whose: Whose, number: u8, tier: &Tier) -> io::Result<()> {
    match dir.make_dir(SEGMENTS) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => drop(dir.below(SEGMENTS)?),
        made => drop(made?),
    }
    match dir.make_dir(QUARANTINE) {
        // Whatever stands there: what needs it looks.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => drop(made?),
    }
    dir.replace_note(IDENTITY, IDENTITY_NEW, |file| {
        serde_json::to_writer_pretty(&mut *file, &Identity::new(whose, number, tier))?;
        file.write_all(b"\n")?;
        file.sync_all()
    })?;
    dir.sync()
}

/// Removes all segments of a tier of which nothing counts any more: files of the pool's owner in its shards, and
/// nothing else that may be there. So it is with what was set aside.
fn empty(dir: &Dir) -> io::Result<()> {
    let segments = dir.below(SEGMENTS)?;
    for entry in segments.entries()? {
        let Some(name) = entry.text().filter(|name| entry.kind == SFlag::S_IFDIR && shard_of(Some(name)).is_some())
        else {
            continue;
        };
        let Ok(shard) = segments.below(name) else { continue };
        clear(&shard)?;
    }
    match dir.below(QUARANTINE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound || Foreign::of(&error).is_some() => Ok(()),
        quarantine => clear(&quarantine?),
    }
}

/// Removes all files of the pool owner's in a directory.
pub(super) fn clear(dir: &Dir) -> io::Result<()> {
    for entry in dir.entries()?.iter().filter(|entry| entry.kind == SFlag::S_IFREG) {
        let name = entry.name.as_c_str();
        if dir.stat(name).is_ok_and(|found| dir.check_file(&found).is_ok()) {
            dir.unlink(name)?;
        }
    }
    Ok(())
}

/// Opens the directory of a tier of the pool that has this uuid, whether it is in use or not. Returns its number, too.
pub(super) fn of_pool(path: &Path, uuid: &str, owner: Owner) -> std::result::Result<(u8, Dir), String> {
    let dir = Dir::elsewhere(path, owner).map_err(|error| why("cannot be opened", error))?;
    check_owner(&dir)?;
    match read_identity(&dir)? {
        Some(found) if found.pool == uuid.replace('-', "") => Ok((found.tier, dir)),
        _ => Err("it is no tier of this pool".into()),
    }
}

/// Makes a new tier in a directory that is not there yet, or empty, or was left half-way by an earlier attempt. Sets
/// whether the tier is volatile. An error says in a few words what is in the way.
pub(crate) fn create(whose: Whose, number: u8, tier: &mut Tier, owner: Owner) -> std::result::Result<(), String> {
    let path = tier.path().to_owned();
    let dir = match Dir::elsewhere(&path, owner) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (above, missing) = Dir::nearest(&path, owner).map_err(|error| why("cannot be opened", error))?;
            let made = above.make_below(&missing).map_err(|error| why("cannot be made", error))?;
            above.sync().map_err(|error| why("cannot be synced", error))?;
            made
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => return Err("not a directory".into()),
        opened => opened.map_err(|error| why("cannot be opened", error))?,
    };
    check_owner(&dir)?;
    let filesystem = dir.filesystem().map_err(|error| why("cannot be asked", error))?;
    if filesystem == FUSE_SUPER_MAGIC {
        return Err(ON_FUSE.into());
    }
    tier.volatile = is_volatile(filesystem);
    if let Some(found) = read_identity(&dir)? {
        let is_free = dir.below(SEGMENTS).and_then(|segments| Ok(segments.is_empty()? && has_no_quarantine(&dir)));
        if found.pool != hex(&whose.pool) || !is_free.map_err(|error| why("cannot be read", error))? {
            return Err("it is a tier of a pool already".into());
        }
    } else if dir.has("log") && dir.has("quarantine") {
        return Err("there is a pool in it".into());
    } else if !is_unfinished(&dir) {
        return Err("it is not empty".into());
    }
    make(&dir, whose, number, tier).map_err(|error| why("cannot be made a tier", error))
}

/// True if nothing is set aside in a directory.
fn has_no_quarantine(dir: &Dir) -> bool {
    match dir.below(QUARANTINE) {
        Err(error) => error.kind() == io::ErrorKind::NotFound,
        Ok(quarantine) => quarantine.is_empty().unwrap_or(false),
    }
}

/// True if a directory holds no more than an interrupted [`make`] leaves.
fn is_unfinished(dir: &Dir) -> bool {
    let Ok(entries) = dir.entries() else { return false };
    entries.iter().all(|entry| match entry.text() {
        Some(SEGMENTS) => dir.below(SEGMENTS).and_then(|segments| segments.is_empty()).unwrap_or(false),
        Some(QUARANTINE) => has_no_quarantine(dir),
        Some(IDENTITY_NEW) => true,
        _ => false,
    })
}

/// Removes what makes a directory a tier, if no segment is in it, and nothing was set aside. The
/// directory itself stays.
pub(crate) fn destroy(path: &Path, owner: Owner) -> io::Result<()> {
    let dir = Dir::elsewhere(path, owner)?;
    let segments = dir.below(SEGMENTS)?;
    for shard in segments.entries()? {
        segments.remove_dir(shard.name.as_c_str())?;
    }
    match dir.remove_dir(QUARANTINE) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    dir.remove_note(IDENTITY)?;
    dir.remove_dir(SEGMENTS)
}

/// For tests: a volatile tier seems to have been filled in another boot of the machine.
pub(crate) fn change_boot_id(path: &Path, owner: Owner) -> io::Result<()> {
    let dir = Dir::elsewhere(path, owner)?;
    let Some(mut found) = read_identity(&dir).map_err(io::Error::other)? else { return Ok(()) };
    found.boot = found.boot.chars().map(|digit| if digit == 'f' { 'e' } else { 'f' }).collect();
    dir.create_anew(IDENTITY)?.write_all(&serde_json::to_vec(&found)?)
}
