//! A mount that goes on to newer trees of its remote while it is mounted.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::mount::{MsFlags, mount as mount_by_kernel};
use nix::sys::signal::{Signal, kill};
use serde_json::Value;
use tensorfs_layout::check::Committed;
use tensorfs_layout::pool::{Change, FOLLOW_CHUNK, Follow, FollowReply, Look, Whose, follow, note_sum};
use tensorfs_layout::{Ino, ROOT};
use tensorfs_tests::{Call, HostCalls, Mount, Pattern, Rule, Setup, is_root, on_mounts, tensorfs, wait_until, xattr};

use crate::bring::{Waits, all_come, bringers, errno, state};

on_mounts!(
    a_newer_batch_appears_as_a_whole,
    what_is_as_it_was_stays_the_same_file,
    who_has_an_old_version_open_reads_it_to_its_end,
    it_goes_on_whoever_was_killed,
    who_follows_is_started_again_if_it_is_killed_alone,
    what_changes_a_thing_into_another_is_refused,
    what_was_opened_before_it_was_durable_can_be_read,
    what_was_gone_over_to_in_part_is_gone_over_to,
    more_than_one_transaction_takes_comes_too,
    what_was_removed_takes_no_room,
    a_remote_that_is_away_is_tried_again,
    a_remote_that_is_as_it_was_before_changes_nothing,
    nobody_else_changes_it,
);

const SIZE: usize = 2 << 20;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A pool, its remote, and the place of one that follows it.
struct Followed {
    origin: Mount,
    at: PathBuf,
    url: String,
    pool: PathBuf,
    setup: Setup,
}

impl Followed {
    /// Nothing if there are no mounts.
    fn new(setup: Setup, fill: impl Fn(&Mount)) -> Option<Self> {
        let origin = setup.clone().mount();
        if origin.is_plain() {
            setup.skip("needs a mount");
            return None;
        }
        let at = origin.pool().with_file_name("remote");
        let url = format!("file://{}", at.display());
        origin.tensorfs_ok(["remote", "set", text(origin.pool()), &url]);
        let pool = origin.pool().with_file_name("made");
        let this = Self { origin, at, url, pool, setup };
        fill(&this.origin);
        this.carry();
        Some(this)
    }

    /// Another batch.
    fn carry(&self) {
        self.origin.sync();
        self.origin.tensorfs_ok(["seal", text(self.origin.path())]);
        self.origin.tensorfs_ok(["remote", "carry", text(self.origin.pool())]);
    }

    /// What is mounted, and looks for newer trees very often.
    fn mount(&self) -> Mount {
        self.make();
        self.mount_what_is_made(["-o", "keeper"])
    }

    fn make(&self) {
        self.origin.tensorfs_ok(["remote", "restore", "--later", "--follow", &self.url, text(&self.pool)]);
    }

    fn mount_what_is_made<const N: usize>(&self, more: [&str; N]) -> Mount {
        let setup = self.setup.clone().pool_at(&self.pool).mount_with(["--read-only", "--follow=0.05"]);
        setup.mount_with(more).mount()
    }

    fn leave(&self) {
        fs::rename(&self.at, self.at.with_file_name("elsewhere")).unwrap();
    }

    fn come_back(&self) {
        fs::rename(self.at.with_file_name("elsewhere"), &self.at).unwrap();
    }

    /// The newest batch that is there.
    fn batch(&self) -> u64 {
        let names = fs::read_dir(self.at.join("log")).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter_map(|name| name.to_str()?.parse().ok()).max().unwrap()
    }

    /// Waits until the tree of that batch is here.
    fn wait(&self, mount: &Mount) {
        let batch = self.batch();
        mount.wait_for("the newest batch", |info| {
            let following = &info["following"];
            following["batch"].as_u64() == Some(batch) && following["error"].is_null() && following["partly"] == false
        });
    }
}

fn names(dir: &Path) -> Vec<String> {
    let found = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = found.collect();
    names.sort();
    names
}

fn segments(pool: &Path) -> u64 {
    let dirs = fs::read_dir(pool.join("segments")).unwrap().map(|dir| dir.unwrap().path());
    let files = dirs.filter(|dir| dir.is_dir()).flat_map(|dir| fs::read_dir(dir).unwrap());
    files.map(|file| file.unwrap().metadata().map_or(0, |found| found.blocks() * 512)).sum()
}

/// Ends a thread with the test.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Proves E30.
fn a_newer_batch_appears_as_a_whole(setup: Setup) {
    let fill = |mount: &Mount, n: u64| {
        for m in 0..40 {
            fs::write(mount.at(format!("{m}-{n}")), Pattern(100 * n + m).bytes(0, 1000)).unwrap();
        }
        fs::create_dir(mount.at(format!("step-{n}"))).unwrap();
        fs::write(mount.at(format!("step-{n}/model")), Pattern(n).bytes(0, SIZE)).unwrap();
        let mut log = File::options().create(true).append(true).open(mount.at("log")).unwrap();
        log.write_all(format!("{n}\n").as_bytes()).unwrap();
        symlink(format!("step-{n}"), mount.at("new")).unwrap();
        fs::rename(mount.at("new"), mount.at("newest")).unwrap();
    };
    let Some(remote) = Followed::new(setup, |mount| fill(mount, 0)) else { return };
    let mount = remote.mount();
    let (stops, top) = (Arc::new(AtomicBool::new(false)), mount.path().to_owned());
    let ends = Ends(stops.clone());
    let reader = thread::spawn(move || {
        let mut seen = Vec::new();
        while !stops.load(Ordering::SeqCst) {
            let names = names(&top);
            let of: Vec<&str> = names.iter().filter_map(|name| Some(name.split_once('-')?.1)).collect();
            assert_eq!((of.len(), names.len()), (41, 43), "{names:?}");
            assert!(of.iter().all(|n| n == &of[0]), "{names:?}");
            if seen.last().is_none_or(|last| last != of[0]) {
                seen.push(of[0].to_owned());
            }
        }
        seen
    });
    for n in 1..4 {
        for name in names(remote.origin.path()).iter().filter(|name| name.contains('-')) {
            let path = remote.origin.at(name);
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
        fill(&remote.origin, n);
        remote.carry();
        remote.wait(&mount);
        // Nothing that was looked up before is believed.
        assert_eq!(names(mount.path()).iter().filter(|name| name.ends_with(&format!("-{n}"))).count(), 41);
        assert!(!mount.at(format!("0-{}", n - 1)).exists() && !mount.at(format!("step-{}", n - 1)).exists());
        assert_eq!(fs::read_link(mount.at("newest")).unwrap(), Path::new(&format!("step-{n}")));
        assert_eq!(fs::metadata(mount.at("newest/model")).unwrap().len(), SIZE as u64);
    }
    assert!(fs::read(mount.at("newest/model")).unwrap() == Pattern(3).bytes(0, SIZE));
    assert_eq!(fs::read_to_string(mount.at("log")).unwrap(), "0\n1\n2\n3\n");
    drop(ends);
    let seen = reader.join().unwrap();
    assert!(seen.first().is_some_and(|first| first == "0") && seen.is_sorted(), "{seen:?}");
    let info: Value = serde_json::from_slice(&fs::read(mount.at(".tensorfs/info")).unwrap()).unwrap();
    let following = &info["following"];
    assert_eq!((following["url"].as_str(), following["error"].is_null()), (Some(remote.url.as_str()), true));
    assert!(following["came"].as_u64() > Some(0) && following["looked"].as_u64() > Some(0), "{following}");
    let told = mount.tensorfs_ok(["info", text(mount.path())]);
    assert!(told.contains("follows") && told.contains(&format!("batch {}", remote.batch())), "{told}");
}

/// Proves E30.
fn what_is_as_it_was_stays_the_same_file(setup: Setup) {
    let fill = |mount: &Mount| {
        for (n, name) in ["kept", "moved", "linked", "changed", "touched"].into_iter().enumerate() {
            fs::write(mount.at(name), Pattern(n as u64).bytes(0, SIZE)).unwrap();
        }
        fs::create_dir_all(mount.at("dir/below")).unwrap();
        fs::write(mount.at("dir/below/file"), Pattern(9).bytes(0, 1000)).unwrap();
        fs::write(mount.at("empty"), b"").unwrap();
    };
    let Some(remote) = Followed::new(setup, fill) else { return };
    let mount = remote.mount();
    all_come(&mount);
    let ino = |name: &str| fs::metadata(mount.at(name)).unwrap().ino();
    let old = ["kept", "moved", "linked", "changed", "touched", "dir/below", "dir/below/file"].map(ino);
    let from = &remote.origin;
    fs::rename(from.at("moved"), from.at("dir/moved")).unwrap();
    fs::hard_link(from.at("linked"), from.at("another")).unwrap();
    fs::write(from.at("changed"), Pattern(77).bytes(0, SIZE)).unwrap();
    fs::set_permissions(from.at("touched"), fs::Permissions::from_mode(0o604)).unwrap();
    xattr::set(&from.at("touched"), "user.run", b"seven", 0).unwrap();
    File::options().write(true).open(from.at("touched")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    fs::rename(from.at("dir"), from.at("directory")).unwrap();
    // Another file under the name, with the bytes that it had.
    fs::copy(from.at("kept"), from.at("copy")).unwrap();
    fs::rename(from.at("copy"), from.at("kept")).unwrap();
    fs::write(from.at("empty"), b"no more").unwrap();
    remote.carry();
    remote.wait(&mount);
    let now = ["kept", "directory/moved", "linked", "changed", "touched", "directory/below", "directory/below/file"];
    let new = now.map(ino);
    for n in [0, 1, 2, 4, 5, 6] {
        assert_eq!(new[n], old[n], "{}", now[n]);
    }
    assert_ne!(new[3], old[3]);
    assert_eq!((ino("another"), fs::metadata(mount.at("linked")).unwrap().nlink()), (old[2], 2));
    assert_eq!(state(&mount.at("directory/moved")), "sealed", "it has come before");
    let touched = fs::metadata(mount.at("touched")).unwrap();
    assert_eq!((touched.mode() & 0o777, touched.mtime()), (0o604, 0));
    assert_eq!(xattr::get(&mount.at("touched"), "user.run").unwrap(), b"seven");
    assert!(fs::read(mount.at("changed")).unwrap() == Pattern(77).bytes(0, SIZE));
    assert!(fs::read(mount.at("touched")).unwrap() == Pattern(4).bytes(0, SIZE));
    assert_eq!(fs::read(mount.at("empty")).unwrap(), b"no more");
    assert!(!mount.at("dir").exists() && !mount.at("moved").exists());
    assert_eq!(names(mount.path()), names(from.path()));
    drop(mount);
    remote.origin.tensorfs_ok(["check", "--data", text(&remote.pool)]);
}

/// Proves E30.
fn who_has_an_old_version_open_reads_it_to_its_end(setup: Setup) {
    let fill = |mount: &Mount| {
        for (n, name) in ["replaced", "removed", "here"].into_iter().enumerate() {
            fs::write(mount.at(name), Pattern(n as u64).bytes(0, SIZE)).unwrap();
        }
    };
    let Some(remote) = Followed::new(setup, fill) else { return };
    remote.make();
    // So that nothing of them comes before they are replaced.
    let dirs = fs::read_dir(remote.at.join("objects")).unwrap().map(|dir| dir.unwrap().path());
    let objects = dirs.flat_map(|dir| fs::read_dir(dir).unwrap()).map(|object| object.unwrap().path());
    let is_of = |path: &PathBuf| (0..2).any(|n| fs::read(path).unwrap() == Pattern(n).bytes(0, SIZE));
    let hidden: Vec<PathBuf> = objects.filter(is_of).collect();
    assert_eq!(hidden.len(), 2);
    hidden.iter().for_each(|path| fs::rename(path, path.with_extension("hidden")).unwrap());
    let mount = remote.mount_what_is_made([]);
    let mut open = ["replaced", "removed"].map(|name| File::open(mount.at(name)).unwrap());
    assert!(fs::read(mount.at("here")).unwrap() == Pattern(2).bytes(0, SIZE));
    let mut here = File::open(mount.at("here")).unwrap();
    for n in 3..6 {
        let from = &remote.origin;
        fs::write(from.at("new"), Pattern(n).bytes(0, SIZE + 1)).unwrap();
        fs::rename(from.at("new"), from.at("replaced")).unwrap();
        let _ = (fs::remove_file(from.at("removed")), fs::remove_file(from.at("here")));
        remote.carry();
        remote.wait(&mount);
    }
    assert_eq!(names(mount.path()), ["replaced"]);
    hidden.iter().for_each(|path| fs::rename(path.with_extension("hidden"), path).unwrap());
    // Who follows from now on has not seen them go.
    for pid in bringers(&mount) {
        let _ = kill(pid, Signal::SIGKILL);
    }
    wait_until("nobody follows", || bringers(&mount).is_empty());
    let mut another = Command::new(Path::new(tensorfs().get_program()).with_file_name("tensorfs-carrier"));
    another.args(["bring", "--follow=0.05", text(mount.pool()), text(mount.path())]);
    let _another = Waits(another.spawn().unwrap());
    for (n, file) in open.iter_mut().enumerate() {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert!(bytes == Pattern(n as u64).bytes(0, SIZE), "{n}");
    }
    let mut bytes = Vec::new();
    here.seek(SeekFrom::Start(0)).unwrap();
    here.read_to_end(&mut bytes).unwrap();
    assert!(bytes == Pattern(2).bytes(0, SIZE));
    assert!(fs::read(mount.at("replaced")).unwrap() == Pattern(5).bytes(0, SIZE + 1));
}

/// Proves E30.
fn it_goes_on_whoever_was_killed(setup: Setup) {
    let step = |mount: &Mount, n: u64| {
        let _ = fs::remove_dir_all(mount.at(format!("step-{}", n.saturating_sub(2))));
        fs::create_dir(mount.at(format!("step-{n}"))).unwrap();
        for m in 0..30 {
            fs::write(mount.at(format!("step-{n}/{m}")), Pattern(100 * n + m).bytes(0, 40_000)).unwrap();
        }
    };
    let Some(remote) = Followed::new(setup, |mount| step(mount, 0)) else { return };
    let mut mount = remote.mount();
    for n in 1..8 {
        step(&remote.origin, n);
        remote.carry();
        match n % 3 {
            // The keeper has another one take over, and who follows goes on with that; on purpose, too.
            0 => {
                mount.kill_server();
                mount.tensorfs_ok(["upgrade", text(mount.path())]);
                mount.adopt();
            }
            1 => {
                for pid in bringers(&mount) {
                    let _ = kill(pid, Signal::SIGKILL);
                }
                mount.remount();
            }
            _ => {
                mount.kill9();
                mount.mount();
            }
        }
        remote.wait(&mount);
        assert_eq!(names(mount.path()), names(remote.origin.path()), "{n}");
        assert_eq!(fs::read_dir(mount.at(format!("step-{n}"))).unwrap().count(), 30);
    }
    all_come(&mount);
    for m in 0..30 {
        assert!(fs::read(mount.at(format!("step-7/{m}"))).unwrap() == Pattern(700 + m).bytes(0, 40_000), "{m}");
    }
    mount.umount();
    mount.tensorfs_ok(["check", "--data", text(mount.pool())]);
}

/// Who follows, without who watches over that.
fn followers(mount: &Mount) -> Vec<nix::unistd::Pid> {
    let is_watched = |pid: &nix::unistd::Pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"--watched")
    };
    bringers(mount).into_iter().filter(is_watched).collect()
}

/// And it is told when that is given up.
///
/// Proves E30.
fn who_follows_is_started_again_if_it_is_killed_alone(setup: Setup) {
    let Some(remote) = Followed::new(setup, |mount| fs::write(mount.at("a"), b"a").unwrap()) else { return };
    let mut mount = remote.mount();
    remote.wait(&mount);
    assert_eq!((bringers(&mount).len(), followers(&mount).len()), (2, 1));
    for n in 1..=6 {
        let mut killed = Vec::new();
        wait_until("who follows", || {
            killed = followers(&mount);
            !killed.is_empty()
        });
        killed.iter().for_each(|pid| kill(*pid, Signal::SIGKILL).unwrap());
        wait_until("its end", || !followers(&mount).iter().any(|pid| killed.contains(pid)));
        if n < 6 {
            fs::write(remote.origin.at(format!("b{n}")), b"b").unwrap();
            remote.carry();
            remote.wait(&mount);
            assert_eq!(fs::read(mount.at(format!("b{n}"))).unwrap(), b"b");
        }
    }
    wait_until("nobody watches over it", || bringers(&mount).is_empty());
    let health = mount.tensorfs(["health", text(mount.path())]);
    let said = String::from_utf8_lossy(&health.stdout).into_owned();
    assert!(
        said.contains("has died 6 times (signal 9)") && said.contains("tensorfs-carrier bring --follow="),
        "{said}"
    );
    assert_eq!(health.status.code(), Some(1), "{said}");
    // As it says.
    mount.remount();
}

/// Proves E30.
fn what_changes_a_thing_into_another_is_refused(setup: Setup) {
    let fill = |mount: &Mount| {
        fs::write(mount.at("file"), b"file").unwrap();
        fs::create_dir_all(mount.at("dir/below")).unwrap();
    };
    let Some(remote) = Followed::new(setup, fill) else { return };
    remote.make();
    let mount = remote.mount_what_is_made(["-o", "nokeeper"]);
    remote.wait(&mount);
    for pid in bringers(&mount) {
        let _ = kill(pid, Signal::SIGKILL);
    }
    wait_until("nobody follows", || bringers(&mount).is_empty());
    let at = File::open(mount.path()).unwrap();
    let (uuid, note) = note(&remote.pool);
    let ino = |name: &str| Ino(fs::metadata(mount.at(name)).unwrap().ino());
    let (file, dir) = (ino("file"), ino("dir"));
    let go = |changes: &[Change]| {
        let begun = follow(&at, &Follow::Begin { pool: uuid.clone(), note: note_sum(&note) }).unwrap();
        let FollowReply::Begun { switch, .. } = begun else { panic!("{begun:?}") };
        let mut bytes = Vec::new();
        changes.iter().for_each(|change| change.write(&mut bytes));
        assert_eq!(follow(&at, &Follow::Changes { switch, at: 0, bytes }).unwrap(), FollowReply::Noted);
        follow(&at, &Follow::Go { switch, note: note.clone(), last: true }).unwrap()
    };
    let look = |ino: Ino, mode: u32| {
        let committed = Committed::read(&remote.pool).unwrap();
        let look = Look::of(&committed.view().object(ino).unwrap().attributes);
        Change::Look(ino, Look { mode, ..look })
    };
    let refused = |reply: FollowReply, what: &str| {
        let FollowReply::Refused(why) = reply else { panic!("{reply:?}") };
        assert!(why.contains(what), "{why}");
    };
    refused(go(&[look(file, libc::S_IFDIR | 0o755)]), "cannot become something else");
    refused(go(&[look(dir, libc::S_IFREG | 0o644)]), "cannot become something else");
    let name = |dir: Ino, name: &[u8], ino: Ino| Change::Name(Whose::There(dir), name.to_vec(), Whose::There(ino));
    refused(go(&[name(ROOT, b"again", dir)]), "cannot have two names");
    refused(go(&[name(ROOT, b"below", ino("dir/below"))]), "cannot have two names");
    assert_eq!(names(mount.path()), ["dir", "file"]);
    // One that is moved has one, whichever comes first; and a file may have many.
    let moved = [name(ROOT, b"moved", dir), Change::Unname(ROOT, b"dir".to_vec()), name(ROOT, b"again", file)];
    assert_eq!(go(&moved), FollowReply::Noted);
    assert_eq!(go(&[look(file, libc::S_IFREG | 0o600)]), FollowReply::Noted);
    assert_eq!(names(mount.path()), ["again", "file", "moved"]);
    assert_eq!(fs::metadata(mount.at("again")).unwrap().mode(), libc::S_IFREG | 0o600);
}

/// Whoever fetches it does not know it yet, and asks again.
///
/// Proves E21, E30.
fn what_was_opened_before_it_was_durable_can_be_read(setup: Setup) {
    let calls = HostCalls::new();
    let Some(remote) = Followed::new(setup, |mount| fs::write(mount.at("a"), b"a").unwrap()) else { return };
    remote.make();
    let setup = remote.setup.clone().pool_at(&remote.pool).mount_with(["--read-only", "--follow=0.05"]);
    let mount = setup.host_calls(&calls).mount();
    remote.wait(&mount);
    fs::write(remote.origin.at("b"), Pattern(2).bytes(0, SIZE)).unwrap();
    // Whoever fetches has the log made durable, too.
    let syncs = Rule::of_any([Call::Fdatasync, Call::Fsync]).on("/log").by(mount.pid().unwrap());
    let held = calls.add(syncs.held());
    remote.carry();
    held.wait_for_waiting(1);
    wait_until("it can be seen", || mount.at("b").exists());
    let at = mount.at("b");
    let reads = thread::spawn(move || fs::read(at));
    // So long that it was asked for more than once.
    thread::sleep(Duration::from_secs(5));
    assert!(held.waiting() > 0 && !reads.is_finished(), "{:?}", reads.join().unwrap().map(|bytes| bytes.len()));
    drop(held);
    assert!(reads.join().unwrap().unwrap() == Pattern(2).bytes(0, SIZE));
}

/// The note of which tree a pool has.
fn note(pool: &Path) -> (String, Vec<u8>) {
    let committed = Committed::read(pool).unwrap();
    let (_, tier) = committed.view().remote().unwrap();
    (committed.superblock().uuid_text(), tier.note().unwrap().to_vec())
}

/// Proves E30.
fn what_was_gone_over_to_in_part_is_gone_over_to(setup: Setup) {
    let fill = |mount: &Mount| {
        for name in ["a", "b", "c"] {
            fs::write(mount.at(name), name).unwrap();
        }
    };
    let Some(remote) = Followed::new(setup, fill) else { return };
    let mut mount = remote.mount();
    remote.wait(&mount);
    let ask = |mount: &Mount, request: &Follow| follow(&File::open(mount.path()).unwrap(), request).unwrap();
    for pid in bringers(&mount) {
        let _ = kill(pid, Signal::SIGKILL);
    }
    wait_until("nobody follows", || bringers(&mount).is_empty());
    let (pool, before) = note(mount.pool());
    fs::remove_file(remote.origin.at("a")).unwrap();
    fs::write(remote.origin.at("d"), b"d").unwrap();
    remote.carry();
    let second = remote.batch();
    // Somebody who goes over to it in lots, and is killed behind the first one.
    let of_second = Followed::new_pool(&remote);
    let mut noted: Value = serde_json::from_slice(&before).unwrap();
    noted["follows"]["partly"] = serde_json::json!([second, of_second["follows"]["hash"]]);
    let after = String::from_utf8(serde_json::to_vec(&noted).unwrap()).unwrap();
    // As serde_json orders keys otherwise than they were.
    assert!(after.starts_with("{\"follows\":"), "{after}");
    let wrong = Follow::Begin { pool: pool.clone(), note: note_sum(&before) ^ 1 };
    assert!(matches!(ask(&mount, &wrong), FollowReply::Refused(_)));
    let begin = Follow::Begin { pool: pool.clone(), note: note_sum(&before) };
    let FollowReply::Begun { switch: first, .. } = ask(&mount, &begin) else { panic!("not begun") };
    let FollowReply::Begun { switch, room } = ask(&mount, &begin) else { panic!("not begun") };
    assert!(switch != first && room > 100_000);
    let mut bytes = Vec::new();
    Change::Unname(ROOT, b"a".to_vec()).write(&mut bytes);
    Change::Unname(ROOT, b"b".to_vec()).write(&mut bytes);
    assert!(bytes.len() < FOLLOW_CHUNK);
    // Of two who follow, one is told so.
    let late = Follow::Changes { switch: first, at: 0, bytes: bytes.clone() };
    assert_eq!(ask(&mount, &late), FollowReply::Unknown);
    assert_eq!(ask(&mount, &Follow::Changes { switch, at: 0, bytes }), FollowReply::Noted);
    assert_eq!(ask(&mount, &Follow::Changes { switch, at: 1, bytes: Vec::new() }), FollowReply::Unknown);
    assert_eq!(ask(&mount, &Follow::Go { switch, note: after.into_bytes(), last: false }), FollowReply::Noted);
    assert_eq!(names(mount.path()), ["c"]);
    // A third one is there by now, which is not that it goes on with.
    remote.origin.tensorfs_ok(["info", text(&remote.pool)]);
    let mut bytes = Vec::new();
    Change::Look(Ino(1 << 40), tensorfs_layout::pool::Look::of(&root(&remote.pool))).write(&mut bytes);
    let (_, part) = note(mount.pool());
    let FollowReply::Begun { switch, .. } = ask(&mount, &Follow::Begin { pool, note: note_sum(&part) }) else {
        panic!()
    };
    assert_eq!(ask(&mount, &Follow::Changes { switch, at: 0, bytes }), FollowReply::Noted);
    let go = Follow::Go { switch, note: part, last: true };
    assert!(matches!(ask(&mount, &go), FollowReply::Refused(_)), "there is no such object");
    mount.kill9();
    mount.mount();
    remote.wait(&mount);
    assert_eq!(names(mount.path()), ["b", "c", "d"]);
    assert_eq!(fs::read(mount.at("b")).unwrap(), b"b");
    mount.umount();
    mount.tensorfs_ok(["check", "--data", text(mount.pool())]);
}

fn root(pool: &Path) -> tensorfs_layout::log::Attributes {
    Committed::read(pool).unwrap().view().object(ROOT).unwrap().attributes.clone()
}

impl Followed {
    /// What a pool notes that is made from the newest tree.
    fn new_pool(&self) -> Value {
        let pool = self.pool.with_file_name("another");
        self.origin.tensorfs_ok(["remote", "restore", "--later", "--follow", &self.url, text(&pool)]);
        serde_json::from_slice(&note(&pool).1).unwrap()
    }
}

/// Proves E30.
fn more_than_one_transaction_takes_comes_too(setup: Setup) {
    const MANY: usize = 4_500;
    let name = |prefix: &str, n: usize| format!("{prefix}{n:0>width$}", width = 250);
    let fill = |mount: &Mount| {
        for n in 0..MANY {
            File::create(mount.at(name("a", n))).unwrap();
        }
        fs::write(mount.at("file"), Pattern(1).bytes(0, SIZE)).unwrap();
    };
    let Some(remote) = Followed::new(setup, fill) else { return };
    let mut mount = remote.mount();
    all_come(&mount);
    for n in 0..MANY {
        fs::rename(remote.origin.at(name("a", n)), remote.origin.at(name("b", n))).unwrap();
    }
    fs::write(remote.origin.at("other"), b"other").unwrap();
    remote.carry();
    remote.wait(&mount);
    let found = names(mount.path());
    assert_eq!(found.len(), MANY + 2);
    assert_eq!(found.iter().filter(|name| name.starts_with('b')).count(), MANY);
    assert_eq!(state(&mount.at("file")), "sealed");
    assert_eq!(fs::read(mount.at("other")).unwrap(), b"other");
    mount.remount();
    assert_eq!(names(mount.path()), found);
}

/// Proves E30.
fn what_was_removed_takes_no_room(setup: Setup) {
    let fill = |mount: &Mount| {
        fs::create_dir_all(mount.at("step/below")).unwrap();
        for n in 0..4 {
            fs::write(mount.at(format!("step/below/{n}")), Pattern(n).bytes(0, SIZE)).unwrap();
        }
        fs::write(mount.at("stays"), Pattern(9).bytes(0, 100_000)).unwrap();
    };
    let Some(remote) = Followed::new(setup, fill) else { return };
    let mount = remote.mount();
    all_come(&mount);
    // Somebody has looked at one of them, and nobody at the others.
    let seen = fs::metadata(mount.at("step/below/1")).unwrap();
    assert_eq!(seen.len(), SIZE as u64);
    wait_until("all bytes", || segments(mount.pool()) > 4 * SIZE as u64);
    fs::remove_dir_all(remote.origin.at("step")).unwrap();
    remote.carry();
    remote.wait(&mount);
    wait_until("the end of what was removed", || segments(mount.pool()) < SIZE as u64);
    assert_eq!(names(mount.path()), ["stays"]);
    assert_eq!(mount.info()["files"], 1);
}

/// Proves E30.
fn a_remote_that_is_away_is_tried_again(setup: Setup) {
    let Some(remote) = Followed::new(setup, |mount| fs::write(mount.at("a"), b"a").unwrap()) else { return };
    let mount = remote.mount();
    remote.wait(&mount);
    remote.leave();
    mount.wait_for("an error", |info| info["following"]["error"].is_string());
    let health = mount.tensorfs(["health", text(mount.path())]);
    assert_eq!(health.status.code(), Some(1), "{health:?}");
    assert!(String::from_utf8_lossy(&health.stdout).contains("not followed"), "{health:?}");
    mount.wait_for("another look", |info| info["following"]["error"].is_string());
    remote.come_back();
    fs::write(remote.origin.at("b"), b"b").unwrap();
    remote.carry();
    remote.wait(&mount);
    assert_eq!(fs::read(mount.at("b")).unwrap(), b"b");
    let said = mount.log().lines().filter(|line| line.contains("not gone on")).count();
    assert_eq!(said, 1, "{}", mount.log());
    mount.tensorfs_ok(["health", text(mount.path())]);
}

/// Proves E30.
fn a_remote_that_is_as_it_was_before_changes_nothing(setup: Setup) {
    let Some(remote) = Followed::new(setup, |mount| fs::write(mount.at("a"), b"a").unwrap()) else { return };
    let mut mount = remote.mount();
    let first = remote.at.with_file_name("first");
    let copy = |from: &Path, to: &Path| {
        assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    };
    copy(&remote.at, &first);
    fs::write(remote.origin.at("b"), b"b").unwrap();
    remote.carry();
    remote.wait(&mount);
    remote.leave();
    copy(&first, &remote.at);
    let is_told = |info: &Value| {
        let why = info["following"]["error"].as_str();
        why.is_some_and(|why| why.contains("newest batch"))
    };
    mount.wait_for("that to be told", is_told);
    assert_eq!(names(mount.path()), ["a", "b"]);
    mount.remount();
    mount.wait_for("that to be told again", is_told);
    assert_eq!(names(mount.path()), ["a", "b"]);
    fs::remove_dir_all(&remote.at).unwrap();
    remote.come_back();
    fs::write(remote.origin.at("c"), b"c").unwrap();
    remote.carry();
    remote.wait(&mount);
    assert_eq!(names(mount.path()), ["a", "b", "c"]);
}

/// Proves E30.
fn nobody_else_changes_it(setup: Setup) {
    let Some(remote) = Followed::new(setup, |mount| fs::write(mount.at("a"), b"a").unwrap()) else { return };
    let refused = |arguments: &[&str], what: &str| {
        let output = remote.origin.tensorfs(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(what), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    };
    let at = remote.origin.host().join("at");
    fs::create_dir(&at).unwrap();
    let (pool, at) = (text(&remote.pool).to_owned(), text(&at).to_owned());
    refused(&["mount", "--from", &remote.url, "--follow", &pool, &at], "--read-only");
    let with_at = ["mount", "--from", &remote.url, "--read-only", "--follow", "--at", "1", &pool, &at];
    refused(&with_at, "--at");
    assert!(!remote.pool.exists());
    remote.origin.tensorfs_ok(["mount", "--from", &remote.url, "--read-only", "--follow=0.05", &pool, &at]);
    let mounted = tensorfs_tests::Mounted::adopt(Path::new(&at));
    let file = Path::new(&at).join("a");
    assert_eq!(errno(fs::write(&file, b"b")), Some(libc::EROFS));
    refused(&["mount", "-o", "remount,rw", &pool, &at], "cannot be written");
    // Whoever has the kernel do it changes nothing either.
    if is_root() {
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount_by_kernel(None::<&str>, &*at, None::<&str>, flags, None::<&str>).unwrap();
        assert_eq!(errno(fs::write(&file, b"b")), Some(libc::EROFS));
        assert_eq!(errno(fs::remove_file(&file)), Some(libc::EROFS));
        assert_eq!(errno(fs::create_dir(Path::new(&at).join("dir"))), Some(libc::EROFS));
        assert_eq!(errno(fs::set_permissions(&file, fs::Permissions::from_mode(0o600))), Some(libc::EROFS));
    }
    fs::write(remote.origin.at("b"), b"b").unwrap();
    remote.carry();
    wait_until("what is new", || fs::read(Path::new(&at).join("b")).is_ok_and(|bytes| bytes == b"b"));
    drop(mounted);
    wait_until("the pool's end", || tensorfs_layout::pool::holder(&remote.pool).is_ok_and(|holder| holder.is_none()));
    refused(&["mount", &pool, &at], "--read-only");
    let origin = text(remote.origin.pool()).to_owned();
    let other = remote.pool.with_file_name("plain");
    remote.origin.tensorfs_ok(["create", text(&other)]);
    refused(&["mount", "--read-only", "--follow", text(&other), &at], "follows no remote");
    refused(&["remote", "restore", "--later", "--follow", &remote.url, &origin], "something already");
}
