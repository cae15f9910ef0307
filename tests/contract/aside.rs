//! Where the version goes that a file had before a writer died, and whom its going there does not hold up.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use tensorfs_tests::{
    Call, Disk, HostCalls, Injected, Mount, Pattern, Rule, Setup, child, on_mounts, run, wait_until, xattr,
};

on_mounts!(
    a_tiers_old_version_is_set_aside_in_the_tier_without_a_copy,
    recovery_sets_a_tiers_old_version_aside_where_the_pool_has_no_room,
    an_old_version_that_cannot_be_copied_out_of_its_tier_keeps_nobody_from_the_pool,
    commits_and_operations_go_on_while_an_old_version_is_set_aside,
    who_waits_for_the_new_version_has_the_old_one_set_aside,
    a_note_that_finds_no_room_in_recovery_is_written_later,
);

const OLD: usize = 3 << 20;
const NEW: usize = 300_000;
/// Nobody waits so long for a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(30);

fn old() -> Vec<u8> {
    Pattern(1).bytes(0, OLD)
}

fn new() -> Vec<u8> {
    Pattern(2).bytes(0, NEW)
}

/// A mount with a tier, and a durable checkpoint in a directory whose files are in it.
struct Tiered {
    mount: Mount,
    tier: PathBuf,
    path: PathBuf,
}

impl Tiered {
    fn new(setup: Setup, tier: &Path) -> Self {
        let mut mount = setup.mount_with(["--commit", "0.1"]).mount();
        mount.umount();
        mount.add_tier("fast", tier);
        mount.mount();
        let dir = mount.at("run");
        fs::create_dir(&dir).unwrap();
        xattr::set(&dir, "user.tensorfs.tier", b"fast", 0).unwrap();
        let path = dir.join("model.pt");
        fs::write(&path, old()).unwrap();
        mount.sync();
        Self { mount, tier: tier.into(), path }
    }

    /// The only segment in the tier, as the host has it.
    fn segment(&self) -> (PathBuf, u64) {
        let all =
            run(std::process::Command::new("find").arg(self.tier.join("segments")).args(["-type", "f", "-size", "+0"]));
        let text = String::from_utf8(all.stdout).unwrap();
        let paths: Vec<&str> = text.lines().collect();
        let [path] = paths[..] else { panic!("{paths:?}") };
        (path.into(), fs::metadata(path).unwrap().ino())
    }

    /// The name and the host's file of the only entry in quarantine.
    fn entry(&self) -> (String, PathBuf) {
        wait_until("the old version is in quarantine", || !self.mount.quarantine().is_empty());
        let entries = self.mount.quarantine();
        let [entry] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!(entry["path"].as_str().unwrap_or_default().trim_start_matches('/'), "run/model.pt", "{entry}");
        assert_eq!(entry["bytes"], OLD, "{entry}");
        let name = entry["name"].as_str().unwrap().to_owned();
        let file = self.tier.join("quarantine").join(&name);
        (name, file)
    }
}

/// A program that has emptied the file, and written some of its new bytes.
fn writer(path: &Path) -> tensorfs_tests::Child {
    let mut writer = child(["do"]);
    assert_eq!(writer.ask(&format!("open f wct {}", path.display())), "ok");
    assert_eq!(writer.ask(&format!("write f 0 2 {NEW}")), "ok");
    writer
}

/// Does something that has to be done while others wait.
#[track_caller]
fn in_time(what: &str, act: impl FnOnce() + Send + 'static) {
    let (done, heard) = channel();
    let thread = std::thread::spawn(move || {
        act();
        let _ = done.send(());
    });
    match heard.recv_timeout(PATIENCE) {
        Ok(()) => thread.join().unwrap(),
        Err(_) => panic!("{what}: it waits, or failed"),
    }
}

/// Proves R4, M1.
fn a_tiers_old_version_is_set_aside_in_the_tier_without_a_copy(setup: Setup) {
    let Some(memory) = setup.in_memory().filter(|_| !setup.mount_is_plain()) else { return };
    let mut tiered = Tiered::new(setup, &memory.path().join("tier"));
    for killed_server in [false, true] {
        let (_, inode) = tiered.segment();
        let writer = writer(&tiered.path);
        if killed_server {
            tiered.mount.kill9();
        }
        writer.kill(libc::SIGKILL);
        if killed_server {
            tiered.mount.mount();
        }
        let (name, file) = tiered.entry();
        assert_eq!(fs::metadata(&file).unwrap().ino(), inode, "a second name, and no copy");
        assert_eq!(fs::read_dir(tiered.mount.pool().join("quarantine")).unwrap().count(), 0);
        assert!(fs::read(&tiered.path).unwrap() == new());
        let pool = tiered.mount.pool().to_owned();
        let listed = tiered.mount.tensorfs_ok(["restore".as_ref(), tiered.mount.path().as_os_str()]);
        assert!(listed.contains(&name) && listed.contains("run/model.pt"), "{listed}");
        // Without its server, and for an operator who wants to be rid of the tier.
        tiered.mount.umount();
        let listed = tiered.mount.tensorfs_ok(["restore".as_ref(), pool.as_os_str()]);
        assert!(listed.contains(&name), "{listed}");
        assert!(tiered.mount.tensorfs_ok(["info".as_ref(), pool.as_os_str()]).contains("model.pt"));
        tiered.mount.tensorfs_ok(["check".as_ref(), "--data".as_ref(), pool.as_os_str()]);
        fs::rename(file.with_extension("json"), tiered.tier.with_file_name("note")).unwrap();
        let said = tiered.mount.tensorfs(["check".as_ref(), pool.as_os_str()]);
        assert!(String::from_utf8_lossy(&said.stdout).contains(file.to_str().unwrap()), "{said:?}");
        fs::rename(tiered.tier.with_file_name("note"), file.with_extension("json")).unwrap();
        tiered.mount.mount();
        tiered.mount.tensorfs_ok(["restore".as_ref(), tiered.mount.path().as_os_str(), name.as_ref()]);
        assert!(fs::read(&tiered.path).unwrap() == old());
        tiered.mount.sync();
        for entry in fs::read_dir(tiered.tier.join("quarantine")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        wait_until("what was restored over is gone", || tiered.mount.info()["pending_removals"] == 0);
    }
}

/// The pool's host is full, and the tier is on another one: so it is with checkpoints that are larger than the pool.
///
/// Proves R4.
fn recovery_sets_a_tiers_old_version_aside_where_the_pool_has_no_room(setup: Setup) {
    let Some(memory) = setup.in_memory().filter(|_| !setup.mount_is_plain()) else { return };
    let disk = match Disk::new(&["mkfs.ext4", "-q", "-m0"], 64) {
        Ok(disk) => disk,
        Err(why) => return setup.skip(&why),
    };
    let setup = setup.pool_at(disk.at("pool"));
    let mut tiered = Tiered::new(setup, &memory.path().join("tier"));
    let writer = writer(&tiered.path);
    tiered.mount.kill9();
    writer.kill(libc::SIGKILL);
    let filler = File::create(disk.at("filler")).unwrap();
    for step in [1 << 20, 4096] {
        let block = vec![1; step];
        while (&filler).write_all(&block).is_ok() {}
    }
    assert!(fs::write(disk.at("more"), [1; 8192]).is_err(), "there is room on the pool's host");
    tiered.mount.mount();
    assert!(fs::read(&tiered.path).unwrap() == new());
    let (_, file) = tiered.entry();
    assert!(fs::read(file).unwrap() == old());
    fs::remove_file(disk.at("filler")).unwrap();
    tiered.mount.umount();
}

/// Something else stands where the tier's quarantine should be, so that the old version has to be copied; and its disk
/// has a bad block.
///
/// Proves R4.
fn an_old_version_that_cannot_be_copied_out_of_its_tier_keeps_nobody_from_the_pool(setup: Setup) {
    let Some(memory) = setup.in_memory().filter(|_| !setup.mount_is_plain()) else { return };
    let (calls, tier) = (HostCalls::new(), memory.path().join("tier"));
    let mut tiered = Tiered::new(setup.host_calls(&calls), &tier);
    let (old_segment, _) = tiered.segment();
    let writer = writer(&tiered.path);
    tiered.mount.kill9();
    writer.kill(libc::SIGKILL);
    let _ = fs::remove_dir(tier.join("quarantine"));
    fs::write(tier.join("quarantine"), "something else").unwrap();
    let failing = calls.add(Rule::of(Call::Read).below(&old_segment).error(libc::EIO));
    tiered.mount.mount();
    failing.wait_for_hits(1);
    drop(failing);
    assert!(fs::read(&tiered.path).unwrap() == new());
    assert_eq!(tiered.mount.quarantine().len(), 0, "the old version is lost");
    assert!(tiered.mount.log().contains(old_segment.to_str().unwrap()), "{}", tiered.mount.log());
    tiered.mount.umount();
}

/// The call that gives the old version its second name is held; or the first that copies it, where something else
/// stands where the tier's quarantine should be.
///
/// Proves D3, R4, W1, W2.
fn commits_and_operations_go_on_while_an_old_version_is_set_aside(setup: Setup) {
    let Some(memory) = setup.in_memory().filter(|_| !setup.mount_is_plain()) else { return };
    let calls = HostCalls::new();
    let tiered = Tiered::new(setup.host_calls(&calls), &memory.path().join("tier"));
    let by_name = Rule::of(Call::Link).below(&tiered.tier).on("/quarantine");
    others_go_on_while_it_is_set_aside(&tiered, calls.add(by_name.held()));
    let (name, file) = tiered.entry();
    assert!(fs::read(&file).unwrap() == old());
    let mount = tiered.mount.path().as_os_str();
    tiered.mount.tensorfs_ok(["restore".as_ref(), mount, name.as_ref(), "--discard".as_ref()]);
    fs::write(&tiered.path, old()).unwrap();
    tiered.mount.sync();
    fs::remove_dir(tiered.tier.join("quarantine")).unwrap();
    fs::write(tiered.tier.join("quarantine"), "something else").unwrap();
    let copied = Rule::of(Call::Write).on("/quarantine/");
    others_go_on_while_it_is_set_aside(&tiered, calls.add(copied.held()));
    let (name, _) = tiered.entry();
    let file = tiered.mount.pool().join("quarantine").join(name);
    assert!(fs::read(file).unwrap() == old());
}

/// A writer dies, and what sets the old version aside is held.
fn others_go_on_while_it_is_set_aside(tiered: &Tiered, held: Injected) {
    let (mount, path) = (&tiered.mount, &tiered.path);
    let commits = || mount.info()["counters"]["commits_background"].as_u64().unwrap();
    writer(path).kill(libc::SIGKILL);
    held.wait_for_waiting(1);
    let before = commits();
    let begun = std::time::Instant::now();
    while commits() < before + 3 {
        // Again and again: what settles or cleans may be the one that makes it durable.
        let there = mount.at("other-0");
        in_time("another file", move || fs::write(there, "made meanwhile").unwrap());
        assert!(begun.elapsed() < PATIENCE, "no commit goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    let other = mount.at("other-0");
    in_time("fsync of another file", move || File::open(other).unwrap().sync_all().unwrap());
    let file = path.clone();
    in_time("operations on the file itself", move || {
        assert_eq!(fs::metadata(&file).unwrap().len(), NEW as u64);
        assert!(fs::read(&file).unwrap() == new());
        let writer = OpenOptions::new().write(true).open(&file).unwrap();
        writer.write_all_at(b"in place", 7).unwrap();
        drop(writer);
        assert_eq!(&fs::read(&file).unwrap()[7..15], b"in place");
    });
    assert!(mount.quarantine().is_empty());
    drop(held);
    tiered.entry();
    assert_eq!(&fs::read(path).unwrap()[7..15], b"in place");
}

/// Proves R2, R4.
fn who_waits_for_the_new_version_has_the_old_one_set_aside(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    let (calls, room) = (HostCalls::new(), tensorfs_tests::scratch());
    let mut tiered = Tiered::new(setup.host_calls(&calls), &room.path().join("tier"));
    type Act = fn(&Path);
    let acts: [(&str, Act); 3] = [
        ("fsync", |path| OpenOptions::new().write(true).open(path).unwrap().sync_all().unwrap()),
        ("rename", |path| {
            fs::rename(path, path.with_extension("x")).unwrap();
            fs::rename(path.with_extension("x"), path).unwrap();
        }),
        ("O_TRUNC", |path| {
            fs::write(path, new()).unwrap();
            File::open(path).unwrap().sync_all().unwrap();
        }),
    ];
    for (what, act) in acts {
        let held = calls.add(Rule::of(Call::Link).below(&tiered.tier).on("/quarantine").held());
        writer(&tiered.path).kill(libc::SIGKILL);
        held.wait_for_waiting(1);
        let path = tiered.path.clone();
        let (done, heard) = channel();
        let thread = std::thread::spawn(move || {
            act(&path);
            done.send(()).unwrap();
        });
        assert!(heard.recv_timeout(Duration::from_millis(300)).is_err(), "{what} does not wait");
        drop(held);
        heard.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} goes on waiting"));
        thread.join().unwrap();
        tiered.mount.sync();
        let (_, file) = tiered.entry();
        assert!(fs::read(file).unwrap() == old(), "{what}");
        tiered.mount.power_loss();
        tiered.mount.mount();
        assert!(fs::read(&tiered.path).unwrap() == new(), "{what}");
        for entry in fs::read_dir(tiered.tier.join("quarantine")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        fs::write(&tiered.path, old()).unwrap();
        tiered.mount.sync();
    }
}

/// Proves R4.
fn a_note_that_finds_no_room_in_recovery_is_written_later(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount_with(["--commit", "0.1"]).mount();
    let path = mount.at("model.pt");
    fs::write(&path, old()).unwrap();
    mount.sync();
    let writer = writer(&path);
    mount.kill9();
    writer.kill(libc::SIGKILL);
    let full = calls.add(Rule::of(Call::Write).on("/quarantine").error(libc::ENOSPC));
    mount.mount();
    let noted = |mount: &Mount| mount.quarantine()[0]["path"].as_str().is_some_and(|path| path.ends_with("model.pt"));
    assert!(!noted(&mount));
    full.wait_for_hits(full.hits() + 3);
    assert!(!noted(&mount));
    drop(full);
    wait_until("the note is there", || noted(&mount));
    let name = mount.quarantine()[0]["name"].as_str().unwrap().to_owned();
    mount.tensorfs_ok(["check".as_ref(), mount.path().as_os_str()]);
    mount.tensorfs_ok(["restore".as_ref(), mount.path().as_os_str(), name.as_ref()]);
    assert!(fs::read(&path).unwrap() == old());
}
