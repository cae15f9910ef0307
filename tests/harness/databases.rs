//! OCDBT databases made by hand: manifests and nodes that say anything.

use tensorfs_formats::crc32c;

/// What a manifest begins with.
pub const MANIFEST: u32 = 0x0cdb_3a2a;
/// What a node of the tree begins with.
pub const NODE: u32 = 0x0cdb_20de;

/// A place: which file of those that are named, the first byte, and how many.
pub type At = (u64, u64, u64);

/// A value of a key.
pub enum Made<'a> {
    /// It is in a file.
    In(At),
    /// It stands beside the key.
    Here(&'a [u8]),
}

/// Seven bits of a number in a byte.
pub fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn column(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(varint).collect()
}

/// What manifests and nodes are wrapped in.
pub fn wrapped(magic: u32, version: u64, compression: u64, body: &[u8]) -> Vec<u8> {
    let rest = [varint(version), varint(compression), body.to_vec()].concat();
    let len = 12 + rest.len() + 4;
    let mut bytes = [&magic.to_be_bytes()[..], &(len as u64).to_le_bytes(), &rest].concat();
    bytes.extend(crc32c(&bytes).to_le_bytes());
    bytes
}

/// A table of data files, each a path in two halves: one that is for all below as well, and one that is not.
pub fn table(files: &[(&str, &str)]) -> Vec<u8> {
    let lens = |len: fn(&(&str, &str)) -> usize| column(files.iter().map(|file| len(file) as u64));
    let mut bytes = varint(files.len() as u64);
    bytes.extend(column(files.iter().skip(1).map(|_| 0)));
    bytes.extend(lens(|(base, rest)| base.len() + rest.len()));
    bytes.extend(lens(|(base, _)| base.len()));
    files.iter().for_each(|(base, rest)| bytes.extend([base.as_bytes(), rest.as_bytes()].concat()));
    bytes
}

fn keys<'k>(all: impl Iterator<Item = &'k [u8]> + Clone, commons: &[u64]) -> Vec<u8> {
    let mut bytes = column(all.clone().skip(1).map(|_| 0));
    bytes.extend(column(all.clone().map(|key| key.len() as u64)));
    bytes.extend(column(commons.iter().copied()));
    all.for_each(|key| bytes.extend(key));
    bytes
}

fn places(all: &[At]) -> Vec<u8> {
    let of = |get: fn(&At) -> u64| column(all.iter().map(get));
    [of(|at| at.0), of(|at| at.1), of(|at| at.2)].concat()
}

/// A manifest whose newest version has a root of that height there, in the first of the files.
pub fn manifest(files: &[(&str, &str)], root: At, height: u8) -> Vec<u8> {
    wrapped(MANIFEST, 0, 0, &manifest_body(files, root, height))
}

/// What is in one.
pub fn manifest_body(files: &[(&str, &str)], root: At, height: u8) -> Vec<u8> {
    // A UUID, a single manifest, two bounds, versions in nodes of sixteen, nothing compressed.
    let config = [vec![7; 16], vec![0], varint(100), varint(1 << 23), vec![4], varint(0)].concat();
    let version = [varint(1), varint(1), vec![height], places(&[root]), varint(1), varint(1), varint(0), vec![0; 8]];
    [config, table(files), version.concat(), varint(0)].concat()
}

/// A node with keys.
pub fn leaf(files: &[(&str, &str)], entries: &[(&[u8], Made<'_>)]) -> Vec<u8> {
    wrapped(NODE, 0, 0, &leaf_body(files, entries))
}

/// What is in one.
pub fn leaf_body(files: &[(&str, &str)], entries: &[(&[u8], Made<'_>)]) -> Vec<u8> {
    let mut bytes = [vec![0], table(files), varint(entries.len() as u64)].concat();
    bytes.extend(keys(entries.iter().map(|(key, _)| *key), &[]));
    bytes.extend(column(entries.iter().map(|(_, value)| match value {
        Made::In(at) => at.2,
        Made::Here(value) => value.len() as u64,
    })));
    bytes.extend(entries.iter().map(|(_, value)| u8::from(matches!(value, Made::In(_)))));
    let inside: Vec<At> =
        entries.iter().filter_map(|(_, value)| if let Made::In(at) = value { Some(*at) } else { None }).collect();
    bytes.extend(column(inside.iter().map(|at| at.0)));
    bytes.extend(column(inside.iter().map(|at| at.1)));
    entries.iter().for_each(|(_, value)| {
        if let Made::Here(value) = value {
            bytes.extend_from_slice(value);
        }
    });
    bytes
}

/// A node with children: of each the first key, how much of it is common to all below, and where it is.
pub fn node(height: u8, files: &[(&str, &str)], children: &[(&[u8], u64, At)]) -> Vec<u8> {
    let mut bytes = [vec![height], table(files), varint(children.len() as u64)].concat();
    let commons: Vec<u64> = children.iter().map(|(_, common, _)| *common).collect();
    bytes.extend(keys(children.iter().map(|(key, ..)| *key), &commons));
    bytes.extend(places(&children.iter().map(|(.., at)| *at).collect::<Vec<_>>()));
    bytes.extend(column(children.iter().flat_map(|_| [1, 1, 0])));
    wrapped(NODE, 0, 0, &bytes)
}

/// A frame of zstd, with a window of two to the power of `window`, that inflates to so many lots of 128 KiB of zeroes.
pub fn inflating(window: u8, lots: usize) -> Vec<u8> {
    inflating_behind(&[], window, lots)
}

/// A frame like that of `inflating`, with a few bytes in front of the zeroes.
pub fn inflating_behind(first: &[u8], window: u8, lots: usize) -> Vec<u8> {
    let mut bytes = vec![0x28, 0xb5, 0x2f, 0xfd, 0, (window - 10) << 3];
    if !first.is_empty() {
        bytes.extend(&(u32::try_from(first.len()).unwrap() << 3).to_le_bytes()[..3]);
        bytes.extend(first);
    }
    for lot in 1..=lots {
        // One byte, repeated so often; the last block says so.
        let block = u32::from(lot == lots) | 1 << 1 | (128 << 10) << 3;
        bytes.extend(&block.to_le_bytes()[..3]);
        bytes.push(0);
    }
    bytes
}
