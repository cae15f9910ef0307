//! Printing: a reader that closes the pipe early (`tensorfs info | head -1`) is not an error.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::show::failure::{Failure, one_line};

/// Prints to standard output, in one write.
pub fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
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
