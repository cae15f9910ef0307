//! Faults that a review of the filesystem found, each with the test that shows it.

use std::collections::HashMap;
use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use tensorfs_tests::{Mount, Passthrough, Pattern, Setup, is_root, on_mounts};

on_mounts!(
    truncating_through_a_descriptor_that_can_only_read_lasts,
    truncating_an_empty_file_changes_its_times,
    opening_for_writing_takes_a_files_capabilities,
    replacing_a_name_during_a_listing_does_not_list_it_again,
    renaming_what_a_listing_finds_does_not_make_it_endless,
    a_file_that_grew_again_after_a_truncation_is_not_cut_by_recovery,
    no_descriptors_left_during_a_commit_is_no_failed_sync,
    fsync_after_a_commit_in_the_background_still_tells_of_the_limit,
    an_open_that_fails_leaves_the_file_as_it_was,
    what_was_written_in_a_full_log_is_there_after_unmounting,
    a_replacement_that_cannot_begin_leaves_nothing,
    a_pool_that_is_moved_while_mounted_goes_on,
    a_close_just_before_fsync_of_the_directory_counts,
    asking_for_more_than_there_can_be_only_gets_no_space,
    files_made_one_after_the_other_do_not_run_out_of_descriptors,
    a_file_that_was_never_opened_can_be_read_in_a_full_pool,
    a_users_pool_stays_theirs_while_root_has_it_mounted,
    no_link_in_a_pool_leads_out_of_it,
    what_info_tells_everybody_names_no_files,
);

/// `open(O_RDONLY | O_TRUNC)` truncates, too: the new, empty content stands.
fn truncating_through_a_descriptor_that_can_only_read_lasts(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    for round in 0..3 {
        std::fs::write(&path, Pattern(1).bytes(0, 10_000)).unwrap();
        let c = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a NUL-terminated path.
        let fd = Errno::result(unsafe { libc::open(c.as_ptr(), libc::O_RDONLY | libc::O_TRUNC) }).unwrap();
        // SAFETY: the descriptor is ours.
        let file = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
        assert_eq!(file.metadata().unwrap().len(), 0);
        if round == 1 {
            file.sync_all().unwrap();
        }
        drop(file);
        // The release may still be under way.
        let _ = File::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "round {round}");
        assert_eq!(std::fs::read(&path).unwrap().len(), 0, "round {round}");
        if round == 2 {
            mount.remount();
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        }
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

/// As for set-user-id bits: what is written to a program must not run with the capabilities the one before had.
fn opening_for_writing_takes_a_files_capabilities(setup: Setup) {
    if !is_root() {
        return setup.skip("only root gives a file capabilities");
    }
    let mount = setup.mount();
    let name = c"security.capability";
    // Revision 2: CAP_NET_RAW, permitted and effective.
    let value: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for how in ["write", "truncate", "replace"] {
        let path = mount.at(how);
        std::fs::write(&path, "program").unwrap();
        let c = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: NUL-terminated strings and a buffer of the given length.
        let set = unsafe { libc::setxattr(c.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
        Errno::result(set).unwrap();
        match how {
            "write" => File::options().write(true).open(&path).unwrap().write_all_at(b"P", 0).unwrap(),
            "truncate" => nix::unistd::truncate(&path, 3).unwrap(),
            _ => std::fs::write(&path, "another").unwrap(),
        }
        // SAFETY: as above; a size of 0 asks for the length.
        let got = unsafe { libc::getxattr(c.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
        assert_eq!(Errno::result(got), Err(Errno::ENODATA), "{how}");
    }
}

/// A loop that lists a directory and replaces each file it finds, as `for e in os.scandir(d): os.replace(tmp, e)`, ends;
/// it lists each name once.
fn replacing_a_name_during_a_listing_does_not_list_it_again(setup: Setup) {
    let mount = setup.mount();
    let dir = mount.at("d");
    std::fs::create_dir(&dir).unwrap();
    let names = 1000;
    for n in 0..names {
        File::create(dir.join(format!("checkpoint-{n:06}"))).unwrap();
    }
    let mut seen: HashMap<OsString, usize> = HashMap::new();
    for (count, entry) in std::fs::read_dir(&dir).unwrap().enumerate() {
        let entry = entry.unwrap();
        assert!(count < 3 * names, "the listing does not end");
        let new = mount.at("new");
        std::fs::write(&new, "x").unwrap();
        std::fs::rename(&new, entry.path()).unwrap();
        *seen.entry(entry.file_name()).or_default() += 1;
    }
    assert_eq!(seen.len(), names);
    let again: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).take(3).collect();
    assert!(again.is_empty(), "listed more than once: {again:?}");
}

/// So does one that renames each file it finds, also if it renames it back.
///
/// Proves N2.
fn renaming_what_a_listing_finds_does_not_make_it_endless(setup: Setup) {
    let mount = setup.mount();
    for back in [true, false] {
        let dir = mount.at(format!("d-{back}"));
        std::fs::create_dir(&dir).unwrap();
        let names = 3000;
        for n in 0..names {
            File::create(dir.join(format!("{n}"))).unwrap();
        }
        let mut listed = 0;
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let mut renamed = path.clone().into_os_string();
            renamed.push("~");
            std::fs::rename(&path, &renamed).unwrap();
            if back {
                std::fs::rename(&renamed, &path).unwrap();
            }
            listed += 1;
            assert!(listed < 10 * names, "the listing does not end");
        }
        assert!(listed >= names, "{listed}");
        assert!(!back || listed == names, "{listed}");
    }
}

/// A truncation is recorded ahead. Recovery does it again only if it was not done, and not if the file has grown since.
fn a_file_that_grew_again_after_a_truncation_is_not_cut_by_recovery(setup: Setup) {
    let mut mount = setup.mount_with(["--commit", "3600"]).mount();
    let path = mount.at("f");
    std::fs::write(&path, Pattern(1).bytes(0, 1000)).unwrap();
    mount.sync();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    // The block stays, so nothing but the size tells of it.
    file.set_len(500).unwrap();
    file.write_all_at(&Pattern(1).bytes(500, 1500), 500).unwrap();
    if mount.is_plain() {
        return;
    }
    mount.kill9();
    drop(file);
    mount.mount();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len(), Pattern(1).mismatch(0, &bytes)), (2000, None));
}

fn limit_descriptors(pid: i32, soft: u64) -> libc::rlimit {
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads the limits of a process of ours, then sets them.
    unsafe {
        Errno::result(libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &mut old)).unwrap();
        let new = libc::rlimit { rlim_cur: soft, ..old };
        Errno::result(libc::prlimit(pid, libc::RLIMIT_NOFILE, &new, std::ptr::null_mut())).unwrap();
    }
    old
}

/// The directories of new segments are synced, too, which used to take a descriptor each.
fn no_descriptors_left_during_a_commit_is_no_failed_sync(setup: Setup) {
    let mount = setup.mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    mount.sync();
    std::fs::write(mount.at("before"), "x").unwrap();
    let open = File::create(mount.at("open")).unwrap();
    open.write_all_at(b"bytes", 0).unwrap();
    // Whatever the server opens from now on is refused.
    let before = limit_descriptors(mount.pid().unwrap(), 0);
    let synced = open.sync_all();
    // What was made ready before still serves.
    let refused = (0..1000).find_map(|n| File::create(mount.at(format!("refused {n}"))).err());
    let space = nix::sys::statvfs::statvfs(mount.path());
    limit_descriptors(mount.pid().unwrap(), before.rlim_cur);
    synced.unwrap();
    space.unwrap();
    assert_eq!(refused.expect("a file that cannot be made").raw_os_error(), Some(libc::ENFILE));
    let info = mount.info();
    assert_eq!(info["read_only"], serde_json::Value::Null, "{info}");
    std::fs::write(mount.at("after"), "y").unwrap();
    open.sync_all().unwrap();
}

fn limited(setup: Setup) -> Mount {
    setup.create(["--size", "64M"]).mount_with(["--commit", "3600"]).mount()
}

/// In passthrough the kernel writes past the limit; whoever did must hear of it, also if the background saw it first.
fn fsync_after_a_commit_in_the_background_still_tells_of_the_limit(setup: Setup) {
    if setup.passthrough() == Passthrough::Off {
        return;
    }
    let mount = limited(setup);
    if mount.is_plain() {
        return;
    }
    let file = File::create(mount.at("f")).unwrap();
    file.write_all_at(&vec![1; 80 << 20], 0).unwrap();
    mount.sync();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    // Told once, and then the bytes are there.
    file.sync_all().unwrap();
}

/// A file that is open elsewhere, in a pool that is more than full.
fn an_open_that_fails_leaves_the_file_as_it_was(setup: Setup) {
    let mount = limited(setup);
    if mount.is_plain() || mount.passthrough() == Passthrough::Off {
        return;
    }
    std::fs::write(mount.at("small"), Pattern(1).bytes(0, 1 << 20)).unwrap();
    let reader = File::open(mount.at("small")).unwrap();
    let big = File::create(mount.at("big")).unwrap();
    big.write_all_at(&vec![1; 80 << 20], 0).unwrap();
    mount.sync();
    let opened = OpenOptions::new().write(true).truncate(true).open(mount.at("small"));
    assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(reader.metadata().unwrap().len(), 1 << 20);
    let bytes = std::fs::read(mount.at("small")).unwrap();
    assert!(bytes == Pattern(1).bytes(0, 1 << 20), "{} bytes", bytes.len());
}

fn segments(pool: &Path) -> usize {
    std::fs::read_dir(pool.join("segments"))
        .unwrap()
        .flat_map(|shard| std::fs::read_dir(shard.unwrap().path()).unwrap())
        .count()
}

/// Stores attributes of ever smaller size until there is no room for another, and then names.
fn fill_the_log(mount: &Mount) {
    let path = mount.at("attributes");
    std::fs::create_dir(&path).unwrap();
    let c = CString::new(path.as_os_str().as_bytes()).unwrap();
    for len in [60_000, 4000, 200] {
        let value = vec![7u8; len];
        let set = |n| {
            let name = CString::new(format!("user.{len}-{n}")).unwrap();
            // SAFETY: NUL-terminated strings and a buffer of the given length.
            Errno::result(unsafe { libc::setxattr(c.as_ptr(), name.as_ptr(), value.as_ptr().cast(), len, 0) })
        };
        assert_eq!((0..).map(set).find_map(Result::err), Some(Errno::ENOSPC));
    }
    let make = |n| nix::unistd::mkfifo(&mount.at(format!("{n}")), nix::sys::stat::Mode::S_IRUSR);
    assert_eq!((0..).map(make).find_map(Result::err), Some(Errno::ENOSPC));
}

/// Bytes may still fit where no record does: that of a file's last change may use what deletion may use.
fn what_was_written_in_a_full_log_is_there_after_unmounting(setup: Setup) {
    let mut mount = setup.create(["--size", "16M"]).mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    let open =
        |n| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(mount.at(format!("f{n}")));
    let files: Vec<File> = (0..20).map(|n| open(n).unwrap()).collect();
    for (n, file) in files.iter().enumerate() {
        file.write_all_at(&Pattern(n as u64).bytes(0, 4096), 0).unwrap();
    }
    mount.sync();
    fill_the_log(&mount);
    let mut written = Vec::new();
    for (n, file) in files.iter().enumerate() {
        written.push(1096 + 3000 + file.write_at(&Pattern(n as u64).bytes(4096, 4096), 4096).unwrap_or(0));
    }
    drop(files);
    mount.remount();
    for (n, len) in written.into_iter().enumerate() {
        let path = mount.at(format!("f{n}"));
        let told = std::fs::metadata(&path).unwrap().len();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((told, bytes.len(), Pattern(n as u64).mismatch(0, &bytes)), (len as u64, len, None), "f{n}");
    }
}

/// A replacement that the log has no room for leaves no segment behind.
fn a_replacement_that_cannot_begin_leaves_nothing(setup: Setup) {
    let mut mount = setup.create(["--size", "16M"]).mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    std::fs::write(mount.at("whole"), Pattern(9).bytes(0, 8192)).unwrap();
    mount.sync();
    fill_the_log(&mount);
    let replaced = OpenOptions::new().write(true).truncate(true).open(mount.at("whole")).map(drop);
    let len = std::fs::metadata(mount.at("whole")).unwrap().len();
    assert_eq!(len, if replaced.is_ok() { 0 } else { 8192 }, "{replaced:?}");
    mount.remount();
    assert_eq!(segments(mount.pool()), 1);
}

/// An operator's `mv` of the pool's directory does not end the mount.
fn a_pool_that_is_moved_while_mounted_goes_on(setup: Setup) {
    let mount = setup.mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    std::fs::write(mount.at("before"), "x").unwrap();
    let moved = mount.pool().with_extension("moved");
    std::fs::rename(mount.pool(), &moved).unwrap();
    // Enough files for a new directory of segments.
    let made = (0..600).try_for_each(|n| std::fs::write(mount.at(format!("f{n}")), "y"));
    let synced = OpenOptions::new().write(true).open(mount.at("before")).and_then(|file| file.sync_all());
    std::fs::rename(&moved, mount.pool()).unwrap();
    made.unwrap();
    synced.unwrap();
    let info = mount.info();
    assert_eq!(info["read_only"], serde_json::Value::Null, "{info}");
}

/// The kernel tells of the last close behind its back: it may still be under way when the directory is synced.
///
/// Proves D4.
fn a_close_just_before_fsync_of_the_directory_counts(setup: Setup) {
    let mut mount = setup.mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    let mut lost = 0;
    for round in 0..15u64 {
        let path = mount.at("f");
        let directory = File::open(mount.path()).unwrap();
        std::fs::write(&path, Pattern(round).bytes(0, 5000)).unwrap();
        directory.sync_all().unwrap();
        drop(directory);
        mount.power_loss();
        mount.mount();
        let bytes = std::fs::read(&path).unwrap();
        lost += usize::from(Pattern(round).mismatch(0, &bytes).is_some());
    }
    assert_eq!(lost, 0);
}

/// Many at a time, so that together they ask for more than a number holds.
fn asking_for_more_than_there_can_be_only_gets_no_space(setup: Setup) {
    let mount = limited(setup);
    if mount.is_plain() {
        return;
    }
    std::thread::scope(|scope| {
        for n in 0..8 {
            let path = mount.at(format!("f{n}"));
            scope.spawn(move || {
                let file = File::create(path).unwrap();
                for _ in 0..100 {
                    let refused = nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, i64::MAX - 5000);
                    assert_eq!(refused, Err(Errno::ENOSPC));
                }
            });
        }
    });
    assert_eq!(mount.info()["counters"]["panics"], 0);
    std::fs::write(mount.at("fits"), Pattern(1).bytes(0, 1 << 20)).unwrap();
}

/// What is closed does not count as open for writing, however few descriptors the server may have.
fn files_made_one_after_the_other_do_not_run_out_of_descriptors(setup: Setup) {
    if !is_root() || setup.mount_is_plain() {
        return setup.skip("only root can start a server with few descriptors and mount");
    }
    // Nobody settles in the background what the kernel held on to for a moment longer.
    let mount = setup.few_descriptors(64).mount_with(["--commit", "3600"]).mount();
    std::thread::scope(|scope| {
        for writer in 0..4u64 {
            let mount = &mount;
            scope.spawn(move || {
                for n in 0..400 {
                    let (new, path) = (mount.at(format!("new{writer}")), mount.at(format!("f{writer}-{n}")));
                    let bytes = Pattern(n).bytes(0, 1000);
                    std::fs::write(&new, &bytes).unwrap_or_else(|error| panic!("file {n}: {error}"));
                    std::fs::rename(&new, &path).unwrap();
                }
            });
        }
    });
}

/// A file made by mknod gets its segment when it is first opened, which must not need what there is no more.
fn a_file_that_was_never_opened_can_be_read_in_a_full_pool(setup: Setup) {
    let mount = setup.create(["--size", "16M"]).mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    let made: Vec<_> = (0..20).map(|n| mount.at(format!("made{n}"))).collect();
    for path in &made {
        nix::sys::stat::mknod(path, nix::sys::stat::SFlag::S_IFREG, nix::sys::stat::Mode::S_IRUSR, 0).unwrap();
    }
    fill_the_log(&mount);
    for path in &made {
        assert_eq!(std::fs::read(path).unwrap().len(), 0);
    }
}

/// Root mounts from /etc/fstab what a user made, and the user must be able to use it again.
///
/// Proves A6.
fn a_users_pool_stays_theirs_while_root_has_it_mounted(setup: Setup) {
    if !is_root() || setup.mount_is_plain() {
        return setup.skip("only root has files of others");
    }
    let mut mount = setup.mount();
    mount.umount();
    let below = |pool: &Path| {
        let mut found = vec![pool.to_owned()];
        let mut next = 0;
        while let Some(path) = found.get(next).cloned() {
            next += 1;
            if path.is_dir() {
                found.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
        found
    };
    for path in below(mount.pool()) {
        std::os::unix::fs::chown(path, Some(12_345), Some(23_456)).unwrap();
    }
    mount.mount();
    std::fs::write(mount.at("f"), "before").unwrap();
    let mut writer = tensorfs_tests::child(["do"]);
    assert_eq!(writer.ask(&format!("open f wt {}", mount.at("f").display())), "ok");
    assert_eq!(writer.ask("write f 0 1 100"), "ok");
    writer.kill(libc::SIGKILL);
    mount.umount();
    let files = below(mount.pool());
    assert!(files.iter().any(|path| path.extension().is_some_and(|extension| extension == "json")), "{files:?}");
    for path in files {
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), (12_345, 23_456), "{}", path.display());
    }
}

/// Whoever owns a pool that root mounts could make root write, and remove, files elsewhere.
///
/// Proves A6.
fn no_link_in_a_pool_leads_out_of_it(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    std::fs::write(mount.at("before"), "x").unwrap();
    mount.umount();
    let (shard, outside) = (mount.pool().join("segments/00"), mount.host().join("outside"));
    std::fs::rename(&shard, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, &shard).unwrap();
    mount.mount();
    let before = std::fs::read_dir(&outside).unwrap().count();
    let made = std::fs::write(mount.at("new"), "y");
    let read = std::fs::read(mount.at("before"));
    std::fs::remove_file(mount.at("before")).unwrap();
    mount.sync();
    mount.umount();
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), before);
    assert_eq!(made.unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO));
}

/// A path may lead through directories that not everybody may look into.
fn what_info_tells_everybody_names_no_files(setup: Setup) {
    if !is_root() || setup.mount_is_plain() {
        return setup.skip("only root can become somebody else");
    }
    let mount = setup.mount();
    std::fs::create_dir(mount.at("private")).unwrap();
    std::fs::set_permissions(mount.at("private"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let path = mount.at("private/hidden-name");
    std::fs::write(&path, "before").unwrap();
    let mut writer = tensorfs_tests::child(["do"]);
    assert_eq!(writer.ask(&format!("open f wt {}", path.display())), "ok");
    assert_eq!(writer.ask("write f 0 1 100"), "ok");
    writer.kill(libc::SIGKILL);
    mount.sync();
    let read = |user: &str| {
        let mut cat = std::process::Command::new("setpriv");
        cat.args(["--reuid", user, "--regid", user, "--clear-groups", "cat", ".tensorfs/info"]);
        tensorfs_tests::run_ok(cat.current_dir(mount.path()))
    };
    assert!(read("0").contains("hidden-name"));
    let told = read("12345");
    assert!(told.contains("interrupted-replace") && !told.contains("hidden-name"), "{told}");
}
