//! The control tree: every tensor of every file as a `.npy`, and what tensorfs says of a file in extended attributes.

mod access;
mod arrays;
mod attributes;
mod changes;
mod checkpoints;
mod complete;
mod databases;
mod files;
mod half_removed;
mod interrupted;
mod many;
mod names;
mod plans;
mod takeover;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use tensorfs_formats::crc32c;
use tensorfs_tests::{Mount, wait_until, xattr};

// --- files with tensors ------------------------------------------------------------------------------

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(bytes.len() as u64), bytes].concat()
}

/// A frame of an event file with one number.
fn event(name: &[u8], step: i64, mode: Option<u8>, number: f32) -> Vec<u8> {
    let plugin = |mode: u8| field(9, &field(1, &[field(1, b"mode"), field(2, &[b'0' + mode])].concat()));
    let number = [&[0x15][..], &number.to_le_bytes()].concat();
    frame(step, &[field(1, name), number, mode.map(plugin).unwrap_or_default()].concat())
}

/// A frame with a line of bytes.
fn event_of_bytes(name: &[u8], step: i64, bytes: &[u8]) -> Vec<u8> {
    let dimension = field(2, &[&[0x08][..], &varint(bytes.len() as u64)].concat());
    let tensor = [&[0x08, 4][..], &field(2, &dimension), &field(4, bytes)].concat();
    frame(step, &[field(1, name), field(8, &tensor)].concat())
}

fn frame(step: i64, value: &[u8]) -> Vec<u8> {
    let payload = [&[0x10][..], &varint(step as u64), &field(5, &field(1, value))].concat();
    let masked = |bytes: &[u8]| crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let len = (payload.len() as u64).to_le_bytes();
    [&len[..], &masked(&len), &payload, &masked(&payload)].concat()
}

// --- looking at the tree -----------------------------------------------------------------------------

fn tree(mount: &Mount, name: &str) -> PathBuf {
    mount.at(".tensorfs/tensors").join(name)
}

/// All files below a directory, by their paths in it.
fn files(directory: &Path) -> BTreeSet<Vec<u8>> {
    let mut found = BTreeSet::new();
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())) {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            } else {
                let path = entry.path();
                assert!(found.insert(path.strip_prefix(directory).unwrap().as_os_str().as_bytes().to_vec()));
            }
        }
    }
    found
}

#[track_caller]
fn text(paths: &BTreeSet<Vec<u8>>) -> Vec<String> {
    paths.iter().map(|path| String::from_utf8(path.clone()).unwrap()).collect()
}

/// The header of a `.npy` and the bytes behind it.
fn npy(bytes: &[u8]) -> (String, &[u8]) {
    assert!(bytes.starts_with(b"\x93NUMPY"), "{:?}", &bytes[..bytes.len().min(16)]);
    let (len, start) = match bytes[6] {
        1 => (u16::from_le_bytes([bytes[8], bytes[9]]) as usize, 10),
        _ => (u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize, 12),
    };
    (String::from_utf8_lossy(&bytes[start..start + len]).into_owned(), &bytes[start + len..])
}

/// The bytes of a tensor.
fn bytes(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(bytes.len() as u64, fs::metadata(path).unwrap().len());
    npy(&bytes).1.to_vec()
}

fn attribute(path: &Path, name: &str) -> Result<String, Errno> {
    let value = xattr::get(path, format!("user.tensorfs.{name}"))?;
    Ok(String::from_utf8(value).unwrap())
}

fn sealed(path: &Path) {
    wait_until("sealed", || attribute(path, "state").unwrap() == "sealed");
}
