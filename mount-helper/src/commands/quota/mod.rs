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
    match &arguments.command {
        QuotaCommand::Set(arguments) => set::run(arguments),
        QuotaCommand::Clear(arguments) => clear::run(arguments),
        QuotaCommand::Show(arguments) => show::run(arguments),
    }
    .map(|()| ExitCode::SUCCESS)
}
