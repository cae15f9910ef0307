//! The recognisers of tensor files, and the reading of what they find.

use std::ops::ControlFlow;

use tensorfs_formats::{TensorReader, crc32c, npy_header, pieces, planned, read_tensor, recognise, resume, shards};
use tensorfs_layout::check::fault_of_run;
use tensorfs_layout::segment::{Before, examine};

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
        assert!(!name.is_empty() && name.len() <= 255 && !name.contains(['/', '\0']), "{name:?}");
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

/// torch checkpoints.
pub fn torch() -> Vec<Vec<u8>> {
    samples(&[".pt", ".pth", ".distcp"])
}
