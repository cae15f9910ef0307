//! HDF5 files whose addresses lead in circles, to each other, or nowhere.

use std::fs;
use std::path::Path;

use tensorfs_formats::{Format, Recognised};

use super::survives;

const ROOT: u64 = 64;
const NOWHERE: u64 = u64::MAX;

fn sample(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(name)).unwrap()
}

/// A file of parts at their places, with the root at [`ROOT`].
fn file(parts: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let len = parts.iter().map(|(at, part)| at + part.len() as u64).max().unwrap().max(200);
    let addresses = [0, NOWHERE, len, ROOT].map(u64::to_le_bytes).concat();
    let mut file = [b"\x89HDF\r\n\x1a\n", &[2, 8, 8, 0][..], &addresses].concat();
    file.resize(len as usize, 0);
    for (at, part) in parts {
        file[*at as usize..][..part.len()].copy_from_slice(part);
    }
    file
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u16).to_le_bytes(), &[0], body].concat()
}

fn object(messages: &[Vec<u8>]) -> Vec<u8> {
    let messages = messages.concat();
    [b"OHDR\x02\x02", &(messages.len() as u32).to_le_bytes()[..], &messages, &[0; 4]].concat()
}

fn link(name: &str, at: u64) -> Vec<u8> {
    let len = (name.len() as u16).to_le_bytes();
    message(6, &[&[1, 1][..], &len, name.as_bytes(), &at.to_le_bytes()].concat())
}

fn symbols(tree: u64, heap: u64) -> Vec<u8> {
    message(17, &[tree, heap].map(u64::to_le_bytes).concat())
}

fn heap(at: u64, len: u64) -> Vec<u8> {
    [b"HEAP\0\0\0\0", &[len, NOWHERE, at].map(u64::to_le_bytes).concat()[..]].concat()
}

fn tree(level: u8, children: &[u64]) -> Vec<u8> {
    let head = [b"TREE\0", &[level][..], &(children.len() as u16).to_le_bytes()].concat();
    let children = children.iter().map(|child| [0, *child].map(u64::to_le_bytes).concat());
    [head, [NOWHERE; 2].map(u64::to_le_bytes).concat(), children.collect::<Vec<_>>().concat()].concat()
}

fn entries(all: &[(u64, u64)]) -> Vec<u8> {
    let entry = |(name, at): &(u64, u64)| [name.to_le_bytes(), at.to_le_bytes(), [0; 8], [0; 8], [0; 8]].concat();
    let head = [b"SNOD\x01\0", &(all.len() as u16).to_le_bytes()[..]].concat();
    [head, all.iter().map(entry).collect::<Vec<_>>().concat()].concat()
}

const F4: &[u8] = &[0x11, 0x20, 0x1f, 0, 4, 0, 0, 0, 0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0];

fn set(of: &[u8], shape: &[u64], at: u64) -> Vec<u8> {
    set_of(of, shape, at, u64::MAX)
}

/// With room for so many bytes.
fn set_of(of: &[u8], shape: &[u64], at: u64, room: u64) -> Vec<u8> {
    let sizes: Vec<u8> = shape.iter().flat_map(|size| size.to_le_bytes()).collect();
    object(&[
        message(1, &[&[2, shape.len() as u8, 0, 1][..], &sizes].concat()),
        message(3, of),
        message(8, &[&[3, 1][..], &at.to_le_bytes(), &room.to_le_bytes()].concat()),
    ])
}

/// A data set of four floats at the beginning of the file.
fn floats() -> Vec<u8> {
    set(F4, &[4], 0)
}

/// What is found: HDF5 in any case, so many tensors, and what is said.
fn found(file: &[u8], tensors: u64, reason: Option<&str>) -> Recognised {
    let found = survives(file);
    assert_eq!((found.format, found.tensors), (Format::Hdf5, tensors), "{:?}", found.reason);
    match (reason, &found.reason) {
        (None, None) => {}
        (Some(reason), Some(said)) => assert!(said.contains(reason), "{said:?} is not {reason:?}"),
        (reason, said) => panic!("{said:?} is not {reason:?}"),
    }
    found
}

#[test]
fn files_that_end_anywhere() {
    for name in ["plain.h5", "keras.weights.h5", "v110.h5", "earliest.h5"] {
        let whole = sample(name);
        let (base, end) = if whole[8] == 0 { (24, 40) } else { (12, 28) };
        assert_eq!(whole[base..base + 8], [0; 8]);
        let all = survives(&whole).tensors;
        for len in 12..whole.len() {
            let cut = survives(&whole[..len]);
            assert!(cut.cut && cut.tensors == 0, "{name} to {len}: {:?}", cut.reason);
            // If it says that it ends there.
            let mut bytes = whole[..len].to_vec();
            if len > 100 {
                bytes[end..end + 8].copy_from_slice(&(len as u64).to_le_bytes());
                let found = survives(&bytes);
                assert!(!found.cut && found.tensors <= all, "{name} to {len}");
                assert!(found.reason.is_some() || found.tensors == all, "{name} to {len}");
            }
        }
    }
}

#[test]
fn groups_that_lead_back() {
    let one = (400, floats());
    found(&file(&[(ROOT, object(&[link("x", 400)])), one.clone()]), 1, None);
    // Itself, each other, and a thousand names for one.
    found(&file(&[(ROOT, object(&[link("a", ROOT), link("x", 400)])), one.clone()]), 1, None);
    let both = [(ROOT, object(&[link("a", 200)])), (200, object(&[link("b", ROOT), link("x", 400)])), one.clone()];
    found(&file(&both), 1, None);
    let names: Vec<_> = (0..1000).map(|n| link(&n.to_string(), 40_000)).collect();
    found(&file(&[(ROOT, object(&names)), (40_000, floats())]), 1, None);
    for name in ["", "a/b", "\0"] {
        found(&file(&[(ROOT, object(&[link("a", 400), link(name, 400)])), one.clone()]), 1, Some("cannot be"));
    }
}

#[test]
fn groups_nested_deep() {
    let nested = |depth: u64| {
        let group = |n: u64| (ROOT + n * 64, object(&[link("g", ROOT + (n + 1) * 64)]));
        let mut parts: Vec<_> = (0..depth).map(group).collect();
        parts.push((ROOT + depth * 64, floats()));
        file(&parts)
    };
    found(&nested(1000), 1, None);
    found(&nested(1_000_000), 0, Some("too deep"));
    // Each with a long name.
    let name = "n".repeat(60_000);
    let group = |n: u64| (ROOT + n * 65_536, object(&[link(&name, ROOT + (n + 1) * 65_536)]));
    found(&file(&(0..5).map(group).collect::<Vec<_>>()), 0, Some("a name that is too long"));
}

#[test]
fn headers_that_lead_back() {
    let goes_on = |at: u64, len: u64| message(16, &[at, len].map(u64::to_le_bytes).concat());
    let block = |messages: &[Vec<u8>]| [b"OCHK", &messages.concat()[..], &[0; 4]].concat();
    let more = block(&[link("x", 400)]);
    let len = more.len() as u64;
    let one = (400, floats());
    found(&file(&[(ROOT, object(&[goes_on(200, len)])), (200, more), one]), 1, None);
    let circle = block(&[goes_on(200, 28)]);
    found(&file(&[(ROOT, object(&[goes_on(200, 28)])), (200, circle)]), 0, Some("belongs to two"));
    found(&file(&[(ROOT, object(&[goes_on(200, u64::MAX)]))]), 0, Some("beyond all files"));
    found(&file(&[(ROOT, object(&[goes_on(NOWHERE, 9)]))]), 0, Some("nowhere"));
    found(&file(&[(ROOT, b"OHDR\x02\x03\xff\xff\xff\xff\xff\xff\xff\xff".to_vec())]), 0, Some("beyond all files"));
    found(&file(&[(ROOT, object(&vec![message(0, b""); 70_000]))]), 0, Some("more than 65536 messages"));
}

#[test]
fn trees_that_lead_back() {
    let root = object(&[symbols(200, 300)]);
    let names = (332, b"\0x\0".to_vec());
    let of = |tree: Vec<u8>, entries: Vec<u8>, len: u64| {
        let parts = [(ROOT, root.clone()), (200, tree), (300, heap(332, len)), names.clone(), (400, entries)];
        file(&[&parts[..], &[(600, floats())]].concat())
    };
    found(&of(tree(0, &[400]), entries(&[(1, 600)]), 3), 1, None);
    found(&of(tree(0, &[400, 400]), entries(&[(1, 600)]), 3), 1, Some("belongs to two"));
    found(&of(tree(1, &[200]), entries(&[]), 3), 0, Some("belongs to two"));
    found(&of(tree(200, &[200]), entries(&[]), 3), 0, Some("cannot be"));
    found(&of(tree(0, &[NOWHERE]), entries(&[]), 3), 0, Some("without a branch"));
    found(&of(tree(0, &[400]), entries(&[(1, 600)]), 2), 0, Some("does not end"));
    found(&of(tree(0, &[400]), entries(&[(u64::MAX, 600)]), 3), 0, Some("beyond all files"));
    found(&of(tree(0, &[400]), entries(&[(1, 600)]), u64::MAX), 0, Some("beyond all files"));
}

/// Groups of a thousand links each, all of which have the same long name.
#[test]
fn names_that_are_read_again_and_again() {
    let (mut parts, count, names) = (Vec::new(), 20, 100_000);
    let place = |n: u64| 200_000 + n * 50_000;
    let links: Vec<_> = (0..count).map(|n| link(&format!("{n:04}"), place(n))).collect();
    parts.push((ROOT, object(&links)));
    parts.push((names, [vec![b'n'; 65_000], vec![0]].concat()));
    for n in 0..count {
        let at = place(n);
        parts.push((at, object(&[symbols(at + 100, at + 200)])));
        parts.push((at + 100, tree(0, &[at + 300])));
        parts.push((at + 200, heap(names, 65_001)));
        let same: Vec<_> = (0..1000).map(|m| (0, at + 45_000 + m)).collect();
        parts.push((at + 300, entries(&same)));
    }
    found(&file(&parts), 0, Some("read too often"));
}

#[test]
fn groups_of_many_links() {
    let count = 1_000_000_u64;
    let per_node = 60_000;
    let nodes = count.div_ceil(per_node);
    let node = |n: u64| 3_000_000 + n * (per_node * 40 + 8);
    let name = |n: u64| format!("{n:07}\0");
    let names: String = (0..count / 5).map(name).collect();
    let sets = node(nodes);
    let mut parts = vec![
        (ROOT, object(&[symbols(200, 150)])),
        (150, heap(1_000_000, names.len() as u64)),
        (200, tree(0, &(0..nodes).map(node).collect::<Vec<_>>())),
        (1_000_000, names.into_bytes()),
    ];
    for n in 0..nodes {
        let all: Vec<_> = (n * per_node..((n + 1) * per_node).min(count))
            .map(|n| (n % (count / 5) * 8, sets + n % 1000 * 100))
            .collect();
        parts.push((node(n), entries(&all)));
    }
    parts.extend((0..1000).map(|n| (sets + n * 100, floats())));
    found(&file(&parts), 1000, Some("more than 16777216 bytes"));
}

#[test]
fn sets_that_cannot_be() {
    let of = |set: Vec<u8>| file(&[(ROOT, object(&[link("x", 400)])), (400, set)]);
    found(&of(set(F4, &[u64::MAX, 2], 0)), 0, Some("more elements"));
    found(&of(set(F4, &[1 << 62], 0)), 0, Some("more elements"));
    found(&of(set(F4, &[1 << 40], 0)), 0, Some("beyond the end"));
    found(&of(set(F4, &[4], u64::MAX - 1)), 0, Some("beyond the end"));
    found(&of(set(F4, &[1; 65], 0)), 0, Some("dimensions"));
    found(&of(set(F4, &[], 0)), 1, None);
    found(&of(set_of(F4, &[4], 0, 16)), 1, None);
    found(&of(set_of(F4, &[4], 0, 15)), 0, Some("than their place takes"));
    found(&of(set(F4, &[0, 1 << 40], NOWHERE)), 1, None);
    let within = |len: u16| {
        let data = [&[3, 0][..], &len.to_le_bytes(), &[7; 16]].concat();
        object(&[message(1, &[2, 1, 0, 1, 4, 0, 0, 0, 0, 0, 0, 0]), message(3, F4), message(8, &data)])
    };
    found(&of(within(16)), 1, None);
    found(&of(within(15)), 0, Some("than their place takes"));
    found(&of(within(17)), 0, Some("longer than their message"));
    // Never written.
    found(&of(set(F4, &[4], NOWHERE)), 1, None);
    // Arrays of arrays of arrays; types that end nowhere.
    let array = |base: &[u8]| [&[0x3a, 0, 0, 0, 4, 0, 0, 0, 1, 1, 0, 0, 0][..], base].concat();
    let nested = (0..3).fold(F4.to_vec(), |base, _| array(&base));
    found(&of(set(&nested, &[], 0)), 1, None);
    found(&of(set(&(0..100).fold(F4.to_vec(), |base, _| array(&base)), &[], 0)), 0, Some("nested too deep"));
    found(&of(set(&F4[..9], &[], 0)), 0, Some("longer than its message"));
    found(&of(set(&[0x1c, 0, 0, 0, 4, 0, 0, 0], &[], 0)), 0, Some("unknown class"));
    let named = [&[0x38, 2, 0, 0, 1, 0, 0, 0, 0x10, 8, 0, 0, 1, 0, 0, 0, 0, 0, 8, 0][..], &[b'n'; 60_000]].concat();
    found(&of(set(&named, &[], 0)), 0, Some("left out"));
}
