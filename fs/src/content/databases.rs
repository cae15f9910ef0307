//! What was said of databases, by their manifests: until one of their files is another.

use std::sync::Arc;

use tensorfs_layout::Ino;

use crate::file::Version;

use super::kept::Kept;

/// What is kept of them, at most, unless a single one takes more.
const MOST: usize = 16 << 20;

/// A file that there is, and its version if it has one.
pub(super) type Seen = Option<(Ino, Option<Version>)>;

/// Files that something was read from.
#[derive(Default)]
pub(super) struct ReadFrom {
    /// By their paths, as they were then.
    pub files: Vec<(Box<str>, Seen)>,
    /// Directories that these paths led through.
    pub above: Vec<Ino>,
}

impl ReadFrom {
    /// Whoever may not read these and search those may not know what was read.
    pub fn inos(&self) -> impl Iterator<Item = Ino> {
        let files = self.files.iter().filter_map(|(_, seen)| seen.map(|(ino, _)| ino));
        self.above.iter().copied().chain(files)
    }

    /// What it takes.
    pub fn memory(&self) -> usize {
        let of_file = |(path, seen): &(Box<str>, Seen)| size_of_val(seen) + size_of_val(path) + path.len();
        self.files.iter().map(of_file).sum::<usize>() + size_of_val(&*self.above)
    }
}

/// What was said of them.
pub(super) struct Databases(Kept<Arc<Known>>);

/// What was said of one, and of what.
pub(super) struct Known {
    pub dir: Ino,
    /// The manifest, and the newest one with a number.
    pub manifests: [Seen; 2],
    /// The data files that it needs.
    pub files: Vec<(Box<str>, Seen)>,
    /// Whether all is there. None if that cannot be told.
    pub said: Option<bool>,
}

impl Default for Databases {
    fn default() -> Self {
        Self(Kept::new(MOST))
    }
}

impl Databases {
    /// What was said of the one of a manifest.
    pub fn of(&self, manifest: Ino) -> Option<Arc<Known>> {
        self.0.get(manifest, |_| true)
    }

    /// Keeps in mind what was said of one.
    pub fn note(&self, manifest: Ino, known: Known) {
        let bytes = known.files.iter().map(|file| size_of_val(file) + file.0.len()).sum();
        self.0.put(manifest, Arc::new(known), bytes);
    }
}
