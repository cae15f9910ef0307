//! Files that leave the pool for its remote: they take no room here, are there as long as they are away, and come back
//! when somebody wants them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;
use serde_json::Value;
use tensorfs_tests::{Mount, Pattern, Setup, Started, on_mounts, safetensors, wait_until, xattr};

on_mounts!(
    a_file_that_has_left_takes_no_room_and_comes_back_when_it_is_wanted,
    what_has_left_is_read_before_it_is_back,
    what_the_remote_has_not_whole_stays,
    what_has_left_is_carried_on,
    what_has_left_is_carried_whatever_is_left_out,
    what_leaves_while_a_batch_is_made_is_in_it,
    what_the_newest_tree_lacks_is_taken_from_an_older_one,
    a_remote_that_files_have_left_for_is_not_given_up,
    files_are_here_or_away_whatever_is_killed,
    a_file_that_is_wanted_in_vain_says_so_and_comes_later,
    what_belongs_to_the_remote_leaves_by_itself,
    a_mount_that_is_too_full_is_emptied_of_what_nobody_uses,
);

const SIZE: usize = 1 << 20;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A mount whose pool has a remote, and what of it has been carried.
struct Own {
    mount: Mount,
    at: PathBuf,
    url: String,
}

impl Own {
    /// Nothing if there are no mounts.
    fn with(setup: Setup, fill: impl Fn(&Mount)) -> Option<Self> {
        let mount = setup.clone().mount();
        if mount.is_plain() {
            setup.skip("needs a mount");
            return None;
        }
        fill(&mount);
        let at = mount.pool().with_file_name("remote");
        let url = format!("file://{}", at.display());
        mount.tensorfs_ok(["remote", "set", text(mount.pool()), &url]);
        let own = Self { mount, at, url };
        own.carry();
        Some(own)
    }

    /// Some files, of which each is there as a pattern of its number.
    fn of_files(setup: Setup, files: u64) -> Option<Self> {
        Self::with(setup, |mount| {
            for n in 0..files {
                fs::write(mount.at(format!("f{n}")), Pattern(n).bytes(0, SIZE)).unwrap();
            }
        })
    }

    /// What a pass of the carrier tells.
    fn carry(&self) -> Value {
        self.mount.sync();
        self.mount.tensorfs_ok(["seal", text(self.mount.path())]);
        let told = self.mount.tensorfs_ok(["remote", "carry", "--json", text(self.mount.pool())]);
        told.lines().next_back().map_or(Value::Null, |line| serde_json::from_str(line).unwrap_or_default())
    }

    fn move_to(&self, name: &str, tier: &str) -> Output {
        self.mount.tensorfs(["tier", "move", text(&self.mount.at(name)), tier])
    }

    #[track_caller]
    fn leave(&self, name: &str) {
        let output = self.move_to(name, "remote");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Has it refused, and says why.
    #[track_caller]
    fn stays(&self, name: &str) -> String {
        let output = self.move_to(name, "remote");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.lines().count() == 1, "{name}: {said}");
        assert_ne!(state(&self.mount.at(name)), "away");
        said
    }

    fn state(&self, name: &str) -> String {
        state(&self.mount.at(name))
    }

    #[track_caller]
    fn has(&self, name: &str, n: u64) {
        assert!(fs::read(self.mount.at(name)).unwrap() == Pattern(n).bytes(0, SIZE), "{name}");
    }

    /// What is in the remote, restored, has these files.
    fn restores(&self, names: &[(&str, u64)]) {
        let pool = self.mount.pool().with_file_name("restored");
        self.mount.tensorfs_ok(["remote", "restore", "--json", &self.url, text(&pool)]);
        for (name, n) in names {
            let found = self.mount.tensorfs(["remote", "get", &self.url, &format!("/{name}")]);
            assert!(found.stdout == Pattern(*n).bytes(0, SIZE), "{name}: {}", String::from_utf8_lossy(&found.stderr));
        }
        let told = self.mount.tensorfs_ok(["check", "--data", text(&pool)]);
        assert!(told.contains("0 B have no checksum"), "{told}");
        fs::remove_dir_all(&pool).unwrap();
    }
}

fn state(path: &Path) -> String {
    String::from_utf8(xattr::get(path, "user.tensorfs.state").unwrap()).unwrap()
}

fn tier(path: &Path) -> String {
    String::from_utf8(xattr::get(path, "user.tensorfs.tier").unwrap()).unwrap()
}

/// How many files are away, and their bytes.
fn away(info: &Value) -> (u64, u64) {
    let tiers = info["tiers"].as_array().unwrap();
    let away = tiers.iter().find(|tier| tier["name"] == "remote" && tier["state"] == "away");
    away.map_or((0, 0), |away| (away["files"].as_u64().unwrap(), away["bytes"].as_u64().unwrap()))
}

/// The processes that do something for a pool or a mount, by a word of what they were called with.
fn at_work(word: &str, path: &Path) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        let is_there = |word: &[u8]| word.starts_with(text(path).as_bytes());
        if words.contains(&word.as_bytes()) && words.iter().any(|word| is_there(word)) {
            found.push(Pid::from_raw(pid));
        }
    }
    found
}

fn objects(remote: &Path) -> Vec<PathBuf> {
    let dirs = fs::read_dir(remote.join("objects")).unwrap();
    dirs.flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap()).map(|entry| entry.unwrap().path()).collect()
}

/// Proves E21, E27.
fn what_has_left_is_read_before_it_is_back(setup: Setup) {
    let (size, tensors) = (1_500_000, 4);
    let of: Vec<Vec<u8>> = (0..tensors).map(|n| Pattern(n).bytes(0, size)).collect();
    let names: Vec<String> = (0..tensors).map(|n| format!("t{n}")).collect();
    let each: Vec<(&str, &[u8])> = names.iter().zip(&of).map(|(name, bytes)| (&**name, &**bytes)).collect();
    let whole = safetensors(&each);
    let fill = |mount: &Mount| fs::write(mount.at("model.safetensors"), &whole).unwrap();
    let Some(mut own) = Own::with(setup, fill) else { return };
    let path = own.mount.at("model.safetensors");
    own.leave("model.safetensors");
    let hidden: Vec<(PathBuf, Vec<u8>)> =
        objects(&own.at).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    let hidden: Vec<_> = hidden.into_iter().filter(|(_, bytes)| bytes.len() == size && *bytes != of[2]).collect();
    assert_eq!(hidden.len(), 3);
    hidden.iter().for_each(|(path, _)| fs::remove_file(path).unwrap());
    // A tensor brings its own bytes alone.
    let tensor = fs::read(own.mount.at(".tensorfs/tensors/model.safetensors/t2.npy")).unwrap();
    assert!(tensor.ends_with(&of[2]));
    let told = own.mount.tensorfs_ok(["stat", text(&path), "t2"]);
    assert!(told.contains("mean") && own.mount.tensorfs_ok(["tensors", text(&path)]).contains("t3"), "{told}");
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(!own.mount.log().contains("not brought"), "{}", own.mount.log());
    let file = File::open(&path).unwrap();
    let begin = whole.len() as u64 - (tensors - 2) * size as u64;
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, begin).unwrap();
    assert!(bytes == of[2]);
    let stat = fs::metadata(&path).unwrap();
    assert_eq!((own.state("model.safetensors").as_str(), stat.blocks(), away(&own.mount.info()).0), ("away", 0, 1));
    assert!(own.move_to("model.safetensors", "remote").status.success(), "it is there");
    hidden.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    drop(file);
    // Whoever opens it has all of it come, be it that he reads nothing.
    drop(File::open(&path).unwrap());
    wait_until("all of it", || own.state("model.safetensors") == "sealed");
    assert_eq!((tier(&path).as_str(), away(&own.mount.info()).0), ("pm", 0));
    assert!(fs::read(&path).unwrap() == whole);
    own.mount.umount();
    own.mount.tensorfs_ok(["check", "--data", text(own.mount.pool())]);
}

/// Proves E25, E26, E27.
fn a_file_that_has_left_takes_no_room_and_comes_back_when_it_is_wanted(setup: Setup) {
    let weights = Pattern(7).bytes(0, 200_000);
    let fill = |mount: &Mount| {
        fs::create_dir(mount.at("run")).unwrap();
        for n in 0..6 {
            fs::write(mount.at(format!("run/f{n}")), Pattern(n).bytes(0, SIZE)).unwrap();
        }
        fs::write(mount.at("run/empty"), b"").unwrap();
        fs::write(mount.at("run/small"), b"a small one").unwrap();
        fs::hard_link(mount.at("run/f3"), mount.at("three")).unwrap();
        fs::write(mount.at("run/model.safetensors"), safetensors(&[("weights", &weights)])).unwrap();
        File::create(mount.at("run/sparse")).unwrap().write_all_at(b"end", 8 << 20).unwrap();
    };
    let Some(mut own) = Own::with(setup.create(["--size", "64M"]), fill) else { return };
    let seen = |own: &Own| {
        let names = ["f0", "f3", "small", "model.safetensors", "sparse", "empty"];
        names.map(|name| {
            let stat = fs::metadata(own.mount.at("run").join(name)).unwrap();
            (name, stat.mode(), stat.nlink(), stat.size(), stat.mtime(), stat.mtime_nsec())
        })
    };
    let free = |own: &Own| statvfs(own.mount.path()).unwrap().blocks_free() * 4096;
    let (before, room) = (seen(&own), free(&own));
    let told = own.mount.tensorfs_ok(["tier", "move", text(&own.mount.at("run")), "remote"]);
    assert_eq!(told, "9 files are in tier remote\n");
    assert_eq!(seen(&own), before);
    for name in ["run/f0", "run/small", "three", "run/sparse"] {
        let path = own.mount.at(name);
        assert_eq!((own.state(name).as_str(), tier(&path).as_str()), ("away", "remote"), "{name}");
        assert_eq!(fs::metadata(&path).unwrap().blocks(), 0, "{name}");
    }
    assert_eq!((own.state("run/empty").as_str(), tier(&own.mount.at("run/empty")).as_str()), ("sealed", "pm"));
    assert!(free(&own) > room + 6 * SIZE as u64, "{} {room}", free(&own));
    let (files, bytes) = away(&own.mount.info());
    assert!(files == 9 && bytes > 6 * SIZE as u64 + (8 << 20), "{files} {bytes}");
    assert_eq!(own.mount.info()["counters"]["evicted"], 9);
    assert_eq!(own.mount.tensorfs_ok(["ls", text(&own.mount.at("run"))]).matches("away").count(), 9);
    let tiers = own.mount.tensorfs_ok(["tier", "list", text(own.mount.path())]);
    assert!(tiers.lines().any(|line| line.starts_with("remote") && line.contains("away, 14")), "{tiers}");
    let metrics = own.mount.tensorfs_ok(["metrics", text(own.mount.path())]);
    let counted = metrics.lines().find(|line| line.starts_with("tensorfs_tier_files") && line.contains("\"remote\""));
    assert!(counted.is_some_and(|line| line.ends_with(" 9")), "{counted:?}");
    // What is away is so already, and nothing comes that nobody wants.
    own.leave("run");
    own.mount.remount();
    own.mount.tensorfs_ok(["check", text(own.mount.pool())]);
    own.mount.tensorfs_ok(["scrub", text(own.mount.path())]);
    assert_eq!(away(&own.mount.info()).0, 9);
    // By read, by a mapping, as a tensor, by its other name, by moving it.
    own.has("run/f0", 0);
    let file = File::open(own.mount.at("run/f1")).unwrap();
    // SAFETY: nobody changes the file meanwhile.
    let mapped = unsafe {
        let size = std::num::NonZeroUsize::new(SIZE).unwrap();
        let (read, private) = (nix::sys::mman::ProtFlags::PROT_READ, nix::sys::mman::MapFlags::MAP_PRIVATE);
        let at = nix::sys::mman::mmap(None, size, read, private, &file, 0).unwrap();
        let bytes = std::slice::from_raw_parts(at.as_ptr().cast::<u8>(), SIZE).to_vec();
        nix::sys::mman::munmap(at, SIZE).unwrap();
        bytes
    };
    assert!(mapped == Pattern(1).bytes(0, SIZE));
    drop(file);
    assert!(fs::read(own.mount.at(".tensorfs/tensors/run/model.safetensors/weights.npy")).unwrap().ends_with(&weights));
    assert_eq!(own.state("run/model.safetensors"), "away", "only the tensor has come");
    own.has("three", 3);
    own.mount.tensorfs_ok(["tier", "move", text(&own.mount.at("run/f4")), "pm"]);
    xattr::set(&own.mount.at("run/f5"), "user.tensorfs.tier", b"pm", 0).unwrap();
    assert_eq!(["run/f0", "run/f3", "run/f4", "run/f5"].map(|name| own.state(name)), ["sealed"; 4]);
    assert_eq!(away(&own.mount.info()).0, 4);
    let mut sparse = vec![0; 8 << 20];
    sparse.extend(b"end");
    assert!(fs::read(own.mount.at("run/sparse")).unwrap() == sparse);
    assert_eq!(fs::read(own.mount.at("run/small")).unwrap(), b"a small one");
    assert_eq!(seen(&own), before);
    // It leaves again once it was carried again, for which nothing is put.
    assert!(own.stays("run/f0").contains("changed since it was carried"));
    assert_eq!(own.carry()["put_bytes"], 0);
    own.leave("run/f0");
    own.has("run/f0", 0);
    own.mount.umount();
    own.mount.tensorfs_ok(["check", "--data", text(own.mount.pool())]);
}

/// Proves E25.
fn what_the_remote_has_not_whole_stays(setup: Setup) {
    let Some(own) = Own::of_files(setup, 6) else { return };
    let mount = &own.mount;
    // In use, changed since, or never carried.
    let open = File::open(mount.at("f0")).unwrap();
    assert!(own.stays("f0").contains("not moved: it is open"));
    drop(open);
    OpenOptions::new().append(true).open(mount.at("f1")).unwrap().write_all(b"more").unwrap();
    assert!(own.stays("f1").contains("not moved: "));
    mount.tensorfs_ok(["seal", text(&mount.at("f1"))]);
    assert!(own.stays("f1").contains("not moved: it has changed since it was carried"));
    fs::write(mount.at("new"), Pattern(50).bytes(0, SIZE)).unwrap();
    mount.tensorfs_ok(["seal", text(&mount.at("new"))]);
    assert!(own.stays("new").contains("not moved: not in the remote's tree after batch 1"));
    // As long, and with other bytes; with the same ones, and not the record that was carried.
    fs::write(mount.at("f2"), Pattern(2).bytes(0, SIZE)).unwrap();
    mount.tensorfs_ok(["seal", text(&mount.at("f2"))]);
    assert!(own.stays("f2").contains("not moved: it has changed since it was carried"));
    // What the remote has lost, cut or spoiled.
    let objects = objects(&own.at);
    let object = |n: u64| {
        let bytes = Pattern(n).bytes(0, SIZE);
        objects.iter().find(|path| fs::read(path).is_ok_and(|found| found == bytes)).unwrap()
    };
    let [lost, cut, spoiled] = [3, 4, 5].map(object);
    fs::remove_file(lost).unwrap();
    File::options().write(true).open(cut).unwrap().set_len(SIZE as u64 - 1).unwrap();
    File::options().write(true).open(spoiled).unwrap().write_all_at(&[Pattern(5).bytes(7, 1)[0] ^ 1], 7).unwrap();
    assert!(own.stays("f3").contains("not moved: the remote has lost objects/"));
    assert!(own.stays("f4").contains("not as long as it was put"));
    // What cannot be looked at keeps no other here.
    let bytes = fs::read(spoiled).unwrap();
    fs::remove_file(spoiled).unwrap();
    fs::create_dir(spoiled).unwrap();
    let [five, zero] = ["f5", "f0"].map(|name| mount.at(name));
    let said = String::from_utf8(mount.tensorfs(["tier", "move", text(&five), text(&zero), "remote"]).stderr).unwrap();
    assert!(said.lines().count() == 1 && said.contains("f5: not moved: "), "{said}");
    assert!(said.contains("there is a link, a device or another filesystem"), "{said}");
    assert_eq!((own.state("f0").as_str(), own.state("f5").as_str()), ("away", "sealed"));
    fs::remove_dir(spoiled).unwrap();
    fs::write(spoiled, bytes).unwrap();
    let of_five = mount.at("f5");
    let read = ["tier", "move", "--check-data", text(&of_five), "remote"];
    let said = String::from_utf8(mount.tensorfs(read).stderr).unwrap();
    assert!(said.contains("not moved: ") && said.lines().count() == 1, "{said}");
    assert_eq!((own.state("f5").as_str(), away(&mount.info()).0), ("sealed", 1));
    own.has("f3", 3);
    // Others go all the same, and who reads what is there finds nothing.
    let told = mount.tensorfs(["tier", "move", "--check-data", text(mount.path()), "remote"]);
    assert!(String::from_utf8_lossy(&told.stdout).contains("1 file is in tier remote, 6 not"), "{told:?}");
    assert_eq!(own.state("f0"), "away");
    own.has("f0", 0);
    // Of a pool without a remote.
    mount.tensorfs_ok(["remote", "off", text(mount.pool())]);
    assert!(own.stays("f0").contains("it has no remote; `tensorfs remote set` gives it one"));
}

/// Proves E1, E3, E6, E26.
fn what_has_left_is_carried_on(setup: Setup) {
    let Some(mut own) = Own::of_files(setup, 6) else { return };
    own.leave(".");
    let told = own.carry();
    assert_eq!((told["put_bytes"].as_u64(), told["read_bytes"].as_u64()), (Some(0), Some(0)), "{told}");
    assert_eq!(own.carry()["batch"], told["batch"], "nothing has changed");
    // Another name, other attributes, a second name, none, other bytes.
    let at = |name: &str| own.mount.at(name);
    fs::create_dir(at("d")).unwrap();
    fs::rename(at("f0"), at("d/zero")).unwrap();
    fs::hard_link(at("f1"), at("d/one")).unwrap();
    xattr::set(&at("f1"), "user.mine", b"1", 0).unwrap();
    fs::remove_file(at("f2")).unwrap();
    fs::write(at("f3"), Pattern(33).bytes(0, SIZE)).unwrap();
    fs::write(at("new"), Pattern(44).bytes(0, SIZE)).unwrap();
    fs::rename(at("new"), at("f4")).unwrap();
    let told = own.carry();
    assert_eq!((told["put_bytes"].as_u64(), told["incomplete_files"].as_u64()), (Some(2 * SIZE as u64), Some(0)));
    // Whatever is kept, what is away is kept.
    own.mount.tensorfs_ok(["remote", "gc", "--keep-last", "1", text(own.mount.pool())]);
    own.mount.tensorfs_ok(["remote", "check", "--data", &own.url]);
    let all = [("d/zero", 0), ("f1", 1), ("d/one", 1), ("f3", 33), ("f4", 44), ("f5", 5)];
    own.restores(&all);
    assert_eq!(away(&own.mount.info()).0, 3);
    own.mount.remount();
    // Whoever fetches has looked at the remote before; what leaves now is in a newer tree.
    own.has("f5", 5);
    own.leave("f3");
    own.leave("f4");
    for (name, n) in all {
        own.has(name, n);
    }
    assert_eq!(xattr::get(&own.mount.at("f1"), "user.mine").unwrap(), b"1");
    own.mount.umount();
    own.mount.tensorfs_ok(["check", "--data", text(own.mount.pool())]);
}

/// Proves E16, E26.
fn what_has_left_is_carried_whatever_is_left_out(setup: Setup) {
    let fill = |mount: &Mount| {
        for dir in ["cache", "cache/deep", "secret", "other"] {
            fs::create_dir(mount.at(dir)).unwrap();
        }
        for (n, name) in ["cache/deep/a", "cache/b", "secret/c", "secret/d", "e.tmp", "f.tmp"].into_iter().enumerate() {
            fs::write(mount.at(name), Pattern(n as u64).bytes(0, SIZE)).unwrap();
        }
    };
    let Some(own) = Own::with(setup, fill) else { return };
    let left = [("cache/deep/a", 0), ("secret/c", 2), ("e.tmp", 4)];
    left.iter().for_each(|(name, _)| own.leave(name));
    let set = ["remote", "set", text(own.mount.pool()), &own.url, "--exclude", "*.tmp", "--exclude", "/cache"];
    own.mount.tensorfs_ok(set);
    xattr::set(&own.mount.at("secret"), "user.tensorfs.remote", b"no", 0).unwrap();
    let told = own.carry();
    assert_eq!(told["left_out_files"], 3, "{told}");
    own.mount.tensorfs_ok(["remote", "gc", "--keep-last", "1", text(own.mount.pool())]);
    own.restores(&left);
    let listed = own.mount.tensorfs_ok(["remote", "list", &own.url]);
    assert!(!listed.contains("/f.tmp") && !listed.contains("/cache/b") && !listed.contains("/secret/d"), "{listed}");
    for (name, n) in left {
        own.has(name, n);
    }
    // They are as all others then.
    assert_eq!(own.carry()["left_out_files"], 6);
    assert!(own.stays("e.tmp").contains("not in the remote's tree"));
}

/// Processes that are stopped.
struct Stopped(Vec<Pid>);

impl Stopped {
    fn those(all: Vec<Pid>) -> Self {
        assert!(!all.is_empty());
        let stopped = Self(all);
        stopped.0.iter().for_each(|pid| kill(*pid, Signal::SIGSTOP).unwrap());
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _ = kill(*pid, Signal::SIGCONT);
        }
    }
}

/// Proves E26.
fn what_leaves_while_a_batch_is_made_is_in_it(setup: Setup) {
    let fill = |mount: &Mount| {
        fs::create_dir(mount.at("secret")).unwrap();
        for n in 0..2 {
            fs::write(mount.at(format!("secret/f{n}")), Pattern(n).bytes(0, SIZE)).unwrap();
        }
    };
    let Some(own) = Own::with(setup, fill) else { return };
    let pool = own.mount.pool();
    // From now on they are left out, and so the next batch has them no more.
    xattr::set(&own.mount.at("secret"), "user.tensorfs.remote", b"no", 0).unwrap();
    for n in 10..13 {
        fs::write(own.mount.at(format!("f{n}")), Pattern(n).bytes(0, SIZE)).unwrap();
    }
    own.mount.sync();
    own.mount.tensorfs_ok(["seal", text(own.mount.path())]);
    own.mount.tensorfs_ok(["remote", "set", text(pool), &own.url, "--bandwidth", "2"]);
    let before = objects(&own.at).len();
    let mut carrier = own.mount.program();
    carrier.args(["remote", "carry", "--json"]).arg(pool).stdout(Stdio::piped());
    let carrier = carrier.spawn().unwrap();
    wait_until("it puts what is new", || objects(&own.at).len() > before);
    let stopped = Stopped::those(at_work("carry", pool));
    assert_eq!(fs::read_dir(own.at.join("log")).unwrap().count(), 1, "it is between two batches");
    own.leave("secret/f1");
    drop(stopped);
    let output = carrier.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    own.mount.tensorfs_ok(["remote", "gc", "--keep-last", "1", text(pool)]);
    own.restores(&[("secret/f1", 1)]);
    let listed = own.mount.tensorfs_ok(["remote", "list", &own.url]);
    assert!(listed.contains("/secret/f1") && !listed.contains("/secret/f0") && listed.contains("/f12"), "{listed}");
    own.has("secret/f1", 1);
    own.carry();
}

/// As if such a carrier had been here before.
///
/// Proves E26.
fn what_the_newest_tree_lacks_is_taken_from_an_older_one(setup: Setup) {
    let Some(mut own) = Own::of_files(setup, 2) else { return };
    let pool = own.mount.pool().to_owned();
    let other = pool.with_file_name("other");
    own.mount.umount();
    let mut copy = std::process::Command::new("cp");
    assert!(copy.arg("-a").args([&pool, &other]).status().unwrap().success());
    own.mount.mount();
    own.leave("f0");
    own.mount.umount();
    // It has put a batch without the file.
    own.mount.tensorfs_ok(["remote", "set", text(&other), &own.url, "--exclude", "/f0"]);
    own.mount.tensorfs_ok(["remote", "carry", text(&other)]);
    assert!(!own.mount.tensorfs_ok(["remote", "list", &own.url]).contains("/f0"));
    fs::copy(other.join("remote"), pool.join("remote")).unwrap();
    own.mount.mount();
    own.carry();
    own.mount.tensorfs_ok(["remote", "gc", "--keep-last", "1", text(&pool)]);
    own.restores(&[("f0", 0), ("f1", 1)]);
    own.has("f0", 0);
}

/// Proves E27.
fn a_remote_that_files_have_left_for_is_not_given_up(setup: Setup) {
    let Some(own) = Own::of_files(setup, 2) else { return };
    let pool = text(own.mount.pool());
    let elsewhere = format!("{}-2", own.url);
    own.leave("f0");
    for refused in [
        &["remote", "off", pool][..],
        &["remote", "set", pool, &elsewhere],
        &["remote", "set", pool, &own.url, "--take-over"],
    ] {
        let output = own.mount.tensorfs(refused);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.lines().count() == 1, "{refused:?}: {said}");
        assert!(said.contains("1 of its files are in file://") && said.contains("tier move PATH pm"), "{said}");
    }
    // Another place may have the same name.
    let moved = own.at.with_file_name("moved");
    fs::rename(&own.at, &moved).unwrap();
    let output = own.mount.tensorfs(["remote", "set", pool, &own.url]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.lines().count() == 1 && said.contains("has put last"), "{said}");
    fs::remove_dir_all(&own.at).unwrap();
    fs::rename(&moved, &own.at).unwrap();
    // As it was said before, and otherwise.
    own.mount.tensorfs_ok(["remote", "set", pool, &own.url, "--bandwidth", "1000"]);
    own.has("f0", 0);
    own.carry();
    own.leave("f0");
    assert!(own.move_to("f0", "pm").status.success());
    own.mount.sync();
    own.mount.tensorfs_ok(["remote", "set", pool, &elsewhere]);
    own.carry();
    own.leave("f0");
    fs::remove_dir_all(&own.at).unwrap();
    own.has("f0", 0);
    own.mount.tensorfs_ok(["remote", "off", pool]);
}

/// Proves E26.
fn files_are_here_or_away_whatever_is_killed(setup: Setup) {
    const FILES: u64 = 24;
    let Some(mut own) = Own::of_files(setup, FILES) else { return };
    for round in 0..4 {
        let (program, path) = (own.mount.program(), own.mount.path().to_owned());
        let begun = own.mount.info()["counters"]["evicted"].as_u64().unwrap();
        let leaving = thread::spawn(move || {
            let mut program = program;
            program.args(["tier", "move"]).arg(path).arg("remote").output()
        });
        let some = |info: &Value| info["counters"]["evicted"].as_u64().is_some_and(|now| now > begun + round);
        own.mount.wait_for("some files", some);
        match round % 3 {
            0 => {
                own.mount.kill9();
                leaving.join().unwrap().unwrap();
                own.mount.mount();
            }
            1 => {
                own.mount.power_loss();
                leaving.join().unwrap().unwrap();
                own.mount.mount();
            }
            _ => {
                let path = own.mount.path().to_owned();
                let all = [at_work("evict", &path), at_work("bring", own.mount.pool())].concat();
                for pid in all {
                    let _ = kill(pid, Signal::SIGKILL);
                }
                leaving.join().unwrap().unwrap();
                own.mount.remount();
            }
        }
        // Nothing is set aside of what has left.
        assert_eq!(own.mount.quarantine(), Vec::<Value>::new());
        let states: Vec<String> = (0..FILES).map(|n| own.state(&format!("f{n}"))).collect();
        assert!(states.iter().any(|state| state == "away"), "{states:?}");
        assert!(states.iter().all(|state| state == "away" || state == "sealed"), "{states:?}");
        for n in 0..FILES {
            own.has(&format!("f{n}"), n);
        }
        own.carry();
    }
    own.mount.umount();
    own.mount.tensorfs_ok(["check", "--data", text(own.mount.pool())]);
}

/// Proves E21, E27.
fn a_file_that_is_wanted_in_vain_says_so_and_comes_later(setup: Setup) {
    let Some(mut own) = Own::of_files(setup, 2) else { return };
    own.leave(".");
    // Not the bytes that were carried.
    let objects = objects(&own.at);
    let bytes = Pattern(1).bytes(0, SIZE);
    let spoiled = objects.iter().find(|path| fs::read(path).is_ok_and(|found| found == bytes)).unwrap();
    fs::write(spoiled, Pattern(9).bytes(0, SIZE)).unwrap();
    let mut some = [0];
    let read = File::open(own.mount.at("f1")).and_then(|mut file| file.read(&mut some));
    assert_eq!(read.err().and_then(|error| error.raw_os_error()), Some(libc::EIO));
    assert_eq!(own.state("f1"), "away");
    fs::write(spoiled, &bytes).unwrap();
    own.has("f1", 1);
    // The store is away for a while, from before anybody has looked at it.
    let elsewhere = own.at.with_file_name("elsewhere");
    fs::rename(&own.at, &elsewhere).unwrap();
    for pid in at_work("bring", own.mount.pool()) {
        let _ = kill(pid, Signal::SIGKILL);
    }
    own.mount.remount();
    let path = own.mount.at("f0");
    let reading = thread::spawn(move || fs::read(path));
    thread::sleep(std::time::Duration::from_millis(500));
    assert!(!reading.is_finished());
    fs::rename(&elsewhere, &own.at).unwrap();
    assert!(reading.join().unwrap().unwrap() == Pattern(0).bytes(0, SIZE));
    wait_until("all are here", || away(&own.mount.info()).0 == 0);
}

/// A carrier that watches. It ends with the test.
struct Watching(Child);

impl Watching {
    fn start(mount: &Mount) -> Self {
        let mut carrier = mount.program();
        carrier.args(["remote", "carry", "--watch", "--interval=1", "--patience=1"]).arg(mount.pool());
        carrier.stdout(Stdio::null()).stderr(File::create(mount.host().join("carrier")).unwrap());
        Self(carrier.spawn().unwrap())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Proves M2, M3, M5, M6, E28.
fn what_belongs_to_the_remote_leaves_by_itself(setup: Setup) {
    let mount = setup.clone().mount();
    if mount.is_plain() {
        setup.skip("needs a mount");
        return;
    }
    fs::create_dir(mount.at("old")).unwrap();
    let set = |name: &str| xattr::set(&mount.at(name), "user.tensorfs.tier", b"remote", 0);
    let map = |text: &[u8]| {
        let file = mount.host().join("map");
        fs::write(&file, text).unwrap();
        let output = mount.tensorfs(["tier", "map", text_of(&mount), self::text(&file)]);
        output.status.success()
    };
    // A pool that has no remote has no such tier.
    assert_eq!(set("old"), Err(nix::errno::Errno::EINVAL));
    assert!(!map(b"*.ckpt remote\n"));
    let url = format!("file://{}", mount.pool().with_file_name("remote").display());
    mount.tensorfs_ok(["remote", "set", text(mount.pool()), &url]);
    set("old").unwrap();
    assert!(map(b"keep-* pm\n*.ckpt remote\n/run/*/x remote\n"));
    fs::create_dir_all(mount.at("run/7")).unwrap();
    for (n, name) in ["old/a", "b.ckpt", "run/7/x", "keep-c.ckpt", "named", "else"].into_iter().enumerate() {
        fs::write(mount.at(name), Pattern(n as u64).bytes(0, SIZE)).unwrap();
        assert_eq!(tier(&mount.at(name)), "pm", "{name}");
    }
    // Nobody is there who would have it leave.
    assert_eq!(set("named"), Err(nix::errno::Errno::EOPNOTSUPP));
    let _watching = Watching::start(&mount);
    let open = File::open(mount.at("old/a")).unwrap();
    wait_until("a word", || set("named").is_ok());
    let gone = ["b.ckpt", "run/7/x", "named"];
    wait_until("they have left", || gone.iter().all(|name| state(&mount.at(name)) == "away"));
    assert_eq!(state(&mount.at("old/a")), "sealed", "it is open");
    drop(open);
    wait_until("it has left", || state(&mount.at("old/a")) == "away");
    for name in ["keep-c.ckpt", "else"] {
        assert_eq!(tier(&mount.at(name)), "pm", "{name}");
    }
    // Who fetches what is wanted does not make way for others, as the carrier does, and is started again.
    let fetching = at_work("bring", mount.pool());
    // With who watches over it.
    assert_eq!(fetching.len(), 2, "{fetching:?}");
    fetching.iter().for_each(|pid| assert_eq!(priority(*pid), priority(Pid::this())));
    for pid in &fetching {
        let _ = kill(*pid, Signal::SIGKILL);
    }
    wait_until("others", || at_work("bring", mount.pool()).iter().filter(|pid| !fetching.contains(pid)).count() == 2);
    // What is to stay does, whatever was said of it before.
    let stays = File::open(mount.at("else")).unwrap();
    set("else").unwrap();
    mount.tensorfs(["tier", "move", text(&mount.at("else")), "pm"]);
    drop(stays);
    // What was wanted stays for a while.
    assert!(fs::read(mount.at("b.ckpt")).unwrap() == Pattern(1).bytes(0, SIZE));
    mount.tensorfs_ok(["remote", "wait", text(&mount.at("b.ckpt"))]);
    thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(tier(&mount.at("b.ckpt")), "pm");
    assert_eq!(away(&mount.info()).0, 3);
}

/// The niceness of a process, and the class of its requests to a disk.
fn priority(pid: Pid) -> (i32, i64) {
    // SAFETY: both take integers.
    unsafe {
        let of = libc::getpriority(libc::PRIO_PROCESS, pid.as_raw() as libc::id_t);
        (of, libc::syscall(libc::SYS_ioprio_get, 1, pid.as_raw()) >> 13)
    }
}

fn text_of(mount: &Mount) -> &str {
    text(mount.path())
}

/// Proves E28.
fn a_mount_that_is_too_full_is_emptied_of_what_nobody_uses(setup: Setup) {
    let setup = setup.create(["--size", "64M"]).mount_with(["-o", "evict-at=60"]);
    let mut mount = setup.clone().mount();
    if mount.is_plain() {
        setup.skip("needs a mount");
        return;
    }
    for n in 0..10 {
        fs::write(mount.at(format!("f{n}")), Pattern(n).bytes(0, 4 * SIZE)).unwrap();
        // The first one is the coldest, but for the second, which was read since.
        let time = nix::sys::time::TimeSpec::new(1_600_000_000 + n as i64, 0);
        let dir = nix::fcntl::AT_FDCWD;
        let flag = nix::sys::stat::UtimensatFlags::FollowSymlink;
        nix::sys::stat::utimensat(dir, &mount.at(format!("f{n}")), &time, &time, flag).unwrap();
    }
    mount.umount();
    let Started(output) = mount.try_mount();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("it has no remote") && said.contains("nothing leaves"), "{said}");
    mount.adopt();
    let said = mount.program().args(["mount", "--evict-at", "101", "pool", "at"]).output().unwrap();
    assert!(!said.status.success());
    let url = format!("file://{}", mount.pool().with_file_name("remote").display());
    mount.tensorfs_ok(["remote", "set", text(mount.pool()), &url]);
    assert!(fs::read(mount.at("f1")).unwrap() == Pattern(1).bytes(0, 4 * SIZE));
    let used = || {
        let found = statvfs(mount.path()).unwrap();
        (found.blocks() - found.blocks_available()) * 100 / found.blocks()
    };
    assert!(used() > 60, "{}", used());
    let _watching = Watching::start(&mount);
    wait_until("it is emptier", || used() < 60);
    wait_until("the last one", || used() < 55);
    thread::sleep(std::time::Duration::from_millis(1500));
    let states: Vec<String> = (0..10).map(|n| state(&mount.at(format!("f{n}")))).collect();
    assert_eq!((states[0].as_str(), states[1].as_str()), ("away", "sealed"), "{states:?}");
    let gone = states.iter().filter(|state| *state == "away").count();
    assert!((1..6).contains(&gone) && states[2 + gone - 1..].iter().all(|state| state == "sealed"), "{states:?}");
    let said = fs::read_to_string(mount.host().join("carrier")).unwrap();
    assert!(said.contains("60 % full") && said.contains("have left for the remote"), "{said}");
}
