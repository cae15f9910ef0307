//! Which mount of a pool a command comes to, and what it says where it comes to none.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;
use tensorfs_tests::{LEAVE_MOUNTS, is_root, needs_mount, nobody_unmounts, skip, tensorfs, wait_for_end, wait_until};

use super::{Room, kill, said};

fn cover(place: &Path) {
    mount(Some("cover"), place, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
}

fn bind(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

fn uncover(place: &Path) {
    umount2(place, MntFlags::empty()).unwrap();
}

/// A command that goes on until it is told to end, for one answer.
fn one(room: &Room, arguments: &[&str]) -> Output {
    room.run(["trace", "--count", "1"].iter().chain(arguments))
}

#[test]
fn what_is_mounted_over_a_mount_is_left_alone() {
    needs_mount!();
    if !is_root() {
        return skip("cli::what_is_mounted_over_a_mount_is_left_alone", "only root mounts a tmpfs");
    }
    let room = Room::with_pool();
    fs::create_dir_all(room.at("above/mnt")).unwrap();
    let commands: [&[&str]; 10] = [
        &["umount"],
        &["umount", "--lazy"],
        &["sync"],
        &["scrub"],
        &["check"],
        &["info"],
        &["health"],
        &["ls"],
        &["verify"],
        &["tier", "map"],
    ];
    for (mountpoint, covered) in [("mnt", "mnt"), ("above/mnt", "above")] {
        room.mount("pool", mountpoint);
        let file = room.at(mountpoint).join("f");
        fs::write(&file, "ours").unwrap();
        let pid = room.pid("pool");
        cover(&room.at(covered));
        fs::write(room.at(covered).join("precious"), "theirs").unwrap();
        for is_dead in [false, true] {
            if is_dead {
                kill(pid, libc::SIGKILL);
                wait_for_end(pid);
            }
            // Of a pool that nobody has in use, the rest is told without a mount.
            for command in commands.iter().take(if is_dead { 4 } else { commands.len() }) {
                let output = room.run(command.iter().chain(&["pool"]));
                let said = said(&output);
                assert!(!output.status.success(), "{command:?}: {said}");
                assert!(said.contains("(tmpfs, cover) is mounted over it"), "{command:?}: {said}");
                assert!(said.contains("; unmount that first"), "{command:?}: {said}");
                assert_eq!(said.trim_end().lines().count(), 2, "{command:?}: {said}");
            }
            assert_eq!(fs::read(room.at(covered).join("precious")).unwrap(), b"theirs", "{is_dead}");
        }
        if covered == "mnt" {
            let line = room.fails(["umount", "mnt"]);
            assert!(line.contains("is mounted over it; unmount that first"), "{line}");
        }
        uncover(&room.at(covered));
        room.ok(["umount", "pool"]);
        assert!(!room.is_mounted(mountpoint));
        room.mount("pool", mountpoint);
        assert_eq!(fs::read(&file).unwrap(), b"ours");
        room.ok(["umount", "pool"]);
    }
}

#[test]
fn a_bind_mount_of_a_directory_is_not_taken_for_the_root() {
    needs_mount!();
    if !is_root() {
        return skip("cli::a_bind_mount_of_a_directory_is_not_taken_for_the_root", "only root makes bind mounts");
    }
    let room = Room::mounted();
    fs::create_dir(room.at("mnt/run")).unwrap();
    fs::write(room.at("mnt/run/f"), "bytes").unwrap();
    fs::write(room.at("mnt/top"), "bytes").unwrap();
    // The bind mount comes first in the table.
    bind(&room.at("mnt/run"), &room.at("bind"));
    bind(&room.at("mnt"), &room.at("whole"));
    uncover(&room.at("mnt"));
    let told: [&[&str]; 6] = [&["info"], &["health"], &["metrics"], &["tier", "list"], &["tier", "map"], &["restore"]];
    for target in ["bind", "pool", "whole"] {
        for command in told {
            room.ok(command.iter().chain(&[target]));
        }
        let asked = std::thread::scope(|scope| {
            let asked = scope.spawn(|| one(&room, &[target]));
            // What is not there is asked of the server each time, and the kernel remembers a listing.
            for n in (0..).take_while(|_| !asked.is_finished()) {
                assert!(!room.at(&format!("whole/{n}")).exists());
            }
            asked.join().unwrap()
        });
        assert!(asked.status.success(), "{}", said(&asked));
    }
    assert!(room.ok(["ls", "pool"]).contains("top"));
    assert!(room.ok(["records", "pool:/run/f"]).contains("committed") || !room.ok(["ls", "pool:/run"]).is_empty());
    let all = |target: &str| room.ok(["verify", "--json", target]).lines().count();
    assert_eq!(all("pool"), all("whole"));
    // Where the root is in sight nowhere any more, what needs it says so.
    uncover(&room.at("whole"));
    for target in ["bind", "pool"] {
        for command in told.into_iter().chain([&["trace"][..]]) {
            // What was set aside is in the pool's directory.
            if command != ["restore"] {
                let output = room.run(command.iter().chain(&[target]));
                let said = said(&output);
                assert!(!output.status.success(), "{command:?} {target}: {said}");
                assert!(said.contains("only the directory /run of "), "{command:?} {target}: {said}");
                assert!(said.contains("unmount this and mount the pool again"), "{command:?} {target}: {said}");
            }
        }
        room.ok(["sync", target]);
        room.ok(["check", target]);
        room.ok(["scrub", target]);
    }
    for command in ["ls", "verify"] {
        let line = room.fails([command, "pool"]);
        assert!(line.contains("only the directory /run of "), "{line}");
    }
    assert!(room.ok(["ls", "pool:/run"]).contains('f'));
    room.ok(["stat", "bind/f"].iter().take(0).chain(&["ls", "pool:/run/f"]));
    room.ok(["umount", "pool"]);
    assert!(!room.is_mounted("bind"));
    assert_eq!(room.info("pool")["state"], "clean");
}

#[test]
fn where_a_pool_is_mounted_that_was_unmounted_lazily() {
    needs_mount!();
    let room = Room::mounted();
    let held = File::create(room.at("mnt/held")).unwrap();
    let pid = room.pid("pool");
    room.ok(["umount", "--lazy", "mnt"]);
    let output = room.run(["check", "pool"]);
    assert_eq!(output.status.code(), Some(8), "{}", said(&output));
    let expected = format!("already in use by process {pid}, and not mounted where this process can see it");
    assert!(said(&output).contains(&expected), "{}", said(&output));
    let line = room.fails(["tier", "remove", "pool", "x"]);
    assert!(line.contains(&expected) && !line.contains("unmount it first"), "{line}");
    drop(held);
    wait_for_end(pid);
}

#[test]
fn where_a_pool_is_mounted_in_another_mount_namespace() {
    needs_mount!();
    let name = "cli::where_a_pool_is_mounted_in_another_mount_namespace";
    let possible = Command::new("unshare").args(["-m", "true"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return skip(name, "unshare -m does not work here");
    }
    let room = Room::with_pool();
    let script = "\"$0\" mount pool mnt --log server.log && echo mounted && read end; \"$0\" umount mnt";
    let script = format!("{LEAVE_MOUNTS}{script}");
    let mut inside = Command::new("unshare");
    inside.args(["-m", "sh", "-c", &script]).arg(tensorfs().get_program()).current_dir(room.dir.path());
    let alone = nobody_unmounts();
    let mut inside = inside.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(inside.stdout.take().unwrap()).read_line(&mut line).unwrap();
    drop(alone);
    assert_eq!(line, "mounted\n", "{}", room.log());
    let (pid, mnt) = (room.pid("pool"), room.at("mnt"));
    let expected =
        format!("already in use by process {pid}; it is mounted at {} in the mount namespace of ", mnt.display());
    for command in [&["mount", "pool", "other"][..], &["check", "pool"], &["tier", "remove", "pool", "x"]] {
        let output = room.run(command);
        assert!(!output.status.success() && said(&output).contains(&expected), "{command:?}: {}", said(&output));
    }
    // Who is told where it is mounted is told that this is not here.
    let info = room.info("pool");
    assert_eq!(info["mountpoint"], mnt.to_str().unwrap());
    assert_eq!(info["mount_namespace_of"], pid, "{info}");
    let text = room.ok(["info", "pool"]);
    assert!(text.contains(&format!("in the mount namespace of process {pid}")), "{text}");
    drop(inside.stdin.take());
    assert!(inside.wait().unwrap().success());
    assert_eq!(room.info("pool")["state"], "clean");
}

/// `info` went on to name the first place, where nothing is any more; in another mount namespace, too, where it found
/// no mount then.
#[test]
fn info_says_where_a_mount_was_moved_to() {
    needs_mount!();
    let name = "cli::info_says_where_a_mount_was_moved_to";
    let possible = Command::new("unshare").args(["-m", "true"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return skip(name, "unshare -m does not work here");
    }
    let room = Room::with_pool();
    let script = "mount --make-rprivate / && \"$0\" mount pool mnt --log server.log && mount --move mnt other && \
        for what in other pool; do \"$0\" info --json $what > moved.$what || exit 1; done && \
        mount --bind other mnt && \"$0\" info --json mnt > bound && umount mnt && \
        echo moved && read end; \"$0\" umount other";
    let script = format!("{LEAVE_MOUNTS}{script}");
    let mut inside = Command::new("unshare");
    inside.args(["-m", "sh", "-c", &script]).arg(tensorfs().get_program()).current_dir(room.dir.path());
    let alone = nobody_unmounts();
    let mut inside = inside.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(inside.stdout.take().unwrap()).read_line(&mut line).unwrap();
    drop(alone);
    assert_eq!(line, "moved\n", "{}", room.log());
    let read = |file: &str| serde_json::from_slice::<Value>(&fs::read(room.at(file)).unwrap()).unwrap();
    for (file, place) in [("moved.other", "other"), ("moved.pool", "other"), ("bound", "mnt")] {
        let info = read(file);
        assert_eq!(info["mountpoint"], room.at(place).to_str().unwrap(), "{file}");
        assert_eq!(info["mount_namespace_of"], Value::Null, "{file}");
    }
    let info = room.info("pool");
    assert_eq!(info["state"], "mounted");
    assert_eq!(info["mountpoint"], room.at("other").to_str().unwrap());
    assert_eq!(info["mount_namespace_of"], info["pid"]);
    drop(inside.stdin.take());
    assert!(inside.wait().unwrap().success());
    assert_eq!(room.info("pool")["state"], "clean");
}

/// The table of mounts calls it as it was; and what is called so by now is another one.
#[test]
fn a_pool_that_was_renamed_while_it_was_mounted() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/f"), "bytes").unwrap();
    let pid = room.pid("mnt");
    fs::rename(room.at("pool"), room.at("new")).unwrap();
    room.ok(["create", "pool"]);
    if is_root() {
        for command in ["health", "sync", "verify", "check"] {
            room.ok([command, "new"]);
        }
        assert!(room.ok(["ls", "new"]).contains('f'));
        assert_eq!(room.pid("new"), pid);
    }
    assert_eq!(room.info("pool")["state"], "clean");
    for command in ["umount", "sync", "scrub"] {
        let line = room.fails([command, "pool"]);
        assert!(line.contains("not mounted; mount it with"), "{command}: {line}");
    }
    wait_until("still mounted", || room.is_mounted("mnt"));
    room.ok(["umount", if is_root() { "new" } else { "mnt" }]);
    wait_for_end(pid);
    assert_eq!(room.info("new")["state"], "clean");
}
