//! What a measure is: its rows, its goals, where it runs, and the functions that do it.

use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::backing::Backing;
use crate::clients::Pythons;
use crate::error::Result;
use crate::target::{Kind, Target};

/// One measure: a run of it on one target gives a value for each of its rows.
pub struct Measure {
    /// What `--only` calls it.
    pub id: &'static str,
    pub family: Family,
    /// How it is measured, in a sentence or two.
    pub how: &'static str,
    pub rows: &'static [Row],
    pub targets: &'static [Kind],
    pub backings: &'static [Backing],
    /// Whether it is about the time of single requests, and so measured also with everybody on one processor.
    pub latency: bool,
    /// Most rounds that are worth their time.
    pub rounds: usize,
    /// Once, before the first round.
    pub prepare: Step<()>,
    /// Once a round.
    pub round: Step<Sample>,
}

type Step<T> = fn(&Context, &Place) -> Result<T>;

/// Measures that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Bytes in and out of large files
    Data,
    /// Names and attributes
    Metadata,
    /// fsync, close and what survives
    Durability,
    /// Unmodified Python clients, as whole processes
    Clients,
    /// Many files, many writers, large files
    Scale,
}

/// One value of a measure.
pub struct Row {
    pub id: &'static str,
    pub title: &'static str,
    pub unit: Unit,
    pub goals: &'static [Goal],
}

/// What a value is, and so which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Bytes a second: more is better.
    Rate,
    /// Seconds: fewer are better.
    Time,
    /// Bytes of memory that are needed: fewer are better.
    Memory,
    /// Bytes that are mapped by huge pages: more are better.
    Huge,
}

impl Unit {
    /// Whether more is better.
    pub fn more_is_better(self) -> bool {
        matches!(self, Unit::Rate | Unit::Huge)
    }
}

/// What a row is to reach.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Goal {
    pub target: Kind,
    /// On which backings.
    pub on: &'static [Backing],
    pub must: Must,
}

/// Ratios are of speeds: more is better whatever the unit.
#[derive(Clone, Copy, Debug, Serialize)]
pub enum Must {
    /// At least so much of the native speed.
    Native(f64),
    /// At least so much of the best peer's speed.
    Peer(f64),
    /// At least so much of the ancestor's speed.
    Ancestor(f64),
    /// At most this value.
    AtMost(f64),
    /// At most so much above the native value.
    Above(f64),
    /// At most this value, in a run with `--full`.
    AtMostFull(f64),
}

/// What a round gives.
pub struct Sample {
    /// A value for each row; NaN where there is none.
    pub values: Vec<f64>,
    /// How many operations the server's counters are to be divided by; 0 if they are not worth printing.
    pub operations: u64,
}

impl Sample {
    pub fn of(values: Vec<f64>) -> Result<Sample> {
        Ok(Sample { values, operations: 0 })
    }
}

/// Where a measure runs on a target.
pub struct Place<'a> {
    pub target: &'a Target,
    pub backing: Backing,
    /// A directory of its own on the target.
    pub dir: PathBuf,
}

impl Place<'_> {
    /// A path in it.
    pub fn at(&self, name: impl AsRef<std::path::Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// The kind of target that it is on.
    pub fn kind(&self) -> Kind {
        self.target.kind
    }
}

/// What measures need beside their place.
pub struct Context {
    pub scale: Scale,
    pub pythons: Pythons,
}

/// How much of everything.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Scale {
    /// Bytes of a large file.
    pub bulk: u64,
    /// Bytes of a large file where each goes through a server: rates compare, and a run ends.
    pub copied: u64,
    /// Files that stat and ls look at.
    pub files: u64,
    /// Files that are created and renamed in a round.
    pub created: u64,
    /// Durable appends and small files in a round.
    pub syncs: u64,
    /// Names in one directory.
    pub names: u64,
    /// Files of the pool whose mounting is timed, with five records each.
    pub mounted: u64,
    /// Bytes that pass through while the server's processor time is read.
    pub through: u64,
    /// Whether goals of a large scale count.
    pub full: bool,
    /// Whether the machine's memory is put in order first: what it caches is thrown away.
    #[serde(default)]
    pub steady: bool,
}

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

impl Scale {
    pub const DEFAULT: Scale = Scale {
        bulk: GIB,
        copied: GIB / 4,
        files: 10_000,
        created: 1000,
        syncs: 120,
        names: 20_000,
        mounted: 30_000,
        through: 10 * GIB,
        full: false,
        steady: true,
    };
    pub const FULL: Scale = Scale { names: 1_000_000, mounted: 1_000_000, full: true, ..Scale::DEFAULT };
    pub const QUICK: Scale =
        Scale { created: 500, syncs: 60, names: 5000, mounted: 10_000, through: 2 * GIB, ..Scale::DEFAULT };
    pub const SMOKE: Scale = Scale {
        bulk: 4 * MIB,
        copied: 4 * MIB,
        files: 20,
        created: 20,
        syncs: 8,
        names: 50,
        mounted: 20,
        through: 8 * MIB,
        full: false,
        steady: false,
    };

    /// Bytes of a large file for a target.
    pub fn bulk(&self, kind: Kind) -> u64 {
        if kind.copies() { self.copied } else { self.bulk }
    }
}

/// Seconds that something takes.
pub fn seconds<T>(what: impl FnOnce() -> Result<T>) -> Result<f64> {
    let start = Instant::now();
    what()?;
    Ok(start.elapsed().as_secs_f64())
}

/// No preparation.
pub fn nothing(_: &Context, _: &Place) -> Result<()> {
    Ok(())
}
