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
