//! Files with tensors: samples that their own libraries wrote, and files made by hand.

use std::path::{Path, PathBuf};

/// The directory of samples, one or more of each format that is recognised.
pub fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../layout/formats/tests/samples")
}

/// A safetensors file of byte tensors.
pub fn safetensors(tensors: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut at, mut entries) = (0, Vec::new());
    for (name, bytes) in tensors {
        let name = serde_json::to_string(name).unwrap();
        let len = bytes.len();
        entries.push(format!("{name}:{{\"dtype\":\"U8\",\"shape\":[{len}],\"data_offsets\":[{at},{}]}}", at + len));
        at += len;
    }
    let header = format!("{{{}}}", entries.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    tensors.iter().for_each(|(_, bytes)| file.extend_from_slice(bytes));
    file
}

/// A piece of a tensor of a distributed checkpoint: its first element and how many it has in each dimension, and the
/// file, the first byte and the bytes in which it is, if the plan is to say so.
pub type PlannedPiece<'a> = (&'a [u64], &'a [u64], Option<(&'a str, u64, u64)>);

/// The plan that torch would write beside the parts of a distributed checkpoint: of each tensor the name, the type, the
/// shape and the pieces.
pub fn dcp_plan(tensors: &[(&str, &str, &[u64], Vec<PlannedPiece<'_>>)]) -> Vec<u8> {
    let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let number = |number: u64| [b"\x8a\x08", &number.to_le_bytes()[..]].concat();
    let modules = ["torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"];
    let classes = [
        (modules[0], "ChunkStorageMetadata"),
        (modules[0], "TensorStorageMetadata"),
        (modules[0], "TensorProperties"),
        (modules[0], "MetadataIndex"),
        (modules[1], "_StorageInfo"),
        ("torch", "Size"),
        (modules[0], "Metadata"),
    ];
    let [chunk, tensor, properties, index, place, size, all] = [0, 1, 2, 3, 4, 5, 6].map(|n| vec![b'h', n]);
    let dims = |numbers: &[u64]| {
        [&size[..], b"(", &numbers.iter().flat_map(|n| number(*n)).collect::<Vec<_>>(), b"t\x85R"].concat()
    };
    // An object with attributes.
    let object = |class: &[u8], attributes: &[(&str, Vec<u8>)]| {
        let items = attributes.iter().flat_map(|(name, value)| [text(name), value.clone()].concat());
        [class, b")\x81}(", &items.collect::<Vec<_>>(), b"ub"].concat()
    };
    let mut plan = b"\x80\x04".to_vec();
    for (n, (module, name)) in classes.iter().enumerate() {
        plan.extend([&text(module)[..], &text(name), b"\x93q", &[n as u8], b"0"].concat());
    }
    let (mut described, mut places) = (Vec::new(), Vec::new());
    for (name, dtype, shape, pieces) in tensors {
        let mut chunks = Vec::new();
        for (offsets, sizes, at) in pieces {
            chunks.extend(object(&chunk, &[("offsets", dims(offsets)), ("sizes", dims(sizes))]));
            let Some((file, offset, len)) = at else { continue };
            places.extend(object(&index, &[("fqn", text(name)), ("offset", dims(offsets))]));
            let info = [("relative_path", text(file)), ("offset", number(*offset)), ("length", number(*len))];
            places.extend(object(&place, &info));
        }
        let of = [&properties[..], b")\x81(", &text("torch"), &text(dtype), b"\x93\x89tb"].concat();
        let chunks = [&b"]("[..], &chunks, b"e"].concat();
        described.extend(text(name));
        described.extend(object(&tensor, &[("properties", of), ("size", dims(shape)), ("chunks", chunks)]));
    }
    let described = [&b"}("[..], &described, b"u"].concat();
    let places = [&b"}("[..], &places, b"u"].concat();
    plan.extend(object(&all, &[("state_dict_metadata", described), ("storage_data", places)]));
    plan.push(b'.');
    plan
}

/// An array as `np.save` writes it: its type, its shape, and its bytes, which may be column by column.
pub fn npy(descr: &str, fortran: bool, shape: &[u64], bytes: &[u8]) -> Vec<u8> {
    let fortran = if fortran { "True" } else { "False" };
    let shape: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': ({shape}), }}\n").into_bytes();
    [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), &header, bytes].concat()
}
