//! The Python environments in which unmodified clients run.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::backing::run;
use crate::{Missing, Result};

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

    /// The first interpreter that has all of these modules, or why there is none.
    pub fn with(&self, modules: &[&str]) -> Result<&Path> {
        let import = format!("import {}", modules.join(","));
        let has = |python: &&PathBuf| run(Command::new(python).args(["-c", &import])).is_ok();
        let found = self.interpreters.iter().find(has).map(PathBuf::as_path);
        found.ok_or_else(|| Missing(format!("no Python with {} (--venv)", modules.join(" and "))).into())
    }

    /// Runs one action of a client; the seconds that its call took.
    pub fn run(&self, python: &Path, library: &str, action: &str, path: &Path, bytes: u64) -> Result<f64> {
        let mut command = Command::new(python);
        command.arg(&self.script).args([library, action]).arg(path).arg(bytes.to_string());
        let text = run(&mut command)?;
        text.trim().parse().map_err(|_| format!("{library} {action}: {text}").into())
    }
}
