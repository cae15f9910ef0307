//! Names that are no text, as N1 allows them: commands reach the file itself, and no other.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tensorfs_tests::{needs_mount, wait_until};

use super::Room;

const NAME: &[u8] = b"m\xff\xfe.pt";

fn name() -> &'static OsStr {
    OsStr::from_bytes(NAME)
}

/// The path in a line of JSON.
fn path_in(line: &Value) -> PathBuf {
    let bytes = line["path_bytes"].as_array().map(|all| all.iter().map(|byte| byte.as_u64().unwrap() as u8).collect());
    bytes.map_or_else(|| PathBuf::from(line["path"].as_str().unwrap()), |bytes| OsString::from_vec(bytes).into())
}

/// Kills who replaces the file, and waits until the version before is in quarantine. What that is called.
#[track_caller]
fn killed_replacer(room: &Room, path: &Path) -> Value {
    fs::write(path, "old").unwrap();
    let ended =
        Command::new("bash").args(["-c", "exec 3>\"$1\"; printf new >&3; kill -9 $$", "bash"]).arg(path).status();
    assert_eq!(ended.unwrap().signal(), Some(libc::SIGKILL));
    wait_until("quarantined", || room.info("mnt")["quarantine"].as_array().is_some_and(|list| !list.is_empty()));
    room.info("mnt")["quarantine"][0].clone()
}

/// Proves N1, R4.
#[test]
fn a_version_comes_back_to_a_name_that_is_no_text() {
    needs_mount!();
    let room = Room::mounted();
    let dir = room.at("mnt").join(OsStr::from_bytes(b"q\xfe"));
    fs::create_dir(&dir).unwrap();
    let path = dir.join(name());
    let entry = killed_replacer(&room, &path);
    assert_eq!(path_in(&entry), Path::new("/").join(path.strip_prefix(room.at("mnt")).unwrap()), "{entry}");
    room.ok(["restore", "mnt", entry["name"].as_str().unwrap()]);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    let names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [name()]);
    assert!(room.ok(["restore", "mnt"]).contains("nothing in quarantine"));
}

/// What an earlier program has noted has other characters in their place.
#[test]
fn a_version_whose_name_was_not_noted_stays_in_quarantine() {
    needs_mount!();
    let room = Room::mounted();
    let path = room.at("mnt").join(name());
    let entry = killed_replacer(&room, &path);
    let name = entry["name"].as_str().unwrap();
    let note = room.at("pool/quarantine").join(format!("{name}.json"));
    let mut noted: Value = serde_json::from_slice(&fs::read(&note).unwrap()).unwrap();
    noted.as_object_mut().unwrap().remove("path_bytes");
    fs::write(&note, noted.to_string()).unwrap();
    assert!(room.fails(["restore", "mnt", name]).contains("--to PATH"));
    assert_eq!(fs::read_dir(room.at("mnt")).unwrap().count(), 1);
    room.ok(["restore".as_ref(), "mnt".as_ref(), name.as_ref(), "--to".as_ref(), path.as_os_str()]);
    assert_eq!(fs::read(&path).unwrap(), b"old");
}

/// Proves N1, E10, E11.
#[test]
fn a_file_whose_name_is_no_text_is_mended_and_fetched() {
    needs_mount!();
    let room = Room::mounted();
    let path = room.at("mnt").join(name());
    let bytes: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&path, &bytes).unwrap();
    room.ok(["seal".as_ref(), path.as_os_str()]);
    room.ok(["sync", "mnt"]);
    let url = format!("file://{}", room.at("remote").display());
    room.ok(["remote", "set", "pool", &url]);
    room.ok(["remote", "carry", "pool"]);
    let segments = || {
        let shards = fs::read_dir(room.at("pool/segments")).unwrap();
        let all = shards.flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap());
        all.map(|entry| entry.unwrap().path()).filter(|path| fs::read(path).unwrap() == bytes)
    };
    let flip = || {
        wait_until("what was mended is removed", || segments().count() == 1);
        crate::verify::flip(&segments().next().unwrap(), 70_000);
    };
    flip();
    room.ok(["verify".as_ref(), "--mend".as_ref(), path.as_os_str()]);
    assert!(fs::read(&path).unwrap() == bytes);
    flip();
    let said: Value = serde_json::from_slice(&room.run(["scrub", "--json", "mnt"]).stdout).unwrap();
    assert_eq!(path_in(&said["findings"][0]), Path::new("/").join(name()), "{said}");
    room.ok(["scrub", "--mend", "mnt"]);
    assert!(fs::read(&path).unwrap() == bytes);
    fs::remove_file(&path).unwrap();
    room.ok(["remote".as_ref(), "get".as_ref(), path.as_os_str(), "--to".as_ref(), "back".as_ref()]);
    assert!(fs::read(room.at("back")).unwrap() == bytes);
    let inside = [OsStr::new("remote"), "get".as_ref(), url.as_ref(), name(), "--to".as_ref(), "again".as_ref()];
    room.ok(inside);
    assert!(fs::read(room.at("again")).unwrap() == bytes);
}

/// Proves N1, T13.
#[test]
fn paths_that_are_no_text_are_told_as_they_are() {
    needs_mount!();
    let room = Room::mounted();
    let path = room.at("mnt").join(OsStr::from_bytes(b"\xfe.safetensors"));
    crate::verify::safetensors(&path, &[("w", b"bytes")]);
    room.ok(["seal", "mnt"]);
    let shown = Path::new("mnt").join(path.file_name().unwrap());
    assert_eq!(room.run(["latest", "mnt"]).stdout, [shown.as_os_str().as_bytes(), b"\n"].concat());
    for command in ["latest", "ls", "verify", "tensors", "records"] {
        let at = if command == "records" { shown.as_os_str() } else { OsStr::new("mnt") };
        let said = room.ok([OsStr::new(command), OsStr::new("--json"), at]);
        let first: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
        assert_eq!(path_in(&first), shown, "{command}: {said}");
        assert_eq!(first["path"], "mnt/\u{fffd}.safetensors", "{command}");
    }
}
