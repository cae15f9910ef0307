//! What a handle of the control tree stands for.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::accesses::Accesses;
use super::draft::Draft;
use crate::caller::Caller;
use crate::content::npy::OpenTensor;
use crate::error::{Fault, Result};

/// What texts that are open have together, of those that anybody may open.
const MOST: usize = 16 << 20;

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
        let before = self.0.fetch_add(bytes.len(), Ordering::Relaxed);
        let text = Text { bytes, all: self.0.clone() };
        if before + text.bytes.len() > MOST && !caller.is_trusted() {
            return Err(Fault::new(libc::ENFILE));
        }
        Ok(Arc::new(text))
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

/// An open file of the tree.
#[derive(Clone)]
pub(super) enum Opened {
    /// A text, as it was when it was opened.
    Text(Arc<Text>),
    /// The uses of files.
    Accesses(Arc<Accesses>),
    /// A tensor.
    Tensor(Arc<OpenTensor>),
    /// A text that is being written.
    Draft(Arc<Draft>),
}
