//! The commit that is built, for `--version`: ` (0123456789ab)`, with `-dirty` behind it if what is built was changed
//! since; or nothing where there is no git or no repository. It is that of both programs.

use std::path::Path;
use std::process::Command;

/// What is built, from the top of the repository.
const BUILT: [&str; 6] = ["layout", "fs", "mount-helper", "remote", "Cargo.toml", "Cargo.lock"];

fn main() {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let changed = top.and_then(|top| {
        let top = top.to_str()?;
        git(&[&["-C", top, "status", "--porcelain", "--"], &BUILT[..]].concat())
    });
    let mark = if changed.is_some() { "-dirty" } else { "" };
    let commit = commit.map_or_else(String::new, |commit| format!(" ({commit}{mark})"));
    println!("cargo::rustc-env=TENSORFS_COMMIT={commit}");
    // Whatever is changed of it is built anew anyway.
    for name in BUILT {
        if let Some(path) = top.map(|top| top.join(name)).filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    // What HEAD is, and what the branch that it names is.
    let branch = git(&["symbolic-ref", "-q", "HEAD"]).unwrap_or_else(|| "HEAD".to_owned());
    for name in ["HEAD", &branch, "packed-refs"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}
