//! FlatBuffers, as far as they need to be read to find fields: no schema, no recursion, nothing kept.
//!
//! A table is a place in some bytes that are in memory; whoever knows the schema asks for its fields. No offset is
//! believed before it has been checked against the bytes. Tables may share what they refer to, so whoever goes through
//! them must bound how many of them he looks at.
//!
//! <https://flatbuffers.dev/internals/>

use crate::fault::{Result, malformed};

/// A table: where it is, and where it says which fields it has.
#[derive(Clone, Copy)]
pub(crate) struct Table<'b> {
    bytes: &'b [u8],
    at: usize,
    fields: &'b [u8],
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    match at.checked_add(N).and_then(|end| bytes.get(at..end)?.try_into().ok()) {
        Some(array) => Ok(array),
        None => malformed("a FlatBuffer that leads out of its bytes"),
    }
}

/// The place that the offset at a place leads to.
fn follow(bytes: &[u8], at: usize) -> Result<usize> {
    let offset = u32::from_le_bytes(array(bytes, at)?) as usize;
    at.checked_add(offset).map_or_else(|| malformed("a FlatBuffer that leads out of its bytes"), Ok)
}

/// As many items of a width as are said to be at a place.
fn vector(bytes: &[u8], at: usize, width: usize) -> Result<&[u8]> {
    let count = u32::from_le_bytes(array(bytes, at)?) as usize;
    let items = count.checked_mul(width).and_then(|len| bytes.get(at + 4..)?.get(..len));
    items.map_or_else(|| malformed("a FlatBuffer with a list that does not fit"), Ok)
}

impl<'b> Table<'b> {
    pub fn root(bytes: &'b [u8]) -> Result<Self> {
        Self::new(bytes, follow(bytes, 0)?)
    }

    fn new(bytes: &'b [u8], at: usize) -> Result<Self> {
        let back = i64::from(i32::from_le_bytes(array(bytes, at)?));
        let Ok(fields) = usize::try_from(at as i64 - back) else {
            return malformed("a FlatBuffer that leads out of its bytes");
        };
        let len = usize::from(u16::from_le_bytes(array(bytes, fields)?));
        match bytes.get(fields..).and_then(|rest| rest.get(..len)?.get(4..)) {
            Some(fields) => Ok(Table { bytes, at, fields }),
            None => malformed("a FlatBuffer with a table that cannot be"),
        }
    }

    /// Where the field with this number is, if the table has it.
    fn field(&self, number: usize) -> Option<usize> {
        let offset = self.fields.get(2 * number..2 * number + 2)?;
        let offset = usize::from(offset[0]) | usize::from(offset[1]) << 8;
        (offset > 0).then(|| self.at + offset)
    }

    fn number<const N: usize>(&self, number: usize) -> Result<Option<[u8; N]>> {
        self.field(number).map(|at| array(self.bytes, at)).transpose()
    }

    pub fn u8(&self, number: usize) -> Result<u8> {
        Ok(self.number(number)?.map_or(0, u8::from_le_bytes))
    }

    pub fn i16(&self, number: usize, default: i16) -> Result<i16> {
        Ok(self.number(number)?.map_or(default, i16::from_le_bytes))
    }

    pub fn i32(&self, number: usize) -> Result<i32> {
        Ok(self.number(number)?.map_or(0, i32::from_le_bytes))
    }

    pub fn i64(&self, number: usize) -> Result<i64> {
        Ok(self.number(number)?.map_or(0, i64::from_le_bytes))
    }

    pub fn has(&self, number: usize) -> bool {
        self.field(number).is_some()
    }

    pub fn table(&self, number: usize) -> Result<Option<Table<'b>>> {
        self.field(number).map(|at| Self::new(self.bytes, follow(self.bytes, at)?)).transpose()
    }

    /// A text, or a list of structures of some width; empty if there is none.
    pub fn bytes(&self, number: usize, width: usize) -> Result<&'b [u8]> {
        match self.field(number) {
            Some(at) => vector(self.bytes, follow(self.bytes, at)?, width),
            None => Ok(&[]),
        }
    }

    /// A list of tables.
    pub fn tables(&self, number: usize) -> Result<impl ExactSizeIterator<Item = Result<Table<'b>>> + use<'b>> {
        let bytes = self.bytes;
        let (first, count) = match self.field(number) {
            Some(at) => {
                let at = follow(bytes, at)?;
                (at + 4, vector(bytes, at, 4)?.len() / 4)
            }
            None => (0, 0),
        };
        Ok((0..count).map(move |n| Self::new(bytes, follow(bytes, first + 4 * n)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of a number, a text, and a list of one table, which is none.
    fn sample() -> Vec<u8> {
        let mut bytes = vec![16, 0, 0, 0, 10, 0, 16, 0, 4, 0, 8, 0, 12, 0, 0, 0];
        bytes.extend(12_i32.to_le_bytes());
        bytes.extend([7, 0, 0, 0]);
        bytes.extend([8, 0, 0, 0]);
        bytes.extend([12, 0, 0, 0]);
        bytes.extend([3, 0, 0, 0, b'a', b'b', b'c', 0]);
        bytes.extend([1, 0, 0, 0]);
        bytes.extend((-28_i32).to_le_bytes());
        bytes
    }

    #[test]
    fn reads_fields() {
        let bytes = sample();
        let table = Table::root(&bytes).unwrap();
        assert_eq!((table.i32(0).unwrap(), table.i32(9).unwrap(), table.i16(9, 5).unwrap()), (7, 0, 5));
        assert_eq!(table.bytes(1, 1).unwrap(), b"abc");
        assert!(table.has(1) && !table.has(3) && table.table(3).unwrap().is_none());
        assert_eq!(table.tables(3).unwrap().len(), 0);
    }

    #[test]
    fn leads_nowhere_else() {
        for at in 0..sample().len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = sample();
                bytes[at] = byte;
                let Ok(table) = Table::root(&bytes) else { continue };
                let _ = (table.i64(0), table.bytes(1, 24), table.table(1).is_ok());
                if let Ok(tables) = table.tables(2) {
                    tables.take(100).for_each(|table| drop(table.map(|table| table.i32(0))));
                }
            }
        }
        for len in 0..sample().len() {
            let _ = Table::root(&sample()[..len]).map(|table| table.bytes(1, 1).map(<[u8]>::len));
        }
    }
}
