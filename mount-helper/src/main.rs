//! The program `tensorfs`, which is also `mount.tensorfs` when called by that name (a symbolic link).
//!
//! It owns everything outside the filesystem itself: the command line, `/dev/fuse`, mount(2) and umount2(2), the server
//! process with its log and its signals. What is read and written through the mount is the business of `tensorfs-fs`.

mod background;
mod busy;
mod cat;
mod check;
mod cli;
mod clock;
mod create;
mod diff;
mod failure;
mod fuse_device;
mod fusermount;
mod info;
mod info_text;
mod job;
mod logging;
mod ls;
mod mount;
mod mount8;
mod mountinfo;
mod notify;
mod numbers;
mod options;
mod output;
mod paths;
mod place;
mod process;
mod progress;
mod recorded;
mod remount;
mod resize;
mod restore;
mod scrub;
mod seal;
mod selection;
mod server;
mod signals;
mod size;
mod stat;
mod sync;
mod syslog;
mod target;
mod tensors;
mod text;
mod tier;
mod tier_move;
mod umount;
mod unmount;
mod verify;
mod xattr;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};
use failure::Failure;

/// The names that mount(8) calls: by the type in /etc/fstab, and by the one that the kernel shows.
const MOUNT8: [&str; 2] = ["mount.tensorfs", "mount.fuse.tensorfs"];

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    let by_mount = Path::new(&called).file_name().is_some_and(|name| MOUNT8.iter().any(|called| name == *called));
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
        Command::Scrub(arguments) => return scrub::run(&arguments),
        Command::Ls(arguments) => return ls::run(&arguments),
        Command::Verify(arguments) => return verify::run(&arguments),
        Command::Seal(arguments) => return seal::run(&arguments),
        Command::Diff(arguments) => return Ok(diff::run(&arguments)),
        Command::Tier(arguments) => return tier::run(&arguments),
        Command::Tensors(arguments) => return tensors::run(&arguments),
        Command::Cat(arguments) => cat::run(&arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Create(arguments) => create::run(&arguments),
        Command::Mount(arguments) => mount::run(arguments),
        Command::Umount(arguments) => umount::run(&arguments),
        Command::Info(arguments) => info::run(&arguments),
        Command::Sync(arguments) => sync::run(&arguments),
        Command::Resize(arguments) => resize::run(&arguments),
        Command::Restore(arguments) => restore::run(&arguments),
    }
    .map(|()| ExitCode::SUCCESS)
}
