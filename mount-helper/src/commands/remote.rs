//! `tensorfs remote`: what a program of its own does, so that tokio and TLS are no part of this one.

use std::convert::Infallible;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::cli::Remote;
use crate::show::failure::{Failure, reason};

/// The program, beside this one or wherever programs are.
const CARRIER: &str = "tensorfs-carrier";

/// Becomes that program.
pub fn run(arguments: &Remote) -> Result<Infallible, Failure> {
    let own = std::env::current_exe().ok().map(|own| own.with_file_name(CARRIER));
    let program = own.filter(|program| program.is_file()).unwrap_or_else(|| PathBuf::from(CARRIER));
    let error = Command::new(&program).args(&arguments.arguments).exec();
    Err(match error.kind() {
        io::ErrorKind::NotFound => Failure::new("the program tensorfs-carrier is not installed"),
        _ => Failure::at(&program, reason(&error)),
    })
}
