//! Where log lines go. `RUST_LOG` chooses among them, as everywhere in Rust; syslog gets from `info` up.

use std::fs::File;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::thread;

use env_logger::{Builder, Target};
use log::{Level, LevelFilter};
use nix::sys::stat::fstat;

use crate::show::failure::{At, Failure, one_line, reason};
use crate::show::limit::Limit;
use crate::show::log_file::LogFile;
use crate::show::log_line::{UNHEARD_REPLIES, line};
use crate::show::log_queue::{Line, LogQueue};
use crate::show::output;
use crate::show::syslog::{self, Syslog};

/// The file that is logged to, if it is one.
static FILE: OnceLock<LogFile> = OnceLock::new();

/// What goes there.
static QUEUE: OnceLock<Arc<LogQueue>> = OnceLock::new();

/// The lines of this process, each of which `write` writes. Only the first one counts, as it is with loggers.
fn queue(write: impl Fn(&Line) + Send + Sync + 'static) -> Arc<LogQueue> {
    QUEUE.get_or_init(|| Arc::new(LogQueue::new(write))).clone()
}

/// Puts what is formatted in line.
struct Formatted(Arc<LogQueue>);

impl Write for Formatted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // They have their level.
        self.0.add(Line { level: Level::Info, text: bytes.into() });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines wait until [`write_beside`]: others depend on this process, and it must have one thread for a while.
pub fn hold_back() {
    QUEUE.get().into_iter().for_each(|queue| queue.hold_back());
}

/// From now on nobody in this process waits for the log.
pub fn write_beside() {
    QUEUE.get().into_iter().for_each(LogQueue::write_beside);
}

/// A process fails. Where others depend on it, it waits for nobody who reads that.
pub fn fail(failure: &Failure) {
    match QUEUE.get().filter(|queue| queue.is_one()) {
        Some(_) => log::error!("{failure}"),
        // A unit that does not start.
        None if is_journal() => {
            let line = one_line(&failure.to_string());
            let _ = writeln!(io::stderr().lock(), "<{}>{line}", syslog::priority(Level::Error));
        }
        None => output::complain(failure),
    }
}

/// This process is about to end.
pub fn end() {
    QUEUE.get().into_iter().for_each(LogQueue::end);
}

/// To standard error, as the program's own messages. Where that is the journal, each line has its priority instead
/// (sd-daemon(3)).
pub fn to_terminal(level: LevelFilter) {
    let mut builder = builder(level);
    // Nobody is told of a terminal that is gone.
    let queue = queue(|line| drop(io::stderr().write_all(&line.text)));
    builder.target(Target::Pipe(Box::new(Formatted(queue))));
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
    let to = file.clone();
    let queue = queue(move |line| to.append(&line.text));
    builder.target(Target::Pipe(Box::new(Formatted(queue)))).format(move |out, record| {
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
    let queue = queue(syslog::send);
    if log::set_boxed_logger(Box::new(Syslog::open(queue))).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
    syslog::unheard()
}

/// This process opens its log.
pub const BY_ITSELF: Option<fn() -> io::Result<File>> = None;

/// What is logged to may have another name by now: goes on with what has the name, which is opened by `somebody` if
/// this process may not. Nobody waits for that.
pub fn open_again(somebody: Option<impl FnOnce() -> io::Result<File> + Send + 'static>) {
    let Some(log) = FILE.get() else { return };
    let again = move || match somebody {
        None => log.open_again(),
        Some(open) => open().map(|file| log.go_on_with(file)).map_err(|error| reason(&error)),
    };
    let tell = move || match again() {
        Err(why) => log::error!("the log cannot be opened again: {why}"),
        Ok(()) => log::info!("the log was opened again"),
    };
    if let Err(error) = thread::Builder::new().spawn(tell) {
        log::error!("the log cannot be opened again: {}", reason(&error));
    }
}

/// As [`open_again`], at once, and without a word if it is the same: for who has something to say once in a long time.
pub fn find_again() {
    if let Some(Err(why)) = FILE.get().map(LogFile::open_again) {
        log::error!("the log cannot be opened again: {why}");
    }
}

/// Goes on with what somebody else logs to, if this process logs to a file.
pub fn go_on_with(file: &File) -> io::Result<()> {
    FILE.get().map_or(Ok(()), |log| file.try_clone().map(|file| log.go_on_with(file)))
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
    let code = catch_unwind(AssertUnwindSafe(main)).unwrap_or(ExitCode::FAILURE);
    end();
    code
}
