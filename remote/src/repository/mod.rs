//! A repository: what is in a remote. docs/REMOTE.md has it byte by byte.
//!
//! * `names`: what objects are called;
//! * `entry`: an object of the tree, as text;
//! * `batch`: the lines of a batch or of a base;
//! * `tree`: what all lines together say;
//! * `listing`: which bases and batches there are;
//! * `mark`: what a place says of itself, and how it is encrypted;
//! * `open`: reading the newest tree, and putting the batch that comes next.

mod batch;
mod entry;
mod listing;
mod mark;
mod names;
mod open;
mod tree;

pub use batch::{FORMAT, Head, Line};
pub use entry::{Content, Entry, INTERRUPTED, LEFT, Part, Sealed, State, name_of, text_of};
pub use listing::Listing;
pub use mark::{Marking, mark_fault, marked, unlocked};
pub use names::{BASES, Hash, LOG, MARK, Naming, OBJECTS, base_name, batch_name, number_in, object_in, object_name};
pub use open::{Arriving, Came, Newest, Repository};
pub use tree::{Stored, Tree};
