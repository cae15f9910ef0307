//! The server: from the handshake with the kernel to the pool's orderly end.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use fuser::{Config, Session, SessionACL};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use tensorfs_layout::{Domain, Pool};

use crate::adapter::Adapter;
use crate::committer::Committer;
use crate::error::Error;
use crate::filesystem::{Caller, Filesystem};
use crate::handles::Opened;
use crate::info::Info;
use crate::latency::Keeper;
use crate::learn::Switch;
use crate::mountinfo;
use crate::options::{Durability, Options, PassthroughMode};
use crate::seal::Sealer;
use crate::spares::SpareMaker;
use crate::writeout::OutWriter;

/// Read-ahead for files that are read through the server, in KiB: the kernel's own choice is 128.
const READ_AHEAD_KB: &str = "1024";

/// A mounted pool, ready to serve.
pub struct Server {
    fs: Arc<Filesystem>,
    session: Session<Adapter>,
}

impl Server {
    /// Shakes hands with the kernel on a `/dev/fuse` descriptor that is already mounted, and finds out whether the
    /// kernel grants passthrough. After an error the caller unmounts.
    pub fn start(pool: Pool, fuse: OwnedFd, options: Options) -> Result<Server, Error> {
        ignore_lease_signals();
        let fd_limit = raise_fd_limit();
        let durability = options.durability.unwrap_or(match pool.domain() {
            Domain::Dax => Durability::Close,
            _ => Durability::Fsync,
        });
        let fs = Arc::new(Filesystem::new(Arc::new(pool), options, durability, fd_limit));
        let acl = if fs.options.allow_other { SessionACL::All } else { SessionACL::Owner };
        let mut config = Config::default();
        config.n_threads = Some(fs.options.threads.max(1));
        // Requests read through a cloned descriptor die with it.
        config.clone_fd = false;
        let mountpoint = fs.options.mountpoint.clone();
        let session = Session::from_fd(Adapter(fs.clone()), fuse, acl, config).map_err(|source| {
            fs.close_unused();
            Error::Handshake { mountpoint: mountpoint.clone(), source }
        })?;
        match session.as_fd().try_clone_to_owned() {
            Ok(device) => *fs.device.write() = Some(Arc::new(device)),
            Err(source) => {
                fs.close_unused();
                return Err(Error::Handshake { mountpoint, source });
            }
        }
        let granted = fs.passthrough.get_or_init(|| probe_passthrough(&fs, &fs.pool.path().join("log")));
        match granted {
            Ok(()) => {
                log::info!("{}: the kernel moves the bytes (passthrough)", mountpoint.display());
                fs.probe_tiers(|file| probe_passthrough(&fs, file));
            }
            Err(reason) if fs.options.passthrough == PassthroughMode::On => {
                fs.close_unused();
                return Err(Error::NoPassthrough { mountpoint, reason: reason.clone() });
            }
            Err(reason) => log::info!("{}: bytes go through the server: {reason}", mountpoint.display()),
        }
        let _ = fs.notifier.set(session.notifier());
        Ok(Server { fs, session })
    }

    /// Serves until the filesystem is unmounted, then commits everything and closes the pool.
    pub fn run(self) -> Result<(), Error> {
        let Server { fs, session } = self;
        let mountpoint = fs.options.mountpoint.clone();
        if !fs.has_passthrough() {
            raise_read_ahead(&fs.options);
        }
        let committer =
            Committer::start(fs.clone()).map_err(|source| Error::Thread { mountpoint: mountpoint.clone(), source })?;
        let sealer =
            Sealer::start(fs.clone()).map_err(|source| Error::Thread { mountpoint: mountpoint.clone(), source })?;
        let spare_maker =
            SpareMaker::start(fs.clone()).map_err(|source| Error::Thread { mountpoint: mountpoint.clone(), source })?;
        let out_writer =
            OutWriter::start(fs.clone()).map_err(|source| Error::Thread { mountpoint: mountpoint.clone(), source })?;
        let keeper = Keeper::start(fs.latency.clone())
            .map_err(|source| Error::Thread { mountpoint: mountpoint.clone(), source })?;
        fs.adopt();
        let served = unless_unmounted(session.run());
        // Who still waits for an answer is told that there is nobody.
        *fs.device.write() = None;
        fs.tensors.stop();
        fs.readers.finish();
        fs.jobs.finish();
        fs.workers.finish();
        fs.movers.finish();
        drop((keeper, out_writer, sealer, spare_maker, committer));
        // What could not be recorded here, recovery records: a pool that is closed is taken at its word.
        let recorded = fs.close_files();
        fs.seal_the_rest();
        let closed = if recorded { fs.pool.close() } else { fs.pool.commit(fs.pool.newest()) };
        served.map_err(|source| Error::Session { mountpoint, source })?;
        Ok(closed?)
    }

    /// For a thread that has something to say while [`Server::run`] serves.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle { fs: self.fs.clone() }
    }

    /// The pool that is served.
    pub fn pool(&self) -> Arc<Pool> {
        self.fs.pool.clone()
    }

    /// What there is to know about the pool and the mount.
    pub fn info(&self) -> Info {
        self.fs.info(true)
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
}

impl ServerHandle {
    /// Makes everything durable that clients have done so far, as `fsync` of a directory does. Needs no mount.
    pub fn commit(&self) -> Result<(), Error> {
        self.fs
            .sync_all()
            .map_err(|fault| Error::Commit { pool: self.fs.pool.path().into(), reason: fault.to_string() })
    }
}

impl std::fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerHandle").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("options", &self.fs.options).finish_non_exhaustive()
    }
}

impl Filesystem {
    /// Closes the pool of a server that never served.
    fn close_unused(&self) {
        if let Err(error) = self.pool.close() {
            log::error!("{error}");
        }
    }

    /// Watches the files that programs of a killed server can still write.
    fn adopt(&self) {
        let caller = Caller { unique: 0, uid: 0, gid: 0, pid: 0 };
        for open in &self.pool.recovery().open_segments {
            let node = self.nodes.take(open.ino);
            let mut state = node.lock();
            let watched = self
                .attach(caller, open.ino, &mut state)
                .and_then(|segment| self.start_watching(&node, &mut state, segment, true));
            state.seen = None;
            state.mappable = true;
            if let Err(fault) = watched {
                log::warn!("inode {}: cannot be watched: {}", open.ino, fault);
                self.settle(&node, &mut state, 0);
            }
        }
    }

    /// The kernel is gone: whatever is still open counts as closed. False if what became of a file could not be recorded.
    fn close_files(&self) -> bool {
        for opened in self.handles.drain() {
            if let Opened::File(handle) = opened {
                self.release_file(0, &handle);
            }
        }
        self.reap_removed();
        // Files that are still mapped get their last word too.
        match self.learn_all(Switch::Last) {
            Ok(_) => true,
            Err(fault) => {
                log::error!("at the end: {}", fault);
                self.pool.is_read_only().is_some()
            }
        }
    }
}

/// A broken lease is announced by SIGIO, which would end the process.
fn ignore_lease_signals() {
    // SAFETY: ignoring a signal installs no handler.
    if let Err(errno) = unsafe { signal(Signal::SIGIO, SigHandler::SigIgn) } {
        log::warn!("cannot ignore SIGIO: {errno}");
    }
}

/// Every file that clients have open to write costs a descriptor, and together they may have more open than one process:
/// as many as the system allows, if it lets us, else what this process was given. Returns how many there may be.
fn raise_fd_limit() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 1024 };
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    let wanted = [most.unwrap_or(hard), hard];
    let raised = wanted.into_iter().find(|n| *n >= hard && setrlimit(Resource::RLIMIT_NOFILE, *n, *n).is_ok());
    raised.unwrap_or(soft)
}

fn probe_passthrough(fs: &Filesystem, beside: &Path) -> Result<(), String> {
    let reason = |error: io::Error| match error.raw_os_error() {
        Some(libc::EPERM) => "the server lacks the privilege (CAP_SYS_ADMIN)".to_owned(),
        Some(libc::ELOOP) => "the pool lies on a stacked filesystem (such as overlayfs)".to_owned(),
        Some(libc::EOPNOTSUPP | libc::ENOTTY) => "the kernel has none".to_owned(),
        _ => format!("the kernel refused it: {error}"),
    };
    let file = File::open(beside).map_err(reason)?;
    fs.register(&file).map(drop).map_err(reason)
}

/// Reads of files in server mode come in larger pieces, if we may say so.
fn raise_read_ahead(options: &Options) {
    let Ok(mountinfo) = std::fs::read_to_string("/proc/self/mountinfo") else { return };
    let Some(device) = mountinfo::device_at(&mountinfo, &options.mountpoint) else { return };
    let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
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
