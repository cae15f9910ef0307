//! What a program may expect of a directory tree.

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::collections::BTreeSet;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tensorfs_tests::{Pattern, Setup, child, is_root, on_mounts, run_ok, shell};

on_mounts!(
    names_of_255_arbitrary_bytes,
    symlinks,
    nanosecond_times,
    times_move_as_posix_says,
    extended_attributes,
    access_control_lists,
    hard_links,
    nodes_of_every_kind,
    modes_and_owners,
    suid_bits_are_cleared_by_writing,
    suid_bits_are_cleared_by_a_chown_to_nobody_else,
    sgid_without_execute_is_cleared_by_an_outsider,
    removing_an_access_list_that_is_not_there_succeeds,
    an_attribute_with_an_empty_name_is_invalid,
    unlink_while_open,
    what_was_found_and_is_gone_can_still_be_opened,
    opening_what_others_delete_and_make_anew,
    a_removed_directory_can_be_changed_through_a_descriptor,
    a_removed_file_is_known_while_a_path_descriptor_is_open,
    rename_over_an_open_file,
    rename_noreplace_and_exchange,
    rename_refuses_what_it_must,
    open_exclusive,
    open_truncate,
    open_append_by_many,
    truncate_up_and_down,
    fallocate_modes,
    seek_hole_and_data,
    copy_file_range,
    copy_file_range_shares_bytes,
    locks_between_processes,
    statfs_numbers,
    stable_readdir_over_100_000_names,
    errors_for_wrong_objects,
    sparse_and_large_offsets,
    vectored_and_direct_io,
    many_open_files,
    control_tree_is_not_listed,
    inode_numbers_are_not_used_again,
    access_times,
    noatime_of_the_mount,
    a_store_through_a_mapping_moves_the_modification_time,
    locks_end_with_the_mount,
    what_is_not_there,
    a_program_that_runs_is_not_emptied,
    a_removed_file_shows_what_was_written_to_it,
    file_handles_outlive_the_server,
);

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn errno(result: libc::c_int) -> Result<(), Errno> {
    Errno::result(result).map(drop)
}

#[track_caller]
fn kind<T: std::fmt::Debug>(result: std::io::Result<T>) -> Errno {
    Errno::from_raw(result.expect_err("an error").raw_os_error().unwrap())
}

fn names(directory: &Path) -> BTreeSet<OsString> {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

/// Proves N1.
fn names_of_255_arbitrary_bytes(setup: Setup) {
    let mut mount = setup.mount();
    let mut want = BTreeSet::new();
    // Every byte that a name may hold, in names as long as they may be.
    let bytes: Vec<u8> = (1..=255).filter(|&b| b != b'/').collect();
    for shift in 0..16 {
        let mut name = bytes.clone();
        name.rotate_left(shift * 16);
        name.push(b'x');
        assert_eq!(name.len(), 255);
        want.insert(OsString::from_vec(name));
    }
    for name in ["...", " ", "-", "\n", "tensorfs", ".tensorfs2", "log", "segments"] {
        want.insert(name.into());
    }
    for name in &want {
        std::fs::write(mount.at(name), name.as_bytes()).unwrap();
    }
    assert_eq!(names(mount.path()), want);
    for length in [256, 1000] {
        let name = "n".repeat(length);
        assert_eq!(kind(File::create(mount.at(name))), Errno::ENAMETOOLONG);
    }
    mount.remount();
    assert_eq!(names(mount.path()), want);
    for name in &want {
        assert_eq!(std::fs::read(mount.at(name)).unwrap(), name.as_bytes());
        std::fs::remove_file(mount.at(name)).unwrap();
    }
    assert_eq!(names(mount.path()), BTreeSet::new());
}

fn symlinks(setup: Setup) {
    let mut mount = setup.mount();
    let long = "t".repeat(4000);
    for (name, target) in [("a", "file"), ("b", "/no/where"), ("long", &long), ("loop", "loop")] {
        symlink(target, mount.at(name)).unwrap();
    }
    std::fs::write(mount.at("file"), "content").unwrap();
    mount.remount();
    assert_eq!(std::fs::read_to_string(mount.at("a")).unwrap(), "content");
    assert_eq!(std::fs::read_link(mount.at("long")).unwrap(), Path::new(&long));
    assert_eq!(std::fs::symlink_metadata(mount.at("long")).unwrap().size(), 4000);
    assert_eq!(kind(File::open(mount.at("loop"))), Errno::ELOOP);
    assert_eq!(kind(symlink("x", mount.at("a"))), Errno::EEXIST);
}

fn set_times(path: &Path, atime: (i64, i64), mtime: (i64, i64)) {
    let times =
        [libc::timespec { tv_sec: atime.0, tv_nsec: atime.1 }, libc::timespec { tv_sec: mtime.0, tv_nsec: mtime.1 }];
    let path = c(path);
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

fn set_xattr(path: &Path, name: &str, value: &[u8], flags: i32) -> Result<(), Errno> {
    let (path, name) = (c(path), CString::new(name).unwrap());
    // SAFETY: plain system call; the value is as long as said.
    errno(unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) })
}

fn get_xattr(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let (path, name) = (c(path), CString::new(name).unwrap());
    let mut value = vec![0; 70000];
    // SAFETY: plain system call; the buffer is as long as said.
    let len = unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    Errno::result(len).map(|len| {
        value.truncate(len as usize);
        value
    })
}

fn remove_xattr(path: &Path, name: &str) -> Result<(), Errno> {
    let (path, name) = (c(path), CString::new(name).unwrap());
    // SAFETY: plain system call.
    errno(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) })
}

fn list_xattrs(path: &Path) -> BTreeSet<String> {
    let path = c(path);
    let mut list = vec![0; 70000];
    // SAFETY: plain system call; the buffer is as long as said.
    let len = unsafe { libc::llistxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len()) };
    list.truncate(Errno::result(len).unwrap() as usize);
    list.split(|&b| b == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8(name.to_vec()).unwrap())
        .filter(|name| !name.starts_with("security.") && !name.starts_with("user.tensorfs."))
        .collect()
}

/// Proves A4.
fn extended_attributes(setup: Setup) {
    let mut mount = setup.mount();
    let file = mount.at("file");
    std::fs::write(&file, "x").unwrap();
    std::fs::create_dir(mount.at("directory")).unwrap();
    let long_name = format!("user.{}", "n".repeat(250));
    let values: Vec<(&str, Vec<u8>)> = vec![
        ("user.empty", vec![]),
        ("user.with/slash", b"no part of a path".to_vec()),
        ("user...", b"nor this".to_vec()),
        ("user.binary", (0..=255).collect()),
        ("user.page", Pattern(1).bytes(0, 2000)),
        (&long_name, b"long".to_vec()),
    ];
    for path in [&file, &mount.at("directory")] {
        for (name, value) in &values {
            set_xattr(path, name, b"before", 0).unwrap();
            set_xattr(path, name, value, libc::XATTR_REPLACE).unwrap();
            assert_eq!(set_xattr(path, name, value, libc::XATTR_CREATE), Err(Errno::EEXIST));
        }
        assert_eq!(get_xattr(path, "user.none"), Err(Errno::ENODATA));
        assert_eq!(remove_xattr(path, "user.none"), Err(Errno::ENODATA));
        assert_eq!(set_xattr(path, "user.none", b"", libc::XATTR_REPLACE), Err(Errno::ENODATA));
    }
    if is_root() {
        set_xattr(&file, "trusted.a", b"trusted", 0).unwrap();
        set_xattr(&file, "security.a", b"security", 0).unwrap();
    }
    if !mount.is_plain() {
        // As long as the kernel lets them be.
        set_xattr(&file, "user.longest", &Pattern(2).bytes(0, 65536), 0).unwrap();
    }
    // A buffer that is too short is told so; no buffer asks for the length.
    let (path, name) = (c(&file), CString::new("user.page").unwrap());
    let mut buffer = [0u8; 10];
    // SAFETY: plain system calls; the buffer is as long as said.
    unsafe {
        let got = libc::getxattr(path.as_ptr(), name.as_ptr(), buffer.as_mut_ptr().cast(), 10);
        assert_eq!((got, Errno::last()), (-1, Errno::ERANGE));
        assert_eq!(libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0), 2000);
    }
    mount.remount();
    for path in [&file, &mount.at("directory")] {
        for (name, value) in &values {
            assert_eq!(get_xattr(path, name).as_ref(), Ok(value), "{name}");
        }
    }
    if !mount.is_plain() {
        assert_eq!(get_xattr(&file, "user.longest").unwrap(), Pattern(2).bytes(0, 65536));
        remove_xattr(&file, "user.longest").unwrap();
    }
    if is_root() {
        assert_eq!(get_xattr(&file, "trusted.a").unwrap(), b"trusted");
        assert_eq!(get_xattr(&file, "security.a").unwrap(), b"security");
        remove_xattr(&file, "trusted.a").unwrap();
    }
    let want: BTreeSet<String> = values.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(list_xattrs(&file), want);
    for (name, _) in &values {
        remove_xattr(&file, name).unwrap();
    }
    mount.remount();
    assert_eq!(list_xattrs(&file), BTreeSet::new());
    assert_eq!(list_xattrs(&mount.at("directory")), want);
}

/// Proves A4, A5.
fn access_control_lists(setup: Setup) {
    if std::process::Command::new("setfacl").arg("--version").output().is_err() {
        return setup.skip("setfacl is not installed");
    }
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mut mount = setup.mount();
    shell(
        mount.path(),
        "echo secret > f; chmod 600 f; setfacl -m u:12345:r,g:54321:rw f
         mkdir d; setfacl -m d:u:12345:rwx,d:o::- d; echo x > d/inherits; mkdir d/sub",
    );
    let acl = |name: &str| shell(mount.path(), &format!("getfacl -cn {name}"));
    let (file, inherits, sub) = (acl("f"), acl("d/inherits"), acl("d/sub"));
    assert!(file.contains("user:12345:r--"), "{file}");
    assert!(file.contains("mask::rw-"), "{file}");
    assert!(inherits.contains("user:12345:rwx") && inherits.contains("other::---"), "{inherits}");
    assert!(sub.contains("default:user:12345:rwx"), "{sub}");
    // The mode's group bits are the mask.
    assert_eq!(std::fs::metadata(mount.at("f")).unwrap().mode() & 0o777, 0o660);
    shell(mount.path(), "chmod g-rwx f");
    assert!(acl("f").contains("mask::---"), "{}", acl("f"));
    shell(mount.path(), "chmod g+r f");
    mount.remount();
    let acl = |name: &str| shell(mount.path(), &format!("getfacl -cn {name}"));
    assert_eq!(acl("d/inherits"), inherits);
    assert_eq!(acl("d/sub"), sub);
    // They are enforced.
    let as_user = |uid: u32, script: &str| {
        shell(
            mount.path(),
            &format!(
                "setpriv --reuid {uid} --regid {uid} --clear-groups bash -c '{script}' 2>/dev/null && echo yes || echo no"
            ),
        )
    };
    assert_eq!(as_user(12345, "cat f >/dev/null").trim(), "yes");
    assert_eq!(as_user(12346, "cat f >/dev/null").trim(), "no");
    assert_eq!(as_user(12345, "echo x >> f").trim(), "no");
}

/// Proves N5.
fn hard_links(setup: Setup) {
    let mut mount = setup.mount();
    std::fs::write(mount.at("a"), "one").unwrap();
    std::fs::create_dir(mount.at("d")).unwrap();
    std::fs::hard_link(mount.at("a"), mount.at("d/b")).unwrap();
    std::fs::hard_link(mount.at("d/b"), mount.at("c")).unwrap();
    assert_eq!(kind(std::fs::hard_link(mount.at("a"), mount.at("c"))), Errno::EEXIST);
    assert_eq!(kind(std::fs::hard_link(mount.at("d"), mount.at("e"))), Errno::EPERM);
    let mut file = OpenOptions::new().append(true).open(mount.at("c")).unwrap();
    file.write_all(b" two").unwrap();
    for name in ["a", "d/b", "c"] {
        assert_eq!(std::fs::read_to_string(mount.at(name)).unwrap(), "one two");
        assert_eq!(std::fs::metadata(mount.at(name)).unwrap().nlink(), 3);
    }
    drop(file);
    std::fs::remove_file(mount.at("a")).unwrap();
    mount.remount();
    let (b, c) = (std::fs::metadata(mount.at("d/b")).unwrap(), std::fs::metadata(mount.at("c")).unwrap());
    assert_eq!((b.ino(), b.nlink()), (c.ino(), 2));
    // Renaming one name of a file onto another of the same file does nothing.
    std::fs::rename(mount.at("c"), mount.at("d/b")).unwrap();
    assert!(mount.at("c").exists() && mount.at("d/b").exists());
    std::fs::remove_file(mount.at("c")).unwrap();
    assert_eq!(std::fs::read_to_string(mount.at("d/b")).unwrap(), "one two");
    assert_eq!(std::fs::metadata(mount.at("d/b")).unwrap().nlink(), 1);
    assert_eq!(std::fs::metadata(mount.path()).unwrap().nlink(), 3);
    // A thousand names.
    for n in 0..1000 {
        std::fs::hard_link(mount.at("d/b"), mount.at(format!("d/{n}"))).unwrap();
    }
    assert_eq!(std::fs::metadata(mount.at("d/7")).unwrap().nlink(), 1001);
    mount.remount();
    assert_eq!(std::fs::metadata(mount.at("d/7")).unwrap().nlink(), 1001);
}

/// Proves N6.
fn nodes_of_every_kind(setup: Setup) {
    let mut mount = setup.mount();
    let node = |name: &str, mode: u32, device: u64| {
        let path = c(&mount.at(name));
        // SAFETY: plain system call.
        errno(unsafe { libc::mknod(path.as_ptr(), mode, device) })
    };
    node("fifo", libc::S_IFIFO | 0o640, 0).unwrap();
    node("regular", libc::S_IFREG | 0o600, 0).unwrap();
    drop(std::os::unix::net::UnixListener::bind(mount.at("socket")).unwrap());
    let devices = is_root();
    if devices {
        node("null", libc::S_IFCHR | 0o666, libc::makedev(1, 3)).unwrap();
        node("loop", libc::S_IFBLK | 0o660, libc::makedev(7, 300)).unwrap();
    }
    assert_eq!(node("fifo", libc::S_IFIFO | 0o600, 0), Err(Errno::EEXIST));
    mount.remount();
    let kind = |name: &str| std::fs::symlink_metadata(mount.at(name)).unwrap().file_type();
    assert!(kind("fifo").is_fifo());
    assert!(kind("socket").is_socket());
    assert!(kind("regular").is_file());
    if devices {
        assert!(kind("null").is_char_device());
        assert!(kind("loop").is_block_device());
        let rdev = std::fs::metadata(mount.at("loop")).unwrap().rdev();
        assert_eq!((libc::major(rdev), libc::minor(rdev)), (7, 300));
    }
    if devices && !mount.is_plain() {
        assert_eq!(File::open(mount.at("null")).unwrap_err().raw_os_error(), Some(libc::EACCES), "the mount is nodev");
    }
    // They work: two processes meet in the FIFO and at the socket.
    assert_eq!(shell(mount.path(), "echo through > fifo & cat fifo; wait"), "through\n");
    std::fs::remove_file(mount.at("socket")).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(mount.at("socket")).unwrap();
    let path = mount.at("socket");
    let client = std::thread::spawn(move || {
        std::os::unix::net::UnixStream::connect(path).unwrap().write_all(b"hello").unwrap();
    });
    let mut text = String::new();
    listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
    client.join().unwrap();
    assert_eq!(text, "hello");
}

/// Proves A5.
fn modes_and_owners(setup: Setup) {
    let mut mount = setup.mount();
    shell(mount.path(), "umask 027; echo x > f; mkdir d; umask 0; echo x > g; mkdir e");
    let mode = |name: &str| std::fs::metadata(mount.at(name)).unwrap().mode() & 0o7777;
    assert_eq!([mode("f"), mode("d"), mode("g"), mode("e")], [0o640, 0o750, 0o666, 0o777]);
    for bits in [0, 0o1, 0o20, 0o400, 0o777, 0o1777, 0o7777] {
        std::fs::set_permissions(mount.at("e"), PermissionsExt::from_mode(bits)).unwrap();
        assert_eq!(mode("e"), bits);
    }
    std::fs::set_permissions(mount.at("e"), PermissionsExt::from_mode(0o3750)).unwrap();
    if is_root() {
        std::os::unix::fs::chown(mount.at("f"), Some(1234), Some(5678)).unwrap();
        std::os::unix::fs::chown(mount.at("f"), None, Some(u32::MAX - 1)).unwrap();
        std::os::unix::fs::chown(mount.at("e"), Some(0), Some(777)).unwrap();
        // A set-group-ID directory gives its group away.
        std::fs::set_permissions(mount.at("e"), PermissionsExt::from_mode(0o2755)).unwrap();
        shell(mount.path(), "echo x > e/child; mkdir e/sub");
    }
    mount.remount();
    if is_root() {
        let meta = std::fs::metadata(mount.at("f")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (1234, u32::MAX - 1));
        assert_eq!(std::fs::metadata(mount.at("e/child")).unwrap().gid(), 777);
        let sub = std::fs::metadata(mount.at("e/sub")).unwrap();
        assert_eq!((sub.gid(), sub.mode() & 0o2000), (777, 0o2000));
        // Permissions are checked for others than root.
        std::fs::set_permissions(mount.at("f"), PermissionsExt::from_mode(0o400)).unwrap();
        let who = |uid: u32, what: &str| {
            shell(
                mount.path(),
                &format!(
                    "setpriv --reuid {uid} --regid {uid} --clear-groups bash -c '{what}' 2>/dev/null && echo yes || echo no"
                ),
            )
        };
        assert_eq!(who(1234, "cat f > /dev/null").trim(), "yes");
        assert_eq!(who(1235, "cat f > /dev/null").trim(), "no");
        assert_eq!(who(1235, "rm -f f").trim(), "no");
        assert_eq!(who(1234, "chmod 777 g").trim(), "no");
    }
    assert_eq!(std::fs::metadata(mount.at("d")).unwrap().mode() & 0o7777, 0o750);
}

/// Proves A5.
fn suid_bits_are_cleared_by_writing(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = setup.mount();
    for script in ["echo more >> f", "truncate -s 1 f", "printf x | dd of=f conv=notrunc status=none"] {
        shell(mount.path(), "rm -f f; echo some > f; chown 1234:1234 f; chmod 6777 f");
        shell(mount.path(), &format!("setpriv --reuid 1234 --regid 1234 --clear-groups bash -c '{script}'"));
        let mode = std::fs::metadata(mount.at("f")).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o777, "{script} left mode {mode:o}");
    }
    shell(mount.path(), "chmod 6777 f; chown 1235:1235 f");
    let mode = std::fs::metadata(mount.at("f")).unwrap().mode() & 0o7777;
    assert_eq!(mode, 0o777, "chown left mode {mode:o}");
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

/// Who opens a file finds it first. What is removed or replaced in between is still there for who found it, however long
/// that takes: it was gone once, and the program heard `ENOENT` of a name that was always there, or `ESTALE`. Found by the
/// model test and by examples/kernels.
///
/// Proves X5.
fn what_was_found_and_is_gone_can_still_be_opened(setup: Setup) {
    let mount = setup.mount();
    let found = |name: &str| OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(mount.at(name)).unwrap();
    std::fs::write(mount.at("f"), "old").unwrap();
    std::fs::write(mount.at("g"), "removed").unwrap();
    let (replaced, removed) = (found("f"), found("g"));
    std::fs::write(mount.at("new"), "new").unwrap();
    std::fs::rename(mount.at("new"), mount.at("f")).unwrap();
    std::fs::remove_file(mount.at("g")).unwrap();
    for _ in 0..2 {
        for (found, content) in [(&replaced, "old"), (&removed, "removed")] {
            let again = format!("/proc/self/fd/{}", found.as_raw_fd());
            assert_eq!(std::fs::read_to_string(&again).unwrap(), content);
            OpenOptions::new().write(true).open(&again).unwrap();
            std::fs::set_permissions(&again, std::fs::Permissions::from_mode(0o600)).unwrap();
            assert_eq!(found.metadata().unwrap().nlink(), 0);
        }
        if !mount.is_plain() {
            mount.sync();
        }
    }
    assert_eq!(std::fs::read(mount.at("f")).unwrap(), b"new");
}

/// A program that opens what others delete and make anew, or replace, all the time finds it or not, and nothing else: it got
/// `ESTALE` within seconds. Found by examples/kernels.
///
/// Proves X5.
fn opening_what_others_delete_and_make_anew(setup: Setup) {
    const READS: usize = 2000;
    let mount = setup.mount();
    let (f, g) = (mount.at("f"), mount.at("g"));
    std::fs::write(&g, "g").unwrap();
    let read = |path: &Path| {
        for _ in 0..READS {
            match std::fs::read(path) {
                Err(error) if error.kind() == ErrorKind::NotFound && path == f => {}
                content => drop(content.unwrap_or_else(|error| panic!("{}: {error}", path.display()))),
            }
        }
    };
    std::thread::scope(|scope| {
        let readers = [&f, &f, &g, &g].map(|path| scope.spawn(|| read(path)));
        while !readers.iter().all(|reader| reader.is_finished()) {
            std::fs::write(&f, "f").unwrap();
            std::fs::write(mount.at("new"), "g").unwrap();
            std::fs::rename(mount.at("new"), &g).unwrap();
            std::fs::remove_file(&f).unwrap();
        }
    });
}

/// The attributes of a removed directory could not be changed: it was gone for the server while a process was in it.
fn a_removed_directory_can_be_changed_through_a_descriptor(setup: Setup) {
    let mount = setup.mount();
    std::fs::create_dir(mount.at("d")).unwrap();
    let dir = File::open(mount.at("d")).unwrap();
    std::fs::remove_dir(mount.at("d")).unwrap();
    dir.set_permissions(std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(dir.metadata().unwrap().mode() & 0o7777, 0o700);
    if !mount.is_plain() {
        mount.sync();
        dir.set_permissions(std::fs::Permissions::from_mode(0o711)).unwrap();
    }
}

/// What was written to it after it had lost its name was missing in its size, and through the server in its bytes. Found by
/// the model test.
///
/// Proves X5.
fn a_removed_file_shows_what_was_written_to_it(setup: Setup) {
    let mount = setup.mount();
    for before in [0, 100, 10_000] {
        std::fs::write(mount.at("f"), vec![1; before]).unwrap();
        mount.sync();
        let found = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(mount.at("f")).unwrap();
        let writer = OpenOptions::new().write(true).open(mount.at("f")).unwrap();
        std::fs::remove_file(mount.at("f")).unwrap();
        let then = found.metadata().unwrap();
        writer.set_len(0).unwrap();
        writer.write_all_at(&Pattern(1).bytes(0, 4096), 0).unwrap();
        drop(writer);
        // The server hears of the close behind it.
        for _ in 0..20 {
            let now = found.metadata().unwrap();
            assert_eq!((now.len(), now.nlink()), (4096, 0), "{before} bytes before");
            assert!(now.modified().unwrap() >= then.modified().unwrap());
            std::thread::sleep(Duration::from_millis(5));
        }
        let bytes = std::fs::read(format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap();
        assert!(bytes == Pattern(1).bytes(0, 4096), "{before} bytes before");
    }
}

/// It was forgotten at the last close. A `stat` that met the file before another was renamed over its name, and asked
/// about it after that, said that there was nothing of that name. Found by the model test.
fn a_removed_file_is_known_while_a_path_descriptor_is_open(setup: Setup) {
    let mount = setup.mount();
    let file = File::create(mount.at("f")).unwrap();
    let path = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(mount.at("f")).unwrap();
    std::fs::remove_file(mount.at("f")).unwrap();
    drop(file);
    for _ in 0..50 {
        assert_eq!(path.metadata().expect("the file is still there").nlink(), 0);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// `chown(path, -1, -1)` names nobody, and takes the bits all the same. Found by the model test.
fn suid_bits_are_cleared_by_a_chown_to_nobody_else(setup: Setup) {
    let mut mount = setup.mount();
    std::fs::write(mount.at("f"), "x").unwrap();
    std::fs::set_permissions(mount.at("f"), std::fs::Permissions::from_mode(0o6755)).unwrap();
    if is_root() {
        // Not by somebody else, though.
        let change = "python3 -c 'import os; os.chown(\"f\", -1, -1)'";
        shell(mount.path(), &format!("! setpriv --reuid 1234 --regid 1234 --clear-groups {change} 2>/dev/null"));
        assert_eq!(mode(&mount.at("f")), 0o6755);
    }
    std::os::unix::fs::chown(mount.at("f"), None, None).unwrap();
    assert_eq!(mode(&mount.at("f")), 0o755);
    mount.remount();
    assert_eq!(mode(&mount.at("f")), 0o755);
}

/// Set-group-id without execute is no privilege, but who is not in the group could not have set it. Found by the model
/// test.
fn sgid_without_execute_is_cleared_by_an_outsider(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = setup.mount();
    for (group, left) in [("4321", 0o666), ("4321 --groups 1234", 0o2666), ("1234", 0o2666)] {
        shell(mount.path(), "rm -f f; echo some > f; chown 1:1234 f; chmod 2666 f");
        let groups = if group.contains("--groups") { "" } else { "--clear-groups" };
        shell(mount.path(), &format!("setpriv --reuid 1235 --regid {group} {groups} bash -c 'echo more >> f'"));
        assert_eq!(mode(&mount.at("f")), left, "in group {group}");
    }
}

/// Found by the model test.
fn removing_an_access_list_that_is_not_there_succeeds(setup: Setup) {
    let mount = setup.mount();
    std::fs::create_dir(mount.at("d")).unwrap();
    for name in ["system.posix_acl_access", "system.posix_acl_default"] {
        assert_eq!(remove_xattr(&mount.at("d"), name), Ok(()), "{name}");
    }
    assert_eq!(remove_xattr(&mount.at("d"), "user.x"), Err(Errno::ENODATA));
}

/// Found by the model test.
fn an_attribute_with_an_empty_name_is_invalid(setup: Setup) {
    let mount = setup.mount();
    std::fs::write(mount.at("f"), "x").unwrap();
    assert_eq!(get_xattr(&mount.at("f"), "user."), Err(Errno::EINVAL));
    assert_eq!(set_xattr(&mount.at("f"), "user.", b"x", 0), Err(Errno::EINVAL));
    assert_eq!(remove_xattr(&mount.at("f"), "user."), Err(Errno::EINVAL));
    assert_eq!(get_xattr(&mount.at("f"), "bogus.x"), Err(Errno::EOPNOTSUPP));
}

/// Proves N4.
fn unlink_while_open(setup: Setup) {
    let mut mount = setup.mount();
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(mount.at("f")).unwrap();
    file.write_all(b"before").unwrap();
    std::fs::remove_file(mount.at("f")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b" after").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before after");
    file.set_len(3).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);
    // The name is free at once, for something else.
    std::fs::write(mount.at("f"), "another").unwrap();
    assert_ne!(file.metadata().unwrap().ino(), std::fs::metadata(mount.at("f")).unwrap().ino());
    file.seek(SeekFrom::Start(0)).unwrap();
    text.clear();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "bef");
    // A directory that somebody is in.
    std::fs::create_dir(mount.at("d")).unwrap();
    let directory = File::open(mount.at("d")).unwrap();
    std::fs::remove_dir(mount.at("d")).unwrap();
    assert_eq!(directory.metadata().unwrap().nlink(), 0);
    drop((file, directory));
    mount.remount();
    assert_eq!(names(mount.path()), ["f".into()].into());
    assert_eq!(std::fs::read_to_string(mount.at("f")).unwrap(), "another");
}

fn rename_over_an_open_file(setup: Setup) {
    let mut mount = setup.mount();
    std::fs::write(mount.at("old"), "the old content").unwrap();
    std::fs::write(mount.at("new"), "the new content, longer").unwrap();
    let mut old = File::open(mount.at("old")).unwrap();
    let new = OpenOptions::new().append(true).open(mount.at("new")).unwrap();
    std::fs::rename(mount.at("new"), mount.at("old")).unwrap();
    (&new).write_all(b", and more").unwrap();
    let mut text = String::new();
    old.read_to_string(&mut text).unwrap();
    assert_eq!(text, "the old content");
    assert_eq!(std::fs::read_to_string(mount.at("old")).unwrap(), "the new content, longer, and more");
    drop((old, new));
    mount.remount();
    assert_eq!(names(mount.path()), ["old".into()].into());
    assert_eq!(std::fs::read_to_string(mount.at("old")).unwrap(), "the new content, longer, and more");
}

fn rename2(from: &Path, to: &Path, flags: u32) -> Result<(), Errno> {
    let (from, to) = (c(from), c(to));
    // SAFETY: plain system call with two paths.
    errno(unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) })
}

/// Proves N3, X3.
fn rename_noreplace_and_exchange(setup: Setup) {
    let mut mount = setup.mount();
    shell(mount.path(), "echo a > a; echo b > b; mkdir d e; echo x > d/x; echo y > e/y");
    let (noreplace, exchange) = (libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE);
    assert_eq!(rename2(&mount.at("a"), &mount.at("b"), noreplace), Err(Errno::EEXIST));
    assert_eq!(rename2(&mount.at("a"), &mount.at("d"), noreplace), Err(Errno::EEXIST));
    rename2(&mount.at("a"), &mount.at("new"), noreplace).unwrap();
    assert_eq!(rename2(&mount.at("new"), &mount.at("none"), exchange), Err(Errno::ENOENT));
    rename2(&mount.at("new"), &mount.at("b"), exchange).unwrap();
    // A file with a directory, and two directories; parents change.
    rename2(&mount.at("b"), &mount.at("d"), exchange).unwrap();
    rename2(&mount.at("b"), &mount.at("e"), exchange).unwrap();
    rename2(&mount.at("e/x"), &mount.at("b"), exchange).unwrap();
    assert_eq!(rename2(&mount.at("d"), &mount.at("e"), noreplace | exchange), Err(Errno::EINVAL));
    assert_eq!(rename2(&mount.at("e"), &mount.at("e/x"), exchange), Err(Errno::EINVAL));
    if !mount.is_plain() {
        assert_eq!(rename2(&mount.at("new"), &mount.at("x"), libc::RENAME_WHITEOUT), Err(Errno::EINVAL));
    }
    let want = "./b\n./d\n./e\n./e/x\n./e/x/y\n./new\n";
    for _ in 0..2 {
        assert_eq!(shell(mount.path(), "find . -mindepth 1 | sort"), want);
        assert_eq!(shell(mount.path(), "cat new d b e/x/y"), "b\na\nx\ny\n");
        assert_eq!(std::fs::metadata(mount.path()).unwrap().nlink(), 3);
        assert_eq!(std::fs::metadata(mount.at("e")).unwrap().nlink(), 3);
        mount.remount();
    }
}

fn rename_refuses_what_it_must(setup: Setup) {
    let mount = setup.mount();
    shell(mount.path(), "mkdir -p d/sub full/x empty; echo f > f");
    let rename = |from: &str, to: &str| kind(std::fs::rename(mount.at(from), mount.at(to)));
    assert_eq!(rename("d", "d/sub/inside"), Errno::EINVAL);
    assert_eq!(rename("d", "full"), Errno::ENOTEMPTY);
    assert_eq!(rename("f", "empty"), Errno::EISDIR);
    assert_eq!(rename("empty", "f"), Errno::ENOTDIR);
    assert_eq!(rename("none", "f"), Errno::ENOENT);
    assert_eq!(rename("f", "none/f"), Errno::ENOENT);
    assert_eq!(rename("f", "f/f"), Errno::ENOTDIR);
    let long = "n".repeat(256);
    assert_eq!(rename("f", &long), Errno::ENAMETOOLONG);
    std::fs::rename(mount.at("d"), mount.at("empty")).unwrap();
    assert!(mount.at("empty/sub").is_dir());
    // To another filesystem: mv copies, rename says why not.
    assert_eq!(kind(std::fs::rename("/proc/self/status", mount.at("x"))), Errno::EXDEV);
}

fn open_exclusive(setup: Setup) {
    let mount = setup.mount();
    let claim = |name: &str| OpenOptions::new().write(true).create_new(true).open(mount.at(name));
    claim("f").unwrap();
    assert_eq!(kind(claim("f")), Errno::EEXIST);
    symlink("nowhere", mount.at("link")).unwrap();
    assert_eq!(kind(claim("link")), Errno::EEXIST);
    std::fs::create_dir(mount.at("d")).unwrap();
    assert_eq!(kind(claim("d")), Errno::EEXIST);
    // Of many that try at once, one wins, every time.
    let directory = mount.path().to_owned();
    let wins: Vec<usize> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    (0..200)
                        .filter(|n| {
                            let path = directory.join(format!("claim-{n}"));
                            OpenOptions::new().write(true).create_new(true).open(path).is_ok()
                        })
                        .count()
                })
            })
            .collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).collect()
    });
    assert_eq!(wins.iter().sum::<usize>(), 200, "{wins:?}");
}

fn open_truncate(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    for (round, len) in [(1, 5_000_000), (2, 10), (3, 0), (4, 300_000), (5, 300_000)] {
        let mut file = File::create(&path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        let ino = file.metadata().unwrap().ino();
        file.write_all(&Pattern(round).bytes(0, len)).unwrap();
        assert_eq!(file.metadata().unwrap().len(), len as u64);
        drop(file);
        assert_eq!(std::fs::read(&path).unwrap(), Pattern(round).bytes(0, len));
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), ino);
        if round % 2 == 0 {
            mount.remount();
            assert_eq!(std::fs::read(&path).unwrap(), Pattern(round).bytes(0, len));
        }
    }
    // Through another open file, which goes on.
    let reader = File::open(&path).unwrap();
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    drop(File::create(&path).unwrap());
    assert_eq!(reader.metadata().unwrap().len(), 0);
    writer.write_all_at(b"again", 0).unwrap();
    let mut bytes = [0; 5];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"again");
    // Back to back, many times: releases lag behind closes.
    for n in 0..200u64 {
        std::fs::write(mount.at("often"), Pattern(n).bytes(0, (n as usize * 37) % 5000)).unwrap();
    }
    assert_eq!(std::fs::read(mount.at("often")).unwrap(), Pattern(199).bytes(0, 199 * 37 % 5000));
}

fn open_append_by_many(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("log");
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let path = &path;
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
                for n in 0..300 {
                    file.write_all(format!("{writer} {n:04} {}\n", "x".repeat(n % 90)).as_bytes()).unwrap();
                }
            });
        }
    });
    for _ in 0..2 {
        let text = std::fs::read_to_string(&path).unwrap();
        let mut next = [0; 8];
        for line in text.lines() {
            let (writer, n): (usize, usize) = (line[..1].parse().unwrap(), line[2..6].parse().unwrap());
            assert_eq!(n, next[writer], "writer {writer}'s lines are out of order");
            assert_eq!(line.len(), 7 + n % 90, "a torn line: {line:?}");
            next[writer] += 1;
        }
        assert_eq!(next, [300; 8]);
        mount.remount();
    }
    // O_APPEND ignores where it stands; pwrite on it appends, too (Linux).
    let file = OpenOptions::new().append(true).open(&path).unwrap();
    let before = file.metadata().unwrap().len();
    file.write_at(b"end", 0).unwrap();
    assert_eq!(file.metadata().unwrap().len(), before + 3);
}

fn truncate_up_and_down(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    let mut want = Pattern(1).bytes(0, 100_000);
    std::fs::write(&path, &want).unwrap();
    for (n, size) in [50_000, 49_999, 200_000, 4096, 10_000_000, 4097, 0, 1].into_iter().enumerate() {
        if n % 2 == 0 {
            OpenOptions::new().write(true).open(&path).unwrap().set_len(size).unwrap();
        } else {
            let (path, size) = (c(&path), size as i64);
            // SAFETY: plain system call.
            errno(unsafe { libc::truncate(path.as_ptr(), size) }).unwrap();
        }
        want.resize(size as usize, 0);
        assert!(std::fs::read(&path).unwrap() == want, "after truncate to {size}");
        if n % 3 == 2 {
            mount.remount();
            assert!(std::fs::read(&path).unwrap() == want, "after truncate to {size} and remount");
        }
    }
    // What was cut off does not come back.
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&Pattern(2).bytes(0, 9000), 0).unwrap();
    file.set_len(100).unwrap();
    file.write_all_at(b"z", 8000).unwrap();
    want = Pattern(2).bytes(0, 100);
    want.resize(8000, 0);
    want.push(b'z');
    assert!(std::fs::read(&path).unwrap() == want);
    drop(file);
    mount.remount();
    assert!(std::fs::read(&path).unwrap() == want);
}

fn fallocate(file: &File, mode: i32, offset: i64, len: i64) -> Result<(), Errno> {
    // SAFETY: plain system call.
    errno(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) })
}

/// Proves F6, X3.
fn fallocate_modes(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let meta = || file.metadata().unwrap();
    fallocate(&file, 0, 0, 1 << 20).unwrap();
    assert_eq!(meta().len(), 1 << 20);
    assert!(meta().blocks() * 512 >= 1 << 20, "{} blocks", meta().blocks());
    fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 1 << 20, 1 << 20).unwrap();
    assert_eq!(meta().len(), 1 << 20);
    assert!(meta().blocks() * 512 >= 2 << 20, "{} blocks", meta().blocks());
    let mut want = Pattern(1).bytes(0, 1 << 20);
    file.write_all_at(&want, 0).unwrap();
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, punch, 10_000, 100_000).unwrap();
    want[10_000..110_000].fill(0);
    fallocate(&file, libc::FALLOC_FL_ZERO_RANGE, 500_000, 30_000).unwrap();
    want[500_000..530_000].fill(0);
    assert!(std::fs::read(&path).unwrap() == want);
    fallocate(&file, libc::FALLOC_FL_ZERO_RANGE, (1 << 20) - 10, 1000).unwrap();
    want[(1 << 20) - 10..].fill(0);
    want.resize((1 << 20) + 990, 0);
    assert_eq!(meta().len(), want.len() as u64);
    fallocate(&file, libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, 2 << 20, 4096).unwrap();
    assert_eq!(meta().len(), want.len() as u64);
    assert!(std::fs::read(&path).unwrap() == want);
    // Punching gives space back.
    let before = meta().blocks();
    fallocate(&file, punch, 600_000, 400_000).unwrap();
    want[600_000..1_000_000].fill(0);
    assert!(meta().blocks() + 700 < before, "{before} {}", meta().blocks());
    assert_eq!(fallocate(&file, libc::FALLOC_FL_PUNCH_HOLE, 0, 10), Err(Errno::EOPNOTSUPP));
    if !mount.is_plain() {
        for mode in [libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE, libc::FALLOC_FL_UNSHARE_RANGE] {
            assert_eq!(fallocate(&file, mode, 0, 4096), Err(Errno::EOPNOTSUPP));
        }
    }
    assert_eq!(fallocate(&file, 0, -1, 10), Err(Errno::EINVAL));
    assert_eq!(fallocate(&file, 0, 0, 0), Err(Errno::EINVAL));
    let read_only = File::open(&path).unwrap();
    assert_eq!(fallocate(&read_only, 0, 0, 10), Err(Errno::EBADF));
    drop((file, read_only));
    mount.remount();
    assert!(std::fs::read(&path).unwrap() == want);
}

/// Proves F5.
fn seek_hole_and_data(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    let file = File::create(&path).unwrap();
    file.set_len(10 << 20).unwrap();
    file.write_all_at(&Pattern(1).bytes(0, 4096), 2 << 20).unwrap();
    file.write_all_at(&Pattern(1).bytes(0, 65536), 6 << 20).unwrap();
    drop(file);
    // Holes are as fine as the host's blocks; find every one of them.
    let map = |path: &Path| {
        let file = File::open(path).unwrap();
        let (mut at, mut map) = (0, Vec::new());
        loop {
            // SAFETY: plain system calls.
            let data = unsafe { libc::lseek(file.as_raw_fd(), at, libc::SEEK_DATA) };
            if data < 0 {
                assert_eq!(Errno::last(), Errno::ENXIO);
                return map;
            }
            // SAFETY: the same.
            at = unsafe { libc::lseek(file.as_raw_fd(), data, libc::SEEK_HOLE) };
            assert!(at > data);
            map.push((data, at));
        }
    };
    let want = vec![(2 << 20, (2 << 20) + 4096), (6 << 20, (6 << 20) + 65536)];
    assert_eq!(map(&path), want);
    mount.remount();
    assert_eq!(map(&path), want);
    let file = File::open(&path).unwrap();
    // SAFETY: plain system call.
    let beyond = unsafe { libc::lseek(file.as_raw_fd(), 11 << 20, libc::SEEK_HOLE) };
    assert_eq!((beyond, Errno::last()), (-1, Errno::ENXIO));
}

/// On a host that can: XFS.
///
/// Proves F7.
fn copy_file_range_shares_bytes(setup: Setup) {
    let disk = match tensorfs_tests::Disk::new(&["mkfs.xfs", "-q", "-m", "reflink=1"], 320) {
        Ok(disk) => disk,
        Err(reason) => return setup.skip(&reason),
    };
    let mount = setup.pool_at(disk.at("pool")).mount();
    std::fs::write(mount.at("from"), Pattern(1).bytes(0, 20 << 20)).unwrap();
    mount.sync();
    let free = || {
        shell(&disk.path(), "sync -f .");
        let host = nix::sys::statvfs::statvfs(&disk.path()).unwrap();
        host.blocks_available() * host.fragment_size()
    };
    let before = free();
    shell(
        mount.path(),
        "cp --reflink=auto from copied; cp --reflink=auto from shared; cmp from copied; cmp from shared",
    );
    let taken = before - free();
    assert!(taken < 10 << 20, "two copies of 20 MiB took {taken} bytes");
    if !mount.is_plain() {
        let counters = &mount.info()["counters"];
        assert_eq!((&counters["shared_bytes"], &counters["copied_bytes"]), (&(40 << 20).into(), &0.into()));
        // More than one answer can say.
        shell(mount.path(), "truncate -s 5G long; printf end >> long");
        let (from, to) = (File::open(mount.at("long")).unwrap(), File::create(mount.at("long2")).unwrap());
        while nix::fcntl::copy_file_range(&from, None, &to, None, usize::MAX >> 2).expect("copy_file_range") > 0 {}
        assert_eq!(to.metadata().unwrap().len(), (5 << 30) + 3);
        assert_eq!(shell(mount.path(), "tail -c 3 long2"), "end");
        let counters = &mount.info()["counters"];
        let all: u64 = (5 << 30) + (40 << 20) + 3;
        assert_eq!((&counters["shared_bytes"], &counters["copied_bytes"]), (&all.into(), &0.into()));
    }
    // What is shared is not the same file.
    OpenOptions::new().write(true).open(mount.at("shared")).unwrap().write_all_at(b"other", 5000).unwrap();
    assert_eq!(Pattern(1).mismatch(0, &std::fs::read(mount.at("from")).unwrap()), None);
}

/// Proves F7.
fn copy_file_range(setup: Setup) {
    let mut mount = setup.mount();
    let bytes = Pattern(1).bytes(0, 3_000_000);
    std::fs::write(mount.at("from"), &bytes).unwrap();
    std::fs::write(mount.host().join("outside"), &bytes).unwrap();
    let copy = |from: &File, to: &File, mut at_from: i64, mut at_to: i64, len: usize| {
        let mut left = len;
        while left > 0 {
            // SAFETY: plain system call; both offsets live on this stack.
            let n =
                unsafe { libc::copy_file_range(from.as_raw_fd(), &mut at_from, to.as_raw_fd(), &mut at_to, left, 0) };
            let n = Errno::result(n).expect("copy_file_range") as usize;
            assert!(n > 0 && n <= left);
            left -= n;
        }
    };
    let from = File::open(mount.at("from")).unwrap();
    let to = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(mount.at("to")).unwrap();
    copy(&from, &to, 1000, 5000, 2_000_000);
    let mut want = vec![0; 5000];
    want.extend_from_slice(&bytes[1000..2_001_000]);
    assert!(std::fs::read(mount.at("to")).unwrap() == want);
    // Within one file, over what is there.
    let both = OpenOptions::new().read(true).write(true).open(mount.at("to")).unwrap();
    copy(&both, &both, 0, 1_000_000, 100_000);
    let part = want[..100_000].to_vec();
    want[1_000_000..1_100_000].copy_from_slice(&part);
    assert!(std::fs::read(mount.at("to")).unwrap() == want);
    assert_eq!(to.metadata().unwrap().len(), want.len() as u64);
    drop((from, to, both));
    mount.remount();
    assert!(std::fs::read(mount.at("to")).unwrap() == want);
    // At and behind the end there is nothing to copy.
    let from = File::open(mount.at("from")).unwrap();
    let to = File::create(mount.at("other")).unwrap();
    let mut end = 3_000_000i64;
    // SAFETY: as above.
    let n = unsafe { libc::copy_file_range(from.as_raw_fd(), &mut end, to.as_raw_fd(), std::ptr::null_mut(), 10, 0) };
    assert_eq!(n, 0);
}

/// Proves L1.
fn locks_between_processes(setup: Setup) {
    let mount = setup.mount();
    let path = mount.at("f");
    std::fs::write(&path, "x".repeat(100)).unwrap();
    let (mut one, mut two) = (child(["do"]), child(["do"]));
    for child in [&mut one, &mut two] {
        assert_eq!(child.ask(&format!("open f rw {}", path.display())), "ok");
        assert_eq!(child.ask(&format!("open g rw {}", path.display())), "ok");
    }
    let again = format!("error {}", libc::EAGAIN);
    assert_eq!(one.ask("flock f sh"), "ok");
    assert_eq!(two.ask("flock f sh"), "ok");
    assert_eq!(two.ask("flock f ex"), again);
    assert_eq!(one.ask("flock f un"), "ok");
    assert_eq!(two.ask("flock f ex"), "ok");
    assert_eq!(one.ask("flock f sh"), again);
    assert_eq!(two.ask("flock g sh"), again, "two opens of one process are two owners");
    assert_eq!(two.ask("close f"), "ok");
    assert_eq!(one.ask("flock f ex"), "ok", "closing gives a lock up");
    // Record locks are by range and by process.
    assert_eq!(one.ask("lock f w 0 10"), "ok");
    assert_eq!(two.ask("lock g w 10 10"), "ok");
    assert_eq!(two.ask("lock g r 5 10"), again);
    assert_eq!(one.ask("lock f w 15 1"), again);
    assert_eq!(one.ask("lock g r 0 5"), "ok", "its own lock is not in its way");
    assert_eq!(two.ask("lock g r 0 5"), "ok", "two readers share");
    assert_eq!(two.ask("lock g w 5 5"), again);
    assert_eq!(one.ask("close g"), "ok");
    assert_eq!(two.ask("lock g w 5 5"), "ok", "closing any descriptor gives them all up");
    one.end();
    two.end();
}

/// Proves S2.
fn statfs_numbers(setup: Setup) {
    let mount = setup.mount();
    let numbers = || nix::sys::statvfs::statvfs(mount.path()).unwrap();
    let free = |s: &nix::sys::statvfs::Statvfs| s.blocks_available() * s.fragment_size();
    let before = numbers();
    assert_eq!(before.name_max(), 255);
    assert!(before.blocks() >= before.blocks_free());
    assert!(before.blocks_free() >= before.blocks_available());
    std::fs::write(mount.at("f"), Pattern(1).bytes(0, 30 << 20)).unwrap();
    mount.sync();
    let with = numbers();
    let taken = free(&before) as i64 - free(&with) as i64;
    // Other tests use the same disk at the same time: 30 MiB, give or take what they do.
    let host = nix::sys::statvfs::statvfs(&mount.host()).unwrap();
    if !mount.is_plain() {
        let host_free = host.blocks_available() * host.fragment_size();
        let drift = free(&with).abs_diff(host_free);
        assert!(drift < 512 << 20, "free {} but the host says {host_free}", free(&with));
    }
    eprintln!("30 MiB took {taken} bytes of free space");
    let count = |s: &nix::sys::statvfs::Statvfs| s.files() as i64 - s.files_free() as i64;
    let files_before = count(&with);
    for n in 0..50 {
        File::create(mount.at(format!("n{n}"))).unwrap();
    }
    if !mount.is_plain() {
        assert_eq!(count(&numbers()) - files_before, 50);
    }
    assert!(shell(mount.path(), "df -P . && df -Pi . && du -s f").contains("f"));
}

/// Proves N2.
fn stable_readdir_over_100_000_names(setup: Setup) {
    let mut mount = setup.mount();
    let directory = mount.at("d");
    std::fs::create_dir(&directory).unwrap();
    let name = |n: usize| format!("file-{n:06}-{}", "x".repeat(n % 40));
    // Hard links: names are what is counted here, and they are made fast.
    for n in 0..100_000usize {
        let path = directory.join(name(n));
        if n % 1000 == 0 {
            File::create(&path).unwrap();
        } else {
            std::fs::hard_link(directory.join(name(n - n % 1000)), &path).unwrap();
        }
    }
    let want: BTreeSet<OsString> = (0..100_000).map(|n| name(n).into()).collect();
    assert_eq!(names(&directory), want);
    mount.remount();
    assert_eq!(names(&directory), want);

    // While a listing is under way: names that stay are listed once each, whatever else comes and
    // goes, and nothing is listed twice.
    let mut listed = Vec::new();
    for (n, entry) in std::fs::read_dir(&directory).unwrap().enumerate() {
        listed.push(entry.unwrap().file_name());
        if n % 10 == 0 && n / 10 < 5000 {
            let n = n / 10;
            std::fs::remove_file(directory.join(name(n * 20 + 1))).unwrap();
            File::create(directory.join(format!("new-{n}"))).unwrap();
            std::fs::rename(directory.join(name(n * 20 + 2)), directory.join(format!("moved-{n}"))).unwrap();
        }
    }
    let unique: BTreeSet<&OsStr> = listed.iter().map(OsString::as_os_str).collect();
    assert_eq!(unique.len(), listed.len(), "something was listed twice");
    for n in (0..100_000).filter(|n| n % 20 != 1 && n % 20 != 2) {
        assert!(unique.contains(OsStr::new(&name(n))), "{} was not listed", name(n));
    }
    // telldir and seekdir, as old programs use them.
    shell(mount.path(), "test $(ls -f d | wc -l) = 100002; test $(find d -name 'moved-*' | wc -l) = 5000");
    seekdir(&directory);
    // rm -r deletes while it lists.
    shell(mount.path(), "rm -r d; test ! -e d");
}

fn seekdir(directory: &Path) {
    let path = c(directory);
    // SAFETY: a directory stream used by this thread alone; entries are copied before the next call.
    unsafe {
        let stream = libc::opendir(path.as_ptr());
        assert!(!stream.is_null());
        let next = || {
            let entry = libc::readdir(stream);
            assert!(!entry.is_null());
            std::ffi::CStr::from_ptr((*entry).d_name.as_ptr()).to_owned()
        };
        for _ in 0..5000 {
            next();
        }
        let at = libc::telldir(stream);
        let want: Vec<_> = (0..3000).map(|_| next()).collect();
        for _ in 0..5000 {
            next();
        }
        libc::seekdir(stream, at);
        let got: Vec<_> = (0..3000).map(|_| next()).collect();
        assert!(got == want, "seekdir came back to another place");
        libc::rewinddir(stream);
        let first = [next(), next()];
        assert!(first.contains(&c".".to_owned()) && first.contains(&c"..".to_owned()));
        libc::closedir(stream);
    }
}

fn errors_for_wrong_objects(setup: Setup) {
    let mount = setup.mount();
    shell(mount.path(), "echo f > f; mkdir -p d/sub");
    assert_eq!(kind(File::open(mount.at("none"))), Errno::ENOENT);
    assert_eq!(kind(File::open(mount.at("f/x"))), Errno::ENOTDIR);
    assert_eq!(kind(OpenOptions::new().write(true).open(mount.at("d"))), Errno::EISDIR);
    assert_eq!(kind(std::fs::create_dir(mount.at("d"))), Errno::EEXIST);
    assert_eq!(kind(std::fs::remove_dir(mount.at("d"))), Errno::ENOTEMPTY);
    assert_eq!(kind(std::fs::remove_dir(mount.at("f"))), Errno::ENOTDIR);
    assert_eq!(kind(std::fs::remove_file(mount.at("d"))), Errno::EISDIR);
    assert_eq!(kind(std::fs::read_link(mount.at("f"))), Errno::EINVAL);
    assert_eq!(kind(std::fs::read_dir(mount.at("f"))), Errno::ENOTDIR);
    let nofollow = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(mount.at("f"));
    assert_eq!(kind(nofollow), Errno::ENOTDIR);
    assert_eq!(kind((&File::open(mount.at("f")).unwrap()).write_all(b"x")), Errno::EBADF);
    if is_root() {
        shell(mount.path(), "mv d e; rmdir e/sub e; rm f");
    }
}

/// Proves F5.
fn sparse_and_large_offsets(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let offsets = [0u64, 4095, (1 << 31) - 1, 1 << 32, (5 << 32) + 123];
    for offset in offsets {
        file.write_all_at(&Pattern(1).bytes(offset, 100), offset).unwrap();
    }
    let check = |file: &File| {
        for offset in offsets {
            let mut bytes = [0; 100];
            file.read_exact_at(&mut bytes, offset).unwrap();
            assert_eq!(Pattern(1).mismatch(offset, &bytes), None, "at {offset}");
        }
        let mut bytes = [1; 100];
        file.read_exact_at(&mut bytes, 1 << 30).unwrap();
        assert_eq!(bytes, [0; 100]);
        let meta = file.metadata().unwrap();
        assert_eq!(meta.len(), (5 << 32) + 223);
        assert!(meta.blocks() < 1000, "{} blocks", meta.blocks());
    };
    check(&file);
    drop(file);
    mount.remount();
    check(&File::open(&path).unwrap());
}

fn vectored_and_direct_io(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    let mut file = File::create(&path).unwrap();
    let parts: Vec<Vec<u8>> = (0..100).map(|n| Pattern(n).bytes(0, n as usize * 13)).collect();
    for group in parts.chunks(10) {
        let slices: Vec<_> = group.iter().map(|part| std::io::IoSlice::new(part)).collect();
        let want: usize = group.iter().map(Vec::len).sum();
        assert_eq!(file.write_vectored(&slices).unwrap(), want);
    }
    drop(file);
    let want = parts.concat();
    assert!(std::fs::read(&path).unwrap() == want);
    // O_DIRECT: aligned, beside ordinary reads and writes of the same file.
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(mount.at("direct"));
    let Ok(direct) = direct else {
        assert_eq!(kind(direct), Errno::EINVAL);
        return;
    };
    let mut buffer = vec![0; 64 * 1024 + 4096];
    let shift = buffer.as_ptr().align_offset(4096);
    let buffer = &mut buffer[shift..shift + 64 * 1024];
    buffer.copy_from_slice(&Pattern(9).bytes(0, 64 * 1024));
    direct.write_all_at(buffer, 0).unwrap();
    assert!(std::fs::read(mount.at("direct")).unwrap() == buffer);
    let plain = OpenOptions::new().write(true).open(mount.at("direct")).unwrap();
    plain.write_all_at(&Pattern(8).bytes(0, 5000), 10_000).unwrap();
    let mut want = buffer.to_vec();
    want[10_000..15_000].copy_from_slice(&Pattern(8).bytes(0, 5000));
    buffer.fill(0);
    direct.read_exact_at(buffer, 0).unwrap();
    assert!(buffer == want);
    drop((direct, plain));
    mount.remount();
    assert!(std::fs::read(mount.at("direct")).unwrap() == want);
}

fn many_open_files(setup: Setup) {
    let mount = setup.mount();
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    // The other tests need some, too.
    let count = (limit.0 / 4).min(800) as usize;
    let files: Vec<File> = (0..count)
        .map(|n| {
            let mut file =
                OpenOptions::new().read(true).write(true).create_new(true).open(mount.at(format!("f{n}"))).unwrap();
            file.write_all(&Pattern(n as u64).bytes(0, 100)).unwrap();
            file
        })
        .collect();
    // All of them closed and opened once more: nothing is leaked per inode.
    for n in 0..3000 {
        let path = mount.at(format!("g{}", n % 1500));
        std::fs::write(path, Pattern(n).bytes(0, 10)).unwrap();
    }
    for (n, file) in files.iter().enumerate() {
        file.write_all_at(&Pattern(n as u64).bytes(100, 100), 100).unwrap();
        let mut bytes = [0; 200];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(Pattern(n as u64).mismatch(0, &bytes), None);
    }
}

/// Proves N7.
fn control_tree_is_not_listed(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    assert_eq!(names(mount.path()), BTreeSet::new());
    let info = std::fs::read_to_string(mount.at(".tensorfs/info")).unwrap();
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["pid"].as_i64(), mount.pid().map(i64::from));
    assert_eq!(info["state"], "mounted");
    assert!(File::create(mount.at(".tensorfs/x")).is_err());
    assert!(std::fs::write(mount.at(".tensorfs/info"), "x").is_err());
    assert!(std::fs::remove_dir(mount.at(".tensorfs")).is_err());
    assert!(std::fs::rename(mount.at(".tensorfs"), mount.at("x")).is_err());
    assert!(std::fs::create_dir(mount.at(".tensorfs")).is_err());
    assert_eq!(names(mount.path()), BTreeSet::new());
    // Only in the root.
    std::fs::create_dir(mount.at("d")).unwrap();
    assert!(!mount.at("d/.tensorfs").exists());
    std::fs::write(mount.at("d/.tensorfs"), "mine").unwrap();
    assert_eq!(names(&mount.at("d")), [".tensorfs".into()].into());
}

/// Proves N5.
fn inode_numbers_are_not_used_again(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let mut seen = BTreeSet::new();
    for round in 0..4 {
        for n in 0..200 {
            let path = mount.at(format!("{round}-{n}"));
            match n % 3 {
                0 => std::fs::create_dir(&path).unwrap(),
                1 => std::fs::write(&path, "x").unwrap(),
                _ => symlink("x", &path).unwrap(),
            }
            let ino = std::fs::symlink_metadata(&path).unwrap().ino();
            assert!(seen.insert(ino), "inode {ino} is used again");
            if n % 2 == 0 {
                shell(mount.path(), &format!("rm -d {round}-{n}"));
            }
        }
        match round {
            0 => mount.remount(),
            1 => {
                mount.kill9();
                mount.mount();
            }
            2 => {
                mount.sync();
                mount.power_loss();
                mount.mount();
            }
            _ => {}
        }
    }
    // The links of a directory: itself, its name, and the `..` of each subdirectory.
    let links = |name: &str| std::fs::metadata(mount.at(name)).unwrap().nlink();
    shell(mount.path(), "mkdir d; touch d/file; ln -s x d/link");
    assert_eq!(links("d"), 2);
    shell(mount.path(), "mkdir d/a d/b d/a/c");
    assert_eq!((links("d"), links("d/a")), (4, 3));
    shell(mount.path(), "mv d/a/c d/c; rmdir d/b");
    assert_eq!((links("d"), links("d/a")), (4, 2));
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

/// Proves L1.
fn locks_end_with_the_mount(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    std::fs::write(mount.at("f"), "x").unwrap();
    let (mut one, mut two) = (child(["do"]), child(["do"]));
    assert_eq!(one.ask(&format!("open f rw {}", mount.at("f").display())), "ok");
    assert_eq!(one.ask("flock f ex"), "ok");
    assert_eq!(one.ask("lock f w 0 10"), "ok");
    // The one who holds them lives on, with what is left of the mount.
    mount.kill9();
    mount.mount();
    assert_eq!(two.ask(&format!("open f rw {}", mount.at("f").display())), "ok");
    assert_eq!(two.ask("flock f ex"), "ok");
    assert_eq!(two.ask("lock f w 0 10"), "ok");
    one.end();
    two.end();
}

/// Proves X3.
fn what_is_not_there(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let unnamed = OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(mount.path());
    assert_eq!(kind(unnamed), Errno::EOPNOTSUPP);
    let file = File::create(mount.at("f")).unwrap();
    let mut flags: libc::c_int = 0x10; // FS_IMMUTABLE_FL
    // SAFETY: FS_IOC_SETFLAGS reads an int.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &mut flags) };
    assert_eq!((done, Errno::last()), (-1, Errno::ENOTTY));
    let mut attributes = [0u8; 28]; // struct fsxattr, of which project ids are a part
    const FS_IOC_FSGETXATTR: libc::c_ulong = 0x801c_581f;
    // SAFETY: FS_IOC_FSGETXATTR fills the struct, which is as long as its number says.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR, attributes.as_mut_ptr()) };
    assert_eq!((done, Errno::last()), (-1, Errno::ENOTTY));
}

/// The kernel asks whether a program runs from a file before it opens it for writing, but after it has opened it with
/// `O_RDONLY | O_TRUNC`: that gave `ETXTBSY`, and emptied the file.
///
/// Proves R6.
fn a_program_that_runs_is_not_emptied(setup: Setup) {
    let mount = setup.mount();
    let program = mount.at("program");
    // Not by this process: a child that another test starts meanwhile would have it open for writing.
    run_ok(Command::new("cp").arg("/bin/cat").arg(&program));
    let bytes = std::fs::read(&program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    // CAP_NET_RAW, which goes with a program's content.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    if is_root() {
        set_xattr(&program, "security.capability", &capability, 0).unwrap();
    }
    // Ends when nobody holds the other end of its input.
    let mut running = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let empty = |access| open(&program, access | OFlag::O_TRUNC, Mode::empty()).map(drop);
    // The last one opens for `ioctl` alone.
    for access in [OFlag::O_RDONLY, OFlag::O_WRONLY, OFlag::O_RDWR, OFlag::O_ACCMODE] {
        assert_eq!(empty(access), Err(Errno::ETXTBSY), "{access:?}");
        assert!(std::fs::read(&program).unwrap() == bytes, "{access:?}");
    }
    assert!(running.try_wait().unwrap().is_none());
    if is_root() {
        assert_eq!(get_xattr(&program, "security.capability").unwrap(), capability);
    }
    drop(running.stdin.take());
    assert!(running.wait().unwrap().success());
    // It is a file as any other again, once the kernel has told the server.
    let told = (0..1000).any(|_| {
        let emptied = empty(OFlag::O_RDONLY) != Err(Errno::ETXTBSY);
        if !emptied {
            std::thread::sleep(Duration::from_millis(10));
        }
        emptied
    });
    assert!(told && std::fs::metadata(&program).unwrap().len() == 0);
}

/// A file handle, as NFS servers and backup programs keep it, and its type.
fn handle_of(path: &Path) -> Result<Vec<u8>, Errno> {
    let path = c(path);
    let mut handle = vec![0u8; size_of::<libc::file_handle>() + 128];
    handle[..4].copy_from_slice(&128u32.to_ne_bytes());
    let mut mount_id = 0;
    // SAFETY: the buffer has room for as many bytes as it says.
    let done =
        unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), handle.as_mut_ptr().cast(), &mut mount_id, 0) };
    errno(done).map(|()| handle)
}

fn open_handle(on: &File, handle: &[u8]) -> Result<File, Errno> {
    let mut handle = handle.to_vec();
    // SAFETY: the handle is as the kernel gave it; the new descriptor is ours.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let fd = libc::open_by_handle_at(on.as_raw_fd(), handle.as_mut_ptr().cast(), flags);
        Errno::result(fd).map(|fd| std::os::fd::FromRawFd::from_raw_fd(fd))
    }
}

/// Proves N8.
fn file_handles_outlive_the_server(setup: Setup) {
    let may = handle_of(Path::new("/")).and_then(|handle| open_handle(&File::open("/").unwrap(), &handle));
    if matches!(may, Err(Errno::EPERM)) {
        return setup.skip("only root opens files by their handles");
    }
    let mut mount = setup.mount();
    std::fs::create_dir_all(mount.at("a/b")).unwrap();
    std::fs::write(mount.at("a/b/file"), "bytes").unwrap();
    std::fs::write(mount.at("a/b/removed"), "bytes").unwrap();
    let names = ["a/b/file", "a/b", "a", ""];
    let handles = names.map(|name| handle_of(&mount.at(name)).unwrap());
    let removed = handle_of(&mount.at("a/b/removed")).unwrap();
    mount.remount();
    std::fs::remove_file(mount.at("a/b/removed")).unwrap();
    std::fs::rename(mount.at("a/b"), mount.at("c")).unwrap();
    // Nothing of them is in the kernel's memory then.
    mount.remount();
    let root = File::open(mount.path()).unwrap();
    let opened = handles.map(|handle| open_handle(&root, &handle).unwrap());
    let ino = |name: &str| std::fs::metadata(mount.at(name)).unwrap().ino();
    let found = opened.each_ref().map(|file| file.metadata().unwrap().ino());
    assert_eq!(found, ["c/file", "c", "a", ""].map(ino));
    let mut text = String::new();
    (&opened[0]).read_to_string(&mut text).unwrap();
    assert_eq!(text, "bytes");
    let parent = std::fs::read_link(format!("/proc/self/fd/{}", opened[1].as_raw_fd())).unwrap();
    assert_eq!(parent, mount.at("c"));
    assert_eq!(open_handle(&root, &removed).map(drop), Err(Errno::ESTALE));
}
