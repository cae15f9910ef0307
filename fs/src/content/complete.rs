//! Whether a file is all there: what is in it says its seal, or a reader.

use std::ops::ControlFlow;
use std::time::Duration;

use tensorfs_formats::{Format, Recognised};
use tensorfs_layout::Ino;

use crate::error::{Fault, Result};
use crate::file::Version;
use crate::protocol::FileState;

use super::Content;

/// A close is waited for so often, and so long each time.
const CLOSE_TRIES: u32 = 20;
const CLOSE_WAIT: Duration = Duration::from_millis(10);

/// What is known of a file's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// All that it promises itself is there, and so many tensors.
    There { tensors: u64 },
    /// Something is not, or nobody knows yet.
    Missing,
    /// It may have tensors, and is of a format that does not tell where it ends.
    Untold,
    /// It is of no format that is known.
    Opaque,
}

impl Content {
    /// Whether a file is all there.
    pub(super) fn end_of(&self, ino: Ino) -> Result<End> {
        if matches!(self.file_state(ino)?, FileState::Damaged | FileState::Lost | FileState::Missing) {
            return Ok(End::Missing);
        }
        if self.is_being_written(ino) || self.is_interrupted(ino) {
            return Ok(End::Missing);
        }
        let version = match self.files.version(ino) {
            // Made by mknod, and never opened.
            Err(fault) if fault.errno == libc::ENOENT => return Ok(End::Opaque),
            version => version?,
        };
        if let Some(known) = self.sealed_end(ino, version) {
            return Ok(known);
        }
        let found = self.looked_into(ino, version, |source| source.recognise(&mut |_| ControlFlow::Continue(())))?;
        let end = |found: Recognised| {
            let is_damaged = is_damaged(found.format, found.bad_frames, found.reason.as_deref());
            end(found.format, found.tensors, found.cut || is_damaged)
        };
        Ok(found.map_or(End::Missing, end))
    }

    /// True if something has a file open to write. A close that has returned may come a little later.
    fn is_being_written(&self, ino: Ino) -> bool {
        let has = || self.files.store().writers().has(ino);
        let is_over = |_| {
            let over = !has();
            if !over {
                std::thread::sleep(CLOSE_WAIT);
            }
            over
        };
        !(0..CLOSE_TRIES).any(is_over) && has()
    }

    /// True if a process was killed while it had the file open to write, and nobody has written it since.
    fn is_interrupted(&self, ino: Ino) -> bool {
        self.files.store().view().object(ino).is_some_and(|object| object.is_interrupted())
    }

    /// What the seals of a file say, if it is sealed.
    fn sealed_end(&self, ino: Ino, version: Version) -> Option<End> {
        let view = self.files.store().view();
        let object = view.object(ino).filter(|object| object.attributes.segment == Some(version.segment))?;
        let chain = object.chain().filter(|chain| chain.is_sealed() && chain.size() == version.size)?;
        // Without one it may be opaque, or of an earlier version.
        let summary = chain.summary().filter(|summary| summary.format != Format::Opaque || summary.complete)?;
        let is_damaged = is_damaged(summary.format, summary.bad_frames, summary.reason.as_deref());
        // Where not all are described there may be any number.
        let tensors = if summary.complete { summary.tensors } else { u64::MAX };
        Some(end(summary.format, tensors, summary.cut || is_damaged))
    }

    /// What a reader finds. None if the file was changed meanwhile.
    fn looked_into(
        &self,
        ino: Ino,
        version: Version,
        look: impl FnOnce(&super::bytes::SegmentBytes) -> Recognised,
    ) -> Result<Option<Recognised>> {
        let source = self.bytes_of(ino, &version);
        let found = look(&source);
        source.close();
        if !self.files.version(ino).is_ok_and(|now| now == version) {
            return Ok(None);
        }
        match found.error {
            Some(error) => Err(super::bytes::fault(error)),
            None => Ok(Some(found)),
        }
    }

    /// Whether a file that something names is all there, and of a format that tells that.
    ///
    /// # Errors
    /// `EIO` if there is more in it than is looked at, so that nobody knows.
    pub(super) fn is_whole_part(&self, ino: Ino) -> Result<bool> {
        match self.end_of(ino)? {
            End::There { .. } => Ok(true),
            End::Missing => Ok(false),
            // Of what is too much its seal says no more than that nothing is known of it.
            End::Untold | End::Opaque => {
                let Ok(version) = self.files.version(ino) else { return Ok(false) };
                let found =
                    self.looked_into(ino, version, |source| source.recognise_first(&mut |_| ControlFlow::Break(())))?;
                if found.is_some_and(|found| found.beyond) { Err(Fault::new(libc::EIO)) } else { Ok(false) }
            }
        }
    }

    /// What a file that names others says, if it is whole.
    ///
    /// # Errors
    /// `EIO` if it says more than is looked at.
    pub(super) fn named_in(
        &self,
        ino: Ino,
        look: impl FnOnce(&super::bytes::SegmentBytes) -> Recognised,
    ) -> Result<Option<Vec<(String, String)>>> {
        if self.is_being_written(ino) || self.is_interrupted(ino) {
            return Ok(None);
        }
        let Ok(version) = self.files.version(ino) else { return Ok(None) };
        match self.looked_into(ino, version, look)? {
            Some(found) if found.beyond => Err(Fault::new(libc::EIO)),
            found => Ok(found.filter(|found| found.reason.is_none()).map(|found| found.metadata)),
        }
    }
}

/// Whether something of a file is wrong. What an earlier version sealed may have bytes behind its frames that are none,
/// and not be called cut.
fn is_damaged(format: Format, bad_frames: u64, reason: Option<&str>) -> bool {
    bad_frames > 0 || (format == Format::TfRecord && reason.is_some())
}

/// Whether a file is all there, by what it was recognised as, and how many tensors it has.
fn end(format: Format, tensors: u64, is_missing: bool) -> End {
    match format {
        _ if is_missing => End::Missing,
        Format::Opaque => End::Opaque,
        Format::Hdf5 | Format::Protobuf => End::Untold,
        _ => End::There { tensors },
    }
}
