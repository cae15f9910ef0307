//! The tables of docs/benchmarks/RESULTS.md.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::ValueEnum;

use super::numbers::{ratios, value};
use super::table::{self, Line, Table};
use super::{Report, plot};
use crate::measure::Family;
use crate::target::Kind;

/// Everything, with the plots if there are any.
pub fn markdown(report: &Report, plots: Option<&[(String, String)]>) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = tell(report, plots, &mut out);
    out
}

fn tell(report: &Report, plots: Option<&[(String, String)]>, out: &mut String) -> std::fmt::Result {
    writeln!(out, "# Results\n")?;
    writeln!(
        out,
        "Written by `{}` in {:.0} s; [../BENCHMARKS.md](../BENCHMARKS.md) says how to read it.\n",
        format!("tensorfs-bench {}", report.command).trim_end(),
        report.seconds
    )?;
    for (name, value) in &report.machine {
        writeln!(out, "* {name}: {value}")?;
    }
    let tables = table::tables(report);
    goals(&tables, out)?;
    for family in Family::value_variants() {
        let of_family: Vec<_> = tables.iter().filter(|table| table.measure.family == *family).collect();
        if of_family.is_empty() {
            continue;
        }
        let help = family.to_possible_value().and_then(|value| Some(value.get_help()?.to_string())).unwrap_or_default();
        writeln!(out, "\n## {help}\n")?;
        let plot = plot::file_name(*family);
        if plots.is_some_and(|plots| plots.iter().any(|(name, _)| *name == plot)) {
            writeln!(out, "![{help}: speed beside the bare directory]({plot})\n")?;
        }
        let mut last = "";
        for table in of_family {
            if table.measure.id != last {
                writeln!(out, "`{}`: {}\n", table.measure.id, table.measure.how)?;
                last = table.measure.id;
            }
            beside(table, out)?;
        }
    }
    counts(&tables, out)?;
    if !report.left.is_empty() {
        writeln!(out, "\n## Left out\n")?;
        for left in &report.left {
            writeln!(out, "* {}: {}{}", left.what, if left.failed { "FAILED: " } else { "" }, left.reason)?;
        }
    }
    Ok(())
}

/// The goals, those that are missed first.
fn goals(tables: &[Table], out: &mut String) -> std::fmt::Result {
    let lines = || tables.iter().flat_map(|table| &table.lines);
    let verdicts = || lines().flat_map(|line| line.verdicts.iter().map(move |verdict| (line, verdict)));
    let reached = verdicts().filter(|(_, verdict)| verdict.reached).count();
    let missed = verdicts().count() - reached;
    writeln!(out, "\n## Goals\n\n{reached} reached, {missed} missed.\n")?;
    if missed > 0 {
        writeln!(out, "| missed | where | goal | reached |\n|---|---|---|---:|")?;
        for (line, verdict) in verdicts().filter(|(_, verdict)| !verdict.reached) {
            writeln!(
                out,
                "| {} ({}) | {} | {} | {} |",
                line.title, line.target, line.place, verdict.goal, verdict.value
            )?;
        }
    }
    Ok(())
}

/// A row of a measure: places down, targets across.
fn beside(table: &Table, out: &mut String) -> std::fmt::Result {
    let mut places: Vec<&str> = table.lines.iter().map(|line| line.place.as_str()).collect();
    places.dedup();
    let kinds: Vec<Kind> = table
        .measure
        .targets
        .iter()
        .copied()
        .filter(|kind| table.lines.iter().any(|line| line.target == *kind))
        .collect();
    write!(out, "| **{}** |", table.row.title)?;
    kinds.iter().try_for_each(|kind| write!(out, " {kind} |"))?;
    write!(out, " goal |\n|---|")?;
    kinds.iter().try_for_each(|_| write!(out, "---:|"))?;
    writeln!(out, "---|")?;
    for place in places {
        let at = |kind: Kind| table.lines.iter().find(|line| line.place == place && line.target == kind);
        write!(out, "| {place} |")?;
        kinds
            .iter()
            .try_for_each(|kind| write!(out, " {} |", at(*kind).map(|line| cell(table, line)).unwrap_or_default()))?;
        let verdicts = kinds.iter().filter_map(|kind| at(*kind)).flat_map(|line| &line.verdicts);
        let verdicts: Vec<_> = verdicts
            .map(|v| if v.reached { format!("{}: yes", v.goal) } else { format!("{}: **no**", v.goal) })
            .collect();
        writeln!(out, " {} |", verdicts.join("; "))?;
    }
    writeln!(out)
}

/// A median, and its ratio to native.
fn cell(table: &Table, line: &Line) -> String {
    let median = value(line.spread.median, table.row.unit);
    line.ratio.as_ref().map_or(median.clone(), |ratio| format!("{median}, {}", ratios(ratio)))
}

/// Requests and syncs for each operation, where they were counted.
fn counts(tables: &[Table], out: &mut String) -> std::fmt::Result {
    // All rows of a measure are counted together.
    let mut counted: Vec<(&str, &Line)> = Vec::new();
    for table in tables {
        for line in table.lines.iter().filter(|line| !line.figure.counts.is_empty() && !line.figure.pinned) {
            if line.row == table.measure.rows[0].id {
                counted.push((table.measure.id, line));
            }
        }
    }
    if counted.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n## Counted for each operation\n")?;
    writeln!(
        out,
        "What the server counted in a round, divided by the number of operations; a file that is created is also \
        removed, and a small file also replaced.\n"
    )?;
    writeln!(out, "| measure | where | target | counted |\n|---|---|---|---|")?;
    for (measure, line) in counted {
        writeln!(out, "| `{measure}` | {} | {} | {} |", line.place, line.target, list(&line.figure.counts))?;
    }
    Ok(())
}

/// What happens at least once in a hundred operations, most often first.
fn list(counts: &BTreeMap<String, f64>) -> String {
    let mut counts: Vec<_> = counts.iter().filter(|(_, count)| **count >= 0.01).collect();
    counts.sort_by(|a, b| b.1.total_cmp(a.1));
    let texts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count:.2}")).collect();
    texts.join(", ")
}
