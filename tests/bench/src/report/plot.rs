//! Plots: a family's speeds beside the bare directory, as SVG.
//!
//! A line for each row and place; a point for each target at its median ratio, with a bar from the worst round to the
//! best; the goal as a tick. The axis is logarithmic, as half as fast and twice as fast are equally far from 1.

use std::fmt::Write;

use clap::ValueEnum;

use super::Report;
use super::table::{Line, Table, tables};
use crate::measure::{Family, Must};
use crate::target::Kind;

const LEFT: f64 = 380.0;
const WIDTH: f64 = 620.0;
const STEP: f64 = 20.0;
const TOP: f64 = 56.0;
const LEAST: f64 = 1.0 / 32.0;
const MOST: f64 = 32.0;

/// File name and SVG of each family that has ratios.
pub fn plots(report: &Report) -> Vec<(String, String)> {
    let tables = tables(report);
    let plot = |family: &Family| {
        let of_family: Vec<_> = tables.iter().filter(|table| table.measure.family == *family).collect();
        svg(&of_family).map(|svg| (file_name(*family), svg))
    };
    Family::value_variants().iter().filter_map(plot).collect()
}

pub fn file_name(family: Family) -> String {
    format!("{}.svg", family.to_possible_value().expect("a name").get_name())
}

fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Native => "#000000",
        Kind::Tensorfs => "#0b62c4",
        Kind::Close => "#17a2b8",
        Kind::Write => "#6f42c1",
        Kind::Server => "#7fb2ef",
        Kind::LatencyOff => "#2e8b57",
        Kind::Bindfs => "#e08a00",
        Kind::Mergerfs => "#c0392b",
        Kind::Ancestor => "#8d6e63",
    }
}

/// None without ratios.
fn svg(tables: &[&Table]) -> Option<String> {
    let mut body = String::new();
    let mut kinds: Vec<Kind> = Vec::new();
    let mut y = TOP;
    for table in tables {
        let mut places: Vec<&str> = table.lines.iter().map(|line| line.place.as_str()).collect();
        places.dedup();
        for place in places {
            let lines: Vec<&Line> =
                table.lines.iter().filter(|line| line.place == place && line.ratio.is_some()).collect();
            if lines.is_empty() {
                continue;
            }
            y += STEP;
            let label = escape(&format!("{}: {place}", table.row.title));
            let _ =
                writeln!(body, r#"<text x="{:.0}" y="{:.1}" text-anchor="end">{label}</text>"#, LEFT - 10.0, y + 4.0);
            let _ = writeln!(body, r##"<line x1="{LEFT}" x2="{}" y1="{y}" y2="{y}" stroke="#eee"/>"##, LEFT + WIDTH);
            for line in &lines {
                if !kinds.contains(&line.target) {
                    kinds.push(line.target);
                }
                goal(table, line, y, &mut body);
            }
            // Ours on top.
            lines.iter().rev().for_each(|line| point(line, y, &mut body));
        }
    }
    if kinds.is_empty() {
        return None;
    }
    let (width, height) = (LEFT + WIDTH + 30.0, y + 40.0);
    let mut out = format!(r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}""#);
    out += &format!(
        r#" width="{width}" height="{height}" font-family="sans-serif" font-size="12">
<rect width="{width}" height="{height}" fill="white"/>
"#
    );
    let mut x = 20.0;
    for kind in kinds {
        let name = kind.to_string();
        let _ = writeln!(
            out,
            r#"<circle cx="{x}" cy="16" r="4.5" fill="{}"/><text x="{}" y="20">{name}</text>"#,
            colour(kind),
            x + 10.0
        );
        x += 34.0 + 7.0 * name.len() as f64;
    }
    let _ = writeln!(
        out,
        r##"<line x1="{x}" x2="{x}" y1="9" y2="23" stroke="#444" stroke-width="2"/><text x="{}" y="20">goal</text>"##,
        x + 8.0
    );
    for tick in [1.0 / 32.0, 1.0 / 16.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0] {
        let (x, text) = (across(tick), if tick < 1.0 { format!("1/{}", 1.0 / tick) } else { tick.to_string() });
        let stroke = if tick == 1.0 { "#000" } else { "#ccc" };
        let _ = writeln!(out, r##"<line x1="{x:.1}" x2="{x:.1}" y1="{TOP}" y2="{:.1}" stroke="{stroke}"/>"##, y + 10.0);
        let _ =
            writeln!(out, r##"<text x="{x:.1}" y="{:.1}" text-anchor="middle" fill="#444">{text}</text>"##, TOP - 6.0);
    }
    let _ = writeln!(
        out,
        r##"<text x="{:.0}" y="{:.1}" text-anchor="middle" fill="#444">speed, native = 1</text>"##,
        across(1.0),
        y + 28.0
    );
    Some(out + &body + "</svg>\n")
}

/// Where a ratio is.
fn across(ratio: f64) -> f64 {
    let of = |ratio: f64| ratio.clamp(LEAST, MOST).ln();
    LEFT + WIDTH * (of(ratio) - of(LEAST)) / (of(MOST) - of(LEAST))
}

fn point(line: &Line, y: f64, out: &mut String) {
    let (Some(ratio), colour) = (&line.ratio, colour(line.target)) else { return };
    let (from, to) = (across(ratio.min), across(ratio.max));
    let _ =
        writeln!(out, r#"<line x1="{from:.1}" x2="{to:.1}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>"#);
    let _ = writeln!(out, r#"<circle cx="{:.1}" cy="{y}" r="4.5" fill="{colour}"/>"#, across(ratio.median));
}

/// Goals that are ratios to native have a place on the axis.
fn goal(table: &Table, line: &Line, y: f64, out: &mut String) {
    for goal in
        table.row.goals.iter().filter(|goal| goal.target == line.target && goal.on.contains(&line.figure.backing))
    {
        if let Must::Native(least) = goal.must {
            let x = across(least);
            let _ = writeln!(
                out,
                r##"<line x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{:.1}" stroke="#444" stroke-width="2"/>"##,
                y - 7.0,
                y + 7.0
            );
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
