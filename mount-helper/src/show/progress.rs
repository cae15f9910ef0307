//! A progress bar on a terminal, and nothing elsewhere.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar on standard error.
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// A bar that is to be seen on a terminal only, and not if `quiet`.
    pub fn new(quiet: bool) -> Self {
        let shown = !quiet && io::stderr().is_terminal();
        Self(shown.then(|| {
            let style = ProgressStyle::with_template("{msg:>8} {bar:40} {percent}%");
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        }))
    }

    /// Shows how far something has come; `done` and `total` are in a unit of the caller's.
    pub fn show(&self, what: &str, done: u64, total: u64) {
        if let Some(bar) = &self.0 {
            bar.set_message(what.to_owned());
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    /// Shows how much is done of what nobody knows the length of.
    pub fn count(&self, what: &str, done: u64) {
        if let Some(bar) = &self.0 {
            bar.set_style(ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(format!("{done} {what}"));
            bar.set_position(done);
        }
    }

    /// Prints something without the bar in its way.
    pub fn aside(&self, print: impl FnOnce()) {
        match &self.0 {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
