//! Another server on purpose: with another program, or with other options.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, sendmsg, socket,
};
use tensorfs_tests::{
    Call, HostCalls, Mount, Rule, Setup, at_work, is_root, on_mounts, other_program, place_of, wait_until,
};

on_mounts!(
    an_upgrade_is_not_noticed,
    an_upgrade_that_fails_goes_back,
    a_program_that_cannot_go_on_is_refused_beforehand,
    what_is_asked_during_an_upgrade_is_done_once,
    options_are_changed_by_a_remount,
    a_keeper_that_is_stopped_is_not_waited_for,
    only_whoever_mounted_upgrades,
    who_is_late_with_what_he_asks_for_hears_so,
    root_with_less_than_the_keeper_has_is_not_heard,
    without_a_keeper_there_is_no_upgrade,
    a_server_whose_keeper_died_is_watched_again,
    a_lock_that_names_another_server_is_followed_by_nobody,
    a_program_on_a_mount_serves_none,
    a_server_that_was_taken_over_has_no_say_in_its_keeper,
    what_is_no_program_is_not_waited_for,
    a_server_that_is_stopped_is_exchanged,
    what_the_next_server_would_not_find_is_missed_beforehand,
    a_pool_that_only_root_reaches_is_upgraded,
);

fn kept(setup: Setup) -> Mount {
    setup.mount_with(["-o", "keeper"]).mount()
}

/// The program with something else in it, of the same length.
fn changed(mount: &Mount, name: &str, from: &str, to: &str) -> PathBuf {
    other_program(&mount.host().join("programs"), name, from, to)
}

fn upgrade(mount: &Mount, to: Option<&Path>) -> Output {
    let mut command = mount.program();
    command.arg("upgrade").arg(mount.path());
    if let Some(to) = to {
        command.arg("--to").arg(to);
    }
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

fn version(mount: &Mount) -> String {
    // What this program says is not what is asked for.
    let text = fs::read_to_string(mount.at(".tensorfs/info")).unwrap();
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    info["version"].as_str().unwrap().to_owned()
}

/// Proves K7.
fn an_upgrade_is_not_noticed(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let own = version(&mount);
    let other = own.replace('.', "-");
    let newer = changed(&mount, "newer", &own, &other);
    let older = PathBuf::from(tensorfs_tests::tensorfs().get_program());
    let file = File::options().read(true).write(true).create_new(true).open(mount.at("f")).unwrap();
    let mut appended = OpenOptions::new().append(true).create(true).open(mount.at("appended")).unwrap();
    file.set_len(8192).unwrap();
    // SAFETY: nobody cuts the file.
    let mut mapped = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
    thread::scope(|scope| {
        let dir = mount.path().to_owned();
        let busy = scope.spawn(move || at_work(&dir));
        for round in 0..6_u8 {
            let (to, expected) = if round % 2 == 0 { (&newer, &other) } else { (&older, &own) };
            let done = upgrade(&mount, Some(to));
            assert!(done.status.success(), "{}{}", said(&done), mount.log());
            assert_eq!(version(&mount), *expected);
            file.write_all_at(&[round; 100], 4096).unwrap();
            appended.write_all(&[round]).unwrap();
            assert_eq!(mapped[4096], round);
            mapped[usize::from(round)] = round;
            file.sync_all().unwrap();
        }
        fs::write(mount.at("stop"), "").unwrap();
        assert!(busy.join().unwrap() > 0);
    });
    let info = mount.info();
    assert_eq!((&info["keeper"]["takeovers"], &info["keeper"]["reason"]), (&6.into(), &"upgrade".into()), "{info}");
    // The log said that the servers were killed, as a file was open to write.
    let log = mount.log();
    assert!(!log.contains("was killed") && !log.contains("programs of the old mount"), "{log}");
    // Whoever dies is replaced by one of the program that served last.
    assert!(upgrade(&mount, Some(&newer)).status.success());
    mount.adopt();
    mount.kill_server();
    assert_eq!(version(&mount), other);
    drop((file, appended, mapped));
    mount.umount();
    let check = mount.tensorfs(["check", "--data", mount.pool().to_str().unwrap()]);
    assert!(check.status.success(), "{}", said(&check));
    mount.mount();
    assert_eq!(fs::read(mount.at("appended")).unwrap(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(fs::read(mount.at("f")).unwrap()[..6], [0, 1, 2, 3, 4, 5]);
}

/// Proves K7.
fn an_upgrade_that_fails_goes_back(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let own = version(&mount);
    let open = File::options().read(true).write(true).create_new(true).open(mount.at("f")).unwrap();
    open.write_all_at(b"text", 0).unwrap();
    // It says that it would serve, and then cannot.
    let late = changed(&mount, "late", "/proc/self/task", "/proc/self/tusk");
    // It knows nothing of the pool's format.
    let foreign = changed(&mount, "foreign", "TENSORFS", "TENSORSF");
    let script = mount.host().join("script");
    fs::write(&script, "#!/bin/sh\necho would serve\n").unwrap();
    for (program, why) in [
        (Path::new("/bin/true"), "it does not say that it could serve"),
        (Path::new("/bin/false"), "it does not say that it could serve"),
        (Path::new("/bin/sleep"), "unrecognized option"),
        (&script, "not a program"),
        (mount.path(), "not a program"),
        (Path::new("/no/such/program"), "No such file"),
        (&foreign, "no superblock"),
        (&late, "does not serve"),
    ] {
        let done = upgrade(&mount, Some(program));
        let said = said(&done);
        assert!(!done.status.success() && said.contains(why), "{}: {said}", program.display());
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(version(&mount), own);
        open.sync_all().unwrap();
        assert_eq!(fs::read(mount.at("f")).unwrap(), b"text");
    }
    mount.adopt();
    drop(open);
    mount.umount();
    assert_eq!(mount.info()["state"], "clean");
    mount.mount();
}

/// What a server of this mount leaves to the next one.
fn left(mount: &Mount) -> File {
    let server = mount.info()["pid"].as_i64().unwrap();
    let descriptors = fs::read_dir(format!("/proc/{server}/fd")).unwrap().flatten();
    let is_it =
        |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to.starts_with("/memfd:tensorfs-handover (deleted)"));
    let path = descriptors.map(|entry| entry.path()).find(is_it).expect("what it leaves");
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// One of another format than what the server before leaves, and one that would answer the kernel in another way: the
/// server that serves does not even leave.
///
/// Proves K7.
fn a_program_that_cannot_go_on_is_refused_beforehand(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let before = mount.info();
    let open = File::options().read(true).write(true).create_new(true).open(mount.at("f")).unwrap();
    let refused = |program: Option<&Path>, why: &str| {
        let done = upgrade(&mount, program);
        let said = said(&done);
        assert!(!done.status.success() && said.contains(why), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let now = mount.info();
        assert_eq!((&now["pid"], &now["keeper"]["takeovers"]), (&before["pid"], &0.into()), "{now}");
        open.write_all_at(b"text", 0).unwrap();
    };
    let stranger = changed(&mount, "stranger", "tensorfs handover ", "tensorfs stranger ");
    refused(Some(&stranger), "leaves is \"tensorfs handover 1\", and this program reads \"tensorfs stranger 1\"");
    let left = left(&mount);
    let mut head = vec![0; 4096];
    left.read_exact_at(&mut head, 0).unwrap();
    let text = String::from_utf8(head.clone()).unwrap();
    // As if the first server had answered in another way.
    let other = text.replace("\"answer\":[", "\"answer\":[1,");
    left.write_all_at(&other.as_bytes()[..4096], 0).unwrap();
    refused(None, "does not speak with the kernel as the one before did");
    left.write_all_at(b"{nothing", 0).unwrap();
    refused(None, "is none");
    left.write_all_at(&head, 0).unwrap();
    assert!(upgrade(&mount, None).status.success());
    mount.adopt();
    // Nor is one whose keeper has died left to such a program.
    mount.kill_keeper();
    wait_until("word of the death", || mount.info()["keeper"]["pid"].is_null());
    let server = mount.info()["pid"].clone();
    // Who mounts it once more hears of that, too.
    let again = mount.try_mount().0;
    let said_again = said(&again);
    assert!(!again.status.success() && said_again.contains("nobody keeps watch over the server"), "{said_again}");
    assert_eq!(said_again.lines().count(), 1, "{said_again}");
    let done = std::process::Command::new(&stranger).arg("upgrade").arg(mount.path()).output().unwrap();
    if is_root() {
        assert!(said(&done).contains("this program reads \"tensorfs stranger 1\""), "{}", said(&done));
        assert_eq!(mount.info()["pid"], server);
    }
    let done = mount.program().arg("upgrade").arg(mount.path()).arg("--log").arg(mount.log_path()).output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    mount.adopt();
    drop(open);
    mount.umount();
}

/// What the server does not end in time, and what comes meanwhile, the next one does.
///
/// Proves K3, K7.
fn what_is_asked_during_an_upgrade_is_done_once(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = kept(setup.host_calls(&calls));
    if mount.is_plain() {
        return;
    }
    for after in [false, true] {
        let name = format!("made {after}");
        let rule = Rule::of(Call::Write).on("/log").times(1);
        let held = calls.add(if after { rule.after().held() } else { rule.held() });
        let dir = mount.at(&name);
        let maker = thread::spawn(move || fs::create_dir(dir));
        held.wait_for_waiting(1);
        let done = upgrade(&mount, None);
        assert!(done.status.success(), "{}{}", said(&done), mount.log());
        maker.join().unwrap().unwrap();
        assert!(mount.at(&name).is_dir());
        drop(held);
    }
    mount.adopt();
    mount.umount();
}

fn remount(mount: &Mount, options: &str) -> Output {
    mount
        .program()
        .args(["mount", "-o", &format!("remount,{options}")])
        .arg(mount.pool())
        .arg(mount.path())
        .output()
        .unwrap()
}

/// Proves K7.
fn options_are_changed_by_a_remount(setup: Setup) {
    if !is_root() {
        return setup.skip("only root can remount");
    }
    let mut mount = setup.mount_with(["-o", "keeper,commit=3"]).mount();
    if mount.is_plain() {
        return;
    }
    let open = File::create(mount.at("f")).unwrap();
    let before = mount.info();
    let same = remount(&mount, "commit=3");
    assert!(same.status.success() && same.stderr.is_empty(), "{}", said(&same));
    assert_eq!(mount.info()["pid"], before["pid"], "nothing is to be changed");
    for other in ["layout=other", "watchdog=5", "nokeeper", "privileged"] {
        let refused = remount(&mount, &format!("commit=7,{other}"));
        let expected = format!("a remount cannot change: {}; ", other.split('=').next().unwrap());
        assert!(!refused.status.success() && said(&refused).contains(&expected), "{}", said(&refused));
    }
    assert_eq!(mount.info()["commit_seconds"].as_f64(), Some(3.0));
    let done = remount(&mount, "commit=7,threads=3,durability=close");
    assert!(done.status.success() && done.stderr.is_empty(), "{}", said(&done));
    let info = mount.info();
    assert_eq!((&info["commit_seconds"], &info["durability"]), (&7.0.into(), &"close".into()), "{info}");
    // What is not said stays.
    assert!(remount(&mount, "latency=off").status.success());
    let info = mount.info();
    assert_eq!((&info["commit_seconds"], &info["durability"]), (&7.0.into(), &"close".into()), "{info}");
    assert_eq!(info["keeper"]["takeovers"], 2);
    mount.adopt();
    mount.kill_server();
    assert_eq!(mount.info()["commit_seconds"].as_f64(), Some(7.0));
    drop(open);
}

/// What a keeper answers who was not told in time what for.
const TOO_LATE: &[u8] = b"=it has not heard in time what for";

/// One who is about to ask a keeper for something.
fn asker(keeper: i64) -> OwnedFd {
    let kind = (AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
    let asker = socket(kind.0, kind.1, kind.2, None).unwrap();
    let address = UnixAddr::new_abstract(format!("tensorfs-keeper/{keeper}").as_bytes()).unwrap();
    connect(asker.as_raw_fd(), &address).unwrap();
    asker
}

/// What a keeper answers.
fn ask(keeper: i64, message: &[u8], program: &File) -> Vec<u8> {
    let asker = asker(keeper);
    let numbers = [program.as_raw_fd()];
    let with = [ControlMessage::ScmRights(&numbers)];
    // It may have hung up already.
    let _ = sendmsg::<()>(asker.as_raw_fd(), &[IoSlice::new(message)], &with, MsgFlags::MSG_NOSIGNAL, None);
    answer(&asker)
}

fn answer(asker: &OwnedFd) -> Vec<u8> {
    let mut answer = vec![0; 1000];
    let len = recv(asker.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap_or(0);
    answer.truncate(len);
    answer
}

/// On a busy machine it may take longer than a keeper waits, which has a server to watch: that is no refusal.
///
/// Proves K7.
fn who_is_late_with_what_he_asks_for_hears_so(setup: Setup) {
    let mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let before = mount.info();
    let asker = asker(before["keeper"]["pid"].as_i64().unwrap());
    assert_eq!(answer(&asker), TOO_LATE);
    assert_eq!((&mount.info()["pid"], &mount.info()["keeper"]), (&before["pid"], &before["keeper"]));
    assert!(mount.log().contains("it has not heard in time what for"), "{}", mount.log());
    assert_eq!(upgrade(&mount, None).status.code(), Some(0));
    // That one was meant to leave is told as it was.
    let told = mount.tensorfs_ok(["info".as_ref(), mount.path().as_os_str()]);
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("taken over once, last after upgrade") && !told.contains("was killed"), "{told}");
}

/// Proves K7.
fn only_whoever_mounted_upgrades(setup: Setup) {
    if !is_root() {
        return setup.skip("only root becomes somebody else");
    }
    let mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let before = mount.info();
    let program = changed(&mount, "program", "tensorfs handover ", "tensorfs handover ");
    let keeper = before["keeper"]["pid"].as_i64().unwrap();
    let stranger = thread::spawn({
        let program = File::open(&program).unwrap();
        move || {
            // SAFETY: takes integers alone. The system call is one of this thread, not of the process.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 1234, 1234, 1234) }, 0);
            ask(keeper, b"p", &program)
        }
    });
    assert_eq!(stranger.join().unwrap(), b"");
    // Nor does the keeper mind what makes no sense, or who says nothing.
    for message in [&b""[..], b"x", b"po", &[b'p'; 60_000], &[b'p'; 100_000], b"o\xff", b"o\0", b"ono-such-option"] {
        assert_ne!(ask(keeper, message, &File::open(&program).unwrap()), b"=");
    }
    wait_until("word of the stranger", || mount.log().contains("may not ask for another server"));
    assert_eq!(mount.info()["pid"], before["pid"]);
    assert_eq!(upgrade(&mount, Some(&program)).status.code(), Some(0));
}

/// Says `p` to a keeper, with a program, and prints the answer.
const ASKING: &str = "
import array, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asker:
    asker.connect('\\0tensorfs-keeper/' + sys.argv[1])
    program = array.array('i', [os.open(sys.argv[2], os.O_RDONLY)])
    try:
        asker.sendmsg([b'p'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, program)])
    except BrokenPipeError:
        pass
    sys.stdout.buffer.write(asker.recv(1000))
";

/// As [`ASKING`], with a filter of system calls that lets all pass.
const FILTERED: &str = "
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))
program = struct.pack('HxxxxxxP', 1, ctypes.addressof(code))
assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
";

/// As root of a container that has the network of its host, or in a sandbox. The keeper would execute what it is given.
///
/// Proves K7.
fn root_with_less_than_the_keeper_has_is_not_heard(setup: Setup) {
    if !is_root() {
        return setup.skip("only root is called root");
    }
    let mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let before = mount.info();
    let program = changed(&mount, "program", "tensorfs handover ", "tensorfs handover ");
    let keeper = before["keeper"]["pid"].to_string();
    let status = fs::read_to_string(format!("/proc/{keeper}/status")).unwrap();
    let has_capabilities = status.lines().any(|line| line.starts_with("CapPrm:") && line.contains(['f', '1']));
    let ways: [(&[&str], &str); 6] = [
        (&["unshare", "--user", "--map-root-user", "--pid", "--fork"], "process namespace"),
        (&["unshare", "--pid", "--fork"], "process namespace"),
        (&["unshare", "--user", "--map-root-user"], "user namespace"),
        (&["setpriv", "--bounding-set=-all", "--inh-caps=-all"], "capabilities"),
        (&["env"], "seccomp"),
        (&["setpriv", "--no-new-privs"], "no_new_privs"),
    ];
    // What the keeper has not, or is itself, nobody lacks.
    let is_itself = |line: &str| status.lines().any(|one| one == line);
    for (way, why) in ways {
        let has_it = match why {
            "capabilities" => has_capabilities,
            "seccomp" => is_itself("Seccomp:\t0"),
            "no_new_privs" => is_itself("NoNewPrivs:\t0"),
            _ => true,
        };
        if !has_it {
            continue;
        }
        let asking = if why == "seccomp" { format!("{FILTERED}{ASKING}") } else { ASKING.to_owned() };
        let mut command = Command::new(way[0]);
        command.args(&way[1..]).args(["python3", "-c", &asking, &keeper]).arg(&program);
        // A machine may be too busy for it.
        let mut texts = (0..20).map(|_| said(&command.output().unwrap()));
        let text = texts.find(|text| text.as_bytes() != TOO_LATE).unwrap();
        assert!(text.starts_with("=may not ask for another server: ") && text.contains(why), "{way:?}: {text}");
        assert!(mount.log().contains(text.strip_prefix("=may not ask for another server: ").unwrap()), "{way:?}");
    }
    assert_eq!((&mount.info()["pid"], &mount.info()["keeper"]), (&before["pid"], &before["keeper"]));
    assert_eq!(upgrade(&mount, Some(&program)).status.code(), Some(0));
}

/// Proves K7.
fn without_a_keeper_there_is_no_upgrade(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    assert!(said(&upgrade(&mount, None)).contains("it is mounted without a keeper"));
    let pool = mount.pool().to_owned();
    mount.umount();
    let output = mount.program().arg("upgrade").arg(&pool).output().unwrap();
    assert!(!output.status.success());
    mount.mount();
}

/// Proves K4, K7.
fn a_server_whose_keeper_died_is_watched_again(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let mut open = OpenOptions::new().append(true).create(true).open(mount.at("f")).unwrap();
    for round in 0..3_u8 {
        mount.kill_keeper();
        wait_until("word of the death", || mount.info()["keeper"]["pid"].is_null());
        let before = mount.info()["pid"].as_i64();
        open.write_all(&[round]).unwrap();
        let done =
            mount.program().arg("upgrade").arg(mount.path()).arg("--log").arg(mount.log_path()).output().unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{}{}", said(&done), mount.log());
        mount.adopt();
        assert_ne!(mount.info()["pid"].as_i64(), before);
        let health = mount.tensorfs(["health", mount.path().to_str().unwrap()]);
        assert!(!said(&health).contains("keeper"), "{}", said(&health));
        mount.kill_server();
        open.write_all(&[round]).unwrap();
        assert_eq!(fs::read(mount.at("f")).unwrap().len(), 2 * usize::from(round) + 2);
    }
    drop(open);
    let keeper = mount.info()["keeper"]["pid"].as_i64().unwrap();
    mount.umount();
    wait_until("the end of the keeper", || !Path::new(&format!("/proc/{keeper}")).exists());
    assert_eq!(mount.info()["state"], "clean");
    mount.mount();
}

/// The pool's owner writes into the lock whom he likes.
///
/// Proves K7.
fn a_lock_that_names_another_server_is_followed_by_nobody(setup: Setup) {
    let (mount, other) = (kept(setup.clone()), kept(setup));
    if mount.is_plain() {
        return;
    }
    let lock = mount.pool().join("lock");
    let own = fs::read_to_string(&lock).unwrap();
    let (pid, victim) = (mount.info()["pid"].to_string(), other.info());
    assert!(own.contains(&pid), "{own}");
    fs::write(&lock, own.replacen(&pid, &victim["pid"].to_string(), 1)).unwrap();
    let refused = upgrade(&mount, None);
    assert!(!refused.status.success() && said(&refused).contains("does not serve"), "{}", said(&refused));
    if is_root() {
        let refused = remount(&mount, "durability=close,commit=900");
        assert!(!refused.status.success() && said(&refused).contains("does not serve"), "{}", said(&refused));
    }
    assert_eq!((&other.info()["pid"], &other.info()["durability"]), (&victim["pid"], &victim["durability"]));
    fs::write(&lock, own).unwrap();
    assert_eq!(upgrade(&mount, None).status.code(), Some(0));
}

/// The keeper would wait for the server that it is to exchange.
///
/// Proves K7.
fn a_program_on_a_mount_serves_none(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let program = mount.at("program");
    fs::copy(tensorfs_tests::tensorfs().get_program(), &program).unwrap();
    let refused = upgrade(&mount, Some(&program));
    assert!(!refused.status.success() && said(&refused).contains("copy it elsewhere"), "{}", said(&refused));
    fs::remove_file(program).unwrap();
    assert_eq!(upgrade(&mount, None).status.code(), Some(0));
    mount.adopt();
}

/// Where a process has its command line: `arg_start` and `arg_end`, fields 48 and 49 of proc_pid_stat(5).
fn words_of(pid: i32) -> (u64, u64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 1..].split_whitespace().collect();
    (fields[45].parse().unwrap(), fields[46].parse().unwrap())
}

/// It has its own memory, and whatever it says of itself: a file of root's to log to, the pool of somebody else.
///
/// Proves P5, K7.
fn a_server_that_was_taken_over_has_no_say_in_its_keeper(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() || !is_root() {
        return;
    }
    let log = mount.log_path();
    let victim = log.with_file_name("victim.txt");
    assert_eq!(victim.as_os_str().len(), log.as_os_str().len());
    fs::write(&victim, "root's\n").unwrap();
    let mut open = OpenOptions::new().append(true).create(true).open(mount.at("f")).unwrap();
    mount.kill_keeper();
    wait_until("word of the death", || mount.info()["keeper"]["pid"].is_null());
    let server = mount.pid().unwrap();
    let (start, end) = words_of(server);
    let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{server}/mem")).unwrap();
    let mut words = vec![0; (end - start) as usize];
    memory.read_exact_at(&mut words, start).unwrap();
    let at = place_of(&words, log.as_os_str().as_encoded_bytes()).expect("where it logs");
    memory.write_all_at(victim.as_os_str().as_encoded_bytes(), start + at as u64).unwrap();
    let at = place_of(&words, mount.pool().as_os_str().as_encoded_bytes()).expect("its pool");
    memory.write_all_at(&vec![b'x'; mount.pool().as_os_str().len()], start + at as u64).unwrap();
    let done = upgrade(&mount, None);
    assert!(done.status.success(), "{}{}", said(&done), mount.log());
    assert!(said(&done).contains("for which nobody vouches"), "{}", said(&done));
    mount.adopt();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "root's\n");
    open.write_all(b"goes on").unwrap();
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"goes on");
    assert_ne!(mount.pid().unwrap(), server);
}

/// Proves K7.
fn a_keeper_that_is_stopped_is_not_waited_for(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let keeper = mount.info()["keeper"]["pid"].as_i64().unwrap() as i32;
    let pid = mount.pid();
    // SAFETY: plain system call. The pid was asked of the server that runs.
    let send = |signal| assert_eq!(unsafe { libc::kill(keeper, signal) }, 0);
    send(libc::SIGSTOP);
    let refused = upgrade(&mount, None);
    send(libc::SIGCONT);
    assert!(!refused.status.success() && said(&refused).contains("it is stopped"), "{}", said(&refused));
    // What nobody waits for any more is not done either.
    wait_until("the keeper", || mount.log().contains("waits no more"));
    assert_eq!(mount.info()["pid"].as_i64().map(|pid| pid as i32), pid);
    assert_eq!(upgrade(&mount, None).status.code(), Some(0));
    mount.adopt();
}

/// A FIFO that nobody writes to, and what may not be run.
///
/// Proves K7.
fn what_is_no_program_is_not_waited_for(setup: Setup) {
    let mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let fifo = mount.host().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR).unwrap();
    let text = changed(&mount, "text", "TENSORFS", "TENSORFS");
    fs::set_permissions(&text, PermissionsExt::from_mode(0o644)).unwrap();
    let before = mount.info()["pid"].clone();
    for other in [&fifo, &text, Path::new("/dev/null"), Path::new("/")] {
        let refused = upgrade(&mount, Some(other));
        let said = said(&refused);
        assert!(!refused.status.success() && said.contains("not a program"), "{}: {said}", other.display());
    }
    assert_eq!(mount.info()["pid"], before);
}

/// A process that is stopped until this goes.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Self {
        // SAFETY: plain system call. The pid was asked of the server that runs.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: takes integers alone; where the server was exchanged meanwhile there is no such process, and that is
        // as good.
        unsafe { libc::kill(self.0, libc::SIGCONT) };
    }
}

/// Nothing is asked of the mount, which would be answered when it goes on.
///
/// Proves K7.
fn a_server_that_is_stopped_is_exchanged(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let before = mount.pid().unwrap();
    let stopped = Stopped::new(before);
    let mut asks = mount.program().arg("upgrade").arg(mount.path()).spawn().unwrap();
    wait_until("another server", || asks.try_wait().unwrap().is_some());
    assert!(asks.wait().unwrap().success());
    mount.adopt();
    assert_ne!(mount.pid(), Some(before));
    drop(stopped);
}

/// A server has its pool open, and goes on where the owner has put something else in the place of what the next one
/// would open: that is said, and nothing changes.
///
/// Proves K7.
fn what_the_next_server_would_not_find_is_missed_beforehand(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let before = mount.info();
    let elsewhere = mount.host().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for name in ["segments", "quarantine", "lock"] {
        let (path, kept) = (mount.pool().join(name), mount.pool().join("kept"));
        fs::rename(&path, &kept).unwrap();
        for kind in ["nothing", "a link", "something else", "another user's"] {
            match kind {
                "a link" => std::os::unix::fs::symlink(&elsewhere, &path).unwrap(),
                "something else" if name == "lock" => fs::create_dir(&path).unwrap(),
                "something else" => fs::write(&path, "").unwrap(),
                "another user's" if is_root() => {
                    if name == "lock" { fs::write(&path, "") } else { fs::create_dir(&path) }.unwrap();
                    std::os::unix::fs::chown(&path, Some(54_321), None).unwrap();
                }
                _ => {}
            }
            let done = upgrade(&mount, None);
            let said = said(&done);
            // Of the lock the command knows before the keeper does.
            let named = if name == "lock" { mount.pool() } else { &path };
            assert!(!done.status.success() && said.contains(named.to_str().unwrap()), "{name}, {kind}: {said}");
            assert_eq!(said.lines().count(), 1, "{name}, {kind}: {said}");
            fs::write(mount.at(format!("{name}, {kind}")), [1; 100_000]).unwrap();
            // Whoever asks by a signal hears it from the log.
            let refusals = || mount.log().matches("not leaving to another server: ").count();
            let heard = refusals();
            let server = nix::unistd::Pid::from_raw(mount.pid().unwrap());
            nix::sys::signal::kill(server, nix::sys::signal::Signal::SIGQUIT).unwrap();
            wait_until("a refusal", || refusals() > heard);
            let info: serde_json::Value =
                serde_json::from_str(&fs::read_to_string(mount.at(".tensorfs/info")).unwrap()).unwrap();
            assert_eq!((&info["pid"], &info["keeper"]["takeovers"]), (&before["pid"], &0.into()), "{info}");
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
        }
        fs::rename(&kept, &path).unwrap();
    }
    let done = upgrade(&mount, None);
    assert!(done.status.success(), "{}", said(&done));
    mount.adopt();
    for entry in fs::read_dir(mount.path()).unwrap() {
        assert_eq!(fs::read(entry.unwrap().path()).unwrap(), [1; 100_000]);
    }
    mount.umount();
    let check = mount.tensorfs(["check", "--data", mount.pool().to_str().unwrap()]);
    assert!(check.status.success(), "{}", said(&check));
}

/// Its server has given up root's rights, and does not reach it by its path any more.
///
/// Proves K7.
fn a_pool_that_only_root_reaches_is_upgraded(setup: Setup) {
    if !is_root() {
        return setup.skip("this takes root");
    }
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    mount.umount();
    let pool = mount.pool().to_owned();
    let chown = std::process::Command::new("chown").args(["-R", "54321:54321"]).arg(&pool).status().unwrap();
    assert!(chown.success());
    fs::set_permissions(pool.parent().unwrap(), fs::Permissions::from_mode(0o700)).unwrap();
    mount.mount();
    fs::write(mount.at("f"), [1; 100_000]).unwrap();
    let before = mount.pid();
    let done = upgrade(&mount, None);
    assert!(done.status.success(), "{}", said(&done));
    mount.adopt();
    assert!(mount.pid() != before && !mount.log().contains("not leaving to another server"), "{}", mount.log());
    assert_eq!(fs::read(mount.at("f")).unwrap(), [1; 100_000]);
    mount.umount();
}
