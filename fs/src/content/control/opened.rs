//! What a handle of the control tree stands for.

use std::sync::Arc;

use super::accesses::Accesses;
use super::draft::Draft;
use crate::content::npy::OpenTensor;

/// An open file of the tree.
#[derive(Clone)]
pub(super) enum Opened {
    /// A text, as it was when it was opened.
    Text(Arc<[u8]>),
    /// The uses of files.
    Accesses(Arc<Accesses>),
    /// A tensor.
    Tensor(Arc<OpenTensor>),
    /// A text that is being written.
    Draft(Arc<Draft>),
}
