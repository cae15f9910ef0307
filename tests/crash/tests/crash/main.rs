//! Crashes: every operation alone, ordered pairs, triples, and what the log does by itself.
//!
//! By default a seeded part of all images is tried. `TENSORFS_CRASH_IMAGES=N` makes a campaign; `TENSORFS_CRASH_CASE`
//! has one case tried thoroughly, as a failure prints it. docs/RELIABILITY.md says more.

mod alone;
mod batch;
mod campaign;
mod failing;
mod faults;
mod generations;
mod log;
mod pairs;
mod replay;
mod seal;
mod triples;
mod values;
