//! A pool that is mounted with `carry`: somebody carries it for as long as it is mounted, and nobody any longer.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tensorfs_layout::pool::Carrying;
use tensorfs_tests::{
    Call, HostCalls, Mount, Mounted, Passthrough, Pattern, Rule, Setup, is_root, needs_mount, on_mounts, run_ok,
    tensorfs, unmounting, wait_until, xattr,
};

use crate::remote::{file_of, setup_needs_a_mount, text, with_remote};

on_mounts!(
    what_is_mounted_with_carry_is_carried_without_more_ado,
    a_carrier_that_is_killed_is_started_again_and_ends_with_the_mount,
    nobody_carries_what_nobody_serves,
    whoever_carries_is_the_owner_of_the_pool,
    a_mount_is_there_though_nobody_can_carry,
    no_unmount_waits_for_the_end_of_a_carrier,
    who_carries_otherwise_ends_the_carrier_of_the_mount_before,
    whoever_carries_is_locked_in,
    who_is_locked_in_leaves_a_further_tier_to_the_next_carrier,
    what_is_mounted_in_the_place_of_the_store_is_left_to_the_next_carrier,
    what_is_done_outside_is_done_for_one_pool_alone,
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
    assert_eq!(status(Path::new(&format!("/proc/{}", minders(&mount)[0])), "Name"), "tensorfs-carry");
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

/// Of a mount that is there: who sees to it that somebody carries, under the rules of a test.
fn minding(mount: &Mount, calls: &HostCalls) -> Ending {
    let mut minder = mount.program();
    minder.arg("carrying").arg("--log").arg(mount.log_path()).arg("--").arg(mount.pool()).arg(mount.path());
    calls.preload(&mut minder);
    Ending(minder.stdin(Stdio::piped()).spawn().unwrap())
}

/// Proves E31.
#[test]
fn a_carrier_that_ends_again_and_again_is_started_less_and_less_often() {
    needs_mount!();
    let name = "a_carrier_that_ends_again_and_again_is_started_less_and_less_often";
    let mount = Setup::new(name, Passthrough::Off).mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    let calls = HostCalls::new();
    let minder = minding(&mount, &calls);
    let time_goes_by = |seconds| calls.go_by(minder.0.id().cast_signed(), Duration::from_secs(seconds));
    let mut told = Vec::new();
    let mut ends = |seconds: u64| {
        end(one_carrier(&mount));
        told.push(format!("starting another one in {seconds} s"));
        wait_until("it is said when there is another one", || {
            let log = mount.log();
            let lines: Vec<&str> = log.lines().filter(|line| line.contains("its carrier has ended")).collect();
            lines.len() >= told.len() && lines.iter().zip(&told).all(|(line, told)| line.ends_with(told))
        });
        // After a short pause, which goes by meanwhile, it may be that the next one is there already.
        assert!(seconds < 8 || carriers(&mount).is_empty());
    };
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        ends(seconds);
        time_goes_by(seconds);
    }
    // One that has lived for a minute begins anew.
    one_carrier(&mount);
    time_goes_by(60);
    ends(1);
}

/// Proves E31.
#[test]
fn whether_another_carrier_has_ended_is_looked_for_each_minute() {
    needs_mount!();
    let name = "whether_another_carrier_has_ended_is_looked_for_each_minute";
    let mount = Setup::new(name, Passthrough::Off).mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    fs::write(mount.at("f"), Pattern(2).bytes(0, SIZE)).unwrap();
    let other = Carrying::take(mount.pool()).unwrap().unwrap();
    let calls = HostCalls::new();
    let minder = minding(&mount, &calls);
    let said = "another carrier is at work already; one is started here when that has ended";
    wait_until("it says so", || mount.log().contains(said));
    drop(other);
    assert!(carriers(&mount).is_empty());
    wait_until("it is looked for again", || {
        // It may be that it begins to wait only now.
        calls.go_by(minder.0.id().cast_signed(), Duration::from_secs(60));
        is_at_work(&mount)
    });
    one_carrier(&mount);
    mount.tensorfs_ok(["remote", "wait", text(&mount.at("f"))]);
    assert_eq!(file_of(&mount, &url, "f")["size"], SIZE);
    assert_eq!(mount.log().matches(said).count(), 1);
}

/// Whoever stands still holds nobody up.
///
/// Proves E31.
fn no_unmount_waits_for_the_end_of_a_carrier(setup: Setup) {
    let mut mount = setup.mount_with(["-o", "carry"]).mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    fs::write(mount.at("f"), Pattern(8).bytes(0, SIZE)).unwrap();
    mount.tensorfs_ok(["remote", "wait", text(&mount.at("f"))]);
    let both = [minders(&mount)[0], one_carrier(&mount)].map(Pid::from_raw);
    wait_until("it asks nobody anything", || !is_on(&mount, both[1].as_raw()));
    both.iter().for_each(|pid| kill(*pid, Signal::SIGSTOP).unwrap());
    let is_stopped = |pid: &Pid| status(Path::new(&format!("/proc/{pid}")), "State").starts_with('T');
    wait_until("they stand still", || both.iter().all(is_stopped));
    mount.umount();
    assert!(is_at_work(&mount) && both.iter().all(is_stopped));
    both.iter().for_each(|pid| kill(*pid, Signal::SIGCONT).unwrap());
    nobody_is_left(&mount);
}

/// True if a process has something of the mount open.
fn is_on(mount: &Mount, pid: i32) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|at| at.starts_with(mount.path()))
}

/// Its carrier has asked the server for a commit, which takes long.
///
/// Proves E31.
#[test]
fn who_unmounts_waits_while_a_carrier_asks_the_server() {
    needs_mount!();
    let calls = HostCalls::new();
    let setup = Setup::new("who_unmounts_waits_while_a_carrier_asks_the_server", Passthrough::Off);
    let mut mount = setup.mount_with(["-o", "carry"]).host_calls(&calls).mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    let (carrier, server) = (one_carrier(&mount), mount.pid().unwrap());
    // It asks for that for a file that is not sealed yet.
    let sealing = calls.add(Rule::of(Call::Read).on("/segments/").by(server).held());
    fs::write(mount.at("f"), Pattern(7).bytes(0, SIZE)).unwrap();
    mount.sync();
    let commit = calls.add(Rule::of(Call::Fdatasync).on("/log").by(server).held());
    fs::write(mount.at("g"), "text").unwrap();
    commit.wait_for_waiting(1);
    // One that was answered before has gone by then.
    let mut looks = 0;
    wait_until("it asks, and gets no answer", || {
        thread::sleep(Duration::from_millis(50));
        looks = if is_on(&mount, carrier) { looks + 1 } else { 0 };
        looks >= 30
    });
    let said = |output: std::process::Output| {
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let unmounting = unmounting();
    if is_root() {
        // As umount(8) does, which may not find the mount in its table while other tests mount and unmount.
        assert_eq!(umount2(mount.path(), MntFlags::empty()), Err(Errno::EBUSY));
    }
    let begun = Instant::now();
    let busy = said(mount.tensorfs(["umount", text(mount.path())]));
    // Beside it a program may ask for it what is to be mended.
    assert!(busy.contains("busy: in use by ") && busy.contains(&format!("{carrier} (tensorfs-carrie)")), "{busy}");
    assert!(begun.elapsed() >= Duration::from_secs(10));
    // It has its answer before that, on a machine that is not too slow.
    let mut waits = mount.program();
    let waits = waits.arg("umount").arg(mount.path()).stderr(Stdio::piped()).spawn().unwrap();
    thread::sleep(Duration::from_secs(1));
    drop((commit, sealing));
    let output = waits.wait_with_output().unwrap();
    if !output.status.success() {
        let said = said(output);
        assert!(said.contains("busy: in use by "), "{said}");
        mount.tensorfs_ok(["umount", text(mount.path())]);
    }
    drop(unmounting);
    nobody_is_left(&mount);
    assert!(mount.end());
}

/// The mount option, a carrier by hand, and another remote: one after the other.
///
/// Proves E31, E32.
fn who_carries_otherwise_ends_the_carrier_of_the_mount_before(setup: Setup) {
    let mount = setup.mount_with(["-o", "carry"]).mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    one_carrier(&mount);
    let other = format!("file://{}", mount.pool().with_file_name("other").display());
    let refused = mount.tensorfs(["remote", "set", text(mount.pool()), &other]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("its carrier is at work; end that first"), "{said}");
    // What it was mounted with stays so.
    let remounted = mount.tensorfs(["mount", "-o", "remount,carry=7", text(mount.pool()), text(mount.path())]);
    let said = String::from_utf8_lossy(&remounted.stderr).into_owned();
    assert!(said.contains("carry"), "{said}");
    let mut by_hand = mount.program();
    by_hand.args(["remote", "carry", "--watch", "--interval=1"]).arg(mount.path());
    let mut by_hand = Ending(by_hand.stderr(Stdio::piped()).spawn().unwrap());
    let says = BufReader::new(by_hand.0.stderr.take().unwrap());
    let (tell, told) = mpsc::channel();
    // Until it is ended, so that it can always say something. One that carries has nothing to say.
    thread::spawn(move || says.lines().map_while(Result::ok).for_each(|line| drop(tell.send(line))));
    let second = told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(second.contains("another carrier is at work already; trying again in 1 seconds"), "{second}");
    end(minders(&mount)[0]);
    wait_until("it carries", || {
        carriers(&mount).is_empty() && is_at_work(&mount) && mount.info()["second_copy"]["carrier"] == true
    });
    drop(by_hand);
    // A child that another test is just starting shares the lock that was looked at.
    wait_until("it is set", || mount.tensorfs(["remote", "set", text(mount.pool()), &other]).status.success());
    fs::write(mount.at("f"), Pattern(9).bytes(0, SIZE)).unwrap();
    mount.tensorfs_ok(["remote", "wait", text(&mount.at("f"))]);
    assert_eq!(file_of(&mount, &other, "f")["size"], SIZE);
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
    wait_until("it ends", || carrier.0.try_wait().unwrap().is_some());
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

/// Another place has the path of the one that it began with.
///
/// Proves E32.
fn what_is_mounted_in_the_place_of_the_store_is_left_to_the_next_carrier(setup: Setup) {
    if !is_root() {
        return setup.skip("only root mounts something there");
    }
    let mount = setup.mount_with(["-o", "carry"]).mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    let first = one_carrier(&mount);
    fs::write(mount.at("f"), Pattern(10).bytes(0, SIZE)).unwrap();
    mount.tensorfs_ok(["remote", "wait", text(&mount.at("f"))]);
    // A copy of it, so that the next one goes on.
    let (store, copy) = (mount.pool().with_file_name("remote"), mount.pool().with_file_name("copy"));
    run_ok(Command::new("cp").arg("-a").arg(&store).arg(&copy));
    let before = fs::read_dir(store.join("log")).unwrap().count();
    let over = Mounted::new(Command::new("mount").arg("--bind").arg(&copy), &store).unwrap();
    fs::write(mount.at("g"), Pattern(11).bytes(0, SIZE)).unwrap();
    wait_until("it ends, and says why", || {
        mount.log().lines().any(|line| line.contains("carrier: ") && line.contains("or one of these was mounted anew"))
    });
    wait_until("the next one", || carriers(&mount).iter().any(|pid| *pid != first));
    mount.tensorfs_ok(["remote", "wait", text(&mount.at("g"))]);
    assert_eq!(file_of(&mount, &url, "g")["size"], SIZE);
    drop(over);
    assert_eq!(fs::read_dir(store.join("log")).unwrap().count(), before);
}

/// Whatever a carrier has done outside that is in somebody else's hands.
///
/// Proves E32.
fn what_is_done_outside_is_done_for_one_pool_alone(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    fs::write(mount.at("f"), Pattern(12).bytes(0, SIZE)).unwrap();
    let elsewhere = mount.host().join("f");
    fs::write(&elsewhere, "text").unwrap();
    let mut outside = mount.program();
    outside.args(["remote", "outside", "--"]).arg(mount.pool()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut outside = Ending(outside.stderr(Stdio::null()).spawn().unwrap());
    let (mut asks, answers) = (outside.0.stdin.take().unwrap(), outside.0.stdout.take().unwrap());
    let mut answers = BufReader::new(answers).lines();
    let mut ask = |what: &Value| {
        writeln!(asks, "{what}").unwrap();
        serde_json::from_str::<Value>(&answers.next().unwrap().unwrap()).unwrap()
    };
    let mend = |path: &Path| json!({"Mend": {"path": path.as_os_str().as_encoded_bytes(), "ino": 2}});
    assert_eq!(ask(&json!("Known"))["Said"]["is_well"], true);
    let above = mount.at("../host/f");
    for path in [&elsewhere, &above, Path::new("/etc/passwd"), Path::new("f")] {
        assert_eq!(ask(&mend(path))["Failed"], "it is not on the mount", "{}", path.display());
    }
    // One that is sound is none that has to be mended, but may be.
    let said = ask(&mend(&mount.at("f")));
    assert!(said["Failed"].is_null(), "{said}");
    mount.umount();
    assert_eq!(ask(&json!("Known"))["Failed"], "it is not mounted");
    // What it does not know ends it.
    writeln!(asks, "{}", json!({"Run": "/bin/true"})).unwrap();
    // Where it does not, it ends with what is asked, and does so well.
    drop(asks);
    assert!(answers.next().is_none() && !outside.0.wait().unwrap().success());
}

/// Ended also where a test fails.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
