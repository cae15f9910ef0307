//! What is left when a disk loses its cache with the power, or cannot read, write or flush: `harness/volatile.rs` makes
//! it do so.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tensorfs_tests::random::Random;
use tensorfs_tests::{
    Call, EVERYTHING, HostCalls, Mount, Passthrough, Pattern, Request, Rule, Setup, VolatileDisk, forget_cached_files,
    on_mounts, run_ok,
};

on_mounts!(
    what_was_acknowledged_survives_the_loss_of_the_cache_of_ext4,
    what_was_acknowledged_survives_the_loss_of_the_cache_of_xfs,
    what_was_acknowledged_survives_a_power_loss_while_another_server_takes_over,
    nothing_acknowledged_is_missing_when_the_disk_cannot_read,
    nothing_acknowledged_is_missing_when_the_disk_cannot_write,
    nothing_acknowledged_is_missing_when_the_disk_cannot_flush,
    nothing_acknowledged_is_missing_when_xfs_cannot_read,
    nothing_acknowledged_is_missing_when_xfs_cannot_write,
    nothing_acknowledged_is_missing_when_xfs_cannot_flush,
    what_ext4_drops_while_no_server_runs_is_noticed_by_recovery,
    what_a_server_has_heeded_of_ext4_hurts_nothing_after_it_was_killed,
    a_file_whose_times_the_host_does_not_take_can_be_read,
    bytes_that_the_disk_cannot_read_are_no_zeroes,
    a_file_whose_direct_writes_collide_with_a_mapping_is_not_damaged,
    a_file_that_is_written_directly_later_on_is_not_damaged_by_a_collision,
    a_file_that_was_opened_directly_before_a_takeover_is_not_damaged_by_a_collision,
    a_file_that_was_opened_directly_before_a_kill_is_not_damaged_by_a_collision,
    a_write_that_fails_among_collisions_is_told,
);

const EXT4: [&str; 5] = ["mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0"];
const XFS: [&str; 3] = ["mkfs.xfs", "-q", "-K"];

/// With many tables of what is free, none of which can be made up: they have to be read.
const EXT4_TO_READ: [&str; 9] = [
    "mkfs.ext4",
    "-q",
    "-F",
    "-E",
    "nodiscard,lazy_itable_init=0",
    "-O",
    "^metadata_csum,^uninit_bg,^flex_bg",
    "-g",
    "1024",
];
const READ_LATE: &str = "loop,no_prefetch_block_bitmaps";

/// In the bytes of every file, so that a disk can be told to lose these and nothing else.
const MARK: &str = "<bytes-of-a-file>";

/// How many images of a disk that lost power are looked at.
fn images() -> u64 {
    std::env::var("TENSORFS_DISK_IMAGES").map_or(2, |images| images.parse().expect("a number"))
}

fn disk(setup: &Setup, mkfs: &[&str], options: &str) -> Option<VolatileDisk> {
    VolatileDisk::mounted_with(mkfs, 400, options).inspect_err(|reason| setup.skip(reason)).ok()
}

/// Bytes that a disk knows by [`MARK`] in each block.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = Pattern(seed).bytes(0, len);
    for block in bytes.chunks_mut(4096) {
        let mark = MARK.len().min(block.len());
        block[..mark].copy_from_slice(&MARK.as_bytes()[..mark]);
    }
    bytes
}

/// What a program was promised of files, by name; nothing where a removal was acknowledged.
#[derive(Default)]
struct Promised {
    files: HashMap<String, (u64, usize)>,
}

impl Promised {
    /// Each file that is not there as it was promised, unless what it has instead is `allowed`. It has nothing, if it
    /// cannot be opened any more as the host has fewer bytes than were recorded (D12).
    fn missing(&self, mount: &Mount, allowed: impl Fn(&str, &[u8]) -> bool) -> Vec<String> {
        let wrong = |name: &String, seed: u64, len: usize| match std::fs::read(mount.at(name)) {
            Ok(found) if found == bytes(seed, len) || allowed(name, &found) => None,
            Ok(found) => {
                let differ = found.iter().zip(bytes(seed, len)).position(|(found, want)| *found != want);
                Some(format!("{name}: {} of {len} bytes, differing from {differ:?} on", found.len()))
            }
            Err(error) if error.raw_os_error() == Some(libc::EIO) && allowed(name, &[]) => None,
            Err(error) => Some(format!("{name}: {error}")),
        };
        let mut missing: Vec<_> =
            self.files.iter().filter_map(|(name, (seed, len))| wrong(name, *seed, *len)).collect();
        missing.sort();
        missing
    }
}

/// Writes a file as a program does that wants to be sure; true if it was told that the file is durable.
fn save(path: &Path, seed: u64, len: usize, durability: &str) -> bool {
    write(path, seed, len).is_ok_and(|file| is_durable(file, durability))
}

fn write(path: &Path, seed: u64, len: usize) -> std::io::Result<File> {
    // Small files that cannot be mapped go into the log first, the others do not.
    let mut file = File::options().read(seed.is_multiple_of(3)).write(true).create(true).truncate(true).open(path)?;
    file.write_all(&bytes(seed, len))?;
    Ok(file)
}

fn is_durable(file: File, durability: &str) -> bool {
    match durability {
        "fsync" => file.sync_all().is_ok(),
        "close" => nix::unistd::close(file).is_ok(),
        _ => true,
    }
}

/// All three, if it is to be looked at length; else one, which another test has in its other mode.
fn durabilities(short: &'static str) -> Vec<&'static str> {
    if images() > 2 { vec!["fsync", "close", "write"] } else { vec![short] }
}

fn survives(setup: Setup, mkfs: &[&str]) {
    for durability in durabilities("fsync") {
        let Some(disk) = disk(&setup, mkfs, "loop") else { return };
        let mount = setup.clone().pool_at(disk.at("pool")).mount_with(["--durability", durability]).mount();
        let mut random = Random::of(&[images(), durability.len() as u64]);
        let mut promised = Promised::default();
        for image in 0..images() {
            for n in 0..12 {
                let name = format!("f{}", random.below(40));
                let (seed, len) = (image * 100 + n, *random.pick(&[10, 5000, 30_000, 40_000, 300_000]));
                // Not promised, and not there in the end.
                std::fs::write(mount.at("beside"), bytes(seed, len)).unwrap();
                assert!(save(&mount.at(&name), seed, len, durability), "{name}");
                promised.files.insert(name, (seed, len));
                if random.once_in(4) {
                    let name = format!("f{}", random.below(40));
                    if std::fs::remove_file(mount.at(&name)).is_ok() {
                        promised.files.remove(&name);
                    }
                }
            }
            let left = disk.after_power_loss(Random::at(7, image));
            tensorfs_layout::testing::change_boot_id(&left.at("pool")).unwrap();
            let mut after = setup.clone().pool_at(left.at("pool")).mount();
            assert_eq!(promised.missing(&after, |_, _| false), [""; 0], "{durability}, image {image}");
            after.umount();
            let check = after.tensorfs(["check", "--data", after.pool().to_str().unwrap()]);
            assert!(check.status.success(), "{durability}: {}", String::from_utf8_lossy(&check.stdout));
        }
    }
}

/// Proves D1, D2, D3, D5.
fn what_was_acknowledged_survives_the_loss_of_the_cache_of_ext4(setup: Setup) {
    survives(setup, &EXT4);
}

/// Proves D1, D2, D3, D5.
fn what_was_acknowledged_survives_the_loss_of_the_cache_of_xfs(setup: Setup) {
    survives(setup, &XFS);
}

/// Programs save files, the server is killed, and power is lost at some moment from then on: before another one has
/// taken over, while it does, or when it serves and programs go on.
///
/// Proves D1, D2, D3, D5, K2.
fn what_was_acknowledged_survives_a_power_loss_while_another_server_takes_over(setup: Setup) {
    for durability in durabilities("fsync") {
        let Some(disk) = disk(&setup, &EXT4, "loop") else { return };
        let setup = setup.clone().pool_at(disk.at("pool")).mount_with(["--durability", durability]);
        let mut mount = setup.clone().mount_with(["-o", "keeper"]).mount();
        if mount.is_plain() {
            return;
        }
        let mut random = Random::of(&[images(), durability.len() as u64, 17]);
        let promised = Mutex::new(Promised::default());
        for image in 0..2 * images() {
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                for saver in 0..2 {
                    let (directory, stop, promised) = (mount.path().to_owned(), &stop, &promised);
                    scope.spawn(move || {
                        for n in 0.. {
                            let (name, seed) = (format!("f{image}-{saver}-{n}"), image * 1000 + n);
                            let len = [10, 5000, 30_000, 40_000, 300_000][n as usize % 5];
                            assert!(save(&directory.join(&name), seed, len, durability), "{name}");
                            promised.lock().unwrap().files.insert(name, (seed, len));
                            if stop.load(Ordering::Relaxed) || n == 100 {
                                break;
                            }
                        }
                    });
                }
                thread::sleep(Duration::from_millis(random.below(50)));
                let server = mount.pid().unwrap();
                // SAFETY: plain system call. The pid was asked of the server that runs.
                assert_eq!(unsafe { libc::kill(server, libc::SIGKILL) }, 0);
                thread::sleep(Duration::from_millis(random.below(60)));
                // What is acknowledged from now on may be missing.
                let promised = Promised { files: promised.lock().unwrap().files.clone() };
                let left = disk.after_power_loss(Random::at(11, image));
                stop.store(true, Ordering::Relaxed);
                tensorfs_layout::testing::change_boot_id(&left.at("pool")).unwrap();
                let mut after = setup.clone().pool_at(left.at("pool")).mount();
                assert_eq!(promised.missing(&after, |_, _| false), [""; 0], "{durability}, image {image}");
                after.umount();
                let check = after.tensorfs(["check", "--data", after.pool().to_str().unwrap()]);
                assert!(check.status.success(), "{durability}: {}", String::from_utf8_lossy(&check.stdout));
            });
            mount.adopt();
        }
        let promised = promised.into_inner().unwrap();
        eprintln!("{durability}: {} files", promised.files.len());
        assert_eq!(promised.missing(&mount, |_, _| false), [""; 0], "{durability}: goes on");
        mount.umount();
    }
}

/// Small and large files are saved on a disk on which something fails for a time. Then all that was acknowledged must
/// be there: for whoever goes on, the next mount, and after a power loss; or the file is said to be damaged. True if
/// something failed.
fn nothing_is_missing(setup: &Setup, mkfs: &[&str], options: &str, fail: impl Fn(&VolatileDisk)) -> bool {
    let (mut said, mut refused) = (0, 0);
    for durability in durabilities("fsync") {
        let Some(mut disk) = disk(setup, mkfs, options) else { return true };
        let setup = setup.clone().pool_at(disk.at("pool")).mount_with(["--durability", durability]);
        let mut mount = setup.clone().mount();
        let names: Vec<String> = (0..100).map(|n| format!("f{n}")).collect();
        // So that all directories of the host are there.
        for n in 0..300 {
            File::create(mount.at(format!("before{n}"))).unwrap();
        }
        let mut promised = Promised::default();
        // Where the host takes nothing any more at all, there is what was saved before.
        for n in 0..20 {
            let (name, len) = (format!("early{n}"), [700, 5000, 40_000, 200_000][n as usize % 4]);
            assert!(save(&mount.at(&name), n, len, durability), "{name}");
            promised.files.insert(name, (n, len));
        }
        mount.umount();
        disk.remount(options);
        forget_cached_files();
        mount.mount();
        for n in 0..20 {
            File::create(mount.at(format!("again{n}"))).unwrap();
        }
        let mut save_all = |from: u64, promised: &mut Promised| {
            let shape = |n: usize| (from + n as u64, [700, 5000, 30_000, 40_000, 200_000][n % 5]);
            // Written first, and then synced: what the first sync meets is not to keep the others from writing.
            let written: Vec<_> =
                names.iter().enumerate().map(|(n, name)| write(&mount.at(name), shape(n).0, shape(n).1)).collect();
            for ((n, name), file) in names.iter().enumerate().zip(written) {
                if file.is_ok_and(|file| is_durable(file, durability)) {
                    said += 1;
                    promised.files.insert(name.clone(), shape(n));
                } else {
                    refused += 1;
                    promised.files.remove(name);
                }
            }
        };
        fail(&disk);
        save_all(1000, &mut promised);
        // Commits go on, and make durable in segments what the log holds.
        std::thread::sleep(Duration::from_secs(3));
        disk.mend();
        let damaged = |mount: &Mount| {
            let info = mount.info();
            let paths = info["damaged_files"].as_array().cloned().unwrap_or_default();
            move |name: &str, _: &[u8]| paths.iter().any(|path| path == &serde_json::json!(format!("/{name}")))
        };
        let what = durability;
        // Power is lost now, or a little later.
        for seed in [0, 5] {
            let left = disk.after_power_loss(seed);
            tensorfs_layout::testing::change_boot_id(&left.at("pool")).unwrap();
            let after = setup.clone().pool_at(left.at("pool")).mount();
            assert_eq!(promised.missing(&after, damaged(&after)), [""; 0], "{what}: power lost, image {seed}");
        }
        // What the host has dropped is known when it is next asked, which on a busy machine may not have been yet.
        let _ = mount.tensorfs(["sync", mount.path().to_str().unwrap()]);
        // XFS may have shut itself down, and then nobody can read anything of it until it is mounted again.
        if std::fs::read_dir(disk.path()).is_ok() {
            assert_eq!(promised.missing(&mount, damaged(&mount)), [""; 0], "{what}: goes on");
        }
        mount.umount();
        disk.remount(options);
        forget_cached_files();
        mount.mount();
        assert_eq!(promised.missing(&mount, damaged(&mount)), [""; 0], "{what}: mounted again");
    }
    eprintln!("{said} said to be durable, {refused} refused");
    refused > 0
}

/// Proves D12.
fn nothing_acknowledged_is_missing_when_the_disk_cannot_read(setup: Setup) {
    // The host may happen to have in memory what it would read.
    let failed =
        || nothing_is_missing(&setup, &EXT4_TO_READ, READ_LATE, |disk| disk.fail(Request::Read, EVERYTHING, None));
    if !(0..5).any(|_| failed()) {
        setup.skip("the host reads nothing of this disk");
    }
}

/// Proves D12.
fn nothing_acknowledged_is_missing_when_the_disk_cannot_write(setup: Setup) {
    assert!(nothing_is_missing(&setup, &EXT4, "loop", |disk| disk.fail_writes_of(MARK, None)));
}

/// Proves D12.
fn nothing_acknowledged_is_missing_when_the_disk_cannot_flush(setup: Setup) {
    assert!(nothing_is_missing(&setup, &EXT4, "loop", |disk| disk.fail(Request::Flush, EVERYTHING, Some(3))));
}

/// Proves D12.
fn nothing_acknowledged_is_missing_when_xfs_cannot_read(setup: Setup) {
    let failed = || nothing_is_missing(&setup, &XFS, "loop", |disk| disk.fail(Request::Read, EVERYTHING, None));
    if !(0..5).any(|_| failed()) {
        setup.skip("the host reads nothing of this disk");
    }
}

/// Proves D12.
fn nothing_acknowledged_is_missing_when_xfs_cannot_write(setup: Setup) {
    assert!(nothing_is_missing(&setup, &XFS, "loop", |disk| disk.fail_writes_of(MARK, None)));
}

/// Proves D12.
fn nothing_acknowledged_is_missing_when_xfs_cannot_flush(setup: Setup) {
    assert!(nothing_is_missing(&setup, &XFS, "loop", |disk| disk.fail(Request::Flush, EVERYTHING, Some(3))));
}

/// A pool on a disk that has to be read for its free blocks, with files that nobody has synced, and a server that was
/// killed.
fn killed_on_a_disk_to_read(setup: &Setup, disk: &mut VolatileDisk) -> (Mount, Promised) {
    let mut mount = setup.clone().pool_at(disk.at("pool")).mount_with(["-o", "commit=60"]).mount();
    for n in 0..300 {
        File::create(mount.at(format!("before{n}"))).unwrap();
    }
    mount.umount();
    disk.remount(READ_LATE);
    forget_cached_files();
    mount.mount();
    for n in 0..20 {
        File::create(mount.at(format!("again{n}"))).unwrap();
    }
    let mut accepted = Promised::default();
    for n in 0..60 {
        let (name, shape) = (format!("f{n}"), (n, [5000, 40_000, 400_000, 1_200_000][n as usize % 4]));
        write(&mount.at(&name), shape.0, shape.1).unwrap();
        accepted.files.insert(name, shape);
    }
    mount.kill9();
    (mount, accepted)
}

/// Has the host write out what it has in memory, while it cannot read which blocks of the disk are free. False if it
/// looks for room without an end, as ext4 does where it takes all tables for bad that it would need; then it is shut
/// down.
fn write_out_without_finding_room(disk: &VolatileDisk) -> bool {
    /// Of the journal. Each search that begins anew makes one; writing all there is takes a few.
    const MANY: u64 = 2000;
    nix::ioctl_read!(shut_down, b'X', 125, u32);
    let path = disk.path();
    let device = run_ok(Command::new("findmnt").args(["-n", "-o", "SOURCE", "--mountpoint"]).arg(&path));
    let device = device.trim();
    let groups = run_ok(Command::new("dumpe2fs").arg(device).stderr(Stdio::null()));
    // What that has read is in memory.
    forget_cached_files();
    let number = |text: &str| text.split([' ', ',']).next().and_then(|number| number.parse::<u64>().ok());
    let size = groups.lines().find_map(|line| number(line.strip_prefix("Block size:")?.trim())).unwrap();
    for block in groups.lines().filter_map(|line| number(line.trim().strip_prefix("Block bitmap at ")?)) {
        disk.fail(Request::Read, block * size..(block + 1) * size, None);
    }
    let journal = Path::new("/proc/fs/jbd2").join(format!("{}-8", device.trim_start_matches("/dev/"))).join("info");
    let transactions = || number(&std::fs::read_to_string(&journal).unwrap()).unwrap();
    let (before, host) = (transactions(), File::open(path).unwrap());
    let done = AtomicBool::new(false);
    let ends = thread::scope(|scope| {
        scope.spawn(|| {
            let _ = nix::unistd::syncfs(&host);
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) && transactions() < before + MANY {
            thread::sleep(Duration::from_millis(2));
        }
        let ends = done.load(Ordering::Relaxed);
        if !ends {
            let mut without_writing = 2;
            // SAFETY: it reads a number, which lives through the call.
            unsafe { shut_down(host.as_raw_fd(), &raw mut without_writing) }.unwrap();
        }
        ends
    });
    disk.mend();
    forget_cached_files();
    ends
}

/// A pool whose server was killed, and files that the host was to write since, and found no room for.
fn dropped_while_no_server_ran(setup: &Setup) -> Option<(VolatileDisk, Mount, Promised)> {
    for _ in 0..10 {
        let mut disk = disk(setup, &EXT4_TO_READ, READ_LATE)?;
        let (mount, accepted) = killed_on_a_disk_to_read(setup, &mut disk);
        if write_out_without_finding_room(&disk) {
            return Some((disk, mount, accepted));
        }
    }
    setup.skip("the host looks for room without an end");
    None
}

fn damaged_files(mount: &Mount) -> Vec<String> {
    let paths = mount.info()["damaged_files"].as_array().cloned().unwrap_or_default();
    paths.iter().filter_map(|path| path.as_str()?.strip_prefix('/').map(str::to_owned)).collect()
}

/// What a killed server had accepted is still to be written by the host, which finds no place for it on the disk, and
/// says so to nobody.
///
/// Proves D9, D12.
fn what_ext4_drops_while_no_server_runs_is_noticed_by_recovery(setup: Setup) {
    for _ in 0..5 {
        let Some((_disk, mut mount, accepted)) = dropped_while_no_server_ran(&setup) else { return };
        mount.mount();
        let damaged = damaged_files(&mount);
        let is_damaged = |name: &str, _: &[u8]| damaged.iter().any(|path| path == name);
        assert_eq!(accepted.missing(&mount, is_damaged), [""; 0], "{damaged:?}");
        let lost = accepted.missing(&mount, |_, _| false).len();
        mount.umount();
        if lost > 0 {
            return;
        }
    }
    // The host may happen to have in memory what it would read.
    setup.skip("the host reads nothing of this disk");
}

/// Proves D12.
fn what_a_server_has_heeded_of_ext4_hurts_nothing_after_it_was_killed(setup: Setup) {
    let Some((mut disk, mut mount, _)) = dropped_while_no_server_ran(&setup) else { return };
    mount.mount();
    let before = damaged_files(&mount);
    mount.umount();
    // There is room again.
    disk.remount(READ_LATE);
    mount.mount();
    let file = File::create(mount.at("holes")).unwrap();
    file.write_all_at(&bytes(1, 5000), 1 << 20).unwrap();
    mount.kill9();
    drop(file);
    mount.mount();
    assert_eq!(damaged_files(&mount), before);
    let found = std::fs::read(mount.at("holes")).unwrap();
    assert!(found[..1 << 20].iter().all(|byte| *byte == 0) && found[1 << 20..] == bytes(1, 5000));
    mount.umount();
}

/// One block in the middle of a file cannot be read: who asks for it hears so, has the other bytes, and has that block,
/// too, when it can be read again. An answer with the bytes in front of it was the end of the file for the kernel.
///
/// Proves D12.
fn bytes_that_the_disk_cannot_read_are_no_zeroes(setup: Setup) {
    const LEN: u64 = 2 << 20;
    const BAD: std::ops::Range<u64> = 300 << 10..304 << 10;
    // The host has a large piece of a file in its cache as one, or not at all.
    const NEAR: u64 = 256 << 10;
    let Some(mut disk) = disk(&setup, &EXT4, "loop") else { return };
    let mut mount = setup.pool_at(disk.at("pool")).mount();
    std::fs::write(mount.at("f"), Pattern(1).bytes(0, LEN as usize)).unwrap();
    mount.umount();
    disk.remount("loop");
    forget_cached_files();
    let shards = std::fs::read_dir(mount.pool().join("segments")).unwrap();
    let mut files = shards.flat_map(|shard| std::fs::read_dir(shard.unwrap().path()).unwrap());
    let segment = files.find_map(|file| {
        let file = file.unwrap();
        (file.metadata().unwrap().len() == LEN).then(|| file.path())
    });
    mount.mount();
    // In pieces of many lengths: the kernel asks ahead for more, from where the last one ended.
    let read_all = |piece: usize| {
        let file = File::open(mount.at("f")).unwrap();
        let (mut refused, mut buffer) = (0, vec![0; piece]);
        for at in (0..LEN).step_by(piece) {
            match file.read_at(&mut buffer, at) {
                Ok(0) => panic!("the file ends at {at}"),
                Ok(read) => {
                    assert!(buffer[..read] == Pattern(1).bytes(at, read), "other bytes at {at}, {piece} at a time")
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
                    let near = at < BAD.end + NEAR && BAD.start < at + piece as u64 + NEAR;
                    assert!(near, "no bytes at {at}, {piece} at a time");
                    refused += 1;
                }
            }
        }
        refused
    };
    disk.fail_in(Request::Read, &segment.expect("the file's segment"), &BAD);
    for piece in [1 << 20, 128 << 10, 64 << 10, 4096] {
        forget_cached_files();
        // A read that begins before the block may end there.
        assert!(read_all(piece) > 0 || piece > 4096, "{piece} at a time");
    }
    assert!(disk.failed(Request::Read) > 0);
    disk.mend();
    assert_eq!(read_all(64 << 10), 0);
    assert!(std::fs::read(mount.at("f")).unwrap() == Pattern(1).bytes(0, LEN as usize));
    mount.umount();
}

/// As on a host that has become read-only: what is there can be read.
///
/// Proves D12.
fn a_file_whose_times_the_host_does_not_take_can_be_read(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount();
    std::fs::write(mount.at("f"), vec![7; 50_000]).unwrap();
    mount.remount();
    // The segment's are others than those that are recorded.
    let shards = std::fs::read_dir(mount.pool().join("segments")).unwrap();
    let files = shards.flat_map(|shard| std::fs::read_dir(shard.unwrap().path()).unwrap());
    for file in files {
        let segment = File::options().write(true).open(file.unwrap().path()).unwrap();
        segment.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
    }
    let refused = calls.add(Rule::of(Call::Times).on("/segments/").error(libc::EROFS));
    assert!(std::fs::read(mount.at("f")).unwrap() == vec![7; 50_000]);
    assert!(refused.hits() > 0);
    drop(refused);
    assert!(std::fs::read(mount.at("f")).unwrap() == vec![7; 50_000]);
    mount.umount();
}

/// As xfstests' generic/095 and 366 do: the kernel has the next sync say `EIO`, and nothing is lost.
///
/// Proves D12.
fn a_file_whose_direct_writes_collide_with_a_mapping_is_not_damaged(setup: Setup) {
    let open = |_: &mut Mount, path: &Path| {
        let open = || File::options().read(true).write(true).clone();
        (open().open(path).unwrap(), open().custom_flags(libc::O_DIRECT).open(path).unwrap())
    };
    collides(setup, open);
}

/// Nothing is heard of it then.
///
/// Proves D12.
fn a_file_that_is_written_directly_later_on_is_not_damaged_by_a_collision(setup: Setup) {
    let open = |_: &mut Mount, path: &Path| {
        let open = || File::options().read(true).write(true).open(path).unwrap();
        let direct = open();
        // SAFETY: takes integers alone.
        assert_eq!(unsafe { libc::fcntl(direct.as_raw_fd(), libc::F_SETFL, libc::O_DIRECT) }, 0);
        (open(), direct)
    };
    collides(setup, open);
}

/// The server that had opened it for direct writes was killed, and another one took over.
///
/// Proves D12, K2.
fn a_file_that_was_opened_directly_before_a_takeover_is_not_damaged_by_a_collision(setup: Setup) {
    let open = |mount: &mut Mount, path: &Path| {
        let open = || File::options().read(true).write(true).clone();
        let (file, direct) = (open().open(path).unwrap(), open().custom_flags(libc::O_DIRECT).open(path).unwrap());
        mount.kill_server();
        (file, direct)
    };
    collides(setup.mount_with(["-o", "keeper"]), open);
}

/// The server that had opened it for direct writes was killed.
///
/// Proves D9, D12.
fn a_file_that_was_opened_directly_before_a_kill_is_not_damaged_by_a_collision(setup: Setup) {
    if setup.passthrough() == Passthrough::Off {
        return;
    }
    let open = |mount: &mut Mount, path: &Path| {
        let open = || File::options().read(true).write(true).open(path).unwrap();
        let direct = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
        mount.kill9();
        mount.mount();
        (open(), direct)
    };
    collides(setup, open);
}

/// Writes bytes at an offset.
type Writes = fn(&File, &[u8], u64) -> std::io::Result<()>;

/// What `open` opens, one to be mapped, the other to be written, each way, on ext4 and on XFS.
fn collides(setup: Setup, open: fn(&mut Mount, &Path) -> (File, File)) {
    let at_once: Writes = |file, bytes, offset| tensorfs_tests::aio::write_at_once(file, &[(offset, bytes)]);
    for write in [FileExt::write_all_at as Writes, at_once] {
        for mkfs in [&EXT4[..], &XFS[..]] {
            collides_as_written(setup.clone(), mkfs, open, write);
        }
    }
}

/// Of another block of the same file, which the disk does not take.
///
/// Proves D12.
fn a_write_that_fails_among_collisions_is_told(setup: Setup) {
    if setup.passthrough() == Passthrough::Off {
        return;
    }
    const BAD: std::ops::Range<u64> = (BLOCKS << 12) as u64..((BLOCKS + 1) << 12) as u64;
    for mkfs in [&EXT4[..], &XFS[..]] {
        let Some(disk) = disk(&setup, mkfs, "loop") else { return };
        let mount = setup.clone().pool_at(disk.at("pool")).mount();
        let path = mount.at("f");
        std::fs::write(&path, vec![1; (BLOCKS + 1) << 12]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        let direct = File::options().write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        disk.fail_in(Request::Write, &segment_of(&mount), &BAD);
        colliding(&file, &direct, FileExt::write_all_at, || {
            let fails = |n: u8| {
                file.write_all_at(&[n; 4096], BAD.start).unwrap();
                file.sync_all().is_err()
            };
            assert!(fails(2), "{}", disk.failed(Request::Write));
            // It is not tried again what the kernel has dropped.
            assert!(fails(3));
        });
        disk.mend();
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(damaged_files(&mount), ["f"]);
    }
}

/// The largest segment of a pool.
fn segment_of(mount: &Mount) -> std::path::PathBuf {
    let shards = std::fs::read_dir(mount.pool().join("segments")).unwrap();
    let segments = shards.flat_map(|shard| std::fs::read_dir(shard.unwrap().path()).unwrap());
    let largest = segments.map(|segment| segment.unwrap().path()).max_by_key(|path| path.metadata().unwrap().len());
    largest.expect("a segment")
}

const BLOCKS: usize = 8;

/// Does something while one program stores to a mapping of a file and another one writes it directly.
fn colliding(file: &File, direct: &File, write: Writes, then: impl FnOnce()) {
    // SAFETY: nobody cuts the file.
    let mut mapping = unsafe { memmap2::MmapMut::map_mut(file) }.unwrap();
    let done = AtomicBool::new(false);
    /// Also where `then` fails.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        scope.spawn(|| {
            for n in (0..).take_while(|_| !done.load(Ordering::Relaxed)) {
                // One byte of each block is the mapping's.
                mapping[n % BLOCKS * 4096] = n as u8;
            }
        });
        scope.spawn(|| {
            let mut room = vec![0; 8192];
            let start = room.as_ptr().align_offset(4096);
            for n in (0..).take_while(|_| !done.load(Ordering::Relaxed)) {
                // Most syncs are to collide, and not one after the other a hundred times.
                std::thread::sleep(Duration::from_micros(200));
                room[start..start + 4096].fill(n as u8);
                write(direct, &room[start..start + 4096], (n % BLOCKS * 4096) as u64).unwrap();
            }
        });
        then();
    });
}

fn collides_as_written(setup: Setup, mkfs: &[&str], open: fn(&mut Mount, &Path) -> (File, File), write: Writes) {
    let Some(disk) = disk(&setup, mkfs, "loop") else { return };
    let mut mount = setup.clone().pool_at(disk.at("pool")).mount();
    let path = mount.at("f");
    std::fs::write(&path, vec![1; BLOCKS << 12]).unwrap();
    let (file, direct) = open(&mut mount, &path);
    colliding(&file, &direct, write, || {
        for _ in 0..60 {
            file.sync_all().unwrap();
        }
    });
    file.sync_all().unwrap();
    drop((direct, file));
    mount.sync();
    let want = std::fs::read(&path).unwrap();
    assert_eq!(mount.info()["damaged_files"], serde_json::json!([]));
    let left = disk.after_power_loss(0);
    tensorfs_layout::testing::change_boot_id(&left.at("pool")).unwrap();
    let after = setup.pool_at(left.at("pool")).mount();
    assert!(std::fs::read(after.at("f")).unwrap() == want, "what was synced is not what was read");
    drop(after);
    mount.remount();
    assert_eq!(mount.info()["damaged_files"], serde_json::json!([]));
    assert!(std::fs::read(&path).unwrap() == want);
}
