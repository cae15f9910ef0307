//! `tensorfs carrying`, which the mount option `carry` starts: sees to it that somebody carries the pool for as long as
//! it is mounted. Neither the server nor the keeper has a part in it.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use tensorfs_layout::pool::{carried, holder};

use crate::ask::carrier;
use crate::cli::Carrying;
use crate::mounting::carried::{Carried, Whose};
use crate::mounting::inherited;
use crate::mounting::mountinfo::{Changes, Mount, Table};
use crate::show::failure::{At, Failure, reason};
use crate::show::logging;

/// A carrier that has ended is started again after so long, twice that the next time, and this at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// One that has lived so long is started again at once, as it were.
const LONG: Duration = Duration::from_secs(60);
/// So often it is looked whether the pool has a remote by now, or whether another carrier has ended.
const NO_REMOTE: Duration = Duration::from_secs(10);
const OTHER: Duration = Duration::from_secs(60);
/// So often it is looked whether anybody serves the mount, if nothing tells.
const LOOK: Duration = Duration::from_secs(5);
/// So often in a row nobody may.
const UNSERVED: u32 = 2;

/// Runs the command, which ends when the pool is not mounted there any more.
pub fn run(arguments: &Carrying) -> Result<(), Failure> {
    inherited::close_all_but([])?;
    let opened = arguments.log.as_deref().map_or(Ok(()), logging::to_file);
    if arguments.log.is_none() || opened.is_err() {
        let _ = logging::to_syslog();
    }
    if let Err(fault) = opened {
        log::error!("{fault}; what is told of carrying is logged here");
    }
    // `ps` would show "exe".
    let _ = prctl::set_name(c"tensorfs-carry");
    let (pool, at) = (&*arguments.pool, &*arguments.mountpoint);
    let changes = Changes::of_mounts().at(at)?;
    let mut mount = None;
    let (keep, due) = (arguments.keep, Instant::now());
    let mut work = Work { pool, whose: None, keep, carrier: None, due, pause: PAUSE.0, said: None };
    let mut unserved = 0;
    while unserved < UNSERVED {
        let table = Table::here()?;
        match &mount {
            None => mount = mounted(&table, pool, at),
            Some(mount) if !table.has(mount) => break,
            Some(_) => {}
        }
        // A mount whose server has died, and its keeper, stays until somebody takes it away.
        let is_served = mount.is_none() || !matches!(holder(pool), Ok(None));
        unserved = if is_served { 0 } else { unserved + 1 };
        if mount.is_some() {
            work.look();
        } else if has_ended(&io::stdin()) && mounted(&Table::here()?, pool, at).is_none() {
            log::info!("{}: nothing was mounted, and nothing is carried", at.display());
            break;
        }
        wait(&changes, &work, mount.is_some()).at(at)?;
    }
    if let Some(carrier) = work.carrier {
        carrier.end();
    }
    Ok(())
}

/// The mount, if it is there.
fn mounted(table: &Table, pool: &Path, at: &Path) -> Option<Mount> {
    table.top_at(at).filter(|mount| mount.is_tensorfs() && mount.source() == pool && !mount.is_foreign()).cloned()
}

/// Whoever mounts has ended, who holds the other end of this pipe.
fn has_ended(pipe: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Until mounts have changed, the carrier has ended, or it is time to look.
fn wait(changes: &Changes, work: &Work<'_>, is_mounted: bool) -> io::Result<()> {
    let wait = if is_mounted && work.carrier.is_none() {
        work.due.saturating_duration_since(Instant::now()).min(LOOK)
    } else {
        LOOK
    };
    let stdin = io::stdin();
    let mut polled = vec![PollFd::new(changes.as_fd(), PollFlags::POLLPRI)];
    polled.extend(work.carrier.as_ref().map(|carrier| PollFd::new(carrier.as_fd(), PollFlags::POLLIN)));
    polled.extend((!is_mounted).then(|| PollFd::new(stdin.as_fd(), PollFlags::POLLIN)));
    // Rounded up, so that it is time then.
    let wait = PollTimeout::try_from(wait + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
    match poll(&mut polled, wait) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Who sees to it that somebody carries.
struct Work<'a> {
    pool: &'a Path,
    whose: Option<Whose>,
    keep: Option<u32>,
    carrier: Option<Carried>,
    /// When the next one may be started.
    due: Instant,
    pause: Duration,
    /// What keeps one from its work, as it was said.
    said: Option<String>,
}

impl Work<'_> {
    fn look(&mut self) {
        if let Some(carrier) = &mut self.carrier {
            let Some(status) = carrier.ended() else { return };
            if carrier.age() >= LONG {
                self.pause = PAUSE.0;
            }
            self.carrier = None;
            let (pool, seconds) = (self.pool.display(), self.pause.as_secs());
            log::error!("{pool}: its carrier has ended ({status}); starting another one in {seconds} s");
            self.later();
        }
        if Instant::now() < self.due {
            return;
        }
        // Who may not look has the carrier say what is so.
        match carried(self.pool) {
            Ok(None) => self.wait("it has no remote yet (`tensorfs remote set`); it is carried when it has", NO_REMOTE),
            Ok(Some(found)) if found.is_taken => {
                self.wait("another carrier is at work already; one is started here when that has ended", OTHER);
            }
            Ok(Some(_)) | Err(_) => match Carried::start(carrier::command(), (self.pool, &mut self.whose), self.keep) {
                Ok(carrier) => {
                    log::info!("{}: it is carried to its remote", self.pool.display());
                    (self.carrier, self.said) = (Some(carrier), None);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.wait(&format!("nothing is carried: {}", carrier::reason(&error)), OTHER);
                }
                Err(error) => {
                    self.wait(&format!("nothing is carried: {}", reason(&error)), self.pause);
                    self.later();
                }
            },
        }
    }

    /// The next one has to wait.
    fn later(&mut self) {
        self.due = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE.1);
    }

    /// Says once why nobody carries, and looks again later.
    fn wait(&mut self, why: &str, time: Duration) {
        if self.said.as_deref() != Some(why) {
            log::warn!("{}: {why}", self.pool.display());
            self.said = Some(why.to_owned());
        }
        self.due = Instant::now() + time;
    }
}
