//! `tensorfs seal`: files get their checksums now, those that nothing can write.

use std::process::ExitCode;

use crate::ask::sealing;
use crate::cli::Seal;
use crate::show::failure::Failure;
use crate::show::{output, text};

/// Runs the command. Status 1: something was not sealed.
pub fn run(arguments: &Seal) -> Result<ExitCode, Failure> {
    let tally = sealing::seal(&arguments.paths, arguments.again)?;
    let files = text::count(tally.sealed(), "file is", "files are");
    let not = if tally.not_sealed() > 0 { format!(", {} not", tally.not_sealed()) } else { String::new() };
    output::print(&format!("{files} sealed{not}\n"))?;
    Ok(if tally.has_failed() || tally.not_sealed() > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
