//! From a pool to its remote.
//!
//! * `note`: what the carrier keeps in the pool's directory;
//! * `left_out`: what is not carried;
//! * `changes`: what the pool's tree has that the remote's has not;
//! * `alike`: which file has the bytes of another one;
//! * `cuts`: where the parts of a file begin and end;
//! * `content`: the bytes of files, read, and put;
//! * `tails`: when the end of a file that stays open is told of;
//! * `file`: what is told of one file's bytes;
//! * `left`: what is told of those that have left;
//! * `to_leave`: which files are to be there alone;
//! * `way`: when others are made way for;
//! * `pass`: one pass, which ends with a batch.

mod alike;
mod behind;
mod changes;
mod content;
mod cuts;
mod file;
mod left;
pub mod left_out;
mod note;
mod pass;
mod tails;
pub mod to_leave;
mod way;

pub use behind::Pace;
pub use note::{Arrived, Coverage, Healing, Intended, Mended, Note, Settings, Unmended};
pub use pass::{Carrier, Outcome, Passed};
pub use tails::Tails;
pub use way::Way;
