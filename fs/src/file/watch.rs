//! Watching a file that something may write: from before the first byte can be written until none can be any more.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tensorfs_layout::log::{Record, Shutdown, Transaction};
use tensorfs_layout::tree::FileChain;
use tensorfs_layout::{Ino, SegmentId, TxId};

use crate::error::{Fault, Host, Result};
use crate::store::writers::Written;
use crate::store::{NewSegment, Store};

use super::Files;
use super::locked::Locked;
use super::mode::Changer;
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

    /// Voids the seals of a file, before its segment can be written in a way that does not keep them; and what the log
    /// holds of its bytes, if `unheard`: they can be changed, or made durable, without our hearing of it. Returns what
    /// has to be durable then.
    pub(super) fn thaw(&self, ino: Ino, segment: SegmentId, frozen: Frozen) -> Result<Option<TxId>> {
        if !self.store().is_frozen(ino, frozen) {
            return Ok(None);
        }
        let thawed = self.edit(|edit| {
            let own = edit.object(ino).filter(|object| object.attributes.segment == Some(segment));
            let Some(object) = own else { return Ok(None) };
            let sealed = object.chain().is_some_and(|chain| chain.has_seals());
            if !(sealed || frozen.unheard && object.has_value()) {
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
    /// True if a commit has to come before the file can be written so.
    pub(super) fn is_frozen(&self, ino: Ino, how: Frozen) -> bool {
        // Those of a short file are voided: it is made durable by value then, and read again in no time.
        let short = self.pool().value_max() as u64;
        let frozen = |chain: &FileChain| {
            let sealed = chain.has_seals() && !(how.asks && chain.sealed_end() > short);
            sealed || (how.unheard && chain.has_value())
        };
        self.view().object(ino).and_then(|object| object.chain()).is_some_and(frozen)
    }

    /// True if it may be that the file cannot be written by this one before something is durable. Whether a program of
    /// an earlier mount can still write it, only the host knows; so what is sealed is taken to be thawed.
    pub(super) fn may_be_frozen(&self, ino: Ino, changer: Changer) -> bool {
        let outlived = self.pool().recovery().kind == Shutdown::ServerKilled;
        self.is_frozen(ino, Frozen { asks: false, unheard: outlived || changer.is_unheard() })
    }

    /// So many bytes of a file stay sealed while it is appended to.
    pub(super) fn sealed_end(&self, ino: Ino, segment: SegmentId) -> u64 {
        let view = self.view();
        let own = view.object(ino).filter(|object| object.attributes.segment == Some(segment));
        own.and_then(|object| object.chain()).map_or(0, FileChain::sealed_end)
    }
}

/// How a file is about to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frozen {
    /// Each change comes to the server first, which leaves what is sealed as it is, or voids the seals then.
    pub asks: bool,
    /// Bytes can be changed, or made durable, without our hearing of it.
    pub unheard: bool,
}

impl Locked<'_> {
    /// Puts the file on the list of writers, before the first byte can be written. The lock may have been let go of,
    /// and the file have got another segment meanwhile.
    pub(super) fn start_watching(&mut self, changer: Changer) -> Result<()> {
        let (files, ino) = (self.files, self.ino());
        let store = files.store();
        self.make_room_to_sync()?;
        let (segment, unheard, outlived) = loop {
            let segment = self.segment().ok_or(Fault::new(libc::EIO))?;
            let asks = changer.asks(store.has_passthrough_in(segment.tier()));
            let watched = self.writing().is_some();
            if watched && !changer.is_unheard() && (asks || self.node.sealed_end() == 0) {
                return Ok(());
            }
            // What a program has mapped or open since an earlier mount is not among our handles.
            let outlived = !watched && !store.segments().quiescent(segment);
            let unheard = changer.is_unheard() || outlived;
            if !watched {
                self.node.begin_writing();
            }
            let frozen = Frozen { asks: asks && !outlived, unheard };
            self.announce(files.thaw(ino, segment, frozen)?);
            if !self.commit_announced()? {
                break (segment, unheard, outlived);
            }
        };
        // It can be mapped, and any descriptor of it become one for direct writes.
        let may_collide = outlived || unheard && store.has_passthrough_in(segment.tier());
        let sealed_end = store.sealed_end(ino, segment);
        if sealed_end > 0 {
            store.pool().allow_growth()?;
        }
        self.node.set_sealed_end(sealed_end);
        if let Some(writing) = self.serving_mut().and_then(|serving| serving.writing.as_mut()) {
            if unheard {
                (writing.valued, writing.unheard) = (None, true);
            }
            if may_collide {
                store.segments().may_collide(segment);
            }
            return Ok(());
        }
        let fd = files.begin_write(segment)?;
        self.watch(fd, unheard);
        if may_collide {
            store.segments().may_collide(segment);
        }
        self.begin_session(outlived || changer == Changer::Outlived);
        Ok(())
    }

    /// Has the seals of a file void, durably, before bytes in front of this place change. The lock may have been let go
    /// of meanwhile.
    pub(super) fn thaw_before(&mut self, place: u64) -> Result<()> {
        while place < self.node.sealed_end() {
            let segment = self.segment().ok_or(Fault::new(libc::EIO))?;
            self.node.begin_writing();
            let thawed = self.files.thaw(self.ino(), segment, Frozen { asks: false, unheard: false })?;
            self.announce(thawed);
            if !self.commit_announced()? {
                self.node.set_sealed_end(0);
            }
        }
        Ok(())
    }

    /// Puts the file on the list of writers, with the descriptor that syncs its segment.
    pub(super) fn watch(&mut self, fd: Arc<OwnedFd>, unheard: bool) {
        self.node.begin_writing();
        let ino = self.ino();
        let Some(serving) = self.state.serving.as_mut() else { return };
        serving.writing = Some(Writing::new(fd.clone(), unheard));
        self.files.store().segments().belongs(serving.segment, ino);
        self.files.store().is_written(Written::new(ino, serving.segment, fd));
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};
    use tensorfs_layout::segment::{Before, examine};
    use tensorfs_layout::{ROOT, segment::SealedRun};

    use crate::lane::Lane;
    use crate::options::{Durability, Options};
    use crate::testing::Direct;

    use super::*;

    /// A descriptor of a killed mount is known to the host alone: opening to append finds it, and waits for a commit.
    #[test]
    fn whatever_may_thaw_what_is_sealed_is_done_by_a_worker() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        Pool::create(&path, &CreateOptions::default()).unwrap();
        let pool = Arc::new(Pool::open(&path, &OpenOptions::default()).unwrap());
        let bytes = vec![7; 1 << 20];
        let (ino, segment) = {
            let direct = Direct::new(pool.clone(), Durability::Fsync);
            let (ino, handle) = direct.create(ROOT, "f", 0o600).unwrap();
            let segment = direct.segment(handle).unwrap();
            let fd = pool.segments().open(segment, libc::O_WRONLY).unwrap();
            std::fs::File::from(fd).write_all_at(&bytes, 0).unwrap();
            direct.close(handle).unwrap();
            (ino, segment)
        };
        pool.commit(pool.newest()).unwrap();
        let files = Files::new(Arc::new(Store::new(pool.clone(), Options::default(), Durability::Fsync, 1024)));
        assert!(files.store().commits_slowly(), "nothing is waited for here");
        let append = libc::O_WRONLY | libc::O_APPEND;
        assert_eq!(files.open_lane(ino, append), Lane::Here, "it is not sealed yet");
        let source = &bytes[..];
        let runs: Vec<SealedRun> = examine(
            &source,
            bytes.len() as u64,
            pool.description_room(),
            &Before::default(),
            &|| true,
            &tensorfs_formats::recognise,
        )
        .unwrap()
        .unwrap();
        assert!(pool.seal(ino, segment, 1 << 20, runs).unwrap());
        pool.allow_growth().unwrap();
        for flags in [append, libc::O_WRONLY, libc::O_RDWR] {
            assert_eq!(files.open_lane(ino, flags), Lane::Worker, "{flags:#o}");
        }
        assert_eq!(files.open_lane(ino, libc::O_RDONLY), Lane::Here);
        assert_eq!(files.resize_lane(ino), Lane::Worker);
        pool.close().unwrap();
    }
}
