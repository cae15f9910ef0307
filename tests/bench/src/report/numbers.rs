//! Numbers as people read them.

use crate::measure::Unit;
use crate::statistics::Spread;

/// A value with its unit.
pub fn value(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Rate if value >= 1e9 => format!("{} GB/s", short(value / 1e9)),
        Unit::Rate => format!("{} MB/s", short(value / 1e6)),
        Unit::Time if value >= 1.0 => format!("{} s", short(value)),
        Unit::Time if value >= 1e-3 => format!("{} ms", short(value * 1e3)),
        Unit::Time => format!("{} µs", short(value * 1e6)),
        Unit::Memory | Unit::Huge => format!("{} MiB", short(value / 1024.0 / 1024.0)),
    }
}

/// Three digits.
fn short(value: f64) -> String {
    let digits = if value >= 99.95 || value == 0.0 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$}")
}

/// A ratio.
pub fn ratio(value: f64) -> String {
    if value >= 99.5 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// A ratio with its span.
pub fn ratios(spread: &Spread) -> String {
    format!("{} ({}–{})", ratio(spread.median), ratio(spread.min), ratio(spread.max))
}
