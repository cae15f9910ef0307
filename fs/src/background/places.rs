//! Places of those who have files moved. The movers are few and take as long as they like, so whoever asks waits; how
//! many may, is bounded, and nobody takes all of it.

use std::collections::HashMap;
use std::sync::Arc;

use log::Level;
use parking_lot::Mutex;

use crate::error::{Fault, Result};
use crate::workers::share;

/// So many moves may wait or be under way. No user has more than half of those that are free.
const MOST: usize = 4096;

/// The places of a mount.
#[derive(Default)]
pub(super) struct Places(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    all: usize,
    by_user: HashMap<u32, usize>,
}

/// A place, until it is dropped.
pub(crate) struct Place {
    taken: Arc<Mutex<Taken>>,
    uid: u32,
}

impl Places {
    /// A place for a user, or `EAGAIN`.
    pub fn take(&self, uid: u32) -> Result<Place> {
        let mut taken = self.0.lock();
        let all = taken.all;
        let own = taken.by_user.entry(uid).or_default();
        if all >= MOST || *own >= share(MOST, all) {
            if *own == 0 {
                taken.by_user.remove(&uid);
            }
            let why = "too many files wait to be moved already; try again later";
            return Err(Fault { level: Level::Debug, ..Fault::warn(libc::EAGAIN, why) });
        }
        *own += 1;
        taken.all += 1;
        Ok(Place { taken: self.0.clone(), uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        taken.all -= 1;
        if let Some(own) = taken.by_user.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                taken.by_user.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_for(places: &Places, uid: u32) -> Vec<Place> {
        std::iter::from_fn(|| places.take(uid).ok()).collect()
    }

    /// Proves B10.
    #[test]
    fn one_user_leaves_places_for_the_next() {
        let places = Places::default();
        let first = all_for(&places, 1000);
        assert_eq!(first.len(), 1365, "a third: half of what is free then");
        assert_eq!(places.take(1000).err().map(|fault| fault.errno), Some(libc::EAGAIN));
        let second = all_for(&places, 1001);
        assert_eq!(second.len(), 910);
        assert!(all_for(&places, 1002).len() > 600);
        drop(first);
        assert!(places.take(1000).is_ok() && places.take(1001).is_ok());
        drop(second);
        let taken = places.0.lock();
        assert!(taken.all == 0 && taken.by_user.is_empty());
    }

    /// Proves B10.
    #[test]
    fn there_are_no_more_places_however_many_users_there_are() {
        let places = Places::default();
        let held: Vec<Place> = (0..2 * MOST as u32).filter_map(|uid| places.take(uid).ok()).collect();
        assert_eq!(held.len(), MOST);
        assert_eq!(places.0.lock().by_user.len(), MOST, "who has no place is not remembered");
    }
}
