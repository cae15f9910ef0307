//! Which bases and batches there are, and which of them are nobody's.
//!
//! A carrier that was cut off, and lost its remote meanwhile, may find the number of its next batch free again: those
//! who took the remote over have gone on, and their garbage collection has removed what a base makes needless. It
//! takes such a batch back ([`Repository::put_batch`]), unless it is killed in between; then it is a *stray*, which no
//! tree is read from.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::place::Listed;
use crate::repository::Repository;
use crate::repository::names::{BASES, LOG, batch_name, number_in};

/// What is there, by numbers.
#[derive(Debug, Default)]
pub struct Listing {
    /// The bases, the oldest one first.
    pub bases: Vec<(u64, Listed)>,
    /// The batches, as well, without strays.
    pub batches: Vec<(u64, Listed)>,
    /// Batches that are nobody's.
    pub strays: Vec<u64>,
}

impl Listing {
    /// The numbers of the bases.
    pub fn bases(&self) -> impl Iterator<Item = u64> {
        self.bases.iter().map(|(number, _)| *number)
    }

    /// The number of the first batch; beyond all if there is none.
    pub fn first(&self) -> u64 {
        self.batches.first().map_or(u64::MAX, |(number, _)| *number)
    }

    /// The number of the last batch; 0 if there is none.
    pub fn last(&self) -> u64 {
        self.batches.last().map_or(0, |(number, _)| *number)
    }
}

impl Repository {
    /// All bases and batches.
    pub fn listing(&self) -> Result<Listing> {
        let list = |directory| -> Result<Vec<(u64, Listed)>> {
            let mut all = Vec::new();
            self.place().list(directory, |found| all.extend(number_in(&found.name).map(|number| (number, found))))?;
            all.sort_unstable_by_key(|(number, _)| *number);
            Ok(all)
        };
        let (bases, mut batches) = (list(BASES)?, list(LOG)?);
        let strays = strays(&bases, &batches);
        batches.retain(|(number, _)| !strays.contains(number));
        Ok(Listing { bases, batches, strays: strays.into_iter().collect() })
    }

    /// The name of what others have put who went on without a batch: a base of its number or a later one, or a later
    /// batch.
    pub(super) fn later(&self, number: u64) -> Result<Option<String>> {
        let mut later = None;
        self.place().list(BASES, |found| {
            if number_in(&found.name).is_some_and(|at| at >= number) {
                later = Some(found.name);
            }
        })?;
        if later.is_none() {
            self.place().list_after(LOG, &batch_name(number), |found| {
                if number_in(&found.name).is_some_and(|at| at > number) {
                    later = Some(found.name);
                }
            })?;
        }
        Ok(later)
    }
}

/// The batches that were put when the oldest base was there, and lead to none: what is between is not there. What is
/// older than the base is history of which something is missing.
fn strays(bases: &[(u64, Listed)], batches: &[(u64, Listed)]) -> BTreeSet<u64> {
    let Some((base, found)) = bases.first() else { return BTreeSet::new() };
    let mut strays = BTreeSet::new();
    let (mut leads, mut next) = (true, None);
    for (number, batch) in batches.iter().rev().skip_while(|(number, _)| number > base) {
        leads &= number == next.get_or_insert(*base);
        next = Some(number.saturating_sub(1));
        if !leads && batch.put >= found.put {
            strays.insert(*number);
        }
    }
    // One that has the base's own number leads to it only by that.
    let own = batches.iter().position(|(number, _)| number == base);
    if let Some(own) =
        own.filter(|own| own.checked_sub(1).is_none_or(|before| batches[before].0.saturating_add(1) < *base))
    {
        strays.extend((batches[own].1.put > found.put).then_some(*base));
    }
    strays
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stray_is_younger_than_the_base_that_it_does_not_lead_to() {
        let listed = |all: &[(u64, i64)]| -> Vec<(u64, Listed)> {
            all.iter().map(|(number, put)| (*number, Listed { name: String::new(), size: 1, put: *put })).collect()
        };
        for (bases, batches, expected) in [
            (&[][..], &[(3, 9), (5, 9)][..], &[][..]),
            (&[(8, 50)], &[(9, 60), (10, 70)], &[]),
            (&[(8, 50)], &[(3, 80), (9, 60)], &[3]),
            (&[(8, 50)], &[(1, 50)], &[1]),
            (&[(8, 50)], &[(7, 80), (9, 60)], &[7]),
            (&[(8, 50)], &[(8, 80), (9, 60)], &[8]),
            (&[(8, 50), (12, 60)], &[(1, 80), (9, 80), (11, 80)], &[1]),
            // What is left by a collection that ended, what a store has lost, and what was copied with other times.
            (&[(8, 50)], &[(6, 30), (7, 40), (8, 45), (9, 60)], &[]),
            (&[(8, 50)], &[(1, 10), (2, 20), (8, 45)], &[]),
            (&[(8, 50)], &[(6, 90), (7, 90), (8, 90), (9, 90)], &[]),
        ] {
            let strays: Vec<u64> = strays(&listed(bases), &listed(batches)).into_iter().collect();
            assert_eq!(strays, expected, "{bases:?} {batches:?}");
        }
    }
}
