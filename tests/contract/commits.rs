//! Commits in the background: what goes on beside them does not hold them up, and nobody waits for what it takes.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tensorfs_tests::{Call, HostCalls, Injected, Mount, Rule, Setup, on_mounts, wait_until};

on_mounts!(
    commits_go_on_while_segments_are_removed,
    commits_go_on_while_the_log_is_checked,
    names_are_looked_up_while_the_log_grows,
    a_directory_is_renamed_without_a_look_at_open_files,
);

/// Nothing that is held up here takes so long otherwise.
const LONG: Duration = Duration::from_secs(60);

/// Does something while calls of the host are held. If it is not over after a long time, they are let go, and the test
/// fails.
fn beside(held: Injected, what: &str, work: impl FnOnce() + Send) {
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let working = scope.spawn(move || {
            work();
            let _ = tell.send(());
        });
        let over = told.recv_timeout(LONG);
        drop(held);
        working.join().expect("the work is done");
        assert!(over.is_ok(), "{what}");
    });
}

/// Something changes, and is committed in the background, three times.
fn commits_go_on(mount: &Mount) {
    let commits = || mount.info()["counters"]["commits_background"].as_u64().unwrap();
    for n in 0..3 {
        let before = commits();
        // Whoever tidies the log commits, too, and may be first.
        wait_until("the next commit", || {
            fs::write(mount.at(format!("late-{n}")), b"written beside it").unwrap();
            commits() > before
        });
    }
}

/// Proves D3, S3.
fn commits_go_on_while_segments_are_removed(setup: Setup) {
    const FILES: usize = 40;
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount_with(["--commit", "0.1"]).mount();
    if mount.is_plain() {
        return;
    }
    for n in 0..FILES {
        fs::write(mount.at(format!("old-{n}")), b"to be deleted").unwrap();
    }
    mount.sync();
    let held = calls.add(Rule::of(Call::Unlink).on("/segments/").held());
    for n in 0..FILES {
        fs::remove_file(mount.at(format!("old-{n}"))).unwrap();
    }
    held.wait_for_waiting(1);
    mount.wait_for("deleted files that the host still has", |info| info["pending_removals"] == FILES);
    assert_eq!(mount.info()["files"], 0);
    beside(held, "no commit while a segment is removed", || commits_go_on(&mount));
    mount.wait_for("all of them to be gone", |info| info["pending_removals"] == 0);
}

/// Proves D3, C6.
fn commits_go_on_while_the_log_is_checked(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount_with(["--commit", "0.1"]).mount();
    if mount.is_plain() {
        return;
    }
    fs::write(mount.at("file"), b"bytes").unwrap();
    mount.sync();
    let held = calls.add(Rule::of(Call::Read).on("/log").held());
    let mut check = mount.program().arg("check").arg(mount.path()).spawn().unwrap();
    held.wait_for_waiting(1);
    beside(held, "no commit while the log is checked", || commits_go_on(&mount));
    assert!(check.wait().unwrap().success());
}

/// Proves D3.
fn names_are_looked_up_while_the_log_grows(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    fs::create_dir(mount.at("links")).unwrap();
    fs::write(mount.at("file"), b"bytes").unwrap();
    let target = "x".repeat(4000);
    let held = calls.add(Rule::of(Call::Fsync).on("/log").held());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let fill = || {
            // In the end it waits for the log, too.
            for n in 0..2000 {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                symlink(&target, mount.at(format!("links/{n}"))).unwrap();
            }
        };
        scope.spawn(fill);
        held.wait_for_waiting(1);
        beside(held, "no name is looked up while the log grows", || {
            // So that whoever fills it has come to its end.
            thread::sleep(Duration::from_millis(300));
            for n in 0..200 {
                assert!(fs::metadata(mount.at(format!("none-{n}"))).is_err());
            }
            assert!(fs::read_dir(mount.path()).unwrap().count() >= 2);
            over.store(true, Ordering::SeqCst);
        });
        over.store(true, Ordering::SeqCst);
    });
    mount.sync();
}

/// Proves D7.
fn a_directory_is_renamed_without_a_look_at_open_files(setup: Setup) {
    const FILES: usize = 100;
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    fs::create_dir(mount.at("full")).unwrap();
    fs::create_dir(mount.at("empty")).unwrap();
    let open: Vec<File> = (0..FILES).map(|n| File::create(mount.at(format!("full/{n}"))).unwrap()).collect();
    let looks = calls.add(Rule::of(Call::Fstat).on("/segments/"));
    fs::rename(mount.at("empty"), mount.at("empty again")).unwrap();
    fs::rename(mount.at("full"), mount.at("full again")).unwrap();
    assert!(looks.arrived() < FILES as u64 / 10, "{} looks at segments", looks.arrived());
    // But before the new name is durable, which is when anything else is made so.
    fs::write(mount.at("other"), b"bytes").unwrap();
    File::open(mount.at("other")).unwrap().sync_all().unwrap();
    assert!(looks.arrived() >= FILES as u64, "{} looks at segments", looks.arrived());
    drop(open);
}
