//! Colours of text.

use std::io::{self, IsTerminal};

const FAINT: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";

/// The escape sequence that a text begins with, if it is one of these colours or the end of one.
pub fn at_the_beginning(text: &str) -> &str {
    let Some(code) = text.strip_prefix("\x1b[") else { return "" };
    let one = [FAINT, RED, GREEN, YELLOW, "0"]
        .into_iter()
        .find(|one| code.strip_prefix(one).is_some_and(|end| end.starts_with('m')));
    one.map_or("", |one| &text[.."\x1b[".len() + one.len() + 1])
}

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
        self.paint(FAINT, text)
    }

    /// Text of something bad.
    pub fn red(self, text: &str) -> String {
        self.paint(RED, text)
    }

    /// Text of something good.
    pub fn green(self, text: &str) -> String {
        self.paint(GREEN, text)
    }

    /// Text of something to look at.
    pub fn yellow(self, text: &str) -> String {
        self.paint(YELLOW, text)
    }
}
