//! No two entries of a file may claim the same bytes or the same name.

use crate::fault::{Result, malformed, too_much};
use crate::limits::{TENSORS_MAX, push};

/// Parts of a file that must not overlap, and their names, which must differ.
#[derive(Default)]
pub(crate) struct Claims {
    ranges: Vec<(u64, u64)>,
    names: Vec<u64>,
    hasher: std::hash::RandomState,
}

impl Claims {
    pub fn add(&mut self, name: &[u8], start: u64, end: u64) -> Result<()> {
        use std::hash::BuildHasher;
        if self.ranges.len() >= TENSORS_MAX {
            return too_much(format!("more than {TENSORS_MAX} entries"));
        }
        push(&mut self.names, self.hasher.hash_one(name));
        push(&mut self.ranges, (start, end));
        Ok(())
    }

    /// The ranges in order, once it is sure that nothing is claimed twice.
    pub fn settle(&mut self) -> Result<&[(u64, u64)]> {
        self.names.sort_unstable();
        if self.names.windows(2).any(|pair| pair[0] == pair[1]) {
            return malformed("two entries have the same name");
        }
        self.ranges.sort_unstable();
        if self.ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return malformed("entries overlap");
        }
        Ok(&self.ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_exclusive() {
        let claims = |list: &[(&str, u64, u64)]| {
            let mut claims = Claims::default();
            list.iter().for_each(|(name, start, end)| claims.add(name.as_bytes(), *start, *end).unwrap());
            claims.settle().map(<[_]>::len).ok()
        };
        assert_eq!(claims(&[("b", 4, 8), ("a", 0, 4), ("c", 8, 8)]), Some(3));
        assert_eq!(claims(&[("a", 0, 4), ("a", 4, 8)]), None);
        assert_eq!(claims(&[("a", 0, 5), ("b", 4, 8)]), None);
    }
}
