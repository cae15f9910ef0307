//! Sealing: files get their checksums once nothing can write them, and lose them before anything can again.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use tensorfs_tests::{Mount, Pattern, Setup, child, on_mounts, skip, xattr};

on_mounts!(
    a_file_is_sealed_when_its_last_writer_has_gone,
    a_sealed_file_is_thawed_before_it_can_be_written,
    a_file_that_is_mapped_for_writing_is_not_sealed,
    files_that_are_written_again_and_again_end_up_sealed_and_right,
    what_an_earlier_server_left_unsealed_is_sealed_by_the_next,
    a_file_written_just_before_unmounting_is_sealed,
    sealing_is_no_access,
    a_hole_is_sealed_without_being_read,
    a_full_pool_does_without_seals,
    a_file_that_is_removed_while_it_is_sealed_holds_no_space,
    who_opens_a_file_while_it_is_sealed_is_not_given_to_the_kernel_for_it,
);

const SIZE: usize = 3 << 20;

/// Unmounts, and has everything checked.
#[track_caller]
fn checked(mount: &mut Mount) -> Value {
    mount.umount();
    let output = mount.tensorfs(["check", "--data", "--json", mount.pool().to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["findings"], serde_json::json!([]), "{report}");
    report
}

fn write(path: &Path, seed: u64) {
    fs::write(path, Pattern(seed).bytes(0, SIZE)).unwrap();
}

/// Proves C1.
fn a_file_is_sealed_when_its_last_writer_has_gone(setup: Setup) {
    let mut mount = setup.mount();
    write(&mount.at("f"), 1);
    let mut held = File::create(mount.at("held")).unwrap();
    held.write_all(b"still open").unwrap();
    mount.wait_for_seals(1);
    mount.sync();
    assert_eq!(mount.info()["counters"]["sealed"], 1, "a file that is open for writing was sealed");
    drop(held);
    mount.wait_for_seals(2);
    let report = checked(&mut mount);
    assert_eq!(report["unsealed_bytes"], 0, "{report}");
    assert_eq!(report["verified_bytes"], SIZE + 10, "{report}");
}

/// Proves C2.
fn a_sealed_file_is_thawed_before_it_can_be_written(setup: Setup) {
    let mut mount = setup.mount_with(["--commit", "3600"]).mount();
    write(&mount.at("f"), 1);
    mount.sync();
    mount.wait_for_seals(1);
    mount.sync();
    let file = OpenOptions::new().write(true).open(mount.at("f")).unwrap();
    // The power goes before the server has heard of anything: what is durable now must not call these bytes sealed.
    file.write_all_at(b"changed", 1000).unwrap();
    drop(file);
    mount.power_loss();
    mount.mount();
    assert_eq!(&fs::read(mount.at("f")).unwrap()[1000..1007], b"changed");
    checked(&mut mount);
    // And the same for every other way to change a file.
    for change in [0, 1, 2, 3] {
        mount.mount();
        mount.sync();
        mount.wait_for("seal", |info| info["unsealed_files"] == 0);
        mount.sync();
        let path = mount.at("f");
        let size = fs::metadata(&path).unwrap().len();
        match change {
            0 => OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap(),
            1 => nix::unistd::truncate(&path, size as i64 - 5000).unwrap(),
            2 => nix::unistd::truncate(&path, size as i64 + 5000).unwrap(),
            _ => {
                let mut child = child(["do"]);
                assert_eq!(child.ask(&format!("open f rw {}", path.display())), "ok");
                assert_eq!(child.ask(&format!("map f m {} w", SIZE / 2)), "ok");
                assert_eq!(child.ask("store m 5 1 100"), "ok");
            }
        }
        mount.power_loss();
        mount.mount();
        checked(&mut mount);
    }
}

/// Proves C3.
fn a_file_that_is_mapped_for_writing_is_not_sealed(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("f");
    write(&path, 1);
    let mut child = child(["do"]);
    assert_eq!(child.ask(&format!("open f rw {}", path.display())), "ok");
    assert_eq!(child.ask(&format!("map f m {SIZE} w")), "ok");
    assert_eq!(child.ask("close f"), "ok");
    // Another file closed later is sealed: the first one had its turn.
    write(&mount.at("g"), 2);
    mount.wait_for_seals(1);
    assert_eq!(mount.info()["counters"]["sealed"], 1, "sealed while it can be written");
    assert_eq!(child.ask("store m 0 7 100"), "ok");
    drop(child);
    mount.wait_for_seals(2);
    let report = checked(&mut mount);
    assert_eq!(report["unsealed_bytes"], 0, "{report}");
}

fn files_that_are_written_again_and_again_end_up_sealed_and_right(setup: Setup) {
    let mut mount = setup.mount();
    let mut expected = vec![Vec::new(); 4];
    for round in 0..150_u64 {
        for (n, expected) in expected.iter_mut().enumerate() {
            let path = mount.at(format!("f{n}"));
            let part = Pattern(round).bytes(0, 1000 + n * 100_000);
            match (round + n as u64) % 5 {
                0 => {
                    fs::write(&path, &part).unwrap();
                    *expected = part;
                }
                1 | 2 => {
                    let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
                    file.write_all(&part).unwrap();
                    expected.extend(part);
                }
                3 => {
                    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).unwrap();
                    file.write_all_at(&part[..1000], 0).unwrap();
                    expected.resize(expected.len().max(1000), 0);
                    expected[..1000].copy_from_slice(&part[..1000]);
                }
                _ => assert_eq!(fs::read(&path).unwrap(), *expected),
            }
        }
        if round % 50 == 20 {
            // Long enough for some to be sealed.
            mount.wait_for("seals", |info| info["unsealed_files"] == 0);
        }
    }
    let report = checked(&mut mount);
    assert_eq!(report["unsealed_bytes"], 0, "{report}");
    mount.mount();
    for (n, expected) in expected.iter().enumerate() {
        assert_eq!(fs::read(mount.at(format!("f{n}"))).unwrap(), *expected);
    }
}

/// Proves C1.
fn what_an_earlier_server_left_unsealed_is_sealed_by_the_next(setup: Setup) {
    let mut mount = setup.mount();
    for n in 0..20 {
        write(&mount.at(format!("f{n}")), n);
    }
    mount.kill9();
    mount.mount();
    mount.wait_for("seals", |info| info["unsealed_files"] == 0 && info["counters"]["sealed"].as_u64() > Some(0));
    let report = checked(&mut mount);
    assert_eq!(report["unsealed_bytes"], 0, "{report}");
}

/// Proves C1.
fn a_file_written_just_before_unmounting_is_sealed(setup: Setup) {
    let mut mount = setup.mount();
    write(&mount.at("f"), 1);
    let report = checked(&mut mount);
    assert_eq!((&report["unsealed_bytes"], &report["verified_bytes"]), (&0.into(), &SIZE.into()), "{report}");
}

/// Proves C5.
fn sealing_is_no_access(setup: Setup) {
    let mount = setup.mount();
    write(&mount.at("f"), 1);
    let before = fs::metadata(mount.at("f")).unwrap();
    mount.wait_for_seals(1);
    let after = fs::metadata(mount.at("f")).unwrap();
    let times = |m: &fs::Metadata| (m.atime(), m.atime_nsec(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
    assert_eq!(times(&before), times(&after));
}

/// A sparse file: it takes long enough to read, and no time to make.
fn long_file(mount: &Mount) {
    let file = File::create(mount.at("f")).unwrap();
    file.set_len(2 << 30).unwrap();
    file.write_all_at(b"some bytes", 0).unwrap();
    drop(file);
    mount.sync();
}

/// The segments of [`long_file`] that the server has open.
fn open_segments(mount: &Mount) -> Vec<String> {
    let fds = fs::read_dir(format!("/proc/{}/fd", mount.pid().unwrap())).unwrap();
    // Spare segments are empty.
    let full = fds.map(|fd| fd.unwrap().path()).filter(|fd| fs::metadata(fd).is_ok_and(|file| file.len() == 2 << 30));
    let paths = full.filter_map(|fd| fs::read_link(fd).ok());
    paths.map(|path| path.to_string_lossy().into_owned()).filter(|path| path.contains("/segments/")).collect()
}

/// Has it sealed, and waits until that is under way.
fn begin_to_seal(mount: &Mount) -> std::process::Child {
    let mut sealing = mount.program().arg("seal").arg(mount.at("f")).stderr(Stdio::null()).spawn().unwrap();
    while open_segments(mount).is_empty() && sealing.try_wait().unwrap().is_none() {}
    sealing
}

/// Whoever sealed it read on to its end, and its space was not there until then. Found with a quota.
///
/// Proves S3.
fn a_file_that_is_removed_while_it_is_sealed_holds_no_space(setup: Setup) {
    let mount = setup.mount();
    long_file(&mount);
    let mut sealing = begin_to_seal(&mount);
    fs::remove_file(mount.at("f")).unwrap();
    mount.sync();
    let left = open_segments(&mount);
    sealing.wait().unwrap();
    assert_eq!(left, Vec::<String>::new());
}

/// Sealing gave way, but the descriptor that it had read through was still open for a moment: it passed for a program
/// that has the file mapped, so that the kernel moved the bytes, past the server that was to make each write durable.
///
/// Proves D1, F2.
fn who_opens_a_file_while_it_is_sealed_is_not_given_to_the_kernel_for_it(setup: Setup) {
    let mount = setup.mount();
    let opened = || mount.info()["counters"]["opened_passthrough"].as_u64().unwrap();
    for round in 0..8 {
        long_file(&mount);
        let mut sealing = begin_to_seal(&mount);
        let before = opened();
        let synchronous =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_SYNC).open(mount.at("f")).unwrap();
        assert_eq!(opened(), before, "round {round}");
        drop(synchronous);
        fs::remove_file(mount.at("f")).unwrap();
        sealing.wait().unwrap();
    }
}

/// Proves C5.
fn a_full_pool_does_without_seals(setup: Setup) {
    let mut mount = setup.create(["--size", "32M"]).mount();
    let mut n = 0;
    while let Ok(mut file) = OpenOptions::new().write(true).create_new(true).mode(0o600).open(mount.at(format!("f{n}")))
    {
        n += 1;
        if file.write_all(&vec![7; 100_000]).is_err() {
            break;
        }
    }
    mount.sync();
    mount.wait_for("end of sealing", |info| info["unsealed_files"] == 0);
    for n in 0..n {
        fs::remove_file(mount.at(format!("f{n}"))).unwrap();
    }
    write(&mount.at("last"), 3);
    checked(&mut mount);
}

/// What nothing stores is neither read nor cut into many runs: a file of terabytes that is one hole is sealed, scrubbed
/// and verified at once, keeps none behind it from being sealed, and fills no memory with zeroes.
/// Proves C7.
fn a_hole_is_sealed_without_being_read(setup: Setup) {
    let mount = setup.mount();
    let huge = mount.at("huge");
    let file = File::create(&huge).unwrap();
    // As large as ext4 lets a file be, nearly.
    let size = 15 << 40;
    if file.set_len(size).is_err() {
        return skip("a_hole_is_sealed_without_being_read", "the host has no files of 15 TiB");
    }
    file.write_all_at(b"begin", 0).unwrap();
    file.write_all_at(b"end", size - 3).unwrap();
    drop(file);
    write(&mount.at("behind"), 7);
    mount.wait_for_seals(2);
    let records: u64 = String::from_utf8(xattr::get(&huge, "user.tensorfs.records").unwrap()).unwrap().parse().unwrap();
    assert!(records <= 4, "{records} records of a hole");
    let info = mount.info();
    assert_eq!(info["unsealed_files"], 0, "{info}");
    mount.tensorfs_ok(["verify".as_ref(), mount.path().as_os_str()]);
    mount.tensorfs_ok(["scrub".as_ref(), mount.path().as_os_str()]);
    // It is the checksum of those bytes: one that is changed shows.
    let checksum = xattr::get(&huge, "user.tensorfs.checksum").unwrap();
    let file = File::options().write(true).open(&huge).unwrap();
    file.write_all_at(b"E", size - 3).unwrap();
    drop(file);
    mount.wait_for_seals(3);
    assert_ne!(xattr::get(&huge, "user.tensorfs.checksum").unwrap(), checksum);
}
