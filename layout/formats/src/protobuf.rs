//! Protocol buffers, as far as they need to be read to find fields: no schema, no recursion, nothing kept.
//!
//! A message is a range of the file; so is a message inside of it. Whoever knows the schema opens the ranges.

use crate::cursor::Cursor;
use crate::fault::{Result, malformed};

/// Bytes `start..end` of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub start: u64,
    pub end: u64,
}

impl Range {
    pub fn len(self) -> u64 {
        self.end - self.start
    }
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    /// A string, bytes, a message, or packed numbers.
    Bytes(Range),
}

/// The fields of the message at `range`, one after the other.
pub(crate) struct Fields<'c, 's> {
    cursor: &'c mut Cursor<'s>,
    at: u64,
    end: u64,
}

impl<'c, 's> Fields<'c, 's> {
    pub fn new(cursor: &'c mut Cursor<'s>, range: Range) -> Self {
        Fields { cursor, at: range.start, end: range.end }
    }

    /// The next field: its number and its value.
    pub fn next(&mut self) -> Result<Option<(u64, Field)>> {
        if self.at >= self.end {
            return Ok(None);
        }
        self.cursor.seek(self.at);
        let key = varint(self.cursor)?;
        let field = match key & 7 {
            0 => Field::Varint(varint(self.cursor)?),
            1 => Field::Fixed64(self.cursor.u64()?),
            2 => {
                let len = varint(self.cursor)?;
                let start = self.cursor.at();
                self.cursor.skip(len)?;
                Field::Bytes(Range { start, end: start + len })
            }
            5 => Field::Fixed32(self.cursor.u32()?),
            _ => return malformed("a field of an unknown kind"),
        };
        self.at = self.cursor.at();
        if self.at > self.end || key >> 3 == 0 {
            return malformed("a field that does not end where its message does");
        }
        Ok(Some((key >> 3, field)))
    }

    /// The cursor, for what lies inside a field.
    pub fn cursor(&mut self) -> &mut Cursor<'s> {
        self.cursor
    }

    /// The bytes at `range`, which are few.
    pub fn bytes(&mut self, range: Range) -> Result<&[u8]> {
        self.cursor.seek(range.start);
        match usize::try_from(range.len()) {
            Ok(len) => self.cursor.take(len),
            Err(_) => malformed("a field that is too long"),
        }
    }
}

/// Seven bits a byte, the lowest first.
pub(crate) fn varint(cursor: &mut Cursor<'_>) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = cursor.u8()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return if shift == 63 && byte > 1 { malformed("a number that is too large") } else { Ok(value) };
        }
    }
    malformed("a number that does not end")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(bytes: &[u8]) -> Result<Vec<(u64, Field)>> {
        let mut cursor = Cursor::new(&bytes, 0, u64::MAX)?;
        let mut fields = Fields::new(&mut cursor, Range { start: 0, end: bytes.len() as u64 });
        let mut all = Vec::new();
        while let Some(field) = fields.next()? {
            all.push(field);
        }
        Ok(all)
    }

    #[test]
    fn reads_fields() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 2, 7, 7, 0x1d, 1, 0, 0, 0, 0x21, 2, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(
            fields(&bytes).unwrap(),
            [
                (1, Field::Varint(150)),
                (2, Field::Bytes(Range { start: 5, end: 7 })),
                (3, Field::Fixed32(1)),
                (4, Field::Fixed64(2)),
            ]
        );
        assert_eq!(
            fields(&[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]).unwrap(),
            [(1, Field::Varint(u64::MAX))]
        );
    }

    #[test]
    fn refuses_what_does_not_fit() {
        for bytes in [
            &[0x08][..],
            &[0x12, 5, 1],
            &[0x12, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
            &[0x0b],
            &[0x0c],
            &[0x0f, 0],
            &[0x00, 0],
            &[0x1d, 0, 0],
            &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2],
            &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255],
        ] {
            assert!(fields(bytes).is_err(), "{bytes:?}");
        }
    }
}
