//! Trees in which not everything can be looked at, or in which things are removed meanwhile: what cannot be is said,
//! and the rest is gone through.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::mkfifo;
use tensorfs_tests::{is_root, needs_mount, run, run_ok, safetensors, skip, tensorfs, wait_until};

use super::{Room, said};

const NOBODY: u32 = 65534;

fn tensors(path: &Path, byte: u8) -> Vec<u8> {
    let bytes = safetensors(&[("w", &[byte; 4096])]);
    fs::write(path, &bytes).unwrap();
    bytes
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// The program, as another user may run it in the room: nothing if he cannot.
fn of_nobody(room: &Room, name: &str) -> Option<impl Fn(&[&str]) -> Output> {
    if !is_root() {
        skip(name, "needs root to be somebody else");
        return None;
    }
    let own = room.at("tensorfs");
    // Not by this process: a child that another test starts meanwhile would have it open for writing.
    run_ok(Command::new("cp").arg(tensorfs().get_program()).arg(&own));
    chown(room.dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let dir = room.dir.path().to_owned();
    let nobody = move |arguments: &[&str]| {
        let mut command = Command::new(&own);
        command.args(arguments).current_dir(&dir).uid(NOBODY).gid(NOBODY).stdin(Stdio::null());
        command.output()
    };
    match nobody(&["--version"]) {
        Ok(output) if output.status.success() => Some(move |arguments: &[&str]| nobody(arguments).unwrap()),
        _ => {
            skip(name, "the test directory is closed to other users");
            None
        }
    }
}

/// That a command had this status, complained of each of these once, in a line of its own, and printed that.
#[track_caller]
fn told(output: &Output, status: i32, complaints: &[&str], printed: &[&str]) {
    let all = said(output);
    assert_eq!(output.status.code(), Some(status), "{all}");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    for complaint in complaints {
        assert_eq!(errors.lines().filter(|line| line.contains(complaint)).count(), 1, "{complaint}: {all}");
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.iter().all(|what| text.contains(what)), "{printed:?}: {all}");
}

#[test]
fn what_may_not_be_looked_at_is_said_and_the_rest_is_gone_through() {
    needs_mount!();
    let room = Room::mounted();
    let Some(nobody) = of_nobody(&room, "cli::what_may_not_be_looked_at_is_said") else { return };
    for name in ["dark", "shut", "z"] {
        fs::create_dir(room.at("mnt").join(name)).unwrap();
        tensors(&room.at("mnt").join(name).join("f.safetensors"), 1);
    }
    let damaged = tensors(&room.at("mnt/z/damaged.safetensors"), 2);
    room.ok(["seal", "mnt"]);
    mode(&room.at("mnt/dark"), 0o744);
    mode(&room.at("mnt/shut"), 0o700);
    let complaints = ["mnt/dark/f.safetensors: Permission denied", "mnt/shut: Permission denied"];
    told(&nobody(&["verify", "mnt"]), 1, &complaints, &["2 whole, 2 not read"]);
    told(&nobody(&["ls", "-R", "mnt"]), 1, &complaints, &["z/f.safetensors", "z/damaged.safetensors"]);
    told(&nobody(&["tensors", "mnt"]), 1, &complaints, &["z/f.safetensors: safetensors, 1 tensor"]);
    told(&nobody(&["ls", "mnt/dark"]), 1, &complaints[..1], &[]);
    let segments = fs::read_dir(room.at("pool/segments")).unwrap();
    let files = segments.flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap());
    let segment = files.map(|file| file.unwrap().path()).find(|file| fs::read(file).unwrap() == damaged).unwrap();
    crate::verify::flip(&segment, 4000);
    // Damage is what counts.
    told(&nobody(&["verify", "mnt"]), 4, &complaints, &["damaged.safetensors: damaged"]);
}

/// A file about which something else is wrong: it is another filesystem's, which is mounted there.
#[test]
fn a_file_that_cannot_be_asked_about_stops_no_other() {
    needs_mount!();
    let room = Room::mounted();
    let Some(nobody) = of_nobody(&room, "cli::a_file_that_cannot_be_asked_about_stops_no_other") else { return };
    for name in ["a", "b", "c"] {
        fs::create_dir(room.at("mnt").join(name)).unwrap();
        tensors(&room.at("mnt").join(name).join("f.safetensors"), 1);
    }
    // Who may not ask for it is told so, and it is no success.
    let refused = nobody(&["verify", "--seal", "mnt/a/f.safetensors"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    let over = room.at("mnt/b");
    nix::mount::mount(Some("none"), &over, Some("tmpfs"), nix::mount::MsFlags::empty(), None::<&str>).unwrap();
    tensors(&over.join("other"), 1);
    let listed = room.run(["ls", "-R", "mnt"]);
    let sealed = room.run(["seal", "mnt"]);
    nix::mount::umount2(&over, nix::mount::MntFlags::MNT_DETACH).unwrap();
    told(&listed, 1, &["mnt/b/other: "], &["a/f.safetensors", "c/f.safetensors"]);
    told(&sealed, 1, &["mnt/b/other: "], &["2 files are sealed"]);
}

/// Makes directories below one another, and a file in the last one. Nobody names it by one path.
fn deep(mut dir: PathBuf, depth: usize, bytes: &[u8]) {
    let name = "d".repeat(200);
    fs::create_dir_all(&dir).unwrap();
    dir = dir.canonicalize().unwrap();
    let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut at: std::os::fd::OwnedFd = File::open(dir).unwrap().into();
    for _ in 0..depth {
        mkdirat(&at, &*name, Mode::from_bits_truncate(0o755)).unwrap();
        at = openat(&at, &*name, flags, Mode::empty()).unwrap();
    }
    let flags = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let file = openat(&at, "f.safetensors", flags, Mode::from_bits_truncate(0o644)).unwrap();
    std::io::Write::write_all(&mut File::from(file), bytes).unwrap();
}

#[test]
fn paths_that_are_too_long_for_the_kernel_are_said() {
    needs_mount!();
    let room = Room::mounted();
    let bytes = tensors(&room.at("mnt/beside.safetensors"), 1);
    deep(room.at("mnt/deep"), 30, &bytes);
    let why = ["File name too long"];
    told(&room.run(["seal", "mnt"]), 1, &why, &["1 file is sealed"]);
    told(&room.run(["verify", "mnt"]), 1, &why, &["1 whole, 1 not read"]);
    told(&room.run(["ls", "-R", "mnt"]), 1, &why, &["beside.safetensors"]);
    told(&room.run(["tensors", "mnt"]), 1, &why, &["beside.safetensors: safetensors, 1 tensor"]);
    // No path has to be named where the pool is looked into.
    room.ok(["umount", "mnt"]);
    told(&room.run(["seal", "pool"]), 0, &[], &["2 files are sealed"]);
    told(&room.run(["verify", "pool"]), 0, &[], &["2 whole;"]);
}

#[test]
fn an_argument_that_is_none_stops_no_other() {
    needs_mount!();
    let room = Room::mounted();
    symlink("nowhere", room.at("mnt/dangling")).unwrap();
    mkfifo(&room.at("mnt/fifo"), Mode::from_bits_truncate(0o644)).unwrap();
    tensors(&room.at("mnt/f.safetensors"), 1);
    let bad = ["mnt/missing: No such file", "mnt/dangling: No such file", "mnt/fifo: "];
    let with = |command: &[&str], more: &[&str]| {
        let paths = ["mnt/missing", "mnt/dangling", "mnt/fifo", "mnt/f.safetensors"];
        room.run(command.iter().chain(&paths).chain(more))
    };
    told(&with(&["seal"], &[]), 1, &bad, &["1 file is sealed"]);
    told(&with(&["verify"], &[]), 1, &bad, &["1 whole, 3 not read"]);
    told(&with(&["tensors"], &[]), 1, &bad, &["f.safetensors: safetensors, 1 tensor"]);
    told(&with(&["records"], &[]), 1, &bad, &["f.safetensors: sealed, 2 records"]);
    told(&with(&["tier", "move"], &["pm"]), 1, &bad, &["1 file is in tier pm"]);
    // Of a FIFO there is something to list.
    told(&with(&["ls"], &[]), 1, &bad[..2], &["fifo", "f.safetensors"]);
}

/// Checkpoints that come under new names and go again, until it is dropped. Nothing is ever written below `run`.
struct Rotation<'a>(&'a AtomicBool);

impl Drop for Rotation<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Has directories of one file each come into `run` and go, `kept` of them always there, while it asks.
fn while_rotating(room: &Room, kept: usize, pause: Duration, ask: impl FnOnce()) {
    let (run, aside) = (room.at("mnt/run"), room.at("mnt/aside"));
    fs::create_dir_all(&run).unwrap();
    fs::create_dir_all(&aside).unwrap();
    for number in 0..=kept {
        fs::create_dir(aside.join(number.to_string())).unwrap();
        tensors(&aside.join(number.to_string()).join("model.safetensors"), number as u8);
    }
    room.ok(["seal", "mnt"]);
    let step = |number: usize| run.join(format!("step-{number}"));
    let place = |number: usize| aside.join((number % (kept + 1)).to_string());
    (0..kept).for_each(|number| fs::rename(place(number), step(number)).unwrap());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let ended = Rotation(&is_over);
        scope.spawn(|| {
            for number in kept.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                fs::rename(place(number), step(number)).unwrap();
                fs::rename(step(number - kept), place(number - kept)).unwrap();
                thread::sleep(pause);
            }
        });
        ask();
        drop(ended);
    });
}

#[test]
fn what_is_removed_meanwhile_is_no_error() {
    needs_mount!();
    let room = Room::mounted();
    while_rotating(&room, 20, Duration::ZERO, || {
        for _ in 0..30 {
            for command in [&["ls", "-R"][..], &["verify"], &["tensors"], &["seal"], &["tier", "move"]] {
                let more: &[&str] = if command[0] == "tier" { &["pm"] } else { &[] };
                let output = room.run(command.iter().chain(&["mnt/run"]).chain(more));
                assert!(output.status.success() && output.stderr.is_empty(), "{command:?}: {}", said(&output));
            }
        }
    });
}

/// Proves T13.
#[test]
fn the_latest_is_found_while_checkpoints_rotate() {
    needs_mount!();
    let room = Room::mounted();
    while_rotating(&room, 1, Duration::from_millis(4), || {
        for _ in 0..300 {
            let output = room.run(["latest", "mnt/run"]);
            assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
        }
    });
}

/// Proves T13.
#[test]
fn the_latest_says_what_it_may_not_look_into() {
    needs_mount!();
    let room = Room::mounted();
    let Some(nobody) = of_nobody(&room, "cli::the_latest_says_what_it_may_not_look_into") else { return };
    for name in ["older", "newer"] {
        fs::create_dir_all(room.at("mnt/run").join(name)).unwrap();
        tensors(&room.at("mnt/run").join(name).join("model.safetensors"), 1);
    }
    room.ok(["seal", "mnt"]);
    chown(room.at("mnt/run"), Some(NOBODY), Some(NOBODY)).unwrap();
    mode(&room.at("mnt/run/newer"), 0o700);
    let complaint = ["mnt/run/newer: Permission denied"];
    told(&nobody(&["latest", "mnt/run"]), 0, &complaint, &["mnt/run/older/model.safetensors\n"]);
    // Whether it is the newest nobody knows.
    told(&nobody(&["rollback", "mnt/run"]), 1, &complaint, &["older/model.safetensors: complete\n"]);
    told(&nobody(&["ls", "-R", "--complete", "mnt/run"]), 1, &complaint, &["older/model.safetensors"]);
    assert!(room.at("mnt/run/newer").exists());
    let output = nobody(&["latest", "mnt/run/newer"]);
    told(&output, 1, &complaint, &[]);
    assert!(!said(&output).contains("no complete checkpoint"), "{}", said(&output));
}

/// Proves C8.
#[test]
fn records_are_followed_until_another_file_has_the_name() {
    needs_mount!();
    let room = Room::mounted();
    let path = room.at("mnt/f");
    fs::write(&path, [1; 5000]).unwrap();
    let mut command = room.command();
    command.args(["records", "--json", "--follow", "mnt/f"]).stdout(Stdio::piped());
    let mut follower = command.spawn().unwrap();
    let mut out = follower.stdout.take().unwrap();
    assert_eq!(out.read(&mut [0]).unwrap(), 1, "the first record");
    fs::write(room.at("mnt/new"), [2; 5000]).unwrap();
    fs::rename(room.at("mnt/new"), &path).unwrap();
    wait_until("it has ended", || follower.try_wait().unwrap().is_some());
    assert!(follower.wait().unwrap().success());
}

/// Nobody takes for whole what was told to nobody.
#[test]
fn what_cannot_be_printed_is_no_success() {
    needs_mount!();
    let room = Room::mounted();
    tensors(&room.at("mnt/f.safetensors"), 1);
    room.ok(["seal", "mnt"]);
    for command in ["health", "verify", "ls", "info"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = run(room.command().args([command, "mnt"]).stdout(full));
        assert!(output.status.code() == Some(1) && said(&output).contains("cannot print"), "{}", said(&output));
    }
}
