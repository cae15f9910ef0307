//! What has lost its last name and is open nowhere, but is still known to the kernel.
//!
//! A program may have found it by its name a moment ago and be about to open it, hold it with `O_PATH`, or have it as
//! its working directory. As elsewhere it is there until nobody has it any more, which the kernel says with FORGET. Its
//! space counts as free meanwhile.
//!
//! The kernel says nothing of what a program has mapped where the kernel moves the bytes. The host would keep such a
//! segment without a name, and stores into its holes would go on: so it is neither kept here nor removed, and counts,
//! until the host says that nothing has it any more, which is asked once an interval and when space runs out.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Bound::{Excluded, Unbounded};

use parking_lot::Mutex;
use tensorfs_layout::Ino;
use tensorfs_layout::pool::Usage;
use tensorfs_layout::tree::{Object, Totals};

struct Left {
    held: u64,
    /// Beyond what is recorded.
    more: u64,
}

#[derive(Clone, Copy)]
struct Kept {
    /// What the pool records of it.
    recorded: Totals,
    /// What it holds of the host: more than is recorded, if it lost its name before what was written last was recorded.
    held: u64,
}

/// The removed objects that the kernel has not forgotten yet.
#[derive(Default)]
pub(crate) struct Removed(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    objects: HashMap<Ino, Kept>,
    /// What the kernel forgot before it could be kept: who removed its last name, or releases its last handle, is not
    /// done yet.
    early: HashSet<Ino>,
    /// What a program has mapped yet: it counts until that is over.
    mapped: BTreeSet<Ino>,
    /// What is written no more, has no name, and is open or mapped yet: what is written last is not recorded of it.
    left: HashMap<Ino, Left>,
    more: u64,
    /// The one of those that are mapped that was looked at last.
    looked_at: Ino,
    recorded: Totals,
    held: u64,
}

impl Removed {
    /// Keeps an object, which holds so many bytes of the host, if that could be asked, until it is taken. False if the
    /// kernel has forgotten it already.
    pub fn keep(&self, ino: Ino, object: &Object, held: Option<u64>) -> bool {
        let one = Totals::of(object);
        let mut waiting = self.0.lock();
        if waiting.early.contains(&ino) {
            return false;
        }
        let left = waiting.no_longer_left(ino);
        // At rest the host is not asked again.
        let held = held.or(waiting.remove(ino)).or(left).unwrap_or(one.allocated);
        waiting.mapped.remove(&ino);
        waiting.objects.insert(ino, Kept { recorded: one, held });
        waiting.held += held;
        waiting.recorded = waiting.recorded + one;
        true
    }

    /// The kernel has forgotten an object. If it was kept, what it holds of the host; if not, that is kept in mind for
    /// one without a name, which is about to be.
    pub fn forget(&self, ino: Ino, is_unnamed: bool) -> Option<u64> {
        let mut waiting = self.0.lock();
        let held = waiting.remove(ino);
        if held.is_none() && is_unnamed {
            waiting.early.insert(ino);
        }
        held
    }

    /// An object is no more. Returns whether the kernel had forgotten it before it could be kept; and what it held of
    /// the host, if it was kept.
    pub fn end(&self, ino: Ino) -> (bool, Option<u64>) {
        let mut waiting = self.0.lock();
        waiting.no_longer_left(ino);
        let held = waiting.remove(ino);
        waiting.mapped.remove(&ino);
        (waiting.early.remove(&ino), held)
    }

    /// An object without a name is written no more, but open or mapped yet, and holds so many bytes of the host, of
    /// which less is recorded.
    pub fn note_left(&self, ino: Ino, object: &Object, held: u64) {
        let mut waiting = self.0.lock();
        waiting.no_longer_left(ino);
        let more = held.saturating_sub(object.allocated());
        waiting.left.insert(ino, Left { held, more });
        waiting.more += more;
    }

    /// Something may write it again, which is counted otherwise.
    pub fn is_written(&self, ino: Ino) {
        self.0.lock().no_longer_left(ino);
    }

    /// What such objects hold of the host beyond what is recorded.
    pub fn left(&self) -> u64 {
        self.0.lock().more
    }

    /// A program has an object mapped that could be kept, or end: neither is done before that is over.
    pub fn note_mapped(&self, ino: Ino) {
        self.0.lock().mapped.insert(ino);
    }

    /// So many of those that were mapped when they were looked at last, each in its turn.
    pub fn mapped(&self, most: usize) -> Vec<Ino> {
        let mut waiting = self.0.lock();
        let last = waiting.looked_at;
        let next = waiting.mapped.range((Excluded(last), Unbounded)).chain(waiting.mapped.range(..=last));
        let some: Vec<Ino> = next.take(most).copied().collect();
        waiting.looked_at = some.last().copied().unwrap_or(last);
        some
    }

    /// True if there are any.
    pub fn has_mapped(&self) -> bool {
        !self.0.lock().mapped.is_empty()
    }

    /// Keeps an object no longer. If it was kept, what it holds of the host.
    pub fn take(&self, ino: Ino) -> Option<u64> {
        self.0.lock().remove(ino)
    }

    /// True if none is kept.
    pub fn is_empty(&self) -> bool {
        self.0.lock().objects.is_empty()
    }

    /// What is recorded of their bytes.
    pub fn recorded(&self) -> u64 {
        self.0.lock().recorded.allocated
    }

    /// What they hold of the host.
    pub fn held(&self) -> u64 {
        self.0.lock().held
    }

    /// All that are kept.
    pub fn all(&self) -> Vec<Ino> {
        self.0.lock().objects.keys().copied().collect()
    }

    /// What is used without them.
    pub fn discount(&self, usage: Usage) -> Usage {
        usage.without(&self.0.lock().recorded)
    }
}

impl Waiting {
    fn no_longer_left(&mut self, ino: Ino) -> Option<u64> {
        let left = self.left.remove(&ino)?;
        self.more -= left.more;
        Some(left.held)
    }

    fn remove(&mut self, ino: Ino) -> Option<u64> {
        let one = self.objects.remove(&ino)?;
        let held = one.held;
        self.held -= held;
        let (sum, one) = (&mut self.recorded, one.recorded);
        sum.files -= one.files;
        sum.directories -= one.directories;
        sum.objects -= one.objects;
        sum.allocated -= one.allocated;
        Some(held)
    }
}
