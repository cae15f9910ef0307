//! How much time users may cost the server by having it look at the descriptors of their processes.
//!
//! Whether a process that was killed was the only one that had a file open to write, and whether one that closes a file
//! has it open once more, is seen by looking at descriptors, of which a process may have very many. Each user has some
//! time for that, which comes back slowly. Once he has none, nobody looks.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// So much each user has.
const MOST: Duration = Duration::from_secs(5);
/// So much of it is taken when a look begins: of those that begin at the same time not all may go on for long.
const EACH: Duration = Duration::from_millis(100);
/// One second of it comes back in so many.
const SLOWLY: u32 = 10;
/// Of so many users is known how much they have had; what there are more have it together.
const USERS: usize = 1024;
const OTHERS: u32 = u32::MAX;

/// What users have had.
#[derive(Default)]
pub(super) struct Allowance(Mutex<HashMap<u32, Spent>>);

#[derive(Clone, Copy)]
struct Spent {
    time: Duration,
    at: Instant,
}

impl Spent {
    /// What of it has not come back.
    fn left(self, now: Instant) -> Duration {
        self.time.saturating_sub(now.duration_since(self.at) / SLOWLY)
    }
}

impl Allowance {
    /// Does something at the cost of a user, if he has time left, and returns what came of it.
    pub fn spend<T>(&self, uid: u32, look: impl FnOnce() -> T) -> Option<T> {
        let begun = Instant::now();
        let user = self.begin(uid, begun)?;
        let seen = look();
        self.end(user, begun.elapsed());
        Some(seen)
    }

    /// As whom a user begins a look, if he has time for it.
    fn begin(&self, uid: u32, now: Instant) -> Option<u32> {
        let mut users = self.0.lock();
        if users.len() >= USERS && !users.contains_key(&uid) {
            users.retain(|_, spent| !spent.left(now).is_zero());
        }
        let user = if users.len() >= USERS && !users.contains_key(&uid) { OTHERS } else { uid };
        let spent = users.entry(user).or_insert(Spent { time: Duration::ZERO, at: now });
        let time = spent.left(now);
        if time >= MOST {
            return None;
        }
        *spent = Spent { time: time + EACH, at: now };
        Some(user)
    }

    /// What he took as he began is put right.
    fn end(&self, user: u32, took: Duration) {
        let now = Instant::now();
        let mut users = self.0.lock();
        let spent = users.entry(user).or_insert(Spent { time: EACH, at: now });
        *spent = Spent { time: (spent.left(now) + took).saturating_sub(EACH), at: now };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Allowance {
        fn charge(&self, uid: u32, time: Duration) {
            self.0.lock().insert(uid, Spent { time, at: Instant::now() });
        }
    }

    #[test]
    fn who_has_used_his_time_up_costs_no_more_until_some_has_come_back() {
        let allowance = Allowance::default();
        allowance.charge(1000, MOST * 2);
        assert_eq!(allowance.spend(1000, || ()), None);
        assert_eq!(allowance.spend(1001, || 7), Some(7));
        let later = Instant::now() + MOST * (SLOWLY - 1);
        assert!(allowance.begin(1000, later).is_none());
        assert!(allowance.begin(1000, later + MOST * 2).is_some());
    }

    #[test]
    fn of_looks_that_begin_together_not_all_have_time() {
        let allowance = Allowance::default();
        let now = Instant::now();
        assert_eq!((0..1000).filter(|_| allowance.begin(1000, now).is_some()).count(), 50);
        (0..50).for_each(|_| allowance.end(1000, Duration::ZERO));
        assert!(allowance.begin(1000, Instant::now()).is_some(), "they took none");
    }

    #[test]
    fn users_beyond_those_that_are_known_have_some_together() {
        let allowance = Allowance::default();
        (0..USERS as u32).for_each(|uid| allowance.charge(uid, MOST));
        assert_eq!(allowance.spend(USERS as u32, || 1), Some(1));
        allowance.charge(OTHERS, MOST * 2);
        assert_eq!(allowance.spend(USERS as u32 + 1, || 1), None);
        assert!(allowance.begin(USERS as u32, Instant::now() + MOST * 2 * SLOWLY).is_some());
        assert_eq!(allowance.0.lock().len(), 1);
    }
}
