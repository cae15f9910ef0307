//! What the numbers in a tensor are like.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;

use tensorfs_layout::formats::{Tensor, read_tensor};

use crate::tensors::numbers::{Decoder, Number};

/// Bars of the histogram.
const BINS: usize = 12;

/// What two passes over a tensor tell. Minimum, maximum, mean and deviation are those of the finite numbers.
pub struct Statistics {
    summary: Summary,
    spread: Spread,
}

impl Statistics {
    /// Reads the tensor twice, or once if none of its numbers is finite.
    pub fn of(file: &File, tensor: &Tensor, decoder: Decoder) -> io::Result<Statistics> {
        let mut summary = Summary::default();
        each(file, tensor, decoder, &mut |number| summary.add(number))?;
        let mut spread = Spread::new(&summary);
        if summary.finite() > 0 {
            each(file, tensor, decoder, &mut |number| spread.add(number))?;
        }
        Ok(Statistics { summary, spread })
    }

    /// All elements.
    pub fn count(&self) -> u64 {
        self.summary.count
    }

    /// Elements that are NaN.
    pub fn nan(&self) -> u64 {
        self.summary.nan
    }

    /// Elements that are infinite.
    pub fn infinite(&self) -> u64 {
        self.summary.infinite
    }

    /// Elements that are neither.
    pub fn finite(&self) -> u64 {
        self.summary.finite()
    }

    /// Elements that are zero.
    pub fn zeroes(&self) -> u64 {
        self.summary.zeroes
    }

    /// Minimum and maximum.
    pub fn extremes(&self) -> Option<(Number, Number)> {
        self.summary.extremes
    }

    /// The mean.
    pub fn mean(&self) -> Option<f64> {
        self.summary.mean()
    }

    /// The standard deviation.
    pub fn deviation(&self) -> Option<f64> {
        self.spread.deviation(&self.summary)
    }

    /// Where the bars of the histogram begin, and where the last one ends.
    pub fn edges(&self) -> &[f64] {
        &self.spread.edges
    }

    /// How many elements each bar of the histogram stands for.
    pub fn counts(&self) -> &[u64] {
        &self.spread.counts
    }
}

/// Calls `visit` for each element.
fn each(file: &File, tensor: &Tensor, decoder: Decoder, visit: &mut dyn FnMut(Number)) -> io::Result<()> {
    // Pieces are whole elements: their size divides what is read at a time.
    read_tensor(file, tensor, &mut |bytes| {
        decoder.each(bytes, &mut *visit);
        ControlFlow::Continue(())
    })
}

/// What one pass tells. Minimum, maximum and sum are those of the finite numbers.
#[derive(Default)]
struct Summary {
    count: u64,
    nan: u64,
    infinite: u64,
    zeroes: u64,
    extremes: Option<(Number, Number)>,
    sum: Sum,
}

impl Summary {
    fn add(&mut self, number: Number) {
        self.count += 1;
        if number.is_nan() {
            self.nan += 1;
            return;
        }
        if number.is_infinite() {
            self.infinite += 1;
            return;
        }
        let number = if let Number::Complex(..) = number { Number::Real(number.real()) } else { number };
        self.zeroes += u64::from(number.real() == 0.0);
        self.sum.add(number.real());
        let less = |a: Number, b: Number| match (a, b) {
            (Number::Int(a), Number::Int(b)) => a < b,
            (a, b) => a.real() < b.real(),
        };
        let (low, high) = self.extremes.get_or_insert((number, number));
        if less(number, *low) {
            *low = number;
        }
        if less(*high, number) {
            *high = number;
        }
    }

    fn finite(&self) -> u64 {
        self.count - self.nan - self.infinite
    }

    fn mean(&self) -> Option<f64> {
        (self.finite() > 0).then(|| self.sum.total() / self.finite() as f64)
    }
}

/// A sum that does not lose small numbers beside large ones (Neumaier).
#[derive(Default)]
struct Sum {
    sum: f64,
    lost: f64,
}

impl Sum {
    fn add(&mut self, x: f64) {
        let next = self.sum + x;
        self.lost += if self.sum.abs() >= x.abs() { (self.sum - next) + x } else { (x - next) + self.sum };
        self.sum = next;
    }

    fn total(&self) -> f64 {
        let total = self.sum + self.lost;
        if total.is_nan() { self.sum } else { total }
    }
}

/// What a second pass tells: how numbers spread. Bins are those of `numpy.histogram`.
struct Spread {
    mean: f64,
    squares: Sum,
    edges: [f64; BINS + 1],
    counts: [u64; BINS],
}

impl Spread {
    fn new(summary: &Summary) -> Self {
        let (low, high) = summary.extremes.map_or((0.0, 1.0), |(low, high)| (low.real(), high.real()));
        let (low, high) = if low == high { (low - 0.5, high + 0.5) } else { (low, high) };
        // Halves first: the whole width may be more than there is.
        let step = high / BINS as f64 - low / BINS as f64;
        let mut edges = std::array::from_fn(|index| low + index as f64 * step);
        edges[BINS] = high;
        Spread { mean: summary.mean().unwrap_or(0.0), squares: Sum::default(), edges, counts: [0; BINS] }
    }

    fn add(&mut self, number: Number) {
        if !number.is_finite() {
            return;
        }
        let x = number.real();
        self.squares.add((x - self.mean) * (x - self.mean));
        let bin = self.edges[1..BINS].partition_point(|&edge| edge <= x);
        self.counts[bin] += 1;
    }

    fn deviation(&self, summary: &Summary) -> Option<f64> {
        (summary.finite() > 0).then(|| (self.squares.total() / summary.finite() as f64).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[f64]) -> (Summary, Spread) {
        let mut summary = Summary::default();
        numbers.iter().for_each(|&x| summary.add(Number::Real(x)));
        let mut spread = Spread::new(&summary);
        numbers.iter().for_each(|&x| spread.add(Number::Real(x)));
        (summary, spread)
    }

    #[test]
    fn leaves_out_what_is_not_finite() {
        let (summary, spread) = of(&[1.0, f64::NAN, 3.0, f64::INFINITY, 0.0, f64::NEG_INFINITY]);
        assert_eq!((summary.count, summary.nan, summary.infinite, summary.zeroes), (6, 1, 2, 1));
        assert_eq!(summary.extremes, Some((Number::Real(0.0), Number::Real(3.0))));
        assert_eq!(summary.mean(), Some(4.0 / 3.0));
        assert_eq!(spread.counts.iter().sum::<u64>(), 3);
    }

    #[test]
    fn survives_extremes() {
        let (summary, spread) = of(&[f64::MAX, f64::MIN, 0.0]);
        assert_eq!(summary.mean(), Some(0.0));
        assert_eq!(spread.counts.iter().sum::<u64>(), 3);
        let (summary, spread) = of(&[]);
        assert_eq!((summary.mean(), spread.deviation(&summary)), (None, None));
        assert_eq!(of(&[5.0, 5.0]).1.counts.iter().sum::<u64>(), 2);
        let (summary, _) = of(&[1e16, 1.0, -1e16]);
        assert_eq!(summary.sum.total(), 1.0);
    }
}
