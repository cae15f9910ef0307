//! Where log lines go. `RUST_LOG` chooses among them, as everywhere in Rust; syslog gets from `info` up.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;

use env_logger::{Builder, Target};
use log::LevelFilter;

use crate::show::failure::{At, Failure};
use crate::show::limit::Limit;
use crate::show::log_line::{UNHEARD_REPLIES, line};
use crate::show::output;
use crate::show::syslog::Syslog;

/// To standard error, as the program's own messages.
pub fn to_terminal(level: LevelFilter) {
    let mut builder = Builder::new();
    builder
        .filter_level(level)
        .filter_module(UNHEARD_REPLIES, LevelFilter::Off)
        .parse_default_env()
        .format(|out, record| writeln!(out, "tensorfs: {}", line(record)));
    // Fails only if there is a logger already, which is then as good.
    let _ = builder.try_init();
}

/// Appends to a file, with time and level.
pub fn to_file(path: &Path) -> Result<(), Failure> {
    let file = OpenOptions::new().append(true).create(true).mode(0o640).open(path).at(path)?;
    let (mut builder, limit) = (Builder::new(), Limit::default());
    builder
        .filter_level(LevelFilter::Info)
        .filter_module(UNHEARD_REPLIES, LevelFilter::Off)
        .parse_default_env()
        .target(Target::Pipe(Box::new(file)))
        .format(move |out, record| {
            let (time, level) = (out.timestamp_millis(), record.level());
            let pid = std::process::id();
            let line = limit.line(record);
            line.map_or(Ok(()), |line| writeln!(out, "{time} [{pid}] {level:<5} {line}"))
        });
    let _ = builder.try_init();
    Ok(())
}

/// To syslog(3).
pub fn to_syslog() {
    if log::set_boxed_logger(Box::new(Syslog::open())).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
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
