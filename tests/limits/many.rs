//! A hundred thousand small files.

use std::collections::HashSet;
use std::ffi::OsString;
use tensorfs_tests::{Mount, Pattern, Setup, on_mounts, shell};

on_mounts!(a_hundred_thousand_small_files);

const FILES: usize = 100_000;
const DIRECTORIES: usize = 20;

fn name(n: usize) -> String {
    format!("{:02}/step-{n:06}.npy", n % DIRECTORIES)
}

fn len(n: usize) -> usize {
    n % 300
}

fn used(mount: &Mount) -> i64 {
    mount.info()["used"].as_i64().expect("used is a number")
}

fn check(mount: &Mount, every: usize) {
    for directory in 0..DIRECTORIES {
        let names: HashSet<OsString> = std::fs::read_dir(mount.at(format!("{directory:02}")))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names.len(), FILES / DIRECTORIES, "in {directory}");
    }
    for n in (0..FILES).step_by(every) {
        let bytes = std::fs::read(mount.at(name(n))).unwrap_or_else(|e| panic!("{}: {e}", name(n)));
        assert_eq!((bytes.len(), Pattern(n as u64).mismatch(0, &bytes)), (len(n), None), "{}", name(n));
    }
}

fn a_hundred_thousand_small_files(setup: Setup) {
    let mut mount = setup.mount();
    let before = (!mount.is_plain()).then(|| used(&mount));
    for directory in 0..DIRECTORIES {
        std::fs::create_dir(mount.at(format!("{directory:02}"))).unwrap();
    }
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let mount = &mount;
            scope.spawn(move || {
                for n in (worker..FILES).step_by(4) {
                    std::fs::write(mount.at(name(n)), Pattern(n as u64).bytes(0, len(n))).unwrap();
                }
            });
        }
    });
    check(&mount, 10);
    if !mount.is_plain() {
        let info = mount.info();
        assert_eq!(info["files"], FILES, "{info}");
        assert_eq!(info["directories"].as_u64().unwrap(), DIRECTORIES as u64 + 1, "{info}");
    }
    mount.remount();
    check(&mount, 3);
    if !mount.is_plain() {
        // The server holds no descriptor per file.
        let open = std::fs::read_dir(format!("/proc/{}/fd", mount.pid().unwrap())).unwrap().count();
        assert!(open < 2500, "the server has {open} descriptors open");
    }
    // Half of it by unlink, the rest as people do it.
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let mount = &mount;
            scope.spawn(move || {
                for n in (worker..FILES / 2).step_by(2) {
                    std::fs::remove_file(mount.at(name(n))).unwrap();
                }
            });
        }
    });
    shell(mount.path(), "rm -r [0-9]*; test -z \"$(ls -A)\"");
    let Some(before) = before else { return };
    // Space comes back behind the commit, a bounded piece of log at a time.
    mount.sync();
    let info = mount.info();
    assert_eq!((&info["files"], &info["directories"]), (&0.into(), &1.into()), "{info}");
    // The log keeps 16 MiB ahead, and is left alone until a quarter of it can go.
    let before = before + (24 << 20);
    let mut syncs = 0;
    while used(&mount) > before && syncs < 2000 {
        // The log is cleaned in the background, once every commit interval.
        std::thread::sleep(std::time::Duration::from_millis(50));
        mount.sync();
        syncs += 1;
    }
    assert!(used(&mount) <= before, "{} bytes used after {syncs} syncs, {before} before", used(&mount));
    mount.remount();
    // The log grows ahead of need.
    assert!(used(&mount) <= before + (1 << 20), "{} bytes used after remount, {before} before", used(&mount));
}
