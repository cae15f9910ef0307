//! Files that come from several remotes, whose trees the pool was made from.
//!
//! Two threads ask the mount for files, and hand each to those who fetch from its remote: nobody who asks waits for a
//! store. So one that is not reached, or does not answer, has none but its own files wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use tensorfs_layout::Ino;

use crate::bring::mount::{AFTER_FAILURE, Job, Mount, PAUSES, Stop, Why, locked};
use crate::fetch::{Fetcher, Written};
use crate::origin::Noted;
use crate::repository::{Newest, Repository};

/// Between two attempts to open a remote.
const AGAIN: Duration = Duration::from_secs(5);
/// Who has found a file waits so long for its remote to be opened, where no other one is.
const OPENED: Duration = Duration::from_secs(2);
/// So long all are waited for that are not reached, by what nobody waits for.
const TOGETHER: Duration = Duration::from_secs(30);
/// So many files come from one remote beside each other; and so many of all those from which none has come yet, or none
/// for a while: others have places among those that the server lets come. Portions of files, which somebody waits for
/// as a rule, find hands beside those that fetch files.
const HANDS: usize = 2;
const ALL_HANDS: usize = 4;
const DOUBTED: usize = 6;
/// A remote from which a file is on its way for longer may be one that does not answer.
const LONG: Duration = Duration::from_secs(5);
/// So long is waited for a hand of a remote that answers; and after a file for which there is none, by who asks for
/// what is waited for, and by who asks for others.
const FREE: Duration = Duration::from_millis(100);
const REFUSED: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(250)];
/// How often it is looked whether a mount is there yet.
const LOOK: Duration = Duration::from_secs(1);

/// The repositories that files come from.
struct Sources {
    mount: Mount,
    noted: Noted,
    all: Vec<Source>,
    begun: Instant,
    /// The files that are on their way: from which, and since when.
    coming: Mutex<Vec<(usize, Ino, Instant)>>,
}

/// One of them.
#[derive(Default)]
struct Source {
    /// Once it could be opened.
    opened: OnceLock<(Repository, Newest)>,
    /// Why it could not, when that was tried last.
    why: Mutex<Option<String>>,
    /// Those who fetch from there, and what they have written.
    hands: OnceLock<Sender<Job>>,
    written: OnceLock<Written>,
    /// The last file that was fetched from there has come.
    has_answered: AtomicBool,
}

impl Source {
    /// True once it is known what came of opening it.
    fn is_known(&self) -> bool {
        self.is_open() || locked(&self.why).is_some()
    }

    fn is_open(&self) -> bool {
        self.opened.get().is_some()
    }

    fn why(&self) -> String {
        locked(&self.why).clone().unwrap_or_else(|| "its remote is being read".to_owned())
    }
}

impl Sources {
    /// Opens one, as often as it takes. The others do not wait for it.
    fn open(&self, which: usize) {
        let source = &self.all[which];
        while source.opened.get().is_none() {
            match self.noted.open(which) {
                Ok(opened) => drop(source.opened.set(opened)),
                Err(error) => {
                    *locked(&source.why) = Some(error.to_string());
                    thread::sleep(AGAIN);
                }
            }
        }
    }

    /// The one that an object is in, and its number there; once it is known what came of opening it, if that does not
    /// take too long and nothing else could come meanwhile.
    fn find(&self, number: u64) -> Option<(usize, &Source, u64)> {
        let (which, number) = self.noted.find(number)?;
        let source = self.all.get(which)?;
        let asked = Instant::now();
        while !source.is_known() && !self.is_any_open() && asked.elapsed() < OPENED {
            thread::sleep(PAUSES[0]);
        }
        Some((which, source, number))
    }

    fn is_any_open(&self) -> bool {
        self.all.iter().any(Source::is_open)
    }

    /// True once what nobody waits for may come, too: else all files of a remote that is not reached would be tried in
    /// vain, one after the other.
    fn are_there(&self) -> bool {
        let opened = self.all.iter().filter(|source| source.is_open()).count();
        opened == self.all.len() || (opened > 0 && self.begun.elapsed() > TOGETHER)
    }

    /// True of one from which files come.
    fn answers(&self, coming: &[(usize, Ino, Instant)], which: usize) -> bool {
        self.all[which].has_answered.load(Ordering::SeqCst)
            && coming.iter().all(|(of, _, since)| *of != which || since.elapsed() < LONG)
    }

    /// Has a file come from one. False if no hand is free there.
    fn hand_over(self: &Arc<Self>, which: usize, job: Job) -> bool {
        let asked = Instant::now();
        loop {
            let mut coming = locked(&self.coming);
            let hands = if job.portion.is_some() { ALL_HANDS } else { HANDS };
            let is_free = coming.iter().filter(|(of, ..)| *of == which).count() < hands;
            let answers = self.answers(&coming, which);
            let doubted = || coming.iter().filter(|(of, ..)| !self.answers(&coming, *of)).count();
            if is_free && (answers || doubted() < DOUBTED) {
                coming.push((which, job.ino, Instant::now()));
                break;
            }
            drop(coming);
            if !answers || asked.elapsed() >= FREE {
                return false;
            }
            thread::sleep(PAUSES[0] / 4);
        }
        let hands = self.all[which].hands.get_or_init(|| {
            let (hands, jobs) = channel();
            let jobs = Arc::new(Mutex::new(jobs));
            for _ in 0..ALL_HANDS {
                let (this, jobs) = (self.clone(), jobs.clone());
                thread::spawn(move || this.fetch(which, &jobs));
            }
            hands
        });
        // They live as long as this.
        hands.send(job).is_ok()
    }

    /// Fetches files from one.
    fn fetch(&self, which: usize, jobs: &Mutex<Receiver<Job>>) {
        let source = &self.all[which];
        let Some((repository, newest)) = source.opened.get() else { return };
        let written = source.written.get_or_init(|| self.mount.written());
        let mut fetcher = Fetcher::beside_others(repository, written.clone());
        loop {
            let Ok(job) = locked(jobs).recv() else { return };
            let fetched = self.mount.fetch(&mut fetcher, newest, job);
            let has_come = fetched.is_ok();
            // Who asks hears of a mount that is gone himself.
            let _ = self.mount.said(job, fetched);
            source.has_answered.store(has_come, Ordering::SeqCst);
            if !has_come {
                thread::sleep(AFTER_FAILURE);
            }
            let mut coming = locked(&self.coming);
            if let Some(at) = coming.iter().position(|(of, one, _)| (*of, *one) == (which, job.ino)) {
                coming.remove(at);
            }
        }
    }

    /// Asks for files, and hands them over.
    fn ask(self: &Arc<Self>, waited_for: bool) -> Result<(), Stop> {
        let mut looked = Instant::now();
        while !self.all.iter().any(Source::is_known) {
            thread::sleep(PAUSES[0]);
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                if !self.mount.is_there_within(Duration::ZERO) {
                    return Err(Stop::Unmounted);
                }
            }
        }
        loop {
            let Some(job) = self.mount.next(waited_for || !self.are_there())? else {
                thread::sleep(if waited_for { PAUSES[0] } else { PAUSES[1] });
                continue;
            };
            let refused = match self.find(job.number) {
                None => Some(Why::of_file("its remote has no such file", true)),
                Some((_, source, _)) if !source.is_open() => Some(Why::for_now(source.why())),
                Some((which, _, number)) if self.hand_over(which, Job { number, ..job }) => None,
                Some(_) => Some(Why::for_now("others come from its remote, or none does")),
            };
            if let Some(why) = refused {
                self.mount.said(job, Err(why))?;
                // What can come is not kept waiting.
                thread::sleep(if self.is_any_open() { REFUSED[usize::from(!waited_for)] } else { AFTER_FAILURE });
            }
        }
    }
}

/// Brings files of a mount until all are here or it is mounted no more. Nobody waits then for a store that does not
/// answer.
pub(super) fn bring(mount: Mount, noted: Noted) {
    let all = (0..noted.count()).map(|_| Source::default()).collect();
    let sources = Arc::new(Sources { mount, noted, all, begun: Instant::now(), coming: Mutex::default() });
    for which in 0..sources.all.len() {
        let sources = sources.clone();
        thread::spawn(move || sources.open(which));
    }
    let signs = sources.clone();
    thread::spawn(move || signs.mount.give_signs());
    let ask = |waited_for| {
        let sources = sources.clone();
        thread::spawn(move || sources.ask(waited_for))
    };
    [ask(false), ask(true)].into_iter().for_each(|asks| drop(asks.join()));
    sources.mount.over.store(true, Ordering::SeqCst);
}
