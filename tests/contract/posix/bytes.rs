//! Bytes by other ways than plain reads and writes: copied within the mount, in vectors, directly.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use nix::errno::Errno;
use tensorfs_tests::{Pattern, Setup, on_mounts, shell};

use super::kind;

on_mounts!(copy_file_range, copy_file_range_shares_bytes, vectored_and_direct_io,);

/// On a host that can: XFS.
///
/// Proves F7.
fn copy_file_range_shares_bytes(setup: Setup) {
    let disk = match tensorfs_tests::Disk::new(&["mkfs.xfs", "-q", "-m", "reflink=1"], 320) {
        Ok(disk) => disk,
        Err(reason) => return setup.skip(&reason),
    };
    let mount = setup.pool_at(disk.at("pool")).mount();
    std::fs::write(mount.at("from"), Pattern(1).bytes(0, 20 << 20)).unwrap();
    mount.sync();
    let free = || {
        shell(&disk.path(), "sync -f .");
        let host = nix::sys::statvfs::statvfs(&disk.path()).unwrap();
        host.blocks_available() * host.fragment_size()
    };
    let before = free();
    shell(
        mount.path(),
        "cp --reflink=auto from copied; cp --reflink=auto from shared; cmp from copied; cmp from shared",
    );
    let taken = before - free();
    assert!(taken < 10 << 20, "two copies of 20 MiB took {taken} bytes");
    if !mount.is_plain() {
        let counters = &mount.info()["counters"];
        assert_eq!((&counters["shared_bytes"], &counters["copied_bytes"]), (&(40 << 20).into(), &0.into()));
        // More than one answer can say.
        shell(mount.path(), "truncate -s 5G long; printf end >> long");
        let (from, to) = (File::open(mount.at("long")).unwrap(), File::create(mount.at("long2")).unwrap());
        while nix::fcntl::copy_file_range(&from, None, &to, None, usize::MAX >> 2).expect("copy_file_range") > 0 {}
        assert_eq!(to.metadata().unwrap().len(), (5 << 30) + 3);
        assert_eq!(shell(mount.path(), "tail -c 3 long2"), "end");
        let counters = &mount.info()["counters"];
        let all: u64 = (5 << 30) + (40 << 20) + 3;
        assert_eq!((&counters["shared_bytes"], &counters["copied_bytes"]), (&all.into(), &0.into()));
    }
    // What is shared is not the same file.
    OpenOptions::new().write(true).open(mount.at("shared")).unwrap().write_all_at(b"other", 5000).unwrap();
    assert_eq!(Pattern(1).mismatch(0, &std::fs::read(mount.at("from")).unwrap()), None);
}

/// Proves F7.
fn copy_file_range(setup: Setup) {
    let mut mount = setup.mount();
    let bytes = Pattern(1).bytes(0, 3_000_000);
    std::fs::write(mount.at("from"), &bytes).unwrap();
    std::fs::write(mount.host().join("outside"), &bytes).unwrap();
    let copy = |from: &File, to: &File, mut at_from: i64, mut at_to: i64, len: usize| {
        let mut left = len;
        while left > 0 {
            // SAFETY: plain system call; both offsets live on this stack.
            let n =
                unsafe { libc::copy_file_range(from.as_raw_fd(), &mut at_from, to.as_raw_fd(), &mut at_to, left, 0) };
            let n = Errno::result(n).expect("copy_file_range") as usize;
            assert!(n > 0 && n <= left);
            left -= n;
        }
    };
    let from = File::open(mount.at("from")).unwrap();
    let to = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(mount.at("to")).unwrap();
    copy(&from, &to, 1000, 5000, 2_000_000);
    let mut want = vec![0; 5000];
    want.extend_from_slice(&bytes[1000..2_001_000]);
    assert!(std::fs::read(mount.at("to")).unwrap() == want);
    // Within one file, over what is there.
    let both = OpenOptions::new().read(true).write(true).open(mount.at("to")).unwrap();
    copy(&both, &both, 0, 1_000_000, 100_000);
    let part = want[..100_000].to_vec();
    want[1_000_000..1_100_000].copy_from_slice(&part);
    assert!(std::fs::read(mount.at("to")).unwrap() == want);
    assert_eq!(to.metadata().unwrap().len(), want.len() as u64);
    drop((from, to, both));
    mount.remount();
    assert!(std::fs::read(mount.at("to")).unwrap() == want);
    // At and behind the end there is nothing to copy.
    let from = File::open(mount.at("from")).unwrap();
    let to = File::create(mount.at("other")).unwrap();
    let mut end = 3_000_000i64;
    // SAFETY: as above.
    let n = unsafe { libc::copy_file_range(from.as_raw_fd(), &mut end, to.as_raw_fd(), std::ptr::null_mut(), 10, 0) };
    assert_eq!(n, 0);
}

fn vectored_and_direct_io(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    let mut file = File::create(&path).unwrap();
    let parts: Vec<Vec<u8>> = (0..100).map(|n| Pattern(n).bytes(0, n as usize * 13)).collect();
    for group in parts.chunks(10) {
        let slices: Vec<_> = group.iter().map(|part| std::io::IoSlice::new(part)).collect();
        let want: usize = group.iter().map(Vec::len).sum();
        assert_eq!(file.write_vectored(&slices).unwrap(), want);
    }
    drop(file);
    let want = parts.concat();
    assert!(std::fs::read(&path).unwrap() == want);
    // O_DIRECT: aligned, beside ordinary reads and writes of the same file.
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(mount.at("direct"));
    let Ok(direct) = direct else {
        assert_eq!(kind(direct), Errno::EINVAL);
        return;
    };
    let mut buffer = vec![0; 64 * 1024 + 4096];
    let shift = buffer.as_ptr().align_offset(4096);
    let buffer = &mut buffer[shift..shift + 64 * 1024];
    buffer.copy_from_slice(&Pattern(9).bytes(0, 64 * 1024));
    direct.write_all_at(buffer, 0).unwrap();
    assert!(std::fs::read(mount.at("direct")).unwrap() == buffer);
    let plain = OpenOptions::new().write(true).open(mount.at("direct")).unwrap();
    plain.write_all_at(&Pattern(8).bytes(0, 5000), 10_000).unwrap();
    let mut want = buffer.to_vec();
    want[10_000..15_000].copy_from_slice(&Pattern(8).bytes(0, 5000));
    buffer.fill(0);
    direct.read_exact_at(buffer, 0).unwrap();
    assert!(buffer == want);
    drop((direct, plain));
    mount.remount();
    assert!(std::fs::read(mount.at("direct")).unwrap() == want);
}
