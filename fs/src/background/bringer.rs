//! Bringing files whose bytes are away. A process beside fetches them ([`tensorfs_layout::pool::Bring`]); here each
//! gets a new segment, and its place in the file once its bytes are those that the file was sealed with.
//!
//! A file that somebody reads meanwhile comes in portions: what he waits for, and then the rest. Each part of it can be
//! read as soon as it has come ([`Pieces`]). That is of this server alone: the next one begins with nothing.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use log::Level;
use parking_lot::{Condvar, Mutex};
use tensorfs_formats::Source;
use tensorfs_layout::log::PM;
use tensorfs_layout::medium::Direct;
use tensorfs_layout::pool::{Bring, BringReply};
use tensorfs_layout::segment::Gone;
use tensorfs_layout::tree::{FileChain, Object, Run};
use tensorfs_layout::{Ino, SegmentId};

use crate::caller::Caller;
use crate::error::{Fault, Host, Result};
use crate::file::{Files, Reading};
use crate::store::{Bytes, Pieces, host};
use crate::workers::Workers;

use super::checksums::{Checksum, bad_runs, checksums};
use super::mover::{Made, Switch, busy, give_copy, make_room, own_segment, wait_until_unused};
use super::portions::Portions;
use super::task::guarded;

/// So many files are on their way, and so many more that somebody waits for; and so many that come in portions.
const MOST: usize = 4;
const MOST_WAITED_FOR: usize = 4;
const MOST_IN_PORTIONS: usize = 32;
/// What has come of one that comes in portions is kept for so long while nobody wants more of it.
const KEPT: Duration = Duration::from_secs(60);
/// One that somebody has open goes for another one only after he has read nothing for so long.
const READS: Duration = Duration::from_secs(10);
/// A longer run is compared with its checksum when all of the file is here.
const LONGEST_RUN: u64 = 256 << 20;
/// So many files are remembered that were opened, and are to come as a whole.
const WISHES: usize = 4096;
/// The segment of one of which nothing more is heard: its bytes are compared, or it does not come.
const OVER: SegmentId = SegmentId(0);
/// Who fetches one is taken for dead when nothing was heard of him for so long.
const SILENCE: Duration = Duration::from_secs(30);
/// How often to look whether the file has changed meanwhile.
const LOOK: Duration = Duration::from_millis(100);
/// One that did not come is tried again after so long, unless somebody waits for it; and one of which the remote has
/// other bytes.
const LATER: Duration = Duration::from_secs(10);
const MUCH_LATER: Duration = Duration::from_secs(600);
/// RELEASE comes after `close` has returned: so long is waited for one that may be on its way.
const RELEASES: Duration = Duration::from_secs(1);
/// A file that has come does not leave by itself for so long; and of so many that is remembered.
const STAYS: Duration = Duration::from_secs(600);
const CAME: usize = 1 << 16;
/// Who fetches files asks for the next one more often; and says so often of one that takes long that it is on its way.
const ASKING: Duration = Duration::from_secs(3);
const SAYING: Duration = Duration::from_secs(12);

/// Brings files.
pub(crate) struct Bringer {
    files: Arc<Files>,
    threads: Workers,
    state: Mutex<State>,
    changed: Condvar,
    /// When somebody asked last for a file to fetch.
    asked: Mutex<Option<Instant>>,
    /// When files have come.
    came: Mutex<HashMap<Ino, Instant>>,
    /// Those that were opened, the last one first: what nobody waits for of them is to come, too.
    wishes: Mutex<VecDeque<Wish>>,
}

#[derive(Default)]
struct State {
    /// Those that were away when that was asked first, and are to be tried.
    queue: Option<VecDeque<Ino>>,
    later: Later,
    coming: HashMap<Ino, Coming>,
    /// That there is no room was said.
    said_full: bool,
    stopped: bool,
}

/// Those that did not come, by when they are tried again: each once, however often it was tried.
#[derive(Default)]
struct Later {
    by_time: BTreeSet<(Instant, Ino)>,
    times: HashMap<Ino, Instant>,
}

impl Later {
    /// When a file is tried again, if it is.
    fn set(&mut self, ino: Ino, when: Option<Instant>) {
        let before = match when {
            Some(when) => self.times.insert(ino, when),
            None => self.times.remove(&ino),
        };
        before.map(|before| self.by_time.remove(&(before, ino)));
        self.by_time.extend(when.map(|when| (when, ino)));
    }

    /// One whose time has come.
    fn take_due(&mut self, now: Instant) -> Option<Ino> {
        let (_, ino) = *self.by_time.first().filter(|(when, _)| *when <= now)?;
        self.set(ino, None);
        Some(ino)
    }
}

/// A file that is on its way.
#[derive(Default)]
struct Coming {
    /// Its place in the remote, and its bytes.
    from: SegmentId,
    size: u64,
    /// Where they go, once there is such a place.
    segment: Option<SegmentId>,
    /// When bytes of it came last.
    heard: Option<Instant>,
    said: Option<Said>,
    /// It is not fetched by one who fetches all of it.
    in_portions: bool,
    /// Whoever does has begun, so that others may fetch portions of it beside him.
    begun: bool,
    /// What comes of it, and has come, once there is a place for that.
    portions: Option<Portions>,
}

impl Coming {
    /// What whoever fetches a portion of it is told.
    fn reply(&self, ino: Ino, number: u64, (start, end): Bytes) -> Option<BringReply> {
        let (size, segment) = (self.size, self.segment?);
        Some(BringReply::Portion { ino, number, size, segment, offset: start, len: end - start })
    }
}

/// What is to be fetched of one.
#[derive(Clone, Copy)]
enum Which {
    /// What somebody waits for.
    Of(Bytes),
    /// All of it, which somebody waits for.
    All,
    /// What nobody waits for.
    Rest,
}

/// A file that is to come as it was opened.
#[derive(Clone, Copy)]
struct Wish {
    ino: Ino,
    /// It was not tried since.
    is_new: bool,
}

/// What is said of one.
enum Said {
    Come,
    Failed(String, bool),
    /// Nobody wants more of it now.
    Unwanted,
}

/// Why a file has not come.
enum Failed {
    /// It was opened, removed or emptied meanwhile.
    Disturbed,
    /// The next attempt may succeed.
    Once(String),
    ForGood(Fault),
}

impl Bringer {
    /// For the files of a mount.
    pub fn new(files: Arc<Files>) -> Self {
        let threads = Workers::new(MOST + MOST_WAITED_FOR + MOST_IN_PORTIONS);
        Self {
            files,
            threads,
            state: Mutex::default(),
            changed: Condvar::new(),
            asked: Mutex::default(),
            came: Mutex::default(),
            wishes: Mutex::default(),
        }
    }

    /// Answers the process that fetches files.
    pub fn answer(self: &Arc<Self>, caller: Caller, request: Bring) -> Result<BringReply> {
        if !caller.is_trusted() {
            return Err(Fault::new(libc::EPERM));
        }
        Ok(match request {
            Bring::Next { pool, .. } | Bring::Portion { pool, .. }
                if pool != self.files.store().pool().superblock().uuid_text() =>
            {
                BringReply::Nothing { away: 0 }
            }
            Bring::Next { waited_for, .. } => self.next(waited_for),
            Bring::Portion { waited_for, .. } => self.next_portion(waited_for),
            Bring::Takes { ino, segment, asked, takes } => {
                let range = |(offset, len): (u64, u64)| (offset, offset.saturating_add(len));
                self.hear_of_portion((ino, segment), |portions| portions.takes(range(asked), range(takes)))
            }
            Bring::Got { ino, segment, offset, len } => self.got((ino, segment), (offset, offset.saturating_add(len))),
            Bring::Lacks { ino, segment, bytes: (offset, len), why, for_good } => {
                self.lacks((ino, segment), (offset, offset.saturating_add(len)), (&why, for_good))
            }
            Bring::Over { ino, segment, asked: (offset, len) } => {
                let asked = (offset, offset.saturating_add(len));
                self.hear_of_portion((ino, segment), |portions| portions.over(asked))
            }
            Bring::Coming { ino, segment, bytes } => self.hear((ino, segment), None, bytes > 0),
            Bring::Come { ino, segment } => self.hear((ino, segment), Some(Said::Come), true),
            Bring::Failed { ino, segment, why, for_good } => {
                self.hear((ino, segment), Some(Said::Failed(why, for_good)), false)
            }
        })
    }

    /// The kernel is gone, and nobody fetches anything any more.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
        self.threads.finish();
    }

    /// Other files are away than were.
    pub fn look_anew(&self) {
        self.state.lock().queue = None;
    }

    /// The tier that stands for the remote, whether it is the pool's own, and how many files count as away at least:
    /// where none is, some may be later.
    fn remote(&self) -> Option<(u8, bool, u64)> {
        let store = self.files.store();
        let view = store.view();
        let (number, tier) = view.remote()?;
        let may_be_more = tier.is_own_remote() || tier.is_followed();
        Some((number, tier.is_own_remote(), may_be_more.into()))
    }

    /// A file that is away was opened: all of it is to come.
    pub fn wish(&self, ino: Ino) {
        let (wish, mut wishes) = (Wish { ino, is_new: true }, self.wishes.lock());
        match wishes.front_mut().filter(|first| first.ino == ino) {
            Some(first) => *first = wish,
            None => {
                wishes.retain(|other| other.ino != ino);
                wishes.truncate(WISHES - 1);
                wishes.push_front(wish);
            }
        }
    }

    /// Nobody needs all of a file any more, or it does not come.
    fn forget_wish(&self, ino: Ino) {
        self.wishes.lock().retain(|other| other.ino != ino);
    }

    /// The files that are to come as they were opened.
    fn wished(&self) -> Vec<Wish> {
        let awaited = self.files.store().awaited();
        let mut wishes = self.wishes.lock();
        if wishes.is_empty() {
            return Vec::new();
        }
        wishes.retain(|wish| awaited.is_away(wish.ino));
        wishes.iter().copied().collect()
    }

    /// One of them is tried: if it was opened since it was tried last, what did not come then, too.
    fn try_wish(&self, ino: Ino) {
        let mut wishes = self.wishes.lock();
        wishes.iter_mut().filter(|wish| wish.ino == ino).for_each(|wish| wish.is_new = false);
        drop(wishes);
        let mut state = self.state.lock();
        state.later.set(ino, None);
        if let Some(portions) = state.coming.get_mut(&ino).and_then(|coming| coming.portions.as_mut()) {
            portions.try_again();
        }
    }

    /// True if somebody fetches files.
    pub fn is_asked(&self) -> bool {
        let is_at_work = |coming: &Coming| coming.heard.is_some_and(|heard| heard.elapsed() < SAYING);
        self.asked.lock().is_some_and(|asked| asked.elapsed() < ASKING)
            || self.state.lock().coming.values().any(is_at_work)
    }

    fn has_come(&self, ino: Ino) {
        let mut came = self.came.lock();
        if came.len() >= CAME {
            came.retain(|_, when| when.elapsed() < STAYS);
        }
        // More than can be remembered are as those that were here all the time.
        if came.len() < CAME {
            came.insert(ino, Instant::now());
        }
    }

    /// True of a file that somebody wanted a moment ago.
    pub fn has_come_lately(&self, ino: Ino) -> bool {
        self.came.lock().get(&ino).is_some_and(|when| when.elapsed() < STAYS)
    }

    fn next(self: &Arc<Self>, waited_for: bool) -> BringReply {
        let store = self.files.store();
        *self.asked.lock() = Some(Instant::now());
        let Some((remote, is_own, least)) = self.remote() else { return BringReply::Nothing { away: 0 } };
        let nothing = || BringReply::Nothing { away: store.view().tier_totals(remote).files.max(least) };
        // What has left stays there until it is wanted.
        let Some(ino) = self.choose(waited_for || is_own, remote) else { return nothing() };
        let bringer = self.clone();
        self.threads.run(ino, move || bringer.bring(ino));
        let mut state = self.state.lock();
        while let Some(coming) = state.coming.get(&ino) {
            if let Some(segment) = coming.segment {
                // What has left is there as what it is here.
                let number = if is_own { ino.0 } else { coming.from.serial() };
                let size = coming.size;
                return BringReply::File { ino, number, size, segment };
            }
            self.changed.wait(&mut state);
        }
        nothing()
    }

    /// The next file, which is on its way from now on.
    fn choose(&self, waited_for: bool, remote: u8) -> Option<Ino> {
        let store = self.files.store();
        let wished = self.wished();
        let mut state = self.state.lock();
        let whole = state.coming.values().filter(|coming| !coming.in_portions).count();
        if state.stopped || whole >= MOST + if waited_for { MOST_WAITED_FOR } else { 0 } {
            return None;
        }
        let coming = &state.coming;
        let mut chosen = store.awaited().next(|ino| !coming.contains_key(&ino));
        let now = Instant::now();
        let is_due =
            |ino: &Ino| !coming.contains_key(ino) && state.later.times.get(ino).is_none_or(|when| *when <= now);
        chosen = chosen.or_else(|| wished.into_iter().map(|wish| wish.ino).find(is_due));
        if chosen.is_none() && !waited_for {
            let queue = state.queue.get_or_insert_with(|| {
                let view = store.view();
                let segment = |object: &Object| object.attributes.segment.filter(|segment| segment.tier() == remote);
                let away = view.objects().filter_map(|(ino, object)| Some((segment(object)?.serial(), ino)));
                let mut away: Vec<_> = away.collect();
                // As they were carried: small ones that follow each other are in one object.
                away.sort_unstable();
                away.into_iter().map(|(_, ino)| ino).collect()
            });
            let mut next = std::iter::from_fn(|| queue.pop_front()).find(|ino| store.awaited().is_away(*ino));
            if next.is_none() {
                next = state.later.take_due(Instant::now());
            }
            let is_wanted = |ino: &Ino| store.awaited().is_away(*ino) && !state.coming.contains_key(ino);
            chosen = next.filter(is_wanted);
        }
        state.coming.insert(chosen?, Coming::default());
        chosen
    }

    /// What is to be fetched next, by one who fetches portions: what somebody waits for, then the rest of what was
    /// opened, then files that nobody wants.
    fn next_portion(self: &Arc<Self>, waited_for: bool) -> BringReply {
        let store = self.files.store();
        *self.asked.lock() = Some(Instant::now());
        let Some((remote, is_own, least)) = self.remote() else { return BringReply::Nothing { away: 0 } };
        let nothing = || BringReply::Nothing { away: store.view().tier_totals(remote).files.max(least) };
        for (ino, bytes) in store.awaited().wanted() {
            if let Some(reply) = self.portion((ino, is_own), bytes.map_or(Which::All, Which::Of), true) {
                return reply;
            }
        }
        // Where somebody may come who does not wait for the rest, one fetches that.
        let resting = || -> usize {
            self.state.lock().coming.values().filter_map(|it| it.portions.as_ref()).map(Portions::resting).sum()
        };
        let wished = self.wished();
        if wished.is_empty() && (waited_for || is_own) || (waited_for && resting() > 0) {
            return nothing();
        }
        for Wish { ino, is_new } in wished {
            if is_new {
                self.try_wish(ino);
            }
            let is_due = self.state.lock().later.times.get(&ino).is_none_or(|when| *when <= Instant::now());
            if is_due && let Some(reply) = self.portion((ino, is_own), Which::Rest, true) {
                return reply;
            }
        }
        if waited_for || is_own {
            return nothing();
        }
        let begun: Vec<Ino> = {
            let state = self.state.lock();
            state.coming.iter().filter(|(_, coming)| coming.in_portions).map(|(ino, _)| *ino).collect()
        };
        for ino in begun {
            if let Some(reply) = self.portion((ino, is_own), Which::Rest, false) {
                return reply;
            }
        }
        self.next(false)
    }

    /// A portion of a file. The file is on its way from then on.
    fn portion(self: &Arc<Self>, (ino, is_own): (Ino, bool), which: Which, begins: bool) -> Option<BringReply> {
        // What has no name is read by who has it open, or by nobody.
        if begins && !self.files.store().awaited().is_away(ino) && !self.is_read(ino) {
            return None;
        }
        let mut state = self.state.lock();
        if begins && !state.coming.contains_key(&ino) && !state.stopped {
            if state.coming.values().filter(|coming| coming.in_portions).count() >= MOST_IN_PORTIONS {
                drop(state);
                // What nobody waits for has no other one go.
                if !matches!(which, Which::Rest) {
                    self.give_up_one();
                }
                return None;
            }
            state.coming.insert(ino, Coming { in_portions: true, ..Coming::default() });
            drop(state);
            let bringer = self.clone();
            self.threads.run(ino, move || bringer.bring(ino));
            state = self.state.lock();
            while state.coming.get(&ino).is_some_and(|coming| coming.segment.is_none()) {
                self.changed.wait(&mut state);
            }
        }
        let can_be =
            |coming: &&mut Coming| coming.said.is_none() && !coming.is_over() && (coming.in_portions || coming.begun);
        let coming = state.coming.get_mut(&ino).filter(can_be)?;
        let portions = coming.portions.as_mut()?;
        let portion = match which {
            Which::Of(bytes) => portions.wanted(bytes),
            Which::All if coming.in_portions => portions.all(),
            Which::Rest if coming.in_portions => portions.rest(),
            Which::All | Which::Rest => None,
        }?;
        coming.heard = Some(Instant::now());
        // What has left is there as what it is here.
        let number = if is_own { ino.0 } else { coming.from.serial() };
        coming.reply(ino, number, portion)
    }

    /// There are too many that come in portions: one goes that nobody wants just now. That is one of which nothing has
    /// come, or that nobody has open, or of which nobody has read for a while; of these the one that was used least
    /// lately. If there is none, whoever wants another one has his turn when one is here.
    fn give_up_one(&self) {
        let awaited = self.files.store().awaited();
        let in_portions = |(ino, coming): (&Ino, &Coming)| coming.in_portions.then_some(*ino);
        let all: Vec<Ino> = self.state.lock().coming.iter().filter_map(in_portions).collect();
        let read: HashSet<Ino> = all.into_iter().filter(|ino| self.is_read(*ino)).collect();
        let mut state = self.state.lock();
        let coming = state.coming.iter_mut().filter_map(|(ino, coming)| {
            let portions = coming.portions.as_ref()?;
            let (idle, has_nothing) = (portions.idle(), portions.has_nothing());
            let is_read = read.contains(ino);
            let can_go = coming.in_portions && coming.said.is_none() && !coming.is_over() && !idle.is_zero();
            let may_go = has_nothing || !is_read || idle >= READS;
            (can_go && may_go && !awaited.is_wanted(*ino)).then_some(((has_nothing, !is_read, idle), coming))
        });
        if let Some((_, coming)) = coming.max_by_key(|(order, _)| *order) {
            coming.said = Some(Said::Unwanted);
            self.changed.notify_all();
        }
    }

    /// Something was said of a portion.
    fn hear_of_portion(&self, (ino, segment): (Ino, SegmentId), what: impl FnOnce(&mut Portions)) -> BringReply {
        let mut state = self.state.lock();
        let coming = state.coming.get_mut(&ino).filter(|coming| coming.segment == Some(segment));
        let Some((coming, portions)) = coming.and_then(|coming| Some((&mut coming.heard, coming.portions.as_mut()?)))
        else {
            return BringReply::Unknown;
        };
        *coming = Some(Instant::now());
        what(portions);
        self.changed.notify_all();
        BringReply::Noted
    }

    /// Bytes of a file have come. They are given to who waits for them, unless they are not those that were sealed.
    fn got(&self, (ino, segment): (Ino, SegmentId), bytes: Bytes) -> BringReply {
        let awaited = self.files.store().awaited();
        if !self.is_read(ino) && self.state.lock().coming.get(&ino).is_some_and(|coming| !coming.in_portions) {
            // Whoever reads it later has it told again.
            return self.hear((ino, segment), None, true);
        }
        let Some(pieces) = awaited.pieces(ino).filter(|pieces| pieces.segment() == segment && bytes.1 <= pieces.size())
        else {
            return BringReply::Unknown;
        };
        if let Some(what) = self.unlike(ino, &pieces, bytes) {
            return self.lacks((ino, segment), bytes, (&what, true));
        }
        let heard = self.hear_of_portion((ino, segment), |portions| portions.got(bytes));
        if heard == BringReply::Noted {
            awaited.came(ino);
        }
        heard
    }

    /// True if somebody has a file open that is on its way.
    fn is_read(&self, ino: Ino) -> bool {
        let node = self.files.node_in_use(ino);
        node.is_some_and(|node| self.files.try_lock(&node).is_none_or(|file| file.is_away()))
    }

    /// Whether bytes that have come are not those that were sealed, as far as that can be told: of runs that are all
    /// there with them.
    fn unlike(&self, ino: Ino, pieces: &Pieces, bytes: Bytes) -> Option<String> {
        let mut here = pieces.here();
        here.add(bytes);
        let runs: Vec<Checksum> = {
            let view = self.files.store().view();
            let runs = view.object(ino).and_then(|object| object.chain()).map_or(&[][..], |chain| chain.runs());
            let first = runs.partition_point(|run| run.end() <= bytes.0);
            let touched = runs[first..].iter().take_while(|run| run.offset < bytes.1);
            let whole = touched.filter(|run| run.len <= LONGEST_RUN && here.cover((run.offset, run.end())));
            let of = |run: &Run| Some(Checksum { offset: run.offset, len: run.len, crc: run.seal()?.crc });
            whole.filter_map(of).collect()
        };
        let open = self.files.readings().open(self.files.store().pool(), pieces.segment());
        let bad = match open {
            Ok(open) => bad_runs(&Segment(&open, pieces.size()), &runs, &|| true),
            Err(error) => return Some(format!("its segment cannot be read: {error}")),
        };
        bad.first().map(|bad| format!("the bytes that came are not those that were sealed: {}", bad.what))
    }

    /// Bytes of a file do not come.
    fn lacks(&self, (ino, segment): (Ino, SegmentId), bytes: Bytes, (why, for_good): (&str, bool)) -> BringReply {
        let mut are_first = false;
        let heard = self.hear_of_portion((ino, segment), |portions| {
            are_first = portions.lacks(bytes, (why, for_good));
        });
        let awaited = self.files.store().awaited();
        if heard != BringReply::Noted {
            return heard;
        }
        awaited.put_last(ino);
        if for_good {
            let level = if are_first { Level::Warn } else { Level::Debug };
            log::log!(level, "{}: not brought: {}", self.called(ino), why.escape_debug());
            self.forget_wish(ino);
            awaited.lacks(ino, bytes, libc::EIO, why);
        } else {
            log::debug!("inode {ino}: not brought yet: {}", why.escape_debug());
            awaited.failed_once(ino, why);
        }
        heard
    }

    /// Something was said of a file that is on its way.
    fn hear(&self, (ino, segment): (Ino, SegmentId), said: Option<Said>, some_came: bool) -> BringReply {
        let mut state = self.state.lock();
        let coming = state.coming.get_mut(&ino).filter(|coming| coming.segment == Some(segment));
        let Some(coming) = coming.filter(|coming| coming.said.is_none()) else { return BringReply::Unknown };
        coming.heard = Some(Instant::now());
        (coming.said, coming.begun) = (said, true);
        self.changed.notify_all();
        drop(state);
        if some_came {
            self.files.store().awaited().came_some();
        }
        BringReply::Noted
    }

    /// Brings a file, and tells whoever waits for it.
    fn bring(&self, ino: Ino) {
        let store = self.files.store();
        let name = || format!("inode {ino}: bringing it");
        let brought = guarded(store.counters(), name, || self.bring_file(ino));
        let brought = brought.unwrap_or_else(|| Err(Failed::Once("the server panicked; its log says where".into())));
        store.awaited().set_pieces(ino, None);
        if brought.is_err() {
            // Before it can be chosen again.
            store.awaited().put_last(ino);
        }
        if matches!(&brought, Ok(()) | Err(Failed::ForGood(_))) {
            self.forget_wish(ino);
        }
        let mut state = self.state.lock();
        state.coming.remove(&ino);
        let stopped = state.stopped;
        let is_full = matches!(&brought, Err(Failed::ForGood(fault)) if fault.wants_space());
        let said_full = state.said_full;
        state.said_full = is_full || (said_full && brought.is_err());
        let wait = match &brought {
            Ok(()) => None,
            Err(Failed::Disturbed) => Some(Duration::ZERO),
            Err(Failed::Once(_)) => Some(LATER),
            Err(Failed::ForGood(fault)) if fault.wants_space() => Some(LATER),
            Err(Failed::ForGood(_)) => Some(MUCH_LATER),
        };
        state.later.set(ino, wait.map(|wait| Instant::now() + wait));
        self.changed.notify_all();
        drop(state);
        if brought.is_err() {
            // Emptied meanwhile, or removed: who waits for it by its name needs no bytes. Who has it open does.
            store.awaited().look_at(ino);
        }
        match brought {
            Ok(()) => {
                self.has_come(ino);
                store.counters().brought.add(1);
                store.awaited().come(ino);
            }
            Err(_) if stopped || !store.awaited().is_away_yet(ino) => {}
            Err(Failed::Disturbed) => {}
            Err(Failed::Once(why)) => {
                log::debug!("inode {ino}: not brought yet: {}", why.escape_debug());
                store.awaited().failed_once(ino, &why);
            }
            Err(Failed::ForGood(fault)) => {
                let level = if is_full && said_full { Level::Debug } else { Level::Warn };
                log::log!(level, "{}: not brought: {fault}", self.called(ino));
                store.awaited().fail(ino, fault.errno, &fault.to_string());
            }
        }
    }

    /// A file in print.
    fn called(&self, ino: Ino) -> String {
        let path = self.files.store().view().path_of(ino);
        path.map_or_else(|| format!("inode {ino}"), |path| String::from_utf8_lossy(&path).escape_debug().to_string())
    }

    fn bring_file(&self, ino: Ino) -> std::result::Result<(), Failed> {
        let (files, store) = (&*self.files, self.files.store());
        let by_fault = |fault: Fault| match fault.errno {
            libc::EBUSY | libc::ENOENT | libc::ESTALE => Failed::Disturbed,
            _ => Failed::ForGood(fault),
        };
        store.check_writable().map_err(by_fault)?;
        let node = files.node(ino);
        let mut file = files.lock(&node);
        if file.is_quiet() {
            return Err(Failed::Disturbed);
        }
        let from = wait_until_unused(files, &mut file, RELEASES).map_err(by_fault)?;
        let from = from.filter(|from| matches!(store.segments().gone(*from), Some(Gone::Away { .. })));
        let from = from.ok_or(Failed::Disturbed)?;
        let size = {
            let view = store.view();
            // Who has one open that was removed since reads it all the same.
            let object = view.object(ino).filter(|object| object.names() > 0 || file.is_away());
            let object = object.ok_or(Failed::Disturbed)?;
            if !object.chain().is_some_and(FileChain::is_sealed) {
                let what = "it is away and not all of it has checksums, so that nobody can know its bytes";
                return Err(Failed::ForGood(Fault::warn(libc::EIO, what)));
            }
            object.size()
        };
        let copy = files.another_segment(ino, PM, Some(from)).map_err(by_fault)?.segment;
        let once = Cell::new(None);
        let make = |undisturbed: &dyn Fn() -> bool| {
            let target = store.segments().open(copy, libc::O_RDWR).host("opening a segment")?;
            // Held until the bytes are there.
            let _room = make_room(files, ino, &target, size)?;
            store.pool().announce_copy(ino, copy)?;
            // Not before, as it would be taken for bytes that nobody knows.
            host::truncate(&target, size).host("making a segment")?;
            drop(target);
            let readable = store.segments().open(copy, libc::O_RDONLY | libc::O_NOATIME);
            let pieces = Arc::new(Pieces::new((copy, readable.host("opening a segment")?), size));
            store.awaited().set_pieces(ino, Some(pieces.clone()));
            match self.wait_for((ino, from, size), copy, pieces, undisturbed)? {
                Said::Come => {}
                Said::Unwanted => return Err(busy("nobody wants more of it now")),
                Said::Failed(why, true) => return Err(Fault::warn(libc::EIO, why.escape_debug().to_string())),
                Said::Failed(why, false) => {
                    once.set(Some(why));
                    return Err(busy("it did not come"));
                }
            }
            self.check(ino, copy, size, &|| undisturbed() && !self.state.lock().stopped)?;
            let target = store.segments().open(copy, libc::O_RDONLY).host("opening a segment")?;
            // As they are now: fetching it takes long, and nothing is disturbed by who gives it other times.
            let times = store.view().object(ino).map(|object| (object.attributes.atime, object.attributes.mtime));
            let (atime, mtime) = times.ok_or(busy("it was removed meanwhile"))?;
            host::set_times(&target, Some(atime), Some(mtime)).host("setting a segment's times")?;
            store.segments().sync_copy(copy, None).host("syncing a segment")?;
            Ok(Made { size, mtime })
        };
        let given = give_copy(files, file, &Switch { from, copy, whole: true, rests: false, make: &make });
        match (given, once.take()) {
            (Ok(()), _) => Ok(()),
            // That it is the file's may have been heard as an error all the same.
            (Err(_), _) if own_segment(store, ino) == Some(copy) => Ok(()),
            (Err(_), Some(why)) => Err(Failed::Once(why)),
            (Err(fault), None) => Err(by_fault(fault)),
        }
    }

    /// Tells whoever fetches a file where its bytes go, and waits until he has said what came of that.
    fn wait_for(
        &self,
        (ino, from, size): (Ino, SegmentId, u64),
        copy: SegmentId,
        pieces: Arc<Pieces>,
        undisturbed: &dyn Fn() -> bool,
    ) -> Result<Said> {
        let mut pieces = Some(pieces);
        let mut state = self.state.lock();
        loop {
            if state.stopped || !undisturbed() {
                return Err(busy("it was changed meanwhile"));
            }
            let Some(coming) = state.coming.get_mut(&ino) else { return Err(busy("nobody fetches it")) };
            if coming.segment.is_none() {
                (coming.from, coming.size) = (from, size);
                (coming.segment, coming.heard) = (Some(copy), Some(Instant::now()));
                coming.portions = pieces.take().map(Portions::new);
                self.changed.notify_all();
            } else if !coming.are_portions_fetched()
                && let Some(said) = coming.said.take().or_else(|| self.what_is_left(ino, coming))
            {
                // Whatever else he says of it is not heard.
                coming.segment = Some(OVER);
                return Ok(said);
            } else if !coming.in_portions && coming.is_silent() {
                coming.segment = Some(OVER);
                return Ok(Said::Failed("whoever fetches it is silent".into(), false));
            }
            self.changed.wait_for(&mut state, LOOK);
        }
    }

    /// What becomes of one of which nobody fetches a portion just now.
    fn what_is_left(&self, ino: Ino, coming: &Coming) -> Option<Said> {
        let portions = coming.portions.as_ref().filter(|portions| coming.in_portions && !portions.are_fetched())?;
        let store = self.files.store();
        let (is_named, is_away) = (store.awaited().is_away(ino), store.awaited().is_away_yet(ino));
        if !is_away {
            return Some(Said::Unwanted);
        }
        if portions.pieces().are_all() && is_named {
            return Some(Said::Come);
        }
        if let Some(why) = portions.why_nothing_came() {
            return Some(Said::Failed(why.to_owned(), false));
        }
        if portions.idle() < KEPT || store.awaited().is_wanted(ino) {
            return None;
        }
        if portions.are_stuck() {
            return Some(Said::Failed("some of it is not in its remote".into(), true));
        }
        let is_own = store.view().remote().is_some_and(|(_, tier)| tier.is_own_remote());
        let comes = is_named && (!is_own || self.wishes.lock().iter().any(|wish| wish.ino == ino));
        (!comes).then_some(Said::Unwanted)
    }

    /// True of one that comes in portions.
    fn comes_in_portions(&self, ino: Ino) -> bool {
        self.state.lock().coming.get(&ino).is_some_and(|coming| coming.in_portions)
    }

    /// Fails unless the bytes in a segment, which nobody can write any more, are those that the file was sealed with.
    fn check(&self, ino: Ino, copy: SegmentId, size: u64, undisturbed: &dyn Fn() -> bool) -> Result<()> {
        let store = self.files.store();
        // Who fetched a portion may be closing it just now, be it that he was taken for dead.
        let begun = Instant::now();
        let in_portions = self.comes_in_portions(ino);
        let patience = if in_portions { SILENCE } else { Duration::ZERO };
        while !store.segments().quiescent(copy) && begun.elapsed() < patience && undisturbed() {
            thread::sleep(LOOK);
        }
        let is_closed = store.segments().quiescent(copy);
        if !is_closed && in_portions {
            // A process that was stopped, say: that tells nothing of the bytes that others want.
            return Err(busy("whoever has fetched some of it has not closed it"));
        } else if !is_closed {
            return Err(Fault::warn(libc::EIO, "whoever has fetched it has not closed it"));
        }
        let found = store.segments().stat(copy).host("looking at a segment")?.size;
        let open = |flags| store.segments().open(copy, libc::O_RDONLY | libc::O_NOATIME | flags).map(File::from);
        // As they are on the disk, whatever was handed to it.
        let bytes = Direct::open(open).host("opening a segment")?;
        // Who waits for it waits for as long as that takes.
        store.awaited().came(ino);
        let go_on = || {
            store.awaited().came_some();
            undisturbed()
        };
        let bad = bad_runs(&bytes, &checksums(store, ino), &go_on);
        let what = match bad.first() {
            _ if !undisturbed() => return Err(busy("it was changed meanwhile")),
            _ if found != size => format!("{found} bytes came for a file of {size}"),
            Some(bad) => format!("the bytes that came are not those that were sealed: {}", bad.what),
            None => return Ok(()),
        };
        Err(Fault { level: Level::Warn, ..Fault::warn(libc::EIO, what) })
    }
}

impl Coming {
    /// True once nothing more is heard of it.
    fn is_over(&self) -> bool {
        self.segment == Some(OVER)
    }

    /// True if somebody fetches portions of it.
    fn are_portions_fetched(&mut self) -> bool {
        let Some(portions) = &mut self.portions else { return false };
        portions.forget_silent();
        portions.are_fetched()
    }

    /// True if nothing was heard of who fetches it for so long that he is taken for dead.
    fn is_silent(&self) -> bool {
        self.heard.is_none_or(|heard| heard.elapsed() > SILENCE)
    }
}

/// The bytes of a segment that is read to compare them with their checksums.
struct Segment<'a>(&'a Reading, u64);

impl Source for Segment<'_> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.1)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(host::read_at(self.0, buffer, offset)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves B17.
    #[test]
    fn one_that_fails_again_and_again_is_tried_later_once() {
        let (mut later, now) = (Later::default(), Instant::now());
        let at = |secs| now + Duration::from_secs(secs);
        for n in 0..1000 {
            later.set(Ino(7), Some(at(n)));
        }
        later.set(Ino(8), Some(at(5)));
        later.set(Ino(9), Some(at(6)));
        assert_eq!((later.by_time.len(), later.times.len()), (3, 3));
        assert_eq!(later.take_due(at(4)), None);
        // One that has come by another way.
        later.set(Ino(8), None);
        assert_eq!(later.take_due(at(998)), Some(Ino(9)));
        assert_eq!(later.take_due(at(998)), None);
        assert_eq!(later.take_due(at(999)), Some(Ino(7)));
        assert!(later.by_time.is_empty() && later.times.is_empty());
    }
}
