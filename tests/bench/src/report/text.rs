//! For the terminal.

use std::fmt::Write;

use super::numbers::{ratios, value};
use super::{Report, table};

/// A block for each row of a measure, a line for each place and target.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = tell(report, &mut out);
    out
}

fn tell(report: &Report, out: &mut String) -> std::fmt::Result {
    let (mut reached, mut missed) = (0, Vec::new());
    for table in table::tables(report) {
        writeln!(out, "{} [{}]", table.row.title, table.measure.id)?;
        let mut last = String::new();
        for line in &table.lines {
            let place = if line.place == last { "" } else { &line.place };
            let (median, unit) = (value(line.spread.median, table.row.unit), table.row.unit);
            let span = format!("{} .. {}", value(line.spread.min, unit), value(line.spread.max, unit));
            let ratio = line.ratio.as_ref().map(ratios).unwrap_or_default();
            write!(out, "  {place:22} {:17} {median:>10}  {span:26} {ratio:20}", line.target)?;
            for verdict in &line.verdicts {
                let mark = if verdict.reached { "reached" } else { "MISSED" };
                write!(out, "  {} {mark}", verdict.goal)?;
                if verdict.reached {
                    reached += 1;
                } else {
                    missed.push(format!("{}, {}: {}, not {}", line.title, line.place, verdict.value, verdict.goal));
                }
            }
            out.truncate(out.trim_end().len());
            writeln!(out)?;
            last.clone_from(&line.place);
        }
        writeln!(out)?;
    }
    for left in &report.left {
        writeln!(out, "{}: {}: {}", if left.failed { "FAILED" } else { "SKIPPED" }, left.what, left.reason)?;
    }
    for line in &missed {
        writeln!(out, "missed: {line}")?;
    }
    writeln!(out, "{reached} goals reached, {} missed, in {:.0} s", missed.len(), report.seconds)
}
