//! Where what is in the file: places of several kinds, each of which is taken or free.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::{Whence, lseek};

use super::entry::{Slip, unsealed};

/// Places of one kind.
#[derive(Debug)]
pub(super) struct Region {
    /// Which of them.
    pub kind: usize,
    pub start: u64,
    pub size: usize,
    /// So many places are there; what finds none cannot be taken over.
    pub most: u32,
    /// Behind each place is room for a text.
    pub has_texts: bool,
}

pub(super) static NUMBERS: Region = Region { kind: 0, start: 4096, size: 8, most: 1 << 20, has_texts: false };
pub(super) static HANDLES: Region = Region { kind: 1, start: 16 << 20, size: 64, most: 1 << 20, has_texts: false };
pub(super) static SHOWN: Region = Region { kind: 2, start: 96 << 20, size: 64, most: 1 << 20, has_texts: false };
pub(super) static VIEWS: Region = Region { kind: 3, start: 192 << 20, size: 64, most: 1 << 16, has_texts: true };
/// So many kinds there are.
pub(super) const KINDS: usize = 4;

/// The texts of open files of the control tree begin here. What nothing was written to takes no memory.
const TEXTS: u64 = 1 << 30;
/// A text may be as long as this.
pub(super) const TEXT_MAX: usize = 16 << 20;

impl Region {
    pub fn at(&self, place: u32) -> u64 {
        self.start + u64::from(place) * self.size as u64
    }
}

/// Where the text of a place is.
pub(super) fn text_at(place: u32) -> u64 {
    TEXTS + u64::from(place) * TEXT_MAX as u64
}

/// Gives the memory of a text back.
pub(super) fn drop_text(file: &File, place: u32) -> io::Result<()> {
    let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    Ok(fallocate(file, how, text_at(place) as i64, TEXT_MAX as i64)?)
}

/// Which places of a region are free.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// From here on all are.
    pub next: u32,
    free: Vec<u32>,
}

impl Places {
    /// All places but those that are taken are free.
    pub fn without(taken: impl Iterator<Item = u32>) -> Self {
        let taken: HashSet<u32> = taken.collect();
        let next = taken.iter().max().map_or(0, |last| last + 1);
        Self { next, free: (0..next).filter(|place| !taken.contains(place)).collect() }
    }

    /// A place that was free.
    pub fn take(&mut self, region: &Region) -> Option<u32> {
        match self.free.pop() {
            Some(place) => Some(place),
            None if self.next < region.most => {
                self.next += 1;
                Some(self.next - 1)
            }
            None => None,
        }
    }

    /// It is free again.
    pub fn give_back(&mut self, place: u32) {
        self.free.push(place);
    }
}

/// What is in the places of a region that are taken.
pub(super) fn read_places<const SIZE: usize>(file: &File, region: &Region) -> io::Result<Vec<(u32, [u8; SIZE])>> {
    let end = file.metadata()?.len().min(region.at(region.most));
    let mut found = Vec::new();
    let mut buffer = vec![0; SIZE << 12];
    let mut at = region.start;
    while at < end {
        // Holes are not looked at: of most regions little is there.
        match lseek(file, at as i64, Whence::SeekData) {
            Ok(data) => at = (data as u64).max(at),
            Err(Errno::ENXIO) => break,
            Err(errno) => return Err(errno.into()),
        }
        at -= (at - region.start) % SIZE as u64;
        let len = buffer.len().min(end.saturating_sub(at) as usize);
        file.read_exact_at(&mut buffer[..len], at)?;
        for (n, bytes) in buffer[..len].chunks_exact(SIZE).enumerate() {
            if let Ok(bytes) = <[u8; SIZE]>::try_from(bytes)
                && bytes != [0; SIZE]
            {
                found.push((((at - region.start) / SIZE as u64) as u32 + n as u32, bytes));
            }
        }
        at += len as u64;
    }
    Ok(found)
}

/// The slips in the places of a region, as far as their checksums are right.
pub(super) fn read_slips(file: &File, region: &Region) -> io::Result<Vec<(u32, Slip)>> {
    let slip = |(place, bytes): (u32, [u8; 64])| match unsealed(&bytes) {
        Some(slip) => Some((place, slip)),
        None => {
            log::warn!("the handover of the server before: place {place} is damaged; what it stands for is lost");
            None
        }
    };
    Ok(read_places(file, region)?.into_iter().filter_map(slip).collect())
}
