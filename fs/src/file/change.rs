//! Changing the size and the times of a file.

use tensorfs_layout::log::{Origin, Record, Transaction};
use tensorfs_layout::{Ino, Timestamp};

use crate::caller::Caller;
use crate::clock;
use crate::error::{Fault, Host, Result};
use crate::lane::Lane;
use crate::store::host::{self, HostStat};

use super::Files;
use super::learn::Switch;
use super::locked::Locked;
use super::mode::Changer;
use super::state::Seen;

/// What a change of a file's size means.
#[derive(Clone, Copy)]
pub(super) enum Cut {
    /// The file goes on with what is left of it.
    Size,
    /// An open has emptied it: it is another one from then on, as one that is replaced is.
    Anew(Timestamp),
}

impl Locked<'_> {
    /// Sets the size of a file, which need not be open.
    pub fn resize(&mut self, caller: Caller, size: u64) -> Result<()> {
        if size == 0 {
            self.start_anew_if_gone(caller)?;
        }
        self.attach(caller)?;
        if size > 0 {
            self.check_whole()?;
        }
        self.files.drop_privileges(caller, self.ino())?;
        self.truncate(caller, size, Cut::Size)
    }

    /// Sets times on a file's segment. There they are looked up while the file is in use, and there recovery sees, if
    /// the server is killed, whether the file was written since they were recorded. Returns the segment's change time.
    pub fn set_times(&mut self, atime: Option<Timestamp>, mtime: Option<Timestamp>) -> Result<Timestamp> {
        let store = self.files.store();
        let recorded = || store.view().object(self.ino()).and_then(|object| object.attributes.segment);
        let Some(segment) = self.segment().or_else(recorded) else { return Ok(clock::now()) };
        if store.segments().gone(segment).is_some() {
            return Ok(clock::now());
        }
        // What was written before must not be hidden by the times that are set now.
        self.learn(0, Switch::Leave)?;
        let fd = store.segments().open(segment, libc::O_RDONLY).host("opening a segment")?;
        host::set_times(&fd, atime, mtime).host("setting a segment's times")?;
        let ctime = host::stat(&fd).host("looking at a segment")?.ctime;
        if let Some(serving) = self.serving_mut() {
            serving.seen = None;
        }
        Ok(ctime)
    }

    /// Sets a file's size in place.
    pub(super) fn truncate(&mut self, caller: Caller, size: u64, cut: Cut) -> Result<()> {
        let (files, ino) = (self.files, self.ino());
        let (store, mut may_wait) = (files.store(), true);
        // What a mapping could then fill without asking has to have room.
        let grows = |from: u64| if store.keeps_room_for_holes(ino) { size.saturating_sub(from) } else { 0 };
        let open = |segment| store.segments().open(segment, libc::O_RDWR).host("opening a segment");
        let host = loop {
            self.start_watching(Changer::Server)?;
            self.thaw_before(size)?;
            let host = self.look()?;
            if self.commit_announced()? {
                continue;
            }
            let grows = grows(host.size);
            if grows == 0 || !std::mem::take(&mut may_wait) {
                break host;
            }
            let fd = open(self.segment().ok_or(Fault::new(libc::EIO))?)?;
            let fits = files.admit_at_once(ino, &fd, host.size, grows)?.fits() == grows;
            if fits || !self.unlocked_in_use(|| files.let_go_for_space()) {
                break host;
            }
        };
        let replacing = self.serving_mut().and_then(|serving| serving.replacing.as_mut());
        match (replacing, cut) {
            (None, _) if size < host.size => self.record_cut(caller, size, &host, cut)?,
            (Some(replace), Cut::Anew(at)) => replace.emptied = at,
            _ => {}
        }
        let segment = self.segment().ok_or(Fault::new(libc::EIO))?;
        let done = open(segment).and_then(|fd| {
            let grows = grows(host.size);
            let admitted = files.admit_at_once(ino, &fd, host.size, grows)?;
            if admitted.fits() < grows {
                return Err(Fault::new(libc::ENOSPC));
            }
            let done = host::truncate(&fd, size).host("truncating a segment");
            admitted.done();
            done
        });
        self.changed_by_us(done.is_ok());
        if size < host.size && done.is_ok() {
            store.writers().cut(self.ino());
        }
        if size == 0 && done.is_ok() {
            self.forget_interrupted();
        }
        let learned = self.learn(caller.unique, Switch::Leave);
        if learned.is_err() && done.is_ok() {
            self.confirm_cut(caller, size)?;
        }
        done.and(learned.map(|_| ()))
    }

    /// Bytes that are recorded are cut in the records first: so a killed server's successor does not take them for
    /// lost, and whatever is recorded and made durable later comes with the cut. With it is recorded when they were
    /// written last: so recovery knows what was written since, and does not cut that.
    fn record_cut(&self, caller: Caller, size: u64, host: &HostStat, cut: Cut) -> Result<()> {
        let (ino, mut has_name) = (self.ino(), true);
        let recorded = self.files.edit(|edit| {
            // Also of a file that has no name any more: the next server may take it over.
            let Some(object) = edit.object(ino) else { return Ok(()) };
            has_name = object.names() > 0;
            let mut tx = Transaction::new(caller.unique);
            let mut attributes = object.attributes.clone();
            if let Some(segment) = attributes.segment.filter(|_| object.size() > size) {
                let offset = object.tail().0.min(size);
                let (len, allocated, cut_from) = (size - offset, host.allocated, host.size);
                tx.push(Record::Truncation { ino, segment, offset, len, allocated, cut_from });
                attributes = self.observed(&attributes, host);
            }
            if let Cut::Anew(at) = cut {
                attributes.btime = at;
            }
            if attributes != object.attributes {
                tx.push(Record::Attributes { ino, attributes });
            }
            if !tx.is_empty() {
                edit.store_from_reserve(tx)?;
            }
            Ok(())
        });
        match recorded {
            // In a full log it is cut all the same: only a next server would want to know.
            Err(fault) if fault.wants_space() && !has_name => Ok(()),
            recorded => recorded,
        }
    }

    /// The segment was cut, though nothing can be learned of it now: that it was is known all the same.
    fn confirm_cut(&self, caller: Caller, size: u64) -> Result<()> {
        let ino = self.ino();
        self.files.edit(|edit| {
            let Some(object) = edit.object(ino).filter(|object| object.is_cut_unconfirmed() && object.size() == size)
            else {
                return Ok(());
            };
            let Some(segment) = object.attributes.segment else { return Ok(()) };
            let (offset, allocated, origin) = (object.tail().0.min(size), object.allocated(), Origin::at(clock::now()));
            let record = Record::Data { ino, segment, offset, len: size - offset, allocated, origin };
            edit.store_from_reserve(Transaction::new(caller.unique).with(record))?;
            Ok(())
        })
    }

    /// The server has tried to change the segment itself: whether it was done or not, the records shall say what is
    /// there now.
    pub(super) fn changed_by_us(&mut self, done: bool) {
        self.files.store().changed(self.ino());
        if let Some(serving) = self.serving_mut() {
            serving.seen = done.then_some(Seen::CHANGED);
        }
    }
}

impl Files {
    /// Where [`Locked::resize`] is done: the seals of a file are voided by a commit.
    pub fn resize_lane(&self, ino: Ino) -> Lane {
        let store = self.store();
        Lane::waiting(store.commits_slowly() && store.may_be_frozen(ino, Changer::Server))
    }
}
