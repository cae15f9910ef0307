//! The log: records on media, in frames, in blocks; and reading them back.
//!
//! What a record holds is defined here, whoever makes it: the seal of a run with its description, what is recorded of a
//! tier, how the pool was left. So a log can be read and written without anything above it. What its records mean
//! together is for the view to say (`tree`), which is also needed to load a log and to clean it: therefore loading is
//! in `tree`, and cleaning in `pool`.

#[cfg(test)]
pub(crate) mod any_record;
pub(crate) mod block;
pub(crate) mod blocks;
pub(crate) mod census;
mod codec;
pub(crate) mod description;
pub(crate) mod draft;
mod encoding;
pub(crate) mod file;
pub(crate) mod filled;
pub(crate) mod frame;
pub(crate) mod group;
pub(crate) mod ledger;
pub(crate) mod length;
mod origin;
pub(crate) mod record;
pub(crate) mod scan;
pub(crate) mod seal;
pub(crate) mod shutdown;
pub(crate) mod superblock;
pub(crate) mod tier;
pub(crate) mod transaction;

pub use description::{Summary, TensorEntry};
pub use origin::Origin;
pub use record::{Attributes, NAME_MAX, Record, TARGET_MAX, XATTR_VALUE_MAX};
pub use seal::Seal;
pub use shutdown::Shutdown;
pub use superblock::{Features, PoolState, Superblock};
pub use tier::{PLACEMENT_MAX, PM, PM_NAME, REMOTE_NAME, Tier};
pub use transaction::Transaction;
