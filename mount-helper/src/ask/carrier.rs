//! The program that knows remotes.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::show::failure::{self, Failure};

/// Its name.
const NAME: &str = "tensorfs-carrier";

/// The program, beside this one or wherever programs are.
pub fn command() -> Command {
    let own = std::env::current_exe().ok().map(|own| own.with_file_name(NAME));
    Command::new(own.filter(|program| program.is_file()).unwrap_or_else(|| PathBuf::from(NAME)))
}

/// That it can be started.
pub fn check() -> Result<(), Failure> {
    let mut asked = command();
    asked.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match asked.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::new(format!("{NAME}: {status}"))),
        Err(error) => Err(reason(&error)),
    }
}

/// Why it could not be started.
pub fn reason(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::NotFound => Failure::new(format!("the program {NAME} is not installed")),
        _ => Failure::new(format!("{NAME}: {}", failure::reason(error))),
    }
}
