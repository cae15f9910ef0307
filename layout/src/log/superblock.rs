//! The superblock: what a pool is. Two copies lie a mebibyte apart; the newer valid one counts, and one is persisted
//! before the other is touched.

use std::path::Path;

use serde::Serialize;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{Error, Result};
use crate::ids::{NUMBER_LIMIT, TIER_MAX};
use crate::log::file::LOG;
use crate::medium::domain::Medium;

/// Where the two copies are in the log file.
pub(crate) const OFFSETS: [u64; 2] = [0, 1 << 20];
/// Where the horizon is written for the second and third time.
pub(crate) const MARK_OFFSETS: [u64; 2] = [4096, (1 << 20) + 4096];
/// Where the first log block starts.
pub(crate) const BLOCKS_OFFSET: u64 = 2 << 20;
/// Bytes of a layout name at most.
pub const LAYOUT_NAME_MAX: usize = 63;

/// The most log blocks of a pool. Together with the largest block it bounds what a superblock can make us allocate.
pub(crate) const BLOCKS_MAX: u32 = 1 << 20;

const MAGIC: [u8; 8] = *b"TENSORFS";
const MARK_MAGIC: [u8; 8] = *b"TFSHORZN";
const VERSION: u32 = 1;
/// Features that this program knows, by what not knowing one forbids: nothing, writing, reading.
const KNOWN: Features = Features {
    compat: 0,
    ro_compat: 0,
    incompat: INCOMPAT_TIERS
        | INCOMPAT_VALUES
        | INCOMPAT_PARTS
        | INCOMPAT_GROWTH
        | INCOMPAT_PROVISIONAL
        | INCOMPAT_REMOTE,
};
/// The pool has tiers, or a placement map: segments may be elsewhere, and the log has records that say where.
pub(crate) const INCOMPAT_TIERS: u64 = 1;
/// The log holds, or held, bytes of files.
pub(crate) const INCOMPAT_VALUES: u64 = 2;
/// Such a file may have several records.
pub(crate) const INCOMPAT_PARTS: u64 = 4;
/// Files grow, or grew, behind bytes whose seals hold: a segment that is longer than its sealed file is no damage, and
/// a later seal may have the summary that counts.
pub(crate) const INCOMPAT_GROWTH: u64 = 8;
/// Seals may be provisional: their bytes may change without a thaw.
pub(crate) const INCOMPAT_PROVISIONAL: u64 = 16;
/// Files are away, or were: their bytes are in a remote.
pub(crate) const INCOMPAT_REMOTE: u64 = 32;

/// Features of a pool's format that not every program knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Features {
    /// A program that does not know one of these may use the pool.
    pub compat: u64,
    /// It may read the pool, but not write.
    pub ro_compat: u64,
    /// It may not use the pool.
    pub incompat: u64,
}

/// Whether the pool was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolState {
    /// Closed: everything in it is durable and in order.
    Clean = 0,
    /// In use, or left without being closed.
    Dirty = 1,
    /// Left in order while programs that had outlived an earlier server could still write its files.
    Outlived = 2,
    /// Left in order with something that only a recovery brings to order.
    Left = 3,
}

/// What a pool is, apart from its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Superblock {
    /// Format version.
    pub version: u32,
    /// Feature masks.
    pub features: Features,
    /// The pool's identity.
    pub uuid: [u8; 16],
    /// Seeds every checksum of the log, so that no bytes of a file can pose as a frame.
    #[serde(skip)]
    secret: [u8; 16],
    /// The name its user chose; checked when the pool is opened.
    pub layout: String,
    /// Bytes of a log block.
    pub block_size: u32,
    /// Log blocks.
    pub blocks: u32,
    /// Bytes that the pool may use on its host, if it is limited.
    pub limit: Option<u64>,
    /// Whether the pool was closed.
    pub state: PoolState,
    /// The boot of the machine during which the pool was last in use.
    pub boot_id: [u8; 16],
    /// How often the pool was opened without having been closed.
    pub unsafe_shutdowns: u64,
    /// Of each tier, by its number, how many errors of its host were heeded.
    #[serde(skip)]
    host_errors: HostErrors,
    /// Grows with every write of a superblock.
    sequence: u64,
}

/// A number for each tier that there may be, the pool's own directory among them.
type HostErrors = [u16; TIER_MAX as usize + 1];

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    state: U32,
    compat: U64,
    ro_compat: U64,
    incompat: U64,
    sequence: U64,
    uuid: [u8; 16],
    secret: [u8; 16],
    boot_id: [u8; 16],
    layout: [u8; 64],
    block_size: U32,
    blocks: U32,
    limit: U64,
    unsafe_shutdowns: U64,
    host_errors: [U16; size_of::<HostErrors>() / 2],
    zero: [u8; 70],
    crc: U32,
}

pub(crate) const SIZE: usize = size_of::<Raw>();
const _: () = assert!(SIZE == 512);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawMark {
    magic: [u8; 8],
    horizon: U64,
    zero: [u8; 44],
    crc: U32,
}

impl Superblock {
    fn encode(&self) -> Raw {
        let mut layout = [0; 64];
        layout[..self.layout.len()].copy_from_slice(self.layout.as_bytes());
        let mut raw = Raw {
            magic: MAGIC,
            version: self.version.into(),
            state: (self.state as u32).into(),
            compat: self.features.compat.into(),
            ro_compat: self.features.ro_compat.into(),
            incompat: self.features.incompat.into(),
            sequence: self.sequence.into(),
            uuid: self.uuid,
            secret: self.secret,
            boot_id: self.boot_id,
            layout,
            block_size: self.block_size.into(),
            blocks: self.blocks.into(),
            limit: self.limit.unwrap_or(0).into(),
            unsafe_shutdowns: self.unsafe_shutdowns.into(),
            host_errors: self.host_errors.map(U16::from),
            zero: [0; 70],
            crc: 0.into(),
        };
        raw.crc = crc32c::crc32c(&raw.as_bytes()[..SIZE - 4]).into();
        raw
    }

    /// Reads one copy. An error says why it is none, in a few words.
    fn decode(bytes: &[u8; SIZE]) -> std::result::Result<Self, &'static str> {
        let raw: Raw = zerocopy::transmute!(*bytes);
        if raw.magic != MAGIC {
            return Err(if bytes.iter().all(|byte| *byte == 0) { "empty superblock" } else { "no superblock" });
        }
        if crc32c::crc32c(&bytes[..SIZE - 4]) != raw.crc.get() {
            return Err("damaged superblock");
        }
        let name = raw.layout.split(|byte| *byte == 0).next().unwrap_or_default();
        let block_size = raw.block_size.get();
        // What a later version says about itself is for that version to judge.
        let possible = valid_block_size(block_size)
            && (1..=BLOCKS_MAX).contains(&raw.blocks.get())
            && raw.sequence.get() < NUMBER_LIMIT;
        if raw.version.get() == VERSION && !possible {
            return Err("impossible geometry");
        }
        Ok(Self {
            version: raw.version.get(),
            features: Features {
                compat: raw.compat.get(),
                ro_compat: raw.ro_compat.get(),
                incompat: raw.incompat.get(),
            },
            uuid: raw.uuid,
            secret: raw.secret,
            layout: String::from_utf8(name.to_vec()).map_err(|_| "layout name is not text")?,
            block_size,
            blocks: raw.blocks.get(),
            limit: Some(raw.limit.get()).filter(|limit| *limit != 0),
            state: match raw.state.get() {
                0 => PoolState::Clean,
                2 => PoolState::Outlived,
                3 => PoolState::Left,
                _ => PoolState::Dirty,
            },
            boot_id: raw.boot_id,
            unsafe_shutdowns: raw.unsafe_shutdowns.get(),
            host_errors: raw.host_errors.map(U16::get),
            sequence: raw.sequence.get(),
        })
    }

    /// A new pool's superblock.
    pub(crate) fn new(layout: String, block_size: u32, blocks: u32, limit: Option<u64>) -> std::io::Result<Self> {
        Ok(Self {
            version: VERSION,
            // A feature is there once it is used.
            features: Features::default(),
            uuid: random_uuid()?,
            secret: random()?,
            layout,
            block_size,
            blocks,
            limit,
            state: PoolState::Clean,
            boot_id: [0; 16],
            unsafe_shutdowns: 0,
            host_errors: [0; TIER_MAX as usize + 1],
            sequence: 0,
        })
    }

    /// What is wrong with each copy, in its place; nothing if it is whole.
    pub(crate) fn examine(medium: &dyn Medium) -> [Option<&'static str>; 2] {
        OFFSETS.map(|offset| {
            let mut bytes = [0; SIZE];
            match medium.read(offset, &mut bytes) {
                Ok(()) => Self::decode(&bytes).err(),
                Err(_) => Some("cannot be read"),
            }
        })
    }

    /// What is wrong with each horizon mark.
    pub(crate) fn examine_marks(&self, medium: &dyn Medium) -> [Option<&'static str>; 2] {
        MARK_OFFSETS.map(|offset| self.read_mark_at(medium, offset).is_none().then_some("damaged horizon mark"))
    }

    /// The newer valid copy, and whether the other one is damaged.
    pub(crate) fn read(pool: &Path, medium: &dyn Medium) -> Result<(Self, bool)> {
        let mut newest: Option<Self> = None;
        let mut reasons = Vec::new();
        for offset in OFFSETS {
            let mut bytes = [0; SIZE];
            match medium.read(offset, &mut bytes) {
                Ok(()) => match Self::decode(&bytes) {
                    Ok(found) => {
                        if newest.as_ref().is_none_or(|newest| newest.sequence < found.sequence) {
                            newest = Some(found);
                        }
                    }
                    Err(reason) => reasons.push(reason),
                },
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    reasons.push(if offset == 0 { "log is empty or cut short" } else { "log is cut short" });
                }
                Err(error) => return Err(Error::in_pool(pool, LOG, "read", error)),
            }
        }
        let Some(superblock) = newest else {
            let reason = reasons.first().copied().unwrap_or("no superblock");
            return Err(Error::NotAPool { pool: pool.into(), reason: format!("log: {reason}") });
        };
        superblock.check_supported(pool)?;
        Ok((superblock, !reasons.is_empty()))
    }

    fn check_supported(&self, pool: &Path) -> Result<()> {
        let unknown = self.features.incompat & !KNOWN.incompat;
        let what = if self.version != VERSION {
            format!("format version {}, this program knows {VERSION}", self.version)
        } else if unknown != 0 {
            format!("unknown incompatible features {unknown:#x}")
        } else {
            return Ok(());
        };
        Err(Error::Unsupported { pool: pool.into(), what })
    }

    /// Features because of which this program may only read the pool.
    pub(crate) fn read_only_features(&self) -> u64 {
        self.features.ro_compat & !KNOWN.ro_compat
    }

    /// Writes both copies under the next sequence number, each persisted before the next is touched. The older of the
    /// two goes first.
    pub(crate) fn write(&mut self, medium: &dyn Medium) -> std::io::Result<()> {
        for _ in 0..2 {
            self.sequence += 1;
            medium.store(OFFSETS[(self.sequence % 2) as usize], self.encode().as_bytes())?;
            medium.persist()?;
        }
        Ok(())
    }

    /// How many errors of a tier's host were heeded, as a mark; zero if that is not known.
    pub(crate) fn host_errors(&self, tier: u8) -> u16 {
        self.host_errors.get(usize::from(tier)).copied().unwrap_or_default()
    }

    /// Notes that for some tiers.
    pub(crate) fn set_host_errors(&mut self, marks: &[(u8, u16)]) {
        for (tier, mark) in marks {
            if let Some(known) = self.host_errors.get_mut(usize::from(*tier)) {
                *known = *mark;
            }
        }
    }

    /// Uses no number of writing it again that another may have used.
    pub(crate) fn skip_to(&mut self, other: &Self) {
        self.sequence = self.sequence.max(other.sequence);
    }

    /// Stores the horizon in its two fixed places; the caller persists.
    pub(crate) fn store_mark(&self, medium: &dyn Medium, horizon: u64) -> std::io::Result<()> {
        let mut raw = RawMark { magic: MARK_MAGIC, horizon: horizon.into(), zero: [0; 44], crc: 0.into() };
        raw.crc = self.mark_crc(raw.as_bytes()).into();
        for offset in MARK_OFFSETS {
            medium.store(offset, raw.as_bytes())?;
        }
        Ok(())
    }

    /// The newest horizon in the fixed places, 0 if there is none that can be read.
    pub(crate) fn read_mark(&self, medium: &dyn Medium) -> u64 {
        MARK_OFFSETS.into_iter().filter_map(|offset| self.read_mark_at(medium, offset)).max().unwrap_or(0)
    }

    fn read_mark_at(&self, medium: &dyn Medium, offset: u64) -> Option<u64> {
        let mut bytes = [0; size_of::<RawMark>()];
        medium.read(offset, &mut bytes).ok()?;
        let raw: RawMark = zerocopy::transmute!(bytes);
        let valid = raw.magic == MARK_MAGIC && raw.crc.get() == self.mark_crc(&bytes);
        Some(raw.horizon.get()).filter(|horizon| valid && *horizon < NUMBER_LIMIT)
    }

    fn mark_crc(&self, mark: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.secret), &mark[..mark.len() - 4])
    }

    /// The uuid as text, in the usual groups of hexadecimal digits.
    pub fn uuid_text(&self) -> String {
        let digits: String = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
    }

    /// Grows with every write of a superblock.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Seeds the checksums of a log block's incarnation.
    pub(crate) fn seed(&self, incarnation: u64) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.secret), &incarnation.to_le_bytes())
    }

    /// Bytes of the log file.
    pub(crate) fn log_len(&self) -> u64 {
        BLOCKS_OFFSET + u64::from(self.blocks) * u64::from(self.block_size)
    }
}

/// For tests: puts right the checksums of what looks like superblocks and marks in the image of a log. The newer
/// superblock, if there is one.
pub(crate) fn vouch_for(image: &mut [u8]) -> Option<Superblock> {
    let mut newest: Option<Superblock> = None;
    for offset in OFFSETS.map(|offset| offset as usize) {
        let Some(copy) = image.get_mut(offset..offset + SIZE).filter(|copy| copy.starts_with(&MAGIC)) else { continue };
        let crc = crc32c::crc32c(&copy[..SIZE - 4]).to_le_bytes();
        copy[SIZE - 4..].copy_from_slice(&crc);
        let found = <&[u8; SIZE]>::try_from(&*copy).ok().and_then(|copy| Superblock::decode(copy).ok());
        if let Some(found) = found.filter(|found| newest.as_ref().is_none_or(|one| one.sequence < found.sequence)) {
            newest = Some(found);
        }
    }
    let superblock = newest.filter(|found| valid_block_size(found.block_size))?;
    for offset in MARK_OFFSETS.map(|offset| offset as usize) {
        const MARK: usize = size_of::<RawMark>();
        if let Some(mark) = image.get_mut(offset..offset + MARK).filter(|mark| mark.starts_with(&MARK_MAGIC)) {
            let crc = superblock.mark_crc(mark).to_le_bytes();
            mark[MARK - 4..].copy_from_slice(&crc);
        }
    }
    Some(superblock)
}

/// Log blocks are powers of two from 4 KiB to 16 MiB: several are held in memory at once when a pool is opened.
pub(crate) fn valid_block_size(size: u32) -> bool {
    size.is_power_of_two() && (4096..=16 << 20).contains(&size)
}

/// A random uuid: version 4 of RFC 9562.
fn random_uuid() -> std::io::Result<[u8; 16]> {
    let mut uuid = random()?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

/// Bytes from the kernel's random source.
pub(crate) fn random() -> std::io::Result<[u8; 16]> {
    use std::io::Read;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_uuid_is_shown_as_usual() {
        let mut superblock = Superblock::new("x".into(), 4096, 4, None).unwrap();
        superblock.uuid = std::array::from_fn(|i| i as u8);
        assert_eq!(superblock.uuid_text(), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }

    #[test]
    fn every_flipped_bit_of_a_superblock_is_noticed() {
        let superblock = Superblock::new("name".into(), 1 << 20, 4, Some(1 << 30)).unwrap();
        let whole: [u8; SIZE] = zerocopy::transmute!(superblock.encode());
        assert_eq!(Superblock::decode(&whole), Ok(superblock));
        for bit in 0..SIZE * 8 {
            let mut bytes = whole;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_superblock_with_a_right_checksum_is_possible_or_refused(
            mut bytes in prop::collection::vec(any::<u8>(), SIZE),
            likely in any::<bool>(),
        ) {
            bytes[..8].copy_from_slice(&MAGIC);
            if likely {
                bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
                bytes[40..48].fill(0);
                bytes[96..160].fill(0);
                bytes[160..164].copy_from_slice(&4096u32.to_le_bytes());
                bytes[166..168].fill(0);
            }
            let crc = crc32c::crc32c(&bytes[..SIZE - 4]).to_le_bytes();
            bytes[SIZE - 4..].copy_from_slice(&crc);
            if let Ok(found) = Superblock::decode(bytes.as_slice().try_into().unwrap())
                && found.version == VERSION
            {
                prop_assert!(found.blocks <= BLOCKS_MAX && found.sequence < NUMBER_LIMIT);
                let _ = (found.encode(), found.log_len());
            }
        }
    }
}
