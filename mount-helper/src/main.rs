//! The program `tensorfs`, which is also `mount.tensorfs` when called by that name (a symbolic link).
//!
//! It is also started, by itself and under a third name, as a reader of the bytes of files.
//!
//! It owns everything outside the filesystem itself: the command line, `/dev/fuse`, mount(2) and umount2(2), the server
//! process with its log and its signals. What is read and written through the mount is the business of `tensorfs-fs`.
//!
//! `cli` has the flags, as plain data; `commands` does what they ask for, one file a command. Commands stand on `ask`
//! (questions to a server), `tensors` (files and what is in them), `mounting` (what mounts, serves and unmounts) and
//! `show` (what is said). Each of these may use those that are named after it, and none that is named before.

mod ask;
mod cli;
mod commands;
mod mounting;
mod show;
mod tensors;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Mount8};
use mounting::touching::Touching;
use show::logging;

#[global_allocator]
static ALLOCATOR: Touching = Touching;

/// The names that mount(8) calls: by the type in /etc/fstab, and by the one that the kernel shows.
const MOUNT8: [&str; 2] = ["mount.tensorfs", "mount.fuse.tensorfs"];

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    if called == tensorfs_fs::READER {
        tensorfs_fs::serve_reader();
    }
    let by_mount = Path::new(&called).file_name().is_some_and(|name| MOUNT8.iter().any(|called| name == *called));
    logging::catching_panics(|| {
        let result = if by_mount {
            commands::mount8::run(Mount8::parse()).map(|()| ExitCode::SUCCESS)
        } else {
            commands::run(Cli::parse().command)
        };
        match result {
            Ok(code) => code,
            Err(failure) => {
                logging::fail(&failure);
                ExitCode::FAILURE
            }
        }
    })
}
