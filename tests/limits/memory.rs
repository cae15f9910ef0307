//! What the server's memory grows by.

use std::io::BufRead;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use tensorfs_tests::{Mount, Setup, on_mounts, xattr};

on_mounts!(
    the_uses_of_files_in_a_deep_tree_are_told_line_by_line,
    names_are_made_while_the_uses_and_requests_of_a_deep_tree_are_told,
    a_pool_whose_server_was_killed_is_opened_in_as_little_memory_as_a_closed_one,
);

const DEPTH: usize = 4000;
const NAME: &str = "dddddddddddddddddddddddddddddddddddddddddddddddddd";

/// Directories in each other, with a file in each that was just used. The last of them.
fn deep_tree(mount: &Mount) -> OwnedFd {
    let directory = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let mut at: OwnedFd = std::fs::File::open(mount.path()).unwrap().into();
    for _ in 0..DEPTH {
        mkdirat(at.as_fd(), NAME, Mode::S_IRWXU).unwrap();
        at = openat(at.as_fd(), NAME, directory, Mode::empty()).unwrap();
        openat(at.as_fd(), "f", OFlag::O_CREAT | OFlag::O_WRONLY, Mode::S_IRUSR).unwrap();
    }
    at
}

fn server(mount: &Mount) -> String {
    format!("/proc/{}", mount.info()["pid"])
}

/// The most memory that the server has had since [`forget_peak`], in KiB.
fn peak(server: &str) -> u64 {
    let status = std::fs::read_to_string(format!("{server}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn forget_peak(server: &str) -> u64 {
    std::fs::write(format!("{server}/clear_refs"), "5").unwrap();
    peak(server)
}

/// Proves M11.
fn the_uses_of_files_in_a_deep_tree_are_told_line_by_line(setup: Setup) {
    if !tensorfs_tests::is_root() {
        return setup.skip("needs root, who may forget how much memory a process has had");
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    deep_tree(&mount);
    std::fs::write(mount.at("shallow"), "").unwrap();
    let server = server(&mount);
    let before = forget_peak(&server);
    let text = std::fs::read_to_string(mount.at(".tensorfs/accesses")).unwrap();
    let grown = peak(&server).saturating_sub(before);
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), DEPTH + 1);
    let paths: Vec<&str> = lines.iter().filter_map(|line| line["path"].as_str()).collect();
    // Those that a call takes, from the root on.
    assert_eq!(paths.len(), 4095 / (NAME.len() + 1) + 1);
    assert!(paths.contains(&"/shallow") && paths.iter().all(|path| path.len() <= 4096));
    // All their paths would be 400 MB.
    assert!(grown < 64 << 10, "it took {grown} KiB");
}

/// Whoever has the uses of a deep tree told, or requests of what is deep in it, keeps nobody waiting: in so much time
/// about as many files come and go as without him.
///
/// Proves W1, M11.
fn names_are_made_while_the_uses_and_requests_of_a_deep_tree_are_told(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let deep = deep_tree(&mount);
    let come_and_go = |time: Duration| {
        let (begun, mut count) = (Instant::now(), 0);
        while begun.elapsed() < time {
            let path = mount.at("new");
            std::fs::write(&path, "").unwrap();
            std::fs::metadata(mount.at("new")).unwrap();
            std::fs::remove_file(path).unwrap();
            count += 1;
        }
        count
    };
    let alone = come_and_go(Duration::from_secs(1));
    let stop = AtomicBool::new(false);
    let (beside, told, lines) = std::thread::scope(|scope| {
        let uses = scope.spawn(|| {
            let mut told = 0;
            while !stop.load(Relaxed) {
                told += std::fs::read_to_string(mount.at(".tensorfs/accesses")).unwrap().lines().count();
            }
            told
        });
        let requests = scope.spawn(|| {
            let trace = std::fs::File::open(mount.at(".tensorfs/trace")).unwrap();
            let (mut trace, mut lines) = (std::io::BufReader::new(trace), 0);
            let mut line = String::new();
            while !stop.load(Relaxed) && trace.read_line(&mut line).unwrap() > 0 {
                lines += 1;
                line.clear();
            }
            lines
        });
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                openat(deep.as_fd(), "g", OFlag::O_CREAT | OFlag::O_WRONLY, Mode::S_IRUSR).unwrap();
                unlinkat(deep.as_fd(), "g", UnlinkatFlags::NoRemoveDir).unwrap();
            }
        });
        let beside = come_and_go(Duration::from_secs(3));
        stop.store(true, Relaxed);
        // Who waits for a line gets one.
        come_and_go(Duration::from_millis(100));
        (beside, uses.join().unwrap(), requests.join().unwrap())
    });
    println!("{alone} a second alone, {beside} in three beside {told} uses and {lines} requests that were told");
    assert!(told > DEPTH, "{told}");
    assert!(beside * 20 > alone, "{beside} in three seconds, where {alone} are in one");
}

/// The server has what files are called and their attributes in memory, once: recovery makes no copy of it.
fn a_pool_whose_server_was_killed_is_opened_in_as_little_memory_as_a_closed_one(setup: Setup) {
    const FILES: usize = 2000;
    const ATTRIBUTES: usize = 4;
    const BYTES: usize = 6 << 10;
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    for n in 0..FILES {
        let path = mount.at(format!("f{n}"));
        std::fs::write(&path, "x").unwrap();
        for attribute in 0..ATTRIBUTES {
            xattr::set(&path, format!("user.{attribute}"), &[n as u8; BYTES], 0).unwrap();
        }
    }
    // The least of some: what threads that read the log have at the same time differs from one time to the next.
    let mut least = |begin_anew: &dyn Fn(&mut Mount)| {
        let peaks = (0..3).map(|_| {
            begin_anew(&mut mount);
            peak(&server(&mount))
        });
        peaks.min().unwrap()
    };
    let closed = least(&|mount| mount.remount());
    let killed = least(&|mount| {
        for n in 0..FILES {
            std::fs::write(mount.at(format!("f{n}")), "y").unwrap();
        }
        mount.kill9();
        mount.mount();
    });
    let attributes = (FILES * ATTRIBUTES * BYTES) as u64 >> 10;
    println!("{closed} KiB after a close, {killed} after a kill; attributes are {attributes}");
    assert!(closed > attributes, "they are in memory: {closed} KiB");
    assert!(killed < closed + attributes / 2, "{closed} KiB after a close, and {killed} after a kill");
}
