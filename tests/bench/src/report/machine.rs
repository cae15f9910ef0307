//! The machine, and the programs on it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::error::Result;
use crate::process::run;

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
