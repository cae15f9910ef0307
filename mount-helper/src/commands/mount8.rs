//! `mount.tensorfs`: what mount(8) calls.

use log::LevelFilter;

use crate::cli::Mount8;
use crate::commands::mount::start_beside;
use crate::mounting::options::{MountOptions, Setting};
use crate::mounting::request::MountRequest;
use crate::mounting::{alarm, background, remount};
use crate::show::failure::Failure;
use crate::show::{logging, output};

/// The program.
pub fn run(arguments: Mount8) -> Result<(), Failure> {
    let mut options = MountOptions::default();
    for list in &arguments.options {
        options.apply(list, arguments.sloppy > 0).map_err(|reason| Failure::at(&arguments.mountpoint, reason))?;
    }
    if !options.is_remount() {
        options.check().map_err(|reason| Failure::at(&arguments.mountpoint, reason))?;
    }
    let fake = arguments.fake > 0;
    if fake {
        options.set(Setting::Create(false));
    }
    let request = MountRequest::new(arguments.pool, arguments.mountpoint, options);
    request.close_others()?;
    logging::to_terminal(LevelFilter::Warn);
    if request.options().is_remount() {
        return if fake { Ok(()) } else { remount::run(&request, &arguments.options) };
    }
    let request = request.prepare()?;
    if !fake {
        background::start(&request)?;
        start_beside(&request)?;
        alarm::start(&request)?;
    }
    if arguments.verbose > 0 {
        let (pool, mountpoint) = (request.pool().display(), request.mountpoint().display());
        let done = if fake { "could be mounted" } else { "mounted" };
        output::print(&format!("tensorfs: {pool} {done} at {mountpoint}\n"))?;
    }
    Ok(())
}
