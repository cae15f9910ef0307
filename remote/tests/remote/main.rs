//! The remote, on stores in memory and in directories: round trips, and everything that can go wrong in between.

mod asked;
mod bad_days;
mod by_hand;
mod carrying;
mod certificates;
mod crashes;
mod damage;
mod deceit;
mod directories;
mod encrypted;
mod full;
mod kills;
mod left_out;
mod locked_in;
mod lost;
mod making_way;
mod many;
mod others;
mod over_s3;
mod pools;
mod program;
mod progress;
mod retention;
mod skipping;
mod slow;
mod states;
mod stores;
mod strangers;
mod union;

#[path = "../../../tests/harness/proxy.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod proxy;
#[path = "../../../tests/harness/random.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod random;
#[path = "../../../tests/harness/s3.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod s3;
