//! What a server can do that is taken over: the process that `tensorfs-test-child confined` becomes has given up its
//! rights as a server with a keeper does.

use std::fs::{self, Permissions};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Command, Stdio};

use tensorfs_tests::{Passthrough, Setup, copy_program, is_root, program, run_ok, skip, wait_until};

/// What is refused, and how. `OUTSIDE` is a file beside the pool, of the same owner; `ABSTRACT` a socket that the
/// service manager had told the server of, which it needs no more: its keeper has the word there.
const REFUSED: [(&str, i32); 42] = [
    ("read OUTSIDE", libc::EACCES),
    ("read /etc/shadow", libc::EACCES),
    ("read /root/.bashrc", libc::EACCES),
    ("list /sys/kernel", libc::EACCES),
    ("read /sys/kernel/oops_count", libc::EACCES),
    ("write OUTSIDE", libc::EACCES),
    ("make OUTSIDE", libc::EACCES),
    ("remove OUTSIDE", libc::EACCES),
    ("rename OUTSIDE", libc::EACCES),
    ("link OUTSIDE", libc::EXDEV),
    ("list OUTSIDE", libc::EACCES),
    ("chmod OUTSIDE", libc::EPERM),
    ("chmod2 OUTSIDE", libc::EPERM),
    ("chmod_open", libc::EPERM),
    ("chown OUTSIDE", libc::EPERM),
    ("utimes OUTSIDE", libc::EPERM),
    ("setxattr OUTSIDE", libc::EPERM),
    ("exec", libc::EACCES),
    ("setuid", libc::EPERM),
    ("kill", libc::EPERM),
    ("ptrace", libc::EPERM),
    ("memory", libc::EACCES),
    ("environment", libc::EACCES),
    ("copy", libc::EPERM),
    ("limit", libc::EPERM),
    ("tcp", libc::EPERM),
    ("udp", libc::EPERM),
    ("netlink", libc::EPERM),
    ("stream", libc::EPERM),
    ("abstract ABSTRACT", libc::EPERM),
    ("mount", libc::EPERM),
    ("unmount", libc::EPERM),
    ("namespace", libc::EPERM),
    ("clone", libc::EPERM),
    ("clone3", libc::ENOSYS),
    ("bpf", libc::EPERM),
    ("io_uring", libc::EPERM),
    ("module", libc::EPERM),
    ("chroot", libc::EPERM),
    ("handle", libc::EPERM),
    ("kernel", libc::EACCES),
    ("terminal", libc::EPERM),
];

/// A user that is nobody's in particular.
const SOMEBODY: u32 = 54_321;

/// A server that is taken over reaches its pool, and can do nothing elsewhere, whether the pool is root's or not.
/// Proves P5.
#[test]
fn a_server_that_is_taken_over_reaches_its_pool_alone() {
    let name = "a_server_that_is_taken_over_reaches_its_pool_alone";
    if !is_root() {
        return skip(name, "root's rights are to be given up");
    }
    for owner in [0, SOMEBODY] {
        let room = tempfile::tempdir().unwrap();
        // Others may pass, as at the way to a pool.
        fs::set_permissions(room.path(), Permissions::from_mode(0o755)).unwrap();
        let (pool, outside) = (room.path().join("pool"), room.path().join("outside"));
        fs::create_dir(&pool).unwrap();
        fs::write(&outside, "secret").unwrap();
        for path in [&pool, &outside] {
            chown(path, Some(owner), Some(owner)).unwrap();
        }
        let manager = format!("tensorfs-test-{}-{owner}", std::process::id());
        let address = SocketAddr::from_abstract_name(&manager).unwrap();
        let _heard = UnixDatagram::bind_addr(&address).unwrap();
        let child = program("tensorfs-test-child").get_program().to_owned();
        // The way to a test's program need not be open to others.
        let own = room.path().join("child");
        copy_program(&child, &own);
        let try_to = |what: &str| {
            let what = what.replace("OUTSIDE", outside.to_str().unwrap()).replace("ABSTRACT", &manager);
            let mut command = std::process::Command::new(&own);
            command.arg("confined").arg(&pool).arg(what).stdout(Stdio::null());
            command.env("NOTIFY_SOCKET", format!("@{manager}"));
            command.output().unwrap()
        };
        let first = try_to("pool");
        if first.status.code() == Some(255) {
            return skip(name, &format!("the kernel cannot lock it in: {}", String::from_utf8_lossy(&first.stderr)));
        }
        for what in ["pool", "thread", "process", "read /proc/self/status", "read /proc/1/status"] {
            let ended = try_to(what);
            assert_eq!(ended.status.code(), Some(0), "{what}: {}", String::from_utf8_lossy(&ended.stderr));
        }
        let before = look(&outside);
        for (what, how) in REFUSED {
            let ended = try_to(what);
            let expected = if owner != 0 && what.starts_with("device") { libc::EACCES } else { how };
            assert_eq!(ended.status.code(), Some(expected), "owner {owner}, {what}: {}", ended.status);
        }
        assert!(try_to("device").status.code() != Some(0));
        assert_eq!(look(&outside), before);
        assert_eq!(fs::read_dir(&pool).unwrap().count(), 0);
    }
}

fn look(path: &Path) -> (u32, u32, i64, Vec<u8>) {
    let found = fs::metadata(path).unwrap();
    (found.mode(), found.uid(), found.mtime(), fs::read(path).unwrap())
}

/// What another process of the owner's can do to a server that runs as him: nothing but what a signal does, which its
/// keeper mends. `SERVER` and `KEEPER` are their processes.
const BY_OTHERS: [(&str, &str); 8] = [
    ("open(f'/proc/{SERVER}/mem', 'r+b', 0)", "PermissionError"),
    ("open(f'/proc/{SERVER}/environ').read()", "PermissionError"),
    ("open(f'/proc/{SERVER}/maps').read()", "PermissionError"),
    ("os.listdir(f'/proc/{SERVER}/fd')", "PermissionError"),
    ("call(libc.ptrace, 16, SERVER, 0, 0)", "PermissionError"),
    ("call(libc.syscall, 438, os.pidfd_open(SERVER), 0, 0)", "PermissionError"),
    ("os.kill(KEEPER, 9)", "PermissionError"),
    ("os.kill(SERVER, 9)", "done"),
];

/// Proves P5.
#[test]
fn a_server_of_a_user_is_not_looked_into_by_his_other_processes() {
    tensorfs_tests::needs_mount!();
    let name = "a_server_of_a_user_is_not_looked_into_by_his_other_processes";
    if !is_root() {
        return skip(name, "root's rights are to be given up");
    }
    let mut mount = Setup::new(name, Passthrough::Off).mount_with(["-o", "keeper"]).mount();
    if mount.is_plain() {
        return;
    }
    // From now on the pool is somebody's.
    mount.umount();
    fs::set_permissions(mount.pool().parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    run_ok(Command::new("chown").arg("-R").arg(format!("{SOMEBODY}:{SOMEBODY}")).arg(mount.pool()));
    mount.mount();
    fs::write(mount.at("f"), "kept").unwrap();
    mount.sync();
    let info = mount.info();
    let (server, keeper) = (info["pid"].to_string(), info["keeper"]["pid"].to_string());
    assert!(fs::read_to_string(format!("/proc/{server}/status")).unwrap().contains(&format!("Uid:\t{SOMEBODY}\t")));
    for (what, how) in BY_OTHERS {
        let program = format!(
            "import ctypes, os
os.setgroups([])
os.setgid({SOMEBODY})
os.setuid({SOMEBODY})
libc = ctypes.CDLL(None, use_errno=True)
def call(function, *arguments):
    if function(*arguments) < 0:
        raise OSError(ctypes.get_errno(), '')
try:
    {}
    print('done')
except OSError as error:
    print(type(error).__name__)",
            what.replace("{SERVER}", &server).replace("SERVER", &server).replace("KEEPER", &keeper)
        );
        // It begins as root, so that Python is his whatever its directories allow.
        let said = run_ok(Command::new("python3").args(["-c", &program]));
        assert_eq!(said.trim(), how, "{what}");
    }
    wait_until("another server", || fs::read(mount.at("f")).is_ok_and(|read| read == b"kept"));
    mount.adopt();
    assert_ne!(mount.info()["pid"].to_string(), server);
}
