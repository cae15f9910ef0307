//! Where log lines go. `RUST_LOG` chooses among them, as everywhere in Rust; syslog gets from `info` up.

use std::fs::File;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

use env_logger::{Builder, Target};
use log::{Level, LevelFilter};
use nix::sys::stat::fstat;

use crate::show::failure::{At, Failure, reason};
use crate::show::limit::Limit;
use crate::show::log_file::LogFile;
use crate::show::log_line::{UNHEARD_REPLIES, line};
use crate::show::output;
use crate::show::syslog::{self, Syslog};

/// The file that is logged to, if it is one.
static FILE: OnceLock<LogFile> = OnceLock::new();

/// To standard error, as the program's own messages. Where that is the journal, each line has its priority instead
/// (sd-daemon(3)).
pub fn to_terminal(level: LevelFilter) {
    let mut builder = builder(level);
    if is_journal() {
        builder.format(|out, record| writeln!(out, "<{}>{}", syslog::priority(record.level()), line(record)));
    } else {
        builder.format(|out, record| writeln!(out, "tensorfs: {}", line(record)));
    }
    begin(builder, level);
}

/// Appends to a file, with time and level.
pub fn to_file(path: &Path) -> Result<(), Failure> {
    let file = LogFile::open(path).at(path)?;
    let (mut builder, limit) = (builder(LevelFilter::Info), Limit::default());
    builder.target(Target::Pipe(Box::new(file.clone()))).format(move |out, record| {
        let (time, level) = (out.timestamp_millis(), record.level());
        let pid = std::process::id();
        let line = limit.line(record);
        line.map_or(Ok(()), |line| writeln!(out, "{time} [{pid}] {level:<5} {line}"))
    });
    // Only the first one counts, as it is with loggers.
    let _ = FILE.set(file);
    begin(builder, LevelFilter::Info);
    Ok(())
}

/// What `RUST_LOG` says; without it all, of which as much is logged as was asked for last.
fn builder(level: LevelFilter) -> Builder {
    let mut builder = Builder::new();
    let all = if is_chosen() { level } else { LevelFilter::Trace };
    builder.filter_level(all).filter_module(UNHEARD_REPLIES, LevelFilter::Off).parse_default_env();
    builder
}

fn is_chosen() -> bool {
    std::env::var_os("RUST_LOG").is_some()
}

fn begin(mut builder: Builder, level: LevelFilter) {
    // Fails only if there is a logger already, which is then as good.
    if builder.try_init().is_ok() && !is_chosen() {
        log::set_max_level(level);
    }
}

/// True if standard error is the journal, of which systemd gives the numbers (systemd.exec(5)).
fn is_journal() -> bool {
    let Some(stream) = std::env::var_os("JOURNAL_STREAM") else { return false };
    fstat(std::io::stderr()).is_ok_and(|found| *stream == *format!("{}:{}", found.st_dev, found.st_ino))
}

/// To syslog(3). Returns why that gets nowhere, if so.
pub fn to_syslog() -> Option<String> {
    if log::set_boxed_logger(Box::new(Syslog::open())).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
    syslog::unheard()
}

/// What is logged to may have another name by now: goes on with what has the name, which is opened by `somebody` if
/// this process may not.
pub fn open_again(somebody: Option<&dyn Fn() -> io::Result<File>>) {
    let again = |log: &LogFile| match somebody {
        None => log.open_again(),
        Some(open) => open().map(|file| log.go_on_with(file)).map_err(|error| reason(&error)),
    };
    match FILE.get().map(again) {
        Some(Err(why)) => log::error!("the log cannot be opened again: {why}"),
        Some(Ok(())) => log::info!("the log was opened again"),
        None => {}
    }
}

/// From now on more is logged, or less.
pub fn change_level(more: bool) {
    let now = log::max_level();
    let number = |level: LevelFilter| level as usize;
    let wanted = if more { number(now) + 1 } else { number(now).saturating_sub(1).max(number(LevelFilter::Error)) };
    let level = LevelFilter::iter().find(|level| number(*level) == wanted).unwrap_or(now);
    log::set_max_level(level);
    // As what is heard.
    let heard = level.to_level().unwrap_or(Level::Error).min(Level::Info);
    log::log!(heard, "from now on this log has what is of level {level} or worse");
}

/// Runs a program's main. A panic is a fault of ours: it is logged as one line, wherever the log goes by then.
pub fn catching_panics(main: impl FnOnce() -> ExitCode) -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        let line = format!("internal error, please report it: {panic}").replace('\n', " ");
        if log::max_level() == LevelFilter::Off {
            output::complain(line);
        } else {
            log::error!("{line}");
        }
    }));
    catch_unwind(AssertUnwindSafe(main)).unwrap_or(ExitCode::FAILURE)
}
