//! What has lost its last name and is open nowhere, but is still known to the kernel.
//!
//! A program may have found it by its name a moment ago and be about to open it, hold it with `O_PATH`, or have it as
//! its working directory. As elsewhere it is there until nobody has it any more, which the kernel says with FORGET. Its
//! space counts as free meanwhile.

use std::collections::HashMap;

use parking_lot::Mutex;
use tensorfs_layout::Ino;
use tensorfs_layout::pool::Usage;
use tensorfs_layout::tree::{Object, Totals};

/// The removed objects that the kernel has not forgotten yet.
#[derive(Default)]
pub(crate) struct Removed(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    objects: HashMap<Ino, Totals>,
    together: Totals,
}

impl Removed {
    /// Keeps an object until it is taken.
    pub fn keep(&self, ino: Ino, object: &Object) {
        let one = Totals {
            files: object.is_file().into(),
            directories: object.is_dir().into(),
            objects: 1,
            allocated: object.allocated(),
        };
        let mut waiting = self.0.lock();
        waiting.remove(ino);
        waiting.objects.insert(ino, one);
        let sum = &mut waiting.together;
        sum.files += one.files;
        sum.directories += one.directories;
        sum.objects += one.objects;
        sum.allocated += one.allocated;
    }

    /// Keeps an object no longer. True if it was kept.
    pub fn take(&self, ino: Ino) -> bool {
        self.0.lock().remove(ino)
    }

    /// True if none is kept.
    pub fn is_empty(&self) -> bool {
        self.0.lock().objects.is_empty()
    }

    /// What is recorded of their bytes.
    pub fn bytes(&self) -> u64 {
        self.0.lock().together.allocated
    }

    /// All that are kept.
    pub fn all(&self) -> Vec<Ino> {
        self.0.lock().objects.keys().copied().collect()
    }

    /// What is used without them.
    pub fn discount(&self, usage: Usage) -> Usage {
        let gone = self.0.lock().together;
        Usage {
            files: usage.files.saturating_sub(gone.files),
            directories: usage.directories.saturating_sub(gone.directories),
            objects: usage.objects.saturating_sub(gone.objects),
            segment_bytes: usage.segment_bytes.saturating_sub(gone.allocated),
            ..usage
        }
    }
}

impl Waiting {
    fn remove(&mut self, ino: Ino) -> bool {
        let Some(one) = self.objects.remove(&ino) else { return false };
        let sum = &mut self.together;
        sum.files -= one.files;
        sum.directories -= one.directories;
        sum.objects -= one.objects;
        sum.allocated -= one.allocated;
        true
    }
}
