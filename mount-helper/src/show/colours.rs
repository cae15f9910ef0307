//! Colours of text.

use std::io::{self, IsTerminal};

/// Colours, on a terminal only, and not with NO_COLOR.
#[derive(Clone, Copy)]
pub struct Colours(bool);

impl Colours {
    /// Those that standard output may have.
    pub fn of_stdout() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Colours(io::stdout().is_terminal() && !unwanted)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Text of little weight.
    pub fn faint(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// Text of something bad.
    pub fn red(self, text: &str) -> String {
        self.paint("31", text)
    }

    /// Text of something good.
    pub fn green(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// Text of something to look at.
    pub fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }
}
