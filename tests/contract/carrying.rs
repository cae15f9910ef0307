//! A pool that is mounted with `carry`: somebody carries it for as long as it is mounted, and nobody any longer.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tensorfs_layout::pool::Carrying;
use tensorfs_tests::{Mount, Passthrough, Pattern, Setup, is_root, on_mounts, run_ok, tensorfs, wait_until, xattr};

use crate::remote::{file_of, setup_needs_a_mount, text, with_remote};

on_mounts!(
    what_is_mounted_with_carry_is_carried_without_more_ado,
    a_carrier_that_is_killed_is_started_again_and_ends_with_the_mount,
    nobody_carries_what_nobody_serves,
    whoever_carries_is_the_owner_of_the_pool,
    a_mount_is_there_though_nobody_can_carry,
    whoever_carries_is_locked_in,
    who_is_locked_in_leaves_a_further_tier_to_the_next_carrier,
);

const SIZE: usize = 2 << 20;

/// What a thread of a process says of itself under a name.
fn status(thread: &Path, name: &str) -> String {
    let status = fs::read_to_string(thread.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim_start_matches(':').trim().to_owned()
}

/// Processes that do something for the pool: those of a command line with these words, and the pool's path behind them.
fn processes(mount: &Mount, words: &str) -> Vec<i32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_one = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains(words) && line.split('\0').any(|word| Path::new(word) == mount.pool())
    };
    numbers.filter(is_one).collect()
}

fn carriers(mount: &Mount) -> Vec<i32> {
    processes(mount, "\0carry\0--watch\0")
}

/// Those that see to it that there is a carrier.
fn minders(mount: &Mount) -> Vec<i32> {
    processes(mount, "\0carrying\0")
}

#[track_caller]
fn one_carrier(mount: &Mount) -> i32 {
    wait_until("somebody carries the pool", || carriers(mount).len() == 1 && is_at_work(mount));
    carriers(mount)[0]
}

fn is_at_work(mount: &Mount) -> bool {
    Carrying::is_taken(mount.pool()).unwrap()
}

fn end(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

/// Whoever has started them waits for those that have ended.
fn nobody_is_left(mount: &Mount) {
    wait_until("nobody is left", || carriers(mount).is_empty() && minders(mount).is_empty());
}

/// Proves E31.
fn what_is_mounted_with_carry_is_carried_without_more_ado(setup: Setup) {
    let mut mount = setup.mount_with(["--carry"]).mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    wait_until("it is there", || minders(&mount).len() == 1);
    wait_until("it says so", || mount.log().contains("it has no remote yet"));
    assert!(carriers(&mount).is_empty());
    let url = with_remote(&mount);
    one_carrier(&mount);
    fs::write(mount.at("f"), Pattern(1).bytes(0, SIZE)).unwrap();
    // Whoever waits leaves it to the one that there is.
    mount.tensorfs_ok(["remote", "wait", text(&mount.at("f"))]);
    assert_eq!(file_of(&mount, &url, "f")["size"], SIZE);
    let info: Value = mount.info();
    assert_eq!(info["second_copy"]["carrier"], true, "{info}");
    mount.umount();
    nobody_is_left(&mount);
    assert!(!is_at_work(&mount));
    // As in /etc/fstab, and with what is to be kept.
    let mut again = mount.program();
    let passthrough = if mount.passthrough() == Passthrough::On { "on" } else { "off" };
    again.args(["mount", "-o", "carry=7", "--passthrough", passthrough]).arg(mount.pool()).arg(mount.path());
    run_ok(again.arg("--log").arg(mount.log_path()));
    mount.adopt();
    let carrier = one_carrier(&mount);
    let line = fs::read_to_string(format!("/proc/{carrier}/cmdline")).unwrap();
    assert!(line.contains("\0--keep=7\0"), "{line}");
    mount.umount();
    nobody_is_left(&mount);
}

/// Proves E31.
fn a_carrier_that_is_killed_is_started_again_and_ends_with_the_mount(setup: Setup) {
    let mut mount = setup.mount_with(["-o", "keeper,carry"]).mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    let first = one_carrier(&mount);
    let minder = minders(&mount)[0];
    end(first);
    wait_until("another one", || carriers(&mount).iter().any(|pid| *pid != first));
    let second = one_carrier(&mount);
    assert!(mount.log().contains("its carrier has ended (signal: 9 (SIGKILL)); starting another one in 1 s"));
    // Servers come and go.
    mount.kill_server();
    fs::write(mount.at("f"), Pattern(2).bytes(0, SIZE)).unwrap();
    mount.tensorfs_ok(["remote", "wait", text(&mount.at("f"))]);
    assert_eq!((carriers(&mount), minders(&mount)), (vec![second], vec![minder]));
    mount.umount();
    nobody_is_left(&mount);
    // Nor does one carry on whose minder was killed, and another carrier is let be.
    mount.mount();
    one_carrier(&mount);
    end(minders(&mount)[0]);
    nobody_is_left(&mount);
    mount.umount();
    let carrying = Carrying::take(mount.pool()).unwrap().unwrap();
    mount.mount();
    wait_until("it says so", || mount.log().contains("another carrier is at work already"));
    assert!(carriers(&mount).is_empty() && minders(&mount).len() == 1);
    drop(carrying);
    mount.umount();
    nobody_is_left(&mount);
}

/// Proves E31.
fn nobody_carries_what_nobody_serves(setup: Setup) {
    for keeper in ["keeper,carry", "nokeeper,carry"] {
        let mut mount = setup.clone().mount_with(["-o", keeper]).mount();
        if mount.is_plain() {
            return setup_needs_a_mount();
        }
        with_remote(&mount);
        one_carrier(&mount);
        // The keeper before, if there is one.
        mount.kill9();
        nobody_is_left(&mount);
        // What is left of the mount is there yet.
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(table.contains(text(mount.path())), "{keeper}");
        // A lazy unmount.
        mount.mount();
        one_carrier(&mount);
        let open = fs::File::create(mount.at("open")).unwrap();
        mount.tensorfs(["umount", "--lazy", text(mount.path())]);
        nobody_is_left(&mount);
        drop(open);
        assert!(mount.end());
    }
}

/// Proves E31, E13.
fn whoever_carries_is_the_owner_of_the_pool(setup: Setup) {
    const OWNER: u32 = 54_321;
    if !is_root() {
        return setup.skip("only root mounts the pool of somebody else");
    }
    let mut mount = setup.mount_with(["-o", "keeper,carry"]).mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    mount.umount();
    let room = mount.pool().parent().unwrap();
    fs::set_permissions(room, fs::Permissions::from_mode(0o755)).unwrap();
    run_ok(Command::new("chown").args(["-R", &format!("{OWNER}:{OWNER}")]).arg(mount.pool()));
    let (remote, pool) = (room.join("remote"), mount.pool().to_owned());
    fs::create_dir(&remote).unwrap();
    std::os::unix::fs::chown(&remote, Some(OWNER), Some(OWNER)).unwrap();
    let url = format!("file://{}", remote.display());
    let as_owner = |arguments: &[&str]| {
        let mut command = tensorfs();
        run_ok(command.args(arguments).uid(OWNER).gid(OWNER).current_dir("/"))
    };
    as_owner(&["remote", "set", text(&pool), &url]);
    let mut mounting = mount.mounting();
    mounting.env("AWS_ACCESS_KEY_ID", "key").env("SECRET_OF_ROOT", "secret");
    run_ok(&mut mounting);
    mount.adopt();
    let carrier = one_carrier(&mount);
    let process = Path::new("/proc").join(carrier.to_string());
    let owner = vec![OWNER.to_string(); 4].join("\t");
    assert_eq!(status(&process, "Uid"), owner);
    assert_eq!(status(&process, "Gid"), owner);
    assert_eq!((&*status(&process, "Groups"), &*status(&process, "CapEff")), ("", "0000000000000000"));
    let given = fs::read(format!("/proc/{carrier}/environ")).unwrap();
    let given = String::from_utf8_lossy(&given).into_owned();
    assert!(given.contains("AWS_ACCESS_KEY_ID=key") && !given.contains("SECRET_OF_ROOT"), "{given}");
    fs::write(mount.at("f"), Pattern(3).bytes(0, SIZE)).unwrap();
    wait_until("it is carried", || as_owner(&["remote", "list", &url]).contains('f'));
    mount.umount();
    nobody_is_left(&mount);
}

/// Proves E31.
fn a_mount_is_there_though_nobody_can_carry(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    mount.umount();
    // A copy of the program has no carrier beside it.
    let alone = mount.host().join("tensorfs");
    // By another process: what this one has open to write, a child of another test has for a moment, too.
    run_ok(Command::new("cp").arg(mount.program().get_program()).arg(&alone));
    let mut command = Command::new(&alone);
    command.env("PATH", "/nonexistent").args(["mount", "-o", "carry", "--log"]).arg(mount.log_path());
    let output = command.arg(mount.pool()).arg(mount.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let expected = "option \"carry\": the program tensorfs-carrier is not installed; until that is mended";
    assert!(said.contains(expected) && said.lines().count() == 1, "{said}");
    fs::write(mount.at("f"), "text").unwrap();
    wait_until("the log says so", || mount.log().contains("nothing is carried: the program tensorfs-carrier is not"));
    mount.tensorfs_ok(["umount", text(mount.path())]);
    nobody_is_left(&mount);
    // A mount that follows has nothing to carry.
    let refused = mount.tensorfs(["mount", "-o", "ro,follow,carry", text(mount.pool()), text(mount.path())]);
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("a mount that follows a remote has nothing to carry"), "{said}");
}

/// Proves E32.
fn whoever_carries_is_locked_in(setup: Setup) {
    let mut mount = setup.mount_with(["-o", "carry"]).mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    fs::write(mount.at("f"), Pattern(4).bytes(0, SIZE)).unwrap();
    let carrier = one_carrier(&mount);
    wait_until("it is carried", || mount.tensorfs_ok(["remote", "list", &url]).contains('f'));
    let threads = fs::read_dir(format!("/proc/{carrier}/task")).unwrap().map(|thread| thread.unwrap().path());
    let threads: Vec<_> = threads.collect();
    assert!(threads.len() > 1, "{threads:?}");
    for thread in &threads {
        let said = (status(thread, "NoNewPrivs"), status(thread, "Seccomp"));
        assert_eq!(said, ("1".to_owned(), "2".to_owned()), "{}", thread.display());
    }
    // What does the rest for it, which speaks with no store.
    let outside = processes(&mount, "\0outside\0");
    assert_eq!(outside.len(), 2);
    mount.umount();
    nobody_is_left(&mount);
    wait_until("nor are those", || processes(&mount, "\0outside\0").is_empty());
}

/// Proves E32.
fn who_is_locked_in_leaves_a_further_tier_to_the_next_carrier(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    let mut carrier = mount.program();
    carrier.args(["remote", "carry", "--watch", "--interval=1", "--patience=1"]).arg(mount.pool());
    let mut carrier = Ending(carrier.stderr(Stdio::piped()).spawn().unwrap());
    let process = Path::new("/proc").join(carrier.0.id().to_string());
    // Whoever waits would carry else, and this one would begin with the tier.
    wait_until("it is locked in", || status(&process, "Seccomp") == "2");
    fs::write(mount.at("f"), Pattern(5).bytes(0, SIZE)).unwrap();
    mount.tensorfs_ok(["remote", "wait", text(&mount.at("f"))]);
    mount.umount();
    let tier = mount.host().join("tier");
    fs::create_dir(&tier).unwrap();
    mount.add_tier("disk", &tier);
    mount.mount();
    let mut said = String::new();
    carrier.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!carrier.0.wait().unwrap().success());
    assert!(said.contains("a further tier, than when its carrier began") && said.contains("start it again"), "{said}");
    // As it does by itself where the mount has it done.
    fs::create_dir(mount.at("d")).unwrap();
    xattr::set(&mount.at("d"), "user.tensorfs.tier", b"disk", 0).unwrap();
    fs::write(mount.at("d/f"), Pattern(6).bytes(0, SIZE)).unwrap();
    mount.tensorfs_ok(["remote", "carry", text(mount.pool())]);
    mount.tensorfs_ok(["remote", "wait", text(&mount.at("d/f"))]);
    assert_eq!(file_of(&mount, &url, "d/f")["state"], "whole");
}

/// Ended also where a test fails.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
