//! Small files whose bytes the log alone holds durably (D12), when the kernel has failed to write them to their
//! segments and nobody has heard of it yet: what goes by the segments, and ends what the log has, is not to lose them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tensorfs_tests::{
    Mount, Pattern, Request, Setup, VolatileDisk, forget_cached_files, on_mounts, scratch, wait_until,
};

on_mounts!(
    what_the_host_failed_to_write_of_small_files_is_not_sealed,
    what_the_host_failed_to_write_of_small_files_is_not_moved,
    what_the_host_failed_to_write_of_small_files_is_set_aside_whole,
    what_the_host_failed_to_write_of_small_files_is_set_aside_whole_by_recovery,
);

const EXT4: [&str; 5] = ["mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0"];

/// In each block of every file, so that the disk can be told to fail on these.
const MARK: &str = "<bytes-of-a-file>";
const LEN: usize = 5000;

fn names() -> impl Iterator<Item = String> {
    std::iter::once("f0".to_owned())
}

fn bytes(name: &str) -> Vec<u8> {
    let mut bytes = Pattern(name.len() as u64 + u64::from(name.as_bytes()[1])).bytes(0, LEN);
    for block in bytes.chunks_mut(4096) {
        block[..MARK.len()].copy_from_slice(MARK.as_bytes());
    }
    bytes
}

/// The mount of a pool with a tier `other`, whose small files are durable in its log alone. The kernel has tried to
/// write them to the disk, which failed then and works again.
fn failed(setup: &Setup, other: &Path) -> Option<(VolatileDisk, Mount)> {
    for _ in 0..10 {
        let disk = VolatileDisk::new(&EXT4, 200).inspect_err(|reason| setup.skip(reason)).ok()?;
        let mount = in_log(setup, &disk, other);
        disk.fail_writes_of(MARK, None);
        let _ = nix::unistd::syncfs(File::open(disk.path()).unwrap());
        disk.mend();
        // Else the kernel has written them already.
        if disk.failed(Request::Write) > 0 {
            return Some((disk, mount));
        }
    }
    panic!("the kernel has nothing to write");
}

fn in_log(setup: &Setup, disk: &VolatileDisk, other: &Path) -> Mount {
    // Nothing is made durable in the background.
    let mut mount = setup.clone().pool_at(disk.at("pool")).mount_with(["-o", "commit=3600"]).mount();
    mount.umount();
    let _ = fs::remove_dir_all(other);
    mount.add_tier("other", other);
    mount.mount();
    for name in names() {
        // It cannot be mapped, and so is committed by value.
        let mut file = File::options().write(true).create_new(true).open(mount.at(&name)).unwrap();
        file.write_all(&bytes(&name)).unwrap();
        file.sync_all().unwrap();
    }
    mount
}

/// That each file is what was promised, by the next mount, and when it is read from the disk.
fn are_whole(mount: &mut Mount) {
    let whole = |mount: &Mount, when: &str| {
        for name in names() {
            assert!(fs::read(mount.at(&name)).unwrap() == bytes(&name), "{name}, {when}");
        }
    };
    // The host has in memory what it failed to write.
    mount.remount();
    whole(mount, "mounted again");
    mount.umount();
    forget_cached_files();
    mount.mount();
    whole(mount, "read from the disk");
    assert_eq!(mount.info()["damaged_files"], serde_json::json!([]));
    mount.umount();
    mount.tensorfs_ok(["check", "--data", mount.pool().to_str().unwrap()]);
}

/// A seal would be of what the kernel has in memory, and the end of what the log has.
///
/// Proves D12.
fn what_the_host_failed_to_write_of_small_files_is_not_sealed(setup: Setup) {
    let room = scratch();
    let Some((_disk, mut mount)) = failed(&setup, &room.path().join("other")) else { return };
    for name in names() {
        let sealed = mount.program().arg("seal").arg(mount.at(&name)).output().unwrap();
        assert!(!sealed.status.success(), "{name}: {}", String::from_utf8_lossy(&sealed.stdout));
    }
    are_whole(&mut mount);
}

/// Proves D12, M6.
fn what_the_host_failed_to_write_of_small_files_is_not_moved(setup: Setup) {
    let room = scratch();
    let Some((_disk, mut mount)) = failed(&setup, &room.path().join("other")) else { return };
    for name in names() {
        let moved = mount.program().args(["tier", "move"]).arg(mount.at(&name)).arg("other").output().unwrap();
        let said = String::from_utf8_lossy(&moved.stderr).into_owned();
        assert!(!moved.status.success() && said.contains("could not be synced"), "{name}: {said}");
    }
    are_whole(&mut mount);
}

/// The writers of new versions are killed. What they replace has another name then, by which it is read from the disk.
///
/// Proves D12, R4.
fn what_the_host_failed_to_write_of_small_files_is_set_aside_whole(setup: Setup) {
    let room = scratch();
    let Some((_disk, mut mount)) = failed(&setup, &room.path().join("other")) else { return };
    for name in names() {
        let mut writer = writer_of_half(&mount.at(&name));
        writer.kill().unwrap();
        writer.wait().unwrap();
    }
    wait_until("all versions are set aside", || mount.quarantine().len() == names().count());
    are_set_aside(&mut mount);
}

/// The server is killed first, and the next one sets aside what they replace.
///
/// Proves D12, R4.
fn what_the_host_failed_to_write_of_small_files_is_set_aside_whole_by_recovery(setup: Setup) {
    let room = scratch();
    let Some((_disk, mut mount)) = failed(&setup, &room.path().join("other")) else { return };
    let writers: Vec<_> = names().map(|name| writer_of_half(&mount.at(&name))).collect();
    mount.kill9();
    for mut writer in writers {
        writer.kill().unwrap();
        writer.wait().unwrap();
    }
    mount.mount();
    are_set_aside(&mut mount);
}

/// Empties a file, writes a part of its next version, and waits.
fn writer_of_half(path: &Path) -> Child {
    let script = "exec 3> \"$1\"; printf half >&3; echo; exec sleep 1000";
    let mut command = Command::new("bash");
    let mut writer = command.args(["-c", script, "bash"]).arg(path).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = [0];
    writer.stdout.take().unwrap().read_exact(&mut line).unwrap();
    writer
}

fn are_set_aside(mount: &mut Mount) {
    mount.umount();
    forget_cached_files();
    let entries = fs::read_dir(mount.pool().join("quarantine")).unwrap();
    let kept: Vec<_> = entries.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    for name in names() {
        let said = || kept.iter().map(|bytes| (bytes.len(), bytes.iter().filter(|byte| **byte == 0).count()));
        assert!(kept.contains(&bytes(&name)), "{name}: lengths and zeroes: {:?}", said().collect::<Vec<_>>());
    }
    mount.mount();
    assert_eq!(mount.info()["damaged_files"], serde_json::json!([]));
    assert!(names().all(|name| fs::read(mount.at(&name)).unwrap() == b"half"));
    mount.umount();
}
