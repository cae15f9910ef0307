//! Files that are made to keep whoever looks into them busy, to bring it down, or to take it over.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tensorfs_formats::{crc32c, crc32c_zeroes};
use tensorfs_tests::{
    Call, HostCalls, Mount, Rule, Setup, as_user, has_ended, is_root, on_mounts, program, run, run_ok, safetensors,
    samples, scratch, skip, tensorfs, wait_until, xattr,
};

on_mounts!(
    a_frame_of_terabytes_that_are_a_hole_is_read_at_once,
    hostile_files_of_one_user_keep_nobody_waiting,
    who_has_no_reader_finds_one_however_many_are_greedy,
    whoever_is_killed_keeps_no_reader,
    a_file_that_is_removed_keeps_no_reader,
    a_server_that_is_to_end_waits_for_no_reader,
    no_reader_outlives_its_server_or_its_mount,
    there_are_so_many_readers_however_many_users_want_one,
    tensors_that_stay_open_keep_few_readers,
    holes_of_no_format_are_read,
    a_reader_that_fails_is_an_error_of_that_request,
    what_three_readers_did_not_survive_is_sealed_and_looked_into_again,
    what_is_in_small_files_is_said_by_readers_too,
);

/// What a reader that is taken over may try, and all that it may get: none of it.
const REFUSED: &[&str] = &[
    "open",
    "openat2",
    "open by handle",
    "own memory as a file",
    "a descriptor from before",
    "reading what is no socket",
    "writing to a file",
    "writing elsewhere",
    "a file in memory",
    "mapping a file",
    "memory to execute",
    "making memory executable",
    "socket",
    "connect",
    "sendmsg",
    "recvmsg",
    "ptrace",
    "memory of the server",
    "pidfd_open",
    "kill",
    "tgkill",
    "fork",
    "clone3",
    "exec",
    "execveat",
    "io_uring",
    "bpf",
    "userfaultfd",
    "perf_event_open",
    "add_key",
    "setuid",
    "capset",
    "mount",
    "unshare",
    "setns",
    "chroot",
    "ioctl",
    "prctl",
    "larger limits",
    "unlink",
    "names of files",
    "shared memory",
    "a message queue",
    "the log of the kernel",
    "a clock that is set",
    "a 32 bit call",
];

/// A process that is locked in as a reader is has its memory, as much as that may be, and its socket. Whatever else it
/// tries, it is killed for.
/// Proves P4, B9.
#[test]
fn a_reader_that_is_taken_over_can_do_nothing() {
    let try_to = |what: &str| {
        // The other end is there, and nobody reads.
        let (_server, socket) = UnixStream::pair().unwrap();
        let mut command = program("tensorfs-test-child");
        command.args(["locked", what]).stdin(Stdio::from(std::os::fd::OwnedFd::from(socket)));
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
    };
    if try_to("what is missing").code() != Some(0) {
        return skip("a_reader_that_is_taken_over_can_do_nothing", "the kernel cannot lock processes in");
    }
    for what in ["nothing", "32 MiB of memory", "128 MiB of memory", "a word to the server"] {
        let ended = try_to(what);
        assert_eq!(ended.code(), Some(0), "{what}: {ended}");
    }
    for what in ["192 MiB of memory", "4 GiB of memory"] {
        assert_eq!(try_to(what).code(), Some(libc::ENOMEM), "{what}");
    }
    for what in REFUSED {
        let ended = try_to(what);
        assert_eq!(ended.signal(), Some(libc::SIGSYS), "{what}: {ended}");
    }
}

fn masked(crc: u32) -> [u8; 4] {
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// An event of one scalar, and behind it in the same frame a field of so many zeroes, which are a hole.
fn sparse_frame(path: &Path, zeroes: u64) -> std::io::Result<()> {
    let mut event = vec![0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 1, 0x2a, 10, 0x0a, 8, 0x0a, 1, b'x', 0x15];
    event.extend(1.5_f32.to_le_bytes());
    // A field that nobody knows.
    event.push(15 << 3 | 2);
    event.extend(varint(zeroes));
    let len = (event.len() as u64 + zeroes).to_le_bytes();
    let file = File::create(path)?;
    file.write_all_at(&[&len[..], &masked(crc32c(&len)), &event].concat(), 0)?;
    let end = 12 + event.len() as u64 + zeroes;
    file.write_all_at(&masked(crc32c_zeroes(crc32c(&event), zeroes)), end)
}

/// A `.npz` of one array of 3 GiB of zeroes, which the file has in 20 MB.
fn bomb(path: &Path) {
    bomb_of(path, 3 << 30);
}

/// One of an array of so many zeroes, of which the file has one byte for 159.
fn bomb_of(path: &Path, size: u64) {
    let mut header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},), }}");
    let width = (10 + header.len() + 1).next_multiple_of(64) - 11;
    header = format!("{header:width$}\n");
    let mut npy = b"\x93NUMPY\x01\x00".to_vec();
    npy.extend((header.len() as u16).to_le_bytes());
    npy.extend(header.bytes());
    let total = (npy.len() as u64 + size) as u32;
    // The header is stored; behind it comes one block of fixed codes: a zero, and again and again the longest match
    // there is, of what is one byte back.
    let mut deflated = vec![0];
    deflated.extend((npy.len() as u16).to_le_bytes());
    deflated.extend((!(npy.len() as u16)).to_le_bytes());
    deflated.extend(npy);
    let mut bits: Vec<bool> = vec![true, true, false];
    let mut code = |code: u32, len: u32| bits.extend((0..len).rev().map(|at| code >> at & 1 == 1));
    code(0b0011_0000, 8);
    for _ in 0..24 {
        code(0b1100_0101, 8);
        code(0, 5);
    }
    let byte = |bits: &[bool]| bits.iter().rev().fold(0_u8, |byte, bit| byte << 1 | u8::from(*bit));
    let bytes: Vec<u8> = bits.chunks_exact(8).map(byte).collect();
    // Eight matches are 13 bytes.
    deflated.extend(&bytes[..2]);
    for _ in 0..size / 258 / 8 + 1 {
        deflated.extend(&bytes[2..15]);
    }
    let len = deflated.len() as u32;
    let mut fields = [0_u8; 26];
    fields[0] = 20;
    fields[4] = 8;
    fields[14..18].copy_from_slice(&len.to_le_bytes());
    fields[18..22].copy_from_slice(&total.to_le_bytes());
    fields[22] = 5;
    let mut zip = [b"PK\x03\x04", &fields[..], b"a.npy"].concat();
    zip.extend(deflated);
    let directory = zip.len() as u32;
    zip.extend([b"PK\x01\x02\x14\x00", &fields[..], &[0; 14], b"a.npy"].concat());
    let directory_len = zip.len() as u32 - directory;
    zip.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
    zip.extend([directory_len.to_le_bytes(), directory.to_le_bytes()].concat());
    zip.extend([0, 0]);
    fs::write(path, zip).unwrap();
}

/// Somebody who reads the end of a bomb.
fn reads(mut command: Command, mount: &Mount, tensor: &Path) -> Child {
    // Beginning where it is: the directories above need not be open to him.
    command.current_dir(mount.path());
    command.args(["tail", "-c", "16"]).arg(tensor).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn as_root() -> Command {
    Command::new("env")
}

/// The readers of a server.
fn readers(mount: &Mount) -> Vec<i32> {
    children(mount.pid().unwrap())
}

/// Processes that another one has started.
fn children(parent: i32) -> Vec<i32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes.filter(|pid| status(*pid, "PPid") == parent.to_string()).collect()
}

/// What a line of a process' status says.
fn status(pid: i32, line: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let found = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':'));
    found.unwrap_or_default().trim().to_owned()
}

/// A file with tensors that nobody has asked about yet.
fn fresh(mount: &Mount, name: &str) -> PathBuf {
    let path = mount.at(name);
    fs::write(&path, safetensors(&[("a", b"abcd"), ("b", b"wxyz")])).unwrap();
    path
}

fn of_readers(mount: &Mount, what: &str) -> u64 {
    mount.info()["readers"][what].as_u64().unwrap()
}

fn get(path: &Path, name: &str) -> String {
    String::from_utf8(xattr::get(path, format!("user.tensorfs.{name}")).unwrap()).unwrap()
}

/// Proves C7, T10.
fn a_frame_of_terabytes_that_are_a_hole_is_read_at_once(setup: Setup) {
    let mount = setup.mount();
    for n in 0..4 {
        let path = mount.at(format!("events.{n}"));
        if sparse_frame(&path, (14 << 40) + n).is_err() {
            return skip("a_frame_of_terabytes_that_are_a_hole_is_read_at_once", "the host has no files of 14 TiB");
        }
        // The checksum of all of it is right.
        assert_eq!(get(&path, "tensors"), "1");
    }
    mount.wait_for_seals(4);
    assert_eq!(of_readers(&mount, "failed"), 0);
}

/// Proves T10, T11, B9.
fn hostile_files_of_one_user_keep_nobody_waiting(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = setup.mount();
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let dir = mount.at("bombs");
    fs::create_dir(&dir).unwrap();
    bomb(&dir.join("0.npz"));
    for n in 1..8 {
        fs::copy(dir.join("0.npz"), dir.join(format!("{n}.npz"))).unwrap();
    }
    let tensor = |n: usize| PathBuf::from(format!(".tensorfs/tensors/bombs/{n}.npz/a.npy"));
    assert_eq!(fs::metadata(mount.at(tensor(0))).unwrap().len() >> 30, 3);
    let mut greedy: Vec<Child> = (0..8).map(|n| reads(as_user(1234, 1234), &mount, &tensor(n))).collect();
    wait_until("readers that are busy", || readers(&mount).len() >= 3);
    // Others are answered, whether a reader is needed or not.
    let path = fresh(&mount, "mine");
    assert!(["open", "committed"].contains(&&*get(&path, "state")));
    assert_eq!(get(&path, "tensors"), "2");
    assert_eq!(fs::read_dir(mount.at(".tensorfs/tensors/mine")).unwrap().count(), 2);
    // So is the greedy one, where none is.
    let mut asks = as_user(1234, 1234);
    asks.args(["ls", "-a", ".tensorfs"]).current_dir(mount.path());
    assert!(run(&mut asks).status.success());
    let most = readers(&mount).len();
    assert!((3..=33).contains(&most), "{most} readers");
    let busy = greedy.iter_mut().filter_map(|child| child.try_wait().unwrap().is_none().then_some(())).count();
    assert!(busy >= 4, "only {busy} of 8 were still waiting");
    for child in &mut greedy {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    wait_until("all but idle readers to end", || readers(&mount).len() <= 5);
}

/// Proves T11, B9.
fn who_has_no_reader_finds_one_however_many_are_greedy(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = setup.mount();
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let dir = mount.at("bombs");
    fs::create_dir(&dir).unwrap();
    bomb_of(&dir.join("0.npz"), 1 << 30);
    // Each its own: who reads what somebody else reads waits in the kernel.
    let mut greedy: Vec<Child> = Vec::new();
    for n in 0..18 {
        let name = format!("{n}.npz");
        if n > 0 {
            fs::copy(dir.join("0.npz"), dir.join(&name)).unwrap();
        }
        let user = 1234 + n / 3;
        greedy.push(reads(as_user(user, user), &mount, &Path::new(".tensorfs/tensors/bombs").join(name).join("a.npy")));
    }
    wait_until("readers that are busy", || readers(&mount).len() >= 10);
    assert_eq!(get(&fresh(&mount, "mine"), "tensors"), "2");
    assert_eq!(fs::read_dir(mount.at(".tensorfs/tensors/mine")).unwrap().count(), 2);
    let done = greedy.iter_mut().filter_map(|child| child.try_wait().unwrap()).count();
    let most = readers(&mount).len();
    for child in &mut greedy {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(done, 0, "who has no reader waited until another one was done");
    assert!((10..=33).contains(&most), "{most} readers");
    wait_until("all but idle readers to end", || readers(&mount).len() <= 5);
}

/// A mount with a bomb, and somebody who reads its end.
fn with_bomb(setup: Setup) -> (Mount, Child) {
    let mount = setup.mount();
    bomb(&mount.at("bomb.npz"));
    let tensor = mount.at(".tensorfs/tensors/bomb.npz/a.npy");
    assert_eq!(fs::metadata(&tensor).unwrap().len() >> 30, 3);
    let reading = reads(as_root(), &mount, &tensor);
    wait_until("a reader that is busy", || readers(&mount).iter().any(|pid| ticks(*pid) > 2));
    (mount, reading)
}

/// What a process has had of the processor, in ticks.
fn ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(11)?.parse().ok()).unwrap_or(0)
}

/// Proves T11.
fn whoever_is_killed_keeps_no_reader(setup: Setup) {
    let (mount, mut reading) = with_bomb(setup);
    reading.kill().unwrap();
    assert_eq!(reading.wait().unwrap().signal(), Some(libc::SIGKILL));
    wait_until("the reader to be given up", || of_readers(&mount, "given_up") >= 1);
    assert_eq!(get(&fresh(&mount, "mine"), "tensors"), "2");
}

/// Proves T11.
fn a_file_that_is_removed_keeps_no_reader(setup: Setup) {
    let (mount, mut reading) = with_bomb(setup);
    fs::remove_file(mount.at("bomb.npz")).unwrap();
    assert!(!reading.wait().unwrap().success());
    wait_until("the reader to be given up", || of_readers(&mount, "given_up") >= 1);
}

/// Proves T11.
fn a_server_that_is_to_end_waits_for_no_reader(setup: Setup) {
    let (mut mount, mut reading) = with_bomb(setup);
    let server = mount.pid().unwrap();
    kill(Pid::from_raw(server), Signal::SIGTERM).unwrap();
    // It gets an error, and not the bytes.
    assert!(!reading.wait().unwrap().success());
    assert!(mount.end());
}

/// Proves T11.
fn no_reader_outlives_its_server_or_its_mount(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    let gone = |pids: &[i32]| wait_until("no reader", || pids.iter().all(|pid| has_ended(*pid)));
    // A mount that is out of sight goes on for whoever reads from it, until its server is told to end.
    let (mut mount, mut reading) = with_bomb(setup.clone());
    let pids = readers(&mount);
    run_ok(Command::new("umount").arg("-l").arg(mount.path()));
    assert!(pids.iter().any(|pid| !has_ended(*pid)));
    kill(Pid::from_raw(mount.pid().unwrap()), Signal::SIGTERM).unwrap();
    gone(&pids);
    assert!(!reading.wait().unwrap().success());
    assert!(mount.end());
    // One that is killed tells nobody.
    let (mut mount, mut reading) = with_bomb(setup.clone());
    let pids = readers(&mount);
    mount.kill9();
    gone(&pids);
    assert!(!reading.wait().unwrap().success());
    drop(mount);
    // Another server has readers of its own.
    let (mut mount, mut reading) = with_bomb(setup.mount_with(["-o", "keeper"]));
    let pids = readers(&mount);
    mount.kill_server();
    gone(&pids);
    reading.kill().unwrap();
    reading.wait().unwrap();
    wait_until("all but idle readers to end", || readers(&mount).len() <= 5);
}

/// Proves B9.
fn there_are_so_many_readers_however_many_users_want_one(setup: Setup) {
    const USERS: u32 = 30;
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let dir = mount.at("bombs");
    fs::create_dir(&dir).unwrap();
    bomb_of(&dir.join("0.npz"), 3 << 30);
    let mut greedy: Vec<Child> = Vec::new();
    for n in 0..USERS {
        let name = format!("{n}.npz");
        if n > 0 {
            fs::copy(dir.join("0.npz"), dir.join(&name)).unwrap();
        }
        let tensor = Path::new(".tensorfs/tensors/bombs").join(name).join("a.npy");
        greedy.push(reads(as_user(1234 + n, 1234 + n), &mount, &tensor));
    }
    // Those for users. What others are for nobody asks here, but for sealing what was copied.
    let busy = || readers(&mount).iter().filter(|pid| ticks(**pid) > 2).count();
    wait_until("as many readers as users may have", || busy() >= 24);
    let most = (0..20).map(|_| readers(&mount).len()).max().unwrap();
    for child in &mut greedy {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!((24..=33).contains(&most), "{most} readers");
    wait_until("all but idle readers to end", || readers(&mount).len() <= 5);
}

/// Those who have something open are ended with the test.
struct Holders(Vec<Child>);

impl Drop for Holders {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Some who read packed tensors at once, and have them open then, have the readers of a few. Each would keep blocks of
/// what it gave, too.
///
/// Proves B9, T6.
fn tensors_that_stay_open_keep_few_readers(setup: Setup) {
    // One user has four at a time.
    const AT_ONCE: u32 = 6;
    const ROUNDS: u32 = 4;
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let name = |n: u32| format!("{n}.npz");
    (0..ROUNDS * AT_ONCE).for_each(|n| bomb_of(&mount.at(name(n)), 2 << 20));
    mount.wait_for_seals(u64::from(ROUNDS * AT_ONCE));
    let tensor = |n: u32| Path::new(".tensorfs/tensors").join(name(n)).join("a.npy");
    (0..ROUNDS * AT_ONCE).for_each(|n| assert!(fs::metadata(mount.at(tensor(n))).is_ok()));
    // The end, by one request.
    let script = "exec 3<$0; dd bs=16 skip=131079 count=1 status=none <&3 | wc -c; read";
    let mut open = Holders(Vec::new());
    for round in 0..ROUNDS {
        let held = calls.add(Rule::of(Call::Read).on("/segments/").held());
        let some = (0..AT_ONCE).map(|user| {
            let mut command = as_user(1234 + user, 1234 + user);
            command.args(["bash", "-c", script]).arg(tensor(round * AT_ONCE + user)).current_dir(mount.path());
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        });
        open.0.extend(some);
        // More than are kept have begun before one of them is done.
        held.wait_for_waiting(AT_ONCE.into());
        drop(held);
        for child in open.0.iter_mut().rev().take(AT_ONCE as usize) {
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line.trim(), "16");
        }
    }
    // Those of four tensors, and as many that have nothing to do.
    wait_until("few readers", || readers(&mount).len() <= 8);
    assert_eq!(of_readers(&mount, "failed"), 0);
    drop(open);
    wait_until("all but idle readers to end", || readers(&mount).len() <= 4);
}

/// The beginnings, and ends, of files of which most is a hole, that say as much as they can of what is in it.
fn worst() -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    let npy = |version: u8, len: &[u8]| [&b"\x93NUMPY"[..], &[version, 0], len].concat();
    let header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3000000000000, ), }\n";
    let whole = [npy(1, &(header.len() as u16).to_le_bytes()), header.to_vec()].concat();
    let gguf = |tensors: u64, keys: u64, rest: &[u8]| {
        [&b"GGUF\x03\0\0\0"[..], &tensors.to_le_bytes(), &keys.to_le_bytes(), rest].concat()
    };
    let text = |len: u64| [&1_u64.to_le_bytes()[..], b"k", &8_u32.to_le_bytes(), &len.to_le_bytes()].concat();
    let array =
        [&1_u64.to_le_bytes()[..], b"k", &9_u32.to_le_bytes(), &0_u32.to_le_bytes(), &(1_u64 << 42).to_le_bytes()];
    let strings =
        [&1_u64.to_le_bytes()[..], b"k", &9_u32.to_le_bytes(), &8_u32.to_le_bytes(), &(1_u64 << 40).to_le_bytes()];
    let footer = |magic: &[u8]| [&i32::MAX.to_le_bytes()[..], magic].concat();
    // A directory of a zip of which there is as much as 32, or 64, bits can say.
    let end = [&b"PK\x05\x06\0\0\0\0\xff\xff\xff\xff"[..], &[0xff; 8], &[0, 0]].concat();
    let of_64 = [
        &b"PK\x06\x06"[..],
        &44_u64.to_le_bytes(),
        &[45, 0, 45, 0],
        &[0; 8],
        &(1_u64 << 34).to_le_bytes(),
        &(1_u64 << 34).to_le_bytes(),
        &(1_u64 << 40).to_le_bytes(),
        &(1_u64 << 40).to_le_bytes(),
    ];
    let locator = [&b"PK\x06\x07\0\0\0\0"[..], &(SPARSE - 98).to_le_bytes(), &[1, 0, 0, 0]].concat();
    vec![
        ("least.safetensors", [&64_u64.to_le_bytes()[..], &[b' '; 64]].concat(), vec![]),
        ("most.safetensors", [&100_000_000_u64.to_le_bytes()[..], b"{\"a\":"].concat(), vec![]),
        ("more.safetensors", [&(1_u64 << 43).to_le_bytes()[..], b"{\"a\":"].concat(), vec![]),
        ("short.npy", npy(1, &[0xff, 0xff]), vec![]),
        ("long.npy", npy(2, &[0xff; 4]), vec![]),
        ("whole.npy", whole.clone(), vec![]),
        ("many.npy", [whole.clone(), whole].concat(), vec![]),
        ("keys.gguf", gguf(0, 1 << 40, &[]), vec![]),
        ("tensors.gguf", gguf(1 << 40, 0, &[]), vec![]),
        ("text.gguf", gguf(1, 1, &text(1 << 42)), vec![]),
        ("array.gguf", gguf(1, 1, &array.concat()), vec![]),
        ("strings.gguf", gguf(1, 1, &strings.concat()), vec![]),
        ("a.arrow", b"ARROW1\0\0".to_vec(), footer(b"ARROW1")),
        ("a.parquet", b"PAR1".to_vec(), footer(b"PAR1")),
        ("a.npz", b"PK\x03\x04".to_vec(), end.clone()),
        ("b.npz", b"PK\x03\x04".to_vec(), [of_64.concat(), locator, end].concat()),
        (
            "a.pt",
            b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02B\xff\xff\xff\x7f".to_vec(),
            vec![],
        ),
        ("a.h5", [&b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0"[..], &[0xff; 8], &[0; 72]].concat(), vec![]),
        ("events.tfevents", (1_u64 << 43).to_le_bytes().to_vec(), vec![]),
        ("opaque", vec![], vec![]),
    ]
}

/// How long files are that are holes, and how much is much to read of one.
const SPARSE: u64 = 14 << 40;
const MANY: u64 = 64 << 20;

/// Of each format a file that is sound as far as it goes, and files that say the most that can be said, all of 14 TiB
/// of which the host has next to nothing: what they hold is said, and they are sealed, and hardly anything of it is
/// read.
/// Proves C7, T10.
fn holes_of_no_format_are_read(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let mut files = worst();
    for entry in fs::read_dir(samples()).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        let name: &str = Box::leak(entry.file_name().into_string().unwrap().into_boxed_str());
        files.push((name, fs::read(entry.path()).unwrap(), vec![]));
    }
    let read = || {
        let io = fs::read_to_string(format!("/proc/{}/io", mount.pid().unwrap())).unwrap();
        io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse::<u64>().unwrap()
    };
    let mut most = (0, "");
    for (name, begin, end) in &files {
        let before = read();
        let file = File::create(mount.at(name)).unwrap();
        file.write_all_at(begin, 0).unwrap();
        if file.set_len(SPARSE).is_err() {
            return skip("holes_of_no_format_are_read", "the host has no files of 14 TiB");
        }
        file.write_all_at(end, SPARSE - end.len() as u64).unwrap();
        drop(file);
        // Whether it can be said, and what it is, is for others to test.
        let _ = xattr::get(&mount.at(name), "user.tensorfs.tensors");
        for tensor in fs::read_dir(mount.at(".tensorfs/tensors").join(name)).into_iter().flatten().flatten().take(3) {
            let _ = File::open(tensor.path()).and_then(|tensor| tensor.read_at(&mut [0; 4096], 1 << 40));
        }
        most = most.max((read() - before, name));
    }
    let before = read();
    mount.wait_for_seals(files.len() as u64);
    let sealing = (read() - before) / files.len() as u64;
    println!("the most that was read: {} bytes, of {}; to seal each of {}: {sealing}", most.0, most.1, files.len());
    assert!(most.0 < MANY, "{} MiB were read of {}", most.0 >> 20, most.1);
    assert!(sealing < MANY / 8, "{} MiB were read of each to seal it", sealing >> 20);
    let failed = of_readers(&mount, "failed");
    assert_eq!(failed, 0, "{}", mount.log());
}

/// Proves T10.
fn a_reader_that_fails_is_an_error_of_that_request(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    assert_eq!(get(&fresh(&mount, "one"), "tensors"), "2");
    for (n, signal) in [Signal::SIGKILL, Signal::SIGSEGV].into_iter().enumerate() {
        // Larger than what comes with the question.
        let path = mount.at(format!("two.{n}"));
        let names: Vec<String> = (0..1000).map(|n| format!("tensor number {n}")).collect();
        let tensors: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"abcd"[..])).collect();
        fs::write(&path, safetensors(&tensors)).unwrap();
        let held = calls.add(Rule::of(Call::Read).on("/segments/").skip(1).held());
        let asked = path.clone();
        let asking = std::thread::spawn(move || xattr::get(&asked, "user.tensorfs.tensors"));
        held.wait_for_waiting(1);
        for pid in readers(&mount) {
            kill(Pid::from_raw(pid), signal).unwrap();
        }
        drop(held);
        assert_eq!(asking.join().unwrap(), Err(nix::errno::Errno::EIO));
        assert_eq!(of_readers(&mount, "failed"), n as u64 + 1);
        let told = fs::read_to_string(mount.at(".tensorfs/metrics")).unwrap();
        let killed = told.lines().find(|line| line.starts_with("tensorfs_readers_killed") && line.contains("failed"));
        assert!(killed.unwrap().ends_with(&format!("}} {}", n + 1)), "{killed:?}");
        let log = mount.log();
        assert!(log.contains(&format!("two.{n}: the reader that looked into it ended (signal: ")), "{log}");
        // The next one is told.
        assert_eq!(get(&path, "tensors"), "1000");
    }
}

/// Proves T10, C5.
fn what_three_readers_did_not_survive_is_sealed_and_looked_into_again(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    // Larger than what comes with the question. As long as somebody may write it nobody looks into it to seal it.
    let path = mount.at("killer");
    let names: Vec<String> = (0..1000).map(|n| format!("tensor number {n}")).collect();
    let tensors: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"abcd"[..])).collect();
    fs::write(&path, safetensors(&tensors)).unwrap();
    let open = File::options().write(true).open(&path).unwrap();
    for time in 1..=3 {
        let held = calls.add(Rule::of(Call::Read).on("/segments/").skip(1).held());
        let asked = path.clone();
        let asking = std::thread::spawn(move || xattr::get(&asked, "user.tensorfs.tensors"));
        held.wait_for_waiting(1);
        for pid in readers(&mount) {
            kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        }
        drop(held);
        assert_eq!(asking.join().unwrap(), Err(nix::errno::Errno::EIO));
        assert_eq!(of_readers(&mount, "failed"), time);
    }
    let started = of_readers(&mount, "started");
    for _ in 0..5 {
        assert_eq!(xattr::get(&path, "user.tensorfs.tensors"), Err(nix::errno::Errno::EIO));
    }
    assert_eq!((of_readers(&mount, "started"), of_readers(&mount, "failed")), (started, 3));
    drop(open);
    mount.wait_for_seals(1);
    assert_eq!(get(&path, "state"), "sealed");
    // It was said to have none, for good.
    assert_eq!(xattr::get(&path, "user.tensorfs.tensors"), Err(nix::errno::Errno::EIO));
    mount.remount();
    assert_eq!(get(&path, "tensors"), "1000");
    let verified = || mount.tensorfs_ok(["verify".as_ref(), "--json".as_ref(), path.as_os_str()]);
    assert!(verified().contains("no reader survived it"), "{}", verified());
    mount.tensorfs_ok(["seal".as_ref(), "--again".as_ref(), path.as_os_str()]);
    assert!(!verified().contains("no reader survived it"), "{}", verified());
    assert_eq!((get(&path, "state"), get(&path, "tensors")), ("sealed".into(), "1000".into()));
    // Or until it changes.
    let bytes = fs::read(&path).unwrap();
    let changed = File::options().write(true).open(&path).unwrap();
    changed.write_all_at(&bytes, 0).unwrap();
    assert_eq!(get(&path, "tensors"), "1000");
}

/// Every sample of every format says through a reader what it says to whoever looks into it himself.
/// Proves T10.
fn what_is_in_small_files_is_said_by_readers_too(setup: Setup) {
    let mount = setup.mount();
    let mut count = 0;
    for entry in fs::read_dir(samples()).unwrap() {
        let entry = entry.unwrap();
        if !entry.file_type().unwrap().is_file() {
            continue;
        }
        let bytes = fs::read(entry.path()).unwrap();
        let found = tensorfs_formats::recognise(&&bytes[..], &mut |_| std::ops::ControlFlow::Continue(()));
        let path = mount.at(entry.file_name());
        File::create(&path).unwrap().write_all(&bytes).unwrap();
        assert_eq!(get(&path, "tensors"), found.tensors.to_string(), "{}", path.display());
        count += 1;
    }
    assert!(count > 5);
    assert_eq!(of_readers(&mount, "failed"), 0);
}

/// Fails for a process that could do more than a reader may.
fn is_locked_in(pid: i32) {
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap(), "tensorfs-reader\0");
    assert_eq!(status(pid, "Seccomp"), "2");
    assert_eq!(status(pid, "NoNewPrivs"), "1");
    assert_eq!(status(pid, "CapEff").trim_matches('0'), "");
    if is_root() {
        assert!(status(pid, "Uid").starts_with("65534"));
        let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let mut open: Vec<_> = open.map(|entry| fs::read_link(entry.unwrap().path()).unwrap()).collect();
        open.retain(|what| what != Path::new("/dev/null"));
        assert!(open.len() == 1 && open[0].to_str().unwrap().starts_with("socket:"), "{open:?}");
    }
}

/// Whoever maps a file that somebody cuts is ended by SIGBUS when he looks behind its end.
#[test]
fn commands_read_files_and_map_none() {
    let dir = scratch();
    let (path, other) = (dir.path().join("a.npy"), dir.path().join("other.npy"));
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({},), }}", 8 << 20);
    let header = format!("{header:<117}\n");
    let file = [b"\x93NUMPY\x01\0\x76\0", header.as_bytes(), &vec![7; 8 << 20]].concat();
    fs::write(&other, &file).unwrap();
    let calls = HostCalls::new();
    let commands: [(&str, &str, i32); 3] =
        [("stat", "array", 1), ("cat", "array", 1), ("diff", other.to_str().unwrap(), 2)];
    for (command, more, status_of_failure) in commands {
        fs::write(&path, &file).unwrap();
        let start = || {
            let mut started = tensorfs();
            started.arg(command).arg(&path).arg(more).stdout(Stdio::null()).stderr(Stdio::piped());
            calls.preload(&mut started);
            started.spawn().unwrap()
        };
        let counting = calls.add(Rule::of(Call::Read).below(&path));
        assert!(start().wait_with_output().unwrap().status.success(), "{command}");
        let reads = counting.arrived();
        assert!(reads > 4, "{command}: {reads}");
        drop(counting);
        let held = calls.add(Rule::of(Call::Read).below(&path).skip(reads / 2).held());
        let started = start();
        held.wait_for_waiting(1);
        for pid in children(started.id() as i32).into_iter().chain([started.id() as i32]) {
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
            assert!(maps.contains("[heap]") && !maps.contains(path.to_str().unwrap()), "{command}: {maps}");
        }
        File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
        drop(held);
        let output = started.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(status_of_failure), 1), "{command}: {said}");
    }
}

/// While a command looks into a file, there is a reader of its own, which is locked in; if that fails, so does the
/// command, in one line.
/// Proves P4.
#[test]
fn commands_have_files_looked_into_by_readers() {
    let name = "commands_have_files_looked_into_by_readers";
    if program("tensorfs-test-child").args(["locked", "what is missing"]).status().unwrap().code() != Some(0) {
        return skip(name, "the kernel cannot lock processes in");
    }
    let dir = scratch();
    let path = dir.path().join("a.npz");
    bomb_of(&path, 8 << 20);
    let calls = HostCalls::new();
    let listed = String::from_utf8(run(tensorfs().args(["tensors", "--json"]).arg(&path)).stdout).unwrap();
    let tensor = listed.lines().next().and_then(|line| serde_json::from_str::<serde_json::Value>(line).ok()).unwrap();
    assert_eq!(tensor["place"], "deflated");
    let tensor = tensor["name"].as_str().unwrap();
    let commands: [(&str, &[&str], i32); 4] =
        [("tensors", &[], 1), ("stat", &[tensor], 1), ("cat", &[tensor], 1), ("diff", &[path.to_str().unwrap()], 2)];
    for (command, more, status_of_failure) in commands {
        // Some bytes go with the question. Then it is asked what is in the file; the last reads are of what is decoded.
        let counting = calls.add(Rule::of(Call::Read).below(&path));
        let start = || {
            let mut started = tensorfs();
            started.arg(command).arg(&path).args(more).stdout(Stdio::null()).stderr(Stdio::piped());
            calls.preload(&mut started);
            started.spawn().unwrap()
        };
        assert!(start().wait_with_output().unwrap().status.success(), "{command}");
        let reads = counting.arrived();
        assert!(reads > 2, "{command}");
        drop(counting);
        for skipped in [1, reads - 1] {
            let held = calls.add(Rule::of(Call::Read).below(&path).skip(skipped).held());
            let started = start();
            held.wait_for_waiting(1);
            let readers = children(started.id() as i32);
            // What compares two tensors has one for each of them.
            assert!((1..=2).contains(&readers.len()), "{command}");
            for reader in readers {
                is_locked_in(reader);
                kill(Pid::from_raw(reader), Signal::SIGSEGV).unwrap();
            }
            drop(held);
            let output = started.wait_with_output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            let failed = format!("tensorfs: {}: the reader that looked into it ended (signal: ", path.display());
            assert!(said.starts_with(&failed) && said.lines().count() == 1, "{command}: {said}");
            assert_eq!(output.status.code(), Some(status_of_failure), "{command}");
        }
    }
}
