//! `tensorfs resize`: the limit of a pool grows and shrinks, mounted or not, and never below what is in use.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tensorfs_tests::{Mount, Passthrough, Setup, as_user, on_mounts, wait_until};

on_mounts!(
    a_full_pool_is_made_larger_while_it_is_in_use,
    a_pool_is_not_made_smaller_than_what_it_holds,
    a_pool_that_is_not_mounted_is_resized,
    a_log_that_gets_longer_is_no_reason_to_refuse,
    only_root_resizes_a_mounted_pool,
    a_limit_waits_for_who_writes_without_one,
);

const MIB: u64 = 1 << 20;

#[track_caller]
fn resize(mount: &Mount, target: &Path, size: &str) -> Result<(), String> {
    let output = mount.tensorfs(["resize".as_ref(), target.as_os_str(), size.as_ref()]);
    let message = String::from_utf8(output.stderr).unwrap();
    if output.status.success() {
        return Ok(());
    }
    assert_eq!(message.lines().count(), 1, "{message}");
    Err(message)
}

fn total(mount: &Mount) -> u64 {
    let stat = nix::sys::statvfs::statvfs(mount.path()).unwrap();
    stat.blocks() * stat.fragment_size()
}

fn a_full_pool_is_made_larger_while_it_is_in_use(setup: Setup) {
    let mut mount = setup.create(["--size", "32M"]).mount();
    let piece = vec![7; 40 << 20];
    let refused = fs::write(mount.at("f"), &piece).and_then(|()| fs::File::open(mount.at("f"))?.sync_all());
    // The kernel may take it all, and what comes next is refused.
    let refused = refused.and_then(|()| fs::write(mount.at("g"), b"more"));
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    resize(&mount, mount.path(), "200M").unwrap();
    assert_eq!(total(&mount), 200 * MIB);
    fs::write(mount.at("f"), &piece).unwrap();
    fs::write(mount.at("g"), b"more").unwrap();
    mount.kill9();
    mount.mount();
    assert_eq!((total(&mount), mount.info()["limit"].as_u64()), (200 * MIB, Some(200 * MIB)));
    resize(&mount, mount.pool(), "none").unwrap();
    assert_eq!(mount.info()["limit"], serde_json::Value::Null);
    assert!(total(&mount) > 200 * MIB);
}

fn a_pool_is_not_made_smaller_than_what_it_holds(setup: Setup) {
    let mount = setup.create(["--size", "200M"]).mount();
    fs::write(mount.at("f"), vec![7; 40 << 20]).unwrap();
    let why = resize(&mount, mount.path(), "32M").unwrap_err();
    assert!(why.contains("are in use") && why.contains(&(32 * MIB).to_string()), "{why}");
    assert!(resize(&mount, mount.path(), "1M").unwrap_err().contains("smallest"));
    assert_eq!(total(&mount), 200 * MIB);
    resize(&mount, mount.path(), "64M").unwrap();
    assert_eq!(total(&mount), 64 * MIB);
    // It has no space any more, though somebody knows it (S3).
    let known = fs::File::options().read(true).custom_flags(libc::O_PATH).open(mount.at("f")).unwrap();
    fs::remove_file(mount.at("f")).unwrap();
    mount.sync();
    // Somebody may be sealing it.
    wait_until("it has no space any more", || resize(&mount, mount.path(), "32M").is_ok());
    drop(known);
    let refused = fs::write(mount.at("f"), vec![7; 40 << 20]).and_then(|()| fs::File::open(mount.at("f"))?.sync_all());
    let refused = refused.and_then(|()| fs::write(mount.at("g"), b"more"));
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENOSPC), "the new limit holds");
}

fn a_pool_that_is_not_mounted_is_resized(setup: Setup) {
    let mut mount = setup.mount();
    fs::write(mount.at("f"), vec![7; 40 << 20]).unwrap();
    mount.umount();
    assert!(resize(&mount, mount.pool(), "32M").unwrap_err().contains("are in use"));
    resize(&mount, mount.pool(), "100M").unwrap();
    mount.tensorfs_ok(["check".as_ref(), mount.pool().as_os_str()]);
    mount.mount();
    assert_eq!(total(&mount), 100 * MIB);
    assert!(resize(&mount, &mount.host(), "100M").unwrap_err().contains("not a tensorfs pool"));
}

/// What it has ahead, or is about to have, is nothing that is in use; what a program has just written is.
///
/// Proves S1, W1.
fn a_log_that_gets_longer_is_no_reason_to_refuse(setup: Setup) {
    let mount = setup.mount();
    let at_any_moment = |size: &str| -> Vec<_> {
        let resized = (0..8).map(|moment| {
            resize(&mount, mount.path(), "none").unwrap();
            std::thread::sleep(std::time::Duration::from_millis(170 * moment));
            fs::create_dir(mount.at(format!("{size} {moment}"))).unwrap();
            resize(&mount, mount.path(), size)
        });
        resized.collect()
    };
    for resized in at_any_moment("20M") {
        resized.unwrap();
    }
    resize(&mount, mount.path(), "none").unwrap();
    let mut file = fs::File::create(mount.at("f")).unwrap();
    std::io::Write::write_all(&mut file, &vec![7; 18 << 20]).unwrap();
    for resized in at_any_moment("21M") {
        assert!(resized.is_err());
    }
}

fn only_root_resizes_a_mounted_pool(setup: Setup) {
    if !tensorfs_tests::is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = setup.create(["--size", "200M"]).mount();
    let mut command = as_user(65534, 65534);
    command.arg(mount.program().get_program());
    let output = command.args(["resize".as_ref(), mount.path().as_os_str(), "100M".as_ref()]).output().unwrap();
    assert!(!output.status.success());
    assert_eq!(total(&mount), 200 * MIB);
}

/// What the kernel has for good to write, it would write past the limit.
fn a_limit_waits_for_who_writes_without_one(setup: Setup) {
    let mount = setup.mount();
    let file = fs::File::create(mount.at("f")).unwrap();
    let first = resize(&mount, mount.path(), "64M");
    if mount.passthrough() == Passthrough::On {
        assert!(first.unwrap_err().contains("1 files"));
        assert_eq!(mount.info()["limit"], serde_json::Value::Null);
        drop(file);
        wait_until("the file to be closed", || resize(&mount, mount.path(), "64M").is_ok());
    } else {
        first.unwrap();
    }
    // From then on everybody asks, and it can be changed.
    let file = fs::File::create(mount.at("f")).unwrap();
    resize(&mount, mount.path(), "32M").unwrap();
    let written = (0..100).map(|_| std::io::Write::write_all(&mut &file, &vec![7; 1 << 20]));
    assert_eq!(written.filter_map(Result::err).next().unwrap().raw_os_error(), Some(libc::ENOSPC));
}
