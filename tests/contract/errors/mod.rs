//! The error matrix: every call of the host, failing in every way, under everything that programs do.
//!
//! Each cell is tried on a mount of its own: what the program hears, what the file holds once the host works again and
//! the server was started anew, and whether anything is missing that was acknowledged. The table in docs/RELIABILITY.md
//! is made of what the cells came to.
//!
//! `TENSORFS_MATRIX=all` tries all of it, for files of both sizes and servers that end in both ways, with calls that
//! are 5 s late; without, a part that `TENSORFS_MATRIX_SEED` chooses. `TENSORFS_MATRIX=write,open` and the like: all
//! cells whose name has these words. `TENSORFS_PRINT_TABLE` prints the tables.

mod cell;
mod fault;
mod operation;
mod renamed;
mod table;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tensorfs_tests::random::Random;
use tensorfs_tests::{Passthrough, Setup, needs_mount};

use cell::{Cell, End, has_passthrough, reached};
use fault::FAULTS;
use operation::OPERATIONS;
use table::{Document, Table};

/// Larger than what is committed by value.
const LARGE: usize = 200_000;
const SMALL: usize = 5_000;

/// Cells that are tried at a time: most of them wait.
const WORKERS: usize = 6;

/// Of so many cells one is tried in an ordinary run.
const SAMPLE: u64 = 60;

/// Whether a cell is to be tried.
fn chosen() -> impl Fn(&Cell) -> bool {
    let words = std::env::var("TENSORFS_MATRIX").ok();
    let seed = std::env::var("TENSORFS_MATRIX_SEED").map_or(1, |seed| seed.parse().unwrap());
    let random = RefCell::new(Random::new(seed));
    move |cell| match words.as_deref() {
        None => random.borrow_mut().once_in(SAMPLE),
        Some("all") => true,
        Some(words) => words.split(',').all(|word| cell.name().contains(word)),
    }
}

impl Cell {
    fn name(&self) -> String {
        let Cell { operation, target, fault, passthrough, len, end } = self;
        let (operation, target, fault) = (operation.name(), target.name(), fault.name());
        format!("{operation}: {target}: {fault}: passthrough={passthrough} {len} {end:?}")
    }
}

/// Does something with each of many, a few at a time; in their order.
fn all<T: Sync, R: Send>(these: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let at @ 0.. = next.fetch_add(1, Ordering::Relaxed)
                    && at < these.len()
                {
                    let result = work(&these[at]);
                    done.lock().unwrap().insert(at, result);
                }
            });
        }
    });
    done.into_inner().unwrap().into_values().collect()
}

fn every_cell() -> Vec<Cell> {
    let mut kinds = Vec::new();
    for passthrough in [true, false].into_iter().filter(|on| !on || has_passthrough()) {
        kinds.extend(OPERATIONS.iter().flat_map(|one| [LARGE, SMALL].map(|len| (*one, passthrough, len))));
    }
    let calls = all(&kinds, |(operation, passthrough, len)| reached(*operation, *passthrough, *len));
    let mut cells = Vec::new();
    for ((operation, passthrough, len), targets) in kinds.into_iter().zip(calls) {
        for target in targets {
            for fault in FAULTS {
                let cell = |end| Cell { operation, target, fault, passthrough, len, end };
                cells.extend([End::Orderly, End::Killed].map(cell));
            }
        }
    }
    cells
}

/// What is acknowledged is there afterwards, with every byte; nothing hangs, and nobody else is affected.
///
/// Proves D9, D12, O3.
#[test]
fn what_is_acknowledged_is_there_whatever_the_host_does() {
    needs_mount!();
    if Setup::new("errors", Passthrough::Off).mount_is_plain() {
        return;
    }
    let mut cells = every_cell();
    cells.retain(chosen());
    assert!(!cells.is_empty(), "no call of the host is reached: is the library that counts them there?");
    let outcomes = all(&cells, |cell| {
        catch_unwind(AssertUnwindSafe(|| cell.run())).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
        })
    });
    let document = Document::read();
    let mut tables = [Table::default(), Table::default()];
    let mut wrong = Vec::new();
    for (cell, outcome) in cells.iter().zip(outcomes) {
        let mut against = match &outcome {
            Ok(outcome) => outcome.wrong.clone(),
            Err(panic) => vec![panic.clone()],
        };
        if let Ok(outcome) = outcome.as_ref()
            && cell.len == LARGE
            && outcome.reached > 0
        {
            let contradiction = |outcome| document.as_ref().and_then(|document| document.contradicts(cell, outcome));
            match contradiction(outcome) {
                // The programs that other cells start have copies of this one's descriptors until they execute, so
                // that a close may not have been the last: alone it is. Nor need it reach then what the server did of
                // its own beside it.
                Some(_) => {
                    let alone = cell.run();
                    against.extend(alone.wrong.iter().cloned());
                    if alone.reached > 0 {
                        tables[usize::from(cell.passthrough)].add(cell, &alone);
                        against.extend(contradiction(&alone));
                    }
                }
                None => tables[usize::from(cell.passthrough)].add(cell, outcome),
            }
        }
        if !against.is_empty() {
            wrong.push(format!("{}:\n    {}", cell.name(), against.join("\n    ")));
        }
    }
    if std::env::var_os("TENSORFS_PRINT_TABLE").is_some() {
        println!("{}\n{}", tables[1].print(), tables[0].print());
    }
    println!("{} cells", cells.len());
    assert!(wrong.is_empty(), "{} of {} cells:\n{}", wrong.len(), cells.len(), wrong.join("\n"));
}
