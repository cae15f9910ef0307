//! A mount namespace that is made while somebody unmounts has a copy of that mount, for which its server goes on: who
//! unmounts, and who makes one, do not do so at a time.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static UNMOUNTING: RwLock<()> = RwLock::new(());

/// For whoever unmounts, until that is done. Not twice: whoever waits for [`nobody_unmounts`] is let in before others
/// that unmount.
pub fn unmounting() -> RwLockReadGuard<'static, ()> {
    UNMOUNTING.read().unwrap_or_else(PoisonError::into_inner)
}

/// For whoever makes a mount namespace, until that has no mounts of other tests any more ([`LEAVE_MOUNTS`]).
pub fn nobody_unmounts() -> RwLockWriteGuard<'static, ()> {
    UNMOUNTING.write().unwrap_or_else(PoisonError::into_inner)
}

/// The first line of a shell script in a mount namespace: mounts of tests are none of its business.
pub const LEAVE_MOUNTS: &str = "while read -r _ _ _ _ at _; do case $at in */mnt|*/other) umount -l \"$at\" ;; esac; \
                                done </proc/self/mountinfo\n";
