//! The Python environments in which unmodified clients run.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Missing, Result};
use crate::process::run;

const SCRIPT: &str = include_str!("../clients.py");

/// Interpreters, and the program that they run.
pub struct Pythons {
    interpreters: Vec<PathBuf>,
    script: PathBuf,
}

impl Pythons {
    /// Of these environments; without any, the Python of the path.
    pub fn new(environments: &[PathBuf], room: &Path) -> Result<Pythons> {
        let script = room.join("clients.py");
        std::fs::write(&script, SCRIPT)?;
        let interpreters = match environments {
            [] => vec![PathBuf::from("python3")],
            _ => environments.iter().map(|environment| environment.join("bin/python")).collect(),
        };
        Ok(Pythons { interpreters, script })
    }

    /// The first interpreter that has all of these packages, each of this major version or newer, or why there is none.
    pub fn with(&self, packages: &[(&str, u32)]) -> Result<&Path> {
        let test = |(name, least): &(&str, u32)| format!("assert int(version('{name}').split('.')[0]) >= {least}\n");
        let test = packages.iter().map(test).collect::<String>();
        let script = format!("from importlib.metadata import version\n{test}");
        let has = |python: &&PathBuf| run(Command::new(python).args(["-c", &script])).is_ok();
        let found = self.interpreters.iter().find(has).map(PathBuf::as_path);
        let names: Vec<_> = packages.iter().map(|(name, _)| *name).collect();
        found.ok_or_else(|| Missing(format!("no Python with {} (--venv)", names.join(" and "))).into())
    }

    /// Runs one action of a client; the seconds that its call took.
    pub fn run(&self, python: &Path, library: &str, action: &str, path: &Path, bytes: u64) -> Result<f64> {
        let mut command = Command::new(python);
        command.arg(&self.script).args([library, action]).arg(path).arg(bytes.to_string());
        let text = run(&mut command)?;
        let last = text.trim().lines().last().unwrap_or_default();
        last.parse().map_err(|_| format!("{library} {action}: {text}").into())
    }
}
