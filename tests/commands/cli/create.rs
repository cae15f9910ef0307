//! `tensorfs create`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;
use tensorfs_tests::{Mounted, needs_mount, run, skip};

use super::{LOG, Room, busy, failure, said};

/// The numbers of errors mean nothing to a person.
#[test]
fn no_message_has_the_number_of_an_error() {
    let room = Room::with_pool();
    let missing = "/proc/not-there/pool";
    for words in [
        &["create", missing][..],
        &["create", "/proc/x"],
        &["info", missing],
        &["check", missing],
        &["check", "/proc/self"],
        &["mount", missing, "mnt"],
        &["mount", "--create", missing, "mnt"],
        &["mount", "pool", "/proc/x"],
        &["umount", missing],
        &["sync", missing],
        &["restore", missing],
        &["scrub", missing],
        &["resize", missing, "1G"],
        &["tier", "list", missing],
        &["tier", "add", "pool", "t", "/proc/x"],
        &["tier", "map", "pool", missing],
        &["tier", "move", missing, "pm"],
        &["ls", missing],
        &["verify", missing],
        &["seal", missing],
        &["tensors", missing],
        &["cat", missing, "x"],
        &["stat", missing, "x"],
        &["diff", missing, missing],
        &["top", missing],
        &["trace", missing],
        &["records", missing],
        &["latest", missing],
        &["rollback", missing],
        &["quota", missing],
        &["quota", "set", missing, "1G"],
        &["alarm", "--run", missing, "mnt"],
        &["upgrade", missing],
        &["health", missing],
        &["metrics", missing],
        &["manual", missing],
        &["remote", "status", missing],
        &["remote", "carry", missing],
        &["remote", "wait", missing],
        &["remote", "get", missing],
        &["remote", "restore", "file:///proc/not-there/x", missing],
    ] {
        let output = room.run(words);
        let text = said(&output);
        assert_ne!(output.status.code(), Some(0), "{words:?}: {text}");
        assert!(!text.contains("os error"), "{words:?}: {text}");
        assert!(text.contains(words[1]) || text.contains("/proc"), "{words:?} names no path: {text}");
    }
}

/// What cannot be done with a file is said of the file.
#[test]
fn a_file_that_is_on_no_mount_is_named_itself() {
    let room = Room::with_pool();
    fs::write(room.at("file"), "x").unwrap();
    for words in [&["seal", "file"][..], &["tier", "move", "file", "pm"]] {
        let text = said(&room.run(words));
        assert!(text.contains("file: not on a tensorfs mount"), "{words:?}: {text}");
    }
    let refused = room.fails(["mount", "pool", "mnt", "-o", "layout=\u{7}"]);
    assert!(refused.contains("must be a plain name"), "{refused}");
}

#[test]
fn create_says_what_it_made() {
    let room = Room::new();
    let said = room.ok(["create", "a/b/pool", "--size", "64MiB", "--layout", "mine"]);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("layout \"mine\"") && said.contains("limit 64.0 MiB"), "{said}");
    let info = room.info("a/b/pool");
    assert_eq!(info["layout"], "mine");
    assert_eq!(info["limit"], 64 << 20);
    assert_eq!(info["state"], "clean");
    assert_eq!(info["pid"], Value::Null);
    assert!(room.fails(["create", "small", "--size", "1M"]).contains("smallest size"), "too small");
}

#[test]
fn create_never_overwrites() {
    let room = Room::with_pool();
    let uuid = room.info("pool")["uuid"].clone();
    let refused = room.fails(["create", "pool"]);
    assert!(refused.starts_with(&format!("{}: there is a pool already", room.at("pool").display())), "{refused}");
    assert!(refused.contains("--force"), "{refused}");
    assert_eq!(room.info("pool")["uuid"], uuid);

    let forced = room.run(["create", "--force", "pool"]);
    assert_eq!(forced.status.code(), Some(0), "{}", said(&forced));
    let warning = String::from_utf8(forced.stderr).unwrap();
    assert!(warning.contains("destroying") && warning.contains("0 files"), "{warning}");
    assert_ne!(room.info("pool")["uuid"], uuid);

    for foreign in ["notes.txt", LOG, "lock"] {
        let dir = room.at(&format!("foreign-{foreign}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(foreign), "mine").unwrap();
        fs::write(dir.join("thesis.tex"), "mine").unwrap();
        for force in [&[][..], &["--force"]] {
            let refused = failure(&run(room.command().arg("create").args(force).arg(&dir)));
            assert!(refused.starts_with(&dir.display().to_string()), "{refused}");
        }
        assert_eq!(fs::read(dir.join(foreign)).unwrap(), b"mine");
    }
    fs::write(room.at("file"), "mine").unwrap();
    room.fails(["create", "file", "--force"]);
    assert_eq!(fs::read(room.at("file")).unwrap(), b"mine");
}

/// What is left when making a pool was interrupted is in nobody's way. What could be somebody's is left alone.
#[test]
fn create_makes_what_was_left_half_made() {
    let room = Room::new();
    for (name, parts) in
        [("a", &["lock"][..]), ("b", &["lock", "segments/"]), ("c", &["lock", "segments/", "quarantine/"])]
    {
        let pool = room.at(name);
        fs::create_dir(&pool).unwrap();
        for part in parts {
            match part.strip_suffix('/') {
                Some(directory) => fs::create_dir(pool.join(directory)).unwrap(),
                None => drop(File::create(pool.join(part)).unwrap()),
            }
        }
        if name == "c" {
            File::create(pool.join("log")).unwrap().set_len(3 << 20).unwrap();
        }
        room.ok(["create", name]);
        room.ok(["check", name]);
        // A pool, and so left alone.
        assert!(room.fails(["create", name]).contains("there is a pool already"));
    }
    // What an interrupted repair leaves beside a pool is the pool's, too.
    fs::write(room.at("a/log.new"), "half of a log").unwrap();
    assert!(room.fails(["create", "a"]).contains("there is a pool already"));
    room.ok(["create", "--force", "a"]);
    assert!(!room.at("a/log.new").exists());
    let pool = room.at("d");
    fs::create_dir_all(pool.join("segments/00")).unwrap();
    fs::write(pool.join("segments/00/0000000000000003"), "bytes").unwrap();
    assert!(room.fails(["create", "d"]).contains("there is a pool already"));
    assert_eq!(fs::read(pool.join("segments/00/0000000000000003")).unwrap(), b"bytes");
}

#[test]
fn create_does_not_destroy_a_mounted_pool() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let refused = room.fails(["create", "--force", "pool"]);
    assert_eq!(refused, busy(&room));
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"x");
}

#[test]
fn layout_name_differs() {
    needs_mount!();
    let room = Room::new();
    room.ok(["create", "pool", "--layout", "mine"]);
    let expected = format!("{}: layout name is \"mine\", but \"yours\" was asked for", room.at("pool").display());
    assert_eq!(room.fails(["mount", "pool", "mnt", "--layout", "yours", "--log", "server.log"]), expected);
    assert_eq!(room.fails(["mount", "-f", "pool", "mnt", "-o", "layout=yours"]), expected);
    room.ok(["mount", "pool", "mnt", "--layout", "mine", "--log", "server.log"]);
}

/// Changes both superblocks, and completes their checksums.
fn patch_superblocks(log: &Path, offset: usize, bytes: &[u8]) {
    let file = File::options().read(true).write(true).open(log).unwrap();
    for place in [0, 1 << 20] {
        let mut superblock = [0; 512];
        file.read_exact_at(&mut superblock, place).unwrap();
        superblock[offset..offset + bytes.len()].copy_from_slice(bytes);
        let crc = tensorfs_formats::crc32c(&superblock[..508]);
        superblock[508..].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&superblock, place).unwrap();
    }
}

#[test]
fn format_newer_than_the_program() {
    needs_mount!();
    // Where the superblock has its version, and its masks of incompatible and of read-only compatible features.
    const VERSION: usize = 8;
    const RO_COMPAT: usize = 24;
    const INCOMPAT: usize = 32;

    let room = Room::with_pool();
    let (pool, log) = (room.at("pool"), room.at("pool").join(LOG));
    let whole = fs::read(&log).unwrap();
    patch_superblocks(&log, VERSION, &2u32.to_le_bytes());
    let version = format!("{}: needs a newer tensorfs (format version 2, this program knows 1)", pool.display());
    for command in [&["mount", "pool", "mnt"][..], &["info", "pool"]] {
        assert_eq!(room.fails(command), version);
    }
    fs::write(&log, &whole).unwrap();
    patch_superblocks(&log, INCOMPAT, &(1u64 << 40).to_le_bytes());
    let feature = format!("{}: needs a newer tensorfs (unknown incompatible features 0x10000000000)", pool.display());
    assert_eq!(room.fails(["mount", "pool", "mnt"]), feature);
    assert!(!room.is_mounted("mnt"));

    // A feature that only forbids writing: mounted, and read-only.
    fs::write(&log, &whole).unwrap();
    patch_superblocks(&log, RO_COMPAT, &1u64.to_le_bytes());
    let before = fs::read(&log).unwrap();
    room.mount("pool", "mnt");
    let refused = fs::write(room.at("mnt/f"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read_dir(room.at("mnt")).unwrap().count(), 0);
    assert_eq!(room.info("mnt")["read_only"], "it uses features that this tensorfs can only read");
    room.ok(["umount", "mnt"]);
    assert!(fs::read(&log).unwrap() == before, "a pool that may only be read is not written to");
}

#[test]
fn a_limit_that_the_host_cannot_hold_is_said() {
    let room = Room::new();
    let created = room.run(["create", "pool", "--size", "900T"]);
    assert!(created.status.success());
    let said = said(&created);
    assert!(said.contains("pool: the filesystem it is on has only "), "{said}");
    assert_eq!(room.info("pool")["limit"], 900_u64 << 40);
}

/// A limit that is more than there is was taken for room: what nothing was in was nearly full, and `df` called used
/// what others have.
#[test]
fn a_limit_that_the_host_cannot_hold_is_nowhere_taken_for_room() {
    needs_mount!();
    let name = "cli::a_limit_that_the_host_cannot_hold_is_nowhere_taken_for_room";
    let room = Room::new();
    fs::create_dir(room.at("disk")).unwrap();
    let _disk = match Mounted::tmpfs(&room.at("disk"), Some(128)) {
        Ok(disk) => disk,
        Err(why) => return skip(name, &why),
    };
    fs::write(room.at("disk/others"), vec![1; 40 << 20]).unwrap();
    let told = |output: &std::process::Output| {
        assert!(output.status.success(), "{}", said(output));
        let text = said(output);
        assert!(
            text.contains("disk/pool: the filesystem it is on has only 128.0 MiB of a limit of 900.0 TiB"),
            "{text}"
        );
    };
    told(&room.run(["mount", "--create", "--size", "900T", "disk/pool", "mnt", "--log", "server.log"]));
    told(&room.run(["resize", "mnt", "900T"]));
    told(&room.run(["resize", "disk/pool", "900T"]));
    fs::write(room.at("mnt/f"), vec![1; 10 << 20]).unwrap();
    room.ok(["sync", "mnt"]);
    let info = room.info("mnt");
    let of = |field: &str| info[field].as_u64().unwrap();
    assert_eq!((of("limit"), of("capacity")), (900 << 40, 128 << 20));
    let host = nix::sys::statvfs::statvfs(&room.at("disk")).unwrap();
    assert_eq!(of("available"), host.blocks_available() * host.fragment_size());
    let df = nix::sys::statvfs::statvfs(&room.at("mnt")).unwrap();
    assert_eq!((df.blocks() - df.blocks_free()) * df.fragment_size(), of("used"), "as `df` has it");
    assert_eq!(df.blocks_available() * df.fragment_size(), of("available"));
    assert_eq!(room.run(["health", "mnt"]).status.code(), Some(0));
    // Others fill it, which is told.
    fs::write(room.at("disk/others"), vec![1; (128 << 20) - of("used") as usize - (2 << 20)]).unwrap();
    let health = room.run(["health", "mnt"]);
    let text = said(&health);
    assert!(
        health.status.code() == Some(1) && text.contains("nearly full: ") && text.contains(" of 128.0 MiB"),
        "{text}"
    );
    fs::write(room.at("disk/others"), "").unwrap();
    room.ok(["umount", "mnt"]);
    assert_eq!(room.info("disk/pool")["capacity"], 128 << 20);
    told(&room.run(["resize", "disk/pool", "900T"]));
    let quiet = said(&room.run(["resize", "disk/pool", "100M"]));
    assert!(!quiet.contains("has only"), "{quiet}");
}

/// `size=` in a line of fstab was dropped without a word once the pool was there.
#[test]
fn what_a_mount_cannot_change_of_a_pool_that_is_there_is_said() {
    needs_mount!();
    let room = Room::new();
    room.ok(["create", "pool", "--size", "300M"]);
    let mount = |options: &str| {
        let mounted = room.run(["mount", "pool", "mnt", "--log", "server.log", "-o", options]);
        assert!(mounted.status.success(), "{}", said(&mounted));
        room.ok(["umount", "mnt"]);
        said(&mounted)
    };
    let complaint = mount("create,size=1G");
    assert!(complaint.contains("pool: it has a limit of 300.0 MiB, and size=1073741824 does not"), "{complaint}");
    let quiet = mount("create,size=300M");
    assert!(!quiet.contains("pool: it"), "{quiet}");
}
