//! What is said.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

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

/// How it is told how far something has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// By a bar on a terminal, and by nothing elsewhere.
    Bar,
    /// By lines of JSON on standard error.
    Lines,
    Nothing,
}

static PROGRESS: OnceLock<By> = OnceLock::new();

/// From now on it is told so, if nobody has asked for anything else before.
pub fn progress_by(how: By) {
    PROGRESS.get_or_init(|| how);
}

/// Between two lines.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// How far something has come, in JSON.
#[derive(Serialize)]
struct Line {
    progress: Come,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
struct Come {
    what: &'static str,
    unit: &'static str,
    done: u64,
    /// 0 if nobody knows.
    total: u64,
}

/// Tells how far something has come, until it is dropped.
pub struct Bar {
    bar: Option<ProgressBar>,
    lines: Option<Mutex<Lines>>,
    come: Come,
}

#[derive(Default)]
struct Lines {
    told: Option<(Instant, Come)>,
    last: Option<Come>,
}

impl Bar {
    pub fn new(what: &'static str, unit: Unit) -> Self {
        let template = match unit {
            Unit::Bytes => "{msg:>8} {bar:40} {bytes} of {total_bytes}, {bytes_per_sec}",
            Unit::BytesOfMany => "{msg:>8} {bytes}, {bytes_per_sec}",
            Unit::BytesOfTree | Unit::Objects => "{msg:>8} {bar:40} {percent}%",
        };
        let how = PROGRESS.get().copied().unwrap_or(By::Bar);
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let has_bar = how == By::Bar && io::stderr().is_terminal();
        let bar = has_bar.then(|| ProgressBar::new(0).with_style(style).with_message(what));
        let unit = if matches!(unit, Unit::Objects) { "objects" } else { "bytes" };
        let come = Come { what, unit, done: 0, total: 0 };
        Self { bar, lines: (how == By::Lines).then(Mutex::default), come }
    }

    /// It is not told any more, after the last of it: also where others have the bar, too.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let lines = self.lines.as_ref().map(|lines| lines.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(mut lines) = lines
            && let Some(last) = lines.last.take().filter(|last| lines.told.is_none_or(|(_, told)| told != *last))
        {
            tell(last);
        }
    }

    /// Says something on lines of its own.
    pub fn beside(&self, say: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(say),
            None => say(),
        }
    }

    pub fn show(&self, done: u64, total: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
        if let Some(lines) = &self.lines {
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            let come = Come { done, total, ..self.come };
            lines.last = Some(come);
            if lines.told.is_none_or(|(when, _)| when.elapsed() >= LINE_EVERY) {
                lines.told = Some((Instant::now(), come));
                tell(come);
            }
        }
    }
}

/// Whoever does not read it is not told.
fn tell(progress: Come) {
    if let Ok(text) = serde_json::to_string(&Line { progress }) {
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// What is counted.
#[derive(Clone, Copy)]
pub enum Unit {
    Bytes,
    /// Of nobody knows how many.
    BytesOfMany,
    /// Of files that are made, whose bytes come later.
    BytesOfTree,
    Objects,
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.end();
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

/// As above, as it is said on a command line.
pub fn rfc3339(seconds: i64) -> String {
    let time = DateTime::from_timestamp(seconds, 0);
    time.map_or_else(|| seconds.to_string(), |time| time.format("%Y-%m-%dT%H:%M:%SZ").to_string())
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
