//! Who does an operation: a thread takes on another user's ids for the time of a call.

use nix::errno::Errno;
use std::ptr;

/// A user, with a group and other groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum User {
    Root,
    /// 1001, in group 1001 and in 2000.
    Ann,
    /// 1002, in group 2000.
    Bob,
    /// 1003, in group 1003.
    Eve,
}

/// Ids that objects are given.
pub const UIDS: [u32; 4] = [0, 1001, 1002, 1003];
/// Likewise, of groups.
pub const GIDS: [u32; 5] = [0, 1001, 2000, 1003, 3000];

impl User {
    /// User id, group id, other groups.
    pub fn ids(self) -> (u32, u32, &'static [u32]) {
        match self {
            User::Root => (0, 0, &[]),
            User::Ann => (1001, 1001, &[2000]),
            User::Bob => (1002, 2000, &[]),
            User::Eve => (1003, 1003, &[]),
        }
    }

    /// Whether it is in a group.
    pub fn is_in(self, group: u32) -> bool {
        let (_, own, others) = self.ids();
        own == group || others.contains(&group)
    }

    /// Does something as this user. Only this thread changes: these are the system calls, not libc's functions, which
    /// change all threads.
    pub fn act<T>(self, work: impl FnOnce() -> T) -> T {
        let (uid, gid, groups) = self.ids();
        if self == User::Root {
            return work();
        }
        become_ids(uid, gid, groups);
        let result = work();
        // First the user, who may change the rest.
        set_uid(0);
        become_ids(0, 0, &[]);
        result
    }
}

fn become_ids(uid: u32, gid: u32, groups: &[u32]) {
    let groups_at = if groups.is_empty() { ptr::null() } else { groups.as_ptr() };
    // SAFETY: plain system call, with as many groups as it is told.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups_at) });
    // SAFETY: plain system call.
    check(unsafe { libc::syscall(libc::SYS_setresgid, -1, gid, -1) });
    set_uid(uid);
}

fn set_uid(uid: u32) {
    // SAFETY: plain system call.
    check(unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) });
}

fn check(result: i64) {
    Errno::result(result).expect("root may become anybody");
}
