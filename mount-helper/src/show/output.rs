//! Printing: a reader that closes the pipe early (`tensorfs info | head -1`) is not an error.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::show::colours;
use crate::show::failure::{Failure, one_line};

/// Prints to standard output, in one write. Whoever named what is in it has no way to play with the terminal.
pub fn print(text: &str) -> Result<(), Failure> {
    print_bytes(harmless(text).as_bytes())
}

/// Text without control characters but the ends of lines, tabs, and colours of ours.
fn harmless(text: &str) -> Cow<'_, str> {
    let bad = |char: char| char.is_control() && !matches!(char, '\n' | '\t');
    if !text.contains(bad) {
        return text.into();
    }
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(bad) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let colour = colours::at_the_beginning(from);
        rest = &from[colour.len()..];
        match colour {
            "" => {
                out.extend(from.chars().take(1).flat_map(char::escape_default));
                rest = from.strip_prefix(bad).unwrap_or_default();
            }
            colour => out.push_str(colour),
        }
    }
    out.push_str(rest);
    out.into()
}

/// As [`print()`], what need not be text.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    printed(out.write_all(bytes).and_then(|()| out.flush()))
}

/// False once standard output is a pipe that nobody reads any more.
pub fn is_read() -> bool {
    let out = io::stdout();
    let mut ends = [PollFd::new(out.as_fd(), PollFlags::empty())];
    let gone = poll(&mut ends, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
    !gone
}

/// What came of printing text to standard output.
pub fn printed(result: io::Result<()>) -> Result<(), Failure> {
    unless_closed(result).map_err(|error| Failure::new(format!("cannot print: {error}")))
}

/// What came of writing to standard output, which its reader may have closed.
pub fn unless_closed(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// One line on standard error, with the program's name in front.
pub fn complain(line: impl Display) {
    // Standard error may be closed; there is nowhere left to say so.
    let _ = writeln!(io::stderr().lock(), "tensorfs: {}", one_line(&line.to_string()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_cannot_play_with_the_terminal() {
        assert_eq!(harmless("a\tb\n"), "a\tb\n");
        assert_eq!(harmless("a\x1b[2Jb\rc\u{9b}d\x1b"), "a\\u{1b}[2Jb\\rc\\u{9b}d\\u{1b}");
        assert_eq!(harmless("\x1b[31mred\x1b[0m"), "\x1b[31mred\x1b[0m");
        assert_eq!(harmless("\x1b[8mhidden\x1b[31;1H"), "\\u{1b}[8mhidden\\u{1b}[31;1H");
    }
}
