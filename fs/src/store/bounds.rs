//! What there is a bound for, whoever wants it.

use super::descriptors::Descriptors;
use super::memory::Memory;

/// What users take of the server.
pub(super) struct Bounds {
    pub descriptors: Descriptors,
    pub memory: Memory,
}
