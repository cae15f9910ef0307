//! A line of /etc/fstab, as mount(8) reads it, once its server has died.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use tensorfs_tests::{Passthrough, Setup, is_root, on_mounts, run};

on_mounts!(a_server_that_has_died_is_replaced_or_mounted_anew);

/// Where mount(8) looks for what it runs.
const HELPERS: &str = "/usr/sbin";

/// Runs a test in mounts of its own, in which mount(8) finds the program.
fn with_a_helper(test: impl FnOnce() + Send + 'static) {
    let done = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        // Mounts of other tests are none of its business.
        let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        for line in table.lines().filter(|line| line.contains(" - fuse.tensorfs ")) {
            let _ = umount2(line.split(' ').nth(4).unwrap(), MntFlags::MNT_DETACH);
        }
        let room = tempfile::tempdir().unwrap();
        mount(Some("tmpfs"), room.path(), Some("tmpfs"), MsFlags::empty(), none).unwrap();
        let (own, work) = (room.path().join("own"), room.path().join("work"));
        fs::create_dir(&own).unwrap();
        fs::create_dir(&work).unwrap();
        symlink(tensorfs_tests::tensorfs().get_program(), own.join("mount.tensorfs")).unwrap();
        let data = format!("lowerdir={HELPERS},upperdir={},workdir={}", own.display(), work.display());
        mount(Some("overlay"), HELPERS, Some("overlay"), MsFlags::empty(), Some(&*data)).unwrap();
        test();
        // The place itself is of all mounts.
        umount2(room.path(), MntFlags::MNT_DETACH).unwrap();
    });
    done.join().unwrap();
}

/// `mount -a` takes a dead mount for one that is there, and says nothing: with `keeper` it need not be asked.
fn a_server_that_has_died_is_replaced_or_mounted_anew(setup: Setup) {
    if !is_root() || setup.mount_is_plain() {
        return setup.skip("reads a line of /etc/fstab as root");
    }
    with_a_helper(move || {
        let mode = if setup.passthrough() == Passthrough::On { "on" } else { "off" };
        let mut mount = setup.mount();
        mount.umount();
        let table = mount.host().join("fstab");
        let line = |options: &str| {
            let (pool, at, log) = (mount.pool().display(), mount.path().display(), mount.log_path());
            let log = log.display();
            format!("{pool} {at} tensorfs defaults,nofail,passthrough={mode},log={log}{options} 0 0\n")
        };
        let lines = [line(",keeper"), line("")];
        let by = |arguments: &[&Path]| -> Output { run(Command::new("mount").arg("-T").arg(&table).args(arguments)) };
        let all = || {
            let done = by(&[Path::new("-a")]);
            assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
        };
        let text = mount.at("f");
        fs::write(&table, &lines[0]).unwrap();
        all();
        fs::write(&text, "text").unwrap();
        mount.adopt();
        mount.kill_server();
        assert_eq!(fs::read(&text).unwrap(), b"text");
        all();
        mount.umount();
        // And where nobody watches.
        fs::write(&table, &lines[1]).unwrap();
        all();
        mount.adopt();
        mount.kill9();
        all();
        let error = fs::read(&text).unwrap_err().raw_os_error().unwrap();
        assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&error), "{error}");
        let done = by(&[mount.path()]);
        assert!(done.status.success(), "{done:?}");
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(said.contains("detaching the mount") && said.contains("server was killed"), "{said}");
        assert_eq!(fs::read(&text).unwrap(), b"text");
        mount.adopt();
        all();
        mount.umount();
    });
}
