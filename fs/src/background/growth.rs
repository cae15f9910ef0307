//! The bytes that a file has grown by while something can still write it: they are read once into memory, so that what
//! is said of them and their checksum are of the same bytes.

use std::io;
use std::os::fd::AsFd;

use tensorfs_formats::{Source, hole_of};

use crate::store::host::{self, HostStat};

/// What a frame begins with, and is known by.
pub(super) const FRAME_HEADER: u64 = 12;
/// So much of a file says whether it is one of frames.
const GLANCE: u64 = 64 << 10;
/// So much is held in memory.
pub(super) const HELD: u64 = 8 << 20;

/// How much of a file is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    Glance,
    Held,
    /// All there is: a frame that is longer. What is said of it and its checksum are read one after the other.
    All,
}

impl Window {
    pub fn end(self, from: u64) -> u64 {
        match self {
            Self::Glance => from.saturating_add(GLANCE),
            Self::Held => from.saturating_add(HELD),
            Self::All => u64::MAX,
        }
    }

    pub fn wider(self) -> Option<Self> {
        match self {
            Self::Glance => Some(Self::Held),
            Self::Held => Some(Self::All),
            Self::All => None,
        }
    }

    pub fn is_held(self) -> bool {
        self != Self::All
    }
}

/// A file, some bytes of which are held in memory.
pub(super) struct Growth<F> {
    file: F,
    from: u64,
    held: Vec<u8>,
}

impl<F: AsFd> Growth<F> {
    pub fn new(file: F) -> Self {
        Self { file, from: 0, held: Vec::new() }
    }

    pub fn stat(&self) -> io::Result<HostStat> {
        Ok(host::stat(&self.file)?)
    }

    /// Holds the bytes of a window, or none where it is not held. What is held already is not read again.
    pub fn hold(&mut self, from: u64, upto: u64, window: Window) -> io::Result<()> {
        let before = from.checked_sub(self.from).and_then(|before| usize::try_from(before).ok());
        match before.filter(|before| *before <= self.held.len()) {
            Some(before) => drop(self.held.drain(..before)),
            None => self.held.clear(),
        }
        self.from = from;
        if !window.is_held() {
            self.held = Vec::new();
            return Ok(());
        }
        let mut done = self.held.len();
        self.held.resize(usize::try_from(upto - from).unwrap_or(usize::MAX).max(done), 0);
        while done < self.held.len() {
            match host::read_at(&self.file, &mut self.held[done..], from + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => done += count,
            }
        }
        Ok(())
    }

    /// The file as if it ended at a place.
    pub fn upto(&self, end: u64) -> Upto<'_, F> {
        Upto { growth: self, end }
    }
}

/// A file up to a place.
pub(super) struct Upto<'a, F> {
    growth: &'a Growth<F>,
    end: u64,
}

impl<F: AsFd> Source for Upto<'_, F> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.end)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let Growth { file, from, held } = self.growth;
        let want = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = &mut buffer[..want];
        let held = offset.checked_sub(*from).and_then(|at| held.get(usize::try_from(at).ok()?..));
        match held.filter(|held| !held.is_empty()) {
            Some(held) => held.read_at(0, buffer),
            None => Ok(host::read_at(file, buffer, offset)?),
        }
    }

    fn hole(&self, offset: u64) -> io::Result<u64> {
        let Growth { file, from, held } = self.growth;
        // What is held is what it was when it was read.
        let end = match *from {
            _ if held.is_empty() => self.end,
            from if offset < from => self.end.min(from),
            from if offset < from.saturating_add(held.len() as u64) => return Ok(0),
            _ => self.end,
        };
        Ok(hole_of(file, offset).min(end.saturating_sub(offset)))
    }
}

/// A file of which nobody sees more than the header of a frame, and how long it is.
pub(super) struct Header<'a, F> {
    file: Upto<'a, F>,
    at: u64,
}

impl<'a, F: AsFd> Header<'a, F> {
    pub fn new(file: Upto<'a, F>, at: u64) -> Self {
        Self { file, at }
    }
}

impl<F: AsFd> Source for Header<'_, F> {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let inside = offset.checked_sub(self.at).and_then(|inside| FRAME_HEADER.checked_sub(inside)).unwrap_or(0);
        let want = buffer.len().min(inside as usize);
        self.file.read_at(offset, &mut buffer[..want])
    }

    fn hole(&self, _: u64) -> io::Result<u64> {
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn read(growth: &Growth<File>, offset: u64, end: u64) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        let count = growth.upto(end).read_at(offset, &mut bytes).unwrap();
        bytes.truncate(count);
        bytes
    }

    #[test]
    fn what_is_held_is_read_once_and_stays_what_it_was() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&(0..100).collect::<Vec<u8>>()).unwrap();
        let mut growth = Growth::new(file.try_clone().unwrap());
        growth.hold(10, 40, Window::Held).unwrap();
        file.write_all_at(&[255; 50], 0).unwrap();
        assert_eq!(read(&growth, 10, 40), (10..40).collect::<Vec<u8>>());
        growth.hold(30, 60, Window::Held).unwrap();
        assert_eq!(read(&growth, 30, 60), [(30..40).collect::<Vec<u8>>(), vec![255; 10], (50..60).collect()].concat());
        growth.hold(20, 60, Window::All).unwrap();
        assert_eq!(read(&growth, 20, 60), [vec![255; 30], (50..60).collect()].concat());
        assert_eq!(growth.hold(90, 101, Window::Held).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn holes_in_front_of_what_is_held_and_behind_it_are_told() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let mut growth = Growth::new(file.try_clone().unwrap());
        let hole = |growth: &Growth<File>, offset| growth.upto(1 << 19).hole(offset).unwrap();
        if hole(&growth, 0) == 0 {
            return eprintln!("skipped: the filesystem of temporary files tells no holes");
        }
        assert_eq!(hole(&growth, 100), (1 << 19) - 100);
        growth.hold(8192, 16384, Window::Held).unwrap();
        let holes = [0, 8191, 8192, 16383, 16384, 1 << 19].map(|offset| hole(&growth, offset));
        assert_eq!(holes, [8192, 1, 0, 0, (1 << 19) - 16384, 0]);
    }

    #[test]
    fn of_a_header_nothing_else_is_seen() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&(0..100).collect::<Vec<u8>>()).unwrap();
        let growth = Growth::new(file);
        let header = Header::new(growth.upto(90), 20);
        assert_eq!(header.size().unwrap(), 90);
        let mut bytes = [0; 50];
        assert_eq!((header.read_at(20, &mut bytes).unwrap(), &bytes[..2]), (12, &[20, 21][..]));
        assert_eq!((header.read_at(30, &mut bytes).unwrap(), bytes[0]), (2, 30));
        assert_eq!([0, 19, 32, 60].map(|offset| header.read_at(offset, &mut bytes).unwrap()), [0; 4]);
    }
}
