//! `tensorfs umount`.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use tensorfs_layout::Holder;

use crate::cli::Umount;
use crate::mounting::mountinfo::Table;
use crate::mounting::process::Process;
use crate::mounting::target::Target;
use crate::mounting::{busy, unmount};
use crate::show::failure::{At, Failure};
use crate::show::output;

/// How long to try to unmount what is busy.
const A_MOMENT: Duration = Duration::from_millis(500);
/// After this time of waiting in silence, say what for.
const SILENCE: Duration = Duration::from_secs(2);

/// Runs the command.
pub fn run(arguments: &Umount) -> Result<(), Failure> {
    let mount = Target::of(&arguments.mountpoint)?.mount()?;
    let (pool, mountpoint) = (mount.source(), mount.mount_point());
    // A dead mount has none, whoever serves the pool by now.
    let is_dead = mount.is_dead();
    let server = if is_dead { None } else { Server::of(pool) };
    match unmount_patiently(mountpoint, arguments.lazy) {
        Err(error) if unmount::is_busy(&error) && is_dead => {
            log::warn!("{}: its server is gone; detaching it", mountpoint.display());
            unmount::unmount(mountpoint, true).at(mountpoint)?;
        }
        Err(error) if unmount::is_busy(&error) => {
            return Err(Failure::at(mountpoint, busy::reason(mountpoint)));
        }
        result => result.at(mountpoint)?,
    }
    match server {
        Some(server) if arguments.lazy => server.watch_briefly(pool),
        Some(server) => server.wait(pool),
        None => Ok(()),
    }
}

/// `df` and its like look into every mount, for a moment each: not a reason to give up.
fn unmount_patiently(mountpoint: &Path, lazy: bool) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match unmount::unmount(mountpoint, lazy) {
            Err(error) if unmount::is_busy(&error) && start.elapsed() < A_MOMENT => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

/// The process that serves a pool.
struct Server {
    pid: u32,
    /// None: it cannot be seen from here (another process namespace).
    process: Option<Process>,
}

impl Server {
    fn of(pool: &Path) -> Option<Server> {
        let Holder { pid, .. } = tensorfs_layout::holder(pool).ok()??;
        let process = Process::open(pid).ok();
        // The process id was read before it was pinned down: if it holds the pool now, it is the right one.
        let still = tensorfs_layout::holder(pool).ok()??;
        (still.pid == pid).then_some(Server { pid, process })
    }

    /// Until the pool is closed: everything is in it then, and it can be mounted, copied or moved.
    fn wait(&self, pool: &Path) -> Result<(), Failure> {
        if self.has_closed(pool, SILENCE)? {
            return Ok(());
        }
        let pid = self.pid;
        let elsewhere = Table::read().ok().and_then(|table| Some(table.of_pool(pool).next()?.mount_point().to_owned()));
        let what = match elsewhere {
            Some(place) => format!("process {pid} goes on, because it is mounted at {} too", place.display()),
            None => format!("waiting for process {pid} to write and close it"),
        };
        output::complain(format!("{}: {what}", pool.display()));
        while !self.has_closed(pool, SILENCE)? {}
        Ok(())
    }

    fn watch_briefly(&self, pool: &Path) -> Result<(), Failure> {
        if !self.has_closed(pool, Duration::from_millis(500))? {
            output::complain(format!(
                "{}: process {} goes on with it until the last open file is closed",
                pool.display(),
                self.pid
            ));
        }
        Ok(())
    }

    fn has_closed(&self, pool: &Path, timeout: Duration) -> Result<bool, Failure> {
        if let Some(process) = &self.process {
            return process.wait(timeout).at(pool);
        }
        let holds = |holder: Option<Holder>| holder.is_some_and(|holder| holder.pid == self.pid);
        let start = Instant::now();
        while start.elapsed() < timeout {
            if !holds(tensorfs_layout::holder(pool)?) {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(false)
    }
}
