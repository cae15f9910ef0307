//! What a handle of the control tree stands for.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tensorfs_layout::Ino;

use super::accesses::Accesses;
use super::draft::Draft;
use super::trace::Requests;
use crate::caller::Caller;
use crate::content::Content;
use crate::content::assembled::Assembled;
use crate::content::npy::{OpenTensor, TensorMark};
use crate::error::{Fault, Result};
use crate::handover::Kept;
use crate::store::Bytes;

/// What texts that are open have together, of those that anybody may open.
const MOST: usize = 16 << 20;
/// What is taken over of them from a server before, which nobody trusts: theirs, and what root had open.
const MOST_LEFT: usize = 64 << 20;

/// The texts that are open.
#[derive(Default)]
pub(super) struct Texts(Arc<AtomicUsize>);

/// A text that is open.
pub(super) struct Text {
    bytes: Arc<[u8]>,
    all: Arc<AtomicUsize>,
}

impl Texts {
    /// Keeps a text until it is closed. Who could use up the machine otherwise is not kept from it.
    pub fn keep(&self, caller: Caller, bytes: Arc<[u8]>) -> Result<Arc<Text>> {
        let text = self.keep_left(bytes);
        if self.0.load(Ordering::Relaxed) > MOST && !caller.is_trusted() {
            return Err(Fault::new(libc::ENFILE));
        }
        Ok(text)
    }

    /// True if a text of that length that a server before had kept can be kept, too.
    pub fn have_room(&self, len: usize) -> bool {
        self.0.load(Ordering::Relaxed).saturating_add(len) <= MOST_LEFT
    }

    /// Keeps a text that a server before had kept.
    pub fn keep_left(&self, bytes: Arc<[u8]>) -> Arc<Text> {
        self.0.fetch_add(bytes.len(), Ordering::Relaxed);
        Arc::new(Text { bytes, all: self.0.clone() })
    }
}

impl Deref for Text {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// Handles that were taken over, by the requests that they were made for. Such a request may come again.
pub(super) type Inherited = Mutex<HashMap<u64, u64>>;

/// A tensor that is open.
pub(super) enum Npy {
    /// One of a file.
    OfFile(OpenTensor),
    /// One of a checkpoint in parts.
    OfParts(Assembled),
}

impl Npy {
    /// How many bytes it has, with its header.
    pub fn len(&self) -> u64 {
        match self {
            Npy::OfFile(tensor) => tensor.len(),
            Npy::OfParts(tensor) => tensor.len(),
        }
    }

    /// What tells whether another server has the same tensor open. The number of one in parts tells that.
    pub fn mark(&self) -> TensorMark {
        match self {
            Npy::OfFile(tensor) => tensor.mark(),
            Npy::OfParts(_) => TensorMark::default(),
        }
    }

    /// Bytes of a file that a read needs, and that are away.
    pub fn lacks(&self, content: &Content, offset: u64, size: u32) -> Option<(Ino, Bytes)> {
        match self {
            Npy::OfFile(tensor) => tensor.lacks(content, offset, size),
            // All files of one in parts were waited for when it was opened.
            Npy::OfParts(_) => None,
        }
    }

    /// Reads, the header first.
    pub fn read(&self, content: &Content, offset: u64, size: u32) -> Result<Vec<u8>> {
        match self {
            Npy::OfFile(tensor) => tensor.read(content, offset, size),
            Npy::OfParts(tensor) => tensor.read(content, offset, size),
        }
    }
}

/// A tensor that a server before had open.
pub(super) struct Left {
    pub ino: Ino,
    pub mark: TensorMark,
    /// Once it was read again.
    pub opened: Mutex<Option<Arc<Npy>>>,
}

/// An open file of the tree, and where it stands for the next server.
#[derive(Clone)]
pub(super) struct Open {
    pub what: Opened,
    pub _kept: Option<Arc<Kept>>,
}

/// What is open.
#[derive(Clone)]
pub(super) enum Opened {
    /// A text, as it was when it was opened.
    Text(Arc<Text>),
    /// A tensor that a server before had open.
    Left(Arc<Left>),
    /// The uses of files.
    Accesses(Arc<Accesses>),
    /// The requests that are answered meanwhile.
    Requests(Arc<Requests>),
    /// A tensor.
    Tensor(Arc<Npy>),
    /// A text that is being written.
    Draft(Arc<Draft>),
}
