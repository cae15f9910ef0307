//! `tensorfs sync`.

use std::fs::File;

use crate::cli::Sync;
use crate::mounting::target::Target;
use crate::show::failure::{At, Failure};

/// Runs the command: the filesystem commits everything when any directory is fsynced.
pub fn run(arguments: &Sync) -> Result<(), Failure> {
    let mount = Target::of(&arguments.mountpoint)?.mount()?;
    let root = mount.mount_point();
    File::open(root).and_then(|root| root.sync_all()).at(root)
}
