//! Public suites, in short runs. `tests/suites/NAME` runs one at length; docs/CONFORMANCE.md has the results.

use std::path::Path;
use std::process::Command;
use tensorfs_tests::{Passthrough, Setup, on_mounts, run, tensorfs};

on_mounts!(pjdfstest, pjdfstest_on_servers_that_die, fsx, fsx_on_servers_that_die, fio, stress_ng, link_count_max,);

/// Runs a suite's script, which makes its own mounts: ext4 is tested beside tensorfs.
#[track_caller]
fn suite(setup: Setup, name: &str, arguments: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let passthrough = if setup.passthrough() == Passthrough::On { "on" } else { "off" };
    let mut command = Command::new(root.join("tests/suites").join(name));
    command
        .args(["--passthrough", passthrough])
        .args(arguments)
        // Installing takes minutes: tests/run does that.
        .env("TENSORFS_INSTALL", "0")
        .env("TENSORFS_BIN", tensorfs().get_program());
    let output = run(&mut command);
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    if let Some(reason) = text.lines().find_map(|line| line.strip_prefix(&format!("SKIPPED: {name}: "))) {
        return setup.skip(reason);
    }
    assert!(output.status.success(), "{name}: {}", output.status);
}

/// Every test of the suite: it takes seconds.
fn pjdfstest(setup: Setup) {
    suite(setup, "pjdfstest", &["--durability", "fsync"]);
}

fn fsx(setup: Setup) {
    suite(setup, "fsx", &["--seeds", "2", "--operations", "2000"]);
}

/// Proves K1, K3.
fn pjdfstest_on_servers_that_die(setup: Setup) {
    suite(setup, "pjdfstest", &["--durability", "close", "--kill", "300"]);
}

/// Proves K1, K3.
fn fsx_on_servers_that_die(setup: Setup) {
    suite(setup, "fsx", &["--durability", "close", "--seeds", "1", "--operations", "1000", "--kill", "700"]);
}

fn fio(setup: Setup) {
    suite(setup, "fio", &["--durability", "fsync", "--size", "4m", "--synced", "256k"]);
}

fn stress_ng(setup: Setup) {
    suite(setup, "stress-ng", &["--durability", "fsync", "--operations", "50", "--seconds", "1"]);
}

/// pjdfstest has a test of this, which cannot find out what the limit is.
fn link_count_max(setup: Setup) {
    const LINK_MAX: u32 = 65_000;
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    std::fs::create_dir(mount.at("d")).unwrap();
    let first = mount.at("d/0");
    std::fs::write(&first, b"x").unwrap();
    for n in 1..LINK_MAX {
        std::fs::hard_link(&first, mount.at(format!("d/{n}"))).unwrap();
    }
    let links = || std::os::unix::fs::MetadataExt::nlink(&std::fs::metadata(&first).unwrap());
    assert_eq!(links(), u64::from(LINK_MAX));
    let error = std::fs::hard_link(&first, mount.at("one-too-many")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMLINK));
    std::fs::remove_file(mount.at("d/1")).unwrap();
    std::fs::hard_link(&first, mount.at("d/again")).unwrap();
    assert_eq!(links(), u64::from(LINK_MAX));
}
