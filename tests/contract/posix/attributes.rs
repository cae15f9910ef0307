//! Extended attributes and access lists.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use tensorfs_tests::{Pattern, Setup, c_path, is_root, on_mounts, shell, xattr};

on_mounts!(
    extended_attributes,
    access_control_lists,
    removing_an_access_list_that_is_not_there_succeeds,
    an_attribute_with_an_empty_name_is_invalid,
);

/// The names of a file's attributes, but for those that the kernel and tensorfs add.
fn list(path: &Path) -> BTreeSet<String> {
    let names = xattr::list(path).unwrap().into_iter().map(|name| String::from_utf8(name).unwrap());
    names.filter(|name| !name.starts_with("security.") && !name.starts_with("user.tensorfs.")).collect()
}

/// Proves A4.
fn extended_attributes(setup: Setup) {
    let mut mount = setup.mount();
    let file = mount.at("file");
    std::fs::write(&file, "x").unwrap();
    std::fs::create_dir(mount.at("directory")).unwrap();
    let long_name = format!("user.{}", "n".repeat(250));
    let values: Vec<(&str, Vec<u8>)> = vec![
        ("user.empty", vec![]),
        ("user.with/slash", b"no part of a path".to_vec()),
        ("user...", b"nor this".to_vec()),
        ("user.binary", (0..=255).collect()),
        ("user.page", Pattern(1).bytes(0, 2000)),
        (&long_name, b"long".to_vec()),
    ];
    for path in [&file, &mount.at("directory")] {
        for (name, value) in &values {
            xattr::set(path, name, b"before", 0).unwrap();
            xattr::set(path, name, value, libc::XATTR_REPLACE).unwrap();
            assert_eq!(xattr::set(path, name, value, libc::XATTR_CREATE), Err(Errno::EEXIST));
        }
        assert_eq!(xattr::get(path, "user.none"), Err(Errno::ENODATA));
        assert_eq!(xattr::remove(path, "user.none"), Err(Errno::ENODATA));
        assert_eq!(xattr::set(path, "user.none", b"", libc::XATTR_REPLACE), Err(Errno::ENODATA));
    }
    if is_root() {
        xattr::set(&file, "trusted.a", b"trusted", 0).unwrap();
        xattr::set(&file, "security.a", b"security", 0).unwrap();
    }
    if !mount.is_plain() {
        // As long as the kernel lets them be.
        xattr::set(&file, "user.longest", &Pattern(2).bytes(0, 65536), 0).unwrap();
    }
    // A buffer that is too short is told so; no buffer asks for the length.
    let (path, name) = (c_path(&file), CString::new("user.page").unwrap());
    let mut buffer = [0u8; 10];
    // SAFETY: plain system calls; the buffer is as long as said.
    unsafe {
        let got = libc::getxattr(path.as_ptr(), name.as_ptr(), buffer.as_mut_ptr().cast(), 10);
        assert_eq!((got, Errno::last()), (-1, Errno::ERANGE));
        assert_eq!(libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0), 2000);
    }
    mount.remount();
    for path in [&file, &mount.at("directory")] {
        for (name, value) in &values {
            assert_eq!(xattr::get(path, name).as_ref(), Ok(value), "{name}");
        }
    }
    if !mount.is_plain() {
        assert_eq!(xattr::get(&file, "user.longest").unwrap(), Pattern(2).bytes(0, 65536));
        xattr::remove(&file, "user.longest").unwrap();
    }
    if is_root() {
        assert_eq!(xattr::get(&file, "trusted.a").unwrap(), b"trusted");
        assert_eq!(xattr::get(&file, "security.a").unwrap(), b"security");
        xattr::remove(&file, "trusted.a").unwrap();
    }
    let want: BTreeSet<String> = values.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(list(&file), want);
    for (name, _) in &values {
        xattr::remove(&file, name).unwrap();
    }
    mount.remount();
    assert_eq!(list(&file), BTreeSet::new());
    assert_eq!(list(&mount.at("directory")), want);
}

/// Proves A4, A5.
fn access_control_lists(setup: Setup) {
    if std::process::Command::new("setfacl").arg("--version").output().is_err() {
        return setup.skip("setfacl is not installed");
    }
    if !is_root() {
        return setup.skip("needs root, to become somebody else");
    }
    let mut mount = setup.mount();
    shell(
        mount.path(),
        "echo secret > f; chmod 600 f; setfacl -m u:12345:r,g:54321:rw f
         mkdir d; setfacl -m d:u:12345:rwx,d:o::- d; echo x > d/inherits; mkdir d/sub",
    );
    let acl = |name: &str| shell(mount.path(), &format!("getfacl -cn {name}"));
    let (file, inherits, sub) = (acl("f"), acl("d/inherits"), acl("d/sub"));
    assert!(file.contains("user:12345:r--"), "{file}");
    assert!(file.contains("mask::rw-"), "{file}");
    assert!(inherits.contains("user:12345:rwx") && inherits.contains("other::---"), "{inherits}");
    assert!(sub.contains("default:user:12345:rwx"), "{sub}");
    // The mode's group bits are the mask.
    assert_eq!(std::fs::metadata(mount.at("f")).unwrap().mode() & 0o777, 0o660);
    shell(mount.path(), "chmod g-rwx f");
    assert!(acl("f").contains("mask::---"), "{}", acl("f"));
    shell(mount.path(), "chmod g+r f");
    mount.remount();
    let acl = |name: &str| shell(mount.path(), &format!("getfacl -cn {name}"));
    assert_eq!(acl("d/inherits"), inherits);
    assert_eq!(acl("d/sub"), sub);
    // They are enforced.
    let as_user = |uid: u32, script: &str| {
        shell(
            mount.path(),
            &format!(
                "setpriv --reuid {uid} --regid {uid} --clear-groups bash -c '{script}' 2>/dev/null && echo yes || echo \
                    no"
            ),
        )
    };
    assert_eq!(as_user(12345, "cat f >/dev/null").trim(), "yes");
    assert_eq!(as_user(12346, "cat f >/dev/null").trim(), "no");
    assert_eq!(as_user(12345, "echo x >> f").trim(), "no");
}

/// Found by the model test.
fn removing_an_access_list_that_is_not_there_succeeds(setup: Setup) {
    let mount = setup.mount();
    std::fs::create_dir(mount.at("d")).unwrap();
    for name in ["system.posix_acl_access", "system.posix_acl_default"] {
        assert_eq!(xattr::remove(&mount.at("d"), name), Ok(()), "{name}");
    }
    assert_eq!(xattr::remove(&mount.at("d"), "user.x"), Err(Errno::ENODATA));
}

/// Found by the model test.
fn an_attribute_with_an_empty_name_is_invalid(setup: Setup) {
    let mount = setup.mount();
    std::fs::write(mount.at("f"), "x").unwrap();
    assert_eq!(xattr::get(&mount.at("f"), "user."), Err(Errno::EINVAL));
    assert_eq!(xattr::set(&mount.at("f"), "user.", b"x", 0), Err(Errno::EINVAL));
    assert_eq!(xattr::remove(&mount.at("f"), "user."), Err(Errno::EINVAL));
    assert_eq!(xattr::get(&mount.at("f"), "bogus.x"), Err(Errno::EOPNOTSUPP));
}
