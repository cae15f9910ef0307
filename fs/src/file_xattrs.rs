//! What tensorfs says of a regular file in extended attributes: `user.tensorfs.state`, `.records`, `.tensors`, `.checksum`.
//!
//! They are worked out when they are read. They are not listed, so nothing copies them along with a file, and they cannot
//! be set or removed. The kernel lets read them who may read the file.

use tensorfs_layout::Ino;

use crate::ask::FileState;
use crate::error::{Fault, Result};
use crate::filesystem::Filesystem;

/// Names that begin like this are tensorfs' own.
const PREFIX: &[u8] = b"user.tensorfs.";

/// True for a name that users cannot give to an attribute.
pub(crate) fn is_own(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

impl Filesystem {
    /// The value of an attribute of tensorfs' own. May read the file.
    pub fn own_xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if !self.pool.view().object(ino).is_some_and(|object| object.is_file()) {
            return Err(Fault::new(libc::ENODATA));
        }
        let text = match name.strip_prefix(PREFIX) {
            Some(b"state") => self.file_state(ino)?.name().to_owned(),
            Some(b"records") => self.count_records(ino).to_string(),
            Some(b"tensors") => self.count_tensors(ino)?.to_string(),
            Some(b"checksum") => format!("{:08x}", self.checksum(ino).ok_or(Fault::new(libc::ENODATA))?),
            _ => return Err(Fault::new(libc::ENODATA)),
        };
        Ok(text.into_bytes())
    }

    /// How far a file has come.
    pub fn file_state(&self, ino: Ino) -> Result<FileState> {
        let (segment, damaged, sealed) = {
            let view = self.pool.view();
            let object = view.object(ino).ok_or(Fault::new(libc::ENOENT))?;
            let sealed = object.chain().is_some_and(|chain| chain.is_sealed());
            (object.attributes.segment, object.attributes.damaged, sealed)
        };
        let segments = self.pool.segments();
        Ok(match segment {
            _ if damaged || self.is_known_damaged(ino) => FileState::Damaged,
            Some(segment) if segments.failed(segment) => FileState::Damaged,
            _ if self.writers.lock().contains_key(&ino) => FileState::Open,
            _ if sealed => FileState::Sealed,
            Some(segment) if segments.is_pending(segment) => FileState::Open,
            _ => FileState::Committed,
        })
    }

    fn count_records(&self, ino: Ino) -> usize {
        self.pool.view().object(ino).and_then(|object| object.chain()).map_or(0, |chain| chain.runs().len())
    }

    /// The CRC32C of a sealed file, from the checksums of its runs.
    fn checksum(&self, ino: Ino) -> Option<u32> {
        // It may be about to be replaced, and shows the new bytes then.
        if self.writers.lock().contains_key(&ino) {
            return None;
        }
        let view = self.pool.view();
        let chain = view.object(ino)?.chain().filter(|chain| chain.is_sealed())?;
        chain.runs().iter().filter(|run| run.len > 0).try_fold(0, |crc, run| {
            let next = run.seal.as_ref()?.crc;
            Some(crc32c::crc32c_combine(crc, next, usize::try_from(run.len).ok()?))
        })
    }
}
