//! Other versions of the program under test: the same one, with something else in it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::children::write_program;
use crate::mount::tensorfs;

/// The program, called `name` and in a directory that everybody may enter, with another text of the same length in the
/// place of each `from`.
#[track_caller]
pub fn other_program(directory: &Path, name: &str, from: &str, to: &str) -> PathBuf {
    assert_eq!(from.len(), to.len());
    let mut bytes = fs::read(tensorfs().get_program()).unwrap();
    let (mut at, mut found) = (0, 0);
    while let Some(next) = place_of(&bytes[at..], from.as_bytes()) {
        bytes[at + next..][..to.len()].copy_from_slice(to.as_bytes());
        at += next + to.len();
        found += 1;
    }
    assert!(found > 0, "{from} is not in the program");
    fs::create_dir_all(directory).unwrap();
    fs::set_permissions(directory, PermissionsExt::from_mode(0o755)).unwrap();
    let path = directory.join(name);
    write_program(&path, &bytes);
    path
}

/// Where the bytes are, by the first of them.
pub fn place_of(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(next) = bytes[at..].iter().position(|byte| *byte == wanted[0]) {
        at += next;
        if bytes[at..].starts_with(wanted) {
            return Some(at);
        }
        at += 1;
    }
    None
}
