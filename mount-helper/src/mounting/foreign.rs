//! Mounts of other users, of whom root asks nothing. Whoever may mount by `fusermount3` says what kind of mount it is
//! and of which pool, answers what he likes, or nothing: then whoever has asked waits, and not even SIGKILL ends that.

use std::path::Path;

use nix::unistd::geteuid;

use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::paths;
use crate::show::failure::Failure;

/// Fails for root if a path leads into another user's mount. Nothing is asked of what is mounted there.
pub fn check(path: &Path) -> Result<(), Failure> {
    check_in(&table()?, path)
}

/// As [`check`], but the mount point itself may be named, by whoever asks nothing of it.
pub fn check_below(path: &Path) -> Result<(), Failure> {
    table()?.iter().try_for_each(|mount| match paths::leads_into(path, mount.mount_point())? {
        Some(paths::Leads::Below) => Err(refused(path, mount)),
        _ => Ok(()),
    })
}

/// As [`check`], with mounts that were looked up before.
pub fn check_in(mounts: &[Mount], path: &Path) -> Result<(), Failure> {
    mounts.iter().try_for_each(|mount| match paths::leads_into(path, mount.mount_point())? {
        Some(_) => Err(refused(path, mount)),
        None => Ok(()),
    })
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
