//! What tensorfs says of a file in extended attributes.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::process::Command;

use nix::errno::Errno;
use tensorfs_formats::crc32c;
use tensorfs_tests::{Setup, on_mounts, safetensors, shell};

use super::{attribute, bytes, sealed, tree};

on_mounts!(attributes_say_what_a_file_is, attributes_are_not_copied_and_cannot_be_set,);

/// Proves T7.
fn attributes_say_what_a_file_is(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("model");
    let large = vec![5; 100_000];
    let content = safetensors(&[("a", &large), ("b", b"small"), ("c", &large)]);
    let mut file = File::create(&path).unwrap();
    assert_eq!(attribute(&path, "state").unwrap(), "open");
    file.write_all(&content).unwrap();
    assert_eq!(attribute(&path, "tensors").unwrap(), "3");
    assert_eq!(attribute(&path, "checksum"), Err(Errno::ENODATA));
    drop(file);
    sealed(&path);
    assert_eq!(attribute(&path, "checksum").unwrap(), format!("{:08x}", crc32c(&content)));
    // A run for the header, one for each large tensor, one for what is between.
    let records: u32 = attribute(&path, "records").unwrap().parse().unwrap();
    assert!((3..=5).contains(&records), "{records}");
    // It can be written again: nothing is known for sure.
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    assert_eq!(attribute(&path, "state").unwrap(), "open");
    assert_eq!(attribute(&path, "checksum"), Err(Errno::ENODATA));
    file.write_all(b"more").unwrap();
    drop(file);
    mount.sync();
    let state = attribute(&path, "state").unwrap();
    assert!(["committed", "sealed"].contains(&&state[..]), "{state}");
    sealed(&path);
    let whole = [&content[..], b"more"].concat();
    assert_eq!(attribute(&path, "checksum").unwrap(), format!("{:08x}", crc32c(&whole)));
    // No longer a safetensors file.
    assert_eq!(attribute(&path, "tensors").unwrap(), "0");
    // Replaced, but not complete yet: what is said is of the new bytes.
    fs::write(&path, &content).unwrap();
    sealed(&path);
    let mut file = File::create(&path).unwrap();
    file.write_all(b"text").unwrap();
    assert_eq!(attribute(&path, "tensors").unwrap(), "0");
    assert_eq!(attribute(&path, "state").unwrap(), "open");
    assert_eq!(attribute(&path, "checksum"), Err(Errno::ENODATA));
    drop(file);
    // Other things have none.
    fs::create_dir(mount.at("d")).unwrap();
    for name in ["state", "records", "tensors", "checksum"] {
        assert_eq!(attribute(&mount.at("d"), name), Err(Errno::ENODATA));
    }
    assert_eq!(attribute(&path, "other"), Err(Errno::ENODATA));
    fs::write(mount.at("empty"), "").unwrap();
    assert_eq!(attribute(&mount.at("empty"), "tensors").unwrap(), "0");
}

/// Proves T8.
fn attributes_are_not_copied_and_cannot_be_set(setup: Setup) {
    if Command::new("setfattr").arg("--version").output().is_err() {
        return setup.skip("setfattr is not installed");
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("model");
    fs::write(&path, safetensors(&[("x", b"abc")])).unwrap();
    shell(mount.path(), "setfattr -n user.mine -v 1 model");
    sealed(&path);
    assert_eq!(shell(mount.path(), "getfattr -d -m - model | grep user").trim(), "user.mine=\"1\"");
    shell(mount.path(), "mkdir d");
    for name in ["state", "checksum", "anything"] {
        for what in ["model", "d"] {
            assert!(
                shell(mount.path(), &format!("setfattr -n user.tensorfs.{name} -v x {what} 2>&1 || true"))
                    .contains("not permitted")
            );
            assert!(
                shell(mount.path(), &format!("setfattr -x user.tensorfs.{name} {what} 2>&1 || true"))
                    .contains("not permitted")
            );
        }
    }
    assert_eq!(attribute(&path, "state").unwrap(), "sealed");
    // Copies have the user's attributes, and none of these; within the mount, out of it, and back.
    let host = mount.host();
    shell(
        mount.path(),
        &format!("cp -a --preserve=all model copy && cp -a --preserve=all model {}/out", host.display()),
    );
    assert_eq!(shell(mount.path(), "getfattr -d -m - copy | grep user").trim(), "user.mine=\"1\"");
    let out = shell(&host, "getfattr -d -m - out | grep user || true");
    assert!(!out.contains("tensorfs"), "{out}");
    shell(mount.path(), &format!("cp -a --preserve=all {}/out back", host.display()));
    assert_eq!(bytes(&tree(&mount, "back/x.npy")), b"abc");
    // What was dumped is restored, but for these.
    shell(
        mount.path(),
        "getfattr --absolute-names -d -m - model > dump; setfattr -x user.mine model; setfattr --restore=dump",
    );
    assert_eq!(shell(mount.path(), "getfattr -d -m - model | grep user").trim(), "user.mine=\"1\"");
}
