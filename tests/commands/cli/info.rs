//! `tensorfs info` and `tensorfs sync`.

use std::fs;

use serde_json::Value;
use tensorfs_tests::needs_mount;

use super::Room;

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
fn sync_by_both_ends() {
    needs_mount!();
    let room = Room::mounted();
    fs::create_dir(room.at("mnt/d")).unwrap();
    assert_eq!(room.ok(["sync", "mnt"]), "");
    assert_eq!(room.ok(["sync", "pool"]), "");
    let line = room.fails(["sync", "mnt/d"]);
    assert!(line.contains("inside a mount") && line.ends_with(&room.at("mnt").display().to_string()), "{line}");
}
