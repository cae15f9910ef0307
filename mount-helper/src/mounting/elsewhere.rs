//! Who else has a filesystem: mounts of it, in whatever mount namespace, and processes that have something of it open.
//! A best effort, for messages: what processes of others have, only root sees.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use tensorfs_fs::device_of;

use crate::mounting::busy;
use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::process;

/// Where a filesystem is mounted, or else who has something of it open, in one clause; nothing if nobody is seen.
pub fn holders(mount: &Mount) -> Option<String> {
    let mounts = mounts(mount);
    if !mounts.is_empty() {
        return Some(format!("it is mounted {}", mounts.join(", ")));
    }
    let device = mount.device();
    let users = busy::name_in_time(move |process| has_open(process, device));
    (!users.is_empty()).then(|| format!("it is in use by {}", users.join(", ")))
}

/// Each place where it is mounted, in every mount namespace that has a process.
fn mounts(mount: &Mount) -> Vec<String> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let here = namespace(Path::new("/proc/self"));
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Some(of) = namespace(&process.path()).filter(|of| seen.insert(of.clone())) else { continue };
        let Ok(table) = Table::of(pid) else { continue };
        for place in table.of_pool(mount.source()).filter(|other| other.device() == mount.device()) {
            let place = place.mount_point().display();
            found.push(match Some(&of) == here.as_ref() {
                true => format!("at {place}"),
                false => format!("at {place} in the mount namespace of process {pid} ({})", process::name(pid)),
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
