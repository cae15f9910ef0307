//! `tensorfs upgrade`.

use std::path::Path;

use crate::ask::about;
use crate::cli::Upgrade;
use crate::mounting::exchange::{self, Watch};
use crate::mounting::target::Target;
use crate::show::failure::{At, Failure};

/// Runs the command.
pub fn run(arguments: &Upgrade) -> Result<(), Failure> {
    let mount = Target::of(&arguments.target)?.mount()?;
    if mount.is_dead() {
        return Err(Failure::new(about::gone(&mount)));
    }
    let path = arguments.to.as_deref().unwrap_or(Path::new("/proc/self/exe"));
    let program = exchange::program(path).at(path)?;
    let keeper = match Watch::over(&mount)? {
        Watch::By(keeper) => keeper,
        Watch::NoMore(server) => exchange::watch_again(&mount, server, arguments.log.as_deref())?,
        Watch::Never => {
            let reason = "it is mounted without a keeper (-o keeper): unmount it, and mount it again";
            return Err(Failure::at(mount.mount_point(), reason));
        }
    };
    exchange::ask(keeper, Some(&program), None).map_err(|why| Failure::at(mount.mount_point(), why))
}
