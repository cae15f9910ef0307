//! Bytes that a request brought, kept where they cannot be written at once.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::caller::Caller;
use crate::error::{Fault, Result};
use crate::machine;
use crate::shares::{Share, Shares};

/// So many bytes are kept at most, or a 16th of what the machine has if that is more.
const AT_LEAST: u64 = 256 << 20;
const PART: u64 = 16;

/// The bytes of writes to files that others wait for.
pub(super) struct Backlog {
    most: usize,
    /// What users have of them.
    shares: Shares,
    kept: Mutex<usize>,
    less: Condvar,
}

/// The bytes of one write.
pub(super) struct Kept {
    backlog: Arc<Backlog>,
    bytes: Vec<u8>,
    _share: Share,
}

impl Default for Backlog {
    fn default() -> Self {
        let most = (machine::memory() / PART).max(AT_LEAST);
        Self::of(usize::try_from(most).unwrap_or(usize::MAX))
    }
}

impl Backlog {
    fn of(most: usize) -> Self {
        Self { most, shares: Shares::new(most), kept: Mutex::default(), less: Condvar::new() }
    }

    /// Keeps a copy of the bytes. A user who brings more than his share is refused: who waited here would hold up a
    /// thread that reads everybody's requests. Root, and whoever runs the server, may; so may the kernel, which stands
    /// for nobody and limits itself.
    ///
    /// # Errors
    /// `EAGAIN`: the user's writes that wait have half of what those of others leave.
    pub fn copy(self: &Arc<Self>, whose: Option<Caller>, bytes: &[u8]) -> Result<Kept> {
        let share = whose.and_then(|caller| self.shares.take_some(caller.uid, bytes.len()));
        if share.is_none() && whose.is_some_and(|caller| !caller.is_trusted()) {
            return Err(Fault::new(libc::EAGAIN));
        }
        let mut kept = self.kept.lock();
        while *kept > 0 && share.is_none() && *kept + bytes.len() > self.most {
            self.less.wait(&mut kept);
        }
        *kept += bytes.len();
        drop(kept);
        let share = share.unwrap_or_else(|| self.shares.take_for_nobody(bytes.len()));
        Ok(Kept { backlog: self.clone(), bytes: bytes.to_vec(), _share: share })
    }
}

impl Kept {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        *self.backlog.kept.lock() -= self.bytes.len();
        self.backlog.less.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_user(uid: u32) -> Option<Caller> {
        Some(Caller { unique: 1, again: false, uid, gid: uid, pid: 1 })
    }

    /// Proves W3.
    #[test]
    fn who_brings_more_than_his_share_is_refused_and_others_are_not() {
        let backlog = Arc::new(Backlog::of(8 << 20));
        let bytes = vec![1; 1 << 20];
        let greedy: Vec<_> = (0..8).map_while(|_| backlog.copy(of_user(4_000_000), &bytes).ok()).collect();
        assert_eq!(greedy.len(), 3);
        let refused = backlog.copy(of_user(4_000_000), &bytes).err().unwrap();
        assert_eq!(refused.errno, libc::EAGAIN);
        let others = backlog.copy(of_user(4_000_001), &bytes).unwrap();
        assert_eq!(others.bytes(), bytes);
        // Root has what is left, and whoever runs this test.
        let roots: Vec<_> = (0..4).map(|_| backlog.copy(of_user(0), &bytes).unwrap()).collect();
        drop((greedy, others, roots));
        assert_eq!(*backlog.kept.lock(), 0);
        assert!(backlog.copy(of_user(4_000_000), &bytes).is_ok());
    }

    #[test]
    fn root_waits_until_there_is_room() {
        let backlog = Arc::new(Backlog::of(2 << 20));
        let bytes = vec![1; 1 << 20];
        let first: Vec<_> = (0..2).map(|_| backlog.copy(of_user(0), &bytes).unwrap()).collect();
        let waits = std::thread::spawn({
            let backlog = backlog.clone();
            move || backlog.copy(of_user(0), &[2; 10]).unwrap().bytes().len()
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waits.is_finished());
        drop(first);
        assert_eq!(waits.join().unwrap(), 10);
    }
}
