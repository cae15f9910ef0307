//! The filesystems that a pool is on, and their quotas of projects.

use std::ffi::{c_int, c_long};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tensorfs_layout::medium::project;

use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::paths;
use crate::show::failure::{At, Failure};

/// `PRJQUOTA`, which libc lacks, and of `include/uapi/linux/dqblk_xfs.h`: what a filesystem does about quotas, and the
/// bit that says of those of projects that they hold.
const PROJECTS: c_int = 2;
const STATE: c_int = ((b'X' as c_int) << 8) + 5;
const HOLDS: u16 = 1 << 5;

/// The numbers that are tried: far from those that people choose.
const FIRST: u32 = 7_600_000;
const MOST: u32 = 100_000;

/// The limit of a directory that is not counted to its end yet. It takes the number, and is met by nobody.
const UNFINISHED: u64 = 1 << 60;

/// A limit that is told to the kernel as less than that.
pub const TOO_MUCH: u64 = UNFINISHED - UNIT + 1;

/// In these, limits are told to the kernel.
const UNIT: u64 = 1024;

/// The kernel's `struct fs_quota_stat`, with more room than that takes.
#[repr(C)]
#[derive(Default)]
struct State {
    version: i8,
    flags: u16,
    more: [u64; 16],
}

/// A filesystem.
pub struct Host {
    directory: PathBuf,
    opened: File,
}

/// What a project has, in bytes.
#[derive(Clone, Copy, Default)]
pub struct Has {
    pub used: u64,
    /// 0 is none.
    limit: u64,
    files: u64,
}

impl Has {
    /// The limit. None: the directory is not counted to its end yet, or somebody has taken the limit away.
    pub fn limit(&self) -> Option<u64> {
        Some(self.limit).filter(|limit| !matches!(*limit, 0 | UNFINISHED))
    }

    fn is_free(&self) -> bool {
        (self.used, self.limit, self.files) == (0, 0, 0)
    }
}

impl Host {
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What whoever takes a number of this filesystem holds a lock of: its root, which all pools on it have in common,
    /// or what comes next to it where that is not mounted.
    fn root(&self) -> Result<File, Failure> {
        let device = self.opened.metadata().at(&self.directory)?.dev();
        let table = Table::here()?;
        let around = paths::real(&self.directory).ok().and_then(|path| table.around(&path).cloned());
        let same = |mount: &&Mount| around.as_ref().is_some_and(|around| mount.device() == around.device());
        let whole = table.latest_first().filter(same).find(|mount| mount.is_whole());
        for mount in whole.into_iter().chain(around.as_ref()) {
            let opened = File::open(mount.mount_point());
            if let Some(root) = opened.ok().filter(|root| root.metadata().is_ok_and(|found| found.dev() == device)) {
                return Ok(root);
            }
        }
        self.opened.try_clone().at(&self.directory)
    }

    /// Objections to quotas of directories here.
    pub fn check(&self) -> Result<(), Failure> {
        let Ok(own) = project(&self.opened) else { return Err(self.lacks()) };
        let mut state = State::default();
        // SAFETY: the structure has room for all that the kernel writes.
        if unsafe { self.ask(STATE, 0, (&raw mut state).cast()) }.is_err() || state.flags & HOLDS == 0 {
            return Err(self.lacks());
        }
        if own != 0 {
            let whole = format!("all of it belongs to project {own} of its filesystem, which directories cannot leave");
            return Err(Failure::at(&self.directory, whole));
        }
        Ok(())
    }

    fn lacks(&self) -> Failure {
        let kind = Table::here().ok().zip(paths::real(&self.directory).ok());
        let kind = kind.and_then(|(table, path)| Some(table.around(&path)?.fs_type().display().to_string()));
        let kind = kind.map(|kind| format!(" ({kind})")).unwrap_or_default();
        let why = format!(
            "its filesystem{kind} keeps no quotas of projects; ext4 made with -O quota,project does, and XFS, \
             mounted with -o prjquota"
        );
        Failure::at(&self.directory, why)
    }

    /// What a project has.
    pub fn get(&self, number: u32) -> Result<Has, Failure> {
        // SAFETY: all bytes zero are a value of it.
        let mut found: libc::dqblk = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is the kernel's, and lives through the call.
        match unsafe { self.ask(libc::Q_GETQUOTA, number, (&raw mut found).cast()) } {
            // XFS says so of one that it has never heard of.
            Err(Errno::ENOENT) => Ok(Has::default()),
            Err(Errno::ENOSYS | Errno::EINVAL | Errno::ESRCH) => Err(self.lacks()),
            asked => asked.at(&self.directory).map(|()| Has {
                used: found.dqb_curspace,
                limit: found.dqb_bhardlimit.saturating_mul(UNIT),
                files: found.dqb_curinodes,
            }),
        }
    }

    fn set(&self, number: u32, limit: u64) -> Result<(), Failure> {
        // SAFETY: all bytes zero are a value of it.
        let mut wanted: libc::dqblk = unsafe { std::mem::zeroed() };
        wanted.dqb_bhardlimit = limit.div_ceil(UNIT);
        wanted.dqb_valid = libc::QIF_BLIMITS;
        // SAFETY: the structure is the kernel's, which only reads it.
        unsafe { self.ask(libc::Q_SETQUOTA, number, (&raw mut wanted).cast()) }.at(&self.directory)
    }

    /// # Safety
    /// What is pointed to is what the command takes.
    unsafe fn ask(&self, command: c_int, number: u32, what: *mut libc::c_void) -> nix::Result<()> {
        let command = c_long::from(libc::QCMD(command, PROJECTS));
        // SAFETY: the descriptor is open, and the caller answers for the pointer.
        let done = unsafe { libc::syscall(libc::SYS_quotactl_fd, self.opened.as_raw_fd(), command, number, what) };
        Errno::result(done).map(drop)
    }
}

/// All filesystems that a pool is on, each once; the pool's own is the first.
pub struct Hosts(Vec<Host>);

impl Hosts {
    /// Those of these directories.
    pub fn of<'a>(directories: impl Iterator<Item = &'a Path>) -> Result<Self, Failure> {
        let (mut hosts, mut devices) = (Vec::new(), Vec::new());
        for directory in directories {
            let opened = File::open(directory).at(directory)?;
            let device = opened.metadata().at(directory)?.dev();
            if !devices.contains(&device) {
                devices.push(device);
                hosts.push(Host { directory: directory.to_owned(), opened });
            }
        }
        Ok(Self(hosts))
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Host> {
        self.0.iter()
    }

    /// Objections of any of them.
    pub fn check(&self) -> Result<(), Failure> {
        self.0.iter().try_for_each(Host::check)
    }

    /// Limits what a project may have on each of them.
    pub fn limit(&self, number: u32, bytes: u64) -> Result<(), Failure> {
        self.0.iter().try_for_each(|host| host.set(number, bytes))
    }

    /// True if a project has its limit everywhere.
    pub fn are_limited(&self, number: u32) -> Result<bool, Failure> {
        self.0.iter().try_fold(true, |all, host| Ok(all && host.get(number)?.limit().is_some()))
    }

    /// A number that nothing and nobody has on any of them, and that nobody else gets from now on.
    pub fn take_free(&self) -> Result<u32, Failure> {
        let Some(first) = self.0.first() else { return Err(Failure::new("the pool has no directory")) };
        // All take them in one order.
        let roots = self.0.iter().map(|host| Ok((host.root()?, host)));
        let mut roots = roots.collect::<Result<Vec<_>, Failure>>()?;
        roots.sort_by_key(|(root, _)| root.metadata().map(|found| (found.dev(), found.ino())).ok());
        let turn = |(root, host): (File, &Host)| {
            Flock::lock(root, FlockArg::LockExclusive).map_err(|(_, errno)| errno).at(&host.directory)
        };
        let _turns = roots.into_iter().map(turn).collect::<Result<Vec<_>, Failure>>()?;
        let named = named();
        for number in (FIRST..FIRST + MOST).filter(|number| !named.contains(number)) {
            if self.0.iter().try_fold(true, |all, host| Ok::<_, Failure>(all && host.get(number)?.is_free()))? {
                self.limit(number, UNFINISHED)?;
                return Ok(number);
            }
        }
        Err(Failure::at(&first.directory, "no number of a project is free"))
    }
}

/// True if `quota set` may have taken that number: a pool may say any other one of its directories, which is somebody
/// else's on this host.
pub fn is_ours(number: u32) -> bool {
    (FIRST..FIRST + MOST).contains(&number)
}

/// The numbers that the machine's own tables give names to, or directories.
fn named() -> Vec<u32> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (names, directories) = (read("/etc/projid"), read("/etc/projects"));
    let named = names.lines().filter_map(|line| line.rsplit(':').next()?.trim().parse().ok());
    named.chain(directories.lines().filter_map(|line| line.split(':').next()?.trim().parse().ok())).collect()
}
