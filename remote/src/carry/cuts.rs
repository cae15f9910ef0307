//! Where the parts of a file begin and end.
//!
//! A part begins and ends where a tensor does that is not too small. What stands between two of them is cut as it was
//! before, so that what a file has grown by is a part of its own; and the last parts are joined while they do not get
//! shorter by half from one to the next. So a file that grows has few parts, and each of its bytes is put a few times.

use tensorfs_layout::tree::FileChain;

use crate::carry::content::PART_MAX;
use crate::repository::Part;

/// Tensors that are shorter share a part with what is next to them.
const PART_MIN: u64 = 64 << 10;

/// Tensors that are not too small: where they begin, and where they end, in the order of where they begin.
pub fn tensors(chain: &FileChain) -> Vec<(u64, u64)> {
    let ranges = chain.tensors().map(|entry| entry.tensor.range()).filter(|(_, len)| *len >= PART_MIN);
    let mut tensors: Vec<(u64, u64)> = ranges.map(|(start, len)| (start, start.saturating_add(len))).collect();
    tensors.sort_unstable();
    tensors
}

/// Where the parts of the first `end` bytes of a file end, ascending, and `end` the last; given its tensors, and the
/// parts that it had before. One that is too long is cut once more, as it is read.
pub fn ends(tensors: &[(u64, u64)], end: u64, before: &[Part]) -> Vec<u64> {
    let edges = tensors.iter().flat_map(|(start, end)| [*start, *end]);
    let mut edges: Vec<u64> = edges.filter(|edge| *edge > 0 && *edge < end).chain([end]).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut earlier = ends_of(before).peekable();
    let mut tensors = tensors.iter().peekable();
    let (mut ends, mut start, mut covered_to) = (Vec::new(), 0, 0);
    for edge in edges {
        while let Some((_, end)) = tensors.next_if(|(first, _)| *first <= start) {
            covered_to = covered_to.max(*end);
        }
        while earlier.next_if(|end| *end <= start).is_some() {}
        let first = ends.len();
        if covered_to < edge {
            ends.extend(std::iter::from_fn(|| earlier.next_if(|end| *end < edge)));
        }
        ends.push(edge);
        join(&mut ends, first, start);
        start = edge;
    }
    ends
}

/// Joins the last of the parts that end at `ends[first..]`, and of which the first begins at `start`.
fn join(ends: &mut Vec<u64>, first: usize, start: u64) {
    while let [.., before, end] = ends[first..] {
        let begin = if ends.len() - first > 2 { ends[ends.len() - 3] } else { start };
        let (one, last) = (before - begin, end - before);
        if one >= last.saturating_mul(2) || one + last > PART_MAX {
            break;
        }
        ends.remove(ends.len() - 2);
    }
}

/// Where parts end.
fn ends_of(parts: &[Part]) -> impl Iterator<Item = u64> {
    parts.iter().scan(0_u64, |at, part| {
        *at = at.saturating_add(part.len());
        Some(*at)
    })
}

/// How many of the parts that a file had, from the first one on, are parts of it still, if its first `same` bytes
/// are what they were; and where the last of them ends.
pub fn kept(before: &[Part], same: u64, ends: &[u64]) -> (usize, u64) {
    let (mut count, mut at, mut ends, mut start) = (0, 0_u64, ends.iter().copied().peekable(), 0);
    for (place, part) in before.iter().enumerate() {
        let end = at.saturating_add(part.len());
        while let Some(next) = ends.next_if(|end| *end <= at) {
            start = next;
        }
        // Where a hole begins and ends, and where a long part is cut, no part of the plan does.
        let beside_hole = [Some(part), before.get(place + 1)].iter().flatten().any(|part| part.hash().is_none());
        let is_one = |next: u64| end == next || end < next && (beside_hole || (end - start).is_multiple_of(PART_MAX));
        if end > same || !ends.peek().is_some_and(|next| is_one(*next)) {
            break;
        }
        (count, at) = (count + 1, end);
    }
    (count, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::Hash;

    fn parts(lens: &[u64]) -> Vec<Part> {
        lens.iter().map(|len| Part::Alone((*len, Hash::of(&len.to_le_bytes())))).collect()
    }

    fn lens(ends: &[u64]) -> Vec<u64> {
        let starts = [0].iter().chain(ends);
        starts.zip(ends).map(|(start, end)| end - start).collect()
    }

    #[test]
    fn what_is_new_is_cut_at_tensors_alone() {
        assert_eq!(ends(&[], 900 << 20, &[]), [900 << 20]);
        assert_eq!(ends(&[(100, 200_000), (200_000, 400_000)], 500_000, &[]), [100, 200_000, 400_000, 500_000]);
        // One within another one, and one that ends behind the file.
        assert_eq!(ends(&[(0, 400), (100, 200), (300, 900)], 500, &parts(&[50, 50, 350])), [100, 200, 300, 400, 500]);
        assert_eq!(ends(&[], 0, &[]), [0]);
    }

    #[test]
    fn what_a_file_has_grown_by_is_a_part_of_its_own() {
        let (mut had, mut size, mut put) = (parts(&[40 << 20]), 40 << 20, 0);
        for _ in 0..400 {
            size += 100_000;
            let now = ends(&[], size, &had);
            let (count, at) = kept(&had, size, &now);
            put += size - at;
            assert!(now.len() <= count + 1 && now.len() < 12, "{now:?}");
            had = parts(&lens(&now));
        }
        // 38 MiB, of which each byte was put so often; the 40 MiB once more at most.
        assert!(put < (40 << 20) * 8, "{put}");
        assert_eq!(had.iter().map(Part::len).sum::<u64>(), size);
    }

    #[test]
    fn a_file_that_grows_for_ever_has_parts_that_are_not_short() {
        let (mut had, mut size, mut put) = (Vec::new(), 0, 0);
        for _ in 0..4000 {
            size += 1_000_000;
            let now = ends(&[], size, &had);
            put += size - kept(&had, size, &now).1;
            had = parts(&lens(&now));
        }
        assert!(had.len() < 4000 / 32 + 8 && put < size * 8, "{} {put}", had.len());
        assert!(had.iter().all(|part| part.len() <= PART_MAX));
    }

    #[test]
    fn tensors_that_come_behind_are_cut_at_their_edges() {
        // What was the end of the file stands between two tensors by now.
        let had = parts(&[100_000, 50_000, 20_000]);
        let now = ends(&[(0, 100_000), (180_000, 280_000)], 281_000, &had);
        assert_eq!(now, [100_000, 150_000, 170_000, 180_000, 280_000, 281_000]);
        assert_eq!(kept(&had, 170_000, &now), (3, 170_000));
        assert_eq!(kept(&had, 120_000, &now), (1, 100_000));
        assert_eq!(kept(&had, 0, &now), (0, 0));
    }

    #[test]
    fn long_parts_and_holes_are_kept() {
        let (long, hole) = (PART_MAX, 3 << 20);
        let mut had = parts(&[long, long, 5 << 20]);
        assert_eq!(kept(&had, 2 * long + (5 << 20), &ends(&[], 2 * long + (9 << 20), &had)), (2, 2 * long));
        had.insert(2, Part::Zeroes((hole,)));
        let whole = 2 * long + hole + (5 << 20);
        // As a tensor, with a hole in it.
        assert_eq!(kept(&had, whole, &ends(&[(0, whole)], whole, &had)), (4, whole));
    }
}
