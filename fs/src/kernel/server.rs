//! The server: from the handshake with the kernel to the pool's orderly end.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fuser::{Config, Session, SessionACL};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use tensorfs_layout::medium::Domain;
use tensorfs_layout::pool::Pool;

use crate::background::{Background, seal_the_rest};
use crate::content::control::Info;
use crate::error::Error;
use crate::handover::{Beginning, Handover};
use crate::options::{Durability, Options, PassthroughMode};
use crate::privileged::take_back;
use crate::rights::keep_to_quotas;
use crate::store::{Scrub, Store};

use super::adapter::Adapter;
use super::awake::Awake;
use super::connection::Connection;
use super::crew::{Crew, Watch};
use super::filesystem::Filesystem;
use super::handshake::{ask_again, shake_hands};
use super::lanes::Lanes;
use super::latency::{Latency, Vigil};
use super::recall::Recall;

/// Read-ahead for files that are read through the server, in KiB: the kernel's own choice is 128.
const READ_AHEAD_KB: &str = "1024";

/// So long a server that is to leave waits for what it has in hand. What takes longer, the next one does (again).
const LEAVING: Duration = Duration::from_secs(2);

/// A server that takes the place of another one and does not come to serve leaves what it has found.
struct Leaving(Option<Arc<Handover>>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.iter().for_each(|handover| handover.leave());
    }
}

/// A mounted pool, ready to serve.
pub struct Server {
    fs: Arc<Filesystem>,
    lanes: Arc<Lanes>,
    crew: Arc<Crew>,
    latency: Arc<Latency>,
    awake: Arc<Awake>,
    device: Arc<OwnedFd>,
    session: Session<Adapter>,
}

impl Server {
    /// Shakes hands with the kernel on a `/dev/fuse` descriptor that is already mounted, and finds out whether the
    /// kernel grants passthrough. After an error the caller unmounts.
    pub fn start(pool: Pool, fuse: OwnedFd, options: Options) -> Result<Server, Error> {
        ignore_lease_signals();
        let descriptors = raise_fd_limit();
        // After that, which takes the same right.
        keep_to_quotas();
        let durability = options.durability.unwrap_or(match pool.domain() {
            Domain::Dax => Durability::Close,
            _ => Durability::Fsync,
        });
        let mut config = Config::default();
        let crew = Arc::new(Crew::new(options.threads));
        config.n_threads = Some(crew.size());
        // Requests read through a cloned descriptor die with it.
        config.clone_fd = false;
        let acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        let (mountpoint, latency) = (options.mountpoint.clone(), Arc::new(Latency::new(options.latency)));
        let handover = options.handover.clone();
        let beginning = Beginning::of(&pool);
        let store = Arc::new(Store::new(Arc::new(pool), options, durability, descriptors));
        store.link().set_latency(latency.reason().map_or(Ok(()), |reason| Err(reason.to_owned())));
        let fs = Arc::new(Filesystem::new(store));
        // Dropped before those.
        let mut unless_it_serves = Leaving(handover.clone().filter(|handover| !handover.is_first()));
        let lanes = Arc::new(Lanes::new(crew.size(), fs.mover().threads().clone()));
        let awake = Arc::new(Awake::new(crew.clone(), latency.clone()));
        let adapter = Adapter::new(fs.clone(), lanes.clone(), awake.clone());
        let begun = shake_hands(adapter, fuse, (acl, config), handover.as_deref(), beginning)
            .and_then(|session| Ok((session.as_fd().try_clone_to_owned()?, session)));
        let (device, session) = begun.map_err(|source| {
            close_unused(&fs);
            Error::Handshake { mountpoint: mountpoint.clone(), source }
        })?;
        let device = Arc::new(device);
        awake.serve(Some(device.clone()));
        fs.store().link().connect(Arc::new(Connection::new(device.clone(), session.notifier(), handover)));
        probe(&fs, &mountpoint).inspect_err(|_| close_unused(&fs))?;
        if !fs.store().link().has_passthrough() {
            raise_read_ahead(fs.store().options().device);
        }
        fs.files().inherit();
        unless_it_serves.0 = None;
        Ok(Server { fs, lanes, crew, latency, awake, device, session })
    }

    /// Has the kernel let go of what a server has given it that died, and that belongs to no open file. Before the pool
    /// is opened: it would look as if programs had it open.
    pub fn forget_unused(handover: &Arc<Handover>, fuse: &OwnedFd) {
        handover.close_unused(|number| take_back(fuse, number));
    }

    /// Serves until the filesystem is unmounted, then commits everything and closes the pool. One that has a keeper
    /// leaves the pool as it is when requests can no longer be read ([`Error::Session`]).
    pub fn run(self) -> Result<(), Error> {
        let Server { fs, lanes, crew, latency, awake, device, session } = self;
        let store = fs.store();
        let mountpoint = store.options().mountpoint.clone();
        let no_thread = |source| Error::Thread { mountpoint: mountpoint.clone(), source };
        let background = Background::start(fs.files()).map_err(no_thread)?;
        let vigil = Vigil::start(latency).map_err(no_thread)?;
        let watch = Watch::start(&crew).map_err(no_thread)?;
        let all_watched = fs.files().adopt();
        let handover = store.link().handover();
        let takes_over = handover.is_some_and(|it| !it.is_first());
        let recall = takes_over.then(|| Recall::start(&fs)).transpose().map_err(no_thread)?;
        let asked = if takes_over { ask_again(&device) } else { Ok(()) };
        drop(device);
        let served = match asked.and_then(|()| unless_unmounted(session.run())) {
            // As if it were killed: another one takes over, and finds everything as this one has it.
            Err(source) if handover.is_some() => {
                handover.iter().for_each(|handover| handover.leave());
                return Err(Error::Session { mountpoint, source });
            }
            served => served,
        };
        // Who still waits for an answer is told that there is nobody.
        awake.serve(None);
        store.link().disconnect();
        fs.content().stop();
        store.awaited().end();
        fs.bringer().stop();
        lanes.finish_readers();
        // They may begin jobs and moves.
        lanes.finish_workers();
        fs.jobs().finish();
        lanes.finish_movers();
        drop((recall, watch, vigil, background));
        // What could not be recorded here, recovery records: a pool that is closed is taken at its word.
        let recorded = fs.close_all();
        seal_the_rest(fs.files());
        store.keep_damage(Scrub::Unchanged);
        let pool = store.pool();
        // Programs of an earlier mount may go on writing when this one has gone.
        let outlived = !all_watched || store.writers().len() > 0;
        let closed = if recorded { pool.close_watched(outlived) } else { pool.leave() };
        served.map_err(|source| Error::Session { mountpoint, source })?;
        Ok(closed?)
    }

    /// For a thread that has something to say while [`Server::run`] serves.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle { fs: self.fs.clone(), lanes: self.lanes.clone(), crew: self.crew.clone() }
    }

    /// The pool that is served.
    pub fn pool(&self) -> Arc<Pool> {
        self.fs.store().pool().clone()
    }

    /// What there is to know about the pool and the mount.
    pub fn info(&self) -> Info {
        Info::gather(self.fs.files(), true)
    }
}

/// A thread that was just reading a request when the kernel let go of the mount hears of it as an aborted connection
/// (`fuse_dev_do_read` in the kernel's `fs/fuse/dev.c`); fuser knows the other word for it, `ENODEV`.
fn unless_unmounted(served: io::Result<()>) -> io::Result<()> {
    served.or_else(|error| if error.raw_os_error() == Some(libc::ECONNABORTED) { Ok(()) } else { Err(error) })
}

/// Reaches a server that is running.
#[derive(Clone)]
pub struct ServerHandle {
    fs: Arc<Filesystem>,
    lanes: Arc<Lanes>,
    crew: Arc<Crew>,
}

impl ServerHandle {
    /// Leaves the rest to the next server: what is asked from now on is not done, and what was asked before is waited
    /// for, a short while. The process is to end then; the next server finds everything as after a kill.
    pub fn leave(&self) {
        // So that little is left to learn.
        if let Err(error) = self.commit() {
            log::warn!("{error}");
        }
        self.crew.leave();
        let until = Instant::now() + LEAVING;
        while !(self.crew.is_idle() && self.lanes.workers_are_idle()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Looks into no file any more: whoever waits for that gets an error, and keeps the mount in use no longer.
    pub fn look_no_more(&self) {
        self.fs.content().stop();
    }

    /// So many bytes were written by the server, which grows while the kernel has some for it.
    pub fn written(&self) -> u64 {
        self.fs.store().counters().write_bytes.get()
    }

    /// Makes everything durable that clients have done so far, as `fsync` of a directory does; but if a file could not
    /// be synced, that stays to be told to one of them. Needs no mount.
    pub fn commit(&self) -> Result<(), Error> {
        self.fs
            .files()
            .commit_all()
            .map_err(|fault| Error::Commit { pool: self.fs.store().pool().path().into(), reason: fault.to_string() })
    }
}

impl std::fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerHandle").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("options", self.fs.store().options()).finish_non_exhaustive()
    }
}

/// Closes the pool of a server that never served.
fn close_unused(fs: &Filesystem) {
    if let Err(error) = fs.store().pool().close() {
        log::error!("{error}");
    }
}

/// A broken lease is announced by SIGIO, which would end the process.
fn ignore_lease_signals() {
    // SAFETY: ignoring a signal installs no handler.
    if let Err(errno) = unsafe { signal(Signal::SIGIO, SigHandler::SigIgn) } {
        log::warn!("cannot ignore SIGIO: {errno}");
    }
}

/// Every file that clients have open to write costs a descriptor, and together they may have more open than one
/// process: as many as the system allows, if it lets us, else what this process was given. Returns how many there may
/// be.
fn raise_fd_limit() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 1024 };
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    let wanted = [most.unwrap_or(hard), hard];
    let raised = wanted.into_iter().find(|n| *n >= hard && setrlimit(Resource::RLIMIT_NOFILE, *n, *n).is_ok());
    raised.unwrap_or(soft)
}

/// Finds out whether the kernel moves the bytes, and says so.
fn probe(fs: &Filesystem, mountpoint: &Path) -> Result<(), Error> {
    let store = fs.store();
    let probe_own = || {
        let file = store.pool().host_file().map_err(|error| error.to_string())?;
        probe_passthrough(store, &file)
    };
    match store.link().set_passthrough(probe_own) {
        Ok(()) => {
            log::info!("{}: the kernel moves the bytes (passthrough)", mountpoint.display());
            store.probe_tiers(|file| probe_passthrough(store, file));
        }
        Err(reason) if store.options().passthrough == PassthroughMode::On => {
            return Err(Error::NoPassthrough { mountpoint: mountpoint.into(), reason: reason.clone() });
        }
        Err(reason) => log::info!("{}: bytes go through the server: {reason}", mountpoint.display()),
    }
    Ok(())
}

fn probe_passthrough(store: &Store, file: &File) -> Result<(), String> {
    let reason = |error: io::Error| match error.raw_os_error() {
        Some(libc::EPERM) => "the server lacks the privilege (CAP_SYS_ADMIN)".to_owned(),
        Some(libc::ELOOP) => "the pool lies on a stacked filesystem (such as overlayfs)".to_owned(),
        Some(libc::EOPNOTSUPP | libc::ENOTTY) => "the kernel has none".to_owned(),
        _ => format!("the kernel refused it: {}", tensorfs_layout::reason(&error)),
    };
    store.register(file).map(drop).map_err(reason)
}

/// Reads of files in server mode come in larger pieces, if we may say so.
fn raise_read_ahead(device: Option<(u32, u32)>) {
    let Some((major, minor)) = device else { return };
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, READ_AHEAD_KB) {
        log::debug!("{path}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_was_reading_when_the_mount_went_has_not_failed() {
        let failed = |errno| Err(io::Error::from_raw_os_error(errno));
        assert!(unless_unmounted(Ok(())).is_ok());
        assert!(unless_unmounted(failed(libc::ECONNABORTED)).is_ok());
        assert_eq!(unless_unmounted(failed(libc::EIO)).unwrap_err().raw_os_error(), Some(libc::EIO));
    }
}
