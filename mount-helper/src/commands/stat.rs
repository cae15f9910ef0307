//! `tensorfs stat`: what the numbers in a tensor are like.

use std::fmt::Write;

use serde_json::json;
use tensorfs_formats::Tensor;

use crate::cli::Stat;
use crate::show::colours::Colours;
use crate::show::failure::{At, Failure};
use crate::show::{output, size, table, text};
use crate::tensors::choice;
use crate::tensors::numbers::{Decoder, Number};
use crate::tensors::statistics::Statistics;

/// The longest bar of the histogram, in characters.
const BAR: usize = 40;

/// Runs the command.
pub fn run(arguments: &Stat) -> Result<(), Failure> {
    let path = &arguments.path;
    let (file, listed) = choice::one(path, &arguments.tensor)?;
    let tensor = &listed.tensor;
    let Some(decoder) = Decoder::of(tensor) else {
        return Err(Failure::at(path, format!("{} is no type of numbers", text::plain(&tensor.dtype_text()))));
    };
    let found = Statistics::of(&file, &listed, decoder).at(path)?;
    match arguments.json {
        true => output::print(&format!("{}\n", describe(tensor, &found))),
        false => output::print(&lines(tensor, decoder, &found, Colours::of_stdout())),
    }
}

fn json_number(number: Number) -> serde_json::Value {
    match number {
        Number::Int(n) => i64::try_from(n).map_or_else(|_| json!(n as u64), |n| json!(n)),
        number => json!(number.real()),
    }
}

fn describe(tensor: &Tensor, found: &Statistics) -> serde_json::Value {
    json!({
        "name": tensor.name_text(),
        "dtype": tensor.dtype.name(),
        "shape": tensor.shape,
        "step": tensor.step,
        "mode": tensor.mode.map(|mode| mode.name()),
        "count": found.count(),
        "nan": found.nan(),
        "inf": found.infinite(),
        "zeros": found.zeroes(),
        "min": found.extremes().map(|(low, _)| json_number(low)),
        "max": found.extremes().map(|(_, high)| json_number(high)),
        "mean": found.mean(),
        "std": found.deviation(),
        "histogram": (found.finite() > 0).then(|| json!({"edges": found.edges(), "counts": found.counts()})),
    })
}

fn lines(tensor: &Tensor, decoder: Decoder, found: &Statistics, colours: Colours) -> String {
    let exact = |number: Number| match number {
        Number::Int(n) => n.to_string(),
        number => text::number(number.real()),
    };
    let name = text::plain(&tensor.name_text());
    let at = tensor.step.map(|step| format!(" at step {step}")).unwrap_or_default();
    let what =
        format!("{} {}, {}{at}", text::plain(&tensor.dtype_text()), text::shape(tensor), size::humane(tensor.bytes()));
    let mut out = table::row(&[], &name) + &table::row(&[], &what);
    let share = |count: u64| match count {
        0 => "0".to_owned(),
        count => format!("{count} ({:.2} %)", 100.0 * count as f64 / found.count() as f64),
    };
    let of = if decoder.is_complex() { " of absolute values" } else { "" };
    if let (Some((low, high)), Some(mean), Some(deviation)) = (found.extremes(), found.mean(), found.deviation()) {
        let _ = writeln!(out, "  min    {}{of}", exact(low));
        let _ = writeln!(out, "  max    {}{of}", exact(high));
        let _ = writeln!(out, "  mean   {}{of}", text::number(mean));
        let _ = writeln!(out, "  std    {}{of}", text::number(deviation));
    }
    let _ = writeln!(out, "  zeros  {}", share(found.zeroes()));
    let _ = writeln!(out, "  NaN    {}", share(found.nan()));
    let _ = writeln!(out, "  Inf    {}", share(found.infinite()));
    if found.finite() > 0 {
        let most = found.counts().iter().copied().max().unwrap_or(0).max(1);
        for (bin, &count) in found.counts().iter().enumerate() {
            let len = (count as f64 / most as f64 * BAR as f64).ceil() as usize;
            let bar = format!("{:<BAR$}", "#".repeat(len));
            let _ = writeln!(out, "  {:>12} |{} {count}", text::number(found.edges()[bin]), colours.green(&bar));
        }
        let _ = writeln!(out, "  {:>12} |", text::number(found.edges()[found.counts().len()]));
    }
    out
}
