//! What is said.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use chrono::DateTime;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::error::{Error, Result};

/// A value as one line of JSON.
pub fn json<T: Serialize>(value: &T) {
    if let Ok(text) = serde_json::to_string(value) {
        line(&text);
    }
}

/// What printing failed with, after which nothing is printed.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// A line, without control characters that a name has.
pub fn line(text: &str) {
    if FAILED.get().is_none()
        && let Err(error) = writeln!(io::stdout(), "{}", plain(text))
    {
        // What was asked for is done all the same, and the exit status says what came of it.
        let _ = FAILED.set(error);
    }
}

/// Fails if something could not be printed. Whoever reads no more has read enough.
pub fn printed() -> Result<()> {
    match FAILED.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe) {
        Some(error) => {
            let source = error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
            Err(Error::Host { path: "standard output".to_owned(), what: "write", source })
        }
        None => Ok(()),
    }
}

/// Words that cannot play with the terminal.
pub fn plain(text: &str) -> String {
    let shown = |char: char| if char.is_control() { char.escape_default().collect() } else { vec![char] };
    text.chars().flat_map(shown).collect()
}

/// A progress bar on a terminal, and nothing elsewhere.
pub struct Bar(Option<ProgressBar>);

impl Bar {
    pub fn new(what: &'static str, bytes: bool) -> Self {
        let template = match bytes {
            true => "{msg:>8} {bar:40} {bytes} of {total_bytes}, {bytes_per_sec}",
            false => "{msg:>8} {bar:40} {percent}%",
        };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(io::stderr().is_terminal().then(|| ProgressBar::new(0).with_style(style).with_message(what)))
    }

    pub fn show(&self, done: u64, total: u64) {
        if let Some(bar) = &self.0 {
            bar.set_length(total);
            bar.set_position(done);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// A number of bytes as people say it.
pub fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}

/// A time in seconds since 1970 as people say it, in UTC.
pub fn time(seconds: i64) -> String {
    let time = DateTime::from_timestamp(seconds, 0);
    time.map_or_else(|| format!("{seconds} s"), |time| time.format("%Y-%m-%d %H:%M:%S UTC").to_string())
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn a_time_is_a_day_and_an_hour() {
        for (seconds, shown) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_767_225_599, "2025-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (i64::MAX, "9223372036854775807 s"),
        ] {
            assert_eq!(time(seconds), shown);
        }
    }
}
