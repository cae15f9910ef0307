//! Objects that go into a file as they come: what is wrong with one is known when the last of its bytes are in the
//! file, so the file is one that nobody else reads yet.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::{AHEAD, Fetcher, write_at};
use crate::error::{Error, Result};
use crate::place::{Coming, Sink};
use crate::repository::{Hash, Naming, Part, object_name};

/// So many come at a time: more of them end at the same time, and have to be synced when nothing comes any more.
const ROW: usize = 8;
/// So many bytes are handed to the host's disk at a time.
const OUT: u64 = 8 << 20;

/// A part that is on its way into a file.
pub struct Pouring {
    part: Part,
    at: u64,
    file: Arc<File>,
    coming: Coming<io::Result<bool>>,
}

impl Pouring {
    /// Which part of a file it is, and where that begins there.
    pub fn part(&self) -> (&Part, u64) {
        (&self.part, self.at)
    }

    /// Waits until it is there; what is not as it was to be is returned. `path` is what the file is called in errors.
    pub fn wait(self, path: &str) -> Result<Option<Again>> {
        let Self { part, at, file, coming } = self;
        let is_there = match coming.wait() {
            Ok(Some(done)) => done.map_err(|source| Error::Host { path: path.to_owned(), what: "write", source })?,
            Ok(None) | Err(Error::Damaged { .. }) => false,
            Err(error) => return Err(error),
        };
        Ok((!is_there).then_some(Again { part, at, file }))
    }
}

/// A part that has to come once more.
pub struct Again {
    part: Part,
    at: u64,
    file: Arc<File>,
}

impl Fetcher<'_> {
    /// Whether so many bytes more may be on their way, beside others.
    pub fn has_room(&self, (objects, bytes): (usize, u64), more: u64) -> bool {
        // Those that are encrypted are in memory until they are whole.
        let is_kept = self.repository.place().cipher().is_some();
        objects < ROW && (!is_kept || objects == 0 || bytes.saturating_add(more) <= AHEAD)
    }

    /// Has a part come that is an object of its own, if it is not at hand, nor was before.
    pub fn pour(&self, part: &Part, file: &Arc<File>, at: u64) -> Option<Pouring> {
        let Part::Alone((len, hash)) = part else { return None };
        if self.written.as_ref().is_some_and(|written| written.place(part).is_some()) {
            return None;
        }
        let names = Naming::new(self.repository.place().names());
        let sink = Poured { file: file.clone(), at, left: *len, begun: at, names, hash: *hash, is_longer: false };
        let coming = self.repository.place().pour(&object_name(*hash), sink);
        Some(Pouring { part: part.clone(), at, file: file.clone(), coming })
    }

    /// Writes what has not come as it was to be. What is wrong with it is told.
    pub fn once_more(&mut self, again: &Again, path: &str) -> Result<()> {
        let bytes = self.part(&again.part)?.unwrap_or_default();
        let host = |source| Error::Host { path: path.to_owned(), what: "write", source };
        write_at(&again.file, &bytes, again.at).map_err(host)
    }
}

/// Has the host begin to write to its disk what will have to be there in the end, while more is to come. What fails
/// with that, whoever syncs the file hears.
fn begin_to_write_out(file: &File, bytes: Range<u64>) {
    let (Ok(at), Ok(len)) = (i64::try_from(bytes.start), i64::try_from(bytes.end - bytes.start)) else { return };
    // SAFETY: takes integers alone, and changes no byte.
    unsafe { libc::sync_file_range(file.as_raw_fd(), at, len, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Writes the bytes of an object, and finds out whether they are what it is named after.
struct Poured {
    file: Arc<File>,
    at: u64,
    left: u64,
    /// Up to here the host writes to its disk what it has.
    begun: u64,
    names: Naming,
    hash: Hash,
    is_longer: bool,
}

impl Sink for Poured {
    type Made = bool;

    fn take(&mut self, piece: &[u8]) -> io::Result<()> {
        let len = piece.len() as u64;
        self.is_longer |= len > self.left;
        if self.is_longer {
            return Ok(());
        }
        self.names.add(piece);
        self.file.write_all_at(piece, self.at)?;
        self.at += len;
        self.left -= len;
        if self.at >= self.begun + OUT || self.left == 0 {
            begin_to_write_out(&self.file, self.begun..self.at);
            self.begun = self.at;
        }
        Ok(())
    }

    fn end(self) -> bool {
        !self.is_longer && self.left == 0 && self.names.hash() == self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object that is longer or shorter than its part, or another one, is known for that, and writes nothing beside.
    #[test]
    fn what_is_poured_is_the_part_or_nothing() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
        let mut flipped = bytes.clone();
        flipped[70_000] ^= 1;
        let longer = [&bytes[..], b"x"].concat();
        let all: [(&[u8], bool); 5] =
            [(&bytes, true), (&flipped, false), (&bytes[1..], false), (&longer, false), (&[], false)];
        for (came, is_it) in all {
            let file = Arc::new(tempfile::tempfile().unwrap());
            file.write_all_at(&[7; 120_000], 0).unwrap();
            let (hash, left) = (Hash::of(&bytes), bytes.len() as u64);
            let (file_of_it, names) = (file.clone(), Naming::new(None));
            let mut sink = Poured { file: file_of_it, at: 500, left, begun: 500, names, hash, is_longer: false };
            came.chunks(4097).for_each(|piece| sink.take(piece).unwrap());
            assert_eq!(sink.end(), is_it, "{} bytes", came.len());
            let mut there = vec![0; 120_000];
            file.read_exact_at(&mut there, 0).unwrap();
            assert!(there[..500].iter().chain(&there[100_500..]).all(|byte| *byte == 7));
            assert!(!is_it || there[500..100_500] == bytes[..]);
        }
    }
}
