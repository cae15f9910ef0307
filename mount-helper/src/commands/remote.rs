//! `tensorfs remote`: what a program of its own does, so that tokio and TLS are no part of this one.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;

use crate::ask::carrier;
use crate::cli::Remote;
use crate::show::failure::Failure;

/// What is shown as the program's name in its help.
const SHOWN: &str = "tensorfs remote";

/// Becomes that program.
pub fn run(arguments: &Remote) -> Result<Infallible, Failure> {
    Err(carrier::reason(&carrier::command().arg0(SHOWN).args(&arguments.arguments).exec()))
}
