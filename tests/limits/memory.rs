//! What the server's memory grows by.

use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use tensorfs_tests::{Mount, Setup, on_mounts};

on_mounts!(the_uses_of_files_in_a_deep_tree_are_told_line_by_line);

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
    const DEPTH: usize = 4000;
    if !tensorfs_tests::is_root() {
        return setup.skip("needs root, who may forget how much memory a process has had");
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let directory = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let name = "d".repeat(50);
    let mut at: OwnedFd = std::fs::File::open(mount.path()).unwrap().into();
    for _ in 0..DEPTH {
        mkdirat(at.as_fd(), &*name, Mode::S_IRWXU).unwrap();
        at = openat(at.as_fd(), &*name, directory, Mode::empty()).unwrap();
        openat(at.as_fd(), "f", OFlag::O_CREAT | OFlag::O_WRONLY, Mode::S_IRUSR).unwrap();
    }
    std::fs::write(mount.at("shallow"), "").unwrap();
    let server = server(&mount);
    let before = forget_peak(&server);
    let text = std::fs::read_to_string(mount.at(".tensorfs/accesses")).unwrap();
    let grown = peak(&server).saturating_sub(before);
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), DEPTH + 1);
    let paths: Vec<&str> = lines.iter().filter_map(|line| line["path"].as_str()).collect();
    // Those that a call takes, from the root on.
    assert_eq!(paths.len(), 4095 / (name.len() + 1) + 1);
    assert!(paths.contains(&"/shallow") && paths.iter().all(|path| path.len() <= 4096));
    // All their paths would be 400 MB.
    assert!(grown < 64 << 10, "it took {grown} KiB");
}
