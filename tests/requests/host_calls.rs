//! The harness can disturb the host: every kind of call that a server makes comes by the library that is preloaded, is
//! known by its file, and can be counted, failed and held.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;

use tensorfs_tests::{Call, HostCalls, Injected, Mount, Passthrough, Pattern, Rule, Setup, on_mounts, run};

on_mounts!(
    every_call_of_the_host_is_seen,
    a_call_of_the_host_fails_as_often_as_said,
    a_call_of_the_host_is_held_until_it_is_let_go,
    a_command_can_be_disturbed_as_well,
);

/// Calls, each with the files of the pool on which an ordinary life of a mount makes it.
const SEEN: [(Call, &str); 22] = [
    (Call::Open, "/log"),
    (Call::Open, "/segments/"),
    (Call::Read, "/log"),
    (Call::Read, "/segments/"),
    (Call::Write, "/log"),
    (Call::Fdatasync, "/log"),
    (Call::Fdatasync, "/segments/"),
    (Call::Fsync, "/segments/"),
    (Call::SyncFileRange, "/segments/"),
    (Call::Fallocate, "/segments/"),
    (Call::Ftruncate, "/segments/"),
    (Call::Unlink, "/segments/"),
    (Call::Link, "/quarantine"),
    (Call::Fstat, "/segments/"),
    (Call::Lease, "/segments/"),
    (Call::Seek, "/segments/"),
    (Call::Mkdir, "/segments/"),
    (Call::List, "/segments"),
    (Call::Statfs, ""),
    (Call::Times, "/segments/"),
    (Call::Lock, "/lock"),
    (Call::Copy, "/segments/"),
];

fn every_call_of_the_host_is_seen(setup: Setup) {
    let calls = HostCalls::new();
    let passthrough = setup.passthrough() == Passthrough::On;
    let mut mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let seen: Vec<(Call, &str, Injected)> =
        SEEN.iter().map(|&(call, part)| (call, part, calls.add(Rule::of(call).on(part)))).collect();
    let backing = calls.add(Rule::of(Call::Backing).on("/segments/"));
    let written = calls.add(Rule::of(Call::Write).on("/segments/"));
    live(&mut mount);
    for (call, part, rule) in &seen {
        println!("{call:?} {part}: {}", rule.arrived());
    }
    println!("backing {}, written {}", backing.arrived(), written.arrived());
    let unseen: Vec<_> =
        seen.iter().filter(|(_, _, rule)| rule.arrived() == 0).map(|(call, part, _)| (call, part)).collect();
    assert!(unseen.is_empty(), "{unseen:?}");
    assert_eq!(backing.arrived() > 0, passthrough);
    assert_eq!(written.arrived() > 0, !passthrough);
}

/// A little of everything.
fn live(mount: &mut Mount) {
    let large = mount.at("large");
    let file = File::create(&large).unwrap();
    file.write_all_at(&Pattern(1).bytes(0, 20 << 20), 0).unwrap();
    file.sync_all().unwrap();
    file.set_len(10 << 20).unwrap();
    file.sync_all().unwrap();
    // SAFETY: plain system calls on a descriptor that is open.
    let (at, allocated) = unsafe {
        (libc::lseek(file.as_raw_fd(), 0, libc::SEEK_HOLE), libc::fallocate(file.as_raw_fd(), 0, 0, 12 << 20))
    };
    assert_eq!((at, allocated), (10 << 20, 0));
    drop(file);
    fs::copy(&large, mount.at("copy")).unwrap();
    fs::rename(mount.at("copy"), mount.at("copied")).unwrap();
    fs::hard_link(mount.at("copied"), mount.at("linked")).unwrap();
    fs::write(mount.at("small"), Pattern(2).bytes(0, 100)).unwrap();
    mount.sync();
    mount.wait_for_seals(2);
    fs::remove_file(&large).unwrap();
    mount.sync();
    // A replacement that a killed server leaves behind, and what recovery makes of it.
    let _replacing = File::create(mount.at("copied")).unwrap();
    mount.kill9();
    drop(_replacing);
    mount.mount();
    mount.remount();
}

fn a_call_of_the_host_fails_as_often_as_said(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let (one, other) = (File::create(mount.at("one")).unwrap(), File::create(mount.at("other")).unwrap());
    for file in [&one, &other] {
        file.write_all_at(&Pattern(3).bytes(0, 1 << 20), 0).unwrap();
    }
    let failing = calls.add(Rule::of(Call::Fdatasync).on("/segments/").times(1).error(libc::EIO));
    assert_eq!(one.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    other.sync_all().unwrap();
    assert_eq!(failing.hits(), 1);
    assert!(failing.arrived() > 1);
}

fn a_call_of_the_host_is_held_until_it_is_let_go(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let file = File::create(mount.at("file")).unwrap();
    file.write_all_at(&Pattern(4).bytes(0, 1 << 20), 0).unwrap();
    let held = calls.add(Rule::of(Call::Fdatasync).on("/segments/").held());
    let (tell, done) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| tell.send(file.sync_all()).unwrap());
        held.wait_for_waiting(1);
        // The mount serves others meanwhile.
        fs::write(mount.at("other"), "x").unwrap();
        assert!(done.try_recv().is_err());
        drop(held);
        done.recv().unwrap().unwrap();
    });
}

fn a_command_can_be_disturbed_as_well(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    mount.umount();
    let failing = calls.add(Rule::of(Call::Read).on("/log").error(libc::EIO));
    let mut check = mount.program();
    calls.preload(check.arg("check").arg(mount.pool()));
    assert!(!run(&mut check).status.success());
    assert!(failing.hits() > 0);
    drop(failing);
    assert!(run(&mut check).status.success());
    // What says whose tier a directory is gets its name by a rename, which no server ever does.
    let failing = calls.add(Rule::of(Call::Rename).below(&mount.host()).error(libc::EIO));
    let mut add = mount.program();
    calls.preload(add.args(["tier", "add"]).arg(mount.pool()).arg("other").arg(mount.host()));
    assert!(!run(&mut add).status.success());
    assert_eq!(failing.hits(), 1);
}
