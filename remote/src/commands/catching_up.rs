//! How a remote catches up with its pool, told to whoever waits for it: by the bytes that it is behind, as the pool's
//! carrier notes them (E14).

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::carry::Note;
use crate::commands::show;

/// Between two looks at what a carrier notes as it works.
const EVERY: Duration = Duration::from_secs(1);

/// What is told, until it ends.
pub struct CatchingUp(Mutex<Option<Come>>);

/// How far it has come since it was looked first.
struct Come {
    bar: show::Bar,
    done: u64,
    /// Bytes that it was behind when it was looked last.
    behind: Option<u64>,
    looked: Option<Instant>,
}

impl Default for CatchingUp {
    fn default() -> Self {
        let bar = show::Bar::new("carried", show::Unit::Bytes);
        Self(Mutex::new(Some(Come { bar, done: 0, behind: None, looked: None })))
    }
}

impl CatchingUp {
    fn come(&self) -> MutexGuard<'_, Option<Come>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is so many bytes behind.
    pub fn is(&self, behind: u64) {
        if let Some(come) = &mut *self.come() {
            come.is(behind);
        }
    }

    /// Looks at what is noted in a pool of this uuid, if some time has passed.
    pub fn look(&self, (pool, uuid): (&Path, &str)) {
        let mut come = self.come();
        let wants = |come: &&mut Come| come.looked.is_none_or(|when| when.elapsed() >= EVERY);
        let Some(come) = come.as_mut().filter(wants) else { return };
        come.looked = Some(Instant::now());
        // Whoever is told of it does without, if it cannot be read just now.
        if let Ok(Some(note)) = Note::of(pool, uuid) {
            come.is(note.pace.behind.bytes);
        }
    }

    /// Says something that is no progress, on lines of its own.
    pub fn beside(&self, say: impl FnOnce()) {
        match &*self.come() {
            Some(come) => come.bar.beside(say),
            None => say(),
        }
    }

    /// Nothing is told from now on; the last of it is that all is there, if it is.
    pub fn end(&self, is_all: bool) {
        if let Some(mut come) = self.come().take().filter(|_| is_all) {
            come.is(0);
        }
    }
}

impl Come {
    /// What is behind comes to be less as it is carried, and more as others write.
    fn is(&mut self, behind: u64) {
        let before = self.behind.replace(behind).unwrap_or(behind);
        self.done = self.done.saturating_add(before.saturating_sub(behind));
        self.bar.show(self.done, self.done.saturating_add(behind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves E18.
    #[test]
    fn what_comes_beside_makes_it_more_and_never_less() {
        let all = CatchingUp::default();
        let shown = || all.come().as_ref().map(|come| (come.done, come.done + come.behind.unwrap_or(0)));
        let is = [100, 60, 60, 90, 0, 50, 20].map(|behind| {
            all.is(behind);
            shown().unwrap()
        });
        assert_eq!(is, [(0, 100), (40, 100), (40, 100), (40, 130), (130, 130), (130, 180), (160, 180)]);
        all.end(true);
        all.is(7);
        assert_eq!(shown(), None);
    }
}
