//! Files that change, move and go while their tensors are read, and a tree that nobody changes.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use tensorfs_tests::{Setup, c_path, on_mounts, run_ok, safetensors, xattr};

use super::{attribute, bytes, event, event_of_bytes, files, npy, text, tree};

on_mounts!(
    an_event_file_is_followed_while_it_is_written,
    an_open_tensor_shows_one_version,
    removed_and_moved_files,
    reading_tensors_changes_nothing,
    reading_tensors_is_not_in_the_way,
    the_tree_cannot_be_changed,
);

/// Proves T4.
fn an_event_file_is_followed_while_it_is_written(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let mut file = File::create(mount.at("events")).unwrap();
    let directory = tree(&mount, "events");
    let frames: Vec<Vec<u8>> = (0..60).map(|n| event(b"train/loss", n, None, n as f32)).collect();
    let mut first: Option<(File, u64)> = None;
    for (n, frame) in frames.iter().enumerate() {
        // A frame that is not complete is not shown.
        let (half, rest) = frame.split_at(frame.len() / 2);
        file.write_all(half).unwrap();
        if n > 0 {
            assert_eq!(files(&directory).len(), n);
        } else {
            assert!(!directory.exists());
        }
        file.write_all(rest).unwrap();
        assert_eq!(files(&directory).len(), n + 1);
        assert_eq!(bytes(&directory.join(format!("train/loss@{n}.npy"))), (n as f32).to_le_bytes());
        // What was there is the same file all along.
        let path = directory.join("train/loss@0.npy");
        let (open, ino) = first.get_or_insert_with(|| {
            let open = File::open(&path).unwrap();
            let ino = open.metadata().unwrap().ino();
            (open, ino)
        });
        assert_eq!(fs::metadata(&path).unwrap().ino(), *ino);
        let mut whole = vec![0; open.metadata().unwrap().len() as usize];
        open.read_exact_at(&mut whole, 0).unwrap();
        assert_eq!(npy(&whole).1, 0_f32.to_le_bytes());
    }
    // Started over: nothing of what was there is.
    file.set_len(0).unwrap();
    assert!(!directory.exists());
    let more: Vec<u8> = (0..80).flat_map(|n| event(b"other", n, None, 7.0)).collect();
    file.write_all_at(&more, 0).unwrap();
    assert_eq!(files(&directory).len(), 80);
    assert_eq!(bytes(&directory.join("other@79.npy")), 7_f32.to_le_bytes());
}

/// Proves T5.
fn an_open_tensor_shows_one_version(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("model");
    let large = |byte: u8| vec![byte; 400_000];
    let place = tree(&mount, "model/x.npy");
    let read = |file: &File| {
        let mut all = vec![0; file.metadata().unwrap().len() as usize];
        // From the server, not from the kernel's cache.
        // SAFETY: plain system call.
        unsafe { libc::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(file), 0, 0, libc::POSIX_FADV_DONTNEED) };
        file.read_exact_at(&mut all, 0).map(|()| npy(&all).1.to_vec())
    };
    let stale = |result: std::io::Result<Vec<u8>>, old: &[u8]| match result {
        Ok(bytes) => assert!(bytes == old, "torn"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE)),
    };
    fs::write(&path, safetensors(&[("x", &large(1))])).unwrap();
    let first = File::open(&place).unwrap();
    assert_eq!(read(&first).unwrap(), large(1));

    // Replaced: the version that was opened, or none.
    fs::write(&path, safetensors(&[("x", &large(2))])).unwrap();
    stale(read(&first), &large(1));
    let second = File::open(&place).unwrap();
    assert_eq!(read(&second).unwrap(), large(2));
    fs::write(mount.at("new"), safetensors(&[("x", &large(3)), ("y", b"y")])).unwrap();
    fs::rename(mount.at("new"), &path).unwrap();
    stale(read(&second), &large(2));
    let third = File::open(&place).unwrap();
    assert_eq!(read(&third).unwrap(), large(3));
    assert_eq!(bytes(&tree(&mount, "model/y.npy")), b"y");

    // An event file that grows goes on being read; one that is started over does not, even if it is longer than before.
    let mut events = File::create(mount.at("events")).unwrap();
    let step = |n| event_of_bytes(b"x", n, &large(n as u8));
    events.write_all(&step(1)).unwrap();
    let growing = File::open(tree(&mount, "events/x@1.npy")).unwrap();
    for n in 2..5 {
        events.write_all(&step(n)).unwrap();
        assert_eq!(read(&growing).unwrap(), large(1));
    }
    events.set_len(0).unwrap();
    let again: Vec<u8> = (11..16).flat_map(step).collect();
    events.write_all_at(&again, 0).unwrap();
    assert_eq!(read(&growing).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    assert_eq!(bytes(&tree(&mount, "events/x@11.npy")), large(11));

    // Changed in place: no longer readable, until it is opened again.
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[9; 10], fs::metadata(&path).unwrap().len() - 100).unwrap();
    assert_eq!(read(&third).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    let changed = bytes(&place);
    assert!(changed.contains(&9) && changed.contains(&3) && changed.len() == 400_000);
    // And cut short.
    let fourth = File::open(&place).unwrap();
    file.set_len(200_000).unwrap();
    assert_eq!(read(&fourth).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    assert!(!place.exists());
}

/// Proves T1, T5.
fn removed_and_moved_files(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::create_dir_all(mount.at("a/b")).unwrap();
    fs::write(mount.at("a/b/model"), safetensors(&[("x", b"one"), ("deep/y", b"two")])).unwrap();
    let mut open = File::open(tree(&mount, "a/b/model/x.npy")).unwrap();
    let here = File::open(tree(&mount, "a/b/model/deep")).unwrap();
    fs::rename(mount.at("a/b"), mount.at("c")).unwrap();
    assert!(!tree(&mount, "a/b").exists());
    assert_eq!(bytes(&tree(&mount, "c/model/deep/y.npy")), b"two");
    // A file of two names is in two places.
    fs::hard_link(mount.at("c/model"), mount.at("a/other")).unwrap();
    fs::hard_link(mount.at("c/model"), mount.at("a/third")).unwrap();
    for place in ["c/model", "a/other", "a/third"] {
        assert_eq!(text(&files(&tree(&mount, place))), ["deep/y.npy", "x.npy"]);
        assert_eq!(fs::canonicalize(tree(&mount, place).join("deep")).unwrap(), tree(&mount, place).join("deep"));
    }
    let inos: BTreeSet<u64> = ["c/model", "a/other", "a/third"]
        .iter()
        .map(|place| fs::metadata(tree(&mount, place)).unwrap().ino())
        .collect();
    assert_eq!(inos.len(), 3);
    for name in ["c/model", "a/other", "a/third"] {
        fs::remove_file(mount.at(name)).unwrap();
        assert!(!tree(&mount, name).exists());
    }
    mount.sync();
    let mut all = Vec::new();
    match open.read_to_end(&mut all) {
        Ok(_) => assert_eq!(npy(&all).1, b"one"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE)),
    }
    drop(here);
    assert_eq!(fs::read_dir(tree(&mount, "c")).unwrap().count(), 0);
    fs::remove_dir(mount.at("c")).unwrap();
    assert!(!tree(&mount, "c").exists());
}

/// Proves T6.
fn reading_tensors_changes_nothing(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("model");
    fs::write(&path, safetensors(&[("x", b"abc")])).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let times = fs::FileTimes::new().set_accessed(old).set_modified(old);
    File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
    // From the server, not from what the kernel remembers.
    let seen = |path: &Path| {
        let path = c_path(path);
        // SAFETY: all zeroes is a valid `statx`.
        let mut stat: libc::statx = unsafe { std::mem::zeroed() };
        let (flags, mask) = (libc::AT_STATX_FORCE_SYNC, libc::STATX_BASIC_STATS);
        // SAFETY: a NUL-terminated path and a buffer of the right type.
        let done = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, mask, &mut stat) };
        assert_eq!(done, 0);
        let time = |time: libc::statx_timestamp| (time.tv_sec, time.tv_nsec);
        (time(stat.stx_atime), time(stat.stx_mtime), time(stat.stx_ctime), stat.stx_nlink, stat.stx_blocks)
    };
    let before = seen(&path);
    assert_eq!(before.0, (1_000_000_000, 0));
    assert_eq!(bytes(&tree(&mount, "model/x.npy")), b"abc");
    assert_eq!(attribute(&path, "tensors").unwrap(), "1");
    assert_eq!(seen(&path), before);
    // Also with the file open, when the segment's own times count.
    let open = OpenOptions::new().read(true).custom_flags(libc::O_NOATIME).open(&path).unwrap();
    assert_eq!(bytes(&tree(&mount, "model/x.npy")), b"abc");
    assert_eq!(seen(&path), before);
    drop(open);
    assert_eq!(seen(&path), before);
    // And the tree's files have the file's times.
    assert_eq!(fs::metadata(tree(&mount, "model/x.npy")).unwrap().mtime(), 1_000_000_000);
}

/// An open tensor does not count as an open file: a replace keeps the old version, and a file that is first opened
/// O_SYNC is in server mode.
///
/// Proves T6.
fn reading_tensors_is_not_in_the_way(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("model");
    let count = |name: &str| mount.info()["counters"][name].as_u64().unwrap();
    for round in 0..4 {
        fs::write(&path, safetensors(&[("x", &vec![round; 1 << 20])])).unwrap();
        let open = File::open(tree(&mount, "model/x.npy")).unwrap();
        let mut some = [0; 1000];
        open.read_exact_at(&mut some, 4096).unwrap();
        assert_eq!(some, [round; 1000]);
        // SAFETY: a read-only mapping of an open file, which is unmapped again.
        let map = unsafe {
            let map = libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ,
                libc::MAP_SHARED,
                std::os::fd::AsRawFd::as_raw_fd(&open),
                0,
            );
            assert_ne!(map, libc::MAP_FAILED);
            assert_eq!(*map.cast::<u8>().add(5000), round);
            map
        };
        let (through_server, passed) = (count("opened_server"), count("opened_passthrough"));
        let synchronous = OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(&path).unwrap();
        assert_eq!((count("opened_server"), count("opened_passthrough")), (through_server + 1, passed));
        drop(synchronous);
        let (replaced, in_place) = (count("replaced"), count("truncated_in_place"));
        fs::write(&path, safetensors(&[("x", &vec![round; 1 << 20])])).unwrap();
        assert_eq!((count("replaced"), count("truncated_in_place")), (replaced + 1, in_place));
        // SAFETY: it was mapped above.
        unsafe { libc::munmap(map, 8192) };
    }
}

/// Proves T1, N7.
fn the_tree_cannot_be_changed(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::create_dir(mount.at("d")).unwrap();
    fs::write(mount.at("d/model"), safetensors(&[("x", b"abc"), ("deep/y", b"def")])).unwrap();
    for (directory, name) in
        [("", "d"), ("d", "model"), ("d/model", "x.npy"), ("d/model", "deep"), ("d/model/deep", "y.npy")]
    {
        let (directory, path) = (tree(&mount, directory), tree(&mount, directory).join(name));
        assert!(File::create(directory.join("new")).is_err());
        assert!(fs::create_dir(directory.join("new")).is_err());
        assert!(std::os::unix::fs::symlink("x", directory.join("new")).is_err());
        assert!(fs::remove_file(&path).is_err() && fs::remove_dir(&path).is_err());
        assert!(fs::rename(&path, directory.join("new")).is_err());
        assert!(fs::rename(&path, mount.at("new")).is_err());
        assert!(fs::rename(mount.at("d"), directory.join("new")).is_err());
        assert!(fs::hard_link(&path, mount.at("new")).is_err());
        assert!(fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).is_err());
        assert!(OpenOptions::new().write(true).open(&path).is_err());
        assert_eq!(xattr::set(&path, "user.x", b"x", 0), Err(Errno::EPERM));
    }
    assert_eq!(text(&files(&tree(&mount, ""))), ["d/model/deep/y.npy", "d/model/x.npy"]);
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 1);
    // A tool that goes through it meets nothing odd.
    let copy = mount.host().join("copy");
    run_ok(Command::new("cp").arg("-a").arg(tree(&mount, "d")).arg(&copy));
    assert_eq!(bytes(&copy.join("model/deep/y.npy")), b"def");
    run_ok(Command::new("cp").arg("-r").arg(tree(&mount, "d")).arg(mount.at("copy")));
    assert_eq!(bytes(&mount.at("copy/model/deep/y.npy")), b"def");
    run_ok(Command::new("tar").arg("-cf").arg(mount.host().join("x.tar")).arg("-C").arg(tree(&mount, "")).arg("d"));
    assert_eq!(run_ok(Command::new("find").arg(tree(&mount, "d")).args(["-type", "f"])).lines().count(), 2);
    run_ok(Command::new("cp").arg(mount.at(".tensorfs/info")).arg(mount.at("info")));
    assert!(fs::metadata(mount.at("info")).unwrap().len() > 100);
}
