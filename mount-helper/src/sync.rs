//! `tensorfs sync`.

use std::fs::File;

use crate::cli;
use crate::failure::{At, Failure};
use crate::target::Target;

/// The command: the filesystem commits everything when any directory is fsynced.
pub fn run(arguments: &cli::Sync) -> Result<(), Failure> {
    let mount = Target::of(&arguments.mountpoint)?.mount()?;
    let root = &mount.mount_point;
    File::open(root).and_then(|root| root.sync_all()).at(root)
}
