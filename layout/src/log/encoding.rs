//! Records on media.
//!
//! A record is a 24-byte header (kind, length, object, sequence number) and a body, padded to 8 bytes; docs/FORMAT.md
//! draws each kind. Decoding trusts nothing: what does not parse is an error, never a panic.

use crate::ids::{Ino, NUMBER_LIMIT, SegmentId, TxId};
use crate::log::codec::{Reader, Writer, padded};
use crate::log::length::{self, HEADER};
use crate::log::origin::Origin;
use crate::log::record::{Attributes, Record};
use crate::log::seal::Seal;
use crate::log::tier::Tier;
use crate::time::Timestamp;

/// The kinds of record, as numbered on media.
mod kind {
    pub const ATTRIBUTES: u8 = 1;
    pub const NAME: u8 = 2;
    pub const REMOVAL: u8 = 3;
    pub const TARGET: u8 = 4;
    pub const DATA: u8 = 5;
    pub const TRUNCATION: u8 = 6;
    pub const THAW: u8 = 7;
    pub const REPLACE: u8 = 8;
    pub const XATTR: u8 = 9;
    pub const XATTR_REMOVAL: u8 = 10;
    pub const RETIRED: u8 = 11;
    pub const SEALED: u8 = 12;
    pub const TIER: u8 = 20;
    pub const PLACEMENT: u8 = 21;
    pub const VALUE: u8 = 13;
    pub const PROVISIONAL: u8 = 14;
}

const FLAG_DAMAGED: u32 = 1;

/// What every record starts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    kind: u8,
    /// The object whose chain the record belongs to.
    pub ino: Ino,
    /// Its number in that chain.
    pub seq: u64,
    /// Bytes of the whole record on media, as it says itself.
    pub len: usize,
}

impl Head {
    /// Reads it from the front of `bytes`, which need not hold the whole record.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let mut r = Reader::new(bytes);
        let kind = r.u8()?;
        r.skip(3)?;
        let body_len = r.u32()? as usize;
        let (ino, seq) = (Ino(r.u64()?), r.u64()?);
        if seq >= NUMBER_LIMIT {
            return Err("impossible sequence number");
        }
        Ok(Self { kind, ino, seq, len: HEADER + body_len })
    }

    /// True if the record says that there is an object.
    pub fn is_attributes(&self) -> bool {
        self.kind == kind::ATTRIBUTES
    }
}

impl Record {
    fn kind(&self) -> u8 {
        match self {
            Self::Attributes { .. } => kind::ATTRIBUTES,
            Self::Name { .. } => kind::NAME,
            Self::Removal { .. } => kind::REMOVAL,
            Self::Target { .. } => kind::TARGET,
            Self::Data { .. } => kind::DATA,
            Self::Truncation { .. } => kind::TRUNCATION,
            Self::Thaw { .. } => kind::THAW,
            Self::Provisional { .. } => kind::PROVISIONAL,
            Self::Replace { .. } => kind::REPLACE,
            Self::Xattr { .. } => kind::XATTR,
            Self::XattrRemoval { .. } => kind::XATTR_REMOVAL,
            Self::Retired { .. } => kind::RETIRED,
            Self::Sealed { .. } => kind::SEALED,
            Self::Tier { .. } => kind::TIER,
            Self::Placement { .. } => kind::PLACEMENT,
            Self::Value { .. } => kind::VALUE,
        }
    }

    /// Bytes of the record on media, header and padding included.
    pub(crate) fn encoded_len(&self) -> usize {
        match self {
            Self::Attributes { .. } => length::ATTRIBUTES,
            Self::Name { name, .. } => length::name(name.len()),
            Self::Removal { name, .. } | Self::XattrRemoval { name, .. } => length::removal(name.len()),
            Self::Target { target, .. } => length::target(target.len()),
            Self::Data { origin, .. } => length::DATA + origin_len(*origin),
            Self::Truncation { .. } => length::TRUNCATION,
            Self::Thaw { .. } => length::THAW,
            Self::Provisional { .. } => length::PROVISIONAL,
            Self::Replace { .. } => length::REPLACE,
            Self::Xattr { name, value, .. } => length::xattr(name.len(), value.len()),
            Self::Retired { .. } => length::RETIRED,
            Self::Sealed { seal, origin, .. } => length::sealed(seal.description.len()) + origin_len(*origin),
            Self::Tier { tier, .. } => length::tier(tier.name.len(), tier.directory.len()),
            Self::Placement { text } => length::placement(text.len()),
            Self::Value { bytes, .. } => length::value(bytes.len()),
        }
    }

    /// Appends the record to `out` under a sequence number of its chain.
    pub(crate) fn encode(&self, seq: u64, out: &mut Vec<u8>) {
        let start = out.len();
        let mut w = Writer::new(out);
        w.u8(self.kind());
        w.zeroes(3);
        w.u32((self.encoded_len() - HEADER) as u32);
        w.u64(self.ino().0);
        w.u64(seq);
        match self {
            Self::Attributes { attributes: a, .. } => {
                w.u32(a.mode);
                w.u32(a.uid);
                w.u32(a.gid);
                w.u32(a.rdev);
                w.u64(a.segment.map_or(0, |s| s.0));
                w.u32(if a.damaged { FLAG_DAMAGED } else { 0 });
                w.u32(0);
                for time in [a.atime, a.mtime, a.ctime, a.btime] {
                    w.u64(time.sec as u64);
                }
                for time in [a.atime, a.mtime, a.ctime, a.btime] {
                    w.u32(time.nsec);
                }
            }
            Self::Name { name, ino, .. } => {
                w.u64(ino.0);
                w.bytes16(name);
            }
            Self::Removal { name, .. } | Self::XattrRemoval { name, .. } => w.bytes16(name),
            Self::Target { target, .. } => w.bytes16(target),
            Self::Data { segment, offset, len, allocated, origin, .. } => {
                for value in [segment.0, *offset, *len, *allocated] {
                    w.u64(value);
                }
                put_origin(&mut w, *origin);
            }
            Self::Truncation { segment, offset, len, allocated, cut_from, .. } => {
                for value in [segment.0, *offset, *len, *allocated, *cut_from] {
                    w.u64(value);
                }
            }
            Self::Sealed { segment, offset, len, allocated, seal, origin, .. } => {
                for value in [segment.0, *offset, *len, *allocated] {
                    w.u64(value);
                }
                w.u32(seal.crc);
                w.u32(seal.description.len() as u32);
                w.bytes(&seal.description);
                w.pad();
                put_origin(&mut w, *origin);
            }
            Self::Value { segment, bytes, .. } => {
                w.u64(segment.0);
                w.u32(bytes.len() as u32);
                w.bytes(bytes);
            }
            Self::Thaw { segment, offset, len, .. } => {
                for value in [segment.0, *offset, *len] {
                    w.u64(value);
                }
            }
            Self::Provisional { segment, from, .. } => {
                w.u64(segment.0);
                w.u64(*from);
            }
            Self::Replace { segment, .. } => w.u64(segment.0),
            Self::Xattr { name, value, .. } => {
                w.bytes16(name);
                w.u32(value.len() as u32);
                w.bytes(value);
            }
            Self::Retired { first, last } => {
                w.u64(first.0);
                w.u64(last.0);
            }
            Self::Tier { number, tier } => {
                w.u8(*number);
                w.u8(tier.flags());
                w.zeroes(6);
                w.bytes(&tier.nonce);
                w.bytes16(tier.name.as_bytes());
                w.bytes16(&tier.directory);
            }
            Self::Placement { text } => {
                w.u32(text.len() as u32);
                w.bytes(text.as_bytes());
            }
        }
        w.pad();
        debug_assert_eq!(out.len() - start, self.encoded_len());
    }

    /// Reads one record from the front of `bytes`: the record, its sequence number and its length on media.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, u64, usize), &'static str> {
        let Head { kind, ino, seq, len } = Head::decode(bytes)?;
        let mut r = Reader::new(bytes.get(HEADER..len).ok_or("cut short")?);
        let record = match kind {
            kind::ATTRIBUTES => {
                let (mode, uid, gid, rdev) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
                let segment = Some(r.u64()?).filter(|id| *id != 0).map(SegmentId);
                let flags = r.u32()?;
                r.skip(4)?;
                let secs = [r.u64()?, r.u64()?, r.u64()?, r.u64()?];
                let mut times = [Timestamp::default(); 4];
                for (time, sec) in times.iter_mut().zip(secs) {
                    *time = Timestamp::new(sec as i64, r.u32()?.min(999_999_999));
                }
                let [atime, mtime, ctime, btime] = times;
                let damaged = flags & FLAG_DAMAGED != 0;
                let attributes = Attributes { mode, uid, gid, rdev, atime, mtime, ctime, btime, segment, damaged };
                Self::Attributes { ino, attributes }
            }
            kind::NAME => Self::Name { dir: ino, ino: Ino(r.u64()?), name: r.bytes16()?.into() },
            kind::REMOVAL => Self::Removal { dir: ino, name: r.bytes16()?.into() },
            kind::TARGET => Self::Target { ino, target: r.bytes16()?.into() },
            kind::DATA => {
                let (segment, offset, len, allocated) = (SegmentId(r.u64()?), r.u64()?, r.u64()?, r.u64()?);
                Self::Data { ino, segment, offset, len, allocated, origin: origin(&mut r)? }
            }
            kind::TRUNCATION => {
                let (segment, offset, len, allocated) = (SegmentId(r.u64()?), r.u64()?, r.u64()?, r.u64()?);
                Self::Truncation { ino, segment, offset, len, allocated, cut_from: r.u64()? }
            }
            kind::SEALED => {
                let (segment, offset, len, allocated) = (SegmentId(r.u64()?), r.u64()?, r.u64()?, r.u64()?);
                let (crc, description) = (r.u32()?, r.u32()? as usize);
                let seal = Seal { crc, description: r.take(description)?.into() };
                r.skip(padded(description) - description)?;
                Self::Sealed { ino, segment, offset, len, allocated, seal, origin: origin(&mut r)? }
            }
            kind::VALUE => {
                let (segment, len) = (SegmentId(r.u64()?), r.u32()? as usize);
                Self::Value { ino, segment, bytes: r.take(len)?.into() }
            }
            kind::THAW => Self::Thaw { ino, segment: SegmentId(r.u64()?), offset: r.u64()?, len: r.u64()? },
            kind::PROVISIONAL => Self::Provisional { ino, segment: SegmentId(r.u64()?), from: r.u64()? },
            kind::REPLACE => Self::Replace { ino, segment: SegmentId(r.u64()?) },
            kind::XATTR => {
                let name = r.bytes16()?.into();
                let len = r.u32()? as usize;
                Self::Xattr { ino, name, value: r.take(len)?.into() }
            }
            kind::XATTR_REMOVAL => Self::XattrRemoval { ino, name: r.bytes16()?.into() },
            kind::RETIRED => Self::Retired { first: TxId(r.u64()?), last: TxId(r.u64()?) },
            kind::TIER => {
                let (number, flags) = (r.u8()?, r.u8()?);
                r.skip(6)?;
                let nonce = r.take(16)?.try_into().map_err(|_| "cut short")?;
                let name = text(r.bytes16()?)?;
                let directory = r.bytes16()?.into();
                Self::Tier { number, tier: Tier::from_flags(flags, nonce, name, directory)? }
            }
            kind::PLACEMENT => {
                let len = r.u32()? as usize;
                Self::Placement { text: text(r.take(len)?)? }
            }
            _ => return Err("unknown kind of record"),
        };
        match record.flaw() {
            Some(flaw) => Err(flaw),
            None => Ok((record, seq, len)),
        }
    }
}

fn origin_len(origin: Origin) -> usize {
    if origin.is_known() { length::ORIGIN } else { 0 }
}

fn put_origin(w: &mut Writer<'_>, origin: Origin) {
    if origin.is_known() {
        w.u64(origin.transaction);
        w.u64(origin.nanoseconds as u64);
    }
}

/// Versions that did not note it ended the record in front of it, and do not look behind what they know.
fn origin(r: &mut Reader<'_>) -> Result<Origin, &'static str> {
    match r.is_empty() {
        true => Ok(Origin::default()),
        false => {
            let found = Origin { transaction: r.u64()?, nanoseconds: r.u64()? as i64 };
            Ok(if found.is_known() { found } else { Origin::default() })
        }
    }
}

fn text(bytes: &[u8]) -> Result<Box<str>, &'static str> {
    std::str::from_utf8(bytes).map(Into::into).map_err(|_| "not text")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::log::any_record::{number, record};

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_record_is_read_back_as_it_was_written_or_refused(record in record(), seq in number()) {
            let mut bytes = Vec::new();
            record.encode(seq, &mut bytes);
            prop_assert_eq!(bytes.len(), record.encoded_len());
            bytes.extend_from_slice(&[0xff; 16]);
            match Record::decode(&bytes) {
                Ok(found) => prop_assert_eq!(found, (record.clone(), seq, record.encoded_len())),
                Err(_) => prop_assert!(record.flaw().is_some() || seq >= NUMBER_LIMIT),
            }
        }

        #[test]
        fn no_bytes_make_decoding_fail_otherwise_than_by_an_error(
            mut bytes in prop::collection::vec(any::<u8>(), 0..400),
            kind in 0..24u8,
            len in 0..400u32,
        ) {
            let _ = Record::decode(&bytes);
            // A header that leads further.
            if bytes.len() >= HEADER {
                bytes[0] = kind;
                bytes[4..8].copy_from_slice(&len.to_le_bytes());
                bytes[23] = 0;
                if let Ok((record, _, taken)) = Record::decode(&bytes) {
                    prop_assert!(taken <= bytes.len());
                    prop_assert!(record.flaw().is_none());
                }
            }
        }

        #[test]
        fn a_record_with_a_flipped_bit_is_an_error_or_a_record(
            record in record(),
            bit in any::<prop::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            record.encode(16, &mut bytes);
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let _ = Record::decode(&bytes);
            let _ = Record::decode(&bytes[..bit / 8]);
        }
    }
}
