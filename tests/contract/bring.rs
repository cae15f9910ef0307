//! A mount whose files are in a remote yet: the tree is there at once, and bytes come when they are needed, and by
//! themselves.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tensorfs_layout::Ino;
use tensorfs_layout::pool::{Bring, BringReply, bring};
use tensorfs_tests::{Mount, Pattern, Setup, on_mounts, safetensors, wait_until, xattr};

on_mounts!(
    a_mount_from_a_remote_has_the_tree_at_once_and_then_the_bytes,
    who_opens_a_file_that_is_away_waits_for_it_and_nobody_else,
    what_needs_no_bytes_waits_for_none,
    a_file_that_is_cut_or_read_as_tensors_comes_first,
    files_come_after_the_server_or_whoever_fetches_them_was_killed,
    what_the_remote_has_spoiled_is_not_believed,
    bytes_that_are_not_those_that_were_sealed_are_not_believed,
    a_full_pool_says_so_and_goes_on,
    who_waits_in_vain_hears_so,
);

const SIZE: usize = 3 << 20;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What a remote has, and the place of a pool that is made from it.
pub(super) struct Remote {
    pub(super) origin: Mount,
    at: PathBuf,
    url: String,
    pool: PathBuf,
    setup: Setup,
}

impl Remote {
    /// Of a pool with what `fill` puts into its mount; nothing if there are no mounts.
    pub(super) fn with(setup: Setup, fill: impl Fn(&Mount)) -> Option<Self> {
        let mut origin = setup.clone().mount();
        if origin.is_plain() {
            setup.skip("needs a mount");
            return None;
        }
        fill(&origin);
        origin.sync();
        origin.tensorfs_ok(["seal", text(origin.path())]);
        origin.umount();
        let at = origin.pool().with_file_name("remote");
        let url = format!("file://{}", at.display());
        origin.tensorfs_ok(["remote", "set", text(origin.pool()), &url]);
        origin.tensorfs_ok(["remote", "carry", text(origin.pool())]);
        let pool = origin.pool().with_file_name("made");
        Some(Self { origin, at, url, pool, setup })
    }

    /// Some files, of which each is there as a pattern of its number.
    fn of_files(setup: Setup, files: u32) -> Option<Self> {
        Self::with(setup, |mount| {
            for n in 0..files {
                fs::write(mount.at(format!("f{n}")), Pattern(n.into()).bytes(0, SIZE)).unwrap();
            }
        })
    }

    /// Makes the pool, and mounts it while the remote is away.
    pub(super) fn mount_while_away(&self, more: &[&str]) -> Mount {
        self.origin.tensorfs_ok([&["remote", "restore", "--later", &self.url, text(&self.pool)], more].concat());
        self.leave();
        self.setup.clone().pool_at(&self.pool).mount()
    }

    fn leave(&self) {
        fs::rename(&self.at, self.at.with_file_name("elsewhere")).unwrap();
    }

    pub(super) fn come_back(&self) {
        fs::rename(self.at.with_file_name("elsewhere"), &self.at).unwrap();
    }

    /// Where the objects are.
    pub(super) fn objects(&self) -> PathBuf {
        let here = self.at.join("objects");
        if here.exists() { here } else { self.at.with_file_name("elsewhere").join("objects") }
    }
}

pub(super) fn state(path: &Path) -> String {
    String::from_utf8(xattr::get(path, "user.tensorfs.state").unwrap()).unwrap()
}

/// How many files are away.
fn away(info: &Value) -> Option<u64> {
    let tiers = info["tiers"].as_array().unwrap();
    tiers.iter().find(|tier| tier["name"] == "remote" && tier["state"] == "away")?["files"].as_u64()
}

pub(super) fn all_come(mount: &Mount) {
    mount.wait_for("files", |info| away(info) == Some(0));
}

/// The processes that fetch files of a mount.
pub(super) fn bringers(mount: &Mount) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        if words.contains(&&b"bring"[..]) && words.contains(&text(mount.path()).as_bytes()) {
            found.push(Pid::from_raw(pid));
        }
    }
    found
}

/// Reads a file on a thread of its own.
fn reading(path: PathBuf) -> JoinHandle<std::io::Result<Vec<u8>>> {
    thread::spawn(move || fs::read(path))
}

pub(super) fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Ended with the test.
pub(super) struct Waits(pub(super) Child);

impl Drop for Waits {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Proves E20, E22.
fn a_mount_from_a_remote_has_the_tree_at_once_and_then_the_bytes(setup: Setup) {
    let fill = |mount: &Mount| {
        fs::create_dir(mount.at("run")).unwrap();
        for n in 0..8 {
            fs::write(mount.at(format!("run/{n}")), Pattern(n).bytes(0, SIZE / (1 + 10 * n as usize))).unwrap();
        }
        fs::write(mount.at("empty"), b"").unwrap();
        fs::hard_link(mount.at("run/3"), mount.at("three")).unwrap();
        symlink("run/4", mount.at("four")).unwrap();
        fs::set_permissions(mount.at("run/5"), fs::Permissions::from_mode(0o640)).unwrap();
        xattr::set(&mount.at("run/6"), "user.run", b"seven", 0).unwrap();
        let sparse = File::create(mount.at("sparse")).unwrap();
        sparse.write_all_at(b"end", 20 << 20).unwrap();
    };
    let Some(mut remote) = Remote::with(setup, fill) else { return };
    let seen = |top: &Path| {
        let names = ["run", "run/0", "run/3", "run/5", "run/7", "empty", "three", "four", "sparse"];
        names.map(|name| {
            let stat = fs::symlink_metadata(top.join(name)).unwrap();
            (name, stat.mode(), stat.nlink(), stat.size(), stat.mtime(), stat.mtime_nsec())
        })
    };
    remote.origin.mount();
    let expected = seen(remote.origin.path());
    remote.origin.umount();
    // What is called first makes the pool; later it is as any other.
    let base = remote.origin.host();
    let (pool, at, log) = (base.join("pool"), base.join("at"), base.join("log"));
    fs::create_dir(&at).unwrap();
    let passthrough = remote.setup.passthrough() == tensorfs_tests::Passthrough::On;
    let how = ["--passthrough", if passthrough { "on" } else { "off" }, "--log", text(&log)];
    let line = ["mount", "--from", &remote.url, text(&pool), text(&at)];
    remote.origin.tensorfs_ok([&line[..], &how].concat());
    let mounted = tensorfs_tests::Mounted::adopt(&at);
    assert_eq!(seen(&at), expected);
    assert_eq!(xattr::get(&at.join("run/6"), "user.run").unwrap(), b"seven");
    for n in [7, 2, 0] {
        let bytes = fs::read(at.join(format!("run/{n}"))).unwrap();
        assert!(bytes == Pattern(n).bytes(0, SIZE / (1 + 10 * n as usize)), "run/{n}");
    }
    let info = || {
        let told = remote.origin.tensorfs_ok(["info", text(&pool), "--json"]);
        serde_json::from_str::<Value>(&told).unwrap()
    };
    wait_until("all files", || away(&info()) == Some(0));
    // It is counted behind that.
    wait_until("nine files were brought", || info()["counters"]["brought"] == 9);
    assert_eq!((state(&at.join("three")), state(&at.join("run/1"))), ("sealed".into(), "sealed".into()));
    assert_eq!(seen(&at), expected);
    let mut whole = vec![0; 20 << 20];
    whole.extend(b"end");
    assert!(fs::read(at.join("sparse")).unwrap() == whole);
    // As any other from now on.
    let file = OpenOptions::new().append(true).open(at.join("run/1")).unwrap();
    (&file).write_all(b"more").unwrap();
    file.sync_all().unwrap();
    drop(file);
    let refused = remote.origin.tensorfs([&line[..], &how].concat());
    assert!(!refused.status.success());
    drop(mounted);
    wait_until("the pool's end", || tensorfs_layout::pool::holder(&pool).is_ok_and(|holder| holder.is_none()));
    remote.origin.tensorfs_ok(["check", "--data", text(&pool)]);
}

/// Proves E21.
fn who_opens_a_file_that_is_away_waits_for_it_and_nobody_else(setup: Setup) {
    let Some(remote) = Remote::of_files(setup.mount_with(["-o", "keeper"]), 12) else { return };
    let mut mount = remote.mount_while_away(&[]);
    let reads: Vec<_> = (0..10).map(|n| reading(mount.at(format!("f{n}")))).collect();
    let mut cat = Command::new("cat");
    cat.arg(mount.at("f11")).stdout(Stdio::null());
    let mut cat = Waits(cat.spawn().unwrap());
    // Others are not held up by that.
    for n in 0..10 {
        let path = mount.at(format!("new-{n}"));
        fs::write(&path, Pattern(n).bytes(0, 10_000)).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        fs::rename(&path, mount.at(format!("named-{n}"))).unwrap();
        assert_eq!(fs::metadata(mount.at("f3")).unwrap().size(), SIZE as u64);
    }
    assert!(reads.iter().all(|read| !read.is_finished()));
    assert_eq!(cat.0.try_wait().unwrap(), None);
    // Who is killed waits no more.
    cat.0.kill().unwrap();
    cat.0.wait().unwrap();
    assert_eq!(state(&mount.at("f11")), "away");
    // Nor does it matter to them that another server takes over.
    mount.kill_server();
    assert_eq!(state(&mount.at("f11")), "away");
    assert!(reads.iter().all(|read| !read.is_finished()));
    remote.come_back();
    for (n, read) in reads.into_iter().enumerate() {
        assert!(read.join().unwrap().unwrap() == Pattern(n as u64).bytes(0, SIZE), "f{n}");
    }
    all_come(&mount);
    wait_until("the end of who fetches", || bringers(&mount).is_empty());
    mount.umount();
    mount.tensorfs_ok(["check", "--data", text(mount.pool())]);
}

/// Proves E20.
fn what_needs_no_bytes_waits_for_none(setup: Setup) {
    let Some(remote) = Remote::of_files(setup, 8) else { return };
    let mut mount = remote.mount_while_away(&[]);
    assert_eq!(away(&mount.info()), Some(8));
    let stat = fs::metadata(mount.at("f0")).unwrap();
    assert_eq!((stat.size(), stat.blocks()), (SIZE as u64, 0));
    assert_eq!(
        (state(&mount.at("f0")), xattr::get(&mount.at("f0"), "user.tensorfs.tier")),
        ("away".into(), Ok(b"remote".into()))
    );
    let listed = mount.tensorfs_ok(["ls", text(mount.path())]);
    assert_eq!(listed.matches("away").count(), 8, "{listed}");
    assert!(mount.tensorfs_ok(["info", text(mount.path())]).contains("away"));
    mount.tensorfs_ok(["check", text(mount.pool())]);
    mount.tensorfs_ok(["scrub", text(mount.path())]);
    // Removed, emptied, replaced, named again, changed but for its bytes.
    fs::remove_file(mount.at("f0")).unwrap();
    fs::write(mount.at("f1"), b"other bytes").unwrap();
    File::create(mount.at("f2")).unwrap();
    OpenOptions::new().write(true).open(mount.at("f2")).unwrap();
    fs::write(mount.at("new"), b"new").unwrap();
    fs::rename(mount.at("new"), mount.at("f3")).unwrap();
    nix::unistd::truncate(&mount.at("f4"), 0).unwrap();
    fs::hard_link(mount.at("f5"), mount.at("five")).unwrap();
    fs::rename(mount.at("f6"), mount.at("six")).unwrap();
    fs::set_permissions(mount.at("six"), fs::Permissions::from_mode(0o600)).unwrap();
    xattr::set(&mount.at("six"), "user.mine", b"1", 0).unwrap();
    mount.wait_for("what was removed", |info| away(info) == Some(3));
    mount.umount();
    mount.tensorfs_ok(["check", "--data", text(mount.pool())]);
    let told = mount.tensorfs(["cat", &format!("{}:/five", text(mount.pool()))]);
    assert!(!told.status.success());
    remote.come_back();
    mount.mount();
    all_come(&mount);
    assert!(!mount.at("f0").exists());
    assert_eq!(fs::read(mount.at("f1")).unwrap(), b"other bytes");
    assert_eq!((fs::read(mount.at("f2")).unwrap(), fs::read(mount.at("f4")).unwrap()), (vec![], vec![]));
    assert_eq!(fs::read(mount.at("f3")).unwrap(), b"new");
    for (name, n) in [("f5", 5), ("five", 5), ("six", 6), ("f7", 7)] {
        assert!(fs::read(mount.at(name)).unwrap() == Pattern(n).bytes(0, SIZE), "{name}");
    }
    assert_eq!(fs::metadata(mount.at("six")).unwrap().mode() & 0o777, 0o600);
    mount.umount();
    mount.tensorfs_ok(["check", "--data", text(mount.pool())]);
}

/// Proves E21.
fn a_file_that_is_cut_or_read_as_tensors_comes_first(setup: Setup) {
    let weights = Pattern(7).bytes(0, 200_000);
    let fill = |mount: &Mount| {
        fs::write(mount.at("model.safetensors"), safetensors(&[("weights", &weights)])).unwrap();
        fs::write(mount.at("log"), Pattern(1).bytes(0, SIZE)).unwrap();
        fs::write(mount.at("grows"), Pattern(2).bytes(0, SIZE)).unwrap();
    };
    let Some(remote) = Remote::with(setup, fill) else { return };
    let mut mount = remote.mount_while_away(&[]);
    let dir = mount.at(".tensorfs/tensors/model.safetensors");
    assert_eq!(
        fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>(),
        ["weights.npy"]
    );
    let tensor = reading(dir.join("weights.npy"));
    let (cut, append) = (mount.at("log"), mount.at("grows"));
    let cut = thread::spawn(move || nix::unistd::truncate(&cut, 1000));
    let append = thread::spawn(move || {
        OpenOptions::new().append(true).open(append).and_then(|mut file| file.write_all(b"and more"))
    });
    fs::write(mount.at("other"), b"other").unwrap();
    assert!(!tensor.is_finished() && !cut.is_finished() && !append.is_finished());
    remote.come_back();
    assert!(tensor.join().unwrap().unwrap().ends_with(&weights));
    cut.join().unwrap().unwrap();
    append.join().unwrap().unwrap();
    let check = |mount: &Mount| {
        assert!(fs::read(mount.at("log")).unwrap() == Pattern(1).bytes(0, 1000));
        let grown = fs::read(mount.at("grows")).unwrap();
        assert!(grown[..SIZE] == Pattern(2).bytes(0, SIZE) && &grown[SIZE..] == b"and more");
    };
    check(&mount);
    all_come(&mount);
    mount.remount();
    check(&mount);
}

/// Proves E22.
fn files_come_after_the_server_or_whoever_fetches_them_was_killed(setup: Setup) {
    let Some(remote) = Remote::of_files(setup, 20) else { return };
    let mut mount = remote.mount_while_away(&[]);
    mount.kill9();
    mount.mount();
    assert_eq!(away(&mount.info()), Some(20));
    remote.come_back();
    for n in 0..6 {
        let some = |info: &Value| away(info).is_some_and(|away| away < 20 - 2 * n);
        mount.wait_for("some files", some);
        match n % 3 {
            0 => {
                for pid in bringers(&mount) {
                    let _ = kill(pid, Signal::SIGKILL);
                }
                mount.remount();
            }
            1 => {
                mount.kill9();
                mount.mount();
            }
            _ => {
                mount.power_loss();
                mount.mount();
            }
        }
    }
    all_come(&mount);
    for n in 0..20 {
        assert!(fs::read(mount.at(format!("f{n}"))).unwrap() == Pattern(n).bytes(0, SIZE), "f{n}");
    }
    // Nothing is left of what was interrupted.
    assert_eq!(mount.quarantine(), Vec::<Value>::new());
    mount.umount();
    mount.tensorfs_ok(["check", "--data", text(mount.pool())]);
}

/// Proves E22.
fn what_the_remote_has_spoiled_is_not_believed(setup: Setup) {
    let Some(remote) = Remote::of_files(setup, 4) else { return };
    let mut mount = remote.mount_while_away(&[]);
    // Of one that has the second file's bytes.
    let objects = remote.at.with_file_name("elsewhere").join("objects");
    let dirs = fs::read_dir(objects).unwrap().flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap());
    let paths: Vec<PathBuf> = dirs.map(|entry| entry.unwrap().path()).collect();
    let wanted = Pattern(1).bytes(0, SIZE);
    let spoiled = paths.iter().find(|path| fs::read(path).unwrap() == wanted).unwrap();
    let mut bytes = wanted.clone();
    bytes[SIZE / 2] ^= 1;
    fs::write(spoiled, &bytes).unwrap();
    let read = reading(mount.at("f1"));
    remote.come_back();
    assert_eq!(errno(read.join().unwrap()), Some(libc::EIO));
    mount.wait_for("the others", |info| away(info) == Some(1));
    assert_eq!(state(&mount.at("f1")), "away");
    assert!(fs::read(mount.at("f2")).unwrap() == Pattern(2).bytes(0, SIZE));
    assert!(mount.log().contains("f1: not brought: "), "{}", mount.log());
    // Who opens it later has it tried again.
    let within = spoiled.strip_prefix(remote.at.with_file_name("elsewhere")).unwrap();
    fs::write(remote.at.join(within), &wanted).unwrap();
    assert!(fs::read(mount.at("f1")).unwrap() == wanted);
    mount.umount();
    mount.tensorfs_ok(["check", "--data", text(mount.pool())]);
}

/// Whoever fetches them may be wrong himself.
///
/// Proves E22.
fn bytes_that_are_not_those_that_were_sealed_are_not_believed(setup: Setup) {
    let Some(remote) = Remote::of_files(setup, 3) else { return };
    let mount = remote.mount_while_away(&[]);
    for pid in bringers(&mount) {
        let _ = kill(pid, Signal::SIGKILL);
    }
    wait_until("nobody fetches", || bringers(&mount).is_empty());
    let pool = tensorfs_layout::check::Committed::read(mount.pool()).unwrap().superblock().uuid_text();
    let ask = |request: &Bring| bring(&File::open(mount.path()).unwrap(), request).unwrap();
    let next = |pool: &str| ask(&Bring::Next { pool: pool.into(), waited_for: false });
    assert_eq!(next("another"), BringReply::Nothing { away: 0 });
    let path_of = |segment: u64| mount.pool().join(format!("segments/{:02x}/{segment:016x}", segment >> 8 & 0xff));
    for (n, wrong) in [Pattern(99).bytes(0, SIZE), Pattern(99).bytes(0, SIZE + 1), Vec::new()].into_iter().enumerate() {
        let BringReply::File { ino, size, segment, .. } = next(&pool) else { panic!("no file") };
        assert_eq!(size, SIZE as u64);
        let (name, path) = (format!("f{n}"), path_of(segment.0));
        assert_eq!(fs::metadata(mount.at(&name)).unwrap().ino(), ino.0);
        fs::write(&path, &wrong).unwrap();
        let read = reading(mount.at(&name));
        assert_eq!(ask(&Bring::Come { ino: Ino(1 << 40), segment }), BringReply::Unknown);
        assert_eq!(ask(&Bring::Come { ino, segment }), BringReply::Noted);
        if let Err(error) = read.join().unwrap() {
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
        } else {
            panic!("{name} was read");
        }
        assert_eq!(state(&mount.at(&name)), "away");
        wait_until("its segment's end", || !path.exists());
    }
    assert_eq!(
        ask(&Bring::Coming { ino: Ino(2), segment: tensorfs_layout::SegmentId(9), bytes: 1 }),
        BringReply::Unknown
    );
}

/// Proves E22.
fn a_full_pool_says_so_and_goes_on(setup: Setup) {
    let fill = |mount: &Mount| {
        for n in 0..3 {
            fs::write(mount.at(format!("f{n}")), Pattern(n).bytes(0, 8 * SIZE)).unwrap();
        }
    };
    let Some(remote) = Remote::with(setup, fill) else { return };
    // Room for two of them.
    let mount = remote.mount_while_away(&["--size", &(64 << 20).to_string()]);
    remote.come_back();
    mount.wait_for("two files", |info| away(info) == Some(1));
    let left = (0..3).find(|n| state(&mount.at(format!("f{n}"))) == "away").unwrap();
    let path = mount.at(format!("f{left}"));
    assert_eq!(errno(fs::read(&path)), Some(libc::ENOSPC));
    assert_eq!(errno(OpenOptions::new().append(true).open(&path)), Some(libc::ENOSPC));
    fs::remove_file(mount.at(format!("f{}", (left + 1) % 3))).unwrap();
    assert!(fs::read(&path).unwrap() == Pattern(left).bytes(0, 8 * SIZE));
    all_come(&mount);
}

/// Proves E21.
fn who_waits_in_vain_hears_so(setup: Setup) {
    let Some(remote) = Remote::of_files(setup, 2) else { return };
    let mount = remote.mount_while_away(&[]);
    let read = reading(mount.at("f1"));
    assert_eq!(errno(read.join().unwrap()), Some(libc::EIO));
    let said = mount.log().lines().filter(|line| line.contains("did not come")).count();
    assert_eq!(said, 1, "{}", mount.log());
    assert_eq!(state(&mount.at("f1")), "away");
    remote.come_back();
    assert!(fs::read(mount.at("f1")).unwrap() == Pattern(1).bytes(0, SIZE));
}
