//! Reading what the medium holds rather than what is cached of it: whoever verifies wants to know about the medium, and
//! not to push out of the cache what others are about to read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use tensorfs_formats::Source;

/// What positions, lengths and memory are multiples of: no medium asks for more.
const UNIT: usize = 4096;
/// What is read at a time.
const PIECE: usize = 1 << 20;

/// A file that is read past the cache, where its filesystem can do that.
#[derive(Debug)]
pub struct Direct {
    file: File,
    /// Room for a piece wherever it has to begin. None where the cache has to be used.
    buffer: Mutex<Option<Vec<u8>>>,
}

impl Direct {
    /// Opens a file by calling back with flags to open it with.
    ///
    /// # Errors
    /// What opening it gives.
    pub fn open(open: impl Fn(libc::c_int) -> io::Result<File>) -> io::Result<Self> {
        match open(libc::O_DIRECT) {
            Ok(file) => Ok(Self { file, buffer: Mutex::new(Some(vec![0; PIECE + 2 * UNIT])) }),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                Ok(Self { file: open(0)?, buffer: Mutex::new(None) })
            }
            Err(error) => Err(error),
        }
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Source for Direct {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut held = self.buffer.lock();
        if let Some(buffer) = held.as_mut() {
            let skip = (offset % UNIT as u64) as usize;
            let want = (skip + bytes.len()).min(PIECE).next_multiple_of(UNIT);
            let begin = buffer.as_ptr().align_offset(UNIT);
            let place = buffer.get_mut(begin..begin + want).unwrap_or_default();
            match FileExt::read_at(&self.file, place, offset - skip as u64) {
                Ok(count) => {
                    let found = place[..count].get(skip..).unwrap_or_default();
                    let count = found.len().min(bytes.len());
                    bytes[..count].copy_from_slice(&found[..count]);
                    return Ok(count);
                }
                // The filesystem lets one open files so, but not read them.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => *held = None,
                Err(error) => return Err(error),
            }
        }
        drop(held);
        // It may still have the flag, which says how it may be read.
        let flags = nix::fcntl::fcntl(&self.file, nix::fcntl::FcntlArg::F_GETFL)?;
        let plain = nix::fcntl::OFlag::from_bits_retain(flags & !libc::O_DIRECT);
        nix::fcntl::fcntl(&self.file, nix::fcntl::FcntlArg::F_SETFL(plain))?;
        FileExt::read_at(&self.file, bytes, offset)
    }

    fn hole(&self, offset: u64) -> io::Result<u64> {
        self.file.hole(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::OpenOptionsExt;

    #[test]
    fn reads_any_range() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("f");
        let bytes: Vec<u8> = (0..PIECE * 2 + 777).map(|n| ((n * 31) >> 3) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let cached = Direct { file: File::open(&path).unwrap(), buffer: Mutex::new(None) };
        let direct = Direct::open(|flags| File::options().read(true).custom_flags(flags).open(&path)).unwrap();
        for file in [&direct, &cached] {
            assert_eq!(file.size().unwrap(), bytes.len() as u64);
            for (offset, len) in [(0, 10), (4095, 2), (1, PIECE), (7, PIECE * 2), (bytes.len() - 1, 1), (4096, 4096)] {
                let mut found = vec![0; len];
                tensorfs_formats::read_exact(file, offset as u64, &mut found).unwrap();
                assert!(found == bytes[offset..offset + len], "{offset} {len}");
            }
            assert_eq!(file.read_at(bytes.len() as u64, &mut [0; 5]).unwrap(), 0);
            assert_eq!(file.read_at(1 << 40, &mut [0; 5]).unwrap(), 0);
        }
    }
}
