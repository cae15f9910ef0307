//! What goes wrong, said to a person.

use std::fmt::Display;
use std::io;
use std::path::Path;

use nix::errno::Errno;

use crate::show::text;

/// One line, `PATH: reason`. The program's name goes in front where it is printed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

impl Failure {
    /// A failure in one line.
    pub fn new(line: impl Into<String>) -> Self {
        Failure(one_line(&line.into()))
    }

    /// A failure that has to do with a path, and its reason.
    pub fn at(path: &Path, reason: impl Display) -> Self {
        Failure::new(format!("{}: {reason}", path.display()))
    }
}

impl From<tensorfs_layout::Error> for Failure {
    fn from(error: tensorfs_layout::Error) -> Self {
        Failure::new(error.to_string())
    }
}

impl From<tensorfs_fs::Error> for Failure {
    fn from(error: tensorfs_fs::Error) -> Self {
        Failure::new(error.to_string())
    }
}

/// Names the path a system call failed on.
pub trait At<T> {
    fn at(self, path: &Path) -> Result<T, Failure>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, Failure> {
        self.map_err(|error| Failure::at(path, reason(&error)))
    }
}

impl<T> At<T> for nix::Result<T> {
    fn at(self, path: &Path) -> Result<T, Failure> {
        self.map_err(|errno| Failure::at(path, errno.desc()))
    }
}

/// Text on one line that cannot play with the terminal, whoever named the files in it, and without the numbers of
/// errors.
pub fn one_line(text: &str) -> String {
    text::plain(&without_numbers(&text.replace(['\n', '\0'], " ")))
}

/// Text without the numbers of errors that Rust puts behind their names: "(os error 2)".
fn without_numbers(text: &str) -> String {
    const BEFORE: &str = " (os error ";
    let mut parts = text.split(BEFORE);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.parse::<i32>().is_ok() => plain.push_str(rest),
            _ => plain = plain + BEFORE + part,
        }
    }
    plain
}

/// The reason alone, without Rust's "(os error 2)".
pub fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => Errno::from_raw(number).desc().to_owned(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_the_path_and_the_bare_reason() {
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        let result: Result<(), Failure> = Err(error).at(Path::new("/a b"));
        assert_eq!(result.unwrap_err().to_string(), "/a b: No such file or directory");
    }

    #[test]
    fn numbers_of_errors_are_not_said() {
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        let said = Failure::new(format!("a: {error}; b ({error}) (os error x)")).to_string();
        assert_eq!(said, "a: No such file or directory; b (No such file or directory) (os error x)");
    }

    #[test]
    fn stays_on_one_line() {
        assert_eq!(Failure::new("a\nb").to_string(), "a b");
    }

    #[test]
    fn names_in_it_cannot_play_with_the_terminal() {
        assert_eq!(Failure::at(Path::new("/a\x1b[2J\r"), "no").to_string(), "/a\\u{1b}[2J\\r: no");
    }
}
