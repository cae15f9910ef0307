//! What there is so much of, and no more: everybody who takes some leaves some to the next.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::workers::share;

/// So many of something. No user has more than half of those that are free.
pub(crate) struct Shares {
    most: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_user: HashMap<u32, usize>,
}

/// One of them, until it is dropped.
pub(crate) struct Share {
    taken: Arc<Mutex<Taken>>,
    uid: u32,
}

impl Shares {
    /// There are so many.
    pub fn new(most: usize) -> Self {
        Self { most, taken: Arc::default() }
    }

    /// One for a user, if there is one for him.
    pub fn take(&self, uid: u32) -> Option<Share> {
        let mut taken = self.taken.lock();
        let all = taken.all;
        let own = taken.by_user.get(&uid).copied().unwrap_or(0);
        if all >= self.most || own >= share(self.most, all) {
            return None;
        }
        taken.by_user.insert(uid, own + 1);
        taken.all += 1;
        Some(Share { taken: self.taken.clone(), uid })
    }
}

impl Drop for Share {
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

    fn all_for(shares: &Shares, uid: u32) -> Vec<Share> {
        std::iter::from_fn(|| shares.take(uid)).collect()
    }

    /// Proves B10.
    #[test]
    fn one_user_leaves_some_for_the_next() {
        let shares = Shares::new(4096);
        let first = all_for(&shares, 1000);
        assert_eq!(first.len(), 1365, "a third: half of what is free then");
        assert!(shares.take(1000).is_none());
        let second = all_for(&shares, 1001);
        assert_eq!(second.len(), 910);
        assert!(all_for(&shares, 1002).len() > 600);
        drop(first);
        assert!(shares.take(1000).is_some() && shares.take(1001).is_some());
        drop(second);
        let taken = shares.taken.lock();
        assert!(taken.all == 0 && taken.by_user.is_empty());
    }

    /// Proves B10.
    #[test]
    fn there_are_no_more_however_many_users_there_are() {
        let shares = Shares::new(1000);
        let held: Vec<Share> = (0..2000).filter_map(|uid| shares.take(uid)).collect();
        assert_eq!(held.len(), 1000);
        assert_eq!(shares.taken.lock().by_user.len(), 1000, "who has none is not remembered");
    }
}
