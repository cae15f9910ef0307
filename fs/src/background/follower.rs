//! The tree goes on to a newer one of its remote. A process beside says what is new
//! ([`tensorfs_layout::pool::Follow`]). Here it is made: new objects where no name leads to them, then names and
//! attributes in one transaction; and what has lost its last name by that is let go of.
//!
//! What a switch has made and not named is of no use once another one begins, and goes then; when the server dies, the
//! recovery finds that no name leads there.

use std::sync::Arc;

use parking_lot::Mutex;
use tensorfs_layout::log::{Record, Transaction};
use tensorfs_layout::pool::{Change, Follow, FollowReply, Whose, known_of, note_sum};
use tensorfs_layout::segment::Gone;
use tensorfs_layout::{Ino, ROOT, Timestamp};

use crate::caller::Caller;
use crate::error::{Fault, Result};
use crate::file::Files;
use crate::store::host;

use super::bringer::Bringer;

/// So many names of what was removed are taken away at a time.
const LOT: usize = 256;
/// So many bytes of names and attributes are kept in mind for a lot, and so many of a change that has not come whole.
const MOST: usize = 64 << 20;

/// Bytes of a reason at most.
const REASON: usize = 1000;

/// Goes over to newer trees.
pub(crate) struct Follower {
    files: Arc<Files>,
    bringer: Arc<Bringer>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How many switches have begun.
    begun: u64,
    switch: Option<Switch>,
}

/// What is known of a switch that has begun.
#[derive(Default)]
struct Switch {
    number: u64,
    /// The CRC32C of the note of which tree is here.
    note: u32,
    /// So many bytes of changes have come, and what of them is no whole change yet.
    come: u64,
    left: Vec<u8>,
    made: Vec<Ino>,
    /// Those of the next lot, and their bytes.
    changes: Vec<Change>,
    bytes: usize,
}

/// A name that leads elsewhere by now, or nowhere.
struct Lost {
    dir: Ino,
    name: Vec<u8>,
    ino: Ino,
}

impl Follower {
    /// For the files of a mount, whose bytes come by `bringer`.
    pub fn new(files: Arc<Files>, bringer: Arc<Bringer>) -> Self {
        Self { files, bringer, state: Mutex::default() }
    }

    /// Answers the process that knows the remote.
    pub fn answer(&self, caller: Caller, request: Follow) -> Result<FollowReply> {
        if !caller.is_trusted() {
            return Err(Fault::new(libc::EPERM));
        }
        let store = self.files.store();
        let refused = |why: &str| Ok(FollowReply::Refused(why.to_owned()));
        if !store.is_followed() {
            return refused("its server was not told to follow");
        }
        match request {
            Follow::Looked { pool, .. } | Follow::Begin { pool, .. }
                if pool != store.pool().superblock().uuid_text() =>
            {
                refused("another pool is mounted there")
            }
            Follow::Looked { here, why, .. } => {
                let shown = why.as_ref().map(|why| why.escape_debug().to_string());
                if store.following().looked(here, why) {
                    match shown {
                        Some(why) => log::warn!("not gone on behind batch {}: {why}", here.0),
                        None => log::info!("looked for what is behind batch {} again", here.0),
                    }
                }
                Ok(FollowReply::Noted)
            }
            Follow::Begin { note, .. } => self.begin(note),
            Follow::What { ino } if store.view().object(ino).is_some_and(|object| object.names() > 0) => {
                Ok(FollowReply::Noted)
            }
            Follow::What { ino } => {
                let known = store.view().object(ino).and_then(known_of);
                known.map_or_else(|| refused("there is no such file"), Ok)
            }
            Follow::Changes { switch, at, bytes } => {
                let mut state = self.state.lock();
                match state.switch.as_mut().filter(|known| (known.number, known.come) == (switch, at)) {
                    None => Ok(FollowReply::Unknown),
                    Some(known) => match self.add(known, &bytes) {
                        Ok(()) => Ok(FollowReply::Noted),
                        Err(why) => {
                            self.give_up(state.switch.take());
                            Ok(FollowReply::Refused(shortened(why.to_string())))
                        }
                    },
                }
            }
            Follow::Go { switch, note, last } => {
                let mut state = self.state.lock();
                match state.switch.as_mut().filter(|known| known.number == switch) {
                    None => Ok(FollowReply::Unknown),
                    Some(known) => {
                        let gone = self.go(known, &note, last);
                        if last || gone.is_err() {
                            self.give_up(state.switch.take());
                        }
                        Ok(gone.map_or_else(
                            |why| FollowReply::Refused(shortened(why.to_string())),
                            |()| FollowReply::Noted,
                        ))
                    }
                }
            }
        }
    }

    fn begin(&self, note: u32) -> Result<FollowReply> {
        let store = self.files.store();
        store.check_writable()?;
        let mut state = self.state.lock();
        self.give_up(state.switch.take());
        let is_it = store.edit(|edit| Ok(edit.followed_note().map(note_sum) == Some(note)))?;
        if !is_it {
            return Ok(FollowReply::Refused("another tree is here by now".into()));
        }
        state.begun += 1;
        state.switch = Some(Switch { number: state.begun, note, ..Switch::default() });
        Ok(FollowReply::Begun { switch: state.begun, room: store.pool().room_to_go() as u64 })
    }

    /// What was made and has no name is of no use any more. Directories come before what is in them.
    fn give_up(&self, switch: Option<Switch>) {
        let Some(switch) = switch else { return };
        let mut edit = self.files.store().pool().edit();
        switch.made.into_iter().for_each(|ino| edit.reap(ino));
    }

    /// More changes have come.
    fn add(&self, switch: &mut Switch, bytes: &[u8]) -> Result<()> {
        let invalid = |what: String| Fault::warn(libc::EINVAL, what);
        switch.come += bytes.len() as u64;
        switch.left.extend(bytes);
        let taken = |left: &mut Vec<u8>| Change::take(left).map_err(|what| invalid(what.into()));
        while let Some(change) = taken(&mut switch.left)? {
            match change {
                Change::Make(new) => {
                    let store = self.files.store();
                    let remote = store.view().remote().map(|(number, _)| number);
                    let tier = remote.ok_or_else(|| invalid("the pool follows no remote".into()))?;
                    let made = self.with_room(|| Ok(store.pool().make_unnamed(tier, &new)?))?;
                    switch.made.push(made);
                }
                Change::Within(dir, name, whose) => {
                    let find = |at: u32| switch.made.get(at as usize).copied();
                    let (Some(dir), Some(ino)) = (find(dir), find(whose)) else {
                        return Err(invalid("a name in what was not made".into()));
                    };
                    self.with_room(|| Ok(self.files.store().pool().name_within(dir, &name, ino)?))?;
                }
                change => {
                    switch.bytes += change.len() + size_of::<Change>();
                    switch.changes.push(change);
                }
            }
        }
        if switch.left.len() > 2 * MOST || switch.bytes > MOST {
            return Err(invalid("more changes than a lot can have".into()));
        }
        Ok(())
    }

    /// Does something for which room is made where there is none.
    fn with_room<T>(&self, mut change: impl FnMut() -> Result<T>) -> Result<T> {
        match change() {
            Err(fault) if fault.wants_space() && self.files.relieve() => change(),
            changed => changed,
        }
    }

    /// Has the changes of a lot become true, and then durable, and lets go of what has no name any more.
    fn go(&self, switch: &mut Switch, note: &[u8], last: bool) -> Result<()> {
        let store = self.files.store();
        let (changes, known) = (std::mem::take(&mut switch.changes), switch.note);
        switch.bytes = 0;
        let lost = self.files.edit(|edit| {
            let lost: Vec<Lost> = changes
                .iter()
                .filter_map(|change| {
                    let (dir, name) = match change {
                        Change::Name(Whose::There(dir), name, _) | Change::Unname(dir, name) => (*dir, name),
                        _ => return None,
                    };
                    Some(Lost { dir, name: name.clone(), ino: edit.lookup(dir, name)? })
                })
                .collect();
            match edit.go_over(known, (&changes, &switch.made), note)? {
                Ok(()) => Ok(lost),
                Err(why) => Err(Fault::warn(libc::EINVAL, why)),
            }
        })?;
        switch.note = note_sum(note);
        let committed = store.commit();
        store.following().came(last);
        self.bringer.look_anew();
        store.moved(lost.iter().map(|lost| lost.ino));
        for change in &changes {
            match change {
                Change::Look(ino, look) => self.give_times(*ino, look.atime, look.mtime),
                Change::Xattr(ino, ..) => store.forget_attributes(*ino),
                _ => {}
            }
        }
        for Lost { dir, name, ino } in lost {
            // It waits for whoever looks into that directory, and whoever asks here does not.
            if store.link().knows(ino) {
                store.following().leave_name(dir, name);
            }
            store.forget_attributes(dir);
            let_go(&self.files, ino);
        }
        store.bells().let_go().ring();
        committed
    }

    /// The segment of a file that was kept has the times of the file.
    fn give_times(&self, ino: Ino, atime: Timestamp, mtime: Timestamp) {
        let store = self.files.store();
        let segment = store.view().object(ino).and_then(|object| object.attributes.segment);
        if let Some(segment) =
            segment.filter(|segment| !matches!(store.segments().gone(*segment), Some(Gone::Away { .. })))
            && let Ok(segment) = store.segments().open(segment, libc::O_RDONLY | libc::O_NOATIME)
            && let Err(error) = host::set_times(&segment, Some(atime), Some(mtime))
        {
            log::debug!("inode {ino}: setting a segment's times: {error}");
        }
        store.forget_attributes(ino);
    }
}

/// Lets go of what has no name any more, and of all that lies below it. What somebody has open goes when he closes it,
/// and for what somebody else has locked nobody waits here.
fn let_go(files: &Files, top: Ino) {
    let store = files.store();
    let is_lost = |ino: Ino| ino != ROOT && store.view().object(ino).is_some_and(|object| object.names() == 0);
    let mut left = vec![top];
    while let Some(ino) = left.pop() {
        if !is_lost(ino) {
            continue;
        }
        loop {
            let names: Vec<(Box<[u8]>, Ino)> = {
                let view = store.view();
                view.entries_after(ino, 0).take(LOT).map(|(_, name, child)| (name.into(), child)).collect()
            };
            if names.is_empty() {
                break;
            }
            let unnamed = files.edit(|edit| {
                let removal = |(name, _): &(Box<[u8]>, Ino)| Record::Removal { dir: ino, name: name.clone() };
                let tx = names.iter().map(removal).fold(Transaction::new(0), Transaction::with);
                edit.store_from_reserve(tx)?;
                Ok(())
            });
            if let Err(fault) = unnamed {
                // The next recovery finds that no name leads there.
                log::log!(fault.level, "inode {ino}: letting go of what was in it: {fault}");
                return;
            }
            left.extend(names.into_iter().map(|(_, child)| child));
        }
        if let Some(held) = files.try_retire(ino) {
            store.following().leave_held(held);
            continue;
        }
        // What the kernel never knew it does not forget either.
        if store.view().object(ino).is_some_and(|object| object.names() == 0) && !store.link().knows(ino) {
            files.forgotten(ino);
        }
    }
}

/// Does what newer trees have left to be done: lets go of what somebody had locked, and then has the kernel forget
/// names, which waits for whoever looks into their directories.
pub(super) fn do_what_was_left(files: &Files) {
    let store = files.store();
    store.following().take_held().into_iter().for_each(|ino| let_go(files, ino));
    store.following().take_names().iter().for_each(|(dir, name)| store.link().forget_name(*dir, name));
}

fn shortened(mut why: String) -> String {
    while why.len() > REASON {
        why.pop();
    }
    why
}
