//! `mount.tensorfs`: what mount(8) calls.

use log::LevelFilter;

use crate::failure::Failure;
use crate::mount::Request;
use crate::options::MountOptions;
use crate::{background, cli, logging, output, remount};

/// The program.
pub fn run(arguments: cli::Mount8) -> Result<(), Failure> {
    logging::to_terminal(LevelFilter::Warn);
    let mut options = MountOptions::default();
    for list in &arguments.options {
        options.apply(list, arguments.sloppy > 0).map_err(|reason| Failure::at(&arguments.mountpoint, reason))?;
    }
    let mut request = Request { pool: arguments.pool, mountpoint: arguments.mountpoint, options };
    let fake = arguments.fake > 0;
    if request.options.remount {
        return if fake { Ok(()) } else { remount::run(&request, &arguments.options) };
    }
    if fake {
        request.options.create = false;
    }
    let request = request.prepare()?;
    if !fake {
        background::start(&request)?;
    }
    if arguments.verbose > 0 {
        let (pool, mountpoint) = (request.pool.display(), request.mountpoint.display());
        let done = if fake { "could be mounted" } else { "mounted" };
        output::print(&format!("tensorfs: {pool} {done} at {mountpoint}\n"))?;
    }
    Ok(())
}
