//! What a mount with a keeper can do that was not made by root for itself: on a descriptor that somebody else has
//! mounted, by `fusermount3`, and in a user namespace.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;
use tensorfs_tests::{
    Call, HostCalls, LEAVE_MOUNTS, Rule, has_ended, is_root, needs_mount, nobody_unmounts, run, skip, tensorfs,
    wait_for_end, wait_until,
};

use super::mount::mounted_for;
use super::{Room, failure, kill, mounts, said};

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

/// A kernel that does not say what is mounted on a descriptor: a server has nothing written back there.
fn says_what_is_mounted(device: &OwnedFd) -> bool {
    let told = fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd())).unwrap();
    told.contains("fuse_connection:")
}

/// What the kernel brings in few writes.
const LEN: usize = 1 << 20;

/// One write of the host that takes its time is waited for.
#[test]
fn what_is_stored_through_mappings_of_a_given_mount_is_there_though_the_host_is_late() {
    needs_mount!();
    let name = "cli::what_is_stored_through_mappings_of_a_given_mount_is_there_though_the_host_is_late";
    if !is_root() {
        return skip(name, "only root mounts for others");
    }
    for options in ["passthrough=off", "passthrough=off,keeper"] {
        let room = Room::with_pool();
        let calls = HostCalls::new();
        calls.set_pool(&room.at("pool"));
        let device = mounted_for(&room, 0);
        if !says_what_is_mounted(&device) {
            return skip(name, "this kernel does not say what is mounted on a descriptor (Linux 6.18)");
        }
        let at = format!("/dev/fd/{}", device.as_raw_fd());
        let mut mounting = room.command();
        mounting.args(["mount", "pool", &at, "-o", options, "--log", "server.log"]);
        calls.preload(&mut mounting);
        let done = run(&mut mounting);
        assert!(done.status.success(), "{options}: {}", said(&done));
        drop(device);
        let file = File::options().read(true).write(true).create_new(true).open(room.at("mnt/f")).unwrap();
        file.set_len(LEN as u64).unwrap();
        file.sync_all().unwrap();
        // SAFETY: nobody makes the file shorter while it is mapped.
        let mut mapped = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
        let info = room.info("mnt");
        let server = pid_of(&info, "server");
        let main = if options.contains("keeper") { pid_of(&info, "keeper") } else { server };
        // The kernel may begin with it by itself.
        let late = calls.add(Rule::of(Call::Write).on("/segments/").times(1).delay(Duration::from_secs(1)));
        mapped.fill(7);
        kill(main, libc::SIGTERM);
        wait_until("both have ended", || has_ended(server) && has_ended(main));
        assert_eq!(late.hits(), 1, "{options}");
        drop((file, mapped));
        umount2(&room.at("mnt"), MntFlags::MNT_DETACH).unwrap();
        room.mount("pool", "mnt");
        let bytes = fs::read(room.at("mnt/f")).unwrap();
        assert!(bytes.len() == LEN && bytes.iter().all(|byte| *byte == 7), "{options}: {}", room.log());
    }
}

/// A mount of a program that reads what it is asked, and says nothing.
struct Silent(File);

const INIT: u32 = 26;
const OPENDIR: u32 = 27;

impl Silent {
    fn over(place: &Path) -> Self {
        let mut device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        nix::mount::mount(Some("silent"), place, Some("fuse.silent"), MsFlags::empty(), Some(&*data)).unwrap();
        let (asked, unique) = next(&mut device);
        assert_eq!(asked, INIT);
        // `fuse_out_header` and `fuse_init_out` of the kernel's `include/uapi/linux/fuse.h`.
        let mut answer = [0; 16 + 64];
        answer[..4].copy_from_slice(&80_u32.to_ne_bytes());
        answer[8..16].copy_from_slice(&unique);
        answer[16..20].copy_from_slice(&7_u32.to_ne_bytes());
        answer[20..24].copy_from_slice(&31_u32.to_ne_bytes());
        answer[36..40].copy_from_slice(&4096_u32.to_ne_bytes());
        assert_eq!(device.write(&answer).unwrap(), answer.len());
        Self(device)
    }

    /// Until it has read that somebody opens it.
    fn wait(&mut self) {
        while next(&mut self.0).0 != OPENDIR {}
    }
}

/// The next request of a device: its kind, and its number.
fn next(device: &mut File) -> (u32, [u8; 8]) {
    let mut asked = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut asked, PollTimeout::from(60_000_u16)), Ok(1), "nobody asks");
    let mut bytes = vec![0; 64 << 10];
    assert!(device.read(&mut bytes).unwrap() >= 40);
    (u32::from_ne_bytes(bytes[4..8].try_into().unwrap()), bytes[8..16].try_into().unwrap())
}

/// What whoever starts it has open without meaning it to be inherited, be it for a moment, is not held by who may be
/// left behind.
///
/// Proves K9.
#[test]
fn whoever_asks_for_writing_back_keeps_nothing_open() {
    needs_mount!();
    if !is_root() {
        return skip("cli::whoever_asks_for_writing_back_keeps_nothing_open", "only root mounts without fusermount3");
    }
    let room = Room::new();
    let mut silent = Silent::over(&room.at("mnt"));
    let script = "exec 7<>/dev/fuse 9</dev/null; exec \"$0\" sync --write-back=0 -- \"$1\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(tensorfs().get_program()).arg(room.at("mnt"));
    let mut asking = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    silent.wait();
    let open = fs::read_dir(format!("/proc/{}/fd", asking.id())).unwrap();
    let mut open: Vec<_> = open.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    open.sort_unstable();
    assert_eq!(open, ["0", "1", "2"]);
    // It waits in the kernel until nobody could answer any more.
    drop(silent);
    asking.wait().unwrap();
    umount2(&room.at("mnt"), MntFlags::MNT_DETACH).unwrap();
}

/// What the process waits for that asks the kernel to write back, is not answered; nor can that process be killed then.
///
/// Proves K9.
#[test]
fn what_is_never_written_back_keeps_neither_the_keeper_nor_the_pool() {
    needs_mount!();
    let name = "cli::what_is_never_written_back_keeps_neither_the_keeper_nor_the_pool";
    if !is_root() {
        return skip(name, "only root mounts for others");
    }
    let mounts = ["keeper", "nokeeper"].map(|options| {
        let room = Room::with_pool();
        let device = mounted_for(&room, 0);
        let is_told = says_what_is_mounted(&device);
        let at = format!("/dev/fd/{}", device.as_raw_fd());
        room.ok(["mount", "pool", &at, "-o", options, "--log", "server.log"]);
        let mut file = File::create_new(room.at("mnt/f")).unwrap();
        file.write_all(b"text").unwrap();
        let info = room.info("mnt");
        let server = pid_of(&info, "server");
        let main = if options == "keeper" { pid_of(&info, "keeper") } else { server };
        (room, is_told, [server, main], file)
    });
    if mounts.iter().any(|(_, is_told, ..)| !is_told) {
        return skip(name, "this kernel does not say what is mounted on a descriptor (Linux 6.18)");
    }
    let mut silent = mounts.each_ref().map(|(room, ..)| Silent::over(&room.at("mnt")));
    mounts.iter().for_each(|(_, _, [_, main], _)| kill(*main, libc::SIGTERM));
    silent.iter_mut().for_each(Silent::wait);
    for (room, _, own, file) in &mounts {
        wait_until("both have ended", || own.iter().all(|one| has_ended(*one)));
        let waits = asking(room);
        assert!(waits.len() == 1 && !has_ended(waits[0]), "{waits:?}");
        // Who has something open is told, and nobody has the pool.
        let (file, (tell, hear)) = (file.try_clone().unwrap(), mpsc::channel());
        std::thread::spawn(move || tell.send(file.metadata().is_err()));
        assert_eq!(hear.recv_timeout(Duration::from_secs(60)), Ok(true));
        room.mount("pool", "other");
        assert_eq!(fs::read(room.at("other/f")).unwrap(), b"text");
        assert!(room.log().contains("what was stored through mappings"), "{}", room.log());
    }
    drop(silent);
    for (room, ..) in &mounts {
        wait_until("whoever was left behind has ended", || asking(room).is_empty());
    }
}

/// Processes that ask the kernel to write what it has of a room's mount.
fn asking(room: &Room) -> Vec<i32> {
    let named = format!("\0{}\0", room.at("mnt").display());
    let asks = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("\0sync\0--write-back=") && line.contains(&named)
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|process| process.file_name().to_str()?.parse().ok()).filter(asks).collect()
}

/// Whoever hands a descriptor over may close it, and so does the keeper: what it starts later has not that, too.
#[test]
fn a_keeper_has_a_given_descriptor_once() {
    needs_mount!();
    if !is_root() {
        return skip("cli::a_keeper_has_a_given_descriptor_once", "only root mounts for others");
    }
    let room = Room::with_pool();
    let device = mounted_for(&room, 0);
    let at = format!("/dev/fd/{}", device.as_raw_fd());
    room.ok(["mount", "pool", &at, "-o", "keeper", "--log", "server.log"]);
    drop(device);
    let devices = |pid: i32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        open.filter(|one| fs::read_link(one.path()).is_ok_and(|to| to == Path::new("/dev/fuse"))).count()
    };
    let both = || ["keeper", "server"].map(|of| devices(pid_of(&room.info("mnt"), of)));
    // The first server has been given it, the next one has what the keeper holds for it.
    let before = both();
    room.ok(["upgrade", "mnt"]);
    assert_eq!(both(), before);
}

/// Runs a program for which pidfd_getfd(2) gives EPERM, as it does for a user where Yama says so.
const REFUSED: &str = "
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 438), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', len(steps), ctypes.addressof(code)))
assert libc.prctl(22, 2, program) == 0
os.execv(sys.argv[1], sys.argv[1:])
";

/// What a server has open is taken by who may trace it, and by nobody else: he hears what that takes.
///
/// Proves K9.
#[test]
fn who_may_not_trace_a_server_is_told_what_another_keeper_takes() {
    needs_mount!();
    let name = "cli::who_may_not_trace_a_server_is_told_what_another_keeper_takes";
    if !is_root() {
        return skip(name, "a keeper needs root");
    }
    let room = Room::with_pool();
    room.ok(["mount", "pool", "mnt", "-o", "keeper", "--log", "server.log"]);
    let (server, keeper) = (room.pid("mnt"), pid_of(&room.info("mnt"), "keeper"));
    kill(keeper, libc::SIGKILL);
    wait_until("nobody keeps watch", || room.info("mnt")["keeper"]["pid"].is_null());
    let mut command = Command::new("python3");
    command.args(["-c", REFUSED]).arg(tensorfs().get_program());
    let told = failure(&run(command.args(["upgrade", "mnt", "--log", "server.log"]).current_dir(room.at(""))));
    assert!(told.contains("CAP_SYS_PTRACE") && told.contains("kernel.yama.ptrace_scope=0"), "{told}");
    assert_eq!(room.pid("mnt"), server, "it serves on");
    room.ok(["upgrade", "mnt", "--log", "server.log"]);
}

/// What is done by whoever has made the mount: `$1` is the program, `$2` the place.
const USED: &str = r#"
    set -eu
    cd "$2"
    pid() { "$1" info --json mnt | python3 -c "import json, sys; print(json.load(sys.stdin)$2)"; }
    "$1" create pool >&2
    "$1" mount pool mnt -o keeper --log "$2/pool/said"
    exec 9<>mnt/f 8<>mnt/gone
    rm mnt/gone
    flock -n 9
    # Whoever has a lock keeps it, and what has no name any more is there.
    goes_on() {
        if flock -n mnt/f true; then echo "the lock was lost" >&2; exit 1; fi
        echo more >&8
        test "$(stat -Lc %s /proc/$$/fd/8)" = $(($1 * 5))
    }
    echo one >&9
    server=$(pid "$1" "['pid']") keeper=$(pid "$1" "['keeper']['pid']")
    kill -9 "$server"
    echo two >&9
    test "$(pid "$1" "['pid']")" != "$server"
    goes_on 1
    "$1" upgrade mnt
    echo three >&9
    goes_on 2
    test "$(pid "$1" "['keeper']['takeovers']")" = 2
    kill -9 "$keeper"
    while test "$(pid "$1" "['keeper']['pid']")" != None; do sleep 0.01; done
    "$1" upgrade mnt --log "$2/pool/said"
    echo four >&9
    goes_on 3
    grep -E '^(CapEff|Seccomp):' "/proc/$(pid "$1" "['pid']")/status" | tr -s '\t' ' '
    exec 9>&- 8>&-
    cat mnt/f
    "$1" umount mnt
    "$1" info pool | grep -o 'closed in order'
"#;

/// Runs [`USED`] by a command, where everybody may open `/dev/fuse`.
fn used_by(room: &Room, by: &[&str]) -> String {
    let prepare = r#"
        echo ready
        mknod -m 666 "$1/fuse" c 10 229
        mount --bind "$1/fuse" /dev/fuse
        shift
        exec "$@"
    "#;
    let mut command = Command::new("unshare");
    let prepare = format!("{LEAVE_MOUNTS}{prepare}");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", &prepare, "sh"]).arg(room.at(""));
    command.args(by).args(["bash", "-c", USED, "bash"]).arg(tensorfs().get_program()).arg(room.at(""));
    let alone = nobody_unmounts();
    let mut process =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("unshare");
    let mut ready = [0; 6];
    process.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    drop(alone);
    let done = process.wait_with_output().unwrap();
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

/// As in two containers of a pod: both keepers have one number, and one network namespace has their sockets' names.
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
        echo ready
        cd "$2"
        # However many processes it took until here.
        echo 1000 >/proc/sys/kernel/ns_last_pid
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
    let script = format!("{LEAVE_MOUNTS}{script}");
    let begin = |room: &Room| {
        let mut command = Command::new("unshare");
        command.args(own).args(["bash", "-c", &script, "bash"]).arg(tensorfs().get_program()).arg(room.at(""));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(process.stdout.take().unwrap()).lines();
        (process.stdin.take().unwrap(), said, process)
    };
    let rooms = [Room::with_pool(), Room::with_pool()];
    let alone = nobody_unmounts();
    let mut both = rooms.each_ref().map(begin);
    let ready = both.each_mut().map(|(_, said, _)| said.next().unwrap().unwrap());
    assert_eq!(ready, ["ready"; 2]);
    drop(alone);
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
