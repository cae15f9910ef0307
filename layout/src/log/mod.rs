//! The log: records on media, in frames, in blocks; and reading them back.

#[cfg(test)]
pub(crate) mod any_record;
pub(crate) mod block;
pub(crate) mod blocks;
pub(crate) mod census;
pub(crate) mod codec;
pub(crate) mod description;
pub(crate) mod draft;
pub(crate) mod encoding;
pub(crate) mod file;
pub(crate) mod frame;
pub(crate) mod group;
pub(crate) mod ledger;
pub(crate) mod length;
pub(crate) mod record;
pub(crate) mod scan;
pub(crate) mod seal;
pub(crate) mod shutdown;
pub(crate) mod superblock;
pub(crate) mod tier;
pub(crate) mod transaction;

pub use description::{Summary, TensorEntry};
pub use record::{Attributes, NAME_MAX, Record, TARGET_MAX, VALUE_MAX, XATTR_VALUE_MAX};
pub use seal::Seal;
pub use shutdown::Shutdown;
pub use superblock::{Features, LAYOUT_NAME_MAX, PoolState, Superblock};
pub use tier::{PLACEMENT_MAX, PM, PM_NAME, Tier};
pub use transaction::Transaction;
