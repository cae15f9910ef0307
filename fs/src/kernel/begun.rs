//! A request between its arrival and its answer: how long that takes is counted, and told to whoever looks.

use std::time::{Duration, Instant, SystemTime};

use tensorfs_layout::Ino;

use crate::caller::Caller;
use crate::content::control::is_trace;
use crate::store::{Counters, Requests, Traced};
use crate::waits::{self, Notes};

use super::filesystem::Filesystem;

/// What is asked, and where it is counted.
pub(super) type Kind = (&'static str, fn(&Counters) -> &Requests);

/// A request that has come, and is to be answered.
pub(super) struct Begun {
    at: Instant,
    kind: Kind,
    /// If somebody looks.
    seen: Option<Box<Seen>>,
}

/// What there is to tell of it so far.
struct Seen {
    traced: Traced,
    started: bool,
}

impl Begun {
    /// A request of this kind has come, about a file or a name in a directory.
    pub fn new(fs: &Filesystem, kind: Kind, caller: Caller, (about, name): (Ino, Option<&[u8]>)) -> Self {
        // Looking is not told of.
        let seen = (fs.is_traced() && !is_trace(about)).then(|| {
            let traced = Traced {
                at: SystemTime::now(),
                kind: kind.0,
                process: caller.program(),
                uid: caller.uid,
                about,
                name: name.map(Into::into),
                queued: Duration::ZERO,
                took: Duration::ZERO,
                notes: Notes::default(),
            };
            Box::new(Seen { traced, started: false })
        });
        Self { at: Instant::now(), kind, seen }
    }

    /// This thread works on it from now on.
    pub fn start(&mut self) {
        if let Some(seen) = &mut self.seen {
            waits::take();
            if !std::mem::replace(&mut seen.started, true) {
                seen.traced.queued = self.at.elapsed();
            }
        }
    }

    /// Another thread goes on with it.
    pub fn hand_on(&mut self) {
        if let Some(seen) = &mut self.seen {
            seen.traced.notes = seen.traced.notes.and(waits::take());
        }
    }

    /// It was answered, or is about to be.
    pub fn answered(mut self, fs: &Filesystem) {
        let took = self.at.elapsed();
        (self.kind.1)(fs.store().counters()).answered(took);
        self.hand_on();
        if let Some(seen) = self.seen {
            fs.store().trace().saw(&Traced { took, ..seen.traced });
        }
    }
}
