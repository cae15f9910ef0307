//! Giving a file that is about to be used its segment.

use std::io::ErrorKind;

use log::Level;
use tensorfs_layout::log::{Attributes, Record, Shutdown, Transaction};
use tensorfs_layout::segment::Gone;
use tensorfs_layout::tree::Object;
use tensorfs_layout::{Ino, SegmentId};

use crate::caller::Caller;
use crate::clock;
use crate::error::{Fault, Host, Result};
use crate::store::{BadRun, Store, host};

use super::Files;
use super::locked::Locked;
use super::mode::Changer;
use super::state::{Route, Seen, Serving};

impl Locked<'_> {
    /// Watches a file that a program of an earlier mount can write.
    fn watch_outlived(&mut self, segment: SegmentId) -> Result<()> {
        // A server that died may have left its handles of it to this one.
        let serving = self.state.serving.get_or_insert_with(|| Serving::new(segment));
        (serving.mappable, serving.seen) = (true, None);
        serving.mappers.note(0);
        let watched = self.start_watching(Changer::Outlived);
        // What they opened while there was no limit, they write without asking.
        self.files.store().map_for_good(self.ino());
        self.files.store().asks_of_writes(self.ino());
        watched
    }

    /// Watches a file at rest that has grown since it was recorded, and says whether it has. A server that was killed
    /// had given it to a program, for which the kernel opened it only when recovery had looked.
    pub fn watch_if_grown(&mut self) -> bool {
        let store = self.files.store();
        if self.segment().is_some() || store.pool().recovery().kind != Shutdown::ServerKilled {
            return false;
        }
        let recorded =
            store.view().object(self.ino()).and_then(|object| Some((object.attributes.segment?, object.size())));
        let Some((segment, size)) = recorded else { return false };
        if !store.segments().stat(segment).is_ok_and(|host| host.size > size) {
            return false;
        }
        let watched = self.watch_outlived(segment);
        self.settle(0);
        watched.is_ok()
    }

    /// Gives a file that is about to be used its segment, with the times that are recorded.
    pub(super) fn attach(&mut self, caller: Caller) -> Result<SegmentId> {
        let ino = self.ino();
        if self.is_away() {
            // Who reads it goes on with what comes; nobody else does.
            self.files.store().check_gone(ino)?;
            return Err(Fault::stale());
        }
        if let Some(segment) = self.segment() {
            return Ok(segment);
        }
        let attributes = self.files.store().regular(ino)?;
        self.files.store().check_gone(ino)?;
        let segment = match attributes.segment {
            Some(segment) => segment,
            None => self.files.first_segment(caller, ino)?,
        };
        // Whoever holds it by path can open it without a name, and then it counts.
        self.files.store().is_opened_again(ino);
        self.state.serving = Some(Serving::new(segment));
        if let Err(fault) = self.align(&attributes) {
            self.state.serving = None;
            self.note_if_missing(segment);
            return Err(fault);
        }
        Ok(segment)
    }

    /// As [`Locked::attach`], for who only reads: if the file's bytes are away, he reads what comes of it.
    pub(super) fn attach_to_read(&mut self, caller: Caller) -> Result<SegmentId> {
        if let Some(segment) = self.segment() {
            return Ok(segment);
        }
        let store = self.files.store();
        let segment = match store.regular(self.ino())?.segment {
            Some(segment) if store.awaited().is_away(self.ino()) => segment,
            _ => return self.attach(caller),
        };
        self.state.serving = Some(Serving { away: true, ..Serving::new(segment) });
        Ok(segment)
    }

    /// What the pool records as the file's segment is that, and is there. Whoever reads it goes on with that; if nobody
    /// does, it comes to rest.
    pub fn go_on_with_own(&mut self) {
        let (store, ino) = (self.files.store(), self.ino());
        let own = store.view().object(ino).and_then(|object| object.attributes.segment);
        let Some(segment) = own.filter(|_| self.is_away() && (self.is_open() || self.is_opening())) else {
            return self.come_to_rest();
        };
        let route = if self.is_open() { Route::Server } else { Route::Closed { ready: None } };
        self.state.serving = Some(Serving { route, ..Serving::new(segment) });
        let seen = self.look().map(|host| Seen::of(&host, clock::now())).ok();
        self.state.serving.iter_mut().for_each(|serving| serving.seen = seen);
    }

    /// Gives a file that a server that died had open its segment, whose times count already.
    pub(super) fn attach_as_it_is(&mut self) -> Result<SegmentId> {
        if let Some(segment) = self.segment() {
            return Ok(segment);
        }
        let segment = self.files.store().regular(self.ino())?.segment.ok_or(Fault::stale())?;
        let away = matches!(self.files.store().segments().gone(segment), Some(Gone::Away { .. }));
        self.state.serving = Some(Serving { away, ..Serving::new(segment) });
        let seen = self.look().map(|host| Seen::of(&host, clock::now())).ok();
        self.state.serving.iter_mut().for_each(|serving| serving.seen = seen);
        Ok(segment)
    }

    /// Times set while the file was closed are in the records alone; from now on the segment's count. On a host that
    /// takes no changes the file can be used all the same, and shows the times of its segment.
    fn align(&mut self, recorded: &Attributes) -> Result<()> {
        let mut host = self.look()?;
        let Some(serving) = self.state.serving.as_mut() else { return Ok(()) };
        if host.mtime != recorded.mtime || host.atime != recorded.atime {
            let segments = self.files.store().segments();
            let fd = segments.open(serving.segment, libc::O_RDONLY).host("opening a segment")?;
            match host::set_times(&fd, Some(recorded.atime), Some(recorded.mtime)) {
                Ok(()) => host = host::stat(&fd).host("looking at a segment")?,
                Err(error) => log::debug!("{}: its times cannot be set: {error}", serving.segment),
            }
        }
        serving.seen = Some(Seen::of(&host, clock::now()));
        Ok(())
    }

    /// `EIO` for a file of which the host has fewer bytes than were recorded when it came to rest: nobody shall take
    /// the end of its segment for its own. It is known as damaged from then on.
    pub(super) fn check_whole(&self) -> Result<()> {
        let (store, ino) = (self.files.store(), self.ino());
        if self.is_replacing() {
            return Ok(());
        }
        let size = self.look()?.size;
        let recorded = {
            let view = store.view();
            view.object(ino).filter(|object| !object.is_cut_unconfirmed()).map_or(0, Object::size)
        };
        if size >= recorded {
            return Ok(());
        }
        let what = format!("the host has {size} bytes of a file of {recorded}");
        if !store.is_known_damaged(ino) {
            let missing = BadRun::new(size, recorded - size, what.clone());
            store.settle_damage(ino, &&[][..], &[missing]);
        }
        Err(Fault { level: Level::Info, ..Fault::warn(libc::EIO, format!("inode {ino}: {what}")) })
    }

    /// A file whose segment the host has no more is known as damaged from then on.
    fn note_if_missing(&self, segment: SegmentId) {
        let (store, ino) = (self.files.store(), self.ino());
        let is_missing = store.segments().stat(segment).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if is_missing && !store.is_known_damaged(ino) {
            let size = store.view().object(ino).map_or(0, Object::size);
            let missing = BadRun::new(0, size, "its segment is not there any more".to_owned());
            store.settle_damage(ino, &&[][..], &[missing]);
        }
    }

    /// If the bytes of a file that is to be emptied cannot be had, it is a new file from now on.
    pub(super) fn start_anew_if_gone(&mut self, caller: Caller) -> Result<()> {
        let gone = self.files.store().gone(self.ino());
        // What was left for the next mount is not given up before that has looked at it.
        let is_left = matches!(gone, Some(Gone::Left { .. }));
        if (self.segment().is_none() || self.is_away()) && gone.is_some() && !is_left {
            self.files.start_anew(caller, self.ino())?;
            if self.is_away() {
                self.go_on_with_own();
            }
        }
        Ok(())
    }
}

impl Store {
    /// What was removed is open again, and counts. Nothing was recorded of what was written last.
    fn is_opened_again(&self, ino: Ino) {
        if let Some(held) = self.removed().take(ino)
            && let Some(object) = self.view().object(ino)
        {
            self.removed().note_left(ino, object, held);
        }
    }

    fn regular(&self, ino: Ino) -> Result<Attributes> {
        let view = self.view();
        let object = view.object(ino).ok_or(Fault::stale())?;
        match object.kind() {
            libc::S_IFREG => Ok(object.attributes.clone()),
            libc::S_IFDIR => Err(Fault::new(libc::EISDIR)),
            _ => Err(Fault::new(libc::EINVAL)),
        }
    }
}

impl Files {
    /// A file made by mknod gets its segment when it is first opened.
    fn first_segment(&self, caller: Caller, ino: Ino) -> Result<SegmentId> {
        self.store().check_writable()?;
        let segment = self.another_segment(ino, self.store().place_again(ino), None)?.segment;
        // Also for who only wants to read: a full pool can be read.
        let stored = self.edit(|edit| {
            let object = edit.object(ino).ok_or(Fault::stale())?;
            let attributes = Attributes { segment: Some(segment), ..object.attributes.clone() };
            edit.store_from_reserve(Transaction::new(caller.unique).with(Record::Attributes { ino, attributes }))?;
            Ok(())
        });
        if let Err(fault) = stored {
            self.store().pool().discard_segment(segment);
            return Err(fault);
        }
        Ok(segment)
    }

    /// A file whose bytes cannot be had is emptied: it is a new one from now on.
    fn start_anew(&self, caller: Caller, ino: Ino) -> Result<()> {
        let old = self.store().view().object(ino).and_then(|object| object.attributes.segment);
        let segment = self.another_segment(ino, self.store().place_again(ino), old)?.segment;
        let now = clock::now();
        let stored = self.edit(|edit| {
            let object = edit.object(ino).ok_or(Fault::stale())?;
            let segment = Some(segment);
            let attributes =
                Attributes { segment, damaged: false, mtime: now, ctime: now, ..object.attributes.clone() };
            edit.store(Transaction::new(caller.unique).with(Record::Attributes { ino, attributes }))?;
            Ok(())
        });
        if stored.is_err() {
            self.store().pool().discard_segment(segment);
        }
        stored
    }

    /// Watches the files that programs of a killed server can still write. What recovery learned of them may be old by
    /// now: the times of their segments count, and nothing is known to have been seen. False if one cannot be watched.
    pub fn adopt(&self) -> bool {
        let mut all = true;
        for open in &self.store().pool().recovery().open_segments {
            let node = self.node(open.ino);
            let mut file = self.lock(&node);
            if let Err(fault) = file.watch_outlived(open.segment) {
                log::warn!("inode {}: cannot be watched: {}", open.ino, fault);
                file.settle(0);
                all = false;
            }
        }
        all
    }
}
