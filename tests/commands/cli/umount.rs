//! The end of a mount: `tensorfs umount`, `umount`, signals, and servers that were killed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, IoSliceMut, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg, setsockopt, sockopt};
use tensorfs_tests::{
    Call, HostCalls, Rule, child, has_ended, is_root, needs_mount, nobody_unmounts, skip, tensorfs, wait_for_end,
    wait_until,
};

use super::{Room, kill, said};

/// A unit's main process, and so nobody whom a file or a client has taken over.
#[test]
fn the_service_manager_is_told_by_whom_it_has_started() {
    needs_mount!();
    if !is_root() {
        return skip("cli::the_service_manager_is_told_by_whom_it_has_started", "a keeper needs root");
    }
    let room = Room::with_pool();
    let socket = UnixDatagram::bind(room.at("notify")).unwrap();
    setsockopt(&socket, sockopt::PassCred, &true).unwrap();
    // Where nothing is mounted, nothing is said.
    socket.set_read_timeout(Some(std::time::Duration::from_secs(600))).unwrap();
    let hear = || {
        let (mut bytes, mut space) = ([0; 128], nix::cmsg_space!(UnixCredentials, [RawFd; 3]));
        let (len, sender) = {
            let mut buffer = [IoSliceMut::new(&mut bytes)];
            let heard = recvmsg::<()>(socket.as_raw_fd(), &mut buffer, Some(&mut space), MsgFlags::empty()).unwrap();
            let mut sender = None;
            for part in heard.cmsgs().unwrap() {
                match part {
                    ControlMessageOwned::ScmCredentials(of) => sender = Some(of.pid() as u32),
                    ControlMessageOwned::ScmRights(kept) => {
                        kept.into_iter().for_each(|one| nix::unistd::close(one).unwrap());
                    }
                    _ => {}
                }
            }
            (heard.bytes, sender)
        };
        (String::from_utf8(bytes[..len].to_vec()).unwrap(), sender.unwrap())
    };
    // What it is to keep is another matter.
    let hear = || std::iter::repeat_with(hear).find(|(said, _)| !said.starts_with("FDSTORE")).unwrap();
    for keeper in ["keeper", "nokeeper"] {
        let mut command = room.command();
        command.args(["mount", "-f", "-o", keeper, "pool", "mnt"]).env("NOTIFY_SOCKET", room.at("notify"));
        let mut main = command.stderr(Stdio::null()).spawn().unwrap();
        assert_eq!(hear(), ("READY=1".to_owned(), main.id()), "{keeper}");
        kill(main.id() as i32, libc::SIGTERM);
        assert_eq!(hear(), ("STOPPING=1".to_owned(), main.id()), "{keeper}");
        assert_eq!(main.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn foreground_ends_with_sigterm() {
    needs_mount!();
    let room = Room::with_pool();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut server = room.command();
        let mut server = server.args(["mount", "-f", "pool", "mnt"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(server.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("mounted at") {
            line.clear();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "the server ended");
        }
        fs::write(room.at("mnt/x"), signal.to_string()).unwrap();
        assert_eq!(room.pid("pool"), server.id() as i32);
        kill(server.id() as i32, libc::SIGHUP);
        kill(server.id() as i32, signal);
        let mut rest = String::new();
        log.read_to_string(&mut rest).unwrap();
        assert_eq!(server.wait().unwrap().code(), Some(0), "{rest}");
        assert!(!room.is_mounted("mnt"));
        assert_eq!(room.info("pool")["state"], "clean");
        assert_eq!(room.info("pool")["unsafe_shutdowns"], 0);
    }
}

#[test]
fn sigterm_with_open_files_serves_until_the_last_close() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "before").unwrap();
    let file = File::options().read(true).write(true).open(room.at("mnt/x")).unwrap();
    let pid = room.pid("pool");
    kill(pid, libc::SIGTERM);
    wait_until("unmounted", || !room.is_mounted("mnt"));
    file.write_all_at(b"after!", 0).unwrap();
    file.sync_all().unwrap();
    let mut text = [0; 6];
    file.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"after!");
    // Nobody can ask the server any more, and its log tells.
    let info = room.info("pool");
    assert_eq!((&info["state"], &info["pid"], &info["files"]), (&"detached".into(), &pid.into(), &1.into()));
    let info = room.ok(["info", "pool"]);
    assert!(info.contains(&format!("process {pid}")), "{info}");
    drop(file);
    wait_for_end(pid);
    room.mount("pool", "mnt");
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"after!");
    assert_eq!(room.info("mnt")["unsafe_shutdowns"], 0);
}

/// From there the server cannot be seen: neither whether it is at work, nor for whom.
#[test]
fn from_another_process_namespace() {
    needs_mount!();
    let unshare = |command: &[&str]| Command::new("unshare").arg("-pf").args(command).output();
    if !unshare(&["true"]).is_ok_and(|output| output.status.success()) {
        return skip("cli::from_another_process_namespace", "unshare -p does not work here");
    }
    let (room, calls) = (Room::with_pool(), HostCalls::new());
    let program = tensorfs().get_program().to_str().unwrap().to_owned();
    for is_late in [true, false] {
        let mut mount = room.command();
        calls.preload(&mut mount);
        assert!(mount.args(["mount", "pool", "mnt", "--log", "server.log"]).status().unwrap().success());
        fs::write(room.at("mnt/x"), "x").unwrap();
        let pid = room.pid("pool");
        let pool = room.at("pool").canonicalize().unwrap();
        let held = is_late.then(|| calls.add(Rule::of(Call::Write).below(&pool).on("/log").held()));
        // Nobody waits so long where the server is not late.
        let seconds = if is_late { "1" } else { "60" };
        let mnt = room.at("mnt");
        let output = unshare(&[&program, "umount", "--timeout", seconds, mnt.to_str().unwrap()]).unwrap();
        let said = said(&output);
        assert!(!room.is_mounted("mnt"), "{said}");
        assert_eq!(output.status.code(), Some(if is_late { 3 } else { 0 }), "{said}");
        assert_eq!(said.contains("of another process namespace"), is_late, "{said}");
        drop(held);
        wait_for_end(pid);
        assert_eq!(room.info("pool")["state"], "clean");
    }
}

/// The mount is gone at once, the pool a little later: whoever mounts again waits.
#[test]
fn mount_waits_for_a_server_that_is_closing() {
    needs_mount!();
    let room = Room::mounted();
    for round in 0..10 {
        fs::write(room.at("mnt/x"), vec![round; 1 << 20]).unwrap();
        kill(room.pid("pool"), libc::SIGTERM);
        wait_until("unmounted", || !room.is_mounted("mnt"));
        room.mount("pool", "mnt");
        assert_eq!(fs::read(room.at("mnt/x")).unwrap(), vec![round; 1 << 20]);
    }
    assert_eq!(room.info("mnt")["unsafe_shutdowns"], 0);
}

/// For whom, if that takes a while; and no more is said. Nobody is told that the pool is in use.
#[test]
fn mount_says_for_which_server_it_waits() {
    needs_mount!();
    if !is_root() {
        return skip("cli::mount_says_for_which_server_it_waits", "needs root, who may unmount without the server");
    }
    let (room, calls) = (Room::with_pool(), HostCalls::new());
    calls.set_pool(&room.at("pool"));
    let mut mount = room.command();
    calls.preload(mount.args(["mount", "pool", "mnt", "--log", "server.log"]));
    assert!(mount.status().unwrap().success());
    fs::write(room.at("mnt/x"), "x").unwrap();
    let closing = room.pid("pool");
    let held = calls.add(Rule::of(Call::Write).on("/log").held());
    // The server hears of it afterwards.
    wait_until("unmounted", || nix::mount::umount(&room.at("mnt")).is_ok());
    held.wait_for_waiting(1);
    let mut mount = room.command();
    mount.args(["mount", "pool", "mnt", "--log", "server.log"]).stderr(Stdio::piped());
    let mut mount = mount.spawn().unwrap();
    let mut said = BufReader::new(mount.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let waited = mount.try_wait().unwrap().is_none();
    drop(held);
    assert!(line.ends_with(&format!("/pool: waiting for process {closing} to close it\n")), "{line}");
    assert!(waited, "it did not wait");
    assert!(mount.wait().unwrap().success());
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"x");
    assert_eq!(room.info("mnt")["unsafe_shutdowns"], 0);
}

#[test]
fn killed_server() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let pid = room.pid("pool");
    kill(pid, libc::SIGKILL);
    wait_for_end(pid);
    assert!(room.is_mounted("mnt"));
    let dead = fs::File::open(room.at("mnt/x")).unwrap_err();
    assert_eq!(dead.raw_os_error(), Some(libc::ENOTCONN));
    // The pool can be looked at by either end.
    assert_eq!(room.info("pool")["state"], "unsafe shutdown");
    let of_mount = room.run(["info", "--json", "mnt"]);
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&of_mount.stdout).unwrap()["state"], "unsafe shutdown");
    let output = room.run(["mount", "pool", "mnt", "--log", "server.log"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.contains("detaching the mount of") && notes.contains("server was killed"), "{notes}");
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"x");
    let info = room.info("mnt");
    assert_eq!((&info["unsafe_shutdowns"], &info["state"]), (&1.into(), &"mounted".into()));
    room.ok(["umount", "mnt"]);
    assert!(!room.is_mounted("mnt"), "the dead mount is not below");
    assert_eq!(room.ok(["mount", "pool", "mnt", "--log", "server.log"]), "", "a second mount is clean");
    assert_eq!(room.info("mnt")["unsafe_shutdowns"], 1);
}

/// Where nothing is mounted any more, programs write into the directory below, beside the pool, and nobody says so:
/// what is dead stays until there is something to mount in its place.
///
/// Proves D9.
#[test]
fn a_pool_that_cannot_be_opened_leaves_its_dead_mount() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let pid = room.pid("pool");
    kill(pid, libc::SIGKILL);
    wait_for_end(pid);
    fs::rename(room.at("pool/log"), room.at("log")).unwrap();
    let ways: [&[&str]; 4] = [&[], &["--foreground"], &["-o", "keeper"], &["--foreground", "-o", "keeper"]];
    for way in ways {
        let refused = room.run([&["mount", "pool", "mnt", "--log", "server.log"], way].concat());
        assert!(!refused.status.success(), "{way:?}");
        assert!(!said(&refused).contains("detaching"), "{way:?}: {}", said(&refused));
        assert!(room.is_mounted("mnt"), "{way:?}: {}", said(&refused));
        let dead = fs::write(room.at("mnt/y"), "y").unwrap_err();
        assert_eq!(dead.raw_os_error(), Some(libc::ENOTCONN), "{way:?}");
    }
    fs::rename(room.at("log"), room.at("pool/log")).unwrap();
    let done = room.run(["mount", "--create", "pool", "mnt", "--log", "server.log"]);
    assert!(done.status.success() && said(&done).contains("detaching the mount of"), "{}", said(&done));
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"x");
    room.ok(["umount", "mnt"]);
    assert!(!room.is_mounted("mnt"), "the dead mount is not below");
}

/// A server that is killed dies by and by: whoever mounts at once, also elsewhere, waits for it.
#[test]
fn mount_at_once_after_a_kill() {
    needs_mount!();
    let room = Room::mounted();
    for place in ["other", "mnt", "mnt", "other", "mnt", "other"] {
        fs::write(room.at("mnt/x"), place).or_else(|_| fs::write(room.at("other/x"), place)).unwrap();
        kill(room.pid("pool"), libc::SIGKILL);
        room.mount("pool", place);
        assert_eq!(fs::read_to_string(room.at(place).join("x")).unwrap(), place);
    }
    // The dead mount at the other place is not what is meant by the pool.
    assert!(room.is_mounted("mnt"));
    room.ok(["umount", "pool"]);
    assert!(!room.is_mounted("other"));
    assert_eq!(room.info("pool")["state"], "clean");
    room.ok(["umount", "mnt"]);
}

#[test]
fn umount_of_a_dead_mount() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let _open = File::open(room.at("mnt/x")).unwrap();
    let pid = room.pid("pool");
    kill(pid, libc::SIGKILL);
    wait_for_end(pid);
    room.ok(["umount", "mnt"]);
    assert!(!room.is_mounted("mnt"));
}

#[test]
fn umount_names_who_keeps_it_busy() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let mut user = child(["do"]);
    assert_eq!(user.ask(&format!("open f r {}", room.at("mnt/x").display())), "ok");
    let refused = room.fails(["umount", "mnt"]);
    assert!(
        refused.starts_with(&format!("{}: busy: in use by {} (", room.at("mnt").display(), user.pid())),
        "{refused}"
    );
    let server = room.pid("pool");
    let lazy = room.run(["umount", "--lazy", "mnt"]);
    assert_eq!(lazy.status.code(), Some(0), "{}", said(&lazy));
    assert!(said(&lazy).contains(&format!("process {server}")), "{}", said(&lazy));
    assert!(!room.is_mounted("mnt"));
    user.end();
    wait_for_end(server);
    assert_eq!(room.info("pool")["state"], "clean");
}

/// A container that was started after the mount has a copy of it: the server goes on for that, and nobody waits for it
/// in vain.
#[test]
fn a_mount_that_another_namespace_has_is_waited_for_by_nobody() {
    needs_mount!();
    if !is_root() {
        return skip("cli::umount", "only root can make a mount namespace");
    }
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let server = room.pid("pool");
    let mut container = Command::new("unshare");
    // Mounts of other tests are none of its business.
    let script = "while read -r _ _ _ _ at _; do case $at in \"$0\") ;; */mnt|*/other) umount -l \"$at\" ;; esac; done \
                  </proc/self/mountinfo; echo ready; exec sleep 600";
    container.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(room.at("mnt"));
    let alone = nobody_unmounts();
    let mut container = container.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut ready = [0; 6];
    container.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    drop(alone);
    let named = format!("in the mount namespace of process {} (sleep)", container.id());
    let output = room.run(["umount", "mnt"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let line = said(&output);
    assert!(line.contains(&format!("process {server} goes on")) && line.contains(&named), "{line}");
    assert!(!room.is_mounted("mnt"));
    // Asked to end, once or more often, the server says for whom it goes on.
    for times in 1..=3 {
        kill(server, libc::SIGTERM);
        wait_until("it is said why the server goes on", || {
            room.log().matches(&format!("serving on: it is mounted at {}", room.at("mnt").display())).count() == times
        });
    }
    assert!(!has_ended(server));
    container.kill().unwrap();
    container.wait().unwrap();
    wait_for_end(server);
    assert_eq!(room.info("pool")["state"], "clean");
}

/// A descriptor holds a mount namespace that no process is in any more: no one is there to be named.
#[test]
fn a_mount_that_is_held_by_what_is_not_seen_is_waited_for_by_nobody() {
    needs_mount!();
    if !is_root() {
        return skip("cli::umount", "only root can make a mount namespace");
    }
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let server = room.pid("pool");
    let mut container = Command::new("unshare");
    // Mounts of other tests are none of its business.
    let script = "while read -r _ _ _ _ at _; do case $at in \"$0\") ;; */mnt|*/other) umount -l \"$at\" ;; esac; done \
                  </proc/self/mountinfo; echo ready; exec sleep 600";
    container.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(room.at("mnt"));
    let alone = nobody_unmounts();
    let mut container = container.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut ready = [0; 6];
    container.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    drop(alone);
    let namespace = File::open(format!("/proc/{}/ns/mnt", container.id())).unwrap();
    container.kill().unwrap();
    container.wait().unwrap();
    let mut umount = room.command().args(["umount", "mnt"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut ended = false;
    for _ in 0..600 {
        ended = umount.try_wait().unwrap().is_some();
        if ended {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    drop(namespace);
    let output = umount.wait_with_output().unwrap();
    assert!(ended, "it waits without end");
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains(&format!("process {server} goes on: something has it")), "{}", said(&output));
    wait_for_end(server);
    assert_eq!(room.info("pool")["state"], "clean");
}

#[test]
fn umount_waits_for_as_long_as_it_is_told() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let mut user = child(["do"]);
    let open = format!("open f r {}", room.at("mnt/x").display());
    assert_eq!(user.ask(&open), "ok");
    let refused = room.fails(["umount", "--timeout", "0.7", "mnt"]);
    assert!(refused.contains(&format!("busy: in use by {} (", user.pid())), "{refused}");
    assert_eq!(fs::read(room.at("mnt/x")).unwrap(), b"x", "it is mounted as before");
    assert_eq!(room.run(["umount", "--timeout", "1", "--lazy", "mnt"]).status.code(), Some(2));
    let mut waiting = room.command().args(["umount", "--timeout", "600", "mnt"]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(waiting.try_wait().unwrap().is_none(), "it still waits");
    user.end();
    assert_eq!(waiting.wait().unwrap().code(), Some(0));
    assert_eq!(room.info("pool")["state"], "clean");
}

#[test]
fn umount_of_what_is_not_mounted() {
    let room = Room::with_pool();
    assert!(room.fails(["umount", "mnt"]).ends_with("mnt: no tensorfs is mounted here"));
    assert!(room.fails(["umount", "pool"]).contains("pool: not mounted"));
    assert!(room.fails(["umount", "/proc"]).ends_with("/proc: no tensorfs is mounted here"));
    assert!(room.fails(["sync", "none"]).ends_with("none: No such file or directory"));
}

#[test]
fn plain_umount_works_too() {
    needs_mount!();
    let room = Room::mounted();
    fs::write(room.at("mnt/x"), "x").unwrap();
    let pid = room.pid("pool");
    nix::mount::umount(&room.at("mnt")).unwrap();
    wait_for_end(pid);
    assert_eq!(room.info("pool")["state"], "clean");
}
