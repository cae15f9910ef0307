//! An open pool: transactions in, commits out.

pub(crate) mod append;
pub(crate) mod clean;
pub(crate) mod close;
pub(crate) mod commit;
mod commits;
pub(crate) mod create;
pub(crate) mod edit;
pub(crate) mod limit;
pub(crate) mod lock;
pub(crate) mod moving;
pub(crate) mod open;
pub(crate) mod opened;
pub(crate) mod recover;
pub(crate) mod recovery;
mod removals;
pub(crate) mod seals;
pub(crate) mod tiers;
pub(crate) mod usage;
pub(crate) mod values;

pub use create::{CreateOptions, LIMIT_MIN, is_unfinished};
pub use edit::Edit;
pub use lock::{Holder, holder};
pub use open::OpenOptions;
pub use opened::Pool;
pub use recovery::{OpenSegment, Recovery};
pub use usage::Usage;
