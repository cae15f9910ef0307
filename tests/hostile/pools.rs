//! Pools that belong to somebody else, that lead elsewhere, and that are moved.

use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tensorfs_tests::{Setup, as_user, is_root, on_mounts, run_ok};

on_mounts!(
    a_pool_that_is_moved_while_mounted_goes_on,
    a_users_pool_stays_theirs_while_root_has_it_mounted,
    no_link_in_a_pool_leads_out_of_it,
    what_info_tells_everybody_names_no_files,
);

/// An operator's `mv` of the pool's directory does not end the mount.
fn a_pool_that_is_moved_while_mounted_goes_on(setup: Setup) {
    let mount = setup.mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    std::fs::write(mount.at("before"), "x").unwrap();
    let moved = mount.pool().with_extension("moved");
    std::fs::rename(mount.pool(), &moved).unwrap();
    // Enough files for a new directory of segments.
    let made = (0..600).try_for_each(|n| std::fs::write(mount.at(format!("f{n}")), "y"));
    let synced = OpenOptions::new().write(true).open(mount.at("before")).and_then(|file| file.sync_all());
    std::fs::rename(&moved, mount.pool()).unwrap();
    made.unwrap();
    synced.unwrap();
    let info = mount.info();
    assert_eq!(info["read_only"], serde_json::Value::Null, "{info}");
}

/// Root mounts from /etc/fstab what a user made, and the user must be able to use it again.
///
/// Proves A6.
fn a_users_pool_stays_theirs_while_root_has_it_mounted(setup: Setup) {
    if !is_root() || setup.mount_is_plain() {
        return setup.skip("only root has files of others");
    }
    let mut mount = setup.mount();
    mount.umount();
    let below = |pool: &Path| {
        let mut found = vec![pool.to_owned()];
        let mut next = 0;
        while let Some(path) = found.get(next).cloned() {
            next += 1;
            if path.is_dir() {
                found.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
        found
    };
    for path in below(mount.pool()) {
        std::os::unix::fs::chown(path, Some(12_345), Some(23_456)).unwrap();
    }
    mount.mount();
    std::fs::write(mount.at("f"), "before").unwrap();
    let mut writer = tensorfs_tests::child(["do"]);
    assert_eq!(writer.ask(&format!("open f wt {}", mount.at("f").display())), "ok");
    assert_eq!(writer.ask("write f 0 1 100"), "ok");
    writer.kill(libc::SIGKILL);
    mount.umount();
    let files = below(mount.pool());
    assert!(files.iter().any(|path| path.extension().is_some_and(|extension| extension == "json")), "{files:?}");
    for path in files {
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), (12_345, 23_456), "{}", path.display());
    }
}

/// Whoever owns a pool that root mounts could make root write, and remove, files elsewhere.
///
/// Proves A6.
fn no_link_in_a_pool_leads_out_of_it(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    std::fs::write(mount.at("before"), "x").unwrap();
    mount.umount();
    let (shard, outside) = (mount.pool().join("segments/00"), mount.host().join("outside"));
    std::fs::rename(&shard, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, &shard).unwrap();
    mount.mount();
    let before = std::fs::read_dir(&outside).unwrap().count();
    let made = std::fs::write(mount.at("new"), "y");
    let read = std::fs::read(mount.at("before"));
    std::fs::remove_file(mount.at("before")).unwrap();
    mount.sync();
    mount.umount();
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), before);
    assert_eq!(made.unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO));
}

/// A path may lead through directories that not everybody may look into.
fn what_info_tells_everybody_names_no_files(setup: Setup) {
    if !is_root() || setup.mount_is_plain() {
        return setup.skip("only root can become somebody else");
    }
    let mount = setup.mount();
    std::fs::create_dir(mount.at("private")).unwrap();
    std::fs::set_permissions(mount.at("private"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let path = mount.at("private/hidden-name");
    std::fs::write(&path, "before").unwrap();
    let mut writer = tensorfs_tests::child(["do"]);
    assert_eq!(writer.ask(&format!("open f wt {}", path.display())), "ok");
    assert_eq!(writer.ask("write f 0 1 100"), "ok");
    writer.kill(libc::SIGKILL);
    mount.sync();
    let read = |user| run_ok(as_user(user, user).args(["cat", ".tensorfs/info"]).current_dir(mount.path()));
    assert!(read(0).contains("hidden-name"));
    let told = read(12_345);
    assert!(told.contains("interrupted-replace") && !told.contains("hidden-name"), "{told}");
}
