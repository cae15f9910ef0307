//! `tensorfs seal`: files get their checksums now, those that nothing can write.

use std::process::ExitCode;

use crate::ask::sealing;
use crate::cli::Seal;
use crate::show::failure::Failure;
use crate::show::{output, text};

/// Runs the command. Status 1: something was not sealed.
pub fn run(arguments: &Seal) -> Result<ExitCode, Failure> {
    let tally = sealing::seal(&arguments.paths, arguments.again)?;
    let (sealed, not_sealed) = (tally.sealed(), tally.not_sealed());
    // Where nothing was found there is nothing to count.
    if sealed + not_sealed > 0 || !tally.has_failed() {
        let files = text::count(sealed, "file is", "files are");
        let not = if not_sealed > 0 { format!(", {not_sealed} not") } else { String::new() };
        output::print(&format!("{files} sealed{not}\n"))?;
    }
    Ok(if tally.has_failed() || not_sealed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
