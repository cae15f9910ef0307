//! Names of tensors as names of files.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use tensorfs_tests::{Setup, on_mounts, safetensors};

use super::{bytes, event, files, sealed, text, tree};

on_mounts!(awkward_names_are_escaped, tensors_of_one_name_are_told_apart,);

/// Proves T2.
fn awkward_names_are_escaped(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let (long, deep) = ("é".repeat(300), "d/".repeat(40));
    let list: Vec<(&str, String)> = vec![
        ("plain", "plain.npy".into()),
        ("a.b.c", "a.b.c.npy".into()),
        ("nested/name", "nested/name.npy".into()),
        ("nested", "nested.npy".into()),
        ("nested.npy", "nested.npy.npy".into()),
        ("nested.npy/name", "nested%2Enpy/name.npy".into()),
        ("nested//name", "nested/%/name.npy".into()),
        ("/", "%/%.npy".into()),
        ("", "%.npy".into()),
        (".", "%2E.npy".into()),
        ("../../etc/passwd", "%2E%2E/%2E%2E/etc/passwd.npy".into()),
        ("nul\0and\nline", "nul%00and%0Aline.npy".into()),
        ("100%", "100%25.npy".into()),
        ("100%25", "100%2525.npy".into()),
        ("w@5", "w%405.npy".into()),
        ("w@#2", "w%40#2.npy".into()),
        ("-rf *;$(x)'\"\\", "-rf *;$(x)'\"\\.npy".into()),
        (&long, format!("{0}%/{0}%/{0}.npy", "é".repeat(100))),
        (&deep, format!("{}{}.npy", "d/".repeat(31), "d%2F".repeat(9))),
    ];
    let contents: Vec<Vec<u8>> = (0..list.len() as u8).map(|n| vec![n; 3]).collect();
    let tensors: Vec<(&str, &[u8])> =
        list.iter().zip(&contents).map(|((name, _), bytes)| (*name, &bytes[..])).collect();
    fs::write(mount.at("hostile"), safetensors(&tensors)).unwrap();
    // No UTF-8 is for formats whose names are bytes.
    fs::write(mount.at("bytes"), event(b"\xff/\xc3\xa4\xc3", -3, None, 1.5)).unwrap();
    for round in 0..2 {
        for ((name, path), content) in list.iter().zip(&contents) {
            assert_eq!(&bytes(&tree(&mount, "hostile").join(path)), content, "{name:?}");
        }
        let want: BTreeSet<Vec<u8>> = list.iter().map(|(_, path)| path.clone().into_bytes()).collect();
        assert_eq!(text(&files(&tree(&mount, "hostile"))), text(&want));
        assert_eq!(bytes(&tree(&mount, "bytes/%FF/ä%C3@-3.npy")), 1.5_f32.to_le_bytes());
        if round == 0 {
            sealed(&mount.at("hostile"));
            sealed(&mount.at("bytes"));
        }
    }
    // Nothing is found by another name than its own.
    for name in ["nested/../plain.npy/x", "w@5.npy", "%2e.npy", "100%.npy", "plain@0.npy", "plain@#1.npy", "Plain.npy"]
    {
        assert!(!tree(&mount, "hostile").join(name).exists(), "{name}");
    }
}

/// Proves T2.
fn tensors_of_one_name_are_told_apart(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let list = [
        ("loss", 1, Some(1), "loss@1.npy"),
        ("loss", 2, Some(1), "loss@2.npy"),
        ("loss", 1, Some(2), "loss@1@EVAL.npy"),
        ("loss", 1, Some(1), "loss@1@#2.npy"),
        ("loss", 1, None, "loss@1@NONE.npy"),
        ("loss", 1, Some(2), "loss@1@EVAL@#2.npy"),
        ("deep/loss", 1, Some(2), "deep/loss@1.npy"),
        ("loss", 1, Some(1), "loss@1@#3.npy"),
    ];
    let path = mount.at("events");
    let mut file = File::create(&path).unwrap();
    let mut written = BTreeMap::new();
    for (n, (name, step, mode, path)) in list.into_iter().enumerate() {
        file.write_all(&event(name.as_bytes(), step, mode, n as f32)).unwrap();
        written.insert(path.as_bytes().to_vec(), n as f32);
        // What was there keeps its name.
        let directory = tree(&mount, "events");
        assert_eq!(text(&files(&directory)), text(&written.keys().cloned().collect()));
        for (path, number) in &written {
            assert_eq!(bytes(&directory.join(OsStr::from_bytes(path))), number.to_le_bytes());
        }
    }
    drop(file);
    sealed(&path);
    assert_eq!(text(&files(&tree(&mount, "events"))), text(&written.keys().cloned().collect()));
}
