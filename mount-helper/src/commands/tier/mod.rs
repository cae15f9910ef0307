//! `tensorfs tier`: the directories that a pool keeps its files in, and which files go where.

mod add;
mod list;
mod map;
mod moving;
mod remove;

use std::process::ExitCode;

use crate::cli::{Tier, TierCommand};
use crate::show::failure::Failure;

/// Runs the command.
pub fn run(arguments: &Tier) -> Result<ExitCode, Failure> {
    match &arguments.command {
        TierCommand::Add(arguments) => add::run(arguments),
        TierCommand::Remove(arguments) => remove::run(arguments),
        TierCommand::List(arguments) => list::run(arguments),
        TierCommand::Map(arguments) => map::run(arguments),
        TierCommand::Move(arguments) => return moving::run(arguments),
    }
    .map(|()| ExitCode::SUCCESS)
}
