//! Writing again what a host failed to write.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

/// No host has larger blocks.
pub const LARGEST_BLOCK: usize = 64 << 10;

/// Writes the first bytes of a file where the host has failed to, in other blocks.
///
/// ext4 takes a page in its memory that it failed to write for one that it had: what is written to it again goes to
/// blocks that still count as unwritten, with success, and is zeroes when it is read from the disk.
pub fn write_anew(file: &File, bytes: &[u8]) -> io::Result<()> {
    let mut all = vec![0; bytes.len().next_multiple_of(LARGEST_BLOCK)];
    all[..bytes.len()].copy_from_slice(bytes);
    // What follows in the last block goes with it.
    let mut len = bytes.len();
    loop {
        match file.read_at(&mut all[len..], len as u64)? {
            0 => break,
            more => len += more,
        }
    }
    let whole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    match fallocate(file, whole, 0, all.len() as i64) {
        // Such a host has no blocks that count as unwritten.
        Ok(()) | Err(Errno::EOPNOTSUPP) => file.write_all_at(&all[..len], 0),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_anew_is_all_there() {
        let file = tempfile::tempfile().unwrap();
        for (before, bytes) in [(0, 10), (10, 5000), (70_000, 5000), (200_000, 65_536)] {
            let before: Vec<u8> = (0..before).map(|n| (n % 251) as u8 + 1).collect();
            file.set_len(0).unwrap();
            file.write_all_at(&before, 0).unwrap();
            write_anew(&file, &vec![255; bytes]).unwrap();
            let mut found = vec![0; before.len().max(bytes) + 1];
            assert_eq!(file.read_at(&mut found, 0).unwrap(), found.len() - 1);
            assert!(found[..bytes].iter().all(|byte| *byte == 255));
            assert!(before.len() < bytes || found[bytes..before.len()] == before[bytes..]);
        }
    }
}
