//! The remote, on stores in memory and in directories: round trips, and everything that can go wrong in between.

mod by_hand;
mod carrying;
mod crashes;
mod damage;
mod deceit;
mod directories;
mod encrypted;
mod kills;
mod left_out;
mod lost;
mod pools;
mod program;
mod progress;
mod retention;
mod slow;
mod stores;
mod strangers;
mod union;
