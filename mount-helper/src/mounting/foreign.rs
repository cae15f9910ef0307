//! Mounts of other users, of whom root asks nothing. Whoever may mount by `fusermount3` says what kind of mount it is
//! and of which pool, answers what he likes, or nothing: then whoever has asked waits, and not even SIGKILL ends that.

use std::path::Path;

use nix::unistd::geteuid;

use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::paths::{self, Leads};
use crate::show::failure::Failure;

/// Fails for root if a path leads into another user's mount. Nothing is asked of what is mounted there.
pub fn check(path: &Path) -> Result<(), Failure> {
    check_in(&table()?, path)
}

/// As [`check`], but the mount point itself may be named, by whoever asks nothing of it.
pub fn check_below(path: &Path) -> Result<(), Failure> {
    refuse(&table()?, path, |leads| leads == Leads::Below)
}

/// As [`check`], with mounts that were looked up before.
pub fn check_in(mounts: &[Mount], path: &Path) -> Result<(), Failure> {
    refuse(mounts, path, |_| true)
}

fn refuse(mounts: &[Mount], path: &Path, is_refused: impl FnOnce(Leads) -> bool) -> Result<(), Failure> {
    // The way to one may lead through another one: it ends at the first.
    let places: Vec<&Path> = mounts.iter().map(Mount::mount_point).collect();
    match paths::leads_into(path, &places)? {
        Some((place, leads)) if is_refused(leads) => {
            let mount = mounts.iter().find(|mount| mount.mount_point() == place);
            mount.map_or(Ok(()), |mount| Err(refused(path, mount)))
        }
        _ => Ok(()),
    }
}

/// All of them; none where it is not root who asks.
pub fn table() -> Result<Vec<Mount>, Failure> {
    if !geteuid().is_root() {
        return Ok(Vec::new());
    }
    Ok(Table::here()?.latest_first().filter(|mount| mount.is_foreign()).cloned().collect())
}

fn refused(path: &Path, mount: &Mount) -> Failure {
    let user = mount.user().unwrap_or_default();
    let why = match mount.mount_point() == path {
        true => String::new(),
        false => format!(" ({})", mount.mount_point().display()),
    };
    Failure::at(
        path,
        format!("on a mount of user {user}'s{why}, who can do this himself: root asks his server nothing"),
    )
}
