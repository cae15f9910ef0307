//! `tensorfs sync`.

use std::fs::File;

use crate::cli::Sync;
use crate::mounting::given;
use crate::mounting::target::Target;
use crate::show::failure::{At, Failure};
use crate::show::output;

/// Runs the command: the filesystem commits everything when any directory is fsynced.
pub fn run(arguments: &Sync) -> Result<(), Failure> {
    if let Some(number) = arguments.write_back {
        let done = given::write_back_here(&arguments.mountpoint, number)?;
        let json = serde_json::to_string(&done).map_err(|error| Failure::new(error.to_string()))?;
        return output::print(&json);
    }
    let mount = Target::of(&arguments.mountpoint)?.mount()?;
    let root = mount.mount_point();
    File::open(root).and_then(|root| root.sync_all()).at(root)
}
