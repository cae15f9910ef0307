//! From a pool to its remote.
//!
//! * `note`: what the carrier keeps in the pool's directory;
//! * `changes`: what the pool's tree has that the remote's has not;
//! * `content`: the bytes of files, cut into parts, and put;
//! * `pass`: one pass, which ends with a batch.

mod changes;
mod content;
mod note;
mod pass;

pub use note::{Intended, Note, Settings};
pub use pass::{Carrier, Outcome, Passed};
