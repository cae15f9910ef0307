//! A server that dies, and another one in its place: programs see a pause and nothing else.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use tensorfs_fs::{Moving, Reply, Request};
use tensorfs_layout::Ino;
use tensorfs_tests::{
    Call, Disk, HostCalls, Mount, Passthrough, Pattern, Rule, Setup, asked_anew, copy_program, on_mounts, wait_until,
    xattr,
};

on_mounts!(
    what_is_open_goes_on,
    a_file_that_was_cut_without_a_name_goes_on,
    files_are_opened_and_closed_as_the_server_dies,
    a_server_that_aborts_or_has_no_memory_is_replaced,
    locks_are_kept,
    a_listing_that_was_begun_is_ended,
    a_server_without_its_keeper_serves_on,
    a_mount_that_is_unmounted_has_no_keeper,
    a_server_that_cannot_start_again_stays_dead,
    the_pool_is_nobody_elses_meanwhile,
    many_open_files_go_on,
    programs_that_run_go_on,
    what_cannot_be_taken_over_gives_errors,
    a_server_that_cannot_serve_says_so,
    a_file_that_could_not_be_synced_stays_so,
    a_keeper_that_cannot_start_a_server_tries_again,
    a_server_that_is_to_end_ends_after_it_was_killed,
    a_mount_is_known_by_its_number,
    whoever_mounts_hears_of_the_end,
    the_keeper_opens_its_log_again,
    a_server_that_opens_its_log_again_has_its_keeper_do_so,
    a_server_that_hangs_is_replaced,
    a_server_that_hangs_before_it_serves_is_replaced,
    who_writes_is_known_to_the_next_server,
    what_was_not_changed_keeps_its_times,
    what_was_made_to_be_read_keeps_its_times,
    what_is_made_while_others_are_stamped_keeps_its_times,
    a_server_gives_up_its_rights,
    mounts_that_end_leave_each_other_alone,
    a_server_without_rights_and_keeper_is_unmounted,
    a_server_that_was_taken_over_hands_nothing_on,
    what_the_kernel_has_forgotten_is_let_go_of,
    what_a_server_was_doing_for_a_command_begins_anew,
    a_file_that_a_server_was_moving_is_moved_by_the_next_one,
    what_a_server_before_has_moved_is_moved,
    a_log_that_is_late_holds_nobody_up,
    a_disk_that_fails_for_seconds_is_waited_for,
    a_host_without_room_keeps_nobody_from_taking_over,
    a_server_that_is_told_to_leave_has_not_died,
    what_a_server_has_counted_ends_with_it,
);

pub(crate) fn kept(setup: Setup) -> Mount {
    setup.mount_with(["-o", "keeper"]).mount()
}

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// What was committed of it while it had a name is longer than what it is now.
///
/// Proves K1, K2, D9.
fn a_file_that_was_cut_without_a_name_goes_on(setup: Setup) {
    for durability in ["fsync", "close", "write"] {
        let mut mount = setup.clone().mount_with(["-o", &format!("keeper,durability={durability}")]).mount();
        if mount.is_plain() {
            return;
        }
        for len in [22_402, 0, 65_536] {
            for (is_replaced, is_synced) in [(false, false), (true, false), (false, true), (true, true)] {
                let (path, other) = (mount.at(format!("f{len}{is_replaced}{is_synced}")), mount.at("other"));
                let file = read_write(&path);
                file.write_all_at(&[7; 65_536], 0).unwrap();
                file.sync_all().unwrap();
                if is_replaced {
                    fs::write(&other, "other").unwrap();
                    fs::rename(&other, &path).unwrap();
                } else {
                    fs::remove_file(&path).unwrap();
                }
                file.set_len(len).unwrap();
                if is_synced {
                    // As long as before, and of no other time.
                    let time = file.metadata().unwrap().modified().unwrap();
                    file.write_all_at(&[7; 65_536], 0).unwrap();
                    file.set_modified(time).unwrap();
                    file.sync_all().unwrap();
                }
                let len = if is_synced { 65_536 } else { len };
                mount.kill_server();
                file.sync_all().unwrap();
                let mut bytes = Vec::new();
                (&file).read_to_end(&mut bytes).unwrap();
                assert!(bytes == vec![7; len as usize], "{durability} {len} {is_replaced}");
                file.write_all_at(&[8; 100], 100_000).unwrap();
                file.sync_all().unwrap();
                assert_eq!(file.metadata().unwrap().len(), 100_100);
            }
        }
        File::open(mount.at("")).unwrap().sync_all().unwrap();
        assert_eq!(mount.info()["damaged_files"], serde_json::json!([]));
    }
}

/// A server that dies between letting the kernel forget a segment and forgetting who had it open leaves a handle of
/// which the kernel no longer knows the segment.
///
/// Proves K1, K2.
fn files_are_opened_and_closed_as_the_server_dies(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let paths: Vec<PathBuf> = (0..4).map(|n| mount.at(format!("f{n}"))).collect();
    paths.iter().for_each(|path| fs::write(path, vec![5; 100_000]).unwrap());
    let (over, opened) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let (over, opened) = (&over, &opened);
        for path in &paths {
            scope.spawn(move || {
                while !over.load(SeqCst) {
                    let open = OpenOptions::new().read(true).write(true).open(path);
                    let file = open.unwrap_or_else(|error| panic!("open: {error}"));
                    file.write_all_at(&[5; 8], 0).unwrap_or_else(|error| panic!("write: {error}"));
                    opened.fetch_add(1, SeqCst);
                }
            });
        }
        for round in 0..20 {
            let enough = opened.load(SeqCst) + 200 + 13 * round;
            wait_until("files to be opened", || opened.load(SeqCst) >= enough);
            mount.kill_server();
        }
        over.store(true, SeqCst);
    });
}

/// Proves K1, K2.
fn a_server_that_aborts_or_has_no_memory_is_replaced(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let file = read_write(&mount.at("f"));
    let dir = mount.path().to_owned();
    let made = AtomicUsize::new(0);
    for (round, is_memory) in [false, true].into_iter().enumerate() {
        file.write_all_at(&[round as u8; 100], 0).unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (over, made, dir) = (&over, &made, &dir);
            mount.end_server(|pid| {
                if is_memory {
                    let none = libc::rlimit { rlim_cur: 0, rlim_max: libc::RLIM_INFINITY };
                    // SAFETY: the limit outlives the call. The pid was asked of the server that runs.
                    let set = unsafe { libc::prlimit(pid, libc::RLIMIT_AS, &none, std::ptr::null_mut()) };
                    assert_eq!(set, 0, "{}", io::Error::last_os_error());
                    // Names take memory.
                    scope.spawn(move || {
                        let is_there = || Path::new(&format!("/proc/{pid}/maps")).exists();
                        while is_there() && !over.load(SeqCst) {
                            let number = made.fetch_add(1, SeqCst);
                            fs::create_dir(dir.join(format!("{number}{}", "x".repeat(200)))).unwrap();
                        }
                    });
                } else {
                    // SAFETY: plain system call. The pid was asked of the server that runs.
                    assert_eq!(unsafe { libc::kill(pid, libc::SIGABRT) }, 0);
                }
            });
            over.store(true, SeqCst);
        });
        let mut bytes = [9; 100];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [round as u8; 100]);
        assert_eq!(mount.info()["keeper"]["reason"], "SIGABRT", "{round}");
    }
    let names = fs::read_dir(mount.path()).unwrap().count();
    assert_eq!(names, 1 + made.load(SeqCst), "each directory is there once");
}

/// Proves K1, K2.
fn what_is_open_goes_on(setup: Setup) {
    for durability in ["fsync", "close", "write"] {
        let mut mount = setup.clone().mount_with(["-o", &format!("keeper,durability={durability}")]).mount();
        if mount.is_plain() {
            return;
        }
        fs::write(mount.at("read"), vec![5; 100_000]).unwrap();
        let mut read = File::open(mount.at("read")).unwrap();
        read.read_exact(&mut [0; 10]).unwrap();
        let written = read_write(&mount.at("written"));
        let nameless = read_write(&mount.at("nameless"));
        nameless.write_all_at(b"nameless", 0).unwrap();
        fs::remove_file(mount.at("nameless")).unwrap();
        let mut appended = OpenOptions::new().append(true).create(true).open(mount.at("appended")).unwrap();
        // SAFETY: nobody cuts the file.
        let mapping = unsafe { memmap2::Mmap::map(&read) }.unwrap();
        let mapped = read_write(&mount.at("mapped"));
        mapped.set_len(8192).unwrap();
        // SAFETY: nobody cuts the file.
        let mut stored = unsafe { memmap2::MmapMut::map_mut(&mapped) }.unwrap();
        let mut replaced = Vec::new();
        fs::write(mount.at("replaced"), "the version before").unwrap();
        replaced.push(File::create(mount.at("replaced")).unwrap());
        for round in 0..5_u8 {
            written.write_all_at(&[round; 5000], u64::from(round) * 5000).unwrap();
            appended.write_all(&[round]).unwrap();
            stored[usize::from(round)] = round + 1;
            replaced[0].write_all(b"new").unwrap();
            mount.kill_server();
            assert_eq!(written.metadata().unwrap().len(), (u64::from(round) + 1) * 5000);
            let mut bytes = vec![0; 5000];
            written.read_exact_at(&mut bytes, u64::from(round) * 5000).unwrap();
            assert!(bytes.iter().all(|byte| *byte == round));
            written.sync_all().unwrap();
            assert_eq!(nameless.metadata().unwrap().nlink(), 0);
            let mut bytes = [0; 8];
            nameless.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(&bytes, b"nameless");
            appended.write_all(b"+").unwrap();
            assert_eq!(fs::metadata(mount.at("appended")).unwrap().len(), (u64::from(round) + 1) * 2);
            let mut bytes = [0; 10];
            read.read_exact(&mut bytes).unwrap();
            assert_eq!((bytes, mapping[99_999]), ([5; 10], 5));
            assert_eq!(stored[usize::from(round)], round + 1);
            stored.flush().unwrap();
            assert_eq!(fs::read(mount.at("mapped")).unwrap()[usize::from(round)], round + 1);
        }
        drop((read, mapping, written, nameless, appended, mapped, stored, replaced));
        let info = mount.info();
        assert_eq!(info["keeper"]["takeovers"], 5, "{info}");
        assert_eq!(info["keeper"]["reason"], "SIGKILL");
        mount.remount();
        assert_eq!(fs::read(mount.at("appended")).unwrap(), b"\x00+\x01+\x02+\x03+\x04+");
        assert_eq!(fs::read(mount.at("replaced")).unwrap(), b"new".repeat(5));
        assert!(!mount.at("nameless").exists());
        mount.umount();
        let check = mount.tensorfs(["check", "--data", mount.pool().to_str().unwrap()]);
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&[check.stdout, check.stderr].concat()));
    }
}

/// `flock` without waiting.
fn flock(file: &File, how: i32) -> bool {
    // SAFETY: takes integers alone.
    unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) == 0 }
}

/// Proves K1.
fn locks_are_kept(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let (first, second) = (read_write(&mount.at("f")), read_write(&mount.at("f")));
    assert!(flock(&first, libc::LOCK_EX));
    mount.kill_server();
    assert!(!flock(&second, libc::LOCK_EX));
    assert!(flock(&first, libc::LOCK_UN) && flock(&second, libc::LOCK_EX));
    mount.kill_server();
    assert!(!flock(&first, libc::LOCK_EX));
}

/// Proves K1.
fn a_listing_that_was_begun_is_ended(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let mut names: Vec<String> = (0..1000).map(|n| format!("a-longer-name-{n:04}")).collect();
    for name in &names {
        File::create(mount.at(name)).unwrap();
    }
    let mut found = Vec::new();
    for (n, entry) in fs::read_dir(mount.path()).unwrap().enumerate() {
        found.push(entry.unwrap().file_name().into_string().unwrap());
        if n % 300 == 10 {
            mount.kill_server();
        }
    }
    names.sort();
    found.sort();
    assert_eq!(found, names);
}

/// Proves K4.
fn a_server_without_its_keeper_serves_on(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let health = |mount: &Mount| mount.tensorfs(["health", mount.path().to_str().unwrap()]);
    let said = health(&mount);
    // The host may be nearly full.
    assert!(!String::from_utf8_lossy(&said.stdout).contains("keeper"), "{said:?}");
    mount.kill_keeper();
    fs::write(mount.at("f"), "text").unwrap();
    let said = health(&mount);
    assert_eq!(said.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&said.stdout).contains("keeper has died"), "{said:?}");
    assert!(mount.info()["keeper"]["pid"].is_null());
    // From here on it is as without one.
    mount.kill9();
    let refused = fs::read(mount.at("f")).unwrap_err().raw_os_error();
    // The latter if it was asked in the moment in which the connection went.
    assert!(matches!(refused, Some(libc::ENOTCONN | libc::ECONNABORTED)), "{refused:?}");
    mount.mount();
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"text");
    let said = health(&mount);
    // The host may be nearly full.
    assert!(!String::from_utf8_lossy(&said.stdout).contains("keeper"), "{said:?}");
}

fn keeper_of(mount: &Mount) -> i32 {
    mount.info()["keeper"]["pid"].as_i64().unwrap() as i32
}

fn is_there(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("tensorfs-keeper"))
}

/// Proves K4.
fn a_mount_that_is_unmounted_has_no_keeper(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    for killed in [false, true] {
        if killed {
            mount.kill_server();
        }
        let keeper = keeper_of(&mount);
        assert!(is_there(keeper));
        mount.umount();
        wait_until("the end of the keeper", || !is_there(keeper));
        let info = mount.info();
        assert_eq!(info["state"], "clean", "{info}");
        mount.mount();
    }
    // SIGTERM of the keeper ends the server in order.
    let keeper = keeper_of(&mount);
    // SAFETY: plain system call. The pid was asked of the server that runs.
    assert_eq!(unsafe { libc::kill(keeper, libc::SIGTERM) }, 0);
    wait_until("the end of the keeper", || !is_there(keeper));
    assert_eq!(mount.info()["state"], "clean");
    mount.mount();
}

/// Proves K5.
fn a_server_that_cannot_start_again_stays_dead(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    fs::write(mount.at("f"), "text").unwrap();
    let open = File::open(mount.at("f")).unwrap();
    let (keeper, pid, superblock) = (keeper_of(&mount), mount.pid().unwrap(), mount.pool().join("log"));
    let kept = mount.pool().join("log.kept");
    // No server can open the pool any more.
    fs::rename(&superblock, &kept).unwrap();
    // SAFETY: plain system call. The pid was asked of the server that runs.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    wait_until("the end of the keeper", || !is_there(keeper));
    assert!(fs::read_dir(mount.path()).is_err(), "it is not served");
    assert!(mount.log().contains("it is not served any more"), "{}", mount.log());
    drop(open);
    fs::rename(&kept, &superblock).unwrap();
    mount.mount();
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"text");
}

/// Proves K5.
fn the_pool_is_nobody_elses_meanwhile(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let elsewhere = mount.host();
    for _ in 0..5 {
        let mut command = mount.program();
        command.arg("mount").arg(mount.pool()).arg(&elsewhere);
        let other = thread::spawn(move || command.output().unwrap());
        mount.kill_server();
        let said = other.join().unwrap();
        assert!(!said.status.success(), "{said:?}");
    }
    fs::write(mount.at("f"), "text").unwrap();
}

/// Proves K1.
fn many_open_files_go_on(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let open: Vec<File> = (0..2000).map(|n| read_write(&mount.at(format!("f{n}")))).collect();
    mount.kill_server();
    for (n, file) in open.iter().enumerate() {
        file.write_all_at(&n.to_le_bytes(), 0).unwrap();
        if n == 1000 {
            mount.kill_server();
        }
    }
    drop(open);
    for n in 0..2000_usize {
        assert_eq!(fs::read(mount.at(format!("f{n}"))).unwrap(), n.to_le_bytes());
    }
}

/// Proves K1.
fn programs_that_run_go_on(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let program = mount.at("sleep");
    copy_program("/bin/sleep", &program);
    let mut child = std::process::Command::new(&program).arg("1000").spawn().unwrap();
    mount.kill_server();
    let written = OpenOptions::new().write(true).custom_flags(libc::O_CLOEXEC).open(&program);
    assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::ETXTBSY));
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Proves K6.
fn what_cannot_be_taken_over_gives_errors(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let accesses = mount.at(".tensorfs/accesses");
    let control = File::open(&accesses).unwrap();
    fs::create_dir(mount.at("d")).unwrap();
    let gone = File::open(mount.at("d")).unwrap();
    fs::remove_dir(mount.at("d")).unwrap();
    fs::write(mount.at("f"), "").unwrap();
    let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(mount.at("f")).unwrap();
    nix::unistd::mkfifo(&mount.at("p"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let fifo = OpenOptions::new().read(true).write(true).open(mount.at("p")).unwrap();
    for name in ["f", "p"] {
        fs::remove_file(mount.at(name)).unwrap();
    }
    mount.kill_server();
    let refused = control.read_exact_at(&mut [0], 0).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
    assert_eq!(fs::read_to_string(&accesses).unwrap(), "");
    let refused = fs::metadata(format!("/proc/self/fd/{}/x", gone.as_raw_fd())).unwrap_err();
    assert!(matches!(refused.raw_os_error(), Some(libc::ESTALE | libc::ENOENT)), "{refused}");
    for held in [gone, file, fifo] {
        assert_eq!(held.metadata().unwrap_err().raw_os_error(), Some(libc::ESTALE));
    }
    fs::create_dir(mount.at("d")).unwrap();
}

/// Proves K5.
fn a_server_that_cannot_serve_says_so(setup: Setup) {
    let calls = HostCalls::new();
    let passthrough = setup.passthrough() == Passthrough::On;
    let mut mount = kept(setup.host_calls(&calls));
    if mount.is_plain() || !passthrough {
        return;
    }
    mount.umount();
    let refused = calls.add(Rule::of(Call::Backing).error(libc::EPERM));
    let said = mount.mounting().output().unwrap();
    assert!(!said.status.success());
    assert!(String::from_utf8_lossy(&said.stderr).contains("passthrough is not available"), "{said:?}");
    assert!(refused.hits() > 0);
    drop(refused);
    mount.mount();
}

/// Proves K2, D4, D12.
fn a_file_that_could_not_be_synced_stays_so(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = kept(setup.host_calls(&calls));
    if mount.is_plain() {
        return;
    }
    let bad = read_write(&mount.at("bad"));
    bad.write_all_at(&[1; 100_000], 0).unwrap();
    let failing = calls.add(Rule::of(Call::Fdatasync).on("/segments/").error(libc::EIO));
    // Nobody hears of it: the commit is the background's.
    wait_until("a failed sync", || mount.info()["damaged_files"].as_array().is_some_and(|files| !files.is_empty()));
    drop(failing);
    let other = read_write(&mount.at("other"));
    other.write_all_at(&[1; 100_000], 0).unwrap();
    let whole = File::open(mount.path()).unwrap();
    for round in 0..2 {
        mount.kill_server();
        assert_eq!(bad.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO), "round {round}");
        other.sync_all().unwrap();
    }
    assert_eq!(bad.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    whole.sync_all().unwrap();
    drop((bad, other, whole));
    // Nobody has heard of this one before the kill.
    let bad = read_write(&mount.at("unheard"));
    bad.write_all_at(&[1; 100_000], 0).unwrap();
    let failing = calls.add(Rule::of(Call::Fdatasync).on("/segments/").error(libc::EIO));
    wait_until("a failed sync", || mount.info()["damaged_files"].to_string().contains("unheard"));
    drop(failing);
    mount.kill_server();
    let whole = File::open(mount.path()).unwrap();
    assert_eq!(whole.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    whole.sync_all().unwrap();
    // It is heard of again and again only until the file is replaced.
    drop(bad);
    // While the close before is not heard of, it is changed in place.
    wait_until("another version", || {
        fs::write(mount.at("unheard"), "anew").unwrap();
        File::open(mount.at("unheard")).unwrap().sync_all().is_ok()
    });
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: plain system call. The pid is that of a process of this test.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Proves K5.
fn a_keeper_that_cannot_start_a_server_tries_again(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let open = read_write(&mount.at("f"));
    open.write_all_at(b"text", 0).unwrap();
    let keeper = keeper_of(&mount);
    let limit = |limit: libc::rlimit| {
        let mut old = limit;
        // SAFETY: two valid limits.
        let set = unsafe { libc::prlimit(keeper, libc::RLIMIT_NOFILE, &limit, &mut old) };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
        old
    };
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is asked for only.
    assert_eq!(unsafe { libc::prlimit(keeper, libc::RLIMIT_NOFILE, std::ptr::null(), &mut now) }, 0);
    // Not one more.
    let before = limit(libc::rlimit { rlim_cur: 3, ..now });
    kill(mount.pid().unwrap(), libc::SIGKILL);
    wait_until("a try that failed", || mount.log().contains("cannot start a server"));
    limit(before);
    assert_eq!(open.metadata().unwrap().len(), 4);
    mount.adopt();
    drop(open);
}

/// Proves K1, K4.
fn a_server_that_is_to_end_ends_after_it_was_killed(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let open = read_write(&mount.at("f"));
    let keeper = keeper_of(&mount);
    kill(keeper, libc::SIGTERM);
    wait_until("the end of the mount", || mount.log().contains("serving until the last open file is closed"));
    mount.kill_server();
    open.write_all_at(b"text", 0).unwrap();
    assert_eq!(open.metadata().unwrap().len(), 4);
    drop(open);
    wait_until("the end of the keeper", || !is_there(keeper));
    assert_eq!(mount.info()["state"], "clean");
    mount.mount();
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"text");
}

/// Whatever is mounted on top of it is left alone, and all copies of it go with it.
///
/// Proves K1, K4.
fn a_mount_is_known_by_its_number(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    if !tensorfs_tests::is_root() {
        return;
    }
    let run = |program: &str, words: &[&Path]| {
        assert!(std::process::Command::new(program).args(words).status().unwrap().success(), "{program} {words:?}");
    };
    let copy = mount.host();
    run("mount", &[Path::new("--bind"), mount.path(), &copy]);
    fs::write(mount.at("f"), "text").unwrap();
    run("mount", &["-t", "tmpfs", "none"].map(Path::new).into_iter().chain([mount.path()]).collect::<Vec<_>>());
    mount.kill_server();
    assert_eq!(fs::read(copy.join("f")).unwrap(), b"text");
    assert!(fs::read_dir(mount.path()).unwrap().next().is_none(), "the tmpfs is still there");
    run("umount", &[mount.path()]);
    let keeper = keeper_of(&mount);
    kill(mount.pid().unwrap(), libc::SIGTERM);
    wait_until("the end of the keeper", || !is_there(keeper));
    assert!(fs::read_dir(&copy).unwrap().next().is_none(), "the copy has gone, too");
    mount.mount();
}

/// Children of a process that runs.
fn children(pid: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The first server is killed at some moment of its start: whoever mounts waits for none that never comes.
///
/// Proves K5.
fn whoever_mounts_hears_of_the_end(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    for round in 0..12 {
        mount.umount();
        let mut mounting = mount.mounting().stderr(Stdio::null()).spawn().unwrap();
        let mut server = None;
        wait_until("the first server", || {
            server = children(mounting.id() as i32).into_iter().flat_map(children).next();
            server.is_some() || mounting.try_wait().unwrap().is_some()
        });
        thread::sleep(std::time::Duration::from_millis(round * 3));
        if let Some(pid) = server {
            // SAFETY: plain system call. It may have ended by now only as this kills it: it is the keeper's child.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        // Ends, however that is.
        if mounting.wait().unwrap().success() {
            mount.adopt();
            fs::write(mount.at("f"), "text").unwrap();
        } else {
            mount.mount();
        }
    }
}

/// Proves K4.
fn the_keeper_opens_its_log_again(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let (keeper, log) = (keeper_of(&mount), mount.log_path());
    fs::rename(&log, log.with_extension("1")).unwrap();
    kill(keeper, libc::SIGHUP);
    // One of the keeper, one of the server.
    let opened = || fs::read_to_string(&log).unwrap_or_default().matches("the log was opened again").count();
    wait_until("both logs", || opened() == 2);
    mount.kill_server();
    let died = |log: &Path| fs::read_to_string(log).unwrap().contains("the server died (SIGKILL)");
    wait_until("word of the death", || died(&log));
    assert!(!died(&log.with_extension("1")));
}

/// As logrotate tells it, by the process that `info` names.
fn a_server_that_opens_its_log_again_has_its_keeper_do_so(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let log = mount.log_path();
    fs::rename(&log, log.with_extension("1")).unwrap();
    kill(mount.pid().unwrap(), libc::SIGHUP);
    wait_until("the new log", || mount.log().contains("the log was opened again"));
    mount.kill_server();
    let died = |log: &Path| fs::read_to_string(log).unwrap().contains("the server died (SIGKILL)");
    wait_until("word of the death", || died(&log) || died(&log.with_extension("1")));
    assert!(died(&log));
}

/// Proves K1, T12.
fn who_writes_is_known_to_the_next_server(setup: Setup) {
    const SCRIPT: &str = "
import os, signal, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(fd, b'x' * 1000)
child = os.fork()
if child == 0:
    # One that has the file and is killed, whose parent has it no more.
    grandchild = os.fork()
    if grandchild == 0:
        signal.pause()
    os.close(fd)
    print(grandchild, flush=True)
    signal.pause()
sys.stdin.readline()
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
os.write(fd, b'more')
os.close(fd)
";
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let path = mount.at("f");
    let mut writer = Command::new("python3");
    writer.args(["-c", SCRIPT]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut writer = writer.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(writer.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let grandchild: i32 = said.trim().parse().unwrap();
    mount.kill_server();
    assert_eq!(fs::metadata(&path).unwrap().len(), 1000);
    // SAFETY: plain system call, on a process of this test's.
    assert_eq!(unsafe { libc::kill(grandchild, libc::SIGKILL) }, 0);
    // Nobody waits for it, so it stays when it has closed all.
    let status = || fs::read_to_string(format!("/proc/{grandchild}/status")).unwrap_or_default();
    wait_until("its end", || !status().contains("VmSize:") && (status().is_empty() || status().contains("Z (zombie)")));
    drop(writer.stdin.take());
    assert!(writer.wait().unwrap().success());
    let state = || String::from_utf8(xattr::get(&path, "user.tensorfs.state").unwrap()).unwrap();
    wait_until("it is closed", || state() != "open");
    assert_ne!(state(), "interrupted");
}

/// Proves K5.
fn a_server_that_hangs_is_replaced(setup: Setup) {
    let mut mount = setup.mount_with(["-o", "keeper,watchdog=3"]).mount();
    if mount.is_plain() {
        return;
    }
    let open = read_write(&mount.at("f"));
    open.write_all_at(b"text", 0).unwrap();
    let keeper = keeper_of(&mount);
    // A machine that is busy for so long has it replaced as well.
    let stopped = (0..10).find_map(|_| {
        mount.adopt();
        let pid = mount.pid().unwrap();
        // SAFETY: plain system call. The server has just told its pid.
        (unsafe { libc::kill(pid, libc::SIGSTOP) } == 0).then_some(pid)
    });
    let pid = stopped.expect("a server to stop");
    // Waits for the next one.
    fs::create_dir(mount.at("d")).unwrap();
    assert_eq!(open.metadata().unwrap().len(), 4);
    mount.adopt();
    assert_ne!(mount.pid().unwrap(), pid, "{}", mount.log());
    assert_eq!(mount.info()["keeper"]["reason"], "it did not answer", "{}", mount.log());
    assert_eq!(keeper_of(&mount), keeper);
    let log = mount.log();
    let (_, told) = log.split_once(&format!("process {pid}, does not answer")).expect(&log);
    assert!(told.contains("stopped"), "{log}");
    // Nobody who has asked is left behind.
    wait_until("the end of those who asked", || children(keeper).len() <= 2);
    drop(open);
    let refused = mount.program().args(["mount", "-o", "watchdog=3"]).arg(mount.pool()).arg(mount.path()).output();
    let refused = refused.unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("it takes the option keeper, too"), "{refused:?}");
}

/// While a server recovers nobody can ask it; and how long that takes depends on the disk.
///
/// Proves K5.
fn a_server_that_hangs_before_it_serves_is_replaced(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount_with(["-o", "keeper,watchdog=3"]).mount();
    if mount.is_plain() {
        return;
    }
    let open = read_write(&mount.at("f"));
    open.write_all_at(b"text", 0).unwrap();
    let keeper = keeper_of(&mount);
    let late = calls.add(Rule::of(Call::Open).on("/log").times(1).held());
    // SAFETY: plain system call. The pid was asked of the server that runs.
    unsafe { libc::kill(mount.pid().unwrap(), libc::SIGKILL) };
    late.wait_for_waiting(1);
    let takes_over = |pid: &i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word.starts_with(b"--after="))
    };
    let next = children(keeper).into_iter().find(takes_over).expect("a server that takes over");
    let told = || mount.log().contains(&format!("process {next}, does not serve yet"));
    // It is at work for all that anybody can tell, as whoever holds it up looks now and then.
    // SAFETY: plain system call. It has been waiting since.
    unsafe { libc::kill(next, libc::SIGSTOP) };
    fs::create_dir(mount.at("d")).unwrap();
    assert_eq!(open.metadata().unwrap().len(), 4);
    assert!(told(), "{}", mount.log());
    mount.adopt();
    assert_eq!(mount.info()["keeper"]["reason"], "it did not answer", "{}", mount.log());
    assert_eq!(keeper_of(&mount), keeper);
}

/// A small file whose bytes the log has is open to be read, which moves its segment's times.
///
/// Proves K1.
fn what_was_not_changed_keeps_its_times(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    for (round, pause) in [0, 300, 1500].into_iter().enumerate() {
        let path = mount.at(format!("f{round}"));
        fs::write(&path, [b'x'; 500]).unwrap();
        let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        let times = fs::FileTimes::new().set_accessed(old).set_modified(old);
        File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
        // Its commit has the log take what is small and not durable yet.
        let synced = read_write(&mount.at("synced"));
        synced.write_all_at(&[round as u8], 0).unwrap();
        synced.sync_all().unwrap();
        thread::sleep(std::time::Duration::from_millis(pause));
        let file = File::open(&path).unwrap();
        file.read_exact_at(&mut [0], 0).unwrap();
        let times = |meta: fs::Metadata| (meta.ctime(), meta.ctime_nsec(), meta.mtime(), meta.atime(), meta.len());
        let before = times(file.metadata().unwrap());
        mount.kill_server();
        file.read_exact_at(&mut [0], 0).unwrap();
        assert_eq!(times(file.metadata().unwrap()), before, "round {round}");
        drop(file);
        assert_eq!(times(fs::metadata(&path).unwrap()), before, "round {round}");
        mount.kill_server();
        assert_eq!(times(fs::metadata(&path).unwrap()), before, "round {round}");
    }
}

/// Its segment is made later than it was asked for, as on a busy host.
///
/// Proves K1.
fn what_was_made_to_be_read_keeps_its_times(setup: Setup) {
    let calls = HostCalls::new();
    // Elsewhere there may be one that was made before.
    let Some(mut mount) = kept_with_tier(setup.host_calls(&calls)) else { return };
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    xattr::set(&dir, "user.tensorfs.tier", b"ssd", 0).unwrap();
    let late = std::time::Duration::from_millis(100);
    let late = calls.add(Rule::of(Call::Open).below(&mount.host().join("tier")).delay(late));
    let file = OpenOptions::new().read(true).custom_flags(libc::O_CREAT | libc::O_EXCL).open(dir.join("f")).unwrap();
    assert!(late.hits() > 0, "its segment was there");
    drop(late);
    let times = || {
        let stat = asked_anew(&dir.join("f")).unwrap();
        [stat.stx_mtime, stat.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec))
    };
    let before = times();
    mount.kill_server();
    assert_eq!(times(), before, "it is open");
    drop(file);
    mount.kill_server();
    assert_eq!(times(), before, "it is closed");
}

/// Since Linux 6.13 the host stamps a new file no earlier than any other that was stamped by its clock without ticks,
/// which is what a change behind a look is: so it can be ahead of the clock with ticks.
///
/// Proves K1, K2.
fn what_is_made_while_others_are_stamped_keeps_its_times(setup: Setup) {
    let Some(mut mount) = kept_with_tier(setup) else { return };
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    // Elsewhere there may be one that was made before.
    xattr::set(&dir, "user.tensorfs.tier", b"ssd", 0).unwrap();
    let paths: Vec<_> = (0..32).map(|n| dir.join(format!("f{n}"))).collect();
    let (other, is_over) = (read_write(&mount.host().join("other")), AtomicBool::new(false));
    let files: io::Result<Vec<File>> = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                other.write_all_at(b"x", 0).unwrap();
                other.metadata().unwrap();
            }
        });
        let make = |path| OpenOptions::new().read(true).custom_flags(libc::O_CREAT | libc::O_EXCL).open(path);
        let files = paths.iter().map(make).collect();
        is_over.store(true, SeqCst);
        files
    });
    let files = files.unwrap();
    let times = || -> Vec<_> {
        let times = |path| asked_anew(path).map(|stat| [stat.stx_mtime, stat.stx_ctime]).unwrap();
        let times = |path| times(path).map(|time| (time.tv_sec, time.tv_nsec));
        paths.iter().map(|path| times(path)).collect()
    };
    let before = times();
    mount.kill_server();
    assert_eq!(times(), before, "they are open");
    drop(files);
    mount.kill_server();
    assert_eq!(times(), before, "they are closed");
}

fn status_of(pid: i32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
}

/// Proves P5.
fn a_server_gives_up_its_rights(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() || !tensorfs_tests::is_root() {
        return;
    }
    let passthrough = mount.passthrough() == Passthrough::On;
    const OWNER: u32 = 54_321;
    for owner in [0, OWNER] {
        if owner != 0 {
            mount.umount();
            let give = ["-R", "54321:54321"].map(Path::new);
            let chown = std::process::Command::new("chown").args(give).arg(mount.pool()).status().unwrap();
            assert!(chown.success());
            mount.mount();
        }
        for takeover in [false, true] {
            if takeover {
                mount.kill_server();
            }
            // Whoever answers has given them up.
            let server = mount.info()["pid"].as_i64().unwrap() as i32;
            assert_eq!(status_of(server, "Uid:"), vec![owner.to_string(); 4].join("\t"));
            for set in ["CapEff:", "CapPrm:", "CapBnd:", "CapInh:", "CapAmb:"] {
                assert_eq!(u64::from_str_radix(&status_of(server, set), 16), Ok(0), "{set}");
            }
            assert_eq!((&*status_of(server, "NoNewPrivs:"), &*status_of(server, "Seccomp:")), ("1", "2"));
            assert_ne!(status_of(keeper_of(&mount), "CapEff:"), "0".repeat(16));
            assert!(!mount.log().contains("could not give up"), "{}", mount.log());
            // All goes on as if it had them: the kernel moves bytes, and readers look into files.
            let path = mount.at(format!("f{owner}{takeover}.npy"));
            let mut array = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
            array.extend(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }");
            array.resize(127, b' ');
            array.push(b'\n');
            array.extend([0; 8]);
            fs::write(&path, &array).unwrap();
            assert_eq!(fs::read(&path).unwrap(), array);
            let told = mount.tensorfs([std::ffi::OsStr::new("tensors"), path.as_os_str()]);
            assert!(told.status.success() && String::from_utf8_lossy(&told.stdout).contains("float32"), "{told:?}");
            assert_eq!(mount.info()["counters"]["opened_passthrough"].as_u64().unwrap() > 0, passthrough);
        }
        // What the mount makes is the owner's, as before.
        assert_eq!(fs::metadata(mount.pool().join("log")).unwrap().uid(), owner);
    }
    mount.umount();
    assert_eq!(mount.info()["state"], "clean");
    mount.mount();
}

/// The number of a filesystem that is gone is another one's next: ends and mounts of pools side by side.
///
/// Proves P5.
fn mounts_that_end_leave_each_other_alone(setup: Setup) {
    let mut mounts: Vec<Mount> = (0..4).map(|_| kept(setup.clone())).collect();
    if mounts[0].is_plain() {
        return;
    }
    thread::scope(|scope| {
        for mount in &mut mounts {
            scope.spawn(move || {
                for round in 0..8_u8 {
                    mount.umount();
                    mount.mount();
                    fs::write(mount.at("f"), [round]).unwrap();
                    assert_eq!(mount.info()["state"], "mounted");
                }
            });
        }
    });
}

/// Proves K4.
fn a_server_without_rights_and_keeper_is_unmounted(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    fs::write(mount.at("before"), "text").unwrap();
    mount.kill_keeper();
    // What the kernel was not given, the server reads and writes.
    fs::write(mount.at("after"), "text").unwrap();
    assert_eq!(fs::read(mount.at("before")).unwrap(), b"text");
    let server = mount.pid().unwrap();
    kill(server, libc::SIGTERM);
    wait_until("word of it", || mount.log().contains("committing"));
    assert_eq!(fs::read(mount.at("after")).unwrap(), b"text");
    mount.umount();
    assert!(!is_there(server));
    assert_eq!(mount.info()["state"], "clean");
    mount.mount();
    assert_eq!(fs::read(mount.at("after")).unwrap(), b"text");
}

/// What the next server goes on with its keeper has from the first one: one that was taken over says something else.
///
/// Proves P5.
fn a_server_that_was_taken_over_hands_nothing_on(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() || !tensorfs_tests::is_root() {
        return;
    }
    let mut open = read_write(&mount.at("f"));
    for _ in 0..2 {
        let server = mount.pid().unwrap();
        let line = fs::read(format!("/proc/{server}/cmdline")).unwrap();
        let line = String::from_utf8(line).unwrap();
        let kept = line.split('\0').find_map(|word| word.strip_prefix("--kept=")).expect("what it was handed");
        let number: libc::c_long = kept.split(',').next().unwrap().parse().unwrap();
        // SAFETY: the calls take integers.
        let socket = unsafe {
            let process = libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(server), 0);
            libc::syscall(libc::SYS_pidfd_getfd, process, number, 0) as i32
        };
        assert!(socket >= 0, "{}", io::Error::last_os_error());
        let null = File::open("/dev/null").unwrap();
        let numbers = [null.as_raw_fd(), null.as_raw_fd()];
        let with = [nix::sys::socket::ControlMessage::ScmRights(&numbers)];
        let flags = nix::sys::socket::MsgFlags::empty();
        nix::sys::socket::sendmsg::<()>(socket, &[io::IoSlice::new(b"+")], &with, flags, None).unwrap();
        // SAFETY: it was opened above, and nobody else has it.
        unsafe { libc::close(socket) };
        mount.kill_server();
        open.write_all(b"on").unwrap();
    }
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"onon");
}

/// Where the handover has what the kernel knows of `.tensorfs`, and how much of it is looked at.
const SHOWN: (u64, usize) = (96 << 20, 64 * 64);

/// What a server of this mount leaves to the next one.
fn left(mount: &Mount) -> File {
    let server = mount.info()["pid"].as_i64().unwrap();
    let mut open = fs::read_dir(format!("/proc/{server}/fd")).unwrap().flatten().map(|entry| entry.path());
    let is_it =
        |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to.starts_with("/memfd:tensorfs-handover (deleted)"));
    OpenOptions::new().read(true).write(true).open(open.find(is_it).expect("what it leaves")).unwrap()
}

fn shown(mount: &Mount) -> Vec<[u8; 64]> {
    let mut bytes = vec![0; SHOWN.1];
    // What was never written is not there.
    let _ = left(mount).read_at(&mut bytes, SHOWN.0).unwrap();
    let (places, _) = bytes.as_chunks::<64>();
    places.iter().filter(|place| **place != [0; 64]).copied().collect()
}

/// A server reads that the kernel has forgotten something, is killed, and nobody says so again: as if the mount before
/// had been such a one.
///
/// Proves K6.
fn what_the_kernel_has_forgotten_is_let_go_of(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let header = format!(
        "{{{}}}",
        (0..20)
            .map(|n| format!("\"t{n}\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[{n},{}]}}", n + 1))
            .collect::<Vec<_>>()
            .join(",")
    );
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[7; 20]].concat();
    fs::write(mount.at("f.safetensors"), bytes).unwrap();
    let tensors = mount.at(".tensorfs/tensors/f.safetensors");
    let hold =
        |n| OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(tensors.join(format!("t{n}.npy"))).unwrap();
    let held: Vec<File> = (0..20).map(hold).collect();
    let (before, mut head) = (shown(&mount), vec![0; 4096]);
    left(&mount).read_exact_at(&mut head, 0).unwrap();
    assert!(before.len() >= 20, "{}", before.len());
    drop(held);
    mount.remount();
    // Numbers are made from what is in the head.
    left(&mount).write_all_at(&head, 0).unwrap();
    left(&mount).write_all_at(before.as_flattened(), SHOWN.0).unwrap();
    mount.kill_server();
    let one = hold(3);
    assert!(shown(&mount).len() >= 20);
    wait_until("the end of what is not known", || shown(&mount).len() == 2);
    assert!(shown(&mount).iter().all(|place| before.contains(place)), "the file and a tensor of it");
    assert_eq!(fs::metadata(tensors.join("t3.npy")).unwrap().ino(), one.metadata().unwrap().ino());
    let held: Vec<File> = (0..20).map(hold).collect();
    assert!(shown(&mount).len() >= 20);
    drop((one, held));
}

/// A scrub, a check, and who looks at requests.
///
/// Proves K6.
fn what_a_server_was_doing_for_a_command_begins_anew(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    fs::write(mount.at("f"), vec![7; 12 << 20]).unwrap();
    let sealed = mount.tensorfs(["seal", mount.at("f").to_str().unwrap()]);
    assert!(sealed.status.success());
    let start = |arguments: &[&str]| {
        let mut command = mount.program();
        command.args(arguments).arg(mount.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut all = vec![start(&["scrub", "--rate", "6M"])];
    all.push(start(&["trace", "-n", "200"]));
    // They have begun.
    thread::sleep(std::time::Duration::from_millis(500));
    mount.kill_server();
    for n in 0.. {
        if all[1].try_wait().unwrap().is_some() {
            break;
        }
        // The kernel knows nothing of that yet.
        let _ = fs::metadata(mount.at(format!("no such file {n}")));
    }
    for child in all {
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

/// A mount with a keeper, and a tier `ssd`.
fn kept_with_tier(setup: Setup) -> Option<Mount> {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return None;
    }
    let tier = mount.host().join("tier");
    mount.umount();
    mount.add_tier("ssd", &tier);
    mount.mount();
    Some(mount)
}

/// Proves K6.
fn a_file_that_a_server_was_moving_is_moved_by_the_next_one(setup: Setup) {
    let Some(mut mount) = kept_with_tier(setup) else { return };
    let (path, bytes) = (mount.at("f"), Pattern(1).bytes(0, 24 << 20));
    fs::write(&path, &bytes).unwrap();
    for round in 0..8 {
        let to = ["ssd", "pm"][round % 2];
        let mut moving = mount.program();
        moving.args(["tier", "move"]).arg(&path).arg(to).stdout(Stdio::piped()).stderr(Stdio::piped());
        let moving = moving.spawn().unwrap();
        // It may have begun, and may be over.
        thread::sleep(std::time::Duration::from_millis(4 * round as u64));
        mount.kill_server();
        let done = moving.wait_with_output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(xattr::get(&path, "user.tensorfs.tier").unwrap(), to.as_bytes());
        assert!(fs::read(&path).unwrap() == bytes);
    }
}

/// A server may be replaced after it has done what was asked for, and before that was heard.
///
/// Proves K6.
fn what_a_server_before_has_moved_is_moved(setup: Setup) {
    let Some(mut mount) = kept_with_tier(setup) else { return };
    let path = mount.at("f");
    fs::write(&path, vec![7; 100_000]).unwrap();
    let ino = Ino(fs::metadata(&path).unwrap().ino());
    let ask = |mount: &Mount, begin| {
        let request = Request::Move { ino, tier: "ssd".to_owned(), begin };
        tensorfs_fs::ask(File::open(mount.path()).unwrap(), &request).map_err(|error| error.raw_os_error())
    };
    ask(&mount, true).unwrap();
    wait_until("the move", || xattr::get(&path, "user.tensorfs.tier").unwrap() == b"ssd");
    mount.kill_server();
    assert_eq!(ask(&mount, false), Err(Some(libc::ESRCH)));
    ask(&mount, true).unwrap();
    wait_until("the move", || match ask(&mount, false).unwrap() {
        Reply::Moving(Moving::Working { .. }) => false,
        reply => reply == Reply::Moving(Moving::Moved) || panic!("{reply:?}"),
    });
}

/// Each write to it is held as long as the test likes.
///
/// Proves K1, K7, W1.
fn a_log_that_is_late_holds_nobody_up(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.mount_with(["-o", "keeper"]).host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let log = mount.log_path();
    let late = calls.add(Rule::of(Call::Write).below(&log).held());
    for round in 0..3 {
        mount.kill_server();
        fs::write(mount.at(format!("f{round}")), "text").unwrap();
    }
    mount.tensorfs_ok(["upgrade", mount.path().to_str().unwrap()]);
    fs::read_dir(mount.path()).unwrap().for_each(drop);
    late.wait_for_waiting(1);
    mount.adopt();
    mount.umount();
    drop(late);
    wait_until("the log", || mount.log().contains("another one takes over"));
    mount.mount();
    assert_eq!(fs::read(mount.at("f2")).unwrap(), b"text");
}

/// Proves K5.
fn a_disk_that_fails_for_seconds_is_waited_for(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.mount_with(["-o", "keeper"]).host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    fs::write(mount.at("f"), "text").unwrap();
    let open = File::open(mount.at("f")).unwrap();
    // The next server cannot read, has no descriptors, and its machine has none.
    for (call, errno) in [(Call::Fstat, libc::EIO), (Call::Open, libc::EMFILE), (Call::Open, libc::ENFILE)] {
        let failing = calls.add(Rule::of(call).error(errno));
        let pid = mount.pid().unwrap();
        // SAFETY: plain system call. The pid was asked of the server that runs.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        let path = mount.at("f");
        let waits = thread::spawn(move || fs::read(path));
        thread::sleep(std::time::Duration::from_secs(3));
        assert!(failing.hits() > 0, "{call:?}");
        drop(failing);
        assert_eq!(waits.join().unwrap().unwrap(), b"text");
        let mut bytes = [0; 4];
        open.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"text");
        mount.adopt();
    }
}

/// Not a block is free, as servers die one after the other.
///
/// Proves K1, K2.
fn a_host_without_room_keeps_nobody_from_taking_over(setup: Setup) {
    let ext4 = ["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=0"];
    let disk = match Disk::new(&ext4, 96) {
        Ok(disk) => disk,
        Err(reason) => return setup.skip(&reason),
    };
    let mut mount = setup.pool_at(disk.at("pool")).mount_with(["-o", "keeper"]).mount();
    if mount.is_plain() {
        return;
    }
    let file = read_write(&mount.at("f"));
    file.write_all_at(&[1; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    // SAFETY: nobody cuts the file.
    let mut mapped = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
    let filler = File::create(disk.at("filler")).unwrap();
    let fill = || {
        let mut len = 0;
        for block in [1 << 20, 4096] {
            while filler.write_all_at(&vec![7; block], len).is_ok() {
                len += block as u64;
            }
        }
        filler.sync_all().unwrap();
    };
    for round in 1..=3_u8 {
        fill();
        mount.kill_server();
        // What has its place on the host can be changed, and made durable.
        file.write_all_at(&[round; 100], 5000).unwrap();
        mapped[0] = round;
        assert_eq!((mapped[0], mapped[5000]), (round, round));
        mapped.flush().unwrap();
        let refused = fs::write(mount.at("refused"), vec![1; 64 << 20]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC), "{refused}");
        mount.kill_server();
        assert_eq!(mapped[5001], round);
        filler.set_len(0).unwrap();
        fs::write(mount.at(format!("made{round}")), vec![round; 100_000]).unwrap();
        file.sync_all().unwrap();
        let _ = fs::remove_file(mount.at("refused"));
    }
    drop((mapped, file));
    mount.umount();
    let check = mount.tensorfs(["check", "--data", mount.pool().to_str().unwrap()]);
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    mount.mount();
    assert_eq!(fs::read(mount.at("made3")).unwrap(), vec![3; 100_000]);
    assert_eq!(fs::read(mount.at("f")).unwrap()[5000..5100], [3; 100]);
    // The pool's disk goes before it does.
    mount.umount();
}

/// SIGQUIT to either, and to both at once, as a terminal sends it.
///
/// Proves K7.
fn a_server_that_is_told_to_leave_has_not_died(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let keeper = keeper_of(&mount);
    let open = read_write(&mount.at("f"));
    open.write_all_at(b"text", 0).unwrap();
    for round in 0..3 {
        let server = mount.pid().unwrap();
        if round != 0 {
            kill(keeper, libc::SIGQUIT);
        }
        if round != 1 {
            kill(server, libc::SIGQUIT);
        }
        wait_until("another server", || mount.info()["pid"].as_i64().is_some_and(|pid| pid as i32 != server));
        mount.adopt();
        assert_eq!(keeper_of(&mount), keeper);
        assert_eq!(mount.info()["keeper"]["reason"], "it was told to leave");
        assert!(!mount.log().contains("died"), "{}", mount.log());
        assert_eq!(fs::read(mount.at("f")).unwrap(), b"text");
        // The second of both may come to the next server, which leaves, too.
        let left = || mount.log().matches("leaving to another server").count();
        wait_until("all who have left", || {
            mount.log().matches("the server left, as it was told to leave").count() == left()
        });
    }
    drop(open);
    wait_until("the last of them", || mount.info()["keeper"]["pid"].as_i64() == Some(keeper.into()));
    mount.adopt();
}

/// Proves K6, M11.
fn what_a_server_has_counted_ends_with_it(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let used = |mount: &Mount| fs::read_to_string(mount.at(".tensorfs/accesses")).unwrap();
    for number in 0..100 {
        fs::write(mount.at(format!("f{number}")), "text").unwrap();
    }
    mount.sync();
    let counted = |mount: &Mount| mount.info()["counters"]["create"].as_u64().unwrap();
    assert!(counted(&mount) >= 100 && used(&mount).contains("/f7\""), "{}", mount.info());
    mount.kill_server();
    assert!(counted(&mount) == 0 && !used(&mount).contains("/f7\""), "{}", mount.info());
    let told = mount.tensorfs_ok([Path::new("metrics"), mount.path()]);
    let line = |name: &str| told.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("tensorfs_takeovers_total").ends_with(" 1"), "{told}");
}
