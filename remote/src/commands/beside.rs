//! What packages have beside the program: manual pages and completions.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_mangen::Man;

use crate::commands::cli::{Cli, Completions, Manual, VERSION};
use crate::error::{Error, Result};

/// The program's own name.
const PROGRAM: &str = "tensorfs-carrier";
/// Commands of those who administer a system (man-pages(7)).
const SECTION: &str = "8";

/// A page for each command, called as `tensorfs` calls it, and one for the program.
pub fn manual(asked: &Manual) -> Result<()> {
    let path = || asked.directory.display().to_string();
    let cannot = |source| Error::Host { path: path(), what: "write the manual pages", source };
    std::fs::create_dir_all(&asked.directory).map_err(cannot)?;
    let mut remote = Cli::command().name("tensorfs-remote").bin_name("tensorfs remote").disable_help_subcommand(true);
    remote.build();
    let of_commands = remote.get_subcommands().filter(|below| !below.is_hide_set());
    let own = Cli::command().name(PROGRAM).bin_name(PROGRAM).disable_help_subcommand(true);
    for command in of_commands.cloned().chain([own]) {
        let man = Man::new(command).section(SECTION).source(format!("tensorfs {VERSION}")).manual("tensorfs");
        man.generate_to(&asked.directory).map_err(cannot)?;
    }
    Ok(())
}

/// For a shell.
pub fn completions(asked: &Completions) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(asked.shell, &mut Cli::command(), PROGRAM, &mut text);
    let cannot = |source| Error::Host { path: "standard output".to_owned(), what: "print", source };
    io::stdout().lock().write_all(&text).map_err(cannot)
}
