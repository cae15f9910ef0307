//! A mount that was asked for, and everything that must be so before its server starts.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use tensorfs_layout::Holder;

use crate::mounting::mountinfo::Table;
use crate::mounting::options::MountOptions;
use crate::mounting::{paths, pool, process, unmount};
use crate::show::failure::{At, Failure};
use crate::show::output;

/// How long to wait for a server that is closing the pool.
const PATIENCE: Duration = Duration::from_secs(30);

/// Mounting straight after unmounting is ordinary, and closing a pool mostly takes no time: nothing is said of it for
/// so long.
const SILENCE: Duration = Duration::from_secs(2);

/// A mount that was asked for.
#[derive(Debug, Clone)]
pub struct Request {
    pub(super) pool: PathBuf,
    pub(super) mountpoint: PathBuf,
    pub(super) options: MountOptions,
}

impl Request {
    /// A mount of `pool` at `mountpoint`, as paths on the command line.
    pub fn new(pool: PathBuf, mountpoint: PathBuf, options: MountOptions) -> Request {
        Request { pool, mountpoint, options }
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
    pub fn prepare(mut self) -> Result<Request, Failure> {
        self.options.allow_other |= geteuid().is_root();
        if let Some(log) = &mut self.options.log {
            *log = std::path::absolute(&*log).at(log)?;
        }
        self.resolve()?;
        clear_dead(&self.mountpoint)?;
        wait_until_free(&self.pool)?;
        refuse_second_mount(&self.mountpoint)?;
        if self.options.create {
            pool::create_if_missing(&self.pool, &self.options)?;
            make_directory(&self.mountpoint)?;
        }
        if !self.mountpoint.is_dir() {
            return Err(Failure::at(&self.mountpoint, "not a directory"));
        }
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
        let mut arguments: Vec<OsString> = vec!["mount".into(), "--foreground".into(), "--handshake".into()];
        let list = self.options.to_list();
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

fn require(path: &Path, hint: &str) -> Result<(), Failure> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Failure::at(path, hint)),
        // a dead mount, or no permission: whoever comes next sees it too
        _ => Ok(()),
    }
}

fn make_directory(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path).at(path)
}

/// Detaches mounts whose server was killed.
fn clear_dead(mountpoint: &Path) -> Result<(), Failure> {
    while let Some(mount) = Table::here()?.top_at(mountpoint)
        && mount.is_dead()
    {
        if !mount.is_tensorfs() {
            let (kind, source) = (mount.fs_type().display(), mount.source().display());
            let reason = format!("a dead mount of another filesystem is there ({kind}, {source}); unmount it first");
            return Err(Failure::at(mountpoint, reason));
        }
        let pool = mount.source().display();
        log::warn!("{}: detaching the mount of {pool}, whose server is gone", mountpoint.display());
        unmount::unmount(mountpoint, true).at(mountpoint)?;
    }
    Ok(())
}

/// Two pools on one mount point hide each other; that is never meant.
fn refuse_second_mount(mountpoint: &Path) -> Result<(), Failure> {
    let table = Table::here()?;
    let Some(mount) = table.top_at(mountpoint).filter(|mount| mount.is_tensorfs()) else {
        return Ok(());
    };
    let by = match tensorfs_layout::holder(mount.source()) {
        Ok(Some(holder)) => format!(" by process {}", holder.pid),
        _ => String::new(),
    };
    let pool = mount.source().display();
    Err(Failure::at(mountpoint, format!("the pool {pool} is mounted here already{by}")))
}

/// Waits for a server that has lost its mount and is closing the pool; refuses if another one is using it.
fn wait_until_free(pool: &Path) -> Result<(), Failure> {
    let start = Instant::now();
    let mut said = false;
    while let Some(holder) = holder(pool)? {
        if !is_closing(pool, &holder) {
            return Err(busy(pool, &holder));
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
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn holder(pool: &Path) -> Result<Option<Holder>, Failure> {
    if !pool.is_dir() {
        return Ok(None); // opening it will say so
    }
    Ok(tensorfs_layout::holder(pool)?)
}

fn busy(pool: &Path, holder: &Holder) -> Failure {
    tensorfs_layout::Error::Busy { pool: pool.to_owned(), pid: holder.pid, mountpoint: holder.mountpoint.clone() }
        .into()
}

/// A server that has a mount point but no mount: it is about to end (or about to mount, which the next look will show).
fn is_closing(pool: &Path, holder: &Holder) -> bool {
    let Some(mountpoint) = &holder.mountpoint else {
        return false;
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
