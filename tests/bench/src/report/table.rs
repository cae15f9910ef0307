//! Figures beside one another: ratios, and whether goals are reached.

use serde::Serialize;

use super::Report;
use super::numbers::{self, ratio};
use crate::measure::{Goal, Measure, Must, Row};
use crate::measures;
use crate::outcome::Figure;
use crate::statistics::Spread;
use crate::target::{Kind, PEERS};

/// A figure with what follows from it.
#[derive(Serialize)]
pub struct Line<'a> {
    #[serde(skip)]
    pub figure: &'a Figure,
    pub measure: &'static str,
    pub row: &'static str,
    pub title: &'static str,
    pub place: String,
    pub target: Kind,
    pub spread: Spread,
    /// Speed beside the bare directory.
    pub ratio: Option<Spread>,
    pub verdicts: Vec<Verdict>,
}

/// A goal, and what came of it.
#[derive(Serialize)]
pub struct Verdict {
    pub goal: String,
    pub reached: bool,
    /// What was reached, in the goal's terms.
    pub value: String,
}

/// A row of a measure with all its lines.
pub struct Table<'a> {
    pub measure: &'static Measure,
    pub row: &'static Row,
    pub lines: Vec<Line<'a>>,
}

/// All figures, in the order of the measures.
pub fn tables(report: &Report) -> Vec<Table<'_>> {
    let mut tables = Vec::new();
    for measure in measures::all() {
        for row in measure.rows {
            let of_row = |figure: &&Figure| figure.measure == measure.id && figure.row == row.id;
            let lines: Vec<_> =
                report.figures.iter().filter(of_row).filter_map(|f| line(report, measure, row, f)).collect();
            if !lines.is_empty() {
                tables.push(Table { measure, row, lines });
            }
        }
    }
    tables
}

/// The lines of all [`tables`], in one list.
pub fn lines(report: &Report) -> Vec<Line<'_>> {
    tables(report).into_iter().flat_map(|table| table.lines).collect()
}

/// Where a figure was measured.
pub fn place(figure: &Figure) -> String {
    format!("{}{}", figure.backing, if figure.pinned { ", pinned" } else { "" })
}

fn line<'a>(report: &'a Report, measure: &'static Measure, row: &'static Row, figure: &'a Figure) -> Option<Line<'a>> {
    let beside = |kind: Kind| {
        report.figures.iter().find(|other| {
            (&other.measure, &other.row, other.backing, other.pinned, other.target)
                == (&figure.measure, &figure.row, figure.backing, figure.pinned, kind)
        })
    };
    let against = |kind: Kind| Spread::ratio(&figure.rounds, &beside(kind)?.rounds, row.unit.more_is_better());
    let spread = Spread::of(figure.rounds.iter().copied())?;
    let verdicts = row.goals.iter().filter(|goal| goal.target == figure.target && goal.on.contains(&figure.backing));
    let verdicts = verdicts.filter_map(|goal| verdict(goal, report, row, &spread, &against, &beside));
    Some(Line {
        figure,
        measure: measure.id,
        row: row.id,
        title: row.title,
        place: place(figure),
        target: figure.target,
        spread,
        ratio: if figure.target == Kind::Native { None } else { against(Kind::Native) },
        verdicts: verdicts.collect(),
    })
}

/// None if the goal has nothing to be held against.
fn verdict<'a>(
    goal: &Goal,
    report: &Report,
    row: &Row,
    spread: &Spread,
    against: &dyn Fn(Kind) -> Option<Spread>,
    beside: &dyn Fn(Kind) -> Option<&'a Figure>,
) -> Option<Verdict> {
    let at_least = |least: f64, whom: &str, value: f64| Verdict {
        goal: format!("≥ {least} × {whom}"),
        reached: value >= least,
        value: ratio(value),
    };
    let at_most = |most: f64, what: &str, value: f64| Verdict {
        goal: format!("≤ {}{what}", numbers::value(most, row.unit)),
        reached: value <= most,
        value: numbers::value(value.max(0.0), row.unit),
    };
    Some(match goal.must {
        Must::Native(least) => at_least(least, "native", against(Kind::Native)?.median),
        Must::Ancestor(least) => at_least(least, "libpmemobj", against(Kind::Ancestor)?.median),
        Must::Peer(least) => {
            // The best peer is the one beside which we look worst.
            let worst = PEERS.iter().filter_map(|peer| against(*peer)).map(|spread| spread.median).reduce(f64::min)?;
            at_least(least, "best peer", worst)
        }
        Must::AtMost(most) => at_most(most, "", spread.median),
        Must::Above(most) => {
            let native = Spread::of(beside(Kind::Native)?.rounds.iter().copied())?;
            at_most(most, " above native", spread.median - native.median)
        }
        Must::AtMostFull(most) => report.scale.full.then(|| at_most(most, "", spread.median))?,
    })
}
