//! What there is so much of, and no more: everybody who takes some leaves some to the next.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Who waits for some looks so often whether he still wants them.
const LOOK: Duration = Duration::from_millis(50);

/// So much one may have of what there is so much of, while so much is taken: half of what is free, so that there is
/// always some left for the next one until as many have some as there is.
pub(crate) fn share(most: usize, taken: usize) -> usize {
    (most.saturating_sub(taken) / 2).max(1)
}

/// So many of something. No user has more than half of those that are free.
#[derive(Debug)]
pub(crate) struct Shares {
    most: usize,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    taken: Mutex<Taken>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_user: HashMap<u32, usize>,
}

/// Some of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    shared: Arc<Shared>,
    /// Whose they are, if that is known.
    uid: Option<u32>,
    count: usize,
}

impl Shares {
    /// There are so many.
    pub fn new(most: usize) -> Self {
        Self { most, shared: Arc::default() }
    }

    /// One for a user, if there is one for him.
    pub fn take(&self, uid: u32) -> Option<Share> {
        self.take_some(uid, 1)
    }

    /// So many for a user, if there are so many for him. Who has none gets them if there are enough for all.
    pub fn take_some(&self, uid: u32, count: usize) -> Option<Share> {
        self.take_if_there(Some(uid), count)
    }

    /// So many that are taken, whoever has them and however many there are.
    pub fn take_for_nobody(&self, count: usize) -> Share {
        self.shared.taken.lock().all += count;
        Share { shared: self.shared.clone(), uid: None, count }
    }

    /// So many for a user, or for nobody in particular, once there are so many. Until then `look` is asked now and
    /// then: it says why they are not wanted any more, or whether some may have been given back meanwhile.
    pub fn wait_for<E>(
        &self,
        uid: Option<u32>,
        count: usize,
        mut look: impl FnMut() -> Result<bool, E>,
    ) -> Result<Share, E> {
        loop {
            if let Some(share) = self.take_if_there(uid, count) {
                return Ok(share);
            }
            if !look()? {
                let mut taken = self.shared.taken.lock();
                if !taken.leaves(self.most, uid, count, 0) {
                    self.shared.freed.wait_for(&mut taken, LOOK);
                }
            }
        }
    }

    /// True if there were so many once so many others were given back that nobody in particular has.
    pub fn would_have(&self, uid: Option<u32>, count: usize, given_back: usize) -> bool {
        self.shared.taken.lock().leaves(self.most, uid, count, given_back)
    }

    fn take_if_there(&self, uid: Option<u32>, count: usize) -> Option<Share> {
        let mut taken = self.shared.taken.lock();
        if !taken.leaves(self.most, uid, count, 0) {
            return None;
        }
        if let Some(uid) = uid {
            *taken.by_user.entry(uid).or_default() += count;
        }
        taken.all += count;
        Some(Share { shared: self.shared.clone(), uid, count })
    }
}

impl Taken {
    fn leaves(&self, most: usize, uid: Option<u32>, count: usize, given_back: usize) -> bool {
        let all = self.all.saturating_sub(given_back);
        let own = uid.and_then(|uid| self.by_user.get(&uid).copied()).unwrap_or(0);
        all.saturating_add(count) <= most && (uid.is_none() || own < share(most, all))
    }

    fn take_from(&mut self, uid: Option<u32>, count: usize) {
        if let Some((uid, own)) = uid.and_then(|uid| Some((uid, self.by_user.get_mut(&uid)?))) {
            *own -= count;
            if *own == 0 {
                self.by_user.remove(&uid);
            }
        }
    }
}

impl Share {
    /// Keeps so many of them.
    pub fn shrink_to(&mut self, count: usize) {
        self.give_back(self.count.saturating_sub(count));
    }

    /// They are no user's any more.
    pub fn be_nobodys(&mut self) {
        self.shared.taken.lock().take_from(self.uid.take(), self.count);
    }

    fn give_back(&mut self, count: usize) {
        self.count -= count;
        let mut taken = self.shared.taken.lock();
        taken.all -= count;
        taken.take_from(self.uid, count);
        drop(taken);
        self.shared.freed.notify_all();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.count);
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
        let taken = shares.shared.taken.lock();
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
        assert_eq!(shares.shared.taken.lock().all, 0);
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
        assert_eq!(shares.shared.taken.lock().by_user.len(), 1000, "who has none is not remembered");
    }

    /// Proves B16.
    #[test]
    fn what_is_kept_for_nobody_makes_room() {
        let shares = Shares::new(100);
        let mut kept = shares.take_some(1000, 60).unwrap();
        kept.shrink_to(50);
        assert!(shares.take(1000).is_none());
        kept.be_nobodys();
        assert!(shares.take_some(1000, 50).is_some() && shares.take_some(1000, 51).is_none());
        assert!(shares.would_have(Some(1000), 51, 1) && !shares.would_have(None, 102, 50));
        drop(kept);
        let taken = shares.shared.taken.lock();
        assert!(taken.all == 0 && taken.by_user.is_empty());
    }

    /// Proves B16.
    #[test]
    fn who_waits_for_some_has_them_when_they_are_given_back() {
        let shares = Shares::new(100);
        let mut held = Some(shares.take_for_nobody(100));
        let gone = shares.wait_for(Some(7), 30, || Err::<bool, _>("nobody wants them"));
        assert_eq!(gone.err(), Some("nobody wants them"));
        let had = shares.wait_for(Some(7), 30, || Ok::<_, ()>(held.take().is_some()));
        assert_eq!(had.map(|had| had.count), Ok(30));
        let had = shares.take_for_nobody(100);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| shares.wait_for(None, 100, || Ok::<_, ()>(false)).is_ok());
            drop(had);
            assert!(waits.join().unwrap());
        });
    }
}
