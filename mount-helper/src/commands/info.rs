//! `tensorfs info`: what a pool is, holds and does.

use std::process::ExitCode;

use tensorfs_fs::{Info, TOLD_TO_LEAVE, UPGRADE};

use crate::ask::about::{self, About};
use crate::cli;
use crate::show::failure::Failure;
use crate::show::{info, output};

/// Runs the command. What is told of a mount whose server is gone is told of its pool, and counts as a failure.
pub fn run(arguments: &cli::Info) -> Result<ExitCode, Failure> {
    let About { json, is_dead } = about::json(&arguments.target)?;
    let code = if is_dead { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if arguments.json {
        return output::print(&json).map(|()| code);
    }
    let found: Info = serde_json::from_str(&json).map_err(|error| {
        Failure::at(&arguments.target, format!("its server speaks of something unknown here ({error}); try --json"))
    })?;
    let reason = found.keeper.as_ref().and_then(|keeper| keeper.reason.as_deref());
    let has_left = reason.is_some_and(|reason| [UPGRADE, TOLD_TO_LEAVE].contains(&reason));
    output::print(&info::table(&found, has_left)).map(|()| code)
}
