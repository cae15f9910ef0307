//! The contract: every numbered sentence of docs/SEMANTICS.md has a test that would fail if it were broken.
//!
//! A test says which sentences it proves in a line of its documentation of its own, `/// Proves F3, D7.`, the last one
//! above the function.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// A letter and a number.
fn is_number(text: &str) -> bool {
    let mut characters = text.chars();
    characters.next().is_some_and(|c| c.is_ascii_uppercase())
        && !characters.as_str().is_empty()
        && characters.all(|c| c.is_ascii_digit())
}

/// The numbers of the contract's sentences, in order: `* **F1** A file's bytes ...`.
fn sentences() -> Vec<String> {
    let text = std::fs::read_to_string(repository().join("docs/SEMANTICS.md")).unwrap();
    let numbers = text.lines().filter_map(|line| line.strip_prefix("* **")?.split_once("**"));
    numbers.map(|(number, _)| number.to_owned()).collect()
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Which tests say that they prove which sentence. Fails where the line does not belong to a test.
fn proofs() -> BTreeMap<String, Vec<String>> {
    let mut files = Vec::new();
    for directory in
        ["tests", "layout/formats/tests", "layout/tests", "layout/src", "fs/src", "mount-helper/src", "remote"]
    {
        sources(&repository().join(directory), &mut files);
    }
    let mut proofs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (n, line) in lines.iter().enumerate() {
            let Some(list) = line.strip_prefix("/// Proves ") else { continue };
            let place = format!("{}:{}", file.display(), n + 1);
            let list = list.strip_suffix('.').unwrap_or_else(|| panic!("{place}: no full stop: {line}"));
            let mut below = lines[n + 1..].iter();
            let function = below.find(|line| !line.starts_with("#[")).copied().unwrap_or_default();
            let name = function.strip_prefix("fn ").and_then(|rest| rest.split_once('(')).map(|(name, _)| name);
            let name = name.unwrap_or_else(|| panic!("{place}: no function follows: {function:?}"));
            // A test by attribute, or one that `on_mounts!` or another test calls.
            let attribute = lines[n + 1..].iter().take_while(|line| line.starts_with("#[")).any(|l| *l == "#[test]");
            let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
            assert!(attribute || words.filter(|word| *word == name).count() > 1, "{place}: {name} is no test");
            for number in list.split(", ") {
                assert!(is_number(number), "{place}: {number:?} is no sentence's number");
                proofs.entry(number.to_owned()).or_default().push(format!("{place} {name}"));
            }
        }
    }
    proofs
}

#[test]
fn every_sentence_of_the_contract_has_a_test() {
    let sentences = sentences();
    assert!(sentences.len() > 40, "{} sentences", sentences.len());
    let mut seen = BTreeSet::new();
    for number in &sentences {
        assert!(is_number(number), "{number:?} is no number");
        assert!(seen.insert(number.as_str()), "{number} is there twice");
    }
    let proofs = proofs();
    let unproved: Vec<_> = seen.iter().filter(|n| !proofs.contains_key(**n)).collect();
    assert!(unproved.is_empty(), "no test proves {unproved:?}: see the first lines of this file");
    for (number, tests) in &proofs {
        assert!(seen.contains(number.as_str()), "there is no sentence {number}, but it is proved by {tests:?}");
    }
}
