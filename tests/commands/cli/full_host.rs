//! A mount on a host without space.

use std::fs::{self, File};
use std::process::Command;

use tensorfs_tests::{is_root, needs_mount, skip};

use super::Room;

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
