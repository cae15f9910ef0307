//! What a handle of the control tree stands for.

use std::sync::Arc;

use super::super::npy::OpenTensor;
use super::draft::Draft;

/// An open file of the tree.
#[derive(Clone)]
pub(super) enum Opened {
    /// A text, as it was when it was opened.
    Text(Arc<[u8]>),
    /// A tensor.
    Tensor(Arc<OpenTensor>),
    /// A text that is being written.
    Draft(Arc<Draft>),
}
