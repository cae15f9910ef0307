//! Requests whose answers may not have been given yet.
//!
//! A request that was read and not answered comes again when the server dies, and the numbers in the log say that it
//! was done. So cleaning keeps the numbers of those that may still be unanswered. A thread answers what it has stored
//! before it stores what another request asks for: the last one of each thread may be such a request, and no other one.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Those of all threads.
static LAST: Mutex<Vec<Weak<AtomicU64>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: Arc<AtomicU64> = {
        let own = Arc::default();
        let mut all = LAST.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&own));
        own
    };
}

/// This thread does what a request of that number asks for, or finds it done, and has not answered it.
pub fn answering(unique: u64) {
    if unique != 0 {
        // A thread that ends has answered.
        let _ = OWN.try_with(|own| own.store(unique, Relaxed));
    }
}

/// The numbers of requests that may be unanswered.
pub(super) fn unanswered() -> HashSet<u64> {
    let numbers = |one: &Weak<AtomicU64>| one.upgrade().map(|one| one.load(Relaxed)).filter(|unique| *unique != 0);
    LAST.lock().iter().filter_map(numbers).collect()
}
