//! An array in an OCDBT database whose chunks are plain bytes is one file.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use tensorfs_tests::databases::{
    At, MANIFEST, Made, NODE, inflating_behind, leaf, leaf_body, manifest, manifest_body, node, wrapped,
};
use tensorfs_tests::{Setup, as_user, is_root, on_mounts, run};

use super::{bytes, npy, tree};

on_mounts!(
    an_array_in_a_database_is_a_file,
    arrays_of_a_database_that_cannot_be_put_together_are_none,
    what_is_wrong_with_a_database_is_no_array,
    an_open_array_of_a_database_shows_one_version,
    who_may_not_read_all_of_a_database_may_not_read_its_arrays,
    very_many_arrays_of_a_database_are_files,
    databases_are_listed_before_anybody_looks_into_them,
    a_small_database_of_very_much_keeps_nobody_from_listing,
    who_moves_a_node_that_he_may_not_read_is_not_told_of_its_values,
);

/// The data file.
const FILE: (&str, &str) = ("", "d/0");

fn zarr2(shape: &str, chunks: &str, more: &str) -> Vec<u8> {
    let rest = format!(r#""shape": {shape}, "chunks": {chunks}, "dtype": "|u1", "compressor": null{more}"#);
    format!(r#"{{"zarr_format": 2, {rest}}}"#).into()
}

const FILLED: &str = r#", "fill_value": 9"#;

fn zarr3(codecs: &str) -> Vec<u8> {
    format!(
        r#"{{"zarr_format": 3, "node_type": "array", "shape": [3], "data_type": "uint16", "codecs": [{codecs}],
        "chunk_grid": {{"name": "regular", "configuration": {{"chunk_shape": [2]}}}},
        "chunk_key_encoding": {{"name": "default"}}, "fill_value": 258}}"#
    )
    .into()
}

/// A database whose data file begins with these bytes, behind which is the only node.
fn make(dir: &Path, data: &[u8], entries: &[(&[u8], Made<'_>)]) {
    let node = leaf(&[FILE], entries);
    let root = (0, data.len() as u64, node.len() as u64);
    write(dir, &manifest(&[FILE], root, 0), &[data, &node].concat());
}

fn write(dir: &Path, manifest: &[u8], data: &[u8]) {
    fs::create_dir_all(dir.join("d")).unwrap();
    fs::write(dir.join("d/0"), data).unwrap();
    fs::write(dir.join("manifest.ocdbt"), manifest).unwrap();
}

fn fails(path: &Path) -> Option<i32> {
    fs::read(path).unwrap_err().raw_os_error()
}

/// One of two chunks: the first one is in the data file, with that place, and the second one beside its key.
fn simple(dir: &Path, at: At) {
    let array = zarr2("[4]", "[2]", FILLED);
    let entries: [(&[u8], Made<'_>); 3] =
        [(b"a/.zarray", Made::Here(&array)), (b"a/0", Made::In(at)), (b"a/1", Made::Here(&[3, 4]))];
    make(dir, &[7, 1, 2, 7], &entries);
}

/// Proves T14, T15.
fn an_array_in_a_database_is_a_file(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    // Chunks are stored whole, also where the array ends within one; some are in a file, some beside their keys, and
    // some are not there.
    let edges = zarr2("[3, 5]", "[2, 2]", FILLED);
    let columns = zarr2("[2, 3]", "[2, 2]", r#", "order": "F", "fill_value": 0"#);
    let (one, three, packed) =
        (zarr2("[]", "[]", ""), zarr3(r#"{"name": "bytes"}"#), zarr3(r#""bytes", {"name": "gzip"}"#));
    let data = [&[0, 1, 5, 6, 4, 99, 9, 99, 0, 0][..], &edges, &[1, 2, 3, 4]].concat();
    let said = 10 + edges.len() as u64;
    let entries: [(&[u8], Made<'_>); 22] = [
        (b".zarray", Made::Here(&one)),
        (b"0", Made::Here(&[42])),
        (b"columns/.zarray", Made::Here(&columns)),
        (b"columns/0.0", Made::In((0, said, 4))),
        (b"columns/0.1", Made::Here(&[5, 6, 99, 99])),
        (b"model.w/.zarray", Made::In((0, 10, edges.len() as u64))),
        (b"model.w/0.0", Made::In((0, 0, 4))),
        (b"model.w/0.1", Made::Here(&[2, 3, 7, 8])),
        (b"model.w/0.2", Made::In((0, 4, 4))),
        (b"model.w/1.0", Made::Here(&[10, 11, 99, 99])),
        (b"model.w/1.2", Made::Here(&[14, 99, 99, 99])),
        (b"model.w/1.3", Made::Here(&[1])),
        (b"model.w/other", Made::Here(b"x")),
        (b"packed/c/0", Made::Here(&[1])),
        (b"packed/zarr.json", Made::Here(&packed)),
        (b"x", Made::Here(b"y")),
        (b"x/three/c/1", Made::Here(&[1, 0, 99, 99])),
        (b"x/three/c/1/0", Made::Here(&[1, 0, 99, 99])),
        (b"x/three/zarr.json", Made::Here(&three)),
        (b"y/attributes.json", Made::Here(br#"{"dimensions": [4], "blockSize": [2], "dataType": "uint8"}"#)),
        (b"z/.zarray", Made::Here(b"{")),
        (b"z/0", Made::Here(&[1])),
    ];
    let dir = mount.at("run/step");
    make(&dir, &data, &entries);
    // That of one process is put together with others, and none by itself.
    make(&dir.join("ocdbt.process_0"), &data, &entries);
    let names = super::files(&tree(&mount, "run"));
    let expected =
        ["array.npy", "columns.npy", "model.w.npy", "x/three.npy"].map(|name| format!("step.checkpoint/{name}"));
    assert_eq!(super::text(&names), expected);
    let place = |name: &str| tree(&mount, &format!("run/step.checkpoint/{name}"));
    let whole = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 9, 9, 14];
    let weight = place("model.w.npy");
    assert_eq!(bytes(&weight), whole);
    let (all, file) = (fs::read(&weight).unwrap(), File::open(&weight).unwrap());
    assert!(npy(&all).0.contains("'descr': '|u1', 'fortran_order': False, 'shape': (3, 5)"));
    for from in 0..all.len() {
        let mut some = [0; 4];
        let count = file.read_at(&mut some, from as u64).unwrap();
        assert_eq!(some[..count], all[from..(from + 4).min(all.len())]);
    }
    assert_eq!(bytes(&place("array.npy")), [42]);
    assert_eq!(bytes(&place("x/three.npy")), [2, 1, 2, 1, 1, 0].map(|byte: u8| byte), "the fill value is 258");
    let columns = fs::read(place("columns.npy")).unwrap();
    assert!(npy(&columns).0.contains("'fortran_order': True, 'shape': (2, 3)"));
    assert_eq!(npy(&columns).1, [1, 2, 3, 4, 5, 6]);
    // A tree of several nodes, and paths of data files that have a beginning for all that they lead to.
    let (below, array) = (mount.at("run/deep"), zarr2("[3]", "[1]", FILLED));
    let base = ("ocdbt.process_0/d/", "7");
    let first = leaf(&[("", "7")], &[(b".zarray", Made::Here(&array)), (b"0", Made::In((0, 0, 1)))]);
    let last = leaf(&[("", "7")], &[(b"w/2", Made::In((0, 1, 1)))]);
    let (at, behind) = (2, 2 + first.len() as u64);
    let top = node(1, &[base], &[(b"w/", 2, (0, at, first.len() as u64)), (b"w/2", 0, (0, behind, last.len() as u64))]);
    write(&below, &manifest(&[FILE], (0, 0, top.len() as u64), 1), &top);
    fs::create_dir_all(below.join("ocdbt.process_0/d")).unwrap();
    fs::write(below.join("ocdbt.process_0/d/7"), [&[5, 6][..], &first, &last].concat()).unwrap();
    assert_eq!(bytes(&tree(&mount, "run/deep.checkpoint/w.npy")), [5, 9, 6]);
}

/// Proves T14, T15.
fn arrays_of_a_database_that_cannot_be_put_together_are_none(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let packed = zarr2("[4]", "[2]", "").replace_null(r#"{"id": "zstd"}"#);
    let shards = zarr3(
        r#"{"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "codecs": [{"name": "bytes"}],
        "index_codecs": [{"name": "bytes"}]}}"#,
    );
    let none: [(&str, &[u8], &[u8]); 7] = [
        ("packed", b"a/.zarray", &packed),
        ("shards", b"a/zarr.json", &shards),
        (
            "texts",
            b"a/.zarray",
            br#"{"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<U5", "compressor": null}"#,
        ),
        ("many", b"a/.zarray", &zarr2("[4097]", "[1]", "")),
        ("n5", b"a/attributes.json", br#"{"dimensions": [4], "blockSize": [2], "dataType": "uint8"}"#),
        ("group", b"a/zarr.json", br#"{"zarr_format": 3, "node_type": "group"}"#),
        ("no", b"a/b", b"c"),
    ];
    for (name, key, value) in none {
        make(&mount.at(name), &[], &[(key, Made::Here(value))]);
        make(&mount.at(format!("{name} in a file")), value, &[(key, Made::In((0, 0, value.len() as u64)))]);
        assert!(!tree(&mount, &format!("{name}.checkpoint")).exists(), "{name}");
        assert!(!tree(&mount, &format!("{name} in a file.checkpoint")).exists(), "{name}");
    }
    let listed = super::files(&tree(&mount, ""));
    assert_eq!(super::text(&listed), Vec::<String>::new());
    // What is said last counts.
    let said: [(&[u8], Made<'_>); 4] = [
        (b"a/.zarray", Made::Here(&zarr2("[2]", "[2]", FILLED))),
        (b"a/zarr.json", Made::Here(&zarr3(r#"{"name": "bytes"}, {"name": "gzip"}"#))),
        (b"b/.zarray", Made::Here(&packed)),
        (b"b/zarr.json", Made::Here(&zarr3(r#"{"name": "bytes"}"#))),
    ];
    make(&mount.at("both"), &[], &said);
    let listed = super::files(&tree(&mount, "both.checkpoint"));
    assert_eq!(super::text(&listed), ["b.npy"]);
    // Of one that is another afterwards it is another one's.
    simple(&mount.at("packed"), (0, 1, 2));
    assert_eq!(bytes(&tree(&mount, "packed.checkpoint/a.npy")), [1, 2, 3, 4]);
    make(&mount.at("packed"), &[], &[(b"a/.zarray", Made::Here(&packed))]);
    assert!(!tree(&mount, "packed.checkpoint").exists());
    // Versions in manifests that have numbers, and what begins as a manifest and is none.
    let dir = mount.at("numbered");
    simple(&dir, (0, 1, 2));
    let root = (0, 4, fs::metadata(dir.join("d/0")).unwrap().len() - 4);
    fs::write(dir.join("manifest.0000000000000001"), fs::read(dir.join("manifest.ocdbt")).unwrap()).unwrap();
    let mut config = manifest_body(&[FILE], root, 0)[..24].to_vec();
    config[16] = 1;
    fs::write(dir.join("manifest.ocdbt"), wrapped(MANIFEST, 0, 0, &config)).unwrap();
    assert!(!tree(&mount, "numbered.checkpoint").exists());
    fs::create_dir(mount.at("none")).unwrap();
    fs::write(mount.at("none/manifest.ocdbt"), b"anything").unwrap();
    assert!(!tree(&mount, "none.checkpoint").exists());
}

trait Replaced {
    fn replace_null(self, by: &str) -> Self;
}

impl Replaced for Vec<u8> {
    fn replace_null(self, by: &str) -> Self {
        String::from_utf8(self).unwrap().replacen("null", by, 1).into()
    }
}

/// Proves T14, T15.
fn what_is_wrong_with_a_database_is_no_array(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    // Places that cannot be, and values that are not as long as elements.
    for (name, at) in
        [("behind", (0, 1 << 40, 2)), ("end", (0, u64::MAX - 2, 2)), ("long", (0, 1, 3)), ("short", (0, 1, 1))]
    {
        simple(&mount.at(name), at);
        assert_eq!(fails(&tree(&mount, &format!("{name}.checkpoint/a.npy"))), Some(libc::EIO), "{name}");
    }
    let (dir, array) = (mount.at("here"), zarr2("[4]", "[2]", FILLED));
    make(&dir, &[], &[(b"a/.zarray", Made::Here(&array)), (b"a/0", Made::Here(&[1, 2, 3]))]);
    assert_eq!(fails(&tree(&mount, "here.checkpoint/a.npy")), Some(libc::EIO));
    // A fill value that is not known.
    let array = zarr2("[4]", "[2]", r#", "fill_value": null"#);
    make(&dir, &[], &[(b"a/.zarray", Made::Here(&array)), (b"a/0", Made::Here(&[1, 2]))]);
    assert_eq!(fails(&tree(&mount, "here.checkpoint/a.npy")), Some(libc::EIO));
    // The file of a value is not there, is cut, or another thing; it is the only one that suffers.
    let dir = mount.at("gone");
    let place = tree(&mount, "gone.checkpoint/a.npy");
    let away = |name: &str| {
        leaf(
            &[FILE, ("", "d/1")],
            &[
                (b"a/.zarray", Made::Here(&zarr2("[4]", "[2]", FILLED))),
                (b"a/0", Made::In((1, 1, 2))),
                (b"b/.zarray", Made::Here(&zarr2("[1]", "[1]", name))),
            ],
        )
    };
    let node = away(FILLED);
    write(&dir, &manifest(&[FILE], (0, 0, node.len() as u64), 0), &node);
    let file = dir.join("d/1");
    let with = |how: &str| {
        assert_eq!(fails(&place), Some(libc::EIO), "{how}");
        assert_eq!(bytes(&tree(&mount, "gone.checkpoint/b.npy")), [9], "{how}");
    };
    with("missing");
    fs::write(&file, [7, 1]).unwrap();
    with("cut");
    fs::remove_file(&file).unwrap();
    fs::write(mount.at("other"), [7, 1, 2]).unwrap();
    symlink("../../other", &file).unwrap();
    with("a link");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    with("a directory");
    fs::remove_dir(&file).unwrap();
    fs::write(&file, [7, 1, 2]).unwrap();
    assert_eq!(bytes(&place), [1, 2, 9, 9]);
    // Of a tree that is damaged nothing is told, until it is whole again: any chunk might be elsewhere in it.
    let data = fs::read(dir.join("d/0")).unwrap();
    let whole = |is: bool, how: &str| {
        let found = fs::read_dir(tree(&mount, "gone.checkpoint")).map(Iterator::count);
        match is {
            true => assert_eq!(found.unwrap(), 2, "{how}"),
            false => assert_eq!(found.unwrap_err().raw_os_error(), Some(libc::EIO), "{how}"),
        }
    };
    for at in 0..data.len() {
        let mut other = data.clone();
        other[at] ^= 1 << (at % 8);
        fs::write(dir.join("d/0"), &other).unwrap();
        whole(false, &format!("byte {at}"));
    }
    fs::write(dir.join("d/0"), &data[..data.len() - 1]).unwrap();
    whole(false, "cut");
    fs::remove_file(dir.join("d/0")).unwrap();
    whole(false, "missing");
    fs::write(dir.join("d/0"), &data).unwrap();
    whole(true, "whole again");
    assert_eq!(bytes(&place), [1, 2, 9, 9]);
    // Nor is anything told of one with a node that is compressed in a way that is not known, or of a version.
    for (version, compression) in [(0, 9), (9, 0)] {
        let node = wrapped(NODE, version, compression, b"anything");
        write(&dir, &manifest(&[FILE], (0, 0, node.len() as u64), 0), &node);
        whole(false, "a node that is not known");
        fs::write(dir.join("manifest.ocdbt"), wrapped(MANIFEST, version, compression, b"anything")).unwrap();
        whole(false, "a manifest that is not known");
    }
    // Nothing leads out of the directory.
    fs::write(mount.at("outside"), [1, 2]).unwrap();
    for path in ["../outside", "/outside", "d/../../outside"] {
        let node = leaf(
            &[("", path)],
            &[(b"a/.zarray", Made::Here(&zarr2("[2]", "[2]", FILLED))), (b"a/0", Made::In((0, 0, 2)))],
        );
        write(&dir, &manifest(&[FILE], (0, 0, node.len() as u64), 0), &node);
        whole(false, path);
    }
}

/// Proves T14.
fn an_open_array_of_a_database_shows_one_version(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let dir = mount.at("a");
    let place = tree(&mount, "a.checkpoint/a.npy");
    let read = |file: &File| {
        let mut all = vec![0; file.metadata().unwrap().len() as usize];
        // SAFETY: plain system call.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        file.read_exact_at(&mut all, 0).map(|()| npy(&all).1.to_vec())
    };
    for change in ["written", "cut", "replaced", "another version", "all of it removed"] {
        simple(&dir, (0, 1, 2));
        let open = File::open(&place).unwrap();
        assert_eq!(read(&open).unwrap(), [1, 2, 3, 4]);
        let data = dir.join("d/0");
        let now = match change {
            "written" => {
                OpenOptions::new().write(true).open(&data).unwrap().write_all_at(&[5], 1).unwrap();
                Some([5, 2, 3, 4])
            }
            "cut" => {
                OpenOptions::new().write(true).open(&data).unwrap().set_len(2).unwrap();
                None
            }
            "replaced" => {
                let mut other = fs::read(&data).unwrap();
                other[1] = 6;
                fs::write(mount.at("new"), other).unwrap();
                fs::rename(mount.at("new"), &data).unwrap();
                Some([6, 2, 3, 4])
            }
            "another version" => {
                // As the library does it: what is new is behind, or in another file.
                let array = zarr2("[4]", "[2]", FILLED);
                let node = leaf(&[FILE], &[(b"a/.zarray", Made::Here(&array)), (b"a/0", Made::In((0, 1, 2)))]);
                fs::write(dir.join("d/1"), &node).unwrap();
                let manifest = manifest(&[("", "d/1")], (0, 0, node.len() as u64), 0);
                fs::write(mount.at("new"), manifest).unwrap();
                fs::rename(mount.at("new"), dir.join("manifest.ocdbt")).unwrap();
                Some([1, 2, 9, 9])
            }
            _ => {
                fs::remove_dir_all(&dir).unwrap();
                None
            }
        };
        match read(&open) {
            Ok(read) => {
                let may_be = matches!(change, "replaced" | "another version" | "all of it removed");
                assert!(may_be && read == [1, 2, 3, 4], "{change}: {read:?}");
            }
            Err(error) => {
                assert!(error.raw_os_error() == Some(libc::ESTALE) && change != "another version", "{change}: {error}")
            }
        }
        match (fs::read(&place), now) {
            (Ok(all), Some(now)) => assert_eq!(npy(&all).1, now, "{change}"),
            (Err(_), None) => {}
            (found, _) => panic!("{change}: {found:?}"),
        }
        let _ = fs::remove_dir_all(&dir);
    }
}

/// Proves T14.
fn who_may_not_read_all_of_a_database_may_not_read_its_arrays(setup: Setup) {
    if !is_root() {
        return setup.skip("no other users");
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    // The values of this one are beside their keys.
    let (dir, array) = (mount.at("a"), zarr2("[2]", "[2]", FILLED));
    let node = leaf(
        &[FILE, ("", "e/1")],
        &[
            (b"a/.zarray", Made::Here(&array)),
            (b"a/0", Made::Here(&[1, 2])),
            (b"b/.zarray", Made::Here(&array)),
            (b"b/0", Made::In((1, 0, 2))),
        ],
    );
    write(&dir, &manifest(&[FILE], (0, 0, node.len() as u64), 0), &node);
    fs::create_dir(dir.join("e")).unwrap();
    fs::write(dir.join("e/1"), [3, 4]).unwrap();
    let may = |name: &str| {
        let place = tree(&mount, &format!("a.checkpoint/{name}.npy"));
        run(as_user(1000, 1000).arg("cat").arg(&place)).status.success()
    };
    let mode = |name: &str, mode: u32| {
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    for (name, open, shut) in [
        ("d/0", 0o644, 0o600),
        ("e/1", 0o644, 0o600),
        ("manifest.ocdbt", 0o644, 0o600),
        ("d", 0o755, 0o700),
        ("e", 0o755, 0o600),
    ] {
        assert!(may("a") && may("b"), "{name}");
        mode(name, shut);
        assert!(!may("a") && !may("b"), "{name}");
        mode(name, open);
    }
}

/// Proves T14.
fn very_many_arrays_of_a_database_are_files(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    const COUNT: u32 = 20_000;
    let array = zarr2("[2]", "[1]", FILLED);
    let (keys, values): (Vec<[String; 3]>, Vec<[u8; 4]>) =
        (0..COUNT).map(|n| ([".zarray", "0", "1"].map(|name| format!("p{n:06}/{name}")), n.to_le_bytes())).unzip();
    let entries: Vec<(&[u8], Made<'_>)> = { keys.iter().zip(&values) }
        .flat_map(|(key, value)| {
            let [said, first, second] = key.each_ref().map(|key| key.as_bytes());
            [(said, Made::Here(&array)), (first, Made::Here(&value[..1])), (second, Made::Here(&value[1..2]))]
        })
        .collect();
    make(&mount.at("a"), &[], &entries);
    let names = fs::read_dir(tree(&mount, "a.checkpoint")).unwrap().count();
    assert_eq!(names, COUNT as usize);
    for n in [0_u32, 1, 777, COUNT - 1] {
        assert_eq!(bytes(&tree(&mount, &format!("a.checkpoint/p{n:06}.npy"))), n.to_le_bytes()[..2]);
    }
    // More than one plan may take: nothing is told of them.
    let large = vec![1; 1 << 20];
    let said = zarr2("[1048576]", "[1048576]", FILLED);
    let keys: Vec<[String; 2]> = (0..70).map(|n| [".zarray", "0"].map(|name| format!("p{n}/{name}"))).collect();
    let mut entries: Vec<(&[u8], Made<'_>)> = { keys.iter() }
        .flat_map(|[key, value]| [(key.as_bytes(), Made::Here(&said)), (value.as_bytes(), Made::Here(&large))])
        .collect();
    entries.sort_by_key(|(one, _)| *one);
    make(&mount.at("large"), &[], &entries);
    let listed = fs::read_dir(tree(&mount, "large.checkpoint")).unwrap_err();
    assert_eq!(listed.raw_os_error(), Some(libc::EIO));
    assert_eq!(bytes(&tree(&mount, "a.checkpoint/p000001.npy")), [1, 0]);
}

/// Whoever asks what each is as he lists them is told of those, too, of which nobody knows yet who may read them.
///
/// Proves T14.
fn databases_are_listed_before_anybody_looks_into_them(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    const COUNT: usize = 150;
    let name = |n: usize| format!("{n:0200}");
    (0..COUNT).for_each(|n| simple(&mount.at(format!("run/{}", name(n))), (0, 1, 2)));
    let mut found = 0;
    for entry in fs::read_dir(tree(&mount, "run")).unwrap() {
        let entry = entry.unwrap();
        assert!(fs::symlink_metadata(entry.path()).unwrap().is_dir());
        found += usize::from(entry.file_name().to_str().unwrap().ends_with(".checkpoint"));
    }
    assert_eq!(found, COUNT);
}

/// Looking into all of it would take longer than a request may.
///
/// Proves T14, T15.
fn a_small_database_of_very_much_keeps_nobody_from_listing(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    const CHILDREN: usize = 16_000;
    const VALUES: usize = 3;
    // All children are one leaf, whose values inflate to that.
    let zeroes = vec![0; 1 << 20];
    let keys: Vec<String> = (0..VALUES).map(|n| format!("{n:02}")).collect();
    let entries: Vec<(&[u8], Made<'_>)> = keys.iter().map(|key| (key.as_bytes(), Made::Here(&zeroes))).collect();
    let body = leaf_body(&[FILE], &entries);
    let first = &body[..body.len() - VALUES * zeroes.len()];
    let leaf = wrapped(NODE, 0, 1, &inflating_behind(first, 20, VALUES * 8));
    assert!(leaf.len() < 2048);
    let names: Vec<String> = (0..CHILDREN).map(|n| format!("p{n:05}/")).collect();
    let children: Vec<(&[u8], u64, At)> =
        names.iter().map(|name| (name.as_bytes(), name.len() as u64, (0, 0, leaf.len() as u64))).collect();
    let top = node(1, &[FILE], &children);
    let root = (0, leaf.len() as u64, top.len() as u64);
    write(&mount.at("large"), &manifest(&[FILE], root, 1), &[leaf, top].concat());
    simple(&mount.at("small"), (0, 1, 2));
    for _ in 0..2 {
        let names = fs::read_dir(tree(&mount, "")).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.filter(|name| name.to_str().unwrap().ends_with(".checkpoint")).collect();
        names.sort();
        assert_eq!(names, ["large.checkpoint", "small.checkpoint"]);
    }
}

/// Its place is taken by another one now and then, which all may read.
///
/// Proves T14.
fn who_moves_a_node_that_he_may_not_read_is_not_told_of_its_values(setup: Setup) {
    const SECRET: [u8; 16] = [0xee; 16];
    if !is_root() {
        return setup.skip("no other users");
    }
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let (dir, array) = (mount.at("a"), zarr2("[16]", "[16]", FILLED));
    let of = |value: &[u8]| leaf(&[FILE], &[(b"a/.zarray", Made::Here(&array)), (b"a/0", Made::Here(value))]);
    let own = of(&[1; 16]);
    write(&dir, &manifest(&[FILE], (0, 0, own.len() as u64), 0), &own);
    let (place, secret) = (dir.join("d/0"), mount.at("secret"));
    fs::write(&secret, of(&SECRET)).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let of = tree(&mount, "a.checkpoint/a.npy");
    assert_eq!(npy(&run(as_user(1000, 1000).arg("cat").arg(&of)).stdout).1, [1; 16]);
    let over = AtomicBool::new(false);
    let told = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(SeqCst) {
                renameat2(AT_FDCWD, &place, AT_FDCWD, &secret, RenameFlags::RENAME_EXCHANGE).unwrap();
            }
        });
        let all = "for n in $(seq 500); do cat \"$0\"; done 2> /dev/null";
        let told = run(as_user(1000, 1000).args(["sh", "-c", all]).arg(&of)).stdout;
        over.store(true, SeqCst);
        told
    });
    assert!(!told.windows(SECRET.len()).any(|bytes| bytes == SECRET));
}
