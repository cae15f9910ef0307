//! The program from outside: every command, and what it says on a bad day.

mod alarm;
mod check;
mod create;
mod every;
mod full_host;
mod health;
mod info;
mod logs;
mod looking;
mod mount;
mod moving;
mod names;
mod packages;
mod restore;
mod rights;
mod sight;
mod umount;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;
use tensorfs_tests::{run, scratch, tensorfs, unmounting, wait_for_end};

/// The file of a pool that every record is in.
const LOG: &str = "log";

/// A place for pools and mounts. Whatever a test leaves mounted or running in it ends with it.
struct Room {
    dir: TempDir,
}

impl Room {
    /// With the directories `mnt` and `other`, to mount at.
    fn new() -> Room {
        let dir = scratch();
        for name in ["mnt", "other"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Room { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs `tensorfs` in this directory; every mount logs to `server.log`.
    fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Output {
        let _unmounting = unmounting();
        run(self.command().args(arguments))
    }

    fn command(&self) -> Command {
        let mut command = tensorfs();
        command.current_dir(self.dir.path()).env_remove("RUST_LOG");
        command
    }

    #[track_caller]
    fn ok<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{}\n{}", said(&output), self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    /// The command must fail with one line, which is returned without `tensorfs: `.
    #[track_caller]
    fn fails<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        failure(&self.run(arguments))
    }

    #[track_caller]
    fn mount(&self, pool: &str, mountpoint: &str) {
        self.ok(["mount", pool, mountpoint, "--log", "server.log"]);
    }

    #[track_caller]
    fn info(&self, target: &str) -> Value {
        serde_json::from_str(&self.ok(["info", "--json", target])).unwrap()
    }

    #[track_caller]
    fn pid(&self, target: &str) -> i32 {
        self.info(target)["pid"].as_i64().expect("a process id") as i32
    }

    fn log(&self) -> String {
        fs::read_to_string(self.at("server.log")).unwrap_or_default()
    }

    fn is_mounted(&self, name: &str) -> bool {
        let path = self.at(name);
        mounts().contains(&path)
    }

    /// A created pool, and a mounted one.
    #[track_caller]
    fn with_pool() -> Room {
        let room = Room::new();
        room.ok(["create", "pool"]);
        room
    }

    #[track_caller]
    fn mounted() -> Room {
        let room = Room::with_pool();
        room.mount("pool", "mnt");
        room
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- server's log\n{}---", self.log());
        }
        let servers = servers_of(self.dir.path());
        for pid in &servers {
            kill(*pid, libc::SIGKILL);
        }
        for path in mounts().iter().rev().filter(|path| path.starts_with(self.dir.path())) {
            let _ = nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH);
        }
        servers.into_iter().for_each(wait_for_end);
    }
}

/// Where something is mounted. Paths of these tests need no unescaping.
fn mounts() -> Vec<PathBuf> {
    let read = || fs::read("/proc/self/mountinfo").unwrap();
    // A table that changes while it is read may lack mounts.
    let mut table = read();
    for _ in 0..1000 {
        let again = read();
        if again == table {
            break;
        }
        table = again;
    }
    let table = String::from_utf8_lossy(&table);
    table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect()
}

/// Servers that were started in `room`, or whose command line names a path in it: it is unique to the test.
fn servers_of(room: &Path) -> Vec<i32> {
    let named = format!("\0{}/", room.display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|process| {
        let pid: i32 = process.file_name().to_str()?.parse().ok()?;
        let line = fs::read(process.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let inside = || fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == room);
        (line.contains("\0mount\0") && (line.contains(&named) || inside())).then_some(pid)
    });
    pids.collect()
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: plain system call. The process is a server of this test.
    unsafe { libc::kill(pid, signal) };
}

fn said(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{out}{err}", output.status)
}

/// The one line that a failed command printed, without `tensorfs: `.
#[track_caller]
fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", said(output));
    let line = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(line.lines().count(), 1, "one line: {line:?}");
    line.trim_end().strip_prefix("tensorfs: ").expect("tensorfs: in front").to_owned()
}

/// What everybody is told who wants the mounted pool.
fn busy(room: &Room) -> String {
    let (pool, pid, mnt) = (room.at("pool"), room.pid("pool"), room.at("mnt"));
    format!("{}: already in use by process {pid}, mounted at {}", pool.display(), mnt.display())
}
