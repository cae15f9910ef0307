//! Whether parts of an array make up the whole.

use std::collections::{HashMap, HashSet};

/// So many corners are looked at of all tensors of a plan. Beyond that it is counted how many elements there are, and
/// whether two parts begin at the same place.
pub const CORNERS_MAX: usize = 1 << 22;

/// A part: its first element in each dimension, and its elements in each.
pub type Part<'a> = (&'a [u64], &'a [u64]);

/// Whether each element is in just one of the parts.
///
/// A box is told by its corners, each with a sign: where one begins and another ends they cancel each other. So parts
/// that lie apart and fill the whole have its corners left, and others have more.
pub fn make_up(shape: &[u64], parts: &[Part<'_>], left: &mut usize) -> bool {
    let within = |(offsets, sizes): &Part<'_>| {
        let mut dims = offsets.iter().zip(*sizes).zip(shape);
        let fits = dims.all(|((offset, size), whole)| offset.checked_add(*size).is_some_and(|end| end <= *whole));
        offsets.len() == shape.len() && sizes.len() == shape.len() && fits
    };
    let count = |sizes: &[u64]| sizes.iter().try_fold(1_u128, |count, size| count.checked_mul((*size).into()));
    let Some(whole) = count(shape) else { return false };
    // What lies within has no more than the whole.
    if !parts.iter().all(within) || parts.iter().filter_map(|(_, sizes)| count(sizes)).sum::<u128>() != whole {
        return false;
    }
    let parts: Vec<&Part<'_>> = parts.iter().filter(|(_, sizes)| !sizes.contains(&0)).collect();
    // Dimensions that all parts have all of are the same for all.
    let is_divided = |dim: &usize| parts.iter().any(|(_, sizes)| sizes[*dim] != shape[*dim]);
    let divided: Vec<usize> = (0..shape.len()).filter(is_divided).collect();
    let is_few = divided.len() < 20 && parts.len() <= *left >> divided.len();
    *left = left.saturating_sub(if is_few { parts.len() << divided.len() } else { 0 });
    if !is_few {
        return parts.iter().map(|(offsets, _)| offsets).collect::<HashSet<_>>().len() == parts.len();
    }
    let mut corners: HashMap<Vec<u64>, i64> = HashMap::new();
    let mut add = |(offsets, sizes): Part<'_>, sign: i64| {
        for ends in 0_u32..1 << divided.len() {
            let at = |(n, dim): (usize, &usize)| offsets[*dim] + if ends >> n & 1 == 1 { sizes[*dim] } else { 0 };
            let corner = divided.iter().enumerate().map(at).collect();
            *corners.entry(corner).or_default() += if ends.count_ones() % 2 == 0 { sign } else { -sign };
        }
    };
    parts.iter().for_each(|part| add(**part, 1));
    if whole > 0 {
        add((&vec![0; shape.len()], shape), -1);
    }
    corners.values().all(|sum| *sum == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(shape: &[u64], parts: &[(&[u64], &[u64])]) -> bool {
        make_up(shape, parts, &mut CORNERS_MAX.clone())
    }

    #[test]
    fn parts_fill_the_whole_once() {
        assert!(check(&[], &[(&[], &[])]) && check(&[0, 5], &[]) && check(&[3], &[(&[0], &[3])]));
        assert!(check(&[4, 6], &[(&[0, 0], &[2, 6]), (&[2, 0], &[2, 6])]));
        assert!(check(&[4], &[(&[0], &[4]), (&[2], &[0])]), "an empty one is nowhere");
        // Five around one in the middle, in no grid.
        let around: [(&[u64], &[u64]); 5] =
            [(&[0, 0], &[1, 2]), (&[0, 2], &[2, 1]), (&[2, 1], &[1, 2]), (&[1, 0], &[2, 1]), (&[1, 1], &[1, 1])];
        assert!(check(&[3, 3], &around));
        for left_out in 0..5 {
            let mut others = around.to_vec();
            others.remove(left_out);
            assert!(!check(&[3, 3], &others));
        }
    }

    #[test]
    fn as_many_elements_are_not_enough() {
        assert!(!check(&[4], &[(&[0], &[2]), (&[0], &[2])]), "one place twice");
        assert!(!check(&[6], &[(&[0], &[3]), (&[2], &[3])]), "an overlap and a gap");
        assert!(!check(&[2, 2], &[(&[0, 0], &[1, 2]), (&[0, 1], &[2, 1])]));
        assert!(!check(&[4], &[(&[2], &[4])]) && !check(&[4], &[(&[u64::MAX], &[4])]), "outside");
        assert!(!check(&[4], &[(&[0, 0], &[4, 1])]) && !check(&[4], &[(&[], &[4])]), "other dimensions");
        assert!(!check(&[u64::MAX; 3], &[(&[0; 3], &[u64::MAX; 3])]), "more than can be");
    }

    /// Every way of two parts of a small array, against one element after the other.
    #[test]
    fn corners_say_what_elements_say() {
        let spans = [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1)];
        let boxes: Vec<([u64; 2], [u64; 2])> =
            spans.iter().flat_map(|one| spans.iter().map(move |other| ([one.0, other.0], [one.1, other.1]))).collect();
        let mut whole = 0;
        for a in &boxes {
            for b in &boxes {
                for c in &boxes {
                    let all = [a, b, c];
                    let has = |part: &&([u64; 2], [u64; 2]), at: [u64; 2]| {
                        (0..2).all(|dim| (part.0[dim]..part.0[dim] + part.1[dim]).contains(&at[dim]))
                    };
                    let once = |at| all.iter().filter(|part| has(part, at)).count() == 1;
                    let by_elements = (0..9).all(|at| once([at / 3, at % 3]));
                    let parts: Vec<Part<'_>> = all.iter().map(|part| (&part.0[..], &part.1[..])).collect();
                    assert_eq!(check(&[3, 3], &parts), by_elements, "{all:?}");
                    whole += u32::from(by_elements);
                }
            }
        }
        assert!(whole > 0);
    }
}
