//! Tests that need what is not there.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};

/// The test counts as skipped, and the log of these has why.
pub fn skipped(test: &str, why: &str) {
    eprintln!("SKIPPED: {test}: {why}");
    if let Some(path) = std::env::var_os("TENSORFS_SKIP_LOG") {
        let mut log = File::options().create(true).append(true).open(path).unwrap();
        log.write_all(format!("{test}: {why}\n").as_bytes()).unwrap();
    }
}

/// True if all of these programs are there; else the test counts as skipped.
pub fn has(test: &str, programs: &[(&str, &str)]) -> bool {
    let is_there = |(program, asked): &(&str, &str)| {
        Command::new(program).arg(asked).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    match programs.iter().find(|program| !is_there(program)) {
        Some((program, _)) => {
            skipped(test, &format!("{program} is not there"));
            false
        }
        None => true,
    }
}
