//! What is more than is looked at says nothing of the bytes: it is told apart from all that is wrong with them.

use tensorfs_formats::ocdbt::{Asked, Tail};
use tensorfs_formats::{Metadata, nodes, shards, tree};

use super::ocdbt::databases::{Made, NODE, inflating, leaf_body, varint, wrapped};
use super::*;

fn all(bytes: &[u8]) -> Recognised {
    recognise(&bytes, &mut |_| ControlFlow::Continue(()))
}

/// A field of a message that is bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(bytes.len() as u64), bytes].concat()
}

/// A frame of an event with a value of that name, and what is to be in it.
fn event(name: &[u8], value: &[u8]) -> Vec<u8> {
    let value = [field(1, name), value.to_vec()].concat();
    frame(&[&[0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 1][..], &field(5, &field(1, &value))].concat())
}

#[test]
fn what_is_more_than_is_looked_at_is_not_wrong() {
    let shape = |rank: usize| format!("[{}]", vec!["1"; rank].join(","));
    let tensor = |name: &str, rank: usize| {
        safetensors(&format!(r#"{{"{name}":{{"dtype":"U8","shape":{},"data_offsets":[0,1]}}}}"#, shape(rank)), 1)
    };
    let long = "x".repeat(65_536);
    assert!(!all(&tensor(&long[1..], 64)).beyond);
    let pickle = |before: &[u8]| torch(&[b"\x80\x02", before, b"N."].concat(), &[]);
    let stream = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/stream.arrow")).unwrap();
    let message = [&[0xff; 4][..], &(16_u32 << 20).to_le_bytes(), &vec![0; 16 << 20]].concat();
    let mut gguf = b"GGUF\x03\0\0\0".to_vec();
    gguf.extend([0_u64.to_le_bytes(), 65_537_u64.to_le_bytes()].concat());
    for (number, bytes) in [
        tensor("x", 65),
        tensor(&long, 1),
        safetensors(&format!(r#"{{"__metadata__":{{"a":"{}"}}}}"#, "a".repeat(9 << 20)), 0),
        npy("'|u1'", &format!("({})", "1,".repeat(65)), 1),
        pickle(&b"(".repeat(70_000)),
        pickle(&b"N".repeat(70_000)),
        [&stream[..stream.len() - 8], &message].concat(),
        gguf,
    ]
    .iter()
    .enumerate()
    {
        let found = all(bytes);
        let why = found.reason.clone().unwrap_or_default();
        assert!(found.beyond && !found.cut && found.bad_frames == 0, "{number}: {why} {found:?}");
    }
    // A value whose name is too long to be kept is left out, and so is one of too many dimensions.
    let scalar = [&[0x15][..], &1.5_f32.to_le_bytes()].concat();
    let dimensions = field(2, &vec![field(2, &[8, 1]); 65].concat());
    let array = field(8, &[&[8, 1][..], &dimensions, &field(4, &[0; 4])].concat());
    let good = event(b"x", &scalar);
    for more in [event(long.as_bytes(), &scalar), event(b"y", &array)] {
        let found = all(&[&good[..], &more, &good].concat());
        assert_eq!((found.frames, found.bad_frames, found.tensors, found.reason), (3, 0, 2, None));
    }
    // Indexes, and what a trainer says.
    let parts: Vec<String> = (0..4097).map(|n| format!("\"{n}\":\"{n}\"")).collect();
    let path = format!("{}x", "x/".repeat(600));
    for json in [
        format!("{{\"weight_map\":{{{}}}}}", parts.join(",")),
        format!("{{\"weight_map\":{{\"a\":\"{path}\"}}}}"),
        format!("{{\"x\":\"{}\"}}", "a".repeat(9 << 20)),
    ] {
        let found = shards(&json.as_bytes());
        assert!(found.beyond && !found.cut && found.error.is_none(), "{:?}", found.reason);
    }
    let found = nodes(&vec![b' '; (64 << 20) + 1].as_slice(), Metadata::Zarr3, &mut |_| ControlFlow::Continue(()));
    assert!(found.beyond && !found.cut, "{:?}", found.reason);
    // What is wrong is not too much.
    for json in ["{\"weight_map\":{\"a\":\"../x\"}}", "{\"x\":[1,}", "{\"x\":"] {
        assert!(!shards(&json.as_bytes()).beyond, "{json}");
    }
}

#[test]
fn nodes_of_more_than_is_looked_at_are_not_wrong() {
    let whole = |compression, body: &[u8]| wrapped(NODE, 0, compression, body);
    let found = |node: &[u8]| {
        let (len, tail) = (node.len() as u64, Tail::default());
        let found = tree(&node, Asked::Node { at: 0, len, height: 0, tail, with_values: false }, &mut |_| {
            ControlFlow::Continue(())
        });
        assert!(found.error.is_none() && !found.cut);
        (found.beyond, found.reason.unwrap_or_default())
    };
    let count = |count: u64| [&[0, 0][..], &varint(count)].concat();
    // Keys that each have most of the one before.
    let shared = [count(2000), varint(0), [0xfe, 0xff, 3].repeat(1999), [0xff, 0xff, 3].to_vec(), vec![1; 1999]];
    for (node, why) in [
        (whole(0, &count((1 << 19) + 1)), "entries of one node"),
        (whole(0, &[&[0][..], &varint((1 << 16) + 1)].concat()), "data files"),
        (whole(0, &shared.concat()), "keys of"),
        // No files, no end of entries that take nothing.
        (whole(1, &inflating(20, 2000)), "without entries"),
    ] {
        let (beyond, told) = found(&node);
        assert_eq!((beyond, told.contains(why)), (why != "without entries", true), "{why}: {told}");
    }
    let cut = leaf_body(&[("", "d/0")], &[(b"x", Made::Here(b"value"))]);
    assert!(!found(&whole(0, &cut[..cut.len() - 1])).0);
}
