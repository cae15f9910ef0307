//! What is said.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// A value as one line of JSON.
pub fn json<T: Serialize>(value: &T) {
    if let Ok(text) = serde_json::to_string(value) {
        line(&text);
    }
}

/// A line, without control characters that a name has. Whoever reads no more has read enough.
pub fn line(text: &str) {
    if writeln!(io::stdout(), "{}", plain(text)).is_err() {
        std::process::exit(0);
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
