//! Files whose writer was killed while it had them open to write.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

use serde_json::Value;
use tensorfs_tests::{Mount, Setup, child, on_mounts, wait_until, xattr};

const LEN: usize = 300_000;

on_mounts!(
    a_new_file_of_a_killed_writer_is_interrupted,
    a_close_that_the_host_hears_of_late_waits_for_no_commit,
    who_is_killed_again_and_again_is_looked_at_no_more,
    who_was_interrupted_is_not_forgotten,
    who_writes_it_anew_and_closes_it_completes_it,
    who_ends_of_himself_interrupts_nothing,
    who_could_write_it_and_did_not_interrupts_nothing,
    who_stores_through_a_mapping_from_before_is_not_missed,
    who_opened_it_is_taken_for_the_writer,
    what_was_interrupted_is_no_checkpoint,
    what_is_newer_and_not_complete_is_rolled_back,
);

/// What the file is said to be, once it is closed.
fn state(path: &Path) -> String {
    let said = || String::from_utf8(xattr::get(path, "user.tensorfs.state").unwrap()).unwrap();
    wait_until("it is closed", || said() != "open");
    said()
}

/// A process that has the file open in some way, and has written it, is killed.
fn killed_writer(path: &Path, mode: &str, signal: i32) {
    let mut writer = child(["do"]);
    assert_eq!(writer.ask(&format!("open f {mode} {}", path.display())), "ok");
    assert_eq!(writer.ask(&format!("write f 0 2 {LEN}")), "ok");
    writer.kill(signal);
}

/// What a shell does that gets the path of the file as `$1`.
fn shell(path: &Path, script: &str) -> std::process::ExitStatus {
    let mut shell = Command::new("bash");
    shell.args(["-c", script, "bash"]).arg(path).stdin(Stdio::null()).stderr(Stdio::null());
    shell.status().unwrap()
}

/// Status and verdict of `tensorfs verify`.
fn verify(mount: &Mount, path: &Path) -> (Option<i32>, Value) {
    let output = mount.tensorfs(["verify".as_ref(), "--json".as_ref(), path.as_os_str()]);
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

/// Proves T7, T12.
fn a_new_file_of_a_killed_writer_is_interrupted(setup: Setup) {
    for durability in ["fsync", "close", "write"] {
        let mount = setup.clone().mount_with(["--durability", durability]).mount();
        if mount.is_plain() {
            return;
        }
        for (n, signal) in [libc::SIGKILL, libc::SIGABRT, libc::SIGTERM].into_iter().enumerate() {
            let path = mount.at(format!("f{n}"));
            killed_writer(&path, "wc", signal);
            assert_eq!(state(&path), "interrupted", "{durability}, signal {signal}");
            assert_eq!(fs::metadata(&path).unwrap().len(), LEN as u64);
            let (status, said) = verify(&mount, &path);
            assert_eq!(
                (status, &said["verdict"], &said["state"]),
                (Some(5), &"interrupted".into(), &"interrupted".into())
            );
        }
        // Nothing was written yet.
        assert_eq!(shell(&mount.at("empty"), "exec 3>\"$1\"; kill -9 $$").signal(), Some(libc::SIGKILL));
        assert_eq!(state(&mount.at("empty")), "interrupted");
        let listed = mount.tensorfs_ok(["ls".as_ref(), mount.path().as_os_str()]);
        assert_eq!(listed.matches("interrupted").count(), 4, "{listed}");
        // Nothing else shows it, and nobody sets it.
        assert_eq!(xattr::list(&mount.at("f0")).unwrap(), Vec::<Vec<u8>>::new());
        let name = "user.tensorfs.interrupted";
        assert_eq!(xattr::set(&mount.at("f0"), name, b"", 0), Err(nix::errno::Errno::EPERM));
        assert_eq!(xattr::remove(&mount.at("f0"), name), Err(nix::errno::Errno::EPERM));
    }
}

/// The last thread of a killed process closes its files, and the kernel lets go of a segment after RELEASE.
///
/// Proves T7, T12.
fn a_close_that_the_host_hears_of_late_waits_for_no_commit(setup: Setup) {
    const SCRIPT: &str = "
import os, sys, threading, time
for _ in range(3): threading.Thread(target=time.sleep, args=(3600,)).start()
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(fd, b'x' * 300000)
print(flush=True)
time.sleep(3600)
";
    let mount = setup.mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    for n in 0..30 {
        let path = mount.at(format!("f{n}"));
        let mut writer = Command::new("python3");
        writer.args(["-c", SCRIPT]).arg(&path).stdout(Stdio::piped());
        let mut writer = writer.spawn().unwrap();
        let mut said = [0];
        writer.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        writer.kill().unwrap();
        writer.wait().unwrap();
        assert_eq!(state(&path), "interrupted", "{n}");
    }
}

/// A process with very many descriptors has a file open to write, and its children are killed, which have it, too.
///
/// Proves T12.
fn who_is_killed_again_and_again_is_looked_at_no_more(setup: Setup) {
    const SCRIPT: &str = "
import os, resource, signal, sys
path, kills, user = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
most = 40_000  # in the table of descriptors
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
except (OSError, ValueError):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
os.setgroups([])
os.setgid(user)
os.setuid(user)
null = os.open('/dev/null', os.O_RDONLY)
for _ in range(most - 100): os.dup(null)
fd = os.open(path, os.O_WRONLY | os.O_CREAT)
os.write(fd, b'x' * 1000)
for _ in range(kills):
    child = os.fork()
    if child == 0:
        signal.pause()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
os.close(fd)
";
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::create_dir(mount.at("d")).unwrap();
    fs::set_permissions(mount.at("d"), fs::Permissions::from_mode(0o777)).unwrap();
    for (name, kills, user, is_known) in [("few", 2, 4001, true), ("many", 400, 4002, false), ("root's", 60, 0, true)] {
        let path = mount.at("d").join(name);
        let mut script = Command::new("python3");
        script.args(["-c", SCRIPT]).arg(&path).arg(kills.to_string()).arg(user.to_string());
        tensorfs_tests::run_ok(&mut script);
        assert_eq!(state(&path) != "interrupted", is_known, "{name}: {kills} kills");
    }
}

/// Proves T12.
fn who_was_interrupted_is_not_forgotten(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::write(mount.at("replaced"), [1; 1000]).unwrap();
    fs::write(mount.at("grown"), [1; 1000]).unwrap();
    mount.wait_for_seals(2);
    let made = ["new", "replaced", "grown"];
    killed_writer(&mount.at("new"), "wc", libc::SIGKILL);
    killed_writer(&mount.at("replaced"), "wct", libc::SIGKILL);
    killed_writer(&mount.at("grown"), "w", libc::SIGKILL);
    let all = |mount: &Mount, when: &str| {
        for name in made {
            assert_eq!(state(&mount.at(name)), "interrupted", "{name}: {when}");
        }
    };
    all(&mount, "at once");
    mount.kill9();
    mount.mount();
    all(&mount, "the server was killed");
    mount.remount();
    all(&mount, "mounted again");
    mount.sync();
    mount.power_loss();
    mount.mount();
    all(&mount, "power lost");
    // Sealed, it is verified like any other file.
    let seal = mount.tensorfs(["seal".as_ref(), mount.at("new").as_os_str()]);
    assert!(seal.status.success(), "{seal:?}");
    let (status, said) = verify(&mount, &mount.at("new"));
    assert_eq!((status, &said["verdict"]), (Some(5), &"interrupted".into()), "{said}");
    let reason = said["reason"].as_str().unwrap();
    assert!(reason.starts_with("a process was killed while it had it open to write"), "{reason}");
    // Another name, another tier.
    let tier = mount.host().join("tier");
    fs::rename(mount.at("new"), mount.at("renamed")).unwrap();
    mount.umount();
    mount.add_tier("other", &tier);
    mount.mount();
    xattr::set(&mount.at("renamed"), "user.tensorfs.tier", b"other", 0).unwrap();
    assert_eq!(state(&mount.at("renamed")), "interrupted");
    mount.umount();
    let listed = mount.tensorfs_ok(["ls".as_ref(), "-R".as_ref(), mount.pool().as_os_str()]);
    assert_eq!(listed.matches("interrupted").count(), 3, "{listed}");
}

/// Proves T12.
fn who_writes_it_anew_and_closes_it_completes_it(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("f");
    let complete: [(&str, &dyn Fn()); 4] = [
        ("replaced", &|| fs::write(&path, [3; 5000]).unwrap()),
        ("appended", &|| {
            OpenOptions::new().append(true).open(&path).unwrap().write_all(&[4]).unwrap();
        }),
        ("in place", &|| OpenOptions::new().write(true).open(&path).unwrap().write_all(&[4]).unwrap()),
        ("emptied in place", &|| {
            let reader = File::open(&path).unwrap();
            fs::write(&path, [3; 5000]).unwrap();
            drop(reader);
        }),
    ];
    for (how, complete) in complete {
        killed_writer(&path, "wc", libc::SIGKILL);
        assert_eq!(state(&path), "interrupted", "{how}");
        mount.sync();
        // Who opens it and leaves it as it is says nothing of it.
        drop(OpenOptions::new().read(true).write(true).open(&path).unwrap());
        drop(File::open(&path).unwrap());
        assert_eq!(state(&path), "interrupted", "{how}: opened");
        complete();
        assert_ne!(state(&path), "interrupted", "{how}");
        mount.remount();
        assert_ne!(state(&path), "interrupted", "{how}: mounted again");
    }
    // One that is renamed over it has never been it.
    killed_writer(&path, "wc", libc::SIGKILL);
    fs::write(mount.at("g"), [1; 100]).unwrap();
    fs::rename(mount.at("g"), &path).unwrap();
    assert_ne!(state(&path), "interrupted");
    // Whoever empties it while a child of the one that was killed has it makes it anew.
    let (held, child) = killed_before_its_child(&mount.at("held"));
    fs::write(&held, [5; 100]).unwrap();
    drop(child);
    assert_ne!(state(&held), "interrupted");
}

/// A file whose writer was killed, and a child of it, which never wrote, that has the file until the end of its input.
fn killed_before_its_child(path: &Path) -> (PathBuf, ChildStdin) {
    let mut shell = Command::new("bash")
        .args(["-c", "exec 3>\"$1\"; echo half >&3; cat <&0 >/dev/null & kill -9 $$", "bash"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let child = shell.stdin.take().unwrap();
    shell.wait().unwrap();
    (path.to_owned(), child)
}

/// Proves T12.
fn who_ends_of_himself_interrupts_nothing(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("f");
    // Without closing it.
    assert!(shell(&path, "exec 3>\"$1\"; echo half >&3; exit 0").success());
    assert_ne!(state(&path), "interrupted");
    // A program that hears of the signal, and ends then.
    let script = "exec 3>\"$1\"; trap 'exit 143' TERM; echo half >&3; kill -TERM $$; sleep 1000";
    assert_eq!(shell(&path, script).code(), Some(143));
    assert_ne!(state(&path), "interrupted");
    // Who has closed it before.
    assert_eq!(shell(&path, "echo all >\"$1\"; kill -9 $$").signal(), Some(libc::SIGKILL));
    assert_ne!(state(&path), "interrupted");
    // Who only reads it, and who could write it and did not.
    mount.sync();
    std::thread::sleep(std::time::Duration::from_millis(50));
    for way in ["3<", "3<>"] {
        let script = format!("exec {way}\"$1\"; kill -9 $$");
        assert_eq!(shell(&path, &script).signal(), Some(libc::SIGKILL));
        assert_ne!(state(&path), "interrupted", "{way}");
    }
}

/// Directly behind its writer, whose `close` the server may not have heard of to the end.
///
/// Proves T12.
fn who_could_write_it_and_did_not_interrupts_nothing(setup: Setup) {
    for durability in ["fsync", "close", "write"] {
        let mount = setup.clone().mount_with(["--durability", durability]).mount();
        if mount.is_plain() {
            return;
        }
        let tells = tells_each_change(&mount.host());
        let settled = || {
            if !tells {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        };
        let (mut unchanged, mut changed) = (Vec::new(), Vec::new());
        for n in 0..10 {
            for way in ["r", "rw", "w"] {
                let path = mount.at(format!("f{n}{way}"));
                let mut other = child(["do"]);
                fs::write(&path, vec![1; LEN]).unwrap();
                settled();
                assert_eq!(other.ask(&format!("open f {way} {}", path.display())), "ok");
                settled();
                other.kill(libc::SIGKILL);
                unchanged.push(path);
            }
            for way in ["3<", "3<>"] {
                let path = mount.at(format!("s{n}{}", way.len()));
                let script = format!("echo all >\"$1\"; exec {way}\"$1\"; kill -9 $$");
                let killed = if tells { script } else { script.replace(';', "; sleep 0.05;") };
                assert_eq!(shell(&path, &killed).signal(), Some(libc::SIGKILL));
                unchanged.push(path);
            }
        }
        // One byte of those that are there, directly behind it.
        for n in 0..10 {
            let path = mount.at(format!("b{n}"));
            let mut other = child(["do"]);
            fs::write(&path, vec![1; LEN]).unwrap();
            assert_eq!(other.ask(&format!("open f rw {}", path.display())), "ok");
            assert_eq!(other.ask("write f 5 2 1"), "ok");
            other.kill(libc::SIGKILL);
            changed.push(path);
        }
        unchanged.iter().for_each(|path| assert_ne!(state(path), "interrupted", "{durability}: {path:?}"));
        changed.iter().for_each(|path| assert_eq!(state(path), "interrupted", "{durability}: {path:?}"));
    }
}

/// Its pages were to be written to the host already, which notes no time for what is stored into them once more.
///
/// Proves T12.
fn who_stores_through_a_mapping_from_before_is_not_missed(setup: Setup) {
    const SCRIPT: &str = "
import ctypes, os, signal, sys
path, child, flags = sys.argv[1], sys.argv[2] == 'child', int(sys.argv[3])
first = os.open(path, os.O_RDWR)
# That of the module goes on to have the descriptor.
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
mapped = (ctypes.c_char * 8192).from_address(libc.mmap(None, 8192, 3, 1, first, 0))
os.close(first)
mapped[0] = b'1'
if child and os.fork():
    os.wait()
    os._exit(0)
again = os.open(path, flags)
mapped[1] = mapped[5000] = b'2'
os.kill(os.getpid(), signal.SIGKILL)
";
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    for (n, who) in ["itself", "child"].into_iter().enumerate() {
        for flags in [libc::O_RDWR, libc::O_WRONLY] {
            let path = mount.at(format!("f{n}{flags}"));
            fs::write(&path, [0; 8192]).unwrap();
            mount.sync();
            let mut script = Command::new("python3");
            script.args(["-c", SCRIPT]).arg(&path).args([who, &flags.to_string()]);
            assert!(script.status().unwrap().signal() == Some(libc::SIGKILL) || who == "child");
            assert_eq!(state(&path), "interrupted", "{who}, {flags}");
        }
    }
}

/// True if the filesystem of a directory gives a file that was looked at another change time at once.
fn tells_each_change(directory: &Path) -> bool {
    let file = tempfile::NamedTempFile::new_in(directory).unwrap();
    let changed = || {
        file.as_file().set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        let looked = file.as_file().metadata().unwrap();
        (looked.ctime(), looked.ctime_nsec())
    };
    let times: std::collections::HashSet<_> = (0..1000).map(|_| changed()).collect();
    times.len() == 1000
}

/// A server that has given up its rights (P5) sees it, too.
///
/// Proves T12.
fn who_opened_it_is_taken_for_the_writer(setup: Setup) {
    for options in ["rw", "keeper"] {
        is_taken_for_the_writer(&setup.clone().mount_with(["-o", options]).mount());
    }
}

fn is_taken_for_the_writer(mount: &Mount) {
    if mount.is_plain() {
        return;
    }
    let path = mount.at("f");
    // A child that never wrote is killed, and the writer closes it in order.
    let script = "exec 3>\"$1\"; echo half >&3; sleep 1000 & kill -9 $!; wait; echo all >&3; exec 3>&-";
    assert!(shell(&path, script).success());
    assert_ne!(state(&path), "interrupted");
    let script = "exec 3>\"$1\"; echo all >&3; sleep 1000 & kill -9 $!; wait; exit 0";
    assert!(shell(&path, script).success());
    assert_ne!(state(&path), "interrupted");
    // The writer is killed, and a child that never wrote ends later, of itself.
    let (_, child) = killed_before_its_child(&mount.at("g"));
    assert_eq!(xattr::get(&mount.at("g"), "user.tensorfs.state").unwrap(), b"open");
    drop(child);
    assert_eq!(state(&mount.at("g")), "interrupted");
    // Who opened it has left it to a child.
    let script = "exec 3>\"$1\"; sleep 1000 & exec 3>&-; kill -9 $!; wait; exit 0";
    assert!(shell(&mount.at("h"), script).success());
    assert_eq!(state(&mount.at("h")), "interrupted");
}

/// All its bytes are there, but nobody has said so.
///
/// Proves T13.
fn what_was_interrupted_is_no_checkpoint(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (100,), }\n";
    let mut npz = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
    npz.extend([7; 100]);
    fs::write(mount.host().join("whole"), npz).unwrap();
    let whole = mount.host().join("whole");
    let directory = mount.at("run");
    fs::create_dir(&directory).unwrap();
    for step in [1, 2] {
        fs::copy(&whole, directory.join(format!("step-{step}.npz"))).unwrap();
    }
    let complete =
        |path: &Path| xattr::get(path, "user.tensorfs.complete").map(|said| String::from_utf8(said).unwrap());
    let latest = || {
        let said = mount.tensorfs(["latest".as_ref(), directory.as_os_str()]);
        String::from_utf8(said.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(latest(), directory.join("step-2.npz").to_str().unwrap());
    let script = format!("exec 3>\"$1\"; cat '{}' >&3; kill -9 $$", whole.display());
    let newest = directory.join("step-3.npz");
    assert_eq!(shell(&newest, &script).signal(), Some(libc::SIGKILL));
    assert_eq!(complete(&newest).as_deref(), Ok("incomplete"));
    assert_eq!(latest(), directory.join("step-2.npz").to_str().unwrap());
    let listed = mount.tensorfs_ok(["ls".as_ref(), "--complete".as_ref(), "-R".as_ref(), directory.as_os_str()]);
    assert!(listed.contains("step-2.npz") && !listed.contains("step-3.npz"), "{listed}");
    // Of what a trainer saves also what is of no format.
    let trainers = mount.at("run/checkpoint-9");
    fs::create_dir(&trainers).unwrap();
    fs::copy(&whole, trainers.join("weights.npy")).unwrap();
    fs::write(trainers.join("trainer_state.json"), "{\"global_step\": 9}").unwrap();
    assert_eq!(complete(&trainers).as_deref(), Ok("complete"));
    let script = "exec 3>\"$1\"; echo some >&3; kill -9 $$";
    assert_eq!(shell(&trainers.join("scheduler"), script).signal(), Some(libc::SIGKILL));
    assert_eq!(complete(&trainers).as_deref(), Ok("incomplete"));
    fs::write(trainers.join("scheduler"), "all").unwrap();
    assert_eq!(complete(&trainers).as_deref(), Ok("complete"));
    fs::copy(&whole, &newest).unwrap();
    assert_eq!(complete(&newest).as_deref(), Ok("complete"));
}

/// Proves T13.
fn what_is_newer_and_not_complete_is_rolled_back(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let run = mount.at("run");
    fs::create_dir(&run).unwrap();
    let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (100,), }\n";
    let mut npy = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
    npy.extend([7; 100]);
    let save = |step: u32, len: usize, last: bool| {
        let directory = run.join(format!("checkpoint-{step}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("weights.npy"), &npy[..len]).unwrap();
        if last {
            fs::write(directory.join("trainer_state.json"), "{}").unwrap();
        }
    };
    let rollback = |mount: &Mount, more: &[&str]| {
        let mut arguments = vec!["rollback", "--json", run.to_str().unwrap()];
        arguments.extend(more);
        let output = mount.tensorfs(arguments);
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code(), said, String::from_utf8(output.stderr).unwrap())
    };
    let names = || {
        let entries = fs::read_dir(&run).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    };
    let at = |name: &str| Value::from(run.join(name).to_str().unwrap());
    // Nothing is complete: nothing is done.
    save(10, npy.len() - 1, true);
    let (status, _, said) = rollback(&mount, &[]);
    assert!(status == Some(1) && said.contains("no complete checkpoint"), "{said}");
    fs::write(run.join("checkpoint-10/weights.npy"), &npy).unwrap();
    save(20, npy.len(), true);
    save(30, npy.len(), false);
    save(40, npy.len() - 1, true);
    let done = serde_json::json!([
        {"path": at("checkpoint-40"), "to": at(".rolled-back/checkpoint-40")},
        {"path": at("checkpoint-30"), "to": at(".rolled-back/checkpoint-30")},
    ]);
    let before = names();
    let (status, said, _) = rollback(&mount, &["--dry-run"]);
    assert_eq!((status, &said["set_aside"], &said["complete"]), (Some(0), &done, &at("checkpoint-20")));
    assert_eq!(names(), before);
    // While one is being written, it is not known whether it will be complete.
    let mut writer = child(["do"]);
    assert_eq!(writer.ask(&format!("open f wc {}", run.join("checkpoint-40/optimizer.pt").display())), "ok");
    let (status, _, said) = rollback(&mount, &[]);
    assert!(status == Some(1) && said.contains("checkpoint-40/optimizer.pt: it is being written"), "{said}");
    assert_eq!(names(), before);
    writer.kill(libc::SIGKILL);
    assert_eq!(state(&run.join("checkpoint-40/optimizer.pt")), "interrupted");
    let (status, said, complaint) = rollback(&mount, &[]);
    assert_eq!((status, &said["set_aside"]), (Some(0), &done), "{complaint}");
    assert_eq!(names(), [".rolled-back", "checkpoint-10", "checkpoint-20"]);
    assert_eq!(fs::read(run.join(".rolled-back/checkpoint-40/weights.npy")).unwrap(), npy[..npy.len() - 1]);
    // There is nothing to do; and one of the same name is kept beside the first.
    assert_eq!(rollback(&mount, &[]).1["set_aside"], serde_json::json!([]));
    save(30, 0, false);
    let (status, said, _) = rollback(&mount, &[]);
    assert_eq!((status, &said["set_aside"][0]["to"]), (Some(0), &at(".rolled-back/checkpoint-30.1")));
    // Elsewhere, if it is on the mount.
    save(30, npy.len(), false);
    let outside = mount.host().join("outside");
    let (status, _, said) = rollback(&mount, &["--to", outside.to_str().unwrap()]);
    assert!(status == Some(1) && said.contains("not on the same mount"), "{said}");
    let to = mount.at("aside");
    assert_eq!(rollback(&mount, &["--to", to.to_str().unwrap()]).0, Some(0));
    assert!(to.join("checkpoint-30").is_dir());
    // It outlives a power loss.
    mount.power_loss();
    mount.mount();
    assert_eq!(names(), [".rolled-back", "checkpoint-10", "checkpoint-20"]);
    // A directory that holds what is complete stays.
    fs::write(run.join("trainer_state.json"), "{").unwrap();
    let (status, said, complaint) = rollback(&mount, &[]);
    assert_eq!((status, said["left"].as_array().unwrap().len()), (Some(1), 1), "{complaint}");
    assert_eq!(said["complete"], at("checkpoint-20"));
}
