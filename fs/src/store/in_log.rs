//! Small files whose bytes only the log is known to hold durably. Their segments were not synced since, and a host that
//! fails may have dropped what they had (D12): whoever goes by what such a segment holds, and by that ends what the log
//! does, has it looked at first.

use tensorfs_layout::tree::{FileChain, Object};
use tensorfs_layout::{Ino, SegmentId};

use crate::error::{Host, Result};

use super::Store;

impl Store {
    /// True if only the log is known to hold a file's bytes durably.
    pub fn is_in_log_alone(&self, ino: Ino) -> bool {
        self.view().object(ino).and_then(Object::chain).and_then(FileChain::value).is_some()
    }

    /// Has a file's segment hold durably what only the log did, if the host lets it. So it is with all other files.
    pub fn settle_value(&self, ino: Ino) -> Result<()> {
        if self.is_in_log_alone(ino) {
            self.pool().settle_values()?;
        }
        Ok(())
    }

    /// Has a segment, which its file is about to lose, hold durably what the log holds of it.
    pub fn mend_from_log(&self, ino: Ino, segment: SegmentId) -> Result<()> {
        let value = {
            let view = self.view();
            let object = view.object(ino).filter(|object| object.attributes.segment == Some(segment));
            object.and_then(Object::chain).and_then(FileChain::value).map(Box::<[u8]>::from)
        };
        let Some(value) = value.filter(|value| !self.segments().keeps(segment, value)) else { return Ok(()) };
        match self.segments().put_back(segment, &value) {
            // Whoever sets it aside says so.
            Err(error) if self.segments().is_not_there(segment, &error) => Ok(()),
            put => put.host("writing a segment again"),
        }
    }
}
