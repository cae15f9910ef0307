//! Each kind of request, and the server killed at each moment of it: when the request was read, before and after the
//! call of the host in it, before it was answered, and after. What a program sees is as if nobody had been killed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread::{self, JoinHandle};

use tensorfs_layout::pool::have_committed;
use tensorfs_tests::{
    Call, HostCalls, Injected, Passthrough, Rule, Setup, asked_anew, c_path, on_mounts, wait_until, xattr,
};

use crate::takeover::kept;

on_mounts!(what_is_asked_is_done_once);

/// What a program asks, and what must be so when it has been answered.
struct Case {
    name: &'static str,
    /// Its number in `enum fuse_opcode` of linux/fuse.h.
    kind: u32,
    /// The call of the host in it that does what was asked, and the file that it is made on.
    stored: Option<(Call, &'static str)>,
    prepare: fn(&Path) -> io::Result<()>,
    /// What it sees is part of what must be so.
    act: fn(&Path) -> io::Result<()>,
    done: fn(&Path) -> bool,
}

/// A moment at which the server is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    Read,
    BeforeStored,
    Stored,
    BeforeAnswered,
    Answered,
}

const MOMENTS: [Moment; 5] =
    [Moment::Read, Moment::BeforeStored, Moment::Stored, Moment::BeforeAnswered, Moment::Answered];

impl Moment {
    fn rule(self, case: &Case) -> Option<Rule> {
        let stored = || case.stored.map(|(call, on)| Rule::of(call).on(on));
        let rule = match self {
            Moment::Read => Rule::of(Call::Request).kind(case.kind),
            Moment::BeforeStored => stored()?,
            Moment::Stored => stored()?.after(),
            Moment::BeforeAnswered => Rule::of(Call::Answer).kind(case.kind),
            Moment::Answered => Rule::of(Call::Answer).kind(case.kind).after(),
        };
        Some(rule.times(1).held())
    }
}

const fn recorded(
    name: &'static str,
    kind: u32,
    prepare: fn(&Path) -> io::Result<()>,
    act: fn(&Path) -> io::Result<()>,
    done: fn(&Path) -> bool,
) -> Case {
    Case { name, kind, stored: Some((Call::Write, "/log")), prepare, act, done }
}

/// Changes nothing that is stored.
const fn seen(name: &'static str, kind: u32, act: fn(&Path) -> io::Result<()>) -> Case {
    Case { name, kind, stored: None, prepare: two, act, done: |_| true }
}

fn is(it_is: bool, what: &str) -> io::Result<()> {
    if it_is { Ok(()) } else { Err(io::Error::other(what.to_owned())) }
}

fn rename_with(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (c_path(from), c_path(to));
    // SAFETY: two paths that end with NUL.
    let done = unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn nothing(_: &Path) -> io::Result<()> {
    Ok(())
}

fn two(dir: &Path) -> io::Result<()> {
    fs::write(dir.join("a"), "first")?;
    fs::write(dir.join("b"), "second")
}

fn holds(path: &Path, text: &str) -> bool {
    fs::read(path).is_ok_and(|bytes| bytes == text.as_bytes())
}

const CASES: [Case; 37] = [
    recorded("mkdir", 9, nothing, |dir| fs::create_dir(dir.join("d")), |dir| dir.join("d").is_dir()),
    recorded(
        "rmdir",
        11,
        |dir| fs::create_dir(dir.join("d")),
        |dir| fs::remove_dir(dir.join("d")),
        |dir| !dir.join("d").exists(),
    ),
    recorded(
        "create",
        35,
        nothing,
        |dir| OpenOptions::new().write(true).create_new(true).open(dir.join("a"))?.write_all(b"new"),
        |dir| holds(&dir.join("a"), "new"),
    ),
    recorded(
        "create with set-user-ID",
        35,
        |dir| fs::set_permissions(dir, PermissionsExt::from_mode(0o777)),
        |dir| {
            let dir = File::open(dir)?;
            // SAFETY: takes an integer, and changes this thread alone, which ends after this.
            unsafe { libc::setfsuid(1000) };
            let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_CLOEXEC;
            // SAFETY: an open directory and a path that ends with NUL.
            let made = unsafe { libc::openat(dir.as_raw_fd(), c"s".as_ptr(), flags, 0o4755) };
            if made < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: it was opened just now, and nobody else has it.
            drop(unsafe { OwnedFd::from_raw_fd(made) });
            Ok(())
        },
        |dir| asked_anew(&dir.join("s")).is_ok_and(|stat| stat.stx_mode & 0o7777 == 0o4755),
    ),
    recorded(
        "mknod",
        8,
        nothing,
        |dir| {
            // SAFETY: a path that ends with NUL.
            let made = unsafe { libc::mkfifo(c_path(&dir.join("p")).as_ptr(), 0o600) };
            if made == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        },
        |dir| fs::symlink_metadata(dir.join("p")).is_ok(),
    ),
    recorded(
        "symlink",
        6,
        nothing,
        |dir| std::os::unix::fs::symlink("to", dir.join("l")),
        |dir| fs::read_link(dir.join("l")).is_ok_and(|to| to == Path::new("to")),
    ),
    recorded(
        "link",
        13,
        two,
        |dir| fs::hard_link(dir.join("a"), dir.join("l")),
        |dir| fs::metadata(dir.join("l")).is_ok_and(|meta| meta.nlink() == 2),
    ),
    recorded("unlink", 10, two, |dir| fs::remove_file(dir.join("a")), |dir| !dir.join("a").exists()),
    recorded(
        "rename",
        12,
        two,
        |dir| fs::rename(dir.join("a"), dir.join("c")),
        |dir| !dir.join("a").exists() && holds(&dir.join("c"), "first"),
    ),
    recorded(
        "rename over",
        12,
        two,
        |dir| fs::rename(dir.join("a"), dir.join("b")),
        |dir| !dir.join("a").exists() && holds(&dir.join("b"), "first"),
    ),
    recorded(
        "rename, not over",
        45,
        two,
        |dir| rename_with(&dir.join("a"), &dir.join("c"), libc::RENAME_NOREPLACE),
        |dir| !dir.join("a").exists() && holds(&dir.join("c"), "first"),
    ),
    recorded(
        "exchange",
        45,
        two,
        |dir| rename_with(&dir.join("a"), &dir.join("b"), libc::RENAME_EXCHANGE),
        |dir| holds(&dir.join("a"), "second") && holds(&dir.join("b"), "first"),
    ),
    recorded(
        "setxattr",
        21,
        two,
        |dir| Ok(xattr::set(&dir.join("a"), "user.k", b"v", libc::XATTR_CREATE)?),
        |dir| xattr::get(&dir.join("a"), "user.k").is_ok_and(|value| value == b"v"),
    ),
    recorded(
        "removexattr",
        24,
        |dir| two(dir).and_then(|()| Ok(xattr::set(&dir.join("a"), "user.k", b"v", 0)?)),
        |dir| Ok(xattr::remove(&dir.join("a"), "user.k")?),
        |dir| xattr::get(&dir.join("a"), "user.k").is_err(),
    ),
    recorded(
        "chmod",
        4,
        two,
        |dir| fs::set_permissions(dir.join("a"), PermissionsExt::from_mode(0o640)),
        |dir| fs::metadata(dir.join("a")).is_ok_and(|meta| meta.mode() & 0o777 == 0o640),
    ),
    recorded(
        "truncate",
        4,
        two,
        |dir| OpenOptions::new().write(true).open(dir.join("a"))?.set_len(2),
        |dir| holds(&dir.join("a"), "fi"),
    ),
    recorded("rewrite", 14, two, |dir| fs::write(dir.join("a"), "anew"), |dir| holds(&dir.join("a"), "anew")),
    Case {
        name: "fsync",
        kind: 20,
        stored: Some((Call::Fdatasync, "")),
        prepare: two,
        act: |dir| {
            let file = OpenOptions::new().write(true).open(dir.join("a"))?;
            file.write_all_at(b"F", 0)?;
            file.sync_all()
        },
        done: |dir| holds(&dir.join("a"), "First"),
    },
    Case {
        name: "allocate",
        kind: 43,
        stored: Some((Call::Fallocate, "/segments/")),
        prepare: two,
        act: |dir| {
            let file = OpenOptions::new().write(true).open(dir.join("a"))?;
            // SAFETY: takes integers alone.
            let done = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, 4096) };
            if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        },
        done: |dir| fs::metadata(dir.join("a")).is_ok_and(|meta| meta.len() == 4096),
    },
    Case {
        name: "write",
        kind: 16,
        stored: Some((Call::Write, "/segments/")),
        prepare: two,
        act: |dir| OpenOptions::new().write(true).open(dir.join("a"))?.write_all_at(b"F", 0),
        done: |dir| holds(&dir.join("a"), "First"),
    },
    Case {
        name: "append",
        kind: 16,
        stored: Some((Call::Write, "/segments/")),
        prepare: two,
        act: |dir| {
            // The second time the bytes before are the same as those that are appended.
            let mut file = OpenOptions::new().append(true).open(dir.join("a"))?;
            file.write_all(b" one")?;
            file.write_all(b" one")
        },
        done: |dir| holds(&dir.join("a"), "first one one"),
    },
    seen("lookup", 1, |dir| is(fs::symlink_metadata(dir.join("none")).is_err(), "a name that nobody made")),
    seen("getattr", 3, |dir| is(asked_anew(&dir.join("a"))?.stx_size == 5, "another size")),
    Case {
        prepare: |dir| std::os::unix::fs::symlink("to", dir.join("l")),
        ..seen("readlink", 5, |dir| is(fs::read_link(dir.join("l"))? == Path::new("to"), "another target"))
    },
    seen("open", 14, |dir| is(fs::read(dir.join("a"))? == b"first", "other bytes")),
    seen("read", 15, |dir| is(fs::read(dir.join("a"))? == b"first", "other bytes")),
    seen("read of a page about the mount", 15, |dir| {
        let info = fs::read_to_string(dir.parent().expect("the root is above").join(".tensorfs/info"))?;
        is(info.trim_end().ends_with('}'), "half of it")
    }),
    seen("statfs", 17, |dir| is(nix::sys::statvfs::statvfs(dir)?.blocks() > 0, "no blocks")),
    Case {
        done: |dir| !dir.join("a").exists(),
        ..seen("release", 18, |dir| {
            let file = OpenOptions::new().read(true).write(true).open(dir.join("a"))?;
            fs::remove_file(dir.join("a"))?;
            drop(file);
            Ok(())
        })
    },
    seen("getxattr", 22, |dir| is(xattr::get(&dir.join("a"), "user.none").is_err(), "an attribute that nobody set")),
    seen("listxattr", 23, |dir| Ok(xattr::list(&dir.join("a")).map(drop)?)),
    Case {
        done: |dir| holds(&dir.join("a"), "First"),
        ..seen("flush", 25, |dir| OpenOptions::new().write(true).open(dir.join("a"))?.write_all_at(b"F", 0))
    },
    // Directories are not opened: the first answer to that says so.
    seen("readdir", 44, both_are_listed),
    seen("fsyncdir", 30, |dir| File::open(dir)?.sync_all()),
    seen("ioctl", 39, |dir| have_committed(&File::open(dir)?)),
    seen("lseek", 46, |dir| {
        let file = File::open(dir.join("a"))?;
        is(nix::unistd::lseek(&file, 0, nix::unistd::Whence::SeekHole)? == 5, "a hole in five bytes")
    }),
    Case {
        name: "copy_file_range",
        kind: 47,
        stored: None,
        prepare: two,
        act: |dir| {
            let (from, to) = (File::open(dir.join("a"))?, OpenOptions::new().write(true).open(dir.join("b"))?);
            let copied = nix::fcntl::copy_file_range(&from, None, &to, Some(&mut 6), 5)?;
            is(copied == 5, "fewer bytes")
        },
        done: |dir| holds(&dir.join("b"), "secondfirst"),
    },
];

fn both_are_listed(dir: &Path) -> io::Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name());
    }
    names.sort();
    is(names == ["a", "b"], "other names")
}

/// Waits until the server holds a request, or ends the test if a program that has to wait for it was answered without.
fn wait_for_held(held: &Injected, actor: &JoinHandle<io::Result<()>>, has_to_wait: bool, what: &str) {
    wait_until("a request that is held", || {
        let waits = held.waiting() > 0;
        assert!(waits || !has_to_wait || !actor.is_finished(), "{what}: the kernel does not ask");
        waits
    });
}

/// How many files have bytes on the host.
fn segments(pool: &Path) -> usize {
    let shards = fs::read_dir(pool.join("segments")).unwrap();
    shards.map(|shard| fs::read_dir(shard.unwrap().path()).unwrap().count()).sum()
}

/// Kinds that the kernel does not ask the server for where it moves the bytes itself.
const MOVED: [&str; 3] = ["read", "write", "append"];

/// The server is killed at each moment of each kind of request.
///
/// Proves K3.
fn what_is_asked_is_done_once(setup: Setup) {
    let calls = HostCalls::new();
    let passthrough = setup.passthrough() == Passthrough::On;
    let mut mount = kept(setup.host_calls(&calls));
    if mount.is_plain() {
        return;
    }
    let mut killed = 0;
    for (n, case) in CASES.iter().enumerate().filter(|(_, case)| !(passthrough && MOVED.contains(&case.name))) {
        for moment in MOMENTS {
            let Some(rule) = moment.rule(case) else { continue };
            let dir = mount.at(format!("{n} {moment:?}"));
            fs::create_dir(&dir).unwrap();
            (case.prepare)(&dir).unwrap();
            mount.sync();
            let held = calls.add(rule);
            let what = format!("{}, killed: {moment:?}", case.name);
            let (acted, act) = (dir.clone(), case.act);
            let actor = thread::spawn(move || act(&acted));
            let has_to_wait = moment != Moment::Answered && case.name != "release";
            wait_for_held(&held, &actor, has_to_wait, &what);
            mount.kill_server();
            held.were_killed();
            killed += 1;
            actor.join().unwrap().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!((case.done)(&dir), "{what}");
            drop(held);
        }
    }
    println!("{killed} servers were killed");
    // Whatever a handle that was closed had held is let go of.
    mount.wait_for("end of files without a name", |info| info["files"] == segments(mount.pool()));
    mount.umount();
    let check = mount.tensorfs(["check", "--data", mount.pool().to_str().unwrap()]);
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&[check.stdout, check.stderr].concat()));
}
