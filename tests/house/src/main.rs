//! Shows the structure of the project's code to whoever develops it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tensorfs_house::arrows::{Arrow, Arrows};
use tensorfs_house::calls::{Calls, HOW};
use tensorfs_house::circles::knots;
use tensorfs_house::names::Names;
use tensorfs_house::source::{Crate, Files};
use tensorfs_house::structs::structs;
use tensorfs_house::supply::{bill, supplied};
use tensorfs_house::workspace::{Package, Workspace};

/// Reads the sources of a workspace, compiles nothing, and says what is in them. What only tests see (`#[cfg(test)]`)
/// is left out.
#[derive(Parser)]
#[command(name = "tensorfs-house")]
struct Cli {
    /// The workspace to read
    #[arg(long, value_name = "DIR", default_value = ".", global = true)]
    repo: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// How much an operation can reach: functions, files, and those of them that take a lock
    #[command(after_long_help = HOW)]
    Reach {
        /// Directory or name of a crate
        of: String,
        /// Functions to start from: `name`, or `Type::name`. All that have the name are shown, each by itself
        #[arg(required = true)]
        entries: Vec<String>,
        /// Name the functions that are reached, and by which each was reached first
        #[arg(long)]
        list: bool,
        /// Name the functions that take a lock, and the lock
        #[arg(long)]
        locks: bool,
    },
    /// Circles of files that name what others of them define
    ///
    /// An arrow leads from a file to the one that defines a name, whatever modules hand it on. Method calls are no
    /// arrows.
    Circles {
        /// Directory or name of a crate; all if not given
        of: Option<String>,
    },
    /// Which module below the root imports from which, with one of the places
    Rooms {
        /// Directory or name of a crate; all if not given
        of: Option<String>,
    },
    /// What a program is made of, as a CycloneDX bill of materials
    Bill {
        /// Name of the package
        #[arg(default_value = "tensorfs")]
        of: String,
    },
    /// Structs, largest first: fields, those seen beyond the struct's module, methods, files with methods
    Structs {
        /// Directory or name of a crate; all if not given
        of: Option<String>,
    },
}

fn packages(workspace: &Workspace, of: Option<&str>) -> io::Result<Vec<Package>> {
    match of {
        None => Ok(workspace.packages.clone()),
        Some(name) => match workspace.package(name) {
            Some(package) => Ok(vec![package.clone()]),
            None => Err(io::Error::other(format!("no crate {name} in {}", workspace.root.display()))),
        },
    }
}

fn show_circles(of: &Crate, out: &mut impl io::Write) -> io::Result<()> {
    let names = Names::new(of);
    let found = knots(&Arrows::of(&names).own, |module| &of.modules[module].file);
    if found.is_empty() {
        writeln!(out, "{}: no circles", of.name)?;
    }
    for knot in found {
        writeln!(out, "{}: {knot}", of.name)?;
    }
    Ok(())
}

fn show_rooms(of: &Crate, out: &mut impl io::Write) -> io::Result<()> {
    let room = |module: usize| of.modules[module].path.first().map_or("crate", String::as_str);
    let mut rooms: BTreeMap<&str, BTreeMap<&str, Vec<Arrow>>> = BTreeMap::new();
    for arrow in Arrows::of(&Names::new(of)).own {
        let (from, to) = (room(arrow.from), room(arrow.to));
        if from != to {
            rooms.entry(from).or_default().entry(to).or_default().push(arrow);
        }
    }
    writeln!(out, "{}", of.name)?;
    for (from, all) in rooms {
        for (to, arrows) in all {
            writeln!(out, "  {from} -> {to}: {} times, first at {}", arrows.len(), arrows[0])?;
        }
    }
    Ok(())
}

fn show_structs(of: &Crate, out: &mut impl io::Write) -> io::Result<()> {
    let mut all = structs(&Names::new(of));
    all.sort_by_key(|of| (std::cmp::Reverse(of.fields.len()), of.file.clone(), of.line));
    writeln!(out, "{}: {} structs", of.name, all.len())?;
    writeln!(out, "{:>6} {:>6} {:>7} {:>5}  struct", "fields", "shown", "methods", "files")?;
    for one in all {
        let shown = one.shown_beyond(&of.modules[one.module].path).len();
        let (fields, files) = (one.fields.len(), one.impl_files.len());
        let state = one.state.map(|why| format!(" (state: {why})")).unwrap_or_default();
        let (file, line) = (one.file.display(), one.line);
        writeln!(out, "{fields:>6} {shown:>6} {:>7} {files:>5}  {} {file}:{line}{state}", one.methods, one.name)?;
    }
    Ok(())
}

fn show_reach(of: &Crate, entries: &[String], list: bool, locks: bool, out: &mut impl io::Write) -> io::Result<()> {
    let names = Names::new(of);
    let calls = Calls::of(&names);
    let (guessed, methods) = calls.guessed;
    writeln!(out, "{}: {} functions", of.name, calls.functions.len())?;
    writeln!(out, "{methods} method calls, of which {guessed} count for every method of their name")?;
    writeln!(out, "{:>9} {:>5} {:>7}  from", "functions", "files", "locking")?;
    for entry in entries {
        let found = calls.find(entry);
        if found.is_empty() {
            writeln!(out, "{:>9} {:>5} {:>7}  {entry}: no such function", "-", "-", "-")?;
        }
        for id in found {
            let reach = calls.reach(id);
            let files: BTreeSet<_> = reach.by.keys().map(|id| &calls.functions[*id].file).collect();
            let locking: Vec<_> = reach.by.keys().copied().filter(|id| !calls.locks(*id).is_empty()).collect();
            let from = &calls.functions[id];
            writeln!(out, "{:>9} {:>5} {:>7}  {from}", reach.by.len(), files.len(), locking.len())?;
            if list {
                for (id, by) in &reach.by {
                    let by = &calls.functions[*by];
                    let by = by.owner.as_ref().map_or_else(|| by.name.clone(), |of| format!("{of}::{}", by.name));
                    writeln!(out, "    {} (by {by})", calls.functions[*id])?;
                }
            }
            if locks {
                for id in locking {
                    writeln!(out, "    {}: {}", calls.functions[id], calls.locks(id).join(", "))?;
                }
            }
        }
    }
    Ok(())
}

fn run(cli: &Cli) -> io::Result<()> {
    let workspace = Workspace::read(&cli.repo)?;
    let files: Files = workspace.files()?;
    let mut out = io::stdout().lock();
    let each = |of: Option<&str>| -> io::Result<Vec<Crate>> {
        let crates = packages(&workspace, of)?.into_iter().map(|package| package.crates(&files, false));
        Ok(crates.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
    };
    match &cli.command {
        Command::Reach { of, entries, list, locks } => {
            each(Some(of))?.iter().try_for_each(|one| show_reach(one, entries, *list, *locks, &mut out))?;
        }
        Command::Circles { of } => each(of.as_deref())?.iter().try_for_each(|one| show_circles(one, &mut out))?,
        Command::Rooms { of } => each(of.as_deref())?.iter().try_for_each(|one| show_rooms(one, &mut out))?,
        Command::Bill { of } => writeln!(out, "{:#}", bill(&supplied(&cli.repo)?, of))?,
        Command::Structs { of } => each(of.as_deref())?.iter().try_for_each(|one| show_structs(one, &mut out))?,
    }
    out.flush()
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads it has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tensorfs-house: {error}");
            ExitCode::FAILURE
        }
    }
}
