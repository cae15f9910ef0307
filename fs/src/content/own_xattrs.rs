//! What tensorfs says of a regular file in extended attributes: `user.tensorfs.state`, `.records`, `.complete`,
//! `.tensors`, `.checksum`, `.tier`, `.remote`; of a directory `.complete` and `.remote`.
//!
//! They are worked out when they are read. They are not listed, so nothing copies them along with a file, and they
//! cannot be set or removed, but for the tier, and `.remote` of a directory. The kernel lets read them who may read the
//! file. `trusted.tensorfs.project`, which is neither listed nor worked out, is for root alone.

use tensorfs_layout::Ino;
use tensorfs_layout::log::PM;
use tensorfs_layout::tree::Run;

use crate::error::{Fault, Result};
use crate::store::reserved::{OWN_XATTRS, PROJECT, REMOTE};

use super::Content;

/// The checksums of so many runs are joined where requests are read.
const FEW_RUNS: usize = 1000;

impl Content {
    /// The value of an attribute of tensorfs' own. None if the file has to be read for it, and `may_read` is false.
    pub fn own_xattr(&self, ino: Ino, name: &[u8], may_read: bool) -> Result<Option<Vec<u8>>> {
        let (is_file, own) = {
            let view = self.files.store().view();
            let object = view.object(ino).ok_or(Fault::new(libc::ENODATA))?;
            (object.is_file(), object.xattr(name).map(<[u8]>::to_vec))
        };
        if name == PROJECT {
            return own.map(Some).ok_or(Fault::new(libc::ENODATA));
        }
        if name.strip_prefix(OWN_XATTRS) == Some(b"complete") {
            let word = |complete| if complete { "complete" } else { "incomplete" };
            return Ok(self.is_complete(ino, may_read)?.map(|complete| word(complete).into()));
        }
        if name == REMOTE {
            return Ok(self.is_carried(ino, may_read)?.map(Into::into));
        }
        if !is_file {
            return own.map(Some).ok_or(Fault::new(libc::ENODATA));
        }
        let text = match name.strip_prefix(OWN_XATTRS) {
            Some(b"state") => self.file_state(ino)?.name().to_owned(),
            Some(b"tier") => self.tier_of(ino)?,
            Some(b"records") => self.count_records(ino).to_string(),
            Some(b"tensors") => match self.count_tensors(ino, may_read)? {
                Some(count) => count.to_string(),
                None => return Ok(None),
            },
            Some(b"checksum") => match self.checksum(ino, may_read).ok_or(Fault::new(libc::ENODATA))? {
                Some(crc) => format!("{crc:08x}"),
                None => return Ok(None),
            },
            _ => return Err(Fault::new(libc::ENODATA)),
        };
        Ok(Some(text.into_bytes()))
    }

    fn tier_of(&self, ino: Ino) -> Result<String> {
        // A segment that is to replace the file's own holds what everybody reads.
        let written = self.files.store().writers().segment(ino);
        let view = self.files.store().view();
        let object = view.object(ino).ok_or(Fault::new(libc::ENOENT))?;
        Ok(view.tier_name(written.or(object.attributes.segment).map_or(PM, |segment| segment.tier())))
    }

    fn count_records(&self, ino: Ino) -> usize {
        let view = self.files.store().view();
        let runs = view.object(ino).and_then(|object| object.chain()).map_or(&[][..], |chain| chain.runs());
        runs.iter().filter(|run| run.len > 0).count()
    }

    /// The CRC32C of a sealed file, from the checksums of its runs. `Some(None)` if it has many, and it is not to take
    /// long.
    fn checksum(&self, ino: Ino, may_take_long: bool) -> Option<Option<u32>> {
        // It may be about to be replaced, and shows the new bytes then.
        if self.files.store().writers().has(ino) {
            return None;
        }
        let parts: Vec<(u64, u32)> = {
            let view = self.files.store().view();
            let chain = view.object(ino)?.chain().filter(|chain| chain.is_sealed())?;
            if chain.runs().len() > FEW_RUNS && !may_take_long {
                return Some(None);
            }
            let part = |run: &Run| Some((run.len, run.seal()?.crc));
            chain.runs().iter().filter(|run| run.len > 0).map(part).collect::<Option<_>>()?
        };
        // Others need the view meanwhile: a file may have a million.
        Some(Some(tensorfs_formats::crc32c_join(parts)))
    }
}
