//! Why a server takes the place of another one that has not died.

/// It was wished for.
pub const UPGRADE: &str = "upgrade";
/// The keeper is another one.
pub const KEEPER_DIED: &str = "its keeper had died";
/// The one before was told to leave (SIGQUIT).
pub const TOLD_TO_LEAVE: &str = "it was told to leave";
/// The service manager has started both anew.
pub const STARTED_AGAIN: &str = "its service was started again";

/// Whether a server has left on purpose that ended for this reason.
pub fn has_left(reason: &str) -> bool {
    [UPGRADE, KEEPER_DIED, TOLD_TO_LEAVE, STARTED_AGAIN].contains(&reason)
}
