//! Open handles, by the number the kernel gives back with every request.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::control::{Draft, OpenTensor};
use crate::error::{Fault, Result};
use crate::mode::{Access, Mode};
use crate::nodes::NodeRef;

const SHARDS: usize = 16;

/// An open of a regular file.
pub(crate) struct Handle {
    pub node: NodeRef,
    pub access: Access,
    pub mode: Mode,
    /// The kernel opened it to execute it, and keeps it as long as the program runs.
    pub executes: bool,
}

/// What a handle number stands for.
#[derive(Clone)]
pub(crate) enum Opened {
    /// A file of the tree.
    File(Arc<Handle>),
    /// A file of the control tree: its content when it was opened.
    Control(Arc<[u8]>),
    /// A tensor in the control tree.
    Tensor(Arc<OpenTensor>),
    /// A file of the control tree that is being written.
    Draft(Arc<Draft>),
}

/// All open handles.
pub(crate) struct Handles {
    next: AtomicU64,
    shards: [Mutex<HashMap<u64, Opened>>; SHARDS],
}

impl Default for Handles {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), shards: Default::default() }
    }
}

impl Handles {
    /// Keeps an open under a new number.
    pub fn insert(&self, opened: Opened) -> u64 {
        let number = self.next.fetch_add(1, Relaxed);
        self.shard(number).lock().insert(number, opened);
        number
    }

    /// What a number stands for.
    pub fn get(&self, number: u64) -> Result<Opened> {
        self.shard(number).lock().get(&number).cloned().ok_or(Fault::new(libc::EBADF))
    }

    /// An open file of the tree.
    pub fn file(&self, number: u64) -> Result<Arc<Handle>> {
        match self.get(number)? {
            Opened::File(handle) => Ok(handle),
            Opened::Control(_) | Opened::Tensor(_) | Opened::Draft(_) => Err(Fault::new(libc::EBADF)),
        }
    }

    /// Forgets a number.
    pub fn remove(&self, number: u64) -> Option<Opened> {
        self.shard(number).lock().remove(&number)
    }

    /// Forgets all numbers: the kernel is gone.
    pub fn drain(&self) -> Vec<Opened> {
        self.shards.iter().flat_map(|shard| std::mem::take(&mut *shard.lock()).into_values()).collect()
    }

    fn shard(&self, number: u64) -> &Mutex<HashMap<u64, Opened>> {
        &self.shards[number as usize % SHARDS]
    }
}
