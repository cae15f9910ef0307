//! `tensorfs tensors`: which tensors are in these files.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tensorfs_formats::{Location, Order, Tensor};
use tensorfs_fs::Inspector;

use crate::cli::Tensors;
use crate::commands::arrays::Arrays;
use crate::commands::status::DAMAGED;
use crate::show::colours::Colours;
use crate::show::failure::Failure;
use crate::show::table::Held;
use crate::show::{output, size, text};
use crate::tensors::filter::Filter;
use crate::tensors::hierarchy::{Hierarchies, Seen};
use crate::tensors::listed::Listed;
use crate::tensors::model::{At, Model};
use crate::tensors::place::{Kind, Place};
use crate::tensors::plan::Plan;
use crate::tensors::recorded::is_looked_into;
use crate::tensors::single::{Listing, Single};

/// What is missing of a checkpoint is told so often.
const FAULTS: usize = 20;

/// Runs the command.
pub fn run(arguments: &Tensors) -> Result<ExitCode, Failure> {
    let filter = Filter::new(&arguments.name, arguments.step, arguments.mode, arguments.dtype);
    let mut out = BufWriter::new(io::stdout().lock());
    let inspector = Inspector::default();
    let mut run = Run { arguments, inspector, filter, out: &mut out, failed: false, damaged: false };
    for path in &arguments.paths {
        let found = Place::of(path).and_then(|place| Ok((place.about(true)?.kind(), place)));
        let goes_on = match found {
            Ok((Kind::Directory, place)) => run.directory(&place)?,
            Ok((_, place)) => run.file(&place, false)?,
            Err(failure) => {
                run.fail(failure);
                true
            }
        };
        if !goes_on {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let Run { failed, damaged, .. } = run;
    output::printed(out.flush())?;
    Ok(match (failed, damaged) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => ExitCode::from(DAMAGED),
        (false, false) => ExitCode::SUCCESS,
    })
}

/// What is printed, and what came of it so far.
struct Run<'a> {
    arguments: &'a Tensors,
    inspector: Inspector,
    filter: Filter<'a>,
    out: &'a mut dyn Write,
    failed: bool,
    damaged: bool,
}

impl Run<'_> {
    /// Lists what is in a directory: checkpoints as one thing each, and other files. Says whether to go on.
    fn directory(&mut self, place: &Place) -> Result<bool, Failure> {
        let hierarchies = RefCell::new((Hierarchies::new(&self.inspector), Arrays::new(self.arguments.json)));
        let run = RefCell::new(self);
        let mut parts = HashSet::new();
        let goes_on = place.walk(
            &mut |dir, inside| {
                let mut run = run.borrow_mut();
                let (of, arrays) = &mut *hierarchies.borrow_mut();
                if !run.arrays(arrays, of.enter(dir, inside))? {
                    return Ok(false);
                }
                let plans = match Plan::all_in(dir, inside, &run.inspector) {
                    Ok(plans) => plans,
                    Err(failure) => {
                        if !dir.is_gone() {
                            run.fail(failure);
                        }
                        return Ok(true);
                    }
                };
                for plan in &plans {
                    if !run.plan(plan)? {
                        return Ok(false);
                    }
                }
                parts.extend(plans.iter().flat_map(Plan::places).map(Path::to_owned));
                inside.retain(|place| !parts.contains(place.path()));
                Ok(true)
            },
            &mut |file, _| {
                let (of, arrays) = &mut *hierarchies.borrow_mut();
                let ended = of.leave(file.path());
                Ok(run.borrow_mut().arrays(arrays, ended)? && run.borrow_mut().file(file, true)?)
            },
            &mut |failure| run.borrow_mut().fail(failure),
        )?;
        let (mut of, mut arrays) = hierarchies.into_inner();
        Ok(goes_on && run.into_inner().arrays(&mut arrays, of.end())?)
    }

    /// Lists what was come by of hierarchies of arrays. Says whether to go on.
    fn arrays(&mut self, arrays: &mut Arrays, seen: Vec<Seen>) -> Result<bool, Failure> {
        for one in seen {
            let printed = match one {
                Seen::Array(stored, trouble) => {
                    trouble.into_iter().for_each(|failure| self.fail(failure));
                    let is_taken = self.filter.takes(&stored.array().tensor(stored.name().into()));
                    if is_taken { arrays.add(&stored, self.out) } else { Ok(()) }
                }
                Seen::Odd(failure) => {
                    output::complain(failure);
                    Ok(())
                }
                Seen::Trouble(failure) => {
                    self.fail(failure);
                    Ok(())
                }
                Seen::End(sum) => arrays.end(&sum, self.out),
            };
            if printed.is_err() {
                return output::printed(printed).map(|()| false);
            }
        }
        Ok(true)
    }

    fn fail(&mut self, failure: Failure) {
        output::complain(failure);
        self.failed = true;
    }

    /// Lists the tensors of a checkpoint. Says whether to go on.
    fn plan(&mut self, plan: &Plan) -> Result<bool, Failure> {
        let model = Model::of_plan(plan, &self.inspector);
        let path = plan.dir().path();
        let mut table = Table::new(self.arguments.json);
        let mut printed = Ok(());
        for listed in model.tensors().filter(|listed| self.filter.takes(&listed.tensor)) {
            let shards = model.shards(listed);
            printed = printed.and_then(|()| table.add_sharded(path, listed, shards.as_deref(), self.out));
        }
        let out = &mut *self.out;
        match printed.and_then(|()| table.end_plan(plan, out)) {
            Ok(()) => {}
            Err(error) => return output::printed(Err(error)).map(|()| false),
        }
        let faults = model.faults();
        for fault in faults.iter().take(FAULTS) {
            self.fail(Failure::at(path, text::plain(fault)));
        }
        if faults.len() > FAULTS {
            self.fail(Failure::at(path, format!("{} more of it are not there", faults.len() - FAULTS)));
        }
        for extra in plan.extra() {
            output::complain(Failure::at(path, format!("{} is no part of the checkpoint", text::plain(extra))));
        }
        Ok(true)
    }

    /// Lists the tensors of a file. Says whether to go on.
    fn file(&mut self, file: &Place, is_found: bool) -> Result<bool, Failure> {
        let found = match list(file, &self.inspector, &self.filter, self.arguments.json, self.out) {
            Ok(found) => found,
            Err(Problem::Printing(error)) => return output::printed(Err(error)).map(|()| false),
            Err(Problem::Reading(_)) if is_found && file.is_gone() => return Ok(true),
            Err(Problem::Reading(failure)) => {
                self.fail(failure);
                return Ok(true);
            }
        };
        // In a directory there are other files, too; a file that is named is meant to have tensors.
        if let Some(failure) = found.failure(file.path())
            && (!is_found || found.is_cut_short())
        {
            self.fail(failure);
        } else if found.bad_frames() > 0 {
            let what = found.reason().unwrap_or_default();
            output::complain(Failure::at(file.path(), format!("{} bad frames; {what}", found.bad_frames())));
            self.damaged = true;
        } else if let Some(what) = found.left_out() {
            output::complain(Failure::at(file.path(), text::plain(what)));
        }
        for call in found.calls() {
            let what = format!("loading it with torch would call {}", text::plain(call));
            output::complain(Failure::at(file.path(), what));
        }
        Ok(true)
    }
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
    let opened = Single::open(place, inspector).map_err(Problem::Reading)?;
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

const TITLES: [&str; 5] = ["DTYPE", "SHAPE", "SIZE", "STEP", "MODE"];
/// Wider than this, columns are cut.
const WIDEST: [usize; 5] = [16, 20, 10, 12, 10];

/// Rows of one file.
struct Table {
    json: bool,
    rows: Held<5>,
    count: u64,
    bytes: u64,
}

impl Table {
    fn new(json: bool) -> Self {
        let rows = Held::new(TITLES, WIDEST, Colours::of_stdout());
        Table { json, rows, count: 0, bytes: 0 }
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
        self.rows.add(columns, text::plain(&tensor.name_text()), out)
    }

    /// A row of a tensor of a checkpoint, with where its parts are, if they are all there.
    fn add_sharded(
        &mut self,
        path: &Path,
        listed: &Listed,
        shards: Option<&[At<'_>]>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let tensor = &listed.tensor;
        if !self.json {
            return self.add(path, tensor, None, out);
        }
        self.count += 1;
        let mut line = describe(path, tensor, None);
        if let Some(line) = line.as_object_mut() {
            line.insert("place".to_owned(), json!(if shards.is_some() { "sharded" } else { "missing" }));
            for none in ["offset", "len"] {
                line.insert(none.to_owned(), json!(null));
            }
            let shard = |(starts, sizes, file, offset): &At<'_>| {
                let (file, offset) = (json!(file), json!(offset));
                json!({"file": file, "offset": offset, "starts": starts, "sizes": sizes})
            };
            line.insert("shards".to_owned(), json!(shards.map(|all| all.iter().map(shard).collect::<Vec<_>>())));
        }
        writeln!(out, "{line}")
    }

    fn end_plan(&mut self, plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        self.rows.print(out)?;
        let path = text::plain(&plan.dir().path().to_string_lossy());
        writeln!(out, "{path}: {}, {}\n", plan.summary(), size::humane(self.bytes))
    }

    fn end(&mut self, path: &Path, found: &Listing, out: &mut dyn Write) -> io::Result<()> {
        if self.json || !is_looked_into(found.format()) {
            return Ok(());
        }
        self.rows.print(out)?;
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
        Location::Negated { offset, len, .. } => ("negated", Some(offset), Some(len)),
    };
    let (order, strides) = match &tensor.order {
        Order::RowMajor => ("row-major", None),
        Order::ColumnMajor => ("column-major", None),
        Order::Strides(strides) => ("strided", Some(strides)),
    };
    let line = json!({
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
    });
    text::with_path(line, path)
}
