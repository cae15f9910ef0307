//! An array in chunks, each a file of plain bytes, is one file.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use tensorfs_tests::{Setup, as_user, is_root, on_mounts, run};

use super::{bytes, npy, tree};

on_mounts!(
    an_array_in_chunks_is_a_file,
    an_array_that_cannot_be_put_together_is_none,
    an_open_array_shows_one_version,
    who_may_not_read_a_chunk_may_not_read_the_array,
);

fn zarr2(shape: &str, chunks: &str, dtype: &str, more: &str) -> String {
    format!(
        r#"{{"zarr_format": 2, "shape": {shape}, "chunks": {chunks}, "dtype": "{dtype}", "compressor": null,
        "filters": null, "order": "C", "fill_value": 9{more}}}"#
    )
}

fn zarr3(codecs: &str) -> String {
    format!(
        r#"{{"zarr_format": 3, "node_type": "array", "shape": [3, 5], "data_type": "uint16", "codecs": [{codecs}],
        "chunk_grid": {{"name": "regular", "configuration": {{"chunk_shape": [2, 2]}}}},
        "chunk_key_encoding": {{"name": "default"}}, "fill_value": 258}}"#
    )
}

fn write(dir: &Path, files: &[(&str, &[u8])]) {
    for (name, bytes) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// Proves T14, T15.
fn an_array_in_chunks_is_a_file(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    // Chunks are stored whole, also where the array ends within one; one is not there.
    let dir = mount.at("run/two");
    let whole = [
        (".zarray", zarr2("[3, 5]", "[2, 2]", "|u1", "").into_bytes()),
        ("0.0", vec![0, 1, 5, 6]),
        ("0.1", vec![2, 3, 7, 8]),
        ("0.2", vec![4, 99, 9, 99]),
        ("1.0", vec![10, 11, 99, 99]),
        ("1.2", vec![14, 99, 99, 99]),
    ];
    whole.iter().for_each(|(name, bytes)| write(&dir, &[(name, bytes)]));
    let place = tree(&mount, "run/two.checkpoint/array.npy");
    let expected = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 9, 9, 14];
    assert_eq!(bytes(&place), expected);
    assert!(npy(&fs::read(&place).unwrap()).0.contains("'descr': '|u1', 'fortran_order': False, 'shape': (3, 5)"));
    // From any place on, so much as is wanted.
    let (all, file) = (fs::read(&place).unwrap(), File::open(&place).unwrap());
    for from in 0..all.len() {
        let mut some = [0; 4];
        let count = file.read_at(&mut some, from as u64).unwrap();
        assert_eq!(some[..count], all[from..(from + 4).min(all.len())]);
    }
    // Very many chunks at the end of it are copied, as others are: no reader takes any of them apart.
    let many = mount.at("run/many");
    write(&many, &[(".zarray", zarr2("[1000, 3]", "[1, 2]", "|u1", "").as_bytes())]);
    for row in 0..1000_u32 {
        write(&many, &[(&format!("{row}.0"), &[row as u8, 1]), (&format!("{row}.1"), &[2, 99])]);
    }
    let file = File::open(tree(&mount, "run/many.checkpoint/array.npy")).unwrap();
    let started = || mount.info()["readers"]["started"].as_u64().unwrap();
    let (before, mut all) = (started(), vec![0; 3000]);
    file.read_exact_at(&mut all, file.metadata().unwrap().len() - 3000).unwrap();
    assert!(all.chunks(3).zip(0_u32..).all(|(row, n)| row == [n as u8, 1, 2]));
    assert_eq!(started(), before, "readers that were started for it");
    // In directories, in another byte order, and a fill value of two bytes.
    let dir = mount.at("run/three");
    let codecs = r#"{"name": "bytes", "configuration": {"endian": "big"}}"#;
    write(&dir, &[("zarr.json", zarr3(codecs).as_bytes()), ("c/1/0", &[0, 1, 0, 2, 0, 3, 0, 4])]);
    let place = tree(&mount, "run/three.checkpoint/array.npy");
    let mut expected = [1_u8, 2].repeat(15);
    expected[20..24].copy_from_slice(&[0, 1, 0, 2]);
    assert_eq!(bytes(&place), expected);
    assert!(npy(&fs::read(&place).unwrap()).0.contains("'descr': '>u2'"));
    // Nothing, and one number.
    write(&mount.at("run/none"), &[(".zarray", zarr2("[0, 5]", "[1, 5]", "<f4", "").as_bytes())]);
    assert!(bytes(&tree(&mount, "run/none.checkpoint/array.npy")).is_empty());
    let one = zarr2("[]", "[]", "<i8", "");
    write(&mount.at("run/one"), &[(".zarray", one.as_bytes()), ("0", &7_i64.to_le_bytes())]);
    assert_eq!(bytes(&tree(&mount, "run/one.checkpoint/array.npy")), 7_i64.to_le_bytes());
    // Two that say what it is, as after a migration.
    let both = mount.at("run/both");
    write(&both, &[(".zarray", zarr2("[2]", "[2]", "|u1", "").as_bytes()), ("0", &[1, 2])]);
    write(&both, &[("zarr.json", zarr3(r#"{"name": "bytes"}"#).as_bytes())]);
    let names = super::files(&tree(&mount, "run/both.checkpoint"));
    assert_eq!(super::text(&names), ["2/array.npy", "array.npy"]);
    // Nothing is told of the chunks but that they are files without tensors.
    assert_eq!(super::text(&super::files(&tree(&mount, "run/one"))), Vec::<String>::new());
    assert!(super::attribute(&mount.at("run/one"), "complete").is_err());
}

/// Proves T14, T15.
fn an_array_that_cannot_be_put_together_is_none(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let packed = r#", "compressor": {"id": "zstd"}"#;
    let none = [
        ("packed", zarr2("[4]", "[2]", "|u1", "").replace(r#""compressor": null"#, &packed[2..])),
        ("texts", zarr2("[4]", "[2]", "<U5", "")),
        ("bytes", zarr2("[4]", "[2]", "|S5", "")),
        ("dates", zarr2("[4]", "[2]", "<M8[ns]", "")),
        ("raw", zarr2("[4]", "[2]", "|V4", "")),
        ("halves", zarr2("[4]", "[2]", "int4", "")),
        ("wordy", zarr2("[4]", "[2]", "|u1", &format!(r#", "attributes": "{}""#, "x".repeat(1 << 20)))),
        ("many", zarr2("[4097]", "[1]", "|u1", "")),
        ("cut", zarr2("[4]", "[2]", "|u1", "")[..60].to_owned()),
        ("wrong", zarr2("[4]", "[0]", "|u1", "")),
        ("group", r#"{"zarr_format": 2}"#.to_owned()),
    ];
    for (name, metadata) in none {
        write(&mount.at(name), &[(".zarray", metadata.as_bytes()), ("0", &[1, 2])]);
        assert!(!tree(&mount, &format!("{name}.checkpoint")).exists(), "{name}");
    }
    write(&mount.at("packed3"), &[("zarr.json", zarr3(r#""bytes", {"name": "gzip"}"#).as_bytes())]);
    write(&mount.at("group3"), &[("zarr.json", br#"{"zarr_format": 3, "node_type": "group"}"#)]);
    assert!(!tree(&mount, "packed3.checkpoint").exists() && !tree(&mount, "group3.checkpoint").exists());
    // So many can be.
    write(&mount.at("few"), &[(".zarray", zarr2("[4096]", "[1]", "|u1", "").as_bytes()), ("7", &[7])]);
    let few = bytes(&tree(&mount, "few.checkpoint/array.npy"));
    assert_eq!((few.len(), few[6], few[7]), (4096, 9, 7));
    // It is there, and what has the name of a chunk is none, or not as long: nothing stands for that.
    fs::write(mount.at("other"), [1, 2]).unwrap();
    type Make<'a> = &'a dyn Fn(&Path);
    let wrong: [(&str, &str, Make<'_>); 6] = [
        (".", "short", &|dir| fs::write(dir.join("1"), [1]).unwrap()),
        (".", "long", &|dir| fs::write(dir.join("1"), [1, 2, 3]).unwrap()),
        (".", "link", &|dir| symlink("../other", dir.join("1")).unwrap()),
        (".", "directory", &|dir| fs::create_dir(dir.join("1")).unwrap()),
        ("/", "link above", &|dir| {
            fs::create_dir(dir.join("beside")).unwrap();
            symlink("beside", dir.join("1")).unwrap();
        }),
        ("/", "file above", &|dir| fs::write(dir.join("1"), [1, 2]).unwrap()),
    ];
    for (separator, name, make) in wrong {
        let dir = mount.at(name);
        let metadata = match separator {
            "." => zarr2("[4]", "[2]", "|u1", ""),
            _ => zarr2("[4, 1]", "[2, 1]", "|u1", r#", "dimension_separator": "/""#),
        };
        write(&dir, &[(".zarray", metadata.as_bytes())]);
        let place = tree(&mount, &format!("{name}.checkpoint/array.npy"));
        assert_eq!(bytes(&place), [9; 4], "{name}");
        make(&dir);
        assert_eq!(fs::read(&place).unwrap_err().raw_os_error(), Some(libc::EIO), "{name}");
    }
    // A fill value that is not known is none.
    let unknown = zarr2("[4]", "[2]", "|u1", "").replace("\"fill_value\": 9", "\"fill_value\": null");
    write(&mount.at("unknown"), &[(".zarray", unknown.as_bytes()), ("0", &[1, 2])]);
    let place = tree(&mount, "unknown.checkpoint/array.npy");
    assert_eq!(fs::read(&place).unwrap_err().raw_os_error(), Some(libc::EIO));
    fs::write(mount.at("unknown/1"), [3, 4]).unwrap();
    assert_eq!(bytes(&place), [1, 2, 3, 4]);
}

/// Proves T14.
fn an_open_array_shows_one_version(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("a");
    let place = tree(&mount, "a.checkpoint/array.npy");
    let read = |file: &File| {
        let mut all = vec![0; file.metadata().unwrap().len() as usize];
        // SAFETY: plain system call.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        file.read_exact_at(&mut all, 0).map(|()| npy(&all).1.to_vec())
    };
    for change in ["written", "made", "removed", "cut", "replaced", "the metadata"] {
        write(&dir, &[(".zarray", zarr2("[6]", "[2]", "|u1", "").as_bytes()), ("0", &[1, 2]), ("1", &[3, 4])]);
        let before = [1, 2, 3, 4, 9, 9];
        let open = File::open(&place).unwrap();
        assert_eq!(read(&open).unwrap(), before);
        let chunk = || OpenOptions::new().write(true).open(dir.join("1")).unwrap();
        let now = match change {
            "written" => {
                chunk().write_all_at(&[7], 0).unwrap();
                vec![1, 2, 7, 4, 9, 9]
            }
            "made" => {
                fs::write(dir.join("2"), [5, 6]).unwrap();
                vec![1, 2, 3, 4, 5, 6]
            }
            "removed" => {
                fs::remove_file(dir.join("1")).unwrap();
                vec![1, 2, 9, 9, 9, 9]
            }
            "cut" => {
                chunk().set_len(1).unwrap();
                vec![]
            }
            "replaced" => {
                fs::write(mount.at("new"), [8, 8]).unwrap();
                fs::rename(mount.at("new"), dir.join("1")).unwrap();
                vec![1, 2, 8, 8, 9, 9]
            }
            _ => {
                fs::write(dir.join(".zarray"), zarr2("[4]", "[2]", "|u1", "")).unwrap();
                vec![1, 2, 3, 4]
            }
        };
        match read(&open) {
            Ok(read) => {
                assert!(read == before && matches!(change, "removed" | "replaced" | "the metadata"), "{change}")
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{change}"),
        }
        match fs::read(&place) {
            Ok(all) => assert_eq!(npy(&all).1, now, "{change}"),
            Err(error) => assert_eq!((error.raw_os_error(), change), (Some(libc::EIO), "cut")),
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}

/// Proves T14.
fn who_may_not_read_a_chunk_may_not_read_the_array(setup: Setup) {
    if !is_root() {
        return;
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("a");
    write(&dir, &[(".zarray", zarr2("[4]", "[2]", "|u1", "").as_bytes()), ("0", &[1, 2])]);
    let place = tree(&mount, "a.checkpoint/array.npy");
    let may = || run(as_user(1000, 1000).arg("cat").arg(&place)).status.success();
    let mode = |name: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    assert!(may());
    mode("0", 0o600);
    assert!(!may());
    mode("0", 0o644);
    assert!(may());
    mode(".zarray", 0o600);
    assert!(!may());
}
