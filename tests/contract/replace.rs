//! Saving a checkpoint over the old one, and what interrupts it.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tensorfs_tests::{Call, HostCalls, Mount, Passthrough, Pattern, Rule, Setup, child, on_mounts, run, wait_until};

const OLD: usize = 700_000;
const NEW: usize = 300_000;

on_mounts!(
    power_loss_leaves_the_old_one,
    power_loss_after_the_close_and_commit_leaves_the_new_one,
    power_loss_after_fsync_leaves_what_was_synced,
    power_loss_after_a_rename_or_a_link_leaves_the_new_one,
    power_loss_after_the_time_limit_leaves_the_new_one,
    a_killed_server_loses_neither,
    a_killed_writer_leaves_the_old_one_in_quarantine,
    a_version_that_cannot_be_set_aside_at_once_is_not_lost,
    a_full_host_does_not_keep_recovery_from_setting_a_version_aside,
    a_version_that_the_host_fails_over_keeps_nobody_from_the_pool,
    a_writer_that_exits_leaves_nothing_in_quarantine,
    a_child_that_closes_its_copy_does_not_end_the_replace,
    who_executes_another_program_closes_its_files_in_it,
    who_closes_one_of_two_descriptors_does_not_end_the_replace,
    a_writer_with_many_descriptors_is_seen,
    a_child_that_goes_on_with_the_file_leaves_the_old_one_in_quarantine,
    a_close_is_durable_although_it_may_not_be_the_last,
    a_writer_that_is_killed_before_its_child_ends_leaves_the_old_one_in_quarantine,
    a_writer_that_cannot_be_seen_leaves_the_old_one_in_quarantine,
    a_readers_open_file_is_truncated_in_place,
    rename_over_needs_no_quarantine,
    truncating_through_a_descriptor_for_reading_lasts,
    a_child_that_executes_a_program_during_a_replace_does_not_hang,
    what_a_sandbox_must_not_empty_is_in_quarantine,
    who_is_just_closing_the_file_is_waited_for,
);

fn old() -> Vec<u8> {
    Pattern(1).bytes(0, OLD)
}

fn new() -> Vec<u8> {
    Pattern(2).bytes(0, NEW)
}

/// A mount with a durable checkpoint in a directory.
fn with_checkpoint(setup: Setup) -> (Mount, PathBuf) {
    let mount = setup.mount();
    std::fs::create_dir(mount.at("run")).unwrap();
    let path = mount.at("run/model.pt");
    std::fs::write(&path, old()).unwrap();
    mount.sync();
    (mount, path)
}

/// The name and the bytes of the only entry in quarantine.
#[track_caller]
fn only_quarantined(mount: &Mount) -> (String, Vec<u8>) {
    wait_until("something is in quarantine", || !mount.quarantine().is_empty());
    let quarantine = mount.quarantine();
    assert_eq!(quarantine.len(), 1, "{quarantine:?}");
    let entry = &quarantine[0];
    let name = entry["name"].as_str().expect("a name").to_owned();
    let path = entry["path"].as_str().unwrap_or_default();
    assert_eq!(path.trim_start_matches('/'), "run/model.pt", "{entry}");
    let bytes = std::fs::read(mount.pool().join("quarantine").join(&name)).unwrap();
    assert_eq!(entry["bytes"], bytes.len(), "{entry}");
    (name, bytes)
}

/// Takes the only entry out of quarantine, to a place outside of the pool.
#[track_caller]
fn restore_outside(mount: &Mount) -> Vec<u8> {
    let (name, _) = only_quarantined(mount);
    let to = mount.host().join("restored");
    mount.tensorfs_ok(["restore".as_ref(), mount.path().as_os_str(), name.as_ref(), "--to".as_ref(), to.as_os_str()]);
    assert_eq!(mount.quarantine().len(), 0);
    std::fs::read(to).unwrap()
}

/// Proves R1, R3.
fn power_loss_leaves_the_old_one(setup: Setup) {
    let (mut mount, path) = with_checkpoint(setup);
    if mount.is_plain() {
        return;
    }
    let mut writer = std::fs::File::create(&path).unwrap();
    writer.write_all(&new()).unwrap();
    // Other work is committed meanwhile, and background commits have had their time.
    std::fs::write(mount.at("other"), "other").unwrap();
    mount.sync();
    std::thread::sleep(Duration::from_millis(2500));
    mount.kill9();
    drop(writer);
    mount.power_loss();
    mount.mount();
    assert!(std::fs::read(&path).unwrap() == old(), "the old checkpoint is not whole");
    assert_eq!(std::fs::read_to_string(mount.at("other")).unwrap(), "other");
    let (_, bytes) = only_quarantined(&mount);
    assert!(bytes == new(), "{} bytes in quarantine", bytes.len());
    // The file is an ordinary one again.
    std::fs::write(&path, new()).unwrap();
    mount.remount();
    assert!(std::fs::read(&path).unwrap() == new());
    assert!(restore_outside(&mount) == new());
    assert!(std::fs::read(&path).unwrap() == new());
}

/// Proves R2.
fn power_loss_after_the_close_and_commit_leaves_the_new_one(setup: Setup) {
    let (mut mount, path) = with_checkpoint(setup);
    std::fs::write(&path, new()).unwrap();
    mount.sync();
    mount.power_loss();
    mount.mount();
    assert!(std::fs::read(&path).unwrap() == new());
    if !mount.is_plain() {
        assert_eq!(mount.quarantine().len(), 0);
    }
}

/// Proves R2, D3.
fn power_loss_after_fsync_leaves_what_was_synced(setup: Setup) {
    let (mut mount, path) = with_checkpoint(setup);
    let mut writer = std::fs::File::create(&path).unwrap();
    writer.write_all(&new()).unwrap();
    writer.sync_all().unwrap();
    mount.kill9();
    drop(writer);
    mount.power_loss();
    mount.mount();
    assert!(std::fs::read(&path).unwrap() == new());
}

/// The file has another name by then, so that the old version has no claim to it.
///
/// Proves R2.
fn power_loss_after_a_rename_or_a_link_leaves_the_new_one(setup: Setup) {
    let (mut mount, path) = with_checkpoint(setup);
    let linked = mount.at("run/linked.pt");
    std::fs::write(&linked, old()).unwrap();
    mount.sync();
    let mut open = Vec::new();
    for path in [&path, &linked] {
        let mut writer = std::fs::File::create(path).unwrap();
        writer.write_all(&new()).unwrap();
        open.push(writer);
    }
    std::fs::rename(&path, mount.at("run/renamed.pt")).unwrap();
    std::fs::hard_link(&linked, mount.at("run/link.pt")).unwrap();
    mount.sync();
    mount.kill9();
    drop(open);
    mount.power_loss();
    mount.mount();
    for name in ["renamed.pt", "linked.pt", "link.pt"] {
        assert!(std::fs::read(mount.at("run").join(name)).unwrap() == new(), "{name}");
    }
}

/// A log that stays open for days is not held back: `replace=` is two minutes if nobody says otherwise.
///
/// Proves R2.
fn power_loss_after_the_time_limit_leaves_the_new_one(setup: Setup) {
    let (mut mount, path) = with_checkpoint(setup.mount_with(["-o", "replace=0.2"]));
    let mut writer = std::fs::File::create(&path).unwrap();
    writer.write_all(&new()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    mount.sync();
    mount.kill9();
    drop(writer);
    mount.power_loss();
    mount.mount();
    assert!(std::fs::read(&path).unwrap() == new());
}

/// Proves D9, R4.
fn a_killed_server_loses_neither(setup: Setup) {
    let (mut mount, path) = with_checkpoint(setup);
    let mut writer = std::fs::File::create(&path).unwrap();
    writer.write_all(&new()).unwrap();
    mount.kill9();
    drop(writer);
    mount.mount();
    // write() accepted them.
    assert!(std::fs::read(&path).unwrap() == new());
    if !mount.is_plain() {
        assert!(only_quarantined(&mount).1 == old());
    }
    mount.remount();
    assert!(std::fs::read(&path).unwrap() == new());
}

/// The host may fail as the version before is set aside, while the server runs and while it recovers: it is tried
/// again, or `mount` says what failed, and the next one does it.
///
/// Proves R4.
fn a_version_that_cannot_be_set_aside_at_once_is_not_lost(setup: Setup) {
    let calls = HostCalls::new();
    let (mut mount, path) = with_checkpoint(setup.host_calls(&calls).mount_with(["--commit", "0.1"]));
    if mount.is_plain() {
        return;
    }
    for (call, killed_server) in [(Call::Link, false), (Call::Write, false), (Call::Link, true), (Call::Write, true)] {
        let failing = calls.add(Rule::of(call).on("/quarantine").error(libc::EIO));
        let mut writer = child(["do"]);
        assert_eq!(writer.ask(&format!("open f wct {}", path.display())), "ok");
        assert_eq!(writer.ask(&format!("write f 0 2 {NEW}")), "ok");
        if killed_server {
            mount.kill9();
            writer.kill(libc::SIGKILL);
            let said = mount.try_mount().0;
            assert!(!said.status.success());
            assert!(String::from_utf8_lossy(&said.stderr).contains("quarantine"), "{said:?}");
            drop(failing);
            mount.mount();
        } else {
            writer.kill(libc::SIGKILL);
            failing.wait_for_hits(3);
            assert!(std::fs::read(&path).unwrap() == new());
            assert!(mount.quarantine().is_empty());
            // The new version does not stand yet, whoever asks for it.
            assert!(!run(mount.program().arg("sync").arg(mount.path())).status.success());
            let renamed = std::fs::rename(&path, mount.at("elsewhere"));
            assert_eq!(renamed.unwrap_err().raw_os_error(), Some(libc::EIO));
            drop(failing);
            mount.sync();
            mount.wait_for("version in quarantine", |info| !info["quarantine"].as_array().unwrap().is_empty());
        }
        assert!(std::fs::read(&path).unwrap() == new());
        let (name, bytes) = only_quarantined(&mount);
        assert!(bytes == old(), "{} bytes in quarantine", bytes.len());
        mount.tensorfs_ok(["restore".as_ref(), mount.path().as_os_str(), name.as_ref()]);
        assert!(std::fs::read(&path).unwrap() == old());
        mount.remount();
        for entry in std::fs::read_dir(mount.pool().join("quarantine")).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
}

/// The only segment that has these bytes, by its host path below the pool.
#[track_caller]
fn segment_with(mount: &Mount, bytes: &[u8]) -> String {
    let shards = std::fs::read_dir(mount.pool().join("segments")).unwrap();
    let segments = shards.flat_map(|shard| std::fs::read_dir(shard.unwrap().path()).unwrap());
    let mut with = segments.map(|entry| entry.unwrap().path()).filter(|path| std::fs::read(path).unwrap() == bytes);
    let path = with.next().expect("a segment with these bytes");
    format!("/{}", path.strip_prefix(mount.pool()).unwrap().display())
}

/// A disk may have bad blocks where the version before lies, or what was to replace it, when the pool is recovered: the
/// pool is mounted, and no other file is concerned. After a kill the file has what was accepted last; after a power
/// loss, what was promised.
///
/// Proves R3, R4.
fn a_version_that_the_host_fails_over_keeps_nobody_from_the_pool(setup: Setup) {
    let calls = HostCalls::new();
    let (mut mount, path) = with_checkpoint(setup.host_calls(&calls));
    if mount.is_plain() {
        return;
    }
    let other = mount.at("other");
    for (round, (call, of_old, power_lost)) in [
        (Call::Open, true, false),
        (Call::Fstat, true, false),
        (Call::Fdatasync, true, false),
        (Call::Read, true, false),
        (Call::Open, false, true),
        (Call::Fdatasync, false, true),
        (Call::Read, false, true),
    ]
    .into_iter()
    .enumerate()
    {
        std::fs::write(&other, format!("{round}")).unwrap();
        mount.sync();
        let held = segment_with(&mount, &old());
        let mut writer = child(["do"]);
        assert_eq!(writer.ask(&format!("open f wct {}", path.display())), "ok");
        assert_eq!(writer.ask(&format!("write f 0 2 {NEW}")), "ok");
        let replacing = segment_with(&mount, &new());
        mount.kill9();
        writer.kill(libc::SIGKILL);
        if power_lost {
            mount.power_loss();
        }
        let failing = calls.add(Rule::of(call).on(if of_old { &held } else { &replacing }).error(libc::EIO));
        // Nothing is read but what has to be copied.
        let no_links =
            (call == Call::Read).then(|| calls.add(Rule::of(Call::Link).on("/quarantine").error(libc::EPERM)));
        mount.mount();
        failing.wait_for_hits(1);
        drop((failing, no_links));
        let expected = if power_lost { old() } else { new() };
        assert!(std::fs::read(&path).unwrap() == expected, "{call:?}, old: {of_old}");
        assert_eq!(std::fs::read_to_string(&other).unwrap(), format!("{round}"));
        // Its second name can be made though its bytes cannot be synced.
        let set_aside = mount.quarantine().len();
        assert_eq!(set_aside, usize::from(call == Call::Fdatasync), "{call:?}, old: {of_old}");
        empty_quarantine(&mount);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, old()).unwrap();
        mount.sync();
        mount.remount();
        assert!(std::fs::read(&path).unwrap() == old());
        // What power loss had left, the next mount finds as it was left.
        let set_aside = mount.quarantine().len();
        assert_eq!(set_aside, usize::from(power_lost && call != Call::Fdatasync), "{call:?}, old: {of_old}");
        empty_quarantine(&mount);
    }
}

fn empty_quarantine(mount: &Mount) {
    for entry in std::fs::read_dir(mount.pool().join("quarantine")).into_iter().flatten() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
}

/// Recovery does not refuse to mount for want of room: nobody could make any then. Only where even a second name finds
/// none it says what is to be done.
///
/// Proves R4.
fn a_full_host_does_not_keep_recovery_from_setting_a_version_aside(setup: Setup) {
    let calls = HostCalls::new();
    let (mut mount, path) = with_checkpoint(setup.host_calls(&calls));
    if mount.is_plain() {
        return;
    }
    let mut writer = child(["do"]);
    assert_eq!(writer.ask(&format!("open f wct {}", path.display())), "ok");
    assert_eq!(writer.ask(&format!("write f 0 2 {NEW}")), "ok");
    mount.kill9();
    writer.kill(libc::SIGKILL);
    let full = |call| calls.add(Rule::of(call).on("/quarantine").error(libc::ENOSPC));
    let _no_room_for_notes = full(Call::Write);
    let nor_for_names = full(Call::Link);
    let said = mount.try_mount().0;
    assert!(!said.status.success() && String::from_utf8_lossy(&said.stderr).contains("quarantine"), "{said:?}");
    drop(nor_for_names);
    mount.mount();
    assert!(std::fs::read(&path).unwrap() == new());
    let entries = mount.quarantine();
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    let name = entry["name"].as_str().unwrap();
    let to = mount.at("old");
    mount.tensorfs_ok(["restore".as_ref(), mount.path().as_os_str(), name.as_ref(), "--to".as_ref(), to.as_os_str()]);
    assert!(std::fs::read(to).unwrap() == old());
    assert!(std::fs::read(&path).unwrap() == new());
}

/// Proves R4.
fn a_killed_writer_leaves_the_old_one_in_quarantine(setup: Setup) {
    let (mut mount, path) = with_checkpoint(setup);
    for (round, signal) in [libc::SIGKILL, libc::SIGABRT].into_iter().enumerate() {
        let mut writer = child(["do"]);
        assert_eq!(writer.ask(&format!("open f wct {}", path.display())), "ok");
        assert_eq!(writer.ask(&format!("write f 0 2 {NEW}")), "ok");
        writer.kill(signal);
        if mount.is_plain() {
            return;
        }
        // The new content stands, as POSIX says; the old one can be had back.
        assert!(std::fs::read(&path).unwrap() == new());
        let (name, bytes) = only_quarantined(&mount);
        assert!(bytes == old(), "{} bytes in quarantine", bytes.len());
        if round == 0 {
            mount.remount();
            assert!(std::fs::read(&path).unwrap() == new());
            assert!(only_quarantined(&mount).1 == old());
        }
        let text = mount.tensorfs_ok(["info".as_ref(), mount.path().as_os_str()]);
        assert!(text.contains("model.pt"), "info does not name it:\n{text}");
        mount.tensorfs_ok(["restore".as_ref(), mount.path().as_os_str(), name.as_ref()]);
        assert!(std::fs::read(&path).unwrap() == old());
        if mount.quarantine().iter().any(|entry| entry["name"] == name.as_str()) {
            panic!("a restored version is still in quarantine: {}", mount.info());
        }
        mount.remount();
        assert!(std::fs::read(&path).unwrap() == old());
        // What restoring replaced may be kept; make room for the second round.
        for entry in std::fs::read_dir(mount.pool().join("quarantine")).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
}

fn a_writer_that_exits_leaves_nothing_in_quarantine(setup: Setup) {
    let (mut mount, path) = with_checkpoint(setup);
    for _ in 0..3 {
        let mut writer = child(["do"]);
        assert_eq!(writer.ask(&format!("open f wct {}", path.display())), "ok");
        assert_eq!(writer.ask(&format!("write f 0 2 {NEW}")), "ok");
        // It ends without closing its files; the kernel closes them.
        writer.end();
    }
    mount.remount();
    assert!(std::fs::read(&path).unwrap() == new());
    if !mount.is_plain() {
        assert_eq!(mount.quarantine().len(), 0);
    }
}

/// With which promises a replace is tried out. With `durability=write` it ends at the first write.
const PROMISES: [&str; 2] = ["close", "fsync"];

fn promising(setup: &Setup, durability: &str) -> Setup {
    setup.clone().mount_with(["--durability", durability, "--commit", "0.1"])
}

/// A shell that has emptied the file, written half of it and run a program, and now does what is asked.
fn shell_that_writes_half(path: &Path, then: &str) -> Command {
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("exec 3>\"$1\"; head -c 1000 /dev/zero >&3; true; {then}"), "bash"]).arg(path);
    shell.stdin(Stdio::null());
    shell
}

/// It closes its copy in `execve`, as everything that was opened close-on-exec is.
///
/// Proves R2, R3, R4.
fn a_child_that_closes_its_copy_does_not_end_the_replace(setup: Setup) {
    for durability in PROMISES {
        let (mut mount, path) = with_checkpoint(promising(&setup, durability));
        if mount.is_plain() {
            return;
        }
        let mut file = File::create(&path).unwrap();
        file.write_all(&new()).unwrap();
        assert!(Command::new("true").status().unwrap().success());
        mount.sync();
        mount.kill9();
        drop(file);
        mount.power_loss();
        mount.mount();
        assert!(std::fs::read(&path).unwrap() == old(), "{durability}: the old version is not whole");
        assert!(only_quarantined(&mount).1 == new(), "{durability}");
        drop(mount);
        // And if the writer is killed.
        let (mount, path) = with_checkpoint(promising(&setup, durability));
        shell_that_writes_half(&path, "kill -9 $$").status().unwrap();
        wait_until("the old version is in quarantine", || !mount.quarantine().is_empty());
        assert!(only_quarantined(&mount).1 == old(), "{durability}");
        assert_eq!(std::fs::read(&path).unwrap(), [0; 1000]);
    }
}

/// Descriptors of the file are closed in `execve`, which holds what the kernel wants to look at the process; and nobody
/// else has the file, so that it is looked at.
///
/// Proves D2, R2.
fn who_executes_another_program_closes_its_files_in_it(setup: Setup) {
    const ITSELF: &str = "os.execvp('true', ['true'])";
    const CHILD: &str = "r, w = os.pipe(); pid = os.fork()
if pid == 0: os.read(r, 1); os.execvp('true', ['true'])
os.close(fd); os.write(w, b'x'); sys.exit(os.waitpid(pid, 0)[1])";
    for durability in PROMISES {
        for kept in [false, true] {
            let setup = promising(&setup, durability);
            let (mount, path) = with_checkpoint(if kept { setup.mount_with(["-o", "keeper"]) } else { setup });
            if mount.is_plain() {
                return;
            }
            for (how, size) in [(ITSELF, 1000), (CHILD, 2000)] {
                let open = "import os, sys; fd = os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)";
                let program = format!("{open}; os.write(fd, bytes({size}))\n{how}");
                // A wait for ever is ended.
                let mut python = Command::new("timeout");
                python.args(["-s", "KILL", "100", "python3", "-c", &program]).arg(&path);
                assert!(python.status().unwrap().success(), "{durability} {kept}: {how}");
                wait_until("the new version stands", || mount.quarantine().is_empty());
                assert_eq!(std::fs::read(&path).unwrap(), vec![0; size]);
            }
        }
    }
}

/// As a shell does for each `command > file`: `dup2`, and `close` of the first one.
///
/// Proves R2, R3.
fn who_closes_one_of_two_descriptors_does_not_end_the_replace(setup: Setup) {
    for durability in PROMISES {
        let (mut mount, path) = with_checkpoint(promising(&setup, durability));
        if mount.is_plain() {
            return;
        }
        let first = File::create(&path).unwrap();
        let mut second = first.try_clone().unwrap();
        drop(first);
        second.write_all(&new()).unwrap();
        drop(second.try_clone().unwrap());
        mount.sync();
        mount.kill9();
        drop(second);
        mount.power_loss();
        mount.mount();
        assert!(std::fs::read(&path).unwrap() == old(), "{durability}: the old version is not whole");
        assert!(only_quarantined(&mount).1 == new(), "{durability}");
    }
}

/// A trainer has as many as it has shards, sockets and workers. That a child ends which had copies of them all is not
/// the end of a replace.
///
/// Proves D2, R2, R3.
fn a_writer_with_many_descriptors_is_seen(setup: Setup) {
    let (mut mount, path) = with_checkpoint(promising(&setup, "close"));
    if mount.is_plain() {
        return;
    }
    let many = "for ((n = 10; n < 800; n++)); do eval \"exec $n</dev/null\"; done";
    let half = "exec 900>\"$1\"; head -c 1000 /dev/zero >&900; true; echo written; read";
    let mut writer = Command::new("bash");
    writer.args(["-c", &format!("ulimit -n 1000; {many}; {half}"), "bash"]).arg(&path);
    let mut writer = writer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(writer.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "written\n");
    mount.sync();
    mount.kill9();
    writer.kill().unwrap();
    writer.wait().unwrap();
    mount.power_loss();
    mount.mount();
    assert!(std::fs::read(&path).unwrap() == old(), "the old version is not whole");
    assert_eq!(only_quarantined(&mount).1, [0; 1000]);
}

/// What `close` has promised is there, and so is the old version, as nobody knows whether the child was done.
///
/// Proves R3, D2.
fn a_child_that_goes_on_with_the_file_leaves_the_old_one_in_quarantine(setup: Setup) {
    let (mut mount, path) = with_checkpoint(promising(&setup, "close"));
    if mount.is_plain() {
        return;
    }
    let mut shell = shell_that_writes_half(&path, "cat <&0 >/dev/null & exec 3>&-; echo closed; wait")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut answer = [0; 7];
    std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut answer).unwrap();
    assert_eq!(&answer, b"closed\n");
    mount.kill9();
    drop(shell.stdin.take());
    assert!(shell.wait().unwrap().success());
    mount.power_loss();
    mount.mount();
    assert_eq!(std::fs::read(&path).unwrap(), [0; 1000]);
    assert!(only_quarantined(&mount).1 == old());
    mount.umount();
    mount.tensorfs_ok(["check".as_ref(), "--data".as_ref(), mount.pool().as_os_str()]);
}

/// Proves D2, R2.
fn a_close_is_durable_although_it_may_not_be_the_last(setup: Setup) {
    // Nothing but the close makes anything durable.
    let (mut mount, path) = with_checkpoint(setup.mount_with(["--durability", "close", "--commit", "3600"]));
    let small = mount.at("run/small");
    std::fs::write(&small, "old").unwrap();
    for (large, text) in [(old(), "1"), (new(), "two")] {
        std::fs::write(&path, &large).unwrap();
        std::fs::write(&small, text).unwrap();
        mount.power_loss();
        mount.mount();
        assert!(std::fs::read(&path).unwrap() == large);
        assert_eq!(std::fs::read_to_string(&small).unwrap(), text);
        if !mount.is_plain() {
            assert_eq!(mount.info()["damaged_files"], serde_json::json!([]));
        }
    }
}

/// The child, which never writes, has the descriptor until later, and ends of itself.
///
/// Proves R4.
fn a_writer_that_is_killed_before_its_child_ends_leaves_the_old_one_in_quarantine(setup: Setup) {
    for durability in PROMISES {
        let (mount, path) = with_checkpoint(promising(&setup, durability));
        let mut shell = shell_that_writes_half(&path, "cat <&0 >/dev/null & kill -9 $$")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let child = shell.stdin.take();
        shell.wait().unwrap();
        if mount.is_plain() {
            return;
        }
        drop(child);
        wait_until("the old version is in quarantine", || !mount.quarantine().is_empty());
        assert!(only_quarantined(&mount).1 == old(), "{durability}");
        assert_eq!(std::fs::read(&path).unwrap(), [0; 1000]);
    }
}

/// The server is in a process namespace of its own, as in a container: other processes have no numbers there.
///
/// Proves R4.
fn a_writer_that_cannot_be_seen_leaves_the_old_one_in_quarantine(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    for durability in ["write", "close", "fsync"] {
        cannot_be_seen(setup.clone(), durability);
    }
}

fn cannot_be_seen(setup: Setup, durability: &str) {
    let (mut mount, path) = with_checkpoint(setup);
    mount.umount();
    let passthrough = if mount.passthrough() == Passthrough::On { "on" } else { "off" };
    let mut server = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child"])
        .arg(mount.program().get_program())
        .args(["mount", "-f", "--passthrough", passthrough, "--durability", durability])
        .args([mount.pool(), mount.path()])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it is mounted", || path.exists());
    let version = |n: u64| Pattern(n).bytes(0, NEW);
    let quarantined = || -> Vec<Vec<u8>> {
        let entries = std::fs::read_dir(mount.pool().join("quarantine")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_none());
        let mut found: Vec<Vec<u8>> = paths.map(|path| std::fs::read(path).unwrap()).collect();
        found.sort();
        found
    };
    // Who has had it synced can do without the old version.
    // A process of its own: children that other tests start close copies of what this one has open, also in a sync.
    let mut writer = child(["do"]);
    assert_eq!(writer.ask(&format!("open f wct {}", path.display())), "ok");
    assert_eq!(writer.ask(&format!("write f 0 3 {NEW}")), "ok");
    assert_eq!(writer.ask("fsync f"), "ok");
    assert_eq!(writer.ask("close f"), "ok");
    drop(writer);
    assert_eq!(quarantined().len(), 0);
    for n in [4, 5] {
        let mut writer = child(["do"]);
        assert_eq!(writer.ask(&format!("open f wct {}", path.display())), "ok");
        assert_eq!(writer.ask(&format!("write f 0 {n} {NEW}")), "ok");
        writer.kill(libc::SIGKILL);
        // The old one is gone with the first write there.
        let mut old: Vec<Vec<u8>> = (3..n).map(version).filter(|_| durability != "write").collect();
        old.sort();
        wait_until("the old versions are in quarantine", || quarantined() == old);
        assert!(std::fs::read(&path).unwrap() == version(n));
    }
    // The process that has the server's number here is waited for by nobody.
    // Children that other tests were just starting have the files of this process until they execute their programs.
    wait_until("it is unmounted", || run(mount.program().arg("umount").arg(mount.path())).status.success());
    assert!(server.wait().unwrap().success());
}

/// Proves R5.
fn a_readers_open_file_is_truncated_in_place(setup: Setup) {
    let (mut mount, path) = with_checkpoint(setup);
    let mut reader = child(["do"]);
    assert_eq!(reader.ask(&format!("open f r {}", path.display())), "ok");
    assert_eq!(reader.ask(&format!("same f 0 1 {OLD}")), "ok");
    let mut writer = std::fs::File::create(&path).unwrap();
    assert_eq!(reader.ask("size f"), "0");
    writer.write_all(&new()).unwrap();
    writer.sync_all().unwrap();
    drop(writer);
    assert_eq!(reader.ask("size f"), NEW.to_string());
    assert_eq!(reader.ask(&format!("same f 0 2 {NEW}")), "ok");
    reader.end();
    mount.remount();
    assert!(std::fs::read(&path).unwrap() == new());
}

/// On a busy machine the kernel tells of a `close` tens of milliseconds late, and the old version was gone. Here it is
/// the `close` that comes late.
///
/// Proves R1.
fn who_is_just_closing_the_file_is_waited_for(setup: Setup) {
    let mount = setup.mount();
    let path = mount.at("f");
    let replaced = || mount.info()["counters"]["replaced"].as_u64().unwrap();
    std::fs::write(&path, old()).unwrap();
    let reader = || File::open(&path).unwrap();
    let writer = || File::options().write(true).open(&path).unwrap();
    // One that replaces the file itself.
    let replacer = || {
        let mut file = File::create(&path).unwrap();
        file.write_all(b"newer").unwrap();
        file
    };
    for (what, open) in [("reader", &reader as &dyn Fn() -> File), ("writer", &writer), ("replacer", &replacer)] {
        // Who sleeps may oversleep.
        let waited = (0..20).any(|_| {
            let other = open();
            let before = replaced();
            let closing = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(10));
                drop(other);
            });
            File::create(&path).unwrap().write_all(&new()).unwrap();
            closing.join().unwrap();
            replaced() > before
        });
        assert!(waited, "{what}");
    }
    assert!(std::fs::read(&path).unwrap() == new());
    // Who does not close is not waited for: the file is truncated in place.
    let stays = reader();
    let before = replaced();
    for _ in 0..3 {
        File::create(&path).unwrap().write_all(&new()).unwrap();
    }
    assert_eq!(replaced(), before);
    drop(stays);
}

fn rename_over_needs_no_quarantine(setup: Setup) {
    let (mut mount, path) = with_checkpoint(setup);
    let temporary = mount.at("run/model.pt.tmp");
    std::fs::write(&temporary, new()).unwrap();
    std::fs::rename(&temporary, &path).unwrap();
    mount.power_loss();
    mount.mount();
    // One or the other, and whole: the rename may or may not have been committed.
    let got = std::fs::read(&path).unwrap();
    assert!(got == new() || got == old(), "{} bytes", got.len());
    assert!(got == new() || temporary.exists() || !mount.is_plain());
}

/// The child closes its copy of the descriptor in execve, and holds a lock there that reading `/proc/PID/stat` takes: a
/// server that reads it to see how the closing process ends waits for a process that waits for the server.
fn a_child_that_executes_a_program_during_a_replace_does_not_hang(setup: Setup) {
    let (mut mount, path) = with_checkpoint(setup);
    // Opened close-on-exec, as Rust and Python open everything.
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&new()[..1000]).unwrap();
    for _ in 0..20 {
        assert!(Command::new("true").status().unwrap().success());
    }
    file.write_all(&new()[1000..]).unwrap();
    drop(file);
    assert!(std::fs::read(&path).unwrap() == new());
    if !mount.is_plain() {
        mount.remount();
        assert!(std::fs::read(&path).unwrap() == new());
        assert_eq!(mount.quarantine().len(), 0, "nobody died");
    }
}

/// `open(O_RDONLY | O_TRUNC)` empties a file, too. It came back whole when it was closed. Found by the model test.
fn truncating_through_a_descriptor_for_reading_lasts(setup: Setup) {
    let (mut mount, path) = with_checkpoint(setup);
    let mut options = std::fs::OpenOptions::new();
    drop(std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), libc::O_TRUNC).open(&path).unwrap());
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    mount.remount();
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    mount.umount();
    mount.tensorfs_ok(["check".as_ref(), mount.pool().as_os_str()]);
}

/// The kernel asks Landlock after it has asked the server.
///
/// Proves X6.
fn what_a_sandbox_must_not_empty_is_in_quarantine(setup: Setup) {
    use landlock::{
        ABI, Access, AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    };
    let (mut mount, path) = with_checkpoint(setup.clone());
    let result = std::thread::scope(|scope| {
        // Only this thread is in the sandbox.
        let sandboxed = scope.spawn(|| {
            let all = AccessFs::from_all(ABI::V3);
            let rule = PathBeneath::new(PathFd::new("/").unwrap(), all & !AccessFs::Truncate);
            let rules = Ruleset::default().handle_access(all).unwrap().create().unwrap();
            let status = rules.add_rule(rule).unwrap().restrict_self().unwrap();
            (status.ruleset == RulesetStatus::FullyEnforced).then(|| std::fs::File::create(&path))
        });
        sandboxed.join().unwrap()
    });
    let Some(opened) = result else { return setup.skip("this kernel's Landlock knows nothing of truncation") };
    assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::EACCES));
    if mount.is_plain() {
        return assert!(std::fs::read(&path).unwrap() == old());
    }
    // RELEASE comes after the open has failed.
    let kept = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        !mount.quarantine().is_empty()
    });
    assert!(kept, "nothing is in quarantine");
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    let (name, bytes) = only_quarantined(&mount);
    assert!(bytes == old(), "{} bytes in quarantine", bytes.len());
    mount.tensorfs_ok(["restore".as_ref(), mount.path().as_os_str(), name.as_ref()]);
    assert!(std::fs::read(&path).unwrap() == old());
    // Who has a descriptor, and writes nothing, wants the file to be empty.
    drop(std::fs::File::create(&path).unwrap());
    mount.remount();
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    assert_eq!(mount.quarantine().len(), 0);
}
