//! A program that is at work while a server is replaced.

use std::fs;
use std::path::Path;

/// Makes, writes, renames and removes in a directory, until there is a file `stop` in it. Each of these would fail if
/// it were done twice. Says how many rounds it made.
pub fn at_work(dir: &Path) -> usize {
    let mut rounds = 0;
    while !dir.join("stop").exists() {
        fs::create_dir(dir.join("d")).unwrap();
        fs::write(dir.join("d/new"), "x".repeat(rounds % 5000)).unwrap();
        fs::rename(dir.join("d/new"), dir.join("moved")).unwrap();
        assert_eq!(fs::read(dir.join("moved")).unwrap().len(), rounds % 5000);
        fs::remove_file(dir.join("moved")).unwrap();
        fs::remove_dir(dir.join("d")).unwrap();
        rounds += 1;
    }
    rounds
}
