//! The remote, on stores in memory and in directories: round trips, and everything that can go wrong in between.

mod by_hand;
mod carrying;
mod crashes;
mod damage;
mod directories;
mod kills;
mod pools;
mod retention;
mod stores;
mod strangers;
