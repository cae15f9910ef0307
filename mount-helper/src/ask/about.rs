//! What there is to know about a pool or a mount.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;
use nix::sys::statfs::{FUSE_SUPER_MAGIC, fstatfs};
use nix::unistd::geteuid;
use serde::Deserialize;
use serde_json::Value;
use tensorfs_fs::{Counts, Info, SecondCopy, State};
use tensorfs_layout::Error;
use tensorfs_layout::check::{Inspection, inspect, inspect_in_use};
use tensorfs_layout::log::PoolState;
use tensorfs_layout::medium::Flushes;
use tensorfs_layout::pool::Carried;
use tensorfs_layout::tree::spelled_all;

use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::target::Target;
use crate::mounting::{apart, busy, foreign, given, sight};
use crate::show::failure::{At, Failure, reason};
use crate::show::{VERSION, output, text};

/// Where a mounted filesystem tells about itself.
const CONTROL: &str = ".tensorfs/info";

/// And where it has what there is to count.
const METRICS: &str = ".tensorfs/metrics";

/// What that ends with.
const END: &str = "# EOF\n";

/// The most that is read of what a server says.
const MOST: u64 = 64 << 20;

/// So often the log of a pool is read that changes meanwhile, with a pause in between.
const LOOKS: usize = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// What there is to know about a pool or a mount.
pub struct About {
    /// As JSON.
    pub json: String,
    /// It was asked about a mount whose server is gone, and this is about the pool.
    pub is_dead: bool,
}

/// What there is to know about a pool or a mount.
pub fn json(target: &Path) -> Result<About, Failure> {
    foreign::check_below(target)?;
    let told = |json| About { json, is_dead: false };
    match Target::of(target)? {
        Target::Mount(mount) if mount.is_dead() => {
            output::complain(gone(&mount));
            of_pool(mount.source()).map(|json| About { json, is_dead: true })
        }
        Target::Mount(mount) => of_live(&mount).map(told),
        Target::Pool(pool) => of_pool(&pool).map(told),
    }
}

/// What is to be done about a mount whose server is gone.
pub fn gone(mount: &Mount) -> String {
    let (pool, place) = (mount.source().display(), mount.mount_point().display());
    format!("{place}: the server of {pool} is gone; mount it again")
}

/// What the server of a mount says.
pub fn of_live(mount: &Mount) -> Result<String, Failure> {
    match mount.user() {
        Some(user) if mount.is_foreign() => as_user(user, mount.mount_point()),
        _ => {
            let whole = sight::whole(mount)?;
            Ok(seen_from_here(of_mount(whole.mount_point())?, &whole))
        }
    }
}

/// What the server of a mount has counted, as OpenMetrics text.
pub fn metrics(mount: &Mount) -> Result<String, Failure> {
    let said = read(&sight::whole(mount)?.mount_point().join(METRICS)).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::at(mount.mount_point(), "its server is of a version that has no metrics"),
        _ => Failure::at(mount.mount_point(), reason(&error)),
    })?;
    let cut = || Failure::at(mount.mount_point(), "what its server says has no end");
    if said.ends_with(END) { Ok(said) } else { Err(cut()) }
}

/// What the server says. It may be another version of this program, so it is passed on as it is.
fn of_mount(root: &Path) -> Result<String, Failure> {
    read(&root.join(CONTROL)).at(root)
}

/// A server knows where it was mounted first. Where that is not so any more, or not here, it is where it was asked.
fn seen_from_here(said: String, asked: &Mount) -> String {
    let is_there = |place: &Path| {
        let table = Table::read().unwrap_or_default();
        table.top_at(place).is_some_and(|mount| mount.device() == asked.device())
    };
    changed(said, |info| {
        let bytes = info.get("mountpoint_bytes").and_then(|bytes| Vec::<u8>::deserialize(bytes).ok());
        let known = info.get("mountpoint").and_then(Value::as_str);
        let is_wrong = known.is_some() && !text::told_path(known, bytes.as_deref()).is_some_and(is_there);
        if is_wrong {
            mounted_at(info, asked.mount_point());
        }
        is_wrong
    })
}

/// Says where it is mounted.
fn mounted_at(info: &mut serde_json::Map<String, Value>, place: &Path) {
    info.insert("mountpoint".to_owned(), place.to_string_lossy().into());
    info.insert("mountpoint_bytes".to_owned(), text::no_text(place).into());
}

/// What a server says, with something put right; as it is if it is not as it should be, or right.
fn changed(said: String, change: impl FnOnce(&mut serde_json::Map<String, Value>) -> bool) -> String {
    let Ok(Value::Object(mut info)) = serde_json::from_str(&said) else { return said };
    if change(&mut info) { format!("{:#}\n", Value::Object(info)) } else { said }
}

fn read(control: &Path) -> io::Result<String> {
    all_of(File::open(control)?)
}

/// All that a server says; an error if that is too much, as nobody knows what the rest would mean.
fn all_of(said: impl Read) -> io::Result<String> {
    let mut text = String::new();
    said.take(MOST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("its server says more than {} MiB", MOST >> 20)));
    }
    Ok(text)
}

/// What a user is told, who serves what is asked about, and need not answer. Whatever his server may be, it is JSON.
fn as_user(user: u32, target: &Path) -> Result<String, Failure> {
    let asked = ["info".as_ref(), "--json".as_ref(), "--".as_ref(), target.as_os_str()];
    let said: Result<Value, String> = apart::ask_as(user, &asked, apart::PATIENCE);
    let why = |why| Failure::at(target, format!("asked as user {user}, whose server it is: {why}"));
    said.map(|said| format!("{said:#}\n")).map_err(why)
}

fn of_pool(pool: &Path) -> Result<String, Failure> {
    match inspect(pool) {
        Ok(inspection) => json_of(pool, &unmounted(pool, inspection)),
        Err(Error::Busy { pid, mountpoint, .. }) => of_server(pool, pid, mountpoint),
        Err(Error::NotAPool { reason, .. }) => {
            Err(Failure::at(pool, format!("not a tensorfs pool (no tensorfs is mounted here, and {reason})")))
        }
        Err(error) => Err(error.into()),
    }
}

/// Asks the server that has the pool in use, at its mount point; in another mount namespace, through /proc.
fn of_server(pool: &Path, pid: u32, mountpoint: Option<PathBuf>) -> Result<String, Failure> {
    if let Some(mount) = sight::of_pool(pool)?.filter(|mount| !mount.is_dead()) {
        return of_live(&mount);
    }
    let busy = Error::Busy { pool: pool.to_owned(), pid, mountpoint: None };
    let Some(mountpoint) = mountpoint else { return Err(busy.into()) };
    if given::number(&mountpoint).is_some() {
        let unknown = format!("process {pid} serves it on a descriptor, and has not found where; name the mount point");
        return Err(Failure::at(pool, unknown));
    }
    // Where the lock is another user's, so may the server be that it speaks of.
    let owner = fs::metadata(pool).at(pool)?.uid();
    if owner != 0 && geteuid().is_root() {
        return as_user(owner, pool).or_else(|_| detached(pool, pid));
    }
    let called = pool.to_owned();
    match busy::in_time(move || elsewhere(&called, pid, &mountpoint)) {
        Some(Err(error)) if error.kind() == ErrorKind::NotFound => detached(pool, pid),
        Some(said) => said.at(pool),
        None => Err(Failure::at(pool, format!("in use by process {pid}, which does not answer"))),
    }
}

/// What is in a pool whose server nobody can ask any more: it closes the pool, or serves those who have files open. The
/// log may be too much in motion to be read.
fn detached(pool: &Path, pid: u32) -> Result<String, Failure> {
    for _ in 0..LOOKS {
        if let Ok(Some(found)) = inspect_in_use(pool) {
            return json_of(pool, &Info { state: State::Detached, pid: Some(pid), ..unmounted(pool, found) });
        }
        thread::sleep(BETWEEN_LOOKS);
    }
    let reason = format!("process {pid} is closing it, or serves files that are still open after an unmount");
    Err(Failure::at(pool, reason))
}

fn json_of(pool: &Path, info: &Info) -> Result<String, Failure> {
    serde_json::to_string_pretty(info).map(|json| json + "\n").map_err(|error| Failure::at(pool, error))
}

/// What a server says that is mounted in another mount namespace: where it was mounted first, or where it is by now.
fn elsewhere(pool: &Path, pid: u32, first: &Path) -> io::Result<String> {
    let table = Table::of(pid).unwrap_or_default();
    let places = || table.of_pool(pool).filter(|mount| mount.is_whole()).map(Mount::mount_point);
    let place = if places().any(|place| place == first) { first } else { places().next().unwrap_or(first) };
    let said = said_at(pid, place)?;
    Ok(changed(said, |info| {
        mounted_at(info, place);
        info.insert("mount_namespace_of".to_owned(), pid.into());
        true
    }))
}

/// What a server in another mount namespace says at a place there. The process and the path are as the pool's lock has
/// them, and so as its owner likes: no link is followed, and what is read is a file of a FUSE filesystem. Whoever looks
/// may wait for both without end.
fn said_at(pid: u32, mountpoint: &Path) -> io::Result<String> {
    let root = nix::fcntl::open(format!("/proc/{pid}/root").as_str(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    let path = mountpoint.strip_prefix("/").unwrap_or(mountpoint).join(CONTROL);
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let file = openat2(root, &path, OpenHow::new().flags(flags).resolve(resolve))?;
    if fstatfs(&file)?.filesystem_type() != FUSE_SUPER_MAGIC {
        return Err(ErrorKind::NotFound.into());
    }
    all_of(File::from(file))
}

fn unmounted(pool: &Path, found: Inspection) -> Info {
    let (superblock, usage) = (found.superblock, found.usage);
    let clean = matches!(superblock.state, PoolState::Clean | PoolState::Outlived);
    let copy = |carried: &Carried| SecondCopy::of(carried, &superblock.uuid_text(), found.transaction);
    let second_copy = found.carried.as_ref().and_then(copy);
    let host = found.space;
    let (damaged_files, damaged_files_bytes) = spelled_all(found.damaged_files);
    Info {
        version: VERSION.to_owned(),
        pool: pool.to_owned(),
        pool_bytes: text::no_text(pool),
        uuid: superblock.uuid_text(),
        layout: superblock.layout,
        state: if clean { State::Clean } else { State::UnsafeShutdown },
        pid: None,
        mountpoint: None,
        mountpoint_bytes: None,
        mount_namespace_of: None,
        domain: Some(found.domain),
        durability: None,
        commit_seconds: None,
        longest_commit_seconds: None,
        pending_removals: 0,
        refused_removals: 0,
        passthrough: false,
        passthrough_reason: None,
        latency: false,
        latency_reason: None,
        capacity: usage.limit.map_or(host.total, |limit| limit.min(host.total)),
        available: Some(
            usage.limit.map_or(host.available, |limit| limit.saturating_sub(usage.bytes()).min(host.available)),
        ),
        used: usage.bytes(),
        limit: usage.limit,
        files: usage.files,
        directories: usage.directories,
        records: usage.records,
        log_bytes: usage.log_bytes,
        unsafe_shutdowns: superblock.unsafe_shutdowns,
        recovery: None,
        open_segments: Vec::new(),
        open_segments_bytes: Vec::new(),
        damaged_files,
        damaged_files_bytes,
        damage_found: found.scrubbed.findings(),
        last_scrub: found.scrubbed.last().cloned(),
        unsealed_files: 0,
        quarantine: found.quarantine,
        counters: Counts::default(),
        flushes: Flushes::default(),
        readers: Default::default(),
        read_only: found.damage,
        tiers: found.tiers,
        keeper: None,
        second_copy,
        following: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_an_error_and_not_cut() {
        let said = |len: u64| all_of(io::repeat(b'x').take(len));
        assert_eq!(said(MOST).unwrap().len() as u64, MOST);
        let error = said(MOST + 1).unwrap_err();
        assert_eq!(reason(&error), "its server says more than 64 MiB");
    }
}
