//! Where a record of a file's bytes comes from: which transaction made them part of the file, and when.

use crate::ids::TxId;
use crate::time::Timestamp;

/// The transaction that made the bytes of a run part of their file, and when that was. Stays with the run when it is
/// sealed, moved to another tier, or carried to another block of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The transaction. 0 of a record that is about to be stored: the number is filled in with that of its frame.
    pub(crate) transaction: u64,
    /// Nanoseconds since 1970-01-01 00:00 UTC; 0 if nothing is known.
    pub(crate) nanoseconds: i64,
}

impl Origin {
    /// What is stored now, at this time.
    pub fn at(time: Timestamp) -> Self {
        let nanoseconds = time.sec.saturating_mul(1_000_000_000).saturating_add(i64::from(time.nsec));
        // What is known is told from what is not by its time.
        Self { transaction: 0, nanoseconds: if nanoseconds == 0 { 1 } else { nanoseconds } }
    }

    /// The transaction, and when. None for bytes that a version recorded which did not note it, or that a recovery or
    /// a repair found.
    pub fn known(&self) -> Option<(TxId, Timestamp)> {
        let nsec = self.nanoseconds.rem_euclid(1_000_000_000) as u32;
        let time = Timestamp::new(self.nanoseconds.div_euclid(1_000_000_000), nsec);
        self.is_known().then_some((TxId(self.transaction), time))
    }

    pub(crate) fn is_known(&self) -> bool {
        self.nanoseconds != 0
    }

    /// True if the number of its transaction is to be filled in.
    pub(crate) fn is_of_this_frame(&self) -> bool {
        self.is_known() && self.transaction == 0
    }

    /// As it is once it is stored.
    #[must_use]
    pub(crate) fn stored(self, id: TxId) -> Self {
        if self.is_of_this_frame() { Self { transaction: id.0, ..self } } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_are_read_back() {
        for time in [Timestamp::new(-1, 999_999_999), Timestamp::new(-7, 1), Timestamp::new(1_700_000_000, 5)] {
            assert_eq!(Origin::at(time).stored(TxId(9)).known(), Some((TxId(9), time)));
        }
        assert!(Origin::at(Timestamp::default()).is_known());
        assert_eq!(Origin::default().stored(TxId(9)).known(), None);
    }
}
