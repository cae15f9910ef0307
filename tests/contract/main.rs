//! What docs/SEMANTICS.md promises, sentence by sentence, on real mounts. A test names the sentences that it proves in
//! the last line of its documentation, `/// Proves F3, D7.`; `semantics` fails on a sentence that no test proves.

mod aside;
mod bring;
mod chain;
mod commits;
mod concurrency;
mod control;
mod disk;
mod durability;
mod errors;
mod evict;
mod follow;
mod growing;
mod grown;
mod in_log;
mod inherited;
mod interrupted;
mod kill;
mod kinds;
mod late;
mod left;
mod mapping;
mod passthrough;
mod portions;
mod posix;
mod recut;
mod remote;
mod replace;
mod seal;
mod semantics;
mod store;
mod takeover;
mod tiers;
mod union;
mod upgrade;
mod waiting;
