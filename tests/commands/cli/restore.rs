//! `tensorfs restore`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use tensorfs_tests::{child, needs_mount, wait_until};

use super::Room;

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
        wait_until("quarantined", || room.info("mnt")["quarantine"].as_array().is_some_and(|list| !list.is_empty()));
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
    wait_until("quarantined", || room.info("mnt")["quarantine"].as_array().is_some_and(|list| !list.is_empty()));
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
