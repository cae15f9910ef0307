//! Files that come from several remotes, whose trees the pool was made from.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::bring::mount::{AFTER_FAILURE, Mount, PAUSES, Stop, THREADS, THREADS_WAITED_FOR, locked};
use crate::fetch::Fetcher;
use crate::origin::Noted;
use crate::repository::{Newest, Repository};

/// Between two attempts to open a remote.
const AGAIN: Duration = Duration::from_secs(5);
/// Who has found a file waits so long for its remote to be opened.
const OPENED: Duration = Duration::from_secs(2);
/// So long all are waited for that are not reached, by what nobody waits for.
const TOGETHER: Duration = Duration::from_secs(30);

/// The repositories that files come from.
struct Sources {
    noted: Noted,
    all: Vec<Source>,
    begun: Instant,
}

/// One of them.
#[derive(Default)]
struct Source {
    /// Once it could be opened.
    opened: OnceLock<(Repository, Newest)>,
    /// Why it could not, when that was tried last.
    why: Mutex<Option<String>>,
}

impl Source {
    /// True once it is known what came of opening it.
    fn is_known(&self) -> bool {
        self.opened.get().is_some() || locked(&self.why).is_some()
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
    /// take too long.
    fn find(&self, number: u64) -> Option<(usize, &Source, u64)> {
        let (which, number) = self.noted.find(number)?;
        let source = self.all.get(which)?;
        let asked = Instant::now();
        while !source.is_known() && asked.elapsed() < OPENED {
            thread::sleep(PAUSES[0]);
        }
        Some((which, source, number))
    }

    /// True once what nobody waits for may come, too: else all files of a remote that is not reached would be tried in
    /// vain, one after the other.
    fn are_there(&self) -> bool {
        let opened = self.all.iter().filter(|source| source.opened.get().is_some()).count();
        opened == self.all.len() || (opened > 0 && self.begun.elapsed() > TOGETHER)
    }
}

/// Brings files of a mount until all are here or it is mounted no more.
pub(super) fn bring(mount: &Mount, noted: Noted) {
    let all = (0..noted.count()).map(|_| Source::default()).collect();
    let sources = Arc::new(Sources { noted, all, begun: Instant::now() });
    for which in 0..sources.all.len() {
        // Nobody waits for one that is not reached when all is over.
        let sources = sources.clone();
        thread::spawn(move || sources.open(which));
    }
    thread::scope(|scope| {
        scope.spawn(|| mount.give_signs());
        let workers = (0..THREADS + THREADS_WAITED_FOR).map(|n| {
            let sources = &*sources;
            scope.spawn(move || work(mount, sources, n >= THREADS))
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().for_each(|worker| drop(worker.join()));
        mount.over.store(true, Ordering::SeqCst);
    });
}

fn work(mount: &Mount, sources: &Sources, waited_for: bool) -> Result<(), Stop> {
    while !sources.all.iter().any(Source::is_known) {
        thread::sleep(PAUSES[0]);
    }
    let mut fetcher: Option<(usize, Fetcher<'_>)> = None;
    loop {
        let Some((ino, number, size, segment)) = mount.next(waited_for || !sources.are_there())? else {
            thread::sleep(if waited_for { PAUSES[0] } else { PAUSES[1] });
            continue;
        };
        let fetched = match sources.find(number) {
            None => Err(("its remote has no such file".to_owned(), true)),
            Some((which, source, number)) => match source.opened.get() {
                None => Err((source.why(), false)),
                Some((repository, newest)) => {
                    let now = fetcher.take().filter(|(of, _)| *of == which);
                    let (_, now) = fetcher.insert(now.unwrap_or_else(|| (which, Fetcher::new(repository))));
                    mount.fetch(now, newest, (ino, segment), (number, size))
                }
            },
        };
        let failed = fetched.is_err();
        mount.said(ino, segment, fetched)?;
        if failed {
            thread::sleep(AFTER_FAILURE);
        }
    }
}
