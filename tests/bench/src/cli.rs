//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::backing::{self, Backing};
use crate::error::Result;
use crate::measure::{Family, Measure, Scale};
use crate::measures;
use crate::run::Plan;
use crate::target::Kind;

const EXAMPLES: &str = "\
Examples:
  cargo build --release && target/release/tensorfs-bench --docs docs/benchmarks
  tensorfs-bench --quick --backings tmpfs --families metadata
  tensorfs-bench --only create,append --backings ext4 --rounds 9
  tensorfs-bench --from docs/benchmarks/results.json --docs docs/benchmarks

Needs root. Peers and clients that are not installed are skipped; on Debian they
are bindfs, mergerfs, libpmemobj-dev, gcc, xfsprogs and e2fsprogs. A run keeps to
10 GB of disk and 6 GiB of memory, and leaves nothing behind.

Exit status: 0 done, 1 something failed. Missed goals do not fail a run.";

/// Time tensorfs beside the bare filesystem and its peers
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES, max_term_width = 80)]
pub struct Cli {
    /// Directory of the host to work in
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// The program to measure [default: the one beside this]
    #[arg(long, value_name = "FILE")]
    pub tensorfs: Option<PathBuf>,
    /// Measures to run; see --list
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Measures not to run
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub skip: Vec<String>,
    /// Families of measures to run
    #[arg(long, value_delimiter = ',')]
    pub families: Vec<Family>,
    /// Filesystems to measure on
    #[arg(long, value_delimiter = ',')]
    pub backings: Vec<Backing>,
    /// What to measure
    #[arg(long, value_delimiter = ',')]
    pub targets: Vec<Kind>,
    /// Rounds at most; measures that take long have fewer
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// About three minutes: fewer rounds, files and backings
    #[arg(long, conflicts_with_all = ["smoke", "full"])]
    pub quick: bool,
    /// Seconds: whether everything works, with numbers that mean nothing
    #[arg(long, conflicts_with = "full")]
    pub smoke: bool,
    /// A million files and names: an hour, perhaps
    #[arg(long)]
    pub full: bool,
    /// Leave out the rounds with everybody on one processor
    #[arg(long)]
    pub no_pinned: bool,
    /// Files of the pool whose mounting is timed
    #[arg(long, value_name = "N")]
    pub mounted_files: Option<u64>,
    /// A Python environment for the clients; more than one may be given
    #[arg(long, value_name = "DIR")]
    pub venv: Vec<PathBuf>,
    /// Write every figure of every round
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the tables
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Write the tables, plots and figures that docs/BENCHMARKS.md refers to
    #[arg(long, value_name = "DIR")]
    pub docs: Option<PathBuf>,
    /// Measure nothing; take the figures of an earlier --json
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// List the measures, and how each is done
    #[arg(long)]
    pub list: bool,
}

impl Cli {
    pub fn scale(&self) -> Scale {
        let scale = match self {
            Cli { full: true, .. } => Scale::FULL,
            Cli { quick: true, .. } => Scale::QUICK,
            Cli { smoke: true, .. } => Scale::SMOKE,
            _ => Scale::DEFAULT,
        };
        Scale { mounted: self.mounted_files.unwrap_or(scale.mounted), ..scale }
    }

    pub fn plan(&self) -> Result<Plan> {
        let known = |id: &&String| measures::all().any(|measure| measure.id == **id);
        if let Some(unknown) = self.only.iter().chain(&self.skip).find(|id| !known(id)) {
            return Err(format!("{unknown}: no such measure; --list names them").into());
        }
        let wanted = |measure: &&Measure| {
            (self.only.is_empty() || self.only.iter().any(|id| id == measure.id))
                && !self.skip.iter().any(|id| id == measure.id)
                && (self.families.is_empty() || self.families.contains(&measure.family))
        };
        let backings = match &self.backings[..] {
            [] if self.smoke => vec![Backing::Host, Backing::Tmpfs],
            [] if self.quick => vec![Backing::Ext4, Backing::Tmpfs],
            [] => backing::ALL.to_vec(),
            some => some.to_vec(),
        };
        let targets = match &self.targets[..] {
            [] => Kind::value_variants().to_vec(),
            some => some.to_vec(),
        };
        let rounds = match self {
            Cli { smoke: true, .. } => 1,
            Cli { quick: true, .. } => self.rounds.min(3),
            _ => self.rounds,
        };
        let measures = measures::all().filter(wanted).collect();
        Ok(Plan { measures, backings, targets, rounds: rounds.into(), pinned: !self.no_pinned })
    }

    /// The arguments that say what was measured; where it was, and where the report goes, is nobody's business.
    pub fn choices(&self, arguments: impl Iterator<Item = String>) -> String {
        let places = ["--dir", "--tensorfs", "--venv", "--json", "--markdown", "--docs"];
        let mut kept = Vec::new();
        let mut of_place = false;
        for argument in arguments {
            let name = argument.split('=').next().unwrap_or_default();
            if !of_place && !places.contains(&name) {
                kept.push(argument.clone());
            }
            of_place = places.contains(&argument.as_str());
        }
        kept.join(" ")
    }

    /// The program to measure.
    pub fn tensorfs(&self) -> Result<PathBuf> {
        let path = match &self.tensorfs {
            Some(path) => path.clone(),
            None => std::env::current_exe()?.with_file_name("tensorfs"),
        };
        if !path.is_file() {
            return Err(format!("{}: no such program; cargo build --release makes it", path.display()).into());
        }
        if path.components().any(|part| part.as_os_str() == "debug") && !self.smoke {
            eprintln!("{}: a debug build: the numbers mean little", path.display());
        }
        Ok(path)
    }

    pub fn print_measures(&self) {
        for measure in measures::all() {
            println!("{:14} {}", measure.id, measure.how);
        }
    }
}
