//! `tensorfs stat`: what the numbers in a tensor are like.

use std::fmt::Write;
use std::fs::File;
use std::ops::ControlFlow;

use serde_json::json;
use tensorfs_formats::{Tensor, read_tensor};

use crate::cli::Stat;
use crate::failure::{At, Failure};
use crate::numbers::{Decoder, Number};
use crate::selection;
use crate::text::{self, Colours};
use crate::{output, size};

/// Bars of the histogram.
const BINS: usize = 12;
/// The longest bar, in characters.
const BAR: usize = 40;

/// Runs the command.
pub fn run(arguments: &Stat) -> Result<(), Failure> {
    let path = &arguments.path;
    let (file, tensor) = selection::one(path, &arguments.tensor)?;
    let Some(decoder) = Decoder::of(&tensor) else {
        return Err(Failure::at(path, format!("{} is no type of numbers", text::plain(&tensor.dtype_text()))));
    };
    let mut summary = Summary::default();
    each(&file, &tensor, decoder, &mut |number| summary.add(number)).at(path)?;
    let mut shape = Shape::new(&summary);
    if summary.finite() > 0 {
        each(&file, &tensor, decoder, &mut |number| shape.add(number)).at(path)?;
    }
    match arguments.json {
        true => output::print(&format!("{}\n", describe(&tensor, &summary, &shape))),
        false => output::print(&table(&tensor, decoder, &summary, &shape, Colours::of_stdout())),
    }
}

/// Calls `visit` for each element.
fn each(file: &File, tensor: &Tensor, decoder: Decoder, visit: &mut dyn FnMut(Number)) -> std::io::Result<()> {
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
struct Shape {
    mean: f64,
    squares: Sum,
    edges: [f64; BINS + 1],
    counts: [u64; BINS],
}

impl Shape {
    fn new(summary: &Summary) -> Self {
        let (low, high) = summary.extremes.map_or((0.0, 1.0), |(low, high)| (low.real(), high.real()));
        let (low, high) = if low == high { (low - 0.5, high + 0.5) } else { (low, high) };
        // Halves first: the whole width may be more than there is.
        let step = high / BINS as f64 - low / BINS as f64;
        let mut edges = std::array::from_fn(|index| low + index as f64 * step);
        edges[BINS] = high;
        Shape { mean: summary.mean().unwrap_or(0.0), squares: Sum::default(), edges, counts: [0; BINS] }
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

fn json_number(number: Number) -> serde_json::Value {
    match number {
        Number::Int(n) => i64::try_from(n).map_or_else(|_| json!(n as u64), |n| json!(n)),
        number => json!(number.real()),
    }
}

fn describe(tensor: &Tensor, summary: &Summary, shape: &Shape) -> serde_json::Value {
    json!({
        "name": tensor.name_text(),
        "dtype": tensor.dtype.name(),
        "shape": tensor.shape,
        "step": tensor.step,
        "mode": tensor.mode.map(|mode| mode.name()),
        "count": summary.count,
        "nan": summary.nan,
        "inf": summary.infinite,
        "zeros": summary.zeroes,
        "min": summary.extremes.map(|(low, _)| json_number(low)),
        "max": summary.extremes.map(|(_, high)| json_number(high)),
        "mean": summary.mean(),
        "std": shape.deviation(summary),
        "histogram": (summary.finite() > 0).then(|| json!({"edges": shape.edges, "counts": shape.counts})),
    })
}

fn table(tensor: &Tensor, decoder: Decoder, summary: &Summary, shape: &Shape, colours: Colours) -> String {
    let exact = |number: Number| match number {
        Number::Int(n) => n.to_string(),
        number => text::number(number.real()),
    };
    let name = text::plain(&tensor.name_text());
    let at = tensor.step.map(|step| format!(" at step {step}")).unwrap_or_default();
    let what =
        format!("{} {}, {}{at}", text::plain(&tensor.dtype_text()), text::shape(tensor), size::humane(tensor.bytes()));
    let mut out = text::row(&[], &name) + &text::row(&[], &what);
    let share = |count: u64| match count {
        0 => "0".to_owned(),
        count => format!("{count} ({:.2} %)", 100.0 * count as f64 / summary.count as f64),
    };
    let of = if decoder.is_complex() { " of absolute values" } else { "" };
    if let (Some((low, high)), Some(mean), Some(deviation)) =
        (summary.extremes, summary.mean(), shape.deviation(summary))
    {
        let _ = writeln!(out, "  min    {}{of}", exact(low));
        let _ = writeln!(out, "  max    {}{of}", exact(high));
        let _ = writeln!(out, "  mean   {}{of}", text::number(mean));
        let _ = writeln!(out, "  std    {}{of}", text::number(deviation));
    }
    let _ = writeln!(out, "  zeros  {}", share(summary.zeroes));
    let _ = writeln!(out, "  NaN    {}", share(summary.nan));
    let _ = writeln!(out, "  Inf    {}", share(summary.infinite));
    if summary.finite() > 0 {
        let most = shape.counts.iter().copied().max().unwrap_or(0).max(1);
        for (bin, &count) in shape.counts.iter().enumerate() {
            let len = (count as f64 / most as f64 * BAR as f64).ceil() as usize;
            let bar = format!("{:<BAR$}", "#".repeat(len));
            let _ = writeln!(out, "  {:>12} |{} {count}", text::number(shape.edges[bin]), colours.green(&bar));
        }
        let _ = writeln!(out, "  {:>12} |", text::number(shape.edges[BINS]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[f64]) -> (Summary, Shape) {
        let mut summary = Summary::default();
        numbers.iter().for_each(|&x| summary.add(Number::Real(x)));
        let mut shape = Shape::new(&summary);
        numbers.iter().for_each(|&x| shape.add(Number::Real(x)));
        (summary, shape)
    }

    #[test]
    fn leaves_out_what_is_not_finite() {
        let (summary, shape) = of(&[1.0, f64::NAN, 3.0, f64::INFINITY, 0.0, f64::NEG_INFINITY]);
        assert_eq!((summary.count, summary.nan, summary.infinite, summary.zeroes), (6, 1, 2, 1));
        assert_eq!(summary.extremes, Some((Number::Real(0.0), Number::Real(3.0))));
        assert_eq!(summary.mean(), Some(4.0 / 3.0));
        assert_eq!(shape.counts.iter().sum::<u64>(), 3);
    }

    #[test]
    fn survives_extremes() {
        let (summary, shape) = of(&[f64::MAX, f64::MIN, 0.0]);
        assert_eq!(summary.mean(), Some(0.0));
        assert_eq!(shape.counts.iter().sum::<u64>(), 3);
        let (summary, shape) = of(&[]);
        assert_eq!((summary.mean(), shape.deviation(&summary)), (None, None));
        assert_eq!(of(&[5.0, 5.0]).1.counts.iter().sum::<u64>(), 2);
        let (summary, _) = of(&[1e16, 1.0, -1e16]);
        assert_eq!(summary.sum.total(), 1.0);
    }
}
