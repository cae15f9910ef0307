//! A pool in use: transactions in, commits out.
//!
//! [`Pool`] owns the live view, the log and the segments, and each file beside it here is one thing that it does with
//! them: open and recover, edit, append, commit, clean, close. They all import [`Pool`], and it imports none of them.

mod append;
mod asking;
mod bringing;
mod budget;
pub(crate) mod carrying;
mod clean;
mod close;
mod commit;
mod commits;
pub(crate) mod create;
mod current;
mod edit;
mod ending;
mod failures;
mod following;
mod growth;
mod hearer;
mod leaving;
mod limit;
pub(crate) mod lock;
mod moving;
pub(crate) mod open;
pub(crate) mod opened;
mod patience;
pub(crate) mod recover;
mod recovery;
mod removals;
mod seals;
mod tiers;
mod turns;
mod unanswered;
pub(crate) mod untold;
pub(crate) mod usage;
mod values;

pub use bringing::{BRING, Bring, BringReply, ToBring, bring, has_remote};
pub use carrying::{COMMIT, Carried, Carrying, NOTE_MOST, carried, have_committed};
pub use create::{CreateOptions, LIMIT_MIN, is_unfinished, looks_like_pool};
pub use edit::Edit;
pub use following::{Change, FOLLOW, FOLLOW_CHUNK, Follow, FollowReply, Look, New, Whose, follow, known_of, note_sum};
pub use hearer::WhenStored;
pub use leaving::{Known, LEAVE, Leave, LeaveReply, digest, leave};
pub use lock::{Holder, could_inherit, holder, lock_of};
pub use open::{Inherited, OpenOptions, READ_ONLY_HOST};
pub use opened::Pool;
pub use recovery::{OpenSegment, Recovery};
pub use turns::{MayLeave, Turn, time_of_carrier};
pub use unanswered::answering;
pub use usage::Usage;
