//! A pool, mounted, for the time of one test.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use nix::errno::Errno;
use serde_json::Value;
use tempfile::TempDir;

use crate::built::binary;
use crate::children::{c_path, has_ended, program_path, run, run_ok, wait_for_end, wait_until};
use crate::hang::{self, Watch};
use crate::host_calls::HostCalls;
use crate::killing::{self, Killing};
use crate::unmounting::unmounting;

/// Who moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passthrough {
    /// The kernel.
    On,
    /// The server.
    Off,
}

impl Passthrough {
    fn argument(self) -> &'static str {
        match self {
            Passthrough::On => "on",
            Passthrough::Off => "off",
        }
    }
}

/// What a test gets: the means to make its mount.
#[derive(Debug, Clone)]
pub struct Setup {
    name: String,
    passthrough: Passthrough,
    create: Vec<String>,
    mount: Vec<String>,
    pool: Option<PathBuf>,
    descriptors: Option<u64>,
    host_calls: Option<HostCalls>,
    /// How often servers are killed, on average, under a keeper.
    kills: Option<Duration>,
}

/// How a [`Mount`] was started; returned by [`Mount::try_mount`].
#[derive(Debug)]
pub struct Started(pub Output);

impl Setup {
    /// Runs a test with passthrough on or off, or counts it as skipped.
    pub fn run(name: &str, passthrough: Passthrough, test: fn(Setup)) {
        if let Some(reason) = cannot(passthrough) {
            return skip(name, &reason);
        }
        let _watch = Watch::begin(name);
        test(Setup::new(name, passthrough));
    }

    /// Whether this machine can mount in this mode.
    pub fn can(passthrough: Passthrough) -> bool {
        cannot(passthrough).is_none()
    }

    /// For tests that choose the mode themselves. Prefer [`crate::on_mounts!`].
    pub fn new(name: &str, passthrough: Passthrough) -> Setup {
        Setup {
            name: name.to_owned(),
            passthrough,
            create: Vec::new(),
            mount: Vec::new(),
            pool: None,
            descriptors: None,
            host_calls: None,
            kills: killing::wanted(),
        }
    }

    /// More arguments for `tensorfs create`.
    pub fn create<const N: usize>(mut self, arguments: [&str; N]) -> Setup {
        self.create.extend(arguments.map(str::to_owned));
        self
    }

    /// More arguments for every `tensorfs mount`.
    pub fn mount_with<const N: usize>(mut self, arguments: [&str; N]) -> Setup {
        self.mount.extend(arguments.map(str::to_owned));
        self
    }

    /// A place for the pool that is not the test's own directory. A pool that is there already is mounted as it is.
    pub fn pool_at(mut self, path: impl Into<PathBuf>) -> Setup {
        self.pool = Some(path.into());
        self
    }

    /// Starts servers that may have so many descriptors and cannot raise that.
    pub fn few_descriptors(mut self, descriptors: u64) -> Setup {
        self.descriptors = Some(descriptors);
        self
    }

    /// Starts servers whose calls of the host can be delayed and made to fail. Rules are about files of the pool.
    pub fn host_calls(mut self, calls: &HostCalls) -> Setup {
        self.host_calls = Some(calls.clone());
        self
    }

    /// Mounts have a keeper, and their servers are killed, each after so long on average.
    pub fn kills(mut self, average: Duration) -> Setup {
        self.kills = Some(average);
        self
    }

    /// What the tests' program calls the test that [`crate::on_mounts!`] made of it.
    pub fn test_name(&self) -> String {
        let rest = self.name.split_once("::").map_or(&*self.name, |(_, rest)| rest);
        let (test, mode) = rest.rsplit_once("::").unwrap_or((rest, ""));
        format!("{test}::passthrough_{mode}")
    }

    /// Whether the kernel is to move the bytes.
    pub fn passthrough(&self) -> Passthrough {
        self.passthrough
    }

    /// Whether mounts are ordinary directories (`TENSORFS_TEST_PLAIN`).
    pub fn mount_is_plain(&self) -> bool {
        plain()
    }

    /// Counts the rest of this test as skipped.
    pub fn skip(&self, reason: &str) {
        skip(&self.name, reason);
    }

    /// A directory in memory, or the rest of this test counts as skipped.
    pub fn in_memory(&self) -> Option<TempDir> {
        match tempfile::tempdir_in("/dev/shm") {
            Ok(memory) => Some(memory),
            Err(_) => {
                self.skip("there is no /dev/shm");
                None
            }
        }
    }

    /// Creates a pool and mounts it.
    #[track_caller]
    pub fn mount(self) -> Mount {
        let base = scratch();
        let pool = self.pool.clone().unwrap_or_else(|| base.path().join("pool"));
        let path = base.path().join("mnt");
        std::fs::create_dir(&path).unwrap();
        hang::note_mount(&path);
        std::fs::create_dir(base.path().join("host")).unwrap();
        let mut mount =
            Mount { base: Some(base), pool, path, pid: None, keeper: None, killing: None, killed: 0, setup: self };
        if !plain() {
            if !mount.pool.exists() {
                let mut create = mount.program();
                create.arg("create").arg(&mount.pool).args(&mount.setup.create);
                run_ok(&mut create);
            }
            if let Some(calls) = &mount.setup.host_calls {
                calls.set_pool(&mount.pool);
            }
            mount.mount();
        }
        mount
    }
}

/// A mounted pool; unmounted, its server ended and its files removed when it goes out of scope.
#[derive(Debug)]
pub struct Mount {
    base: Option<TempDir>,
    pool: PathBuf,
    path: PathBuf,
    pid: Option<i32>,
    /// Who keeps watch over the server, if somebody does.
    keeper: Option<i32>,
    /// Who kills the server, if all are to be killed.
    killing: Option<Killing>,
    /// How many were killed so.
    killed: u64,
    setup: Setup,
}

impl Mount {
    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path below the mount point.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// The pool's directory.
    pub fn pool(&self) -> &Path {
        &self.pool
    }

    /// An ordinary directory on the filesystem that holds the pool.
    pub fn host(&self) -> PathBuf {
        self.base.as_ref().unwrap().path().join("host")
    }

    /// Whether the kernel moves the bytes.
    pub fn passthrough(&self) -> Passthrough {
        self.setup.passthrough
    }

    /// The server's process id, while it runs.
    pub fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// How many servers were killed because of [`Setup::kills`], until the last unmounting.
    pub fn killed(&self) -> u64 {
        self.killed
    }

    /// True if somebody keeps watch over the server.
    pub fn is_watched(&self) -> bool {
        self.keeper.is_some()
    }

    /// Whether this is an ordinary directory (`TENSORFS_TEST_PLAIN`).
    pub fn is_plain(&self) -> bool {
        plain()
    }

    /// The `tensorfs` program.
    pub fn program(&self) -> Command {
        Command::new(binary())
    }

    /// Runs `tensorfs` with these arguments.
    pub fn tensorfs<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Output {
        run(self.program().args(arguments))
    }

    /// Runs `tensorfs` with these arguments; it must succeed.
    #[track_caller]
    pub fn tensorfs_ok<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        run_ok(self.program().args(arguments))
    }

    /// Gives the pool, which must not be mounted, another tier.
    #[track_caller]
    pub fn add_tier(&self, name: &str, directory: &Path) {
        run_ok(self.program().args(["tier", "add"]).arg(&self.pool).arg(name).arg(directory));
    }

    /// Mounts the pool.
    #[track_caller]
    pub fn mount(&mut self) {
        if plain() {
            return;
        }
        // A test that had the pool open itself shares its lock with whatever another test is just starting.
        let output = patiently(1000, |said| said.contains("in use by process 0"), || self.try_mount().0);
        assert!(
            output.status.success(),
            "mount: {}\n{}{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
            self.log()
        );
        self.adopt();
        self.killing = self.setup.kills.map(|average| Killing::begin(&self.pool, &self.path, average));
    }

    /// From now on it has the server that it has.
    fn end_killing(&mut self) {
        if let Some(killing) = self.killing.take() {
            let killed = killing.end();
            self.killed += killed;
            println!("{}: {killed} servers were killed", self.setup.name);
            let holder = tensorfs_layout::pool::holder(&self.pool).ok().flatten();
            self.pid = holder.map(|holder| holder.pid as i32).filter(|pid| *pid != 0).or(self.pid);
        }
    }

    /// Takes over the server that [`Mount::try_mount`] has started.
    #[track_caller]
    pub fn adopt(&mut self) {
        let info = self.info();
        self.pid = info["pid"].as_i64().map(|pid| pid as i32);
        self.keeper = info["keeper"]["pid"].as_i64().map(|pid| pid as i32);
        assert!(self.pid.is_some(), "no pid in {info}");
        assert_eq!(info["passthrough"], self.setup.passthrough == Passthrough::On, "{info}");
    }

    /// Tries to mount the pool.
    pub fn try_mount(&mut self) -> Started {
        Started(run(&mut self.mounting()))
    }

    /// The command that mounts the pool.
    pub fn mounting(&self) -> Command {
        let mut command = self.program();
        if let Some(descriptors) = self.setup.descriptors {
            command = Command::new("setpriv");
            command.args(["--bounding-set", "-sys_resource", "prlimit"]);
            command.arg(format!("--nofile={descriptors}:{descriptors}")).arg(binary());
        }
        command
            .arg("mount")
            .arg(&self.pool)
            .arg(&self.path)
            .args(["--passthrough", self.setup.passthrough.argument()])
            .arg("--log")
            .arg(self.log_path());
        // What the test itself wants goes over it.
        if let Some(options) = std::env::var_os("TENSORFS_TEST_OPTIONS") {
            command.arg("-o").arg(options);
        }
        if self.setup.kills.is_some() {
            command.args(["-o", "keeper"]);
        }
        command.args(&self.setup.mount);
        if let Some(calls) = &self.setup.host_calls {
            calls.preload(&mut command);
        }
        command
    }

    /// `tensorfs info --json` of the pool.
    #[track_caller]
    pub fn info(&self) -> Value {
        let text = run_ok(self.program().arg("info").arg(&self.pool).arg("--json"));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("info --json: {e}: {text}"))
    }

    /// Waits until the server has sealed so many files since it was started.
    #[track_caller]
    pub fn wait_for_seals(&self, count: u64) {
        self.wait_for("seals", |info| info["counters"]["sealed"].as_u64() >= Some(count));
    }

    /// Waits for something that the server does by itself, and fails only long after it should have been done.
    #[track_caller]
    pub fn wait_for(&self, what: &str, done: impl Fn(&Value) -> bool) {
        for _ in 0..1200 {
            if done(&self.info()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("still no {what}: {}\n{}", self.info(), self.log());
    }

    /// `tensorfs sync`: everything is durable when this returns.
    #[track_caller]
    pub fn sync(&self) {
        if !plain() {
            run_ok(self.program().arg("sync").arg(&self.path));
        }
    }

    /// Unmounts in an orderly way; the pool is closed when this returns.
    #[track_caller]
    pub fn umount(&mut self) {
        if plain() {
            return;
        }
        self.end_killing();
        // What other tests are just starting has the files of this process, too.
        let output = patiently(5, is_just_starting, || {
            let _unmounting = unmounting();
            self.tensorfs([OsStr::new("umount"), self.path.as_os_str()])
        });
        assert!(output.status.success(), "umount: {}", String::from_utf8_lossy(&output.stderr));
        assert!(!is_mounted(&self.path), "still mounted after umount");
        if let Some(pid) = self.pid.take() {
            wait_for_end(pid);
        }
    }

    /// Unmounts in an orderly way, unless something uses the mount: a child that another test was just starting has the
    /// files of this process until it executes its program.
    pub fn try_umount(&mut self) -> bool {
        self.end_killing();
        if !self.ask_to_unmount() {
            return false;
        }
        if let Some(pid) = self.pid.take() {
            wait_for_end(pid);
        }
        true
    }

    /// Unmounts if need be, and mounts again.
    #[track_caller]
    pub fn remount(&mut self) {
        if self.pid.is_some() {
            self.umount();
        }
        self.mount();
    }

    /// Asks for that, and says whether it was done.
    fn ask_to_unmount(&self) -> bool {
        let _unmounting = unmounting();
        run(self.program().arg("umount").arg(&self.path)).status.success()
    }

    /// Unmounts, whatever becomes of it: true if the server has ended within a minute. A mount that is still there
    /// stays. What keeps it busy may be a child that another test was just starting, so that is asked for again.
    pub fn end(&mut self) -> bool {
        self.end_killing();
        let Some(pid) = self.pid else { return true };
        let mut asked = false;
        let ended = (0..600).any(|tenth| {
            if !asked && tenth % 10 == 0 {
                asked = self.ask_to_unmount();
            }
            let ended = has_ended(pid);
            if !ended {
                std::thread::sleep(Duration::from_millis(100));
            }
            ended
        });
        if ended {
            self.pid = None;
        }
        ended
    }

    /// Kills the server, and first who would have another one take over. The dead mount point stays until the next
    /// mount.
    #[track_caller]
    pub fn kill9(&mut self) {
        if plain() {
            return;
        }
        self.end_killing();
        if self.keeper.is_some() {
            self.kill_keeper();
        }
        let pid = self.pid.take().expect("a server to kill");
        // SAFETY: plain system call. The pid was asked of the server that runs.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        wait_for_end(pid);
    }

    /// Kills a server whose keeper has another one take over; returns when that one has the pool.
    #[track_caller]
    pub fn kill_server(&mut self) {
        self.end_server(|pid| {
            // SAFETY: plain system call. The pid was asked of the server that runs.
            assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        });
    }

    /// Has the server end in another way, and waits for the next one.
    #[track_caller]
    pub fn end_server(&mut self, end: impl FnOnce(i32)) {
        self.end_killing();
        let pid = self.pid.expect("a server to end");
        end(pid);
        wait_until("another server", || {
            let holder = tensorfs_layout::pool::holder(&self.pool).unwrap();
            let next = holder.map(|holder| holder.pid as i32).filter(|next| *next != pid && *next != 0);
            self.pid = next.or(self.pid);
            next.is_some()
        });
    }

    /// Kills the keeper. The server goes on.
    #[track_caller]
    pub fn kill_keeper(&mut self) {
        self.end_killing();
        let keeper = self.keeper.take().expect("a keeper to kill");
        // SAFETY: plain system call. The pid was asked of the server that runs.
        assert_eq!(unsafe { libc::kill(keeper, libc::SIGKILL) }, 0);
        wait_for_end(keeper);
    }

    /// Leaves the pool as a power loss would: the server is gone, the mount is gone, and the next
    /// open sees another boot. No program may have a file of the mount open any more.
    #[track_caller]
    pub fn power_loss(&mut self) {
        if plain() {
            return;
        }
        if self.pid.is_some() {
            self.kill9();
        }
        detach(&self.path);
        // The kernel may let go of a killed server's files, and so of the pool's lock, a moment after the process is
        // gone.
        let changed = (0..1000).find_map(|_| match tensorfs_layout::testing::change_boot_id(&self.pool) {
            Err(tensorfs_layout::Error::Busy { .. }) => {
                std::thread::sleep(std::time::Duration::from_millis(10));
                None
            }
            done => Some(done),
        });
        changed.expect("a pool that nobody holds").expect("change the boot id");
        // A child that another test was just starting has the lock as well, until it executes its program.
        while tensorfs_layout::pool::holder(&self.pool).is_ok_and(|holder| holder.is_some()) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// What the server logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Where the server logs.
    pub fn log_path(&self) -> PathBuf {
        self.base.as_ref().unwrap().path().join("server.log")
    }

    /// The quarantine, as `info` lists it.
    #[track_caller]
    pub fn quarantine(&self) -> Vec<Value> {
        self.info()["quarantine"].as_array().expect("quarantine is a list").clone()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.end_killing();
        if !plain() {
            if std::thread::panicking() {
                eprintln!("--- server's log\n{}---", self.log());
            } else if self.pid.is_some() {
                // Part of the test: an orderly end works with whatever the test left behind.
                self.ask_to_unmount();
            }
            if let Some(keeper) = self.keeper.filter(|keeper| !has_ended(*keeper)) {
                // It would start another server in the place of the one that is ended here.
                // SAFETY: plain system call. The pid is that of the keeper, which has not ended.
                unsafe { libc::kill(keeper, libc::SIGKILL) };
                wait_for_end(keeper);
                let holder = tensorfs_layout::pool::holder(&self.pool).ok().flatten();
                self.pid = holder.map(|holder| holder.pid as i32).filter(|pid| *pid != 0).or(self.pid);
            }
            detach(&self.path);
            if let Some(pid) = self.pid {
                // SAFETY: plain system call. The pid is the server's, which is not ours to reap,
                // so it cannot have been given to another process unless it ended long ago.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                wait_for_end(pid);
            }
        }
        let keep = std::env::var_os("TENSORFS_TEST_KEEP").is_some();
        if keep || (!plain() && is_mounted(&self.path)) {
            let path = self.base.take().unwrap().keep();
            eprintln!("kept: {}", path.display());
        }
    }
}

fn plain() -> bool {
    std::env::var_os("TENSORFS_TEST_PLAIN").is_some()
}

/// A fresh directory on the disk that tests use.
pub fn scratch() -> TempDir {
    let parent = match std::env::var_os("TENSORFS_TEST_DIR") {
        Some(path) => PathBuf::from(path),
        None => program_path("..").join("tmp"),
    };
    std::fs::create_dir_all(&parent).expect("the directory for tests");
    let parent = parent.canonicalize().unwrap();
    tempfile::Builder::new().prefix("t").tempdir_in(parent).expect("a directory for the test")
}

/// The `tensorfs` program, for tests that need no [`Mount`].
pub fn tensorfs() -> Command {
    Command::new(binary())
}

/// Counts a test as skipped.
pub fn skip(name: &str, reason: &str) {
    eprintln!("SKIPPED: {name}: {reason}");
    if let Some(path) = std::env::var_os("TENSORFS_SKIP_LOG") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).expect("TENSORFS_SKIP_LOG");
        // One write, so that lines of parallel tests do not mix.
        file.write_all(format!("{name}: {reason}\n").as_bytes()).expect("TENSORFS_SKIP_LOG");
    }
}

/// Why no test can mount here, if so: for tests that do not use [`crate::on_mounts!`].
pub fn skip_all(name: &str) -> bool {
    match cannot(Passthrough::Off) {
        Some(reason) => {
            skip(name, &reason);
            true
        }
        None => false,
    }
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Why this machine cannot run a test in this mode. Never asks the program under test.
fn cannot(passthrough: Passthrough) -> Option<String> {
    if plain() {
        return (passthrough == Passthrough::On).then(|| "plain directory".to_owned());
    }
    if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        return Some(format!("/dev/fuse: {error}"));
    }
    let admin = has_admin_capability();
    let in_path = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|directory| directory.join(name).exists())
    };
    if !admin && !in_path("fusermount3") {
        return Some("neither CAP_SYS_ADMIN nor fusermount3".to_owned());
    }
    if passthrough == Passthrough::On {
        if !admin {
            return Some("passthrough needs CAP_SYS_ADMIN".to_owned());
        }
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release.split(['.', '-']).map(|n| n.trim().parse::<u32>());
        let version =
            (numbers.next().and_then(Result::ok).unwrap_or(0), numbers.next().and_then(Result::ok).unwrap_or(0));
        if version < (6, 9) {
            return Some(format!("passthrough needs Linux 6.9, this is {}", release.trim()));
        }
        let directory = scratch();
        let kind = nix::sys::statfs::statfs(directory.path()).map(|s| s.filesystem_type()).unwrap();
        if kind == nix::sys::statfs::OVERLAYFS_SUPER_MAGIC {
            return Some("the kernel passes nothing through to overlayfs; set TENSORFS_TEST_DIR".to_owned());
        }
    }
    None
}

fn has_admin_capability() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|set| set & (1 << CAP_SYS_ADMIN) != 0)
}

/// Tries something so many times at most, while what it says is that something keeps it from being done which does so
/// for a moment.
fn patiently(tries: u32, is_in_passing: impl Fn(&str) -> bool, mut attempt: impl FnMut() -> Output) -> Output {
    let mut output = attempt();
    for _ in 1..tries {
        if !is_in_passing(&String::from_utf8_lossy(&output.stderr)) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        output = attempt();
    }
    output
}

/// Whether all that keeps a mount busy, as it was said, are programs that this process is just starting: until such a
/// one is executed it has the files of this process, and the name of the thread that starts it.
fn is_just_starting(said: &str) -> bool {
    let Some((_, users)) = said.trim_end().split_once("busy: in use by ") else { return false };
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    let names: Vec<String> = names.map(|name| name.trim_end().to_owned()).collect();
    let own = std::process::id().to_string();
    let is_one = |user: &str| {
        let user = user.strip_suffix(')').and_then(|user| user.split_once(" ("));
        user.is_some_and(|(pid, name)| pid != own && names.iter().any(|thread| thread == name))
    };
    users.split(", ").all(|user| user == "..." || is_one(user))
}

/// Whether something is mounted at `path`; it may be dead. (Not from /proc/self/mountinfo, which misses entries while
/// other tests mount and unmount.)
fn is_mounted(path: &Path) -> bool {
    let path = c_path(path);
    let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT | libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: all zeroes is a valid `statx`.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: a NUL-terminated path and a buffer of the right type.
    match Errno::result(unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, 0, &mut stat) }) {
        Ok(_) => stat.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0,
        Err(error) => matches!(error, Errno::ENOTCONN | Errno::ECONNABORTED | Errno::EIO),
    }
}

fn detach(path: &Path) {
    while is_mounted(path) {
        let target = c_path(path);
        // SAFETY: plain system call with a NUL-terminated path.
        if unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) } == 0 {
            continue;
        }
        let output = run(Command::new("fusermount3").arg("-uz").arg(path));
        if !output.status.success() {
            eprintln!("cannot unmount {}", path.display());
            return;
        }
    }
}
