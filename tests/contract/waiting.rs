//! Who waits for whom: calls of the host are held, and operations that have nothing to do with them go on.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tensorfs_tests::{Call, HostCalls, Injected, Mount, Passthrough, Rule, Setup, on_mounts, wait_until, xattr};

on_mounts!(
    operations_on_other_files_go_on_while_calls_of_the_host_are_held,
    operations_on_other_files_go_on_near_the_limit_while_calls_of_the_host_are_held,
    operations_on_other_files_go_on_beside_a_keeper_while_calls_of_the_host_are_held,
    whoever_writes_near_the_limit_waits_for_no_call_on_another_file,
    who_writes_in_place_near_the_limit_waits_for_nothing_that_is_removed,
    a_segment_that_the_kernel_gets_late_leaves_passthrough_as_it_is,
    operations_go_on_while_more_files_are_slow_than_there_are_threads,
    operations_go_on_while_one_user_has_more_writes_that_wait_than_is_kept,
    operations_go_on_while_sealed_files_are_thawed,
    operations_go_on_while_a_close_that_commits_waits_for_the_disk,
    files_are_made_by_the_thousand_while_a_commit_waits_for_the_disk,
    operations_go_on_while_a_file_is_moved_to_another_tier,
    operations_go_on_while_the_placement_map_is_stored,
    operations_go_on_while_old_versions_are_set_aside,
    who_records_nothing_goes_on_while_the_log_is_written,
    a_server_ends_when_the_log_has_taken_the_last_of_it,
    nobody_finds_the_log_full_while_it_is_made_longer,
    who_replaces_what_the_log_holds_goes_on_while_it_is_made_longer,
    a_log_is_cleaned_below_a_directory_that_was_moved_while_it_is_made_longer,
    a_log_has_room_ahead_for_who_makes_names_while_it_is_made_longer,
    removing_a_file_waits_for_nothing_that_is_done_with_it,
    removing_a_file_does_not_wait_for_its_sealing,
    a_directory_is_synced_while_the_host_removes_a_segment,
    a_directory_is_listed_while_the_host_says_nothing_of_files_in_it,
    what_is_open_looks_the_same_before_and_after_it_was_listed,
);

/// Nobody waits so long for a machine that is busy, nor for its disk: who waits for what is held waits for ever.
const PATIENCE: Duration = Duration::from_secs(300);
/// At one time.
pub(crate) const MANY: usize = 8;
/// Larger than what is committed by value.
pub(crate) const SIZE: usize = 100_000;

/// An operation, and the call of the host in it that is held.
pub(crate) struct Case {
    pub name: &'static str,
    pub call: Call,
    /// With the path of a file, and the number of the one who does it.
    pub act: fn(&Path, usize),
    /// Only in this mode is the call made.
    pub only: Option<Passthrough>,
    /// It changes names: in its directory the kernel has others wait.
    names: bool,
    /// Calls on what has this in its path.
    pub on: &'static str,
}

const fn case(name: &'static str, call: Call, act: fn(&Path, usize)) -> Case {
    Case { name, call, act, only: None, names: false, on: "/segments/" }
}

const fn in_server(name: &'static str, call: Call, act: fn(&Path, usize)) -> Case {
    Case { only: Some(Passthrough::Off), ..case(name, call, act) }
}

const fn of_names(name: &'static str, call: Call, act: fn(&Path, usize)) -> Case {
    Case { names: true, ..case(name, call, act) }
}

pub(crate) const CASES: [Case; 23] = [
    case("open to read", Call::Open, |path, _| assert_eq!(fs::read(path).unwrap().len(), SIZE)),
    case("open to write", Call::Open, |path, _| drop(writer(path))),
    case("open, where the kernel must know the segment", Call::Fstat, |path, _| drop(File::open(path).unwrap())),
    Case {
        only: Some(Passthrough::On),
        ..case("open, giving it to the kernel", Call::Backing, |path, _| drop(File::open(path).unwrap()))
    },
    case("O_TRUNC, asking for a lease", Call::Lease, |path, _| drop(File::create(path).unwrap())),
    case("O_TRUNC", Call::Times, |path, _| drop(File::create(path).unwrap())),
    case("truncate", Call::Ftruncate, |path, who| writer(path).set_len(10 + who as u64).unwrap()),
    case("truncate, while it is committed", Call::Fdatasync, |path, who| {
        writer(path).set_len(10 + who as u64).unwrap()
    }),
    case("allocate", Call::Fallocate, |path, _| fallocate(&writer(path), 0)),
    case("punch", Call::Fallocate, |path, _| fallocate(&writer(path), PUNCH)),
    case("punch, while it is committed", Call::Fdatasync, |path, _| fallocate(&writer(path), PUNCH)),
    case("set times", Call::Times, |path, _| writer(path).set_modified(std::time::UNIX_EPOCH).unwrap()),
    case("fsync", Call::Fdatasync, |path, _| {
        let file = writer(path);
        file.write_all_at(b"new", 0).unwrap();
        file.sync_all().unwrap();
    }),
    case("close", Call::Fstat, |path, _| writer(path).write_all_at(b"new", 0).unwrap()),
    in_server("read", Call::Read, |path, _| assert!(File::open(path).unwrap().read_at(&mut [0; 4096], 0).unwrap() > 0)),
    in_server("write", Call::Write, |path, _| writer(path).write_all_at(b"new", 0).unwrap()),
    in_server("append", Call::Write, |path, _| {
        OpenOptions::new().append(true).open(path).unwrap().write_all(b"new").unwrap();
    }),
    in_server("seek", Call::Seek, |path, _| {
        // SAFETY: takes integers alone.
        unsafe { libc::lseek(File::open(path).unwrap().as_raw_fd(), 0, libc::SEEK_DATA) };
    }),
    Case {
        on: "",
        ..case("statfs", Call::Statfs, |path, _| assert!(nix::sys::statvfs::statvfs(path).unwrap().blocks() > 0))
    },
    of_names("copy", Call::Copy, |path, who| {
        assert_eq!(fs::copy(path, path.with_file_name(format!("copied-by-{who}"))).unwrap(), SIZE as u64);
    }),
    // It is of a spare segment that times are set.
    of_names(CREATE, Call::Times, |path, who| {
        fs::write(path.with_file_name(format!("made-by-{who}")), "").unwrap();
    }),
    of_names("remove, and sync the directory", Call::Unlink, |path, _| {
        // Of many who remove one file all but one come late.
        let _ = fs::remove_file(path);
        File::open(path.parent().unwrap()).unwrap().sync_all().unwrap();
    }),
    of_names("rename what is written", Call::Fstat, |path, who| {
        let new = path.with_file_name(format!("written-by-{who}"));
        let mut file = File::create(&new).unwrap();
        file.write_all(b"new").unwrap();
        fs::rename(&new, path.with_file_name(format!("renamed-by-{who}"))).unwrap();
    }),
];

pub(crate) const CREATE: &str = "create";
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

pub(crate) fn writer(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn fallocate(file: &File, mode: i32) {
    // SAFETY: takes integers alone.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, 4096) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Files, each in a directory of its own, that are committed.
fn files(mount: &Mount, name: &str, count: usize) -> Vec<PathBuf> {
    let make = |n: usize| {
        let dir = mount.at(format!("{name}-{n}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("f"), vec![7; SIZE]).unwrap();
        dir.join("f")
    };
    let files = (0..count).map(make).collect();
    mount.sync();
    files
}

/// Waits until there is a segment that was made ahead, and another one that may be just about to be.
pub(crate) fn wait_for_spares(mount: &Mount) {
    let count = |info: &Value, name: &str| info["counters"][name].as_u64().unwrap();
    mount.wait_for("spares", |info| count(info, "spares_made") > count(info, "spares_used") + 1);
}

/// What has nothing to do with any of the files that are slow.
pub(crate) fn others(mount: &Mount) -> impl Fn() + Send + 'static {
    let dir = mount.at("others");
    fs::create_dir(&dir).unwrap();
    for name in ["read", "written"] {
        fs::write(dir.join(name), vec![7; SIZE]).unwrap();
    }
    // Whoever seals one of them would be held in the place of the one who is to be.
    mount.wait_for_seals(2);
    let (root, open) = (mount.path().to_owned(), writer(&dir.join("written")));
    // Voiding its seals waits for the log.
    open.write_all_at(b"first", 0).unwrap();
    move || {
        fs::create_dir(dir.join("made")).unwrap();
        fs::remove_dir(dir.join("made")).unwrap();
        assert_eq!(fs::metadata(dir.join("read")).unwrap().len(), SIZE as u64);
        assert_eq!(fs::read(dir.join("read")).unwrap().len(), SIZE);
        open.write_all_at(b"more", 0).unwrap();
        fs::write(dir.join("new"), "new").unwrap();
        fs::rename(dir.join("new"), dir.join("newer")).unwrap();
        xattr::set(&dir.join("newer"), "user.a", b"b", 0).unwrap();
        fs::remove_file(dir.join("newer")).unwrap();
        for entry in fs::read_dir(&root).unwrap() {
            assert!(entry.unwrap().metadata().unwrap().nlink() > 0);
        }
    }
}

/// How long it took; nothing if it took too long.
fn in_time(act: impl FnOnce() + Send + 'static) -> Option<Duration> {
    let (tell, hear) = channel();
    let begun = Instant::now();
    thread::spawn(move || {
        act();
        let _ = tell.send(begun.elapsed());
    });
    hear.recv_timeout(PATIENCE).ok()
}

/// Waits until something is held, and then until no more comes.
pub(crate) fn wait_for_held(held: &Injected, most: usize) {
    held.wait_for_waiting(1);
    let begun = Instant::now();
    while held.waiting() < most as u64 && begun.elapsed() < Duration::from_millis(200) {
        thread::sleep(Duration::from_millis(5));
    }
    // What others do is not to be held.
    held.no_more();
    // Those who wait for the ones that are held.
    thread::sleep(Duration::from_millis(50));
}

/// While the calls are held in which `actors` end, the others go on.
#[track_caller]
fn go_on(
    name: &str,
    held: Injected,
    most: usize,
    actors: Vec<Box<dyn FnOnce() + Send>>,
    others: &(impl Fn() + Clone + Send + 'static),
    look: impl FnOnce() + Send + 'static,
) {
    let actors: Vec<_> = actors.into_iter().map(thread::spawn).collect();
    wait_for_held(&held, most);
    let others = others.clone();
    let took = in_time(move || {
        // The first of them may find what is to be told of who waits.
        (0..3).for_each(|_| others());
        look();
    });
    drop(held);
    actors.into_iter().for_each(|actor| actor.join().unwrap());
    assert!(took.is_some(), "{name}: others waited for a call of the host");
}

fn shared(others: impl Fn() + Send + 'static) -> impl Fn() + Clone + Send + 'static {
    let others = std::sync::Arc::new(std::sync::Mutex::new(others));
    move || others.lock().unwrap()()
}

/// Each of them by eight at the same time, on one file and on one each. Those who only look at a file, or list its
/// directory, do not wait either.
///
/// Proves W1, W2.
fn operations_on_other_files_go_on_while_calls_of_the_host_are_held(setup: Setup) {
    others_go_on(Kind::Plain, setup);
}

/// Each write is counted there.
///
/// Proves W1, W2.
fn operations_on_other_files_go_on_near_the_limit_while_calls_of_the_host_are_held(setup: Setup) {
    others_go_on(Kind::NearLimit, setup);
}

/// Which gives the kernel the segments.
///
/// Proves W1, W2.
fn operations_on_other_files_go_on_beside_a_keeper_while_calls_of_the_host_are_held(setup: Setup) {
    others_go_on(Kind::Kept, setup);
}

/// What is mounted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Plain,
    /// A pool of this limit, nearly full.
    NearLimit,
    /// With a keeper.
    Kept,
}

impl Kind {
    /// The bytes of its limit; "near" is a sixteenth of it.
    const LIMIT: u64 = 256 << 20;

    pub fn mount(self, setup: Setup) -> Mount {
        let mount = match self {
            Self::Plain => setup.mount(),
            Self::NearLimit => setup.create(["--size", "256M"]).mount(),
            Self::Kept => setup.mount_with(["-o", "keeper"]).mount(),
        };
        if self == Self::NearLimit && !mount.is_plain() {
            let filler = File::create(mount.at("filler")).unwrap();
            // SAFETY: takes integers alone.
            let done = unsafe { libc::fallocate(filler.as_raw_fd(), 0, 0, (Self::LIMIT - (14 << 20)) as i64) };
            assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        }
        mount
    }
}

fn others_go_on(kind: Kind, setup: Setup) {
    let (calls, passthrough) = (HostCalls::new(), setup.passthrough());
    let mount = kind.mount(setup.host_calls(&calls));
    if mount.is_plain() {
        return;
    }
    let others = shared(others(&mount));
    for (n, case) in CASES.iter().enumerate().filter(|(_, case)| case.only.is_none_or(|only| only == passthrough)) {
        let paths = files(&mount, &format!("case-{n}"), MANY);
        for same in [true, false] {
            let most = if same { 1 } else { MANY };
            if case.name == CREATE {
                wait_for_spares(&mount);
            }
            let held = calls.add(Rule::of(case.call).on(case.on).times(most as u64).held());
            let actors = (0..MANY).map(|who| {
                let path = if same { &paths[0] } else { &paths[who] }.clone();
                let act = case.act;
                Box::new(move || act(&path, who)) as Box<dyn FnOnce() + Send>
            });
            let (seen, looks) = (paths[0].clone(), !case.names && case.call != Call::Fstat);
            let look = move || {
                if looks {
                    fs::metadata(&seen).unwrap();
                    assert_eq!(fs::read_dir(seen.parent().unwrap()).unwrap().count(), 1);
                }
            };
            go_on(case.name, held, most, actors.collect(), &others, look);
        }
        for path in paths {
            fs::remove_dir_all(path.parent().unwrap()).unwrap();
        }
    }
}

/// Whichever call on one file the host is late with, while somebody writes it, opens it to map it, or cuts it.
///
/// Proves W1, S1.
fn whoever_writes_near_the_limit_waits_for_no_call_on_another_file(setup: Setup) {
    let calls = HostCalls::new();
    let mount = Kind::NearLimit.mount(setup.mount_with(["--commit", "3600"]).host_calls(&calls));
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("others");
    fs::create_dir(&dir).unwrap();
    let only_writes =
        |name: &str| OpenOptions::new().write(true).create(true).truncate(false).open(dir.join(name)).unwrap();
    let (open, end) = (only_writes("written"), std::sync::atomic::AtomicU64::new(0));
    let (writes, maps) = (only_writes("slow"), only_writes("mapped"));
    [&writes, &maps].into_iter().for_each(|file| file.write_all_at(&vec![7; SIZE], 1 << 20).unwrap());
    drop(maps);
    let at = dir.clone();
    let others = shared(move || {
        let end = end.fetch_add(8192, std::sync::atomic::Ordering::Relaxed);
        open.write_all_at(&[7; 8192], end).unwrap();
        fs::write(at.join("new"), vec![7; SIZE]).unwrap();
        drop(writer(&at.join("new")));
        fs::remove_file(at.join("new")).unwrap();
        assert!(nix::sys::statvfs::statvfs(&at).unwrap().blocks_available() > 0);
    });
    type Act = Box<dyn Fn() + Send + Sync>;
    let (written, mapped, cut) = (std::sync::Arc::new(writes), dir.join("mapped"), dir.join("slow"));
    let acts: [(&str, Act); 3] = [
        ("write", Box::new(move || written.write_all_at(&[8; 4096], 3 << 20).unwrap())),
        ("open to map", Box::new(move || drop(writer(&mapped)))),
        ("cut", Box::new(move || writer(&cut).set_len(2 << 20).unwrap())),
    ];
    for (name, act) in acts {
        let act = std::sync::Arc::new(act);
        let mut held_any = false;
        for call in [Call::Seek, Call::Fstat, Call::Lease] {
            for which in 0..20 {
                let held = calls.add(Rule::of(call).on("/segments/").skip(which).times(1).held());
                let actor = thread::spawn({
                    let act = act.clone();
                    move || act()
                });
                while held.waiting() == 0 && !actor.is_finished() {
                    thread::sleep(Duration::from_millis(1));
                }
                if held.waiting() == 0 {
                    actor.join().unwrap();
                    break;
                }
                held_any = true;
                let others = others.clone();
                let took = in_time(move || (0..3).for_each(|_| others()));
                drop(held);
                actor.join().unwrap();
                assert!(took.is_some(), "{name}: others waited for {call:?} number {which}");
            }
        }
        assert!(held_any, "{name}: the host is not asked for anything");
    }
}

/// What is removed has come to as much as may stand beside the limit, and cannot be made durable.
///
/// Proves W1, S3.
fn who_writes_in_place_near_the_limit_waits_for_nothing_that_is_removed(setup: Setup) {
    const MIB: usize = 1 << 20;
    let calls = HostCalls::new();
    let mount = Kind::NearLimit.mount(setup.mount_with(["--commit", "3600"]).host_calls(&calls));
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("others");
    fs::create_dir(&dir).unwrap();
    let in_place = OpenOptions::new().write(true).create_new(true).open(dir.join("written")).unwrap();
    in_place.write_all_at(&vec![7; MIB], 0).unwrap();
    in_place.sync_all().unwrap();
    let held = calls.add(Rule::of(Call::Fdatasync).on("/log").times(u64::MAX).held());
    let rounds = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let greedy = thread::spawn({
        let (path, rounds) = (dir.join("removed"), rounds.clone());
        move || {
            for _ in 0..100 {
                fs::write(&path, vec![7; MIB]).unwrap();
                fs::remove_file(&path).unwrap();
                rounds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    });
    let mut before = usize::MAX;
    loop {
        let now = rounds.load(std::sync::atomic::Ordering::Relaxed);
        if greedy.is_finished() || (now == before && held.waiting() > 0) {
            break;
        }
        before = now;
        thread::sleep(Duration::from_secs(2));
    }
    assert!(before < 100, "{before} MiB were removed, and nobody waited");
    let took = in_time(move || in_place.write_all_at(&vec![8; MIB], 0).unwrap());
    // What may be mapped counts with its holes: they are not on the host for that.
    let filler = thread::spawn(move || {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(dir.join("sparse")).unwrap();
        file.set_len(MIB as u64).unwrap();
        file.write_all_at(&vec![7; MIB], 0).unwrap();
    });
    thread::sleep(Duration::from_secs(1));
    assert!(!filler.is_finished(), "more stands beside the limit than may");
    drop(held);
    filler.join().unwrap();
    greedy.join().unwrap();
    assert!(took.is_some(), "who needs no room waited for some");
}

/// Later than anybody waits for an answer of the keeper's.
///
/// Proves F1, W1.
fn a_segment_that_the_kernel_gets_late_leaves_passthrough_as_it_is(setup: Setup) {
    let calls = HostCalls::new();
    let mount = Kind::Kept.mount(setup.host_calls(&calls));
    if mount.is_plain() || mount.passthrough() == Passthrough::Off {
        return;
    }
    let paths = files(&mount, "late", 3);
    let late = calls.add(Rule::of(Call::Backing).on("/segments/").times(1).held());
    let opened = paths[0].clone();
    let actor = thread::spawn(move || assert_eq!(fs::read(opened).unwrap().len(), SIZE));
    late.wait_for_waiting(1);
    // It is opened all the same, though the server has to move its bytes.
    actor.join().unwrap();
    let given = || mount.info()["counters"]["opened_passthrough"].as_u64().unwrap();
    let before = given();
    for path in &paths[1..] {
        assert_eq!(fs::read(path).unwrap().len(), SIZE);
        drop(writer(path));
    }
    assert_eq!(given() - before, 4, "the server moves the bytes");
    drop(late);
}

/// Fifty files, with two who want each; and as many as leave no thread for who needs the host.
///
/// Proves W1, W3.
fn operations_go_on_while_more_files_are_slow_than_there_are_threads(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let (others, dir) = (shared(others(&mount)), mount.at("others"));
    let in_memory = move || {
        fs::create_dir(dir.join("made")).unwrap();
        fs::rename(dir.join("made"), dir.join("moved")).unwrap();
        fs::remove_dir(dir.join("moved")).unwrap();
        assert_eq!(fs::metadata(dir.join("read")).unwrap().len(), SIZE as u64);
    };
    let paths = files(&mount, "slow", 200);
    let open = |path: &PathBuf| {
        let path = path.clone();
        Box::new(move || assert_eq!(fs::read(path).unwrap().len(), SIZE)) as Box<dyn FnOnce() + Send>
    };
    for count in [50, 200] {
        let slow = &paths[..count];
        let held = calls.add(Rule::of(Call::Open).on("/segments/").times(count as u64).held());
        let actors = slow.iter().chain(slow).map(open).collect();
        if count == 50 {
            go_on("open", held, count, actors, &others, || ());
        } else {
            go_on("open", held, count, actors, &in_memory, || ());
        }
    }
}

/// Where the server moves the bytes it keeps those of writes that wait, and a user has no more than his share of that.
///
/// Proves W3.
fn operations_go_on_while_one_user_has_more_writes_that_wait_than_is_kept(setup: Setup) {
    const SCRIPT: &str = "
import errno, os, resource, sys, threading
directory, count = sys.argv[1], int(sys.argv[2])
os.setgroups([])
os.setgid(4001)
os.setuid(4001)
most = count + 100
resource.setrlimit(resource.RLIMIT_NOFILE, (most, max(most, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
data, refused, done, lock = b'x' * (1 << 20), [], [], threading.Lock()
files = [os.open(f'{directory}/{n}', os.O_WRONLY | os.O_CREAT) for n in range(count)]
print('open', flush=True)
sys.stdin.readline()
def write(n):
    fd = files[n]
    try:
        assert os.pwrite(fd, data, 0) == len(data)
        done.append(n)
    except OSError as error:
        assert error.errno == errno.EAGAIN
        with lock:
            if not refused: print('refused', flush=True)
            refused.append(n)
threading.stack_size(1 << 18)
threads = [threading.Thread(target=write, args=(n,)) for n in range(count)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(done), flush=True)
";
    let calls = HostCalls::new();
    let skip = setup.clone();
    // Elsewhere the kernel moves them.
    let is_moved = setup.passthrough() == Passthrough::Off;
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() || !is_moved {
        return;
    }
    let others = others(&mount);
    let dir = mount.at("greedy");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let kib: u64 = memory.split_whitespace().nth(1).unwrap().parse().unwrap();
    let kept = (kib / 1024 / 16).max(256);
    if kept > 2048 {
        return skip.skip("the machine has more memory than a test should fill");
    }
    let mut greedy = Command::new("python3");
    greedy.args(["-c", SCRIPT]).arg(&dir).arg(kept.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut greedy = greedy.spawn().unwrap();
    let mut said = BufReader::new(greedy.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "open");
    let held = calls.add(Rule::of(Call::Write).on("/segments/").times(u64::MAX).held());
    drop(greedy.stdin.take());
    assert_eq!(said.next().unwrap().unwrap(), "refused");
    let in_memory = mount.at("others");
    let took = in_time(move || {
        fs::create_dir(in_memory.join("made")).unwrap();
        fs::rename(in_memory.join("made"), in_memory.join("moved")).unwrap();
        fs::remove_dir(in_memory.join("moved")).unwrap();
    });
    drop(held);
    assert!(took.is_some(), "others waited for one user's writes");
    let done: u64 = said.next().unwrap().unwrap().parse().unwrap();
    assert!(greedy.wait().unwrap().success());
    assert!((kept / 5..kept).contains(&done), "{done} of {kept}");
    others();
}

/// Eight programs open one sealed file to write it, and do; and eight open one each.
///
/// Proves W1, W2.
fn operations_go_on_while_sealed_files_are_thawed(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let others = shared(others(&mount));
    let paths = files(&mount, "sealed", MANY + 1);
    mount.wait_for_seals(MANY as u64 + 3);
    for same in [true, false] {
        // What a commit makes durable of itself: the log.
        let held = calls.add(Rule::of(Call::Fdatasync).on("/log").times(1).held());
        let actors = (0..MANY).map(|who| {
            let path = if same { &paths[MANY] } else { &paths[who] }.clone();
            // Where the server moves the bytes, it is the first change that voids the seals.
            Box::new(move || writer(&path).write_all_at(b"changed", 0).unwrap()) as Box<dyn FnOnce() + Send>
        });
        let seen = paths[MANY].clone();
        go_on("open to write", held, 1, actors.collect(), &others, move || assert!(fs::metadata(seen).is_ok()));
    }
}

/// Proves W1.
fn operations_go_on_while_a_close_that_commits_waits_for_the_disk(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.mount_with(["--durability", "close"]).host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    // They do not close what they write.
    let dir = mount.at("others");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("read"), vec![7; SIZE]).unwrap();
    let others = move || {
        fs::create_dir(dir.join("made")).unwrap();
        fs::remove_dir(dir.join("made")).unwrap();
        assert_eq!(fs::read(dir.join("read")).unwrap().len(), SIZE);
    };
    let paths = files(&mount, "closed", MANY);
    let held = calls.add(Rule::of(Call::Fdatasync).on("/segments/").times(MANY as u64).held());
    let close = |path: PathBuf| Box::new(move || writer(&path).write_all_at(b"new", 0).unwrap());
    let actors = paths.into_iter().map(|path| close(path) as Box<dyn FnOnce() + Send>).collect();
    go_on("close", held, MANY, actors, &others, || ());
}

/// More than are synced at one time where the disk is quick.
///
/// Proves W1.
fn files_are_made_by_the_thousand_while_a_commit_waits_for_the_disk(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.mount_with(["--durability", "fsync"]).host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("many");
    fs::create_dir(&dir).unwrap();
    let held = calls.add(Rule::of(Call::Fdatasync).on("/segments/").times(1).held());
    // Too large for the log.
    fs::write(mount.at("slow"), vec![7; SIZE]).unwrap();
    held.wait_for_waiting(1);
    held.no_more();
    let took = in_time(move || {
        for n in 0..6000 {
            fs::write(dir.join(n.to_string()), "new").unwrap();
        }
    });
    drop(held);
    assert!(took.is_some(), "files waited for a commit");
}

/// Proves W1.
fn operations_go_on_while_a_file_is_moved_to_another_tier(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    mount.umount();
    mount.add_tier("ssd", &mount.host().join("ssd"));
    mount.mount();
    let others = shared(others(&mount));
    let path = files(&mount, "moved", 1).remove(0);
    let held = calls.add(Rule::of(Call::Copy).below(&mount.host().join("ssd")).times(1).held());
    let moved = path.clone();
    let actors: Vec<Box<dyn FnOnce() + Send>> =
        vec![Box::new(move || xattr::set(&moved, "user.tensorfs.tier", b"ssd", 0).unwrap())];
    go_on("move", held, 1, actors, &others, move || assert!(fs::metadata(path).is_ok()));
}

/// Proves W1.
fn operations_go_on_while_the_placement_map_is_stored(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let others = shared(others(&mount));
    let held = calls.add(Rule::of(Call::Fdatasync).on("/log").times(1).held());
    let map = mount.at(".tensorfs/placement");
    let actors = (0..MANY).map(|_| {
        let map = map.clone();
        Box::new(move || fs::write(map, "*.tmp pm\n").unwrap()) as Box<dyn FnOnce() + Send>
    });
    go_on("placement", held, 1, actors.collect(), &others, || ());
}

/// Programs that were saving over files were killed, and the old versions go to quarantine.
///
/// Proves W1.
fn operations_go_on_while_old_versions_are_set_aside(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let (others, paths) = (shared(others(&mount)), files(&mount, "saved", MANY));
    let held = calls.add(Rule::of(Call::Link).times(MANY as u64).held());
    let killed = |path: &PathBuf| {
        let path = path.clone();
        let kill = move || {
            let script = r#"exec 3>"$1"; echo half >&3; kill -9 $$"#;
            let mut shell = Command::new("sh");
            assert!(!shell.args(["-c", script, "sh"]).arg(path).status().unwrap().success());
        };
        Box::new(kill) as Box<dyn FnOnce() + Send>
    };
    go_on("set aside", held, MANY, paths.iter().map(killed).collect(), &others, || ());
}

type Change = fn(&Path);

/// A write of the log by whoever makes a name, renames, cuts a file, and commits. Others who do such things wait; who
/// does not goes on.
///
/// Proves W1, W2.
fn who_records_nothing_goes_on_while_the_log_is_written(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.mount_with(["--commit", "3600"]).host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("others");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("fresh"), vec![7; SIZE]).unwrap();
    fs::write(dir.join("read"), vec![7; SIZE]).unwrap();
    // When this was read is recorded, so that no record of that is held in the place of the one that is to be.
    fs::read(dir.join("read")).unwrap();
    mount.remount();
    let open = File::create(dir.join("written")).unwrap();
    let paths = files(&mount, "changed", 2);
    let looks = {
        let (root, dir) = (mount.path().to_owned(), dir.clone());
        move || {
            assert_eq!(fs::metadata(dir.join("read")).unwrap().len(), SIZE as u64);
            assert!(fs::metadata(dir.join("none")).is_err());
            assert_eq!(fs::read(dir.join("read")).unwrap().len(), SIZE);
            assert_eq!(xattr::list(&dir.join("read")).unwrap().len(), 0);
            assert_eq!(fs::read_dir(&root).unwrap().flatten().filter(|entry| entry.metadata().is_ok()).count(), 3);
        }
    };
    let changes: [(&str, Change); 5] = [
        ("mkdir", |path| fs::create_dir(path.with_file_name("made")).unwrap()),
        ("rename", |path| fs::rename(path.with_file_name("made"), path.with_file_name("renamed")).unwrap()),
        ("chmod", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap()),
        ("truncate", |path| writer(path).set_len(10).unwrap()),
        ("fsync of a directory", |path| File::open(path.parent().unwrap()).unwrap().sync_all().unwrap()),
    ];
    for (name, change) in changes {
        let held = calls.add(Rule::of(Call::Write).on("/log").times(1).held());
        // One of the two is held, and the other waits for it.
        let change = |path: &PathBuf| {
            let path = path.clone();
            Box::new(move || change(&path)) as Box<dyn FnOnce() + Send>
        };
        let (actors, open) = (paths.iter().map(change).collect(), open.try_clone().unwrap());
        let fresh = dir.join("fresh");
        go_on(name, held, 1, actors, &looks, move || {
            if name.starts_with("fsync") {
                // When it was read the first time is to be recorded as it is closed; who opens it next waits for that.
                (0..2).for_each(|_| assert_eq!(fs::read(&fresh).unwrap().len(), SIZE));
            } else {
                // A commit records what the open file has become.
                open.write_all_at(b"more", 0).unwrap();
            }
        });
    }
}

/// Holds the call of the host with which a log gets longer, behind its zeroes; a commit makes the log durable by
/// another one.
fn hold_growth(calls: &HostCalls) -> Injected {
    calls.add(Rule::of(Call::Fsync).on("/log").times(1).held())
}

/// Gives each of so many directories a value that stays in the log: twice as much, and more, as a new log has room for.
fn fill_log(parent: &Path, directories: usize) -> std::io::Result<()> {
    (0..directories).try_for_each(|n| {
        let dir = parent.join(n.to_string());
        fs::create_dir(&dir)?;
        Ok(xattr::set(&dir, "user.a", &[7; 60_000], 0)?)
    })
}

/// Who needs the room waits for it, and who needs none goes on.
///
/// Proves W1, S1.
fn nobody_finds_the_log_full_while_it_is_made_longer(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.mount_with(["--commit", "3600"]).host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let parents: Vec<PathBuf> = (0..4).map(|n| mount.at(format!("dir-{n}"))).collect();
    parents.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let held = hold_growth(&calls);
    let filling: Vec<_> = parents.iter().cloned().map(|dir| thread::spawn(move || fill_log(&dir, 40))).collect();
    held.wait_for_waiting(1);
    // There is no room left for all of them.
    thread::sleep(Duration::from_millis(300));
    let waiting = filling.iter().filter(|filling| !filling.is_finished()).count();
    let root = mount.path().to_owned();
    let looked = in_time(move || {
        assert_eq!(fs::read_dir(root).unwrap().filter(|one| one.as_ref().unwrap().metadata().is_ok()).count(), 4)
    });
    drop(held);
    for filling in filling {
        filling.join().unwrap().expect("room in the log");
    }
    assert!(looked.is_some(), "who looks waits for a longer log");
    assert!(waiting > 0, "there was room for all");
    for dir in parents.iter().flat_map(|parent| (0..40).map(move |n| parent.join(n.to_string()))) {
        assert_eq!(xattr::get(&dir, "user.a").unwrap(), vec![7; 60_000]);
    }
}

/// What is dead in the log is room, too, and is cleaned meanwhile.
///
/// Proves W1.
fn who_replaces_what_the_log_holds_goes_on_while_it_is_made_longer(setup: Setup) {
    replace_while_it_is_made_longer(setup, false);
}

/// Cleaning commits first, and a commit records what is written below a directory that was moved.
///
/// Proves W1, D7.
fn a_log_is_cleaned_below_a_directory_that_was_moved_while_it_is_made_longer(setup: Setup) {
    replace_while_it_is_made_longer(setup, true);
}

fn replace_while_it_is_made_longer(setup: Setup, is_moved: bool) {
    const VALUES: u8 = 60;
    let calls = HostCalls::new();
    let mount = setup.mount_with(["--commit", "3600"]).host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let dirs: Vec<PathBuf> = (0..4).map(|n| mount.at(format!("dir-{n}"))).collect();
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    fs::create_dir(mount.at("from")).unwrap();
    let written = File::create(mount.at("from/f")).unwrap();
    let held = hold_growth(&calls);
    // All that it holds until then stays.
    let stays = mount.at("stays");
    fs::create_dir(&stays).unwrap();
    for n in (0..).take_while(|_| held.waiting() == 0) {
        let dir = stays.join(n.to_string());
        fs::create_dir(&dir).unwrap();
        xattr::set(&dir, "user.a", &[7; 60_000], 0).unwrap();
        thread::sleep(Duration::from_millis(30));
    }
    if is_moved {
        fs::rename(mount.at("from"), mount.at("to")).unwrap();
        written.write_all_at(&[1; 10_000], 0).unwrap();
    }
    let replace = |dir: &PathBuf| {
        let dir = dir.clone();
        move || (0..VALUES).try_for_each(|n| xattr::set(&dir, "user.a", &vec![n; 60_000], 0))
    };
    let replacing: Vec<_> = dirs.iter().map(|dir| thread::spawn(replace(dir))).collect();
    let done = in_time(move || {
        for replacing in replacing {
            replacing.join().unwrap().expect("room in the log");
        }
    });
    let is_held = held.waiting() > 0;
    drop(held);
    assert!(done.is_some(), "who replaces waits for a longer log");
    assert!(is_held, "the log was longer before they were done");
    for dir in &dirs {
        assert_eq!(xattr::get(dir, "user.a").unwrap(), vec![VALUES - 1; 60_000]);
    }
}

/// Proves W1.
fn a_log_has_room_ahead_for_who_makes_names_while_it_is_made_longer(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.mount_with(["--commit", "1"]).host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    wait_until("the log has room ahead", || mount.info()["log_bytes"].as_u64().unwrap() >= 18 << 20);
    let held = hold_growth(&calls);
    let (first, second) = (mount.at("first"), mount.at("second"));
    [&first, &second].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    fill_log(&first, 30).unwrap();
    held.wait_for_waiting(1);
    let done = in_time(move || fill_log(&second, 200).unwrap());
    let is_held = held.waiting() > 0;
    drop(held);
    assert!(done.is_some(), "who makes names waits for a longer log");
    assert!(is_held, "the log was longer before they were done");
}

/// Whichever of the last writes of the log is late, the server ends once it is done, and nothing is missing.
///
/// Proves D9.
fn a_server_ends_when_the_log_has_taken_the_last_of_it(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.mount_with(["--commit", "3600"]).host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let mut late = 0;
    for which in 0..6 {
        let (dir, file) = (mount.at(format!("d-{which}")), mount.at(format!("f-{which}")));
        fs::create_dir(&dir).unwrap();
        fs::write(&file, vec![7; SIZE]).unwrap();
        let slow = calls.add(Rule::of(Call::Write).on("/log").skip(which).times(1).delay(Duration::from_millis(300)));
        assert!(mount.end(), "write {which} was late, and the server did not end");
        late += slow.hits();
        drop(slow);
        mount.mount();
        assert!(dir.is_dir());
        assert_eq!(fs::read(&file).unwrap().len(), SIZE);
    }
    assert!(late > 0, "nothing was late");
}

/// Neither for who truncates it, nor for who opens it.
///
/// Proves W2.
fn removing_a_file_waits_for_nothing_that_is_done_with_it(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let paths = files(&mount, "removed", 3);
    for (n, path) in paths.iter().enumerate() {
        let held = calls.add(Rule::of(Call::Open).on("/segments/").times(1).held());
        let opened = path.clone();
        let open = thread::spawn(move || drop(OpenOptions::new().read(true).open(opened)));
        wait_for_held(&held, 1);
        let (path, dir) = (path.clone(), path.parent().unwrap().to_owned());
        let gone = in_time(move || {
            if n == 0 {
                fs::remove_file(&path).unwrap();
            } else {
                fs::create_dir(dir.join("d")).unwrap();
                fs::write(dir.join("g"), "another").unwrap();
                fs::rename(dir.join("g"), &path).unwrap();
                assert_eq!(fs::read(&path).unwrap(), b"another");
            }
        });
        drop(held);
        open.join().unwrap();
        assert!(gone.is_some(), "removing a file waited for who opens it");
    }
    mount.sync();
    // What was removed meanwhile goes as soon as it is open nowhere.
    mount.wait_for("end of what was removed", |info| info["files"] == 2);
}

/// Proves C1, W2.
fn removing_a_file_does_not_wait_for_its_sealing(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let others = shared(others(&mount));
    for rename in [false, true] {
        let dir = mount.at(format!("sealed-{rename}"));
        fs::create_dir(&dir).unwrap();
        let held = calls.add(Rule::of(Call::Read).on("/segments/").times(1).held());
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(dir.join("f")).unwrap();
        file.write_all(&vec![7; 8 << 20]).unwrap();
        drop(file);
        mount.sync();
        wait_for_held(&held, 1);
        let (others, other) = (others.clone(), mount.at("others/read"));
        let gone = in_time(move || {
            if rename {
                fs::hard_link(&other, dir.join("g")).unwrap();
                fs::rename(dir.join("g"), dir.join("f")).unwrap();
            } else {
                fs::remove_file(dir.join("f")).unwrap();
            }
            others();
        });
        drop(held);
        assert!(gone.is_some(), "who removed a file waited for its sealing (by renaming: {rename})");
    }
}

/// What is deleted is gone as soon as that is durable, whatever the host takes to remove it.
///
/// Proves W1, D4.
fn a_directory_is_synced_while_the_host_removes_a_segment(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let path = files(&mount, "removed", 1).remove(0);
    let held = calls.add(Rule::of(Call::Unlink).on("/segments/").times(1).held());
    fs::remove_file(&path).unwrap();
    mount.wait_for("removal that is held", |_| held.waiting() == 1);
    let root = mount.path().to_owned();
    let synced = in_time(move || {
        fs::create_dir(root.join("made")).unwrap();
        File::open(&root).unwrap().sync_all().unwrap();
    });
    drop(held);
    assert!(synced.is_some(), "who syncs a directory waited for the removal of another's segment");
}

/// However many are open, and however: the kernel asks for their attributes when somebody wants to know.
///
/// Proves W1, W2.
fn a_directory_is_listed_while_the_host_says_nothing_of_files_in_it(setup: Setup) {
    const OPEN: usize = 20;
    let calls = HostCalls::new();
    let mount = setup.mount_with(["--commit", "3600"]).host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("closed"), "closed").unwrap();
    fs::create_dir(dir.join("below")).unwrap();
    let open = |n: usize| {
        let path = dir.join(format!("open-{n}"));
        fs::write(&path, vec![7; n]).unwrap();
        if n.is_multiple_of(2) {
            File::open(path).unwrap()
        } else {
            OpenOptions::new().append(true).open(path).unwrap()
        }
    };
    let files: Vec<File> = (0..OPEN).map(open).collect();
    let held = calls.add(Rule::of(Call::Fstat).on("/segments/").held());
    let at = dir.clone();
    let listed = in_time(move || {
        for _ in 0..3 {
            let entries: Vec<_> = fs::read_dir(&at).unwrap().map(Result::unwrap).collect();
            assert_eq!(entries.len(), OPEN + 2);
            for entry in entries {
                let (kind, name) = (entry.file_type().unwrap(), entry.file_name().into_string().unwrap());
                assert!(if name == "below" { kind.is_dir() } else { kind.is_file() }, "{name}: {kind:?}");
            }
            assert_eq!(fs::metadata(at.join("closed")).unwrap().len(), 6);
        }
    });
    let asked = held.arrived();
    drop(held);
    assert!(listed.is_some(), "listing a directory waited for a file in it");
    assert_eq!(asked, 0);
    for (n, file) in files.iter().enumerate() {
        let entry =
            fs::read_dir(&dir).unwrap().map(Result::unwrap).find(|entry| entry.file_name() == *format!("open-{n}"));
        let (stat, named) = (file.metadata().unwrap(), entry.unwrap().metadata().unwrap());
        assert_eq!((stat.len(), named.len()), (n as u64, n as u64));
        assert_eq!((stat.ino(), stat.mtime_nsec()), (named.ino(), named.mtime_nsec()));
    }
}

/// Listing changes nothing that the kernel has of a file that is being written: neither its size, nor its pages.
///
/// Proves W2, O2.
fn what_is_open_looks_the_same_before_and_after_it_was_listed(setup: Setup) {
    let mount = setup.mount();
    let file = writer_of(&mount.at("f"));
    file.write_all_at(&[1; 10_000], 0).unwrap();
    // SAFETY: nobody cuts the file.
    let mut map = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
    let list = || fs::read_dir(mount.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).max();
    for n in 0..20_u8 {
        map[9_999] = n;
        list();
        file.write_all_at(&[n; 5000], 10_000 + 5000 * u64::from(n)).unwrap();
        let size = 10_000 + 5000 * (u64::from(n) + 1);
        assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 1);
        assert_eq!(map[9_999], n);
        assert_eq!(list(), Some(size));
        assert_eq!(file.metadata().unwrap().len(), size);
        let bytes = fs::read(mount.at("f")).unwrap();
        assert_eq!((bytes.len() as u64, bytes[9_999], bytes[size as usize - 1]), (size, n, n));
    }
    drop((map, file));
    fs::remove_file(mount.at("f")).unwrap();
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
}

/// A new file, open to be read, written and mapped.
fn writer_of(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}
