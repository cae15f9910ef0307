//! Frames: transactions on media. A 64-byte header and the records, with a checksum each, so that damaged records do
//! not hide the frames behind them. Both checksums are seeded with the pool's secret and the block's incarnation, so
//! that neither a frame from the block's earlier life nor bytes of a file can pose as one.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::ids::NUMBER_LIMIT;
use crate::log::codec;
use crate::log::encoding;
use crate::log::record::Record;

/// Bytes of a frame's header.
pub(crate) const HEADER: usize = 64;
/// How each begins.
pub(crate) const MAGIC: [u8; 4] = *b"TFRM";

/// The frame holds records of the pool's own chain.
pub(crate) const FLAG_POOL: u16 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    length: U32,
    id: U64,
    horizon: U64,
    proposal: U64,
    unique: U64,
    next_id: U64,
    payload_len: U32,
    payload_crc: U32,
    records: U16,
    flags: U16,
    crc: U32,
}

const _: () = assert!(size_of::<Raw>() == HEADER);

/// What a frame says beside its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// The transaction.
    pub id: u64,
    /// Everything up to this transaction was durable when the frame was stored.
    pub horizon: u64,
    /// If all frames up to this one are there, everything up to it is durable; 0 for none.
    pub proposal: u64,
    /// The request that the transaction answers.
    pub unique: u64,
    /// The next number of the counter that objects and segments share.
    pub next_id: u64,
    /// Bytes of the whole frame.
    pub length: usize,
    pub payload_len: usize,
    pub payload_crc: u32,
    pub records: u16,
    pub flags: u16,
}

/// Bytes of a frame with this many bytes of records. Records are padded, so the sum is aligned.
pub(crate) fn frame_len(payload: usize) -> usize {
    HEADER + payload
}

/// Completes `frame`, whose records already stand behind the room for the header.
pub(crate) fn finish(frame: &mut [u8], header: &Header, seed: u32) {
    let (head, payload) = frame.split_at_mut(HEADER);
    let mut raw = Raw {
        magic: MAGIC,
        length: ((HEADER + payload.len()) as u32).into(),
        id: header.id.into(),
        horizon: header.horizon.into(),
        proposal: header.proposal.into(),
        unique: header.unique.into(),
        next_id: header.next_id.into(),
        payload_len: (payload.len() as u32).into(),
        payload_crc: crc32c::crc32c_append(seed, payload).into(),
        records: header.records.into(),
        flags: header.flags.into(),
        crc: 0.into(),
    };
    raw.crc = crc32c::crc32c_append(seed, &raw.as_bytes()[..HEADER - 4]).into();
    head.copy_from_slice(raw.as_bytes());
}

/// Reads a header at the front of `bytes`. `None` if there is none that its checksum vouches for, or if the frame is
/// longer than `room`.
pub(crate) fn decode(bytes: &[u8], room: usize, seed: u32) -> Option<Header> {
    let (raw, _) = Raw::read_from_prefix(bytes).ok()?;
    let length = raw.length.get() as usize;
    let payload_len = raw.payload_len.get() as usize;
    let sound = raw.magic == MAGIC
        && crc32c::crc32c_append(seed, &raw.as_bytes()[..HEADER - 4]) == raw.crc.get()
        && length == frame_len(payload_len)
        && length.is_multiple_of(codec::ALIGN)
        && length <= room
        && raw.id.get() != 0
        && [raw.id, raw.horizon, raw.proposal, raw.next_id].iter().all(|number| number.get() < NUMBER_LIMIT);
    sound.then(|| Header {
        id: raw.id.get(),
        horizon: raw.horizon.get(),
        proposal: raw.proposal.get(),
        unique: raw.unique.get(),
        next_id: raw.next_id.get(),
        length,
        payload_len,
        payload_crc: raw.payload_crc.get(),
        records: raw.records.get(),
        flags: raw.flags.get(),
    })
}

/// True if the records behind a header are what was stored.
pub(crate) fn payload_is_sound(header: &Header, frame: &[u8], seed: u32) -> bool {
    crc32c::crc32c_append(seed, &frame[HEADER..header.length]) == header.payload_crc
}

/// For tests: puts right the checksums of what looks like a frame at the front of `bytes`, and tells its length.
pub(crate) fn vouch_for(bytes: &mut [u8], seed: u32) -> Option<usize> {
    let (mut raw, _) = Raw::read_from_prefix(bytes).ok()?;
    let room = (bytes.len() - HEADER) & !(codec::ALIGN - 1);
    let payload = (raw.payload_len.get() as usize & !(codec::ALIGN - 1)).min(room);
    if raw.magic != MAGIC {
        return None;
    }
    raw.payload_len = (payload as u32).into();
    raw.length = ((HEADER + payload) as u32).into();
    raw.payload_crc = crc32c::crc32c_append(seed, &bytes[HEADER..HEADER + payload]).into();
    raw.crc = crc32c::crc32c_append(seed, &raw.as_bytes()[..HEADER - 4]).into();
    bytes[..HEADER].copy_from_slice(raw.as_bytes());
    Some(HEADER + payload)
}

/// The records of a frame whose payload is sound, each with its sequence number and its bytes.
pub(crate) fn records<'a>(
    header: &Header,
    frame: &'a [u8],
) -> impl Iterator<Item = Result<(Record, u64, &'a [u8]), &'static str>> {
    record_bytes(header, frame).map(|bytes| {
        let bytes = bytes?;
        let (record, seq, _) = Record::decode(bytes)?;
        Ok((record, seq, bytes))
    })
}

/// The bytes of each record of a frame whose payload is sound.
pub(crate) fn record_bytes<'a>(
    header: &Header,
    frame: &'a [u8],
) -> impl Iterator<Item = Result<&'a [u8], &'static str>> {
    let mut rest = &frame[HEADER..header.length];
    let mut left = header.records;
    std::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        Some(encoding::Head::decode(rest).and_then(|head| {
            let (bytes, behind) = rest.split_at_checked(head.len).ok_or("cut short")?;
            rest = behind;
            Ok(bytes)
        }))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::ROOT;

    const SEED: u32 = 7;

    fn a_frame() -> Vec<u8> {
        let mut frame = vec![0; HEADER];
        for n in 0..3 {
            let record = Record::XattrRemoval { ino: ROOT, name: vec![b'x'; n + 1].into() };
            record.encode(16 + n as u64, &mut frame);
        }
        finish(&mut frame, &Header { id: 5, horizon: 3, proposal: 4, records: 3, ..Header::default() }, SEED);
        frame
    }

    #[test]
    fn every_flipped_bit_of_a_frame_is_noticed() {
        let whole = a_frame();
        let header = decode(&whole, whole.len(), SEED).unwrap();
        assert!(payload_is_sound(&header, &whole, SEED));
        assert_eq!(records(&header, &whole).flatten().count(), 3);
        assert!(decode(&whole, whole.len(), SEED + 1).is_none(), "a frame of another incarnation");
        assert!(decode(&whole, whole.len() - 8, SEED).is_none(), "a frame that ends behind its block");
        for bit in 0..whole.len() * 8 {
            let mut frame = whole.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            let sound = decode(&frame, frame.len(), SEED).is_some_and(|header| payload_is_sound(&header, &frame, SEED));
            assert!(!sound, "bit {bit}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_pass_for_a_frame_or_break_its_decoding(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(decode(&bytes, bytes.len(), SEED).is_none());
        }
    }
}
