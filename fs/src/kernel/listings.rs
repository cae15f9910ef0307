//! Listings of a tree that goes on to newer ones: whoever lists a directory in several requests gets what was there at
//! the first one, of one tree, as far as that is not too much to be kept in mind.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorfs_layout::Ino;

use crate::tree::Whole;

/// So many bytes are kept for all together.
const MOST: usize = 64 << 20;
/// Handles of directories are no files' handles.
const FIRST: u64 = 1 << 62;

/// What those see who have a directory open.
#[derive(Default)]
pub(super) struct Listings(Mutex<Open>);

#[derive(Default)]
struct Open {
    opened: u64,
    bytes: usize,
    /// Of which directory each is. After another server has begun a handle may be known twice.
    listings: HashMap<u64, Option<(Ino, Arc<Whole>)>>,
}

impl Listings {
    /// Somebody opens a directory.
    pub fn open(&self) -> u64 {
        let mut open = self.0.lock();
        open.opened += 1;
        let handle = FIRST + open.opened;
        open.listings.insert(handle, None);
        handle
    }

    /// He has closed it.
    pub fn close(&self, handle: u64) {
        let mut open = self.0.lock();
        let closed = open.listings.remove(&handle).flatten();
        open.bytes -= closed.map_or(0, |(_, listing)| listing.bytes());
    }

    /// What he sees who goes on with a listing of a directory; none if that is not kept.
    pub fn get(&self, handle: u64, dir: Ino) -> Option<Arc<Whole>> {
        let (of, listing) = self.0.lock().listings.get(&handle).cloned().flatten()?;
        (of == dir).then_some(listing)
    }

    /// Keeps what he sees who begins with one, unless it is too much.
    pub fn keep(&self, handle: u64, dir: Ino, listing: &Arc<Whole>) {
        let mut open = self.0.lock();
        let Some(kept) = open.listings.get_mut(&handle) else { return };
        let before = kept.take().map_or(0, |(_, listing)| listing.bytes());
        let bytes = open.bytes - before + listing.bytes();
        let fits = bytes <= MOST;
        open.bytes = if fits { bytes } else { open.bytes - before };
        open.listings.insert(handle, fits.then(|| (dir, listing.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ino = Ino(7);

    /// Proves E30.
    #[test]
    fn what_is_kept_for_who_lists_has_a_bound() {
        let (listings, small) = (Listings::default(), Arc::new(Whole::of_names(&["a", "b"])));
        let large = Arc::new(Whole::of_names(&vec!["a name"; 1_000_000]));
        let (one, other) = (listings.open(), listings.open());
        assert!(listings.get(one, A).is_none() && one != other);
        listings.keep(one, A, &small);
        listings.keep(other, A, &large);
        assert!(listings.get(one, A).is_some() && listings.get(other, A).is_none());
        // A handle that a server before has given out is of another directory.
        assert!(listings.get(one, Ino(8)).is_none());
        listings.keep(one, A, &large);
        assert!(listings.get(one, A).is_none());
        listings.keep(other, A, &small);
        listings.close(one);
        listings.close(other);
        listings.keep(other, A, &small);
        assert!(listings.get(other, A).is_none() && listings.0.lock().bytes == 0);
    }
}
