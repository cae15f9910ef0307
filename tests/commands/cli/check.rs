//! `tensorfs check`, and logs that are damaged.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, chown, symlink};
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tensorfs_tests::{is_root, needs_mount, skip};

use super::{LOG, Room, failure, kill, said, wait_for_end};

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

/// The segment of a file of the pool of a room, which is not mounted, by its size.
fn segment_of_size(room: &Room, size: u64) -> PathBuf {
    let dirs = fs::read_dir(room.at("pool/segments")).unwrap();
    let mut all = dirs.flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap()).map(|entry| entry.unwrap().path());
    all.find(|path| fs::metadata(path).unwrap().size() == size).unwrap()
}

#[test]
fn a_quarantine_that_is_gone_or_something_else_is_found_and_made_again() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/f"), vec![1; 300_000]).unwrap();
    room.ok(["umount", "mnt"]);
    for instead in ["nothing", "a file", "a link"] {
        fs::remove_dir_all(room.at("pool/quarantine")).unwrap();
        match instead {
            "a file" => fs::write(room.at("pool/quarantine"), "x").unwrap(),
            "a link" => symlink("/tmp", room.at("pool/quarantine")).unwrap(),
            _ => {}
        }
        fs::write(room.at("pool/junk"), "x").unwrap();
        for depth in ["--data", "--json"] {
            let output = room.run(["check", depth, "pool"]);
            assert_eq!(output.status.code(), Some(4), "{instead}: {}", said(&output));
            assert!(said(&output).contains("quarantine") && said(&output).contains("junk"), "{}", said(&output));
        }
        let repaired = room.run(["check", "--repair", "pool"]);
        assert_eq!(repaired.status.code(), Some(1), "{instead}: {}", said(&repaired));
        assert!(said(&repaired).contains("made the directory quarantine again"), "{}", said(&repaired));
        assert_eq!(said(&repaired).contains("moved what stood there"), instead != "nothing", "{}", said(&repaired));
        assert!(!room.at("pool/junk").exists());
        assert_eq!(room.run(["check", "--data", "pool"]).status.code(), Some(0));
    }
    // A server that has it in use looks at the rest, too.
    room.mount("pool", "mnt");
    fs::remove_dir_all(room.at("pool/quarantine")).unwrap();
    let output = room.run(["check", "mnt"]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("quarantine"), "{}", said(&output));
}

#[test]
fn a_segment_of_another_user_keeps_nothing_else_from_being_repaired() {
    needs_mount!();
    if !is_root() {
        return skip("cli::a_segment_of_another_user_keeps_nothing_else_from_being_repaired", "only root gives away");
    }
    let room = Room::mounted();
    for (name, size) in [("theirs", 300_000), ("gone", 400_000)] {
        fs::write(room.at("mnt").join(name), vec![1; size]).unwrap();
    }
    room.ok(["umount", "mnt"]);
    let (theirs, gone) = (segment_of_size(&room, 300_000), segment_of_size(&room, 400_000));
    chown(&theirs, Some(1000), None).unwrap();
    fs::remove_file(gone).unwrap();
    fs::write(room.at("pool/junk"), "x").unwrap();
    for path in ["theirs", "gone"] {
        let output = room.run(["verify", &format!("pool:/{path}")]);
        assert_eq!(output.status.code(), Some(4), "{}", said(&output));
        assert!(said(&output).contains("its bytes are not there: its segment "), "{}", said(&output));
    }
    for _ in 0..2 {
        let repaired = room.run(["check", "--repair", "pool"]);
        assert_eq!(repaired.status.code(), Some(4), "{}", said(&repaired));
        assert!(said(&repaired).contains("belongs to user 1000"), "{}", said(&repaired));
        assert!(!said(&repaired).contains("File exists"), "{}", said(&repaired));
    }
    assert!(!room.at("pool/junk").exists());
    assert_eq!(fs::metadata(&theirs).unwrap().size(), 300_000);
    // What it says of the file that is left, a server says, too.
    room.mount("pool", "mnt");
    assert_eq!(fs::read(room.at("mnt/gone")).unwrap(), b"");
    let output = room.run(["verify", "mnt/theirs"]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("its bytes are damaged or not there"), "{}", said(&output));
    room.ok(["umount", "mnt"]);
    chown(&theirs, Some(0), None).unwrap();
    room.run(["check", "--repair", "pool"]);
    assert_eq!(room.run(["check", "pool"]).status.code(), Some(0));
}
