//! The program from outside: every command, and what it says on a bad day.

use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tensorfs_tests::{child, is_root, run, run_ok, scratch, skip, skip_all, tensorfs};

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

/// Whether a process is gone, or a zombie that nobody has reaped yet.
fn has_ended(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let dead = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']));
    // The first thread may be through while others still hold the pool.
    dead && fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count) <= 1
}

fn wait_for_end(pid: i32) {
    while !has_ended(pid) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits for what another process is about to do. The limit only ends a test that has failed.
#[track_caller]
fn wait_until(mut done: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("this never happened");
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

/// A shorthand: skips where nothing can be mounted.
macro_rules! needs_mount {
    () => {
        if skip_all(concat!(module_path!(), ":", line!())) {
            return;
        }
    };
}

#[test]
fn help_and_version() {
    let room = Room::new();
    assert!(room.ok(["--version"]).starts_with("tensorfs "));
    let help = room.ok(["--help"]);
    for command in ["create", "mount", "umount", "info", "sync", "restore", "check", "scrub", "ls", "verify", "seal"] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
        assert!(room.ok([command, "--help"]).contains("Usage:"));
    }
    assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    for wrong in [vec!["frobnicate"], vec!["create"], vec!["create", "p", "--size", "10X"], vec!["mount", "p"]] {
        assert_eq!(room.run(&wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn create_says_what_it_made() {
    let room = Room::new();
    let said = room.ok(["create", "a/b/pool", "--size", "64MiB", "--layout", "mine"]);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("layout \"mine\"") && said.contains("limit 64.0 MiB"), "{said}");
    let info = room.info("a/b/pool");
    assert_eq!(info["layout"], "mine");
    assert_eq!(info["limit"], 64 << 20);
    assert_eq!(info["state"], "clean");
    assert_eq!(info["pid"], Value::Null);
    assert!(room.fails(["create", "small", "--size", "1M"]).contains("smallest size"), "too small");
}

#[test]
fn create_never_overwrites() {
    let room = Room::with_pool();
    let uuid = room.info("pool")["uuid"].clone();
    let refused = room.fails(["create", "pool"]);
    assert!(refused.starts_with(&format!("{}: there is a pool already", room.at("pool").display())), "{refused}");
    assert!(refused.contains("--force"), "{refused}");
    assert_eq!(room.info("pool")["uuid"], uuid);

    let forced = room.run(["create", "--force", "pool"]);
    assert_eq!(forced.status.code(), Some(0), "{}", said(&forced));
    let warning = String::from_utf8(forced.stderr).unwrap();
    assert!(warning.contains("destroying") && warning.contains("0 files"), "{warning}");
    assert_ne!(room.info("pool")["uuid"], uuid);

    for foreign in ["notes.txt", LOG, "lock"] {
        let dir = room.at(&format!("foreign-{foreign}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(foreign), "mine").unwrap();
        fs::write(dir.join("thesis.tex"), "mine").unwrap();
        for force in [&[][..], &["--force"]] {
            let refused = failure(&run(room.command().arg("create").args(force).arg(&dir)));
            assert!(refused.starts_with(&dir.display().to_string()), "{refused}");
        }
        assert_eq!(fs::read(dir.join(foreign)).unwrap(), b"mine");
    }
    fs::write(room.at("file"), "mine").unwrap();
    room.fails(["create", "file", "--force"]);
    assert_eq!(fs::read(room.at("file")).unwrap(), b"mine");
}

/// What is left when making a pool was interrupted is in nobody's way. What could be somebody's is left alone.
#[test]
fn create_makes_what_was_left_half_made() {
    let room = Room::new();
    for (name, parts) in
        [("a", &["lock"][..]), ("b", &["lock", "segments/"]), ("c", &["lock", "segments/", "quarantine/"])]
    {
        let pool = room.at(name);
        fs::create_dir(&pool).unwrap();
        for part in parts {
            match part.strip_suffix('/') {
                Some(directory) => fs::create_dir(pool.join(directory)).unwrap(),
                None => drop(File::create(pool.join(part)).unwrap()),
            }
        }
        if name == "c" {
            File::create(pool.join("log")).unwrap().set_len(3 << 20).unwrap();
        }
        room.ok(["create", name]);
        room.ok(["check", name]);
        // A pool, and so left alone.
        assert!(room.fails(["create", name]).contains("there is a pool already"));
    }
    // What an interrupted repair leaves beside a pool is the pool's, too.
    fs::write(room.at("a/log.new"), "half of a log").unwrap();
    assert!(room.fails(["create", "a"]).contains("there is a pool already"));
    room.ok(["create", "--force", "a"]);
    assert!(!room.at("a/log.new").exists());
    let pool = room.at("d");
    fs::create_dir_all(pool.join("segments/00")).unwrap();
    fs::write(pool.join("segments/00/0000000000000003"), "bytes").unwrap();
    assert!(room.fails(["create", "d"]).contains("there is a pool already"));
    assert_eq!(fs::read(pool.join("segments/00/0000000000000003")).unwrap(), b"bytes");
}

#[test]
fn mount_create_makes_what_was_left_half_made() {
    needs_mount!();
    let room = Room::new();
    fs::create_dir_all(room.at("pool/segments")).unwrap();
    room.ok(["mount", "--create", "pool", "mnt", "--log", "server.log"]);
    fs::write(room.at("mnt/x"), "x").unwrap();
    room.ok(["umount", "mnt"]);
    room.ok(["mount", "--create", "pool", "mnt", "--log", "server.log"]);
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"x");
}

/// The dead mount of another filesystem is not ours to take away.
#[test]
fn a_foreign_dead_mount_is_left_alone() {
    needs_mount!();
    let name = "cli::a_foreign_dead_mount_is_left_alone";
    if !is_root() {
        return skip(name, "only root mounts without fusermount3");
    }
    let room = Room::with_pool();
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", std::os::fd::AsRawFd::as_raw_fd(&device));
    let flags = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("host:"), &room.at("mnt"), Some("fuse.other"), flags, Some(data.as_str())).unwrap();
    drop(device);
    let refused = room.fails(["mount", "pool", "mnt", "--log", "server.log"]);
    let still = mounts().contains(&room.at("mnt"));
    nix::mount::umount2(&room.at("mnt"), nix::mount::MntFlags::MNT_DETACH).unwrap();
    assert!(still, "{refused}");
    assert!(refused.contains("fuse.other"), "{refused}");
    room.mount("pool", "mnt");
}

/// What an operator put into the quarantine, or what lost its note, can be had, too.
#[test]
fn restore_without_a_note() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("pool/quarantine/abc"), "data").unwrap();
    let to = room.at("back");
    room.ok(["restore".as_ref(), "mnt".as_ref(), "abc".as_ref(), "--to".as_ref(), to.as_os_str()]);
    assert_eq!(fs::read(to).unwrap(), b"data");
    assert!(!room.at("pool/quarantine/abc").exists());
}

#[test]
fn create_does_not_destroy_a_mounted_pool() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let refused = room.fails(["create", "--force", "pool"]);
    assert_eq!(refused, busy(&room));
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"x");
}

/// What everybody is told who wants the mounted pool.
fn busy(room: &Room) -> String {
    let (pool, pid, mnt) = (room.at("pool"), room.pid("pool"), room.at("mnt"));
    format!("{}: already in use by process {pid}, mounted at {}", pool.display(), mnt.display())
}

#[test]
fn not_a_pool() {
    let room = Room::with_pool();
    fs::create_dir(room.at("empty")).unwrap();
    fs::write(room.at("file"), "x").unwrap();
    let sound = fs::read(room.at("pool").join(LOG)).unwrap();
    let damage = |name: &str, bytes: &[u8]| {
        let dir = room.at(name);
        let status = Command::new("cp").arg("-a").arg(room.at("pool")).arg(&dir).status().unwrap();
        assert!(status.success());
        fs::write(dir.join(LOG), bytes).unwrap();
    };
    damage("emptied", b"");
    damage("short", &sound[..100]);
    damage("foreign", &b"MZ\x90 a program ".repeat(300_000));
    damage("zeroes", &vec![0; sound.len()]);
    for name in ["empty", "file", "emptied", "short", "foreign", "zeroes"] {
        let expected = format!("{}: not a tensorfs pool (", room.at(name).display());
        for command in [vec!["info", name], vec!["mount", name, "mnt"], vec!["mount", "-f", name, "mnt"]] {
            let line = room.fails(&command);
            assert!(line.starts_with(&expected) && line.ends_with(')'), "{command:?}: {line}");
        }
    }
    for command in [vec!["info", "none"], vec!["mount", "none", "mnt"]] {
        let line = room.fails(&command);
        assert!(line.contains("none: ") && line.to_lowercase().contains("no such"), "{line}");
    }
    assert!(!room.is_mounted("mnt"));
}

/// Cut anywhere, a log is refused, or what is left of it is served; nothing crashes.
#[test]
fn truncated_log() {
    needs_mount!();
    let room = Room::mounted();
    for n in 0..50 {
        fs::write(room.at("mnt").join(format!("f{n}")), vec![7; 5000]).unwrap();
    }
    room.ok(["umount", "mnt"]);
    let length = fs::metadata(room.at("pool").join(LOG)).unwrap().len();
    for keep in [1, 511, 512, 4096, 1 << 20, (1 << 20) + 512, 2 << 20, (2 << 20) + 100, (2 << 20) + 5000, length - 1] {
        let _ = fs::remove_dir_all(room.at("cut"));
        let status = Command::new("cp").args(["-a", "pool", "cut"]).current_dir(room.dir.path()).status().unwrap();
        assert!(status.success());
        File::options().write(true).open(room.at("cut").join(LOG)).unwrap().set_len(keep.min(length)).unwrap();
        for command in [vec!["info", "cut"], vec!["mount", "cut", "mnt", "--log", "server.log"]] {
            let output = room.run(&command);
            assert!(matches!(output.status.code(), Some(0 | 1)), "{keep}: {command:?}: {}", said(&output));
            if output.status.code() == Some(1) {
                let line = failure(&output);
                assert!(line.starts_with(&room.at("cut").display().to_string()), "{keep}: {line}");
            }
        }
        if room.is_mounted("mnt") {
            let _ = fs::read_dir(room.at("mnt")).unwrap().count();
            room.ok(["umount", "mnt"]);
        }
    }
}

/// Whatever was cut off a log, `check --repair` makes a pool of the rest; if that was nothing yet, nothing is lost.
#[test]
fn a_log_that_was_cut_short_can_be_repaired() {
    needs_mount!();
    let room = Room::mounted();
    for n in 0..50 {
        fs::write(room.at("mnt").join(format!("f{n}")), vec![n; 5000]).unwrap();
    }
    for killed in [false, true] {
        if killed {
            let pid = room.pid("pool");
            kill(pid, libc::SIGKILL);
            wait_for_end(pid);
        }
        room.ok(["umount", "mnt"]);
        let length = fs::metadata(room.at("pool").join(LOG)).unwrap().len();
        for (keep, whole) in [(length - 1, true), ((2 << 20) + 5000, false), ((2 << 20) + 100, false)] {
            let _ = fs::remove_dir_all(room.at("cut"));
            let status = Command::new("cp").args(["-a", "pool", "cut"]).current_dir(room.dir.path()).status().unwrap();
            assert!(status.success());
            File::options().write(true).open(room.at("cut").join(LOG)).unwrap().set_len(keep).unwrap();
            assert_eq!(room.run(["check", "cut"]).status.code(), Some(4), "{keep}");
            let repaired = room.run(["check", "--repair", "cut"]);
            assert_eq!(repaired.status.code(), Some(1), "{keep}: {}", said(&repaired));
            assert_eq!(room.run(["check", "cut"]).status.code(), Some(0), "{keep}");
            room.mount("cut", "mnt");
            let files = fs::read_dir(room.at("mnt")).unwrap().count();
            assert_eq!(files == 50, whole, "{keep}: {files} files");
            for entry in fs::read_dir(room.at("mnt")).unwrap() {
                let entry = entry.unwrap();
                let n: u8 = entry.file_name().to_str().unwrap()[1..].parse().unwrap();
                let bytes = fs::read(entry.path()).unwrap();
                // Bytes whose record is lost are in quarantine.
                assert!(
                    bytes.len() <= 5000 && bytes.iter().all(|byte| *byte == n),
                    "{keep}: {}",
                    entry.path().display()
                );
                assert!(bytes.len() == 5000 || !whole, "{keep}: {} bytes", bytes.len());
            }
            room.ok(["umount", "mnt"]);
        }
        room.mount("pool", "mnt");
    }
}

#[test]
fn one_superblock_is_enough() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    room.ok(["umount", "mnt"]);
    File::options().write(true).open(room.at("pool").join(LOG)).unwrap().write_all_at(&[0; 512], 0).unwrap();
    room.mount("pool", "mnt");
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"x");
    assert!(room.log().contains("superblock"), "{}", room.log());
}

#[test]
fn layout_name_differs() {
    needs_mount!();
    let room = Room::new();
    room.ok(["create", "pool", "--layout", "mine"]);
    let expected = format!("{}: layout name is \"mine\", but \"yours\" was asked for", room.at("pool").display());
    assert_eq!(room.fails(["mount", "pool", "mnt", "--layout", "yours", "--log", "server.log"]), expected);
    assert_eq!(room.fails(["mount", "-f", "pool", "mnt", "-o", "layout=yours"]), expected);
    room.ok(["mount", "pool", "mnt", "--layout", "mine", "--log", "server.log"]);
}

#[test]
fn mount_returns_when_it_serves() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let pid = room.pid("mnt");
    assert_eq!(room.pid("pool"), pid);
    // A process of its own, without the caller's terminal, directory or descriptors.
    let process = PathBuf::from(format!("/proc/{pid}"));
    let stat = fs::read_to_string(process.join("stat")).unwrap();
    let session = stat.rsplit(") ").next().unwrap().split(' ').nth(3).unwrap();
    assert_eq!(session, pid.to_string());
    assert_eq!(fs::read_link(process.join("cwd")).unwrap(), Path::new("/"));
    for fd in ["fd/0", "fd/1", "fd/2"] {
        assert_eq!(fs::read_link(process.join(fd)).unwrap(), Path::new("/dev/null"));
    }
    let limits = fs::read_to_string(process.join("limits")).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = files.split_whitespace().filter(|word| word.parse::<u64>().is_ok()).collect();
    assert_eq!(numbers[0], numbers[1], "the limit of open files is raised: {files}");
    let table = String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").unwrap()).into_owned();
    let mount = table.lines().find(|line| line.contains(&room.at("mnt").display().to_string())).unwrap();
    let expected = format!(" - fuse.tensorfs {} ", room.at("pool").display());
    assert!(mount.contains(&expected), "{mount}");
    assert!(mount.contains("nosuid,nodev") && mount.contains("default_permissions"), "{mount}");
    room.ok(["umount", "mnt"]);
    assert!(!room.is_mounted("mnt"));
    assert!(has_ended(pid), "umount waits for the server");
}

#[test]
fn mount_create_makes_everything() {
    needs_mount!();
    let room = Room::new();
    let arguments = ["mount", "--create", "new/pool", "new/mnt", "-o", "size=64M,layout=mine", "--log", "server.log"];
    room.ok(arguments);
    fs::write(room.at("new/mnt/x"), "x").unwrap();
    let info = room.info("new/mnt");
    assert_eq!((&info["limit"], &info["layout"]), (&(64 << 20).into(), &"mine".into()));
    room.ok(["umount", "new/mnt"]);
    room.ok(arguments);
    assert_eq!(fs::read(room.at("new/mnt/x")).unwrap(), b"x", "a pool that is there is left alone");
    room.ok(["umount", "new/pool"]);
    fs::create_dir(room.at("foreign")).unwrap();
    fs::write(room.at("foreign/x"), "x").unwrap();
    assert!(room.fails(["mount", "--create", "foreign", "mnt"]).contains("not a tensorfs pool"));
}

#[test]
fn mounted_already() {
    needs_mount!();
    let room = Room::mounted();
    let busy = busy(&room);
    assert_eq!(room.fails(["mount", "pool", "mnt"]), busy);
    assert_eq!(room.fails(["mount", "pool", "other"]), busy);
    assert_eq!(room.fails(["mount", "-f", "pool", "other"]), busy);
    room.ok(["create", "pool2"]);
    let (mnt, pool, pid) = (room.at("mnt"), room.at("pool"), room.pid("pool"));
    let (mnt, pool) = (mnt.display(), pool.display());
    let expected = format!("{mnt}: the pool {pool} is mounted here already by process {pid}");
    assert_eq!(room.fails(["mount", "pool2", "mnt"]), expected);
}

#[test]
fn of_many_mounts_at_once_one_wins() {
    needs_mount!();
    let room = Room::with_pool();
    let start = |_| {
        let mut command = room.command();
        command.args(["mount", "pool", "mnt", "--log", "server.log"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = (0..6).map(start).collect();
    let outputs: Vec<_> = started.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let won = outputs.iter().filter(|output| output.status.success()).count();
    assert_eq!(won, 1, "{:?}", outputs.iter().map(said).collect::<Vec<_>>());
    fs::write(room.at("mnt/x"), "x").unwrap();
    room.ok(["umount", "mnt"]);
    assert!(!room.is_mounted("mnt"));
}

/// The kernel gives a device number out again at once: nobody may take another's mount for their own old one. And its
/// table of mounts, read while others come and go, must not seem to lack one.
#[test]
fn mounts_of_many_pools_come_and_go() {
    needs_mount!();
    let room = Room::new();
    std::thread::scope(|threads| {
        for n in 0..4 {
            let room = &room;
            threads.spawn(move || {
                let (pool, mnt) = (format!("pool{n}"), format!("mnt{n}"));
                for round in 0..8 {
                    room.ok(["mount", "--create", &pool, &mnt, "--log", "server.log"]);
                    fs::write(room.at(&mnt).join("x"), round.to_string()).unwrap();
                    assert_eq!(room.info(&pool)["mountpoint"], room.at(&mnt).to_str().unwrap());
                    assert_eq!(fs::read_to_string(room.at(&mnt).join("x")).unwrap(), round.to_string());
                    room.ok(["umount", &mnt]);
                }
                assert_eq!(room.info(&pool)["unsafe_shutdowns"], 0);
            });
        }
    });
}

#[test]
fn another_mount_namespace() {
    needs_mount!();
    let name = "cli::another_mount_namespace";
    let possible = Command::new("unshare").args(["-m", "true"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return skip(name, "unshare -m does not work here");
    }
    let room = Room::with_pool();
    let script = "\"$0\" mount pool mnt --log server.log && echo mounted && read end; \"$0\" umount mnt";
    let mut inside = Command::new("unshare");
    inside.args(["-m", "sh", "-c", script]).arg(tensorfs().get_program()).current_dir(room.dir.path());
    let mut inside = inside.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(inside.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "mounted\n", "{}", room.log());
    assert!(!room.is_mounted("mnt"));
    let pid = room.pid("pool");
    assert_eq!(room.fails(["mount", "pool", "other"]), busy(&room));
    let expected = format!("in use by process {pid}, but not mounted where this process can see it");
    assert!(room.fails(["umount", "pool"]).ends_with(&expected));
    drop(inside.stdin.take());
    assert!(inside.wait().unwrap().success());
    assert_eq!(room.info("pool")["state"], "clean");
}

#[test]
fn paths_that_hide_each_other() {
    let room = Room::with_pool();
    fs::create_dir(room.at("pool/inside")).unwrap();
    symlink("pool", room.at("link")).unwrap();
    for (pool, mountpoint) in [("pool", "pool"), ("pool", "pool/inside"), ("pool", "."), ("link", "pool/inside")] {
        let line = room.fails(["mount", pool, mountpoint]);
        assert!(line.contains("mount point") || line.contains("on itself"), "{line}");
    }
    assert!(room.fails(["mount", "--create", "new", "new/mnt"]).contains("inside the pool"));
    assert!(!room.at("new").exists(), "nothing is created for a mount that cannot be");
}

#[test]
fn mount_point_must_be_there() {
    let room = Room::with_pool();
    fs::write(room.at("file"), "").unwrap();
    assert!(room.fails(["mount", "pool", "none"]).starts_with("none: no such directory"));
    assert!(room.fails(["mount", "pool", "file"]).ends_with("file: not a directory"));
    assert_eq!(room.fails(["mount", "pool", "mnt", "-o", "frob"]), "mnt: unknown option \"frob\"");
}

#[test]
fn a_start_that_fails_leaves_nothing() {
    needs_mount!();
    let room = Room::with_pool();
    let line = room.fails(["mount", "pool", "mnt", "--log", "none/server.log"]);
    assert!(line.ends_with("none/server.log: No such file or directory"), "{line}");
    assert!(!room.is_mounted("mnt"));
    assert!(servers_of(room.dir.path()).is_empty());
    assert_eq!(room.info("pool")["state"], "clean");
}

#[test]
fn foreground_ends_with_sigterm() {
    needs_mount!();
    let room = Room::with_pool();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut server = room.command();
        let mut server = server.args(["mount", "-f", "pool", "mnt"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(server.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("mounted at") {
            line.clear();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "the server ended");
        }
        fs::write(room.at("mnt/x"), signal.to_string()).unwrap();
        assert_eq!(room.pid("pool"), server.id() as i32);
        kill(server.id() as i32, libc::SIGHUP);
        kill(server.id() as i32, signal);
        let mut rest = String::new();
        log.read_to_string(&mut rest).unwrap();
        assert_eq!(server.wait().unwrap().code(), Some(0), "{rest}");
        assert!(!room.is_mounted("mnt"));
        assert_eq!(room.info("pool")["state"], "clean");
        assert_eq!(room.info("pool")["unsafe_shutdowns"], 0);
    }
}

#[test]
fn sigterm_with_open_files_serves_until_the_last_close() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "before").unwrap();
    let file = File::options().read(true).write(true).open(room.at("mnt/x")).unwrap();
    let pid = room.pid("pool");
    kill(pid, libc::SIGTERM);
    wait_until(|| !room.is_mounted("mnt"));
    file.write_all_at(b"after!", 0).unwrap();
    file.sync_all().unwrap();
    let mut text = [0; 6];
    file.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"after!");
    let info = room.fails(["info", "pool"]);
    assert!(info.contains(&format!("process {pid}")), "{info}");
    drop(file);
    wait_for_end(pid);
    room.mount("pool", "mnt");
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"after!");
    assert_eq!(room.info("mnt")["unsafe_shutdowns"], 0);
}

/// The mount is gone at once, the pool a little later: whoever mounts again waits.
#[test]
fn mount_waits_for_a_server_that_is_closing() {
    needs_mount!();
    let room = Room::mounted();
    for round in 0..10 {
        fs::write(room.at("mnt/x"), vec![round; 1 << 20]).unwrap();
        kill(room.pid("pool"), libc::SIGTERM);
        wait_until(|| !room.is_mounted("mnt"));
        room.mount("pool", "mnt");
        assert_eq!(fs::read(room.at("mnt/x")).unwrap(), vec![round; 1 << 20]);
    }
    assert_eq!(room.info("mnt")["unsafe_shutdowns"], 0);
}

#[test]
fn killed_server() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let pid = room.pid("pool");
    kill(pid, libc::SIGKILL);
    wait_for_end(pid);
    assert!(room.is_mounted("mnt"));
    let dead = fs::File::open(room.at("mnt/x")).unwrap_err();
    assert_eq!(dead.raw_os_error(), Some(libc::ENOTCONN));
    // The pool can be looked at by either end.
    for target in ["pool", "mnt"] {
        assert_eq!(room.info(target)["state"], "unsafe shutdown");
    }
    let output = room.run(["mount", "pool", "mnt", "--log", "server.log"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.contains("detaching the mount of") && notes.contains("server was killed"), "{notes}");
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"x");
    let info = room.info("mnt");
    assert_eq!((&info["unsafe_shutdowns"], &info["state"]), (&1.into(), &"mounted".into()));
    room.ok(["umount", "mnt"]);
    assert!(!room.is_mounted("mnt"), "the dead mount is not below");
    assert_eq!(room.ok(["mount", "pool", "mnt", "--log", "server.log"]), "", "a second mount is clean");
    assert_eq!(room.info("mnt")["unsafe_shutdowns"], 1);
}

/// A server that is killed dies by and by: whoever mounts at once, also elsewhere, waits for it.
#[test]
fn mount_at_once_after_a_kill() {
    needs_mount!();
    let room = Room::mounted();
    for place in ["other", "mnt", "mnt", "other", "mnt", "other"] {
        fs::write(room.at("mnt/x"), place).or_else(|_| fs::write(room.at("other/x"), place)).unwrap();
        kill(room.pid("pool"), libc::SIGKILL);
        room.mount("pool", place);
        assert_eq!(fs::read_to_string(room.at(place).join("x")).unwrap(), place);
    }
    // The dead mount at the other place is not what is meant by the pool.
    assert!(room.is_mounted("mnt"));
    room.ok(["umount", "pool"]);
    assert!(!room.is_mounted("other"));
    assert_eq!(room.info("pool")["state"], "clean");
    room.ok(["umount", "mnt"]);
}

#[test]
fn umount_of_a_dead_mount() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let _open = File::open(room.at("mnt/x")).unwrap();
    let pid = room.pid("pool");
    kill(pid, libc::SIGKILL);
    wait_for_end(pid);
    room.ok(["umount", "mnt"]);
    assert!(!room.is_mounted("mnt"));
}

#[test]
fn umount_names_who_keeps_it_busy() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let mut user = child(["do"]);
    assert_eq!(user.ask(&format!("open f r {}", room.at("mnt/x").display())), "ok");
    let refused = room.fails(["umount", "mnt"]);
    assert!(
        refused.starts_with(&format!("{}: busy: in use by {} (", room.at("mnt").display(), user.pid())),
        "{refused}"
    );
    let server = room.pid("pool");
    let lazy = room.run(["umount", "--lazy", "mnt"]);
    assert_eq!(lazy.status.code(), Some(0), "{}", said(&lazy));
    assert!(said(&lazy).contains(&format!("process {server}")), "{}", said(&lazy));
    assert!(!room.is_mounted("mnt"));
    user.end();
    wait_for_end(server);
    assert_eq!(room.info("pool")["state"], "clean");
}

#[test]
fn umount_of_what_is_not_mounted() {
    let room = Room::with_pool();
    assert!(room.fails(["umount", "mnt"]).ends_with("mnt: no tensorfs is mounted here"));
    assert!(room.fails(["umount", "pool"]).contains("pool: not mounted"));
    assert!(room.fails(["umount", "/proc"]).ends_with("/proc: no tensorfs is mounted here"));
    assert!(room.fails(["sync", "none"]).ends_with("none: No such file or directory"));
}

#[test]
fn plain_umount_works_too() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let pid = room.pid("pool");
    nix::mount::umount(&room.at("mnt")).unwrap();
    wait_for_end(pid);
    assert_eq!(room.info("pool")["state"], "clean");
}

#[test]
fn read_only_mount() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    room.ok(["umount", "mnt"]);
    room.ok(["mount", "pool", "mnt", "-o", "ro,noexec", "--log", "server.log"]);
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"x");
    let refused = fs::write(room.at("mnt/y"), "y").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
}

#[test]
fn info_of_both_ends() {
    needs_mount!();
    let room = Room::mounted();
    fs::create_dir(room.at("mnt/d")).unwrap();
    fs::write(room.at("mnt/d/x"), vec![1; 100_000]).unwrap();
    room.ok(["sync", "mnt"]);
    let (mut by_pool, mut by_mount) = (room.info("pool"), room.info("mnt"));
    for info in [&mut by_pool, &mut by_mount] {
        info["counters"] = Value::Null;
        info["records"] = Value::Null;
        // Others use the disk, too.
        info["tiers"][0]["free"] = Value::Null;
    }
    assert_eq!(by_pool, by_mount);
    let info = by_pool;
    assert_eq!(info["pool"], room.at("pool").to_str().unwrap());
    assert_eq!(info["mountpoint"], room.at("mnt").to_str().unwrap());
    assert_eq!((&info["files"], &info["directories"]), (&1.into(), &2.into()));
    assert!(info["used"].as_u64().unwrap() >= 100_000);
    assert!(info["capacity"].as_u64() >= info["used"].as_u64());
    for field in ["passthrough", "domain", "durability", "uuid", "version"] {
        assert!(!info[field].is_null(), "{field}: {info}");
    }
    if info["passthrough"] == false {
        assert!(info["passthrough_reason"].is_string(), "{info}");
    }
    let unmounted_fields: Vec<String> = {
        room.ok(["umount", "mnt"]);
        room.info("pool").as_object().unwrap().keys().cloned().collect()
    };
    let mounted_fields: Vec<String> = info.as_object().unwrap().keys().cloned().collect();
    assert_eq!(mounted_fields, unmounted_fields, "the fields are the same, mounted or not");
}

#[test]
fn info_is_documented() {
    let room = Room::with_pool();
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/OPERATIONS.md");
    let manual = fs::read_to_string(manual).unwrap();
    for field in room.info("pool").as_object().unwrap().keys() {
        assert!(manual.contains(&format!("| `{field}` |")), "{field} is not in docs/OPERATIONS.md");
    }
}

#[test]
fn info_for_people_is_narrow() {
    needs_mount!();
    let room = Room::mounted();
    let narrow = |text: &str| {
        for line in text.lines().filter(|line| !line.contains('/')) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    };
    let text = room.ok(["info", "mnt"]);
    assert!(text.contains(&format!("process {}", room.pid("pool"))), "{text}");
    narrow(&text);
    room.ok(["umount", "mnt"]);
    narrow(&room.ok(["info", "pool"]));
}

#[test]
fn a_closed_pipe_is_no_error() {
    let room = Room::with_pool();
    let mut info = room.command();
    let mut info = info.args(["info", "pool"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(info.stdout.take());
    let output = info.wait_with_output().unwrap();
    assert_eq!(said(&output), "exit status: 0\n");
}

#[test]
fn sync_by_both_ends() {
    needs_mount!();
    let room = Room::mounted();
    fs::create_dir(room.at("mnt/d")).unwrap();
    assert_eq!(room.ok(["sync", "mnt"]), "");
    assert_eq!(room.ok(["sync", "pool"]), "");
    let line = room.fails(["sync", "mnt/d"]);
    assert!(line.contains("inside a mount") && line.ends_with(&room.at("mnt").display().to_string()), "{line}");
}

#[test]
fn restore_a_version_whose_replacer_died() {
    needs_mount!();
    let room = Room::mounted();
    assert!(room.ok(["restore", "mnt"]).contains("nothing in quarantine"));
    fs::create_dir(room.at("mnt/d")).unwrap();
    let path = room.at("mnt/d/model.pt");
    for round in ["first", "second"] {
        fs::write(&path, format!("old {round}")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let mut writer = child(["do"]);
        assert_eq!(writer.ask(&format!("open f wt {}", path.display())), "ok");
        assert_eq!(writer.ask("write f 0 1 100"), "ok");
        writer.kill(libc::SIGTERM);
        wait_until(|| room.info("mnt")["quarantine"].as_array().is_some_and(|list| !list.is_empty()));
        let entry = room.info("mnt")["quarantine"][0].clone();
        let name = entry["name"].as_str().unwrap();
        let listed = room.ok(["restore", "pool"]);
        assert!(listed.contains(name) && listed.contains("d/model.pt"), "{listed}");
        assert_eq!(fs::metadata(&path).unwrap().len(), 100, "the new content stands");
        if round == "first" {
            room.ok(["restore", "mnt", name]);
            assert_eq!(fs::read(&path).unwrap(), b"old first");
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        } else {
            room.ok(["restore", "pool", name, "--to", "old.pt"]);
            assert_eq!(fs::read(room.at("old.pt")).unwrap(), b"old second");
        }
        assert!(room.ok(["restore", "mnt"]).contains("nothing in quarantine"));
        assert_eq!(fs::read_dir(room.at("mnt/d")).unwrap().count(), 1, "no temporary file is left");
    }
    assert!(room.fails(["restore", "mnt", "none"]).contains("nothing named \"none\""));
}

#[test]
fn restore_needs_a_mount_for_the_old_place() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "old").unwrap();
    let mut writer = child(["do"]);
    assert_eq!(writer.ask(&format!("open f wt {}", room.at("mnt/x").display())), "ok");
    assert_eq!(writer.ask("write f 0 1 100"), "ok");
    writer.kill(libc::SIGKILL);
    wait_until(|| room.info("mnt")["quarantine"].as_array().is_some_and(|list| !list.is_empty()));
    room.ok(["umount", "mnt"]);
    let name = room.info("pool")["quarantine"][0]["name"].as_str().unwrap().to_owned();
    assert!(room.fails(["restore", "pool", &name]).contains("mount it"));
    room.mount("pool", "mnt");
    room.ok(["restore", "mnt", &name]);
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"old");
    room.ok(["umount", "mnt"]);
    room.mount("pool", "mnt");
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"old");
}

/// A flag of the kernel's for every filesystem.
#[test]
fn a_mount_that_follows_no_links() {
    needs_mount!();
    if !is_root() {
        return skip("cli::a_mount_that_follows_no_links", "fusermount3 does not know nosymfollow");
    }
    let room = Room::with_pool();
    room.ok(["mount", "pool", "mnt", "--log", "server.log", "-o", "nosymfollow"]);
    fs::write(room.at("mnt/x"), "x").unwrap();
    symlink("x", room.at("mnt/link")).unwrap();
    assert_eq!(fs::read_link(room.at("mnt/link")).unwrap(), Path::new("x"));
    assert_eq!(fs::read(room.at("mnt/link")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
}

/// What mount(8) runs for a line of /etc/fstab.
#[test]
fn mount_tensorfs() {
    needs_mount!();
    let room = Room::with_pool();
    symlink(tensorfs().get_program(), room.at("mount.tensorfs")).unwrap();
    let helper =
        |arguments: &[&str]| run(Command::new(room.at("mount.tensorfs")).args(arguments).current_dir(room.dir.path()));
    let fake = helper(&["pool", "mnt", "-f", "-v", "-o", "rw"]);
    assert!(said(&fake).contains("could be mounted") && fake.status.success(), "{}", said(&fake));
    assert!(!room.is_mounted("mnt"));
    let line = failure(&helper(&["pool", "mnt", "-o", "rw,frob"]));
    assert_eq!(line, "mnt: unknown option \"frob\"");
    let options = format!(
        "rw,noauto,user,exec,_netdev,nofail,x-systemd.automount,commit=2,log={}",
        room.at("server.log").display()
    );
    let mounted = helper(&["pool", "mnt", "-n", "-o", &options]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    assert_eq!(room.info("mnt")["commit_seconds"].as_f64(), Some(2.0));
    fs::write(room.at("mnt/x"), "x").unwrap();
    room.ok(["umount", "mnt"]);
    let sloppy = helper(&["pool", "mnt", "-s", "-o", &format!("frob,{options}")]);
    assert!(sloppy.status.success(), "{}", said(&sloppy));
}

/// As for a line of /etc/fstab, or from what the kernel shows of the mount.
#[test]
fn remount() {
    needs_mount!();
    if !is_root() {
        return skip("cli::remount", "only root can remount");
    }
    let room = Room::with_pool();
    symlink(tensorfs().get_program(), room.at("mount.fuse.tensorfs")).unwrap();
    let helper = |options: &str| {
        let mut command = Command::new(room.at("mount.fuse.tensorfs"));
        run(command.args(["pool", "mnt", "-o", options]).current_dir(room.dir.path()))
    };
    assert_eq!(failure(&helper("remount,ro")), format!("{}: no tensorfs is mounted here", room.at("mnt").display()));
    room.ok(["mount", "pool", "mnt", "-o", "noatime,commit=2"]);
    let writer = fs::File::create(room.at("mnt/x")).unwrap();
    assert!(failure(&helper("remount,ro")).contains("files are open for writing"));
    drop(writer);
    let shown = "remount,ro,nosuid,nodev,noexec,noatime,user_id=0,group_id=0,default_permissions,allow_other,commit=5";
    // A process that another test starts may have the writer's descriptor until it executes its program.
    let done = (0..100).map(|_| helper(shown)).find(|done| done.status.success()).expect("nobody has it open");
    assert!(said(&done).contains("not changed by a remount: noatime, commit"), "{}", said(&done));
    assert_eq!(fs::write(room.at("mnt/y"), "y").unwrap_err().raw_os_error(), Some(libc::EROFS));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(room.at("mnt").to_str().unwrap())).unwrap();
    assert!(["ro,", ",noexec,", ",noatime,"].iter().all(|option| line.contains(option)), "{line}");
    assert_eq!(room.info("mnt")["commit_seconds"].as_f64(), Some(2.0));
    room.ok(["mount", "pool", "mnt", "-o", "remount,rw"]);
    fs::write(room.at("mnt/y"), "y").unwrap();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(room.at("mnt").to_str().unwrap())).unwrap();
    assert!(line.contains(",noexec,"), "what is not said stays as it is: {line}");
    let expected = format!("{}: {} is mounted here", room.at("mnt").display(), room.at("pool").display());
    assert_eq!(room.fails(["mount", "other", "mnt", "-o", "remount,ro"]), expected);
}

/// A user without root needs fusermount3, and is told so.
#[test]
fn another_user() {
    needs_mount!();
    const NOBODY: u32 = 65534;
    let name = "cli::another_user";
    if !is_root() {
        return skip(name, "only root can try as another user");
    }
    let room = Room::new();
    // The program, and every directory above the room, must be open to them.
    let own = room.at("tensorfs");
    // By another process: a child that another test forks meanwhile would share the descriptor that writes the copy, and
    // what is being written cannot be executed.
    run_ok(Command::new("cp").arg(tensorfs().get_program()).arg(&own));
    chown(room.dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    chown(room.at("mnt"), Some(NOBODY), Some(NOBODY)).unwrap();
    let nobody = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(room.dir.path()).uid(NOBODY).gid(NOBODY);
        command.stdin(Stdio::null()).output()
    };
    match nobody(&own, &["create", "pool"]) {
        Ok(output) if output.status.success() => {}
        Ok(output) => return skip(name, &said(&output)),
        Err(error) => return skip(name, &format!("the test directory is closed to other users: {error}")),
    }
    let mounted = nobody(&own, &["mount", "pool", "mnt", "--log", "server.log"]).unwrap();
    if !mounted.status.success() {
        let line = failure(&mounted);
        if line.contains("install the package fuse3") {
            return; // the message is what is tested where there is no fusermount3
        }
        assert!(!room.is_mounted("mnt"));
        return skip(name, &line);
    }
    let info = nobody(&own, &["info", "mnt", "--json"]).unwrap();
    assert!(info.status.success(), "{}", said(&info));
    let info: Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!(info["passthrough"], false);
    let written = nobody(Path::new("/bin/sh"), &["-c", "echo x > mnt/x && cat mnt/x"]).unwrap();
    assert_eq!(String::from_utf8_lossy(&written.stdout), "x\n", "{}", said(&written));
    let unmounted = nobody(&own, &["umount", "mnt"]).unwrap();
    assert!(unmounted.status.success(), "{}", said(&unmounted));
    assert!(!room.is_mounted("mnt"));
}

/// A pool with a space, a comma, a backslash and bytes that are no text in its name.
#[test]
fn odd_names() {
    needs_mount!();
    use std::os::unix::ffi::OsStrExt;
    let room = Room::new();
    let pool = OsStr::from_bytes(b"a, b\\c\n\xff");
    let mnt = OsStr::from_bytes(b"m\\040\t\xfe");
    fs::create_dir(room.dir.path().join(mnt)).unwrap();
    room.ok([OsStr::new("create"), pool]);
    room.ok([OsStr::new("mount"), pool, mnt, OsStr::new("--log"), OsStr::new("server.log")]);
    fs::write(room.dir.path().join(mnt).join("x"), "x").unwrap();
    room.ok([OsStr::new("info"), pool]);
    room.ok([OsStr::new("info"), mnt]);
    room.ok([OsStr::new("sync"), mnt]);
    room.ok([OsStr::new("umount"), mnt]);
    assert!(!room.dir.path().join(mnt).join("x").exists());
}

#[test]
fn a_panic_or_signal_never_reaches_the_user() {
    // What a server that cannot even start looks like: its executable's limit on memory is tiny.
    needs_mount!();
    let room = Room::with_pool();
    let script = "ulimit -v 100000; exec \"$0\" mount pool mnt --log server.log";
    let mut command = Command::new("bash");
    command.args(["-c", script]).arg(tensorfs().get_program()).current_dir(room.dir.path());
    let output = run(&mut command);
    assert_eq!(output.status.signal(), None, "{}", said(&output));
    if !output.status.success() {
        failure(&output);
        assert!(!room.is_mounted("mnt"));
    }
}

/// Changes both superblocks, and completes their checksums.
fn patch_superblocks(log: &Path, offset: usize, bytes: &[u8]) {
    let file = File::options().read(true).write(true).open(log).unwrap();
    for place in [0, 1 << 20] {
        let mut superblock = [0; 512];
        file.read_exact_at(&mut superblock, place).unwrap();
        superblock[offset..offset + bytes.len()].copy_from_slice(bytes);
        let crc = tensorfs_formats::crc32c(&superblock[..508]);
        superblock[508..].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&superblock, place).unwrap();
    }
}

#[test]
fn format_newer_than_the_program() {
    needs_mount!();
    // Where the superblock has its version, and its masks of incompatible and of read-only compatible features.
    const VERSION: usize = 8;
    const RO_COMPAT: usize = 24;
    const INCOMPAT: usize = 32;

    let room = Room::with_pool();
    let (pool, log) = (room.at("pool"), room.at("pool").join(LOG));
    let whole = fs::read(&log).unwrap();
    patch_superblocks(&log, VERSION, &2u32.to_le_bytes());
    let version = format!("{}: needs a newer tensorfs (format version 2, this program knows 1)", pool.display());
    for command in [&["mount", "pool", "mnt"][..], &["info", "pool"]] {
        assert_eq!(room.fails(command), version);
    }
    fs::write(&log, &whole).unwrap();
    patch_superblocks(&log, INCOMPAT, &0x10u64.to_le_bytes());
    let feature = format!("{}: needs a newer tensorfs (unknown incompatible features 0x10)", pool.display());
    assert_eq!(room.fails(["mount", "pool", "mnt"]), feature);
    assert!(!room.is_mounted("mnt"));

    // A feature that only forbids writing: mounted, and read-only.
    fs::write(&log, &whole).unwrap();
    patch_superblocks(&log, RO_COMPAT, &1u64.to_le_bytes());
    let before = fs::read(&log).unwrap();
    room.mount("pool", "mnt");
    let refused = fs::write(room.at("mnt/f"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read_dir(room.at("mnt")).unwrap().count(), 0);
    assert_eq!(room.info("mnt")["read_only"], "it uses features that this tensorfs can only read");
    room.ok(["umount", "mnt"]);
    assert!(fs::read(&log).unwrap() == before, "a pool that may only be read is not written to");
}

#[test]
fn check_tells_by_its_exit_status() {
    needs_mount!();
    let check = |room: &Room, arguments: &[&str]| {
        let output = room.run(["check"].iter().chain(arguments));
        (output.status.code(), said(&output))
    };
    let room = Room::mounted();
    fs::write(room.at("mnt/f"), "bytes").unwrap();
    let (code, text) = check(&room, &["pool"]);
    assert_eq!(code, Some(0), "a pool in use is checked by its server: {text}");
    assert!(text.contains(": whole: "), "{text}");
    assert_eq!(check(&room, &["mnt"]).0, Some(0));
    assert_eq!(check(&room, &["mnt", "--repair"]).0, Some(8), "but not repaired");
    room.ok(["umount", "mnt"]);
    let (code, text) = check(&room, &["pool", "--data"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(": whole: "), "{text}");

    // The first superblock damaged: the pool mounts all the same, check says so, a repair restores it.
    let log = File::options().read(true).write(true).open(room.at("pool").join(LOG)).unwrap();
    log.write_all_at(b"garbage", 100).unwrap();
    room.mount("pool", "mnt");
    assert_eq!(fs::read(room.at("mnt/f")).unwrap(), b"bytes");
    room.ok(["umount", "mnt"]);
    log.write_all_at(b"garbage", 100).unwrap();
    let (code, text) = check(&room, &["pool"]);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("log at 0: damaged superblock"), "{text}");
    assert_eq!(check(&room, &["pool", "--repair"]).0, Some(1));
    assert_eq!(check(&room, &["pool", "--repair"]).0, Some(0), "there is nothing left to repair");
    let report: Value = serde_json::from_str(&room.ok(["check", "pool", "--json"])).unwrap();
    assert_eq!(report["findings"].as_array().unwrap().len(), 0);
    room.mount("pool", "mnt");
    assert_eq!(fs::read(room.at("mnt/f")).unwrap(), b"bytes");
}

/// In passthrough the kernel asks nobody before it finds the host full, so what was deleted must be gone by then.
#[test]
fn deleting_on_a_full_host_makes_room_at_once() {
    needs_mount!();
    let room = Room::new();
    let image = room.at("image");
    File::create(&image).unwrap().set_len(96 << 20).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).status().is_ok_and(|status| status.success());
    let looped = made && is_root() && {
        let mount = Command::new("mount").args(["-o", "loop"]).args([&image, &room.at("other")]).output();
        mount.is_ok_and(|output| output.status.success())
    };
    if !looped {
        skip("deleting_on_a_full_host_makes_room_at_once", "no filesystem can be made and mounted here");
        return;
    }
    for passthrough in ["auto", "off"] {
        room.ok(["mount", "--create", "other/pool", "mnt", "--passthrough", passthrough, "--log", "server.log"]);
        let file = |n: usize| room.at("mnt").join(n.to_string());
        let many = (0..).find(|n| fs::write(file(*n), vec![1; 1 << 20]).is_err()).unwrap();
        assert!(many > 40, "{many} MiB fit");
        for n in 0..=many {
            fs::remove_file(file(n)).unwrap();
        }
        fs::write(file(0), vec![2; 20 << 20]).unwrap();
        room.ok(["umount", "mnt"]);
        fs::remove_dir_all(room.at("other/pool")).unwrap();
    }
}

/// A pool on overlayfs: the kernel passes nothing through to a stacked filesystem.
///
/// Proves F1.
#[test]
fn passthrough_where_it_is_not_to_be_had() {
    needs_mount!();
    let room = Room::new();
    for name in ["lower", "upper", "work"] {
        fs::create_dir(room.at(name)).unwrap();
    }
    let layers = "lowerdir=lower,upperdir=upper,workdir=work";
    let overlay = Command::new("mount")
        .current_dir(room.at(""))
        .args(["-t", "overlay", "overlay", "-o", layers, "other"])
        .output();
    if !overlay.is_ok_and(|output| output.status.success()) {
        skip("passthrough_where_it_is_not_to_be_had", "overlayfs cannot be mounted here");
        return;
    }
    let reason = "the pool lies on a stacked filesystem (such as overlayfs)";
    room.ok(["create", "other/pool"]);
    let refused = room.fails(["mount", "other/pool", "mnt", "--passthrough", "on", "--log", "server.log"]);
    assert!(refused.starts_with(&format!("{}: ", room.at("mnt").display())) && refused.contains(reason), "{refused}");
    assert!(!room.is_mounted("mnt"));
    assert_eq!(room.info("other/pool")["state"], "clean", "a start that fails leaves the pool closed");

    // Left to itself it serves all the same, and says once why it is slower.
    room.mount("other/pool", "mnt");
    fs::write(room.at("mnt/f"), "through the server").unwrap();
    assert_eq!(fs::read(room.at("mnt/f")).unwrap(), b"through the server");
    let info = room.info("mnt");
    assert_eq!((&info["passthrough"], &info["passthrough_reason"]), (&false.into(), &reason.into()));
    let log = room.log();
    let served = log.rsplit("bytes go through the server").next().unwrap();
    assert_eq!(log.matches("bytes go through the server").count(), 1, "{log}");
    assert!(served.starts_with(&format!(": {reason}")), "{log}");
    room.ok(["umount", "mnt"]);
}
