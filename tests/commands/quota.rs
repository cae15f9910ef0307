//! `tensorfs quota` where the host has no quotas of projects, and what holds of the projects in the pool wherever it
//! is. That limits hold is tested in a guest.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::errno::Errno;
use tensorfs_tests::{Mount, Setup, as_user, is_root, on_mounts, run, run_ok, xattr};

on_mounts!(a_host_without_quotas_is_named, what_counts_for_a_project_stays_in_it, a_project_is_roots_alone_to_set);

const PROJECT: &str = "trusted.tensorfs.project";

fn project(path: &Path) -> Result<String, Errno> {
    xattr::get(path, PROJECT).map(|value| String::from_utf8(value).unwrap())
}

/// Proves B18.
fn a_host_without_quotas_is_named(setup: Setup) {
    if setup.mount_is_plain() || !is_root() {
        return setup.skip("needs a mount of tensorfs, and root");
    }
    let Some(memory) = setup.in_memory() else { return };
    let mut mount = setup.mount();
    fs::create_dir(mount.at("d")).unwrap();
    fs::write(mount.at("d/f"), "f").unwrap();
    let quota = |mount: &Mount, command: &[&str]| {
        let output = mount.tensorfs(["quota"].iter().chain(command).copied());
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let directory = mount.at("d");
    let directory = directory.to_str().unwrap();
    // A tier in memory, where there are none whatever the pool itself is on.
    mount.umount();
    mount.add_tier("dram", &memory.path().join("tier"));
    mount.mount();
    let (done, _, why) = quota(&mount, &["set", directory, "10M"]);
    assert!(!done && why.lines().count() == 1, "{why}");
    // As much is what says that a directory is not counted yet.
    for size in ["1E", "1152921504606846000", "15E"] {
        let (done, _, why) = quota(&mount, &["set", directory, size]);
        assert!(!done && why.contains("a quota is less than 1 EiB"), "{size}: {why}");
    }
    let (_, _, why) = quota(&mount, &["set", directory, "1152921504606845952"]);
    assert!(why.contains("keeps no quotas of projects"), "{why}");
    assert!(why.contains("keeps no quotas of projects") && why.contains("prjquota"), "{why}");
    assert_eq!((project(&mount.at("d")), project(&mount.at("d/f"))), (Err(Errno::ENODATA), Err(Errno::ENODATA)));
    let root = mount.path().to_str().unwrap();
    assert_eq!(quota(&mount, &["show", root, "--json"]).1.trim(), "[]");
    // Without a word of what is to be done they are shown.
    assert_eq!(quota(&mount, &[root, "--json"]), quota(&mount, &["show", root, "--json"]));
    assert_eq!(quota(&mount, &[root]), quota(&mount, &["show", root]));
    for wrong in [&[][..], &["--json"], &[root, "show"], &[root, "set", directory, "10M"]] {
        assert!(!quota(&mount, wrong).0, "{wrong:?}");
    }
    let (done, _, why) = quota(&mount, &["clear", directory]);
    assert!(!done && why.contains("no quota of its own"), "{why}");
    for (wrong, what) in [("d/f", "not a directory"), ("..", "not a directory of a tensorfs mount")] {
        let (done, _, why) = quota(&mount, &["set", mount.at(wrong).to_str().unwrap(), "10M"]);
        assert!(!done && why.contains(what), "{why}");
    }
}

/// Proves B18.
fn what_counts_for_a_project_stays_in_it(setup: Setup) {
    if setup.mount_is_plain() || !is_root() {
        return setup.skip("needs a mount of tensorfs, and root");
    }
    let mut mount = setup.mount();
    for directory in ["d", "d/own", "other"] {
        fs::create_dir(mount.at(directory)).unwrap();
    }
    for number in ["-1", "x", "4294967296"] {
        assert_eq!(xattr::set(&mount.at("d"), PROJECT, number.as_bytes(), 0), Err(Errno::EINVAL));
    }
    xattr::set(&mount.at("d"), PROJECT, b"7600123", 0).unwrap();
    xattr::set(&mount.at("d/own"), PROJECT, b"7600124", 0).unwrap();
    fs::create_dir(mount.at("d/sub")).unwrap();
    fs::write(mount.at("d/sub/f"), "f").unwrap();
    fs::write(mount.at("d/own/f"), "f").unwrap();
    fs::write(mount.at("other/f"), "f").unwrap();
    std::os::unix::fs::symlink("nowhere", mount.at("other/link")).unwrap();
    mount.kill9();
    mount.mount();
    let ours = Ok("7600123".to_owned());
    assert_eq!((project(&mount.at("d/sub")), project(&mount.at("d/sub/f"))), (ours.clone(), ours.clone()));
    assert_eq!(project(&mount.at("d/own/f")).unwrap(), "7600124");
    // Into a project comes what counts for it, and what takes nothing.
    let crosses = |from: &str, to: &str| fs::rename(mount.at(from), mount.at(to)).unwrap_err().raw_os_error();
    for (from, to) in [("other/f", "d/f"), ("other", "d/other"), ("d/own/f", "d/f"), ("d/sub/f", "d/own/g")] {
        assert_eq!(crosses(from, to), Some(libc::EXDEV), "{from} to {to}");
    }
    let linked = fs::hard_link(mount.at("other/f"), mount.at("d/f")).unwrap_err();
    assert_eq!(linked.raw_os_error(), Some(libc::EXDEV));
    let exchanged = nix::fcntl::renameat2(
        nix::fcntl::AT_FDCWD,
        &mount.at("d/sub/f"),
        nix::fcntl::AT_FDCWD,
        &mount.at("other/f"),
        nix::fcntl::RenameFlags::RENAME_EXCHANGE,
    );
    assert_eq!(exchanged, Err(Errno::EXDEV));
    fs::rename(mount.at("d/sub/f"), mount.at("d/f")).unwrap();
    fs::rename(mount.at("other/link"), mount.at("d/link")).unwrap();
    // Whoever moves it copies it, and the copy counts.
    run_ok(Command::new("mv").args([mount.at("other/f"), mount.at("d/copied")]));
    assert_eq!(
        (project(&mount.at("d/copied")), fs::read(mount.at("d/copied")).unwrap()),
        (ours.clone(), b"f".to_vec())
    );
    // What leaves it goes on to count.
    fs::rename(mount.at("d/f"), mount.at("other/left")).unwrap();
    fs::write(mount.at("other/left"), "replaced").unwrap();
    assert_eq!(project(&mount.at("other/left")), ours);
    // A copy that takes its attributes along, as root may, does not take this one.
    run_ok(Command::new("cp").arg("-a").args([mount.at("other/left"), mount.at("other/copy")]));
    assert_eq!(project(&mount.at("other/copy")), Err(Errno::ENODATA));
    xattr::remove(&mount.at("d"), PROJECT).unwrap();
    fs::write(mount.at("d/g"), "g").unwrap();
    assert_eq!((project(&mount.at("d")), project(&mount.at("d/g"))), (Err(Errno::ENODATA), Err(Errno::ENODATA)));
}

/// Proves B18.
fn a_project_is_roots_alone_to_set(setup: Setup) {
    if setup.mount_is_plain() || !is_root() {
        return setup.skip("needs a mount of tensorfs, and root");
    }
    let mount = setup.mount();
    let directory = mount.at("d");
    fs::create_dir(&directory).unwrap();
    xattr::set(&directory, PROJECT, b"7600123", 0).unwrap();
    std::os::unix::fs::chown(&directory, Some(65534), Some(65534)).unwrap();
    let as_nobody = |script: &str| run(as_user(65534, 65534).args(["bash", "-c", script]).current_dir(&directory));
    for (call, refused) in [
        (format!("setfattr -n {PROJECT} -v 1 ."), "not permitted"),
        (format!("setfattr -x {PROJECT} ."), "not permitted"),
        (format!("getfattr -n {PROJECT} ."), "No such attribute"),
    ] {
        let output = as_nobody(&call);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(refused), "{call}: {said}");
    }
    let made = as_nobody("echo f >f && getfattr -d -m - f .");
    assert!(made.status.success() && made.stdout.is_empty(), "{made:?}");
    assert_eq!(project(&directory.join("f")).unwrap(), "7600123");
    let listed = run_ok(Command::new("getfattr").args(["-d", "-m", "-"]).arg(directory.join("f")));
    assert_eq!(listed, "");
}
