//! Times: what moves which of them, and how exactly.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use tensorfs_tests::{Pattern, Setup, c_path, child, on_mounts, shell};

use super::errno;

on_mounts!(
    nanosecond_times,
    times_move_as_posix_says,
    access_times,
    noatime_of_the_mount,
    a_store_through_a_mapping_moves_the_modification_time,
    a_store_through_a_mapping_shows_to_whoever_asks_for_the_time_alone,
    truncating_an_empty_file_changes_its_times,
);

fn set_times(path: &Path, atime: (i64, i64), mtime: (i64, i64)) {
    let times =
        [libc::timespec { tv_sec: atime.0, tv_nsec: atime.1 }, libc::timespec { tv_sec: mtime.0, tv_nsec: mtime.1 }];
    let path = c_path(path);
    // SAFETY: plain system call with a path and two times.
    errno(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) })
        .unwrap();
}

/// Proves A1.
fn nanosecond_times(setup: Setup) {
    let mut mount = setup.mount();
    std::fs::write(mount.at("file"), "x").unwrap();
    std::fs::create_dir(mount.at("directory")).unwrap();
    symlink("file", mount.at("link")).unwrap();
    let times = [
        ((0, 0), (0, 1)),
        ((-1, 999_999_999), (-86400 * 365 * 60, 5)),
        ((1 << 33, 123_456_789), (1 << 32, 987_654_321)),
        // The bounds of ext4: 1901 and 2446.
        ((-(1 << 31), 0), (15_032_385_535, 999_999_999)),
        ((15_032_385_535, 0), (-(1 << 31), 0)),
    ];
    for (atime, mtime) in times {
        let check = |name: &str| {
            let meta = std::fs::symlink_metadata(mount.at(name)).unwrap();
            assert_eq!((meta.atime(), meta.atime_nsec()), atime, "atime of {name}");
            assert_eq!((meta.mtime(), meta.mtime_nsec()), mtime, "mtime of {name}");
        };
        for name in ["file", "directory", "link"] {
            set_times(&mount.at(name), atime, mtime);
            check(name);
        }
        mount.remount();
        for name in ["file", "directory", "link"] {
            let meta = std::fs::symlink_metadata(mount.at(name)).unwrap();
            assert_eq!((meta.atime(), meta.atime_nsec()), atime, "atime of {name}");
            assert_eq!((meta.mtime(), meta.mtime_nsec()), mtime, "mtime of {name}");
        }
    }
    // Set through a descriptor that is written through, then closed: cp -p and rsync do that.
    let mut file = File::create(mount.at("written")).unwrap();
    file.write_all(b"some bytes").unwrap();
    set_times(&mount.at("written"), (1_000_000_000, 1), (1_000_000_000, 2));
    drop(file);
    mount.remount();
    let meta = std::fs::metadata(mount.at("written")).unwrap();
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_000_000_000, 2));
}

fn times_move_as_posix_says(setup: Setup) {
    let mount = setup.mount();
    let old = (1_000_000_000, 0);
    let times = |name: &str| {
        let meta = std::fs::symlink_metadata(mount.at(name)).unwrap();
        ((meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec()))
    };
    std::fs::create_dir(mount.at("d")).unwrap();
    std::fs::write(mount.at("d/f"), "x").unwrap();
    let age = |name: &str| {
        set_times(&mount.at(name), old, old);
        times(name)
    };
    // A name made or removed moves the directory.
    for script in ["touch d/new", "mkdir d/sub", "mv d/new d/newer", "rm d/newer", "rmdir d/sub"] {
        let before = age("d");
        shell(mount.path(), script);
        let after = times("d");
        assert!(after.0 > before.0 && after.1 >= before.1, "{script}: {after:?}");
    }
    // Bytes move mtime and ctime; links, modes and names move ctime alone.
    let before = age("d/f");
    let mut file = OpenOptions::new().append(true).open(mount.at("d/f")).unwrap();
    file.write_all(b"more").unwrap();
    let after = times("d/f");
    assert!(after.0 > before.0 && after.1 >= before.1, "write: {before:?} {after:?}");
    drop(file);
    for script in ["ln d/f d/g", "chmod 600 d/f", "mv d/g d/h", "rm d/h", "setfattr -n user.a d/f || true"] {
        let before = age("d/f");
        std::thread::sleep(std::time::Duration::from_millis(10));
        shell(mount.path(), script);
        let after = times("d/f");
        assert_eq!(after.0, old, "{script} moved mtime");
        assert!(after.1 > before.1, "{script} did not move ctime");
    }
    let before = age("d/f");
    OpenOptions::new().write(true).open(mount.at("d/f")).unwrap().set_len(2).unwrap();
    assert!(times("d/f").0 > before.0, "truncate did not move mtime");
    // Stores through a mapping are seen, at the latest after msync.
    let before = age("d/f");
    let mut child = child(["do"]);
    let path = mount.at("d/f");
    assert_eq!(child.ask(&format!("open f rw {}", path.display())), "ok");
    assert_eq!(child.ask("map f m 2 w"), "ok");
    assert_eq!(child.ask("store m 0 1 2"), "ok");
    assert_eq!(child.ask("unmap m"), "ok");
    assert_eq!(child.ask("fsync f"), "ok");
    child.end();
    let _ = before; // native filesystems differ on when; only the bytes are certain
    assert_eq!(std::fs::read(&path).unwrap(), Pattern(1).bytes(0, 2));
}

/// Reads a file; not from the kernel's cache.
fn read_with(path: &Path, flags: i32) {
    let mut bytes = Vec::new();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).unwrap();
    // SAFETY: plain system call on an open descriptor.
    assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
    file.read_to_end(&mut bytes).unwrap();
    assert!(!bytes.is_empty());
}

fn atime(path: &Path) -> (i64, i64) {
    let meta = std::fs::symlink_metadata(path).unwrap();
    (meta.atime(), meta.atime_nsec())
}

/// Proves A2, X4.
fn access_times(setup: Setup) {
    let mut mount = setup.mount();
    let old = (1_000_000_000, 0);
    // What the host does, a file of the mount does.
    let on_host = mount.host().join("f");
    for path in [on_host.clone(), mount.at("f")] {
        std::fs::write(&path, "bytes").unwrap();
    }
    let now = (1_500_000_000, 0);
    for (flags, mtime) in [(libc::O_NOATIME, now), (0, now), (0, old)] {
        for path in [&on_host, &mount.at("f")] {
            set_times(path, old, mtime);
            read_with(path, flags);
        }
        let moved = [&on_host, &mount.at("f")].map(|path| atime(path) != old);
        assert_eq!(moved[0], moved[1], "flags {flags:x}: the host, the mount");
        assert!(flags == 0 || !moved[1], "O_NOATIME");
    }
    // It is recorded.
    set_times(&mount.at("f"), old, now);
    read_with(&mount.at("f"), 0);
    let read = atime(&mount.at("f"));
    mount.remount();
    assert_eq!(atime(&mount.at("f")), read);
    shell(mount.path(), "mkdir d; touch d/x; ln -s f link");
    for name in ["d", "link"] {
        set_times(&mount.at(name), old, now);
    }
    if !mount.is_plain() {
        shell(mount.path(), "ls -l d; cat link; readlink link");
        assert_eq!((atime(&mount.at("d")), atime(&mount.at("link"))), (old, old));
    }
}

/// Proves A2.
fn noatime_of_the_mount(setup: Setup) {
    let mut mount = setup.mount_with(["-o", "noatime"]).mount();
    if mount.is_plain() {
        return;
    }
    let (old, now) = ((1_000_000_000, 0), (1_500_000_000, 0));
    let path = mount.at("f");
    std::fs::write(&path, "bytes").unwrap();
    set_times(&path, old, now);
    read_with(&path, 0);
    assert_eq!(atime(&path), old);
    // While it is open, too, and when something else of it is recorded.
    let mut file = OpenOptions::new().read(true).append(true).open(&path).unwrap();
    let mut bytes = [0; 3];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(atime(&path), old);
    file.write_all(b"more").unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(atime(&path), old);
    mount.remount();
    assert_eq!(atime(&path), old);
    // Set by hand, it is set.
    set_times(&path, now, now);
    read_with(&path, 0);
    assert_eq!(atime(&path), now);
}

/// Proves A3.
fn a_store_through_a_mapping_moves_the_modification_time(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    std::fs::write(&path, vec![0; 8192]).unwrap();
    let old = (1_000_000_000, 0);
    set_times(&path, old, old);
    let mut child = child(["do"]);
    assert_eq!(child.ask(&format!("open f rw {}", path.display())), "ok");
    assert_eq!(child.ask("map f m 8192 w"), "ok");
    assert_eq!(child.ask("store m 0 1 5000"), "ok");
    // fsync of the file has its pages written back.
    assert_eq!(child.ask("fsync f"), "ok");
    let mtime = || std::fs::metadata(&path).unwrap().mtime();
    assert!(mtime() > old.0);
    set_times(&path, old, old);
    assert_eq!(child.ask("store m 5000 1 1000"), "ok");
    child.end();
    // Unmounting does, too.
    mount.remount();
    assert!(mtime() > old.0);
    assert_eq!(Pattern(1).mismatch(0, &std::fs::read(&path).unwrap()[..6000]), None);
}

/// The modification time alone, as `stat -c %Y` and `ls -l` ask for it: of what else the kernel has in mind it may have
/// to ask the server anew.
fn modified(path: &Path) -> (i64, u32) {
    let path = c_path(path);
    // SAFETY: plain data, for which zeroes are valid.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: a path that ends, and a place for the answer, both of which live for the call.
    let done = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_MTIME, &mut found) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec)
}

/// Proves A3.
fn a_store_through_a_mapping_shows_to_whoever_asks_for_the_time_alone(setup: Setup) {
    for (durability, sync) in [("close", false), ("fsync", false), ("fsync", true), ("close", true)] {
        let mut mount = setup.clone().mount_with(["--durability", durability]).mount();
        let path = mount.at("f");
        std::fs::write(&path, vec![0; 8192]).unwrap();
        // The file is closed for certain, and the kernel is told that nothing changes it.
        mount.remount();
        let before = modified(&path);
        std::thread::sleep(Duration::from_millis(20));
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        // SAFETY: nobody cuts the file.
        let mut mapping = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
        mapping[5] = 1;
        if sync {
            file.sync_all().unwrap();
        }
        drop((mapping, file));
        mount.sync();
        assert_ne!(modified(&path), before, "{durability}, fsync: {sync}");
        mount.umount();
    }
}

/// The records and the segment both have times, and an empty file is not replaced.
fn truncating_an_empty_file_changes_its_times(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("stamp");
    File::create(&path).unwrap();
    let old = TimeSpec::new(1_000_000_000, 5);
    utimensat(nix::fcntl::AT_FDCWD, &path, &old, &old, UtimensatFlags::FollowSymlink).unwrap();
    // The file is closed for certain.
    mount.remount();
    assert_eq!(std::fs::metadata(&path).unwrap().mtime(), 1_000_000_000);
    let file = File::create(&path).unwrap();
    let open = file.metadata().unwrap();
    assert!(open.mtime() > 1_000_000_000, "while it is open: {}", open.mtime());
    drop(file);
    mount.sync();
    let closed = std::fs::metadata(&path).unwrap();
    assert!(closed.mtime() > 1_000_000_000, "when it is closed: {}", closed.mtime());
}
