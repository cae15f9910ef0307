//! `tensorfs umount`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::cli::Umount;
use crate::commands::status::GOES_ON;
use crate::mounting::holder::ServerProcess;
use crate::mounting::target::Target;
use crate::mounting::{busy, foreign, unmount};
use crate::show::failure::{At, Failure};

/// So long is waited for a carrier that is asking the server something.
const OF_CARRIER: Duration = Duration::from_secs(10);

/// Runs the command.
pub fn run(arguments: &Umount) -> Result<ExitCode, Failure> {
    foreign::check_below(&arguments.mountpoint)?;
    let target = Target::of(&arguments.mountpoint)?;
    // It may be called otherwise by now than when it was mounted.
    let pool = target.pool().to_owned();
    let mount = target.mount()?;
    let deadline = arguments.timeout.map(|timeout| Instant::now() + timeout);
    let mountpoint = mount.mount_point();
    // A dead mount has none, whoever serves the pool by now, and a foreign one may name any pool.
    let is_dead = mount.is_dead();
    let server = if is_dead || mount.is_foreign() { None } else { ServerProcess::of(&pool) };
    let mut unmounted = unmount::patiently(mountpoint, arguments.lazy, arguments.timeout);
    if unmounted.as_ref().is_err_and(unmount::is_busy) && !is_dead && busy::is_by_carrier(mountpoint) {
        unmounted = unmount::patiently(mountpoint, arguments.lazy, Some(OF_CARRIER));
    }
    match unmounted {
        Err(error) if unmount::is_busy(&error) && is_dead => {
            log::warn!("{}: its server is gone; detaching it", mountpoint.display());
            unmount::unmount(mountpoint, true).at(mountpoint)?;
        }
        Err(error) if unmount::is_busy(&error) => {
            return Err(Failure::at(mountpoint, busy::reason(mountpoint)));
        }
        result => result.at(mountpoint)?,
    }
    let closed = match server {
        Some(server) if arguments.lazy => server.watch_briefly(&mount).map(|()| true),
        Some(server) => server.wait(&mount, deadline),
        None => Ok(true),
    };
    Ok(if closed? { ExitCode::SUCCESS } else { ExitCode::from(GOES_ON) })
}
