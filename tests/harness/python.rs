//! Python, and the clients of `tests/programs/clients`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::children::program_path;
use crate::mount::Setup;

const NONE: &str = "no Python environment: tests/run makes one";

/// The Python of an environment that `tests/run` makes, if it is there.
pub fn venv(name: &str) -> Option<PathBuf> {
    let parent = match std::env::var_os("TENSORFS_VENV") {
        Some(path) => PathBuf::from(path),
        None => program_path("..").join("venv"),
    };
    let python = parent.join(name).join("bin/python");
    python.exists().then_some(python)
}

/// A file of `tests/programs/clients`.
pub fn client_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/clients").join(name)
}

/// A Python program of `tests/programs/clients`, to be run with arguments.
///
/// smdebug waits for ever for files that do not come, so no client runs without `timeout`. An hour is no measure of
/// speed: the slowest takes seconds.
pub fn client(python: &Path, script: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "3600"]).arg(python).arg(client_file(script)).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

impl Setup {
    /// The Python of an environment, or the rest of the test counts as skipped. All environments but `small` need
    /// gigabytes of packages, and are only for who asks for them by `TENSORFS_LARGE=1`.
    pub fn python(&self, environment: &str) -> Option<PathBuf> {
        if environment != "small" && std::env::var("TENSORFS_LARGE").as_deref() != Ok("1") {
            self.skip("needs gigabytes of packages: TENSORFS_LARGE=1");
            return None;
        }
        let python = venv(environment);
        if python.is_none() {
            self.skip(NONE);
        }
        python
    }
}
