//! That a process was killed while it had a file open to write, or what it had stored through a mapping could not be
//! written, and nobody has written it anew since.
//!
//! It is kept as an attribute of the file that names the segment which was left so: what replaces that segment is not
//! what was left. Users neither see nor set it, and a program that does not know it passes it by.

use crate::ids::{Ino, SegmentId};
use crate::log::record::Record;
use crate::tree::object::Object;

/// The attribute. Its value is the number of the segment, 8 bytes, little-endian.
pub(crate) const ATTRIBUTE: &[u8] = b"user.tensorfs.interrupted";

impl Object {
    /// The segment that is not what its writer meant it to be.
    pub fn left_unfinished(&self) -> Option<SegmentId> {
        let value = self.xattr(ATTRIBUTE)?.try_into().ok()?;
        Some(SegmentId(u64::from_le_bytes(value)))
    }

    /// True if the file holds what was left so.
    pub fn is_interrupted(&self) -> bool {
        let left = self.left_unfinished();
        left.is_some() && left == self.attributes.segment
    }
}

impl Record {
    /// The segment, which is a file's own or is to be, is not what its writer meant it to be.
    pub fn interrupted(ino: Ino, segment: SegmentId) -> Self {
        Self::Xattr { ino, name: ATTRIBUTE.into(), value: segment.0.to_le_bytes().into() }
    }

    /// Somebody has written the file since, and closed it.
    pub fn completed(ino: Ino) -> Self {
        Self::XattrRemoval { ino, name: ATTRIBUTE.into() }
    }
}
