//! `tensorfs alarm`, and the mount option `on-damage`: damage tells somebody.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use tensorfs_tests::{Pattern, is_root, needs_mount, unmounting, wait_until, write_program};

use super::{Room, said, servers_of};

/// A program that writes down what it is told; it fails the first time.
fn teller(room: &Room) -> String {
    let (program, told) = (room.at("tell"), room.at("told"));
    let script = format!(
        "#!/bin/sh\nif [ ! -e {0}.failed ]; then touch {0}.failed; exit 1; fi\n\
         {{ echo \"$1 $TENSORFS_MOUNTPOINT $TENSORFS_POOL\"; cat; echo end; }} >> {0}\n",
        told.display()
    );
    write_program(&program, script.as_bytes());
    program.to_str().unwrap().to_owned()
}

/// The server has given up its rights, and could run nothing.
#[test]
fn damage_that_is_found_is_told_once_by_whoever_mounted() {
    needs_mount!();
    let room = Room::with_pool();
    let program = teller(&room);
    room.mount("pool", "mnt");
    let file = Pattern(2).bytes(0, 1 << 20);
    fs::write(room.at("mnt/file"), &file).unwrap();
    room.ok(["seal", "mnt/file"]);
    room.ok(["umount", "mnt"]);
    let segments =
        fs::read_dir(room.at("pool/segments")).unwrap().flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap());
    let segment = segments.map(|entry| entry.unwrap().path()).find(|path| fs::read(path).unwrap() == file).unwrap();
    let mut spoiled = file;
    spoiled[500_000] ^= 1;
    fs::write(segment, spoiled).unwrap();
    room.ok(["mount", "pool", "mnt", "--log", "server.log", "-o", &format!("keeper,on-damage={program}")]);
    // One that is just being executed has no command line yet, and a child of its that is not has the same.
    wait_until("it was started with the mount", || alarms(&room).len() == 1);
    // One that asks more often than each ten seconds.
    let mut often = {
        let _unmounting = unmounting();
        room.command().args(["alarm", "--every", "0.05", "--run", &program, "mnt"]).spawn().unwrap()
    };
    let told = || fs::read_to_string(room.at("told")).unwrap_or_default();
    assert_eq!(told(), "", "nobody has looked");
    assert_eq!(room.run(["scrub", "mnt"]).status.code(), Some(4));
    wait_until("it is told, though the program failed at first", || told().contains("end\n"));
    // Both tell of it, each once.
    wait_until("so is the one of the mount", || told().matches("end\n").count() == 2);
    let (mnt, pool) = (room.at("mnt"), room.at("pool"));
    let first = format!("{0} {0} {1}\ndamage: /file: ", mnt.display(), pool.display());
    assert!(told().starts_with(&first), "{}", told());
    room.ok(["umount", "mnt"]);
    assert!(often.wait().unwrap().success());
    wait_until("it ends with the mount", || alarms(&room).is_empty());
    assert_eq!(told().matches("end\n").count(), 2, "{}", told());
    assert!(servers_of(room.dir.path()).is_empty());
}

/// Alarms of the room's mounts that a mount has started.
fn alarms(room: &Room) -> Vec<String> {
    let lines =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    let named = room.at("mnt").display().to_string();
    lines.filter(|line| line.contains("\0alarm\0--detached\0") && line.contains(&named)).collect()
}

#[test]
fn a_program_is_named_by_its_whole_path() {
    needs_mount!();
    let room = Room::with_pool();
    let line = room.fails(["mount", "pool", "mnt", "-o", "on-damage=tell"]);
    assert!(line.contains("must be a path that begins with /"), "{line}");
}

/// Nor where it logs, if it was told of neither.
#[test]
fn a_remount_does_not_change_who_is_told() {
    needs_mount!();
    if !is_root() {
        return;
    }
    let room = Room::with_pool();
    room.ok(["mount", "--create", "pool", "mnt"]);
    let program = teller(&room);
    for (name, option) in [("on-damage", format!("on-damage={program}")), ("log", "log=/none".to_owned())] {
        let line = room.fails(["mount", "pool", "mnt", "-o", &format!("remount,{option}")]);
        assert!(line.contains(&format!("a remount cannot change: {name};")), "{line}");
    }
    room.ok(["umount", "mnt"]);
    // In quotes it may have commas.
    let option = format!("keeper,on-damage=\"{program},ro\"");
    room.ok(["mount", "pool", "mnt", "--log", "server.log", "-o", &option]);
    room.ok(["mount", "pool", "mnt", "-o", &format!("remount,{option}")]);
    fs::write(room.at("mnt/file"), "text").unwrap();
    room.ok(["umount", "mnt"]);
}

#[test]
fn an_alarm_says_where_nothing_is_mounted_and_what_it_cannot_run() {
    needs_mount!();
    let room = Room::mounted();
    let program = teller(&room);
    fs::create_dir(room.at("mnt/below")).unwrap();
    let line = room.fails(["alarm", "--run", &program, "mnt/below"]);
    assert!(line.contains("inside a mount, not its root"), "{line}");
    let none = room.at("none").to_str().unwrap().to_owned();
    assert_eq!(room.fails(["alarm", "--run", &none, "mnt"]), format!("{none}: No such file or directory"));
    room.ok(["umount", "mnt"]);
    let mut waits = {
        let _unmounting = unmounting();
        let mut command = room.command();
        command.args(["alarm", "--every", "0.05", "--run", &program, "mnt"]).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut line = String::new();
    BufReader::new(waits.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("no tensorfs is mounted here; waiting"), "{line}");
    waits.kill().unwrap();
    waits.wait().unwrap();
    // A mount is more than the program that is told of it.
    let option = format!("on-damage={none}");
    let output = room.run(["mount", "pool", "mnt", "--log", "server.log", "-o", &option]);
    assert!(output.status.success() && said(&output).contains("option \"on-damage\": "), "{}", said(&output));
    if is_root() {
        let same = room.run(["mount", "pool", "mnt", "-o", &format!("remount,{option}")]);
        assert!(same.status.success() && !said(&same).contains("on-damage"), "{}", said(&same));
        let other = room.run(["mount", "pool", "mnt", "-o", &format!("remount,on-damage={program}")]);
        let expected = "a remount cannot change: on-damage";
        assert!(!other.status.success() && said(&other).contains(expected), "{}", said(&other));
    }
    room.ok(["umount", "mnt"]);
}
