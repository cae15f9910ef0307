//! On a full host: how many segments have to go before it is worth trying again to make the log longer. A try writes
//! what there is room for, and gives it back.

use parking_lot::Mutex;

/// So many at first, and twice as many after each try that was in vain.
const FIRST: usize = 64;
/// That doubles so often.
const DOUBLED: u32 = 10;

/// How often the host had no room for a longer log, and what it got back since.
#[derive(Debug, Default)]
pub(super) struct Patience(Mutex<Tries>);

#[derive(Debug, Default)]
struct Tries {
    in_vain: u32,
    removed: usize,
}

impl Patience {
    /// The host had no room.
    pub fn refuse(&self) {
        let mut tries = self.0.lock();
        *tries = Tries { in_vain: tries.in_vain.saturating_add(1).min(DOUBLED + 1), removed: 0 };
    }

    /// It had.
    pub fn end(&self) {
        *self.0.lock() = Tries::default();
    }

    /// So many segments were removed: true if that is worth a try. So it is when all of them are that can be.
    pub fn is_over(&self, removed: usize, was_last: bool) -> bool {
        let mut tries = self.0.lock();
        tries.removed += removed;
        let over = was_last || tries.removed >= FIRST << tries.in_vain.saturating_sub(1);
        if over {
            tries.removed = 0;
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each lot of removed segments, of which there may be thousands, had the whole of it tried again.
    #[test]
    fn the_more_tries_were_in_vain_the_more_has_to_go_before_the_next() {
        let patience = Patience::default();
        let mut tries = 0;
        patience.refuse();
        for _ in 0..1000 {
            if patience.is_over(64, false) {
                tries += 1;
                patience.refuse();
            }
        }
        assert!((5..=12).contains(&tries), "{tries} tries");
        assert!(patience.is_over(1, true), "there is no more to come");
        patience.end();
        assert!(patience.is_over(64, false));
    }
}
