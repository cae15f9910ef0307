//! The server's life: open the pool, mount, serve, unmount, close the pool.

use std::time::SystemTime;

use nix::sys::signal::Signal;
use tensorfs_fs::{Options, Server};
use tensorfs_layout::{Kind, OpenOptions, Pool, Timestamp};

use crate::failure::Failure;
use crate::fuse_device::{self, Gone, Mounted};
use crate::mount::Request;
use crate::{notify, signals};

/// Whom the server tells how its start went.
pub trait Report {
    /// Something worth knowing that is no error.
    fn note(&mut self, line: &str);
    /// The mount serves. An error: nobody wants it any more.
    fn ready(&mut self) -> Result<(), Failure>;
}

/// Serves until the mount is gone.
pub fn serve(request: &Request, report: &mut dyn Report) -> Result<(), Failure> {
    signals::block(&[Signal::SIGHUP])?;
    let pool = open(request)?;
    // Until here SIGTERM simply ends the process: a pool survives that at any moment.
    signals::block(&[Signal::SIGTERM, Signal::SIGINT])?;
    if let Some(line) = recovery_note(&pool) {
        log::warn!("{line}");
        report.note(&line);
    }
    let (fuse, mounted) =
        match fuse_device::mount_pool(&request.pool, &request.mountpoint, &request.options) {
            Ok(done) => done,
            Err(failure) => {
                pool.close()?;
                return Err(failure);
            }
        };
    let result = serve_mount(pool, fuse, &mounted, request, report);
    // Normally it is gone by now. It is not if the start failed, or if the connection was aborted.
    if let Err(error) = mounted.unmount() {
        log::error!("{}: cannot unmount: {error}", mounted.mountpoint.display());
    }
    result
}

fn open(request: &Request) -> Result<Pool, Failure> {
    let options = OpenOptions {
        layout: request.options.layout.clone(),
        now: Timestamp::from(SystemTime::now()),
        mountpoint: Some(request.mountpoint.clone()),
        ..OpenOptions::default()
    };
    Ok(Pool::open(&request.pool, &options)?)
}

fn serve_mount(
    pool: Pool,
    fuse: std::os::fd::OwnedFd,
    mounted: &Mounted,
    request: &Request,
    report: &mut dyn Report,
) -> Result<(), Failure> {
    let server = Server::start(pool, fuse, server_options(request))?;
    let served = server.pool();
    let stopping = mounted.clone();
    let pool = request.pool.clone();
    signals::watch(move |signal| {
        log::info!("{}: {signal}: committing and unmounting", pool.display());
        notify::notify("STOPPING=1");
        if let Err(error) = served.commit(served.newest()) {
            log::error!("{error}");
        }
        stop(&stopping);
    })?;
    report.ready()?;
    notify::notify("READY=1");
    log::info!(
        "{}: mounted at {}",
        request.pool.display(),
        mounted.mountpoint.display()
    );
    server.run()?;
    log::info!("{}: closed", request.pool.display());
    Ok(())
}

fn stop(mounted: &Mounted) {
    let path = mounted.mountpoint.display();
    match mounted.unmount() {
        Ok(Gone::Unmounted) => {}
        Ok(Gone::Detached) => {
            log::warn!("{path}: detached; serving until the last open file is closed");
        }
        Err(error) => log::error!("{path}: cannot unmount: {error}"),
    }
}

fn server_options(request: &Request) -> Options {
    let wanted = &request.options;
    let default = Options::default();
    Options {
        durability: wanted.durability,
        commit: wanted.commit.unwrap_or(default.commit),
        passthrough: wanted.passthrough.unwrap_or(default.passthrough),
        threads: wanted.threads.unwrap_or(default.threads),
        mountpoint: request.mountpoint.clone(),
        allow_other: wanted.allow_other,
        ..default
    }
}
/// What recovery did, for whoever mounts a pool that was not closed.
fn recovery_note(pool: &Pool) -> Option<String> {
    let recovery = pool.recovery();
    let what = match recovery.kind {
        Kind::Clean => return None,
        Kind::ServerKilled => "its server was killed; recovered, nothing that was accepted is lost",
        Kind::PowerLoss => "the machine went down; recovered up to the last commit",
    };
    let mut line = format!("{}: {what}", pool.path().display());
    let mut also = |count: usize, what: &str| {
        if count > 0 {
            line.push_str(&format!("; {count} {what}"));
        }
    };
    also(recovery.dropped_transactions as usize, "newer operations undone");
    also(recovery.quarantined.len(), "quarantined (tensorfs restore lists them)");
    also(recovery.damaged_files as usize, "damaged files");
    also(recovery.open_segments.len(), "files still open by programs of the old mount");
    Some(line)
}
