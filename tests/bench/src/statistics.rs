//! Medians and spreads.

use serde::{Deserialize, Serialize};

/// The middle of several values, and the ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Of the values that are numbers; none if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        Some(Spread { median: median(&values), min, max })
    }

    /// How many times faster `ours` is than `theirs`: the ratio of the medians, with the span of the ratios round by
    /// round.
    pub fn ratio(ours: &[f64], theirs: &[f64], more_is_better: bool) -> Option<Spread> {
        let of = |ours: f64, theirs: f64| if more_is_better { ours / theirs } else { theirs / ours };
        let median = of(Spread::of(ours.iter().copied())?.median, Spread::of(theirs.iter().copied())?.median);
        let rounds = Spread::of(ours.iter().zip(theirs).map(|(ours, theirs)| of(*ours, *theirs)))?;
        median.is_finite().then_some(Spread { median, min: rounds.min, max: rounds.max })
    }
}

/// The middle of sorted values; at least one.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// The median of single operations.
pub fn middle(values: Vec<f64>) -> f64 {
    Spread::of(values).map_or(f64::NAN, |spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(middle(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(middle(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(middle(vec![f64::NAN]).is_nan());
    }

    #[test]
    fn a_ratio_says_how_much_faster_whatever_the_unit() {
        let faster = Spread::ratio(&[2.0, 4.0, 3.0], &[1.0, 1.0, 2.0], true).unwrap();
        assert_eq!(faster, Spread { median: 3.0, min: 1.5, max: 4.0 });
        let slower = Spread::ratio(&[2.0, 4.0, 3.0], &[1.0, 1.0, 2.0], false).unwrap();
        assert_eq!((slower.median, slower.min, slower.max), (1.0 / 3.0, 0.25, 2.0 / 3.0));
        assert_eq!(Spread::ratio(&[1.0], &[0.0], true), None);
    }
}
