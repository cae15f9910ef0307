//! Bringing files whose bytes are away. A process beside fetches them ([`tensorfs_layout::pool::Bring`]); here each
//! gets a new segment, and its place in the file once its bytes are those that the file was sealed with.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::Level;
use parking_lot::{Condvar, Mutex};
use tensorfs_layout::log::PM;
use tensorfs_layout::medium::Direct;
use tensorfs_layout::pool::{Bring, BringReply};
use tensorfs_layout::segment::Gone;
use tensorfs_layout::tree::{FileChain, Object};
use tensorfs_layout::{Ino, SegmentId};

use crate::caller::Caller;
use crate::error::{Fault, Host, Result};
use crate::file::Files;
use crate::store::host;
use crate::workers::Workers;

use super::checksums::{bad_runs, checksums};
use super::mover::{Made, Switch, busy, give_copy, make_room, own_segment, wait_until_unused};
use super::task::guarded;

/// So many files are on their way, and so many more that somebody waits for.
const MOST: usize = 4;
const MOST_WAITED_FOR: usize = 4;
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
}

/// What is said of one.
enum Said {
    Come,
    Failed(String, bool),
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
        let threads = Workers::new(MOST + MOST_WAITED_FOR);
        Self {
            files,
            threads,
            state: Mutex::default(),
            changed: Condvar::new(),
            asked: Mutex::default(),
            came: Mutex::default(),
        }
    }

    /// Answers the process that fetches files.
    pub fn answer(self: &Arc<Self>, caller: Caller, request: Bring) -> Result<BringReply> {
        if !caller.is_trusted() {
            return Err(Fault::new(libc::EPERM));
        }
        Ok(match request {
            Bring::Next { pool, .. } if pool != self.files.store().pool().superblock().uuid_text() => {
                BringReply::Nothing { away: 0 }
            }
            Bring::Next { waited_for, .. } => self.next(waited_for),
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
        let remote = store.view().remote().map(|(number, tier)| (number, tier.is_own_remote()));
        let Some((remote, is_own)) = remote else { return BringReply::Nothing { away: 0 } };
        // One that has none away any more may have some again.
        let least = u64::from(is_own);
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
        let mut state = self.state.lock();
        if state.stopped || state.coming.len() >= MOST + if waited_for { MOST_WAITED_FOR } else { 0 } {
            return None;
        }
        let coming = &state.coming;
        let mut chosen = store.awaited().next(|ino| !coming.contains_key(&ino));
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

    /// Something was said of a file that is on its way.
    fn hear(&self, (ino, segment): (Ino, SegmentId), said: Option<Said>, some_came: bool) -> BringReply {
        let mut state = self.state.lock();
        let coming = state.coming.get_mut(&ino).filter(|coming| coming.segment == Some(segment));
        let Some(coming) = coming.filter(|coming| coming.said.is_none()) else { return BringReply::Unknown };
        coming.heard = Some(Instant::now());
        coming.said = said;
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
        if brought.is_err() {
            // Before it can be chosen again.
            store.awaited().put_last(ino);
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
        match brought {
            Ok(()) => {
                self.has_come(ino);
                store.counters().brought.add(1);
                store.awaited().come(ino);
            }
            // Emptied meanwhile, or removed: whoever waits for it needs no bytes.
            Err(_) if !store.awaited().is_away(ino) => store.awaited().come(ino),
            Err(Failed::Disturbed) => {}
            Err(_) if stopped => {}
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
            let object = view.object(ino).filter(|object| object.names() > 0).ok_or(Failed::Disturbed)?;
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
            match self.wait_for((ino, from, size), copy, undisturbed)? {
                Said::Come => {}
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
        undisturbed: &dyn Fn() -> bool,
    ) -> Result<Said> {
        let mut state = self.state.lock();
        loop {
            if state.stopped || !undisturbed() {
                return Err(busy("it was changed meanwhile"));
            }
            let Some(coming) = state.coming.get_mut(&ino) else { return Err(busy("nobody fetches it")) };
            let now = Instant::now();
            if coming.segment.is_none() {
                (coming.from, coming.size) = (from, size);
                (coming.segment, coming.heard) = (Some(copy), Some(now));
                self.changed.notify_all();
            } else if let Some(said) = coming.said.take() {
                // Whatever else he says of it is not heard.
                coming.segment = Some(SegmentId(0));
                return Ok(said);
            } else if coming.heard.is_none_or(|heard| now.saturating_duration_since(heard) > SILENCE) {
                coming.segment = Some(SegmentId(0));
                return Ok(Said::Failed("whoever fetches it is silent".into(), false));
            }
            self.changed.wait_for(&mut state, LOOK);
        }
    }

    /// Fails unless the bytes in a segment, which nobody can write any more, are those that the file was sealed with.
    fn check(&self, ino: Ino, copy: SegmentId, size: u64, undisturbed: &dyn Fn() -> bool) -> Result<()> {
        let store = self.files.store();
        if !store.segments().quiescent(copy) {
            return Err(Fault::warn(libc::EIO, "whoever has fetched it has not closed it"));
        }
        let found = store.segments().stat(copy).host("looking at a segment")?.size;
        let open = |flags| store.segments().open(copy, libc::O_RDONLY | libc::O_NOATIME | flags).map(File::from);
        // As they are on the disk, whatever was handed to it.
        let bytes = Direct::open(open).host("opening a segment")?;
        let bad = bad_runs(&bytes, &checksums(store, ino), undisturbed);
        let what = match bad.first() {
            _ if !undisturbed() => return Err(busy("it was changed meanwhile")),
            _ if found != size => format!("{found} bytes came for a file of {size}"),
            Some(bad) => format!("the bytes that came are not those that were sealed: {}", bad.what),
            None => return Ok(()),
        };
        Err(Fault { level: Level::Warn, ..Fault::warn(libc::EIO, what) })
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
