//! What whoever mounts or upgrades has open is not open in what comes of it, and outlives him.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::fcntl::{Flock, FlockArg};
use tensorfs_tests::{Mount, Setup, on_mounts, wait_until};

on_mounts!(
    nothing_that_whoever_mounts_has_open_is_kept,
    a_server_in_the_foreground_has_no_standard_input_of_its_keepers,
    a_log_that_is_named_by_its_descriptor_is_written_to,
    a_keeper_has_nothing_of_the_mount_that_whoever_upgrades_had_open,
);

/// A shell that has opened what `opened` says, and becomes that program.
fn shell(opened: &str, files: &[&Path], program: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{opened}; shift 2; exec \"$@\""), "sh"]);
    shell.args(files).arg(program.get_program()).args(program.get_args());
    shell
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Those of the server, and of its keeper if it has one.
fn descriptors(mount: &Mount) -> Vec<PathBuf> {
    let info = mount.info();
    let pids = [&info["pid"], &info["keeper"]["pid"]].into_iter().filter_map(|pid| pid.as_i64());
    let all = pids.flat_map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).unwrap());
    all.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok()).collect()
}

fn secret(mount: &Mount, name: &str) -> PathBuf {
    let path = mount.host().join(name);
    File::options().write(true).create_new(true).mode(0o600).open(&path).unwrap();
    path
}

/// A server that has given up its rights could read what it may not open, and a lock lasted as long as the mount.
///
/// Proves P5.
fn nothing_that_whoever_mounts_has_open_is_kept(setup: Setup) {
    for keeper in [false, true] {
        let mut mount = if keeper { setup.clone().mount_with(["-o", "keeper"]).mount() } else { setup.clone().mount() };
        if mount.is_plain() {
            return;
        }
        mount.umount();
        let (own, lock) = (secret(&mount, "secret"), secret(&mount, "lock"));
        let open = "exec 8<\"$1\" 7>\"$2\"; flock -n 7 || exit 1";
        let mut mounting = shell(open, &[&own, &lock], &mount.mounting());
        succeeded(&mounting.output().unwrap());
        mount.adopt();
        let held = |mount: &Mount| descriptors(mount).into_iter().find(|path| [&own, &lock].contains(&path));
        assert_eq!(held(&mount), None, "keeper: {keeper}");
        let locked = Flock::lock(File::open(&lock).unwrap(), FlockArg::LockExclusiveNonblock);
        assert!(locked.is_ok(), "the lock is held");
        if keeper {
            mount.kill_server();
            assert_eq!(held(&mount), None);
            let mut upgrade = mount.program();
            upgrade.arg("upgrade").arg(mount.path());
            succeeded(&shell("exec 8<\"$1\" 7>\"$2\"", &[&own, &lock], &upgrade).output().unwrap());
            mount.adopt();
            assert_eq!(held(&mount), None);
            mount.kill_keeper();
            wait_until("word of the death", || mount.info()["keeper"]["pid"].is_null());
            succeeded(&shell("exec 8<\"$1\" 7>\"$2\"", &[&own, &lock], &upgrade).output().unwrap());
            mount.adopt();
            assert_eq!(held(&mount), None);
        }
        mount.umount();
    }
}

/// A mount in the foreground, once it is there.
fn in_the_foreground(mount: &mut Mount, command: &mut Command) -> Child {
    let mut child = command.spawn().unwrap();
    wait_until("the mount", || {
        assert_eq!(child.try_wait().unwrap(), None, "{}", mount.log());
        mount.info()["state"] == "mounted"
    });
    mount.adopt();
    child
}

/// Proves P5.
fn a_server_in_the_foreground_has_no_standard_input_of_its_keepers(setup: Setup) {
    let mut mount = setup.mount_with(["-o", "keeper"]).mount();
    if mount.is_plain() {
        return;
    }
    mount.umount();
    let (read, written) = (secret(&mount, "read"), secret(&mount, "written"));
    let mut mounting = mount.mounting();
    mounting.arg("--foreground").stdin(File::open(&read).unwrap());
    mounting.stdout(File::options().read(true).write(true).open(&written).unwrap()).stderr(Stdio::null());
    let mut child = in_the_foreground(&mut mount, &mut mounting);
    let server = mount.pid().unwrap();
    for number in 0..3 {
        let open = fs::read_link(format!("/proc/{server}/fd/{number}")).unwrap();
        assert_eq!(open, Path::new("/dev/null"), "{number}");
    }
    mount.umount();
    assert!(child.wait().unwrap().success());
    mount.mount();
}

/// What is named is meant.
///
/// Proves P5.
fn a_log_that_is_named_by_its_descriptor_is_written_to(setup: Setup) {
    let mut mount = setup.mount_with(["-o", "keeper"]).mount();
    if mount.is_plain() {
        return;
    }
    mount.umount();
    let log = mount.host().join("log");
    let mut mounting = mount.program();
    mounting.args(["mount", "-o", "keeper", "--log", "/dev/fd/9"]).arg(mount.pool()).arg(mount.path());
    let logged = |what: &str| fs::read_to_string(&log).unwrap().contains(what);
    succeeded(&shell("exec 9>>\"$1\"", &[&log, &log], &mounting).output().unwrap());
    assert!(logged("mounted at"));
    let server = mount.info()["pid"].as_i64().unwrap();
    // SAFETY: plain system call. The pid was asked of the server that runs.
    assert_eq!(unsafe { libc::kill(server as i32, libc::SIGKILL) }, 0);
    wait_until("word of the death", || logged("the server died (SIGKILL)"));
    succeeded(&mount.tensorfs([Path::new("umount"), mount.path()]));
    wait_until("word of the end", || logged("closed"));
    mount.mount();
}

/// It would keep the mount busy, and a server that ends would wait for itself.
///
/// Proves P5, K4.
fn a_keeper_has_nothing_of_the_mount_that_whoever_upgrades_had_open(setup: Setup) {
    let mut mount = setup.mount_with(["-o", "keeper"]).mount();
    if mount.is_plain() {
        return;
    }
    let file = mount.at("f");
    fs::write(&file, "text").unwrap();
    for how in ["exec 5<\"$1\"", "exec 5<>\"$1\""] {
        mount.kill_keeper();
        wait_until("word of the death", || mount.info()["keeper"]["pid"].is_null());
        let mut upgrade = mount.program();
        upgrade.arg("upgrade").arg(mount.path()).arg("--log").arg(mount.log_path());
        succeeded(&shell(how, &[&file, &file], &upgrade).output().unwrap());
        mount.adopt();
        let inside = |path: &PathBuf| path.starts_with(mount.path());
        assert_eq!(descriptors(&mount).iter().find(|path| inside(path)), None);
        succeeded(&upgrade.output().unwrap());
        mount.adopt();
        assert_eq!(fs::read(&file).unwrap(), b"text");
    }
    mount.umount();
    mount.mount();
}
