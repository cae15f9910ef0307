//! `tensorfs info` and `tensorfs sync`.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tensorfs_tests::{Mounted, needs_mount, run_ok, skip, wait_for_end, wait_until};

use super::{Room, kill};

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
        info["longest_commit_seconds"] = Value::Null;
        // Others use the disk, too.
        info["tiers"][0]["free"] = Value::Null;
        info["available"] = Value::Null;
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
    assert_eq!(
        room.ok(["status", "--json", "mnt"]).lines().count(),
        room.ok(["info", "--json", "mnt"]).lines().count()
    );
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
fn sync_by_both_ends() {
    needs_mount!();
    let room = Room::mounted();
    fs::create_dir(room.at("mnt/d")).unwrap();
    assert_eq!(room.ok(["sync", "mnt"]), "");
    assert_eq!(room.ok(["sync", "pool"]), "");
    let line = room.fails(["sync", "mnt/d"]);
    assert!(line.contains("inside a mount") && line.ends_with(&room.at("mnt").display().to_string()), "{line}");
}

/// It counted what had been deleted, until the pool was opened again: 58 MB in 2 files where `ls` showed one.
#[test]
fn info_of_a_closed_pool_does_not_count_what_was_deleted() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/kept"), vec![1; 100_000]).unwrap();
    fs::create_dir(room.at("mnt/gone")).unwrap();
    for name in ["a", "b"] {
        fs::write(room.at("mnt/gone").join(name), vec![1; 1 << 20]).unwrap();
    }
    room.ok(["sync", "mnt"]);
    fs::remove_dir_all(room.at("mnt/gone")).unwrap();
    let mounted = room.info("mnt");
    room.ok(["umount", "mnt"]);
    let closed = room.info("pool");
    for field in ["files", "directories", "used"] {
        assert_eq!(closed[field], mounted[field], "{field}");
    }
    assert_eq!((&closed["files"], &closed["directories"]), (&1.into(), &1.into()));
}

/// What a pool without a limit uses says nothing about when its host is full.
#[test]
fn info_says_what_may_still_be_written() {
    needs_mount!();
    let room = Room::mounted();
    let close = |a: u64, b: u64| a.abs_diff(b) < 1 << 30;
    let host = nix::sys::statvfs::statvfs(&room.at("pool")).unwrap();
    let free = host.blocks_available() * host.fragment_size();
    let available = |target: &str| room.info(target)["available"].as_u64().unwrap();
    assert!(close(available("mnt"), free), "{} of {free}", available("mnt"));
    room.ok(["resize", "mnt", "100M"]);
    fs::write(room.at("mnt/x"), vec![1; 20 << 20]).unwrap();
    room.ok(["sync", "mnt"]);
    let left = (70 << 20)..=(80 << 20);
    assert!(left.contains(&available("mnt")), "{}", available("mnt"));
    room.ok(["umount", "mnt"]);
    assert!(left.contains(&available("pool")), "{}", available("pool"));
}

/// The root has no name, and was taken for deleted once something had been changed about it.
#[test]
fn info_counts_the_root_whatever_was_changed_about_it() {
    needs_mount!();
    let room = Room::mounted();
    fs::create_dir(room.at("mnt/d")).unwrap();
    fs::set_permissions(room.at("mnt"), std::os::unix::fs::PermissionsExt::from_mode(0o750)).unwrap();
    assert_eq!(room.info("mnt")["directories"], 2);
}

#[test]
fn info_says_that_nothing_is_mounted_where_there_is_no_pool() {
    let room = Room::with_pool();
    fs::create_dir(room.at("empty")).unwrap();
    let said = room.fails(["info", "empty"]);
    assert!(said.contains("empty: not a tensorfs pool (no tensorfs is mounted here, and it has no"), "{said}");
}

/// The space was that of the pool's own filesystem, and what was used that of all tiers.
#[test]
fn info_of_a_pool_with_tiers_is_the_same_mounted_and_closed() {
    needs_mount!();
    let room = Room::with_pool();
    let name = "cli::info_of_a_pool_with_tiers_is_the_same_mounted_and_closed";
    fs::create_dir(room.at("disk")).unwrap();
    let _disk = match Mounted::tmpfs(&room.at("disk"), Some(64)) {
        Ok(disk) => disk,
        Err(why) => return skip(name, &why),
    };
    let tier = room.at("disk/tier");
    room.ok(["tier", "add", "pool", "t", tier.to_str().unwrap()]);
    let of = |info: &Value, field: &str| info[field].as_u64().unwrap();
    for limit in ["none", "100M"] {
        room.ok(["resize", "pool", limit]);
        room.mount("pool", "mnt");
        let file = room.at("mnt/f");
        fs::write(&file, vec![1; 20 << 20]).unwrap();
        wait_until("nobody has it open", || room.run(["tier", "move", "mnt/f", "t"]).status.success());
        room.ok(["sync", "mnt"]);
        let mounted = room.info("mnt");
        // The log may grow meanwhile, and others use the disk; the tier is this test's alone.
        let same = |closed: &Value, why: &str| {
            let files = |info: &Value| of(info, "used") - of(info, "log_bytes");
            assert_eq!(files(&mounted), files(closed), "{limit}, {why}");
            assert_eq!(mounted["capacity"], closed["capacity"], "{limit}, {why}");
            assert!(of(closed, "used") >= 20 << 20 && of(closed, "used") <= of(closed, "capacity"), "{limit}, {why}");
            let (before, after) = [&mounted, closed].map(|info| of(info, "used") + of(info, "available")).into();
            let apart = if limit == "100M" { 0 } else { 4 << 30 };
            assert!(before.abs_diff(after) <= apart, "{limit}, {why}: {before} and {after}");
        };
        let held = File::open(&file).unwrap();
        room.ok(["umount", "--lazy", "mnt"]);
        let detached = room.info("pool");
        assert_eq!(detached["state"], "detached");
        same(&detached, "detached");
        let pid = detached["pid"].as_i64().unwrap() as i32;
        drop(held);
        wait_for_end(pid);
        let closed = room.info("pool");
        same(&closed, "closed");
        let blocks = |dir: &Path| run_ok(Command::new("du").args(["-s", "-B1"]).arg(dir));
        let du = |dir: &Path| blocks(dir).split('\t').next().unwrap().parse::<u64>().unwrap();
        let there = du(&room.at("pool")) + du(&tier);
        assert!(there.abs_diff(of(&closed, "used")) < 4 << 20, "{limit}: {there} on the host, {}", closed["used"]);
        room.mount("pool", "mnt");
        let pid = room.pid("mnt");
        kill(pid, libc::SIGKILL);
        wait_for_end(pid);
        let dead = room.info("pool");
        assert_eq!(dead["state"], "unsafe shutdown");
        same(&dead, "killed");
        room.mount("pool", "mnt");
        room.ok(["umount", "mnt"]);
    }
}
