//! A position in a source, with a window of its bytes in memory.

use std::io;

use crate::fault::{Fault, Result, short};
use crate::source::{Source, read_up_to};

/// The largest run of bytes that can be looked at at once.
pub(crate) const WINDOW: usize = 256 << 10;
/// What is read at a place that was jumped to, and where reading costs little.
const FIRST: usize = 4 << 10;
const FIRST_OF_KEPT: usize = 512;

pub(crate) struct Cursor<'s> {
    source: &'s dyn Source,
    at: u64,
    /// Nothing behind this is read.
    end: u64,
    window: Vec<u8>,
    window_at: u64,
    /// How much to read next: little after a jump, more and more as reading goes on in sequence.
    ahead: usize,
    first: usize,
}

impl<'s> Cursor<'s> {
    /// Bytes `at..end`, as far as the source has them.
    pub fn new(source: &'s dyn Source, at: u64, end: u64) -> Result<Self> {
        let end = end.min(source.size()?);
        Ok(Cursor { source, at, end, window: Vec::new(), window_at: 0, ahead: FIRST, first: FIRST })
    }

    /// Of a source that has in memory what is near.
    pub fn of_kept(source: &'s dyn Source, at: u64, end: u64) -> Result<Self> {
        Ok(Cursor { first: FIRST_OF_KEPT, ..Self::new(source, at, end)? })
    }

    pub fn at(&self) -> u64 {
        self.at
    }

    pub fn left(&self) -> u64 {
        self.end.saturating_sub(self.at)
    }

    pub fn seek(&mut self, at: u64) {
        self.at = at;
    }

    pub fn skip(&mut self, count: u64) -> Result<()> {
        if count > self.left() {
            return short("cut short");
        }
        self.at += count;
        Ok(())
    }

    /// How many of the next bytes are a hole.
    pub fn hole(&self) -> Result<u64> {
        Ok(self.source.hole(self.at)?.min(self.left()))
    }

    /// The next `count` bytes, at most [`WINDOW`] of them, without going on.
    pub fn peek(&mut self, count: usize) -> Result<&[u8]> {
        if count > WINDOW || count as u64 > self.left() {
            return short("cut short");
        }
        let inside = self.at.wrapping_sub(self.window_at);
        let known = inside < self.window.len() as u64;
        if !(known && self.window.len() - inside as usize >= count) {
            let follows = inside <= self.window.len() as u64;
            self.ahead = if follows { (self.ahead * 2).min(WINDOW) } else { self.first };
            let want = self.ahead.max(count).min(usize::try_from(self.left()).unwrap_or(usize::MAX));
            self.window.resize(want, 0);
            self.window_at = self.at;
            let got = read_up_to(self.source, self.at, &mut self.window);
            self.window.truncate(*got.as_ref().unwrap_or(&0));
            if got? < count {
                return short("cut short");
            }
        }
        let inside = (self.at - self.window_at) as usize;
        Ok(&self.window[inside..inside + count])
    }

    pub fn take(&mut self, count: usize) -> Result<&[u8]> {
        self.peek(count)?;
        let inside = (self.at - self.window_at) as usize;
        self.at += count as u64;
        Ok(&self.window[inside..inside + count])
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub fn u8(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// To the end that was given.
impl io::Read for Cursor<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = usize::try_from(self.left()).unwrap_or(usize::MAX).min(buffer.len()).min(WINDOW);
        match self.take(count) {
            Ok(bytes) => {
                buffer[..count].copy_from_slice(bytes);
                Ok(count)
            }
            Err(Fault::Io(error)) => Err(error),
            // The source has become shorter.
            Err(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_in_sequence_and_after_jumps() {
        let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let source = &bytes[..];
        let mut cursor = Cursor::new(&source, 0, u64::MAX).unwrap();
        for n in 0..1000 {
            assert_eq!(cursor.u32().unwrap(), n);
        }
        for n in [900_000, 5, 1_500, 999_999] {
            cursor.seek(u64::from(n) * 4);
            assert_eq!(cursor.u32().unwrap(), n);
        }
        assert!(cursor.u8().is_err());
        cursor.seek(u64::MAX);
        assert!(cursor.peek(1).is_err() && cursor.skip(1).is_err());
        cursor.seek(0);
        assert!(cursor.peek(WINDOW + 1).is_err());
        assert_eq!(cursor.peek(WINDOW).unwrap().len(), WINDOW);
    }
}
