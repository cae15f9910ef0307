//! What survives a power loss: pools on disks of the tests' own, of which only what has reached them is left.
//!
//! Beside `kill.rs` and `replace.rs`, where what the pool's records say is at stake; here the bytes must have got to
//! the disk as well.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::fcntl::FallocateFlags;
use tensorfs_tests::{
    Call, Disk, FailingDisk, HostCalls, Mount, Mounted, Passthrough, Pattern, Rule, Setup, on_mounts, run, run_ok,
    scratch, xattr,
};

on_mounts!(
    with_durability_write_a_write_is_durable,
    with_durability_close_a_close_is_durable,
    with_durability_fsync_a_sync_is_durable,
    everything_else_follows_within_the_commit_interval,
    fsync_of_a_directory_and_tensorfs_sync_cover_everything,
    fsync_of_a_directory_tells_of_a_file_that_could_not_be_synced,
    syncfs_does_not_reach_the_server,
    a_new_name_has_its_bytes_on_the_disk,
    msync_and_synchronous_writes_reach_the_disk,
    a_file_that_cannot_be_synced_says_so_until_it_is_replaced,
    what_a_server_without_rights_could_not_sync_the_next_one_knows,
    a_log_that_cannot_be_synced_makes_the_pool_read_only,
    a_large_file_that_could_not_be_synced_is_told_though_the_log_could_not_say_so,
    a_file_that_the_host_fails_over_as_its_directory_is_renamed_is_not_called_whole,
    cutting_a_file_waits_for_no_flush,
    punching_and_zeroing_wait_for_no_flush,
    on_tmpfs_the_domain_is_volatile,
    a_close_just_before_fsync_of_the_directory_counts,
    who_syncs_a_directory_waits_for_what_is_removed_and_for_no_clock,
);

const LEN: usize = 300_000;
const EXT4: [&str; 3] = ["mkfs.ext4", "-q", "-F"];

/// A mount whose pool is on a disk that can lose power.
struct Machine {
    mount: Mount,
    setup: Setup,
    disk: Disk,
}

/// What is left of it.
struct Left {
    mount: Mount,
    _disk: Disk,
}

impl Machine {
    /// `None` where there can be no such disk; the test is counted as skipped then.
    fn new<const N: usize>(setup: Setup, options: [&str; N]) -> Option<Machine> {
        let disk = match Disk::new(&EXT4, 96) {
            Ok(disk) => disk,
            Err(reason) => {
                setup.skip(&reason);
                return None;
            }
        };
        let mount = setup.clone().pool_at(disk.at("pool")).mount_with(options).mount();
        Some(Machine { mount, setup, disk })
    }

    /// Power is lost now, and comes back.
    fn power_loss(&self) -> Left {
        let disk = self.disk.after_power_loss();
        tensorfs_layout::testing::change_boot_id(&disk.at("pool")).unwrap();
        Left { mount: self.setup.clone().pool_at(disk.at("pool")).mount(), _disk: disk }
    }

    /// Power is lost now: is the file there with these bytes?
    #[track_caller]
    fn survives(&self, name: &str, bytes: &[u8]) {
        let left = self.power_loss();
        let kept = std::fs::read(left.mount.at(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(kept.len(), bytes.len(), "{name}");
        assert!(kept == bytes, "{name} has other bytes");
    }
}

/// Proves D1.
fn with_durability_write_a_write_is_durable(setup: Setup) {
    let Some(machine) = Machine::new(setup, ["--durability", "write", "--commit", "3600"]) else { return };
    let mut file = File::create(machine.mount.at("f")).unwrap();
    let mut want = Pattern(1).bytes(0, LEN);
    file.write_all(&want).unwrap();
    machine.survives("f", &want);
    file.write_all_at(&Pattern(2).bytes(0, 5000), 1000).unwrap();
    want[1000..6000].copy_from_slice(&Pattern(2).bytes(0, 5000));
    machine.survives("f", &want);
    file.write_all_at(b"end", LEN as u64).unwrap();
    want.extend(b"end");
    machine.survives("f", &want);
    let other = File::create(machine.mount.at("g")).unwrap();
    let from = File::open(machine.mount.at("f")).unwrap();
    copied_and_made_longer_is_durable(&machine, (&from, &want), ("g", &other));
}

/// What is copied within the host, and a length that is given to a file with room for it, are durable at once.
fn copied_and_made_longer_is_durable(machine: &Machine, (from, bytes): (&File, &[u8]), (name, to): (&str, &File)) {
    let mut copied = 0;
    while copied < bytes.len() {
        let (mut at, mut place) = (copied as i64, copied as i64);
        copied += nix::fcntl::copy_file_range(from, Some(&mut at), to, Some(&mut place), bytes.len() - copied).unwrap();
    }
    machine.survives(name, bytes);
    nix::fcntl::fallocate(to, FallocateFlags::empty(), 0, bytes.len() as i64 + 5000).unwrap();
    machine.survives(name, &[bytes, &[0; 5000]].concat());
}

/// Proves D2.
fn with_durability_close_a_close_is_durable(setup: Setup) {
    let Some(machine) = Machine::new(setup, ["--durability", "close", "--commit", "3600"]) else { return };
    let path = machine.mount.at("f");
    std::fs::write(&path, Pattern(1).bytes(0, LEN)).unwrap();
    machine.survives("f", &Pattern(1).bytes(0, LEN));
    // In place, appended to, and replaced.
    let mut want = Pattern(1).bytes(0, LEN);
    File::options().write(true).open(&path).unwrap().write_all_at(&Pattern(2).bytes(0, 5000), 1000).unwrap();
    want[1000..6000].copy_from_slice(&Pattern(2).bytes(0, 5000));
    machine.survives("f", &want);
    File::options().append(true).open(&path).unwrap().write_all(b"end").unwrap();
    want.extend(b"end");
    machine.survives("f", &want);
    std::fs::write(&path, Pattern(3).bytes(0, 1000)).unwrap();
    machine.survives("f", &Pattern(3).bytes(0, 1000));
}

/// Proves D3.
fn with_durability_fsync_a_sync_is_durable(setup: Setup) {
    let Some(machine) = Machine::new(setup, ["--durability", "fsync", "--commit", "3600"]) else { return };
    let mut file = File::create(machine.mount.at("fsync")).unwrap();
    file.write_all(&Pattern(1).bytes(0, LEN)).unwrap();
    file.sync_all().unwrap();
    machine.survives("fsync", &Pattern(1).bytes(0, LEN));
    file.write_all(b"more").unwrap();
    file.sync_data().unwrap();
    machine.survives("fsync", &[Pattern(1).bytes(0, LEN), b"more".to_vec()].concat());
    for (name, flag) in [("o_sync", libc::O_SYNC), ("o_dsync", libc::O_DSYNC)] {
        for readable in [false, true] {
            let name = format!("{name}-{readable}");
            let mut options = File::options();
            let mut file = options
                .create(true)
                .read(readable)
                .write(true)
                .custom_flags(flag)
                .open(machine.mount.at(&name))
                .unwrap();
            file.write_all(&Pattern(2).bytes(0, LEN)).unwrap();
            machine.survives(&name, &Pattern(2).bytes(0, LEN));
            let to_name = format!("{name}-copy");
            let to = File::options().create(true).read(readable).write(true).custom_flags(flag).to_owned();
            let to = to.open(machine.mount.at(&to_name)).unwrap();
            let from = File::open(machine.mount.at(&name)).unwrap();
            copied_and_made_longer_is_durable(&machine, (&from, &Pattern(2).bytes(0, LEN)), (&to_name, &to));
        }
    }
}

/// Proves D3.
fn everything_else_follows_within_the_commit_interval(setup: Setup) {
    let Some(machine) = Machine::new(setup, ["--commit", "0.1"]) else { return };
    // Kept open, and never synced.
    let mut file = File::create(machine.mount.at("f")).unwrap();
    file.write_all(&Pattern(1).bytes(0, LEN)).unwrap();
    std::fs::create_dir(machine.mount.at("later")).unwrap();
    for round in 0.. {
        let left = machine.power_loss();
        if left.mount.at("later").exists() {
            // In order: what was done before is there, too.
            assert!(std::fs::read(left.mount.at("f")).unwrap() == Pattern(1).bytes(0, LEN));
            break;
        }
        assert!(round < 100, "never committed");
    }
}

/// Proves D4.
fn fsync_of_a_directory_and_tensorfs_sync_cover_everything(setup: Setup) {
    let Some(machine) = Machine::new(setup, ["--commit", "3600"]) else { return };
    let bytes = Pattern(1).bytes(0, LEN);
    std::fs::create_dir_all(machine.mount.at("a/b")).unwrap();
    std::fs::write(machine.mount.at("a/b/f"), &bytes).unwrap();
    std::fs::create_dir(machine.mount.at("unrelated")).unwrap();
    File::open(machine.mount.at("unrelated")).unwrap().sync_all().unwrap();
    machine.survives("a/b/f", &bytes);
    std::fs::write(machine.mount.at("a/g"), &bytes).unwrap();
    machine.mount.sync();
    machine.survives("a/g", &bytes);
}

/// Whoever asks for everything does not hear that it was done, and neither does who asks at the same time; who asks for
/// what came later does. Nor is a failure forgotten because nobody asked when it happened.
///
/// Proves D4, D12.
fn fsync_of_a_directory_tells_of_a_file_that_could_not_be_synced(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount_with(["--commit", "0.1"]).mount();
    if mount.is_plain() {
        return;
    }
    let directory = File::open(mount.path()).unwrap();
    directory.sync_all().unwrap();
    for name in ["meanwhile", "before"] {
        // A commit may sync what is left of the other file first.
        let rule = Rule::of(Call::Fdatasync).on("/segments/").error(libc::EIO);
        let failing = calls.add(if name == "before" { rule } else { rule.times(1) });
        let file = File::create(mount.at(name)).unwrap();
        file.write_all_at(&Pattern(1).bytes(0, LEN), 0).unwrap();
        if name == "before" {
            drop(file);
            failing.wait_for_hits(1);
            mount.wait_for("damaged file", |info| info["damaged_files"].as_array().unwrap().len() == 1);
            drop(failing);
            assert!(!run(mount.program().arg("sync").arg(mount.path())).status.success());
        } else {
            let results: Vec<_> = std::thread::scope(|scope| {
                let both = [scope.spawn(|| directory.sync_all()), scope.spawn(|| directory.sync_all())];
                both.into_iter().map(|one| one.join().unwrap()).collect()
            });
            assert!(results.iter().any(|result| result.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EIO))));
        }
        directory.sync_all().unwrap();
        std::fs::remove_file(mount.at(name)).unwrap();
        mount.sync();
    }
    // Who carries the pool to a remote, and a server that is told to end, ask for a commit for no program's sake.
    let failing = calls.add(Rule::of(Call::Fdatasync).on("/segments/").error(libc::EIO));
    std::fs::write(mount.at("unheard"), Pattern(1).bytes(0, LEN)).unwrap();
    failing.wait_for_hits(1);
    mount.wait_for("damaged file", |info| info["damaged_files"].as_array().unwrap().len() == 1);
    drop(failing);
    for _ in 0..2 {
        tensorfs_layout::pool::have_committed(&directory).unwrap();
    }
    fails_with(directory.sync_all(), libc::EIO);
    directory.sync_all().unwrap();
    std::fs::remove_file(mount.at("unheard")).unwrap();
    mount.sync();
    // The writer has heard of it: that is enough.
    let file = File::create(mount.at("told")).unwrap();
    file.write_all_at(&Pattern(1).bytes(0, LEN), 0).unwrap();
    let failing = calls.add(Rule::of(Call::Fdatasync).on("/segments/").error(libc::EIO).times(1));
    fails_with(file.sync_all(), libc::EIO);
    assert_eq!(failing.hits(), 1);
    directory.sync_all().unwrap();
}

/// Proves D4, X2.
fn syncfs_does_not_reach_the_server(setup: Setup) {
    let Some(machine) = Machine::new(setup, ["--commit", "3600"]) else { return };
    std::fs::write(machine.mount.at("f"), "bytes").unwrap();
    let directory = File::open(machine.mount.path()).unwrap();
    // SAFETY: plain system call on an open descriptor.
    assert_eq!(unsafe { libc::syncfs(directory.as_raw_fd()) }, 0);
    run_ok(std::process::Command::new("sync").arg("-f").arg(machine.mount.path()));
    let left = machine.power_loss();
    assert!(!left.mount.at("f").exists(), "it does: say so in docs/SEMANTICS.md");
}

/// Proves D7.
fn a_new_name_has_its_bytes_on_the_disk(setup: Setup) {
    let Some(machine) = Machine::new(setup, ["--commit", "3600"]) else { return };
    let bytes = Pattern(1).bytes(0, LEN);
    let at = |name: &str| machine.mount.at(name);
    for name in ["renamed", "linked", "moved"] {
        std::fs::create_dir(at(&format!("{name}.dir"))).unwrap();
        std::fs::write(at(&format!("{name}.dir/tmp")), &bytes).unwrap();
    }
    std::fs::rename(at("renamed.dir/tmp"), at("renamed")).unwrap();
    std::fs::hard_link(at("linked.dir/tmp"), at("linked")).unwrap();
    std::fs::rename(at("moved.dir"), at("moved")).unwrap();
    // Only another file is ever synced; that makes the names durable.
    File::create(at("other")).unwrap().sync_all().unwrap();
    let left = machine.power_loss();
    for name in ["renamed", "linked", "moved/tmp"] {
        assert!(std::fs::read(left.mount.at(name)).unwrap() == bytes, "{name}");
    }
}

/// A shared mapping of a whole file, for writing.
fn stored(file: &File, bytes: &[u8]) {
    // SAFETY: a fresh mapping of a file that is as long, written within its bounds, synced and unmapped.
    unsafe {
        let flags = libc::PROT_READ | libc::PROT_WRITE;
        let map = libc::mmap(std::ptr::null_mut(), bytes.len(), flags, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.cast(), bytes.len());
        assert_eq!(libc::msync(map, bytes.len(), libc::MS_SYNC), 0);
        libc::munmap(map, bytes.len());
    }
}

/// Proves D11, X2.
fn msync_and_synchronous_writes_reach_the_disk(setup: Setup) {
    let Some(machine) = Machine::new(setup, ["--commit", "3600"]) else { return };
    let path = machine.mount.at("f");
    std::fs::write(&path, Pattern(1).bytes(0, LEN)).unwrap();
    machine.mount.sync();
    // In passthrough, because it is open so already.
    let open = File::options().read(true).write(true).open(&path).unwrap();
    stored(&open, &Pattern(2).bytes(0, LEN));
    machine.survives("f", &Pattern(2).bytes(0, LEN));
    let synchronous = File::options().write(true).custom_flags(libc::O_SYNC).open(&path).unwrap();
    synchronous.write_all_at(&Pattern(3).bytes(0, LEN), 0).unwrap();
    machine.survives("f", &Pattern(3).bytes(0, LEN));
    // The file's size follows with the next commit.
    synchronous.write_all_at(b"end", LEN as u64).unwrap();
    let longer = [Pattern(3).bytes(0, LEN), b"end".to_vec()].concat();
    if machine.mount.passthrough() == Passthrough::On {
        machine.survives("f", &longer[..LEN]);
        machine.mount.sync();
    }
    machine.survives("f", &longer);
}

/// The only segment of so many bytes.
fn segment_of_len(pool: &Path, len: u64) -> PathBuf {
    let text = run_ok(std::process::Command::new("find").arg(pool.join("segments")).args([
        "-type",
        "f",
        "-size",
        &format!("{len}c"),
    ]));
    let mut lines = text.lines();
    let path = lines.next().expect("a segment of that size").into();
    assert_eq!(lines.next(), None);
    path
}

#[track_caller]
fn fails_with<T: std::fmt::Debug>(result: std::io::Result<T>, errno: i32) {
    assert_eq!(result.expect_err("an error").raw_os_error(), Some(errno));
}

/// How much of it there is nobody knows as its directory's new name becomes durable. Others are not affected.
///
/// Proves D7, D12.
fn a_file_that_the_host_fails_over_as_its_directory_is_renamed_is_not_called_whole(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.mount_with(["--commit", "3600"]).host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    std::fs::create_dir(mount.at("before")).unwrap();
    let mut file = File::create(mount.at("before/f")).unwrap();
    let mut other = File::create(mount.at("other")).unwrap();
    file.write_all(&Pattern(1).bytes(0, LEN + 1)).unwrap();
    other.write_all(b"other").unwrap();
    std::fs::rename(mount.at("before"), mount.at("after")).unwrap();
    let segment = segment_of_len(mount.pool(), LEN as u64 + 1);
    let failing = calls.add(Rule::of(Call::Fstat).below(&segment).error(libc::EIO));
    other.sync_all().unwrap();
    assert!(failing.hits() > 0, "nobody has looked at it");
    drop(failing);
    fails_with(file.sync_all(), libc::EIO);
    drop((file, other));
    mount.power_loss();
    mount.mount();
    assert_eq!(std::fs::read(mount.at("other")).unwrap(), b"other");
    assert_eq!(state(&mount.at("after/f")), "damaged");
}

/// What tensorfs says of a file.
fn state(path: &Path) -> String {
    String::from_utf8(xattr::get(path, "user.tensorfs.state").unwrap()).unwrap()
}

/// Proves D12, T7.
fn a_file_that_cannot_be_synced_says_so_until_it_is_replaced(setup: Setup) {
    let disk = match FailingDisk::new() {
        Ok(disk) => disk,
        Err(reason) => return setup.skip(&reason),
    };
    let mut mount = setup.pool_at(disk.at("pool")).mount();
    let (bad, good) = (mount.at("bad"), mount.at("good"));
    std::fs::write(&bad, Pattern(1).bytes(0, 2 << 20)).unwrap();
    std::fs::write(&good, Pattern(1).bytes(0, 1 << 20)).unwrap();
    mount.sync();
    disk.fail_writes(&segment_of_len(mount.pool(), 2 << 20), 0..2 << 20);

    let file = File::options().read(true).write(true).open(&bad).unwrap();
    file.write_all_at(&Pattern(2).bytes(0, 100_000), 0).unwrap();
    for _ in 0..3 {
        fails_with(file.sync_all(), libc::EIO);
    }
    drop(file);
    // Also for whoever opens it next, and although nothing more is written.
    fails_with(File::options().write(true).open(&bad).unwrap().sync_all(), libc::EIO);
    let info = mount.info();
    assert_eq!(info["damaged_files"], serde_json::json!(["/bad"]), "{info}");
    assert_eq!(state(&bad), "damaged");
    // Others are not affected: neither one there, nor a new one, nor names.
    let other = File::options().write(true).open(&good).unwrap();
    other.write_all_at(&Pattern(3).bytes(0, 100_000), 0).unwrap();
    other.sync_all().unwrap();
    let mut new = File::create(mount.at("new")).unwrap();
    new.write_all(b"new").unwrap();
    new.sync_all().unwrap();
    File::open(mount.path()).unwrap().sync_all().unwrap();
    // Replaced, it is as good as new.
    let mut file = File::create(&bad).unwrap();
    file.write_all(&Pattern(4).bytes(0, 500_000)).unwrap();
    file.sync_all().unwrap();
    drop((file, other, new));
    assert_eq!(mount.info()["damaged_files"], serde_json::json!([]));
    assert_ne!(state(&bad), "damaged");
    mount.remount();
    assert!(std::fs::read(&bad).unwrap() == Pattern(4).bytes(0, 500_000));
}

/// A pool whose log cannot be written behind what it holds now, and the records that lead there.
fn with_failing_log(setup: Setup) -> Result<(FailingDisk, Mount, File), String> {
    let disk = FailingDisk::new()?;
    let mount = setup.pool_at(disk.at("pool")).mount_with(["--commit", "3600"]).mount();
    for name in ["before", "punched"] {
        std::fs::write(mount.at(name), Pattern(1).bytes(0, LEN)).unwrap();
    }
    // Open for writing all the time: a file that is not is sealed, and then cannot be opened when the log fails.
    let punched = File::options().read(true).write(true).open(mount.at("punched")).unwrap();
    mount.sync();
    let log = mount.pool().join("log");
    let used = std::fs::read(&log).unwrap().iter().rposition(|byte| *byte != 0).unwrap() as u64;
    // From the page on that the next record goes to: of a write that succeeds in part, a loop device reports success.
    // What is stored in that page stays in the host's memory.
    disk.fail_writes(&log, used / 4096 * 4096..u64::MAX);
    // These are stored, and not durable.
    for n in 0..500 {
        std::fs::create_dir(mount.at(format!("{n:0100}"))).unwrap();
    }
    Ok((disk, mount, punched))
}

/// The machine stays up, so that the host may have in its memory what its disk has not, and say that all is well.
///
/// Proves D12.
fn a_large_file_that_could_not_be_synced_is_told_though_the_log_could_not_say_so(setup: Setup) {
    // The log cannot be written, or not be flushed, or nothing can; before the file's sync fails, or with it.
    for (failing_log, log_first, killed) in [
        (Some(Call::Write), false, false),
        (Some(Call::Write), true, true),
        (Some(Call::Fdatasync), false, true),
        (Some(Call::Fdatasync), true, false),
        (None, false, true),
        (None, true, false),
    ] {
        let what = format!("{failing_log:?}, log first: {log_first}, killed: {killed}");
        let calls = HostCalls::new();
        let mut mount = setup.clone().host_calls(&calls).mount_with(["--commit", "3600"]).mount();
        if mount.is_plain() {
            return;
        }
        let (path, other) = (mount.at("large"), mount.at("other"));
        for file in [&path, &other] {
            std::fs::write(file, Pattern(1).bytes(0, LEN)).unwrap();
        }
        mount.sync();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        file.write_all_at(&Pattern(2).bytes(0, 1000), 5000).unwrap();
        std::fs::create_dir(mount.at("made")).unwrap();
        let fail = |rule: Rule| calls.add(rule.error(libc::EIO));
        let log = fail(match failing_log {
            Some(call) => Rule::of(call).on("/log"),
            None => Rule::of_any([Call::Write, Call::Fdatasync, Call::Fsync]),
        });
        if log_first {
            assert!(File::open(mount.path()).unwrap().sync_all().is_err(), "{what}");
        }
        let segments = fail(Rule::of(Call::Fdatasync).on("/segments/"));
        assert!(file.sync_all().is_err(), "{what}");
        drop(file);
        if killed {
            mount.kill9()
        } else {
            assert!(mount.end(), "{what}")
        }
        drop((segments, log));
        let check = |mount: &Mount| {
            let check = run(mount.program().arg("check").arg(mount.pool()));
            assert_eq!(check.status.code(), Some(4), "{what}: {}", String::from_utf8_lossy(&check.stdout));
        };
        check(&mount);
        let said = String::from_utf8_lossy(&mount.try_mount().0.stderr).into_owned();
        mount.adopt();
        assert!(!said.contains("nothing that was accepted is lost") && said.contains("1 damaged"), "{what}: {said}");
        let state = |file: &Path| xattr::get(file, "user.tensorfs.state").unwrap();
        assert_eq!(state(&path), b"damaged", "{what}");
        assert!(state(&other) != b"damaged" && mount.at("made").is_dir(), "{what}");
        mount.umount();
        check(&mount);
        assert!(!mount.pool().join("failed").exists(), "{what}");
    }
}

/// A server that has given up its rights can open nothing in the machine's memory any more, and the pool's disk takes
/// no note either.
///
/// Proves D12, K2.
fn what_a_server_without_rights_could_not_sync_the_next_one_knows(setup: Setup) {
    for ends in [false, true] {
        let calls = HostCalls::new();
        let mount = setup.clone().host_calls(&calls).mount_with(["--commit", "3600", "-o", "keeper"]);
        let mut mount = mount.mount();
        if mount.is_plain() {
            return;
        }
        let (path, other) = (mount.at("large"), mount.at("other"));
        for file in [&path, &other] {
            std::fs::write(file, Pattern(1).bytes(0, LEN)).unwrap();
        }
        mount.sync();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        file.write_all_at(&Pattern(2).bytes(0, 1000), 5000).unwrap();
        std::fs::create_dir(mount.at("made")).unwrap();
        let failing = [
            Rule::of(Call::Write).on("/log").error(libc::EIO),
            Rule::of(Call::Fdatasync).on("/segments/").error(libc::EIO),
            Rule::of(Call::Open).on("/failed").error(libc::EROFS),
        ];
        let failing = failing.map(|rule| calls.add(rule));
        assert!(file.sync_all().is_err());
        assert!(failing[2].hits() > 0);
        if ends {
            drop(file);
            assert!(mount.end());
            drop(failing);
            mount.mount();
        } else {
            drop(failing);
            mount.kill_server();
            fails_with(file.sync_all(), libc::EIO);
        }
        assert_eq!(state(&path), "damaged", "ends: {ends}");
        assert_ne!(state(&other), "damaged");
    }
}

/// Proves D12.
fn a_log_that_cannot_be_synced_makes_the_pool_read_only(setup: Setup) {
    let (disk, mut mount, file) = match with_failing_log(setup) {
        Ok(made) => made,
        Err(reason) => return mount_skip(&reason),
    };
    let failed = File::open(mount.path()).unwrap().sync_all().unwrap_err();
    assert!([Some(libc::EIO), Some(libc::EROFS)].contains(&failed.raw_os_error()), "{failed}");
    for _ in 0..2 {
        fails_with(std::fs::create_dir(mount.at("d")), libc::EROFS);
        fails_with(std::fs::remove_file(mount.at("before")), libc::EROFS);
        fails_with(File::create(mount.at("new")), libc::EROFS);
        assert!(mount.info()["read_only"].is_string(), "{}", mount.info());
    }
    // The disk works again; what failed once is not believed to have been done by the next try.
    disk.mend();
    fails_with(std::fs::create_dir(mount.at("d")), libc::EROFS);
    assert!(std::fs::read(mount.at("before")).unwrap() == Pattern(1).bytes(0, LEN));
    drop(file);
    mount.umount();
    // The host tells everybody once of what it could not write; a pool does not start over that.
    let _ = tensorfs_tests::run(std::process::Command::new("sync").arg("-f").arg(mount.pool()));
    mount.mount();
    assert!(std::fs::read(mount.at("before")).unwrap() == Pattern(1).bytes(0, LEN));
    std::fs::create_dir(mount.at("d")).unwrap();
    mount.sync();
}

fn mount_skip(reason: &str) {
    tensorfs_tests::skip("durability", reason);
}

/// Each cut of durable bytes took two flushes: 10 ms, where ext4 took 0.02. It is durable when it is promised to be. A
/// power loss before that leaves the file as it was or as it was cut, and not damaged.
///
/// Proves D3, D10.
fn cutting_a_file_waits_for_no_flush(setup: Setup) {
    let mut mount = setup.mount_with(["--commit", "3600", "--durability", "fsync"]).mount();
    if mount.is_plain() {
        return;
    }
    let flushes = |mount: &Mount| mount.info()["flushes"].clone();
    let state = |mount: &Mount, name: &str| xattr::get(&mount.at(name), "user.tensorfs.state").unwrap();
    for (name, len) in [("large", 400_000), ("by value", 20_000)] {
        let bytes = Pattern(1).bytes(0, len);
        for (by_path, synced) in [(false, true), (false, false), (true, true), (true, false)] {
            let file = File::create(mount.at(name)).unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            file.sync_all().unwrap();
            let file = (!by_path).then_some(file);
            let before = flushes(&mount);
            let cuts: Vec<usize> = (1..10).map(|n| len - n * len / 20).collect();
            for cut in &cuts {
                match &file {
                    Some(file) => file.set_len(*cut as u64).unwrap(),
                    None => nix::unistd::truncate(&mount.at(name), *cut as i64).unwrap(),
                }
                assert!(std::fs::read(mount.at(name)).unwrap() == bytes[..*cut]);
            }
            assert_eq!(flushes(&mount), before, "{name}: nobody had asked for anything to be durable");
            if synced {
                File::open(mount.at(name)).unwrap().sync_all().unwrap();
            }
            drop(file);
            mount.power_loss();
            mount.mount();
            let found = std::fs::read(mount.at(name)).unwrap();
            assert!(found == bytes[..found.len()], "{name}: {} bytes", found.len());
            let possible = if synced { &cuts[8..] } else { &[&cuts[..], &[len]].concat() };
            assert!(possible.contains(&found.len()), "{name}: {} bytes, synced: {synced}", found.len());
            assert_ne!(state(&mount, name), b"damaged", "{name}, synced: {synced}");
        }
    }
}

/// Each hole that was punched into durable bytes took two flushes: 12,800 of them 7.8 s, where ext4 took 0.14 s. They
/// are durable when they are promised to be, as what is written is.
///
/// Proves D3.
fn punching_and_zeroing_wait_for_no_flush(setup: Setup) {
    let mut mount = setup.mount_with(["--commit", "3600", "--durability", "fsync"]).mount();
    if mount.is_plain() {
        return;
    }
    const BLOCK: usize = 4096;
    const LARGE: usize = 100 * BLOCK;
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    for (name, len) in [("large", LARGE), ("by value", 5 * BLOCK)] {
        let file = File::create(mount.at(name)).unwrap();
        let mut want = Pattern(1).bytes(0, len);
        file.write_all_at(&want, 0).unwrap();
        file.sync_all().unwrap();
        let flushes = |mount: &Mount| mount.info()["flushes"].clone();
        let before = flushes(&mount);
        for at in (0..len).step_by(2 * BLOCK) {
            let mode = if at % (4 * BLOCK) == 0 { punch } else { libc::FALLOC_FL_ZERO_RANGE };
            // SAFETY: plain system call on an open descriptor.
            let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, at as i64, BLOCK as i64) };
            assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
            want[at..at + BLOCK].fill(0);
        }
        assert_eq!(flushes(&mount), before, "{name}: nobody had asked for anything to be durable");
        assert!(std::fs::read(mount.at(name)).unwrap() == want, "{name}");
        file.sync_all().unwrap();
        assert_ne!(flushes(&mount), before, "{name}");
        drop(file);
        mount.power_loss();
        mount.mount();
        assert!(std::fs::read(mount.at(name)).unwrap() == want, "{name}, after a power loss");
    }
}

/// Proves D13.
fn on_tmpfs_the_domain_is_volatile(setup: Setup) {
    let room = scratch();
    let Ok(memory) = Mounted::tmpfs(room.path(), None) else {
        return setup.skip("no tmpfs can be mounted");
    };
    let mount = setup.clone().pool_at(room.path().join("pool")).mount();
    let info = mount.info();
    std::fs::write(mount.at("f"), "works all the same").unwrap();
    File::open(mount.at("f")).unwrap().sync_all().unwrap();
    assert_eq!(std::fs::read(mount.at("f")).unwrap(), b"works all the same");
    drop(mount);
    drop(memory);
    assert_eq!((&info["domain"], &info["durability"]), (&"volatile".into(), &"fsync".into()), "{info}");
    // A disk is something else.
    assert_eq!(setup.mount().info()["domain"], "cached");
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

/// As who saves a file beside the old one, and gives it that one's name. The shortest of many times is compared with
/// that where nothing is removed: a pause of a millisecond is many times as long.
fn who_syncs_a_directory_waits_for_what_is_removed_and_for_no_clock(setup: Setup) {
    let room = scratch();
    let Ok(memory) = Mounted::tmpfs(room.path(), None) else {
        return setup.skip("no tmpfs can be mounted");
    };
    let mount = setup.pool_at(room.path().join("pool")).mount();
    if mount.is_plain() {
        return;
    }
    let directory = File::open(mount.path()).unwrap();
    let shortest = |name: &dyn Fn(u32) -> String| {
        let saved = (0..200).map(|n| {
            std::fs::write(mount.at("new"), [1; 4096]).unwrap();
            File::open(mount.at("new")).unwrap().sync_all().unwrap();
            std::fs::rename(mount.at("new"), mount.at(name(n))).unwrap();
            let begun = Instant::now();
            directory.sync_all().unwrap();
            begun.elapsed()
        });
        saved.min().unwrap()
    };
    let (alone, over) = (shortest(&|n| format!("file-{n}")), shortest(&|_| "file-0".to_owned()));
    drop((directory, mount, memory));
    assert!(over < alone * 8, "{over:?} where a file is removed, {alone:?} where none is");
}
