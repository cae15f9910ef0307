//! Faults that a review of the filesystem found, each with the test that shows it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use tensorfs_tests::{Pattern, Setup, on_mounts};

on_mounts!(
    replacing_a_name_during_a_listing_does_not_list_it_again,
    a_file_that_grew_again_after_a_truncation_is_not_cut_by_recovery,
    no_descriptors_left_during_a_commit_is_no_failed_sync,
    a_pool_that_is_moved_while_mounted_goes_on,
);

/// A loop that lists a directory and replaces each file it finds, as `for e in os.scandir(d): os.replace(tmp, e)`, ends;
/// it lists each name once.
fn replacing_a_name_during_a_listing_does_not_list_it_again(setup: Setup) {
    let mount = setup.mount();
    let dir = mount.at("d");
    std::fs::create_dir(&dir).unwrap();
    let names = 2000;
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
    let refused = File::create(mount.at("refused"));
    limit_descriptors(mount.pid().unwrap(), before.rlim_cur);
    synced.unwrap();
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENFILE));
    let info = mount.info();
    assert_eq!(info["read_only"], serde_json::Value::Null, "{info}");
    std::fs::write(mount.at("after"), "y").unwrap();
    open.sync_all().unwrap();
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
