//! The server's life: open the pool, mount, serve, unmount, close the pool.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use nix::sys::signal::Signal;
use tensorfs_fs::{
    Confinement, Error, ForRemote, Handover, Options, Server, ServerHandle, confine, has_left, leave_privileged_to,
};
use tensorfs_layout::Timestamp;
use tensorfs_layout::log::Shutdown;
use tensorfs_layout::pool::{Inherited, OpenOptions, Pool, READ_ONLY_HOST};

use crate::mounting::fuse_device::{self, Mounted};
use crate::mounting::keeper::errands::{Errands, Sockets};
use crate::mounting::kept::{Kept, LEFT};
use crate::mounting::request::MountRequest;
use crate::mounting::{beforehand, given, keeper, notify, signals};
use crate::show::failure::{Failure, reason};
use crate::show::{VERSION, logging};

/// What is said of a recovery that has found everything.
const NOTHING_LOST: &str = ", nothing that was accepted is lost";

/// Whom the server tells how its start went.
pub trait Listener {
    /// Something worth knowing that is no error.
    fn note(&mut self, line: &str);
    /// The mount serves. An error: nobody wants it any more.
    fn ready(&mut self) -> Result<(), Failure>;
}

/// What a server leaves to the next one.
struct Hands {
    handover: Arc<Handover>,
    /// For a new keeper, if its own has died.
    handed: [OwnedFd; 3],
}

impl Hands {
    /// Leaves, to a server that the keeper starts. Returns only if there is no keeper to be had.
    fn leave(&self, request: &MountRequest, server: &ServerHandle) {
        let pool = request.pool.display();
        // One that has given up its rights may not reach the pool by its path: then the keeper has looked, who can.
        let denied = std::fs::metadata(&request.pool).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
        if !denied && let Err(why) = beforehand::could_open(request) {
            log::error!("not leaving to another server: {why}");
            return;
        }
        // One that has given up its rights is asked to leave by whoever has started a keeper.
        if !self.handover.is_watched()
            && request.errands.is_none()
            && let Err(error) = keeper::start(request, &self.handed)
        {
            log::error!("{pool}: cannot start a keeper: {}", reason(&error));
            return;
        }
        log::info!("{pool}: leaving to another server");
        server.leave();
        logging::end();
        std::process::exit(LEFT);
    }
}

/// Whom a server with a keeper tells.
struct Heard<'a> {
    listener: &'a mut dyn Listener,
    keeper: Option<&'a Kept>,
}

impl Listener for Heard<'_> {
    fn note(&mut self, line: &str) {
        self.listener.note(line);
    }

    fn ready(&mut self) -> Result<(), Failure> {
        self.listener.ready()?;
        if let Some(Err(error)) = self.keeper.map(Kept::tell_ready) {
            log::debug!("the keeper does not hear: {}", reason(&error));
        }
        Ok(())
    }
}

/// Serves until the mount is gone.
pub fn serve(request: &MountRequest, listener: &mut dyn Listener) -> Result<(), Failure> {
    let mut kept = request.kept.map(|numbers| Kept::take(numbers, request.after.clone())).transpose()?;
    let errands = request.errands.map(Sockets::take).transpose()?.map(Arc::new);
    if request.after.is_some() {
        // Programs wait. It may have no thread that writes the log before it has given up its rights.
        logging::hold_back();
    }
    signals::block(&signals::OF_THE_LOG)?;
    let inherited = kept.as_mut().and_then(Kept::inherited);
    if let (Some(kept), Some((fuse, _))) = (&kept, &inherited) {
        Server::forget_unused(kept.handover(), fuse);
    }
    let (inherited, lock) = inherited.unzip();
    let taken_over = inherited.is_some();
    let inherited = inherited.map(|fuse| {
        let mounted = Mounted::inherited(&fuse, &request.pool, &request.mountpoint);
        (fuse, mounted)
    });
    let given = given::number(&request.mountpoint).filter(|_| !taken_over);
    let there = given.map(fuse_device::take_given).transpose()?.or(inherited);
    let mountpoint = there.as_ref().map_or(&*request.mountpoint, |(_, mounted)| mounted.mountpoint());
    let lock = kept.as_ref().and_then(|kept| {
        let handover = kept.handover();
        let (open, since, damaged) = (handover.open_files(), handover.since(), handover.damaged());
        Some(Inherited { lock: Arc::new(lock?), open, since, damaged })
    });
    let pool = open(request, mountpoint, lock)?;
    check_followed(request, &pool).or_else(|failure| {
        pool.close()?;
        Err(failure)
    })?;
    log::info!("tensorfs {VERSION}, options: {}", request.options.to_list());
    // Until here SIGTERM simply ends the process: a pool survives that at any moment.
    signals::block(to_end(request))?;
    // One that left to this one on purpose was neither killed, nor is anything to be said of that.
    let after = request.after.as_deref().unwrap_or_default();
    let left = has_left(after) && pool.recovery().kind == Shutdown::ServerKilled;
    let recovered =
        recovery_note(&pool, request.after.as_deref()).filter(|line| !(left && line.ends_with(NOTHING_LOST)));
    for line in [recovered, read_only_note(&pool)].into_iter().flatten() {
        log::warn!("{line}");
        listener.note(&line);
    }
    let (fuse, mounted) = match there.map_or_else(|| mount(request, listener), Ok) {
        Ok(done) => done,
        Err(failure) => {
            pool.close()?;
            return Err(failure);
        }
    };
    // What the keeper is to hold on to.
    let share = || fuse.try_clone().and_then(|fuse| Ok((fuse, pool.share_lock()?)));
    let shared = kept.is_some().then(share);
    let options =
        Options { handover: kept.as_ref().map(|kept| kept.handover().clone()), ..server_options(request, &mounted) };
    let device = errands.is_some().then(|| fuse.try_clone()).transpose();
    match Server::start(pool, fuse, options) {
        Ok(server) => {
            if let (Some(errands), Ok(Some(device))) = (&errands, &device) {
                give_up_rights(&server.pool(), device, errands).inspect_err(|_| {
                    // Else whoever takes over next would find nothing.
                    kept.iter().filter(|_| taken_over).for_each(|kept| kept.handover().leave());
                })?;
            }
            logging::write_beside();
            let mut hands = None;
            if let (Some(kept), Some(shared)) = (&kept, shared) {
                let handed = shared.and_then(|(fuse, lock): (OwnedFd, OwnedFd)| {
                    // It may have died meanwhile. Then this one leaves to another keeper's, if it is asked to.
                    if let Err(error) = kept.tell(&fuse, &lock) {
                        log::warn!("{}: nobody keeps watch: {}", request.pool.display(), reason(&error));
                    }
                    Ok([kept.handover().share()?, fuse, lock])
                });
                match handed {
                    Ok(handed) => hands = Some(Hands { handover: kept.handover().clone(), handed }),
                    Err(error) => log::warn!("{}: cannot be exchanged: {}", request.pool.display(), reason(&error)),
                }
            }
            let mount = Mount { mounted, errands };
            serve_mount(server, &mount, request, (&mut Heard { listener, keeper: kept.as_ref() }, hands))
        }
        // Requests wait for the next server; the keeper sees to what is left if there is none.
        Err(error) if taken_over => Err(error.into()),
        Err(error) => {
            // While the device is open the kernel waits for an answer of ours.
            drop((shared, device));
            mounted.clean_up().unwrap_or_else(|error| mounted.cannot_unmount(&error));
            Err(error.into())
        }
    }
}

/// Mounts, in the place of what an earlier server may have left dead.
fn mount(request: &MountRequest, listener: &mut dyn Listener) -> Result<(OwnedFd, Mounted), Failure> {
    request.clear_dead(&mut |line| {
        log::warn!("{line}");
        listener.note(line);
    })?;
    fuse_device::mount_pool(&request.pool, &request.mountpoint, &request.options)
}

fn open(request: &MountRequest, mountpoint: &Path, inherited: Option<Inherited>) -> Result<Pool, Failure> {
    let options = OpenOptions {
        layout: request.options.layout.clone(),
        now: Timestamp::from(SystemTime::now()),
        mountpoint: Some(mountpoint.into()),
        may_be_read_only: request.options.flags.read_only,
        inherited,
        ..OpenOptions::default()
    };
    Pool::open(&request.pool, &options).map_err(|error| match error {
        tensorfs_layout::Error::ReadOnly { pool, reason } if reason == READ_ONLY_HOST => {
            Failure::at(&pool, format!("{reason}; mount it with -o ro"))
        }
        error => error.into(),
    })
}

/// A pool that follows a remote is that remote's to change, and no other one can follow one.
fn check_followed(request: &MountRequest, pool: &Pool) -> Result<(), Failure> {
    let view = pool.view();
    let followed = view.remote().filter(|(_, tier)| tier.is_followed()).map(|(_, tier)| tier.path().display());
    match (followed, request.options.follow(), request.options.flags.read_only) {
        (Some(at), _, false) => {
            let what = format!("it follows {at}, and can be mounted with --read-only (-o ro) alone");
            Err(Failure::at(&request.pool, what))
        }
        (None, Some(_), _) => {
            let what = "it follows no remote; a pool does that is made with mount --from URL --read-only --follow";
            Err(Failure::at(&request.pool, what))
        }
        _ => Ok(()),
    }
}

/// From here on this process has the rights of the pool's owner, and reaches the pool alone.
fn give_up_rights(pool: &Pool, fuse: &OwnedFd, errands: &Arc<Errands>) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::at(pool.path(), format!("giving up rights: {}", reason(&error)));
    let directories = pool.directories().map_err(failed)?;
    if let Err(error) = pool.hold_note() {
        let what = "what its log cannot say any more can be noted in the pool alone";
        log::warn!("{}: {what}: {}", pool.path().display(), reason(&error));
    }
    let owner = pool.owner().map_err(failed)?;
    errands.begin(fuse.as_fd(), &directories).map_err(failed)?;
    leave_privileged_to(errands.clone());
    let missing = confine(Confinement { owner, directories: &directories })
        .map_err(|why| Failure::at(pool.path(), format!("giving up rights: {why}")))?;
    for what in missing {
        log::warn!("{}: the server could not give up all rights: {what}", pool.path().display());
    }
    Ok(())
}

/// A mount, and who unmounts it if this process may not.
struct Mount {
    mounted: Mounted,
    errands: Option<Arc<Errands>>,
}

impl Mount {
    /// Has the kernel write what it would drop as this ends, and waits until the server has `written` it. False if
    /// nobody has to record anything for it.
    fn write_back(&self, written: impl Fn() -> u64) -> bool {
        let Some(mount) = self.mounted.to_write_back() else { return false };
        let until = Instant::now() + given::WRITE_BACK;
        let asked = match &self.errands {
            None => given::write_back(mount).map(|()| false),
            Some(errands) => errands.write_back().map_err(|error| reason(&error)),
        };
        match asked {
            Ok(true) => {}
            Ok(false) => given::settle(mount, until, written),
            Err(why) => {
                let at = self.mounted.mountpoint().display();
                log::warn!("{at}: what was stored through mappings and not synced may be lost: {why}");
            }
        }
        true
    }

    /// Ends the serving of one that somebody else has made, if that can be done from here.
    fn abort(&self) -> Result<(), String> {
        match &self.errands {
            None => self.mounted.abort(),
            Some(errands) => errands.unmount().map_err(|error| reason(&error)),
        }
    }

    fn stop(&self) {
        match &self.errands {
            None => self.mounted.stop(),
            Some(errands) => errands.unmount().unwrap_or_else(|error| self.mounted.cannot_unmount(&error)),
        }
    }

    /// Normally it is gone by now. It is not if nobody wanted it, or if the connection was aborted.
    fn end(&self) {
        if self.mounted.is_given() {
            return;
        }
        if self.errands.is_some() {
            return self.stop();
        }
        self.mounted.unmount().map_or_else(|error| self.mounted.cannot_unmount(&error), drop);
    }
}

fn serve_mount(
    server: Server,
    mount: &Mount,
    request: &MountRequest,
    (listener, hands): (&mut dyn Listener, Option<Hands>),
) -> Result<(), Failure> {
    // Keeps the pool locked until the mount is gone for certain.
    let pool = server.pool();
    let result = match announce(&server, mount, request, (listener, hands)) {
        Err(failure) => {
            drop(server);
            Err(failure)
        }
        Ok(()) => match server.run() {
            // Another one takes over: it is still mounted.
            Err(error @ Error::Session { .. }) if request.kept.is_some() => return Err(error.into()),
            served => served.map_err(Failure::from),
        },
    };
    mount.end();
    pool.close()?;
    if request.kept.is_some()
        && let Err(error) = pool.release_lock()
    {
        log::warn!("{}: its lock stays until the keeper has ended: {}", request.pool.display(), reason(&error));
    }
    result?;
    if pool.is_closed() {
        log::info!("{}: closed", request.pool.display());
    } else {
        log::warn!("{}: left to the next mount, which recovers what could not be recorded", request.pool.display());
    }
    Ok(())
}

/// Sees to signals, and tells everybody that the mount serves.
fn announce(
    server: &Server,
    mount: &Mount,
    request: &MountRequest,
    (listener, hands): (&mut dyn Listener, Option<Hands>),
) -> Result<(), Failure> {
    let handle = server.handle();
    let mounted = &mount.mounted;
    let stopping = Mount { mounted: mounted.clone(), errands: mount.errands.clone() };
    let (pool, own) = (request.pool.clone(), request.clone());
    signals::watch(to_end(request), mount.errands.clone(), move |signal| {
        if signal == signals::TO_LEAVE {
            return hands.iter().for_each(|hands| hands.leave(&own, &handle));
        }
        log::info!("{}: {signal}: committing and unmounting", pool.display());
        tell(&own, "STOPPING=1");
        handle.look_no_more();
        let commit = || handle.commit().unwrap_or_else(|error| log::error!("{error}"));
        commit();
        if stopping.write_back(|| handle.written()) {
            commit();
        }
        stop(&stopping);
    })?;
    let (pool, mountpoint) = (request.pool.display(), mounted.mountpoint().display());
    log::info!("{pool}: mounted at {mountpoint}");
    listener.ready()?;
    tell(request, "READY=1");
    Ok(())
}

/// Tells the service manager, unless a keeper does, who is the unit's main process: then nobody else has a word there.
fn tell(request: &MountRequest, state: &str) {
    if request.kept.is_none() {
        notify::notify(state);
    }
}

fn to_end(request: &MountRequest) -> &'static [Signal] {
    if request.kept.is_some() { &signals::TO_END_KEPT } else { &signals::TO_END }
}

fn stop(mount: &Mount) {
    let mounted = &mount.mounted;
    if mounted.is_given() {
        let path = mounted.mountpoint().display();
        let Err(why) = mount.abort() else { return };
        log::warn!("{path}: cannot end the connection: {why}; the next mount recovers the pool");
        // All is committed. Requests wait in the kernel, which answers them when nobody has the device any more.
        logging::end();
        std::process::exit(0);
    }
    mount.stop();
}

fn server_options(request: &MountRequest, mounted: &Mounted) -> Options {
    let (wanted, default) = (&request.options.server, Options::default());
    Options {
        durability: wanted.durability,
        commit: wanted.commit.unwrap_or(default.commit),
        replace: wanted.replace.unwrap_or(default.replace),
        noatime: request.options.flags.noatime,
        passthrough: wanted.passthrough.unwrap_or(default.passthrough),
        latency: wanted.latency.unwrap_or(default.latency),
        threads: wanted.threads.unwrap_or(default.threads),
        names: wanted.names,
        second_copy: ForRemote { evict_at: wanted.evict_at, follow: wanted.follow },
        mountpoint: mounted.mountpoint().into(),
        device: mounted.device(),
        // Whom it lets in, the kernel knows from whoever mounted it.
        allow_other: request.options.allow_other || mounted.is_given(),
        version: VERSION,
        handover: None,
    }
}

fn read_only_note(pool: &Pool) -> Option<String> {
    let reason = pool.is_read_only().filter(|reason| reason != READ_ONLY_HOST)?;
    Some(format!("{}: takes no changes: {reason}", pool.path().display()))
}

/// What recovery did, for whoever mounts a pool that was not closed, or goes on `after` another server of the mount.
fn recovery_note(pool: &Pool, after: Option<&str>) -> Option<String> {
    let recovery = pool.recovery();
    let what = match recovery.kind {
        Shutdown::Clean => return None,
        Shutdown::ServerKilled if recovery.outlived => {
            "programs of an earlier mount could still write its files when it was unmounted; they were looked at again"
        }
        Shutdown::ServerKilled if recovery.left => {
            "its server could not bring everything to order when it ended; recovered"
        }
        Shutdown::ServerKilled if recovery.unwritten => "its disk failed before its server ended; recovered",
        Shutdown::ServerKilled if after.is_some_and(has_left) => "another server of the mount has left it to this one",
        Shutdown::ServerKilled => "its server was killed, or its disk failed before it ended; recovered",
        Shutdown::PowerLoss => "the machine went down; recovered up to the last commit",
    };
    let mut line = format!("{}: {what}", pool.path().display());
    // The server before may have had no time to say of a file that it could not be synced.
    let damaged = (recovery.damaged_files as usize).max(pool.view().damaged().count());
    if recovery.kind == Shutdown::ServerKilled && !recovery.outlived && !recovery.unwritten && damaged == 0 {
        line.push_str(NOTHING_LOST);
    }
    let mut also = |count: usize, what: &str| {
        if count > 0 {
            line.push_str(&format!("; {count} {what}"));
        }
    };
    also(recovery.dropped_transactions as usize, "newer operations undone");
    also(recovery.quarantined.len(), "quarantined (tensorfs restore lists them)");
    also(damaged, "damaged files");
    // Those of a mount that goes on are open as before.
    if after.is_none() {
        also(recovery.open_segments.len(), "files still open by programs of the old mount");
    }
    Some(line)
}
