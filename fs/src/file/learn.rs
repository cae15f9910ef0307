//! Learning: recording what the segment of a file in use has become.

use tensorfs_layout::log::{Attributes, Origin, Record, Transaction};
use tensorfs_layout::tree::{FileChain, Object};

use crate::clock;
use crate::error::{Host, Result};
use crate::store::host::{self, HostStat};

use super::locked::Locked;
use super::look::Made;
use super::stat::change_time;
use super::state::Seen;

/// What to do about a pending replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// The new content stands from now on. The version before may have to be set aside first, with the inode's lock let
    /// go of.
    Store,
    /// As [`Switch::Store`], but the lock is kept: what is to be set aside has been.
    StoreHere,
    /// The new content stands, and that is the last word: what is recorded may use space that is otherwise kept for
    /// deletion.
    Last,
    /// Only if it has been pending too long.
    Leave,
    /// As [`Switch::Leave`], by who commits in the background, and does nothing else: where there is no room for what
    /// is to be recorded, it is for others to make some.
    Background,
}

/// What learning found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Learned {
    /// The segment may differ from what was last synced.
    pub changed: bool,
    /// It does not: it was synced just before, or its bytes are recorded by value.
    pub durable: bool,
}

impl Locked<'_> {
    /// Brings the records of a file that is not being replaced up to date with its segment, whose bytes may just have
    /// been made durable. Says nothing else about durability.
    pub(super) fn learn_own(&mut self, unique: u64, switch: Switch, made: Option<Made>) -> Result<Learned> {
        match self.learn_seen(unique, switch, made, false)? {
            Some(learned) => Ok(learned),
            // A commit has recorded since how far the file had grown; that is not taken back.
            None => Ok(self.learn_seen(unique, switch, None, true)?.unwrap_or_default()),
        }
    }

    /// `None` if the file is recorded to be longer than it was seen to be, unless that is to be recorded `anyhow`.
    fn learn_seen(&mut self, unique: u64, switch: Switch, made: Option<Made>, anyhow: bool) -> Result<Option<Learned>> {
        let (files, ino) = (self.files, self.ino());
        let store = files.store();
        let Some((serving, writing)) = self.serving().and_then(|serving| Some((serving, serving.writing.as_ref()?)))
        else {
            return Ok(Some(Learned::default()));
        };
        let (segment, seen) = (serving.segment, serving.seen);
        let at = clock::now();
        let host = self.look()?;
        let made = made.and_then(|made| made.if_covers(segment, &host));
        let (has_value, needed) = {
            let view = store.view();
            let chain = view.object(ino).and_then(Object::chain);
            (chain.is_some_and(FileChain::has_value), chain.is_some_and(|chain| chain.value().is_some()))
        };
        // Of one that was settled meanwhile the log may have nothing any more.
        let valued = writing.valued.clone().filter(|_| needed);
        let value = made.as_ref().and_then(Made::value);
        // These bytes are in the log already.
        let stored = match (value, &valued) {
            (Some(value), Some(valued)) => value == valued,
            (None, Some(valued)) if made.is_none() => self.holds(&host, valued),
            _ => false,
        } && store.segments().hold_value(segment);
        // A value that was read while a write was under way may lack bytes that are there now, though nothing shows it.
        let as_recorded = stored || (value.is_none() && !has_value);
        if as_recorded && seen.is_some_and(|seen| seen.still(&host)) {
            return Ok(Some(Learned { changed: false, durable: made.is_some() }));
        }
        let durable = made.is_some() || stored;
        if !durable {
            store.segments().touch(segment).host("opening a segment to sync it")?;
        }
        let mut grown = false;
        let recorded = files.edit_for(switch, |edit| {
            // Of what has no name nothing is recorded, but that it was cut: that is done again unless it is confirmed.
            let is_wanted = |object: &&Object| object.names() > 0 || object.is_cut_unconfirmed();
            let Some(object) = edit.object(ino).filter(is_wanted) else { return Ok(Some(false)) };
            let longer = host.size < object.size() && !object.is_cut_unconfirmed();
            if longer && object.attributes.segment == Some(segment) && !anyhow {
                return Ok(None);
            }
            grown = host.size > object.size();
            let cut = object.is_cut_unconfirmed();
            let (mut tx, origin) = (Transaction::new(unique), Origin::at(at));
            if durable {
                tx.bytes_are_durable(segment);
            }
            let allocated = host.allocated;
            let changed = host.size != object.size() || allocated != object.allocated() || object.is_cut_unconfirmed();
            match &value {
                Some(bytes) if !stored => {
                    let offset = store.memory().next_record(edit, object, host.size);
                    tx.push(Record::Data { ino, segment, offset, len: host.size - offset, allocated, origin });
                    tx.push(Record::Value { ino, segment, bytes: bytes[..].into() });
                }
                // What the log holds goes on to count.
                _ if stored => {}
                // A value that is there is not the last word any more.
                _ if changed || object.has_value() => {
                    let offset = store.memory().next_record(edit, object, host.size);
                    tx.push(Record::Data { ino, segment, offset, len: host.size - offset, allocated, origin });
                }
                _ => {}
            }
            let attributes = self.observed(&object.attributes, &host);
            if attributes != object.attributes {
                tx.push(Record::Attributes { ino, attributes });
            }
            if !tx.is_empty() {
                // What confirms a cut takes its place.
                if switch == Switch::Last || (cut && value.is_none()) {
                    edit.store_from_reserve(tx)
                } else {
                    edit.store(tx)
                }?;
                store.counters().learned.add(1);
            }
            Ok(Some(true))
        })?;
        let Some(named) = recorded else { return Ok(None) };
        let value = value.filter(|_| named).cloned();
        if grown && self.writing().is_some_and(|writing| !writing.frameless) {
            files.to_seal().add_open(ino, store.pool().newest());
        }
        let Some(serving) = self.serving_mut() else { return Ok(Some(Learned::default())) };
        if let (false, Some(writing)) = (stored, &mut serving.writing) {
            writing.valued = value;
        }
        serving.seen = Some(Seen::of(&host, at));
        Ok(Some(Learned { changed: !stored, durable }))
    }

    /// True if the segment of an open file holds just these bytes.
    fn holds(&self, host: &HostStat, bytes: &[u8]) -> bool {
        let Some(writing) = self.writing().filter(|_| host.size == bytes.len() as u64) else { return false };
        let mut found = vec![0; bytes.len()];
        host::read_at(&writing.fd, &mut found, 0).is_ok_and(|count| count == bytes.len()) && found == bytes
    }

    /// The file's attributes with what its segment says of times.
    pub(super) fn observed(&self, recorded: &Attributes, host: &HostStat) -> Attributes {
        let atime = if self.files.store().options().noatime { recorded.atime } else { host.atime };
        let seen = self.serving().and_then(|serving| serving.seen);
        Attributes { atime, mtime: host.mtime, ctime: change_time(recorded, host, seen), ..recorded.clone() }
    }
}
