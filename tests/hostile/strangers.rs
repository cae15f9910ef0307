//! A pool, and tiers, of somebody whom root does not trust: where something of the pool should be stands something
//! else, or changes while it is looked at. Whatever root does with it, nothing outside of the pool is touched or told,
//! each command ends, and says what is wrong.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::Pid;
use tensorfs_tests::random::Random;
use tensorfs_tests::{Mount, Passthrough, Setup, is_root, run, run_ok, wait_until};

/// Whose the pool is.
const OWNER: u32 = 12_345;
const GROUP: u32 = 23_456;
/// Neither root nor he.
const OTHER: u32 = 54_321;
/// What is outside, and must not be told.
const SECRET: &str = "nobody-shall-read-this";
/// How long a command may take at most, in seconds: for a machine that is busy. One that waits for a FIFO waits for
/// ever.
const PATIENCE: u64 = 60;

/// What stands where something of the pool should be.
const KINDS: [&str; 11] = [
    "link to a file",
    "link to a directory",
    "link to nothing",
    "FIFO",
    "socket",
    "device",
    "hard link",
    "directory or file",
    "root's",
    "another user's",
    "huge file",
];

/// What root does: `POOL`, `MNT`, `OUT`, `ENTRY` stand for paths and names. What stands behind a mount is done on it.
const COMMANDS: [&str; 58] = [
    "mount POOL MNT",
    "mount --create POOL MNT",
    "mount -o keeper POOL MNT",
    "mount -o ro POOL MNT",
    "create --force POOL",
    "check POOL",
    "check --json POOL",
    "check --data POOL",
    "check --repair POOL",
    "resize POOL 1G",
    "tier add POOL more OUT/more",
    "tier remove POOL dram",
    "tier list POOL",
    "tier map POOL",
    "tier move POOL:/f dram",
    "info POOL",
    "info --json POOL",
    "health POOL",
    "metrics POOL",
    "umount POOL",
    "restore POOL",
    "restore POOL ENTRY --to OUT/restored",
    "restore POOL ENTRY --discard",
    "verify POOL",
    "seal POOL",
    "ls -l POOL",
    "records POOL:/f",
    "tensors POOL:/f",
    "stat POOL:/f tensor",
    "cat POOL:/f tensor",
    "diff POOL:/f POOL:/small",
    "latest POOL",
    "rollback POOL",
    "upgrade POOL",
    "remote status POOL",
    "remote check POOL",
    "remote carry POOL",
    "remote set POOL file://OUT/remote",
    "remote off POOL",
    "remote list POOL",
    "remote wait POOL",
    "remote gc POOL",
    "remote get POOL /f",
    "verify --mend POOL",
    "mount POOL MNT; check POOL",
    "mount POOL MNT; scrub --no-limit MNT",
    "mount POOL MNT; verify --seal MNT",
    "mount POOL MNT; ls -l -R MNT",
    "mount POOL MNT; tier move MNT/f dram",
    "mount POOL MNT; restore MNT ENTRY",
    "mount POOL MNT; resize MNT 1G",
    "mount POOL MNT; health MNT",
    "mount POOL MNT; metrics MNT",
    "mount POOL MNT; latest MNT",
    "mount POOL MNT; rollback MNT",
    "mount -o keeper POOL MNT; upgrade MNT",
    "mount -o keeper POOL MNT; mount -o remount,commit=2 POOL MNT",
    "mount -o keeper POOL MNT; scrub --no-limit MNT",
];

/// What is swapped in and out while root looks.
const SWAPPED: [&str; 5] = ["link to a file", "link to a directory", "root's", "FIFO", "hard link"];

/// What root does meanwhile.
const BESIDE_SWAPS: [&str; 12] = [
    "mount POOL MNT",
    "check POOL",
    "check --repair POOL",
    "info POOL",
    "restore POOL ENTRY --to OUT/restored",
    "tier add POOL more OUT/more",
    "tier remove POOL dram",
    "resize POOL 1G",
    "create --force POOL",
    "verify POOL",
    "mount POOL MNT; restore MNT ENTRY",
    "mount -o keeper POOL MNT; upgrade MNT",
];

/// A pool that was left by a killed server in the middle of a replace, with a tier in memory that was filled in another
/// boot of the machine; and what is beside it.
struct Scene {
    base: tempfile::TempDir,
    memory: tempfile::TempDir,
    program: PathBuf,
    passthrough: &'static str,
    /// What may be something else: below the pool, and below the tier.
    names: Vec<Name>,
    entry: String,
    /// What was said that helps nobody.
    said: RefCell<Vec<String>>,
    /// What took longest, and how long.
    longest: RefCell<(Duration, String)>,
}

#[derive(Clone)]
struct Name {
    in_tier: bool,
    path: String,
    is_dir: bool,
}

/// A file or directory outside, as it must stay.
type Outside = BTreeMap<PathBuf, (u32, u32, u32, u64, (i64, i64), Option<(i64, i64)>, Vec<u8>)>;

impl Scene {
    fn new(name: &str) -> Option<Self> {
        let mode = if Setup::can(Passthrough::On) { Passthrough::On } else { Passthrough::Off };
        let setup = Setup::new(name, mode);
        if !is_root() || setup.mount_is_plain() {
            setup.skip("only root has files of others");
            return None;
        }
        let memory = setup.in_memory()?;
        let base = tensorfs_tests::scratch();
        let mut mount = setup.pool_at(base.path().join("pool")).mount();
        let tier = memory.path().join("dram");
        mount.umount();
        mount.add_tier("dram", &tier);
        mount.mount();
        fs::write(mount.at("f"), vec![7; 100_000]).unwrap();
        fs::write(mount.at("replaced"), vec![8; 77_777]).unwrap();
        fs::write(mount.at("empty"), b"").unwrap();
        fs::write(mount.at("small"), b"small").unwrap();
        fs::create_dir(mount.at("d")).unwrap();
        tensorfs_tests::xattr::set(&mount.at("d"), "user.tensorfs.tier", b"dram", 0).unwrap();
        fs::write(mount.at("d/in-memory"), vec![9; 55_555]).unwrap();
        // One version is in quarantine, another one is going to be.
        let interrupt = |name: &str| {
            let mut writer = tensorfs_tests::child(["do"]);
            assert_eq!(writer.ask(&format!("open f wt {}", mount.at(name).display())), "ok");
            assert_eq!(writer.ask("write f 0 1 100"), "ok");
            writer
        };
        fs::write(mount.at("kept"), vec![6; 66_666]).unwrap();
        fs::write(mount.at("d/kept"), vec![5; 44_444]).unwrap();
        mount.sync();
        interrupt("kept").kill(libc::SIGKILL);
        interrupt("d/kept").kill(libc::SIGKILL);
        let (quarantine, in_tier) = (base.path().join("pool/quarantine"), tier.join("quarantine"));
        let entry_in = |quarantine: &Path| {
            let parts = fs::read_dir(quarantine).unwrap().map(|entry| entry.unwrap().file_name());
            parts.map(|name| name.into_string().unwrap()).find(|name| !name.ends_with(".json"))
        };
        wait_until("versions in quarantine", || [&quarantine, &in_tier].iter().all(|place| entry_in(place).is_some()));
        mount.sync();
        let writer = interrupt("replaced");
        mount.kill9();
        writer.kill(libc::SIGKILL);
        run(Command::new("umount").arg("-l").arg(mount.path()));
        while tensorfs_layout::pool::holder(mount.pool()).is_ok_and(|holder| holder.is_some()) {
            std::thread::yield_now();
        }
        let program = PathBuf::from(mount.program().get_program());
        // The tier seems to be of another boot, so that it is emptied.
        let identity = fs::read_to_string(tier.join("tier.json")).unwrap();
        let mut identity: serde_json::Value = serde_json::from_str(&identity).unwrap();
        identity["boot"] = "f".repeat(32).into();
        fs::write(tier.join("tier.json"), identity.to_string()).unwrap();
        let pool = base.path().join("pool");
        let found =
            |size: u64| below(&pool).into_iter().find(|path| fs::symlink_metadata(path).unwrap().size() == size);
        let within = |path: &Path| path.strip_prefix(&pool).unwrap().display().to_string();
        let segment = within(&found(100_000).unwrap());
        let replaced = found(77_777).unwrap().file_name().unwrap().to_string_lossy().into_owned();
        let in_memory = below(&tier).into_iter().find(|path| fs::metadata(path).unwrap().size() == 55_555).unwrap();
        let in_memory = in_memory.strip_prefix(&tier).unwrap().display().to_string();
        let (entry, entry_in_tier) = (entry_in(&quarantine).unwrap(), entry_in(&in_tier).unwrap());
        let parent = |path: &str| path.rsplit_once('/').unwrap().0.to_owned();
        let name = |in_tier, path: &str, is_dir| Name { in_tier, path: path.to_owned(), is_dir };
        let names = vec![
            name(false, "lock", false),
            name(false, "log", false),
            name(false, "log.new", false),
            name(false, "segments", true),
            name(false, &parent(&segment), true),
            name(false, "segments/ff", true),
            name(false, &segment, false),
            name(false, "segments/00/00000000000000f0", false),
            name(false, "quarantine", true),
            name(false, &format!("quarantine/{entry}"), false),
            name(false, &format!("quarantine/{entry}.json"), false),
            name(false, &format!("quarantine/{replaced}"), false),
            name(false, &format!("quarantine/{replaced}.json"), false),
            name(false, "quarantine/.partial", false),
            name(false, "failed", false),
            name(false, "failed.new", false),
            name(false, "scrubbed", false),
            name(false, "scrubbed.new", false),
            name(false, "remote", false),
            name(false, "remote.new", false),
            name(false, "remote.lock", false),
            name(true, "tier.json", false),
            name(true, "tier.json.new", false),
            name(true, "segments", true),
            name(true, &parent(&in_memory), true),
            name(true, &in_memory, false),
            name(true, "quarantine", true),
            name(true, &format!("quarantine/{entry_in_tier}"), false),
            name(true, &format!("quarantine/{entry_in_tier}.json"), false),
            name(true, "", true),
        ];
        for (made, kept) in [(pool.clone(), base.path().join("kept")), (tier, memory.path().join("kept"))] {
            for path in below(&made).into_iter().chain([made.clone()]) {
                chown(path, Some(OWNER), Some(GROUP)).unwrap();
            }
            fs::rename(made, kept).unwrap();
        }
        drop(mount);
        let passthrough = if mode == Passthrough::On { "on" } else { "off" };
        Some(Self {
            base,
            memory,
            program,
            passthrough,
            names,
            entry,
            said: RefCell::default(),
            longest: RefCell::default(),
        })
    }

    fn pool(&self) -> PathBuf {
        self.base.path().join("pool")
    }

    fn tier(&self) -> PathBuf {
        self.memory.path().join("dram")
    }

    /// Beside the pool, or beside the tier.
    fn outside(&self, in_tier: bool) -> PathBuf {
        if in_tier { self.memory.path().join("outside") } else { self.base.path().join("outside") }
    }

    /// Everything as it was.
    fn reset(&self) {
        for (top, made) in [(self.base.path(), self.pool()), (self.memory.path(), self.tier())] {
            let _ = fs::remove_dir_all(&made);
            let _ = fs::remove_file(&made);
            run_ok(Command::new("cp").arg("-a").arg("--reflink=auto").arg(top.join("kept")).arg(&made));
            let _ = fs::remove_dir_all(top.join("outside"));
            let outside = top.join("outside");
            // What looks as a tier, or a pool, does from inside.
            for directory in ["", "directory", "directory/00", "directory/segments"] {
                fs::create_dir(outside.join(directory)).unwrap();
            }
            for file in ["secret", "linked", "directory/secret", "directory/00/0000000000000002", "directory/log"] {
                fs::write(outside.join(file), SECRET).unwrap();
                fs::set_permissions(outside.join(file), fs::Permissions::from_mode(0o600)).unwrap();
            }
        }
        for made in ["mnt", "out"] {
            let path = self.base.path().join(made);
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(path).unwrap();
        }
    }

    /// Puts something else in the place of something.
    fn put(&self, name: &Name, kind: &str, at: &Path) {
        let outside = self.outside(name.in_tier);
        let remove = || {
            let _ = fs::remove_file(at).or_else(|_| fs::remove_dir_all(at));
        };
        match kind {
            "root's" | "another user's" => {
                if !at.exists() && name.is_dir {
                    fs::create_dir(at).unwrap();
                } else if !at.exists() {
                    fs::write(at, SECRET).unwrap();
                }
                let owner = if kind == "root's" { 0 } else { OTHER };
                return chown(at, Some(owner), Some(owner)).unwrap();
            }
            "huge file" if !name.is_dir => {
                fs::write(at, b"{").unwrap();
                fs::File::options().write(true).open(at).unwrap().set_len(1 << 40).unwrap();
            }
            _ => {
                remove();
                match kind {
                    "link to a file" => symlink(outside.join("secret"), at).unwrap(),
                    "link to a directory" => symlink(outside.join("directory"), at).unwrap(),
                    "link to nothing" => symlink(outside.join("new"), at).unwrap(),
                    "FIFO" => nix::unistd::mkfifo(at, Mode::S_IRWXU).unwrap(),
                    "socket" => drop(std::os::unix::net::UnixListener::bind(at).unwrap()),
                    "device" => mknod(at, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 5)).unwrap(),
                    "hard link" => return fs::hard_link(outside.join("linked"), at).unwrap(),
                    _ if name.is_dir => fs::write(at, b"bytes").unwrap(),
                    _ => {
                        fs::create_dir(at).unwrap();
                        fs::write(at.join("file"), b"bytes").unwrap();
                    }
                }
            }
        }
        std::os::unix::fs::lchown(at, Some(OWNER), Some(GROUP)).unwrap();
    }

    /// What is outside; `links` says whether the times of what has second names inside count.
    fn look(&self, links: bool) -> Outside {
        let mut found = Outside::new();
        for top in [self.outside(false), self.outside(true)] {
            for path in below(&top).into_iter().chain([top]) {
                let host = fs::symlink_metadata(&path).unwrap();
                let changed = (links || !path.ends_with("linked")).then(|| (host.ctime(), host.ctime_nsec()));
                let bytes = if host.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
                let modified = (host.mtime(), host.mtime_nsec());
                found.insert(path, (host.mode(), host.uid(), host.gid(), host.size(), modified, changed, bytes));
            }
        }
        found
    }

    fn tensorfs(&self, words: &[String]) -> Output {
        let (mut command, begun) = (Command::new("timeout"), Instant::now());
        let output = run(command.args(["-s", "KILL", &PATIENCE.to_string()]).arg(&self.program).args(words));
        let took = (begun.elapsed(), words.join(" "));
        let mut longest = self.longest.borrow_mut();
        if took.0 > longest.0 {
            *longest = took;
        }
        output
    }

    fn words(&self, command: &str) -> Vec<String> {
        let path = |path: PathBuf| path.display().to_string();
        let words = command.split(' ').map(|word| {
            word.replace("POOL", &path(self.pool()))
                .replace("MNT", &path(self.mnt()))
                .replace("OUT", &path(self.base.path().join("out")))
                .replace("ENTRY", &self.entry)
        });
        words.collect()
    }

    fn mnt(&self) -> PathBuf {
        self.base.path().join("mnt")
    }

    /// Runs a command of root's, and uses and ends the mount if it made one.
    fn run(&self, command: &str, what: &str) {
        let (command, on_it) = command.split_once("; ").map_or((command, None), |(mount, then)| (mount, Some(then)));
        let mnt = self.mnt();
        let log = self.base.path().join("server.log");
        let mut words = self.words(command);
        let mounts = words[0] == "mount";
        if mounts {
            let more = ["--passthrough", self.passthrough, "--log", log.to_str().unwrap()];
            words.extend(more.map(str::to_owned));
        }
        let _ = fs::remove_file(&log);
        let output = self.tensorfs(&words);
        self.judge(&output, what);
        if mounts && output.status.success() {
            use_mount(&mnt, what);
            if let Some(then) = on_it {
                self.judge(&self.tensorfs(&self.words(then)), what);
                use_mount(&mnt, what);
            }
            let ended = self.tensorfs(&["umount".into(), mnt.display().to_string()]);
            if !ended.status.success() {
                run(Command::new("umount").arg("-l").arg(&mnt));
            }
            self.judge(&ended, what);
            assert!(ended.status.success(), "{what}: {ended:?}");
        }
        let log = fs::read_to_string(&log).unwrap_or_default();
        assert!(!log.contains("panicked") && !log.contains(SECRET), "{what}: {log}");
        // Of a mount that was served all the time nobody hears that it was not.
        assert!(!log.contains("it is not served any more"), "{what}: {log}");
        for file in below(&self.base.path().join("out")) {
            let told = fs::read(&file).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&told).contains(SECRET), "{what}: {}", file.display());
        }
    }

    fn judge(&self, output: &Output, what: &str) {
        let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
        assert!(output.status.code().is_some_and(|code| code != 137), "{what}: does not end: {said}");
        assert!(output.status.code() != Some(101) && !said.contains("panicked"), "{what}: {said}");
        assert!(!said.contains(SECRET), "{what}: tells: {said}");
        if !output.status.success() {
            self.judge_words(output, what);
        }
    }
}

/// So many lines may be about files, one about each, and about what else is worth knowing.
const LINES: usize = 12;

impl Scene {
    /// What fails says in a line what is wrong, and where: a path of the pool, of a tier, or of the mount. What is
    /// found wrong in a pool, or about several files, is listed, a line each; what is worth knowing besides comes
    /// before.
    fn judge_words(&self, output: &Output, what: &str) {
        let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let named = [self.pool(), self.tier(), self.mnt(), self.base.path().join("out")];
        let named = named.map(|path| path.display().to_string());
        let names = |line: &str| named.iter().any(|path| line.contains(path.as_str()));
        let lines: Vec<&str> = errors.lines().collect();
        let fault = match lines.last() {
            _ if !lines
                .iter()
                .all(|line| ["tensorfs: ", "tensorfs remote: "].iter().any(|who| line.starts_with(who))) =>
            {
                "says what is no line of its own"
            }
            Some(last) if !names(last) => "does not say where",
            None if !out.lines().any(names) => "does not say where",
            _ if lines.len() > LINES => "says too much",
            _ => return,
        };
        self.said.borrow_mut().push(format!("{what}: {fault}: {out}{errors}"));
    }
}

/// A user of the mount reads all that there is, and writes.
fn use_mount(mnt: &Path, what: &str) {
    for name in ["f", "replaced", "kept", "empty", "small", "d/in-memory"] {
        let read = fs::read(mnt.join(name)).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&read).contains(SECRET), "{what}: {name} tells");
        if let Ok(file) = fs::File::options().write(true).open(mnt.join(name)) {
            let _ = std::os::unix::fs::FileExt::write_at(&file, b"written", 0);
            let _ = file.sync_all();
        }
    }
    for n in 0..3 {
        let _ = fs::write(mnt.join(format!("new-{n}")), vec![n; 20_000]);
        let _ = fs::write(mnt.join(format!("d/new-{n}")), vec![n; 20_000]);
    }
    for name in ["f", "kept"] {
        let _ = fs::remove_file(mnt.join(name));
    }
    let _ = fs::write(mnt.join("small"), "again");
}

/// Everything below a directory. No link is followed.
fn below(top: &Path) -> Vec<PathBuf> {
    let (mut found, mut next) = (Vec::new(), vec![top.to_owned()]);
    while let Some(directory) = next.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                next.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}

#[track_caller]
fn assert_untouched(now: &Outside, before: &Outside, what: &str) {
    let names = now.keys().chain(before.keys());
    let changed = names.filter(|path| now.get(*path) != before.get(*path));
    let shown: Vec<_> = changed.map(|path| (path, before.get(path), now.get(path))).collect();
    assert!(shown.is_empty(), "{what}: something outside is not as it was: {shown:#?}");
}

/// Which cells are tried: all, those that have a word in what they are called, or one of so many.
fn is_tried(what: &str, few: u64, random: &mut Random) -> bool {
    match std::env::var("TENSORFS_STRANGERS").as_deref() {
        Err(_) | Ok("") => random.once_in(few),
        Ok("all") => true,
        Ok(word) => what.contains(word),
    }
}

fn seed() -> u64 {
    std::env::var("TENSORFS_STRANGERS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Each name that a pool or a tier has, each thing that may stand there instead, each command of root's.
///
/// Proves P3.
#[test]
fn whatever_stands_in_a_users_pool_root_touches_nothing_outside_and_ends() {
    tensorfs_tests::needs_mount!();
    let Some(scene) = Scene::new("strangers::matrix") else { return };
    let mut cells = Vec::new();
    for name in &scene.names {
        for kind in KINDS {
            cells.extend(COMMANDS.map(|command| (name, kind, command)));
        }
    }
    // The filesystem of the tier is another one, and a link to a directory is one to a tier.
    let mut random = Random::new(seed());
    for (name, kind, command) in cells {
        let what = format!("{}{}, {kind}, {command}", if name.in_tier { "tier:" } else { "" }, name.path);
        if !is_tried(&what, 100, &mut random) {
            continue;
        }
        scene.reset();
        let top = if name.in_tier { scene.tier() } else { scene.pool() };
        let at = if name.path.is_empty() { top } else { top.join(&name.path) };
        if name.path.is_empty() && kind == "hard link" || name.is_dir && kind == "huge file" {
            continue;
        }
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        scene.put(name, kind, &at);
        // To destroy a pool is to remove what is in its directory, names of others' files as well.
        let links = !command.starts_with("create");
        let before = scene.look(links);
        scene.run(command, &what);
        assert_untouched(&scene.look(links), &before, &what);
    }
    scene.end();
}

/// A program that puts links in the place of what root is looking at, and back, as fast as it can.
///
/// Proves P3.
#[test]
fn what_changes_while_root_looks_at_it_leads_nowhere() {
    tensorfs_tests::needs_mount!();
    let Some(scene) = Scene::new("strangers::swaps") else { return };
    let mut random = Random::new(seed());
    for name in scene.names.iter().filter(|name| !name.path.is_empty() && name.path != "segments/ff") {
        for (kind, command) in SWAPPED.into_iter().flat_map(|kind| BESIDE_SWAPS.map(|command| (kind, command))) {
            let what = format!("{}, {kind} in and out, {command}", name.path);
            if !is_tried(&what, 48, &mut random) {
                continue;
            }
            scene.reset();
            let top = if name.in_tier { scene.memory.path() } else { scene.base.path() };
            let at = if name.in_tier { scene.tier() } else { scene.pool() }.join(&name.path);
            let swapped = top.join("swapped");
            let _ = fs::remove_file(&swapped).or_else(|_| fs::remove_dir_all(&swapped));
            scene.put(name, kind, &swapped);
            // A file that is renamed has another change time, whatever its name was.
            let links = kind != "hard link" && !command.starts_with("create");
            let before = scene.look(links);
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap();
                    let (one, other) = (path(&at), path(&swapped));
                    while !stop.load(Ordering::Relaxed) {
                        let (here, swap) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
                        // SAFETY: two paths that end with NUL and live for the call.
                        unsafe { libc::renameat2(here, one.as_ptr(), here, other.as_ptr(), swap) };
                    }
                });
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scene.run(command, &what)));
                stop.store(true, Ordering::Relaxed);
                done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            });
            assert_untouched(&scene.look(links), &before, &what);
            // What is gone for a moment is missed, a line each.
            scene.said.borrow_mut().retain(|said| !said.contains(": says too much: "));
        }
    }
    scene.end();
}

/// A directory that is no pool, with a link as its lock.
///
/// Proves P3.
#[test]
fn nothing_is_locked_in_what_is_no_pool() {
    tensorfs_tests::needs_mount!();
    let Some(scene) = Scene::new("strangers::no_pool") else { return };
    scene.reset();
    let lock = Name { in_tier: false, path: "lock".into(), is_dir: false };
    let pool = scene.pool();
    fs::write(pool.join("log"), vec![b'x'; 8 << 20]).unwrap();
    for kind in ["link to a file", "hard link", "plain"] {
        if kind == "plain" {
            fs::remove_file(pool.join("lock")).unwrap();
            fs::write(pool.join("lock"), "whatever").unwrap();
            chown(pool.join("lock"), Some(OWNER), Some(GROUP)).unwrap();
        } else {
            scene.put(&lock, kind, &pool.join("lock"));
        }
        let before = (scene.look(true), fs::read(pool.join("lock")).unwrap());
        for command in COMMANDS.iter().filter(|command| !command.starts_with("create")) {
            scene.run(command, command);
            assert_untouched(&scene.look(true), &before.0, &format!("{kind}, {command}"));
            assert_eq!(fs::read(pool.join("lock")).unwrap(), before.1, "{kind}, {command}");
        }
    }
    scene.end();
}

/// A pool whose log says that a tier in memory is where only root could make one.
///
/// Proves P3.
#[test]
fn no_tier_is_made_where_the_owner_could_not_make_it() {
    tensorfs_tests::needs_mount!();
    let Some(scene) = Scene::new("strangers::tiers") else { return };
    for owned in [false, true] {
        scene.reset();
        let owner = if owned { OWNER } else { 0 };
        // Its directory is not there: whether it is made again, the one above it says.
        fs::remove_dir_all(scene.tier()).unwrap();
        chown(scene.memory.path(), Some(owner), Some(owner)).unwrap();
        scene.run("mount POOL MNT", "a tier that is not there");
        assert_eq!(scene.tier().exists(), owned, "not there");
        // It is there, and empty.
        scene.reset();
        fs::remove_dir_all(scene.tier()).unwrap();
        fs::create_dir(scene.tier()).unwrap();
        chown(scene.tier(), Some(owner), Some(owner)).unwrap();
        scene.run("mount POOL MNT", "a tier that is empty");
        assert_eq!(scene.tier().join("tier.json").exists(), owned, "empty");
    }
    scene.end();
}

/// Whoever holds the lock says where the pool is mounted, and that may lead anywhere.
///
/// Proves P3.
#[test]
fn what_a_lock_says_is_not_followed() {
    tensorfs_tests::needs_mount!();
    let Some(scene) = Scene::new("strangers::holder") else { return };
    scene.reset();
    let place = scene.base.path().join("place");
    fs::create_dir_all(place.join(".tensorfs")).unwrap();
    let lock = fs::File::options().read(true).write(true).open(scene.pool().join("lock")).unwrap();
    let exclusive =
        libc::flock { l_type: libc::F_WRLCK as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 };
    nix::fcntl::fcntl(&lock, nix::fcntl::FcntlArg::F_OFD_SETLK(&exclusive)).unwrap();
    let holder = serde_json::json!({ "pid": std::process::id(), "mountpoint": place });
    fs::write(scene.pool().join("lock"), holder.to_string()).unwrap();
    let told = place.join(".tensorfs/info");
    for kind in ["link to a file", "FIFO", "hard link"] {
        scene.put(&Name { in_tier: false, path: String::new(), is_dir: false }, kind, &told);
        for command in COMMANDS.iter().filter(|command| !command.starts_with("mount")) {
            scene.run(command, &format!("{kind}, {command}"));
        }
        fs::remove_file(&told).unwrap();
    }
    drop(lock);
    scene.end();
}

/// A process that executes a program and closes a file in doing so, whose server does not answer: the kernel has
/// whoever looks at its descriptors wait. One that is ended lets its server go on.
struct Executing {
    process: Child,
    server: Pid,
}

impl Executing {
    /// One that has the lock of a pool, and says that it serves that here.
    fn with_lock(lock: &Path, mount: &Mount) -> Self {
        const PROGRAM: &str = "import fcntl, json, os, signal, sys
lock = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(lock, fcntl.LOCK_EX)
os.set_inheritable(lock, True)
os.ftruncate(lock, 0)
os.write(lock, json.dumps({'pid': os.getpid(), 'mountpoint': sys.argv[2]}).encode())
open_file = os.open(sys.argv[2] + '/f', os.O_WRONLY | os.O_CREAT)
os.kill(int(sys.argv[3]), signal.SIGSTOP)
while 'State:\\tT' not in open(f'/proc/{sys.argv[3]}/status').read(): pass
os.execv('/bin/sleep', ['sleep', '1000'])";
        let server = Pid::from_raw(mount.pid().unwrap());
        let mut python = Command::new("python3");
        python.args(["-c", PROGRAM]).args([lock, mount.path()]).arg(server.to_string());
        let process = python.spawn().unwrap();
        let (pid, executing) = (process.id(), Self { process, server });
        let look =
            || Command::new("timeout").args(["-s", "KILL", "1", "readlink", &format!("/proc/{pid}/exe")]).output();
        wait_until("who looks at it waits", || look().unwrap().status.code().is_none());
        executing
    }
}

impl Drop for Executing {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(self.server, Signal::SIGCONT);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whoever holds the lock says which process that is, and nobody can look at that one.
///
/// Proves P6.
#[test]
fn nobody_waits_for_the_process_that_a_lock_names() {
    tensorfs_tests::needs_mount!();
    let Some(scene) = Scene::new("strangers::executing") else { return };
    scene.reset();
    let mode = if Setup::can(Passthrough::On) { Passthrough::On } else { Passthrough::Off };
    let other = Setup::new("strangers::executing::other", mode).mount();
    let executing = Executing::with_lock(&scene.pool().join("lock"), &other);
    for command in ["info POOL", "health POOL", "ls POOL", "umount POOL"] {
        scene.run(command, command);
    }
    drop(executing);
    scene.end();
}

/// What the host would refuse the owner it refuses root, who asks as the owner.
///
/// Proves P3.
#[test]
fn the_host_refuses_root_what_it_refuses_the_owner() {
    tensorfs_tests::needs_mount!();
    let Some(scene) = Scene::new("strangers::identity") else { return };
    scene.reset();
    let mnt = scene.base.path().join("mnt");
    let mounted = |each: &dyn Fn()| {
        let words = ["mount", "POOL", "MNT", "--passthrough", scene.passthrough];
        let path = |word: &str| word.replace("POOL", &scene.pool().display().to_string());
        let words = words.map(|word| path(word).replace("MNT", &mnt.display().to_string()));
        let output = scene.tensorfs(&words);
        assert!(output.status.success(), "{output:?}");
        each();
        assert!(scene.tensorfs(&["umount".into(), mnt.display().to_string()]).status.success());
    };
    // What a killed server left is recovered first.
    mounted(&|| ());
    let segments: Vec<PathBuf> = [scene.pool(), scene.tier()]
        .iter()
        .flat_map(|top| below(&top.join("segments")))
        .filter(|path| path.is_file())
        .collect();
    assert!(segments.len() > 3, "{segments:?}");
    for (mode, may) in [(0o000, false), (0o600, true)] {
        for segment in &segments {
            fs::set_permissions(segment, fs::Permissions::from_mode(mode)).unwrap();
        }
        mounted(&|| {
            for name in ["f", "replaced"] {
                assert_eq!(fs::read(mnt.join(name)).is_ok(), may, "{name} {mode:o}");
            }
        });
    }
    mounted(&|| {
        fs::create_dir(mnt.join("e")).unwrap();
        fs::write(mnt.join("e/made"), vec![1; 100_000]).unwrap();
        let made = below(&scene.pool().join("segments")).into_iter().filter(|path| !segments.contains(path));
        let made: Vec<_> = made.map(|path| fs::metadata(path).unwrap()).collect();
        assert!(made.iter().any(fs::Metadata::is_file));
        assert!(made.iter().all(|made| (made.uid(), made.gid()) == (OWNER, GROUP)), "{made:?}");
        let info =
            String::from_utf8(scene.tensorfs(&["info".into(), "--json".into(), mnt.display().to_string()]).stdout);
        let info: serde_json::Value = serde_json::from_str(&info.unwrap()).unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", info["pid"])).unwrap();
        let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        assert_eq!(groups.trim(), "", "groups of root's");
    });
    scene.end();
}

impl Drop for Scene {
    /// A test that failed leaves no mount behind.
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.base.path().join("mnt"), nix::mount::MntFlags::MNT_DETACH);
    }
}

impl Scene {
    /// Nothing is left mounted.
    fn end(&self) {
        let mnt = self.base.path().join("mnt").display().to_string();
        assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(&mnt), "a mount is left");
        let said = self.said.borrow();
        assert!(said.is_empty(), "{} of them do not say what is wrong:\n{}", said.len(), said.join("\n"));
        let (took, what) = &*self.longest.borrow();
        println!("the longest took {took:.1?}: {what}");
    }
}
