//! Bytes that a request brought, kept where they cannot be written at once.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// So many bytes are kept at most. Whoever brings more then waits, and holds up a thread that reads requests.
const MOST: usize = 256 << 20;

/// The bytes of writes to files that others wait for.
#[derive(Default)]
pub(super) struct Backlog {
    kept: Mutex<usize>,
    less: Condvar,
}

/// The bytes of one write.
pub(super) struct Kept {
    backlog: Arc<Backlog>,
    bytes: Vec<u8>,
}

impl Backlog {
    /// Keeps a copy of the bytes.
    pub fn copy(self: &Arc<Self>, bytes: &[u8]) -> Kept {
        let mut kept = self.kept.lock();
        while *kept > 0 && *kept + bytes.len() > MOST {
            self.less.wait(&mut kept);
        }
        *kept += bytes.len();
        drop(kept);
        Kept { backlog: self.clone(), bytes: bytes.to_vec() }
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
