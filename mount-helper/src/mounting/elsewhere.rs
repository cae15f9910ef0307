//! Who else has a filesystem: mounts of it, in whatever mount namespace, and processes that have something of it open.
//! A best effort, for messages: what processes of others have, only root sees.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use tensorfs_fs::device_of;

use crate::mounting::busy::{self, has_locked};
use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::process;

/// Where a filesystem is mounted, or else who has something of it open, in one clause; nothing if nobody is seen soon.
pub fn holders(mount: &Mount) -> Option<String> {
    let mount = mount.clone();
    busy::in_time(move || look_around(&mount)).flatten()
}

/// Where a pool is mounted that a process has in use: in the mount namespace of that process, or else in any that has
/// one, as far as they are found soon.
pub fn places(pool: &Path, pid: u32) -> Vec<String> {
    let of_server = has_locked(pid, pool).and_then(|has| if has { Table::of(pid).ok() } else { None });
    let found = of_server.iter().flat_map(|table| table.of_pool(pool)).map(|mount| place_of(mount, pid));
    let found: Vec<_> = found.collect();
    if !found.is_empty() {
        return found;
    }
    let pool = pool.to_owned();
    busy::in_time(move || mounts(&pool, |_| true)).unwrap_or_default()
}

/// A place in the mount namespace of a process.
fn place_of(mount: &Mount, pid: u32) -> String {
    format!("at {} in the mount namespace of process {pid} ({})", mount.mount_point().display(), process::name(pid))
}

fn look_around(mount: &Mount) -> Option<String> {
    let mounts = mounts(mount.source(), |other| other.device() == mount.device());
    if !mounts.is_empty() {
        return Some(format!("it is mounted {}", mounts.join(", ")));
    }
    let device = mount.device();
    let users = busy::name_in_time(move |process| has_open(process, device));
    // The number of a filesystem that is gone is given to the next one, whose users these are.
    let is_gone = tables().any(|(_, table)| {
        table.latest_first().any(|other| other.device() == device && other.source() != mount.source())
    });
    (!users.is_empty() && !is_gone).then(|| format!("it is in use by {}", users.join(", ")))
}

/// The mounts of every mount namespace that has a process: such a process, and what is mounted there.
fn tables() -> impl Iterator<Item = (u32, Table)> {
    let mut seen = HashSet::new();
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(move |process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let table = Table::of(pid).ok()?;
        seen.insert(table.namespace()?).then_some((pid, table))
    })
}

/// Each place where a pool is mounted, in every mount namespace that has a process.
fn mounts(pool: &Path, is_it: impl Fn(&Mount) -> bool) -> Vec<String> {
    let here = Table::read().ok().and_then(|table| table.namespace());
    let mut found = Vec::new();
    for (pid, table) in tables() {
        for place in table.of_pool(pool).filter(|other| is_it(other)) {
            found.push(match table.namespace() == here {
                true => format!("at {}", place.mount_point().display()),
                false => place_of(place, pid),
            });
        }
    }
    found
}

/// Whether a process has something of a filesystem open, mapped, or as its directory.
fn has_open(process: &Path, device: (u32, u32)) -> bool {
    let on_device = |link: &Path| device_of(link) == Some(device);
    if ["cwd", "root", "exe"].iter().any(|link| on_device(&process.join(link))) {
        return true;
    }
    let open = fs::read_dir(process.join("fd")).is_ok_and(|fds| fds.flatten().any(|fd| on_device(&fd.path())));
    open || fs::read_dir(process.join("map_files")).is_ok_and(|maps| maps.flatten().any(|map| on_device(&map.path())))
}
