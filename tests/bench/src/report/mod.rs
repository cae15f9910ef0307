//! What a run found, and the forms in which it is told.

mod markdown;
mod numbers;
mod plot;
mod table;
mod text;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::backing::{Backing, run};
use crate::measure::{Scale, Unit};
use crate::target::Kind;
use crate::{Missing, Result};

pub use markdown::markdown;
pub use plot::plots;
pub use text::text;

/// A whole run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    pub machine: BTreeMap<String, String>,
    /// The arguments it was started with.
    pub command: String,
    pub seconds: f64,
    pub scale: Scale,
    pub figures: Vec<Figure>,
    pub left: Vec<Left>,
}

/// The rounds of one row of a measure, on one target.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figure {
    pub measure: String,
    pub row: String,
    pub unit: Unit,
    pub backing: Backing,
    /// Whether everybody was on one processor.
    pub pinned: bool,
    pub target: Kind,
    /// What was not measured is null.
    #[serde(deserialize_with = "with_null")]
    pub rounds: Vec<f64>,
    /// What the server counted, for each operation, in the last round.
    pub counts: BTreeMap<String, f64>,
}

/// What was left out.
#[derive(Debug, Serialize, Deserialize)]
pub struct Left {
    pub what: String,
    pub reason: String,
    /// Whether it should have worked.
    pub failed: bool,
}

impl Left {
    pub fn new(what: String, error: &(dyn std::error::Error + 'static)) -> Left {
        Left { what, reason: error.to_string(), failed: !error.is::<Missing>() }
    }
}

fn with_null<'de, D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Vec<f64>, D::Error> {
    let values = Vec::<Option<f64>>::deserialize(from)?;
    Ok(values.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect())
}

impl Report {
    /// Reads what [`json`] wrote.
    pub fn load(file: &Path) -> Result<Report> {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()).into())
    }
}

/// Everything, for programs.
pub fn json(report: &Report) -> Result<String> {
    let mut value = serde_json::to_value(report)?;
    value["lines"] = serde_json::to_value(table::lines(report))?;
    Ok(serde_json::to_string(&value)? + "\n")
}

/// What it was measured on.
pub fn machine(tensorfs: &Path) -> Result<BTreeMap<String, String>> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or(String::new(), |(_, value)| value.trim().to_owned())
    };
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let kibibytes: f64 = memory.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
    let version = |program: &str| {
        let text = run(Command::new(program).arg("--version")).unwrap_or_default();
        text.lines().next().unwrap_or("not there").trim().to_owned()
    };
    Ok([
        ("processor", format!("{} x {}", cpus, field(&read("/proc/cpuinfo"), "model name"))),
        ("memory", format!("{:.0} GiB", kibibytes / 1024.0 / 1024.0)),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("date", run(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]))?.trim().to_owned()),
        ("load before the run", read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned()),
        ("tensorfs", version(&tensorfs.to_string_lossy())),
        ("bindfs", version("bindfs")),
        ("mergerfs", version("mergerfs")),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect())
}
