//! `tensorfs mount`: what it needs, what it says, and that a start that fails leaves nothing.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::mount::MsFlags;
use serde_json::Value;
use tensorfs_tests::{
    LEAVE_MOUNTS, as_user, has_ended, is_root, needs_mount, nobody_unmounts, run, skip, tensorfs, wait_for_end,
    wait_until,
};

use super::{LOG, Room, busy, failure, mounts, said, servers_of};

#[test]
fn mount_create_makes_what_was_left_half_made() {
    needs_mount!();
    let room = Room::new();
    fs::create_dir_all(room.at("pool/segments")).unwrap();
    room.ok(["mount", "--create", "pool", "mnt", "--log", "server.log"]);
    fs::write(room.at("mnt/x"), "x").unwrap();
    room.ok(["umount", "mnt"]);
    room.ok(["mount", "--create", "pool", "mnt", "--log", "server.log"]);
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"x");
}

/// The dead mount of another filesystem is not ours to take away.
#[test]
fn a_foreign_dead_mount_is_left_alone() {
    needs_mount!();
    let name = "cli::a_foreign_dead_mount_is_left_alone";
    if !is_root() {
        return skip(name, "only root mounts without fusermount3");
    }
    let room = Room::with_pool();
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", std::os::fd::AsRawFd::as_raw_fd(&device));
    let flags = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("host:"), &room.at("mnt"), Some("fuse.other"), flags, Some(data.as_str())).unwrap();
    drop(device);
    let refused = room.fails(["mount", "pool", "mnt", "--log", "server.log"]);
    let still = mounts().contains(&room.at("mnt"));
    nix::mount::umount2(&room.at("mnt"), nix::mount::MntFlags::MNT_DETACH).unwrap();
    assert!(still, "{refused}");
    assert!(refused.contains("fuse.other"), "{refused}");
    room.mount("pool", "mnt");
}

/// A mount of this process's, and the descriptor that a server is to be given.
pub fn mounted_for(room: &Room, user: u32) -> OwnedFd {
    mounted_with(room, user, MsFlags::MS_NOSUID | MsFlags::MS_NODEV)
}

fn mounted_with(room: &Room, user: u32, flags: MsFlags) -> OwnedFd {
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id={user},group_id={user},allow_other", device.as_raw_fd());
    let (pool, at) = (room.at("pool"), room.at("mnt"));
    nix::mount::mount(Some(&pool), &at, Some("fuse.tensorfs"), flags, Some(data.as_str())).unwrap();
    // A copy that is inherited.
    let device = OwnedFd::from(device);
    fcntl(&device, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    device
}

/// A driver of Kubernetes, or mount.fuse3 with `drop_privileges`, mounts; the server has no privilege at all.
#[test]
fn what_somebody_else_has_mounted_is_served_without_privilege() {
    needs_mount!();
    let name = "cli::what_somebody_else_has_mounted_is_served_without_privilege";
    if !is_root() {
        return skip(name, "only root mounts for others");
    }
    const USER: u32 = 65534;
    let room = Room::with_pool();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(room.at(""), everybody).unwrap();
    assert!(Command::new("chown").args(["-R", "65534:65534"]).arg(room.at("pool")).status().unwrap().success());
    let serve = |device: OwnedFd, foreground: bool| {
        let mut server = Command::new("setpriv");
        server.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]);
        server.arg(tensorfs().get_program()).arg("mount").arg(room.at("pool"));
        server.arg(format!("/dev/fd/{}", device.as_raw_fd())).current_dir("/");
        if foreground {
            server.arg("--foreground").stderr(File::create(room.at("stderr")).unwrap());
        }
        server.spawn().unwrap()
    };
    let (file, text) = (room.at("mnt/dir/file"), "of root");
    for (round, foreground) in [true, false].into_iter().enumerate() {
        let device = mounted_for(&room, USER);
        let mut server = Some(serve(device, foreground));
        if !foreground {
            assert_eq!(server.take().unwrap().wait().unwrap().code(), Some(0), "it serves when this returns");
        }
        fs::create_dir_all(room.at("mnt/dir")).unwrap();
        fs::write(&file, format!("{text} {round}")).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), format!("{text} {round}"));
        // Permissions count, though who mounted did not ask the kernel for that.
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let read = run(as_user(1234, 1234).arg("cat").arg(&file));
        assert!(!read.status.success() && said(&read).contains("Permission denied"), "{}", said(&read));
        let info: Value = serde_json::from_str(&room.ok(["info", "--json", "mnt"])).unwrap();
        assert_eq!(info["mountpoint"], room.at("mnt").to_str().unwrap());
        let pid = info["pid"].as_i64().unwrap() as i32;
        // Whoever made it unmounts it.
        nix::mount::umount(&room.at("mnt")).unwrap();
        match server {
            Some(mut server) => {
                let said = fs::read_to_string(room.at("stderr")).unwrap();
                assert_eq!(server.wait().unwrap().code(), Some(0), "{said}");
            }
            None => wait_for_end(pid),
        }
        assert!(room.ok(["info", "pool"]).contains("closed"), "{}", room.ok(["info", "pool"]));
    }
    // Who ends the server, and not the mount, finds all there the next time.
    let mut server = serve(mounted_for(&room, USER), true);
    fs::write(&file, "more").unwrap();
    // Only the kernel knows of what is stored so.
    let stored = room.at("mnt/dir/stored");
    fs::write(&stored, vec![1; 30 << 20]).unwrap();
    let opened = File::options().read(true).write(true).open(&stored).unwrap();
    opened.sync_all().unwrap();
    // SAFETY: nobody makes the file shorter while it is mapped.
    let mut mapped = unsafe { memmap2::MmapMut::map_mut(&opened).unwrap() };
    mapped[..20 << 20].fill(2);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(server.id() as i32), nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0), "{}", fs::read_to_string(room.at("stderr")).unwrap());
    assert!(fs::read(&file).is_err() && mounts().contains(&room.at("mnt")), "it is for others to unmount it");
    nix::mount::umount2(&room.at("mnt"), nix::mount::MntFlags::MNT_DETACH).unwrap();
    room.ok(["mount", "pool", "mnt", "--log", "server.log"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "more");
    drop((mapped, opened));
    let expected = [vec![2; 20 << 20], vec![1; 10 << 20]].concat();
    assert!(fs::read(&stored).unwrap() == expected, "what was stored through a mapping");
}

/// The server sees no mount, and so does not know on which device its files are. Processes it sees, and power is lost
/// when one of them has closed a descriptor, and not the other one.
#[test]
fn a_descriptor_that_is_closed_ends_no_replace_where_the_mount_is_not_seen() {
    needs_mount!();
    let name = "cli::a_descriptor_that_is_closed_ends_no_replace_where_the_mount_is_not_seen";
    if !is_root() {
        return skip(name, "only root mounts for others");
    }
    let room = Room::with_pool();
    let device = mounted_for(&room, 0);
    let at = format!("/dev/fd/{}", device.as_raw_fd());
    let mut server = Command::new("unshare");
    // This one is not seen there either.
    let script = format!("{LEAVE_MOUNTS} echo ready; exec \"$@\"");
    server.args(["--mount", "sh", "-c", &script, "sh"]);
    server.arg(tensorfs().get_program()).args(["mount", "--foreground", "--durability", "close"]);
    let alone = nobody_unmounts();
    let mut server = server.arg(room.at("pool")).arg(&at).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    drop(alone);
    assert_eq!(line, "ready\n");
    drop(device);
    let (file, old) = (room.at("mnt/f"), vec![1; 100_000]);
    fs::write(&file, &old).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    for target in ["mnt", "pool"] {
        let info: Value = serde_json::from_str(&room.ok(["info", "--json", target])).unwrap();
        // Whoever asks is told where he has it.
        assert_eq!(info["mountpoint"], room.at("mnt").to_str().unwrap());
    }
    let script = "exec 3> \"$1\"; head -c 50000 /dev/zero >&3; exec 4>&3; exec 4>&-; echo closed; read wait";
    let mut writer = Command::new("bash");
    writer.args(["-c", script, "bash"]).arg(&file).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut writer = writer.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(writer.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "closed\n");
    server.kill().unwrap();
    server.wait().unwrap();
    writer.kill().unwrap();
    writer.wait().unwrap();
    nix::mount::umount2(&room.at("mnt"), nix::mount::MntFlags::MNT_DETACH).unwrap();
    wait_until("nobody has the pool", || tensorfs_layout::testing::change_boot_id(&room.at("pool")).is_ok());
    room.mount("pool", "mnt");
    assert!(fs::read(&file).unwrap() == old, "what was written when power was lost was not all");
}

/// Where the kernel says what is mounted on a descriptor, what cannot be served well is refused, and the pool's path is
/// not asked for: nobody would answer.
#[test]
fn what_somebody_else_has_mounted_wrongly_is_refused() {
    needs_mount!();
    let name = "cli::what_somebody_else_has_mounted_wrongly_is_refused";
    if !is_root() {
        return skip(name, "only root mounts for others");
    }
    let room = Room::with_pool();
    let refused = |flags: MsFlags, pool: &Path| {
        let device = mounted_with(&room, 0, flags);
        let told = fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd())).unwrap();
        let known = told.contains("fuse_connection:");
        let at = format!("/dev/fd/{}", device.as_raw_fd());
        let mut command = room.command();
        command.args(["mount".as_ref(), "--foreground".as_ref(), pool.as_os_str(), at.as_ref()]);
        let said =
            known.then(|| run(Command::new("timeout").arg("60").arg(command.get_program()).args(command.get_args())));
        nix::mount::umount2(&room.at("mnt"), nix::mount::MntFlags::MNT_DETACH).unwrap();
        said.map(|said| failure(&said))
    };
    let both = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    symlink("mnt/pool", room.at("link")).unwrap();
    let cases = [
        (MsFlags::MS_NOSUID, room.at("pool"), "without nodev"),
        (MsFlags::MS_NODEV, room.at("pool"), "without nosuid"),
        (both, room.at("mnt/pool"), "inside its mount point"),
        (both, room.at("link"), "inside its mount point"),
    ];
    for (flags, pool, why) in cases {
        let Some(line) = refused(flags, &pool) else {
            return skip(name, "this kernel does not say what is mounted on a descriptor (Linux 6.18)");
        };
        assert!(line.starts_with(room.at("mnt").to_str().unwrap()) && line.contains(why), "{line}");
    }
}

#[test]
fn a_descriptor_that_is_none_of_fuse_is_no_mount_point() {
    let room = Room::with_pool();
    for (at, why) in [("/dev/fd/1", "standard"), ("/dev/fd/77", "not open here")] {
        let refused = room.fails(["mount", "pool", at]);
        assert!(refused.contains(at) && refused.contains(why), "{refused}");
    }
}

#[test]
fn not_a_pool() {
    let room = Room::with_pool();
    fs::create_dir(room.at("empty")).unwrap();
    fs::write(room.at("file"), "x").unwrap();
    let sound = fs::read(room.at("pool").join(LOG)).unwrap();
    let damage = |name: &str, bytes: &[u8]| {
        let dir = room.at(name);
        let status = Command::new("cp").arg("-a").arg(room.at("pool")).arg(&dir).status().unwrap();
        assert!(status.success());
        fs::write(dir.join(LOG), bytes).unwrap();
    };
    damage("emptied", b"");
    damage("short", &sound[..100]);
    damage("foreign", &b"MZ\x90 a program ".repeat(300_000));
    damage("zeroes", &vec![0; sound.len()]);
    for name in ["empty", "file", "emptied", "short", "foreign", "zeroes"] {
        let expected = format!("{}: not a tensorfs pool (", room.at(name).display());
        for command in [vec!["info", name], vec!["mount", name, "mnt"], vec!["mount", "-f", name, "mnt"]] {
            let line = room.fails(&command);
            assert!(line.starts_with(&expected) && line.ends_with(')'), "{command:?}: {line}");
        }
    }
    for command in [vec!["info", "none"], vec!["mount", "none", "mnt"]] {
        let line = room.fails(&command);
        assert!(line.contains("none: ") && line.to_lowercase().contains("no such"), "{line}");
    }
    assert!(!room.is_mounted("mnt"));
}

#[test]
fn mount_returns_when_it_serves() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let pid = room.pid("mnt");
    assert_eq!(room.pid("pool"), pid);
    // A process of its own, without the caller's terminal, directory or descriptors.
    let process = PathBuf::from(format!("/proc/{pid}"));
    let stat = fs::read_to_string(process.join("stat")).unwrap();
    let session = stat.rsplit(") ").next().unwrap().split(' ').nth(3).unwrap();
    assert_eq!(session, pid.to_string());
    assert_eq!(fs::read_link(process.join("cwd")).unwrap(), Path::new("/"));
    for fd in ["fd/0", "fd/1", "fd/2"] {
        assert_eq!(fs::read_link(process.join(fd)).unwrap(), Path::new("/dev/null"));
    }
    let limits = fs::read_to_string(process.join("limits")).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = files.split_whitespace().filter(|word| word.parse::<u64>().is_ok()).collect();
    assert_eq!(numbers[0], numbers[1], "the limit of open files is raised: {files}");
    let table = String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").unwrap()).into_owned();
    let mount = table.lines().find(|line| line.contains(&room.at("mnt").display().to_string())).unwrap();
    let expected = format!(" - fuse.tensorfs {} ", room.at("pool").display());
    assert!(mount.contains(&expected), "{mount}");
    assert!(mount.contains("nosuid,nodev") && mount.contains("default_permissions"), "{mount}");
    room.ok(["umount", "mnt"]);
    assert!(!room.is_mounted("mnt"));
    assert!(has_ended(pid), "umount waits for the server");
}

#[test]
fn mount_create_makes_everything() {
    needs_mount!();
    let room = Room::new();
    let arguments = ["mount", "--create", "new/pool", "new/mnt", "-o", "size=64M,layout=mine", "--log", "server.log"];
    room.ok(arguments);
    fs::write(room.at("new/mnt/x"), "x").unwrap();
    let info = room.info("new/mnt");
    assert_eq!((&info["limit"], &info["layout"]), (&(64 << 20).into(), &"mine".into()));
    room.ok(["umount", "new/mnt"]);
    room.ok(arguments);
    assert_eq!(fs::read(room.at("new/mnt/x")).unwrap(), b"x", "a pool that is there is left alone");
    room.ok(["umount", "new/pool"]);
    fs::create_dir(room.at("foreign")).unwrap();
    fs::write(room.at("foreign/x"), "x").unwrap();
    assert!(room.fails(["mount", "--create", "foreign", "mnt"]).contains("not a tensorfs pool"));
}

#[test]
fn mounted_already() {
    needs_mount!();
    let room = Room::mounted();
    let busy = busy(&room);
    assert_eq!(room.fails(["mount", "pool", "mnt"]), busy);
    assert_eq!(room.fails(["mount", "pool", "other"]), busy);
    assert_eq!(room.fails(["mount", "-f", "pool", "other"]), busy);
    room.ok(["create", "pool2"]);
    let (mnt, pool, pid) = (room.at("mnt"), room.at("pool"), room.pid("pool"));
    let (mnt, pool) = (mnt.display(), pool.display());
    let expected = format!("{mnt}: the pool {pool} is mounted here already by process {pid}");
    assert_eq!(room.fails(["mount", "pool2", "mnt"]), expected);
}

#[test]
fn of_many_mounts_at_once_one_wins() {
    needs_mount!();
    let room = Room::with_pool();
    let start = |_| {
        let mut command = room.command();
        command.args(["mount", "pool", "mnt", "--log", "server.log"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = (0..6).map(start).collect();
    let outputs: Vec<_> = started.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let won = outputs.iter().filter(|output| output.status.success()).count();
    assert_eq!(won, 1, "{:?}", outputs.iter().map(said).collect::<Vec<_>>());
    fs::write(room.at("mnt/x"), "x").unwrap();
    room.ok(["umount", "mnt"]);
    assert!(!room.is_mounted("mnt"));
}

/// The kernel gives a device number out again at once: nobody may take another's mount for their own old one. And its
/// table of mounts, read while others come and go, must not seem to lack one.
#[test]
fn mounts_of_many_pools_come_and_go() {
    needs_mount!();
    let room = Room::new();
    std::thread::scope(|threads| {
        for n in 0..4 {
            let room = &room;
            threads.spawn(move || {
                let (pool, mnt) = (format!("pool{n}"), format!("mnt{n}"));
                for round in 0..8 {
                    room.ok(["mount", "--create", &pool, &mnt, "--log", "server.log"]);
                    fs::write(room.at(&mnt).join("x"), round.to_string()).unwrap();
                    assert_eq!(room.info(&pool)["mountpoint"], room.at(&mnt).to_str().unwrap());
                    assert_eq!(fs::read_to_string(room.at(&mnt).join("x")).unwrap(), round.to_string());
                    room.ok(["umount", &mnt]);
                }
                assert_eq!(room.info(&pool)["unsafe_shutdowns"], 0);
            });
        }
    });
}

#[test]
fn another_mount_namespace() {
    needs_mount!();
    let name = "cli::another_mount_namespace";
    let possible = Command::new("unshare").args(["-m", "true"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return skip(name, "unshare -m does not work here");
    }
    let room = Room::with_pool();
    let script = "\"$0\" mount pool mnt --log server.log && echo mounted && read end; \"$0\" umount mnt";
    let script = format!("{LEAVE_MOUNTS}{script}");
    let mut inside = Command::new("unshare");
    inside.args(["-m", "sh", "-c", &script]).arg(tensorfs().get_program()).current_dir(room.dir.path());
    let alone = nobody_unmounts();
    let mut inside = inside.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(inside.stdout.take().unwrap()).read_line(&mut line).unwrap();
    drop(alone);
    assert_eq!(line, "mounted\n", "{}", room.log());
    assert!(!room.is_mounted("mnt"));
    let pid = room.pid("pool");
    let expected = format!("in use by process {pid}, but not mounted where this process can see it");
    assert!(room.fails(["umount", "pool"]).ends_with(&expected));
    drop(inside.stdin.take());
    assert!(inside.wait().unwrap().success());
    assert_eq!(room.info("pool")["state"], "clean");
}

#[test]
fn paths_that_hide_each_other() {
    let room = Room::with_pool();
    fs::create_dir(room.at("pool/inside")).unwrap();
    symlink("pool", room.at("link")).unwrap();
    for (pool, mountpoint) in [("pool", "pool"), ("pool", "pool/inside"), ("pool", "."), ("link", "pool/inside")] {
        let line = room.fails(["mount", pool, mountpoint]);
        assert!(line.contains("mount point") || line.contains("on itself"), "{line}");
    }
    assert!(room.fails(["mount", "--create", "new", "new/mnt"]).contains("inside the pool"));
    assert!(!room.at("new").exists(), "nothing is created for a mount that cannot be");
}

#[test]
fn mount_point_must_be_there() {
    let room = Room::with_pool();
    fs::write(room.at("file"), "").unwrap();
    assert!(room.fails(["mount", "pool", "none"]).starts_with("none: no such directory"));
    assert!(room.fails(["mount", "pool", "file"]).ends_with("file: not a directory"));
    assert_eq!(room.fails(["mount", "pool", "mnt", "-o", "frob"]), "mnt: unknown option \"frob\"");
}

#[test]
fn a_start_that_fails_leaves_nothing() {
    needs_mount!();
    let room = Room::with_pool();
    let line = room.fails(["mount", "pool", "mnt", "--log", "none/server.log"]);
    assert!(line.ends_with("none/server.log: No such file or directory"), "{line}");
    assert!(!room.is_mounted("mnt"));
    assert!(servers_of(room.dir.path()).is_empty());
    assert_eq!(room.info("pool")["state"], "clean");
}

#[test]
fn read_only_mount() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    room.ok(["umount", "mnt"]);
    room.ok(["mount", "pool", "mnt", "-o", "ro,noexec", "--log", "server.log"]);
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"x");
    let refused = fs::write(room.at("mnt/y"), "y").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
}

/// A flag of the kernel's for every filesystem.
#[test]
fn a_mount_that_follows_no_links() {
    needs_mount!();
    if !is_root() {
        return skip("cli::a_mount_that_follows_no_links", "fusermount3 does not know nosymfollow");
    }
    let room = Room::with_pool();
    room.ok(["mount", "pool", "mnt", "--log", "server.log", "-o", "nosymfollow"]);
    fs::write(room.at("mnt/x"), "x").unwrap();
    symlink("x", room.at("mnt/link")).unwrap();
    assert_eq!(fs::read_link(room.at("mnt/link")).unwrap(), Path::new("x"));
    assert_eq!(fs::read(room.at("mnt/link")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
}

/// What mount(8) runs for a line of /etc/fstab.
#[test]
fn mount_tensorfs() {
    needs_mount!();
    let room = Room::with_pool();
    symlink(tensorfs().get_program(), room.at("mount.tensorfs")).unwrap();
    let helper =
        |arguments: &[&str]| run(Command::new(room.at("mount.tensorfs")).args(arguments).current_dir(room.dir.path()));
    let fake = helper(&["pool", "mnt", "-f", "-v", "-o", "rw"]);
    assert!(said(&fake).contains("could be mounted") && fake.status.success(), "{}", said(&fake));
    assert!(!room.is_mounted("mnt"));
    let line = failure(&helper(&["pool", "mnt", "-o", "rw,frob"]));
    assert_eq!(line, "mnt: unknown option \"frob\"");
    let options = format!(
        "rw,noauto,user,exec,_netdev,nofail,x-systemd.automount,commit=2,log={}",
        room.at("server.log").display()
    );
    let mounted = helper(&["pool", "mnt", "-n", "-o", &options]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    assert_eq!(room.info("mnt")["commit_seconds"].as_f64(), Some(2.0));
    fs::write(room.at("mnt/x"), "x").unwrap();
    room.ok(["umount", "mnt"]);
    let sloppy = helper(&["pool", "mnt", "-s", "-o", &format!("frob,{options}")]);
    assert!(sloppy.status.success(), "{}", said(&sloppy));
}

/// Nothing is written where nothing can be; so a pool that was not closed cannot be mounted there.
#[test]
fn a_pool_on_a_read_only_filesystem_is_mounted_to_be_read() {
    needs_mount!();
    let name = "cli::a_pool_on_a_read_only_filesystem_is_mounted_to_be_read";
    if !is_root() {
        return skip(name, "only root makes a read-only mount");
    }
    let room = Room::with_pool();
    room.mount("pool", "mnt");
    fs::write(room.at("mnt/f"), "bytes").unwrap();
    room.ok(["seal", "mnt/f"]);
    room.ok(["umount", "mnt"]);
    fs::create_dir(room.at("ro")).unwrap();
    let host = ReadOnlyBind::new(&room.at("pool"), &room.at("ro"));
    let refused = room.fails(["mount", "ro", "mnt", "--log", "refused.log"]);
    assert_eq!(refused, format!("{}: its filesystem is read-only; mount it with -o ro", room.at("ro").display()));
    let log = fs::read(room.at("pool/log")).unwrap();
    for options in ["ro", "ro,passthrough=off", "ro,keeper"] {
        room.ok(["mount", "ro", "mnt", "-o", options, "--log", "server.log"]);
        assert_eq!(fs::read(room.at("mnt/f")).unwrap(), b"bytes", "{options}");
        assert_eq!(fs::write(room.at("mnt/new"), "").unwrap_err().raw_os_error(), Some(libc::EROFS), "{options}");
        File::open(room.at("mnt/f")).unwrap().sync_all().unwrap();
        room.ok(["verify", "mnt"]);
        room.ok(["scrub", "mnt"]);
        room.ok(["check", "mnt"]);
        for target in ["mnt", "ro"] {
            let info: Value = serde_json::from_slice(&room.run(["info", "--json", target]).stdout).unwrap();
            assert_eq!(info["read_only"], "its filesystem is read-only", "{options}");
        }
        assert!(!said(&room.run(["health", "mnt"])).contains("takes no changes"));
        let metrics = room.ok(["metrics", "mnt"]);
        let read_only = metrics.lines().find(|line| line.starts_with("tensorfs_read_only{")).unwrap();
        assert!(read_only.ends_with(" 0"), "no alarm for what was wished: {read_only}");
        // Who can write the pool is kept from it.
        if options == "ro" {
            let refused = room.fails(["mount", "pool", "other", "--create"]);
            assert!(refused.contains("already in use by a process that does not say who it is"), "{refused}");
        }
        room.ok(["umount", "mnt"]);
        let served = fs::read_to_string(room.at("server.log")).unwrap();
        assert!(!served.contains(" ERROR ") && !served.contains(" WARN "), "{options}: {served}");
    }
    assert_eq!(fs::read(room.at("pool/log")).unwrap(), log);
    // What has to be recovered cannot be.
    room.mount("pool", "mnt");
    let pid = servers_of(room.dir.path())[0];
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    wait_for_end(pid);
    room.ok(["umount", "mnt"]);
    let refused = room.fails(["mount", "ro", "mnt", "-o", "ro", "--log", "server.log"]);
    assert!(refused.contains("mount it once where it can be written, to recover it"), "{refused}");
    drop(host);
    room.mount("pool", "mnt");
}

/// What was removed before the pool was closed is not there, although the log still knows of it.
#[test]
fn what_was_removed_is_not_counted_on_a_read_only_filesystem() {
    needs_mount!();
    if !is_root() {
        return skip("cli::what_was_removed_is_not_counted", "only root makes a read-only mount");
    }
    let room = Room::with_pool();
    room.mount("pool", "mnt");
    for number in 0..30 {
        fs::write(room.at(&format!("mnt/{number}")), [1; 5000]).unwrap();
    }
    room.ok(["sync", "mnt"]);
    (0..30).for_each(|number| fs::remove_file(room.at(&format!("mnt/{number}"))).unwrap());
    fs::write(room.at("mnt/f"), "bytes").unwrap();
    room.ok(["umount", "mnt"]);
    let counts = |info: Value| ["files", "directories", "used"].map(|name| info[name].clone());
    let closed = counts(room.info("pool"));
    assert_eq!(closed[0], 1);
    fs::create_dir(room.at("ro")).unwrap();
    let _host = ReadOnlyBind::new(&room.at("pool"), &room.at("ro"));
    room.ok(["mount", "ro", "mnt", "-o", "ro", "--log", "server.log"]);
    let mounted = room.info("mnt");
    assert_eq!(mounted["pending_removals"], 0, "{mounted}");
    assert_eq!(counts(mounted.clone()), closed);
    let check: Value = serde_json::from_str(&room.ok(["check", "--json", "mnt"])).unwrap();
    assert_eq!(mounted["records"], check["records"]);
    room.ok(["umount", "mnt"]);
}

/// Unmounted where it was mounted, and bound to another place before, it is served there, and `info` asks there.
#[test]
fn a_pool_that_is_bound_elsewhere_is_found_by_info() {
    needs_mount!();
    if !is_root() {
        return skip("cli::a_pool_that_is_bound_elsewhere_is_found_by_info", "only root binds");
    }
    let room = Room::with_pool();
    room.mount("pool", "mnt");
    let none = None::<&str>;
    nix::mount::mount(Some(&room.at("mnt")), &room.at("other"), none, MsFlags::MS_BIND, none).unwrap();
    let unmounted = room.run(["umount", "mnt"]);
    let info = room.run(["info", "--json", "pool"]);
    nix::mount::umount2(&room.at("other"), nix::mount::MntFlags::MNT_DETACH).unwrap();
    let line = said(&unmounted);
    assert_eq!(unmounted.status.code(), Some(3), "{line}");
    assert!(line.contains(&format!("it is mounted at {}", room.at("other").display())), "{line}");
    let info: Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!(info["state"], "mounted", "{info}");
}

/// A directory bound to another place, where nothing can be written.
pub(super) struct ReadOnlyBind(PathBuf);

impl ReadOnlyBind {
    pub(super) fn new(from: &Path, to: &Path) -> Self {
        let none = None::<&str>;
        nix::mount::mount(Some(from), to, none, MsFlags::MS_BIND, none).unwrap();
        let bound = ReadOnlyBind(to.to_owned());
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        nix::mount::mount(none, to, none, flags, none).unwrap();
        bound
    }
}

impl Drop for ReadOnlyBind {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

/// `mount -o remount` with the options of a line of /etc/fstab, or with what the kernel shows of the mount.
#[test]
fn remount() {
    needs_mount!();
    if !is_root() {
        return skip("cli::remount", "only root can remount");
    }
    let room = Room::with_pool();
    symlink(tensorfs().get_program(), room.at("mount.fuse.tensorfs")).unwrap();
    let helper = |options: &str| {
        let mut command = Command::new(room.at("mount.fuse.tensorfs"));
        run(command.args(["pool", "mnt", "-o", options]).current_dir(room.dir.path()))
    };
    assert_eq!(failure(&helper("remount,ro")), format!("{}: no tensorfs is mounted here", room.at("mnt").display()));
    room.ok(["mount", "pool", "mnt", "-o", "noatime,commit=2"]);
    let writer = fs::File::create(room.at("mnt/x")).unwrap();
    assert!(failure(&helper("remount,ro")).contains("files are open for writing"));
    drop(writer);
    // What cannot be changed is refused, before anything else is done.
    for other in ["commit=5", "passthrough=off", "watchdog=3", "keeper", "privileged", "atime", "layout=x"] {
        let refused = helper(&format!("remount,ro,noexec,{other}"));
        let name = other.split('=').next().unwrap();
        assert!(failure(&refused).contains(&format!("a remount cannot change: {name}; ")), "{}", said(&refused));
    }
    fs::write(room.at("mnt/x"), "x").unwrap();
    let shown = "remount,ro,nosuid,nodev,noexec,noatime,user_id=0,group_id=0,default_permissions,allow_other,commit=2";
    // A process that another test starts may have the writer's descriptor until it executes its program.
    let done = (0..100).map(|_| helper(shown)).find(|done| done.status.success()).expect("nobody has it open");
    assert!(done.stderr.is_empty(), "{}", said(&done));
    let same = helper("remount,ro,noexec,noatime,commit=2,threads=4,passthrough=auto,create,size=9G");
    // What may be so already is no reason to refuse a line that it was mounted with.
    let unsaid = helper("remount,ro,noexec,noatime,size=9G,durability=fsync");
    assert!(said(&unsaid).contains("not changed by a remount: size, durability\n"), "{}", said(&unsaid));
    assert!(same.status.success() && same.stderr.is_empty(), "{}", said(&same));
    assert_eq!(fs::write(room.at("mnt/y"), "y").unwrap_err().raw_os_error(), Some(libc::EROFS));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(room.at("mnt").to_str().unwrap())).unwrap();
    assert!(["ro,", ",noexec,", ",noatime,"].iter().all(|option| line.contains(option)), "{line}");
    assert_eq!(room.info("mnt")["commit_seconds"].as_f64(), Some(2.0));
    room.ok(["mount", "pool", "mnt", "-o", "remount,rw"]);
    fs::write(room.at("mnt/y"), "y").unwrap();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(room.at("mnt").to_str().unwrap())).unwrap();
    assert!(line.contains(",noexec,"), "what is not said stays as it is: {line}");
    let expected = format!("{}: {} is mounted here", room.at("mnt").display(), room.at("pool").display());
    assert_eq!(room.fails(["mount", "other", "mnt", "-o", "remount,ro"]), expected);
}

/// A pool on overlayfs: the kernel passes nothing through to a stacked filesystem.
///
/// Proves F1.
#[test]
fn passthrough_where_it_is_not_to_be_had() {
    needs_mount!();
    let room = Room::new();
    for name in ["lower", "upper", "work"] {
        fs::create_dir(room.at(name)).unwrap();
    }
    let layers = "lowerdir=lower,upperdir=upper,workdir=work";
    let overlay = Command::new("mount")
        .current_dir(room.at(""))
        .args(["-t", "overlay", "overlay", "-o", layers, "other"])
        .output();
    if !overlay.is_ok_and(|output| output.status.success()) {
        skip("passthrough_where_it_is_not_to_be_had", "overlayfs cannot be mounted here");
        return;
    }
    let reason = "the pool lies on a stacked filesystem (such as overlayfs)";
    room.ok(["create", "other/pool"]);
    let refused = room.fails(["mount", "other/pool", "mnt", "--passthrough", "on", "--log", "server.log"]);
    assert!(refused.starts_with(&format!("{}: ", room.at("mnt").display())) && refused.contains(reason), "{refused}");
    assert!(!room.is_mounted("mnt"));
    assert_eq!(room.info("other/pool")["state"], "clean", "a start that fails leaves the pool closed");

    // Left to itself it serves all the same, and says once why it is slower.
    room.mount("other/pool", "mnt");
    fs::write(room.at("mnt/f"), "through the server").unwrap();
    assert_eq!(fs::read(room.at("mnt/f")).unwrap(), b"through the server");
    let info = room.info("mnt");
    assert_eq!((&info["passthrough"], &info["passthrough_reason"]), (&false.into(), &reason.into()));
    let log = room.log();
    let served = log.rsplit("bytes go through the server").next().unwrap();
    assert_eq!(log.matches("bytes go through the server").count(), 1, "{log}");
    assert!(served.starts_with(&format!(": {reason}")), "{log}");
    room.ok(["umount", "mnt"]);
}

/// One that root asks nothing kept everybody from hearing of the others.
#[test]
fn metrics_of_another_users_mount_are_not_asked_for_and_the_others_told() {
    needs_mount!();
    if !is_root() {
        return skip("cli::metrics_of_another_users_mount", "only root mounts for others");
    }
    let room = Room::with_pool();
    room.mount("pool", "other");
    // Nobody serves it: whoever asked would wait.
    let device = mounted_for(&room, 65534);
    for order in [["mnt", "other"], ["other", "mnt"]] {
        let metrics = room.run(["metrics", order[0], order[1], "--textfile", "."]);
        assert_eq!(metrics.status.code(), Some(1), "{}", said(&metrics));
        assert!(said(&metrics).contains("on a mount of user 65534's"), "{}", said(&metrics));
        let told = fs::read_to_string(room.at("tensorfs.prom")).unwrap();
        for (name, place, value) in [("up", "mnt", 0), ("up", "other", 1)] {
            let line = format!("tensorfs_{name}{{mount=\"{}\"}} {value}\n", room.at(place).display());
            assert!(told.contains(&line), "{line}{told}");
        }
        assert_eq!(told.lines().filter(|line| line.starts_with("tensorfs_files{")).count(), 1, "{told}");
        fs::remove_file(room.at("tensorfs.prom")).unwrap();
    }
    drop(device);
}
