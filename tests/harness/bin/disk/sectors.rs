//! What a disk holds: for good, and in its cache.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use tensorfs_tests::random::Random;

const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// A disk may write its cache out when it likes; this one does so with the oldest when it has more than this.
const CACHE: usize = 256 << 20;

type Pages = HashMap<u64, Box<[u8; PAGE]>>;

/// The bytes of a disk.
pub struct Sectors {
    size: u64,
    /// What reading gives.
    now: Pages,
    /// What a power loss leaves in any case.
    durable: Pages,
    /// What was written since the last flush, in order.
    cache: VecDeque<(u64, Vec<u8>)>,
    cached: usize,
}

impl Sectors {
    /// As an image has them.
    pub fn read_from(image: &File) -> io::Result<Sectors> {
        let size = image.metadata()?.len();
        let (mut now, mut page) = (Pages::new(), Box::new([0; PAGE]));
        for number in 0..size / PAGE as u64 {
            image.read_exact_at(&mut page[..], number * PAGE as u64)?;
            if page.iter().any(|byte| *byte != 0) {
                now.insert(number, page.clone());
            }
        }
        Ok(Sectors { size, durable: now.clone(), now, cache: VecDeque::new(), cached: 0 })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn cached(&self) -> usize {
        self.cached
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len.min(self.size.saturating_sub(at) as usize)];
        let len = bytes.len();
        each_part(at, len, |page, from, range| {
            if let Some(page) = self.now.get(&page) {
                let part = &page[from..from + range.len()];
                bytes[range].copy_from_slice(part);
            }
        });
        bytes
    }

    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        store(&mut self.now, at, bytes);
        self.cache.push_back((at, bytes.to_vec()));
        self.cached += bytes.len();
        while self.cached > CACHE {
            self.write_out_one();
        }
    }

    pub fn flush(&mut self) {
        while !self.cache.is_empty() {
            self.write_out_one();
        }
    }

    fn write_out_one(&mut self) {
        if let Some((at, bytes)) = self.cache.pop_front() {
            store(&mut self.durable, at, &bytes);
            self.cached -= bytes.len();
        }
    }

    /// Writes what a power loss leaves: each sector of the cache in one of the versions that it had since the last
    /// flush, or the one before.
    pub fn lose(&self, seed: u64, image: &File) -> io::Result<()> {
        image.set_len(self.size)?;
        for (page, bytes) in &self.durable {
            image.write_all_at(&bytes[..], page * PAGE as u64)?;
        }
        let mut random = Random::new(seed);
        // In some images almost nothing is lost, in others almost everything.
        let odds = 1 + random.below(15);
        for (at, bytes) in &self.cache {
            for (index, sector) in bytes.chunks(SECTOR).enumerate() {
                let kept = match seed {
                    0 => false,
                    1 => true,
                    _ => random.below(16) < odds,
                };
                if kept {
                    image.write_all_at(sector, at + (index * SECTOR) as u64)?;
                }
            }
        }
        Ok(())
    }
}

fn store(pages: &mut Pages, at: u64, bytes: &[u8]) {
    each_part(at, bytes.len(), |page, from, range| {
        let page = pages.entry(page).or_insert_with(|| Box::new([0; PAGE]));
        page[from..from + range.len()].copy_from_slice(&bytes[range]);
    });
}

/// The parts of a range that are each in one page: the page, where in it, and where in the range.
fn each_part(at: u64, len: usize, mut part: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len {
        let (page, from) = ((at + done as u64) / PAGE as u64, ((at + done as u64) % PAGE as u64) as usize);
        let end = len.min(done + PAGE - from);
        part(page, from, done..end);
        done = end;
    }
}
