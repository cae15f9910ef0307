//! `tensorfs tensors`: which tensors are in these files.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tensorfs_formats::{Location, Order, Tensor};

use crate::cli::Tensors;
use crate::failure::Failure;
use crate::place::{Kind, Place};
use crate::recorded::is_looked_into;
use crate::selection::{self, Contents, Filter, Listing};
use crate::text::{self, Colours};
use crate::{output, size};

/// A frame of an event file is damaged.
const DAMAGED: u8 = 4;
/// So many rows decide how wide the columns are.
const ROWS_MEASURED: usize = 1000;

/// Runs the command.
pub fn run(arguments: &Tensors) -> Result<ExitCode, Failure> {
    let filter = Filter { names: &arguments.name, steps: arguments.step, mode: arguments.mode, dtype: arguments.dtype };
    let mut out = BufWriter::new(io::stdout().lock());
    let (mut failed, mut damaged) = (false, false);
    let mut closed = false;
    for path in &arguments.paths {
        let place = Place::of(path)?;
        let is_directory = place.about(true)?.kind == Kind::Directory;
        let mut each = |file: &Place| {
            let found = match list(file, &filter, arguments.json, &mut out) {
                Ok(found) => found,
                Err(Problem::Printing(error)) if error.kind() == ErrorKind::BrokenPipe => {
                    closed = true;
                    return Ok(false);
                }
                Err(Problem::Printing(error)) => return Err(Failure::new(format!("cannot print: {error}"))),
                Err(Problem::Reading(failure)) => {
                    output::complain(failure);
                    failed = true;
                    return Ok(true);
                }
            };
            // In a directory there are other files, too; a file that is named is meant to have tensors.
            if let Some(failure) = selection::failure(&file.path, &found)
                && (!is_directory || found.error.is_some())
            {
                output::complain(failure);
                failed = true;
            } else if found.bad_frames > 0 {
                let what = found.reason.as_deref().unwrap_or_default();
                output::complain(Failure::at(&file.path, format!("{} bad frames; {what}", found.bad_frames)));
                damaged = true;
            }
            for call in &found.calls {
                let what = format!("loading it with torch would call {}", text::plain(call));
                output::complain(Failure::at(&file.path, what));
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
    match out.flush() {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::new(format!("cannot print: {error}"))),
        _ if failed => Ok(ExitCode::FAILURE),
        _ if damaged => Ok(ExitCode::from(DAMAGED)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

enum Problem {
    Reading(Failure),
    Printing(io::Error),
}

fn list(place: &Place, filter: &Filter<'_>, json: bool, out: &mut dyn Write) -> Result<Listing, Problem> {
    let contents = Contents::open(place).map_err(Problem::Reading)?;
    let mut table = Table::new(json);
    let mut printed = Ok(());
    let found = contents.tensors_and_calls(&mut |tensor| {
        if filter.takes(&tensor) {
            printed = table.add(&place.path, &tensor, out);
        }
        if printed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    printed.and_then(|()| table.end(&place.path, &found, out)).map_err(Problem::Printing)?;
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

    fn add(&mut self, path: &Path, tensor: &Tensor, out: &mut dyn Write) -> io::Result<()> {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(tensor.bytes());
        if self.json {
            return writeln!(out, "{}", describe(path, tensor));
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
                let titles = Row { columns: TITLES.map(str::to_owned), name: "NAME".to_owned() };
                let line = titles.line(&widths);
                writeln!(out, "{}", self.colours.faint(line.trim_end()))?;
                widths
            }
        };
        self.held.drain(..).try_for_each(|row| out.write_all(row.line(&widths).as_bytes()))
    }

    fn end(&mut self, path: &Path, found: &Listing, out: &mut dyn Write) -> io::Result<()> {
        if self.json || !is_looked_into(found.format) {
            return Ok(());
        }
        if self.count > 0 {
            self.print(out)?;
        }
        let tensors = if self.count == 1 { "1 tensor".to_owned() } else { format!("{} tensors", self.count) };
        let of = if self.count < found.tensors { format!(" of {}", found.tensors) } else { String::new() };
        let path = text::plain(&path.to_string_lossy());
        writeln!(out, "{path}: {}, {tensors}{of}, {}\n", found.format, size::humane(self.bytes))
    }
}

impl Row {
    fn line(self, widths: &[usize; 5]) -> String {
        let columns = self.columns.into_iter().zip(*widths).filter(|(_, width)| *width > 0);
        text::row(&columns.collect::<Vec<_>>(), &self.name)
    }
}

/// A line of JSON.
fn describe(path: &Path, tensor: &Tensor) -> serde_json::Value {
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
        "place": place,
        "offset": offset,
        "len": len,
        "storage": tensor.storage.as_ref().map(|storage| {
            json!({"key": storage.key, "offset": storage.offset, "len": storage.len})
        }),
    })
}
