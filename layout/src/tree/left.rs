//! Segments that recovery after a power loss could not bring to agree with their files, so that it left them as they
//! were. Whatever happens to the pool next, they are what a power loss left, and are to be judged so.
//!
//! They are kept as attributes of the root that hold their numbers. Users neither see nor set them, and a program that
//! does not know them passes them by.

use std::collections::HashSet;

use crate::ids::{ROOT, SegmentId};
use crate::log::record::Record;
use crate::tree::view::View;

/// How the names of these attributes begin; a number of four hexadecimal digits or more is behind.
const ATTRIBUTE: &str = "user.tensorfs.left.";

/// So many numbers are in one of them: it has room in the smallest block.
const EACH: usize = 128;

fn name(number: usize) -> Box<[u8]> {
    format!("{ATTRIBUTE}{number:04x}").into_bytes().into()
}

fn numbers(value: &[u8]) -> impl Iterator<Item = SegmentId> {
    let (numbers, _) = value.as_chunks::<8>();
    numbers.iter().map(|number| SegmentId(u64::from_le_bytes(*number)))
}

impl View {
    fn left(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let of_root = self.object(ROOT).into_iter().flat_map(|root| root.xattrs());
        of_root.filter(|(name, _)| name.starts_with(ATTRIBUTE.as_bytes()))
    }

    /// The segments that are as a power loss left them.
    pub(crate) fn left_by_power_loss(&self) -> HashSet<SegmentId> {
        self.left().flat_map(|(_, value)| numbers(value)).collect()
    }

    /// The records that say that these are, and no others. Of the first ones alone too many are, and none too few.
    pub(crate) fn leave_to_power_loss(&self, segments: &HashSet<SegmentId>) -> Vec<Record> {
        if *segments == self.left_by_power_loss() {
            return Vec::new();
        }
        let mut sorted: Vec<SegmentId> = segments.iter().copied().collect();
        sorted.sort_unstable();
        let lots: Vec<&[SegmentId]> = sorted.chunks(EACH).collect();
        let names: Vec<Box<[u8]>> = (0..lots.len()).map(name).collect();
        let gone = self.left().filter(|(old, _)| !names.iter().any(|name| **name == **old));
        let gone = gone.map(|(old, _)| Record::XattrRemoval { ino: ROOT, name: old.into() });
        let value = |lot: &[SegmentId]| lot.iter().flat_map(|segment| segment.0.to_le_bytes()).collect();
        let set = names.iter().zip(&lots).map(|(name, lot)| {
            let (name, value) = (name.clone(), value(lot));
            Record::Xattr { ino: ROOT, name, value }
        });
        set.chain(gone).collect()
    }
}
