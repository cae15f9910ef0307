//! One target of tests/harness/fuzz, chosen by `TENSORFS_FUZZ_TARGET`, guided by coverage.
//!
//! ```text
//! cargo install cargo-fuzz
//! TENSORFS_FUZZ_TARGET=torch cargo fuzz run --fuzz-dir tests/hostile/cargo-fuzz --sanitizer none fuzz \
//!     tests/hostile/cargo-fuzz/corpus/torch
//! ```
//!
//! The stable toolchain does for that. A corpus directory that is empty is filled with the target's seeds first.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use tensorfs_tests::fuzz::{TARGETS, Target};

fn target() -> &'static Target {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = std::env::var("TENSORFS_FUZZ_TARGET").unwrap_or_default();
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        let found = TARGETS.iter().find(|target| target.name == name);
        let target = found.unwrap_or_else(|| panic!("TENSORFS_FUZZ_TARGET is one of {}", names.join(", ")));
        fill(target);
        target
    })
}

/// Puts the seeds into the corpus that libFuzzer was given, if there is nothing in it.
fn fill(target: &Target) {
    let Some(corpus) = std::env::args().skip(1).find(|argument| !argument.starts_with('-')) else { return };
    if std::fs::read_dir(&corpus).is_ok_and(|mut entries| entries.next().is_none()) {
        for (n, seed) in (target.seeds)().iter().enumerate() {
            let _ = std::fs::write(format!("{corpus}/seed-{n}"), seed);
        }
    }
}

fuzz_target!(init: { target(); }, |bytes: &[u8]| (target().run)(bytes));
