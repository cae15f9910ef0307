//! Writing and reading, as programs do.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;

use crate::error::Result;

/// Bytes that do not repeat soon: at least as many as the largest call takes.
pub fn bytes(len: usize) -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let all = BYTES.get_or_init(|| {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        (0..(16 << 20) / 8).flat_map(|_| random.next().to_le_bytes()).collect()
    });
    &all[..len]
}

/// Numbers without a pattern, the same in every run (xorshift64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Writes so many bytes, `call` at a time.
pub fn write(file: &mut File, len: u64, call: usize) -> Result<()> {
    let piece = bytes(call);
    for _ in 0..len / call as u64 {
        file.write_all(piece)?;
    }
    Ok(())
}

/// A file with so many bytes.
pub fn make(path: &Path, len: u64) -> Result<()> {
    write(&mut File::create(path)?, len, len.clamp(1, 1 << 20) as usize)
}

/// Reads a file to its end, `call` bytes at a time; how many there were.
pub fn read(file: &mut File, call: usize) -> Result<u64> {
    let mut buffer = vec![0; call];
    let mut sum = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(sum),
            n => sum += n as u64,
        }
    }
}

/// A file opened for appending, new or not.
pub fn append(path: &Path) -> Result<File> {
    Ok(File::options().append(true).create(true).open(path)?)
}

/// A file whose every write is durable when it returns.
pub fn synchronous(path: &Path) -> Result<File> {
    Ok(File::options().write(true).create(true).truncate(true).custom_flags(libc::O_DSYNC).open(path)?)
}

/// Makes a directory's names durable.
pub fn sync_directory(path: &Path) -> Result<()> {
    Ok(File::open(path)?.sync_all()?)
}
