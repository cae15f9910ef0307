//! `tensorfs upgrade`.

use std::path::Path;

use crate::ask::about;
use crate::cli::Upgrade;
use crate::mounting::inherited;
use crate::mounting::keeper::exchange::{self, Watch};
use crate::mounting::target::Target;
use crate::show::failure::{At, Failure};

/// Runs the command.
pub fn run(arguments: &Upgrade) -> Result<(), Failure> {
    // A keeper may come of it. What this process has of the mount it closes while a server answers.
    let named = [Some(&*arguments.target), arguments.to.as_deref(), arguments.log.as_deref()].into_iter().flatten();
    inherited::close_all_but(named.filter_map(inherited::number_in))?;
    let mount = Target::of(&arguments.target)?.mount()?;
    let path = arguments.to.as_deref().unwrap_or(Path::new("/proc/self/exe"));
    let program = exchange::program(path).at(path)?;
    // Of the mount nothing is asked: its server may not answer, which may be why there is to be another one.
    let watch = Watch::over(&mount);
    let watch = watch.map_err(|why| if mount.is_dead() { Failure::new(about::gone(&mount)) } else { why })?;
    let keeper = match watch {
        Watch::By(keeper) => keeper,
        Watch::NoMore(server) => exchange::watch_again(&mount, server, arguments.log.as_deref())?,
        Watch::Never => {
            let reason = "it is mounted without a keeper (-o keeper): unmount it, and mount it again";
            return Err(Failure::at(mount.mount_point(), reason));
        }
    };
    exchange::ask(keeper, Some(&program), None).map_err(|why| Failure::at(mount.mount_point(), why))
}
