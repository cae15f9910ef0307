//! `tensorfs quota`: how much what is below a directory may take. The pool knows what counts, as an attribute of each
//! file and directory; the host counts it, and has the limit.

mod clear;
mod hosts;
mod place;
mod set;
mod show;
mod walk;

use std::process::ExitCode;

use crate::cli::{Quota, QuotaCommand};
use crate::show::failure::Failure;

/// Runs the command.
pub fn run(arguments: &Quota) -> Result<ExitCode, Failure> {
    match (&arguments.command, &arguments.path) {
        (Some(QuotaCommand::Set(arguments)), _) => set::run(arguments),
        (Some(QuotaCommand::Clear(arguments)), _) => clear::run(arguments),
        (Some(QuotaCommand::Show(arguments)), _) => show::run(&arguments.path, arguments.json),
        (None, Some(path)) => show::run(path, arguments.json),
        // Then there is help.
        (None, None) => Ok(()),
    }
    .map(|()| ExitCode::SUCCESS)
}
