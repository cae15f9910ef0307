//! The recognisers of tensor files, and the reading of what they find.

use std::ops::ControlFlow;

use tensorfs_formats::ocdbt::{Asked, At, Entry, Tail, Told, Tree};
use tensorfs_formats::{
    Block, Format, Metadata, Recognised, TensorReader, What, block, crc32c, nodes, npy_header, pieces, planned,
    read_tensor, recognise, resume, shards, tree,
};
use tensorfs_fs::testing::arrays_of;
use tensorfs_layout::check::fault_of_run;
use tensorfs_layout::segment::{Before, examine};

use crate::databases::{MANIFEST, Made, NODE, leaf, manifest, node, wrapped};

/// Tensors of one file that are read.
const READ: usize = 20;
/// A tensor that is longer when it is read is not read to its end.
const LONGEST: u64 = 1 << 18;

/// A file of any format.
pub fn any(bytes: &[u8]) {
    let mut tensors = Vec::new();
    let found = recognise(&bytes, &mut |tensor| {
        tensors.push(tensor);
        if tensors.len() < 1000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert!(found.end <= bytes.len() as u64 && found.error.is_none());
    assert!(found.bad_frames <= found.frames && found.frames <= bytes.len() as u64, "{found:?}");
    let _ = resume(&bytes, bytes.len() as u64 / 2, &mut |_| ControlFlow::Continue(()));
    for tensor in tensors.iter().take(READ) {
        let (offset, len) = tensor.range();
        assert!(offset.checked_add(len).is_some_and(|end| end <= bytes.len() as u64), "{tensor:?}");
        assert_eq!(npy_header(tensor).is_some(), TensorReader::new(&bytes, tensor).is_ok(), "{tensor:?}");
        if TensorReader::new(&bytes, tensor).is_ok_and(|reader| reader.len() <= LONGEST) {
            let _ = read_tensor(&bytes, tensor, &mut |_| ControlFlow::Continue(()));
        }
    }
    sealed(bytes);
}

/// JSON beside a checkpoint.
pub fn named_shards(bytes: &[u8]) {
    in_full(bytes);
    let found = shards(&bytes);
    assert!(found.end <= bytes.len() as u64 && found.error.is_none() && found.tensors == 0);
    assert!(found.reason.is_none() || found.metadata.is_empty());
    for (_, name) in &found.metadata {
        let is_name = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= 255 && !part.contains('\0');
        assert!(name.len() <= 1024 && name.split('/').all(is_name), "{name:?}");
    }
    // Whatever it is cut to is not whole.
    let end = bytes.trim_ascii_end().len();
    assert!(found.reason.is_some() || shards(&&bytes[..end - 1]).cut);
}

/// The plan of a distributed checkpoint.
pub fn plan(bytes: &[u8]) {
    in_full(bytes);
    let found = planned(&bytes);
    assert!(found.end <= bytes.len() as u64 && found.tensors == 0);
    assert!((found.reason.is_none() && found.error.is_none()) || found.metadata.is_empty());
    for (name, end) in &found.metadata {
        assert!(
            !matches!(name.as_str(), "" | "." | "..") && name.len() <= 255 && !name.contains(['/', '\0']),
            "{name:?}"
        );
        end.parse::<u64>().expect("a number");
    }
    // Whatever it is cut to is not whole.
    assert!(found.reason.is_some() || planned(&&bytes[..found.end as usize - 1]).cut);
}

/// The metadata of a hierarchy of arrays, taken for that of each format.
pub fn arrays(bytes: &[u8]) {
    for metadata in Metadata::ALL {
        let mut count = 0;
        let found = nodes(&bytes, metadata, &mut |node| {
            assert_eq!(node.fault(), None, "{node:?}");
            if let What::Array(array) = &node.what {
                // None of it overflows.
                let grid = array.grid().filter(|grid| !grid.contains(&0));
                let chunks = grid.map(|grid| grid.iter().product::<u64>());
                assert!(chunks.is_none_or(|chunks| chunks <= i64::MAX as u64), "{node:?}");
                let _ = (array.bytes(), array.plain_chunk(), array.tensor(b"x".to_vec()));
            }
            count += 1;
            if count < 10_000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        assert!(found.end <= bytes.len() as u64 && found.tensors == 0 && found.error.is_none());
    }
    for dims in [0, 1, 2, 3] {
        let found = block(&bytes, Block { dims, item: 2 }, &mut |tensor| {
            assert_eq!(tensor.fault(bytes.len() as u64), None, "{tensor:?}");
            ControlFlow::Continue(())
        });
        assert!(found.error.is_none() && found.end <= bytes.len() as u64);
    }
    in_full(bytes);
}

/// A database: the bytes are its manifest, and each of its data files. Where the manifest leads nowhere they are taken
/// for a node of any height.
pub fn ocdbt(bytes: &[u8]) {
    let mut tree = Tree::new(true, true);
    let mut is_named = false;
    let found = ask(bytes, Asked::Manifest, &mut |told| {
        is_named = true;
        tree.take(None, told).map(drop).is_ok()
    });
    assert!(found.error.is_none() && found.tensors == 0);
    walk(bytes, &mut tree);
    if is_named {
        return;
    }
    let (len, tail) = (bytes.len() as u64, Tail::of(b"a/.zarr"));
    for height in [0, 1] {
        let mut tree = Tree::new(true, false);
        let root = Some(At { file: 0, offset: 0, len });
        let version = Told::Version { generation: 1, height, root };
        for told in [Told::File { path: b"d/0".to_vec(), base: 0 }, version] {
            tree.take(None, told).unwrap();
        }
        walk(bytes, &mut tree);
    }
    for (at, height) in [(0, 0), (0, 1), (0, 2), (0, 255), (len / 2, 0)] {
        let len = len - at;
        ask(bytes, Asked::Node { at, len, height, tail, with_values: true }, &mut |_| true);
        ask(bytes, Asked::Versions { at, len, height }, &mut |_| true);
    }
    ask(bytes, Asked::Array { at: 0, len, metadata: Metadata::Zarr3 }, &mut |_| true);
}

/// Goes through a tree, and makes of it what a server makes of it.
fn walk(bytes: &[u8], tree: &mut Tree) {
    let mut entries = Vec::new();
    for _ in 0..200 {
        let Some(step) = tree.step() else { break };
        assert!(step.asked.at() == step.place.offset && !step.place.path.contains(".."));
        let _ = ask(bytes, step.asked, &mut |told| match tree.take(Some(&step), told) {
            Ok(entry) => {
                let is_one = entry.as_ref().is_none_or(|entry| entry.key.len() <= 1 << 16);
                entries.extend(entry);
                is_one
            }
            Err(_) => false,
        });
    }
    put_together(bytes, entries);
    assert!(tree.needed().all(|(path, _)| !path.starts_with('/') && !path.split('/').any(|name| name == "..")));
}

/// What a server makes of the keys of a database.
fn put_together(bytes: &[u8], entries: Vec<Entry>) {
    for most in [usize::MAX, 100_000] {
        let arrays = arrays_of(entries.clone(), most, &mut |place, metadata| {
            let mut said = Err(String::new());
            ask(bytes, Asked::Array { at: place.offset, len: place.len, metadata }, &mut |told| {
                if let Told::Array(what) = told {
                    said = Ok(what);
                }
                true
            });
            said
        });
        for (tensor, chunks) in arrays.unwrap_or_default() {
            assert_eq!(chunks.iter().sum::<u64>(), tensor.elements(), "{tensor:?}");
            assert!(tensor.name.starts_with(b"2/") && chunks.len() <= 4096, "{tensor:?}");
        }
    }
}

fn ask(bytes: &[u8], asked: Asked, each: &mut dyn FnMut(Told) -> bool) -> Recognised {
    tree(&bytes, asked, &mut |told| {
        assert_eq!(told.fault(), None, "{told:?}");
        if each(told) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
}

/// Manifests and nodes that TensorStore wrote, and some of which their checksums are right when their bytes are others.
pub fn databases() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut left = vec![super::super::samples().with_file_name("databases")];
    while let Some(dir) = left.pop() {
        for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                left.push(path);
            } else {
                all.push(std::fs::read(path).unwrap());
            }
        }
    }
    all.sort();
    let file = [("", "d/0")];
    let array = br#"{"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1"}"#;
    let leaf =
        leaf(&file, &[(b"a/.zarray", Made::Here(array)), (b"a/0", Made::In((0, 0, 2))), (b"a/1", Made::Here(b"12"))]);
    let above = node(1, &[("x/", "d/0"), ("", "d/0")], &[(b"a", 1, (1, 0, leaf.len() as u64)), (b"b", 0, (0, 0, 9))]);
    all.extend([manifest(&file, (0, 0, leaf.len() as u64), 0), leaf, above, of_arrays()]);
    all
}

/// A node of arrays of all kinds whose chunks are in files, beside their keys, and nowhere.
fn of_arrays() -> Vec<u8> {
    let zarr2 =
        br#"{"zarr_format": 2, "shape": [3, 5], "chunks": [2, 2], "dtype": "<i2", "order": "F", "fill_value": 7}"#;
    let zarr3 = br#"{"zarr_format": 3, "node_type": "array", "shape": [3], "data_type": "uint8", "codecs": ["bytes"],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 2}"#;
    let entries: [(&[u8], Made<'_>); 9] = [
        (b".zarray", Made::Here(br#"{"zarr_format": 2, "shape": [], "chunks": [], "dtype": "|u1"}"#)),
        (b"0", Made::Here(b"1")),
        (b"a/.zarray", Made::Here(zarr2)),
        (b"a/0.0", Made::In((0, 3, 8))),
        (b"a/1.2", Made::Here(b"12345678")),
        (b"b/c/0", Made::Here(b"12")),
        (b"b/c/1", Made::In((1, 0, 2))),
        (b"b/zarr.json", Made::Here(zarr3)),
        (b"c/zarr.json", Made::In((0, 100, 200))),
    ];
    leaf(&[("", "d/0"), ("x/", "1")], &entries)
}

/// As [`ocdbt`], with the checksums of what is wrapped made right: what is behind them is reached, too.
pub fn ocdbt_behind_checksums(bytes: &[u8]) {
    let [version, compression, height, body @ ..] = bytes else { return };
    let magic = if *height & 1 == 0 { NODE } else { MANIFEST };
    ocdbt(&wrapped(magic, u64::from(*version & 0x81), u64::from(*compression & 0x83), body));
}

/// Bodies for that.
pub fn bodies() -> Vec<Vec<u8>> {
    let body = |bytes: Vec<u8>| {
        let len = bytes.len();
        let kind = u8::from(bytes[..4] == MANIFEST.to_be_bytes());
        (len > 18).then(|| [&[bytes[12], bytes[13], kind], &bytes[14..len - 4]].concat())
    };
    databases().into_iter().filter(|bytes| bytes.starts_with(&[0x0c, 0xdb])).filter_map(body).collect()
}

/// Metadata of each format, as their libraries write it.
pub fn hierarchies() -> Vec<Vec<u8>> {
    let zarr2 = r#"{"shape": [10, 7], "chunks": [4, 7], "dtype": "<f4", "fill_value": NaN, "order": "C", "filters": [
        {"id": "delta", "dtype": "<f4"}], "dimension_separator": "/", "zarr_format": 2,
        "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}}"#;
    let zarr3 = r#"{"zarr_format": 3, "node_type": "array", "shape": [64], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [32]}}, "attributes": {"a": [1, {}]},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "codecs": [
        {"name": "sharding_indexed", "configuration": {"chunk_shape": [8], "codecs": [{"name": "bytes"}],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]}}]}"#;
    let n5 = r#"{"dimensions": [9, 8], "blockSize": [4, 4], "dataType": "uint16", "compression": {"type": "gzip"}}"#;
    let all2 = format!(
        r#"{{"metadata": {{".zgroup": {{"zarr_format": 2}}, "a/b/.zarray": {zarr2}, "a/b/.zattrs": {{}},
        "a/.zgroup": {{"zarr_format": 2}}}}, "zarr_consolidated_format": 1}}"#
    );
    let all3 = format!(
        r#"{{"zarr_format": 3, "node_type": "group", "consolidated_metadata": {{"kind": "inline",
        "must_understand": false, "metadata": {{"a": {{"zarr_format": 3, "node_type": "group"}}, "a/b": {zarr3}}}}}}}"#
    );
    let mut manifest = vec![0x0c, 0xdb, 0x3a, 0x2a, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2];
    manifest.extend(crc32c(&manifest).to_le_bytes());
    let texts = [zarr2, zarr3, n5, r#"{"n5": "4.0.0"}"#, &all2, &all3];
    let block = [&[0, 1, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2][..], &[7; 4]].concat();
    texts.iter().map(|text| text.as_bytes().to_vec()).chain([manifest, block]).collect()
}

/// All that a plan or an index says.
fn in_full(bytes: &[u8]) {
    let mut count = 0;
    let found = pieces(&bytes, &mut |piece| {
        assert_eq!(piece.fault(), None, "{piece:?}");
        count += 1;
        if count < 10_000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert!(found.end <= bytes.len() as u64 && found.tensors == 0);
}

/// Plans of distributed checkpoints.
pub fn plans() -> Vec<Vec<u8>> {
    samples(&["-dcp.metadata"])
}

/// Indexes of checkpoints in parts.
pub fn indexes() -> Vec<Vec<u8>> {
    let index =
        |parts: &str| format!("{{\"metadata\": {{\"total_size\": 9}}, \"weight_map\": {{{parts}}}}}").into_bytes();
    vec![
        index(r#""a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors""#),
        index(r#""a": "x", "\u00e9": "\u0041", "c": "x""#),
        br#"{"global_step": 5, "log_history": [{"loss": 0.5, "epoch": [1, {}]}], "is_world_process_zero": true}"#
            .to_vec(),
    ]
}

/// The seals of a file cover it without gaps, and are true.
fn sealed(bytes: &[u8]) {
    for room in [1 << 14, 600] {
        let runs =
            examine(&bytes, bytes.len() as u64, room, &Before::default(), &|| true, &tensorfs_formats::recognise)
                .expect("memory can be read")
                .expect("not given up");
        let mut at = 0;
        for run in &runs {
            assert_eq!(run.offset, at);
            at += run.len;
            assert_eq!(fault_of_run(&bytes, run.offset, run.len, run.seal.crc, &|_| {}), None);
        }
        assert_eq!(at, bytes.len() as u64);
    }
}

/// A file of frames whose checksums are right.
pub fn tfrecord(bytes: &[u8]) {
    any(bytes);
    let mut bytes = bytes.to_vec();
    let masked = |bytes: &[u8]| crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let mut at = 0;
    while bytes.len() - at >= 16 {
        let len = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let len = len.min((bytes.len() - at - 16) as u64) as usize;
        bytes[at..at + 8].copy_from_slice(&(len as u64).to_le_bytes());
        let header = masked(&bytes[at..at + 8]);
        bytes[at + 8..at + 12].copy_from_slice(&header);
        let footer = masked(&bytes[at + 12..at + 12 + len]);
        bytes[at + 12 + len..at + 16 + len].copy_from_slice(&footer);
        at += 16 + len;
    }
    any(&bytes);
}

/// The samples of the layout's own tests whose names end so.
fn samples(ends: &[&str]) -> Vec<Vec<u8>> {
    let dir = crate::samples();
    let mut paths: Vec<_> = std::fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|entry| entry.expect("a directory that can be read").path())
        .filter(|path| ends.iter().any(|end| path.to_string_lossy().ends_with(end)))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no samples of {ends:?}");
    paths.iter().map(|path| std::fs::read(path).expect("a sample")).collect()
}

/// Event files.
pub fn tfrecords() -> Vec<Vec<u8>> {
    samples(&[".tfevents", ".tfrecord"])
}

/// safetensors files.
pub fn safetensors() -> Vec<Vec<u8>> {
    samples(&[".safetensors"])
}

/// NumPy arrays.
pub fn npy() -> Vec<Vec<u8>> {
    samples(&[".npy"])
}

/// Zips of NumPy arrays.
pub fn npz() -> Vec<Vec<u8>> {
    samples(&[".npz"])
}

/// GGUF files.
pub fn gguf() -> Vec<Vec<u8>> {
    samples(&[".gguf"])
}

/// HDF5 files, but for long ones.
pub fn hdf5() -> Vec<Vec<u8>> {
    let mut all = samples(&[".h5"]);
    all.retain(|file| file.len() < 40_000);
    all
}

/// Arrow and Feather files.
pub fn arrow() -> Vec<Vec<u8>> {
    samples(&[".arrow", ".feather"])
}

/// Protocol buffers without frames.
pub fn bare() -> Vec<Vec<u8>> {
    samples(&[".pb"])
}

/// Files that tell where they end.
pub fn ends(bytes: &[u8]) {
    any(bytes);
    let found = |bytes: &[u8]| recognise(&bytes, &mut |_| ControlFlow::Continue(()));
    // An HDF5 file that is whole is not cut short by more behind it.
    let (whole, more) = (found(bytes), found(&[bytes, &[0; 600]].concat()));
    if whole.format == Format::Hdf5 && more.format == Format::Hdf5 && !whole.cut {
        assert!(!more.cut, "{:?}", more.reason);
    }
}

/// Files of formats that tell where they end: superblocks of HDF5 of each version, behind a user block, too; Parquet;
/// Arrow.
pub fn with_ends() -> Vec<Vec<u8>> {
    let addresses = |all: [u64; 4]| all.map(u64::to_le_bytes).concat();
    let old = |version: u8, more: &[u8], end: u64| {
        let head = [version, 0, 0, 0, 0, 8, 8, 0, 4, 0, 16, 0, 0, 0, 0, 0];
        [b"\x89HDF\r\n\x1a\n", &head[..], more, &addresses([0, u64::MAX, end, u64::MAX]), &[0; 100]].concat()
    };
    let new = |version: u8| {
        let head = [version, 8, 8, 0];
        [b"\x89HDF\r\n\x1a\n", &head[..], &addresses([0, u64::MAX, 144, 48]), &[0; 100]].concat()
    };
    let behind = [&[0; 512][..], &old(0, &[], 156)].concat();
    let others = [&b"PAR1\x15\x04\x15\x10rows\x04\0\0\0PAR1"[..], b"ARROW1\0\0batches\x08\0\0\0ARROW1"];
    let mut all = vec![old(0, &[], 156), old(1, &[32, 0, 0, 0], 160), old(0, &[], 1 << 40), new(2), new(3), behind];
    all.extend(others.map(<[u8]>::to_vec));
    all
}

/// Zips with a file of another format in them: models of Keras' and programs of torch.export's, old and new.
pub fn within() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> =
        samples(&[".weights.h5"]).iter().map(|file| stored(&[("model.weights.h5", file)])).collect();
    for file in samples(&[".pt"]).iter().filter(|file| file.starts_with(b"PK") && file.len() < 20_000) {
        all.push(stored(&[("serialized_exported_program.json", b"{}"), ("serialized_state_dict.pt", file)]));
        all.push(stored(&[("m/archive_format", b"pt2"), ("m/data/weights/a.pt", file), ("m/data/weights/b.pt", file)]));
    }
    all.extend(samples(&[".pt2"]));
    all
}

/// A zip of members that are not compressed. Nobody looks at their checksums.
fn stored(members: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in members {
        let [len, at] = [bytes.len(), file.len()].map(|number| (number as u32).to_le_bytes());
        let about =
            [&[20, 0, 0, 0, 0, 0][..], &[0; 8], &len, &len, &(name.len() as u16).to_le_bytes(), &[0; 2]].concat();
        directory.extend([b"PK\x01\x02\x14\0", &about[..], &[0; 10], &at, name.as_bytes()].concat());
        file.extend([b"PK\x03\x04", &about[..], name.as_bytes(), bytes].concat());
    }
    let count = (members.len() as u16).to_le_bytes();
    let [len, at] = [directory.len(), file.len()].map(|number| (number as u32).to_le_bytes());
    let end = [b"PK\x05\x06\0\0\0\0", &count[..], &count, &len, &at, &[0; 2]].concat();
    [file, directory, end].concat()
}

/// torch checkpoints.
pub fn torch() -> Vec<Vec<u8>> {
    samples(&[".pt", ".pth", ".distcp"])
}
