//! Who may not read a file may not read its tensors.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tensorfs_tests::{Mount, Setup, as_user, is_root, on_mounts, run, safetensors, shell};

use super::bytes;

on_mounts!(who_may_not_read_a_file_may_not_read_its_tensors, a_change_of_permission_counts_at_once);
on_mounts!(access_lists_count);

/// `yes` if a shell command of another user succeeds.
fn may(mount: &Mount, uid: u32, script: &str) -> bool {
    run(as_user(uid, uid).args(["bash", "-c", script]).current_dir(mount.path())).status.success()
}

/// A mount that everybody may look into, or nothing where the test cannot be.
fn for_everybody(setup: Setup) -> Option<Mount> {
    if !is_root() {
        setup.skip("needs root, to become somebody else");
        return None;
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return None;
    }
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o755)).unwrap();
    Some(mount)
}

/// What the owner, group and others may do with the file they may do with its tensors, and no more.
///
/// Proves T3.
fn who_may_not_read_a_file_may_not_read_its_tensors(setup: Setup) {
    let Some(mount) = for_everybody(setup) else { return };
    let model = safetensors(&[("x", b"secret"), ("deep/y", b"secret")]);
    // Modes of a directory and of a file in it: uid 1000 owns both, 2000 is in their group, 3000 is nobody.
    for (n, (directory, file)) in [
        (0o755, 0o644),
        (0o755, 0o640),
        (0o755, 0o600),
        (0o755, 0o604),
        (0o755, 0o000),
        (0o755, 0o711),
        (0o750, 0o644),
        (0o700, 0o666),
        (0o711, 0o644),
        (0o744, 0o644),
    ]
    .into_iter()
    .enumerate()
    {
        let (dir, path) = (mount.at(format!("d{n}")), mount.at(format!("d{n}/model")));
        fs::create_dir(&dir).unwrap();
        fs::write(&path, &model).unwrap();
        for (path, mode) in [(&path, file), (&dir, directory)] {
            std::os::unix::fs::chown(path, Some(1000), Some(2000)).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let place = format!(".tensorfs/tensors/d{n}");
        for uid in [1000, 2000, 3000] {
            let reads = may(&mount, uid, &format!("cat d{n}/model"));
            let lists = may(&mount, uid, &format!("ls d{n}"));
            let what = format!("{directory:o} {file:o} {uid}");
            assert_eq!(may(&mount, uid, &format!("cat {place}/model/x.npy")), reads, "{what}");
            assert_eq!(may(&mount, uid, &format!("cat {place}/model/deep/y.npy")), reads, "{what}");
            assert_eq!(may(&mount, uid, &format!("ls {place}/model")), reads, "{what}");
            assert_eq!(may(&mount, uid, &format!("ls {place}/model/deep")), reads, "{what}");
            assert_eq!(may(&mount, uid, &format!("ls {place}")), lists, "{what}");
            assert_eq!(may(&mount, uid, &format!("getfattr -n user.tensorfs.tensors d{n}/model")), reads, "{what}");
            assert!(!may(&mount, uid, &format!("test -w {place}/model/x.npy")), "{what}");
        }
        // Root reads everything, as ever.
        assert_eq!(bytes(&mount.at(format!("{place}/model/x.npy"))), b"secret");
    }
    // The root of the mount counts, too.
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o711)).unwrap();
    assert!(may(&mount, 3000, "cat d0/model .tensorfs/tensors/d0/model/x.npy"));
    assert!(!may(&mount, 3000, "ls .tensorfs/tensors"));
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Proves T3.
fn a_change_of_permission_counts_at_once(setup: Setup) {
    let Some(mount) = for_everybody(setup) else { return };
    fs::create_dir(mount.at("d")).unwrap();
    let path = mount.at("d/model");
    fs::write(&path, safetensors(&[("x", b"secret")])).unwrap();
    let readable = || may(&mount, 3000, "cat .tensorfs/tensors/d/model/x.npy && ls .tensorfs/tensors/d/model");
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for _ in 0..3 {
        assert!(readable());
        set(&path, 0o600);
        assert!(!readable());
        set(&path, 0o644);
        assert!(readable());
        set(&mount.at("d"), 0o700);
        assert!(!readable());
        set(&mount.at("d"), 0o755);
        std::os::unix::fs::chown(&path, Some(3000), None).unwrap();
        set(&path, 0o044);
        // The owner's bits count for the owner.
        assert!(!readable());
        set(&path, 0o400);
        assert!(readable());
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        set(&path, 0o644);
    }
    // Who is inside already loses the right like anybody else.
    let mut inside = as_user(3000, 3000)
        .args(["bash", "-c"])
        .arg("cd .tensorfs/tensors/d/model && ls && echo in && read && ls; echo $? && read && ls && echo again")
        .current_dir(mount.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(inside.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut stdin = inside.stdin.take().unwrap();
    assert_eq!(lines.by_ref().take(2).collect::<Vec<_>>(), ["x.npy", "in"]);
    set(&path, 0o600);
    writeln!(stdin).unwrap();
    assert_ne!(lines.next().unwrap(), "x.npy");
    set(&path, 0o644);
    writeln!(stdin).unwrap();
    assert_eq!(lines.collect::<Vec<_>>(), ["x.npy", "again"]);
    assert!(inside.wait().unwrap().success());
}

/// Lists grant and refuse what they grant and refuse for the file itself.
///
/// Proves T3.
fn access_lists_count(setup: Setup) {
    if Command::new("setfacl").arg("--version").output().is_err() {
        return setup.skip("setfacl is not installed");
    }
    let Some(mount) = for_everybody(setup) else { return };
    let model = safetensors(&[("x", b"secret"), ("deep/y", b"secret")]);
    for (n, (mode, list, on)) in [
        (0o600, "u:3000:r", "model"),
        (0o644, "u:3000:-", "model"),
        (0o600, "g:3000:r", "model"),
        (0o644, "g:3000:-", "model"),
        (0o600, "u:3000:rw,m::-", "model"),
        // The mask does not grant reading: whom the list names must not be taken for one of the others.
        (0o644, "u:3000:rw,m::w", "model"),
        (0o644, "u:3000:rwx,m::x", "model"),
        (0o604, "u:3000:w", "model"),
        (0o700, "u:3000:x", "."),
        (0o700, "u:3000:r", "."),
        (0o700, "u:3000:rx", "."),
        (0o755, "u:3000:-", "."),
        (0o755, "u:3000:w,m::w", "."),
    ]
    .into_iter()
    .enumerate()
    {
        let dir = mount.at(format!("d{n}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("model"), &model).unwrap();
        fs::set_permissions(dir.join(on), fs::Permissions::from_mode(mode)).unwrap();
        shell(&dir, &format!("setfacl -m {list} {on}"));
        for uid in [3000, 4000] {
            let what = format!("{mode:o} {list} {on} {uid}");
            for (file, tensor) in [
                (format!("cat d{n}/model"), format!("cat .tensorfs/tensors/d{n}/model/x.npy")),
                (format!("cat d{n}/model"), format!("cat .tensorfs/tensors/d{n}/model/deep/y.npy")),
                (format!("cat d{n}/model"), format!("ls .tensorfs/tensors/d{n}/model")),
                (format!("ls d{n}"), format!("ls .tensorfs/tensors/d{n}")),
            ] {
                let (may_file, may_tensor) = (may(&mount, uid, &file), may(&mount, uid, &tensor));
                assert_eq!(may_tensor, may_file, "{what}: {tensor}");
            }
        }
    }
}
