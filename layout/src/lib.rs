//! The pool: its format on media and the rules that keep it whole.
//!
//! A pool is a directory with a *log* of records and one *segment* (backing file) per regular file that has bytes.
//! This crate knows both, and nothing of FUSE: it stores transactions, makes them durable in order, recovers them,
//! and cleans the log. It starts no threads that outlive a call, and reads no clock: callers give the time.
//!
//! docs/FORMAT.md describes the bytes and the rules, docs/SEMANTICS.md what users may rely on. Which tensors a file
//! holds is for the crate `tensorfs-formats` to say.
//!
//! # Rooms
//!
//! A tower: each imports those before it in this list, and none behind it.
//!
//! * [`globs`]: names that fit;
//! * [`medium`]: how bytes on the host become durable;
//! * [`log`]: records, frames, blocks, the superblock;
//! * [`tree`]: the live view, which is what all records together say;
//! * [`segment`]: the host files that hold the bytes of files, tiers, quarantine, seals;
//! * [`pool`]: a pool in use: open, edit, commit, clean, close;
//! * [`mod@check`]: what is in a pool, whether it is whole, and making it whole.
//!
//! # Locks
//!
//! Whoever holds a lock takes only locks behind it in this list:
//!
//! 1. the pool's turn to clean: one cleaning, close or check of the log at a time;
//! 2. the turn to commit (`log::group`), which is no lock while the work is done, but others wait for it; and the turn
//!    to remove segments (`pool::removals`);
//! 3. the turn to make the log longer or shorter (`pool::growth`), held while its blocks are written;
//! 4. the pool's `state`: the view and the log. Whoever changes it keeps others from changing it while the host takes
//!    a frame of the log, or a longer log where there is no room after all; they read it meanwhile, and are kept from
//!    that only while the frame is counted and applied. Whoever only reads waits for nothing with it held;
//! 5. the horizon in the fixed places (`pool::commits`), then the turn to write the superblock (`pool::current`);
//! 6. what is not synced of segments (`segment::unsynced`): `grown`, then `tracked`. Neither is held over a sync, but
//!    for that of the whole host in recovery;
//! 7. a segment's own turn to be synced (`segment::unsynced`), held over its sync; then `failed`;
//! 8. locks that are held for a look or a change alone: the queue of segments to remove, why the pool takes no more
//!    changes, lost segments, spares, and those within a medium.

pub mod check;
mod error;
#[cfg(test)]
mod forged_logs;
pub mod globs;
mod ids;
pub mod log;
pub mod medium;
mod parallel;
pub mod pool;
pub mod segment;
pub mod testing;
mod time;
pub mod tree;

pub use error::{Error, Result, reason};
pub use ids::{Ino, ROOT, SegmentId, TxId};
pub use time::Timestamp;
