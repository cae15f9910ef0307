//! What is not to be trusted: users of a mount, owners of a pool, and the bytes of files and pools.

mod attack;
mod forged;
mod mounts;
mod mutants;
mod pools;
mod readers;
mod servers;
mod strangers;
mod users;
