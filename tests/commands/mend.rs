//! Damage that is mended: files get back the bytes that they were sealed with from their second copy.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::thread;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde_json::Value;
use tensorfs_fs::{Moving, Reply, Request};
use tensorfs_layout::Ino;
use tensorfs_tests::{Call, HostCalls, Mount, Pattern, Rule, Setup, is_root, on_mounts, run_ok};

use crate::verify::{flip, lines, report, safetensors, seal, segment};

on_mounts!(
    damaged_files_are_mended_with_their_second_copy,
    a_scrub_mends_what_it_finds,
    a_file_is_mended_with_an_encrypted_second_copy,
    bytes_that_were_not_sealed_mend_nothing,
    a_file_that_is_open_is_not_mended,
    a_file_whose_segment_is_gone_is_mended,
    a_file_that_recovery_found_damaged_is_mended,
    a_file_that_has_grown_since_it_was_carried_is_mended,
    a_file_whose_rest_is_lost_is_not_mended,
    a_file_whose_rest_cannot_be_read_now_keeps_it,
    nobody_changes_a_file_that_is_whole,
    nobody_mends_the_files_of_others,
    one_file_comes_back_from_the_remote,
);

const NOBODY: u32 = 65534;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Gives the pool a remote in a directory, and carries it there.
fn carry(mount: &Mount) {
    seal(mount, mount.path());
    mount.sync();
    let remote = mount.pool().with_file_name("remote");
    if !remote.exists() {
        let url = format!("file://{}", remote.display());
        mount.tensorfs_ok(["remote", "set", text(mount.pool()), &url]);
    }
    mount.tensorfs_ok(["remote", "carry", text(mount.pool())]);
}

/// What can be seen of a file but its access time, which reading it changes.
fn seen(path: &Path) -> (u64, u32, u64, u64, [i64; 4]) {
    let stat = fs::metadata(path).unwrap();
    let times = [stat.mtime(), stat.mtime_nsec(), stat.ctime(), stat.ctime_nsec()];
    (stat.ino(), stat.mode(), stat.nlink(), stat.size(), times)
}

fn mended(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|line| line["kind"] == "mended").map(|line| &line["path"]).collect()
}

/// Proves E11.
fn damaged_files_are_mended_with_their_second_copy(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let (large, small) = (Pattern(1).bytes(0, 3 << 20), Pattern(2).bytes(0, 700));
    let model = safetensors(&mount.at("model"), &[("a", &large), ("b", b"small")]);
    fs::write(mount.at("small"), &small).unwrap();
    fs::write(mount.at("whole"), Pattern(3).bytes(0, 100_000)).unwrap();
    fs::hard_link(mount.at("model"), mount.at("other-name")).unwrap();
    fs::set_permissions(mount.at("model"), fs::Permissions::from_mode(0o640)).unwrap();
    run_ok(Command::new("setfattr").args(["-n", "user.run", "-v", "7"]).arg(mount.at("model")));
    carry(&mount);
    let files = ["model", "small", "whole"].map(|name| mount.at(name));
    let before: Vec<_> = files.iter().map(|path| seen(path)).collect();
    let records = lines(&mount, &["records", "--json"], &files[0]).1;
    let damaged = segment(&mount, &model);
    [1 << 20, 2 << 20].iter().for_each(|at| flip(&damaged, *at));
    flip(&segment(&mount, &small), 3);
    // As the kernel has them, too.
    let seen_damaged = File::open(&files[0]).unwrap();
    posix_fadvise(&seen_damaged, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    assert!(fs::read(&files[0]).unwrap() != model);
    drop(seen_damaged);
    let root = mount.path().to_owned();
    assert_eq!(lines(&mount, &["verify", "--json"], &root).0, Some(4));
    // What is damaged is found under both of its names, and is whole when the second one is looked at.
    let (status, said) = lines(&mount, &["verify", "--mend", "--json"], &root);
    assert_eq!((status, mended(&said).len()), (Some(0), 2), "{said:?}");
    assert_eq!(lines(&mount, &["verify", "--json"], &root).0, Some(0));
    let read = |mount: &Mount| ["model", "small"].map(|name| fs::read(mount.at(name)).unwrap());
    assert!(read(&mount) == [model.clone(), small.clone()]);
    assert_eq!(files.iter().map(|path| seen(path)).collect::<Vec<_>>(), before);
    let crcs = |records: &[Value]| records.iter().map(|one| one["crc32c"].clone()).collect::<Vec<_>>();
    assert_eq!(crcs(&lines(&mount, &["records", "--json"], &files[0]).1), crcs(&records));
    let run = run_ok(Command::new("getfattr").args(["--only-values", "-n", "user.run"]).arg(&files[0]));
    assert_eq!(run, "7");
    assert_eq!(mount.info()["counters"]["mended"], 2);
    assert!(mount.log().contains("/small: mended"), "{}", mount.log());
    // It is durable when it is told.
    mount.power_loss();
    mount.mount();
    assert!(read(&mount) == [model, small]);
    assert_eq!(lines(&mount, &["verify", "--json"], &root).0, Some(0));
    mount.umount();
    mount.tensorfs_ok(["check", "--data", text(mount.pool())]);
    let names: Vec<_> = fs::read_dir(mount.pool().join("quarantine")).unwrap().collect();
    assert_eq!(names.len(), 0, "{names:?}");
}

/// Proves E11, E19.
fn a_file_is_mended_with_an_encrypted_second_copy(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let key = mount.pool().with_file_name("key");
    let url = format!("file://{}", mount.pool().with_file_name("remote").display());
    mount.tensorfs_ok(["remote", "key", text(&key)]);
    mount.tensorfs_ok(["remote", "set", text(mount.pool()), &url, "--key-file", text(&key)]);
    let bytes = Pattern(1).bytes(0, 2 << 20);
    let path = mount.at("f");
    fs::write(&path, &bytes).unwrap();
    carry(&mount);
    flip(&segment(&mount, &bytes), 70_000);
    let elsewhere = key.with_file_name("elsewhere");
    fs::rename(&key, &elsewhere).unwrap();
    let output = mount.tensorfs(["verify".as_ref(), "--mend".as_ref(), path.as_os_str()]);
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.code() == Some(4) && said.contains(text(&key)), "{said}");
    fs::rename(&elsewhere, &key).unwrap();
    let (status, said) = lines(&mount, &["verify", "--mend", "--json"], &path);
    assert_eq!((status, mended(&said).len()), (Some(0), 1), "{said:?}");
    assert!(fs::read(&path).unwrap() == bytes);
}

/// Proves C6, E11.
fn a_scrub_mends_what_it_finds(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let bytes = Pattern(1).bytes(0, 100_000);
    fs::write(mount.at("f"), &bytes).unwrap();
    carry(&mount);
    flip(&segment(&mount, &bytes), 70_000);
    let root = mount.path();
    assert_eq!(report(&mount, &["scrub", "--json"], root).0, Some(4));
    assert_eq!(mount.info()["damage_found"].as_array().unwrap().len(), 1);
    let (status, found) = report(&mount, &["scrub", "--mend", "--json"], root);
    assert_eq!((status, &found["actions"]), (Some(0), &serde_json::json!(["/f is mended"])), "{found}");
    assert_eq!(mount.info()["damage_found"], serde_json::json!([]));
    assert!(fs::read(mount.at("f")).unwrap() == bytes);
    let (status, found) = report(&mount, &["scrub", "--mend", "--json"], root);
    assert_eq!((status, &found["actions"]), (Some(0), &serde_json::json!([])), "{found}");
}

/// Proves E11.
fn bytes_that_were_not_sealed_mend_nothing(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let (old, new) = (Pattern(1).bytes(0, 100_000), Pattern(2).bytes(0, 100_000));
    fs::write(mount.at("f"), &old).unwrap();
    let verify = |mount: &Mount| {
        let output = mount.tensorfs(["verify", "--mend", text(&mount.at("f"))]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let file = mount.at("f");
    seal(&mount, &file);
    let damaged = segment(&mount, &old);
    flip(&damaged, 5);
    let (status, why) = verify(&mount);
    assert!(status == Some(4) && why.contains("it has no remote"), "{why}");
    flip(&damaged, 5);
    carry(&mount);
    // In its place, so that it is the same file.
    File::options().write(true).open(&file).unwrap().write_all_at(&new, 0).unwrap();
    seal(&mount, &file);
    let segment = segment(&mount, &new);
    flip(&segment, 5);
    let bytes = fs::read(&segment).unwrap();
    let (status, why) = verify(&mount);
    assert!(status == Some(4) && why.contains("/f: not mended") && why.contains("not those that were sealed"), "{why}");
    assert!(fs::read(&segment).unwrap() == bytes);
    assert_eq!(mount.info()["counters"]["mended"], 0);
    let left: Vec<_> = fs::read_dir(mount.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [OsStr::new("f")]);
}

/// Proves E11.
fn a_file_that_is_open_is_not_mended(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let bytes = Pattern(1).bytes(0, 100_000);
    fs::write(mount.at("f"), &bytes).unwrap();
    carry(&mount);
    flip(&segment(&mount, &bytes), 5);
    let open = File::open(mount.at("f")).unwrap();
    let output = mount.tensorfs(["verify", "--mend", text(mount.path())]);
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(4) && why.contains("/f: not mended: it is"), "{why}");
    drop(open);
    mount.tensorfs_ok(["verify", "--mend", text(mount.path())]);
    assert!(fs::read(mount.at("f")).unwrap() == bytes);
}

/// Proves E11.
fn a_file_whose_segment_is_gone_is_mended(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let bytes = Pattern(1).bytes(0, 100_000);
    fs::write(mount.at("f"), &bytes).unwrap();
    carry(&mount);
    let segment = segment(&mount, &bytes);
    mount.umount();
    fs::remove_file(segment).unwrap();
    mount.mount();
    assert_eq!(mount.tensorfs(["verify", text(mount.path())]).status.code(), Some(4));
    let (status, said) = lines(&mount, &["verify", "--mend", "--json"], mount.path());
    assert_eq!((status, mended(&said).len()), (Some(0), 1), "{said:?}");
    assert!(fs::read(mount.at("f")).unwrap() == bytes);
    mount.umount();
    mount.tensorfs_ok(["check", "--data", text(mount.pool())]);
}

/// Proves E11.
fn a_file_that_recovery_found_damaged_is_mended(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let (gone, short) = (Pattern(1).bytes(0, 100_000), Pattern(2).bytes(0, 200_000));
    fs::write(mount.at("gone"), &gone).unwrap();
    fs::write(mount.at("short"), &short).unwrap();
    carry(&mount);
    let segments = [segment(&mount, &gone), segment(&mount, &short)];
    mount.kill9();
    fs::remove_file(&segments[0]).unwrap();
    File::options().write(true).open(&segments[1]).unwrap().set_len(100).unwrap();
    mount.mount();
    assert_ne!(mount.tensorfs(["verify", text(mount.path())]).status.code(), Some(0));
    let (status, said) = lines(&mount, &["verify", "--mend", "--json"], mount.path());
    assert_eq!((status, mended(&said).len()), (Some(0), 2), "{said:?}");
    let files = lines(&mount, &["ls", "--json"], mount.path()).1;
    assert!(files.iter().all(|file| file["state"] == "sealed"), "{files:?}");
    assert!(fs::read(mount.at("gone")).unwrap() == gone && fs::read(mount.at("short")).unwrap() == short);
    mount.umount();
    mount.tensorfs_ok(["check", "--data", text(mount.pool())]);
}

/// What was appended behind damage had no checksum for good, or the remote was too short.
///
/// Proves C4, E11.
fn a_file_that_has_grown_since_it_was_carried_is_mended(setup: Setup) {
    const FIRST: usize = 150_000;
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let append = |path: &Path, bytes: &[u8]| {
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        file.write_all(bytes).unwrap();
        file.sync_all().unwrap();
    };
    let scratch = mount.pool().with_file_name("model");
    let tensors: Vec<(String, Vec<u8>)> = (0..30).map(|n| (format!("t{n}"), Pattern(n).bytes(0, 10_000))).collect();
    let tensors: Vec<(&str, &[u8])> = tensors.iter().map(|(name, bytes)| (&**name, &**bytes)).collect();
    let model = safetensors(&scratch, &tensors);
    // Another one each, so that their segments differ.
    let others = [1, 2].map(|n| {
        let first = [n; 10];
        let tensors: Vec<(&str, &[u8])> = [("first", &first[..])].into_iter().chain(tensors.iter().copied()).collect();
        safetensors(&scratch, &tensors)
    });
    let [header, scrubbed] = others;
    let files = [
        ("model", model, 100_000),
        ("header", header, 1),
        ("scrubbed", scrubbed, 50_000),
        ("plain", Pattern(77).bytes(0, 300_000), 70_000),
    ];
    for (name, bytes, _) in &files {
        append(&mount.at(name), &bytes[..FIRST]);
    }
    carry(&mount);
    let records = |mount: &Mount, name: &str| lines(mount, &["records", "--json"], &mount.at(name)).1;
    for (name, bytes, at) in &files {
        let crcs = records(&mount, name);
        assert!(crcs.iter().all(|record| record["crc32c"].is_string()), "{crcs:?}");
        flip(&segment(&mount, &bytes[..FIRST]), *at);
        // What another test starts just then may have the segment open for a moment, and could write it.
        mount.remount();
        for part in [FIRST..200_000, 200_000..250_000, 250_000..bytes.len()] {
            append(&mount.at(name), &bytes[part]);
        }
        let sealed = mount.tensorfs(["seal", text(&mount.at(name))]).status.code();
        assert_eq!(sealed, Some(if *name == "plain" { 0 } else { 1 }), "{name}");
        if *name == "header" {
            // The remote is told, too, that it is damaged.
            mount.tensorfs(["remote", "carry", "--patience", "0", text(mount.pool())]);
        }
        let (before, seen_before) = (records(&mount, name), seen(&mount.at(name)));
        if *name == "scrubbed" {
            let (status, found) = report(&mount, &["scrub", "--mend", "--json"], mount.path());
            assert_eq!((status, &found["actions"]), (Some(0), &serde_json::json!(["/scrubbed is mended"])), "{found}");
        } else {
            let (status, said) = lines(&mount, &["verify", "--mend", "--json"], &mount.at(name));
            assert_eq!((status, mended(&said).len()), (Some(0), 1), "{name}: {said:?}");
        }
        // Nothing but the bytes is another, what has no checksum yet included.
        assert_eq!((records(&mount, name), seen(&mount.at(name))), (before, seen_before), "{name}");
        assert!(fs::read(mount.at(name)).unwrap() == *bytes, "{name}");
        // It is durable when it is told.
        mount.power_loss();
        mount.mount();
        assert_eq!(records(&mount, name)[0]["crc32c"], crcs[0]["crc32c"], "{name}");
        assert!(fs::read(mount.at(name)).unwrap() == *bytes, "{name}");
        seal(&mount, &mount.at(name));
        assert_eq!(lines(&mount, &["verify", "--json"], &mount.at(name)).0, Some(0), "{name}");
        let listed = lines(&mount, &["tensors", "--json"], &mount.at(name)).1;
        let count = listed.iter().filter(|line| line["dtype"].is_string()).count();
        let expected = match *name {
            "plain" => 0,
            "model" => 30,
            _ => 31,
        };
        assert_eq!(count, expected, "{name}");
    }
    mount.umount();
    mount.tensorfs_ok(["check", "--data", text(mount.pool())]);
}

/// Bytes without a checksum are nowhere else: nothing is made up for them.
///
/// Proves E11.
fn a_file_whose_rest_is_lost_is_not_mended(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let scratch = mount.pool().with_file_name("model");
    let bytes = safetensors(&scratch, &[("a", &Pattern(1).bytes(0, 100_000)), ("b", &Pattern(2).bytes(0, 100_000))]);
    let path = mount.at("f");
    fs::write(&path, &bytes[..150_000]).unwrap();
    carry(&mount);
    let damaged = segment(&mount, &bytes[..150_000]);
    flip(&damaged, 70_000);
    mount.remount();
    File::options().append(true).open(&path).unwrap().write_all(&bytes[150_000..]).unwrap();
    assert_eq!(mount.tensorfs(["seal", text(&path)]).status.code(), Some(1));
    mount.umount();
    File::options().write(true).open(&damaged).unwrap().set_len(180_000).unwrap();
    mount.mount();
    let output = mount.tensorfs(["verify", "--mend", text(&path)]);
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() != Some(0) && why.contains("not all of it has checksums"), "{why}");
    assert_eq!(fs::metadata(&damaged).unwrap().len(), 180_000);
    assert_eq!(mount.info()["counters"]["mended"], 0);
}

/// The host may work again a moment later. The other file's bytes are of no use where nothing is known of its own.
///
/// Proves E11.
fn a_file_whose_rest_cannot_be_read_now_keeps_it(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let scratch = mount.pool().with_file_name("model");
    let bytes = safetensors(&scratch, &[("a", &Pattern(1).bytes(0, 100_000)), ("b", &Pattern(2).bytes(0, 100_000))]);
    let path = mount.at("f");
    fs::write(&path, &bytes[..150_000]).unwrap();
    seal(&mount, &path);
    let damaged = segment(&mount, &bytes[..150_000]);
    flip(&damaged, 70_000);
    mount.remount();
    File::options().append(true).open(&path).unwrap().write_all(&bytes[150_000..]).unwrap();
    assert_eq!(mount.tensorfs(["seal", text(&path)]).status.code(), Some(1));
    let mut other = bytes.clone();
    other[150_000..].fill(0);
    fs::write(mount.at("other"), &other).unwrap();
    let [ino, with] = ["f", "other"].map(|name| Ino(fs::metadata(mount.at(name)).unwrap().ino()));
    let root = File::open(mount.path()).unwrap();
    let name = damaged.file_name().unwrap().to_str().unwrap();
    let refused = calls.add(Rule::of(Call::Open).on(name).error(libc::EMFILE));
    mend_with(&root, ino, with).unwrap_err();
    assert!(refused.hits() > 0);
    drop(refused);
    assert!(fs::read(&path).unwrap()[150_000..] == bytes[150_000..]);
    mend_with(&root, ino, with).unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
}

/// Asks for it as the tools do. An error: why it was refused.
fn mend_with(root: &File, ino: Ino, with: Ino) -> Result<(), String> {
    let mut begin = true;
    loop {
        match tensorfs_fs::ask(root, &Request::Mend { ino, with, begin }).unwrap() {
            Reply::Moving(Moving::Working { .. }) => begin = false,
            Reply::Moving(Moving::Refused(why)) => return Err(why),
            Reply::Moving(Moving::Moved) => return Ok(()),
            other => panic!("{other:?}"),
        }
        thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Proves E11.
fn nobody_changes_a_file_that_is_whole(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let bytes = Pattern(1).bytes(0, 100_000);
    let [ino, with] = ["f", "same"].map(|name| {
        fs::write(mount.at(name), &bytes).unwrap();
        Ino(fs::metadata(mount.at(name)).unwrap().ino())
    });
    seal(&mount, mount.path());
    let root = File::open(mount.path()).unwrap();
    let refused = mend_with(&root, ino, with).unwrap_err();
    assert!(refused.contains("its bytes are those that were sealed"), "{refused}");
    assert_eq!(mount.info()["counters"]["mended"], 0);
}

/// Proves E11.
fn nobody_mends_the_files_of_others(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root to be somebody else");
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let bytes = Pattern(1).bytes(0, 100_000);
    let number = |name: &str, owner: u32| {
        fs::write(mount.at(name), &bytes).unwrap();
        chown(mount.at(name), Some(owner), Some(owner)).unwrap();
        Ino(fs::metadata(mount.at(name)).unwrap().ino())
    };
    let (ours, theirs) = (number("f", 0), number("theirs", NOBODY));
    seal(&mount, mount.path());
    for (ino, with) in [(ours, theirs), (theirs, ours)] {
        let root = File::open(mount.path()).unwrap();
        let ask = move || {
            // SAFETY: plain system call, which makes this thread alone another user.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) }, 0);
            tensorfs_fs::ask(&root, &Request::Mend { ino, with, begin: true }).unwrap()
        };
        let refused = Reply::Moving(Moving::Refused("it belongs to another user".into()));
        assert_eq!(thread::spawn(ask).join().unwrap(), refused);
    }
}

/// Proves E10.
fn one_file_comes_back_from_the_remote(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let bytes = Pattern(1).bytes(0, 3 << 20);
    fs::create_dir(mount.at("dir")).unwrap();
    let file = mount.at("dir/f %1");
    fs::write(&file, &bytes).unwrap();
    carry(&mount);
    fs::remove_file(&file).unwrap();
    let to = mount.pool().with_file_name("back");
    mount.tensorfs_ok(["remote", "get", text(&file), "--to", text(&to)]);
    assert!(fs::read(&to).unwrap() == bytes);
    let output = mount.tensorfs(["remote", "get", text(&file), "--to", text(&to)]);
    assert_eq!(output.status.code(), Some(1), "there is something already");
    let url = format!("file://{}", mount.pool().with_file_name("remote").display());
    let output = mount.tensorfs(["remote", "get", &url, "/dir/f %251", "--at", "1"]);
    assert!(output.status.success() && output.stdout == bytes, "{output:?}");
    // What stands in a file already stays there.
    for append in [true, false] {
        let head = [b'h'; 10];
        fs::write(&to, head).unwrap();
        let mut out = File::options().append(append).write(true).open(&to).unwrap();
        out.seek(SeekFrom::End(0)).unwrap();
        let mut command = mount.program();
        command.args(["remote", "get", &url, "/dir/f %251", "--at", "1"]).stdout(out);
        assert!(command.status().unwrap().success());
        assert!(fs::read(&to).unwrap() == [&head, &*bytes].concat(), "{append}");
    }
    carry(&mount);
    let output = mount.tensorfs(["remote", "get", text(&file)]);
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && why.contains("not in the remote's tree after batch 2"), "{why}");
}
