//! What tensorfs says of a regular file in extended attributes: `user.tensorfs.state`, `.records`, `.tensors`, `.checksum`,
//! `.tier`.
//!
//! They are worked out when they are read. They are not listed, so nothing copies them along with a file, and they cannot
//! be set or removed, but for the tier: set on a file it moves the file, set on a directory it says where files made in it
//! go. The kernel lets read them who may read the file.

use tensorfs_layout::{Gone, Ino, PM, Record, Transaction};

use crate::ask::FileState;
use crate::clock;
use crate::error::{Fault, Result};
use crate::filesystem::{Caller, Filesystem, changed, with};

/// Names that begin like this are tensorfs' own.
const PREFIX: &[u8] = b"user.tensorfs.";

/// The tier that a file's bytes are in; of a directory, the one that files made in it go to. Only this one can be set.
pub(crate) const TIER: &[u8] = b"user.tensorfs.tier";

/// True for a name that users cannot give to an attribute.
pub(crate) fn is_own(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

impl Filesystem {
    /// The value of an attribute of tensorfs' own. May read the file.
    pub fn own_xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let (is_file, own) = {
            let view = self.pool.view();
            let object = view.object(ino).ok_or(Fault::new(libc::ENODATA))?;
            (object.is_file(), object.xattr(name).map(<[u8]>::to_vec))
        };
        if !is_file {
            return own.ok_or(Fault::new(libc::ENODATA));
        }
        let text = match name.strip_prefix(PREFIX) {
            Some(b"state") => self.file_state(ino)?.name().to_owned(),
            Some(b"tier") => self.tier_of(ino)?,
            Some(b"records") => self.count_records(ino).to_string(),
            Some(b"tensors") => self.count_tensors(ino)?.to_string(),
            Some(b"checksum") => format!("{:08x}", self.checksum(ino).ok_or(Fault::new(libc::ENODATA))?),
            _ => return Err(Fault::new(libc::ENODATA)),
        };
        Ok(text.into_bytes())
    }

    fn tier_of(&self, ino: Ino) -> Result<String> {
        // A segment that is to replace the file's own holds what everybody reads.
        let written = self.writers.lock().get(&ino).map(|watched| watched.segment);
        let view = self.pool.view();
        let object = view.object(ino).ok_or(Fault::new(libc::ENOENT))?;
        Ok(view.tier_name(written.or(object.attributes.segment).map_or(PM, |segment| segment.tier())))
    }

    /// Has new files in a directory made in a tier, or moves a file there.
    pub fn set_tier(&self, caller: Caller, ino: Ino, value: &[u8], flags: i32) -> Result<()> {
        self.check_writable()?;
        let tier = std::str::from_utf8(value).map_err(|_| Fault::new(libc::EINVAL))?;
        let kind = self.pool.view().object(ino).ok_or(Fault::stale())?.kind();
        match kind {
            libc::S_IFREG => {
                if flags & libc::XATTR_CREATE != 0 {
                    return Err(Fault::new(libc::EEXIST));
                }
                let number = self.may_place(caller, ino, tier)?;
                self.move_file(ino, number, &|_, _| {})
            }
            libc::S_IFDIR => self.edit(|edit| {
                edit.tier_named(tier).ok_or(Fault::new(libc::EINVAL))?;
                let object = edit.object(ino).ok_or(Fault::stale())?;
                match object.xattr(TIER) {
                    Some(_) if flags & libc::XATTR_CREATE != 0 => return Err(Fault::new(libc::EEXIST)),
                    None if flags & libc::XATTR_REPLACE != 0 => return Err(Fault::new(libc::ENODATA)),
                    _ => {}
                }
                let set = Record::Xattr { ino, name: TIER.into(), value: value.into() };
                edit.store(with(Transaction::new(caller.unique).with(set), changed(edit, ino, clock::now())))?;
                Ok(())
            }),
            _ => Err(Fault::new(libc::EPERM)),
        }
    }

    /// New files in a directory go where the placement map says.
    pub fn unset_tier(&self, caller: Caller, ino: Ino) -> Result<()> {
        self.edit(|edit| {
            let object = edit.object(ino).ok_or(Fault::stale())?;
            if !object.is_dir() {
                return Err(Fault::new(libc::EPERM));
            }
            if object.xattr(TIER).is_none() {
                return Err(Fault::new(libc::ENODATA));
            }
            let removal = Record::XattrRemoval { ino, name: TIER.into() };
            edit.store(with(Transaction::new(caller.unique).with(removal), changed(edit, ino, clock::now())))?;
            Ok(())
        })
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
        match segment.and_then(|segment| segments.gone(segment)) {
            Some(Gone::Lost { .. }) => return Ok(FileState::Lost),
            Some(Gone::Missing { .. }) => return Ok(FileState::Missing),
            None => {}
        }
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
