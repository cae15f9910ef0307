//! Mappings: coherent between processes, the pool's own memory under passthrough, and alive for as
//! long as somebody has them.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use tensorfs_tests::{Child, Mount, Passthrough, Pattern, Setup, child, is_root, on_mounts};

const SIZE: usize = 4 << 20;

on_mounts!(
    stores_are_seen_by_mappings_and_reads_of_other_processes,
    a_mapping_survives_unlink,
    a_mapping_survives_rename_over,
    a_mapping_whose_file_is_open_while_it_is_replaced,
    stores_reach_the_pool,
    readers_share_one_copy,
    private_mappings_stay_private,
);

/// What only the kernel's passthrough gives.
mod passthrough_only {
    use super::*;

    #[test]
    fn a_mapping_is_the_segments_memory() {
        Setup::run("a_mapping_is_the_segments_memory::on", Passthrough::On, super::the_segments_memory);
    }

    #[test]
    fn a_mapping_survives_replace() {
        Setup::run("a_mapping_survives_replace::on", Passthrough::On, super::survives_replace);
    }
}

/// A process with `path` mapped as `m`, its descriptor `f` still open.
#[track_caller]
fn mapped(path: &Path, flags: &str, len: usize) -> Child {
    let mut child = child(["do"]);
    assert_eq!(child.ask(&format!("open f {flags} {}", path.display())), "ok");
    let mode = if flags.contains('w') { "w" } else { "r" };
    assert_eq!(child.ask(&format!("map f m {len} {mode}")), "ok");
    child
}

fn file_with(mount: &Mount, name: &str, seed: u64) -> PathBuf {
    let path = mount.at(name);
    std::fs::write(&path, Pattern(seed).bytes(0, SIZE)).unwrap();
    path
}

/// Proves F3.
fn stores_are_seen_by_mappings_and_reads_of_other_processes(setup: Setup) {
    let mount = setup.mount();
    let path = file_with(&mount, "f", 1);
    let mut one = mapped(&path, "rw", SIZE);
    let mut two = mapped(&path, "rw", SIZE);
    let mut reader = mapped(&path, "r", SIZE);
    let mut late = child(["do"]);
    assert_eq!(late.ask(&format!("open f r {}", path.display())), "ok");
    for (n, offset) in [0, 1, 4095, 4096, 2_000_000, SIZE as u64 - 100].into_iter().enumerate() {
        let seed = 10 + n as u64;
        assert_eq!(reader.ask(&format!("check m {offset} 1 1")), "ok");
        let (writer, other) = if n % 2 == 0 { (&mut one, &mut two) } else { (&mut two, &mut one) };
        assert_eq!(writer.ask(&format!("store m {offset} {seed} 100")), "ok");
        let want = format!("{offset} {seed} 100");
        assert_eq!(other.ask(&format!("check m {want}")), "ok");
        assert_eq!(reader.ask(&format!("check m {want}")), "ok");
        for child in [&mut *writer, &mut *other, &mut reader, &mut late] {
            assert_eq!(child.ask(&format!("same f {want}")), "ok");
        }
        let mut bytes = [0; 100];
        OpenOptions::new().read(true).open(&path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
        assert_eq!(Pattern(seed).mismatch(offset, &bytes), None, "a file opened just now");
        // Undone with write(2), which the mappings see.
        assert_eq!(other.ask(&format!("write f {offset} 1 100")), "ok");
        for child in [&mut one, &mut two, &mut reader] {
            assert_eq!(child.ask(&format!("check m {offset} 1 100")), "ok");
        }
    }
    // By a program that only writes.
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    writer.write_all_at(&Pattern(30).bytes(8000, 10_000), 8000).unwrap();
    for child in [&mut one, &mut two, &mut reader] {
        assert_eq!(child.ask("check m 8000 30 10000"), "ok");
        assert_eq!(child.ask("same f 8000 30 10000"), "ok");
    }
}

/// Proves F4, N4.
fn a_mapping_survives_unlink(setup: Setup) {
    let mount = setup.mount();
    let path = file_with(&mount, "f", 1);
    let mut reader = mapped(&path, "r", SIZE);
    let mut writer = mapped(&path, "rw", SIZE);
    // Descriptors closed: only the mappings are left.
    assert_eq!(reader.ask("close f"), "ok");
    assert_eq!(writer.ask("close f"), "ok");
    std::fs::remove_file(&path).unwrap();
    for _ in 0..3 {
        // The pool commits, and gives the space back to the host as far as it can.
        mount.sync();
        std::fs::write(mount.at("other"), Pattern(9).bytes(0, SIZE)).unwrap();
        assert_eq!(reader.ask(&format!("check m 0 1 {SIZE}")), "ok");
    }
    assert_eq!(writer.ask("store m 100 2 5000"), "ok");
    assert_eq!(reader.ask("check m 100 2 5000"), "ok");
    assert_eq!(reader.ask(&format!("check m 5100 1 {}", SIZE - 5100)), "ok");
    assert!(std::fs::read(mount.at("other")).unwrap() == Pattern(9).bytes(0, SIZE));
    reader.end();
    writer.end();
}

/// Proves F4.
fn a_mapping_survives_rename_over(setup: Setup) {
    let mount = setup.mount();
    let path = file_with(&mount, "f", 1);
    let mut reader = mapped(&path, "r", SIZE);
    let mut closed = mapped(&path, "r", SIZE);
    assert_eq!(closed.ask("close f"), "ok");
    for round in 2..6 {
        let new = file_with(&mount, "f.tmp", round);
        std::fs::rename(new, &path).unwrap();
        mount.sync();
        for child in [&mut reader, &mut closed] {
            assert_eq!(child.ask(&format!("check m 0 1 {SIZE}")), "ok");
        }
        assert_eq!(reader.ask(&format!("same f 0 1 {SIZE}")), "ok");
        assert!(std::fs::read(&path).unwrap() == Pattern(round).bytes(0, SIZE));
        assert_eq!(mapped(&path, "r", SIZE).ask(&format!("check m 0 {round} {SIZE}")), "ok");
    }
}

/// Saving a checkpoint over the old one (`O_TRUNC`), while a reader has the old one mapped and its
/// descriptor closed, as NumPy, safetensors and PyTorch do.
///
/// Proves F4, R1.
fn survives_replace(setup: Setup) {
    let mount = setup.mount();
    let path = file_with(&mount, "f", 1);
    let mut reader = mapped(&path, "r", SIZE);
    assert_eq!(reader.ask("close f"), "ok");
    assert_eq!(reader.ask("check m 0 1 10"), "ok");
    let ino = std::fs::metadata(&path).unwrap().ino();
    let mut second = None;
    for round in 2..6 {
        // Shorter, and longer.
        let len = SIZE / 2 * (round as usize % 3 + 1);
        std::fs::write(&path, Pattern(round).bytes(0, len)).unwrap();
        mount.sync();
        assert_eq!(reader.ask(&format!("check m 0 1 {SIZE}")), "ok", "round {round}");
        assert!(std::fs::read(&path).unwrap() == Pattern(round).bytes(0, len));
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), ino, "another inode");
        if round == 3 {
            let mut child = mapped(&path, "r", len);
            assert_eq!(child.ask("close f"), "ok");
            second = Some((child, len));
        }
    }
    let (mut second, len) = second.unwrap();
    assert_eq!(second.ask(&format!("check m 0 3 {len}")), "ok");
    // Nobody has it mapped any more: its space comes back with the next commit.
    reader.end();
    second.end();
}

/// Proves R5.
fn a_mapping_whose_file_is_open_while_it_is_replaced(setup: Setup) {
    let mut mount = setup.mount();
    let path = file_with(&mount, "f", 1);
    let mut holder = mapped(&path, "rw", SIZE);
    // Truncated in place: everybody who has it open sees the new content.
    std::fs::write(&path, Pattern(2).bytes(0, SIZE)).unwrap();
    assert_eq!(holder.ask(&format!("same f 0 2 {SIZE}")), "ok");
    assert_eq!(holder.ask(&format!("check m 0 2 {SIZE}")), "ok");
    assert_eq!(holder.ask("store m 5000 3 100"), "ok");
    let mut want = Pattern(2).bytes(0, SIZE);
    want[5000..5100].copy_from_slice(&Pattern(3).bytes(5000, 100));
    assert!(std::fs::read(&path).unwrap() == want);
    holder.end();
    mount.remount();
    assert!(std::fs::read(&path).unwrap() == want);
}

fn stores_reach_the_pool(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    std::fs::File::create(&path).unwrap().set_len(SIZE as u64).unwrap();
    // The descriptor is closed before the first store, and nothing is ever synced.
    let mut writer = mapped(&path, "rw", SIZE);
    assert_eq!(writer.ask("close f"), "ok");
    assert_eq!(writer.ask(&format!("store m 0 1 {SIZE}")), "ok");
    writer.end();
    mount.remount();
    assert!(std::fs::read(&path).unwrap() == Pattern(1).bytes(0, SIZE));
    // Through a mapping that is there before a commit, and stores again behind it.
    let mut writer = mapped(&path, "rw", SIZE);
    assert_eq!(writer.ask("close f"), "ok");
    for round in 2..5 {
        assert_eq!(writer.ask(&format!("store m 0 {round} {SIZE}")), "ok");
        mount.sync();
    }
    assert_eq!(writer.ask(&format!("store m 0 7 {SIZE}")), "ok");
    writer.end();
    mount.remount();
    assert!(std::fs::read(&path).unwrap() == Pattern(7).bytes(0, SIZE));
}

fn private_mappings_stay_private(setup: Setup) {
    let mount = setup.mount();
    let path = file_with(&mount, "f", 1);
    let script = format!(
        "import mmap; f = open({path:?}, 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
f.close(); m[0:1000] = b'z' * 1000; assert m[:2] == b'zz'"
    );
    tensorfs_tests::run_ok(std::process::Command::new("python3").args(["-c", &script]));
    assert!(std::fs::read(&path).unwrap() == Pattern(1).bytes(0, SIZE));
}

/// The pool's backing file of a file, found by its content.
fn segment_of(mount: &Mount, path: &Path) -> PathBuf {
    let want = std::fs::read(path).unwrap();
    let mut todo = vec![mount.pool().join("segments")];
    while let Some(directory) = todo.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                todo.push(entry.path());
            } else if entry.metadata().unwrap().len() == want.len() as u64
                && std::fs::read(entry.path()).unwrap() == want
            {
                return entry.path();
            }
        }
    }
    panic!("no segment holds the bytes of {}", path.display());
}

/// Proves F1, F3.
fn the_segments_memory(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root, to see physical page numbers");
    }
    let mount = setup.mount();
    let path = file_with(&mount, "f", 1);
    let segment = segment_of(&mount, &path);
    let mut client = mapped(&path, "rw", SIZE);
    let mut host = mapped(&segment, "r", SIZE);
    for offset in (0..SIZE).step_by(SIZE / 16) {
        let (a, b) = (client.ask(&format!("page m {offset}")), host.ask(&format!("page m {offset}")));
        assert_ne!(a, "0");
        assert_eq!(a, b, "the pages at {offset} are not the same memory");
    }
    assert_eq!(client.ask("store m 123456 5 1000"), "ok");
    assert_eq!(host.ask("check m 123456 5 1000"), "ok");
    assert_eq!(host.ask("same f 123456 5 1000"), "ok");
}

/// Proves F3.
fn readers_share_one_copy(setup: Setup) {
    const READERS: usize = 6;
    const LARGE: usize = 32 << 20;
    let mount = setup.mount();
    let path = mount.at("large");
    std::fs::write(&path, Pattern(1).bytes(0, LARGE)).unwrap();
    let mut readers: Vec<Child> = (0..READERS).map(|_| mapped(&path, "r", LARGE)).collect();
    for reader in &mut readers {
        assert_eq!(reader.ask(&format!("check m 0 1 {LARGE}")), "ok");
    }
    let (mut resident, mut shares) = (0, 0);
    for reader in &mut readers {
        let answer = reader.ask("memory m");
        let (rss, pss) = answer.split_once(' ').unwrap();
        resident += rss.parse::<usize>().unwrap();
        shares += pss.parse::<usize>().unwrap();
    }
    // Each has all of it resident; together they have it once.
    assert_eq!(resident, READERS * LARGE / 1024, "KiB resident");
    let once = LARGE / 1024;
    assert!(
        shares <= once + READERS && shares >= once * 9 / 10,
        "{READERS} readers of {once} KiB account for {shares} KiB"
    );
}
