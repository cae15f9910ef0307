//! What there is to know about a pool or a mount.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use tensorfs_fs::{Counts, Info, State};
use tensorfs_layout::Error;
use tensorfs_layout::check::{Inspection, inspect};
use tensorfs_layout::log::PoolState;
use tensorfs_layout::medium::Flushes;

use crate::mounting::mountinfo::Table;
use crate::mounting::target::Target;
use crate::show::failure::{At, Failure};
use crate::show::output;

/// Where a mounted filesystem tells about itself.
const CONTROL: &str = ".tensorfs/info";

/// What there is to know about a pool or a mount, as JSON.
pub fn json(target: &Path) -> Result<String, Failure> {
    match Target::of(target)? {
        Target::Mount(mount) if mount.is_dead() => {
            let (pool, place) = (mount.source().display(), mount.mount_point().display());
            output::complain(format!("{place}: the server of {pool} is gone; mount it again"));
            of_pool(mount.source())
        }
        Target::Mount(mount) => of_mount(mount.mount_point()),
        Target::Pool(pool) => of_pool(&pool),
    }
}

/// What the server says. It may be another version of this program, so it is passed on as it is.
fn of_mount(root: &Path) -> Result<String, Failure> {
    fs::read_to_string(root.join(CONTROL)).at(root)
}

fn of_pool(pool: &Path) -> Result<String, Failure> {
    match inspect(pool) {
        Ok(inspection) => {
            let json = serde_json::to_string_pretty(&unmounted(pool, inspection));
            json.map(|json| json + "\n").map_err(|error| Failure::at(pool, error))
        }
        Err(Error::Busy { pid, mountpoint: Some(mountpoint), .. }) => of_server(pool, pid, &mountpoint),
        Err(error) => Err(error.into()),
    }
}

/// Asks the server that has the pool in use, at its mount point; in another mount namespace, through /proc.
fn of_server(pool: &Path, pid: u32, mountpoint: &Path) -> Result<String, Failure> {
    let here = Table::read().at(pool)?;
    let is_ours = here.top_at(mountpoint).is_some_and(|mount| mount.is_tensorfs() && mount.source() == pool);
    let elsewhere = || {
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        root.join(mountpoint.strip_prefix("/").unwrap_or(mountpoint))
    };
    let root = if is_ours { mountpoint.to_owned() } else { elsewhere() };
    match fs::symlink_metadata(root.join(CONTROL)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Failure::at(
            pool,
            format!("process {pid} is closing it, or serves files that are still open after an unmount"),
        )),
        _ => of_mount(&root),
    }
}

fn unmounted(pool: &Path, found: Inspection) -> Info {
    let (superblock, usage) = (found.superblock, found.usage);
    let clean = matches!(superblock.state, PoolState::Clean | PoolState::Outlived);
    let host = statvfs(pool).map_or(0, |host| host.blocks() * host.fragment_size());
    Info {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pool: pool.to_owned(),
        uuid: superblock.uuid_text(),
        layout: superblock.layout,
        state: if clean { State::Clean } else { State::UnsafeShutdown },
        pid: None,
        mountpoint: None,
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
        capacity: usage.limit.unwrap_or(host),
        used: usage.bytes(),
        limit: usage.limit,
        files: usage.files,
        directories: usage.directories,
        records: usage.records,
        log_bytes: usage.log_bytes,
        unsafe_shutdowns: superblock.unsafe_shutdowns,
        recovery: None,
        open_segments: Vec::new(),
        damaged_files: found.damaged_files,
        damage_found: Vec::new(),
        unsealed_files: 0,
        quarantine: found.quarantine,
        counters: Counts::default(),
        flushes: Flushes::default(),
        read_only: found.damage,
        tiers: found.tiers,
    }
}
