//! A pool with a size limit, and what happens at it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use tensorfs_tests::{
    Call, Disk, HostCalls, Mount, Passthrough, Pattern, Rule, Setup, child, on_mounts, wait_until, xattr,
};

/// What the host's filesystem adds of its own to a file when it writes it out: a block of its tree of extents.
const BOOKS: u64 = 64 << 10;
const LIMIT: u64 = 64 << 20;

on_mounts!(
    removed_files_that_are_held_by_path_do_not_pass_the_limit,
    a_copy_in_another_tier_does_not_pass_the_limit,
    what_is_removed_and_stands_on_the_host_yet_has_a_bound,
    what_is_removed_before_it_is_closed_has_that_bound_too,
    what_is_removed_and_read_yet_does_not_pass_the_limit,
    a_version_that_is_mapped_when_it_is_replaced_counts_until_it_is_not,
    removed_files_that_are_mapped_do_not_pass_the_limit,
    who_finds_no_space_waits_for_no_removed_file_that_the_host_is_late_with,
    a_log_that_is_longer_than_it_needs_is_shortened_for_who_finds_no_space,
    a_removed_file_whose_segment_is_gone_counts_no_more,
    what_a_mapped_file_has_behind_its_end_counts_beside_its_holes,
    what_a_file_has_behind_its_end_counts_when_it_is_opened_again,
    what_is_given_to_an_empty_file_behind_its_end_is_limited,
    the_holes_of_a_file_count_from_when_it_is_opened_again,
    no_space_at_the_limit,
    deleting_gives_space_at_once,
    everything_committed_stays_readable,
    a_full_pool_mounts_again,
    metadata_runs_out_too,
    whatever_frees_something_works_in_a_full_log,
    whatever_has_a_file_open_for_writing_stops_at_the_limit,
    what_xfs_would_set_aside_ahead_of_appends_counts_for_nobody,
    a_mapping_stops_at_the_limit,
    stores_without_room_are_told_of_each_time,
    stores_on_a_full_host_are_told_of_each_time,
    stores_of_which_some_find_no_room_are_told_of,
    a_file_for_whose_holes_there_is_no_room_opens_once_the_last_close_is_heard_of,
    near_the_limit_a_slow_write_keeps_no_other_waiting,
    counting_looks_at_no_more_files_the_more_are_open,
    looking_again_and_again_has_files_asked_for_a_part_of_the_time,
    in_a_pool_with_a_limit_the_server_writes_and_the_kernel_reads,
    versions_in_quarantine_count_and_are_few,
    deleted_space_comes_back_on_the_host,
    what_was_written_in_a_full_log_is_there_after_unmounting,
    a_replacement_that_cannot_begin_leaves_nothing,
    asking_for_more_than_there_can_be_only_gets_no_space,
    a_file_that_was_never_opened_can_be_read_in_a_full_pool,
);

fn limited(setup: Setup) -> Mount {
    let mount = setup.create(["--size", "64M"]).mount();
    if !mount.is_plain() {
        let info = mount.info();
        assert_eq!(info["limit"], LIMIT, "{info}");
        let statfs = nix::sys::statvfs::statvfs(mount.path()).unwrap();
        let size = statfs.blocks() * statfs.fragment_size();
        assert_eq!(size, LIMIT, "statfs says {size}");
    }
    mount
}

fn free(mount: &Mount) -> u64 {
    let statfs = nix::sys::statvfs::statvfs(mount.path()).unwrap();
    statfs.blocks_available() * statfs.fragment_size()
}

fn no_space(result: std::io::Result<impl std::fmt::Debug>) -> bool {
    match result {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
            true
        }
    }
}

/// Writes files of a mebibyte until there is no space; returns the bytes that were accepted.
fn fill(mount: &Mount, prefix: &str) -> u64 {
    let mut accepted = 0;
    for n in 0.. {
        assert!(n < 200, "{accepted} bytes were accepted, and still no ENOSPC");
        let mut file = match OpenOptions::new().write(true).create_new(true).open(mount.at(format!("{prefix}{n}"))) {
            Ok(file) => file,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
                break;
            }
        };
        let mut offset = 0;
        while offset < 1 << 20 {
            match file.write(&Pattern(n).bytes(offset, 64 << 10)) {
                Ok(len) => offset += len as u64,
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
                    return accepted + offset;
                }
            }
        }
        accepted += offset;
    }
    accepted
}

fn check(mount: &Mount, prefix: &str) -> u64 {
    let mut total = 0;
    for n in 0.. {
        let Ok(bytes) = std::fs::read(mount.at(format!("{prefix}{n}"))) else { break };
        assert_eq!(Pattern(n).mismatch(0, &bytes), None, "{prefix}{n}");
        total += bytes.len() as u64;
    }
    total
}

/// Proves S1, S2.
fn no_space_at_the_limit(setup: Setup) {
    let mount = limited(setup);
    if mount.is_plain() {
        return;
    }
    let before = free(&mount);
    assert!(before <= LIMIT && before > LIMIT / 2, "{before} bytes free at first");
    // To the byte: what statfs said can be written, and nothing more. (One file, so that what
    // the books need is a handful of records.)
    let mut file = File::create(mount.at("exact")).unwrap();
    let mut written = 0;
    let error = loop {
        match file.write(&Pattern(1).bytes(written, 4096)) {
            Ok(len) => written += len as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert!(written <= LIMIT, "{written} bytes went into a pool of {LIMIT}");
    assert!(before - written.min(before) <= 2 << 20, "{written} of {before} bytes");
    assert!(free(&mount) < 4096, "{} bytes free in a full pool", free(&mount));
    let info = mount.info();
    assert!(info["used"].as_u64().unwrap() <= LIMIT + BOOKS, "{info}");
    // Reading and overwriting go on.
    drop(file);
    let bytes = std::fs::read(mount.at("exact")).unwrap();
    assert_eq!((bytes.len() as u64, Pattern(1).mismatch(0, &bytes)), (written, None));
    let file = OpenOptions::new().write(true).open(mount.at("exact")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &Pattern(2).bytes(0, 8192), 0).unwrap();
    // Once it is written out, the host may need a block less for it than it had reserved.
    let more = vec![1; 1 << 20];
    assert!(no_space(
        file.set_len(written).and_then(|()| { std::os::unix::fs::FileExt::write_all_at(&file, &more, written) })
    ));
}

/// Proves S3.
fn deleting_gives_space_at_once(setup: Setup) {
    let mount = limited(setup);
    if mount.is_plain() {
        return;
    }
    let before = free(&mount);
    for round in 0..5 {
        let prefix = format!("r{round}-");
        fill(&mount, &prefix);
        let full = free(&mount);
        std::fs::remove_file(mount.at(format!("{prefix}3"))).unwrap();
        let after = free(&mount);
        assert!(after >= full + (1 << 20) - 8192, "deleting a mebibyte left {after} free after {full}");
        std::fs::write(mount.at("again"), Pattern(1).bytes(0, 900 << 10)).unwrap();
        std::fs::remove_file(mount.at("again")).unwrap();
        for entry in std::fs::read_dir(mount.path()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        assert!(free(&mount) + (3 << 20) >= before, "{} of {before} bytes free again", free(&mount));
    }
}

/// Proves S4.
fn everything_committed_stays_readable(setup: Setup) {
    let mut mount = limited(setup);
    if mount.is_plain() {
        return;
    }
    std::fs::write(mount.at("committed"), Pattern(77).bytes(0, 5 << 20)).unwrap();
    mount.sync();
    let accepted = fill(&mount, "f");
    for round in 0..3 {
        let bytes = std::fs::read(mount.at("committed")).unwrap();
        assert_eq!((bytes.len(), Pattern(77).mismatch(0, &bytes)), (5 << 20, None));
        assert_eq!(check(&mount, "f"), accepted);
        match round {
            0 => mount.remount(),
            1 => {
                mount.kill9();
                mount.mount();
            }
            _ => {}
        }
    }
    // Renaming and deleting work in a full pool.
    for n in 0..40 {
        let result = std::fs::rename(mount.at(format!("f{n}")), mount.at(format!("g{n}")));
        if let Err(error) = result {
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
        }
    }
    for entry in std::fs::read_dir(mount.path()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(std::fs::read_dir(mount.path()).unwrap().count(), 0);
    std::fs::write(mount.at("after"), Pattern(5).bytes(0, 30 << 20)).unwrap();
    mount.remount();
    assert!(std::fs::read(mount.at("after")).unwrap() == Pattern(5).bytes(0, 30 << 20));
}

fn a_full_pool_mounts_again(setup: Setup) {
    let mut mount = limited(setup);
    if mount.is_plain() {
        return;
    }
    let accepted = fill(&mount, "f");
    mount.sync();
    mount.power_loss();
    mount.mount();
    assert_eq!(check(&mount, "f"), accepted);
    std::fs::remove_file(mount.at("f0")).unwrap();
    std::fs::write(mount.at("small"), "fits").unwrap();
    mount.remount();
    assert_eq!(std::fs::read_to_string(mount.at("small")).unwrap(), "fits");
}

/// Empty files take no bytes but those of the log; at the end of those there is ENOSPC, too, and
/// deleting still works.
fn metadata_runs_out_too(setup: Setup) {
    let mut mount = setup.create(["--size", "16M"]).mount();
    if mount.is_plain() {
        return;
    }
    let mut made = 0;
    let error = loop {
        assert!(made < 2_000_000, "{made} files in a pool of 16 MiB");
        if let Err(error) = nix::sys::stat::mknod(
            &mount.at(format!("{made:0200}")),
            nix::sys::stat::SFlag::S_IFREG,
            nix::sys::stat::Mode::S_IRUSR,
            0,
        ) {
            break error;
        }
        made += 1;
    };
    assert_eq!(error, Errno::ENOSPC);
    assert!(made > 5000, "only {made} names fit into 16 MiB");
    assert_eq!(std::fs::read_dir(mount.path()).unwrap().count(), made);
    for n in (0..made).step_by(2) {
        std::fs::remove_file(mount.at(format!("{n:0200}"))).unwrap();
    }
    mount.remount();
    assert_eq!(std::fs::read_dir(mount.path()).unwrap().count(), made / 2);
    for n in 0..made / 4 {
        File::create(mount.at(format!("again-{n}"))).unwrap_or_else(|e| panic!("{n} of {made}: {e}"));
    }
    for entry in std::fs::read_dir(mount.path()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    mount.remount();
    assert_eq!(std::fs::read_dir(mount.path()).unwrap().count(), 0);
}

/// Proves S4.
fn whatever_frees_something_works_in_a_full_log(setup: Setup) {
    let mount = setup.create(["--size", "16M"]).mount();
    if mount.is_plain() {
        return;
    }
    let each = 20;
    for n in 0..each {
        let dir = mount.at(format!("dir{n}"));
        std::fs::create_dir(&dir).unwrap();
        for kind in ["attributes", "smaller", "lists", "cut", "emptied", "punched", "over", "onto", "gone", "link"] {
            let path = mount.at(format!("{kind}{n}"));
            std::fs::write(&path, Pattern(n).bytes(0, 12_000)).unwrap();
            xattr::set(&path, "user.x", &[1; 400], 0).unwrap();
        }
        let mut setfacl = std::process::Command::new("setfacl");
        assert!(setfacl.args(["-m", "u:1234:r"]).arg(mount.at(format!("lists{n}"))).status().unwrap().success());
        std::fs::hard_link(mount.at(format!("link{n}")), mount.at(format!("link-{n}"))).unwrap();
        std::fs::create_dir(mount.at(format!("over-dir{n}"))).unwrap();
        std::fs::create_dir(mount.at(format!("onto-dir{n}"))).unwrap();
    }
    let full = mount.at("full");
    std::fs::write(&full, "").unwrap();
    // Full of names, and then of the smallest attributes that there can be.
    let mut made = 0;
    while std::os::unix::fs::symlink("target", mount.at(format!("{made:0200}"))).is_ok() {
        made += 1;
        assert!(made < 1_000_000, "{made} names in a pool of 16 MiB");
    }
    let mut small = 0;
    let mut fill = || {
        while xattr::set(&full, format!("user.{small}"), b"", 0).is_ok() {
            small += 1;
        }
    };
    for n in 0..each {
        fill();
        let at = |kind: &str| mount.at(format!("{kind}{n}"));
        let open = |kind: &str| OpenOptions::new().write(true).open(at(kind)).unwrap();
        xattr::remove(&at("attributes"), "user.x").unwrap();
        xattr::set(&at("smaller"), "user.x", &[2; 399], 0).unwrap();
        xattr::remove(&at("lists"), "system.posix_acl_access").unwrap();
        nix::unistd::truncate(&at("cut"), 5000).unwrap();
        open("emptied").set_len(0).unwrap();
        let punched = open("punched");
        let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: plain system call on an open descriptor.
        let done = unsafe { libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(&punched), flags, 4096, 4096) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        std::fs::rename(at("over"), at("onto")).unwrap();
        std::fs::rename(at("over-dir"), at("onto-dir")).unwrap();
        std::fs::remove_file(at("gone")).unwrap();
        std::fs::remove_file(at("link")).unwrap();
        std::fs::remove_dir(at("dir")).unwrap();
    }
    assert_eq!(xattr::get(&mount.at("smaller0"), "user.x").unwrap(), [2; 399]);
    assert_eq!(std::fs::metadata(mount.at("cut1")).unwrap().len(), 5000);
}

/// Proves S5.
fn stores_without_room_are_told_of_each_time(setup: Setup) {
    let mount = setup.create(["--size", "32M"]).mount();
    if mount.is_plain() {
        return;
    }
    const LEN: usize = 4 << 20;
    File::create(mount.at("holes")).unwrap().set_len(LEN as u64).unwrap();
    fill(&mount, "f");
    // Its holes do not fit, so it is the server that writes them, or does not.
    let file = OpenOptions::new().read(true).write(true).open(mount.at("holes")).unwrap();
    let (access, flags) = (
        nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_WRITE,
        nix::sys::mman::MapFlags::MAP_SHARED,
    );
    let len = std::num::NonZeroUsize::new(LEN).unwrap();
    // SAFETY: a new mapping, of a file that stays as large as it is.
    let at = unsafe { nix::sys::mman::mmap(None, len, access, flags, &file, 0) }.unwrap();
    for round in 1..4u8 {
        // SAFETY: within the mapping.
        let synced = unsafe {
            (0..LEN).step_by(4096).for_each(|page| at.cast::<u8>().add(page).write(round));
            nix::sys::mman::msync(at, LEN, nix::sys::mman::MsFlags::MS_SYNC)
        };
        assert_eq!(synced, Err(Errno::ENOSPC), "in round {round}");
    }
    // SAFETY: it is used no more.
    unsafe { nix::sys::mman::munmap(at, LEN) }.unwrap();
}

/// In a pool without a limit, where the server moves the bytes, nobody keeps room for stores.
///
/// Proves S5.
fn stores_on_a_full_host_are_told_of_each_time(setup: Setup) {
    if setup.passthrough() == Passthrough::On || setup.mount_is_plain() {
        // The kernel gives SIGBUS, as on ext4.
        return;
    }
    let disk = match Disk::new(&["mkfs.ext4", "-q", "-F"], 64) {
        Ok(disk) => disk,
        Err(reason) => return setup.skip(&reason),
    };
    let mount = setup.pool_at(disk.at("pool")).mount();
    const LEN: usize = 4 << 20;
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(mount.at("holes")).unwrap();
    file.set_len(LEN as u64).unwrap();
    file.sync_all().unwrap();
    fill(&mount, "f");
    for round in 1..4 {
        assert_eq!(store(&file, LEN, round), Err(Errno::ENOSPC), "in round {round}");
    }
    drop(file);
    mount.wait_for("what became of it", |_| {
        xattr::get(&mount.at("holes"), "user.tensorfs.state").is_ok_and(|state| state == b"interrupted")
    });
    std::fs::remove_file(mount.at("f0")).unwrap();
    let whole = OpenOptions::new().read(true).write(true).create_new(true).open(mount.at("whole")).unwrap();
    whole.set_len(4096).unwrap();
    store(&whole, 4096, 7).unwrap();
}

/// Stores into a mapping of a whole file, from its beginning, and syncs them.
fn store(file: &File, len: usize, value: u8) -> nix::Result<()> {
    let (access, flags) = (
        nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_WRITE,
        nix::sys::mman::MapFlags::MAP_SHARED,
    );
    let all = std::num::NonZeroUsize::new(len).unwrap();
    // SAFETY: a new mapping, of a file that stays as large as it is; it is used no more once it is gone.
    unsafe {
        let at = nix::sys::mman::mmap(None, all, access, flags, file, 0)?;
        at.cast::<u8>().write_bytes(value, len);
        let synced = nix::sys::mman::msync(at, len, nix::sys::mman::MsFlags::MS_SYNC);
        nix::sys::mman::munmap(at, len)?;
        synced
    }
}

/// What the kernel writes back comes in requests of up to 1 MiB, and for one that was answered with less than it had,
/// it said nothing, and dropped all of it.
///
/// Proves S5, T12.
fn stores_of_which_some_find_no_room_are_told_of(setup: Setup) {
    let mut mount = setup.create(["--size", "32M"]).mount();
    if mount.is_plain() {
        return;
    }
    const LEN: usize = 768 << 10;
    File::create(mount.at("holes")).unwrap().set_len(LEN as u64).unwrap();
    fill(&mount, "f");
    // Room for most of one request.
    OpenOptions::new().write(true).open(mount.at("f0")).unwrap().set_len(512 << 10).unwrap();
    let open = |mount: &Mount| OpenOptions::new().read(true).write(true).open(mount.at("holes")).unwrap();
    let file = open(&mount);
    assert_eq!(store(&file, LEN, 7), Err(Errno::ENOSPC));
    drop(file);
    let state = |mount: &Mount| xattr::get(&mount.at("holes"), "user.tensorfs.state").unwrap();
    // The server hears of the close a little later.
    wait_until("it is interrupted", || state(&mount) == b"interrupted");
    mount.remount();
    assert_eq!(state(&mount), b"interrupted");
    let verified = mount.tensorfs(["verify".as_ref(), mount.at("holes").as_os_str()]);
    assert_eq!(verified.status.code(), Some(5), "{verified:?}");
    // Room for all, and somebody who stores all.
    std::fs::remove_file(mount.at("f1")).unwrap();
    mount.sync();
    let file = open(&mount);
    assert_eq!(store(&file, LEN, 8), Ok(()));
    drop(file);
    wait_until("it is what somebody meant it to be", || state(&mount) != b"interrupted" && state(&mount) != b"open");
    assert!(std::fs::read(mount.at("holes")).unwrap().iter().all(|byte| *byte == 8));
}

/// What the host has allocated in a directory.
fn allocated(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.fold(0, |sum, entry| match entry.metadata() {
        Ok(found) if found.is_dir() => sum + allocated(&entry.path()),
        found => sum + found.map_or(0, |found| found.blocks() * 512),
    })
}

/// What the segments of a pool or a tier take there. One may go while this looks, which `du` would call a failure.
fn of_segments(dir: &Path) -> u64 {
    allocated(&dir.join("segments"))
}

/// Bytes that a file takes until there is no space, a mebibyte at a time; two dozen times the pool at most.
fn write_until_full(file: &mut File) -> u64 {
    let piece = vec![7; 1 << 20];
    let written =
        (0..1536).map(|_| file.write(&piece)).take_while(|written| !no_space(written.as_ref().map_err(again)));
    written.map(|written| written.unwrap() as u64).sum()
}

fn again(error: &std::io::Error) -> std::io::Error {
    std::io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))
}

/// One writer that had its file open from the beginning wrote 1.5 GiB into a pool of 64 MiB, and it stayed.
///
/// Proves S1.
fn whatever_has_a_file_open_for_writing_stops_at_the_limit(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    type Make = fn(&Path) -> Vec<File>;
    let open = |options: &mut OpenOptions, path: &Path| options.create(true).open(path).unwrap();
    let writers: [(&str, Make); 5] = [
        ("writes", |path| vec![File::create(path).unwrap()]),
        ("reads and writes", |path| {
            vec![OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()]
        }),
        ("appends", |path| vec![OpenOptions::new().append(true).create(true).open(path).unwrap()]),
        ("writes what another reads", |path| {
            std::fs::write(path, "read").unwrap();
            let reader = File::open(path).unwrap();
            vec![OpenOptions::new().write(true).open(path).unwrap(), reader]
        }),
        ("replaces what was there", |path| {
            std::fs::write(path, vec![1; 4 << 20]).unwrap();
            vec![File::create(path).unwrap()]
        }),
    ];
    for (what, make) in writers {
        let mount = limited(setup.clone());
        let mut other = open(OpenOptions::new().write(true), &mount.at("other"));
        let mut files = make(&mount.at("f"));
        let written = write_until_full(&mut files[0]) + write_until_full(&mut other);
        assert!((LIMIT / 2..=LIMIT).contains(&written), "{what}: {written} bytes went into a pool of {LIMIT}");
        files[0].sync_all().unwrap();
        let on_host = allocated(mount.pool());
        assert!(on_host <= LIMIT + BOOKS, "{what}: {on_host} bytes on the host");
        // Somebody who makes room can go on with what is open.
        std::fs::remove_file(mount.at("other")).unwrap();
        drop(other);
        mount.sync();
        write_until_full(&mut files[0]);
        let on_host = allocated(mount.pool());
        assert!(on_host <= LIMIT + BOOKS, "{what}: {on_host} bytes on the host");
    }
}

/// XFS takes as much again as a file has while it is written: one writer heard of no space at half of the limit, and
/// two hundred had taken half as much again as it.
///
/// Proves S1.
fn what_xfs_would_set_aside_ahead_of_appends_counts_for_nobody(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    let disk = match tensorfs_tests::Disk::new(&["mkfs.xfs", "-q"], 512) {
        Ok(disk) => disk,
        Err(reason) => return setup.skip(&reason),
    };
    for (writers, piece) in [(1, 4096), (1, 1 << 20), (20, 8192), (200, 8192)] {
        let name = format!("pool-{writers}-{piece}");
        let mount = limited(setup.clone().pool_at(disk.at(&name)));
        let mut files: Vec<_> = (0..writers).map(|n| File::create(mount.at(n.to_string())).unwrap()).collect();
        let piece = vec![7; piece];
        let mut write = |file: &mut File| file.write(&piece).is_ok_and(|written| written == piece.len());
        let mut written = 0;
        while files.iter_mut().all(&mut write) {
            written += (writers * piece.len()) as u64;
        }
        let on_host = allocated(mount.pool());
        assert!(on_host <= LIMIT + BOOKS, "{writers}: {on_host} bytes on the host");
        assert!(written >= LIMIT - (12 << 20), "{writers}: {written} bytes in a pool of {LIMIT}");
    }
}

/// A mapping of the segment itself fills holes unasked, and one that the server writes is told too late: so they count
/// before. `np.memmap` of a third more than there was room for was filled without a word, and was zero at its end.
///
/// Proves S1, S5.
fn a_mapping_stops_at_the_limit(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    const LARGE: u64 = 96 << 20;
    const KEPT: usize = 40 << 20;
    let mount = limited(setup);
    let fill = |file: &File, len: usize| {
        let pages = std::num::NonZeroUsize::new(len).unwrap();
        let (access, flags) = (
            nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_WRITE,
            nix::sys::mman::MapFlags::MAP_SHARED,
        );
        // SAFETY: a new mapping, of a file that stays as large as it is.
        unsafe {
            let at = nix::sys::mman::mmap(None, pages, access, flags, file, 0).unwrap();
            for page in (0..len).step_by(4096) {
                at.cast::<u8>().add(page).write(1);
            }
            let synced = nix::sys::mman::msync(at, len, nix::sys::mman::MsFlags::MS_SYNC);
            nix::sys::mman::munmap(at, len).unwrap();
            synced
        }
    };
    // Made larger while it can be mapped.
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(mount.at("f")).unwrap();
    file.set_len(1 << 20).unwrap();
    let grown = file.set_len(LARGE);
    let written = file.write_at(b"end", LARGE - 3);
    assert!(no_space(grown) && no_space(written));
    // Where there is room, it stays there for it.
    file.set_len(KEPT as u64).unwrap();
    assert!(free(&mount) < LIMIT - KEPT as u64);
    let mut other = File::create(mount.at("other")).unwrap();
    assert!(write_until_full(&mut other) < LIMIT - KEPT as u64);
    fill(&file, KEPT).unwrap();
    assert!(std::fs::read(mount.at("f")).unwrap().iter().step_by(4096).all(|byte| *byte == 1));
    std::fs::remove_file(mount.at("other")).unwrap();
    drop((file, other));
    std::fs::remove_file(mount.at("f")).unwrap();
    mount.sync();
    // Larger before it is opened so.
    File::create(mount.at("sparse")).unwrap().set_len(LARGE).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(mount.at("sparse")).unwrap();
    // The server writes the pages, and it is here that it has no room for them.
    fill(&file, LARGE as usize).unwrap_err();
    let on_host = allocated(mount.pool());
    assert!(
        on_host <= LIMIT + BOOKS,
        "{on_host} bytes on the host: {}",
        tensorfs_tests::shell(mount.pool(), "du -a -B1 .")
    );
}

/// Who had it open before has closed it; that the kernel says so after `close` has returned is not the next one's
/// fault.
///
/// Proves S1.
fn a_file_for_whose_holes_there_is_no_room_opens_once_the_last_close_is_heard_of(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    let mount = limited(setup);
    let path = mount.at("sparse");
    let file = File::create(&path).unwrap();
    file.set_len(LIMIT + (32 << 20)).unwrap();
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| OpenOptions::new().read(true).write(true).open(&path));
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(file);
        opened.join().unwrap().unwrap();
    });
    // What was opened above is closed, but the kernel may not have said so yet: then the next one is served as it was.
    let passed = || mount.info()["counters"]["opened_passthrough"].as_u64().unwrap();
    let (before, kept) = (passed(), std::cell::Cell::new(None));
    mount.wait_for("an open of its own kind", |_| {
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let is_own = passed() > before || mount.passthrough() == Passthrough::Off;
        kept.set(is_own.then_some(file));
        is_own
    });
    // Nobody waits long, or for nothing, for one who keeps it open.
    for _ in 0..50 {
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        assert_eq!(no_space(opened.map(drop)), mount.passthrough() == Passthrough::On);
    }
}

/// Proves S1, W1.
fn near_the_limit_a_slow_write_keeps_no_other_waiting(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    let calls = HostCalls::new();
    let mount = limited(setup.host_calls(&calls));
    let [mut full, slow, other] = ["full", "slow", "other"].map(|name| File::create(mount.at(name)).unwrap());
    while mount.info()["used"].as_u64().unwrap() < LIMIT - (1 << 20) {
        full.write_all(&[1; 1 << 18]).unwrap();
    }
    let held = calls.add(Rule::of(Call::Write).on("/segments/").times(1).held());
    std::thread::scope(|scope| {
        let late = scope.spawn(|| slow.write_at(&[2; 4096], 0));
        held.wait_for_waiting(1);
        let (done, answer) = std::sync::mpsc::channel();
        scope.spawn(move || done.send(other.write_at(&[3; 4096], 0)));
        let answer = answer.recv_timeout(std::time::Duration::from_secs(20));
        drop(held);
        assert_eq!(answer.expect("it waited for the other write").unwrap(), 4096);
        assert_eq!(late.join().unwrap().unwrap(), 4096);
    });
    write_until_full(&mut full);
    mount.sync();
    let on_host = allocated(mount.pool());
    assert!(on_host <= LIMIT + BOOKS, "{on_host} bytes on the host");
}

/// Neither for `statfs`, nor for writes near the limit.
///
/// Proves S1, S2.
fn counting_looks_at_no_more_files_the_more_are_open(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    const TIMES: u64 = 10;
    let looks = [10, 500].map(|open: usize| {
        let calls = HostCalls::new();
        let mount = limited_and_quiet(setup.clone().host_calls(&calls));
        let writers: Vec<File> = (0..open).map(|n| File::create(mount.at(format!("open-{n}"))).unwrap()).collect();
        for writer in &writers {
            writer.write_all_at(&[1; 4096], 0).unwrap();
        }
        let mut full = File::create(mount.at("full")).unwrap();
        while free(&mount) > 1 << 20 {
            full.write_all(&[1; 1 << 18]).unwrap();
        }
        // What has changed since is looked at once.
        let before = free(&mount);
        let looks = calls.add(Rule::of(Call::Fstat).on("/segments/"));
        for n in 1..=TIMES {
            writers[0].write_all_at(&[1; 4096], n * 4096).unwrap();
            assert_eq!(free(&mount), before - n * 4096);
        }
        looks.arrived()
    });
    assert!(looks[1] <= looks[0] + TIMES, "{TIMES} writes and as many statfs take {looks:?} looks at segments");
}

/// Of files that the kernel writes the server hears nothing: it asks the host.
fn looking_again_and_again_has_files_asked_for_a_part_of_the_time(setup: Setup) {
    if setup.passthrough() == Passthrough::Off {
        return;
    }
    const TIMES: u64 = 200;
    const OPEN: u64 = 500;
    let calls = HostCalls::new();
    let mount = setup.mount_with(["--commit", "3600"]).host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let used = || {
        let text = std::fs::read(mount.at(".tensorfs/info")).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()["used"].as_u64().unwrap()
    };
    let writers: Vec<File> = (0..OPEN).map(|n| File::create(mount.at(format!("open-{n}"))).unwrap()).collect();
    let before = used();
    writers.iter().for_each(|writer| writer.write_all_at(&[1; 4096], 0).unwrap());
    wait_until("what they take is counted", || used() >= before + OPEN * 4096);
    let looks = calls.add(Rule::of(Call::Fstat).on("/segments/"));
    (0..TIMES).for_each(|_| assert!(used() > 0));
    let looks = looks.arrived();
    assert!(looks < TIMES * OPEN / 2, "{OPEN} open files are looked at {looks} times for {TIMES} looks at `info`");
}

/// Proves S1, F2, F3.
fn in_a_pool_with_a_limit_the_server_writes_and_the_kernel_reads(setup: Setup) {
    if setup.passthrough() == Passthrough::Off {
        return;
    }
    let mount = limited(setup);
    let counted = |what: &str| mount.info()["counters"][what].as_u64().unwrap();
    let path = mount.at("f");
    let mut writer = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    writer.write_all(&Pattern(1).bytes(0, 1 << 20)).unwrap();
    assert!(counted("write") > 0);
    let before = counted("read_bytes");
    let reader = File::open(&path).unwrap();
    let mut bytes = vec![0; 1 << 20];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((Pattern(1).mismatch(0, &bytes), counted("read_bytes")), (None, before), "the kernel read it itself");
    // What is sent from the descriptor of a writer is what is in the file, whoever changed it, as soon as the kernel
    // has let go of what was sent before.
    // SAFETY: a new mapping of one page, of a file that is larger.
    let page = unsafe {
        let access = nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_WRITE;
        let one = std::num::NonZeroUsize::new(4096).unwrap();
        nix::sys::mman::mmap(None, one, access, nix::sys::mman::MapFlags::MAP_SHARED, &writer, 0).unwrap()
    };
    let out = tempfile::tempfile().unwrap();
    let send = |to: u64| {
        let mut from = 0;
        std::io::Seek::seek(&mut &out, std::io::SeekFrom::Start(to)).unwrap();
        assert_eq!(nix::sys::sendfile::sendfile(&out, &writer, Some(&mut from), 16).unwrap(), 16);
        let mut sent = [0; 16];
        out.read_exact_at(&mut sent, to).unwrap();
        sent
    };
    assert_eq!(send(0), Pattern(1).bytes(0, 16)[..]);
    // SAFETY: the page is mapped.
    unsafe { page.cast::<[u8; 16]>().write([9; 16]) };
    tensorfs_tests::wait_until("what was changed to be sent", || send(16) == [9; 16]);
    let mut bytes = [0; 16];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [9; 16]);
    writer.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [9; 16]);
    // SAFETY: mapped above, and not used any more.
    unsafe { nix::sys::mman::munmap(page, 4096).unwrap() };
}

/// Eight writers that were killed in the middle of replacing a file left 187 MB beside a pool of 64 MiB.
///
/// Proves S1, R4.
fn versions_in_quarantine_count_and_are_few(setup: Setup) {
    let mut mount = limited(setup);
    if mount.is_plain() {
        return;
    }
    const FILE: u64 = 5 << 20;
    let path = mount.at("model.pt");
    std::fs::write(&path, Pattern(1).bytes(0, FILE as usize)).unwrap();
    mount.sync();
    let before = free(&mount);
    let mut kept = Vec::new();
    for n in 0..8 {
        let mut writer = child(["do"]);
        assert_eq!(writer.ask(&format!("open f wct {}", path.display())), "ok");
        assert_eq!(writer.ask(&format!("write f 0 {} {}", 100 + n, 4 << 20)), "ok");
        writer.kill(libc::SIGKILL);
        mount.wait_for("the version before", |info| {
            let now = info["quarantine"].as_array().unwrap();
            now.len() == 2.min(n + 1) && *now != kept
        });
        kept = mount.quarantine();
        if n == 4 {
            mount.remount();
        }
    }
    let kept: Vec<_> = kept.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect();
    let versions: Vec<_> =
        kept.iter().map(|name| std::fs::read(mount.pool().join("quarantine").join(name)).unwrap()).collect();
    // The last one that was whole, and the last one.
    assert!(versions[0] == Pattern(1).bytes(0, FILE as usize), "{kept:?}");
    assert_eq!((versions[1].len(), Pattern(106).mismatch(0, &versions[1])), (4 << 20, None), "{kept:?}");
    // They count, and are free when they are gone.
    let taken = before - free(&mount);
    assert!((8 << 20..(8 << 20) + BOOKS).contains(&taken), "{taken} bytes are taken by them");
    let mut file = File::create(mount.at("rest")).unwrap();
    write_until_full(&mut file);
    // The host gives back what was deleted when that is durable.
    tensorfs_tests::wait_until("space is back", || allocated(mount.pool()) <= LIMIT + BOOKS);
    mount.tensorfs_ok(["restore".as_ref(), mount.path().as_os_str(), "--discard".as_ref(), kept[1].as_ref()]);
    assert!(free(&mount) >= 4 << 20, "{} bytes are free", free(&mount));
    mount.tensorfs_ok([
        "restore".as_ref(),
        mount.path().as_os_str(),
        kept[0].as_ref(),
        "--to".as_ref(),
        mount.host().join("whole").as_os_str(),
    ]);
    assert!(std::fs::read(mount.host().join("whole")).unwrap() == Pattern(1).bytes(0, FILE as usize));
    assert!(mount.quarantine().is_empty());
}

/// Proves S3.
fn deleted_space_comes_back_on_the_host(setup: Setup) {
    let mount = setup.mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    let on_host = || of_segments(mount.pool());
    let empty = on_host();
    for n in 0..10 {
        std::fs::write(mount.at(format!("f{n}")), Pattern(n).bytes(0, 1 << 20)).unwrap();
    }
    mount.sync();
    assert!(on_host() >= empty + (10 << 20));
    let used = || mount.info()["used"].as_u64().unwrap();
    let before = used();
    for n in 0..10 {
        std::fs::remove_file(mount.at(format!("f{n}"))).unwrap();
    }
    assert!(used() + (10 << 20) <= before, "it does not count any more");
    mount.sync();
    // Nobody who commits waits for the host to remove them.
    tensorfs_tests::wait_until("space is back", || on_host() < empty + (1 << 20));
}

/// What is removed counts as free while the kernel knows it still. Files that a program held with `O_PATH` filled the
/// host that way, whatever the limit. Found by reading.
///
/// Proves S1.
fn removed_files_that_are_held_by_path_do_not_pass_the_limit(setup: Setup) {
    const FILE: u64 = 16 << 20;
    if setup.mount_is_plain() {
        return;
    }
    let mount = setup.create(["--size", "64M"]).mount();
    let mut held = Vec::new();
    for n in 0..10 {
        let path = mount.at(format!("f{n}"));
        std::fs::write(&path, Pattern(n).bytes(0, FILE as usize)).unwrap();
        held.push(OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        mount.sync();
    }
    let mut used = 0;
    for shard in std::fs::read_dir(mount.pool().join("segments")).unwrap() {
        for segment in std::fs::read_dir(shard.unwrap().path()).unwrap() {
            used += segment.unwrap().metadata().map_or(0, |metadata| metadata.blocks() * 512);
        }
    }
    assert!(used <= LIMIT + FILE, "{used} bytes are held");
    drop(held);
}

/// A mapping of a file.
struct Mapped {
    at: std::ptr::NonNull<std::ffi::c_void>,
    len: usize,
}

impl Mapped {
    fn of(file: &File, len: usize, access: nix::sys::mman::ProtFlags) -> Self {
        let (pages, flags) = (std::num::NonZeroUsize::new(len).unwrap(), nix::sys::mman::MapFlags::MAP_SHARED);
        // SAFETY: a new mapping, of a file that stays as large as it is.
        let at = unsafe { nix::sys::mman::mmap(None, pages, access, flags, file, 0) }.unwrap();
        Self { at, len }
    }

    fn to_write(file: &File, len: usize) -> Self {
        Self::of(file, len, nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_WRITE)
    }

    fn fill(&self) {
        // SAFETY: within the mapping, which whoever calls this made to be written.
        (0..self.len).step_by(4096).for_each(|page| unsafe { self.at.cast::<u8>().add(page).write(1) });
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by this value, which is used no more.
        unsafe { nix::sys::mman::munmap(self.at, self.len) }.unwrap();
    }
}

/// The host keeps what is mapped, whether it has a name or not, and the kernel does not tell the server of it.
///
/// Proves S1, S3.
fn removed_files_that_are_mapped_do_not_pass_the_limit(setup: Setup) {
    const FILE: usize = 40 << 20;
    if setup.mount_is_plain() {
        return;
    }
    let sparse = |mount: &Mount, name: &str| {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(mount.at(name))?;
        file.set_len(FILE as u64)?;
        Ok(file)
    };
    type Make = fn(&Mount, File) -> Mapped;
    let makes: [(&str, Make); 4] = [
        ("removed when it was closed", |mount, file| {
            let mapped = Mapped::to_write(&file, FILE);
            drop(file);
            std::fs::remove_file(mount.at("f")).unwrap();
            mapped.fill();
            mapped
        }),
        ("removed before it was closed", |mount, file| {
            let mapped = Mapped::to_write(&file, FILE);
            std::fs::remove_file(mount.at("f")).unwrap();
            drop(file);
            mapped.fill();
            mapped
        }),
        ("renamed over", |mount, file| {
            let mapped = Mapped::to_write(&file, FILE);
            drop(file);
            std::fs::write(mount.at("other"), "other").unwrap();
            std::fs::rename(mount.at("other"), mount.at("f")).unwrap();
            std::fs::rename(mount.at("f"), mount.at("other")).unwrap();
            mapped.fill();
            mapped
        }),
        ("only read", |mount, file| {
            Mapped::to_write(&file, FILE).fill();
            drop(file);
            mount.sync();
            let mapped = Mapped::of(&File::open(mount.at("f")).unwrap(), FILE, nix::sys::mman::ProtFlags::PROT_READ);
            std::fs::remove_file(mount.at("f")).unwrap();
            mapped
        }),
    ];
    for (what, make) in makes {
        let mount = limited(setup.clone());
        let mut held = Vec::new();
        for _ in 0..3 {
            let made: std::io::Result<File> = sparse(&mount, "f");
            match made {
                Ok(file) => held.push(make(&mount, file)),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{what}: {error}");
                    let _ = std::fs::remove_file(mount.at("f"));
                }
            }
            mount.sync();
        }
        let taken = held.len() * FILE;
        assert!(taken > 0 && taken as u64 <= LIMIT, "{what}: {taken} bytes are mapped of a pool of {LIMIT}");
        assert!(free(&mount) < LIMIT - taken as u64, "{what}: what is mapped counts");
        // Who asks for it when it is over gets it.
        drop(held);
        tensorfs_tests::wait_until("the space of what was mapped to be free", || {
            let again = sparse(&mount, "again").is_ok();
            let _ = std::fs::remove_file(mount.at("again"));
            again
        });
        tensorfs_tests::wait_until("it to be shown", || free(&mount) > LIMIT - (8 << 20));
    }
}

/// The host does not say of one whether it is mapped yet, and says it of the others: their space is there for whoever
/// wants it, and that of the one once it is known.
///
/// Proves S3, W1.
fn who_finds_no_space_waits_for_no_removed_file_that_the_host_is_late_with(setup: Setup) {
    const FILE: usize = 12 << 20;
    let calls = HostCalls::new();
    let mount = limited_and_quiet(setup.host_calls(&calls));
    if mount.is_plain() || mount.passthrough() == Passthrough::Off {
        // There a mapping keeps the file open.
        return;
    }
    let make = |n: usize| {
        let path = mount.at(format!("mapped-{n}"));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len((FILE + 4096 * n) as u64).unwrap();
        let mapped = Mapped::to_write(&file, FILE);
        mapped.fill();
        mount.sync();
        (path, mapped)
    };
    let made: Vec<_> = (0..4).map(make).collect();
    let shards = std::fs::read_dir(mount.pool().join("segments")).unwrap().map(|shard| shard.unwrap().path());
    let mut segments = shards.flat_map(|shard| std::fs::read_dir(shard).unwrap().map(|file| file.unwrap().path()));
    let late = segments.find(|file| std::fs::metadata(file).unwrap().len() == FILE as u64).unwrap();
    let late = format!("/{}", late.strip_prefix(mount.pool()).unwrap().display());
    made.iter().for_each(|(path, _)| std::fs::remove_file(path).unwrap());
    let write =
        |name: &str, size: usize| std::fs::write(mount.at(name), vec![7; size]).map_err(|error| error.raw_os_error());
    assert_eq!(write("none", 30 << 20), Err(Some(libc::ENOSPC)), "what is mapped counts");
    std::fs::remove_file(mount.at("none")).unwrap();
    let held = calls.add(Rule::of(Call::Lease).on(late).held());
    drop(made);
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        scope.spawn(move || tell.send(write("of the others", 30 << 20)));
        let written = told.recv_timeout(std::time::Duration::from_secs(60));
        drop(held);
        assert_eq!(written, Ok(Ok(())), "who finds no space waits for the host");
    });
    wait_until("the space of the last one", || {
        let _ = std::fs::remove_file(mount.at("of the last"));
        write("of the last", 15 << 20).is_ok()
    });
}

/// While a commit waits for the host, names that come and go make the log longer; nothing of that is needed then.
///
/// Proves S3.
fn a_log_that_is_longer_than_it_needs_is_shortened_for_who_finds_no_space(setup: Setup) {
    const SHORT: u64 = 8 << 20;
    let calls = HostCalls::new();
    let mount = limited(setup.host_calls(&calls));
    if mount.is_plain() {
        return;
    }
    let held = calls.add(Rule::of(Call::Fdatasync).on("/segments/").held());
    std::fs::write(mount.at("to sync"), vec![7; 100_000]).unwrap();
    wait_until("a commit to wait", || held.waiting() > 0);
    let log = || mount.info()["log_bytes"].as_u64().unwrap();
    while log() < SHORT + (6 << 20) {
        for _ in 0..1000 {
            std::fs::create_dir(mount.at("comes")).unwrap();
            std::fs::remove_dir(mount.at("comes")).unwrap();
        }
    }
    let file = File::create(mount.at("file")).unwrap();
    drop(held);
    // SAFETY: takes integers alone.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, (LIMIT - SHORT) as i64) };
    assert_eq!(done, 0, "{}: {}", std::io::Error::last_os_error(), mount.info());
    assert!(log() <= SHORT, "{}", mount.info());
}

/// That nothing can be asked about it was taken for somebody who has it mapped. Found by a review.
///
/// Proves S3.
fn a_removed_file_whose_segment_is_gone_counts_no_more(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    let mount = limited(setup);
    std::fs::write(mount.at("f"), Pattern(1).bytes(0, 40 << 20)).unwrap();
    mount.sync();
    let shards = std::fs::read_dir(mount.pool().join("segments")).unwrap();
    let mut segments = shards.flat_map(|shard| std::fs::read_dir(shard.unwrap().path()).unwrap());
    let segment = segments.find(|segment| segment.as_ref().unwrap().metadata().unwrap().len() == 40 << 20);
    std::fs::remove_file(segment.unwrap().unwrap().path()).unwrap();
    std::fs::remove_file(mount.at("f")).unwrap();
    // The server hears of the last close a little later than the program.
    wait_until("its space", || free(&mount) > LIMIT - (8 << 20));
}

/// Space behind the end of a file passed for space in its holes, which were filled all the same. Found by reading.
///
/// Proves S1, S5.
fn what_a_mapped_file_has_behind_its_end_counts_beside_its_holes(setup: Setup) {
    counts_behind_its_end(setup, false);
}

/// It was not asked for when the file was opened the next time. Found by reading.
///
/// Proves S1, S5.
fn what_a_file_has_behind_its_end_counts_when_it_is_opened_again(setup: Setup) {
    counts_behind_its_end(setup, true);
}

/// What was free was told to the next writer without them. Found as the test above was made.
///
/// Proves S1, S5.
fn the_holes_of_a_file_count_from_when_it_is_opened_again(setup: Setup) {
    const HOLES: usize = 40 << 20;
    let mount = limited(setup);
    if mount.is_plain() {
        return;
    }
    let path = mount.at("sparse");
    File::create(&path).unwrap().set_len(HOLES as u64).unwrap();
    mount.sync();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let written = std::fs::write(mount.at("other"), vec![7; 30 << 20]);
    assert_eq!(written.map_err(|error| error.raw_os_error()), Err(Some(libc::ENOSPC)));
    Mapped::to_write(&file, HOLES).fill();
    file.sync_all().unwrap();
    let on_host = allocated(mount.pool());
    assert!((HOLES as u64..=LIMIT + BOOKS).contains(&on_host), "{on_host} bytes on the host");
}

/// Piece by piece, each of which is far from the end of the file that has none; closed and opened again in between or
/// not.
///
/// Proves S1.
fn what_is_given_to_an_empty_file_behind_its_end_is_limited(setup: Setup) {
    const STEP: u64 = 1 << 20;
    if setup.mount_is_plain() {
        return;
    }
    let modes = [libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_ZERO_RANGE];
    let mount = limited(setup);
    for (n, mode) in modes.into_iter().enumerate() {
        for anew in [false, true] {
            let path = mount.at(format!("f{n}{anew}"));
            let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
            let (mode, mut file) = (nix::fcntl::FallocateFlags::from_bits_truncate(mode), open());
            let refused = (0..LIMIT / STEP * 4).find(|step| {
                if anew {
                    file = open();
                }
                nix::fcntl::fallocate(&file, mode, (step * STEP) as i64, STEP as i64) == Err(Errno::ENOSPC)
            });
            let given = refused.expect("it is refused at some time") * STEP;
            assert!((LIMIT / 2..=LIMIT).contains(&given), "{mode:?} {anew}: {given} bytes");
            assert!(allocated(mount.pool()) <= LIMIT + BOOKS);
            drop(file);
            std::fs::remove_file(&path).unwrap();
            mount.sync();
        }
    }
}

fn counts_behind_its_end(setup: Setup, closed: bool) {
    const HOLES: usize = 40 << 20;
    const STEP: i64 = 2 << 20;
    if setup.mount_is_plain() {
        return;
    }
    let keep = nix::fcntl::FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let mount = limited(setup);
    let open = |name| OpenOptions::new().read(true).write(true).create_new(true).open(mount.at(name)).unwrap();
    let mut file = open("f");
    file.set_len(HOLES as u64).unwrap();
    // The size does not grow, so there is no hole in front of it.
    nix::fcntl::fallocate(&file, keep, 1 << 30, 4096).unwrap();
    let refused =
        (0..64).find(|step| nix::fcntl::fallocate(&file, keep, HOLES as i64 + step * STEP, STEP) == Err(Errno::ENOSPC));
    let behind = refused.expect("it is refused at some time") * STEP;
    assert!((10 << 20..24 << 20).contains(&behind), "{behind} bytes behind its end");
    if closed {
        drop(file);
        mount.sync();
        file = OpenOptions::new().read(true).write(true).open(mount.at("f")).unwrap();
        let written = std::fs::write(mount.at("other"), vec![7; 20 << 20]);
        assert_eq!(written.map_err(|error| error.raw_os_error()), Err(Some(libc::ENOSPC)));
        std::fs::remove_file(mount.at("other")).unwrap();
    }
    let mapped = Mapped::to_write(&file, HOLES);
    mapped.fill();
    drop(mapped);
    file.sync_all().unwrap();
    let on_host = allocated(mount.pool());
    assert!((HOLES as u64..=LIMIT + BOOKS).contains(&on_host), "{on_host} bytes on the host");
    if closed {
        return;
    }
    // What is cut is free again.
    file.set_len(4096).unwrap();
    assert!(free(&mount) > LIMIT - (8 << 20), "{} bytes free", free(&mount));
    drop(file);
    // What was allocated to be written is for that, also if there is nothing else.
    let mut file = open("log");
    let most = (1..64).rev().map(|n| n << 20).find(|n| nix::fcntl::fallocate(&file, keep, 0, *n).is_ok()).unwrap();
    let mut rest = File::create(mount.at("rest")).unwrap();
    write_until_full(&mut rest);
    let piece = vec![7; 1 << 20];
    (0..most >> 20).for_each(|_| file.write_all(&piece).unwrap());
    assert!(allocated(mount.pool()) <= LIMIT + BOOKS);
}

/// While a file is moved there are two of it.
///
/// Proves S1, M10.
fn a_copy_in_another_tier_does_not_pass_the_limit(setup: Setup) {
    let mut mount = limited(setup);
    if mount.is_plain() {
        return;
    }
    mount.umount();
    let ssd = mount.host().join("ssd");
    mount.add_tier("ssd", &ssd);
    mount.mount();
    let (large, small) = (mount.at("large"), mount.at("small"));
    std::fs::write(&large, Pattern(1).bytes(0, 36 << 20)).unwrap();
    std::fs::write(&small, Pattern(2).bytes(0, 8 << 20)).unwrap();
    mount.sync();
    let to_ssd = |path: &Path| xattr::set(path, "user.tensorfs.tier", b"ssd", 0);
    assert_eq!(to_ssd(&large), Err(nix::errno::Errno::ENOSPC));
    assert!(std::fs::read(&large).unwrap() == Pattern(1).bytes(0, 36 << 20));
    assert_eq!(xattr::get(&large, "user.tensorfs.tier").unwrap(), b"pm");
    to_ssd(&small).unwrap();
    std::fs::remove_file(mount.at("small")).unwrap();
    std::fs::write(mount.at("rest"), Pattern(3).bytes(0, 16 << 20)).unwrap();
    mount.sync();
    mount.wait_for("removal of what was copied", |info| info["pending_removals"] == 0);
    assert!(of_segments(&ssd) < 1 << 20, "a copy is left");
}

/// What is deleted counts as free at once, and whoever fills that again before the host has it back has to wait.
///
/// Proves S1, S3.
fn what_is_removed_and_stands_on_the_host_yet_has_a_bound(setup: Setup) {
    let mount = limited_and_quiet(setup);
    if mount.is_plain() {
        return;
    }
    let bytes = Pattern(1).bytes(0, 10 << 20);
    let mut most = 0;
    for n in 0..20 {
        let path = mount.at("new");
        std::fs::write(&path, &bytes).unwrap();
        if n % 2 == 0 {
            std::fs::rename(&path, mount.at("f")).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        most = most.max(of_segments(mount.pool()));
    }
    assert!(most < LIMIT + LIMIT / 8, "{most} bytes stood on the host");
}

/// What is recorded of a file that was written just now, is not all that it holds: its `close` may reach the server
/// after its name has gone.
///
/// Proves S1, S3.
fn what_is_removed_before_it_is_closed_has_that_bound_too(setup: Setup) {
    let bytes = Pattern(1).bytes(0, 10 << 20);
    for way in ["closed later", "written later", "replaced", "held by its path"] {
        let mount = limited_and_quiet(setup.clone());
        if mount.is_plain() {
            return;
        }
        let (mut most, mut held) = (0, Vec::new());
        for n in 0..20 {
            let path = mount.at("new");
            let mut file = File::create(&path).unwrap();
            match way {
                "closed later" => {
                    file.write_all(&bytes).unwrap();
                    std::fs::remove_file(&path).unwrap();
                }
                "written later" => {
                    std::fs::remove_file(&path).unwrap();
                    file.write_all(&bytes).unwrap();
                }
                "replaced" => {
                    file.write_all(&bytes).unwrap();
                    std::fs::rename(&path, mount.at("f")).unwrap();
                    if n == 0 {
                        held.push(File::open(mount.at("f")).unwrap());
                    }
                }
                _ => {
                    file.write_all(&bytes).unwrap();
                    let mut options = OpenOptions::new();
                    held.push(options.read(true).custom_flags(libc::O_PATH).open(&path).unwrap());
                    drop(file);
                    std::fs::remove_file(&path).unwrap();
                }
            }
            most = most.max(of_segments(mount.pool()));
        }
        assert!(most < LIMIT + LIMIT / 8, "{way}: {most} bytes stood on the host");
    }
}

/// It was written when its name went, and is read by somebody: nothing more is recorded of it, and it counts.
///
/// Proves S1, S3.
fn what_is_removed_and_read_yet_does_not_pass_the_limit(setup: Setup) {
    let mount = limited_and_quiet(setup);
    if mount.is_plain() {
        return;
    }
    let bytes = Pattern(1).bytes(0, 10 << 20);
    let mut held = Vec::new();
    let refused = (0..20).find_map(|n| {
        let path = mount.at("new");
        let mut file = File::create(&path).unwrap();
        let by_path = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&path).unwrap();
        if n % 2 == 0 {
            held.push(File::open(&path).unwrap());
        }
        let written = file.write_all(&bytes);
        std::fs::remove_file(&path).unwrap();
        drop(file);
        if n % 2 == 1 {
            // Nobody had it open in between; where space is short it may be gone (X5).
            held.extend(File::open(format!("/proc/self/fd/{}", by_path.as_raw_fd())));
        }
        written.err()
    });
    assert_eq!(refused.and_then(|error| error.raw_os_error()), Some(libc::ENOSPC));
    assert!(allocated(mount.pool()) <= LIMIT + BOOKS);
    drop(held);
    mount.wait_for("space of what was read", |_| free(&mount) > LIMIT - (8 << 20));
    std::fs::write(mount.at("new"), &bytes).unwrap();
}

/// Each was mapped to be read, and closed, before the next one replaced it.
///
/// Proves S1, S3.
fn a_version_that_is_mapped_when_it_is_replaced_counts_until_it_is_not(setup: Setup) {
    const FILE: usize = 20 << 20;
    let mount = limited(setup);
    if mount.is_plain() || mount.passthrough() == Passthrough::Off {
        // There a mapping keeps the file open, and it is cut in place.
        return;
    }
    let path = mount.at("f");
    let mut versions = Vec::new();
    let mut replace = |n: u64| {
        let written = std::fs::write(&path, Pattern(n).bytes(0, FILE));
        mount.sync();
        let file = File::open(&path).unwrap();
        let len = file.metadata().unwrap().len() as usize;
        versions.push(Mapped::of(&file, len, nix::sys::mman::ProtFlags::PROT_READ));
        written.map_err(|error| error.raw_os_error().unwrap())
    };
    assert_eq!(replace(1), Ok(()));
    assert_eq!(replace(2), Ok(()));
    assert!(free(&mount) < LIMIT - (FILE as u64 * 2), "the version before counts as free: {}", free(&mount));
    assert_eq!(replace(3), Err(libc::ENOSPC));
    drop(versions);
    mount.wait_for("space of what was mapped", |_| free(&mount) > LIMIT - 2 * FILE as u64 - (8 << 20));
    std::fs::write(&path, Pattern(4).bytes(0, FILE)).unwrap();
}

fn limited_and_quiet(setup: Setup) -> Mount {
    setup.create(["--size", "64M"]).mount_with(["--commit", "3600"]).mount()
}

fn segments(pool: &Path) -> usize {
    std::fs::read_dir(pool.join("segments"))
        .unwrap()
        .flat_map(|shard| std::fs::read_dir(shard.unwrap().path()).unwrap())
        .count()
}

/// Stores attributes of ever smaller size until there is no room for another, and then names.
fn fill_the_log(mount: &Mount) {
    let path = mount.at("attributes");
    std::fs::create_dir(&path).unwrap();
    for len in [60_000, 4000, 200] {
        let value = vec![7u8; len];
        let set = |n| xattr::set(&path, format!("user.{len}-{n}"), &value, 0);
        assert_eq!((0..).map(set).find_map(Result::err), Some(Errno::ENOSPC));
    }
    let make = |n| nix::unistd::mkfifo(&mount.at(format!("{n}")), nix::sys::stat::Mode::S_IRUSR);
    assert_eq!((0..).map(make).find_map(Result::err), Some(Errno::ENOSPC));
}

/// Bytes may still fit where no record does: that of a file's last change may use what deletion may use.
fn what_was_written_in_a_full_log_is_there_after_unmounting(setup: Setup) {
    let mut mount = setup.create(["--size", "16M"]).mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    let open =
        |n| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(mount.at(format!("f{n}")));
    let files: Vec<File> = (0..20).map(|n| open(n).unwrap()).collect();
    for (n, file) in files.iter().enumerate() {
        file.write_all_at(&Pattern(n as u64).bytes(0, 4096), 0).unwrap();
    }
    mount.sync();
    fill_the_log(&mount);
    let mut written = Vec::new();
    for (n, file) in files.iter().enumerate() {
        written.push(1096 + 3000 + file.write_at(&Pattern(n as u64).bytes(4096, 4096), 4096).unwrap_or(0));
    }
    drop(files);
    mount.remount();
    for (n, len) in written.into_iter().enumerate() {
        let path = mount.at(format!("f{n}"));
        let told = std::fs::metadata(&path).unwrap().len();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((told, bytes.len(), Pattern(n as u64).mismatch(0, &bytes)), (len as u64, len, None), "f{n}");
    }
}

/// A replacement that the log has no room for leaves no segment behind.
fn a_replacement_that_cannot_begin_leaves_nothing(setup: Setup) {
    let mut mount = setup.create(["--size", "16M"]).mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    std::fs::write(mount.at("whole"), Pattern(9).bytes(0, 8192)).unwrap();
    mount.sync();
    fill_the_log(&mount);
    let replaced = OpenOptions::new().write(true).truncate(true).open(mount.at("whole")).map(drop);
    let len = std::fs::metadata(mount.at("whole")).unwrap().len();
    assert_eq!(len, if replaced.is_ok() { 0 } else { 8192 }, "{replaced:?}");
    mount.remount();
    assert_eq!(segments(mount.pool()), 1);
}

/// Many at a time, so that together they ask for more than a number holds.
fn asking_for_more_than_there_can_be_only_gets_no_space(setup: Setup) {
    let mount = limited_and_quiet(setup);
    if mount.is_plain() {
        return;
    }
    std::thread::scope(|scope| {
        for n in 0..8 {
            let path = mount.at(format!("f{n}"));
            scope.spawn(move || {
                let file = File::create(path).unwrap();
                for _ in 0..100 {
                    let refused = nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, i64::MAX - 5000);
                    assert_eq!(refused, Err(Errno::ENOSPC));
                }
            });
        }
    });
    assert_eq!(mount.info()["counters"]["panics"], 0);
    std::fs::write(mount.at("fits"), Pattern(1).bytes(0, 1 << 20)).unwrap();
}

/// A file made by mknod gets its segment when it is first opened, which must not need what there is no more.
fn a_file_that_was_never_opened_can_be_read_in_a_full_pool(setup: Setup) {
    let mount = setup.create(["--size", "16M"]).mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    let made: Vec<_> = (0..20).map(|n| mount.at(format!("made{n}"))).collect();
    for path in &made {
        nix::sys::stat::mknod(path, nix::sys::stat::SFlag::S_IFREG, nix::sys::stat::Mode::S_IRUSR, 0).unwrap();
    }
    fill_the_log(&mount);
    for path in &made {
        assert_eq!(std::fs::read(path).unwrap().len(), 0);
    }
}
