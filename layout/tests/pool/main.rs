//! Tests of the pool, from outside: a file for each thing that they are about.

mod check;
mod closing;
mod committed;
mod common;
mod crashes;
mod failed_syncs;
mod flips;
mod model;
mod pool_files;
mod provisional;
mod quarantine;
mod records;
mod recovery;
mod room;
mod rules;
mod seals;
mod superblock;
mod tiers;
mod values;
