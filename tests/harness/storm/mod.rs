//! Crash storms: writers that do a little of everything, ledgers of what they were told, and a check of what is there
//! after a crash against both.
//!
//! * [`Plan`] works out, from a number alone, an endless sequence of system calls in a directory of its own and what
//!   the tree is after each of them. The writer follows it, the check works it out again: nothing but how far the
//!   writer came has to be remembered.
//! * [`Ledger`] is that: a line for each call that has returned, kept outside the pool.
//! * [`check`] compares a tree with the plans and ledgers of its writers after a [`Crash`] of a certain kind.
//! * [`log_writes`] reads and replays the log of the kernel's device-mapper target `log-writes`.
//!
//! The program `tensorfs-test-storm` is the writer, and the check for where no test runs (inside a guest).

mod check;
mod ledger;
pub mod log_writes;
mod plan;
mod writer;

pub use check::{Crash, Observed, Outcome, Writer, check};
pub use ledger::{Ledger, Step};
pub use plan::{Entry, Op, Plan};
pub use writer::write;

/// What the mount under test was told to keep; the words are those of `--durability`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Every write is durable when it returns.
    Write,
    /// Every close is.
    Close,
    /// Every fsync is.
    Fsync,
}

impl Durability {
    /// All of them.
    pub const ALL: [Durability; 3] = [Durability::Write, Durability::Close, Durability::Fsync];

    /// The word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Durability::Write => "write",
            Durability::Close => "close",
            Durability::Fsync => "fsync",
        }
    }

    /// From the word on the command line.
    pub fn from_word(word: &str) -> Option<Durability> {
        Durability::ALL.into_iter().find(|one| one.word() == word)
    }
}
