//! `tensorfs records`: the chain of a file, record by record.

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tensorfs_layout::{Timestamp, TxId};

use crate::cli;
use crate::show::colours::Colours;
use crate::show::failure::Failure;
use crate::show::{clock, output, size, table, text};
use crate::tensors::place::{Kind, Place};
use crate::tensors::recorded::{FileRecord, Recorded};

/// Tensors that are named in a row.
const NAMED: usize = 3;
/// How often a file that is followed is looked at.
const PAUSE: Duration = Duration::from_millis(200);

const TITLES: [&str; 7] = ["OFFSET", "LENGTH", "KIND", "TX", "WHEN (UTC)", "STATE", "CRC32C"];

/// Runs the command.
pub fn run(arguments: &cli::Records) -> Result<ExitCode, Failure> {
    let printer = Printer { json: arguments.json, colours: Colours::of_stdout() };
    let mut failed = false;
    for path in &arguments.paths {
        match Place::of(path).and_then(|place| Ok((recorded(&place)?, place))) {
            Ok(((file, recorded), place)) => {
                printer.all(place.path(), &recorded)?;
                if arguments.follow {
                    printer.follow(&place, &file, recorded)?;
                }
            }
            Err(failure) => {
                output::complain(failure);
                failed = true;
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn recorded(place: &Place) -> Result<(File, Recorded), Failure> {
    if place.about(true)?.kind() != Kind::File {
        return Err(Failure::at(place.path(), "not a file"));
    }
    let file = place.open()?;
    match place.recorded(&file)? {
        Some(recorded) => Ok((file, recorded)),
        None => Err(Failure::at(place.path(), "not on a tensorfs mount, and in no pool")),
    }
}

struct Printer {
    json: bool,
    colours: Colours,
}

impl Printer {
    fn all(&self, path: &Path, recorded: &Recorded) -> Result<(), Failure> {
        if self.json {
            return self.lines(path, recorded.records());
        }
        let rows: Vec<_> = recorded.records().iter().map(cells).collect();
        let widths = widths(&rows);
        let titles = table::line(&TITLES.map(str::to_owned), &widths, "WHAT");
        output::print(&format!("{}\n", self.colours.faint(titles.trim_end())))?;
        for (record, cells) in recorded.records().iter().zip(&rows) {
            output::print(&table::line(cells, &widths, &what(record)))?;
        }
        let count = text::count(rows.len() as u64, "record", "records");
        let (path, size) = (text::plain(&path.to_string_lossy()), size::humane(recorded.size()));
        output::print(&format!("{path}: {}, {count}, {size}\n", recorded.state().name()))
    }

    fn lines(&self, path: &Path, records: &[FileRecord]) -> Result<(), Failure> {
        for record in records {
            output::print(&format!("{}\n", describe(path, record)))?;
        }
        Ok(())
    }

    /// Prints records as they come, and those that were extended once more, until the file is gone or nobody reads
    /// what is printed.
    fn follow(&self, place: &Place, file: &File, mut known: Recorded) -> Result<(), Failure> {
        // One that is removed goes on to exist while it is open, and another one may have its name by then.
        while place.is_still(file) && output::is_read() {
            std::thread::sleep(PAUSE);
            let Some(now) = place.recorded(file)? else { return Ok(()) };
            let place_of = |record: &FileRecord| (record.offset, record.len, record.origin);
            let same =
                now.records().iter().zip(known.records()).take_while(|(new, old)| place_of(new) == place_of(old));
            let new = &now.records()[same.count()..];
            if self.json {
                self.lines(place.path(), new)?;
            } else {
                let rows: Vec<_> = new.iter().map(cells).collect();
                let widths = widths(&rows);
                for (record, cells) in new.iter().zip(&rows) {
                    output::print(&table::line(cells, &widths, &what(record)))?;
                }
            }
            known = now;
        }
        Ok(())
    }
}

fn widths(rows: &[[String; 7]]) -> [usize; 7] {
    let longest = |column: usize| rows.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
    std::array::from_fn(|column| match longest(column) {
        0 if column == TITLES.len() - 1 => 0,
        longest => longest.max(TITLES[column].len()),
    })
}

fn cells(record: &FileRecord) -> [String; 7] {
    [
        record.offset.to_string(),
        record.len.to_string(),
        kind(record).into(),
        record.origin.map_or_else(|| "-".into(), |(TxId(id), _)| id.to_string()),
        record.origin.map_or_else(|| "-".into(), |(_, time)| clock::utc(time.sec).trim_end_matches(" UTC").to_owned()),
        state(record).into(),
        record.seal.as_ref().map_or_else(String::new, |seal| format!("{:08x}", seal.crc)),
    ]
}

/// A tensor record is one in which tensors were recognised.
fn kind(record: &FileRecord) -> &'static str {
    let has_tensors = record.seal.as_ref().is_some_and(|seal| seal.tensors().next().is_some());
    if has_tensors { "tensor" } else { "data" }
}

fn state(record: &FileRecord) -> &'static str {
    match record {
        FileRecord { provisional: true, .. } => "provisional",
        FileRecord { seal: Some(_), .. } => "sealed",
        FileRecord { durable: true, .. } => "committed",
        _ => "open",
    }
}

/// What was recognised in a record.
fn what(record: &FileRecord) -> String {
    let Some(seal) = &record.seal else { return String::new() };
    let format = seal.summary().map(|summary| summary.format.name().to_owned());
    let mut names: Vec<_> = seal.tensors().map(|entry| text::plain(&entry.tensor.label())).collect();
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    format.into_iter().chain((!names.is_empty()).then(|| names.join(", "))).collect::<Vec<_>>().join(": ")
}

fn describe(path: &Path, record: &FileRecord) -> serde_json::Value {
    let time = |time: Timestamp| time.sec as f64 + f64::from(time.nsec) / 1e9;
    let tensors = record.seal.iter().flat_map(|seal| seal.tensors());
    let tensors: Vec<_> = tensors
        .map(|entry| {
            let (tensor, (offset, len)) = (&entry.tensor, entry.tensor.range());
            let crc = entry.crc.map(|crc| format!("{crc:08x}"));
            json!({"name": tensor.name_text(), "step": tensor.step, "offset": offset, "len": len, "crc32c": crc})
        })
        .collect();
    let line = json!({
        "offset": record.offset,
        "len": record.len,
        "kind": kind(record),
        "transaction": record.origin.map(|(TxId(id), _)| id),
        "time": record.origin.map(|(_, at)| time(at)),
        "state": state(record),
        "crc32c": record.seal.as_ref().map(|seal| format!("{:08x}", seal.crc)),
        "format": record.seal.as_ref().and_then(|seal| seal.summary()).map(|summary| summary.format.name()),
        "tensors": tensors,
    });
    text::with_path(line, path)
}
