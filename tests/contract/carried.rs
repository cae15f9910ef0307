//! `user.tensorfs.remote` of what is in a pool that has a second copy: what is said to be carried is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use memmap2::MmapMut;
use nix::errno::Errno;
use serde_json::Value;
use tensorfs_tests::random::Random;
use tensorfs_tests::{Mount, Pattern, Setup, on_mounts, xattr};

use crate::remote::{Watching, setup_needs_a_mount, text, tree_of, with_remote};

on_mounts!(
    a_path_says_whether_it_is_carried,
    a_file_that_something_may_write_is_not_carried,
    what_is_left_out_says_so,
    a_file_with_several_names_is_carried_if_all_are,
    who_serves_next_says_nothing_that_is_not_so,
    of_a_note_that_is_none_nothing_is_carried,
    of_a_remote_whose_batch_is_spoiled_nothing_is_carried,
    where_more_is_touched_than_is_kept_in_mind_nothing_is_carried,
    what_was_only_read_is_still_carried,
    what_has_left_is_carried_and_what_is_damaged_is_not,
    what_is_said_to_be_carried_is_there,
);

const NAME: &str = "user.tensorfs.remote";
const SIZE: usize = 200_000;

#[track_caller]
fn word(path: &Path) -> String {
    let word = xattr::get(path, NAME).unwrap_or_else(|errno| panic!("{}: {errno}", path.display()));
    String::from_utf8(word).unwrap()
}

/// What is said of each of these.
#[track_caller]
fn words<const N: usize>(mount: &Mount, paths: [&str; N]) -> [String; N] {
    paths.map(|path| word(&mount.at(path)))
}

/// Waits until all of the mount is in the remote.
#[track_caller]
fn carry(mount: &Mount) {
    mount.tensorfs_ok(["remote", "wait", text(mount.path()), "--timeout", "600"]);
}

/// Changes something, after which these are not said to be carried, and those are; and after the next pass all are.
#[track_caller]
fn behind_after(mount: &Mount, (behind, carried): (&[&str], &[&str]), change: impl FnOnce()) {
    change();
    for path in behind {
        assert_eq!(word(&mount.at(path)), "behind", "{path}");
    }
    for path in carried {
        assert_eq!(word(&mount.at(path)), "carried", "{path}");
    }
    carry(mount);
    for path in behind.iter().chain(carried) {
        assert_eq!(word(&mount.at(path)), "carried", "{path}, after it was waited for");
    }
}

/// Proves E34, T8.
fn a_path_says_whether_it_is_carried(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    fs::create_dir_all(mount.at("run/a/deep")).unwrap();
    fs::create_dir(mount.at("other")).unwrap();
    let write = |path: &str, seed: u64| fs::write(mount.at(path), Pattern(seed).bytes(0, SIZE)).unwrap();
    ["run/a/deep/f", "run/a/g", "run/h", "other/o"].into_iter().zip(0..).for_each(|(path, seed)| write(path, seed));
    // Without a remote nothing is said.
    for path in ["", "run", "run/h"] {
        assert_eq!(xattr::get(&mount.at(path), NAME), Err(Errno::ENODATA), "{path}");
    }
    with_remote(&mount);
    let all = ["", "run", "run/a", "run/a/deep", "run/a/deep/f", "run/a/g", "run/h", "other", "other/o"];
    assert_eq!(words(&mount, all), all.map(|_| "behind"));
    carry(&mount);
    assert_eq!(words(&mount, all), all.map(|_| "carried"));
    assert!(xattr::list(&mount.at("run/h")).unwrap().is_empty(), "it is not listed, and so not copied");
    assert_eq!(xattr::set(&mount.at("run/h"), NAME, b"carried", 0), Err(Errno::EPERM));
    assert_eq!(xattr::set(&mount.at("run"), NAME, b"carried", 0), Err(Errno::EINVAL));

    let aside = ["other", "other/o"];
    behind_after(&mount, (&["", "run", "run/new"], &aside), || write("run/new", 9));
    behind_after(&mount, (&["", "run", "run/a", "run/a/g"], &["run/a/deep", "run/h", "other"]), || {
        let mut file = OpenOptions::new().append(true).open(mount.at("run/a/g")).unwrap();
        file.write_all(b"more").unwrap();
    });
    behind_after(&mount, (&["", "run", "run/a", "run/a/g"], &["run/a/deep", "run/h", "other"]), || {
        write("run/a/g", 10)
    });
    behind_after(&mount, (&["", "run", "run/a", "run/a/g"], &["run/a/deep", "run/h", "other"]), || {
        let mode = Permissions::from_mode(0o600);
        fs::set_permissions(mount.at("run/a/g"), mode).unwrap();
    });
    behind_after(&mount, (&["", "run", "run/a", "run/a/g"], &["run/a/deep", "run/h", "other"]), || {
        xattr::set(&mount.at("run/a/g"), "user.x", b"value", 0).unwrap();
    });
    // A file and a directory under other names; what is in that has another path, too, and nothing else has.
    behind_after(&mount, (&["", "run", "run/a", "run/a/renamed"], &["run/a/deep", "run/h", "other"]), || {
        fs::rename(mount.at("run/a/g"), mount.at("run/a/renamed")).unwrap();
    });
    let moved = ["", "run", "other", "other/b", "other/b/renamed", "other/b/deep", "other/b/deep/f"];
    behind_after(&mount, (&moved, &["run/h", "other/o"]), || {
        fs::rename(mount.at("run/a"), mount.at("other/b")).unwrap();
    });
    // Written in another's place, as by who writes beside it first.
    behind_after(&mount, (&["", "other", "other/b", "other/b/renamed"], &["other/b/deep", "run"]), || {
        write("other/b/new", 11);
        fs::rename(mount.at("other/b/new"), mount.at("other/b/renamed")).unwrap();
    });
    // What is removed is not there either, and what is beside it is.
    let beside = ["other/b/renamed", "other/o", "run", "run/h"];
    behind_after(&mount, (&["", "other", "other/b", "other/b/deep"], &beside), || {
        fs::remove_file(mount.at("other/b/deep/f")).unwrap();
    });
    behind_after(&mount, (&["", "other", "other/b"], &beside), || fs::remove_dir(mount.at("other/b/deep")).unwrap());
    // Of what has no name any more nothing is there.
    fs::create_dir(mount.at("removed")).unwrap();
    let held = File::open(mount.at("removed")).unwrap();
    fs::remove_dir(mount.at("removed")).unwrap();
    assert_eq!(word(&PathBuf::from(format!("/proc/self/fd/{}/.", held.as_raw_fd()))), "no");
    drop(held);
    carry(&mount);
    mount.tensorfs_ok(["remote", "off", text(mount.pool())]);
    for path in ["", "run", "run/h"] {
        assert_eq!(xattr::get(&mount.at(path), NAME), Err(Errno::ENODATA), "{path}");
    }
    // Nothing was put there yet by this pool under that name.
    let url = format!("file://{}", mount.pool().with_file_name("elsewhere").display());
    mount.tensorfs_ok(["remote", "set", text(mount.pool()), &url]);
    assert_eq!(words(&mount, ["", "run", "run/h"]), ["behind"; 3]);
    carry(&mount);
    assert_eq!(words(&mount, ["", "run", "run/h"]), ["carried"; 3]);
}

/// Proves E34.
fn a_file_that_something_may_write_is_not_carried(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    fs::create_dir_all(mount.at("d/e")).unwrap();
    for path in ["d/e/f", "d/g"] {
        fs::write(mount.at(path), Pattern(1).bytes(0, SIZE)).unwrap();
    }
    let pass = || mount.tensorfs_ok(["remote", "carry", text(mount.pool()), "--patience", "0"]);
    carry(&mount);
    assert_eq!(words(&mount, ["d", "d/e", "d/e/f", "d/g"]), ["carried"; 4]);
    // Open to read, it stays as it is.
    let read = File::open(mount.at("d/e/f")).unwrap();
    assert_eq!(word(&mount.at("d/e/f")), "carried");
    drop(read);
    let file = OpenOptions::new().read(true).write(true).open(mount.at("d/e/f")).unwrap();
    // SAFETY: nobody makes the file shorter.
    let mut map = unsafe { MmapMut::map_mut(&file).unwrap() };
    drop(file);
    for round in 0..3 {
        assert_eq!(
            words(&mount, ["", "d", "d/e", "d/e/f", "d/g"]),
            ["behind", "behind", "behind", "behind", "carried"]
        );
        map[round * 1000] ^= 1;
        mount.sync();
        // However often it is carried.
        pass();
    }
    drop(map);
    carry(&mount);
    assert_eq!(words(&mount, ["", "d", "d/e", "d/e/f", "d/g"]), ["carried"; 5]);
    // In place, by a descriptor that has it open all the while, and of bytes that are the same.
    let file = OpenOptions::new().write(true).open(mount.at("d/g")).unwrap();
    file.write_at(&Pattern(1).bytes(0, 100), 0).unwrap();
    file.sync_all().unwrap();
    pass();
    assert_eq!(words(&mount, ["", "d", "d/e", "d/g"]), ["behind", "behind", "carried", "behind"]);
    drop(file);
    carry(&mount);
    assert_eq!(word(mount.path()), "carried");
}

/// Proves E16, E34.
fn what_is_left_out_says_so(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    let set = |globs: &[&str]| {
        let more = globs.iter().flat_map(|glob| ["--exclude", glob]);
        mount.tensorfs_ok(["remote", "set", text(mount.pool()), &url].into_iter().chain(more));
    };
    for dir in ["run/cache/deep", "run/scratch/deep", "x"] {
        fs::create_dir_all(mount.at(dir)).unwrap();
    }
    for path in ["run/a.tmp", "run/b", "run/cache/deep/f", "run/scratch/deep/f", "x/c"] {
        fs::write(mount.at(path), Pattern(1).bytes(0, SIZE)).unwrap();
    }
    carry(&mount);
    assert_eq!(words(&mount, ["", "run/a.tmp", "run/cache/deep/f", "run/scratch"]), ["carried"; 4]);
    // Nothing is told of what is there until it is there as it is said now.
    set(&["*.tmp", "/run/cache/**"]);
    xattr::set(&mount.at("run/scratch"), NAME, b"no", 0).unwrap();
    let out = ["run/a.tmp", "run/cache/deep", "run/cache/deep/f", "run/scratch", "run/scratch/deep"];
    let rest = ["", "run", "run/b", "run/cache", "x", "x/c"];
    assert_eq!(words(&mount, out), ["no"; 5]);
    assert_eq!(word(&mount.at("run/scratch/deep/f")), "no");
    assert_eq!(words(&mount, rest), ["behind"; 6]);
    carry(&mount);
    assert_eq!(words(&mount, out), ["no"; 5]);
    assert_eq!(words(&mount, rest), ["carried"; 6]);
    // What happens to what is left out is nothing to those that are not.
    let held = OpenOptions::new().append(true).open(mount.at("run/a.tmp")).unwrap();
    fs::write(mount.at("run/cache/deep/f"), b"others").unwrap();
    fs::write(mount.at("run/scratch/deep/new"), b"others").unwrap();
    assert_eq!(words(&mount, rest), ["carried"; 6]);
    drop(held);
    // One that comes in is not there yet, though nothing of it has changed but where it is.
    fs::rename(mount.at("run/scratch/deep"), mount.at("x/deep")).unwrap();
    assert_eq!(words(&mount, ["x", "x/deep", "x/deep/f", "x/c"]), ["behind", "behind", "behind", "carried"]);
    carry(&mount);
    assert_eq!(words(&mount, ["x", "x/deep", "x/deep/f", "x/c"]), ["carried"; 4]);
    xattr::remove(&mount.at("run/scratch"), NAME).unwrap();
    set(&["*.tmp"]);
    assert_eq!(words(&mount, ["run/a.tmp", "run/scratch", "run/cache/deep/f"]), ["no", "behind", "behind"]);
    carry(&mount);
    assert_eq!(words(&mount, ["run/a.tmp", "run/scratch", "run/cache/deep/f"]), ["no", "carried", "carried"]);
    // A name by which it is left out, and one by which it is not.
    fs::rename(mount.at("run/a.tmp"), mount.at("run/a")).unwrap();
    fs::rename(mount.at("run/b"), mount.at("run/b.tmp")).unwrap();
    assert_eq!(words(&mount, ["run/a", "run/b.tmp"]), ["behind", "no"]);
    carry(&mount);
    assert_eq!(words(&mount, ["run/a", "run/b.tmp", "run"]), ["carried", "no", "carried"]);
}

/// Proves E34.
fn a_file_with_several_names_is_carried_if_all_are(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    ["a", "b"].into_iter().for_each(|dir| fs::create_dir(mount.at(dir)).unwrap());
    fs::write(mount.at("a/f"), Pattern(1).bytes(0, SIZE)).unwrap();
    fs::hard_link(mount.at("a/f"), mount.at("b/f")).unwrap();
    assert_eq!(words(&mount, ["a/f", "b/f", "a"]), ["behind"; 3]);
    carry(&mount);
    assert_eq!(words(&mount, ["a/f", "b/f", "a", "b", ""]), ["carried"; 5]);
    // Another name, and one directory's.
    fs::hard_link(mount.at("a/f"), mount.at("a/g")).unwrap();
    assert_eq!(words(&mount, ["a/f", "b/f", "a/g", "a", "b"]), ["behind"; 5]);
    carry(&mount);
    assert_eq!(words(&mount, ["a/f", "b/f", "a/g", "a", "b"]), ["carried"; 5]);
    fs::rename(mount.at("b"), mount.at("c")).unwrap();
    assert_eq!(words(&mount, ["a/f", "c/f", "c", "a"]), ["behind", "behind", "behind", "carried"]);
    carry(&mount);
    assert_eq!(words(&mount, ["a/f", "c/f", "c", "a"]), ["carried"; 4]);
    // Where anything is left out, one of the names could be.
    xattr::set(&mount.at("c"), NAME, b"no", 0).unwrap();
    carry(&mount);
    assert_eq!(words(&mount, ["a/f", "c/f", "c", "a"]), ["behind", "behind", "no", "carried"]);
    ["a/f", "a/g"].into_iter().for_each(|path| fs::remove_file(mount.at(path)).unwrap());
    assert_eq!(word(&mount.at("c/f")), "no");
}

/// Proves E34.
fn who_serves_next_says_nothing_that_is_not_so(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    fs::create_dir(mount.at("d")).unwrap();
    for path in ["d/f", "d/g"] {
        fs::write(mount.at(path), Pattern(1).bytes(0, SIZE)).unwrap();
    }
    carry(&mount);
    for round in 0..4 {
        assert_eq!(words(&mount, ["", "d", "d/f", "d/g"]), ["carried"; 4], "{round}");
        fs::write(mount.at("d/g"), Pattern(10 + round).bytes(0, SIZE)).unwrap();
        mount.sync();
        match round {
            0 => mount.remount(),
            1 => {
                mount.kill9();
                mount.mount();
            }
            2 => {
                mount.power_loss();
                mount.mount();
            }
            _ => {
                mount.remount();
                mount.remount();
            }
        }
        // What it did before this server began is not known; it may be that nothing was done to the other one.
        assert_eq!(words(&mount, ["", "d", "d/g"]), ["behind"; 3], "{round}");
        carry(&mount);
    }
    // With nothing done since, it is as it was.
    assert_eq!(words(&mount, ["", "d", "d/f", "d/g"]), ["carried"; 4]);
    mount.umount();
    mount.tensorfs_ok(["remote", "carry", text(mount.pool())]);
    mount.mount();
    carry(&mount);
    assert_eq!(words(&mount, ["", "d", "d/f", "d/g"]), ["carried"; 4]);
}

/// The note is changed as somebody, or a restore of the pool's directory, might.
///
/// Proves E34.
fn of_a_note_that_is_none_nothing_is_carried(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    fs::create_dir(mount.at("d")).unwrap();
    fs::write(mount.at("d/f"), Pattern(1).bytes(0, SIZE)).unwrap();
    carry(&mount);
    let at = mount.pool().join("remote");
    let note = fs::read(&at).unwrap();
    let said = |mount: &Mount, bytes: &[u8]| {
        fs::write(&at, bytes).unwrap();
        words(mount, ["d", "d/f"])
    };
    assert_eq!(said(&mount, &note), ["carried"; 2]);
    for cut in [0, 1, note.len() / 2, note.len() - 1] {
        assert_eq!(said(&mount, &note[..cut]), ["behind"; 2], "{cut}");
    }
    for bytes in [&b"\0\xff"[..], b"[]", b"{}", b"null", &[b'['; 60_000], &[b' '; 1 << 20]] {
        assert_eq!(said(&mount, bytes), ["behind"; 2]);
    }
    let with = |change: &dyn Fn(&mut Value)| {
        let mut parsed: Value = serde_json::from_slice(&note).unwrap();
        change(&mut parsed);
        serde_json::to_vec(&parsed).unwrap()
    };
    let arrived = |key: &'static str, value: Value| with(&move |note| note["arrived"][key] = value.clone());
    let parsed: Value = serde_json::from_slice(&note).unwrap();
    let now = parsed["arrived"]["transaction"].as_u64().unwrap();
    let (log, _) = parsed["arrived"]["log"].as_str().unwrap().rsplit_once('-').unwrap();
    let in_another_boot = format!("{log}-{:x}", u128::MAX);
    for changed in [
        // Of another log, of one that has not come so far; which files, nobody knows.
        arrived("log", "0-0".into()),
        arrived("log", in_another_boot.into()),
        arrived("transaction", 0.into()),
        arrived("transaction", (-1).into()),
        arrived("unsettled", Value::Null),
        arrived("unsettled", vec![fs::metadata(mount.at("d/f")).unwrap().ino()].into()),
        with(&|note| note["arrived"] = Value::Null),
        with(&|note| note["arrived"] = 5.into()),
        with(&|note| note["settings"]["exclude"] = vec!["[a"].into()),
    ] {
        assert_eq!(said(&mount, &changed), ["behind"; 2], "{}", String::from_utf8_lossy(&changed));
    }
    // As it was before this server had forgotten what was done until then, it is not believed either.
    assert_eq!(said(&mount, &arrived("transaction", (now - 1).into())), ["behind"; 2]);
    assert_eq!(said(&mount, &note), ["carried"; 2]);
    // It is of another pool.
    fs::write(&at, with(&|note| note["pool"] = "00000000-0000-0000-0000-000000000000".into())).unwrap();
    assert_eq!(xattr::get(&mount.at("d/f"), NAME), Err(Errno::ENODATA));
    // What stands there is no file, or none of the pool's.
    fs::remove_file(&at).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &at).unwrap();
    assert_eq!(words(&mount, ["d", "d/f"]), ["behind"; 2]);
    fs::remove_file(&at).unwrap();
    assert_eq!(xattr::get(&mount.at("d/f"), NAME), Err(Errno::ENODATA));
    // A log that is older than what is noted, when it is mounted or while it is, gives numbers anew: none that it comes
    // to is believed until then.
    for is_mounted in [false, true] {
        let mut note: Value = serde_json::from_slice(&note).unwrap();
        if is_mounted {
            note = serde_json::from_slice(&fs::read(&at).unwrap()).unwrap();
        } else {
            mount.umount();
        }
        let own = serde_json::to_vec(&note).unwrap();
        note["arrived"]["transaction"] = (note["arrived"]["transaction"].as_u64().unwrap() + 20).into();
        fs::write(&at, serde_json::to_vec(&note).unwrap()).unwrap();
        if !is_mounted {
            mount.mount();
        }
        for n in 0..100 {
            assert_eq!(words(&mount, ["d", "d/f"]), ["behind"; 2], "{n}");
            fs::write(mount.at("other"), [n]).unwrap();
        }
        fs::write(&at, own).unwrap();
        carry(&mount);
        assert_eq!(words(&mount, ["d", "d/f"]), ["carried"; 2]);
    }
}

/// Proves E34.
fn of_a_remote_whose_batch_is_spoiled_nothing_is_carried(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    fs::create_dir(mount.at("d")).unwrap();
    fs::write(mount.at("d/f"), Pattern(1).bytes(0, SIZE)).unwrap();
    carry(&mount);
    assert_eq!(words(&mount, ["d", "d/f"]), ["carried"; 2]);
    let log = std::path::Path::new(url.strip_prefix("file://").unwrap()).join("log");
    let batch = fs::read_dir(log).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&batch).unwrap();
    bytes[40] ^= 1;
    fs::write(&batch, bytes).unwrap();
    assert!(!mount.tensorfs(["remote", "carry", text(mount.pool())]).status.success());
    assert_eq!(words(&mount, ["d", "d/f"]), ["behind"; 2]);
}

/// Proves E34.
fn where_more_is_touched_than_is_kept_in_mind_nothing_is_carried(setup: Setup) {
    // Twice as many as that.
    const FILES: u64 = 2 << 14;
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    ["d", "many"].into_iter().for_each(|dir| fs::create_dir(mount.at(dir)).unwrap());
    fs::write(mount.at("d/f"), Pattern(1).bytes(0, SIZE)).unwrap();
    carry(&mount);
    for n in 0..FILES {
        if n == 1000 {
            assert_eq!(words(&mount, ["d", "d/f", "many"]), ["carried", "carried", "behind"]);
        }
        std::os::unix::fs::symlink("to", mount.at(format!("many/{n}"))).unwrap();
    }
    assert_eq!(words(&mount, ["d", "d/f", "many"]), ["behind"; 3]);
    carry(&mount);
    assert_eq!(words(&mount, ["", "d", "d/f", "many"]), ["carried"; 4]);
}

/// Proves E34.
fn what_was_only_read_is_still_carried(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    fs::create_dir(mount.at("d")).unwrap();
    fs::write(mount.at("d/f"), Pattern(1).bytes(0, SIZE)).unwrap();
    carry(&mount);
    assert_eq!(word(&mount.at("d")), "carried");
    // The host changes the time of the first access.
    assert_eq!(fs::read(mount.at("d/f")).unwrap(), Pattern(1).bytes(0, SIZE));
    fs::read_dir(mount.at("d")).unwrap().for_each(drop);
    mount.sync();
    assert_eq!(words(&mount, ["", "d", "d/f"]), ["carried"; 3]);
}

/// Proves E26, E34.
fn what_has_left_is_carried_and_what_is_damaged_is_not(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    ["d", "e"].into_iter().for_each(|dir| fs::create_dir(mount.at(dir)).unwrap());
    ["d/f", "d/g", "e/h"].into_iter().zip(1..).for_each(|(path, seed)| {
        fs::write(mount.at(path), Pattern(seed).bytes(0, SIZE)).unwrap();
    });
    carry(&mount);
    assert_eq!(words(&mount, ["", "d", "d/f", "d/g", "e"]), ["carried"; 5]);
    // The remote alone has its bytes, wherever it is.
    mount.tensorfs_ok(["tier", "move", text(&mount.at("d/g")), "remote"]);
    carry(&mount);
    assert_eq!(words(&mount, ["d", "d/f", "d/g"]), ["carried"; 3]);
    xattr::set(&mount.at("d"), NAME, b"no", 0).unwrap();
    carry(&mount);
    assert_eq!(words(&mount, ["d", "d/f", "d/g"]), ["no", "no", "carried"]);
    xattr::remove(&mount.at("d"), NAME).unwrap();
    carry(&mount);
    assert_eq!(words(&mount, ["d", "d/f", "d/g"]), ["carried"; 3]);
    // What it has is not what is here.
    let bytes = Pattern(1).bytes(0, SIZE);
    let segments = mount.pool().join("segments");
    let files = tree_of(&segments);
    let (segment, _) = files.iter().find(|(_, (_, _, found))| *found == bytes).unwrap();
    let segment = OpenOptions::new().write(true).open(segments.join(segment)).unwrap();
    segment.write_all_at(&[!bytes[100]], 100).unwrap();
    assert!(!mount.tensorfs(["scrub", text(mount.path())]).status.success());
    assert_eq!(words(&mount, ["", "d", "d/f", "d/g", "e"]), ["behind", "behind", "behind", "carried", "carried"]);
}

/// What the remote has, by its path: what `list` says of it.
fn listed(mount: &Mount, url: &str) -> BTreeMap<String, Value> {
    let listed = mount.tensorfs_ok(["remote", "list", url, "--json"]);
    let entries = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    entries.map(|entry| (entry["path"].as_str().unwrap().to_owned(), entry)).collect()
}

/// All paths on the mount, from its root.
fn paths(mount: &Mount) -> BTreeSet<String> {
    let (mut found, mut left) = (BTreeSet::from(["/".to_owned()]), vec![mount.path().to_owned()]);
    while let Some(dir) = left.pop() {
        for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            found.insert(format!("/{}", path.strip_prefix(mount.path()).unwrap().display()));
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                left.push(path);
            }
        }
    }
    found
}

/// What is left out.
#[derive(Clone, Copy, Debug, Default)]
struct Out {
    names: bool,
    directory: bool,
}

/// What the remote has of files, by their parts and size.
type Seen = BTreeMap<(String, u64), Vec<u8>>;

/// Looks at everything: what is said to be carried is in the remote. Returns how much that was, and how much was not.
fn compare((mount, url): (&Mount, &str), out: Out, seen: &mut Seen) -> (usize, usize) {
    let all = paths(mount);
    let at = |path: &str| mount.at(&path[1..]);
    let said: Vec<(&String, String)> = all.iter().map(|path| (path, word(&at(path)))).collect();
    let there = listed(mount, url);
    let is_out = |path: &str| out.names && path.contains(".tmp") || out.directory && path.starts_with("/out/");
    let mut has = |path: &str| {
        let now = fs::symlink_metadata(at(path)).unwrap();
        let entry = there.get(path).unwrap_or_else(|| panic!("{path} is said to be carried, and is not there"));
        assert_eq!(entry["mode"], now.mode(), "{path}");
        assert_eq!(entry["xattrs"]["user.x"].is_string(), xattr::get(&at(path), "user.x").is_ok(), "{path}");
        if now.is_file() {
            let mtime = entry["mtime"].as_array().unwrap();
            assert_eq!((&mtime[0], &mtime[1]), (&now.mtime().into(), &now.mtime_nsec().into()), "{path}");
            assert_eq!(entry["file"]["state"], "whole", "{path}");
            let parts = entry["file"]["parts"].to_string();
            let size = now.len();
            assert_eq!(entry["file"]["size"], size, "{path}");
            let got = seen.entry((parts, size)).or_insert_with(|| {
                let output = mount.tensorfs(["remote", "get", url, path]);
                assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
                output.stdout
            });
            assert!(fs::read(at(path)).unwrap() == *got, "{path} has other bytes in the remote");
        }
    };
    for (path, word) in &said {
        match word.as_str() {
            "carried" => {
                assert!(!is_out(path), "{path}");
                has(path);
                if at(path).is_dir() {
                    let prefix = if *path == "/" { "/".to_owned() } else { format!("{path}/") };
                    let below = |path: &&String| path.starts_with(&prefix) && path.len() > prefix.len();
                    let mine: Vec<&String> = all.iter().filter(below).filter(|path| !is_out(path)).collect();
                    assert_eq!(mine, there.keys().filter(below).collect::<Vec<_>>(), "{path}");
                    mine.into_iter().for_each(|path| has(path));
                }
            }
            "no" => assert!(is_out(path) || out.directory && *path == "/out", "{path}"),
            word => assert_eq!(word, "behind"),
        }
    }
    let count = |wanted: &str| said.iter().filter(|(_, word)| word == wanted).count();
    (count("carried"), count("behind"))
}

/// Any of the files or directories, or what could be one.
fn any(random: &mut Random) -> String {
    let dir = *random.pick(&["", "a/", "a/b/", "c/", "out/"]);
    format!("{dir}{}", random.pick(&["f", "g", "h", "i.tmp"]))
}

fn change(mount: &Mount, random: &mut Random, held: &mut Vec<File>) {
    let (path, other) = (mount.at(any(random)), mount.at(any(random)));
    let bytes = Pattern(random.below(4)).bytes(0, 1000 + random.below(3) as usize * 30_000);
    // What cannot be done is not done.
    let _ = match random.below(16) {
        0..4 => fs::write(&path, bytes),
        4 => OpenOptions::new().append(true).open(&path).and_then(|mut file| file.write_all(&bytes[..500])),
        5 => OpenOptions::new().write(true).open(&path).and_then(|file| file.write_at(&bytes[..500], 100).map(drop)),
        6 => fs::rename(&path, &other),
        7 => fs::remove_file(&path),
        8 => fs::hard_link(&path, &other),
        9 => fs::set_permissions(&path, Permissions::from_mode(if random.once_in(2) { 0o600 } else { 0o644 })),
        10 => {
            let _ = if random.once_in(2) {
                xattr::set(&path, "user.x", b"value", 0)
            } else {
                xattr::remove(&path, "user.x")
            };
            Ok(())
        }
        11 => OpenOptions::new().write(true).open(&path).map(|file| held.push(file)),
        12 => {
            held.clear();
            Ok(())
        }
        13 => fs::rename(mount.at("a/b"), mount.at("c/b")).or_else(|_| fs::rename(mount.at("c/b"), mount.at("a/b"))),
        14 => held.last().map_or(Ok(()), |file| file.write_at(&bytes[..100], 10).map(drop)),
        _ => {
            fs::read(&path).map(drop).ok();
            Ok(())
        }
    };
}

/// Whatever is done, whoever carries meanwhile, and whichever server is killed. `TENSORFS_CARRIED` is how often.
///
/// Proves E34.
fn what_is_said_to_be_carried_is_there(setup: Setup) {
    let rounds = std::env::var("TENSORFS_CARRIED").ok().and_then(|text| text.parse().ok()).unwrap_or(12_u64);
    let first = std::env::var("TENSORFS_CARRIED_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0_u64);
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    let mut is_watched = false;
    let mut watching: Option<Watching> = None;
    let (mut carried, mut behind, mut after) = (0, 0, 0);
    let (mut seen, mut out) = (Seen::new(), Out::default());
    ["a/b", "c", "out"].into_iter().for_each(|dir| fs::create_dir_all(mount.at(dir)).unwrap());
    carry(&mount);
    for round in first..first + rounds {
        let mut random = Random::of(&[34, round]);
        let mut held = Vec::new();
        if random.once_in(4) {
            drop(watching.take());
            out = Out { names: random.once_in(2), directory: random.once_in(2) };
            let more: &[&str] = if out.names { &["--exclude", "*.tmp"] } else { &[] };
            mount.tensorfs_ok([&["remote", "set", text(mount.pool()), &url], more].concat());
            match out.directory {
                true => xattr::set(&mount.at("out"), NAME, b"no", 0).unwrap(),
                false => drop(xattr::remove(&mount.at("out"), NAME)),
            }
        }
        if random.once_in(3) {
            is_watched = !is_watched;
            drop(watching.take());
        }
        if is_watched && watching.is_none() {
            watching = Some(Watching::start(&mount));
        }
        for _ in 0..4 {
            for _ in 0..random.below(6) {
                change(&mount, &mut random, &mut held);
            }
            if !is_watched && random.once_in(2) {
                mount.tensorfs_ok(["remote", "carry", text(mount.pool()), "--patience", "0"]);
            }
            let (more, less) = compare((&mount, &url), out, &mut seen);
            (carried, behind) = (carried + more, behind + less);
        }
        held.clear();
        match random.below(6) {
            0 => {
                mount.kill9();
                mount.mount();
            }
            1 => mount.remount(),
            2 => {
                mount.sync();
                mount.power_loss();
                mount.mount();
            }
            _ => {}
        }
        compare((&mount, &url), out, &mut seen);
        if random.once_in(2) {
            carry(&mount);
            after += compare((&mount, &url), out, &mut seen).0;
        }
    }
    println!("said to be carried {carried} times, and behind {behind} times; {after} times after it was waited for");
    assert!(carried > 0 && after > 0 || rounds < 12);
    drop(watching);
    mount.tensorfs_ok(["remote", "set", text(mount.pool()), &url]);
    let _ = xattr::remove(&mount.at("out"), NAME);
    carry(&mount);
    assert_eq!(compare((&mount, &url), Out::default(), &mut seen).1, 0);
}
