//! The live view: objects, their names and attributes, and the chains of files, as all kept records together say.

pub(crate) mod apply;
pub(crate) mod carry;
pub(crate) mod chain;
pub(crate) mod directory;
pub(crate) mod load;
pub(crate) mod object;
pub(crate) mod objects;
pub(crate) mod reach;
pub(crate) mod run;
pub(crate) mod view;
pub(crate) mod xattrs;

pub use chain::FileChain;
pub use object::Object;
pub use run::Run;
pub use view::{Totals, View};
