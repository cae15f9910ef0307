//! Requests that need bytes which are away: they wait here, and not on a thread, until the bytes have come, until it is
//! known that they do not, or until whoever asked waits no more. Who reads waits for the bytes that he reads alone.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use log::Level;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorfs_layout::Ino;
use tensorfs_layout::pool::Pool;
use tensorfs_layout::segment::Gone;

use crate::caller::{Asker, Caller};
use crate::error::{Fault, Result};
use crate::shares::{Share, Shares};

use super::pieces::Pieces;

/// So many requests may wait.
const MOST: usize = 1024;
/// So long one waits while nothing comes.
const PATIENCE: Duration = Duration::from_secs(60);
/// A file of no more bytes is not long.
const SHORT: u64 = 64 << 20;
/// How often to look who waits no more.
const LOOK: Duration = Duration::from_millis(250);

/// The kernel, where it fills its cache and has asked for more than what a program reads, asks for that alone once more
/// when it gets an error: what becomes of that is the answer to the program, and nothing new is to be waited for. So
/// long after the first answer, and for so many.
const ONCE_MORE: Duration = Duration::from_secs(1);
const REFUSALS: usize = 256;

/// Where bytes of a file begin, and where those behind them do.
pub(crate) type Bytes = (u64, u64);

/// Bytes that a request waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub bytes: Bytes,
    /// The kernel wants them for its cache.
    pub for_cache: bool,
    /// Nobody has the file open, so that without a name it is no more.
    pub by_name: bool,
}

/// Where bytes of a file are.
pub(crate) enum Had {
    /// In the file's own segment, as those of any other.
    Own,
    /// They have come, and the rest has not.
    Come(Arc<Pieces>),
    /// There are none.
    Nothing,
    /// These of a file are away.
    Away(Ino, Bytes),
}

/// What is done when the bytes have come, or with the reason why they do not.
pub(crate) type Resume = Box<dyn FnOnce(Result<()>) + Send>;

/// The requests that wait.
pub(crate) struct Awaited {
    /// How many bytes a file has that is away, and whether it has a name.
    away: Box<dyn Fn(Ino) -> Option<(u64, bool)> + Send + Sync>,
    /// What has come of files that are on their way.
    pieces: Mutex<HashMap<Ino, Arc<Pieces>>>,
    refusals: Mutex<VecDeque<Refusal>>,
    patience: Duration,
    places: Shares,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    files: HashMap<Ino, File>,
    /// When bytes of any file came last.
    came: Option<Instant>,
    /// A thread looks who waits no more.
    watched: bool,
    ended: bool,
}

/// A file that is waited for.
struct File {
    /// Since when it is its turn: since it is waited for, or an attempt came to nothing.
    since: Instant,
    waiting: Vec<Waiting>,
    /// Why an attempt to fetch it has failed.
    failed: Option<String>,
}

struct Waiting {
    since: Instant,
    /// Which bytes it waits for; none if it waits for the file.
    bytes: Option<Bytes>,
    /// As it is called so.
    by_name: bool,
    /// The thread that does, if it may ask for some of them once more.
    again: Option<u32>,
    asker: Option<Asker>,
    resume: Resume,
    _place: Share,
}

/// What was answered to a thread.
struct Refusal {
    when: Instant,
    ino: Ino,
    bytes: Bytes,
    thread: u32,
    errno: i32,
}

impl Awaited {
    /// Nothing waits yet.
    pub fn new(pool: &Arc<Pool>) -> Arc<Self> {
        let pool = pool.clone();
        let away = move |ino| {
            if !pool.segments().has_remote() {
                return None;
            }
            let (segment, size, named) = {
                let view = pool.view();
                let object = view.object(ino)?;
                (object.attributes.segment?, object.size(), object.names() > 0)
            };
            matches!(pool.segments().gone(segment), Some(Gone::Away { .. })).then_some((size, named))
        };
        Self::of(PATIENCE, away)
    }

    fn of(patience: Duration, away: impl Fn(Ino) -> Option<(u64, bool)> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            away: Box::new(away),
            pieces: Mutex::default(),
            refusals: Mutex::default(),
            patience,
            places: Shares::new(MOST),
            state: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// True if the bytes of a file are in the remote yet.
    pub fn is_away(&self, ino: Ino) -> bool {
        (self.away)(ino).is_some_and(|(_, named)| named)
    }

    /// True if those of one are that may have been removed since it was opened.
    pub fn is_away_yet(&self, ino: Ino) -> bool {
        (self.away)(ino).is_some()
    }

    /// Where bytes of a file are that was opened.
    pub fn had(&self, ino: Ino, (start, end): Bytes) -> Had {
        let Some((size, named)) = (self.away)(ino) else { return Had::Own };
        if start >= size {
            return Had::Nothing;
        }
        let pieces = self.pieces(ino).filter(|pieces| can_be_read(pieces, (start, end), named));
        // Who reads what is here has not done with the file.
        if let Some(pieces) = &pieces {
            pieces.note_use();
        }
        pieces.map_or(Had::Away(ino, (start, end)), Had::Come)
    }

    /// Of bytes that do not all come, those in front that have.
    pub fn had_in_front(&self, ino: Ino, (start, _): Bytes) -> Option<Had> {
        let pieces = self.is_away_yet(ino).then(|| self.pieces(ino))??;
        pieces.have((start, start + 1)).then_some(Had::Come(pieces))
    }

    /// What has come of a file.
    pub fn pieces(&self, ino: Ino) -> Option<Arc<Pieces>> {
        self.pieces.lock().get(&ino).cloned()
    }

    /// A file is on its way, or is no more.
    pub fn set_pieces(&self, ino: Ino, pieces: Option<Arc<Pieces>>) {
        let mut all = self.pieces.lock();
        let before = match pieces {
            Some(pieces) => all.insert(ino, pieces),
            None => all.remove(&ino),
        };
        drop(all);
        // Closed without the lock.
        drop(before);
    }

    /// Has a request wait for the bytes of a file, or for some of them. `resume` is called once, on some thread, and
    /// may not wait there.
    pub fn wait(self: &Arc<Self>, caller: Caller, ino: Ino, wanted: Option<Wanted>, resume: Resume) {
        let (bytes, by_name) = (wanted.map(|wanted| wanted.bytes), wanted.is_none_or(|wanted| wanted.by_name));
        let again = wanted.filter(|wanted| wanted.for_cache).map(|_| caller.pid);
        if let Some(errno) = again.zip(bytes).and_then(|(thread, bytes)| self.take_refusal(thread, ino, bytes)) {
            return resume(Err(refused(errno, "as it was answered a moment ago")));
        }
        let Some(place) = self.places.take(caller.uid) else {
            return resume(Err(Fault { level: Level::Info, ..Fault::warn(libc::EAGAIN, "too many wait for files") }));
        };
        let mut state = self.state.lock();
        if state.ended {
            drop(state);
            return resume(Err(Fault::new(libc::EIO)));
        }
        let since = Instant::now();
        let file = state.files.entry(ino).or_insert_with(|| File { since, waiting: Vec::new(), failed: None });
        let asker = Asker::waits(caller, Asker::of_this_thread);
        file.waiting.push(Waiting { since, bytes, by_name, again, asker, resume, _place: place });
        if !state.watched {
            let watch = self.clone();
            let started = thread::Builder::new().name("tensorfs-await".into()).spawn(move || watch.watch());
            state.watched = started.is_ok();
        }
        let watched = state.watched;
        drop(state);
        if !watched {
            return self.fail(ino, libc::EAGAIN, "no thread is left to wait for it");
        }
        // They may have come before it was among those who wait.
        self.look_at(ino);
    }

    /// Lets those go on whose bytes are there, or who need none any more.
    pub fn look_at(&self, ino: Ino) {
        let Some((_, named)) = (self.away)(ino) else { return self.come(ino) };
        if !named {
            // Who wants to open it looks its name up again; who has it open reads it all the same.
            self.let_go(ino, |waiting| waiting.by_name, &|| Ok(()));
        }
        if let Some(pieces) = self.pieces(ino) {
            let can = |bytes| can_be_read(&pieces, bytes, named);
            self.let_go(ino, |waiting| waiting.bytes.is_some_and(can), &|| Ok(()));
        }
    }

    /// Ends the waiting of some who wait for bytes of a file, or for all.
    fn let_go(&self, ino: Ino, whom: impl Fn(&Waiting) -> bool, what: &dyn Fn() -> Result<()>) {
        self.let_go_for((ino, (0, u64::MAX)), whom, what);
    }

    /// Does so for some bytes of the file.
    fn let_go_for(&self, (ino, of): (Ino, Bytes), whom: impl Fn(&Waiting) -> bool, what: &dyn Fn() -> Result<()>) {
        let mut state = self.state.lock();
        let Some(file) = state.files.get_mut(&ino) else { return };
        let (go, stay) = std::mem::take(&mut file.waiting).into_iter().partition(|waiting| whom(waiting));
        file.waiting = stay;
        if file.waiting.is_empty() {
            state.files.remove(&ino);
        }
        drop(state);
        let go: Vec<Waiting> = go;
        go.into_iter().for_each(|waiting| self.answer((ino, of), waiting, what()));
    }

    /// Lets one go on. If that is as some bytes do not come, others may be asked for once more and come.
    fn answer(&self, (ino, lacked): (Ino, Bytes), waiting: Waiting, what: Result<()>) {
        if let (Err(fault), Some(bytes), Some(thread)) = (&what, waiting.bytes, waiting.again) {
            let bytes = (bytes.0.max(lacked.0), bytes.1.min(lacked.1));
            let refusal = Refusal { when: Instant::now(), ino, bytes, thread, errno: fault.errno };
            let mut refusals = self.refusals.lock();
            refusals.truncate(REFUSALS - 1);
            refusals.push_front(refusal);
        }
        (waiting.resume)(what);
    }

    /// What a thread was answered a moment ago that asks for some of the bytes once more.
    fn take_refusal(&self, thread: u32, ino: Ino, (start, end): Bytes) -> Option<i32> {
        let mut refusals = self.refusals.lock();
        refusals.retain(|refusal| refusal.when.elapsed() < ONCE_MORE);
        let is_it = |refusal: &Refusal| {
            let is_within = refusal.bytes.0 <= start && end <= refusal.bytes.1;
            (refusal.ino, refusal.thread) == (ino, thread) && is_within
        };
        let at = refusals.iter().position(is_it)?;
        refusals.remove(at).map(|refusal| refusal.errno)
    }

    /// What is waited for, in the order of whose turn it is: of some files bytes, of others all.
    pub fn wanted(&self) -> Vec<(Ino, Option<Bytes>)> {
        let state = self.state.lock();
        let each = |(ino, file): (&Ino, &File)| {
            let (ino, turn) = (*ino, file.since);
            let one = move |waiting: &Waiting| (waiting.since.max(turn), ino, waiting.bytes);
            file.waiting.iter().map(one).collect::<Vec<_>>()
        };
        let mut wanted: Vec<_> = state.files.iter().flat_map(each).collect();
        drop(state);
        wanted.sort_unstable();
        wanted.into_iter().map(|(_, ino, bytes)| (ino, bytes)).collect()
    }

    /// True if somebody waits for a file, or for bytes of it.
    pub fn is_wanted(&self, ino: Ino) -> bool {
        self.state.lock().files.contains_key(&ino)
    }

    /// Bytes of a file have come.
    pub fn came(&self, ino: Ino) {
        self.came_some();
        if let Some(file) = self.state.lock().files.get_mut(&ino) {
            file.failed = None;
        }
        self.look_at(ino);
    }

    /// Some bytes of a file do not come. Nor does the file.
    pub fn lacks(&self, ino: Ino, (start, end): Bytes, errno: i32, why: &str) {
        let is_of_it = |waiting: &Waiting| waiting.bytes.is_none_or(|bytes| bytes.0 < end && start < bytes.1);
        self.let_go_for((ino, (start, end)), is_of_it, &|| Err(refused(errno, why)));
    }

    /// The file whose turn it is longest, of those that are `wanted`.
    pub fn next(&self, wanted: impl Fn(Ino) -> bool) -> Option<Ino> {
        let state = self.state.lock();
        let files = state.files.iter().filter(|(ino, _)| wanted(**ino));
        files.min_by_key(|(_, file)| file.since).map(|(ino, _)| *ino)
    }

    /// Bytes of some file have come: the remote is there.
    pub fn came_some(&self) {
        self.state.lock().came = Some(Instant::now());
    }

    /// The bytes of a file have come, or it needs none any more.
    pub fn come(&self, ino: Ino) {
        self.let_go(ino, |_| true, &|| Ok(()));
    }

    /// The bytes of a file do not come.
    pub fn fail(&self, ino: Ino, errno: i32, why: &str) {
        self.let_go(ino, |_| true, &|| Err(refused(errno, why)));
    }

    /// The bytes of a file did not come, and may with the next attempt.
    pub fn failed_once(&self, ino: Ino, why: &str) {
        if let Some(file) = self.state.lock().files.get_mut(&ino) {
            file.failed = Some(why.to_owned());
        }
    }

    /// An attempt to fetch a file came to nothing. All others have their turn before it is tried again: nobody waits
    /// for what another cannot get.
    pub fn put_last(&self, ino: Ino) {
        if let Some(file) = self.state.lock().files.get_mut(&ino) {
            file.since = Instant::now();
        }
    }

    /// Nobody is there any more whom it could be told.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        let files = std::mem::take(&mut state.files);
        self.ended.notify_all();
        drop(state);
        let waiting = files.into_values().flat_map(|file| file.waiting);
        waiting.for_each(|waiting| (waiting.resume)(Err(Fault::new(libc::EIO))));
    }

    /// Looks who waits no more, as long as somebody waits.
    fn watch(&self) {
        let mut state = self.state.lock();
        while !state.files.is_empty() && !state.ended {
            self.ended.wait_for(&mut state, LOOK);
            let here: Vec<Ino> = state.files.keys().copied().collect();
            let over = self.take_those_who_wait_no_more(&mut state);
            MutexGuard::unlocked(&mut state, || {
                over.into_iter()
                    .for_each(|(ino, waiting, fault)| self.answer((ino, (0, u64::MAX)), waiting, Err(fault)));
                // Emptied, removed, or come without a word.
                here.into_iter().for_each(|ino| self.look_at(ino));
            });
        }
        state.watched = false;
    }

    fn take_those_who_wait_no_more(&self, state: &mut State) -> Vec<(Ino, Waiting, Fault)> {
        let (now, came, mut over) = (Instant::now(), state.came, Vec::new());
        state.files.retain(|ino, file| {
            // What others get says nothing of one that fails.
            let came = came.filter(|_| file.failed.is_none());
            let mut told = false;
            for waiting in std::mem::take(&mut file.waiting) {
                let begun = came.map_or(waiting.since, |came| came.max(waiting.since));
                if waiting.asker.is_some_and(Asker::is_gone) {
                    over.push((*ino, waiting, Fault::new(libc::EINTR)));
                } else if now.saturating_duration_since(begun) >= self.patience {
                    let why = file.failed.as_deref().unwrap_or("nothing came, as if nobody fetched it");
                    if !std::mem::replace(&mut told, true) {
                        log::warn!("inode {ino}: its bytes are away, and did not come: {}", why.escape_debug());
                    }
                    over.push((*ino, waiting, Fault::new(libc::EIO)));
                } else {
                    file.waiting.push(waiting);
                }
            }
            !file.waiting.is_empty()
        });
        over
    }
}

/// True if bytes can be read before the file is here. If all of one have come that is not long, and it has a name, it
/// is about to be here, and is as any other for whoever has read the last of it.
fn can_be_read(pieces: &Pieces, bytes: Bytes, named: bool) -> bool {
    pieces.have(bytes) && !(named && pieces.size() <= SHORT && pieces.are_all())
}

fn refused(errno: i32, why: &str) -> Fault {
    Fault { level: Level::Info, ..Fault::warn(errno, why.escape_debug().to_string()) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, channel};

    use tensorfs_layout::SegmentId;

    use super::*;

    fn caller(uid: u32) -> Caller {
        Caller { unique: 1, again: false, uid, gid: uid, pid: std::process::id() }
    }

    /// A request that waits, and what becomes of it: 0, or an error.
    fn wait(awaited: &Arc<Awaited>, caller: Caller, ino: u64) -> Receiver<i32> {
        wait_for(awaited, caller, ino, None)
    }

    fn wait_for(awaited: &Arc<Awaited>, caller: Caller, ino: u64, bytes: Option<Bytes>) -> Receiver<i32> {
        let wanted = bytes.map(|bytes| Wanted { bytes, for_cache: bytes.0 > 0, by_name: false });
        let (tell, hear) = channel();
        let resume = move |come: Result<()>| {
            let _ = tell.send(come.map_or_else(|fault| fault.errno, |()| 0));
        };
        awaited.wait(caller, Ino(ino), wanted, Box::new(resume));
        hear
    }

    /// Proves E21.
    #[test]
    fn who_waits_hears_what_became_of_it() {
        let away = Arc::new(AtomicBool::new(true));
        let of_test = away.clone();
        let awaited =
            Awaited::of(Duration::from_secs(3600), move |_| of_test.load(Ordering::SeqCst).then_some((100, true)));
        let (one, other, third) =
            (wait(&awaited, caller(1), 7), wait(&awaited, caller(1), 8), wait(&awaited, caller(1), 9));
        assert_eq!(awaited.next(|_| true), Some(Ino(7)));
        assert_eq!(awaited.next(|ino| ino != Ino(7)), Some(Ino(8)));
        awaited.come(Ino(7));
        awaited.fail(Ino(8), libc::ENOSPC, "full");
        assert_eq!((one.recv(), other.recv()), (Ok(0), Ok(libc::ENOSPC)));
        // It has come, or was emptied, and nobody has said so.
        away.store(false, Ordering::SeqCst);
        assert_eq!(third.recv(), Ok(0));
        assert_eq!(wait(&awaited, caller(1), 7).recv(), Ok(0), "it came before it was waited for");
        awaited.end();
        assert_eq!(wait(&awaited, caller(1), 7).recv(), Ok(libc::EIO));
    }

    /// Proves E21.
    #[test]
    fn one_that_fails_again_and_again_holds_up_no_other() {
        let awaited = Awaited::of(Duration::from_secs(3600), |_| Some((100, true)));
        let _hear = [7, 8, 9].map(|ino| wait(&awaited, caller(1), ino));
        let turns = |n: usize| {
            let turn = |_| {
                let ino = awaited.next(|_| true).unwrap();
                awaited.put_last(ino);
                awaited.failed_once(ino, "403 Forbidden");
                ino.0
            };
            (0..n).map(turn).collect::<Vec<u64>>()
        };
        assert_eq!(turns(6), [7, 8, 9, 7, 8, 9]);
        // Others who wait for one that fails do not give it another one's turn.
        assert_eq!(turns(1), [7]);
        let _more = wait(&awaited, caller(2), 7);
        assert_eq!(turns(3), [8, 9, 7]);
    }

    /// Proves E21.
    #[test]
    fn patience_ends_where_nothing_comes() {
        let awaited = Awaited::of(Duration::from_millis(300), |_| Some((100, true)));
        let hears = wait(&awaited, caller(1), 7);
        awaited.failed_once(Ino(7), "the store is away");
        awaited.came_some();
        assert_eq!(hears.recv(), Ok(libc::EIO));
        assert!(awaited.state.lock().files.is_empty());
        // Somebody who is not there any more.
        let patient = Awaited::of(Duration::from_secs(3600), |_| Some((100, true)));
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let gone = wait(&patient, Caller { pid: child.id(), ..caller(1) }, 7);
        let stays = wait(&patient, caller(1), 7);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(gone.recv(), Ok(libc::EINTR));
        patient.come(Ino(7));
        assert_eq!(stays.recv(), Ok(0));
    }

    /// Proves E21.
    #[test]
    fn who_reads_waits_for_what_he_reads() {
        let named = Arc::new(AtomicBool::new(true));
        let of_test = named.clone();
        let awaited = Awaited::of(Duration::from_secs(3600), move |_| Some((100, of_test.load(Ordering::SeqCst))));
        assert!(matches!(awaited.had(Ino(7), (100, 110)), Had::Nothing));
        assert!(matches!(awaited.had(Ino(7), (0, 10)), Had::Away(..)));
        let bytes = |start, end| wait_for(&awaited, caller(1), 7, Some((start, end)));
        let (first, last, over_both) = (bytes(0, 10), bytes(90, 120), bytes(5, 60));
        let all = wait(&awaited, caller(1), 7);
        assert_eq!(awaited.wanted()[..2], [(Ino(7), Some((0, 10))), (Ino(7), Some((90, 120)))]);
        let pieces = Pieces::new((SegmentId(9), tempfile::tempfile().unwrap().into()), 100);
        let pieces = Arc::new(pieces);
        assert!(matches!(awaited.had(Ino(7), (0, 10)), Had::Away(..)));
        awaited.set_pieces(Ino(7), Some(pieces.clone()));
        pieces.add((0, 50));
        awaited.came(Ino(7));
        assert_eq!(first.recv(), Ok(0));
        assert!(matches!(awaited.had(Ino(7), (0, 50)), Had::Come(_)));
        assert!(last.try_recv().is_err() && over_both.try_recv().is_err() && all.try_recv().is_err());
        // Some do not come: who needs none of them waits on.
        awaited.lacks(Ino(7), (50, 60), libc::EIO, "it is gone");
        assert_eq!((over_both.recv(), all.recv()), (Ok(libc::EIO), Ok(libc::EIO)));
        assert!(last.try_recv().is_err());
        // Bytes in front of those, which can come, are another question of the kernel's.
        let in_front = wait_for(&awaited, caller(1), 7, Some((5, 9)));
        assert_eq!(in_front.recv(), Ok(0));
        // The kernel asks for a part of that once more, and only once.
        let parts = || wait_for(&awaited, caller(1), 7, Some((50, 54)));
        assert_eq!(parts().recv(), Ok(libc::EIO));
        let again = parts();
        pieces.add((50, 100));
        awaited.came(Ino(7));
        assert!(matches!(awaited.had(Ino(7), (0, 50)), Had::Away(..)), "it is about to be here");
        // Without a name, who opens it looks it up again, and who has it open reads it.
        named.store(false, Ordering::SeqCst);
        assert_eq!(wait(&awaited, caller(1), 7).recv(), Ok(0));
        assert!(matches!(awaited.had(Ino(7), (0, 50)), Had::Come(_)));
        awaited.came(Ino(7));
        assert_eq!((again.recv(), last.recv()), (Ok(0), Ok(0)));
        assert!(!awaited.is_wanted(Ino(7)));
    }

    /// Proves B17.
    #[test]
    fn no_more_wait_than_may_and_nobody_has_all_places() {
        let awaited = Awaited::of(Duration::from_secs(3600), |_| Some((100, true)));
        let all: Vec<_> = (0..MOST as u64).map(|ino| wait(&awaited, caller(1), ino)).collect();
        let refused = all.iter().filter(|hears| hears.try_recv() == Ok(libc::EAGAIN)).count();
        assert!(refused > MOST / 2 && refused < MOST, "{refused}");
        assert!(wait(&awaited, caller(2), 1).try_recv().is_err(), "another user");
        awaited.end();
    }
}
