//! Parts of an array: which elements of the whole they have, and where those stand in a part. Both are row by row.
//!
//! What of a part lies between two elements of the whole stands there in one piece, as both have the same order.

/// A part: its first element in each dimension, and how many it has in each. It has some.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub starts: &'a [u64],
    pub sizes: &'a [u64],
}

impl Part<'_> {
    /// How many elements it has.
    pub fn volume(&self) -> u64 {
        self.sizes.iter().product()
    }

    /// How many of its elements stand in front of the one that is there in the whole.
    pub fn before(&self, at: &[u64]) -> u64 {
        let (mut before, mut inner) = (0, self.volume());
        for ((at, start), size) in at.iter().zip(self.starts).zip(self.sizes) {
            inner /= size;
            match at.checked_sub(*start) {
                None => return before,
                Some(within) if within >= *size => return before + size * inner,
                Some(within) => before += within * inner,
            }
        }
        before
    }

    /// Gives its elements from one to another, in runs that follow each other in the whole, too: the first one's number
    /// there, and how many they are.
    pub fn runs(&self, shape: &[u64], from: u64, to: u64, mut give: impl FnMut(u64, u64)) {
        // As long as it has all of a dimension, the next one goes on.
        let mut run = 1;
        for (size, whole) in self.sizes.iter().zip(shape).rev() {
            run *= size;
            if size != whole {
                break;
            }
        }
        let mut at = from;
        while at < to {
            let count = (run - at % run).min(to - at);
            let (mut rest, mut place, mut step) = (at, 0, 1);
            for ((start, size), whole) in self.starts.iter().zip(self.sizes).zip(shape).rev() {
                place += (start + rest % size) * step;
                (rest, step) = (rest / size, step * whole);
            }
            give(place, count);
            at += count;
        }
    }

    fn meets(&self, other: &Part<'_>) -> bool {
        let dims = self.starts.iter().zip(self.sizes).zip(other.starts.iter().zip(other.sizes));
        { dims }.all(|((start, size), (other, len))| *start < other + len && *other < start + size)
    }
}

/// Where an element of an array is in each dimension.
pub(super) fn place_of(shape: &[u64], element: u64) -> Vec<u64> {
    let (mut at, mut rest) = (vec![0; shape.len()], element);
    for (at, size) in at.iter_mut().zip(shape).rev() {
        (*at, rest) = (rest % size, rest / size);
    }
    at
}

/// True if no two of them have an element together. Those that begin in the same rows are compared with each other.
pub(super) fn are_apart(boxes: &[Part<'_>]) -> bool {
    let mut sorted: Vec<_> = boxes.iter().collect();
    sorted.sort_unstable_by_key(|one| one.starts.first());
    sorted.iter().enumerate().all(|(n, one)| {
        let end = one.starts.first().zip(one.sizes.first()).map(|(start, size)| start + size);
        let near = sorted[n + 1..].iter().take_while(|other| other.starts.first().copied() < end || end.is_none());
        { near }.all(|other| !one.meets(other))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(seed: &mut u32, below: u64) -> u64 {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u64::from(*seed >> 8) % below
    }

    /// Cuts a box in two, again and again.
    fn cut(seed: &mut u32, starts: Vec<u64>, sizes: Vec<u64>, into: &mut Vec<(Vec<u64>, Vec<u64>)>) {
        let dim = numbers(seed, sizes.len().max(1) as u64) as usize;
        if sizes.is_empty() || sizes[dim] < 2 || numbers(seed, 4) == 0 {
            return into.push((starts, sizes));
        }
        let at = 1 + numbers(seed, sizes[dim] - 1);
        let (mut low, mut high, mut behind) = (sizes.clone(), sizes, starts.clone());
        (low[dim], high[dim], behind[dim]) = (at, high[dim] - at, behind[dim] + at);
        cut(seed, starts, low, into);
        cut(seed, behind, high, into);
    }

    /// Arrays of all kinds that are cut to pieces: from each part is taken what belongs between any two elements.
    #[test]
    fn every_element_is_in_one_part() {
        let mut seed = 7;
        for round in 0..300 {
            let shape: Vec<u64> = (0..round % 5).map(|_| 1 + numbers(&mut seed, 6)).collect();
            let count: u64 = shape.iter().product();
            let mut cuts = Vec::new();
            cut(&mut seed, vec![0; shape.len()], shape.clone(), &mut cuts);
            let boxes: Vec<_> = cuts.iter().map(|(starts, sizes)| Part { starts, sizes }).collect();
            assert!(are_apart(&boxes), "{boxes:?}");
            // Each part has the numbers of its elements in it.
            let parts: Vec<Vec<u64>> = { boxes.iter() }
                .map(|one| {
                    let mut elements = Vec::new();
                    one.runs(&shape, 0, one.volume(), |at, count| elements.extend(at..at + count));
                    elements
                })
                .collect();
            for _ in 0..20 {
                let from = numbers(&mut seed, count + 1);
                let to = from + numbers(&mut seed, count + 1 - from);
                let mut read = vec![None; (to - from) as usize];
                for (one, part) in boxes.iter().zip(&parts) {
                    let bound = |at| if at < count { one.before(&place_of(&shape, at)) } else { one.volume() };
                    let (first, end) = (bound(from), bound(to));
                    let mut next = first;
                    one.runs(&shape, first, end, |at, count| {
                        for element in at..at + count {
                            let place = &mut read[(element - from) as usize];
                            assert_eq!((place.replace(()), part[next as usize]), (None, element));
                            next += 1;
                        }
                    });
                    assert_eq!(next, end);
                }
                assert!(read.iter().all(Option::is_some), "{shape:?} {from}..{to} {boxes:?}");
            }
            if let Some(last) = cuts.iter().find(|(_, sizes)| sizes.iter().any(|size| *size > 1)) {
                let half: Vec<u64> = last.1.iter().map(|size| size.div_ceil(2)).collect();
                let twice = [&boxes[..], &[Part { starts: &last.0, sizes: &half }]].concat();
                assert!(!are_apart(&twice), "{twice:?}");
            }
        }
        let (one, two) = (Part { starts: &[], sizes: &[] }, Part { starts: &[2, 0], sizes: &[1, 4] });
        assert!(are_apart(&[one]) && !are_apart(&[one, one]) && are_apart(&[two]) && !are_apart(&[two, two]));
    }
}
