//! Programs of others, unmodified, on real mounts: everyday tools, clients of the machine-learning world, and the
//! examples.

mod clients;
mod everyday;
mod examples;
mod writers;

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use tensorfs_tests::{Mount, Passthrough};

/// A client that is told where, and what to do: to be run, with more arguments if need be.
fn client(python: &Path, name: &str, path: &Path, action: &str) -> Command {
    let mut command = tensorfs_tests::client(python, &format!("{name}_client.py"));
    command.arg(path).arg(action).env("TENSORFS_BIN", tensorfs_tests::tensorfs().get_program());
    command
}

/// What a client's action `memory` is told: where the pool is, and whether the kernel moves the bytes.
fn pool_of(mount: &Mount) -> [OsString; 2] {
    let mode = if mount.passthrough() == Passthrough::On { "on" } else { "off" };
    [mount.pool().into(), mode.into()]
}
