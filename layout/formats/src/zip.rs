//! The directory of a zip archive, zip64 included.
//!
//! Sizes and places come from the central directory alone; of a member's own header only its length is used. Nothing
//! before the central directory is searched, except where another archive must end, and members must not overlap: an
//! archive that means different things to different readers is not recognised. Behind it may be a little of anything,
//! which readers pass over, but the beginning of another archive.

use crate::claims::Claims;
use crate::cursor::Cursor;
use crate::fault::{Fault, Result, malformed, too_much};
use crate::limits::push;
use crate::source::{Source, read_exact, read_up_to};

pub(crate) const LOCAL_MAGIC: &[u8] = b"PK\x03\x04";
/// How an archive without members begins.
pub(crate) const END_MAGIC: &[u8] = b"PK\x05\x06";
const CENTRAL: u32 = 0x0201_4b50;
const END64: u32 = 0x0606_4b50;
const END64_LOCATOR: u32 = 0x0706_4b50;
const END_LEN: u64 = 22;
const END64_LEN: u64 = 56;
const COMMENT_MAX: u64 = 65_535;
const ZIP64_EXTRA: u16 = 1;
/// The most members of an archive that is recognised.
pub(crate) const MEMBERS_MAX: u64 = 1 << 17;
/// What each takes in the directory at least.
const MEMBER_MIN: u64 = 46;

/// The most archives of a file of several.
pub(crate) const ARCHIVES_MAX: usize = 1 << 17;

/// Where the central directory of an archive is.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Where the archive begins, from which its own places count.
    start: u64,
    offset: u64,
    end: u64,
    /// Where the archive ends.
    pub closed: u64,
    pub members: u64,
}

/// A member, as the central directory describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub name: &'a [u8],
    pub method: Method,
    pub encrypted: bool,
    /// Bytes in the archive.
    pub stored: u64,
    /// Bytes when decompressed.
    pub size: u64,
    /// Where its own header is.
    pub header: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Stored,
    Deflated,
    Other,
}

impl Directory {
    /// The archives of the file, one behind the other, in order: what is saved to an open file again and again. An
    /// archive begins where its own places say, and the one before it ends there. Of too many, the last ones.
    pub fn find(source: &dyn Source) -> Result<Vec<Directory>> {
        let size = source.size()?;
        let last = match Self::end_record(source, (0, size), COMMENT_MAX)? {
            Some(at) => Self::of_record(source, at, size)?,
            None => match Self::end_in_front(source, size)? {
                Some((at, closed)) => Self::of_record(source, at, closed)?,
                None => return malformed("a zip without its directory"),
            },
        };
        let (mut start, mut all) = (last.start, vec![last]);
        while start > 0 && all.len() < ARCHIVES_MAX {
            // Comments are not looked for: nobody writes any there, and looking takes 64 KiB.
            let Some(at) = Self::end_record(source, (0, start), 0)? else {
                return malformed("a zip without its directory");
            };
            let before = Self::of_record(source, at, start)?;
            start = before.start;
            push(&mut all, before);
        }
        all.reverse();
        // Only now, so that what is in the wrong place is not taken for something else.
        all.iter().try_for_each(|directory| directory.check(source))?;
        Ok(all)
    }

    /// The archives behind a place, which go on to the end of the file, and where the one begins that ends there: all
    /// as [`Directory::find`] has them if everything in front of the place was found so before. None if it would not.
    pub fn find_behind(source: &dyn Source, from: u64) -> Result<Option<(u64, Vec<Directory>)>> {
        let size = source.size()?;
        let (mut end, mut comment_max, mut all) = (size, COMMENT_MAX, Vec::new());
        while end > from {
            let record = Self::end_record(source, (from, end), comment_max)?;
            let Some(at) = record.filter(|_| all.len() < ARCHIVES_MAX) else { return Ok(None) };
            let archive = Self::of_record(source, at, end)?;
            (end, comment_max) = (archive.start, 0);
            push(&mut all, archive);
        }
        let before = match Self::end_record(source, (0, from), 0)? {
            Some(at) if end == from && !all.is_empty() => Self::of_record(source, at, from)?,
            _ => return Ok(None),
        };
        all.reverse();
        all.iter().try_for_each(|directory| directory.check(source))?;
        Ok(Some((before.start, all)))
    }

    /// True if another archive must be in front of it.
    pub fn is_behind_another(&self) -> bool {
        self.start > 0
    }

    /// Bytes that the archive takes.
    pub fn len(&self) -> u64 {
        self.closed.saturating_sub(self.start)
    }

    /// True if the file ends as archives do, whatever else is wrong with it.
    pub fn is_at_end(source: &dyn Source) -> Result<bool> {
        Ok(Self::end_record(source, (0, source.size()?), COMMENT_MAX)?.is_some())
    }

    /// Where the record is that an archive ends with, which ends there, and begins behind a place.
    fn end_record(source: &dyn Source, (from, size): (u64, u64), comment_max: u64) -> Result<Option<u64>> {
        let tail_at = size.saturating_sub(END_LEN + comment_max).max(from);
        let mut tail = vec![0; (size - tail_at) as usize];
        read_exact(source, tail_at, &mut tail)?;
        // The record ends with a comment, and the archive with the comment.
        let ends = |at: &usize| {
            let rest = &tail[*at..];
            rest.starts_with(END_MAGIC)
                && rest
                    .get(20..22)
                    .is_some_and(|len| rest.len() - 22 == usize::from(u16::from_le_bytes([len[0], len[1]])))
        };
        Ok((0..tail.len()).rev().find(ends).map(|at| tail_at + at as u64))
    }

    /// Where the last of those records is that are followed by something, and where its archive ends. None if that is
    /// how another archive begins.
    fn end_in_front(source: &dyn Source, size: u64) -> Result<Option<(u64, u64)>> {
        let tail_at = size.saturating_sub(END_LEN + COMMENT_MAX);
        let mut tail = vec![0; (size - tail_at) as usize];
        read_exact(source, tail_at, &mut tail)?;
        let Some(at) = tail.windows(END_LEN as usize).rposition(|record| record.starts_with(END_MAGIC)) else {
            return Ok(None);
        };
        let comment = usize::from(u16::from_le_bytes([tail[at + 20], tail[at + 21]]));
        let closed = (at + END_LEN as usize + comment).min(tail.len());
        let rest = &tail[closed..];
        let begins = rest.iter().zip(LOCAL_MAGIC).all(|(one, other)| one == other);
        Ok((!begins).then_some((tail_at + at as u64, tail_at + closed as u64)))
    }

    /// The archive that ends with that record, and there.
    fn of_record(source: &dyn Source, end_at: u64, closed: u64) -> Result<Directory> {
        let mut end = Cursor::new(source, end_at, closed)?;
        end.skip(4)?;
        let disks = end.u32()?;
        let (here, members) = (end.array().map(u16::from_le_bytes)?, end.array().map(u16::from_le_bytes)?);
        let (len, offset) = (end.u32()?, end.u32()?);
        let (members, len, offset, behind) = match Self::end64(source, end_at)? {
            Some(large) => large,
            None if disks != 0 || here != members => return malformed("a zip of several files"),
            None => (members.into(), len.into(), offset.into(), end_at),
        };
        let Some(start) = offset.checked_add(len).and_then(|len| behind.checked_sub(len)) else {
            return malformed("a zip with its directory in the wrong place");
        };
        let mut magic = [0; 4];
        if start > 0 && (read_up_to(source, start, &mut magic)? != 4 || magic != LOCAL_MAGIC) {
            return malformed("a zip with its directory in the wrong place");
        }
        if members.checked_mul(MEMBER_MIN).is_none_or(|least| least > len) {
            return malformed("a zip with a damaged directory");
        }
        if members > MEMBERS_MAX {
            return too_much(format!("a zip of {members} members"));
        }
        Ok(Directory { start, offset: start + offset, end: behind, closed, members })
    }

    /// Members, length and offset of the directory, and what it ends at, from the larger record of zip64. Some writers
    /// (torch) add it to small archives too.
    fn end64(source: &dyn Source, end_at: u64) -> Result<Option<(u64, u64, u64, u64)>> {
        let Some(locator_at) = end_at.checked_sub(20) else { return Ok(None) };
        let mut locator = Cursor::new(source, locator_at, end_at)?;
        if locator.u32()? != END64_LOCATOR {
            return Ok(None);
        }
        locator.skip(4)?;
        let damaged = "a zip with a damaged zip64 directory";
        let said = locator.u64()?;
        // Where other archives are in front, the record is further on than the locator says: right in front of it.
        let near = locator_at.saturating_sub(END64_LEN);
        // Each may end at the locator by what it says of its length, and then nobody can tell which of them counts.
        // No more is read of what is in front.
        let is_record = |at: u64| Ok::<_, Fault>(at <= near && Cursor::new(source, at, at + 4)?.u32()? == END64);
        let ends = |at: u64| -> Result<bool> {
            let mut len = Cursor::new(source, at + 4, at + 12)?;
            Ok(at.checked_add(12).and_then(|at| at.checked_add(len.u64().ok()?)) == Some(locator_at))
        };
        let at = if is_record(near)? { near } else { said };
        if !is_record(at)? || !ends(at)? {
            return malformed(damaged);
        }
        if at != said && is_record(said)? && ends(said)? {
            return malformed("a zip with two directories");
        }
        let mut end = Cursor::new(source, at, locator_at)?;
        end.skip(12)?;
        end.skip(4)?;
        let disks = end.u64()?;
        let (here, members, len, offset) = (end.u64()?, end.u64()?, end.u64()?, end.u64()?);
        if disks != 0 || here != members {
            return malformed("a zip of several files");
        }
        // What is in front of the archive is left out of both.
        if offset.checked_add(len) != Some(said) {
            return malformed(damaged);
        }
        Ok(Some((members, len, offset, at)))
    }

    /// Members must lie apart from each other, in front of the directory, and have names of their own.
    fn check(&self, source: &dyn Source) -> Result<()> {
        let mut claims = Claims::default();
        self.each(source, &mut |member| {
            let len = 30 + member.name.len() as u64;
            match member.header.checked_add(len).and_then(|at| at.checked_add(member.stored)) {
                Some(end) if end <= self.offset => claims.add(member.name, member.header, end),
                _ => malformed("a member that lies outside the zip"),
            }
        })?;
        claims.settle().map(drop)
    }

    /// Calls `visit` for every member, in the directory's order.
    pub fn each(&self, source: &dyn Source, visit: &mut dyn FnMut(Member<'_>) -> Result<()>) -> Result<()> {
        let mut cursor = Cursor::new(source, self.offset, self.end)?;
        for _ in 0..self.members {
            let fixed: [u8; 46] = cursor.array()?;
            let u16_at = |at: usize| u16::from_le_bytes([fixed[at], fixed[at + 1]]);
            let u32_at = |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
            if u32_at(0) != CENTRAL {
                return malformed("a zip with a damaged directory");
            }
            let (name, extra, comment) = (usize::from(u16_at(28)), usize::from(u16_at(30)), u16_at(32));
            let text = cursor.take(name + extra)?;
            let (name, extra) = text.split_at(name);
            let [stored, size, header] = zip64(extra, u32_at(24), u32_at(20), u32_at(42))?;
            let Some(header) = header.checked_add(self.start) else {
                return malformed("a member that lies outside the zip");
            };
            let method = match u16_at(10) {
                0 if stored != size => return malformed("a stored member of two sizes"),
                0 => Method::Stored,
                8 => Method::Deflated,
                _ => Method::Other,
            };
            visit(Member { name, method, encrypted: u16_at(8) & 1 != 0, stored, size, header })?;
            cursor.skip(comment.into())?;
        }
        if cursor.left() != 0 {
            return malformed("a zip with more in its directory than it says");
        }
        Ok(())
    }

    /// Where a member's bytes begin.
    pub fn data(&self, source: &dyn Source, header: u64, stored: u64) -> Result<u64> {
        let mut local = [0; 30];
        read_exact(source, header, &mut local)?;
        if !local.starts_with(LOCAL_MAGIC) {
            return malformed("a member without its header");
        }
        let length = |at: usize| u64::from(u16::from_le_bytes([local[at], local[at + 1]]));
        // The directory has been checked: headers lie in front of it.
        let data = header + 30 + length(26) + length(28);
        match data.checked_add(stored) {
            Some(end) if end <= self.offset => Ok(data),
            _ => malformed("a member that lies outside the zip"),
        }
    }
}

/// Stored size, size and header of a member: those that do not fit in 32 bits are in an extra field, in this order:
/// size, stored size, header.
fn zip64(mut extra: &[u8], size: u32, stored: u32, header: u32) -> Result<[u64; 3]> {
    let mut large = &[][..];
    while let [a, b, c, d, rest @ ..] = extra {
        let len = usize::from(u16::from_le_bytes([*c, *d]));
        let Some((field, behind)) = rest.split_at_checked(len) else { break };
        if u16::from_le_bytes([*a, *b]) == ZIP64_EXTRA {
            large = field;
        }
        extra = behind;
    }
    let mut next = |small: u32| match (small, large.split_first_chunk::<8>()) {
        (u32::MAX, Some((number, rest))) => {
            large = rest;
            Ok(u64::from_le_bytes(*number))
        }
        (u32::MAX, None) => malformed("a member without its zip64 sizes"),
        (small, _) => Ok(small.into()),
    };
    let (size, stored, header) = (next(size)?, next(stored)?, next(header)?);
    Ok([stored, size, header])
}
