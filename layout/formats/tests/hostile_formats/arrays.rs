//! The metadata of hierarchies of arrays.

use tensorfs_formats::{Block, Metadata, Node, What, block, nodes};

use super::*;

fn said(metadata: Metadata, bytes: &[u8]) -> (Vec<Node>, Recognised) {
    let mut all = Vec::new();
    let found = nodes(&bytes, metadata, &mut |node| {
        assert_eq!(node.fault(), None);
        all.push(node);
        ControlFlow::Continue(())
    });
    (all, found)
}

fn what(metadata: Metadata, text: &str) -> What {
    let (mut all, found) = said(metadata, text.as_bytes());
    assert_eq!((found.reason, all.len()), (None, 1), "{text}");
    all.remove(0).what
}

fn unknown(metadata: Metadata, text: &str, why: &str) {
    let What::Unknown(said) = what(metadata, text) else { panic!("{text}") };
    assert!(said.contains(why), "{said}");
}

fn zarr2(shape: &str, chunks: &str, dtype: &str, more: &str) -> String {
    format!(r#"{{"zarr_format": 2, "shape": {shape}, "chunks": {chunks}, "dtype": {dtype}{more}}}"#)
}

fn zarr3(more: &str) -> String {
    format!(
        r#"{{"zarr_format": 3, "node_type": "array", "shape": [8], "data_type": "uint8", "codecs": ["bytes"],
        "chunk_grid": {{"name": "regular", "configuration": {{"chunk_shape": [4]}}}},
        "chunk_key_encoding": {{"name": "default"}}, "fill_value": 0{more}}}"#
    )
}

/// What is in chunks that are not there is told only where it is sure.
#[test]
fn fill_values_are_bytes_of_an_element() {
    let fill = |dtype: &str, value: &str| {
        let more = format!(r#", "fill_value": {value}"#);
        match what(Metadata::Zarr2Array, &zarr2("[2]", "[2]", &format!("\"{dtype}\""), &more)) {
            What::Array(array) => array.fill,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(fill("<i2", "-2"), Some(vec![0xfe, 0xff]));
    assert_eq!(fill(">i2", "-32768"), Some(vec![0x80, 0]));
    assert_eq!(fill("<f4", "\"NaN\"").map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()).is_nan()), Some(true));
    assert_eq!(fill(">f8", "1.5"), Some(1.5_f64.to_be_bytes().to_vec()));
    assert_eq!((fill("|b1", "true"), fill("<c8", "[0.0, 0.0]")), (Some(vec![1]), Some(vec![0; 8])));
    assert_eq!(fill("<u8", "18446744073709551615"), Some(vec![0xff; 8]));
    for (dtype, value) in
        [("<i2", "40000"), ("|u1", "256"), ("|u1", "-1"), ("<f2", "1.5"), ("<f4", "null"), ("<f4", "[1]")]
    {
        assert_eq!(fill(dtype, value), None, "{dtype} {value}");
    }
}

#[test]
fn what_cannot_be_an_array_is_none() {
    let of = Metadata::Zarr2Array;
    let f4 = "\"<f4\"";
    unknown(of, &zarr2("[4, 4]", "[2]", f4, ""), "dimensions");
    unknown(of, &zarr2("[4]", "[0]", f4, ""), "without elements");
    unknown(of, &zarr2("[4611686018427387904, 4]", "[1, 1]", f4, ""), "too many bytes");
    unknown(of, &zarr2("[4]", "[9223372036854775807]", f4, ""), "too many bytes");
    unknown(of, &zarr2("[-4]", "[1]", f4, ""), "no list of numbers");
    unknown(of, &zarr2(&format!("[{}1]", "1,".repeat(64)), "[1]", f4, ""), "no list of numbers");
    unknown(of, &zarr2("[4]", "[2]", f4, r#", "dimension_separator": ":""#), "dimension_separator");
    unknown(of, &zarr2("[4]", "[2]", f4, r#", "filters": [1]"#), "codec");
    unknown(of, &zarr2("[4]", "[2]", f4, &format!(r#", "filters": [{}1]"#, "1,".repeat(40))), "too many");
    unknown(of, "{\"shape\": [4]}", "zarr_format 2");
    unknown(of, &zarr2(&format!("{}1{}", "[".repeat(100), "]".repeat(100)), "[1]", f4, ""), "too deep");
    unknown(Metadata::Zarr3, &zarr3(r#", "zarr_format": 4"#), "zarr_format 3");
    unknown(Metadata::Zarr3, &zarr3(r#", "node_type": 5"#), "node_type");
    let nested = r#"{"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "codecs": ["#;
    let codecs = format!(r#", "codecs": [{}{}]"#, nested.repeat(5), "]}}".repeat(5));
    unknown(Metadata::Zarr3, &zarr3(&codecs), "too many codecs");
    unknown(Metadata::N5, r#"{"dimensions": [4], "dataType": "uint8"}"#, "blockSize");
}

/// What a library may know that this does not: the rest is listed.
#[test]
fn what_is_not_known_of_an_array_is_said() {
    let of = |metadata, text: &str| match what(metadata, text) {
        What::Array(array) => array,
        other => panic!("{other:?}"),
    };
    let array = of(Metadata::Zarr2Array, &zarr2("[4]", "[2]", "\"int4\"", ""));
    assert!(array.odd.as_ref().unwrap().contains("int4") && array.plain_chunk().is_none());
    let array = of(Metadata::Zarr3, &zarr3(r#", "chunk_grid": {"name": "rectilinear", "configuration": {}}"#));
    assert!(array.odd.unwrap().contains("rectilinear") && array.chunk.is_none());
    let array = of(Metadata::Zarr3, &zarr3(r#", "chunk_key_encoding": {"name": "hashed"}"#));
    assert!(array.odd.unwrap().contains("hashed") && array.keys.is_none());
    let array = of(Metadata::Zarr3, &zarr3(r#", "storage_transformers": [{"name": "x"}]"#));
    assert!(array.odd.is_some() && array.codecs.is_empty());
    let array = of(Metadata::Zarr3, &zarr3(r#", "data_type": {"name": "numpy.datetime64", "configuration": {}}"#));
    assert_eq!((&array.odd, array.bytes()), (&None, Some(64)));
    let array = of(Metadata::Zarr2Array, &zarr2("[4]", "[2]", r#"[["a", "<f4"], ["b", "<i8"]]"#, ""));
    assert_eq!((array.dtype.name(), array.bytes()), ("structured", None));
}

#[test]
fn names_lead_below() {
    for name in ["../x", "/x", "x//y", "x/../y", "."] {
        let text = format!(r#"{{"metadata": {{"{name}/.zarray": {}}}}}"#, zarr2("[1]", "[1]", "\"|u1\"", ""));
        let (all, found) = said(Metadata::Zarr2All, text.as_bytes());
        assert!(all.is_empty() && found.reason.unwrap().contains("below"), "{name}");
        let text = format!(
            r#"{{"zarr_format": 3, "node_type": "group", "consolidated_metadata": {{"metadata": {{"{name}": {}}}}}}}"#,
            zarr3("")
        );
        let (all, found) = said(Metadata::Zarr3, text.as_bytes());
        assert!(all.is_empty() && found.reason.unwrap().contains("below"), "{name}");
    }
}

/// Many arrays, long names, deep nests and long texts.
#[test]
fn metadata_takes_little_memory() {
    let one = zarr2("[1]", "[1]", "\"|u1\"", "");
    let many: Vec<String> = (0..200_000).map(|n| format!(r#""{n}/.zarray": {one}"#)).collect();
    let many = format!(r#"{{"metadata": {{{}}}}}"#, many.join(","));
    let numbers = format!("[{}1]", "1,".repeat(4 << 20));
    let long = zarr2(&numbers, "[1]", "\"|u1\"", "");
    let deep = format!("{{\"shape\": {}", "[".repeat(8 << 20));
    let text = zarr2("[1]", "[1]", &format!("\"{}\"", "x".repeat(6 << 20)), "");
    let users = format!(r#"{{"attributes": {}, "n5": "4.0.0"}}"#, numbers);
    for text in [many, long, deep, text, users] {
        for metadata in Metadata::ALL {
            let mut count = 0;
            HELD.set(0);
            PEAK.set(0);
            let found = nodes(&text.as_bytes(), metadata, &mut |_| {
                count += 1;
                ControlFlow::Continue(())
            });
            assert!((PEAK.get() as usize) < MEMORY, "{metadata:?}: {}", PEAK.get());
            assert!(count <= 1 << 17 && found.error.is_none());
        }
    }
}

#[test]
fn metadata_that_is_cut_is_none() {
    let array = zarr3("");
    for end in 0..array.len() {
        let (all, found) = said(Metadata::Zarr3, &array.as_bytes()[..end]);
        assert!(all.is_empty() && found.cut, "{end}");
    }
    let (all, found) = said(Metadata::N5, br#"{"kind": "any program's"}"#);
    assert!(all.is_empty() && found.reason.is_none());
}

#[test]
fn a_manifest_has_its_checksum() {
    let mut manifest = vec![0x0c, 0xdb, 0x3a, 0x2a, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2];
    manifest.extend(crc32c(&manifest).to_le_bytes());
    let of = |bytes: &[u8]| said(Metadata::Ocdbt, bytes);
    assert_eq!(of(&manifest).0, [Node { path: String::new(), what: What::Database }]);
    for at in 0..manifest.len() {
        let mut other = manifest.clone();
        other[at] ^= 1;
        assert!(of(&other).0.is_empty() && of(&manifest[..at]).0.is_empty(), "{at}");
    }
    assert!(of(&manifest[..19]).1.cut && of(&manifest[..19]).1.reason.unwrap().contains("cut short"));
}

/// Blocks of n5's: what their headers say, and what those cannot say.
#[test]
fn blocks_say_how_large_they_are() {
    let asked = Block { dims: 2, item: 2 };
    let made = |mode: u16, sizes: &[u32], more: &[u8]| {
        let mut bytes = [mode.to_be_bytes(), (sizes.len() as u16).to_be_bytes()].concat();
        sizes.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
        [&bytes[..], more].concat()
    };
    let of = |bytes: &[u8]| {
        let mut seen = None;
        let found = block(&bytes, asked, &mut |tensor| {
            assert_eq!(tensor.fault(bytes.len() as u64), None);
            seen = Some((tensor.shape.clone(), tensor.range()));
            ControlFlow::Continue(())
        });
        assert_eq!(found.error.map(|error| error.to_string()), None);
        seen
    };
    assert_eq!(of(&made(0, &[3, 4], &[7; 24])), Some((vec![4, 3, 2], (12, 24))));
    assert_eq!(of(&made(1, &[3, 4], &[&[0, 0, 0, 12], &[7; 24][..]].concat())), Some((vec![4, 3, 2], (16, 24))));
    assert_eq!(of(&made(0, &[0, 4], &[])), Some((vec![4, 0, 2], (12, 0))));
    for bytes in [
        made(0, &[3, 4], &[7; 23]),
        made(0, &[3, 4], &[7; 25]),
        made(0, &[3], &[7; 6]),
        made(2, &[3, 4], &[7; 24]),
        made(1, &[3, 4], &[&[0, 0, 0, 13], &[7; 24][..]].concat()),
        made(0, &[u32::MAX, u32::MAX], &[7; 24]),
        vec![],
        vec![0; 11],
    ] {
        assert_eq!(of(&bytes), None, "{bytes:?}");
    }
    let mut count = 0;
    let bytes = [&[0, 0, 0, 1][..], &[0xff; 4], &[7; 9]].concat();
    let found = block(&&bytes[..], Block { dims: 1, item: u64::MAX }, &mut |_| {
        count += 1;
        ControlFlow::Continue(())
    });
    assert!(count == 0 && found.reason.is_some());
}
