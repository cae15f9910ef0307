//! Files as recognisers see them: a size, and bytes at offsets.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

/// Bytes at offsets.
pub trait Source {
    /// Bytes there are. They may become more or fewer while they are read.
    fn size(&self) -> io::Result<u64>;
    /// Reads bytes from `offset` on, as pread(2) does: possibly fewer than fit in `buffer`, none at the end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// How many bytes from `offset` on are known to be zeroes that nothing stores: a hole of the file. To be asked, and
    /// not to be read: a hole may be larger than anybody can read.
    fn hole(&self, _offset: u64) -> io::Result<u64> {
        Ok(0)
    }
}

impl<S: Source + ?Sized> Source for &S {
    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        (**self).read_at(offset, buffer)
    }

    fn hole(&self, offset: u64) -> io::Result<u64> {
        (**self).hole(offset)
    }
}

impl<S: Source + ?Sized> Source for Arc<S> {
    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        (**self).read_at(offset, buffer)
    }

    fn hole(&self, offset: u64) -> io::Result<u64> {
        (**self).hole(offset)
    }
}

impl Source for &[u8] {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}

impl Source for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn hole(&self, offset: u64) -> io::Result<u64> {
        Ok(hole_of(self, offset))
    }
}

/// How many bytes of an open file from `offset` on are a hole, as its filesystem tells. Moves the file's position.
pub fn hole_of(file: impl AsFd, offset: u64) -> u64 {
    let file = file.as_fd();
    let Ok(from) = i64::try_from(offset) else { return 0 };
    let data = match lseek(file, from, Whence::SeekData) {
        // Nothing but a hole up to the end, or the end.
        Err(Errno::ENXIO) => lseek(file, 0, Whence::SeekEnd),
        data => data,
    };
    data.ok().and_then(|data| u64::try_from(data).ok()).map_or(0, |data| data.saturating_sub(offset))
}

/// Reads until the buffer is full or the source ends.
pub(crate) fn read_up_to(source: &dyn Source, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        let Some(at) = offset.checked_add(done as u64) else { break };
        match source.read_at(at, &mut buffer[done..]) {
            Ok(0) => break,
            Ok(count) => done += count.min(buffer.len() - done),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Reads the whole buffer.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] if the source ends before the buffer is full; else what reading gives.
pub fn read_exact(source: &dyn Source, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    match read_up_to(source, offset, buffer)? {
        count if count == buffer.len() => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before the tensor does")),
    }
}

/// So many bytes of a source from `at` on, as a source by themselves.
pub(crate) struct Window<'s> {
    pub source: &'s dyn Source,
    pub at: u64,
    pub len: u64,
}

impl Source for Window<'_> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        match self.at.checked_add(offset) {
            Some(at) if want > 0 => self.source.read_at(at, &mut buffer[..want]),
            _ => Ok(0),
        }
    }
}

/// The bytes from `at` to `end` as a reader.
pub(crate) struct Part<S> {
    pub source: S,
    pub at: u64,
    pub end: u64,
}

impl<S: Source> io::Read for Part<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.source.read_at(self.at, &mut buffer[..want])?.min(want);
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn slices_end() {
        let source: &[u8] = b"abcdef";
        let mut buffer = [0; 4];
        assert_eq!(source.read_at(4, &mut buffer).unwrap(), 2);
        assert_eq!(source.read_at(u64::MAX, &mut buffer).unwrap(), 0);
        assert_eq!(read_up_to(&source, u64::MAX - 1, &mut buffer).unwrap(), 0);
        assert!(read_exact(&source, 3, &mut buffer).is_err());
    }

    #[test]
    fn parts_keep_within() {
        let source: &[u8] = b"abcdef";
        let mut text = String::new();
        Part { source: &source, at: 1, end: 4 }.read_to_string(&mut text).unwrap();
        assert_eq!(text, "bcd");
    }
}
