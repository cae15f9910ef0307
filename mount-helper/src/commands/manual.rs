//! `tensorfs manual`.

use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;

use crate::cli::{Cli, Manual, Mount8};
use crate::show::VERSION;
use crate::show::failure::{At, Failure};

/// Commands of those who administer a system (man-pages(7)).
const SECTION: &str = "8";

/// Runs the command.
pub fn run(arguments: &Manual) -> Result<(), Failure> {
    std::fs::create_dir_all(&arguments.directory).at(&arguments.directory)?;
    // `tensorfs help tier` is no command of its own.
    let mut program = Cli::command().disable_help_subcommand(true);
    // Gives each command its whole name.
    program.build();
    pages(&program, &arguments.directory)?;
    pages(&Mount8::command(), &arguments.directory)
}

/// A command's page, and those of the commands below it.
fn pages(command: &clap::Command, directory: &Path) -> Result<(), Failure> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        pages(below, directory)?;
    }
    let source = format!("tensorfs {VERSION}");
    let man = Man::new(command.clone()).section(SECTION).source(source).manual("tensorfs");
    man.generate_to(directory).map(drop).at(directory)
}
