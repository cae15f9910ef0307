//! A line of /etc/fstab, as mount(8) reads it, once its server has died.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;
use tensorfs_tests::{Passthrough, Setup, is_root, nobody_unmounts, on_mounts, run};

on_mounts!(a_server_that_has_died_is_replaced_or_mounted_anew);

/// Where mount(8) looks for what it runs; a link, mostly.
const HELPERS: &str = "/sbin";

/// What is mounted there in a thread's own mounts, as long as this is.
struct InMemory(TempDir);

impl InMemory {
    fn begin() -> Self {
        let (room, none) = (tempfile::tempdir().unwrap(), None::<&str>);
        mount(Some("tmpfs"), room.path(), Some("tmpfs"), MsFlags::empty(), none).unwrap();
        Self(room)
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        // The place itself is of all mounts, and could not be removed.
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

/// Runs a test in mounts of its own, in which mount(8) finds the program. False if that cannot be had.
fn with_a_helper(test: impl FnOnce() + Send + 'static) -> bool {
    let done = thread::spawn(move || {
        let alone = nobody_unmounts();
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        // Mounts of other tests are none of its business.
        let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        for line in table.lines().filter(|line| line.contains(" - fuse.tensorfs ")) {
            let _ = umount2(line.split(' ').nth(4).unwrap(), MntFlags::MNT_DETACH);
        }
        drop(alone);
        let room = InMemory::begin();
        let (own, work) = (room.0.path().join("own"), room.0.path().join("work"));
        fs::create_dir(&own).unwrap();
        fs::create_dir(&work).unwrap();
        symlink(tensorfs_tests::tensorfs().get_program(), own.join("mount.tensorfs")).unwrap();
        let helpers = fs::canonicalize(HELPERS).unwrap();
        let data = format!("lowerdir={},upperdir={},workdir={}", helpers.display(), own.display(), work.display());
        if mount(Some("overlay"), &helpers, Some("overlay"), MsFlags::empty(), Some(&*data)).is_err() {
            return false;
        }
        test();
        true
    });
    done.join().unwrap()
}

/// `mount -a` takes a dead mount for one that is there, and says nothing: with `keeper` it need not be asked.
fn a_server_that_has_died_is_replaced_or_mounted_anew(setup: Setup) {
    if !is_root() || setup.mount_is_plain() {
        return setup.skip("reads a line of /etc/fstab as root");
    }
    let name = setup.clone();
    let done = with_a_helper(move || {
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
    if !done {
        name.skip("nothing can be laid over the helpers of mount(8)");
    }
}
