//! Protocol buffers without frames: one byte that is not right, and they are none.

use std::fs;
use std::path::Path;

use tensorfs_formats::Format;

use super::{field, opaque, survives};

fn sample(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(name)).unwrap()
}

#[test]
fn files_that_end_anywhere() {
    let (one, all) = (sample("event.pb"), sample("events.pb"));
    let tensor = sample("tensor.pb");
    // Between two events, there is nothing that tells that more is to come.
    let ends: Vec<usize> = (1..all.len()).filter(|&end| survives(&all[..end]).format == Format::Protobuf).collect();
    assert_eq!(ends.len(), 3, "{ends:?}");
    for whole in [one, tensor] {
        for len in 0..whole.len() {
            let found = survives(&whole[..len]);
            assert!(found.format == Format::Opaque && !found.cut, "{len}: {:?}", found.reason);
        }
    }
}

#[test]
fn bytes_that_lie() {
    for name in ["tensor.pb", "event.pb"] {
        let whole = sample(name);
        let tensors = survives(&whole).tensors;
        for at in 0..whole.len() {
            for byte in [0, 1, 8, 0x12, 0x22, 0x7f, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                let found = survives(&bytes);
                assert!(found.tensors == 0 || found.tensors == tensors, "{name} with {byte} at {at}");
            }
        }
    }
}

#[test]
fn events_that_swell() {
    let time = [&[9][..], &1.5e9_f64.to_le_bytes()].concat();
    let event = |summary: &[u8]| [&time[..], &field(5, summary)].concat();
    let scalar = field(1, &[&field(1, b"t")[..], &[0x15, 0, 0, 0x80, 0x3f]].concat());
    let found = survives(&event(&scalar.repeat(1_000_000)));
    assert_eq!((found.format, found.tensors), (Format::Protobuf, 1_000_000));
    let found = survives(&event(&scalar).repeat(100_000));
    assert_eq!((found.format, found.tensors), (Format::Protobuf, 100_000));
    // All of them, but for the last byte.
    let mut bytes = event(&scalar).repeat(100_000);
    *bytes.last_mut().unwrap() = 0;
    assert_eq!(survives(&bytes).tensors, 100_000);
    bytes.push(9);
    opaque(&bytes, "");
    opaque(&event(&field(1, b"").repeat(1_000_000)), "no format");
    opaque(&event(&field(7, b"").repeat(1_000_000)), "no format");
    let shape = field(2, &field(2, &[8, 1]).repeat(1_000_000));
    opaque(&[&[8, 1][..], &shape, &field(4, &[0; 4])].concat(), "dimensions");
    let shape = field(2, &field(2, b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f").repeat(3));
    opaque(&[&[8, 1][..], &shape, &field(4, &[0; 4])].concat(), "more elements");
}

/// A number, a text and bytes, in this order, are many a program's own.
#[test]
fn messages_of_others() {
    opaque(b"\x08\x01\x12\x09abcdefghi\x22\x04....", "no format");
    opaque(b"\x08\x05\x12\x00\x22\x02hi", "no format");
    let shape = field(2, &field(2, &[8, 2]));
    let content = field(4, b"........");
    assert_eq!(survives(&[&[8, 1], &shape[..], &content].concat()).format, Format::Protobuf);
    // The rank is not known.
    let shape = field(2, &[&field(2, &[8, 2])[..], &[0x18, 0]].concat());
    opaque(&[&[8, 1], &shape[..], &content].concat(), "no format");
}
