//! Requests that need bytes which are away: they wait here, and not on a thread, until the bytes have come, until it is
//! known that they do not, or until whoever asked waits no more.

use std::collections::HashMap;
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

/// So many requests may wait.
const MOST: usize = 1024;
/// So long one waits while nothing comes.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often to look who waits no more.
const LOOK: Duration = Duration::from_millis(250);

/// What is done when the bytes have come, or with the reason why they do not.
pub(crate) type Resume = Box<dyn FnOnce(Result<()>) + Send>;

/// The requests that wait.
pub(crate) struct Awaited {
    is_away: Box<dyn Fn(Ino) -> bool + Send + Sync>,
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
    asker: Option<Asker>,
    resume: Resume,
    _place: Share,
}

impl Awaited {
    /// Nothing waits yet.
    pub fn new(pool: &Arc<Pool>) -> Arc<Self> {
        let pool = pool.clone();
        let away = move |ino| {
            if !pool.segments().has_remote() {
                return false;
            }
            let segment = {
                let view = pool.view();
                let object = view.object(ino).filter(|object| object.names() > 0);
                object.and_then(|object| object.attributes.segment)
            };
            matches!(segment.and_then(|segment| pool.segments().gone(segment)), Some(Gone::Away { .. }))
        };
        Self::of(PATIENCE, away)
    }

    fn of(patience: Duration, is_away: impl Fn(Ino) -> bool + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            is_away: Box::new(is_away),
            patience,
            places: Shares::new(MOST),
            state: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// True if the bytes of a file are in the remote yet.
    pub fn is_away(&self, ino: Ino) -> bool {
        (self.is_away)(ino)
    }

    /// Has a request wait for the bytes of a file. `resume` is called once, on some thread, and may not wait there.
    pub fn wait(self: &Arc<Self>, caller: Caller, ino: Ino, resume: Resume) {
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
        file.waiting.push(Waiting { since, asker, resume, _place: place });
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
        if !self.is_away(ino) {
            self.come(ino);
        }
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
        let file = self.state.lock().files.remove(&ino);
        file.into_iter().flat_map(|file| file.waiting).for_each(|waiting| (waiting.resume)(Ok(())));
    }

    /// The bytes of a file do not come.
    pub fn fail(&self, ino: Ino, errno: i32, why: &str) {
        let file = self.state.lock().files.remove(&ino);
        let waiting = file.into_iter().flat_map(|file| file.waiting);
        waiting.for_each(|waiting| (waiting.resume)(Err(refused(errno, why))));
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
                over.into_iter().for_each(|(waiting, fault)| (waiting.resume)(Err(fault)));
                // Emptied, removed, or come without a word.
                here.into_iter().filter(|ino| !self.is_away(*ino)).for_each(|ino| self.come(ino));
            });
        }
        state.watched = false;
    }

    fn take_those_who_wait_no_more(&self, state: &mut State) -> Vec<(Waiting, Fault)> {
        let (now, came, mut over) = (Instant::now(), state.came, Vec::new());
        state.files.retain(|ino, file| {
            // What others get says nothing of one that fails.
            let came = came.filter(|_| file.failed.is_none());
            let mut told = false;
            for waiting in std::mem::take(&mut file.waiting) {
                let begun = came.map_or(waiting.since, |came| came.max(waiting.since));
                if waiting.asker.is_some_and(Asker::is_gone) {
                    over.push((waiting, Fault::new(libc::EINTR)));
                } else if now.saturating_duration_since(begun) >= self.patience {
                    let why = file.failed.as_deref().unwrap_or("nothing came, as if nobody fetched it");
                    if !std::mem::replace(&mut told, true) {
                        log::warn!("inode {ino}: its bytes are away, and did not come: {}", why.escape_debug());
                    }
                    over.push((waiting, Fault::new(libc::EIO)));
                } else {
                    file.waiting.push(waiting);
                }
            }
            !file.waiting.is_empty()
        });
        over
    }
}

fn refused(errno: i32, why: &str) -> Fault {
    Fault { level: Level::Info, ..Fault::warn(errno, why.escape_debug().to_string()) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    fn caller(uid: u32) -> Caller {
        Caller { unique: 1, again: false, uid, gid: uid, pid: std::process::id() }
    }

    /// A request that waits, and what becomes of it: 0, or an error.
    fn wait(awaited: &Arc<Awaited>, caller: Caller, ino: u64) -> Receiver<i32> {
        let (tell, hear) = channel();
        let resume = move |come: Result<()>| {
            let _ = tell.send(come.map_or_else(|fault| fault.errno, |()| 0));
        };
        awaited.wait(caller, Ino(ino), Box::new(resume));
        hear
    }

    /// Proves E21.
    #[test]
    fn who_waits_hears_what_became_of_it() {
        let away = Arc::new(AtomicBool::new(true));
        let of_test = away.clone();
        let awaited = Awaited::of(Duration::from_secs(3600), move |_| of_test.load(Ordering::SeqCst));
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
        let awaited = Awaited::of(Duration::from_secs(3600), |_| true);
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
        let awaited = Awaited::of(Duration::from_millis(300), |_| true);
        let hears = wait(&awaited, caller(1), 7);
        awaited.failed_once(Ino(7), "the store is away");
        awaited.came_some();
        assert_eq!(hears.recv(), Ok(libc::EIO));
        assert!(awaited.state.lock().files.is_empty());
        // Somebody who is not there any more.
        let patient = Awaited::of(Duration::from_secs(3600), |_| true);
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let gone = wait(&patient, Caller { pid: child.id(), ..caller(1) }, 7);
        let stays = wait(&patient, caller(1), 7);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(gone.recv(), Ok(libc::EINTR));
        patient.come(Ino(7));
        assert_eq!(stays.recv(), Ok(0));
    }

    /// Proves B17.
    #[test]
    fn no_more_wait_than_may_and_nobody_has_all_places() {
        let awaited = Awaited::of(Duration::from_secs(3600), |_| true);
        let all: Vec<_> = (0..MOST as u64).map(|ino| wait(&awaited, caller(1), ino)).collect();
        let refused = all.iter().filter(|hears| hears.try_recv() == Ok(libc::EAGAIN)).count();
        assert!(refused > MOST / 2 && refused < MOST, "{refused}");
        assert!(wait(&awaited, caller(2), 1).try_recv().is_err(), "another user");
        awaited.end();
    }
}
