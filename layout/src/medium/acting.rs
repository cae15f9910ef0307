//! On whose behalf a thread asks the host. Where root serves somebody else's pool, it asks for what is in it as that
//! user: so the host refuses what it would refuse him, whatever a check of ours has overlooked.
//!
//! Linux has an identity for that alone, of each thread (setfsuid(2)): with another user's, the thread has none of
//! root's rights over files (CAP_DAC_OVERRIDE, CAP_CHOWN, CAP_FOWNER, … of capabilities(7)), and keeps the others,
//! such as giving files to the kernel. What was opened stays open, so that it takes no identity to read or write it.

use std::cell::OnceCell;
use std::io;
use std::marker::PhantomData;
use std::sync::{Once, OnceLock};

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

/// While there is one, what this thread asks of the host's filesystems is asked as another user.
#[derive(Debug)]
#[must_use = "the thread is itself again when this is dropped"]
pub struct Acting {
    /// Whom the thread acted as before, if it acts as another now.
    before: Option<(Uid, Gid)>,
    /// It is the thread's.
    _here: PhantomData<*const ()>,
}

impl Acting {
    /// As the thread is.
    pub(crate) fn itself() -> Self {
        Self { before: None, _here: PhantomData }
    }

    /// As a user, if this process may.
    pub(crate) fn as_user(uid: Uid, gid: Gid) -> Self {
        if !may() {
            return Self::itself();
        }
        GROUPS.with(|groups| *groups.get_or_init(leave_groups));
        // The group first: without root's user id, that may no longer be changed.
        let group = setfsgid(gid);
        Self { before: Some((setfsuid(uid), group)), _here: PhantomData }
    }

    /// True if it is another user.
    pub(crate) fn is_another(&self) -> bool {
        self.before.is_some()
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        if let Some((uid, gid)) = self.before {
            setfsuid(uid);
            setfsgid(gid);
        }
    }
}

thread_local! {
    /// Done once this thread has given up root's further groups, which would come along.
    static GROUPS: OnceCell<()> = const { OnceCell::new() };
}

/// Gives up the further groups of this thread alone. The C library's call does so for all threads of the process, and
/// waits for each of them: for good if one of them waits for a disk for good.
fn leave_groups() {
    // Whoever has none need not be allowed to give them up.
    // SAFETY: none is written where no room is given.
    if unsafe { libc::getgroups(0, std::ptr::null_mut()) } == 0 {
        return;
    }
    // SAFETY: no group is read from the pointer, as there are none.
    let done = unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) };
    if done != 0 {
        let error = io::Error::last_os_error();
        // It is so for each thread.
        static TOLD: Once = Once::new();
        TOLD.call_once(|| log::warn!("root's further groups cannot be given up: {}", crate::reason(&error)));
    }
}

/// Whether this process may act as others, which a container may have been forbidden. Tried once, and told if not.
fn may() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        let somebody = Uid::from_raw(65_534);
        let before = setfsuid(somebody);
        // Answers with the identity that there is, and refuses the one that does not exist.
        let taken = setfsuid(Uid::from_raw(u32::MAX)) == somebody;
        setfsuid(before);
        if !taken {
            log::warn!("this process may not act as the pool's owner (CAP_SETUID): its own checks stand alone");
        }
        taken
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> (Uid, Gid) {
        (setfsuid(Uid::from_raw(u32::MAX)), setfsgid(Gid::from_raw(u32::MAX)))
    }

    /// As the C library's call would be, which asks each thread to take part.
    #[test]
    fn groups_are_left_without_waiting_for_other_threads() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let groups = || {
            // SAFETY: nothing is written, as there is no room.
            unsafe { libc::syscall(libc::SYS_getgroups, 0, std::ptr::null_mut::<libc::gid_t>()) }
        };
        let (before, with_groups) = (groups(), [1_u32, 2]);
        std::thread::spawn(move || {
            // SAFETY: two groups are read.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setgroups, 2, with_groups.as_ptr()) }, 0);
            drop(Acting::as_user(Uid::from_raw(12_345), Gid::from_raw(23_456)));
            assert_eq!(groups(), 0);
        })
        .join()
        .unwrap();
        assert_eq!(groups(), before, "those of this thread are its own");
    }

    #[test]
    fn a_thread_is_itself_again_also_when_acting_is_nested_or_panics() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let (own, other, third) = (now(), (Uid::from_raw(12_345), Gid::from_raw(23_456)), Uid::from_raw(12_346));
        let acting = Acting::as_user(other.0, other.1);
        assert_eq!(now(), other);
        let inner = Acting::as_user(third, other.1);
        assert_eq!(now().0, third);
        assert_eq!(std::thread::spawn(now).join().unwrap().0, third);
        drop(inner);
        assert_eq!(now(), other);
        drop(acting);
        assert_eq!(now(), own);
        let panicked = std::panic::catch_unwind(|| {
            let _acting = Acting::as_user(other.0, other.1);
            panic!("expected");
        });
        assert!(panicked.is_err());
        assert_eq!(now(), own);
    }
}
