//! Renaming: over what is open, without replacing, exchanging, and what is refused.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use tensorfs_tests::{Setup, c_path, on_mounts, shell};

use super::{errno, kind, names};

on_mounts!(rename_over_an_open_file, rename_noreplace_and_exchange, rename_refuses_what_it_must,);

fn rename_over_an_open_file(setup: Setup) {
    let mut mount = setup.mount();
    std::fs::write(mount.at("old"), "the old content").unwrap();
    std::fs::write(mount.at("new"), "the new content, longer").unwrap();
    let mut old = File::open(mount.at("old")).unwrap();
    let new = OpenOptions::new().append(true).open(mount.at("new")).unwrap();
    std::fs::rename(mount.at("new"), mount.at("old")).unwrap();
    (&new).write_all(b", and more").unwrap();
    let mut text = String::new();
    old.read_to_string(&mut text).unwrap();
    assert_eq!(text, "the old content");
    assert_eq!(std::fs::read_to_string(mount.at("old")).unwrap(), "the new content, longer, and more");
    drop((old, new));
    mount.remount();
    assert_eq!(names(mount.path()), ["old".into()].into());
    assert_eq!(std::fs::read_to_string(mount.at("old")).unwrap(), "the new content, longer, and more");
}

fn rename2(from: &Path, to: &Path, flags: u32) -> Result<(), Errno> {
    let (from, to) = (c_path(from), c_path(to));
    // SAFETY: plain system call with two paths.
    errno(unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) })
}

/// Proves N3, X3.
fn rename_noreplace_and_exchange(setup: Setup) {
    let mut mount = setup.mount();
    shell(mount.path(), "echo a > a; echo b > b; mkdir d e; echo x > d/x; echo y > e/y");
    let (noreplace, exchange) = (libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE);
    assert_eq!(rename2(&mount.at("a"), &mount.at("b"), noreplace), Err(Errno::EEXIST));
    assert_eq!(rename2(&mount.at("a"), &mount.at("d"), noreplace), Err(Errno::EEXIST));
    rename2(&mount.at("a"), &mount.at("new"), noreplace).unwrap();
    assert_eq!(rename2(&mount.at("new"), &mount.at("none"), exchange), Err(Errno::ENOENT));
    rename2(&mount.at("new"), &mount.at("b"), exchange).unwrap();
    // A file with a directory, and two directories; parents change.
    rename2(&mount.at("b"), &mount.at("d"), exchange).unwrap();
    rename2(&mount.at("b"), &mount.at("e"), exchange).unwrap();
    rename2(&mount.at("e/x"), &mount.at("b"), exchange).unwrap();
    assert_eq!(rename2(&mount.at("d"), &mount.at("e"), noreplace | exchange), Err(Errno::EINVAL));
    assert_eq!(rename2(&mount.at("e"), &mount.at("e/x"), exchange), Err(Errno::EINVAL));
    if !mount.is_plain() {
        assert_eq!(rename2(&mount.at("new"), &mount.at("x"), libc::RENAME_WHITEOUT), Err(Errno::EINVAL));
    }
    let want = "./b\n./d\n./e\n./e/x\n./e/x/y\n./new\n";
    for _ in 0..2 {
        assert_eq!(shell(mount.path(), "find . -mindepth 1 | sort"), want);
        assert_eq!(shell(mount.path(), "cat new d b e/x/y"), "b\na\nx\ny\n");
        assert_eq!(std::fs::metadata(mount.path()).unwrap().nlink(), 3);
        assert_eq!(std::fs::metadata(mount.at("e")).unwrap().nlink(), 3);
        mount.remount();
    }
}

fn rename_refuses_what_it_must(setup: Setup) {
    let mount = setup.mount();
    shell(mount.path(), "mkdir -p d/sub full/x empty; echo f > f");
    let rename = |from: &str, to: &str| kind(std::fs::rename(mount.at(from), mount.at(to)));
    assert_eq!(rename("d", "d/sub/inside"), Errno::EINVAL);
    assert_eq!(rename("d", "full"), Errno::ENOTEMPTY);
    assert_eq!(rename("f", "empty"), Errno::EISDIR);
    assert_eq!(rename("empty", "f"), Errno::ENOTDIR);
    assert_eq!(rename("none", "f"), Errno::ENOENT);
    assert_eq!(rename("f", "none/f"), Errno::ENOENT);
    assert_eq!(rename("f", "f/f"), Errno::ENOTDIR);
    let long = "n".repeat(256);
    assert_eq!(rename("f", &long), Errno::ENAMETOOLONG);
    std::fs::rename(mount.at("d"), mount.at("empty")).unwrap();
    assert!(mount.at("empty/sub").is_dir());
    // To another filesystem: mv copies, rename says why not.
    assert_eq!(kind(std::fs::rename("/proc/self/status", mount.at("x"))), Errno::EXDEV);
}
