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
