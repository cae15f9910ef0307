//! `tensorfs mount`.

use std::ffi::OsString;

use log::LevelFilter;
use tensorfs_layout::pool::{carried, looks_like_pool};

use crate::ask::carrier;
use crate::cli::{From, Mount};
use crate::mounting::keeper::resume;
use crate::mounting::keeper::stored::Stored;
use crate::mounting::kept::WOULD_SERVE;
use crate::mounting::options::{MountOptions, Setting};
use crate::mounting::pool::tell_of_host;
use crate::mounting::request::MountRequest;
use crate::mounting::server::{self, Listener};
use crate::mounting::{alarm, background, beforehand, bringing, carrying, keeper, leaving, remount};
use crate::show::failure::Failure;
use crate::show::{logging, output};

/// Runs the command.
pub fn run(arguments: Mount) -> Result<(), Failure> {
    let options = options(&arguments).map_err(|reason| Failure::at(&arguments.mountpoint, reason))?;
    let is_main = arguments.foreground && !arguments.handshake && arguments.kept.is_none();
    let request = MountRequest::new(arguments.pool, arguments.mountpoint, options)
        .stored(if is_main { Stored::here() } else { Stored::default() })
        .kept(arguments.kept, arguments.after)
        .errands(arguments.errands)
        .adopted(arguments.adopted);
    request.close_others()?;
    if let Some(unit) = &arguments.instead.restarting {
        return leaving::run(&request, unit);
    }
    if request.options().is_remount() {
        return remount::run(&request, &arguments.options);
    }
    if arguments.instead.would_serve {
        beforehand::would_serve(&request)?;
        return output::print(WOULD_SERVE);
    }
    if arguments.handshake {
        return background::serve(&request);
    }
    if arguments.kept.is_some() {
        log_here(&request)?;
        return server::serve(&request, &mut Terminal);
    }
    if let Some(url) = &arguments.from.from {
        make_tree(url, &arguments.from, &request)?;
    }
    if !arguments.foreground {
        logging::to_terminal(LevelFilter::Warn);
        let request = request.prepare()?;
        say_if_nothing_leaves(&request);
        background::start(&request)?;
        start_beside(&request)?;
        return alarm::start(&request);
    }
    log_here(&request)?;
    if let Some((request, resumed)) = resume::take(&request, request.kept_by_manager())? {
        alarm::start(&request)?;
        start_beside(&request)?;
        return keeper::keep(&request, false, Some(resumed));
    }
    let request = request.prepare()?;
    say_if_nothing_leaves(&request);
    alarm::start(&request)?;
    start_beside(&request)?;
    if request.is_to_be_kept() { keeper::keep(&request, false, None) } else { server::serve(&request, &mut Terminal) }
}

/// Makes the pool with the tree of a remote.
fn make_tree(url: &str, from: &From, request: &MountRequest) -> Result<(), Failure> {
    let pool = request.pool();
    if looks_like_pool(pool) {
        let what = "there is a pool already; without --from it is mounted, and the files that are away come";
        return Err(Failure::at(pool, what));
    }
    let mut command = carrier::command();
    command.args(["restore", "--later"]);
    if request.options().follow().is_some() {
        if from.at.is_some() {
            let what = "--at is of one tree, and --follow goes on to others; without --at it begins with the newest";
            return Err(Failure::at(pool, what));
        }
        command.arg("--follow");
    }
    let key_file = from.key_file.as_ref().map(|file| file.as_os_str().to_owned());
    let text = |value: &Option<String>| value.as_ref().map(OsString::from);
    let number = |value: Option<u64>| value.map(|value| OsString::from(value.to_string()));
    let given = [
        ("--endpoint", text(&from.endpoint)),
        ("--region", text(&from.region)),
        ("--key-file", key_file),
        ("--id", text(&from.id)),
        ("--at", text(&from.at)),
        ("--size", number(from.size)),
    ];
    for (flag, value) in given.into_iter().filter_map(|(flag, value)| Some((flag, value?))) {
        command.arg(flag).arg(value);
    }
    command.arg("--").arg(url).arg(pool);
    bringing::make_tree(command, pool, carrier::reason)?;
    tell_of_host(pool);
    Ok(())
}

/// Files leave for a remote, if there is one.
fn say_if_nothing_leaves(request: &MountRequest) {
    if request.options().evict_at().is_some() && carried(request.pool()).is_ok_and(|carried| carried.is_none()) {
        let pool = request.pool().display();
        output::complain(format!("{pool}: evict-at: it has no remote (`tensorfs remote set`), so that nothing leaves"));
    }
}

/// Has the files of the pool fetched that are away, and the pool carried, if that was asked for.
pub fn start_beside(request: &MountRequest) -> Result<(), Failure> {
    bringing::start(request, carrier::command(), carrier::reason)?;
    if request.options().carry().is_some() && carried(request.pool()).is_ok_and(|carried| carried.is_none()) {
        let pool = request.pool().display();
        output::complain(format!(
            "{pool}: carry: it has no remote yet (`tensorfs remote set`); it is carried when it has"
        ));
    }
    carrying::start(request, carrier::check);
    Ok(())
}

fn log_here(request: &MountRequest) -> Result<(), Failure> {
    match request.options().log() {
        Some(path) => logging::to_file(path)?,
        None => logging::to_terminal(LevelFilter::Info),
    }
    Ok(())
}

/// The options, flags over `-o`.
fn options(arguments: &Mount) -> Result<MountOptions, String> {
    let mut options = MountOptions::default();
    for list in &arguments.options {
        options.apply(list, false)?;
    }
    let server = &arguments.server;
    let given = [
        arguments.create.then_some(Setting::Create(true)),
        arguments.from.size.map(Setting::Size),
        arguments.layout.clone().map(Setting::Layout),
        server.durability.map(Setting::Durability),
        server.commit.map(Setting::Commit),
        server.passthrough.map(Setting::Passthrough),
        server.latency.map(Setting::Latency),
        server.threads.map(Setting::Threads),
        server.evict_at.map(Setting::EvictAt),
        server.read_only.then_some(Setting::ReadOnly),
        server.follow.map(Setting::Follow),
        server.carry.map(|carry| Setting::Carry(carry.unwrap_or_default())),
        server.log.clone().map(Setting::Log),
    ];
    given.into_iter().flatten().for_each(|setting| options.set(setting));
    if !options.is_remount() {
        options.check()?;
    }
    Ok(options)
}

/// In the foreground the log says it all.
struct Terminal;

impl Listener for Terminal {
    fn note(&mut self, _line: &str) {}

    fn ready(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn flags_go_over_options() {
        let cli = Cli::parse_from(["tensorfs", "mount", "p", "m", "-o", "commit=3,ro,size=1K"]);
        let Command::Mount(mut mount) = cli.command else { panic!("not a mount") };
        mount.server.commit = Some(Duration::from_secs(2));
        let mut expected = MountOptions::default();
        expected.apply("commit=2,ro,size=1024", false).unwrap();
        assert_eq!(options(&mount), Ok(expected));
    }

    #[test]
    fn a_server_is_told_everything() {
        let mut wanted = MountOptions::default();
        wanted.apply("ro,commit=2,threads=3,layout=x", false).unwrap();
        wanted.set(Setting::Log("/var/log/a,b".into()));
        let request = MountRequest::new("/p q".into(), "-m".into(), wanted.clone());
        let mut line = request.server_arguments();
        line.insert(0, "tensorfs".into());
        let Command::Mount(mount) = Cli::parse_from(line).command else { panic!("not a mount") };
        assert!(mount.handshake);
        assert_eq!(mount.pool, Path::new("/p q"));
        assert_eq!(mount.mountpoint, Path::new("-m"));
        assert_eq!(options(&mount), Ok(wanted));
    }
}
