//! `tensorfs ls`: files, how far each has come, and how many tensors it holds.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::json;
use tensorfs_fs::{FileState, Inspector};
use tensorfs_layout::Timestamp;
use tensorfs_layout::log::Summary;

use crate::cli::Ls;
use crate::commands::arrays::{describe_sum, summary};
use crate::commands::latest::{LACKING, Said, is_trainers, said_of};
use crate::show::colours::Colours;
use crate::show::failure::Failure;
use crate::show::{clock, output, size, table, text};
use crate::tensors::bound::Bound;
use crate::tensors::hierarchy::{Hierarchies, Seen};
use crate::tensors::place::{About, Entered, Kind, Place, Trouble};
use crate::tensors::plan::Plan;
use crate::tensors::recorded::{is_complete, is_looked_into};

/// Lines are printed in lots of so many: the first decides how wide columns are.
const LOT: usize = 1000;

/// So many entries of directories are looked at below one that is a hierarchy of arrays.
const ENTRIES: u64 = 10_000;

/// What is missing of a checkpoint is told so often.
const FAULTS: usize = 20;

/// Runs the command.
pub fn run(arguments: &Ls) -> Result<ExitCode, Failure> {
    let failed = Cell::new(false);
    let trouble = |failure| {
        output::complain(failure);
        failed.set(true);
    };
    let mut table = Table::new(arguments);
    for path in &arguments.paths {
        let listed = Place::of(path).and_then(|place| list(arguments, &place, &mut table, &mut { trouble }));
        // What was found before the trouble comes before it.
        table.flush()?;
        listed.unwrap_or_else(trouble);
    }
    Ok(if failed.get() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn list(arguments: &Ls, place: &Place, table: &mut Table, trouble: &mut Trouble<'_>) -> Result<(), Failure> {
    let about = place.about(true)?;
    if arguments.complete && place.is_in_pool() {
        return Err(Failure::at(place.path(), "what is complete is known on a mount only; mount the pool"));
    }
    let is_wanted = |place: &Place| !arguments.complete || said_of(place) == Said::Complete;
    if about.kind() != Kind::Directory {
        if !is_wanted(place) {
            return Ok(());
        }
        return table.add(Row::of(place, about, None)?);
    }
    if arguments.recursive && arguments.complete {
        return all_complete(place, table, trouble);
    }
    if arguments.recursive {
        let trouble = RefCell::new(trouble);
        let mut row = |found: &Place, about: &About| {
            if let Some(row) = Row::looked_at((found, about.clone()), place, *trouble.borrow_mut()) {
                table.add(row)?;
            }
            Ok(true)
        };
        return place.files(&mut row, &mut |failure| (trouble.borrow_mut())(failure)).map(drop);
    }
    let inside = place.inside()?;
    for found in &inside {
        let Some(about) = found.looked_at(Place::about_itself, trouble) else { continue };
        if !is_wanted(found) {
            continue;
        }
        if let Some(row) = Row::looked_at((found, about), place, trouble) {
            table.add(row)?;
        }
    }
    if !arguments.complete {
        table.flush()?;
        print_hierarchy(place, &inside, arguments.json)?;
        let plans = match Plan::all_in(place, &inside, &Inspector::default()) {
            // Of a plan that cannot be read the server says what that comes to.
            Err(why) if !place.is_in_pool() && said_of(place) == Said::Incomplete => {
                return print_lacking(place, &why.to_string(), arguments.json);
            }
            plans => plans?,
        };
        plans.iter().try_for_each(|plan| print_plan(plan, arguments.json))?;
        let is_told = plans.iter().any(|plan| !plan.faults().is_empty());
        if !is_told && !place.is_in_pool() && said_of(place) == Said::Incomplete {
            print_lacking(place, LACKING, arguments.json)?;
        }
    }
    Ok(())
}

/// Says what a directory is that is a hierarchy of arrays, and how much of it is there. It goes no further than is soon
/// done, and what is wrong with any of it is no failure: the files of the directory are listed.
fn print_hierarchy(dir: &Place, inside: &[Place], json: bool) -> Result<(), Failure> {
    let mut hierarchies = Hierarchies::within(&Inspector::default(), Bound::of(ENTRIES));
    let mut inside = inside.to_vec();
    for one in hierarchies.enter(dir, &mut inside) {
        if let Seen::Trouble(failure) | Seen::Odd(failure) | Seen::Array(_, Some(failure)) = one {
            output::complain(failure);
        }
    }
    if !hierarchies.is_open() {
        return Ok(());
    }
    let is_all = Cell::new(true);
    let mut missed = |_| is_all.set(false);
    let mut entered = Entered::default();
    entered.enter(dir, &dir.about(true)?)?;
    inside.reverse();
    while let Some(place) = inside.pop() {
        let about = place.looked_at(Place::about_itself, &mut missed);
        let Some(about) = about.filter(|about| about.kind() == Kind::Directory) else { continue };
        if let Err(failure) = entered.enter(&place, &about) {
            missed(failure);
            continue;
        }
        let Some(mut below) = place.looked_at(|place| hierarchies.bound().inside(place), &mut missed) else { continue };
        let seen = hierarchies.enter(&place, &mut below);
        is_all.set(is_all.get() && !seen.iter().any(|one| matches!(one, Seen::Trouble(_) | Seen::Array(_, Some(_)))));
        inside.extend(below.into_iter().rev());
    }
    is_all.set(is_all.get() && !hierarchies.bound().is_passed());
    for one in hierarchies.end() {
        // Those below that are of another format are listed by `tensors`.
        if let Seen::End(sum) = one
            && sum.path() == dir.path()
        {
            output::print(&match json {
                true => format!("{}\n", describe_sum(&sum, is_all.get())),
                false => format!("{}\n", summary(&sum, is_all.get())),
            })?;
        }
    }
    Ok(())
}

/// Says of a checkpoint that it is incomplete: what nothing that is named in it tells.
fn print_lacking(place: &Place, why: &str, json: bool) -> Result<(), Failure> {
    let path = place.path();
    output::print(&match json {
        true => format!("{}\n", text::with_path(json!({"kind": "checkpoint", "missing": [why]}), path)),
        false => format!("{}: incomplete: {}\n", text::plain(&path.to_string_lossy()), text::plain(why)),
    })
}

/// Lists what is complete below a directory. What belongs to a checkpoint that is a directory is none of its own,
/// whether that is complete or not.
fn all_complete(top: &Place, table: &mut Table, trouble: &mut Trouble<'_>) -> Result<(), Failure> {
    let mut entered = Entered::default();
    let mut left = vec![top.clone()];
    while let Some(place) = left.pop() {
        let is_top = place.path() == top.path();
        let Some(about) = place.looked_at(|place| place.about(is_top), trouble) else { continue };
        let is_directory = match about.kind() {
            Kind::Directory => match entered.enter(&place, &about) {
                Ok(()) => true,
                Err(failure) => {
                    trouble(failure);
                    continue;
                }
            },
            Kind::File => false,
            Kind::Link | Kind::Other => continue,
        };
        let said = said_of(&place);
        if said == Said::Complete {
            match is_top {
                true => table.add(Row::of(&place, about, None)?)?,
                false => Row::looked_at((&place, about), top, trouble).map_or(Ok(()), |row| table.add(row))?,
            }
        }
        if is_directory {
            let is_checkpoint = said != Said::Nothing || is_trainers(&place);
            let Some(mut inside) = place.looked_at(Place::inside, trouble) else { continue };
            inside.retain(|place| !is_checkpoint || is_trainers(place));
            left.extend(inside.iter().rev().cloned());
        }
    }
    Ok(())
}

/// What the files of a directory are together, if they are parts of one checkpoint.
fn print_plan(plan: &Plan, json: bool) -> Result<(), Failure> {
    let (faults, extra) = (plan.faults(), plan.extra());
    let path = plan.dir().path();
    if json {
        let (tensors, parts) = (plan.tensors().len(), plan.parts().len());
        let line = json!({
            "kind": "checkpoint",
            "tensors": tensors,
            "parts": parts,
            "missing": faults,
            "extra": extra,
        });
        return output::print(&format!("{}\n", text::with_path(line, path)));
    }
    let mut lines = format!("{}: {}\n", text::plain(&path.to_string_lossy()), plan.summary());
    for fault in faults.iter().take(FAULTS) {
        lines += &format!("    {}\n", text::plain(fault));
    }
    if faults.len() > FAULTS {
        lines += &format!("    and {} more\n", faults.len() - FAULTS);
    }
    for extra in extra {
        lines += &format!("    {} is no part of it\n", text::plain(extra));
    }
    output::print(&lines)
}

/// What is said of a file.
struct Row {
    path: PathBuf,
    name: String,
    about: About,
    state: Option<FileState>,
    /// What it holds, if it is sealed and was recognised.
    known: Option<Summary>,
    is_sealed: bool,
    /// Why its bytes cannot be had.
    gone: Option<String>,
}

impl Row {
    /// Of what was found below a directory; nothing if it was removed meanwhile, or cannot be looked at.
    fn looked_at((place, about): (&Place, About), top: &Place, trouble: &mut Trouble<'_>) -> Option<Row> {
        match Row::of(place, about, Some(top)) {
            Ok(row) => Some(row),
            Err(_) if place.is_gone() => None,
            Err(failure) => {
                trouble(failure);
                None
            }
        }
    }

    fn of(place: &Place, about: About, below: Option<&Place>) -> Result<Row, Failure> {
        let name =
            below.and_then(|dir| place.path().strip_prefix(dir.path()).ok()).map(|name| name.display().to_string());
        let mut row = Row {
            path: place.path().to_owned(),
            // In a pool that is not mounted `POOL:/` comes before the name.
            name: match (name, below) {
                (Some(name), _) => name,
                (None, Some(dir)) => {
                    let (path, dir) = (place.path().display().to_string(), dir.path().display().to_string());
                    path.strip_prefix(&dir).map_or(path.clone(), |rest| rest.trim_start_matches([':', '/']).to_owned())
                }
                (None, None) => place.path().display().to_string(),
            },
            about,
            state: None,
            known: None,
            is_sealed: false,
            gone: None,
        };
        if row.about.kind() == Kind::File {
            if place.is_away() {
                row.state = Some(FileState::Away);
            } else if let Some((state, gone)) = place.gone() {
                (row.state, row.gone) = (Some(state), Some(gone));
            } else if let Ok(file) = place.open() {
                // What one may not read, one is not told of.
                let Some(recorded) = place.glanced(&file)? else {
                    return Err(Failure::at(place.path(), "not on a tensorfs mount, and in no pool"));
                };
                row.state = Some(recorded.state());
                row.is_sealed = recorded.is_sealed();
                row.known = recorded.summary();
            }
        }
        Ok(row)
    }

    /// How many tensors there are, as far as that is recorded.
    fn tensors(&self) -> Option<u64> {
        match &self.known {
            Some(known) if is_looked_into(known.format) => Some(known.tensors),
            _ if self.is_sealed => Some(0),
            _ => None,
        }
    }

    fn format(&self) -> Option<&'static str> {
        match &self.known {
            Some(known) => Some(known.format.name()),
            None if self.is_sealed => Some("opaque"),
            None => None,
        }
    }

    fn describe(&self) -> serde_json::Value {
        let modified = self.about.modified().duration_since(SystemTime::UNIX_EPOCH);
        let line = json!({
            "kind": self.about.kind().name(),
            "size": self.about.size(),
            "modified": modified.map_or_else(|error| -error.duration().as_secs_f64(), |since| since.as_secs_f64()),
            "state": self.state,
            "gone": self.gone,
            "format": self.format(),
            "tensors": self.tensors(),
            "complete": self.known.as_ref().zip(self.state).map(|(known, state)| is_complete(known, state)),
            "bad_frames": self.known.as_ref().map(|known| known.bad_frames),
        });
        text::with_path(line, &self.path)
    }
}

struct Table {
    json: bool,
    long: bool,
    colours: Colours,
    rows: Vec<Row>,
    widths: Option<Vec<usize>>,
}

impl Table {
    fn new(arguments: &Ls) -> Self {
        let (json, long) = (arguments.json, arguments.long);
        Table { json, long, colours: Colours::of_stdout(), rows: Vec::new(), widths: None }
    }

    fn add(&mut self, row: Row) -> Result<(), Failure> {
        self.rows.push(row);
        if self.rows.len() >= LOT { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            return Ok(());
        }
        if self.json {
            return output::print(&rows.iter().map(|row| format!("{}\n", row.describe())).collect::<String>());
        }
        let mut text = String::new();
        let cells: Vec<Vec<String>> = rows.iter().map(|row| self.cells(row)).collect();
        let titles: Vec<String> = self.titles().into_iter().map(str::to_owned).collect();
        let first = self.widths.is_none();
        let widths = self.widths.get_or_insert_with(|| {
            let titles_and_cells = [&titles].into_iter().chain(&cells).map(Vec::as_slice);
            table::widths(titles_and_cells, titles.len())
        });
        if first {
            text += &(self.colours.faint(table::line(&titles, widths, "NAME").trim_end()) + "\n");
        }
        for (row, cells) in rows.iter().zip(&cells) {
            let slash = if row.about.kind() == Kind::Directory { "/" } else { "" };
            let why = row.gone.as_ref().map(|why| format!("  ({})", text::plain(why))).unwrap_or_default();
            let line = table::line(cells, widths, &(text::plain(&row.name) + slash + &why));
            text += &match row.state {
                Some(FileState::Damaged | FileState::Lost | FileState::Missing) => self.colours.red(&line),
                Some(FileState::Open | FileState::Interrupted) => self.colours.yellow(&line),
                Some(FileState::Sealed | FileState::Committed) => line,
                Some(FileState::Away) | None => self.colours.faint(&line),
            };
        }
        output::print(&text)
    }

    fn titles(&self) -> Vec<&'static str> {
        match self.long {
            true => vec!["STATE", "TENSORS", "FORMAT", "SIZE", "MODIFIED (UTC)"],
            false => vec!["STATE", "TENSORS", "SIZE"],
        }
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let dash = || "-".to_owned();
        let is_file = row.about.kind() == Kind::File;
        let state = row.state.map_or_else(dash, |state| state.name().to_owned());
        let more = row.known.as_ref().is_some_and(|known| !known.complete);
        let tensors = row.tensors().map_or_else(dash, |count| format!("{count}{}", if more { "+" } else { "" }));
        let bytes = if is_file { size::humane(row.about.size()) } else { dash() };
        match self.long {
            true => {
                let format = row.format().map_or_else(dash, str::to_owned);
                let modified = clock::utc(Timestamp::from(row.about.modified()).sec);
                // To the minute.
                let minute = modified.rsplit_once(':').map_or_else(dash, |(minute, _)| minute.to_owned());
                vec![state, tensors, format, bytes, minute]
            }
            false => vec![state, tensors, bytes],
        }
    }
}
