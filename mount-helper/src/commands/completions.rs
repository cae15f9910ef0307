//! `tensorfs completions`.

use clap::CommandFactory;

use crate::cli::{Cli, Completions};
use crate::show::failure::Failure;
use crate::show::output;

/// Runs the command.
pub fn run(arguments: &Completions) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "tensorfs", &mut text);
    output::print(&String::from_utf8_lossy(&text))
}
