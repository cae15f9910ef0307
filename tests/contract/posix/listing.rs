//! Listings: whole, stable while the directory changes, and without the control tree.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::Path;

use tensorfs_tests::{Setup, c_path, on_mounts, shell};

use super::names;

on_mounts!(
    stable_readdir_over_100_000_names,
    control_tree_is_not_listed,
    replacing_a_name_during_a_listing_does_not_list_it_again,
    renaming_what_a_listing_finds_does_not_make_it_endless,
);

/// Proves N2.
fn stable_readdir_over_100_000_names(setup: Setup) {
    let mut mount = setup.mount();
    let directory = mount.at("d");
    std::fs::create_dir(&directory).unwrap();
    let name = |n: usize| format!("file-{n:06}-{}", "x".repeat(n % 40));
    // Hard links: names are what is counted here, and they are made fast.
    for n in 0..100_000usize {
        let path = directory.join(name(n));
        if n % 1000 == 0 {
            File::create(&path).unwrap();
        } else {
            std::fs::hard_link(directory.join(name(n - n % 1000)), &path).unwrap();
        }
    }
    let want: BTreeSet<OsString> = (0..100_000).map(|n| name(n).into()).collect();
    assert_eq!(names(&directory), want);
    mount.remount();
    assert_eq!(names(&directory), want);

    // While a listing is under way: names that stay are listed once each, whatever else comes and
    // goes, and nothing is listed twice.
    let mut listed = Vec::new();
    for (n, entry) in std::fs::read_dir(&directory).unwrap().enumerate() {
        listed.push(entry.unwrap().file_name());
        if n % 10 == 0 && n / 10 < 5000 {
            let n = n / 10;
            std::fs::remove_file(directory.join(name(n * 20 + 1))).unwrap();
            File::create(directory.join(format!("new-{n}"))).unwrap();
            std::fs::rename(directory.join(name(n * 20 + 2)), directory.join(format!("moved-{n}"))).unwrap();
        }
    }
    let unique: BTreeSet<&OsStr> = listed.iter().map(OsString::as_os_str).collect();
    assert_eq!(unique.len(), listed.len(), "something was listed twice");
    for n in (0..100_000).filter(|n| n % 20 != 1 && n % 20 != 2) {
        assert!(unique.contains(OsStr::new(&name(n))), "{} was not listed", name(n));
    }
    // telldir and seekdir, as old programs use them.
    shell(mount.path(), "test $(ls -f d | wc -l) = 100002; test $(find d -name 'moved-*' | wc -l) = 5000");
    seekdir(&directory);
    // rm -r deletes while it lists.
    shell(mount.path(), "rm -r d; test ! -e d");
}

fn seekdir(directory: &Path) {
    let path = c_path(directory);
    // SAFETY: a directory stream used by this thread alone; entries are copied before the next call.
    unsafe {
        let stream = libc::opendir(path.as_ptr());
        assert!(!stream.is_null());
        let next = || {
            let entry = libc::readdir(stream);
            assert!(!entry.is_null());
            std::ffi::CStr::from_ptr((*entry).d_name.as_ptr()).to_owned()
        };
        for _ in 0..5000 {
            next();
        }
        let at = libc::telldir(stream);
        let want: Vec<_> = (0..3000).map(|_| next()).collect();
        for _ in 0..5000 {
            next();
        }
        libc::seekdir(stream, at);
        let got: Vec<_> = (0..3000).map(|_| next()).collect();
        assert!(got == want, "seekdir came back to another place");
        libc::rewinddir(stream);
        let first = [next(), next()];
        assert!(first.contains(&c".".to_owned()) && first.contains(&c"..".to_owned()));
        libc::closedir(stream);
    }
}

/// Proves N7.
fn control_tree_is_not_listed(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    assert_eq!(names(mount.path()), BTreeSet::new());
    let info = std::fs::read_to_string(mount.at(".tensorfs/info")).unwrap();
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["pid"].as_i64(), mount.pid().map(i64::from));
    assert_eq!(info["state"], "mounted");
    assert!(File::create(mount.at(".tensorfs/x")).is_err());
    assert!(std::fs::write(mount.at(".tensorfs/info"), "x").is_err());
    assert!(std::fs::remove_dir(mount.at(".tensorfs")).is_err());
    assert!(std::fs::rename(mount.at(".tensorfs"), mount.at("x")).is_err());
    assert!(std::fs::create_dir(mount.at(".tensorfs")).is_err());
    assert_eq!(names(mount.path()), BTreeSet::new());
    // Only in the root.
    std::fs::create_dir(mount.at("d")).unwrap();
    assert!(!mount.at("d/.tensorfs").exists());
    std::fs::write(mount.at("d/.tensorfs"), "mine").unwrap();
    assert_eq!(names(&mount.at("d")), [".tensorfs".into()].into());
}

/// A loop that lists a directory and replaces each file it finds, as `for e in os.scandir(d): os.replace(tmp, e)`,
/// ends; it lists each name once.
fn replacing_a_name_during_a_listing_does_not_list_it_again(setup: Setup) {
    let mount = setup.mount();
    let dir = mount.at("d");
    std::fs::create_dir(&dir).unwrap();
    let names = 1000;
    for n in 0..names {
        File::create(dir.join(format!("checkpoint-{n:06}"))).unwrap();
    }
    let mut seen: HashMap<OsString, usize> = HashMap::new();
    for (count, entry) in std::fs::read_dir(&dir).unwrap().enumerate() {
        let entry = entry.unwrap();
        assert!(count < 3 * names, "the listing does not end");
        let new = mount.at("new");
        std::fs::write(&new, "x").unwrap();
        std::fs::rename(&new, entry.path()).unwrap();
        *seen.entry(entry.file_name()).or_default() += 1;
    }
    assert_eq!(seen.len(), names);
    let again: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).take(3).collect();
    assert!(again.is_empty(), "listed more than once: {again:?}");
}

/// So does one that renames each file it finds, also if it renames it back.
///
/// Proves N2.
fn renaming_what_a_listing_finds_does_not_make_it_endless(setup: Setup) {
    let mount = setup.mount();
    for back in [true, false] {
        let dir = mount.at(format!("d-{back}"));
        std::fs::create_dir(&dir).unwrap();
        let names = 3000;
        for n in 0..names {
            File::create(dir.join(format!("{n}"))).unwrap();
        }
        let mut listed = 0;
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let mut renamed = path.clone().into_os_string();
            renamed.push("~");
            std::fs::rename(&path, &renamed).unwrap();
            if back {
                std::fs::rename(&renamed, &path).unwrap();
            }
            listed += 1;
            assert!(listed < 10 * names, "the listing does not end");
        }
        assert!(listed >= names, "{listed}");
        assert!(!back || listed == names, "{listed}");
    }
}
