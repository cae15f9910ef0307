//! What a pool is kept on: how bytes of the host become durable, and the one seam through which they do.

pub(crate) mod boot;
pub(crate) mod cacheline;
pub(crate) mod dax;
pub(crate) mod direct;
pub(crate) mod domain;
pub(crate) mod file;
pub(crate) mod file_lock;
pub(crate) mod flushes;
pub(crate) mod host;
pub(crate) mod opening;
pub(crate) mod owner;
pub(crate) mod read_only;

pub use direct::Direct;
pub use domain::{Domain, Medium};
pub use flushes::Flushes;
pub(crate) use opening::{open, open_to_read};
