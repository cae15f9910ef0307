//! `tensorfs verify`: whether the bytes of sealed files are still those that were sealed, tensor by tensor.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tensorfs_formats::{Metadata, Mode, Tensor};
use tensorfs_fs::{FileState, Inspector};
use tensorfs_layout::Ino;

use crate::ask::{mending, sealing};
use crate::cli::Verify;
use crate::commands::latest::{LACKING, Said, said_of};
use crate::commands::status::{DAMAGED, INTERRUPTED};
use crate::show::colours::Colours;
use crate::show::failure::Failure;
use crate::show::progress::Bar;
use crate::show::{output, size, table, text};
use crate::tensors::bound::Bound;
use crate::tensors::database::{Database, Wish, is_of_process};
use crate::tensors::place::Place;
use crate::tensors::plan::Plan;
use crate::tensors::recorded::{is_complete, wrong_frames};
use crate::tensors::verdict::{self, Changed, Verdict};

/// Damaged tensors of a file that are named, in text.
const NAMED: usize = 20;

/// Why a file is interrupted whose bytes do not say so.
const UNFINISHED: &str =
    "a process was killed while it had it open to write, or what one stored through a mapping could not be written";

/// Runs the command.
pub fn run(arguments: &Verify) -> Result<ExitCode, Failure> {
    if let (Some(ino), [file]) = (arguments.known, &*arguments.paths) {
        return mending::mend(file, Ino(ino)).map(|()| ExitCode::SUCCESS);
    }
    // What cannot be sealed is said below to have no checksums, and here why.
    let is_sealed = !arguments.seal || !sealing::seal(&arguments.paths, false)?.has_failed();
    let bar = Bar::new(arguments.json);
    let inspector = Inspector::default();
    let (mut places, mut plans) = (Vec::new(), Vec::new());
    let mut tally = Tally::default();
    tally.failed += u64::from(!is_sealed);
    let mut trouble = |failure: Failure| {
        output::complain(failure);
        tally.failed += 1;
    };
    for path in &arguments.paths {
        let place = match Place::of(path) {
            Ok(place) => place,
            Err(failure) => {
                trouble(failure);
                continue;
            }
        };
        place.walk(
            &mut |dir, inside| {
                let is_one = inside.iter().any(|place| place.name() == Metadata::Ocdbt.name());
                let database = (is_one && !is_of_process(dir)).then(|| inside.clone());
                plans.push((dir.clone(), database, Plan::all_in(dir, inside, &inspector)));
                Ok(true)
            },
            &mut |place, about| {
                places.push((place.clone(), about.size()));
                Ok(true)
            },
            &mut trouble,
        )?;
    }
    // What was removed since it was found is nobody's fault.
    let is_removed = |place: &Place| !arguments.paths.iter().any(|path| path == place.path()) && place.is_gone();
    let total = places.iter().map(|(_, size)| size).sum();
    let printer = Printer { json: arguments.json, all: arguments.all, colours: Colours::of_stdout(), bar };
    let mut done = 0;
    let has_found = !places.is_empty();
    for (place, size) in places {
        let (place, size) = (&place, &size);
        printer.bar.show("verify", done, total);
        let verdict = {
            let bar = &printer.bar;
            let read = std::cell::Cell::new(done);
            verdict::verify(place, &inspector, &|bytes| {
                read.set(read.get() + bytes);
                bar.show("verify", read.get(), total);
            })
        };
        let ino = place.ino();
        match verdict {
            Ok(verdict) if arguments.mend && verdict.is_damaged() => {
                printer.file(place, &verdict, *size)?;
                // It holds the file open, which would be in the way.
                drop(verdict);
                if !tally.mend((&printer, &inspector), place, ino, *size)? {
                    tally.damaged += 1;
                }
            }
            Ok(verdict) => {
                tally.add(&verdict, *size);
                printer.file(place, &verdict, *size)?;
            }
            Err(_) if is_removed(place) => {}
            Err(failure) => {
                let damage = place.damage();
                let failure = damage.as_ref().map_or(failure, |why| Failure::at(place.path(), why));
                printer.bar.aside(|| output::complain(failure));
                let gone = arguments.mend && !place.is_in_pool() && mending::is_gone(place.path());
                if !gone || !tally.mend((&printer, &inspector), place, ino, *size)? {
                    *(if damage.is_some() { &mut tally.damaged } else { &mut tally.failed }) += 1;
                }
            }
        }
        done += size;
    }
    printer.bar.clear();
    for (dir, database, plans) in plans {
        let is_told = match database {
            Some(inside) if !is_removed(&dir) => tally.database(&printer, &dir, &inside, &inspector)?,
            _ => false,
        };
        match plans {
            _ if is_told || is_removed(&dir) => {}
            Ok(plans) => tally.checkpoint(&printer, &dir, &plans)?,
            // Of a plan that cannot be read the server says what that comes to.
            Err(failure) if !dir.is_in_pool() && said_of(&dir) == Said::Incomplete => {
                tally.lacking(&printer, &dir, &failure.to_string())?;
            }
            Err(failure) => {
                tally.failed += 1;
                output::complain(failure);
            }
        }
    }
    // Where nothing was found there is nothing to count.
    let has_counted = has_found || tally.failed == 0;
    if has_counted && !arguments.json {
        output::print(&tally.line())?;
    }
    Ok(match tally {
        Tally { damaged, .. } if damaged > 0 => ExitCode::from(DAMAGED),
        Tally { failed, .. } if failed > 0 => ExitCode::FAILURE,
        Tally { interrupted, incomplete, .. } if interrupted + incomplete > 0 => ExitCode::from(INTERRUPTED),
        _ => ExitCode::SUCCESS,
    })
}

#[derive(Default)]
struct Tally {
    whole: u64,
    mended: u64,
    damaged: u64,
    interrupted: u64,
    /// Checkpoints of several files of which something is missing, and files that are wrong by what they say of
    /// themselves.
    incomplete: u64,
    /// Files that are open for writing, of which bytes were changed that had been sealed meanwhile. Those that are
    /// interrupted as well are counted there, too.
    changed: u64,
    unsealed: u64,
    failed: u64,
    bytes: u64,
}

impl Tally {
    fn add(&mut self, verdict: &Verdict, size: u64) {
        match verdict {
            Verdict::Unsealed { state, verified, changed } => {
                self.changed += u64::from(!changed.is_empty());
                match state {
                    FileState::Interrupted => self.interrupted += 1,
                    _ if changed.is_empty() => self.unsealed += 1,
                    _ => {}
                }
                self.bytes += verified;
            }
            verdict => {
                self.bytes += size;
                *match verdict {
                    verdict if verdict.is_damaged() => &mut self.damaged,
                    verdict if verdict.state() == FileState::Interrupted => &mut self.interrupted,
                    verdict if verdict.is_wrong_by_itself() => &mut self.incomplete,
                    _ => &mut self.whole,
                } += 1;
            }
        }
    }

    /// Mends a file with its second copy, and looks at it again. False if it could not be, which is told.
    fn mend(
        &mut self,
        (printer, inspector): (&Printer, &Inspector),
        place: &Place,
        ino: Result<Ino, Failure>,
        size: u64,
    ) -> Result<bool, Failure> {
        let mend = |ino| match place.is_in_pool() {
            true => Err(Failure::at(place.path(), "not mended: mount the pool first")),
            false => mending::mend(place.path(), ino).and_then(|()| verdict::verify(place, inspector, &|_| {})),
        };
        let mended = ino.and_then(mend).and_then(|verdict| match verdict.is_damaged() {
            true => Err(Failure::at(place.path(), "it was mended, and is damaged again")),
            false => Ok(verdict),
        });
        match mended {
            Ok(verdict) => {
                self.mended += 1;
                self.add(&verdict, size);
                printer.mended(place.path()).map(|()| true)
            }
            Err(failure) => {
                printer.bar.aside(|| output::complain(failure));
                Ok(false)
            }
        }
    }

    /// Says what the checkpoints in a directory lack, by their plans; and if those lack nothing, whether that is all.
    fn checkpoint(&mut self, printer: &Printer, dir: &Place, plans: &[Plan]) -> Result<(), Failure> {
        plans.iter().try_for_each(|plan| self.plan(printer, plan))?;
        let is_told = plans.iter().any(|plan| !plan.faults().is_empty());
        if is_told || dir.is_in_pool() || said_of(dir) != Said::Incomplete {
            return Ok(());
        }
        self.lacking(printer, dir, LACKING)
    }

    /// Says in a line what a database lacks, or what of it is wrong: all nodes of its newest version are read, and
    /// those that lead to older ones. True if something is.
    fn database(
        &mut self,
        printer: &Printer,
        dir: &Place,
        inside: &[Place],
        inspector: &Inspector,
    ) -> Result<bool, Failure> {
        let bound = Bound::none();
        let found = Database::read(
            dir,
            inside,
            inspector,
            Wish { keep: false, arrays: false, with_versions: true, bound: &bound },
        );
        if let Some(why) = &found.unknown {
            output::complain(Failure::at(dir.path(), format!("not looked into: {why}")));
        }
        let Some((first, more)) = found.faults.split_first() else { return Ok(false) };
        let more = if more.is_empty() { String::new() } else { format!("; and {} more", more.len()) };
        self.lacking(printer, dir, &format!("{first}{more}"))?;
        Ok(true)
    }

    /// Says that a checkpoint is incomplete, and why.
    fn lacking(&mut self, printer: &Printer, dir: &Place, why: &str) -> Result<(), Failure> {
        self.incomplete += 1;
        let path = dir.path();
        output::print(&match printer.json {
            true => {
                let line = json!({"kind": "checkpoint", "state": "incomplete", "missing": [why], "extra": []});
                format!("{}\n", text::with_path(line, path))
            }
            false => {
                let incomplete = printer.colours.yellow("incomplete");
                format!("{}: {incomplete}: {}\n", text::plain(&path.to_string_lossy()), text::plain(why))
            }
        })
    }

    /// Says what a checkpoint of several files lacks, and which files are none of it.
    fn plan(&mut self, printer: &Printer, plan: &Plan) -> Result<(), Failure> {
        let (faults, extra) = (plan.faults(), plan.extra());
        self.incomplete += u64::from(!faults.is_empty());
        let path = plan.dir().path();
        if printer.json {
            let state = if faults.is_empty() { "complete" } else { "incomplete" };
            let line = json!({"kind": "checkpoint", "state": state, "missing": faults, "extra": extra});
            return output::print(&format!("{}\n", text::with_path(line, path)));
        }
        let path = text::plain(&path.to_string_lossy());
        let mut lines = String::new();
        if !faults.is_empty() {
            lines += &format!("{path}: {}\n", printer.colours.yellow("incomplete"));
        } else if printer.all {
            lines += &format!("{path}: {}, {}\n", printer.colours.green("complete"), plan.summary());
        } else if !extra.is_empty() {
            lines += &format!("{path}:\n");
        }
        for fault in faults.iter().take(NAMED) {
            lines += &format!("    {}\n", text::plain(fault));
        }
        if faults.len() > NAMED {
            lines += &format!("    and {} more\n", faults.len() - NAMED);
        }
        for extra in extra {
            lines += &format!("    {} is no part of the checkpoint\n", text::plain(extra));
        }
        output::print(&lines)
    }

    fn line(&self) -> String {
        let mut parts = vec![format!("{} whole", self.whole)];
        for (count, what) in [
            (self.mended, "mended"),
            (self.damaged, "damaged"),
            (self.interrupted, "interrupted"),
            (self.incomplete, "incomplete"),
            (self.changed, "changed"),
            (self.unsealed, "without checksums"),
            (self.failed, "not read"),
        ] {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        }
        format!("{}; {} verified\n", parts.join(", "), size::humane(self.bytes))
    }
}

struct Printer {
    json: bool,
    all: bool,
    colours: Colours,
    bar: Bar,
}

impl Printer {
    fn file(&self, place: &Place, verdict: &Verdict, size: u64) -> Result<(), Failure> {
        let text = match self.json {
            true => self.lines(place.path(), verdict, size)?,
            false => self.table(place.path(), verdict),
        };
        let mut printed = Ok(());
        self.bar.aside(|| printed = output::print(&text));
        printed
    }

    fn mended(&self, path: &Path) -> Result<(), Failure> {
        let text = match self.json {
            true => format!("{}\n", text::with_path(json!({"kind": "mended"}), path)),
            false => format!("{}: {}\n", text::plain(&path.to_string_lossy()), self.colours.green("mended")),
        };
        let mut printed = Ok(());
        self.bar.aside(|| printed = output::print(&text));
        printed
    }

    fn table(&self, path: &Path, verdict: &Verdict) -> String {
        let path = text::plain(&path.to_string_lossy());
        let (recorded, runs) = match verdict {
            Verdict::Unsealed { changed, .. } if !changed.is_empty() => {
                let mut text = format!("{path}: {}\n", self.colours.yellow("changed"));
                if verdict.state() == FileState::Interrupted {
                    text += &format!("    {}: {UNFINISHED}\n", self.colours.yellow("interrupted"));
                }
                for Changed { offset, len, .. } in changed {
                    text += &format!("    {len} bytes from offset {offset} are not those that were sealed\n");
                }
                return text;
            }
            Verdict::Unsealed { state, verified, .. } => {
                if *state == FileState::Interrupted {
                    return format!("{path}: {}: {UNFINISHED}\n", self.colours.yellow("interrupted"));
                }
                let state = match state {
                    FileState::Committed => String::new(),
                    state => format!(" ({})", state.name()),
                };
                let whole = match *verified {
                    0 => String::new(),
                    verified => format!(", but for {} that are whole", size::humane(verified)),
                };
                return format!("{path}: {}{whole}{state}\n", self.colours.yellow("not sealed"));
            }
            Verdict::Verified { recorded, runs } => (recorded, runs),
        };
        let known = recorded.summary();
        if runs.is_empty() && recorded.state() == FileState::Interrupted {
            let why = match known {
                Some(known) if known.cut => known.reason.unwrap_or_else(|| "it ends too early".to_owned()),
                _ => UNFINISHED.to_owned(),
            };
            return format!("{path}: {}: {}\n", self.colours.yellow("interrupted"), text::plain(&why));
        }
        if let Some(why) = known.as_ref().filter(|_| runs.is_empty()).and_then(wrong_frames) {
            return format!("{path}: {}: {}\n", self.colours.yellow("incomplete"), text::plain(why));
        }
        if runs.is_empty() {
            if !self.all {
                return String::new();
            }
            let tensors =
                known.map(|known| format!(", {}, {} tensors", known.format, known.tensors)).unwrap_or_default();
            return format!("{path}: {}{tensors}\n", self.colours.green("whole"));
        }
        let mut text = format!("{path}: {}\n", self.colours.red("damaged"));
        for run in runs {
            text += &format!("    {}\n", run.what());
        }
        let mut count = 0;
        recorded.each(&mut |entry| {
            if runs.iter().any(|run| run.hurts(&entry)) {
                count += 1;
                if count <= NAMED {
                    text += &table::row(&[("    tensor".into(), 10)], &text::plain(&label(&entry.tensor)));
                }
            }
            ControlFlow::Continue(())
        });
        match count {
            0 if known.is_some() => text += "    no tensor: what is damaged belongs to none that is recorded\n",
            0 => {}
            1..=NAMED => {}
            _ => text += &format!("    and {} more\n", count - NAMED),
        }
        text
    }

    /// A line of JSON for each tensor, and one for the file.
    fn lines(&self, path: &Path, verdict: &Verdict, size: u64) -> Result<String, Failure> {
        let (recorded, runs) = match verdict {
            Verdict::Unsealed { state, verified, changed } => {
                let runs = changed.iter().map(|run| json!({"offset": run.offset, "len": run.len}));
                let runs: Vec<_> = runs.collect();
                let line = json!({
                    "state": state,
                    "verdict": match state {
                        _ if !runs.is_empty() => "changed",
                        FileState::Interrupted => "interrupted",
                        _ => "unsealed",
                    },
                    "changed_runs": runs,
                    "bytes": size,
                    "verified_bytes": verified,
                });
                return Ok(format!("{}\n", text::with_path(line, path)));
            }
            Verdict::Verified { recorded, runs } => (recorded, runs),
        };
        let (mut tensors, mut damaged) = (0_u64, 0_u64);
        let mut printed = Ok(());
        let mut text = String::new();
        recorded.each(&mut |entry| {
            let hurt = runs.iter().any(|run| run.hurts(&entry));
            tensors += 1;
            damaged += u64::from(hurt);
            let (offset, len) = entry.tensor.range();
            let line = json!({
                "name": entry.tensor.name_text(),
                "step": entry.tensor.step,
                "mode": entry.tensor.mode.map(Mode::name),
                "offset": offset,
                "len": len,
                "crc32c": recorded.checksum(&entry).map(|crc| format!("{crc:08x}")),
                "verdict": if hurt { "damaged" } else { "ok" },
            });
            text += &format!("{}\n", text::with_path(line, path));
            if text.len() > 1 << 16 {
                printed = output::print(&std::mem::take(&mut text));
            }
            if printed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        printed?;
        let bad: Vec<_> =
            runs.iter().map(|run| json!({"offset": run.offset(), "len": run.len(), "what": run.what()})).collect();
        let known = recorded.summary();
        let line = json!({
            "state": recorded.state(),
            "verdict": match recorded.state() {
                _ if !runs.is_empty() => "damaged",
                FileState::Interrupted => "interrupted",
                _ if verdict.is_wrong_by_itself() => "incomplete",
                _ => "ok",
            },
            "reason": known.as_ref().and_then(|known| known.reason.clone()).or_else(|| {
                let is_cut = known.as_ref().is_some_and(|known| known.cut);
                (recorded.state() == FileState::Interrupted && !is_cut).then(|| UNFINISHED.to_owned())
            }),
            "bytes": size,
            "format": known.as_ref().map(|known| known.format.name()),
            "tensors": tensors,
            "damaged_tensors": damaged,
            "complete": match &known {
                Some(known) => is_complete(known, recorded.state()),
                None => recorded.state() != FileState::Interrupted,
            },
            "damaged_runs": bad,
        });
        Ok(format!("{text}{}\n", text::with_path(line, path)))
    }
}

/// Name, step and mode.
fn label(tensor: &Tensor) -> String {
    let mode = tensor.mode.map(|mode| format!(" {}", mode.name())).unwrap_or_default();
    tensor.label() + &mode
}
