//! OCDBT databases: what TensorStore writes, and Orbax.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tensorfs_tests::databases::{At, MANIFEST, Made, NODE, inflating, leaf, manifest, manifest_body, node, wrapped};
use tensorfs_tests::{Call, HostCalls, Rule, Setup, on_mounts, run, scratch, tensorfs, xattr};

use crate::tensors::{complains, make_fifo, names, prints};

on_mounts!(
    databases_are_incomplete_where_something_of_their_newest_version_is_missing,
    databases_of_more_than_is_looked_at_are_not_called_incomplete,
    what_was_said_of_a_database_is_remembered_until_it_changes,
);

/// Those that TensorStore wrote.
fn written() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../layout/formats/tests/databases")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &to) } else { assert!(fs::copy(entry.path(), to).is_ok()) }
    }
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

/// What is listed, and what is said of it.
fn listed(dir: &Path) -> (Option<i32>, Vec<Value>, String) {
    let output = run(tensorfs().args(["tensors", "--json"]).arg(dir));
    let lines = String::from_utf8_lossy(&output.stdout);
    let lines = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code(), lines, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn databases_are_listed_without_their_library() {
    let names_of = |name: &str| names(&["tensors", written().join(name).to_str().unwrap()]);
    assert_eq!(names_of("database"), ["model/bias", "model/weight", "sparse", "three"]);
    assert_eq!(names_of("database-plain"), ["s", "w"]);
    assert_eq!((names_of("database-deep"), names_of("database-numbered")), (vec!["many".into()], vec!["w".into()]));
    // Of what is put together the parts are no databases of their own.
    assert_eq!(names_of("database-merged"), ["params.w0", "params.w1"]);
    let of = |name: &str| prints(0, &["tensors", written().join(name).to_str().unwrap()]);
    assert!(of("database-deep").contains("OCDBT, 1 array, 64 of 64 chunks, 512 B, and 9 keys of no array"));
    assert!(of("database-empty").contains("OCDBT, 0 arrays, 0 of 0 chunks"));
    let deep = written().join("database-deep");
    let deep = deep.to_str().unwrap();
    let many = run(tensorfs().args(["cat", deep, "many"])).stdout;
    assert!(many[many.len() - 512..].iter().enumerate().all(|(n, byte)| *byte == n as u8));
    assert_eq!(prints(0, &["diff", deep, deep]), "0 different, 1 the same\n");
}

/// Whatever file of a database is gone, cut short or not as it was, nothing is told that is not there, and nothing is
/// taken for a fill value.
#[test]
fn databases_say_what_is_missing_or_wrong() {
    for name in ["database-deep", "database-numbered", "database-merged"] {
        let whole = written().join(name);
        let (code, all, told) = listed(&whole);
        assert_eq!((code, told.as_str()), (Some(0), ""));
        let mut hurt = 0;
        for (number, file) in files_below(&whole).into_iter().enumerate() {
            let below = file.strip_prefix(&whole).unwrap().to_str().unwrap();
            type Hurt<'a> = (&'a str, &'a dyn Fn(&Path));
            let hurts: [Hurt<'_>; 4] = [
                ("is missing", &|path| fs::remove_file(path).unwrap()),
                ("cut short", &|path| {
                    let bytes = fs::read(path).unwrap();
                    fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
                }),
                ("is a link", &|path| {
                    fs::remove_file(path).unwrap();
                    symlink(&file, path).unwrap();
                }),
                ("no regular file", &|path| {
                    fs::remove_file(path).unwrap();
                    make_fifo(path.to_str().unwrap());
                }),
            ];
            // What is no file is so of any, and takes a while of each.
            let kinds = if number < 3 { 4 } else { 2 };
            for (what, hurting) in &hurts[..kinds] {
                let scratch = scratch();
                let dir = scratch.path().join("database");
                copy(&whole, &dir);
                hurting(&dir.join(below));
                let (code, some, told) = listed(&dir);
                if code == Some(0) {
                    // Of an older version, or of a database of which this one is made.
                    assert!(some.len() == all.len() || below == "manifest.ocdbt", "{name} {below}: {told}");
                    continue;
                }
                hurt += 1;
                assert_eq!(code, Some(1), "{name} {below}");
                assert!(told.contains(what), "{name} {below}, {what}: {told}");
                assert!(some.len() <= all.len());
                for array in some.iter().take(if *what == "is missing" { 1 } else { 0 }) {
                    let array = array["name"].as_str().unwrap();
                    let dir = dir.to_str().unwrap();
                    if run(tensorfs().args(["cat", dir, array])).status.success() {
                        let one = |dir: &str| run(tensorfs().args(["cat", dir, array])).stdout;
                        assert_eq!(one(dir), one(whole.to_str().unwrap()), "{name} {below} {array}");
                    }
                }
            }
            // A bit of a node: its checksum says so; one of a value is of the value.
            let bytes = fs::read(&file).unwrap();
            for at in (number % 151..bytes.len()).step_by(151) {
                let scratch = scratch();
                let dir = scratch.path().join("database");
                copy(&whole, &dir);
                let mut other = bytes.clone();
                other[at] ^= 4;
                fs::write(dir.join(below), other).unwrap();
                let (code, some, told) = listed(&dir);
                assert!(matches!(code, Some(0 | 1)) && some.len() <= all.len(), "{name} {below} {at}: {told}");
                assert!(
                    code == Some(1) || told.is_empty() || told.contains("not known"),
                    "{name} {below} {at}: {told}"
                );
            }
        }
        assert!(hurt > 5, "{name}: {hurt}");
    }
}

/// Proves T13.
fn databases_are_incomplete_where_something_of_their_newest_version_is_missing(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let complete =
        |dir: &Path| xattr::get(dir, "user.tensorfs.complete").map(|value| String::from_utf8(value).unwrap());
    for name in ["database", "database-deep", "database-numbered", "database-merged"] {
        let whole = written().join(name);
        let dir = mount.at(name);
        copy(&whole, &dir);
        let path = dir.to_str().unwrap();
        for _ in 0..2 {
            assert_eq!(complete(&dir).unwrap(), "complete", "{name}");
            prints(0, &["seal", path]);
            prints(0, &["verify", path]);
        }
        assert_eq!(prints(0, &["latest", path]), format!("{path}\n"));
        let mut hurt = 0;
        for file in files_below(&whole) {
            let below = file.strip_prefix(&whole).unwrap();
            let bytes = fs::read(&file).unwrap();
            fs::remove_file(dir.join(below)).unwrap();
            let (code, ..) = listed(&dir);
            let is_needed = code == Some(1) || below == Path::new("manifest.ocdbt");
            if is_needed && below != Path::new("manifest.ocdbt") {
                hurt += 1;
                assert_eq!(complete(&dir).unwrap(), "incomplete", "{name} {below:?}");
                let told = prints(5, &["verify", path]);
                let line = format!("{path}: incomplete: {} is missing", below.to_str().unwrap());
                assert_eq!(told.lines().filter(|found| *found == line).count(), 1, "{name} {told}");
                assert_eq!(run(tensorfs().args(["latest", path])).status.code(), Some(1));
                assert!(prints(0, &["ls", path]).contains("incomplete"));
            }
            // Cut short by one byte.
            fs::write(dir.join(below), &bytes[..bytes.len() - 1]).unwrap();
            let is_cut = complete(&dir).unwrap();
            fs::write(dir.join(below), &bytes).unwrap();
            if is_needed {
                assert!(is_cut == "incomplete" || is_unused_at_its_end(&dir, below), "{name} {below:?}");
            }
        }
        assert!(hurt > 0 && complete(&dir).unwrap() == "complete", "{name}");
    }
    // What a process of Orbax has written is none by itself.
    assert!(complete(&mount.at("database-merged/ocdbt.process_0")).is_err());
}

/// The last byte of a data file may be of an older version.
fn is_unused_at_its_end(dir: &Path, below: &Path) -> bool {
    let path = dir.join(below);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let (code, ..) = listed(dir);
    fs::write(&path, bytes).unwrap();
    code == Some(0)
}

/// A database of one data file.
fn make(dir: &Path, manifest: &[u8], data: &[u8]) -> String {
    fs::create_dir_all(dir.join("d")).unwrap();
    fs::write(dir.join("manifest.ocdbt"), manifest).unwrap();
    fs::write(dir.join("d/0"), data).unwrap();
    dir.to_str().unwrap().to_owned()
}

const FILE: (&str, &str) = ("", "d/0");
const ARRAY: &[u8] = br#"{"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "fill_value": 9}"#;

fn of_len(at: u64, bytes: &[u8]) -> At {
    (0, at, bytes.len() as u64)
}

/// A tree of which each node has two children that are one: two to the power of its height ways lead to a leaf.
fn of_many_ways(height: u8) -> (Vec<u8>, At) {
    let mut data = leaf(&[FILE], &[(b"x", Made::Here(b"y"))]);
    let mut below = of_len(0, &data);
    for height in 1..=height {
        let node = node(height, &[FILE], &[(b"a", 1, below), (b"b", 1, below)]);
        below = of_len(data.len() as u64, &node);
        data.extend(node);
    }
    (data, below)
}

#[test]
fn databases_that_lie_are_told() {
    let scratch = scratch();
    let dir = |name: &str| scratch.path().join(name);
    let (one, two) = (Made::Here(b"\x01\x02"), Made::Here(b"\x03\x04"));
    let good = leaf(&[FILE], &[(b"a/.zarray", Made::Here(ARRAY)), (b"a/0", one), (b"a/1", two)]);
    let at = make(&dir("good"), &manifest(&[FILE], of_len(0, &good), 0), &good);
    assert_eq!(prints(0, &["tensors", "--json", &at]).lines().count(), 1);
    let said = |name: &str, manifest: &[u8], data: &[u8], why: &str| {
        let at = make(&dir(name), manifest, data);
        for command in [["tensors", &at].to_vec(), ["ls", &at].to_vec()] {
            let output = run(tensorfs().args(&command));
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(told.contains(why) && !told.contains("reader"), "{name}: {told}, and not {why}");
        }
        assert!(matches!(run(tensorfs().args(["diff", &at, &at])).status.code(), Some(0 | 2)), "{name}");
    };
    let root = |data: &[u8], height| manifest(&[FILE], of_len(0, data), height);
    // Nodes that lead to themselves, to what is no node, and to more than there is.
    let itself = node(7, &[FILE], &[(b"a", 0, (0, 0, 70))]);
    let itself = node(7, &[FILE], &[(b"a", 0, of_len(0, &itself))]);
    said("itself", &root(&itself, 7), &itself, "another height");
    let higher = node(1, &[FILE], &[(b"a", 0, (0, 0, 12))]);
    said("short", &root(&higher, 1), &higher, "not as long as it says");
    said(
        "none",
        &root(&good, 0),
        b"nothing of this kind, but enough of it for a node and for its checksum, too, and more \
        that nobody wants to read at all ....................................................................",
        "no node",
    );
    let behind = node(1, &[FILE], &[(b"a", 0, (0, 1 << 40, 100))]);
    said("behind", &root(&behind, 1), &behind, "is cut short: it has");
    let wraps = node(1, &[FILE], &[(b"a", 0, (0, u64::MAX - 1, 100))]);
    said("wraps", &root(&wraps, 1), &wraps, "a place that cannot be");
    let file = node(1, &[FILE], &[(b"a", 0, (1, 0, 100))]);
    said("file", &root(&file, 1), &file, "a file that is not among those");
    let (ways, top) = of_many_ways(40);
    said("ways", &manifest(&[FILE], top, 40), &ways, "more than 16384 nodes");
    // Paths that lead elsewhere.
    fs::write(dir("outside"), &good).unwrap();
    for (number, path) in
        ["../outside", "d/../../outside", "/etc/passwd", "d//0", "d/", ".", "d/0\0"].iter().enumerate()
    {
        let elsewhere = [("", *path)];
        let name = format!("elsewhere{number}");
        said(&name, &manifest(&elsewhere, of_len(0, &good), 0), &good, "not below the directory");
        let value = leaf(&elsewhere, &[(b"a/.zarray", Made::Here(ARRAY)), (b"a/0", Made::In((0, 0, 2)))]);
        said(&format!("{name}-value"), &root(&value, 0), &value, "not below the directory");
    }
    let up = leaf(&[("../", "outside")], &[(b"a", Made::In((0, 0, 2)))]);
    said("base", &root(&up, 0), &up, "not below the directory");
    // Keys.
    let keys = leaf(&[FILE], &[(b"b", Made::Here(b"")), (b"a", Made::Here(b""))]);
    said("keys", &root(&keys, 0), &keys, "keys that are not in order");
    let twice = leaf(&[FILE], &[(b"a", Made::Here(b""))]);
    let both = node(1, &[FILE], &[(b"a", 0, of_len(0, &twice)), (b"b", 0, of_len(0, &twice))]);
    let data = [&twice[..], &both].concat();
    said("twice", &manifest(&[FILE], of_len(twice.len() as u64, &both), 1), &data, "keys that are not in order");
    let long = vec![b'k'; 65_535];
    let deep = node(2, &[FILE], &[(&long, 65_535, (0, 0, 100))]);
    let deeper = node(1, &[FILE], &[(&long, 65_535, of_len(0, &twice))]);
    let above = node(2, &[FILE], &[(&long, 65_535, of_len(twice.len() as u64, &deeper))]);
    assert!(deep.len() > 65_535);
    let data = [&twice[..], &deeper, &above].concat();
    let top = of_len((twice.len() + deeper.len()) as u64, &above);
    said("long", &manifest(&[FILE], top, 2), &data, "too long");
    let empty = leaf(&[FILE], &[]);
    said("empty", &root(&empty, 0), &empty, "without entries");
    // What is no metadata of an array, and chunks of another length.
    let json = leaf(&[FILE], &[(b"a/.zarray", Made::Here(b"{")), (b"b/zarr.json", Made::In((0, 0, 4)))]);
    said("json", &root(&json, 0), &json, "a, an array that is not understood: JSON that is cut short");
    said("json2", &root(&json, 0), &json, "b, an array that is not understood");
    let odd = leaf(&[FILE], &[(b"a/.zarray", Made::Here(ARRAY)), (b"a/0", Made::Here(b"123"))]);
    let at = make(&dir("odd"), &root(&odd, 0), &odd);
    assert!(complains(1, &["tensors", &at]).contains("a: its chunk 0 has 3 bytes, and its elements take 2"));
    // Bytes that nothing says what they are.
    let more = wrapped(NODE, 0, 0, &[&good[14..good.len() - 4], b"more"].concat());
    said("more", &root(&more, 0), &more, "bytes that nothing says what they are");
}

/// Databases that have more of something than is looked at, and what is said of it: entries of a node, and data files
/// that one names. The last one has a node in a file that is not there, too.
fn of_too_much() -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    let keys: Vec<String> = (0..(1 << 19) + 1).map(|n| format!("k{n:07}")).collect();
    let entries: Vec<(&[u8], Made<'_>)> = keys.iter().map(|key| (key.as_bytes(), Made::Here(b"v"))).collect();
    let many = leaf(&[FILE], &entries);
    let names: Vec<String> = (0..(1 << 16) + 1).map(|n| format!("d/{n}")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| ("", name.as_str())).collect();
    let files = leaf(&files, &[(b"x", Made::Here(b"y"))]);
    let of_one = |node: Vec<u8>| (manifest(&[FILE], of_len(0, &node), 0), node);
    let top = node(1, &[FILE, ("", "d/gone")], &[(b"k", 0, of_len(0, &many)), (b"l", 0, (1, 0, 100))]);
    let both = (manifest(&[FILE], of_len(many.len() as u64, &top), 1), [&many[..], &top].concat());
    let all = [("524289 entries of one node", of_one(many)), ("65537 data files", of_one(files)), ("d/gone", both)];
    all.into_iter().map(|(why, (manifest, data))| (why, manifest, data)).collect()
}

/// Proves T13.
fn databases_of_more_than_is_looked_at_are_not_called_incomplete(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let complete = |dir: &Path| xattr::get(dir, "user.tensorfs.complete");
    let run_dir = mount.at("run");
    let good = leaf(&[FILE], &[(b"a/.zarray", Made::Here(ARRAY)), (b"a/0", Made::Here(b"12"))]);
    let older = make(&run_dir.join("1"), &manifest(&[FILE], of_len(0, &good), 0), &good);
    for (number, (why, manifest, data)) in of_too_much().into_iter().enumerate() {
        let dir = run_dir.join((number + 2).to_string());
        let path = make(&dir, &manifest, &data);
        // Of one that lacks what it needs, however much there is, that is known.
        if number == 2 {
            assert_eq!(complete(&dir).as_deref(), Ok(&b"incomplete"[..]));
            assert!(prints(5, &["verify", &path]).contains("incomplete: d/gone is missing"));
            continue;
        }
        assert_eq!(complete(&dir), Err(nix::errno::Errno::EIO), "{why}");
        prints(0, &["seal", &path]);
        let said = |command: &[&str]| {
            let output = run(tensorfs().args(command));
            let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (output.status.code(), told(&output.stdout), told(&output.stderr))
        };
        for command in [["verify", &path], ["tensors", &path]] {
            let (code, out, told) = said(&command);
            assert_eq!(code, Some(0), "{why}: {told}");
            assert!(told.contains("not looked into: ") && told.contains(why), "{why}: {told}");
            assert!(!out.contains("incomplete") && !told.contains("incomplete"), "{why}: {out} {told}");
        }
        // What nobody can judge is neither what a run goes on from nor set aside.
        let top = run_dir.to_str().unwrap();
        let (code, out, told) = said(&["latest", top]);
        assert!(code == Some(0) && out == format!("{older}\n") && told.contains(&path), "{out} {told}");
        said(&["rollback", top]);
        assert!(dir.join("manifest.ocdbt").exists(), "{why}");
        fs::remove_dir_all(&dir).unwrap();
    }
}

/// Proves T13.
fn what_was_said_of_a_database_is_remembered_until_it_changes(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let complete = |dir: &Path| xattr::get(dir, "user.tensorfs.complete").map(|said| String::from_utf8(said).unwrap());
    let names = ["database-deep", "database-numbered", "database-merged"];
    let dirs: Vec<PathBuf> = names.iter().map(|name| mount.at(name)).collect();
    for (name, dir) in names.iter().zip(&dirs) {
        copy(&written().join(name), dir);
        prints(0, &["seal", dir.to_str().unwrap()]);
    }
    // A file that was just changed may change again without that it shows.
    std::thread::sleep(std::time::Duration::from_millis(50));
    for dir in &dirs {
        let reading = calls.add(Rule::of(Call::Read).on("/segments/"));
        let read = [0; 3].map(|_| {
            let before = reading.arrived();
            assert_eq!(complete(dir).unwrap(), "complete");
            reading.arrived() - before
        });
        // What of each file is looked at for itself is read each time, and no node is.
        assert!(read[1] < read[0] && read[2] == read[1], "{read:?}");
        // A data file that is not there is seen.
        let data = files_below(&dir.join("d")).pop().unwrap();
        fs::rename(&data, mount.at("away")).unwrap();
        let gone = complete(dir).unwrap();
        fs::rename(mount.at("away"), &data).unwrap();
        assert_eq!((gone.as_str(), complete(dir).as_deref()), ("incomplete", Ok("complete")));
    }
    for dir in &dirs {
        // Cut, in place, and another of that name.
        let data = files_below(&dir.join("d")).pop().unwrap();
        let bytes = fs::read(&data).unwrap();
        fs::write(&data, &bytes[..1]).unwrap();
        assert_eq!(complete(dir).unwrap(), "incomplete");
        fs::write(mount.at("other"), &bytes).unwrap();
        fs::rename(mount.at("other"), &data).unwrap();
        assert_eq!(complete(dir).unwrap(), "complete");
        // As long as it was, and not the bytes that were there.
        let manifest = dir.join("manifest.ocdbt");
        let mut bytes = fs::read(&manifest).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&manifest, bytes).unwrap();
        assert_eq!(complete(dir).unwrap(), "incomplete");
    }
}

/// Very many arrays may be what one value says.
#[test]
fn databases_of_very_many_arrays_are_not_looked_into() {
    let scratch = scratch();
    let keys: Vec<String> = (0..(1 << 17) + 1).map(|n| format!("a{n:06}/.zarray")).collect();
    let of = |count: usize| {
        let value = (0, 0, ARRAY.len() as u64);
        let entries: Vec<(&[u8], Made<'_>)> =
            keys[..count].iter().map(|key| (key.as_bytes(), Made::In(value))).collect();
        let node = leaf(&[FILE], &entries);
        let at = (0, ARRAY.len() as u64, node.len() as u64);
        make(&scratch.path().join(count.to_string()), &manifest(&[FILE], at, 0), &[ARRAY, &node].concat())
    };
    let few = of(3000);
    assert_eq!(prints(0, &["tensors", "--json", &few]).lines().count(), 3000);
    let many = of(keys.len());
    for command in ["tensors", "ls", "verify"] {
        let output = run(tensorfs().args([command, &many]));
        let told = String::from_utf8_lossy(&output.stderr);
        let is_told = told.contains("not looked into: more than 131072 arrays");
        assert_eq!((is_told, told.contains("incomplete")), (command == "tensors", false), "{command}: {told}");
    }
}

/// What a later version of the library writes is not damaged.
#[test]
fn databases_of_another_kind_are_not_looked_into() {
    let scratch = scratch();
    let good = leaf(&[FILE], &[(b"a/.zarray", Made::Here(ARRAY))]);
    let body = manifest_body(&[FILE], of_len(0, &good), 0);
    let mut kind = body.clone();
    kind[16] = 9;
    let mut compression = body.clone();
    compression[23] = 5;
    let of_node = |node: &[u8]| manifest(&[FILE], of_len(0, node), 0);
    let (version, packed) = (wrapped(NODE, 3, 0, b"anything"), wrapped(NODE, 0, 7, b"anything"));
    let wide = wrapped(NODE, 0, 1, &inflating(27, 1));
    let all = [
        ("version 1", wrapped(MANIFEST, 1, 0, &body), good.clone()),
        ("a way that is not known: 2", wrapped(MANIFEST, 0, 2, &body), good.clone()),
        ("of a kind that is not known: 9", wrapped(MANIFEST, 0, 0, &kind), good.clone()),
        ("a way that is not known: 5", wrapped(MANIFEST, 0, 0, &compression), good.clone()),
        ("version 3", of_node(&version), version.clone()),
        ("a way that is not known: 7", of_node(&packed), packed.clone()),
        ("134217728 bytes to inflate it", of_node(&wide), wide.clone()),
    ];
    for (number, (why, manifest, data)) in all.iter().enumerate() {
        let at = make(&scratch.path().join(number.to_string()), manifest, data);
        let output = run(tensorfs().args(["tensors", &at]));
        let (text, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{told}");
        assert!(told.contains(why) && told.contains("not looked into") && !told.contains("incomplete"), "{told}");
        assert!(text.contains("OCDBT, a database of TensorStore's that is not looked into"), "{text}");
        assert_eq!(prints(0, &["diff", &at, &at]), "0 different, 0 the same\n");
    }
}

/// What is compressed inflates to no more than can be.
#[test]
fn databases_inflate_to_no_more_than_they_may() {
    let scratch = scratch();
    let of = |name: &str, node: &[u8]| make(&scratch.path().join(name), &manifest(&[FILE], of_len(0, node), 0), node);
    // A height, and no files; then entries without an end, of which all numbers are zeroes.
    for (name, lots, why) in [("large", 2000, "without entries"), ("cut", 1, "without entries")] {
        let at = of(name, &wrapped(NODE, 0, 1, &inflating(20, lots)));
        let told = complains(1, &["tensors", &at]);
        assert!(told.contains(why) && !told.contains("reader"), "{name}: {told}");
    }
    let mut frame = inflating(20, 4);
    frame[8] ^= 0xff;
    frame.truncate(12);
    let told = complains(1, &["tensors", &of("bad", &wrapped(NODE, 0, 1, &frame))]);
    assert!(told.contains("inflated") && !told.contains("reader"), "{told}");
    assert!(complains(1, &["tensors", &of("none", &wrapped(NODE, 0, 1, b"no frame"))]).contains("inflated"));
}
