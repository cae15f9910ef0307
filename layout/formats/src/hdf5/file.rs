//! A place in an HDF5 file, and numbers of the widths that this file has.

use std::collections::HashSet;

use crate::cursor::Cursor;
use crate::fault::{Result, malformed, too_much};
use crate::hdf5::superblock::{Superblock, number};

/// The most parts of a file (headers, blocks, nodes, heaps) that are looked at.
const PARTS_MAX: usize = 1 << 20;

pub(crate) struct File<'s> {
    pub cursor: Cursor<'s>,
    /// Where the superblock is: addresses are counted from there.
    base: u64,
    address: usize,
    length: usize,
    /// Parts that were looked at. Each belongs to one thing only, so that whoever follows addresses comes to an end.
    seen: HashSet<u64>,
}

impl<'s> File<'s> {
    pub fn new(cursor: Cursor<'s>, base: u64, superblock: &Superblock) -> Self {
        let &Superblock { address, length, .. } = superblock;
        File { cursor, base, address, length, seen: HashSet::new() }
    }

    pub fn seek(&mut self, at: u64) {
        self.cursor.seek(at);
    }

    pub fn at(&self) -> u64 {
        self.cursor.at()
    }

    pub fn skip(&mut self, count: u64) -> Result<()> {
        self.cursor.skip(count)
    }

    pub fn u8(&mut self) -> Result<u8> {
        self.cursor.u8()
    }

    pub fn u16(&mut self) -> Result<u16> {
        self.cursor.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.cursor.u32()
    }

    /// A number of so many bytes, at most eight.
    pub fn number(&mut self, width: usize) -> Result<u64> {
        self.cursor.take(width).map(number)
    }

    /// Bytes of an address and of a length.
    pub fn widths(&self) -> (usize, usize) {
        (self.address, self.length)
    }

    pub fn length(&mut self) -> Result<u64> {
        self.number(self.length)
    }

    /// The place in the file that an address means. None for the one that is nowhere.
    pub fn address(&mut self) -> Result<Option<u64>> {
        let address = self.number(self.address)?;
        if address == u64::MAX >> (64 - 8 * self.address) { Ok(None) } else { self.place(address).map(Some) }
    }

    /// The place in the file of something that is so far from the superblock.
    pub fn place(&self, address: u64) -> Result<u64> {
        match address.checked_add(self.base) {
            Some(at) => Ok(at),
            None => malformed("an address beyond all files"),
        }
    }

    /// True if nobody has come there before. To be asked once for each part.
    pub fn is_new(&mut self, at: u64) -> Result<bool> {
        if self.seen.len() >= PARTS_MAX {
            return too_much(format!("more than {PARTS_MAX} objects, nodes and heaps"));
        }
        Ok(self.seen.insert(at))
    }

    /// Goes to a part that belongs to one thing only, which begins with these bytes.
    pub fn open(&mut self, at: u64, signature: &[u8]) -> Result<()> {
        if !self.is_new(at)? {
            return malformed("a part that belongs to two things");
        }
        self.seek(at);
        self.expect(signature)
    }

    /// Goes on behind bytes that have to be there.
    pub fn expect(&mut self, signature: &[u8]) -> Result<()> {
        if self.cursor.take(signature.len())? != signature {
            return malformed(format!("a part that does not begin with {:?}", String::from_utf8_lossy(signature)));
        }
        Ok(())
    }
}
