//! Modes and owners, and the bits that a change takes away.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use nix::errno::Errno;
use tensorfs_tests::{Setup, is_root, on_mounts, shell, xattr};

on_mounts!(
    modes_and_owners,
    suid_bits_are_cleared_by_writing,
    suid_bits_are_cleared_by_a_chown_to_nobody_else,
    sgid_without_execute_is_cleared_by_an_outsider,
    opening_for_writing_takes_a_files_capabilities,
);

/// Proves A5.
fn modes_and_owners(setup: Setup) {
    let mut mount = setup.mount();
    shell(mount.path(), "umask 027; echo x > f; mkdir d; umask 0; echo x > g; mkdir e");
    let mode = |name: &str| std::fs::metadata(mount.at(name)).unwrap().mode() & 0o7777;
    assert_eq!([mode("f"), mode("d"), mode("g"), mode("e")], [0o640, 0o750, 0o666, 0o777]);
    for bits in [0, 0o1, 0o20, 0o400, 0o777, 0o1777, 0o7777] {
        std::fs::set_permissions(mount.at("e"), PermissionsExt::from_mode(bits)).unwrap();
        assert_eq!(mode("e"), bits);
    }
    std::fs::set_permissions(mount.at("e"), PermissionsExt::from_mode(0o3750)).unwrap();
    if is_root() {
        std::os::unix::fs::chown(mount.at("f"), Some(1234), Some(5678)).unwrap();
        std::os::unix::fs::chown(mount.at("f"), None, Some(u32::MAX - 1)).unwrap();
        std::os::unix::fs::chown(mount.at("e"), Some(0), Some(777)).unwrap();
        // A set-group-ID directory gives its group away.
        std::fs::set_permissions(mount.at("e"), PermissionsExt::from_mode(0o2755)).unwrap();
        shell(mount.path(), "echo x > e/child; mkdir e/sub");
    }
    mount.remount();
    if is_root() {
        let meta = std::fs::metadata(mount.at("f")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (1234, u32::MAX - 1));
        assert_eq!(std::fs::metadata(mount.at("e/child")).unwrap().gid(), 777);
        let sub = std::fs::metadata(mount.at("e/sub")).unwrap();
        assert_eq!((sub.gid(), sub.mode() & 0o2000), (777, 0o2000));
        // Permissions are checked for others than root.
        std::fs::set_permissions(mount.at("f"), PermissionsExt::from_mode(0o400)).unwrap();
        let who = |uid: u32, what: &str| {
            shell(
                mount.path(),
                &format!(
                    "setpriv --reuid {uid} --regid {uid} --clear-groups bash -c '{what}' 2>/dev/null && echo yes || \
                        echo no"
                ),
            )
        };
        assert_eq!(who(1234, "cat f > /dev/null").trim(), "yes");
        assert_eq!(who(1235, "cat f > /dev/null").trim(), "no");
        assert_eq!(who(1235, "rm -f f").trim(), "no");
        assert_eq!(who(1234, "chmod 777 g").trim(), "no");
    }
    assert_eq!(std::fs::metadata(mount.at("d")).unwrap().mode() & 0o7777, 0o750);
}

/// Proves A5.
fn suid_bits_are_cleared_by_writing(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = setup.mount();
    for script in ["echo more >> f", "truncate -s 1 f", "printf x | dd of=f conv=notrunc status=none"] {
        shell(mount.path(), "rm -f f; echo some > f; chown 1234:1234 f; chmod 6777 f");
        shell(mount.path(), &format!("setpriv --reuid 1234 --regid 1234 --clear-groups bash -c '{script}'"));
        let mode = std::fs::metadata(mount.at("f")).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o777, "{script} left mode {mode:o}");
    }
    shell(mount.path(), "chmod 6777 f; chown 1235:1235 f");
    let mode = std::fs::metadata(mount.at("f")).unwrap().mode() & 0o7777;
    assert_eq!(mode, 0o777, "chown left mode {mode:o}");
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

/// `chown(path, -1, -1)` names nobody, and takes the bits all the same. Found by the model test.
fn suid_bits_are_cleared_by_a_chown_to_nobody_else(setup: Setup) {
    let mut mount = setup.mount();
    std::fs::write(mount.at("f"), "x").unwrap();
    std::fs::set_permissions(mount.at("f"), std::fs::Permissions::from_mode(0o6755)).unwrap();
    if is_root() {
        // Not by somebody else, though.
        let change = "python3 -c 'import os; os.chown(\"f\", -1, -1)'";
        shell(mount.path(), &format!("! setpriv --reuid 1234 --regid 1234 --clear-groups {change} 2>/dev/null"));
        assert_eq!(mode(&mount.at("f")), 0o6755);
    }
    std::os::unix::fs::chown(mount.at("f"), None, None).unwrap();
    assert_eq!(mode(&mount.at("f")), 0o755);
    mount.remount();
    assert_eq!(mode(&mount.at("f")), 0o755);
}

/// Set-group-id without execute is no privilege, but who is not in the group could not have set it. Found by the model
/// test.
fn sgid_without_execute_is_cleared_by_an_outsider(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mount = setup.mount();
    for (group, left) in [("4321", 0o666), ("4321 --groups 1234", 0o2666), ("1234", 0o2666)] {
        shell(mount.path(), "rm -f f; echo some > f; chown 1:1234 f; chmod 2666 f");
        let groups = if group.contains("--groups") { "" } else { "--clear-groups" };
        shell(mount.path(), &format!("setpriv --reuid 1235 --regid {group} {groups} bash -c 'echo more >> f'"));
        assert_eq!(mode(&mount.at("f")), left, "in group {group}");
    }
}

/// Capabilities go as set-user-id bits do: what is written to a program must not run with the capabilities that the one
/// before had.
fn opening_for_writing_takes_a_files_capabilities(setup: Setup) {
    if !is_root() {
        return setup.skip("only root gives a file capabilities");
    }
    let mount = setup.mount();
    let name = "security.capability";
    // Revision 2: CAP_NET_RAW, permitted and effective.
    let value: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for how in ["write", "truncate", "replace"] {
        let path = mount.at(how);
        std::fs::write(&path, "program").unwrap();
        xattr::set(&path, name, &value, 0).unwrap();
        match how {
            "write" => File::options().write(true).open(&path).unwrap().write_all_at(b"P", 0).unwrap(),
            "truncate" => nix::unistd::truncate(&path, 3).unwrap(),
            _ => std::fs::write(&path, "another").unwrap(),
        }
        assert_eq!(xattr::get(&path, name), Err(Errno::ENODATA), "{how}");
    }
}
