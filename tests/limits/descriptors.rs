//! A server that may have few descriptors, or none any more.

use std::fs::File;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use tensorfs_tests::{Pattern, Setup, is_root, on_mounts};

on_mounts!(
    no_descriptors_left_during_a_commit_is_no_failed_sync,
    files_made_one_after_the_other_do_not_run_out_of_descriptors,
);

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
