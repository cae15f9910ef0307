//! Files of very many tensors.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;

use tensorfs_tests::{Mount, Setup, on_mounts, safetensors};

use super::{bytes, event, files, sealed, tree};

on_mounts!(a_checkpoint_of_many_tensors, a_file_of_many_tensors_takes_little_memory,);

/// A checkpoint of many tensors, from its bytes and from its seals.
///
/// Proves T9.
fn a_checkpoint_of_many_tensors(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let names: Vec<String> = (0..20_000).map(|n| format!("layer{}/block/{n}", n % 3)).collect();
    let contents: Vec<[u8; 4]> = (0..20_000_u32).map(u32::to_le_bytes).collect();
    let tensors: Vec<(&str, &[u8])> =
        names.iter().zip(&contents).map(|(name, bytes)| (&name[..], &bytes[..])).collect();
    let path = mount.at("model");
    fs::write(&path, safetensors(&tensors)).unwrap();
    for round in 0..2 {
        let found = files(&tree(&mount, "model"));
        assert_eq!(found.len(), names.len());
        for n in [0, 1, 7777, 19_999] {
            assert!(found.contains(format!("{}.npy", names[n]).as_bytes()));
            assert_eq!(bytes(&tree(&mount, "model").join(format!("{}.npy", names[n]))), contents[n]);
        }
        if round == 0 {
            sealed(&path);
        }
    }
}

/// The most memory that the server has had, in KiB.
pub fn peak(mount: &Mount) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", mount.pid().unwrap())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().split(' ').next().unwrap().parse().unwrap()
}

/// An event file of 50,000 numbers, or a million with TENSORFS_LARGE=1: it is listed whole, in bounded memory.
///
/// Proves T9.
fn a_file_of_many_tensors_takes_little_memory(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let count = if std::env::var("TENSORFS_LARGE").as_deref() == Ok("1") { 1_000_000 } else { 50_000 };
    let mut file = std::io::BufWriter::new(File::create(mount.at("events")).unwrap());
    for n in 0..count {
        file.write_all(&event(format!("group{}/loss", n % 7).as_bytes(), n, None, n as f32)).unwrap();
    }
    // Kept open: what is listed is not from a seal.
    file.flush().unwrap();
    let before = peak(&mount);
    let mut listed = 0;
    for group in 0..7 {
        let directory = tree(&mount, "events").join(format!("group{group}"));
        let mut steps = BTreeSet::new();
        for entry in fs::read_dir(&directory).unwrap() {
            let name = entry.unwrap().file_name();
            let step = name.to_str().unwrap().strip_prefix("loss@").unwrap().strip_suffix(".npy").unwrap();
            assert!(steps.insert(step.parse::<i64>().unwrap()), "{step} twice");
        }
        assert!(steps.iter().all(|step| step % 7 == group));
        listed += steps.len() as i64;
    }
    assert_eq!(listed, count);
    for n in [0, 1, count / 2, count - 1] {
        let path = tree(&mount, "events").join(format!("group{}/loss@{n}.npy", n % 7));
        assert_eq!(bytes(&path), (n as f32).to_le_bytes());
    }
    let grown = peak(&mount) - before;
    // Two versions of an index of 28 bytes a tensor, while it grows; what recognition takes; and what the allocator
    // keeps.
    let bound = (count as u64 * 2 * 40 / 1024) + (96 << 10);
    assert!(grown < bound, "{grown} KiB more, and {bound} are allowed");
}
