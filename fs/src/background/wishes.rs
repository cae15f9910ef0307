//! Files that somebody has said are to leave for the remote. Who carries the pool asks for them, and has them leave.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorfs_layout::Ino;

use crate::error::{Fault, Result};
use crate::shares::{Share, Shares};

/// So many at most.
const MOST: usize = 16_384;
/// So many are told at a time.
const TOLD: usize = 512;
/// Who carries the pool asks more often than that, or there is nobody.
const ASKED: Duration = Duration::from_secs(120);
/// One that has not left after so long is forgotten.
const AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The files.
pub(crate) struct Wishes {
    places: Shares,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<Ino, Wish>,
    /// The one that was told last: those behind it come next.
    last: Option<Ino>,
    asked: Option<Instant>,
}

/// That a file is to leave.
struct Wish {
    since: Instant,
    _place: Share,
}

impl Default for Wishes {
    fn default() -> Self {
        Self { places: Shares::new(MOST), state: Mutex::default() }
    }
}

impl Wishes {
    /// A file is to leave when it can, as a user says.
    pub fn add(&self, uid: u32, ino: Ino) -> Result<()> {
        let info = |errno, what: &'static str| Fault { level: log::Level::Info, ..Fault::warn(errno, what) };
        let mut state = self.state.lock();
        if state.asked.is_none_or(|asked| asked.elapsed() > ASKED) {
            let what = "nobody carries the pool, as `tensorfs remote carry --watch` does; see `tensorfs tier move`";
            return Err(info(libc::EOPNOTSUPP, what));
        }
        let since = Instant::now();
        if let Some(wish) = state.files.get_mut(&ino) {
            wish.since = since;
            return Ok(());
        }
        let place = self.places.take(uid).ok_or_else(|| info(libc::EAGAIN, "too many wait to leave"))?;
        state.files.insert(ino, Wish { since, _place: place });
        Ok(())
    }

    /// It has left, or is to stay.
    pub fn remove(&self, ino: Ino) {
        self.state.lock().files.remove(&ino);
    }

    /// Somebody carries the pool.
    pub fn heard(&self) {
        self.state.lock().asked = Some(Instant::now());
    }

    /// Some of those that are `wanted` yet, as it is known since when they are, for whoever carries the pool. All have
    /// their turn.
    pub fn told(&self, wanted: impl Fn(Ino, Instant) -> bool) -> Vec<Ino> {
        let state = &mut *self.state.lock();
        state.files.retain(|ino, wish| wish.since.elapsed() < AGE && wanted(*ino, wish.since));
        let last = state.last.unwrap_or_default();
        let behind = state.files.range((Excluded(last), Unbounded)).chain(state.files.range(..=last));
        let told: Vec<Ino> = behind.map(|(ino, _)| *ino).take(TOLD).collect();
        state.last = told.last().copied().or(state.last);
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves M6.
    #[test]
    fn wishes_have_a_bound_and_somebody_who_asks_for_them() {
        let wishes = Wishes::default();
        let errno = |added: Result<()>| added.err().map(|fault| fault.errno);
        assert_eq!(errno(wishes.add(1, Ino(7))), Some(libc::EOPNOTSUPP));
        wishes.heard();
        assert_eq!(wishes.told(|_, _| true), []);
        let added = (1..=MOST as u64).take_while(|n| wishes.add(1, Ino(*n)).is_ok()).count();
        assert!((MOST / 4..MOST).contains(&added), "{added}");
        // What is there is there, and others have places.
        wishes.add(1, Ino(7)).unwrap();
        assert_eq!(errno(wishes.add(1, Ino(1 << 40))), Some(libc::EAGAIN));
        wishes.add(2, Ino(1 << 40)).unwrap();
        wishes.remove(Ino(10));
        wishes.add(1, Ino(1 << 41)).unwrap();
        assert!(!wishes.told(|ino, _| ino.0 > 9).contains(&Ino(9)));
        assert_eq!(errno(wishes.add(1, Ino(9))), None);
    }

    /// Proves M6.
    #[test]
    fn one_that_cannot_leave_keeps_no_other_from_being_told() {
        let wishes = Wishes::default();
        wishes.heard();
        let all: Vec<Ino> = (1..=TOLD as u64 * 2 + 100).map(Ino).collect();
        all.iter().for_each(|ino| wishes.add(1, *ino).unwrap());
        let mut told: Vec<Ino> = (0..3).flat_map(|_| wishes.told(|_, _| true)).collect();
        assert_eq!(told.len(), 3 * TOLD);
        told.sort_unstable();
        told.dedup();
        assert_eq!(told, all);
    }
}
