//! What each command does, one file a command.

mod alarm;
mod arrays;
mod carrying;
mod cat;
mod check;
mod completions;
mod create;
mod diff;
mod health;
mod info;
mod latest;
mod ls;
mod manual;
mod metrics;
mod mount;
pub mod mount8;
mod quota;
mod records;
mod remote;
mod resize;
mod restore;
mod rollback;
mod scrub;
mod seal;
mod stat;
mod status;
mod sync;
mod tensors;
mod tier;
mod top;
mod trace;
mod umount;
mod upgrade;
mod verify;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cli::{Command, QuotaCommand, TierCommand};
use crate::mounting::{foreign, given};
use crate::show::failure::Failure;
use crate::show::logging;

/// Does what was asked for. The exit status says what came of it; a failure is for the caller to print.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    let has_own_log = match &command {
        Command::Mount(_) | Command::Carrying(_) => true,
        Command::Alarm(arguments) => arguments.detached || arguments.log.is_some(),
        _ => false,
    };
    if !has_own_log {
        logging::to_terminal(log::LevelFilter::Warn);
    }
    paths(&command).into_iter().try_for_each(foreign::check)?;
    match command {
        Command::Check(arguments) => return Ok(check::run(&arguments)),
        Command::Scrub(arguments) => return scrub::run(&arguments),
        Command::Ls(arguments) => return ls::run(&arguments),
        Command::Latest(arguments) => return latest::run(&arguments),
        Command::Rollback(arguments) => return rollback::run(&arguments),
        Command::Verify(arguments) => return verify::run(&arguments),
        Command::Health(arguments) => return Ok(health::run(&arguments)),
        Command::Info(arguments) => return info::run(&arguments),
        Command::Metrics(arguments) => return metrics::run(&arguments),
        Command::Remote(arguments) => match remote::run(&arguments)? {},
        Command::Quota(arguments) => return quota::run(&arguments),
        Command::Records(arguments) => return records::run(&arguments),
        Command::Seal(arguments) => return seal::run(&arguments),
        Command::Diff(arguments) => return Ok(diff::run(&arguments)),
        Command::Tier(arguments) => return tier::run(&arguments),
        Command::Umount(arguments) => return umount::run(&arguments),
        Command::Tensors(arguments) => return tensors::run(&arguments),
        Command::Alarm(arguments) => alarm::run(&arguments),
        Command::Carrying(arguments) => carrying::run(&arguments),
        Command::Cat(arguments) => cat::run(&arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Create(arguments) => create::run(&arguments),
        Command::Mount(arguments) => mount::run(*arguments),
        Command::Upgrade(arguments) => upgrade::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Sync(arguments) => sync::run(&arguments),
        Command::Resize(arguments) => resize::run(&arguments),
        Command::Restore(arguments) => restore::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Manual(arguments) => manual::run(&arguments),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// The paths that a command goes to; of those that look themselves whose mount it is, none.
fn paths(command: &Command) -> Vec<&Path> {
    match command {
        Command::Info(_) | Command::Health(_) | Command::Metrics(_) | Command::Umount(_) => Vec::new(),
        // With exit statuses of their own.
        Command::Check(_) | Command::Diff(_) => Vec::new(),
        Command::Completions(_) => Vec::new(),
        // Beside a mount whose paths were looked at.
        Command::Carrying(_) => Vec::new(),
        Command::Alarm(arguments) => vec![&arguments.mountpoint],
        Command::Cat(arguments) => vec![&arguments.path],
        Command::Create(arguments) => vec![&arguments.pool],
        Command::Latest(arguments) => vec![&arguments.dir],
        Command::Ls(arguments) => all(&arguments.paths),
        Command::Manual(arguments) => vec![&arguments.directory],
        // Nobody answers for what is mounted on a descriptor yet; that is looked at before the pool's path.
        Command::Mount(arguments) if given::number(&arguments.mountpoint).is_some() => Vec::new(),
        Command::Mount(arguments) => vec![&arguments.pool, &arguments.mountpoint],
        Command::Quota(arguments) => match &arguments.command {
            Some(QuotaCommand::Set(arguments)) => vec![&arguments.directory],
            Some(QuotaCommand::Clear(arguments)) => vec![&arguments.directory],
            Some(QuotaCommand::Show(arguments)) => vec![&arguments.path],
            None => arguments.path.iter().map(PathBuf::as_path).collect(),
        },
        Command::Records(arguments) => all(&arguments.paths),
        Command::Remote(arguments) => arguments.arguments.iter().map(|argument| path_in(argument)).collect(),
        Command::Resize(arguments) => vec![&arguments.target],
        Command::Restore(arguments) => both(&arguments.target, &arguments.to),
        Command::Rollback(arguments) => both(&arguments.dir, &arguments.to),
        Command::Scrub(arguments) => vec![&arguments.target],
        Command::Seal(arguments) => all(&arguments.paths),
        Command::Stat(arguments) => vec![&arguments.path],
        // Whoever serves it asks.
        Command::Sync(arguments) if arguments.write_back.is_some() => Vec::new(),
        Command::Sync(arguments) => vec![&arguments.mountpoint],
        Command::Tensors(arguments) => all(&arguments.paths),
        Command::Tier(arguments) => match &arguments.command {
            TierCommand::Add(arguments) => vec![&arguments.pool, &arguments.directory],
            TierCommand::Remove(arguments) => vec![&arguments.pool],
            TierCommand::List(arguments) => vec![&arguments.target],
            TierCommand::Map(arguments) => vec![&arguments.target],
            TierCommand::Move(arguments) => all(&arguments.paths),
        },
        Command::Top(arguments) => vec![&arguments.target],
        Command::Trace(arguments) => vec![&arguments.target],
        Command::Upgrade(arguments) => vec![&arguments.target],
        Command::Verify(arguments) => all(&arguments.paths),
    }
}

/// The path that an argument of the carrier's names, be it an option's, or a store's.
fn path_in(argument: &OsStr) -> &Path {
    let bytes = argument.as_bytes();
    let value = bytes.strip_prefix(b"--").and_then(|option| option.splitn(2, |byte| *byte == b'=').nth(1));
    let value = value.unwrap_or(bytes);
    Path::new(OsStr::from_bytes(value.strip_prefix(b"file://").unwrap_or(value)))
}

fn all(paths: &[PathBuf]) -> Vec<&Path> {
    paths.iter().map(PathBuf::as_path).collect()
}

fn both<'a>(one: &'a Path, other: &'a Option<PathBuf>) -> Vec<&'a Path> {
    [Some(one), other.as_deref()].into_iter().flatten().collect()
}
