//! What is known of the tensors of files, within a bound of memory.

use std::sync::Arc;

use tensorfs_layout::Ino;

use crate::file::Version;

use super::kept::Kept;
use super::tensors::Tensors;

/// What is kept of all files, at most, unless a single one takes more.
const TENSORS_MAX: usize = 96 << 20;
/// What it takes to remember, of some 60,000 files, whether they have tensors.
const VERDICTS_MAX: usize = 10 << 20;

/// What is known of the tensors of files.
pub(super) struct TensorCache {
    /// And whether a later change would have shown in the version.
    files: Kept<(Arc<Tensors>, bool)>,
    pub verdicts: Verdicts,
}

/// Whether versions of files are something.
pub(super) struct Verdicts(Kept<(Version, bool)>);

impl Default for TensorCache {
    fn default() -> Self {
        Self { files: Kept::new(TENSORS_MAX), verdicts: Verdicts::new(VERDICTS_MAX) }
    }
}

impl TensorCache {
    /// The tensors of a file as they were when they were looked for, and whether a later change would have shown in
    /// their version.
    pub fn get(&self, ino: Ino) -> Option<(Arc<Tensors>, bool)> {
        self.files.get(ino, |_| true)
    }

    /// Keeps the tensors of a file.
    pub fn put(&self, ino: Ino, tensors: Arc<Tensors>, settled: bool) {
        let bytes = tensors.memory();
        self.files.put(ino, (tensors, settled), bytes);
    }
}

impl Verdicts {
    /// They take so many bytes at most.
    pub fn new(most: usize) -> Self {
        Self(Kept::new(most))
    }

    /// That of a version of a file, if it is known.
    pub fn of(&self, ino: Ino, version: &Version) -> Option<bool> {
        self.0.get(ino, |(of, _)| of == version).map(|(_, verdict)| verdict)
    }

    /// Keeps that of a version of a file in mind.
    pub fn note(&self, ino: Ino, version: Version, verdict: bool) {
        self.0.put(ino, (version, verdict), 0);
    }
}
