//! What a pool is kept on: how bytes on the host become durable, and the one seam through which they do.
//!
//! At the bottom of the tower: it knows files of the host, and nothing of what a pool keeps in them.

mod acting;
pub(crate) mod anew;
pub(crate) mod boot;
pub(crate) mod boot_note;
pub(crate) mod cacheline;
pub(crate) mod dax;
pub(crate) mod dir;
mod direct;
pub(crate) mod domain;
mod file;
pub(crate) mod file_lock;
pub(crate) mod flushes;
pub(crate) mod foreign;
mod host;
mod opening;
pub(crate) mod owner;
mod project;
pub(crate) mod read_only;
pub(crate) mod remote_note;
pub(crate) mod scrub_note;
mod way;

pub use acting::Acting;
pub use direct::Direct;
pub use domain::{Domain, Medium};
pub use flushes::Flushes;
pub(crate) use opening::{open, open_to_read};
pub use project::{project, set_project};
