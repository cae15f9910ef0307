//! `tensorfs diff`: which tensors differ between two files, and by how much.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tensorfs_formats::{Location, Mode, Tensor};
use tensorfs_fs::Inspector;

use crate::cli::Diff;
use crate::mounting::foreign;
use crate::show::colours::Colours;
use crate::show::failure::Failure;
use crate::show::{output, table, text};
use crate::tensors::account::Allowance;
use crate::tensors::compare::{Change, compare};
use crate::tensors::listed::Listed;
use crate::tensors::place::Place;
use crate::tensors::tensor_file::TensorFile;

/// As diff(1) has them.
const DIFFERENT: u8 = 1;
const TROUBLE: u8 = 2;

/// Runs the command. What cannot be compared at all is said on standard error.
pub fn run(arguments: &Diff) -> ExitCode {
    match diff(arguments) {
        Ok(code) => code,
        Err(failure) => {
            output::complain(failure);
            ExitCode::from(TROUBLE)
        }
    }
}

/// What tells a tensor from the others in its file: name, step, mode, and how many of that name, step and mode came
/// before.
type Key = (Vec<u8>, Option<i64>, Option<&'static str>, u64);

struct Side {
    file: TensorFile,
    tensors: BTreeMap<Key, Listed>,
}

impl Side {
    fn open(path: &Path, inspector: &Inspector, beyond: &Allowance) -> Result<Side, Failure> {
        foreign::check(path)?;
        let opened = TensorFile::open(&Place::of(path)?, inspector, None, beyond)?;
        let (mut tensors, mut seen) = (BTreeMap::new(), BTreeMap::new());
        opened.tensors(&mut |listed| {
            let tensor = &listed.tensor;
            let name = (tensor.name.clone(), tensor.step, tensor.mode.map(Mode::name));
            let count: &mut u64 = seen.entry(name.clone()).or_default();
            tensors.insert((name.0, name.1, name.2, *count), listed);
            *count += 1;
        })?;
        Ok(Side { file: opened, tensors })
    }

    fn may_have_more(&self) -> bool {
        self.file.trouble().is_some()
    }

    /// What is not there cannot be compared, and is not the same: what of a directory that is.
    fn fault(&self) -> Option<Failure> {
        let (first, rest) = self.file.faults().split_first()?;
        let more = if rest.is_empty() { String::new() } else { format!("; and {} more", rest.len()) };
        Some(Failure::at(self.file.path(), format!("{first}{more}")))
    }
}

fn diff(arguments: &Diff) -> Result<ExitCode, Failure> {
    let (inspector, beyond) = (Inspector::default(), Allowance::default());
    let open = |path| Side::open(path, &inspector, &beyond);
    let (a, b) = (open(&arguments.old)?, open(&arguments.new)?);
    let mut told: Vec<String> = [a.fault(), b.fault()].into_iter().flatten().map(|fault| fault.to_string()).collect();
    told.dedup();
    for fault in &told {
        output::complain(fault);
    }
    // In the order of the old file, then what is only in the new one.
    let mut old: Vec<_> = a.tensors.iter().collect();
    old.sort_by_key(|(_, found)| found.number());
    let mut new: Vec<_> = b.tensors.iter().filter(|(key, _)| !a.tensors.contains_key(*key)).collect();
    new.sort_by_key(|(_, found)| found.number());
    let mut printer = Printer::new(arguments.json);
    for (key, found) in old {
        let tensor = &found.tensor;
        let change = match b.tensors.get(key) {
            // It may be in what cannot be read there, which is told.
            None if b.may_have_more() => {
                printer.not_compared += 1;
                continue;
            }
            None => Ok(Change::Removed),
            Some(other) if a.file.is_missing(found) || b.file.is_missing(other) => {
                // That is told.
                printer.not_compared += 1;
                continue;
            }
            Some(other) if !arguments.bytes && have_equal_checksums(found, other) => Ok(Change::Same),
            Some(other) => compare((&a.file, found), (&b.file, other)),
        };
        match change {
            Ok(change) => printer.add(tensor, &change)?,
            Err(failure) => {
                output::complain(failure);
                printer.not_compared += 1;
            }
        }
    }
    for (_, found) in new {
        if a.may_have_more() {
            printer.not_compared += 1;
        } else {
            printer.add(&found.tensor, &Change::Added)?;
        }
    }
    printer.end()?;
    Ok(match (printer.not_compared > 0 || !told.is_empty(), printer.different > 0) {
        (true, _) => ExitCode::from(TROUBLE),
        (false, true) => ExitCode::from(DIFFERENT),
        (false, false) => ExitCode::SUCCESS,
    })
}

/// True if two tensors of sealed files are the same in all that tells how bytes are read, and their bytes had the same
/// checksums, part by part.
fn have_equal_checksums(a: &Listed, b: &Listed) -> bool {
    let how = |tensor: &Tensor| {
        let raw = matches!(tensor.location, Location::Raw { .. });
        raw.then(|| (tensor.dtype, tensor.descr.clone(), tensor.shape.clone(), tensor.order.clone(), tensor.big_endian))
    };
    !a.checksums.is_empty()
        && a.checksums == b.checksums
        && how(&a.tensor).is_some_and(|a| how(&b.tensor).is_some_and(|b| a == b))
}

struct Printer {
    json: bool,
    colours: Colours,
    out: BufWriter<io::Stdout>,
    same: u64,
    different: u64,
    not_compared: u64,
}

const COLUMNS: [(&str, usize); 5] =
    [("CHANGE", 7), ("MAX ABS", 11), ("MAX REL", 11), ("ELEMENTS", 10), ("NAN, INF", 12)];

impl Printer {
    fn new(json: bool) -> Self {
        let out = BufWriter::new(io::stdout());
        Printer { json, colours: Colours::of_stdout(), out, same: 0, different: 0, not_compared: 0 }
    }

    fn add(&mut self, tensor: &Tensor, change: &Change) -> Result<(), Failure> {
        if *change == Change::Same {
            self.same += 1;
            return Ok(());
        }
        self.different += 1;
        let line = if self.json { format!("{}\n", describe(tensor, change)) } else { self.row(tensor, change) };
        output::printed(self.out.write_all(line.as_bytes()))
    }

    fn row(&self, tensor: &Tensor, change: &Change) -> String {
        let mut name = text::plain(&tensor.name_text());
        if let Some(step) = tensor.step {
            name += &format!("@{step}");
        }
        let (what, columns) = match change {
            Change::Same => ("same", [const { String::new() }; 4]),
            Change::Added => ("added", [const { String::new() }; 4]),
            Change::Removed => ("removed", [const { String::new() }; 4]),
            Change::Bytes => ("bytes", [const { String::new() }; 4]),
            Change::Kind { from, to } => {
                name += &format!(": {from} -> {to}");
                ("type", [const { String::new() }; 4])
            }
            Change::Values(distance) => {
                let [nan_a, nan_b] = distance.nan();
                let [inf_a, inf_b] = distance.infinite();
                let odd = match [nan_a, nan_b, inf_a, inf_b] {
                    [0, 0, 0, 0] => String::new(),
                    _ => format!("{nan_a}>{nan_b}, {inf_a}>{inf_b}"),
                };
                let (abs, rel) = (text::number(distance.absolute()), text::number(distance.relative()));
                ("values", [abs, rel, distance.elements().to_string(), odd])
            }
        };
        let mut all = vec![(what.to_owned(), COLUMNS[0].1)];
        if columns.iter().any(|column| !column.is_empty()) {
            all.extend(columns.into_iter().zip(&COLUMNS[1..]).map(|(text, (_, width))| (text, *width)));
        }
        let titles = COLUMNS.map(|(title, width)| (title.to_owned(), width));
        let head = match self.different {
            1 => self.colours.faint(table::row(&titles, "TENSOR").trim_end()) + "\n",
            _ => String::new(),
        };
        let row = table::row(&all, &name);
        head + &match change {
            Change::Added => self.colours.green(&row),
            Change::Removed => self.colours.red(&row),
            _ => self.colours.yellow(&row),
        }
    }

    fn end(&mut self) -> Result<(), Failure> {
        if !self.json {
            let more = match self.not_compared {
                0 => String::new(),
                count => format!(", {count} not compared"),
            };
            let line = format!("{} different, {} the same{more}\n", self.different, self.same);
            output::printed(self.out.write_all(line.as_bytes()))?;
        }
        output::printed(self.out.flush())
    }
}

/// A line of JSON.
fn describe(tensor: &Tensor, change: &Change) -> serde_json::Value {
    let mut line = json!({
        "name": tensor.name_text(),
        "step": tensor.step,
        "mode": tensor.mode.map(Mode::name),
    });
    let more = match change {
        Change::Same => json!({"change": "same"}),
        Change::Added => json!({"change": "added"}),
        Change::Removed => json!({"change": "removed"}),
        Change::Bytes => json!({"change": "bytes"}),
        Change::Kind { from, to } => json!({"change": "type", "from": from, "to": to}),
        Change::Values(distance) => json!({
            "change": "values",
            "max_abs": distance.absolute(),
            "max_rel": distance.relative(),
            "elements": distance.elements(),
            "nan": distance.nan(),
            "inf": distance.infinite(),
        }),
    };
    if let (Some(line), serde_json::Value::Object(more)) = (line.as_object_mut(), more) {
        line.extend(more);
    }
    line
}
