//! Arrow files whose footers and batches promise what is not there.

use std::fs;
use std::path::Path;

use tensorfs_formats::Format;

use super::{opaque, survives};

fn sample(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(name)).unwrap()
}

/// Where the footer begins.
fn footer(file: &[u8]) -> usize {
    let end = file.len() - 10;
    end - u32::from_le_bytes(file[end..end + 4].try_into().unwrap()) as usize
}

/// A file of no batches, with this footer.
fn with_footer(footer: &[u8]) -> Vec<u8> {
    [b"ARROW1\0\0", footer, &(footer.len() as u32).to_le_bytes(), b"ARROW1"].concat()
}

#[test]
fn files_that_end_anywhere() {
    for name in ["plain.feather", "old.arrow"] {
        let whole = sample(name);
        let all = survives(&whole).tensors;
        assert!(all >= 10);
        for len in 12..whole.len() {
            let cut = survives(&whole[..len]);
            assert!(cut.cut && cut.format == Format::Opaque, "{name} to {len}: {:?}", cut.reason);
            // With a footer all the same: that of the whole file, and whatever stands there.
            let found = survives(&[&whole[..len], &whole[footer(&whole)..]].concat());
            assert!(!found.cut && found.tensors <= all, "{name} to {len}");
            survives(&[&whole[..len], b"\x40\0\0\0ARROW1"].concat());
        }
    }
}

/// Wherever a number stands in what describes the file, it may be any.
#[test]
fn numbers_that_lie() {
    let mut refused = 0;
    for name in ["plain.feather", "old.arrow"] {
        let whole = sample(name);
        let all = survives(&whole).tensors;
        for at in 8..whole.len() - 4 {
            for number in [0, 1, 0x18, 0x7fff_ffff, 0xffff_fff0, 0xffff_ffff_u32] {
                let mut bytes = whole.clone();
                bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
                let found = survives(&bytes);
                assert!(found.tensors <= 2 * all);
                refused += usize::from(found.reason.is_some());
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn footers_that_cannot_be() {
    let whole = sample("plain.feather");
    for len in [0, 1, 3, 4, 5, whole.len() as u32 - 17, whole.len() as u32, u32::MAX] {
        let mut bytes = whole.clone();
        let end = bytes.len() - 10;
        bytes[end..end + 4].copy_from_slice(&len.to_le_bytes());
        let found = survives(&bytes);
        assert!(found.format == Format::Opaque && !found.cut, "{len}: {:?}", found.reason);
    }
    opaque(&with_footer(&[]), "leads out");
    opaque(&with_footer(&[0xff; 64]), "leads out");
    opaque(&with_footer(&[0; 64]), "cannot be");
    opaque(b"ARROW1\0\0ARROW1", "does not end as one");
}

/// A table of 32-bit fields, behind the list of where they are.
fn table(fields: &[(usize, u32)]) -> Vec<u8> {
    let count = fields.iter().map(|(number, _)| number + 1).max().unwrap_or(0);
    let mut places = vec![0_u16; count];
    fields.iter().enumerate().for_each(|(n, (number, _))| places[*number] = 4 + 4 * n as u16);
    let len = 4 + 2 * count as u16;
    let places: Vec<u8> = places.iter().flat_map(|place| place.to_le_bytes()).collect();
    let head = [len.to_le_bytes(), (4 + 4 * fields.len() as u16).to_le_bytes()].concat();
    let values: Vec<u8> = fields.iter().flat_map(|(_, value)| value.to_le_bytes()).collect();
    [&head[..], &places, &u32::from(len).to_le_bytes(), &values].concat()
}

/// Structures in structures, each of them so many times in the one around it.
fn nested(depth: usize, times: u32) -> Vec<u8> {
    // Offsets are counted from where they stand, and lead to a table, which is behind the list of its places: of the
    // footer and the schema 8 bytes, of a field 16.
    let mut bytes = [12_u32.to_le_bytes().to_vec(), table(&[(1, 4 + 8)]), table(&[(1, 4)])].concat();
    for level in 0..depth {
        let list = if level == 0 { 1 } else { times };
        bytes.extend(u32::to_le_bytes(list));
        (0..list).for_each(|n| bytes.extend((4 * (list - n) + 16).to_le_bytes()));
        // A structure (13) or nothing (1); its type, for which the table that comes next does; what is in it.
        let is_last = level + 1 == depth;
        bytes.extend(if is_last {
            table(&[(2, 1), (3, 12), (5, 12)])
        } else {
            table(&[(2, 13), (3, 28 + 4 * times), (5, 4)])
        });
    }
    bytes.extend([table(&[]), vec![0; 4]].concat());
    with_footer(&bytes)
}

/// More than anybody can go through, in a kilobyte.
#[test]
fn columns_in_columns() {
    opaque(&nested(30, 10), "too many columns");
    opaque(&nested(100, 1), "nested too deep");
}

/// Many columns, of one name.
#[test]
fn wide_tables() {
    let wide = |count: u32, name: usize| {
        let mut bytes = [12_u32.to_le_bytes().to_vec(), table(&[(1, 4 + 8)]), table(&[(1, 4)])].concat();
        bytes.extend(count.to_le_bytes());
        // All of them are the table that comes next, whose name is behind it, and its type behind that.
        (0..count).for_each(|n| bytes.extend((4 * (count - n) + 12).to_le_bytes()));
        let name = [&(name as u32).to_le_bytes()[..], &vec![b'n'; name], &table(&[])].concat();
        bytes.extend(table(&[(0, 12), (2, 1), (3, name.len() as u32)]));
        bytes.extend(name);
        with_footer(&bytes)
    };
    let found = survives(&wide(32_768, 200));
    assert_eq!((found.format, found.tensors, found.reason), (Format::Arrow, 0, None));
    opaque(&wide(32_769, 200), "too many columns");
    opaque(&wide(32_768, 4096), "names of more than");
    opaque(&wide(1, 4097), "longer than 4096");
}

/// The streams in a file, each as a list of its messages, with the end.
fn messages(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut all = Vec::new();
    while let Some(head) = bytes.get(4..8) {
        let len = u32::from_le_bytes(head.try_into().unwrap()) as usize;
        // What a message says of its body is told by what comes next.
        let next = (8 + len..bytes.len()).step_by(8).find(|at| bytes[*at..].starts_with(&[0xff; 4]));
        let (message, rest) = bytes.split_at(next.unwrap_or(bytes.len()));
        all.push(message);
        bytes = rest;
    }
    all
}

#[test]
fn streams_that_end_anywhere() {
    for (name, columns) in [("stream.arrow", 0), ("streams.arrow", 11)] {
        let whole = sample(name);
        let found = survives(&whole);
        assert_eq!((found.format, found.reason, found.cut), (Format::Arrow, None, false));
        let parts = messages(&whole);
        let (mut at, mut between) = (0, Vec::new());
        for part in &parts {
            at += part.len();
            between.push(at);
        }
        assert_eq!(at, whole.len());
        let mut before = 0;
        for len in parts[0].len()..whole.len() {
            let some = survives(&whole[..len]);
            // Between messages nobody knows that more is to come; nor within the schema of a second stream.
            let in_schema = columns > 0 && (between[4] + 1..between[5]).contains(&len);
            assert_eq!(some.cut, !between.contains(&len) && !in_schema, "{name} to {len}: {:?}", some.reason);
            assert_eq!(some.bad_frames, 0, "{name} to {len}");
            assert!((before..=found.tensors).contains(&some.tensors), "{name} to {len}");
            before = some.tensors;
        }
        for len in 0..parts[0].len() {
            let none = survives(&whole[..len]);
            assert!(none.format == Format::Opaque && !none.cut, "{name} to {len}");
        }
    }
}

#[test]
fn numbers_that_lie_in_streams() {
    let whole = sample("streams.arrow");
    let mut refused = 0;
    for at in 0..whole.len() - 4 {
        for number in [0, 1, 0x18, 0x7fff_ffff, 0xffff_fff0, 0xffff_ffff_u32] {
            let mut bytes = whole.clone();
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            refused += usize::from(survives(&bytes).reason.is_some());
        }
    }
    assert!(refused > 1000, "{refused}");
}

/// What is behind a stream is not its own; what is within is damage, and what is in front of that is listed.
#[test]
fn streams_among_other_bytes() {
    let whole = sample("streams.arrow");
    let all = survives(&whole).tensors;
    for more in [&[0; 600][..], b"ARROW1\0\0", &[0xff; 40], b"\xff\xff\xff\xff\x40\0\0\0"] {
        let found = survives(&[&whole, more].concat());
        assert_eq!((found.tensors, found.bad_frames, found.cut), (all, 0, false));
        assert!(found.reason.unwrap().contains("behind the stream"));
    }
    let parts = messages(&whole);
    let first: Vec<u8> = parts[..2].concat();
    let columns = survives(&first).tensors;
    assert!(columns > 0);
    for more in [&b"something else"[..], &[0xff; 40], parts[0]] {
        let found = survives(&[&first, more].concat());
        assert_eq!((found.format, found.tensors, found.bad_frames), (Format::Arrow, columns, 1));
        assert!(!found.cut);
    }
    // A batch first, and bytes that only begin as a message.
    opaque(parts[1], "no format");
    opaque(&[&b"\xff\xff\xff\xff\x40\0\0\0\x10\0\0\0"[..], &[0; 200]].concat(), "no format");
}

/// Streams of before version 0.15: three, of which the last one has marks.
#[test]
fn streams_without_marks() {
    let whole = sample("old.stream.arrow");
    let found = survives(&whole);
    assert_eq!((found.format, found.reason, found.cut, found.bad_frames), (Format::Arrow, None, false, 0));
    let all = found.tensors;
    assert!(all > 30, "{all}");
    let (mut before, mut cut) = (0, 0);
    for len in 0..whole.len() {
        let some = survives(&whole[..len]);
        assert!((before..=all).contains(&some.tensors) && some.bad_frames == 0, "{len}: {:?}", some.reason);
        (before, cut) = (some.tensors, cut + usize::from(some.cut));
    }
    assert!(cut > whole.len() / 2, "{cut}");
    for more in [&[0; 600][..], b"ARROW1\0\0", &[0xff; 40], &[7; 40], b"\x4c\0\0\0\x10\0\0\0 and more"] {
        let found = survives(&[&whole, more].concat());
        assert_eq!((found.tensors, found.bad_frames, found.cut), (all, 0, false));
        assert!(found.reason.unwrap().contains("behind the stream"));
    }
    // The first message, and then what is none.
    let first = 4 + u32::from_le_bytes(whole[..4].try_into().unwrap()) as usize;
    for more in [&b"something else"[..], &[1; 40]] {
        let found = survives(&[&whole[..first], more].concat());
        assert_eq!((found.bad_frames, found.cut), (1, false), "{:?}", found.reason);
    }
    let mut refused = 0;
    for at in (0..whole.len() - 4).step_by(4) {
        for number in [0, 4, 0x1c, 0x7fff_fffc, 0xffff_fff0, 0xffff_ffff_u32] {
            let mut bytes = whole.clone();
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            refused += usize::from(survives(&bytes).reason.is_some());
        }
    }
    assert!(refused > 500, "{refused}");
    // What only begins as one, in any of its lengths.
    for len in (4..6000_u32).step_by(40) {
        opaque(&[&len.to_le_bytes()[..], &16_u32.to_le_bytes(), &[0; 8000]].concat(), "no format");
    }
}
