//! Records: one entry each about one object.

use crate::ids::{Ino, NUMBER_LIMIT, POOL, SegmentId, TIER_MAX, TxId};
use crate::log::origin::Origin;
use crate::log::seal::Seal;
use crate::log::tier::{PLACEMENT_MAX, Tier};
use crate::time::Timestamp;

/// The longest name of a directory entry, in bytes.
pub const NAME_MAX: usize = 255;

/// The longest target of a symbolic link, in bytes.
pub const TARGET_MAX: usize = 4095;

/// The largest value of an extended attribute, in bytes.
pub const XATTR_VALUE_MAX: usize = 65536;

/// The most bytes of a file that is committed by value.
pub const VALUE_MAX: usize = 32 << 10;

/// What an object is and whose it is: everything `stat` shows that is not derived from other records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// File type and permission bits, as in `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the object.
    pub ctime: Timestamp,
    /// When what it holds began: creation, or since then that it was emptied by who opened it.
    pub btime: Timestamp,
    /// The segment that holds the bytes of a regular file, once it has one.
    pub segment: Option<SegmentId>,
    /// A sync of the segment failed, or bytes are missing: what is there may not be what was written.
    pub damaged: bool,
}

/// One entry about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// All attributes of an object; the first one creates it. Another segment than before is a *switch*: data records
    /// of the old segment are dead, and the old segment is removed once the horizon covers the switch.
    Attributes {
        /// The object.
        ino: Ino,
        /// Its attributes from now on.
        attributes: Attributes,
    },
    /// A name in a directory: added, or pointed to another object.
    Name {
        /// The directory.
        dir: Ino,
        /// 1 to 255 bytes, no `/`, no NUL.
        name: Box<[u8]>,
        /// The object it names.
        ino: Ino,
    },
    /// A name taken out of a directory.
    Removal {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Box<[u8]>,
    },
    /// Where a symbolic link points.
    Target {
        /// The link.
        ino: Ino,
        /// Its target.
        target: Box<[u8]>,
    },
    /// A run of a file's bytes. Cuts the file's chain at `offset`, then appends `[offset, offset + len)`.
    Data {
        /// The file.
        ino: Ino,
        /// Where the bytes are, at the same offset.
        segment: SegmentId,
        /// First byte of the run.
        offset: u64,
        /// Bytes in the run; 0 ends the file here.
        len: u64,
        /// Bytes that the host had allocated to the whole segment.
        allocated: u64,
        /// What made them part of the file.
        origin: Origin,
    },
    /// As [`Record::Data`], but written ahead of a truncation that is still to be done to the segment.
    Truncation {
        /// The file.
        ino: Ino,
        /// Its segment.
        segment: SegmentId,
        /// First byte of the last run that stays.
        offset: u64,
        /// Bytes of it that stay.
        len: u64,
        /// Bytes that the host had allocated to the whole segment.
        allocated: u64,
        /// Size of the segment before the truncation.
        cut_from: u64,
    },
    /// As [`Record::Data`], of bytes that nothing could write any more when they were read and checksummed; a *tensor
    /// record* if they were recognised.
    Sealed {
        /// The file.
        ino: Ino,
        /// Its segment.
        segment: SegmentId,
        /// First byte of the run.
        offset: u64,
        /// Bytes in the run.
        len: u64,
        /// Bytes that the host had allocated to the whole segment.
        allocated: u64,
        /// Checksum, and what the bytes are.
        seal: Seal,
        /// What made them part of the file.
        origin: Origin,
    },
    /// All bytes of a small file, as the data record right before it in the chain describes them: durable with the log,
    /// so that the segment need not be. Counts only while that data record is the last word on the file's bytes.
    Value {
        /// The file.
        ino: Ino,
        /// Its segment.
        segment: SegmentId,
        /// Its bytes, from first to last.
        bytes: Box<[u8]>,
    },
    /// Written ahead of whatever may change bytes that have checksums, or that the log holds, in place: such a file
    /// opened for writing. Voids the seals of the file's runs.
    Thaw {
        /// The file.
        ino: Ino,
        /// Its segment.
        segment: SegmentId,
        /// First byte that may change.
        offset: u64,
        /// Bytes that may change.
        len: u64,
    },
    /// Says which seals of a file are *provisional*: those of the runs before it in the chain that begin at `from` or
    /// behind. Their bytes may change without a thaw; the seals of all other runs hold.
    Provisional {
        /// The file.
        ino: Ino,
        /// Its segment.
        segment: SegmentId,
        /// First byte whose seal is provisional.
        from: u64,
    },
    /// The file is being replaced: `segment` takes the new bytes, and becomes the file's own with a switch.
    Replace {
        /// The file.
        ino: Ino,
        /// The segment of the new bytes.
        segment: SegmentId,
    },
    /// An extended attribute set.
    Xattr {
        /// The object.
        ino: Ino,
        /// Its name with the namespace, as in `user.x`.
        name: Box<[u8]>,
        /// Its value.
        value: Box<[u8]>,
    },
    /// An extended attribute removed.
    XattrRemoval {
        /// The object.
        ino: Ino,
        /// Its name.
        name: Box<[u8]>,
    },
    /// Written by cleaning: these transactions are no longer in the log, and nothing of them is missed.
    Retired {
        /// The first one.
        first: TxId,
        /// The last one.
        last: TxId,
    },
    /// A tier of the pool: added, changed or, without a name, removed.
    Tier {
        /// Its number.
        number: u8,
        /// What is known of it.
        tier: Tier,
    },
    /// The placement map: which files go to which tier. Kept as its user wrote it; empty if there is none.
    Placement {
        /// The text.
        text: Box<str>,
    },
}

impl Record {
    /// The object whose chain the record belongs to.
    pub fn ino(&self) -> Ino {
        match self {
            Self::Attributes { ino, .. }
            | Self::Target { ino, .. }
            | Self::Data { ino, .. }
            | Self::Truncation { ino, .. }
            | Self::Sealed { ino, .. }
            | Self::Value { ino, .. }
            | Self::Thaw { ino, .. }
            | Self::Provisional { ino, .. }
            | Self::Replace { ino, .. }
            | Self::Xattr { ino, .. }
            | Self::XattrRemoval { ino, .. } => *ino,
            Self::Name { dir, .. } | Self::Removal { dir, .. } => *dir,
            Self::Retired { .. } | Self::Tier { .. } | Self::Placement { .. } => POOL,
        }
    }

    /// As it is once it is stored by a transaction: where its bytes come from is known.
    #[must_use]
    pub(crate) fn stored(mut self, id: TxId) -> Self {
        if let Self::Data { origin, .. } | Self::Sealed { origin, .. } = &mut self {
            *origin = origin.stored(id);
        }
        self
    }

    /// What is wrong with the record itself, if anything: such a record could be written, but not be read back.
    pub(crate) fn flaw(&self) -> Option<&'static str> {
        let sound = match self {
            Self::Name { name, .. } | Self::Removal { name, .. } => is_name(name),
            Self::Xattr { name, value, .. } => is_xattr_name(name) && value.len() <= XATTR_VALUE_MAX,
            Self::XattrRemoval { name, .. } => is_xattr_name(name),
            Self::Target { target, .. } => target.len() <= TARGET_MAX,
            Self::Data { offset, len, origin, .. } | Self::Sealed { offset, len, origin, .. } => {
                offset.checked_add(*len).is_some() && origin.transaction < NUMBER_LIMIT
            }
            Self::Truncation { offset, len, .. } => offset.checked_add(*len).is_some(),
            Self::Retired { first, last } => first <= last && last.0 < NUMBER_LIMIT,
            Self::Tier { number, tier } => (1..=TIER_MAX).contains(number) && tier.is_sound(),
            Self::Placement { text } => text.len() <= PLACEMENT_MAX,
            Self::Value { bytes, .. } => bytes.len() <= VALUE_MAX,
            Self::Attributes { .. } | Self::Thaw { .. } | Self::Provisional { .. } | Self::Replace { .. } => true,
        };
        (!sound).then_some("impossible name, length or range")
    }
}

fn is_name(bytes: &[u8]) -> bool {
    let special = matches!(bytes, b"." | b"..");
    (1..=NAME_MAX).contains(&bytes.len()) && !bytes.contains(&0) && !bytes.contains(&b'/') && !special
}

/// An attribute's name is no part of a path.
fn is_xattr_name(bytes: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&bytes.len()) && !bytes.contains(&0)
}
