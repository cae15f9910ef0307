//! The table of docs/RELIABILITY.md: what the cells came to, and whether it says so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::cell::{Cell, Outcome};
use super::fault::{FAULTS, Fault, Target};
use super::operation::{OPERATIONS, Operation, There, word};

/// What stands where an operation does not make a call.
const NOT_REACHED: &str = "-";

/// Between words of which any may come out.
const OR: &str = " or ";

/// What is said of a cell.
pub fn entry(operation: Operation, outcome: &Outcome) -> String {
    let heard = match (operation, outcome.heard) {
        (_, Ok(())) if outcome.late => "late".to_owned(),
        (_, Ok(())) => "ok".to_owned(),
        (Operation::Recover, Err(_)) => "refuses".to_owned(),
        (_, Err(_)) => {
            let there = match (operation, &outcome.there) {
                (Operation::Seal | Operation::Move, _) => "kept".to_owned(),
                (_, There::Absent) => "none".to_owned(),
                (_, There::Error(errno)) => word(Err(*errno)),
                (_, other) => format!("{other:?}").to_lowercase(),
            };
            format!("{} {there}", word(outcome.heard))
        }
    };
    let damaged = if outcome.damaged { " damaged" } else { "" };
    let read_only = if outcome.read_only { " ro" } else { "" };
    format!("{heard}{damaged}{read_only}")
}

/// The entries of one table, by row and column. A cell may come out in more than one way.
#[derive(Default)]
pub struct Table(BTreeMap<(Target, Fault), BTreeMap<Operation, BTreeSet<String>>>);

impl Table {
    pub fn add(&mut self, cell: &Cell, outcome: &Outcome) {
        let row = self.0.entry((cell.target, cell.fault)).or_default();
        row.entry(cell.operation).or_default().insert(entry(cell.operation, outcome));
    }

    fn row(&self, target: Target, fault: Fault) -> Vec<String> {
        let row = self.0.get(&(target, fault));
        let said = |operation| {
            let entries = row.and_then(|row| row.get(&operation));
            entries.map_or(NOT_REACHED.into(), |entries| entries.iter().cloned().collect::<Vec<_>>().join(OR))
        };
        OPERATIONS.into_iter().map(said).collect()
    }

    /// As it stands in the document: faults that come to the same share a line.
    pub fn print(&self) -> String {
        let names: Vec<String> = OPERATIONS.iter().map(|operation| operation.name()).collect();
        let mut text = format!("| call | fault | {} |\n|---|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
        for target in self.0.keys().map(|(target, _)| *target).collect::<BTreeSet<_>>() {
            let mut rows: Vec<(Vec<&str>, Vec<String>)> = Vec::new();
            for fault in FAULTS {
                let row = self.row(target, fault);
                match rows.iter_mut().find(|(_, other)| *other == row) {
                    Some((faults, _)) => faults.push(fault.name()),
                    None => rows.push((vec![fault.name()], row)),
                }
            }
            for (faults, row) in rows {
                let faults = if faults.len() == FAULTS.len() { "any".into() } else { faults.join(", ") };
                text += &format!("| {} | {faults} | {} |\n", target.name(), row.join(" | "));
            }
        }
        text
    }
}

/// The tables of the document: by passthrough, target, fault and operation.
pub struct Document(BTreeMap<(bool, String, &'static str, String), Vec<String>>);

impl Document {
    /// None if the document has no table.
    pub fn read() -> Option<Document> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/RELIABILITY.md");
        let text = std::fs::read_to_string(path).unwrap();
        let mut entries = BTreeMap::new();
        for (heading, passthrough) in [("### With passthrough\n", true), ("### Without passthrough\n", false)] {
            let Some((_, rest)) = text.split_once(heading) else { continue };
            for line in rest.lines().skip_while(|line| !line.starts_with("| call")).take_while(|l| l.starts_with('|')) {
                let columns: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
                let [call, faults, rest @ ..] = columns.as_slice() else { continue };
                for fault in FAULTS {
                    if *faults != "any" && !faults.split(", ").any(|name| name == fault.name()) {
                        continue;
                    }
                    for (operation, entry) in OPERATIONS.iter().zip(rest) {
                        let entry = entry.split(OR).map(str::to_owned).collect();
                        entries.insert((passthrough, (*call).to_owned(), fault.name(), operation.name()), entry);
                    }
                }
            }
        }
        (!entries.is_empty()).then_some(Document(entries))
    }

    /// What the document says of a cell, if it is not what came out.
    pub fn contradicts(&self, cell: &Cell, outcome: &Outcome) -> Option<String> {
        let at = (cell.passthrough, cell.target.name(), cell.fault.name(), cell.operation.name());
        let said = self.0.get(&at).map_or(&[][..], Vec::as_slice);
        let came = entry(cell.operation, outcome);
        // What the server does of its own meanwhile may make a call that the operation does not.
        let is_unasked = said == ["-"] && came == "ok";
        (!is_unasked && !said.contains(&came)).then(|| format!("it came to '{came}'; docs/RELIABILITY.md has {said:?}"))
    }
}
