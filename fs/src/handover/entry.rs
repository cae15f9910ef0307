//! What stands in a place of the file.

use tensorfs_layout::{Ino, SegmentId};

/// What stands in a place, without its checksum.
pub(crate) type Slip = [u8; 60];

/// A slip with its CRC-32C.
pub(super) fn sealed(slip: &Slip) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..60].copy_from_slice(slip);
    bytes[60..].copy_from_slice(&crc32c::crc32c(slip).to_le_bytes());
    bytes
}

/// The slip that is sealed by these bytes, if its checksum is right.
pub(super) fn unsealed(bytes: &[u8; 64]) -> Option<Slip> {
    let (slip, sum) = bytes.split_first_chunk::<60>()?;
    (crc32c::crc32c(slip).to_le_bytes() == *sum).then_some(*slip)
}

/// The eight bytes of a slip from `at` on, as a number.
pub(crate) fn long(slip: &Slip, at: usize) -> u64 {
    slip[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default()
}

/// The four bytes of a slip from `at` on, as a number.
pub(crate) fn short(slip: &Slip, at: usize) -> u32 {
    slip[at..at + 4].try_into().map(u32::from_le_bytes).unwrap_or_default()
}

/// A handle that the kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The request that it was made for.
    pub unique: u64,
    pub handle: u64,
    pub ino: Ino,
    pub segment: SegmentId,
    /// Those of `open`.
    pub flags: i32,
    /// The kernel's number of the segment.
    pub backing: Option<u32>,
    /// How the kernel was told to treat it, in bits that only the room of files reads.
    pub manner: u32,
    /// The process or thread that it was made for; 0 if that is not known.
    pub opener: u32,
}

impl Entry {
    pub(super) fn to_slip(self) -> Slip {
        let mut bytes = [0; 60];
        bytes[..8].copy_from_slice(&self.unique.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.handle.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.ino.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.segment.0.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.flags.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.backing.unwrap_or(0).to_le_bytes());
        bytes[40..44].copy_from_slice(&self.manner.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.opener.to_le_bytes());
        bytes
    }

    pub(super) fn of(slip: &Slip) -> Self {
        Self {
            unique: long(slip, 0),
            handle: long(slip, 8),
            ino: Ino(long(slip, 16)),
            segment: SegmentId(long(slip, 24)),
            flags: short(slip, 32) as i32,
            backing: Some(short(slip, 36)).filter(|number| *number != 0),
            manner: short(slip, 40),
            // A server of an older program leaves 0.
            opener: short(slip, 44),
        }
    }
}

/// The bytes of a number by which the kernel knows a segment.
pub(super) fn number_bytes(number: u32) -> [u8; 8] {
    (u64::from(number) | u64::from(!number) << 32).to_le_bytes()
}

/// The number that these bytes are of, if they are of one.
pub(super) fn number_of(bytes: &[u8; 8]) -> Option<u32> {
    let both = u64::from_le_bytes(*bytes);
    (both as u32 == !((both >> 32) as u32)).then_some(both as u32)
}
