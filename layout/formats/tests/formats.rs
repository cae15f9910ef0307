//! What is recognised is what the library that owns the format reads: names, types, shapes, steps, and every byte.
//!
//! `tests/programs/clients/make_formats.py` writes samples with NumPy, torch, safetensors, h5py, pyarrow, smdebug and
//! TensorBoard's writers, and beside each a list of what the library finds in it. Small ones are kept in `samples`;
//! `TENSORFS_SAMPLES=DIR` names a directory with others.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tensorfs_formats::{
    Format, Location, Order, Recognised, Source, Tensor, TensorReader, crc32c, npy_header, read_tensor, recognise,
    resume,
};

fn directories() -> Vec<PathBuf> {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples");
    std::iter::once(kept).chain(std::env::var_os("TENSORFS_SAMPLES").map(PathBuf::from)).collect()
}

fn samples() -> Vec<(PathBuf, Value)> {
    let mut all = Vec::new();
    for directory in directories() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "json") {
                all.push((path.with_extension(""), serde_json::from_slice(&fs::read(path).unwrap()).unwrap()));
            }
        }
    }
    assert!(all.len() >= 50, "only {} samples", all.len());
    all
}

fn list(source: &dyn Source) -> (Recognised, Vec<Tensor>) {
    let mut tensors = Vec::new();
    let found = recognise(source, &mut |tensor| {
        tensors.push(tensor);
        ControlFlow::Continue(())
    });
    assert_eq!(found.tensors, tensors.len() as u64);
    assert!(found.error.is_none() && !found.stopped);
    (found, tensors)
}

fn bytes(source: &dyn Source, tensor: &Tensor) -> Vec<u8> {
    let mut all = Vec::new();
    read_tensor(source, tensor, &mut |piece| {
        all.extend_from_slice(piece);
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}

/// A tensor in the words of the lists.
fn described(source: &dyn Source, tensor: &Tensor, wanted: &Value, storages: &mut Vec<u64>) -> Value {
    let readable = npy_header(tensor).is_some();
    let mut out = json!({
        "name": tensor.name_text(),
        "dtype": tensor.dtype.name(),
        "shape": tensor.shape,
        "fortran": tensor.order == Order::ColumnMajor,
        "crc32c": readable.then(|| crc32c(&bytes(source, tensor))),
    });
    for (key, value) in [
        ("step", json!(tensor.step)),
        ("mode", json!(tensor.mode.map(|mode| mode.name()))),
        ("mode_step", json!(tensor.mode_step)),
        ("kind", json!(tensor.kind.name())),
    ] {
        if wanted.get(key).is_some() {
            out[key] = value;
        }
    }
    if wanted.get("storage").is_some() {
        // Numbered in the order of their appearance, as in the list.
        let storage = tensor.storage.as_ref().filter(|_| tensor.elements() > 0).map(|storage| {
            storages.iter().position(|&offset| offset == storage.offset).unwrap_or_else(|| {
                storages.push(storage.offset);
                storages.len() - 1
            })
        });
        out["storage"] = json!(storage);
    }
    out
}

#[test]
fn every_sample_is_what_its_library_says() {
    for (path, wanted) in samples() {
        let source = File::open(&path).unwrap();
        let (found, tensors) = list(&source);
        let what = format!("{}: {:?}", path.display(), found.reason);
        assert_eq!(found.format.name(), wanted["format"], "{what}");
        let list = wanted["tensors"].as_array().unwrap();
        let mut storages = Vec::new();
        for (tensor, wanted) in tensors.iter().zip(list) {
            assert_eq!(&described(&source, tensor, wanted, &mut storages), wanted, "{what}");
        }
        assert_eq!(tensors.len(), list.len(), "{what}");
        if let Some(frames) = wanted.get("frames") {
            assert_eq!(&json!(found.frames), frames, "{what}");
            assert_eq!((found.bad_frames, found.end), (0, source.size().unwrap()), "{what}");
        }
        if let Some(calls) = wanted.get("calls") {
            assert_eq!(&json!(found.calls), calls, "{what}");
        }
        for (key, value) in &found.metadata {
            assert_eq!(wanted["metadata"][key], json!(value), "{what}");
        }
        let metadata = wanted.get("metadata").and_then(Value::as_object);
        assert_eq!(found.metadata.len(), metadata.map_or(0, |metadata| metadata.len()), "{what}");
    }
}

/// What is said to be mappable is there, byte for byte, and any part of a tensor is the same part of the whole.
#[test]
fn raw_bytes_are_in_place() {
    for (path, _) in samples() {
        let file = fs::read(&path).unwrap();
        let source = &file[..];
        for tensor in list(&source).1.iter().filter(|tensor| npy_header(tensor).is_some()) {
            let whole = bytes(&source, tensor);
            if let (true, Location::Raw { offset, len }) = (tensor.is_mappable(), &tensor.location) {
                assert_eq!(whole, file[*offset as usize..(offset + len) as usize]);
            }
            let mut reader = TensorReader::new(&source, tensor).unwrap();
            assert_eq!(reader.len(), whole.len() as u64);
            for at in [0, 1, whole.len() / 2, whole.len().saturating_sub(3), 2, whole.len() + 1] {
                let mut part = [0; 7];
                let count = reader.read_at(at as u64, &mut part).unwrap();
                assert_eq!(part[..count], *whole.get(at..(at + 7).min(whole.len())).unwrap_or_default());
            }
        }
    }
}

/// A `.npy` of any tensor is recognised as that tensor.
#[test]
fn npy_files_of_tensors_are_those_tensors() {
    for (path, _) in samples() {
        let source = File::open(&path).unwrap();
        for tensor in list(&source).1 {
            let Some(mut npy) = npy_header(&tensor) else { continue };
            assert_eq!(npy.len() % 64, 0);
            let whole = bytes(&source, &tensor);
            npy.extend_from_slice(&whole);
            let (found, back) = list(&&npy[..]);
            assert_eq!((found.format.name(), found.reason), ("npy", None), "{}", path.display());
            assert_eq!(
                (&back[0].shape, back[0].item_size, back[0].big_endian),
                (&tensor.shape, tensor.item_size, tensor.big_endian)
            );
            assert_eq!(back[0].order == Order::ColumnMajor, tensor.order == Order::ColumnMajor);
            assert_eq!(bytes(&&npy[..], &back[0]), whole);
        }
    }
}

/// However an event file grows, in the end the same tensors were listed, each once.
#[test]
fn growing_event_files_are_listed_once() {
    for (path, _) in samples().into_iter().filter(|(path, _)| path.extension().is_some_and(|end| end == "tfevents")) {
        let file = fs::read(&path).unwrap();
        let whole = list(&&file[..]).1;
        for step in [1, 7, 100, 1000] {
            let (mut all, mut from) = (Vec::new(), 0);
            for len in (12..=file.len()).step_by(step).chain([file.len()]) {
                let found = resume(&&file[..len], from, &mut |tensor| {
                    all.push(tensor);
                    ControlFlow::Continue(())
                });
                assert!(found.end >= from && found.end <= len as u64 && found.bad_frames == 0);
                from = found.end;
            }
            assert_eq!(all, whole);
        }
    }
}

/// The sink may stop at any tensor.
#[test]
fn stops_when_told() {
    for (path, _) in samples() {
        let source = File::open(&path).unwrap();
        let count = list(&source).1.len();
        for limit in 1..=count.min(3) {
            let mut seen = 0;
            let found = recognise(&source, &mut |_| {
                seen += 1;
                if seen == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert!(found.stopped && found.tensors == limit as u64);
        }
    }
}

/// A file that was cut anywhere is opaque, or was not cut where it matters; event files keep what is whole.
#[test]
fn cut_files_are_opaque() {
    for (path, wanted) in samples() {
        let file = fs::read(&path).unwrap();
        for len in (0..file.len()).step_by((file.len() / 200).max(1)) {
            let (found, tensors) = list(&&file[..len]);
            match found.format.name() {
                "opaque" | "hdf5" => assert!(tensors.is_empty()),
                "tfrecord" => assert!(found.end <= len as u64),
                // Of several arrays the whole ones stay. Where a pickle of objects ends is not known without its end.
                "npy" => {
                    let list = wanted["tensors"].as_array().unwrap();
                    let objects = list.iter().position(|tensor| tensor["crc32c"].is_null());
                    assert!(tensors.len() < list.len() || objects == Some(tensors.len() - 1));
                    assert!(found.reason.is_some() || found.end == len as u64);
                    for (tensor, wanted) in tensors.iter().zip(list) {
                        assert_eq!(&described(&&file[..len], tensor, wanted, &mut Vec::new()), wanted);
                    }
                }
                "arrow" => assert!(found.reason.is_some() || found.end == len as u64),
                // Cut between two of several checkpoints, or events.
                "torch" | "protobuf" => assert!(tensors.len() < wanted["tensors"].as_array().unwrap().len()),
                other => panic!("{} cut to {len} is {other}", path.display()),
            }
        }
    }
}

/// NumPy and torch look for the end of a zip in the last 64 KiB, and pass over what is behind it. The beginning of
/// another zip is a save that was cut short.
#[test]
fn a_zip_may_have_something_behind_it() {
    let mut tried = 0;
    for (path, _) in samples() {
        let whole = fs::read(&path).unwrap();
        if !whole.starts_with(b"PK\x03\x04") {
            continue;
        }
        let with = |tail: &[u8]| {
            let file = [&whole[..], tail].concat();
            let (found, tensors) = list(&&file[..]);
            (found, tensors.len())
        };
        let (found, tensors) = with(b"");
        // One without arrays.
        if found.format == Format::Opaque {
            continue;
        }
        for tail in [&[0; 1][..], &[0; 22], b"PX", b"P\0\0\0", b"anything at all", &[7; 65_535]] {
            let (now, count) = with(tail);
            assert_eq!((now.format, count, now.cut), (found.format, tensors, false), "{}", path.display());
            assert!(now.reason.unwrap().starts_with(&format!("{} bytes behind", tail.len())));
        }
        for tail in [b"P", &b"PK"[..], b"PK\x03", b"PK\x03\x04", &whole[..whole.len() / 2], &[0; 65_536]] {
            let (now, count) = with(tail);
            assert!(now.cut && count == 0, "{} and {} bytes", path.display(), tail.len());
        }
        // Another end, which leads nowhere, is what readers find.
        assert_eq!(with(&[b"PK\x05\x06", &[1; 40][..]].concat()).1, 0);
        tried += 1;
    }
    assert!(tried > 3, "{tried}");
}

/// A file in memory reads as one on disk does.
#[test]
fn sources_agree() {
    for (path, _) in samples() {
        let file = fs::read(&path).unwrap();
        let (from_memory, from_file) = (list(&file.as_slice()).1, list(&File::open(&path).unwrap()).1);
        assert_eq!(from_memory, from_file);
    }
}

/// A file that ends early says so wherever it ends, but where what is there is whole by itself. The first bytes are not
/// enough to tell formats apart.
#[test]
fn what_ends_early_is_known_to() {
    const TOLD: usize = 12;
    let mut tried = 0;
    for (path, _) in samples() {
        let whole = fs::read(&path).unwrap();
        let (found, tensors) = list(&&whole[..]);
        // Protocol buffers promise no end. A stream of Arrow is known by its first message, and so is the next one
        // behind it: `hostile_formats/arrow.rs`.
        let is_stream = path.file_name().unwrap().to_str().unwrap().contains("stream");
        if tensors.is_empty() || is_stream || path.extension().is_some_and(|end| end == "pb") {
            continue;
        }
        assert!(!found.cut, "{}", path.display());
        // The first and the last bytes, and some between.
        let step = (whole.len() / 400).max(1);
        // A user block may be anything.
        let told = TOLD + if path.ends_with("userblock.h5") { 1024 } else { 0 };
        let ends = (told..whole.len()).filter(|end| *end < told + 600 || whole.len() - end < 600 || end % step == 0);
        for end in ends {
            let found = recognise(&&whole[..end], &mut |_| ControlFlow::Continue(()));
            let is_whole = found.reason.is_none() && found.end == end as u64;
            assert_eq!(found.cut, !is_whole, "{} to {end}: {:?}", path.display(), found.reason);
            tried += 1;
        }
    }
    assert!(tried > 10_000, "{tried}");
}
