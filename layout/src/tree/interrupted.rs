//! That a process was killed while it had a file open to write, and nobody has written it anew since.
//!
//! It is kept as an attribute of the file that names the segment which was left so: what replaces that segment is not
//! what was left. Users neither see nor set it, and a program that does not know it passes it by.

use crate::ids::{Ino, SegmentId};
use crate::log::record::Record;
use crate::tree::object::Object;

/// The attribute. Its value is the number of the segment, 8 bytes, little-endian.
pub(crate) const ATTRIBUTE: &[u8] = b"user.tensorfs.interrupted";

impl Object {
    /// The segment that a writer who was killed has left.
    pub fn left_by_killed(&self) -> Option<SegmentId> {
        let value = self.xattr(ATTRIBUTE)?.try_into().ok()?;
        Some(SegmentId(u64::from_le_bytes(value)))
    }

    /// True if the file holds what a writer who was killed has left.
    pub fn is_interrupted(&self) -> bool {
        let left = self.left_by_killed();
        left.is_some() && left == self.attributes.segment
    }
}

impl Record {
    /// A writer who was killed has left the segment, which is a file's own or is to be.
    pub fn interrupted(ino: Ino, segment: SegmentId) -> Self {
        Self::Xattr { ino, name: ATTRIBUTE.into(), value: segment.0.to_le_bytes().into() }
    }

    /// Somebody has written the file since, and closed it.
    pub fn completed(ino: Ino) -> Self {
        Self::XattrRemoval { ino, name: ATTRIBUTE.into() }
    }
}
