//! What has lost its name, and is still open, found or looked for.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use tensorfs_tests::{Call, HostCalls, Pattern, Rule, Setup, on_mounts, shell, wait_until};

use super::names;

on_mounts!(
    unlink_while_open,
    what_was_found_and_is_gone_can_still_be_opened,
    opening_what_others_delete_and_make_anew,
    a_removed_directory_can_be_changed_through_a_descriptor,
    a_removed_file_is_known_while_a_path_descriptor_is_open,
    a_removed_file_shows_what_was_written_to_it,
    what_the_host_would_not_remove_is_removed_later,
    a_file_that_is_forgotten_before_it_can_be_retired_goes,
);

/// Whoever removes a file that somebody else has locked just then does not wait for that, nor does the kernel with
/// forgetting it. It stayed on the host until the next mount.
///
/// Proves S3.
fn a_file_that_is_forgotten_before_it_can_be_retired_goes(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    std::fs::write(mount.at("f"), [1; 123_456]).unwrap();
    mount.sync();
    // It is about to be sealed.
    let held = calls.add(Rule::of(Call::Lease).on("/segments/").held());
    held.wait_for_waiting(1);
    let forgotten = |info: &serde_json::Value| info["counters"]["forget"].as_u64().unwrap();
    let before = forgotten(&mount.info());
    std::fs::remove_file(mount.at("f")).unwrap();
    mount.wait_for("FORGET", |info| forgotten(info) > before);
    drop(held);
    let is_on_host = || shell(mount.pool(), "find segments -type f -size 123456c").contains("segments");
    wait_until("end of its segment", || {
        mount.sync();
        !is_on_host()
    });
}

/// Who opens a file finds it first. What is removed or replaced in between is still there for who found it, however
/// long that takes: it was gone once, and the program heard `ENOENT` of a name that was always there, or `ESTALE`.
/// Found by the model test and by examples/kernels.
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

/// A program that opens what others delete and make anew, or replace, all the time finds it or not, and nothing else:
/// it got `ESTALE` within seconds. Found by examples/kernels.
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

/// What was written to it after it had lost its name was missing in its size, and through the server in its bytes.
/// Found by the model test.
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

/// An error of the host as it removes a segment is not the end of it: the space comes back by itself.
fn what_the_host_would_not_remove_is_removed_later(setup: Setup) {
    const FILES: u64 = 100;
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount_with(["--commit", "0.1"]).mount();
    if mount.is_plain() {
        return;
    }
    let paths: Vec<_> = (0..FILES).map(|n| mount.at(n.to_string())).collect();
    paths.iter().for_each(|path| std::fs::write(path, Pattern(1).bytes(0, 100_000)).unwrap());
    mount.sync();
    let failing = calls.add(Rule::of(Call::Unlink).on("/segments/").error(libc::EIO));
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    mount.wait_for("segments that cannot be removed", |info| info["refused_removals"] == FILES);
    assert!(mount.tensorfs_ok(["info".as_ref(), mount.path().as_os_str()]).contains("would not remove"));
    // It is tried again, and not without end at a time.
    let tried = failing.hits();
    failing.wait_for_hits(tried + 2 * FILES);
    drop(failing);
    mount.wait_for("removal of what could not be removed", |info| info["refused_removals"] == 0);
    mount.umount();
    let check = mount.tensorfs_ok(["check".as_ref(), mount.pool().as_os_str()]);
    assert!(check.contains(" 0 segments"), "{check}");
}
