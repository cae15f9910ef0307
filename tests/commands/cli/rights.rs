//! What a mount with a keeper can do that was not made by root for itself: on a descriptor that somebody else has
//! mounted, by `fusermount3`, and in a user namespace.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::sync::PoisonError;

use nix::mount::{MntFlags, umount2};
use serde_json::Value;
use tensorfs_tests::{has_ended, is_root, needs_mount, run, skip, tensorfs, wait_for_end, wait_until};

use super::mount::mounted_for;
use super::{Room, UNMOUNTING, kill, mounts, said};

const USER: &str = "65534";

/// A place for a pool of a user without any privilege.
fn room_of_a_user() -> Room {
    let room = Room::new();
    fs::set_permissions(room.at(""), PermissionsExt::from_mode(0o755)).unwrap();
    fs::create_dir(room.at("pool")).unwrap();
    let owner = format!("{USER}:{USER}");
    let done = run(Command::new("chown").arg(&owner).args([room.at("pool"), room.at("mnt")]));
    assert!(done.status.success(), "{}", said(&done));
    room
}

fn as_the_user(command: &mut Command) -> &mut Command {
    let ids = [format!("--reuid={USER}"), format!("--regid={USER}")];
    command.args(ids).args(["--clear-groups", "--no-new-privs", "--bounding-set=-all"])
}

fn pid_of(info: &Value, of: &str) -> i32 {
    let found = if of == "keeper" { &info["keeper"]["pid"] } else { &info["pid"] };
    found.as_i64().unwrap_or_else(|| panic!("{info}")) as i32
}

/// Proves K9.
#[test]
fn a_descriptor_that_somebody_else_has_mounted_is_served_on() {
    needs_mount!();
    if !is_root() {
        return skip("cli::a_descriptor_that_somebody_else_has_mounted_is_served_on", "only root mounts for others");
    }
    for (options, by_user) in [("keeper", false), ("keeper,privileged", false), ("keeper", true)] {
        let room = if by_user { room_of_a_user() } else { Room::with_pool() };
        let user = if by_user { USER.parse().unwrap() } else { 0 };
        let own = |arguments: &[&str]| {
            let mut command = Command::new(if by_user { "setpriv" } else { "env" });
            if by_user {
                as_the_user(&mut command);
            }
            command.arg(tensorfs().get_program()).args(arguments).current_dir(room.at(""));
            command
        };
        let log = room.at(if by_user { "pool/said" } else { "server.log" });
        let log = log.to_str().unwrap();
        let serve = || {
            let device = mounted_for(&room, user);
            let at = format!("/dev/fd/{}", device.as_raw_fd());
            let done = run(&mut own(&["mount", "pool", &at, "-o", options, "--log", log]));
            assert!(done.status.success(), "{options}: {}", said(&done));
        };
        let info = || room.info("mnt");
        if by_user {
            let done = run(&mut own(&["create", "pool"]));
            assert!(done.status.success(), "{}", said(&done));
        }
        serve();
        let mut file = File::options().read(true).write(true).create_new(true).open(room.at("mnt/f")).unwrap();
        file.write_all(b"one").unwrap();
        // Server, program and keeper are replaced, unnoticed.
        let (first, keeper) = (pid_of(&info(), "server"), pid_of(&info(), "keeper"));
        kill(first, libc::SIGKILL);
        file.write_all(b" two").unwrap();
        wait_until("another server", || pid_of(&info(), "server") != first);
        let done = run(&mut own(&["upgrade", "mnt"]));
        assert!(done.status.success(), "{options}: {}", said(&done));
        file.write_all(b" three").unwrap();
        assert_eq!((&info()["keeper"]["takeovers"], pid_of(&info(), "keeper")), (&2.into(), keeper));
        kill(keeper, libc::SIGKILL);
        wait_until("nobody keeps watch", || info()["keeper"]["pid"].is_null());
        let done = run(&mut own(&["upgrade", "mnt", "--log", log]));
        assert!(done.status.success(), "{options}: {}", said(&done));
        file.write_all(b" four").unwrap();
        let (server, keeper) = (pid_of(&info(), "server"), pid_of(&info(), "keeper"));
        let status = fs::read_to_string(format!("/proc/{server}/status")).unwrap();
        let has = |line: &str| status.lines().any(|one| one.split_whitespace().collect::<Vec<_>>().join(" ") == line);
        let is_confined = has("CapEff: 0000000000000000") && has("Seccomp: 2");
        assert_eq!(is_confined, options == "keeper", "{options}: {status}");
        // Who ends it does not unmount it, and nothing that was stored is lost.
        file.set_len(1 << 20).unwrap();
        // SAFETY: nobody makes the file shorter while it is mapped.
        let mut mapped = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
        mapped[4096..1 << 20].fill(7);
        kill(keeper, libc::SIGTERM);
        wait_until("both have ended", || has_ended(server) && has_ended(keeper));
        assert!(file.metadata().is_err() && mounts().contains(&room.at("mnt")), "it is for others to unmount it");
        drop((file, mapped));
        umount2(&room.at("mnt"), MntFlags::MNT_DETACH).unwrap();
        serve();
        let file = File::open(room.at("mnt/f")).unwrap();
        let mut bytes = vec![0; 1 << 20];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes[..18], b"one two three four");
        assert!(bytes[4096..].iter().all(|byte| *byte == 7), "what was stored through a mapping");
        drop(file);
        // Whoever made it unmounts it: the pool is closed then.
        let (server, keeper) = (pid_of(&info(), "server"), pid_of(&info(), "keeper"));
        umount2(&room.at("mnt"), MntFlags::empty()).unwrap();
        wait_for_end(server);
        wait_for_end(keeper);
        assert!(room.ok(["info", "pool"]).contains("closed in order"), "{}", room.ok(["info", "pool"]));
    }
    let room = Room::with_pool();
    let device = mounted_for(&room, 0);
    let at = format!("/dev/fd/{}", device.as_raw_fd());
    let refused = room.fails(["mount", "pool", &at, "-o", "keeper,watchdog=60"]);
    assert!(refused.contains("\"watchdog\": it is not for a mount that somebody else has made"), "{refused}");
}

/// What is done by whoever has made the mount: `$1` is the program, `$2` the place.
const USED: &str = r#"
    set -eu
    cd "$2"
    pid() { "$1" info --json mnt | python3 -c "import json, sys; print(json.load(sys.stdin)$2)"; }
    "$1" create pool >&2
    "$1" mount pool mnt -o keeper --log "$2/pool/said"
    exec 9<>mnt/f
    echo one >&9
    server=$(pid "$1" "['pid']") keeper=$(pid "$1" "['keeper']['pid']")
    kill -9 "$server"
    echo two >&9
    test "$(pid "$1" "['pid']")" != "$server"
    "$1" upgrade mnt
    echo three >&9
    test "$(pid "$1" "['keeper']['takeovers']")" = 2
    kill -9 "$keeper"
    while test "$(pid "$1" "['keeper']['pid']")" != None; do sleep 0.01; done
    "$1" upgrade mnt --log "$2/pool/said"
    echo four >&9
    grep -E '^(CapEff|Seccomp):' "/proc/$(pid "$1" "['pid']")/status" | tr -s '\t' ' '
    exec 9>&-
    cat mnt/f
    "$1" umount mnt
    "$1" info pool | grep -o 'closed in order'
"#;

/// Runs [`USED`] by a command, where everybody may open `/dev/fuse`.
fn used_by(room: &Room, by: &[&str]) -> String {
    let prepare = r#"
        # Mounts of other tests are none of its business.
        while read -r _ _ _ _ at _; do case $at in */mnt|*/other) umount -l "$at" ;; esac; done </proc/self/mountinfo
        mknod -m 666 "$1/fuse" c 10 229
        mount --bind "$1/fuse" /dev/fuse
        shift
        exec "$@"
    "#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", prepare, "sh"]).arg(room.at(""));
    command.args(by).args(["bash", "-c", USED, "bash"]).arg(tensorfs().get_program()).arg(room.at(""));
    let _nobody_unmounts = UNMOUNTING.write().unwrap_or_else(PoisonError::into_inner);
    let done = run(&mut command);
    assert!(done.status.success(), "{}\n{}", said(&done), fs::read_to_string(room.at("pool/said")).unwrap_or_default());
    String::from_utf8(done.stdout).unwrap()
}

const EXPECTED: &str = "CapEff: 0000000000000000\nSeccomp: 2\none\ntwo\nthree\nfour\nclosed in order\n";

/// Proves K9.
#[test]
fn what_fusermount3_has_mounted_is_served_on() {
    needs_mount!();
    let name = "cli::what_fusermount3_has_mounted_is_served_on";
    if !is_root() {
        return skip(name, "only root becomes somebody else");
    }
    if !run(Command::new("sh").args(["-c", "command -v fusermount3"])).status.success() {
        return skip(name, "no fusermount3");
    }
    let room = room_of_a_user();
    let user = [format!("--reuid={USER}"), format!("--regid={USER}")];
    assert_eq!(used_by(&room, &["setpriv", &user[0], &user[1], "--clear-groups"]), EXPECTED);
}

/// Proves K9.
#[test]
fn what_is_mounted_in_a_user_namespace_is_served_on() {
    needs_mount!();
    let name = "cli::what_is_mounted_in_a_user_namespace_is_served_on";
    if !is_root() {
        return skip(name, "only root becomes somebody else");
    }
    let room = room_of_a_user();
    let user = [format!("--reuid={USER}"), format!("--regid={USER}")];
    let own = ["setpriv", &user[0], &user[1], "--clear-groups", "unshare", "--user", "--map-root-user", "--mount"];
    if !run(Command::new(own[0]).args(&own[1..]).arg("true")).status.success() {
        return skip(name, "users cannot make a user namespace here");
    }
    assert_eq!(used_by(&room, &own), EXPECTED);
}

/// As in two containers of a pod: both keepers are process 2, and one network namespace has the names of their sockets.
///
/// Proves K7.
#[test]
fn keepers_of_two_process_namespaces_are_told_apart() {
    needs_mount!();
    let name = "cli::keepers_of_two_process_namespaces_are_told_apart";
    let own = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    if !is_root() || !run(Command::new("unshare").args(own).arg("true")).status.success() {
        return skip(name, "no process namespaces here");
    }
    let script = r#"
        set -eu
        while read -r _ _ _ _ at _; do case $at in */mnt|*/other) umount -l "$at" ;; esac; done </proc/self/mountinfo
        echo ready
        cd "$2"
        "$1" mount --foreground pool mnt -o keeper --log "$2/server.log" 2>&1 &
        keeper=$!
        until "$1" info mnt 2>/dev/null | grep -q "process $keeper keeps watch"; do kill -0 $keeper; sleep 0.01; done
        echo "$keeper"
        read go
        "$1" upgrade mnt
        "$1" info --json mnt | python3 -c "import json, sys; print(json.load(sys.stdin)['keeper']['takeovers'])"
        read go
        "$1" umount mnt
    "#;
    let begin = |room: &Room| {
        let mut command = Command::new("unshare");
        command.args(own).args(["bash", "-c", script, "bash"]).arg(tensorfs().get_program()).arg(room.at(""));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(process.stdout.take().unwrap()).lines();
        (process.stdin.take().unwrap(), said, process)
    };
    let rooms = [Room::with_pool(), Room::with_pool()];
    let nobody_unmounts = UNMOUNTING.write().unwrap_or_else(PoisonError::into_inner);
    let mut both = rooms.each_ref().map(begin);
    let ready = both.each_mut().map(|(_, said, _)| said.next().unwrap().unwrap());
    assert_eq!(ready, ["ready"; 2]);
    drop(nobody_unmounts);
    let keepers = both.each_mut().map(|(_, said, _)| said.next().unwrap().unwrap());
    assert_eq!(keepers[0], keepers[1]);
    for (say, said, _) in &mut both {
        writeln!(say).unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "1");
    }
    for (mut say, _, mut process) in both {
        writeln!(say).unwrap();
        assert!(process.wait().unwrap().success());
    }
}
