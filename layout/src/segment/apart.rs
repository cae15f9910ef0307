//! Starting other programs without being taken for them.
//!
//! A process that starts another one is two for a moment: until the new one executes its program, it has everything
//! open that this one has. What is closed here meanwhile is still open there, and would pass for another's.

use parking_lot::{RwLock, RwLockReadGuard};

static STARTING: RwLock<()> = RwLock::new(());

/// Starts a program, with a call that returns once it is executed. Nobody asks meanwhile whether a segment is open.
pub fn start_apart<T>(start: impl FnOnce() -> T) -> T {
    let _alone = STARTING.write();
    start()
}

/// To be held by whoever asks whether a segment is open: no program is just being started.
pub(super) fn nobody_starts() -> RwLockReadGuard<'static, ()> {
    STARTING.read()
}
