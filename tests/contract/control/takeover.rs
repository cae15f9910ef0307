//! What of the control tree is open goes on when another server takes over.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use serde_json::Value;
use tensorfs_tests::{Mount, Setup, on_mounts, safetensors};

use super::{bytes, event, npy, tree};

on_mounts!(
    open_tensors_and_texts_go_on,
    listings_of_tensors_go_on,
    a_tensor_of_another_version_is_stale,
    what_is_asked_of_the_tree_comes_again,
);

fn kept(setup: Setup) -> Mount {
    setup.mount_with(["-o", "keeper"]).mount()
}

/// As much as there is; the kernel's cache of it is dropped first.
fn rest(file: &mut File) -> Vec<u8> {
    // SAFETY: plain system call.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    let mut all = Vec::new();
    file.read_to_end(&mut all).unwrap();
    all
}

/// Proves K1.
fn open_tensors_and_texts_go_on(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let large: Vec<u8> = (0..3_000_000_u32).flat_map(|n| (n as u8 ^ (n >> 8) as u8).to_le_bytes()).collect();
    fs::write(mount.at("model"), safetensors(&[("a/large", &large), ("a/small", b"small")])).unwrap();
    let mut events = OpenOptions::new().append(true).create(true).open(mount.at("events")).unwrap();
    events.write_all(&event(b"loss", 1, None, 1.5)).unwrap();
    let names = ["model/a/large.npy", "model/a/small.npy", "events/loss@1.npy"];
    let texts = ["info", "metrics", "README", "placement"].map(|name| mount.at(".tensorfs").join(name));
    let before: Vec<Vec<u8>> = names.iter().map(|name| fs::read(tree(&mount, name)).unwrap()).collect();
    let mut tensors = names.map(|name| File::open(tree(&mount, name)).unwrap());
    let mut texts = texts.map(|path| File::open(path).unwrap());
    let mut begun = [vec![0; 2_000_000], vec![0; 100], vec![]];
    let mut halves = [vec![0; 200], vec![0; 300], vec![0; 10], vec![]];
    let open = tensors.iter_mut().zip(&mut begun).chain(texts.iter_mut().zip(&mut halves));
    open.for_each(|(file, half)| file.read_exact(half).unwrap());
    let numbers: Vec<u64> = tensors.iter().map(|file| file.metadata().unwrap().ino()).collect();
    for round in 0..2 {
        mount.kill_server();
        // An event file may grow.
        events.write_all(&event(b"loss", 2 + round, None, 2.5)).unwrap();
        assert_eq!(numbers, tensors.iter().map(|file| file.metadata().unwrap().ino()).collect::<Vec<_>>());
        assert_eq!(tensors[0].metadata().unwrap().len(), before[0].len() as u64);
    }
    for ((file, begun), before) in tensors.iter_mut().zip(begun).zip(&before) {
        let all = [begun, rest(file)].concat();
        assert!(all == *before, "{} bytes, {} of them as they were", all.len(), before.len());
    }
    let [info, metrics, readme, placement] = std::array::from_fn(|n| [halves[n].clone(), rest(&mut texts[n])].concat());
    let info: Value = serde_json::from_slice(&info).unwrap();
    assert_eq!(info["keeper"]["takeovers"], 0, "as it was when it was opened");
    assert!(metrics.starts_with(b"# ") && metrics.ends_with(b"# EOF\n"));
    assert_eq!(readme, fs::read(mount.at(".tensorfs/README")).unwrap());
    assert_eq!(placement, b"");
    // Closed and opened again, it is of this server.
    drop((tensors, texts));
    let info: Value = serde_json::from_slice(&fs::read(mount.at(".tensorfs/info")).unwrap()).unwrap();
    assert_eq!(info["keeper"]["takeovers"], 2);
    assert_eq!(bytes(&tree(&mount, "events/loss@3.npy")), 2.5_f32.to_le_bytes());
}

/// Proves K1.
fn listings_of_tensors_go_on(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let mut names: Vec<String> = (0..1000).map(|n| format!("a-longer-name-{n:04}.npy")).collect();
    let tensors: Vec<String> = names.iter().map(|name| format!("layers/{}", &name[..name.len() - 4])).collect();
    let all: Vec<(&str, &[u8])> = tensors.iter().map(|name| (&**name, &b"x"[..])).collect();
    fs::write(mount.at("model"), safetensors(&all)).unwrap();
    let directory = tree(&mount, "model/layers");
    let open = File::open(&directory).unwrap();
    let mut found = Vec::new();
    for (n, entry) in fs::read_dir(&directory).unwrap().enumerate() {
        found.push(entry.unwrap().file_name().into_string().unwrap());
        if n % 300 == 10 {
            mount.kill_server();
        }
    }
    names.sort();
    found.sort();
    assert_eq!(found, names);
    // What is in a directory is found from there, as it was before.
    let name = Path::new("a-longer-name-0500.npy");
    let within = openat(open.as_fd(), name, OFlag::O_RDONLY, Mode::empty()).map(File::from).unwrap();
    let from_above = fs::metadata(directory.join(name)).unwrap();
    assert_eq!(within.metadata().unwrap().ino(), from_above.ino());
    let mut whole = vec![0; from_above.len() as usize];
    within.read_exact_at(&mut whole, 0).unwrap();
    assert_eq!(npy(&whole).1, b"x");
}

/// Proves K6.
fn a_tensor_of_another_version_is_stale(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    let path = mount.at("model");
    for change in ["written", "replaced", "removed"] {
        fs::write(&path, safetensors(&[("x", b"before")])).unwrap();
        let open = File::open(tree(&mount, "model/x.npy")).unwrap();
        match change {
            "written" => {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.write_all_at(b"after!", file.metadata().unwrap().len() - 6).unwrap();
            }
            "replaced" => {
                fs::write(mount.at("other"), safetensors(&[("x", b"after!")])).unwrap();
                fs::rename(mount.at("other"), &path).unwrap();
            }
            _ => fs::remove_file(&path).unwrap(),
        }
        mount.kill_server();
        let refused = open.read_exact_at(&mut [0; 10], 0).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StaleNetworkFileHandle, "{change}");
        if change != "removed" {
            assert_eq!(bytes(&tree(&mount, "model/x.npy")), b"after!", "{change}");
        }
    }
}

/// Proves K1, K3.
fn what_is_asked_of_the_tree_comes_again(setup: Setup) {
    let mut mount = kept(setup);
    if mount.is_plain() {
        return;
    }
    fs::write(mount.at("model"), safetensors(&[("a/x", b"bytes")])).unwrap();
    let (tensor, info) = (tree(&mount, "model/a/x.npy"), mount.at(".tensorfs/info"));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(relaxed) {
                    assert_eq!(bytes(&tensor), b"bytes");
                    assert!(serde_json::from_slice::<Value>(&fs::read(&info).unwrap()).is_ok());
                    assert_eq!(fs::read_dir(tree(&mount, "model/a")).unwrap().count(), 1);
                }
            });
        }
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..12 {
                let pid = mount.info()["pid"].as_i64().unwrap() as i32;
                // SAFETY: plain system call. The pid was asked of the server that runs.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        }));
        stop.store(true, relaxed);
        ended.unwrap();
    });
    mount.adopt();
}
