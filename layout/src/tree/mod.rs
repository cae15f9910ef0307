//! The live view: objects, their names and attributes, and the chains of files, as all kept records together say.
//!
//! It is in memory alone. It knows where the records are that it rests on, and nothing of the host's files.

mod apply;
mod below;
mod carry;
pub(crate) mod chain;
mod directory;
mod interrupted;
mod left;
pub(crate) mod load;
pub(crate) mod object;
mod objects;
mod owned;
pub(crate) mod paths;
mod reach;
mod run;
pub(crate) mod view;
mod xattrs;

pub use below::{Below, DEEPEST, LeftOut};
pub use chain::FileChain;
pub use object::{NAME_TAKES, OBJECT_TAKES, Object};
pub use paths::{spelled, spelled_all};
pub use run::Run;
pub use view::{Totals, View};
