//! Names that are no text, as N1 allows them: commands reach the file itself, and no other.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tensorfs_tests::{needs_mount, wait_until};

use super::{Room, kill};

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

/// What is mounted at a path that the room does not know how to read in the table of mounts.
struct At(PathBuf);

impl Drop for At {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

/// Pool, mount point, and files that have lost bytes, each of those that are the same as text: as a server tells it,
/// and of the closed pool.
///
/// Proves N1.
#[test]
fn info_tells_paths_that_are_no_text() {
    needs_mount!();
    let room = Room::new();
    let (pool, mnt) = (OsStr::from_bytes(b"p\xff"), OsStr::from_bytes(b"m\xfe"));
    let mounted = At(room.dir.path().join(mnt));
    fs::create_dir(&mounted.0).unwrap();
    let mount = || {
        room.ok([OsStr::new("mount"), "--create".as_ref(), pool, mnt, "--log".as_ref(), "server.log".as_ref()]);
    };
    let info =
        |of: &OsStr| -> Value { serde_json::from_str(&room.ok([OsStr::new("info"), "--json".as_ref(), of])).unwrap() };
    let bytes_of = |path: &Path| serde_json::to_value(path.as_os_str().as_bytes()).unwrap();
    mount();
    let names = [&b"\xfe"[..], b"\xff", b"text"].map(OsStr::from_bytes);
    for (n, name) in names.into_iter().enumerate() {
        fs::write(mounted.0.join(name), vec![n as u8 + 1; 100_000]).unwrap();
    }
    room.ok([OsStr::new("sync"), mnt]);
    let said = info(mnt);
    assert_eq!(said["pool_bytes"], bytes_of(&room.dir.path().join(pool)), "{said}");
    assert_eq!((&said["damaged_files"], &said["damaged_files_bytes"]), (&json!([]), &json!([])));
    assert_eq!((&said["open_segments"], &said["open_segments_bytes"]), (&json!([]), &json!([])));
    // The host loses the ends of all three while nobody serves.
    kill(said["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
    let shards = fs::read_dir(room.dir.path().join(pool).join("segments")).unwrap();
    for segment in shards.flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap()) {
        let segment = File::options().write(true).open(segment.unwrap().path()).unwrap();
        if segment.metadata().unwrap().len() == 100_000 {
            segment.set_len(60_000).unwrap();
        }
    }
    mount();
    for (of, is_mounted) in [(mnt, true), (pool, true), (pool, false)] {
        if !is_mounted {
            room.ok([OsStr::new("umount"), mnt]);
        }
        let said = info(of);
        let place = if is_mounted { bytes_of(&mounted.0) } else { Value::Null };
        assert_eq!((&said["mountpoint_bytes"], said["mountpoint"].is_string()), (&place, is_mounted), "{said}");
        let told =
            said["damaged_files"].as_array().unwrap().iter().zip(said["damaged_files_bytes"].as_array().unwrap());
        let mut told: Vec<_> = told.map(|(text, bytes)| (text.as_str().unwrap(), bytes.clone())).collect();
        told.sort_by_key(|(_, bytes)| bytes.to_string());
        let lossy = "/\u{fffd}";
        assert_eq!(told, [(lossy, json!([47, 0xfe])), (lossy, json!([47, 0xff])), ("/text", Value::Null)], "{said}");
    }
}
