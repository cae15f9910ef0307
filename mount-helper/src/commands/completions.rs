//! `tensorfs completions`.

use clap::CommandFactory;

use crate::cli::{Cli, Completions};
use crate::show::failure::Failure;
use crate::show::output;

/// The commands of `tensorfs remote`.
const REMOTE: [&str; 11] = ["set", "key", "off", "status", "carry", "wait", "list", "get", "check", "gc", "restore"];

/// Runs the command.
pub fn run(arguments: &Completions) -> Result<(), Failure> {
    let mut text = Vec::new();
    // What another program does is completed, too, as far as its commands go.
    let remote = |command: clap::Command| command.subcommands(REMOTE.map(clap::Command::new));
    let mut program = Cli::command().mut_subcommand("remote", remote);
    clap_complete::generate(arguments.shell, &mut program, "tensorfs", &mut text);
    output::print(&String::from_utf8_lossy(&text))
}
