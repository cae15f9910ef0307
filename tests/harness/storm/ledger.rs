//! What a writer was told, kept outside the pool.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// A step that has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// When it began, in nanoseconds of the monotonic clock.
    pub began: u64,
    /// When it had returned.
    pub ended: u64,
}

/// The steps of a writer that have returned, in order. The one behind the last may have been under way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Steps that have returned.
    pub steps: Vec<Step>,
    /// The error that ended the writer, if one did.
    pub error: Option<i32>,
}

impl Ledger {
    /// Reads it. What follows the last newline was not written to the end, and is not counted.
    pub fn read(path: &Path) -> io::Result<Ledger> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            other => other?,
        };
        let mut ledger = Ledger::default();
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let wrong = || io::Error::other(format!("{}: not a line of a ledger: {line:?}", path.display()));
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["error", number] => ledger.error = Some(number.parse().map_err(|_| wrong())?),
                [n, began, ended] if n.parse() == Ok(ledger.steps.len()) => {
                    let began = began.parse().map_err(|_| wrong())?;
                    let ended = ended.parse().map_err(|_| wrong())?;
                    ledger.steps.push(Step { began, ended });
                }
                _ => return Err(wrong()),
            }
        }
        Ok(ledger)
    }

    /// The ledger as it was when `steps` steps had returned.
    pub fn cut(&self, steps: usize) -> Ledger {
        Ledger { steps: self.steps[..steps.min(self.steps.len())].to_vec(), error: None }
    }

    /// How many of the steps had returned when another one, which began at `began`, began.
    pub fn before(&self, began: u64) -> usize {
        self.steps.partition_point(|step| step.ended < began)
    }
}

/// The end at which a writer writes.
#[derive(Debug)]
pub(super) struct Entering {
    file: File,
    next: usize,
}

impl Entering {
    pub fn open(path: &Path) -> io::Result<Entering> {
        Ok(Entering { file: OpenOptions::new().create_new(true).write(true).open(path)?, next: 0 })
    }

    pub fn step(&mut self, step: Step) -> io::Result<()> {
        let line = format!("{} {} {}\n", self.next, step.began, step.ended);
        self.next += 1;
        self.file.write_all(line.as_bytes())
    }

    pub fn error(&mut self, number: i32) -> io::Result<()> {
        self.file.write_all(format!("error {number}\n").as_bytes())
    }
}
