//! What cargo builds of other packages of the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::children::{program_path, run_ok};

/// The program under test, built once if nobody named one.
pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("TENSORFS_BIN") {
            return PathBuf::from(path);
        }
        let path = program_path("tensorfs");
        // `cargo test -p tensorfs-tests` does not build the binaries of other packages.
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        build.args(["build", "--quiet", "--workspace", "--bins"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        run_ok(build.current_dir(env!("CARGO_MANIFEST_DIR")));
        path
    })
}

/// A library of another package of the workspace, built now.
pub fn built(package: &str, library: &str) -> PathBuf {
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    build.args(["build", "--quiet", "--package", package]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    run_ok(build.current_dir(env!("CARGO_MANIFEST_DIR")));
    program_path(library)
}
