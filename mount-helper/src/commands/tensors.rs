//! `tensorfs tensors`: which tensors are in these files.

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tensorfs_formats::{Location, Order, Tensor};
use tensorfs_fs::Inspector;

use crate::cli::Tensors;
use crate::commands::status::DAMAGED;
use crate::show::colours::Colours;
use crate::show::failure::Failure;
use crate::show::{output, size, table, text};
use crate::tensors::filter::Filter;
use crate::tensors::place::{Kind, Place};
use crate::tensors::recorded::is_looked_into;
use crate::tensors::tensor_file::{Listing, TensorFile};

/// So many rows decide how wide the columns are.
const ROWS_MEASURED: usize = 1000;

/// Runs the command.
pub fn run(arguments: &Tensors) -> Result<ExitCode, Failure> {
    let filter = Filter::new(&arguments.name, arguments.step, arguments.mode, arguments.dtype);
    let mut out = BufWriter::new(io::stdout().lock());
    let inspector = Inspector::default();
    let (mut failed, mut damaged) = (false, false);
    let mut closed = false;
    for path in &arguments.paths {
        let place = Place::of(path)?;
        let is_directory = place.about(true)?.kind() == Kind::Directory;
        let mut each = |file: &Place| {
            let found = match list(file, &inspector, &filter, arguments.json, &mut out) {
                Ok(found) => found,
                Err(Problem::Printing(error)) => {
                    output::printed(Err(error))?;
                    closed = true;
                    return Ok(false);
                }
                Err(Problem::Reading(failure)) => {
                    output::complain(failure);
                    failed = true;
                    return Ok(true);
                }
            };
            // In a directory there are other files, too; a file that is named is meant to have tensors.
            if let Some(failure) = found.failure(file.path())
                && (!is_directory || found.is_cut_short())
            {
                output::complain(failure);
                failed = true;
            } else if found.bad_frames() > 0 {
                let what = found.reason().unwrap_or_default();
                output::complain(Failure::at(file.path(), format!("{} bad frames; {what}", found.bad_frames())));
                damaged = true;
            }
            for call in found.calls() {
                let what = format!("loading it with torch would call {}", text::plain(call));
                output::complain(Failure::at(file.path(), what));
            }
            Ok(true)
        };
        if is_directory {
            place.files(&mut |file, _| each(file))?;
        } else {
            each(&place)?;
        }
        if closed {
            return Ok(ExitCode::SUCCESS);
        }
    }
    output::printed(out.flush())?;
    Ok(match (failed, damaged) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => ExitCode::from(DAMAGED),
        (false, false) => ExitCode::SUCCESS,
    })
}

enum Problem {
    Reading(Failure),
    Printing(io::Error),
}

fn list(
    place: &Place,
    inspector: &Inspector,
    filter: &Filter<'_>,
    json: bool,
    out: &mut dyn Write,
) -> Result<Listing, Problem> {
    let opened = TensorFile::open(place, inspector).map_err(Problem::Reading)?;
    let mut table = Table::new(json);
    let mut printed = Ok(());
    let found = opened.tensors_and_calls(&mut |tensor, crc| {
        if filter.takes(&tensor) {
            printed = table.add(place.path(), &tensor, crc, out);
        }
        if printed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    printed.and_then(|()| table.end(place.path(), &found, out)).map_err(Problem::Printing)?;
    Ok(found)
}

/// Rows of one file. The first ones are held back until it is known how wide columns must be.
struct Table {
    json: bool,
    colours: Colours,
    held: Vec<Row>,
    widths: Option<[usize; 5]>,
    count: u64,
    bytes: u64,
}

struct Row {
    columns: [String; 5],
    name: String,
}

const TITLES: [&str; 5] = ["DTYPE", "SHAPE", "SIZE", "STEP", "MODE"];
/// Wider than this, columns are cut.
const WIDEST: [usize; 5] = [16, 20, 10, 12, 10];

impl Table {
    fn new(json: bool) -> Self {
        Table { json, colours: Colours::of_stdout(), held: Vec::new(), widths: None, count: 0, bytes: 0 }
    }

    fn add(&mut self, path: &Path, tensor: &Tensor, crc: Option<u32>, out: &mut dyn Write) -> io::Result<()> {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(tensor.bytes());
        if self.json {
            return writeln!(out, "{}", describe(path, tensor, crc));
        }
        let columns = [
            text::plain(&tensor.dtype_text()),
            text::shape(tensor),
            size::humane(tensor.bytes()),
            tensor.step.map(|step| step.to_string()).unwrap_or_default(),
            tensor.mode.map(|mode| mode.name().to_owned()).unwrap_or_default(),
        ];
        self.held.push(Row { columns, name: text::plain(&tensor.name_text()) });
        if self.widths.is_some() || self.held.len() >= ROWS_MEASURED { self.print(out) } else { Ok(()) }
    }

    fn print(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let widths = match self.widths {
            Some(widths) => widths,
            None => {
                let widths = std::array::from_fn(|index| {
                    let longest = self.held.iter().map(|row| row.columns[index].chars().count()).max().unwrap_or(0);
                    // Steps and modes are columns only where there are any.
                    if longest == 0 { 0 } else { longest.max(TITLES[index].len()).min(WIDEST[index]) }
                });
                self.widths = Some(widths);
                let titles = TITLES.map(str::to_owned);
                let line = table::line(&titles, &widths, "NAME");
                writeln!(out, "{}", self.colours.faint(line.trim_end()))?;
                widths
            }
        };
        self.held.drain(..).try_for_each(|row| out.write_all(table::line(&row.columns, &widths, &row.name).as_bytes()))
    }

    fn end(&mut self, path: &Path, found: &Listing, out: &mut dyn Write) -> io::Result<()> {
        if self.json || !is_looked_into(found.format()) {
            return Ok(());
        }
        if self.count > 0 {
            self.print(out)?;
        }
        let tensors = text::count(self.count, "tensor", "tensors");
        let of = if self.count < found.tensors() { format!(" of {}", found.tensors()) } else { String::new() };
        let path = text::plain(&path.to_string_lossy());
        writeln!(out, "{path}: {}, {tensors}{of}, {}\n", found.format(), size::humane(self.bytes))
    }
}

/// A line of JSON.
fn describe(path: &Path, tensor: &Tensor, crc: Option<u32>) -> serde_json::Value {
    let (place, offset, len) = match tensor.location {
        Location::Raw { offset, len } => ("raw", Some(offset), Some(len)),
        Location::Inline { offset, len, .. } => ("inline", Some(offset), Some(len)),
        Location::Deflated { offset, len, .. } => ("deflated", Some(offset), Some(len)),
        Location::Encoded { offset, len } => ("encoded", Some(offset), Some(len)),
    };
    let (order, strides) = match &tensor.order {
        Order::RowMajor => ("row-major", None),
        Order::ColumnMajor => ("column-major", None),
        Order::Strides(strides) => ("strided", Some(strides)),
    };
    json!({
        "path": path.to_string_lossy(),
        "name": tensor.name_text(),
        "dtype": tensor.dtype.name(),
        "descr": tensor.descr,
        "big_endian": tensor.big_endian,
        "shape": tensor.shape,
        "order": order,
        "strides": strides,
        "kind": tensor.kind.name(),
        "step": tensor.step,
        "mode": tensor.mode.map(|mode| mode.name()),
        "mode_step": tensor.mode_step,
        "bytes": tensor.bytes(),
        "crc32c": crc.map(|crc| format!("{crc:08x}")),
        "place": place,
        "offset": offset,
        "len": len,
        "storage": tensor.storage.as_ref().map(|storage| {
            json!({"key": storage.key, "offset": storage.offset, "len": storage.len})
        }),
    })
}
