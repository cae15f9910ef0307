//! The program `tensorfs`, which is also `mount.tensorfs` when called by that name (a symbolic link).
//!
//! It owns everything outside the filesystem itself: the command line, `/dev/fuse`, mount(2) and umount2(2), the server
//! process with its log and its signals. What is read and written through the mount is the business of `tensorfs-fs`.

mod background;
mod busy;
mod check;
mod cli;
mod clock;
mod create;
mod failure;
mod fuse_device;
mod fusermount;
mod info;
mod info_text;
mod logging;
mod mount;
mod mount8;
mod mountinfo;
mod notify;
mod options;
mod output;
mod paths;
mod process;
mod restore;
mod server;
mod signals;
mod size;
mod sync;
mod syslog;
mod target;
mod umount;
mod unmount;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};
use failure::Failure;

/// The name that mount(8) calls.
const MOUNT8: &str = "mount.tensorfs";

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    let by_mount = Path::new(&called).file_name().is_some_and(|name| name == MOUNT8);
    logging::catching_panics(|| {
        let result = if by_mount {
            mount8::run(cli::Mount8::parse()).map(|()| ExitCode::SUCCESS)
        } else {
            run(Cli::parse().command)
        };
        match result {
            Ok(code) => code,
            Err(failure) => {
                output::complain(&failure);
                ExitCode::FAILURE
            }
        }
    })
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    if !matches!(command, Command::Mount(_)) {
        logging::to_terminal(log::LevelFilter::Warn);
    }
    match command {
        Command::Check(arguments) => return Ok(check::run(&arguments)),
        Command::Create(arguments) => create::run(&arguments),
        Command::Mount(arguments) => mount::run(arguments),
        Command::Umount(arguments) => umount::run(&arguments),
        Command::Info(arguments) => info::run(&arguments),
        Command::Sync(arguments) => sync::run(&arguments),
        Command::Restore(arguments) => restore::run(&arguments),
    }
    .map(|()| ExitCode::SUCCESS)
}
