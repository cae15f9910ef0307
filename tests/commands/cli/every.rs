//! What holds of every command: help, odd names, other users, and that no panic reaches a user.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tensorfs_tests::{is_root, needs_mount, run, run_ok, skip, tensorfs};

use super::{Room, failure, said};

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
fn a_closed_pipe_is_no_error() {
    let room = Room::with_pool();
    let mut info = room.command();
    let mut info = info.args(["info", "pool"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(info.stdout.take());
    let output = info.wait_with_output().unwrap();
    assert_eq!(said(&output), "exit status: 0\n");
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
    // By another process: a child that another test forks meanwhile would share the descriptor that writes the copy,
    // and what is being written cannot be executed.
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
    // The kernel keeps other users out of it, root too; what it is can be asked all the same.
    assert_eq!(fs::read_dir(room.at("mnt")).unwrap_err().raw_os_error(), Some(libc::EACCES));
    assert_eq!(room.info("mnt")["pool"], room.at("pool").to_str().unwrap());
    assert!(room.ok(["info", "pool"]).contains("mounted by process"));
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
