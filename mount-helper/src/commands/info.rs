//! `tensorfs info`: what a pool is, holds and does.

use tensorfs_fs::Info;

use crate::ask::about;
use crate::cli;
use crate::show::failure::Failure;
use crate::show::{info, output};

/// Runs the command.
pub fn run(arguments: &cli::Info) -> Result<(), Failure> {
    let json = about::json(&arguments.target)?;
    if arguments.json {
        return output::print(&json);
    }
    let found: Info = serde_json::from_str(&json).map_err(|error| {
        Failure::at(&arguments.target, format!("its server speaks of something unknown here ({error}); try --json"))
    })?;
    output::print(&info::table(&found))
}
