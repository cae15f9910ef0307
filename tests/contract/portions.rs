//! Files that are away, and are read before they are here: who reads some bytes waits for these.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use nix::sys::signal::{Signal, kill};
use tensorfs_tests::{Mount, Passthrough, Pattern, Setup, on_mounts, safetensors, tensorfs, wait_until};

use super::bring::{Remote, Waits, all_come, bringers, errno, state};

on_mounts!(
    who_reads_some_bytes_waits_for_these_alone,
    a_part_that_was_spoiled_is_given_to_nobody,
    what_is_read_before_it_is_here_can_be_removed_emptied_and_changed,
    who_reads_goes_on_whoever_is_killed,
    a_tensor_that_is_read_brings_its_own_bytes,
    a_full_pool_says_so_of_what_was_removed_while_it_is_open,
);

/// Each of so many tensors is an object of its own.
const TENSORS: u64 = 10;
const SIZE: usize = 1_500_000;

/// A file of tensors, of which each is a pattern of its number from this one on; and where they begin.
fn model(first: u64) -> (Vec<u8>, u64) {
    let tensors: Vec<(String, Vec<u8>)> =
        (0..TENSORS).map(|n| (format!("t{n}"), Pattern(first + n).bytes(0, SIZE))).collect();
    let tensors: Vec<(&str, &[u8])> = tensors.iter().map(|(name, bytes)| (&**name, &**bytes)).collect();
    let bytes = safetensors(&tensors);
    let begin = bytes.len() as u64 - TENSORS * SIZE as u64;
    (bytes, begin)
}

fn of_models(setup: Setup, models: u64) -> Option<Remote> {
    Remote::with(setup, |mount| {
        for n in 0..models {
            fs::write(mount.at(format!("m{n}")), model(100 * n).0).unwrap();
        }
    })
}

/// Objects that are hidden, until they are shown again.
struct Hidden(Vec<(PathBuf, Vec<u8>)>);

impl Hidden {
    /// All objects but those that have one of these tensors.
    fn all_objects_but(remote: &Remote, patterns: &[u64]) -> Self {
        let Self(mut all) = Self::all_but(remote, patterns);
        let dirs = fs::read_dir(remote.objects()).unwrap();
        let paths = dirs.flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap()).map(|entry| entry.unwrap().path());
        let others: Vec<_> = paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
        let others = others.into_iter().filter(|(_, bytes)| bytes.len() != SIZE).collect::<Vec<_>>();
        others.iter().for_each(|(path, _)| fs::remove_file(path).unwrap());
        all.extend(others);
        Self(all)
    }

    /// All of a tensor's length, but for these.
    fn all_but(remote: &Remote, patterns: &[u64]) -> Self {
        let kept: Vec<Vec<u8>> = patterns.iter().map(|n| Pattern(*n).bytes(0, SIZE)).collect();
        let dirs = fs::read_dir(remote.objects()).unwrap();
        let paths = dirs.flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap()).map(|entry| entry.unwrap().path());
        let read = paths.map(|path| (path.clone(), fs::read(path).unwrap()));
        let all: Vec<_> = read.filter(|(_, bytes)| bytes.len() == SIZE && !kept.contains(bytes)).collect();
        all.iter().for_each(|(path, _)| fs::remove_file(path).unwrap());
        Self(all)
    }

    /// Puts them where they were.
    fn show(self, remote: &Remote) {
        for (path, bytes) in self.0 {
            let place = path.components().rev().take(2).collect::<Vec<_>>();
            let place: PathBuf = place.into_iter().rev().collect();
            fs::write(remote.objects().join(place), bytes).unwrap();
        }
    }
}

/// Reads all of a range.
fn range(file: &File, at: u64, len: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).map(|()| bytes)
}

fn opened_by_kernel(mount: &Mount) -> u64 {
    mount.info()["counters"]["opened_passthrough"].as_u64().unwrap()
}

fn mapped(file: &File, at: u64, len: usize) -> Vec<u8> {
    let size = std::num::NonZeroUsize::new(file.metadata().unwrap().size() as usize).unwrap();
    let (read, shared) = (nix::sys::mman::ProtFlags::PROT_READ, nix::sys::mman::MapFlags::MAP_SHARED);
    // SAFETY: nobody changes the file meanwhile, and it is as long.
    unsafe {
        let begin = nix::sys::mman::mmap(None, size, read, shared, file, 0).unwrap();
        let bytes = std::slice::from_raw_parts(begin.as_ptr().cast::<u8>(), size.get());
        let bytes = bytes[at as usize..at as usize + len].to_vec();
        nix::sys::mman::munmap(begin, size.get()).unwrap();
        bytes
    }
}

/// Proves E20, E21.
fn who_reads_some_bytes_waits_for_these_alone(setup: Setup) {
    let passthrough = setup.passthrough() == Passthrough::On;
    let Some(remote) = of_models(setup, 1) else { return };
    let mut mount = remote.mount_while_away(&[]);
    let ((whole, begin), path) = (model(0), mount.at("m0"));
    let of = |n: u64| begin + n * SIZE as u64;
    // To open it waits for nothing.
    let file = Arc::new(File::open(&path).unwrap());
    let reading = |at: u64, len: usize| {
        let file = file.clone();
        thread::spawn(move || range(&file, at, len))
    };
    let reads = [(of(5) + 10, 100_000), (of(5), SIZE), (of(6) - 7, 7), (0, begin as usize)];
    let waiting = reads.map(|(at, len)| reading(at, len));
    let mut head = Command::new("head");
    let head = head.args(["-c", "8"]).arg(&path).stdout(Stdio::piped()).spawn().unwrap();
    let hidden = Hidden::all_but(&remote, &[5]);
    assert_eq!(hidden.0.len() as u64, TENSORS - 1);
    assert!(waiting.iter().all(|read| !read.is_finished()));
    remote.come_back();
    for ((at, len), read) in reads.into_iter().zip(waiting) {
        assert!(read.join().unwrap().unwrap() == whole[at as usize..at as usize + len], "{len} at {at}");
    }
    assert_eq!(head.wait_with_output().unwrap().stdout, whole[..8]);
    // It is as it was, for all others.
    let stat = fs::metadata(&path).unwrap();
    assert_eq!((state(&path).as_str(), stat.size(), stat.blocks()), ("away", whole.len() as u64, 0));
    assert!(mount.tensorfs_ok(["ls", mount.path().to_str().unwrap()]).contains("away"));
    // A page within it, and what is there in front of what is not.
    assert!(mapped(&file, of(5) + 500_000, 5000) == whole[of(5) as usize + 500_000..][..5000]);
    let mut some = [0; 200];
    assert_eq!(file.read_at(&mut some, of(6) - 100).unwrap(), 100);
    assert!(some[..100] == whole[of(6) as usize - 100..of(6) as usize]);
    assert_eq!(errno(range(&file, of(6), 1)), Some(libc::EIO));
    assert_eq!(file.read_at(&mut some, whole.len() as u64).unwrap(), 0);
    hidden.show(&remote);
    assert!(range(&file, of(6), SIZE).unwrap() == whole[of(6) as usize..of(7) as usize], "it is tried again");
    assert!(fs::read(&path).unwrap() == whole);
    assert_eq!(state(&path), "sealed");
    assert!(range(&file, of(2), SIZE).unwrap() == whole[of(2) as usize..of(3) as usize], "opened before");
    drop(file);
    let before = opened_by_kernel(&mount);
    wait_until("it is open no more", || {
        let mut first = [0; 8];
        File::open(&path).unwrap().read_exact(&mut first).unwrap();
        assert_eq!(first, whole[..8]);
        !passthrough || opened_by_kernel(&mount) > before
    });
    all_come(&mount);
    mount.umount();
    mount.tensorfs_ok(["check", "--data", mount.pool().to_str().unwrap()]);
}

/// Proves E21.
fn a_part_that_was_spoiled_is_given_to_nobody(setup: Setup) {
    let Some(remote) = of_models(setup, 1) else { return };
    let mut mount = remote.mount_while_away(&[]);
    let ((whole, begin), path) = (model(0), mount.at("m0"));
    let of = |n: u64| begin + n * SIZE as u64;
    let spoiled: Vec<(PathBuf, Vec<u8>)> = Hidden::all_but(&remote, &[0, 1, 2, 4, 5, 6, 8, 9]).0;
    for (path, bytes) in &spoiled {
        let mut wrong = bytes.clone();
        wrong[SIZE - 1] ^= 1;
        fs::write(path, wrong).unwrap();
    }
    remote.come_back();
    let file = File::open(&path).unwrap();
    assert!(range(&file, of(5), SIZE).unwrap() == whole[of(5) as usize..of(6) as usize]);
    for at in [of(3), of(3) + 1000, of(8) - 1] {
        assert_eq!(errno(range(&file, at, 1)), Some(libc::EIO), "{at}");
    }
    let file = Arc::new(file);
    assert!(range(&file, of(4), SIZE).unwrap() == whole[of(4) as usize..of(5) as usize]);
    assert_eq!(state(&path), "away");
    assert!(mount.log().contains("m0: not brought: "), "{}", mount.log());
    let hidden = Hidden(spoiled);
    hidden.show(&remote);
    assert!(range(&file, of(3), SIZE).unwrap() == whole[of(3) as usize..of(4) as usize]);
    assert!(fs::read(&path).unwrap() == whole);
    drop(file);
    all_come(&mount);
    mount.umount();
    mount.tensorfs_ok(["check", "--data", mount.pool().to_str().unwrap()]);
}

/// Proves E21.
fn what_is_read_before_it_is_here_can_be_removed_emptied_and_changed(setup: Setup) {
    let Some(remote) = of_models(setup, 5) else { return };
    let mut mount = remote.mount_while_away(&[]);
    let hidden = Hidden::all_but(&remote, &[1, 101, 201, 301, 401]);
    remote.come_back();
    let files: Vec<File> = (0..5).map(|n| File::open(mount.at(format!("m{n}"))).unwrap()).collect();
    let has = |model_of: u64, tensor: u64| {
        let (whole, begin) = model(100 * model_of);
        let at = begin + tensor * SIZE as u64;
        let found = range(&files[model_of as usize], at, SIZE);
        assert!(found.unwrap() == whole[at as usize..at as usize + SIZE], "{tensor} of {model_of}");
    };
    (0..5).for_each(|n| has(n, 1));
    fs::remove_file(mount.at("m0")).unwrap();
    nix::unistd::truncate(&mount.at("m1"), 0).unwrap();
    fs::write(mount.at("m2"), b"others").unwrap();
    fs::write(mount.at("new"), b"new").unwrap();
    fs::rename(mount.at("new"), mount.at("m3")).unwrap();
    let append = mount.at("m4");
    let append = thread::spawn(move || {
        OpenOptions::new().append(true).open(append).and_then(|mut file| file.write_all(b"and more"))
    });
    let mut some = [0; 10];
    assert_eq!(files[1].read_at(&mut some, 1000).unwrap(), 0);
    assert_eq!((files[2].read_at(&mut some, 0).unwrap(), &some[..6]), (6, &b"others"[..]));
    assert_eq!(fs::read(mount.at("m3")).unwrap(), b"new");
    // What has lost its name stays for who has it open.
    (0..4).step_by(3).for_each(|n| has(n, 1));
    hidden.show(&remote);
    (0..4).step_by(3).for_each(|n| has(n, 7));
    // It may have been refused while some of it was not there.
    if append.join().unwrap().is_err() {
        let mut file = OpenOptions::new().append(true).open(mount.at("m4")).unwrap();
        file.write_all(b"and more").unwrap();
    }
    has(4, 3);
    let (whole, _) = model(400);
    assert_eq!(range(&files[4], whole.len() as u64, 8).unwrap(), b"and more");
    drop(files);
    let check = |mount: &Mount| {
        assert!(!mount.at("m0").exists() && fs::read(mount.at("m1")).unwrap().is_empty());
        assert_eq!(
            (fs::read(mount.at("m2")).unwrap(), fs::read(mount.at("m3")).unwrap()),
            (b"others".into(), b"new".into())
        );
        let found = fs::read(mount.at("m4")).unwrap();
        assert!(found[..whole.len()] == whole && &found[whole.len()..] == b"and more");
    };
    check(&mount);
    all_come(&mount);
    mount.remount();
    check(&mount);
    mount.umount();
    mount.tensorfs_ok(["check", "--data", mount.pool().to_str().unwrap()]);
}

/// Proves E21, E22.
fn who_reads_goes_on_whoever_is_killed(setup: Setup) {
    let Some(remote) = of_models(setup.mount_with(["-o", "keeper"]), 1) else { return };
    let mut mount = remote.mount_while_away(&[]);
    let ((whole, begin), path) = (model(0), mount.at("m0"));
    let of = |n: u64| begin + n * SIZE as u64;
    let hidden = Hidden::all_but(&remote, &[5, 6]);
    remote.come_back();
    let file = Arc::new(File::open(&path).unwrap());
    let has = |n: u64| assert!(range(&file, of(n), SIZE).unwrap() == whole[of(n) as usize..of(n + 1) as usize], "{n}");
    has(5);
    mount.kill_server();
    has(5);
    has(6);
    assert_eq!(state(&path), "away");
    for pid in bringers(&mount) {
        let _ = kill(pid, Signal::SIGKILL);
    }
    wait_until("nobody fetches", || bringers(&mount).is_empty());
    hidden.show(&remote);
    let reads: Vec<_> = (0..TENSORS)
        .map(|n| {
            let (file, at) = (file.clone(), of(n));
            thread::spawn(move || range(&file, at, SIZE))
        })
        .collect();
    // One who is killed waits no more.
    let mut cat = Waits(Command::new("cat").arg(&path).stdout(Stdio::null()).spawn().unwrap());
    assert_eq!(cat.0.try_wait().unwrap(), None);
    cat.0.kill().unwrap();
    cat.0.wait().unwrap();
    let program = Path::new(tensorfs().get_program()).with_file_name("tensorfs-carrier");
    let mut another = Command::new(program);
    another.args(["bring", "--"]).args([mount.pool(), mount.path()]).stdin(Stdio::null());
    let mut another = Waits(another.spawn().unwrap());
    mount.kill_server();
    for (n, read) in reads.into_iter().enumerate() {
        let at = of(n as u64) as usize;
        assert!(read.join().unwrap().unwrap() == whole[at..at + SIZE], "{n}");
    }
    drop(file);
    all_come(&mount);
    another.0.wait().unwrap();
    assert!(fs::read(&path).unwrap() == whole);
    mount.umount();
    mount.tensorfs_ok(["check", "--data", mount.pool().to_str().unwrap()]);
}

/// Proves E21.
fn a_tensor_that_is_read_brings_its_own_bytes(setup: Setup) {
    let Some(remote) = of_models(setup, 1) else { return };
    let mut mount = remote.mount_while_away(&[]);
    let tensors = mount.at(".tensorfs/tensors/m0");
    let path = mount.at("m0");
    // To list and to open waits for nothing.
    assert_eq!(fs::read_dir(&tensors).unwrap().count() as u64, TENSORS);
    let told = mount.tensorfs_ok(["tensors", path.to_str().unwrap()]);
    assert!(told.contains("t5") && told.contains("t9"), "{told}");
    let [five, six] = ["t5.npy", "t6.npy"].map(|name| File::open(tensors.join(name)).unwrap());
    let mut five = (
        five.try_clone().unwrap(),
        thread::spawn(move || {
            let (mut five, mut bytes) = (five, Vec::new());
            five.read_to_end(&mut bytes).map(|_| bytes)
        }),
    );
    // What the file begins with is not needed either.
    let hidden = Hidden::all_objects_but(&remote, &[5]);
    assert!(hidden.0.len() as u64 >= TENSORS && !five.1.is_finished());
    remote.come_back();
    let bytes = five.1.join().unwrap().unwrap();
    assert!(bytes.ends_with(&Pattern(5).bytes(0, SIZE)) && bytes.starts_with(b"\x93NUMPY"));
    let told = mount.tensorfs_ok(["stat", path.to_str().unwrap(), "t5"]);
    assert!(told.contains("mean"), "{told}");
    assert_eq!(state(&path), "away");
    let header = bytes.len() - SIZE;
    assert!(range(&six, 0, header.min(16)).is_err() || range(&six, header as u64, 1).is_err());
    hidden.show(&remote);
    assert!(range(&six, header as u64, SIZE).unwrap() == Pattern(6).bytes(0, SIZE));
    assert!(fs::read(&path).unwrap() == model(0).0);
    assert_eq!(state(&path), "sealed");
    // Who has it open goes on.
    tensorfs_tests::forget_cached_files();
    assert!(range(&five.0, header as u64, SIZE).unwrap() == Pattern(5).bytes(0, SIZE));
    five.0 = File::open(tensors.join("t5.npy")).unwrap();
    assert!(range(&five.0, header as u64, SIZE).unwrap() == Pattern(5).bytes(0, SIZE));
    drop((five.0, six));
    mount.umount();
    mount.tensorfs_ok(["check", "--data", mount.pool().to_str().unwrap()]);
}

/// Proves E21.
fn a_full_pool_says_so_of_what_was_removed_while_it_is_open(setup: Setup) {
    let Some(remote) = of_models(setup, 5) else { return };
    // Room for four of them.
    let mut mount = remote.mount_while_away(&["--size", &(64 << 20).to_string()]);
    remote.come_back();
    let paths: Vec<PathBuf> = (0..5).map(|n| mount.at(format!("m{n}"))).collect();
    let is_away = |n: &usize| state(&paths[*n]) == "away";
    wait_until("four have come", || (0..5).filter(is_away).count() == 1);
    let left = (0..5).find(is_away).unwrap();
    let file = File::open(&paths[left]).unwrap();
    fs::remove_file(&paths[left]).unwrap();
    assert_eq!(errno(range(&file, 0, 8)), Some(libc::ENOSPC));
    drop(file);
    all_come(&mount);
    mount.umount();
    mount.tensorfs_ok(["check", "--data", mount.pool().to_str().unwrap()]);
}
