//! `tensorfs health`: what a probe asks.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use tensorfs_tests::{Mounted, Pattern, needs_mount, skip, wait_for_end, wait_until};

use super::{Room, kill, said};

/// The exit status, and what is said.
fn health(room: &Room, arguments: &[&str]) -> (Option<i32>, String) {
    let output = room.run([&["health"], arguments].concat());
    assert!(output.stderr.is_empty(), "{}", said(&output));
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_mount_that_serves_is_healthy() {
    needs_mount!();
    let room = Room::mounted();
    assert_eq!(health(&room, &["mnt"]), (Some(0), "mnt: serves\n".into()));
    assert_eq!(health(&room, &["pool"]), (Some(0), "pool: serves\n".into()));
    let (code, json) = health(&room, &["--json", "mnt"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &json["health"], &json["problems"]), (Some(0), &"serves".into(), &Value::Array(vec![])));
}

#[test]
fn what_does_not_serve_says_why() {
    needs_mount!();
    let room = Room::with_pool();
    for target in ["mnt", "pool", "none"] {
        let (code, line) = health(&room, &[target]);
        assert!(code == Some(2) && line.lines().count() == 1 && line.contains(target), "{line}");
    }
    room.mount("pool", "mnt");
    let server = room.pid("pool");
    kill(server, libc::SIGKILL);
    wait_for_end(server);
    for target in ["mnt", "pool"] {
        let (code, line) = health(&room, &[target]);
        assert!(code == Some(2) && line.contains("the server of") && line.contains("mount it again"), "{line}");
    }
    // What is told of the pool is no success either.
    let info = room.run(["info", "--json", "mnt"]);
    assert_eq!(info.status.code(), Some(1), "{}", said(&info));
    assert_eq!(serde_json::from_slice::<Value>(&info.stdout).unwrap()["state"], "unsafe shutdown");
    assert!(String::from_utf8_lossy(&info.stderr).contains("mount it again"));
    room.mount("pool", "mnt");
    assert_eq!(health(&room, &["mnt"]).0, Some(0));
    assert_eq!(room.run(["info", "mnt"]).status.code(), Some(0));
}

/// The kernel lets nobody go who waits for a server that hangs.
#[test]
fn a_server_that_hangs_does_not_hang_the_probe() {
    needs_mount!();
    let room = Room::mounted();
    let server = room.pid("pool");
    kill(server, libc::SIGSTOP);
    let begun = Instant::now();
    let said = health(&room, &["--timeout", "0.5", "mnt"]);
    let took = begun.elapsed();
    kill(server, libc::SIGCONT);
    assert!(said.0 == Some(2) && said.1.contains("did not answer within 0.5 s"), "{said:?}");
    assert!(took < Duration::from_secs(30), "it waits for as long as it was told, and no longer: {took:?}");
    assert_eq!(health(&room, &["--timeout", "60", "mnt"]).0, Some(0));
}

/// Nothing is asked of a mount whose server is seen to have it (Linux 6.18 and newer).
#[test]
fn a_server_that_hangs_does_not_hang_mount_and_umount() {
    needs_mount!();
    let room = Room::mounted();
    let server = room.pid("pool");
    let shown = fs::read_dir(format!("/proc/{server}/fdinfo")).unwrap();
    let tells = |path| fs::read_to_string(path).is_ok_and(|text| text.contains("fuse_connection:"));
    if !shown.flatten().any(|one| tells(one.path())) {
        return skip("cli::a_server_that_hangs_does_not_hang_mount_and_umount", "the kernel does not tell of servers");
    }
    room.ok(["create", "another"]);
    fs::create_dir(room.at("elsewhere")).unwrap();
    // What is cached of attributes is not told any more.
    std::thread::sleep(Duration::from_millis(1500));
    kill(server, libc::SIGSTOP);
    let words = [&["mount", "pool", "mnt"][..], &["mount", "pool", "elsewhere"], &["mount", "another", "mnt"]];
    let of: Vec<_> = words.iter().map(|words| room.run(*words)).collect();
    let left = room.run(["umount", "--lazy", "mnt"]);
    kill(server, libc::SIGCONT);
    for output in of {
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && complaint.contains(&format!("process {server}")), "{complaint}");
    }
    assert!(left.status.success(), "{}", said(&left));
    wait_for_end(server);
}

#[test]
fn what_is_wrong_with_a_mount_that_serves_is_told() {
    needs_mount!();
    let room = Room::with_pool();
    room.ok(["resize", "pool", "64M"]);
    room.mount("pool", "mnt");
    fs::write(room.at("mnt/large"), Pattern(1).bytes(0, 57 << 20)).unwrap();
    room.ok(["sync", "mnt"]);
    let (code, line) = health(&room, &["mnt"]);
    assert!(code == Some(1) && line.starts_with("mnt: serves, but it is nearly full: "), "{line}");
    fs::write(room.at("mnt/large"), "").unwrap();
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
    room.mount("pool", "mnt");
    assert_eq!(health(&room, &["mnt"]).0, Some(0), "nobody has looked");
    assert_eq!(room.run(["scrub", "mnt"]).status.code(), Some(4));
    let (code, json) = health(&room, &["--json", "mnt"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &json["health"]), (Some(1), &"degraded".into()));
    assert!(json["problems"][0].as_str().unwrap().contains("scrubbing found damage"), "{json}");
}

/// What looks at a server that hangs ends in time, and tells of the others.
#[test]
fn a_server_that_hangs_does_not_hang_metrics() {
    needs_mount!();
    let room = Room::mounted();
    room.ok(["create", "pool2"]);
    room.mount("pool2", "other");
    let server = room.pid("pool");
    kill(server, libc::SIGSTOP);
    let begun = Instant::now();
    let output = room.run(["metrics", "--timeout", "0.5", "mnt", "other"]);
    let took = begun.elapsed();
    kill(server, libc::SIGCONT);
    let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
    assert!(complaint.contains("mnt: the server did not answer within 0.5 s"), "{complaint}");
    assert!(took < Duration::from_secs(30), "{took:?}");
    let up = |name: &str| said.lines().filter(|line| line.starts_with("tensorfs_up{") && line.ends_with(name)).count();
    assert!(up(" 0") + up(" 1") == 2 && up(" 0") >= 1, "{said}");
}

/// What the other filesystem has hid it, and who wrote got ENOSPC.
#[test]
fn one_of_two_filesystems_that_is_nearly_full_is_told() {
    needs_mount!();
    let room = Room::with_pool();
    fs::create_dir(room.at("disk")).unwrap();
    let _disk = match Mounted::tmpfs(&room.at("disk"), Some(64)) {
        Ok(disk) => disk,
        Err(why) => return skip("cli::one_of_two_filesystems_that_is_nearly_full_is_told", &why),
    };
    room.ok(["tier", "add", "pool", "t", "disk/tier"]);
    room.mount("pool", "mnt");
    fs::write(room.at("mnt/f"), vec![1; 62 << 20]).unwrap();
    wait_until("nobody has it open", || room.run(["tier", "move", "mnt/f", "t"]).status.success());
    let (code, text) = health(&room, &["mnt"]);
    assert_eq!(code, Some(1));
    assert!(
        text.contains("mnt: serves, but the filesystem of tier t is nearly full: ") && text.contains("64.0 MiB"),
        "{text}"
    );
    // Where the pool may not take so much, that is not what ends it.
    let limit = room.info("mnt")["used"].as_u64().unwrap() + (1 << 20);
    room.ok(["resize", "mnt", &limit.to_string()]);
    let (_, text) = health(&room, &["mnt"]);
    assert!(!text.contains("tier t") && text.contains("it is nearly full"), "{text}");
}
