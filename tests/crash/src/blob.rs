//! A file's bytes on a simulated medium, in units that become durable one by one: sectors or cache lines.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::cell::Cell;

/// Bytes are shared between images in pages.
pub const PAGE: usize = 4096;

type Page = Arc<[u8; PAGE]>;

fn zero_page() -> Page {
    static ZERO: OnceLock<Page> = OnceLock::new();
    ZERO.get_or_init(|| Arc::new([0; PAGE])).clone()
}

/// What a power loss leaves of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This version of it.
    Whole(usize),
    /// This version in some of its 8-byte words, the next one in the others.
    Torn(usize, u64),
}

/// A file.
#[derive(Clone, Debug)]
pub struct Blob {
    /// What the running machine sees.
    pages: Vec<Page>,
    /// Bytes in the file.
    pub len: Cell<u64>,
    /// Units that a power loss may change.
    units: BTreeMap<usize, Cell<Box<[u8]>>>,
    unit: usize,
}

impl Blob {
    /// An empty file whose bytes become durable in units of that size.
    pub fn new(unit: usize) -> Self {
        Self { pages: Vec::new(), len: Cell::new(0), units: BTreeMap::new(), unit }
    }

    /// A durable file.
    pub fn with(unit: usize, bytes: &[u8]) -> Self {
        let mut blob = Self::new(unit);
        blob.put(0, bytes);
        blob.len = Cell::new(bytes.len() as u64);
        blob
    }

    /// Bytes seen now; zeroes where nothing was stored.
    pub fn get(&self, offset: usize, bytes: &mut [u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done;
            let part = (PAGE - at % PAGE).min(bytes.len() - done);
            match self.pages.get(at / PAGE) {
                Some(page) => bytes[done..done + part].copy_from_slice(&page[at % PAGE..at % PAGE + part]),
                None => bytes[done..done + part].fill(0),
            }
            done += part;
        }
    }

    /// The first part of a range that is no hole: every page of zeroes is one.
    pub fn data(&self, range: Range<u64>) -> Option<Range<u64>> {
        let is_data =
            |at: &u64| self.pages.get(*at as usize / PAGE).is_some_and(|page| page.iter().any(|byte| *byte != 0));
        let mut pages = (range.start / PAGE as u64 * PAGE as u64..range.end).step_by(PAGE);
        let start = pages.find(is_data)?;
        let end = pages.find(|at| !is_data(at)).unwrap_or(range.end);
        Some(start.max(range.start)..end)
    }

    /// Everything up to the size seen now.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; *self.len.now() as usize];
        self.get(0, &mut bytes);
        bytes
    }

    /// Changes what is seen, and makes it durable at once.
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        while self.pages.len() * PAGE < end {
            self.pages.push(zero_page());
        }
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done;
            let part = (PAGE - at % PAGE).min(bytes.len() - done);
            let page = &mut self.pages[at / PAGE];
            if page[at % PAGE..at % PAGE + part] != bytes[done..done + part] {
                Arc::make_mut(page)[at % PAGE..at % PAGE + part].copy_from_slice(&bytes[done..done + part]);
            }
            done += part;
        }
    }

    /// A store: every unit of it may become durable at any time from now on.
    pub fn store(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let units = offset / self.unit..=(offset + bytes.len() - 1) / self.unit;
        let before: Vec<Box<[u8]>> = units.clone().map(|unit| self.unit_now(unit)).collect();
        self.put(offset, bytes);
        for (unit, before) in units.zip(before) {
            let now = self.unit_now(unit);
            self.units.entry(unit).or_insert_with(|| Cell::new(before)).set(now);
        }
    }

    fn unit_now(&self, unit: usize) -> Box<[u8]> {
        let mut bytes = vec![0; self.unit];
        self.get(unit * self.unit, &mut bytes);
        bytes.into()
    }

    /// The size changes. What is behind a smaller one is zeroes if it is ever seen again.
    pub fn set_len(&mut self, len: u64) {
        let old = *self.len.now();
        if len < old {
            self.store(len as usize, &vec![0; (old - len) as usize]);
        }
        self.len.set(len);
    }

    /// A sync that succeeds.
    pub fn sync(&mut self) {
        self.len.sync();
        self.units.values_mut().for_each(Cell::sync);
        self.forget_settled();
    }

    /// A sync that fails.
    pub fn fail(&mut self) {
        self.len.fail();
        self.units.values_mut().for_each(Cell::fail);
    }

    /// A write-back of the units at these offsets begins.
    pub fn write_back(&mut self, lines: impl Iterator<Item = usize>) {
        for line in lines {
            if let Some(cell) = self.units.get_mut(&(line / self.unit)) {
                cell.write_back();
            }
        }
    }

    /// Write-backs that were begun are done.
    pub fn fence(&mut self) {
        self.units.values_mut().for_each(Cell::fence);
        self.forget_settled();
    }

    fn forget_settled(&mut self) {
        self.units.retain(|_, cell| !cell.is_settled());
    }

    /// How many versions each unit has that a power loss may change.
    pub fn axes(&self) -> impl Iterator<Item = usize> {
        self.units.values().map(|cell| cell.versions().len())
    }

    /// What a power loss leaves: `choose` picks for every unit in order, given how many versions it has; `len` picks
    /// among the sizes.
    pub fn after_power_loss(&self, mut choose: impl FnMut(usize) -> Choice, len: usize) -> Self {
        let mut blob =
            Self { pages: self.pages.clone(), len: self.len.clone(), units: BTreeMap::new(), unit: self.unit };
        for (unit, cell) in &self.units {
            let versions = cell.versions();
            match choose(versions.len()) {
                Choice::Whole(version) if version + 1 == versions.len() => {}
                Choice::Whole(version) => blob.put(unit * self.unit, &versions[version]),
                Choice::Torn(version, mask) => {
                    let mut torn = versions[version].clone();
                    let newer = &versions[(version + 1).min(versions.len() - 1)];
                    for word in 0..self.unit / 8 {
                        if mask >> (word % 64) & 1 != 0 {
                            torn[word * 8..word * 8 + 8].copy_from_slice(&newer[word * 8..word * 8 + 8]);
                        }
                    }
                    blob.put(unit * self.unit, &torn);
                }
            }
        }
        blob.len = Cell::new(self.len.versions()[len]);
        blob.forget_behind_end();
        blob
    }

    /// What was written behind the size that was kept is never seen again: a host that makes a file longer shows
    /// zeroes.
    fn forget_behind_end(&mut self) {
        let end = *self.len.now() as usize;
        self.pages.truncate(end.div_ceil(PAGE));
        // Of a page that ends the file in its middle; none is there where the file ends in a hole.
        if let Some(page) = self.pages.get_mut(end / PAGE) {
            Arc::make_mut(page)[end % PAGE..].fill(0);
        }
    }

    /// Pages that are not all zeroes, with their numbers.
    pub fn pages(&self) -> impl Iterator<Item = (usize, &[u8; PAGE])> {
        let zero = zero_page();
        let used = self.pages.iter().enumerate().filter(move |(_, page)| !Arc::ptr_eq(page, &zero));
        used.map(|(index, page)| (index, &**page))
    }

    /// Everything that can be seen, and what of it would not become durable by a sync.
    pub fn digest(&self, hasher: &mut impl Hasher) {
        for (unit, _) in self.units.iter().filter(|(_, cell)| cell.has_failed()) {
            unit.hash(hasher);
        }
        self.len.now().hash(hasher);
        for (index, page) in self.pages() {
            if page.iter().any(|byte| *byte != 0) {
                index.hash(hasher);
                hasher.write(page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_behind_the_end_is_zeroes_when_a_file_grows_after_a_power_loss() {
        let mut blob = Blob::new(64);
        blob.set_len(600);
        blob.store(0, &[7; 600]);
        // All bytes became durable, and the size of before.
        let mut after = blob.after_power_loss(|versions| Choice::Whole(versions - 1), 0);
        assert!(after.bytes().is_empty());
        after.set_len(5000);
        assert_eq!(after.bytes(), vec![0; 5000]);
        let mut half = blob.after_power_loss(|versions| Choice::Whole(versions - 1), 1);
        assert_eq!(half.bytes(), vec![7; 600]);
        half.set_len(700);
        assert_eq!(half.bytes()[600..], [0; 100]);
        // A page that ends in a hole of another one loses nothing.
        half.set_len(PAGE as u64 + 500);
        let holed = half.after_power_loss(|versions| Choice::Whole(versions - 1), 2);
        assert_eq!(holed.bytes()[..600], [7; 600]);
    }
}
