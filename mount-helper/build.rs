//! The commit that is built, for `--version`: ` (0123456789ab)`, or nothing where there is no git or no repository.

use std::process::Command;

fn main() {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let commit = commit.map_or_else(String::new, |commit| format!(" ({commit})"));
    println!("cargo::rustc-env=TENSORFS_COMMIT={commit}");
    println!("cargo::rerun-if-changed=build.rs");
    // What HEAD is, and what the branch that it names is.
    let branch = git(&["symbolic-ref", "-q", "HEAD"]).unwrap_or_else(|| "HEAD".to_owned());
    for name in ["HEAD", &branch, "packed-refs"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| std::path::Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}
