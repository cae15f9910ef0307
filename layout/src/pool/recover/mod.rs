//! Recovery.

pub(crate) mod file;
pub(crate) mod reading;
pub(crate) mod settling;
pub(crate) mod store;
pub(crate) mod tiers;
pub(crate) mod unowned;
