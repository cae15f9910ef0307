//! The names beside the log of what the last scrub came to, and of that while it is written.

pub(crate) const SCRUBBED: &str = "scrubbed";
pub(crate) const NEW_SCRUBBED: &str = "scrubbed.new";
