//! `tensorfs tier move --json`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json};
use tensorfs_tests::{needs_mount, wait_until};

use super::{Room, said};

fn lines(text: &[u8]) -> Vec<Value> {
    let text = String::from_utf8(text.to_vec()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What was moved, what was not and why, and what is not there.
#[test]
fn each_file_that_is_moved_is_told() {
    needs_mount!();
    let room = Room::with_pool();
    room.ok(["tier", "add", "pool", "fast", "tier"]);
    room.mount("pool", "mnt");
    fs::create_dir(room.at("mnt/d")).unwrap();
    for name in [&b"d/one"[..], b"d/t\xff", b"open"] {
        fs::write(room.at("mnt").join(OsStr::from_bytes(name)), vec![7; 10_000]).unwrap();
    }
    let move_all = || {
        let open = File::options().append(true).open(room.at("mnt/open")).unwrap();
        let output = room.run(["tier", "move", "--json", "mnt/d", "mnt/open", "mnt/missing", "fast"]);
        drop(open);
        output
    };
    let mut output = move_all();
    wait_until("nobody has the others open", || {
        output = move_all();
        lines(&output.stdout).iter().filter(|line| line["moved"] == true).count() == 2
    });
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let mut told = lines(&output.stdout);
    told.sort_by_key(|line| line["path"].to_string());
    assert_eq!(told[0], json!({"path": "mnt/d/one", "tier": "fast", "moved": true}));
    let bytes = b"mnt/d/t\xff".to_vec();
    assert_eq!(told[1], json!({"path": "mnt/d/t\u{fffd}", "path_bytes": bytes, "tier": "fast", "moved": true}));
    assert_eq!((&told[2]["path"], &told[2]["moved"], told.len()), (&"mnt/open".into(), &false.into(), 3));
    assert!(told[2]["why"].as_str().unwrap().contains("open"), "{told:?}");
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("mnt/missing: ") && complaint.lines().count() == 1, "{complaint}");
    // In a pool that is not mounted, and what cannot be.
    room.ok(["umount", "mnt"]);
    let one = lines(room.ok(["tier", "move", "--json", "pool:/open", "fast"]).as_bytes());
    assert_eq!(one, [json!({"path": "pool:/open", "tier": "fast", "moved": true})]);
    let output = room.run(["tier", "move", "--json", "pool:/open", "none"]);
    assert_ne!(output.status.code(), Some(0), "{}", said(&output));
}
