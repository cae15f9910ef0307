//! Other programs: found, run to their end, or kept as children.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::error::Result;

/// A program on the path.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file())
}

/// Runs a program to its end; what it printed, or why it failed.
pub fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = own(command).stdin(Stdio::null()).output().map_err(|e| format!("{name}: {e}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name}: {}: {}", output.status, reason.trim().lines().last().unwrap_or_default()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Makes a child that ctrl-C at the terminal leaves to us, and that ends when we are killed.
pub fn own(command: &mut Command) -> &mut Command {
    let end_with_us = || nix::sys::prctl::set_pdeathsig(Signal::SIGTERM).map_err(std::io::Error::from);
    // SAFETY: the closure makes one system call, and allocates nothing.
    unsafe { command.process_group(0).pre_exec(end_with_us) }
}
