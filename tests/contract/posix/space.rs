//! Size, space and holes of files, and the space of the whole.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;
use tensorfs_tests::{Pattern, Setup, c_path, on_mounts, shell};

use super::errno;

on_mounts!(truncate_up_and_down, fallocate_modes, seek_hole_and_data, statfs_numbers, sparse_and_large_offsets,);

fn truncate_up_and_down(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    let mut want = Pattern(1).bytes(0, 100_000);
    std::fs::write(&path, &want).unwrap();
    for (n, size) in [50_000, 49_999, 200_000, 4096, 10_000_000, 4097, 0, 1].into_iter().enumerate() {
        if n % 2 == 0 {
            OpenOptions::new().write(true).open(&path).unwrap().set_len(size).unwrap();
        } else {
            let (path, size) = (c_path(&path), size as i64);
            // SAFETY: plain system call.
            errno(unsafe { libc::truncate(path.as_ptr(), size) }).unwrap();
        }
        want.resize(size as usize, 0);
        assert!(std::fs::read(&path).unwrap() == want, "after truncate to {size}");
        if n % 3 == 2 {
            mount.remount();
            assert!(std::fs::read(&path).unwrap() == want, "after truncate to {size} and remount");
        }
    }
    // What was cut off does not come back.
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&Pattern(2).bytes(0, 9000), 0).unwrap();
    file.set_len(100).unwrap();
    file.write_all_at(b"z", 8000).unwrap();
    want = Pattern(2).bytes(0, 100);
    want.resize(8000, 0);
    want.push(b'z');
    assert!(std::fs::read(&path).unwrap() == want);
    drop(file);
    mount.remount();
    assert!(std::fs::read(&path).unwrap() == want);
}

fn fallocate(file: &File, mode: i32, offset: i64, len: i64) -> Result<(), Errno> {
    // SAFETY: plain system call.
    errno(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) })
}

/// Proves F6, X3.
fn fallocate_modes(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let meta = || file.metadata().unwrap();
    fallocate(&file, 0, 0, 1 << 20).unwrap();
    assert_eq!(meta().len(), 1 << 20);
    assert!(meta().blocks() * 512 >= 1 << 20, "{} blocks", meta().blocks());
    fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 1 << 20, 1 << 20).unwrap();
    assert_eq!(meta().len(), 1 << 20);
    assert!(meta().blocks() * 512 >= 2 << 20, "{} blocks", meta().blocks());
    let mut want = Pattern(1).bytes(0, 1 << 20);
    file.write_all_at(&want, 0).unwrap();
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, punch, 10_000, 100_000).unwrap();
    want[10_000..110_000].fill(0);
    fallocate(&file, libc::FALLOC_FL_ZERO_RANGE, 500_000, 30_000).unwrap();
    want[500_000..530_000].fill(0);
    assert!(std::fs::read(&path).unwrap() == want);
    fallocate(&file, libc::FALLOC_FL_ZERO_RANGE, (1 << 20) - 10, 1000).unwrap();
    want[(1 << 20) - 10..].fill(0);
    want.resize((1 << 20) + 990, 0);
    assert_eq!(meta().len(), want.len() as u64);
    fallocate(&file, libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, 2 << 20, 4096).unwrap();
    assert_eq!(meta().len(), want.len() as u64);
    assert!(std::fs::read(&path).unwrap() == want);
    // Punching gives space back.
    let before = meta().blocks();
    fallocate(&file, punch, 600_000, 400_000).unwrap();
    want[600_000..1_000_000].fill(0);
    assert!(meta().blocks() + 700 < before, "{before} {}", meta().blocks());
    assert_eq!(fallocate(&file, libc::FALLOC_FL_PUNCH_HOLE, 0, 10), Err(Errno::EOPNOTSUPP));
    if !mount.is_plain() {
        for mode in [libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE, libc::FALLOC_FL_UNSHARE_RANGE] {
            assert_eq!(fallocate(&file, mode, 0, 4096), Err(Errno::EOPNOTSUPP));
        }
    }
    assert_eq!(fallocate(&file, 0, -1, 10), Err(Errno::EINVAL));
    assert_eq!(fallocate(&file, 0, 0, 0), Err(Errno::EINVAL));
    let read_only = File::open(&path).unwrap();
    assert_eq!(fallocate(&read_only, 0, 0, 10), Err(Errno::EBADF));
    drop((file, read_only));
    mount.remount();
    assert!(std::fs::read(&path).unwrap() == want);
}

/// Proves F5.
fn seek_hole_and_data(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    let file = File::create(&path).unwrap();
    file.set_len(10 << 20).unwrap();
    file.write_all_at(&Pattern(1).bytes(0, 4096), 2 << 20).unwrap();
    file.write_all_at(&Pattern(1).bytes(0, 65536), 6 << 20).unwrap();
    drop(file);
    // Holes are as fine as the host's blocks; find every one of them.
    let map = |path: &Path| {
        let file = File::open(path).unwrap();
        let (mut at, mut map) = (0, Vec::new());
        loop {
            // SAFETY: plain system calls.
            let data = unsafe { libc::lseek(file.as_raw_fd(), at, libc::SEEK_DATA) };
            if data < 0 {
                assert_eq!(Errno::last(), Errno::ENXIO);
                return map;
            }
            // SAFETY: the same.
            at = unsafe { libc::lseek(file.as_raw_fd(), data, libc::SEEK_HOLE) };
            assert!(at > data);
            map.push((data, at));
        }
    };
    let want = vec![(2 << 20, (2 << 20) + 4096), (6 << 20, (6 << 20) + 65536)];
    assert_eq!(map(&path), want);
    mount.remount();
    assert_eq!(map(&path), want);
    let file = File::open(&path).unwrap();
    // SAFETY: plain system call.
    let beyond = unsafe { libc::lseek(file.as_raw_fd(), 11 << 20, libc::SEEK_HOLE) };
    assert_eq!((beyond, Errno::last()), (-1, Errno::ENXIO));
}

/// Proves S2.
fn statfs_numbers(setup: Setup) {
    let mount = setup.mount();
    let numbers = || nix::sys::statvfs::statvfs(mount.path()).unwrap();
    let free = |s: &nix::sys::statvfs::Statvfs| s.blocks_available() * s.fragment_size();
    let before = numbers();
    assert_eq!(before.name_max(), 255);
    assert!(before.blocks() >= before.blocks_free());
    assert!(before.blocks_free() >= before.blocks_available());
    std::fs::write(mount.at("f"), Pattern(1).bytes(0, 30 << 20)).unwrap();
    mount.sync();
    let with = numbers();
    let taken = free(&before) as i64 - free(&with) as i64;
    // Other tests use the same disk at the same time: 30 MiB, give or take what they do.
    let host = nix::sys::statvfs::statvfs(&mount.host()).unwrap();
    if !mount.is_plain() {
        let host_free = host.blocks_available() * host.fragment_size();
        let drift = free(&with).abs_diff(host_free);
        assert!(drift < 512 << 20, "free {} but the host says {host_free}", free(&with));
    }
    eprintln!("30 MiB took {taken} bytes of free space");
    let count = |s: &nix::sys::statvfs::Statvfs| s.files() as i64 - s.files_free() as i64;
    let files_before = count(&with);
    for n in 0..50 {
        File::create(mount.at(format!("n{n}"))).unwrap();
    }
    if !mount.is_plain() {
        assert_eq!(count(&numbers()) - files_before, 50);
    }
    assert!(shell(mount.path(), "df -P . && df -Pi . && du -s f").contains("f"));
}

/// Proves F5.
fn sparse_and_large_offsets(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let offsets = [0u64, 4095, (1 << 31) - 1, 1 << 32, (5 << 32) + 123];
    for offset in offsets {
        file.write_all_at(&Pattern(1).bytes(offset, 100), offset).unwrap();
    }
    let check = |file: &File| {
        for offset in offsets {
            let mut bytes = [0; 100];
            file.read_exact_at(&mut bytes, offset).unwrap();
            assert_eq!(Pattern(1).mismatch(offset, &bytes), None, "at {offset}");
        }
        let mut bytes = [1; 100];
        file.read_exact_at(&mut bytes, 1 << 30).unwrap();
        assert_eq!(bytes, [0; 100]);
        let meta = file.metadata().unwrap();
        assert_eq!(meta.len(), (5 << 32) + 223);
        assert!(meta.blocks() < 1000, "{} blocks", meta.blocks());
    };
    check(&file);
    drop(file);
    mount.remount();
    check(&File::open(&path).unwrap());
}
