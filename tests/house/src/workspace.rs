//! The crates of a workspace, as cargo tells them.

use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::{env, io};

use serde_json::Value;

use crate::source::{Crate, Files};

/// The crates of a workspace.
#[derive(Debug)]
pub struct Workspace {
    /// Its directory.
    pub root: PathBuf,
    /// Its members.
    pub packages: Vec<Package>,
}

/// One member.
#[derive(Clone, Debug)]
pub struct Package {
    /// Its name for cargo.
    pub name: String,
    /// Its directory, from the workspace's.
    pub directory: PathBuf,
    /// Root file of each library, program, test and example, with what it is, from the workspace's directory.
    pub targets: Vec<(String, PathBuf)>,
    /// Names of the crates that it depends on, for tests and building as well.
    pub dependencies: Vec<String>,
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

/// A path without the `..` that a manifest may have in it.
fn without_detours(path: &Path) -> PathBuf {
    let mut straight = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            straight.pop();
        } else {
            straight.push(part);
        }
    }
    straight
}

impl Workspace {
    /// Asks cargo about the workspace in a directory. Nothing is compiled or downloaded.
    ///
    /// # Errors
    ///
    /// What cargo says if it cannot tell.
    pub fn read(root: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
            .arg(root.join("Cargo.toml"))
            .output()?;
        if !output.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let told: Value = serde_json::from_slice(&output.stdout)?;
        let relative = |path: String| {
            let path = without_detours(Path::new(&path));
            path.strip_prefix(&root).map(Path::to_owned).unwrap_or(path)
        };
        let mut packages: Vec<Package> = list(&told, "packages")
            .map(|package| Package {
                name: text(package, "name"),
                directory: relative(text(package, "manifest_path")).parent().unwrap_or(Path::new("")).to_owned(),
                targets: list(package, "targets")
                    .map(|target| {
                        let kind = target["kind"][0].as_str().unwrap_or_default();
                        (kind.to_owned(), relative(text(target, "src_path")))
                    })
                    .collect(),
                dependencies: list(package, "dependencies").map(|dependency| text(dependency, "name")).collect(),
            })
            .collect();
        packages.sort_by(|a, b| a.directory.cmp(&b.directory));
        Ok(Self { root, packages })
    }

    /// The member in a directory, or of a name.
    pub fn package(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.name == name || package.directory == Path::new(name))
    }

    /// All Rust files of the workspace.
    ///
    /// # Errors
    ///
    /// What the host says of one that cannot be read.
    pub fn files(&self) -> io::Result<Files> {
        Files::read(&self.root, Path::new(""))
    }
}

impl Package {
    /// What is shown of it: its directory.
    pub fn label(&self) -> String {
        self.directory.display().to_string()
    }

    /// Reads its libraries and programs, or all that it has if `all`.
    ///
    /// # Errors
    ///
    /// A file that is not there or is no Rust.
    pub fn crates(&self, files: &Files, all: bool) -> io::Result<Vec<Crate>> {
        self.targets
            .iter()
            .filter(|(kind, _)| all || matches!(kind.as_str(), "lib" | "bin" | "cdylib" | "staticlib" | "rlib"))
            .map(|(_, root)| Crate::read(&root.display().to_string(), files, root).map_err(io::Error::other))
            .collect()
    }
}
