//! What the numbers in a tensor are like.

use std::io;
use std::ops::ControlFlow;

use crate::tensors::listed::Listed;
use crate::tensors::numbers::{Decoder, Number};
use crate::tensors::tensor_file::TensorFile;

/// Bars of the histogram.
const BINS: usize = 12;

/// What two passes over a tensor tell. Minimum, maximum, mean and deviation are those of the finite numbers.
pub struct Statistics {
    totals: Totals,
    spread: Spread,
}

impl Statistics {
    /// Reads the tensor twice, or once if none of its numbers is finite.
    pub fn of(file: &TensorFile, tensor: &Listed, decoder: Decoder) -> io::Result<Statistics> {
        let mut totals = Totals::default();
        each(file, tensor, decoder, &mut |number| totals.add(number))?;
        let mut spread = Spread::new(&totals);
        if totals.finite() > 0 {
            each(file, tensor, decoder, &mut |number| spread.add(number))?;
        }
        Ok(Statistics { totals, spread })
    }

    /// All elements.
    pub fn count(&self) -> u64 {
        self.totals.count
    }

    /// Elements that are NaN.
    pub fn nan(&self) -> u64 {
        self.totals.nan
    }

    /// Elements that are infinite.
    pub fn infinite(&self) -> u64 {
        self.totals.infinite
    }

    /// Elements that are neither.
    pub fn finite(&self) -> u64 {
        self.totals.finite()
    }

    /// Elements that are zero.
    pub fn zeroes(&self) -> u64 {
        self.totals.zeroes
    }

    /// Minimum and maximum.
    pub fn extremes(&self) -> Option<(Number, Number)> {
        self.totals.extremes
    }

    /// The mean.
    pub fn mean(&self) -> Option<f64> {
        self.totals.mean()
    }

    /// The standard deviation.
    pub fn deviation(&self) -> Option<f64> {
        self.spread.deviation(&self.totals)
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
fn each(file: &TensorFile, tensor: &Listed, decoder: Decoder, visit: &mut dyn FnMut(Number)) -> io::Result<()> {
    // Pieces are whole elements: their size divides what is read at a time.
    file.bytes(tensor)?.each(&mut |bytes| {
        decoder.each(bytes, &mut *visit);
        ControlFlow::Continue(())
    })
}

/// What one pass tells. Minimum, maximum and sum are those of the finite numbers.
#[derive(Default)]
struct Totals {
    count: u64,
    nan: u64,
    infinite: u64,
    zeroes: u64,
    extremes: Option<(Number, Number)>,
    sum: Sum,
}

impl Totals {
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
    fn new(totals: &Totals) -> Self {
        let (low, high) = totals.extremes.map_or((0.0, 1.0), |(low, high)| (low.real(), high.real()));
        let (low, high) = if low == high { (low - 0.5, high + 0.5) } else { (low, high) };
        // Halves first: the whole width may be more than there is.
        let step = high / BINS as f64 - low / BINS as f64;
        let mut edges = std::array::from_fn(|index| low + index as f64 * step);
        edges[BINS] = high;
        Spread { mean: totals.mean().unwrap_or(0.0), squares: Sum::default(), edges, counts: [0; BINS] }
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

    fn deviation(&self, totals: &Totals) -> Option<f64> {
        (totals.finite() > 0).then(|| (self.squares.total() / totals.finite() as f64).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[f64]) -> (Totals, Spread) {
        let mut totals = Totals::default();
        numbers.iter().for_each(|&x| totals.add(Number::Real(x)));
        let mut spread = Spread::new(&totals);
        numbers.iter().for_each(|&x| spread.add(Number::Real(x)));
        (totals, spread)
    }

    #[test]
    fn leaves_out_what_is_not_finite() {
        let (totals, spread) = of(&[1.0, f64::NAN, 3.0, f64::INFINITY, 0.0, f64::NEG_INFINITY]);
        assert_eq!((totals.count, totals.nan, totals.infinite, totals.zeroes), (6, 1, 2, 1));
        assert_eq!(totals.extremes, Some((Number::Real(0.0), Number::Real(3.0))));
        assert_eq!(totals.mean(), Some(4.0 / 3.0));
        assert_eq!(spread.counts.iter().sum::<u64>(), 3);
    }

    #[test]
    fn survives_extremes() {
        let (totals, spread) = of(&[f64::MAX, f64::MIN, 0.0]);
        assert_eq!(totals.mean(), Some(0.0));
        assert_eq!(spread.counts.iter().sum::<u64>(), 3);
        let (totals, spread) = of(&[]);
        assert_eq!((totals.mean(), spread.deviation(&totals)), (None, None));
        assert_eq!(of(&[5.0, 5.0]).1.counts.iter().sum::<u64>(), 2);
        let (totals, _) = of(&[1e16, 1.0, -1e16]);
        assert_eq!(totals.sum.total(), 1.0);
    }
}
