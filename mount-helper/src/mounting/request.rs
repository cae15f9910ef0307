//! A mount that was asked for, and everything that must be so before its server starts.

use std::ffi::OsString;
use std::fs;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use crate::mounting::keeper::errands::{self, Sockets};
use crate::mounting::keeper::stored::Stored;
use crate::mounting::kept::{Adopted, Descriptors};
use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::options::MountOptions;
use crate::mounting::{given, holder, inherited, paths, pool, unmount};
use crate::show::failure::{At, Failure};

/// The name a server runs under, whatever this program was called by.
pub(super) const PROGRAM: &str = "tensorfs";

/// A mount that was asked for.
#[derive(Debug, Clone)]
pub struct MountRequest {
    pub(super) pool: PathBuf,
    pub(super) mountpoint: PathBuf,
    pub(super) options: MountOptions,
    /// What the keeper handed to this server.
    pub(super) kept: Option<Descriptors>,
    /// Why it takes the place of another one.
    pub(super) after: Option<String>,
    /// Whom this server asks for what it has no right to, once it has given up its rights.
    pub(super) errands: Option<Sockets>,
    /// What a server whose keeper has died handed to this one.
    pub(super) adopted: Option<Adopted>,
    /// What the service manager has started this process with.
    stored: Stored,
}

impl MountRequest {
    /// A mount of `pool` at `mountpoint`, as paths on the command line.
    pub fn new(pool: PathBuf, mountpoint: PathBuf, options: MountOptions) -> MountRequest {
        let stored = Stored::default();
        MountRequest { pool, mountpoint, options, kept: None, after: None, errands: None, adopted: None, stored }
    }

    /// As a keeper that a service manager has started with these.
    pub fn stored(self, stored: Stored) -> MountRequest {
        MountRequest { stored, ..self }
    }

    /// As the server of a keeper, who handed these over.
    pub fn kept(self, kept: Option<Descriptors>, after: Option<String>) -> MountRequest {
        MountRequest { kept, after, ..self }
    }

    /// As a server that gives up its rights.
    pub fn errands(self, errands: Option<Sockets>) -> MountRequest {
        MountRequest { errands, ..self }
    }

    /// As a keeper of what a server has handed over.
    pub fn adopted(self, adopted: Option<Adopted>) -> MountRequest {
        MountRequest { adopted, ..self }
    }

    /// Closes all that this process was started with and that is not for this mount. The first thing that is done, as
    /// what comes of it outlives whoever asked for it.
    pub fn close_others(&self) -> Result<(), Failure> {
        let named = [Some(&*self.pool), Some(&*self.mountpoint), self.options.log()].into_iter().flatten();
        let handed = self.kept.into_iter().flat_map(Descriptors::numbers);
        let handed = handed.chain(self.errands.into_iter().flat_map(Sockets::numbers));
        let handed = handed.chain(self.adopted.into_iter().flat_map(Adopted::numbers)).chain(self.stored.numbers());
        inherited::close_all_but(handed.chain(named.filter_map(inherited::number_in)))
    }

    /// What the service manager has kept.
    pub fn kept_by_manager(&self) -> &Stored {
        &self.stored
    }

    /// True if somebody is to keep watch over its server, and this is not that server.
    pub fn is_to_be_kept(&self) -> bool {
        self.options.server.keeper && self.kept.is_none()
    }

    /// The pool's directory.
    pub fn pool(&self) -> &Path {
        &self.pool
    }

    /// Where it is to be mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// How.
    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Makes sure that the pool can be mounted there: paths, a dead mount, another server, `create`.
    pub fn prepare(mut self) -> Result<MountRequest, Failure> {
        self.settle()?;
        if let Some(number) = given::number(&self.mountpoint) {
            return self.prepare_given(number);
        }
        self.resolve()?;
        let is_dead = dead_at(&self.mountpoint)?.is_some();
        holder::wait_until_free(&self.pool)?;
        if !is_dead {
            refuse_second_mount(&self.mountpoint)?;
        }
        if self.options.create {
            pool::create_if_missing(&self.pool, &self.options)?;
        }
        if self.options.create && !is_dead {
            make_directory(&self.mountpoint)?;
        }
        if let Some(wanted) = self.options.size {
            pool::tell_of_size(&self.pool, wanted);
        }
        // Of what is dead nothing can be asked: it is a mount of a pool, and so a directory.
        if !is_dead && !self.mountpoint.is_dir() {
            return Err(Failure::at(&self.mountpoint, "not a directory"));
        }
        Ok(self)
    }

    /// Detaches mounts at the mount point whose servers were killed, and says so. Not before the pool is open: as long
    /// as they are there, programs get errors; then they would write into the directory below, beside the pool.
    pub(super) fn clear_dead(&self, say: &mut dyn FnMut(&str)) -> Result<(), Failure> {
        let at = &self.mountpoint;
        while let Some(mount) = dead_at(at)? {
            let pool = mount.source().display();
            say(&format!("{}: detaching the mount of {pool}, whose server is gone", at.display()));
            unmount::unmount(at, true).at(at)?;
        }
        // It may have been hidden by those.
        refuse_second_mount(at)
    }

    /// As [`MountRequest::prepare`], of what is mounted so already. Nothing is asked of the mount.
    pub(super) fn of_mount(mut self, mount: &Mount) -> Result<MountRequest, Failure> {
        self.settle()?;
        (self.pool, self.mountpoint) = (mount.source().into(), mount.mount_point().into());
        Ok(self)
    }

    fn settle(&mut self) -> Result<(), Failure> {
        self.options.allow_other |= geteuid().is_root();
        self.options.make_absolute()?;
        if self.options.server.watchdog.is_some() && !self.options.server.keeper {
            return Err(Failure::at(&self.mountpoint, "option \"watchdog\": it takes the option keeper, too"));
        }
        Ok(())
    }

    /// As [`MountRequest::prepare`], where somebody else has mounted it.
    fn prepare_given(mut self, number: RawFd) -> Result<MountRequest, Failure> {
        given::check(number)?;
        let flags = self.options.to_list();
        if let Some(option) =
            ["ro", "noexec", "nosymfollow"].into_iter().find(|one| flags.split(',').any(|it| it == *one))
        {
            return Err(Failure::at(
                &self.mountpoint,
                format!("option \"{option}\": it is for whoever mounts, and this is mounted"),
            ));
        }
        if self.options.server.watchdog.is_some() {
            let reason = "option \"watchdog\": it is not for a mount that somebody else has made";
            return Err(Failure::at(&self.mountpoint, reason));
        }
        let mounted_at = given::check_mounts(number, &self.pool)?;
        if self.options.create {
            self.pool = paths::future(&self.pool)?;
        } else {
            require(&self.pool, "no such directory; create a pool with: tensorfs create")?;
            self.pool = paths::real(&self.pool)?;
        }
        for at in mounted_at {
            if let Some(reason) = paths::conflict(&self.pool, &at) {
                return Err(Failure::at(&at, reason));
            }
        }
        if self.options.create {
            pool::create_if_missing(&self.pool, &self.options)?;
        }
        holder::wait_until_free(&self.pool)?;
        Ok(self)
    }

    fn resolve(&mut self) -> Result<(), Failure> {
        if self.options.create {
            self.pool = paths::future(&self.pool)?;
            self.mountpoint = paths::future(&self.mountpoint)?;
        } else {
            require(&self.pool, "no such directory; create a pool with: tensorfs create")?;
            require(&self.mountpoint, "no such directory; make it, or mount with --create")?;
            self.pool = paths::real(&self.pool)?;
            self.mountpoint = paths::real(&self.mountpoint)?;
        }
        match paths::conflict(&self.pool, &self.mountpoint) {
            Some(reason) => Err(Failure::at(&self.mountpoint, reason)),
            None => Ok(()),
        }
    }

    /// The command line of the server that this request becomes.
    pub fn server_arguments(&self) -> Vec<OsString> {
        self.arguments_with(&self.options.to_list())
    }

    /// As [`MountRequest::server_arguments`], with other options.
    pub(super) fn arguments_with(&self, list: &str) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["mount".into(), "--foreground".into(), "--handshake".into()];
        if !list.is_empty() {
            arguments.extend(["-o".into(), list.into()]);
        }
        if let Some(log) = &self.options.log {
            arguments.extend(["--log".into(), log.into()]);
        }
        arguments.push("--".into());
        arguments.push(self.pool.clone().into());
        arguments.push(self.mountpoint.clone().into());
        arguments
    }
}

impl From<&MountRequest> for errands::Mount {
    fn from(request: &MountRequest) -> Self {
        let (pool, mountpoint) = (request.pool.clone(), request.mountpoint.clone());
        Self { pool, mountpoint, log: request.options.log.clone() }
    }
}

/// Nothing is asked of what is mounted there: its server may hang.
fn require(path: &Path, hint: &str) -> Result<(), Failure> {
    match path.canonicalize() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Failure::at(path, hint)),
        // a dead mount, or no permission: whoever comes next sees it too
        _ => Ok(()),
    }
}

fn make_directory(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path).at(path)
}

/// The mount of a pool whose server was killed, if one is seen there.
fn dead_at(mountpoint: &Path) -> Result<Option<Mount>, Failure> {
    let table = Table::here()?;
    let Some(mount) = table.top_at(mountpoint).filter(|mount| mount.is_dead()) else { return Ok(None) };
    if !mount.is_tensorfs() {
        let (kind, source) = (mount.fs_type().display(), mount.source().display());
        let reason = format!("a dead mount of another filesystem is there ({kind}, {source}); unmount it first");
        return Err(Failure::at(mountpoint, reason));
    }
    Ok(Some(mount.clone()))
}

/// Two pools on one mount point hide each other; that is never meant.
fn refuse_second_mount(mountpoint: &Path) -> Result<(), Failure> {
    let table = Table::here()?;
    let Some(mount) = table.top_at(mountpoint).filter(|mount| mount.is_tensorfs()) else {
        return Ok(());
    };
    let by = match tensorfs_layout::pool::holder(mount.source()) {
        Ok(Some(holder)) => format!(" by process {}", holder.pid),
        _ => String::new(),
    };
    let pool = mount.source().display();
    Err(Failure::at(mountpoint, format!("the pool {pool} is mounted here already{by}")))
}
