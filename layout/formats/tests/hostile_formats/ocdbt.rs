//! OCDBT databases.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tensorfs_formats::ocdbt::{Asked, Entry, Tail, Told, Tree, Value};
use tensorfs_formats::{What, tree};

use super::*;

#[path = "../../../../tests/harness/databases.rs"]
#[allow(dead_code, reason = "not all that it makes is needed here")]
pub mod databases;

use databases::{Made, NODE, inflating, leaf_body, varint, wrapped};

type Files = BTreeMap<String, Vec<u8>>;

/// The files of one that TensorStore wrote.
fn written(name: &str) -> Files {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/databases").join(name);
    let (mut files, mut left) = (Files::new(), vec![top.clone()]);
    while let Some(dir) = left.pop() {
        let inside: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        for path in inside {
            match path.is_dir() {
                true => left.push(path),
                false => {
                    let name = path.strip_prefix(&top).unwrap().to_str().unwrap().to_owned();
                    files.insert(name, fs::read(path).unwrap());
                }
            }
        }
    }
    files
}

fn told(bytes: &[u8], asked: Asked) -> (Vec<Told>, Recognised) {
    let mut all = Vec::new();
    let found = tree(&bytes, asked, &mut |told| {
        assert_eq!(told.fault(), None);
        all.push(told);
        ControlFlow::Continue(())
    });
    (all, found)
}

/// All keys of one, with what is wrong.
fn walk(files: &Files) -> Result<(Vec<Entry>, Tree), String> {
    let mut walk = Tree::new(true, true);
    let mut entries = Vec::new();
    let mut take = |walk: &mut Tree, name: &str, step: Option<&tensorfs_formats::ocdbt::Step>| {
        let bytes = files.get(name).ok_or_else(|| format!("no {name}"))?;
        let (all, found) = told(bytes, step.map_or(Asked::Manifest, |step| step.asked));
        for told in all {
            entries.extend(walk.take(step, told).map_err(|wrong| format!("{wrong:?}"))?);
        }
        found.reason.map_or(Ok(()), Err)
    };
    take(&mut walk, "manifest.ocdbt", None)?;
    if walk.is_numbered() {
        let newest = files.keys().rfind(|name| name.starts_with("manifest.0")).unwrap().clone();
        take(&mut walk, &newest, None)?;
    }
    while let Some(step) = walk.step() {
        take(&mut walk, &step.place.path, Some(&step))?;
    }
    Ok((entries, walk))
}

fn keys(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| std::str::from_utf8(&entry.key).unwrap()).collect()
}

#[test]
fn keys_are_those_that_were_written() {
    let (entries, walked) = walk(&written("database-deep")).unwrap();
    let mut expected: Vec<String> = (0..64).map(|n| format!("many/{n}.0")).chain(["many/.zarray".into()]).collect();
    expected.extend((0..9).map(|n| format!("other/{n}")));
    expected.sort();
    assert_eq!(keys(&entries), expected);
    assert_eq!((walked.version(), walked.keys(), walked.unknown()), (Some(13), 74, None));
    let value = |key: &str| entries.iter().find(|entry| entry.key == key.as_bytes()).unwrap();
    assert_eq!(value("many/63.0").bytes, [248, 249, 250, 251, 252, 253, 254, 255]);
    assert_eq!((value("other/3").len, value("other/3").place.as_ref().unwrap().len), (200, 200));
    let (entries, _) = walk(&written("database-merged")).unwrap();
    assert_eq!(keys(&entries)[..3], ["params.w0/.zarray", "params.w0/0.0", "params.w0/1.0"]);
    assert!(entries.iter().all(|entry| entry.place.as_ref().unwrap().path.starts_with("ocdbt.process_")));
    let (entries, _) = walk(&written("database-numbered")).unwrap();
    assert_eq!(keys(&entries), ["w/.zarray", "w/0", "w/1"]);
    assert!(walk(&written("database-empty")).unwrap().0.is_empty());
}

/// Whatever bit is another, and wherever a file ends, what is told is what was, or that something is wrong.
#[test]
fn what_is_told_is_whole() {
    for name in ["database-numbered", "database-plain"] {
        let files = written(name);
        let (entries, walked) = walk(&files).unwrap();
        let needed: BTreeMap<String, u64> = walked.needed().map(|(path, end)| (path.to_owned(), end)).collect();
        for (file, bytes) in &files {
            for at in 0..bytes.len() {
                let mut other = files.clone();
                other.get_mut(file).unwrap()[at] ^= 1 << (at % 8);
                if let Ok((other, walked)) = walk(&other) {
                    assert!(other == entries || walked.unknown().is_some(), "{name} {file} {at}");
                }
                let mut cut = files.clone();
                cut.insert(file.clone(), bytes[..at].to_vec());
                if let Ok((other, walked)) = walk(&cut) {
                    // Values are not read here.
                    let is_short = needed.get(file).is_some_and(|end| at as u64 >= *end) || other == entries;
                    assert!(is_short || walked.unknown().is_some(), "{name} {file} {at}");
                }
            }
        }
    }
}

/// What is in a node is told within the bounds, however much it says that there is.
#[test]
fn nodes_take_little_memory() {
    let node = |body: &[u8]| wrapped(NODE, 0, 0, body);
    let many: Vec<Vec<u8>> = (0..500_000_u32).map(|n| n.to_be_bytes().to_vec()).collect();
    let many: Vec<(&[u8], Made<'_>)> = many.iter().map(|key| (&key[..], Made::In((0, 1 << 60, 9)))).collect();
    let full = leaf_body(&[("", "d/0")], &many);
    let count = |count: u64| [vec![0, 0], varint(count)].concat();
    let value = vec![b'{'; 1 << 20];
    let values: Vec<Vec<u8>> = (0..40_u8).map(|n| [&[n][..], b"/zarr.json"].concat()).collect();
    let values: Vec<(&[u8], Made<'_>)> = values.iter().map(|key| (&key[..], Made::Here(&value))).collect();
    // Keys that each have most of the one before: more than can be told.
    let shared = [count(2000), varint(0), [0xfe, 0xff, 3].repeat(1999)].concat();
    let all = [
        node(&full),
        node(&leaf_body(&[], &values)),
        node(&count(1 << 19)),
        node(&count(u64::MAX)),
        node(&[vec![0], varint(1 << 16), [0xff, 0xff, 3].repeat(1 << 17)].concat()),
        node(&shared),
        wrapped(NODE, 0, 1, &inflating(23, 4096)),
        wrapped(NODE, 0, 1, &inflating(10, 2000)),
    ];
    for (number, bytes) in all.iter().enumerate() {
        for height in [0, 1] {
            let asked =
                Asked::Node { at: 0, len: bytes.len() as u64, height, tail: Tail::default(), with_values: true };
            HELD.set(0);
            PEAK.set(0);
            let mut count = 0;
            let found = tree(&&bytes[..], asked, &mut |told| {
                assert_eq!(told.fault(), None);
                count += 1;
                ControlFlow::Continue(())
            });
            assert!((PEAK.get() as usize) < MEMORY, "{number}, {height}: {}", PEAK.get());
            assert!(found.error.is_none() && count <= 600_000, "{number}, {height}: {found:?}");
            if number == 0 && height == 0 {
                assert_eq!((count, found.reason), (500_001, None));
            }
        }
    }
}

/// What stands beside a key is the metadata of an array by the whole of its name.
#[test]
fn arrays_have_the_names_of_their_keys() {
    let array = br#"{"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1"}"#;
    let of = |before: &str, key: &str| {
        let bytes = wrapped(NODE, 0, 0, &leaf_body(&[], &[(key.as_bytes(), Made::Here(array))]));
        let tail = Tail::of(before.as_bytes());
        let (mut all, found) =
            told(&bytes, Asked::Node { at: 0, len: bytes.len() as u64, height: 0, tail, with_values: false });
        assert_eq!(found.reason, None);
        match all.pop() {
            Some(Told::Key { value: Value::Here { what, bytes, len }, .. }) => {
                assert!(bytes.is_empty() && len == array.len() as u64);
                matches!(what, Some(What::Array(_)))
            }
            other => panic!("{other:?}"),
        }
    };
    for (before, key) in [("", ".zarray"), ("a/.zarray", ""), ("a/.za", "rray"), ("", "a/.zarray"), ("x", "/.zarray")] {
        assert!(of(before, key), "{before} {key}");
    }
    for (before, key) in [("x", ".zarray"), ("a/.zarray", "2"), ("xxxxxxxxxxxxxxxxxxx.za", "rray"), ("", "0.0")] {
        assert!(!of(before, key), "{before} {key}");
    }
}
