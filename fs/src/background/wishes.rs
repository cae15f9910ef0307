//! Files that somebody has said are to leave for the remote. Who carries the pool asks for them, and has them leave.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorfs_layout::Ino;

use crate::error::{Fault, Result};

/// So many at most.
const MOST: usize = 4096;
/// So many are told at a time.
const TOLD: usize = 512;
/// Who carries the pool asks more often than that, or there is nobody.
const ASKED: Duration = Duration::from_secs(120);

/// The files.
#[derive(Default)]
pub(crate) struct Wishes(Mutex<State>);

#[derive(Default)]
struct State {
    files: BTreeSet<Ino>,
    asked: Option<Instant>,
}

impl Wishes {
    /// A file is to leave when it can.
    pub fn add(&self, ino: Ino) -> Result<()> {
        let mut state = self.0.lock();
        if state.asked.is_none_or(|asked| asked.elapsed() > ASKED) {
            let what = "nobody carries the pool, as `tensorfs remote carry --watch` does; see `tensorfs tier move`";
            return Err(Fault { level: log::Level::Info, ..Fault::warn(libc::EOPNOTSUPP, what) });
        }
        if state.files.len() >= MOST && !state.files.contains(&ino) {
            return Err(Fault { level: log::Level::Info, ..Fault::warn(libc::EAGAIN, "too many wait to leave") });
        }
        state.files.insert(ino);
        Ok(())
    }

    /// It has left, or is to stay.
    pub fn remove(&self, ino: Ino) {
        self.0.lock().files.remove(&ino);
    }

    /// Some of those that are `wanted` yet, for whoever carries the pool.
    pub fn told(&self, wanted: impl Fn(Ino) -> bool) -> Vec<Ino> {
        let mut state = self.0.lock();
        state.asked = Some(Instant::now());
        state.files.retain(|ino| wanted(*ino));
        state.files.iter().copied().take(TOLD).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves M6.
    #[test]
    fn wishes_have_a_bound_and_somebody_who_asks_for_them() {
        let wishes = Wishes::default();
        assert_eq!(wishes.add(Ino(7)).err().map(|fault| fault.errno), Some(libc::EOPNOTSUPP));
        assert_eq!(wishes.told(|_| true), []);
        for n in 0..MOST as u64 {
            wishes.add(Ino(n)).unwrap();
        }
        wishes.add(Ino(7)).unwrap();
        assert_eq!(wishes.add(Ino(1 << 40)).err().map(|fault| fault.errno), Some(libc::EAGAIN));
        assert_eq!(wishes.told(|ino| ino.0 > 9).first(), Some(&Ino(10)));
        wishes.remove(Ino(10));
        assert_eq!((wishes.told(|_| true).first(), wishes.told(|_| true).len()), (Some(&Ino(11)), TOLD));
    }
}
