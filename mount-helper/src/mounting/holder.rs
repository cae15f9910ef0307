//! Who holds a pool, and waiting until nobody does.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use tensorfs_layout::check::was_closed;
use tensorfs_layout::pool::{Holder, holder};

use crate::mounting::busy::has_locked;
use crate::mounting::connection;
use crate::mounting::elsewhere;
use crate::mounting::in_use::in_use;
use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::process::{self, Process};
use crate::show::failure::{At, Failure};
use crate::show::output;

/// How long to wait for a server that is closing the pool, before a mount; and for one that cannot be seen.
const PATIENCE: Duration = Duration::from_secs(30);
/// After this time of waiting in silence, say what for. Mounting straight after unmounting is ordinary, and closing a
/// pool mostly takes no time.
const SILENCE: Duration = Duration::from_secs(2);
/// How long to wait for the keeper of a server that has ended: it ends at once, unless its log is late.
const BEHIND: Duration = Duration::from_millis(100);
/// How long to watch a server that may go on for a long time.
const A_MOMENT: Duration = Duration::from_millis(500);
/// What is so if a server has ended and could not close the pool.
const LEFT: &str = "unmounted, but its server could not close it, as its log says; before the pool is copied or \
                    moved, and before this machine goes down, mount it once more";

/// The process that serves a pool.
pub struct ServerProcess {
    pid: u32,
    /// None: it cannot be seen from here (another process namespace).
    process: Option<Process>,
    /// Its keeper, if it has one that can be seen.
    keeper: Option<Process>,
}

impl ServerProcess {
    /// Who holds the pool, if anybody does.
    pub fn of(pool: &Path) -> Option<ServerProcess> {
        let Holder { pid, .. } = holder(pool).ok()??;
        // In another process namespace, as that of a container, the number is somebody else's.
        let process = Process::open(pid).ok().filter(|_| has_locked(pid, pool) != Some(false));
        let keeper = process.as_ref().and_then(|_| keeper_of(pid));
        // The process id was read before it was pinned down: if it holds the pool now, it is the right one.
        let still = holder(pool).ok()??;
        (still.pid == pid).then_some(ServerProcess { pid, process, keeper })
    }

    /// Waits until the pool is closed: everything is in it then, and it can be mounted, copied or moved. False, and
    /// said why, if the server goes on for somebody else, or if the time is over.
    pub fn wait(&self, mount: &Mount, deadline: Option<Instant>) -> Result<bool, Failure> {
        let (pool, pid) = (mount.source(), self.pid);
        let start = Instant::now();
        let mut said = false;
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if self.has_closed(pool, left.unwrap_or(A_MOMENT).min(A_MOMENT))? {
                // It has the pool's lock open for a moment longer, and the host cannot be unmounted before that.
                self.keeper.as_ref().map_or(Ok(true), |keeper| keeper.wait(BEHIND)).at(pool)?;
                if let Ok(Some(false)) = was_closed(pool) {
                    output::complain(format!("{}: {LEFT}", pool.display()));
                }
                return Ok(true);
            }
            if let Some(why) = elsewhere::holders(mount) {
                output::complain(format!("{}: unmounted here, but process {pid} goes on: {why}", pool.display()));
                return Ok(false);
            }
            // Without any mount left it writes and closes the pool, and that has an end.
            let alive = match &self.process {
                Some(server) if start.elapsed() > SILENCE => connection::is_alive(mount, server),
                _ => Some(false),
            };
            if alive == Some(true) {
                output::complain(format!(
                    "{}: unmounted here, but process {pid} goes on: something has it that is not seen from here, such \
                     as a mount namespace without a process, a loop device, or another user's process",
                    pool.display()
                ));
                return Ok(false);
            }
            if alive.is_none() && deadline.is_none() && start.elapsed() > PATIENCE {
                output::complain(format!(
                    "{}: unmounted, but process {pid} still has it, and whether it closes it or serves somebody else \
                     is not seen from here; --timeout waits longer",
                    pool.display()
                ));
                return Ok(false);
            }
            // Of a process that cannot be seen nobody knows whether it writes, or serves others.
            let unseen = self.process.is_none();
            if left.is_some_and(|left| left.is_zero()) || unseen && deadline.is_none() && start.elapsed() > PATIENCE {
                let what = match unseen {
                    true => format!(
                        "unmounted, but process {pid} of another process namespace (as in a container) still has it; \
                         --timeout waits longer"
                    ),
                    false => format!("unmounted, but process {pid} is still writing and closing it"),
                };
                output::complain(format!("{}: {what}", pool.display()));
                return Ok(false);
            }
            if !said && start.elapsed() > SILENCE {
                output::complain(format!("{}: waiting for process {pid} to write and close it", pool.display()));
                said = true;
            }
        }
    }

    /// Waits a moment, and says so if the server goes on for programs that have files open.
    pub fn watch_briefly(&self, mount: &Mount) -> Result<(), Failure> {
        let pool = mount.source();
        if !self.has_closed(pool, A_MOMENT)? {
            let why = elsewhere::holders(mount).map(|why| format!(": {why}")).unwrap_or_default();
            output::complain(format!(
                "{}: process {} goes on with it until the last open file is closed{why}",
                pool.display(),
                self.pid
            ));
        }
        Ok(())
    }

    fn has_closed(&self, pool: &Path, timeout: Duration) -> Result<bool, Failure> {
        if let Some(process) = &self.process {
            // Not before it has ended, if it can be seen: then nothing of it is left.
            return process.wait(timeout).at(pool);
        }
        let holds = |holder: Option<Holder>| holder.is_some_and(|holder| holder.pid == self.pid);
        let start = Instant::now();
        while start.elapsed() < timeout {
            if !holds(holder(pool)?) {
                return Ok(true);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(false)
    }
}

/// The keeper of a server, which is its parent.
fn keeper_of(server: u32) -> Option<Process> {
    let keeper = process::parent(server)?;
    let process = Process::open(keeper).ok()?;
    // It was not pinned down before: if it is the parent now, it is the right one.
    (process::name(keeper) == process::KEEPER && process::parent(server) == Some(keeper)).then_some(process)
}

/// Waits for a server that has lost its mount and is closing the pool; refuses if another one is using it.
pub fn wait_until_free(pool: &Path) -> Result<(), Failure> {
    let start = Instant::now();
    let mut said = false;
    while let Some(holder) = holder_of(pool)? {
        // Who does not say who it is may also be mounted under another path.
        if !is_closing(pool, &holder) || holder.pid == 0 && start.elapsed() > SILENCE {
            return Err(in_use(pool, holder.pid, holder.mountpoint));
        }
        if start.elapsed() > PATIENCE {
            return Err(Failure::at(
                pool,
                format!("still in use by process {}, probably for files that are open on a detached mount", holder.pid),
            ));
        }
        if !said && start.elapsed() > SILENCE {
            output::complain(format!("{}: waiting for process {} to close it", pool.display(), holder.pid));
            said = true;
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn holder_of(pool: &Path) -> Result<Option<Holder>, Failure> {
    if !pool.is_dir() {
        return Ok(None); // opening it will say so
    }
    Ok(holder(pool)?)
}

/// A server that has a mount point but no mount: it is about to end (or about to mount, which the next look will show).
fn is_closing(pool: &Path, holder: &Holder) -> bool {
    let Some(mountpoint) = &holder.mountpoint else {
        // A server that could not write who it is, as the pool's filesystem is read-only.
        return holder.pid == 0 && Table::read().is_ok_and(|table| !table.of_pool(pool).any(|mount| !mount.is_dead()));
    };
    if process::is_ending(holder.pid) {
        return true;
    }
    // its own view: it may live in another mount namespace
    let Ok(table) = Table::of(holder.pid).or_else(|_| Table::read()) else {
        return false;
    };
    let here = table.top_at(mountpoint).filter(|mount| mount.is_tensorfs());
    !here.into_iter().chain(table.of_pool(pool)).any(|mount| !mount.is_dead())
}
