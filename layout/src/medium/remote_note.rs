//! The names beside the log of what a pool's carrier notes, of that while it is written, and of what keeps a second
//! carrier out.

pub(crate) const REMOTE: &str = "remote";
pub(crate) const NEW_REMOTE: &str = "remote.new";
pub(crate) const REMOTE_LOCK: &str = "remote.lock";
