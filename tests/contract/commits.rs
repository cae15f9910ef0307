//! Commits in the background: what goes on beside them does not hold them up, and nobody waits for what it takes.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tensorfs_tests::{Call, HostCalls, Injected, Mount, Passthrough, Rule, Setup, on_mounts, wait_until, xattr};

on_mounts!(
    commits_go_on_while_segments_are_removed,
    commits_go_on_while_the_log_is_checked,
    files_are_recorded_while_the_host_says_nothing_of_others,
    files_are_recorded_while_the_host_does_not_say_who_has_others_mapped,
    names_are_looked_up_while_the_log_grows,
    a_directory_is_renamed_without_a_look_at_open_files,
    who_renames_a_directory_asks_for_no_open_file_elsewhere,
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

/// The host says of three files nothing, for as long as it takes, and what the others have become is recorded, again
/// and again.
fn others_are_recorded(mount: &Mount, calls: &HostCalls, call: Call, late: &[String]) {
    let name = mount.at("other");
    let mut other = OpenOptions::new().append(true).create(true).open(&name).unwrap();
    mount.sync();
    let held: Vec<Injected> = late.iter().map(|part| calls.add(Rule::of(call).on(part).held())).collect();
    wait_until("a call that is held", || held.iter().any(|held| held.waiting() > 0));
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let recorded = scope.spawn(move || {
            for n in 1..4 {
                other.write_all(&[8; 40_000]).unwrap();
                wait_until("what a file has grown by to be recorded", || {
                    xattr::get(&name, "user.tensorfs.records").unwrap() == n.to_string().into_bytes()
                });
            }
            commits_go_on(mount);
            let _ = tell.send(());
        });
        let over = told.recv_timeout(LONG);
        drop(held);
        recorded.join().unwrap();
        assert!(over.is_ok(), "nothing is recorded while the host is late to answer {call:?} of other files");
    });
    mount.sync();
}

/// Files of these sizes, open to be mapped, and their segments.
fn files_of(mount: &Mount, sizes: [usize; 3]) -> (Vec<File>, Vec<String>) {
    let make = |size: &usize| {
        let all = OpenOptions::new().read(true).write(true).create_new(true).open(mount.at(size.to_string())).unwrap();
        all.write_all_at(&vec![7; *size], 0).unwrap();
        all
    };
    let files = sizes.iter().map(make).collect();
    mount.sync();
    let shards = || fs::read_dir(mount.pool().join("segments")).unwrap().map(|shard| shard.unwrap().path());
    let part = |size: &usize| {
        let mut files = shards().flat_map(|shard| fs::read_dir(shard).unwrap().map(|file| file.unwrap().path()));
        let file = files.find(|file| fs::metadata(file).unwrap().len() == *size as u64).unwrap();
        format!("/{}", file.strip_prefix(mount.pool()).unwrap().display())
    };
    let parts = sizes.iter().map(part).collect();
    (files, parts)
}

/// Proves D3, W1.
fn files_are_recorded_while_the_host_says_nothing_of_others(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount_with(["--commit", "0.1"]).mount();
    if mount.is_plain() {
        return;
    }
    let (files, late) = files_of(&mount, [50_000, 60_000, 70_000]);
    others_are_recorded(&mount, &calls, Call::Fstat, &late);
    // What was late is recorded, too.
    files.iter().for_each(|file| file.write_all_at(&[9; 4], 100_000).unwrap());
    for size in [50_000, 60_000, 70_000] {
        let records = || xattr::get(&mount.at(size.to_string()), "user.tensorfs.records").unwrap();
        wait_until("what was late to be recorded", || records() == b"2");
    }
    drop(files);
    mount.remount();
}

/// The host does not say whether a program has a file mapped yet.
///
/// Proves D3, W1.
fn files_are_recorded_while_the_host_does_not_say_who_has_others_mapped(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount_with(["--commit", "0.1"]).mount();
    if mount.is_plain() || mount.passthrough() == Passthrough::Off {
        return;
    }
    let (files, late) = files_of(&mount, [50_000, 60_000, 70_000]);
    // SAFETY: nobody cuts the files.
    let maps: Vec<_> = files.iter().map(|file| unsafe { memmap2::MmapMut::map_mut(file) }.unwrap()).collect();
    drop(files);
    others_are_recorded(&mount, &calls, Call::Lease, &late);
    drop(maps);
    mount.remount();
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

/// However much lies below it.
///
/// Proves D7.
fn who_renames_a_directory_asks_for_no_open_file_elsewhere(setup: Setup) {
    const OPEN: usize = 200;
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    for dir in ["elsewhere", "full", "full/a", "full/a/b", "moved here"] {
        fs::create_dir(mount.at(dir)).unwrap();
    }
    // More names than are gone through to find out which of the open files are below.
    for n in 0..5 * OPEN {
        symlink("nowhere", mount.at(format!("full/{n}"))).unwrap();
    }
    let open = |name: String| {
        let file = File::create_new(mount.at(name)).unwrap();
        file.write_all_at(&[7; 50_000], 0).unwrap();
        file
    };
    let elsewhere: Vec<File> = (0..OPEN).map(|n| open(format!("elsewhere/{n}"))).collect();
    let below = [open("full/a/b/deep".into()), open("full/a/here".into()), open("elsewhere/came".into())];
    fs::rename(mount.at("elsewhere/came"), mount.at("full/came")).unwrap();
    let linked = open("elsewhere/linked".into());
    fs::hard_link(mount.at("elsewhere/linked"), mount.at("full/a/linked")).unwrap();
    let left = open("full/left".into());
    fs::rename(mount.at("full/left"), mount.at("elsewhere/left")).unwrap();
    mount.sync();
    below.iter().chain([&linked, &left]).for_each(|file| file.write_all_at(&[8; 50_000], 50_000).unwrap());
    let looks = calls.add(Rule::of(Call::Fstat).on("/segments/"));
    fs::rename(mount.at("full"), mount.at("moved here/full")).unwrap();
    fs::write(mount.at("other"), b"bytes").unwrap();
    File::open(mount.at("other")).unwrap().sync_all().unwrap();
    assert!(looks.arrived() < 30, "{} looks at segments", looks.arrived());
    let records = |name: &str| xattr::get(&mount.at(name), "user.tensorfs.records").unwrap();
    for name in ["a/b/deep", "a/here", "came", "a/linked"] {
        assert_eq!(records(&format!("moved here/full/{name}")), b"2", "{name}");
    }
    assert_eq!(records("elsewhere/left"), b"1");
    drop((elsewhere, below, linked, left));
}
