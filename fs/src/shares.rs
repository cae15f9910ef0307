//! What there is so much of, and no more: everybody who takes some leaves some to the next.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// So much one may have of what there is so much of, while so much is taken: half of what is free, so that there is
/// always some left for the next one until as many have some as there is.
pub(crate) fn share(most: usize, taken: usize) -> usize {
    (most.saturating_sub(taken) / 2).max(1)
}

/// So many of something. No user has more than half of those that are free.
#[derive(Debug)]
pub(crate) struct Shares {
    most: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_user: HashMap<u32, usize>,
}

/// Some of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    taken: Arc<Mutex<Taken>>,
    /// Whose they are, if that is known.
    uid: Option<u32>,
    count: usize,
}

impl Shares {
    /// There are so many.
    pub fn new(most: usize) -> Self {
        Self { most, taken: Arc::default() }
    }

    /// One for a user, if there is one for him.
    pub fn take(&self, uid: u32) -> Option<Share> {
        self.take_some(uid, 1)
    }

    /// So many for a user, if there are so many for him. Who has none gets them if there are enough for all.
    pub fn take_some(&self, uid: u32, count: usize) -> Option<Share> {
        let mut taken = self.taken.lock();
        let all = taken.all;
        let own = taken.by_user.get(&uid).copied().unwrap_or(0);
        if all.saturating_add(count) > self.most || own >= share(self.most, all) {
            return None;
        }
        taken.by_user.insert(uid, own + count);
        taken.all += count;
        Some(Share { taken: self.taken.clone(), uid: Some(uid), count })
    }

    /// So many that are taken, whoever has them and however many there are.
    pub fn take_for_nobody(&self, count: usize) -> Share {
        self.taken.lock().all += count;
        Share { taken: self.taken.clone(), uid: None, count }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        taken.all -= self.count;
        let Some(uid) = self.uid else { return };
        if let Some(own) = taken.by_user.get_mut(&uid) {
            *own -= self.count;
            if *own == 0 {
                taken.by_user.remove(&uid);
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

    #[test]
    fn what_nobody_is_known_to_have_leaves_less_for_all() {
        let shares = Shares::new(100);
        let nobodys = shares.take_for_nobody(80);
        assert_eq!(all_for(&shares, 1000).len(), 7);
        let over = shares.take_for_nobody(80);
        assert!(shares.take(1001).is_none());
        drop((nobodys, over));
        assert_eq!(all_for(&shares, 1001).len(), 33);
        assert_eq!(shares.taken.lock().all, 0);
    }

    #[test]
    fn some_at_once_count_as_so_many() {
        let shares = Shares::new(100);
        let first = shares.take_some(1000, 60).unwrap();
        assert!(shares.take_some(1000, 1).is_none(), "more than half of what is left");
        assert!(shares.take_some(1001, 41).is_none());
        assert!(shares.take_some(1001, 40).is_some());
        drop(first);
        assert!(shares.take_some(1001, 41).is_some());
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
