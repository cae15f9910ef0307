//! A source of which the pages that were read lately are kept, for formats whose parts are all over the file.

use std::cell::{Cell, RefCell};
use std::io;

use crate::source::{Source, read_up_to};

/// Bytes of a page, and how many pages are kept.
const PAGE: u64 = 4096;
const KEPT: usize = 1024;
/// What is read of the file at most, and what is given of that, for each byte that the file has, and for none.
const READ: u64 = 8;
const GIVEN: u64 = 64;
const ANYHOW: u64 = 512 << 10;

struct Page {
    number: u64,
    bytes: Vec<u8>,
}

/// Pages of a source, and how much may still be read. Of what refers to itself no more is read than of what does not.
pub(crate) struct Pages<'s> {
    source: &'s dyn Source,
    size: u64,
    /// A page has one place, so that looking for it costs nothing.
    kept: RefCell<Vec<Option<Page>>>,
    /// Bytes that may still be read, and that may still be given.
    to_read: Cell<u64>,
    to_give: Cell<u64>,
}

impl<'s> Pages<'s> {
    pub fn new(source: &'s dyn Source) -> io::Result<Self> {
        let size = source.size()?;
        let bound = |times: u64| Cell::new(size.saturating_mul(times).saturating_add(ANYHOW));
        let kept = RefCell::new((0..KEPT).map(|_| None).collect());
        Ok(Pages { source, size, kept, to_read: bound(READ), to_give: bound(GIVEN) })
    }

    /// True if nothing more is read.
    pub fn is_spent(&self) -> bool {
        self.to_read.get() == 0 || self.to_give.get() == 0
    }

    fn fetch(&self, number: u64, page: &mut Option<Page>) -> io::Result<()> {
        *page = None;
        let len = PAGE.min(self.size.saturating_sub(number * PAGE));
        spend(&self.to_read, len)?;
        let mut bytes = vec![0; len as usize];
        let got = read_up_to(self.source, number * PAGE, &mut bytes)?;
        bytes.truncate(got);
        *page = Some(Page { number, bytes });
        Ok(())
    }
}

fn spend(left: &Cell<u64>, count: u64) -> io::Result<()> {
    match left.get().checked_sub(count) {
        Some(rest) => left.set(rest),
        None => {
            left.set(0);
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its parts are read too often"));
        }
    }
    Ok(())
}

/// As long as it was when the first page was read.
impl Source for Pages<'_> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if offset >= self.size {
            return Ok(0);
        }
        let number = offset / PAGE;
        let mut kept = self.kept.borrow_mut();
        let page = &mut kept[(number % KEPT as u64) as usize];
        if page.as_ref().is_none_or(|page| page.number != number) {
            self.fetch(number, page)?;
        }
        let bytes =
            page.as_ref().map_or(&[][..], |page| page.bytes.get((offset % PAGE) as usize..).unwrap_or_default());
        let count = bytes.len().min(buffer.len());
        spend(&self.to_give, count as u64)?;
        buffer[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::read_exact;

    #[test]
    fn gives_what_the_source_has() {
        let bytes: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let source = &bytes[..];
        let pages = Pages::new(&source).unwrap();
        for at in [0, 4090, 5, 4096 * 1024 + 5, 11_999_000] {
            let mut got = [0; 1000];
            read_exact(&pages, at, &mut got).unwrap();
            assert_eq!(got, bytes[at as usize..at as usize + 1000]);
        }
        assert_eq!(pages.read_at(12_000_000, &mut [0]).unwrap(), 0);
        assert_eq!(pages.read_at(u64::MAX, &mut [0]).unwrap(), 0);
    }

    #[test]
    fn gives_no_more_than_it_may() {
        let bytes = vec![1; 16 << 20];
        let source = &bytes[..];
        // Two pages that have the same place.
        let pages = Pages::new(&source).unwrap();
        let mut reads = 0;
        while pages.read_at(reads % 2 * PAGE * KEPT as u64, &mut [0]).is_ok() {
            reads += 1;
        }
        assert_eq!(reads, (8 * (16 << 20) + ANYHOW) / PAGE);
        assert!(pages.is_spent());
        // One page, which is read once.
        let pages = Pages::new(&source).unwrap();
        let mut page = [0; PAGE as usize];
        assert!((0..64 * 4096).all(|_| pages.read_at(0, &mut page).is_ok()) && !pages.is_spent());
        assert!((0..129).any(|_| pages.read_at(0, &mut page).is_err()) && pages.is_spent());
    }
}
