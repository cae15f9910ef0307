//! How much time users' processes may cost the server by being killed.
//!
//! Whether a process that was killed was the only one that had a file open to write is seen by looking at the
//! descriptors of another one, which may have very many. Each user has some time for that, which comes back slowly.
//! Once he has none, nobody looks: who was killed is taken for the writer.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// So much each user has.
const MOST: Duration = Duration::from_secs(1);
/// One second of it comes back in so many.
const SLOWLY: u32 = 10;
/// Of so many users is known how much they have had.
const USERS: usize = 1024;

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
        if !self.has_time(uid, begun) {
            return None;
        }
        let seen = look();
        self.charge(uid, begun.elapsed());
        Some(seen)
    }

    fn has_time(&self, uid: u32, now: Instant) -> bool {
        let mut users = self.0.lock();
        if users.len() >= USERS && !users.contains_key(&uid) {
            users.retain(|_, spent| !spent.left(now).is_zero());
        }
        match users.get(&uid) {
            Some(spent) => spent.left(now) < MOST,
            None => users.len() < USERS,
        }
    }

    fn charge(&self, uid: u32, time: Duration) {
        let now = Instant::now();
        let mut users = self.0.lock();
        let spent = users.entry(uid).or_insert(Spent { time: Duration::ZERO, at: now });
        *spent = Spent { time: spent.left(now) + time, at: now };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_cost_a_second_costs_no_more_until_some_time_has_passed() {
        let allowance = Allowance::default();
        allowance.charge(1000, MOST * 2);
        assert_eq!(allowance.spend(1000, || ()), None);
        assert_eq!(allowance.spend(1001, || 7), Some(7));
        let later = Instant::now() + MOST * (SLOWLY - 1);
        assert!(!allowance.has_time(1000, later) && allowance.has_time(1000, later + MOST * 2));
    }

    #[test]
    fn users_that_are_known_have_a_bound() {
        let allowance = Allowance::default();
        (0..USERS as u32).for_each(|uid| allowance.charge(uid, MOST));
        assert_eq!(allowance.spend(USERS as u32, || ()), None);
        assert!(allowance.has_time(USERS as u32, Instant::now() + MOST * SLOWLY));
        assert!(allowance.0.lock().is_empty());
    }
}
