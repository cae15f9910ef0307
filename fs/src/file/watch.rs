//! Watching a file that something may write: from before the first byte can be written until none can be any more.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tensorfs_layout::log::{Record, Transaction};
use tensorfs_layout::tree::FileChain;
use tensorfs_layout::{Ino, SegmentId, TxId};

use crate::error::{Fault, Host, Result};
use crate::store::writers::Written;
use crate::store::{NewSegment, Store};

use super::Files;
use super::locked::Locked;
use super::state::Writing;

impl Files {
    /// Announces writes to a segment.
    fn begin_write(&self, segment: SegmentId) -> Result<Arc<OwnedFd>> {
        self.store().segments().begin_write(segment).host("opening a segment to sync it")
    }

    /// Announces writes to a new segment.
    pub(super) fn begin_first_write(&self, new: &NewSegment) -> Arc<OwnedFd> {
        self.store().segments().begin_first_write(new.segment, new.fd.clone())
    }

    /// Voids the seals of a file, before its segment can be written; and what the log holds of its bytes, if `unheard`:
    /// they can be changed, or made durable, without our hearing of it. Returns what has to be durable then.
    fn thaw(&self, ino: Ino, segment: SegmentId, unheard: bool) -> Result<Option<TxId>> {
        if !self.store().is_frozen(ino, unheard) {
            return Ok(None);
        }
        let thawed = self.edit(|edit| {
            let own = edit.object(ino).filter(|object| object.attributes.segment == Some(segment));
            let Some(object) = own else { return Ok(None) };
            let sealed = object.chain().is_some_and(|chain| chain.has_seals());
            if !(sealed || unheard && object.has_value()) {
                return Ok(None);
            }
            let len = object.size();
            let tx = Transaction::new(0).with(Record::Thaw { ino, segment, offset: 0, len });
            Ok(Some((sealed, edit.store_from_reserve(tx)?)))
        })?;
        if matches!(thawed, Some((true, _))) {
            self.store().counters().thawed.add(1);
            self.to_seal().thawed(ino);
        }
        Ok(thawed.map(|(_, tx)| tx))
    }
}

impl Store {
    /// True if a commit has to come before the file can be written; `unheard` if bytes could then be changed, or made
    /// durable, without our hearing of it.
    pub(super) fn is_frozen(&self, ino: Ino, unheard: bool) -> bool {
        let frozen = |chain: &FileChain| chain.has_seals() || (unheard && chain.has_value());
        self.view().object(ino).and_then(|object| object.chain()).is_some_and(frozen)
    }
}

impl Locked<'_> {
    /// Puts the file on the list of writers, before the first byte can be written. `unheard` if bytes can be changed,
    /// or made durable, without our hearing of it. The lock may have been let go of, and the file have got another
    /// segment meanwhile.
    pub(super) fn start_watching(&mut self, unheard: bool) -> Result<()> {
        let (files, ino) = (self.files, self.ino());
        self.make_room_to_sync()?;
        let (segment, unheard) = loop {
            let segment = self.segment().ok_or(Fault::new(libc::EIO))?;
            let watched = self.writing().is_some();
            if watched && !unheard {
                return Ok(());
            }
            // What a program has mapped or open since an earlier mount is not among our handles.
            let unheard = unheard || !files.store().segments().quiescent(segment);
            if !watched {
                self.node.begin_writing();
            }
            self.announce(files.thaw(ino, segment, unheard)?);
            if !self.commit_announced()? {
                break (segment, unheard);
            }
        };
        if let Some(writing) = self.serving_mut().and_then(|serving| serving.writing.as_mut()) {
            (writing.valued, writing.unheard) = (None, true);
            return Ok(());
        }
        let fd = files.begin_write(segment)?;
        self.watch(fd, unheard);
        Ok(())
    }

    /// Puts the file on the list of writers, with the descriptor that syncs its segment.
    pub(super) fn watch(&mut self, fd: Arc<OwnedFd>, unheard: bool) {
        self.node.begin_writing();
        let ino = self.ino();
        let Some(serving) = self.state.serving.as_mut() else { return };
        serving.writing = Some(Writing { fd: fd.clone(), valued: None, unheard });
        self.files.store().segments().belongs(serving.segment, ino);
        self.files.store().writers().insert(Written::new(ino, serving.segment, fd));
    }

    /// Takes the file off the list of writers.
    pub(super) fn stop_watching(&mut self) {
        if let Some(serving) = self.state.serving.as_mut()
            && serving.writing.take().is_some()
        {
            self.files.store().segments().end_write(serving.segment);
        }
        self.files.store().writers().remove(self.node.ino());
    }
}
