//! Who may do what, and that nothing in a pool leads out of it.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tensorfs_tests::{Mount, Pattern, Setup, is_root, on_mounts, run, shell, xattr};

on_mounts!(
    another_user_reaches_bytes_through_the_mount_only,
    sticky_directories,
    groups,
    set_user_id_goes_at_the_first_chance_to_write,
    no_name_target_or_attribute_leads_out,
    a_rollback_by_root_follows_nobodys_links,
);

/// Whether a shell script works for a user with these groups, from the first one on.
fn may(directory: &Path, uid: u32, groups: &[u32], script: &str) -> bool {
    let list: Vec<String> = groups.iter().map(u32::to_string).collect();
    let (uid, gid) = (uid.to_string(), list[0].clone());
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &uid, "--regid", &gid, "--groups", &list.join(",")]);
    // The shell starts where it is: the directories above need not be open to the user.
    let output = run(command.args(["bash", "-c", script]).current_dir(directory).env("HOME", "/"));
    output.status.success()
}

fn everything_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        found.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            everything_below(&entry.path(), found);
        }
    }
}

/// A pool with something in each of its places.
fn with_quarantine(setup: Setup) -> Mount {
    let mut mount = setup.mount();
    for name in ["f", "g"] {
        std::fs::write(mount.at(name), Pattern(1).bytes(0, 100_000)).unwrap();
    }
    mount.sync();
    let mut writer = tensorfs_tests::child(["do"]);
    assert_eq!(writer.ask(&format!("open f wct {}", mount.at("g").display())), "ok");
    assert_eq!(writer.ask("write f 0 2 1000"), "ok");
    writer.kill(libc::SIGKILL);
    mount.remount();
    assert_eq!(mount.quarantine().len(), 1);
    mount
}

/// Proves A6.
fn another_user_reaches_bytes_through_the_mount_only(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = with_quarantine(setup);
    let mut found = Vec::new();
    everything_below(mount.pool(), &mut found);
    assert!(found.len() > 5, "{found:?}");
    for path in found {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!(meta.uid(), 0, "{}", path.display());
        let open = meta.mode() & if meta.is_dir() { 0o022 } else { 0o077 };
        assert_eq!(open, 0, "{} has mode {:o}", path.display(), meta.mode());
        if meta.is_file() {
            let name = path.file_name().unwrap().to_str().unwrap();
            for script in [format!("cat {name} >/dev/null"), format!(": >> {name}"), format!("exec 3<>{name}")] {
                assert!(!may(path.parent().unwrap(), 12345, &[12345], &script), "{}: {script}", path.display());
            }
        }
    }
    assert!(!may(mount.pool(), 12345, &[12345], "echo x > new"));
    // Through the mount its permissions count, also where the kernel opens the segment on its own.
    let mode = |mode| std::fs::set_permissions(mount.at("f"), PermissionsExt::from_mode(mode)).unwrap();
    for (bits, read, write) in [(0o600, false, false), (0o604, true, false), (0o602, false, true), (0o606, true, true)]
    {
        mode(bits);
        assert_eq!(may(mount.path(), 12345, &[12345], "cmp -n 1000 f f"), read, "{bits:o}");
        assert_eq!(may(mount.path(), 12345, &[12345], ": >> f"), write, "{bits:o}");
    }
    mode(0o600);
    std::os::unix::fs::chown(mount.at("f"), Some(12345), None).unwrap();
    assert!(may(mount.path(), 12345, &[12345], "cmp f f && echo x >> f"));
}

/// Proves P1.
fn sticky_directories(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = setup.mount();
    let (owner, other) = (1001, 1002);
    let make = || {
        shell(
            mount.path(),
            "rm -rf d; mkdir d; chown 1000 d; chmod 1777 d; echo x > d/f; chown 1001 d/f; chmod 666 d/f",
        );
        assert!(may(mount.path(), other, &[other], "mkdir d/own"));
    };
    for (script, may_owner) in [
        ("rm -f d/f", true),
        ("mv -T d/f d/g", true),
        ("mv -T d/f d/own/f", false),
        ("rm -f d/f && ! test -e d/f", true),
    ] {
        make();
        assert!(!may(mount.path(), other, &[other], script), "{script}: by somebody else");
        // Nor by renaming something of one's own over it.
        assert!(!may(mount.path(), other, &[other], "echo y > d/mine && mv -fT d/mine d/f"), "{script}");
        assert_eq!(may(mount.path(), owner, &[owner], script), may_owner, "{script}: by the file's owner");
        make();
        assert!(may(mount.path(), 1000, &[1000], "rm -f d/f"), "by the directory's owner");
    }
    make();
    shell(mount.path(), "chmod 777 d");
    assert!(may(mount.path(), other, &[other], "rm -f d/f && ! test -e d/f"), "without the bit, anybody");
}

/// Proves P2, A5.
fn groups(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = setup.mount();
    let here = mount.path();
    shell(here, "echo secret > f; chown 0:777 f; chmod 040 f; mkdir shared; chown 0:777 shared; chmod 2770 shared");
    assert!(may(here, 1001, &[1001, 5, 777], "cat f"), "a supplementary group");
    assert!(may(here, 1001, &[777], "cat f"), "the group itself");
    assert!(!may(here, 1001, &[1001, 5], "cat f"), "another group");
    assert!(may(here, 1001, &[1001, 777], "echo x > shared/f && mkdir shared/d"));
    let group = |name: &str| std::fs::metadata(mount.at(name)).unwrap().gid();
    assert_eq!((group("shared/f"), group("shared/d")), (777, 777));
    // One gives files away to one's own groups only, and sets the bit for these only.
    assert!(may(here, 1001, &[1001, 777], "echo x > shared/g && chgrp 1001 shared/g && chgrp 777 shared/g"));
    assert!(!may(here, 1001, &[1001, 777], "chgrp 5 shared/g"));
    shell(here, "echo x > own; chown 1001:777 own; chmod 755 own");
    assert!(may(here, 1001, &[1001], "chmod 2755 own"));
    assert_eq!(std::fs::metadata(mount.at("own")).unwrap().mode() & 0o7777, 0o755, "not in the file's group");
    assert!(may(here, 1001, &[1001, 777], "chmod 2755 own"));
    assert_eq!(std::fs::metadata(mount.at("own")).unwrap().mode() & 0o7777, 0o2755);
}

/// Proves A5.
fn set_user_id_goes_at_the_first_chance_to_write(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = setup.mount();
    // What is left of a mode after somebody without privilege has done this.
    let left = |directory: &Path, script: &str, bits: u32| {
        shell(directory, &format!("rm -f f another-name; echo some > f; ln f another-name; chmod {bits:o} f"));
        assert!(may(directory, 1001, &[1001], script), "{script} in {}", directory.display());
        std::fs::metadata(directory.join("f")).unwrap().mode() & 0o7777
    };
    let mapped =
        "python3 -c 'import mmap; f = open(\"f\", \"r+b\"); mmap.mmap(f.fileno(), 0)[0:1] = b\"y\"; f.write(b\"z\")'";
    for (script, cleared) in [
        ("cat f", false),
        ("echo x >> f", true),
        (": > f", true),
        ("truncate -s 1 f", true),
        ("fallocate -l 8192 f", true),
        ("echo x >> another-name", true),
        (mapped, true),
    ] {
        // Without the group's x, the bit is an old way to say that locks are mandatory.
        for bits in [0o6777, 0o4777, 0o2777, 0o6767, 0o2767] {
            let (here, host) = (left(mount.path(), script, bits), left(&mount.host(), script, bits));
            assert_eq!(here, host, "{bits:o} after {script}: the mount, the host");
            assert_eq!(here, if cleared { bits & 0o777 } else { bits }, "{bits:o} after {script}");
        }
    }
}

/// Proves P3, A6.
fn no_name_target_or_attribute_leads_out(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    std::fs::write(mount.host().join("outside"), "outside").unwrap();
    let outside = mount.host().join("outside");
    let names: [&[u8]; 10] =
        [b"...", b"..\\..\\x", b"%2e%2e%2f", b"$(reboot)", b"a\nb", b"-rf", b"log", b"lock", b"\xff\xfe", b"../x"];
    for name in names {
        let path = mount.path().join(OsString::from_vec(name.to_vec()));
        if name.contains(&b'/') {
            // The kernel walks it, and it ends above the mount, as everywhere.
            continue;
        }
        std::fs::write(&path, "inside").unwrap();
        xattr::set(&path, [b"user.".as_slice(), name].concat(), outside.as_os_str().as_bytes(), 0).unwrap();
    }
    // Links are the client's to follow: what is at their end is not the pool's, and stays as it is.
    for (name, target) in
        [("up", "../host/outside"), ("absolute", outside.to_str().unwrap()), ("proc", "/proc/self/environ")]
    {
        symlink(target, mount.at(name)).unwrap();
    }
    assert_eq!(std::fs::read(mount.at("up")).unwrap(), b"outside");
    std::fs::rename(mount.at("up"), mount.at("moved")).unwrap();
    std::fs::remove_file(mount.at("absolute")).unwrap();
    symlink("/proc/self/environ", mount.at("absolute")).unwrap();
    let ours = std::fs::read(mount.at("proc")).unwrap();
    assert_eq!(ours, std::fs::read("/proc/self/environ").unwrap(), "the client's own, not the server's");
    File::open(mount.path()).unwrap().sync_all().unwrap();
    mount.kill9();
    mount.mount();
    mount.umount();
    assert_eq!(std::fs::read(&outside).unwrap(), b"outside");
    // The pool has no names but its own, and nothing that is not a file or a directory.
    let mut found = Vec::new();
    everything_below(mount.pool(), &mut found);
    for path in found {
        let name = path.strip_prefix(mount.pool()).unwrap().to_str().expect("a name of ours").to_owned();
        let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
        assert!(kind.is_file() || kind.is_dir(), "{name}");
        let hexadecimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let own = match name.split('/').collect::<Vec<_>>()[..] {
            [top] => ["log", "lock", "segments", "quarantine"].contains(&top),
            ["segments", shard] => hexadecimal(shard),
            ["segments", shard, segment] => hexadecimal(shard) && hexadecimal(segment),
            _ => false,
        };
        assert!(own, "{name:?} is no name of a pool's");
    }
    mount.mount();
}

/// Root rolls back in a directory of a user's, who has put links there, or puts them there meanwhile.
///
/// Proves P3, T13.
fn a_rollback_by_root_follows_nobodys_links(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let (run, victim) = (mount.at("run"), mount.at("victim"));
    let save = |directory: PathBuf, complete: bool| {
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("weights.npy"), npy(if complete { 100 } else { 99 })).unwrap();
        std::fs::write(directory.join("trainer_state.json"), "{}").unwrap();
    };
    save(victim.join("checkpoint-30"), false);
    save(run.join("sub/checkpoint-20"), true);
    save(run.join("sub/checkpoint-30"), false);
    let rollback = || mount.tensorfs(["rollback".as_ref(), run.as_os_str()]);
    let names = |path: &Path| {
        let mut names: Vec<_> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    // Where it would go.
    symlink("../victim", run.join(".rolled-back")).unwrap();
    let refused = rollback();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains(".rolled-back") && said.lines().count() == 1, "{said}");
    assert_eq!(names(&victim), ["checkpoint-30"]);
    std::fs::remove_file(run.join(".rolled-back")).unwrap();
    // On the way to it: a directory and a link take turns.
    symlink("../victim", run.join("link")).unwrap();
    let (done, turn) = (std::sync::atomic::AtomicBool::new(false), std::sync::Mutex::new(()));
    std::thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let exchanging = turn.lock().unwrap();
                exchange(&run.join("sub"), &run.join("link"));
                drop(exchanging);
                std::thread::yield_now();
            }
        });
        let mut set_aside = 0;
        for _ in 0..200 {
            rollback();
            // What is made anew is made where it is to be.
            let _still = turn.lock().unwrap();
            for sub in ["sub", "link"].map(|name| run.join(".rolled-back").join(name)) {
                set_aside += usize::from(std::fs::remove_dir_all(&sub).is_ok());
            }
            for sub in ["sub", "link"].map(|name| run.join(name)) {
                if !sub.is_symlink() && !sub.join("checkpoint-30").exists() && sub.join("checkpoint-20").exists() {
                    save(sub.join("checkpoint-30"), false);
                }
            }
            assert!(victim.join("checkpoint-30/weights.npy").exists(), "what is elsewhere was set aside");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        swapping.join().unwrap();
        assert!(set_aside > 0);
    });
    assert!(victim.join("checkpoint-30/weights.npy").exists());
}

fn exchange(one: &Path, other: &Path) {
    let path = |path: &Path| std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    let (one, other) = (path(one), path(other));
    // SAFETY: two paths that end with NUL.
    let done =
        unsafe { libc::renameat2(libc::AT_FDCWD, one.as_ptr(), libc::AT_FDCWD, other.as_ptr(), libc::RENAME_EXCHANGE) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// An array of 100 bytes, of which so many are there.
fn npy(len: usize) -> Vec<u8> {
    let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (100,), }\n";
    let mut npy = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
    npy.extend(vec![7; len]);
    npy
}
