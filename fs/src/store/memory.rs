//! How much of the server's memory there may be of what users make: their files' names, links' targets, and the records
//! of files with what is said of tensors in them, are all in memory.

use tensorfs_layout::tree::{NAME_TAKES, Object, View};

use crate::caller::Caller;
use crate::error::{Fault, Result};
use crate::machine;

/// What a record more takes.
const RECORD: u64 = 128;
/// Others than its owner give a file no further name once it has so many.
const NAMES: u32 = 32;

/// How much there may be.
pub(crate) struct Memory {
    most: u64,
    /// Whose the server is: as root, he may use it up.
    server: u32,
}

impl Memory {
    /// So much, or as much as the machine has.
    pub fn new(most: Option<u64>) -> Self {
        Self { most: most.unwrap_or_else(machine::memory), server: nix::unistd::geteuid().as_raw() }
    }

    /// True if an owner's files may take so much more: no user's take more than half of what those of others leave.
    fn has(&self, view: &View, uid: u32, more: u64) -> bool {
        if uid == 0 || uid == self.server {
            return true;
        }
        let (own, all) = view.taken_by(uid);
        let left = self.most.saturating_sub(all.saturating_sub(own));
        own.saturating_add(more) <= left / 2
    }

    /// That an owner's files may take so much more.
    pub fn check(&self, view: &View, uid: u32, more: u64) -> Result<()> {
        if self.has(view, uid, more) { Ok(()) } else { Err(Fault::bound(libc::EDQUOT)) }
    }

    /// That somebody may give an object a further name, which counts for the object's owner. Others leave him half of
    /// what he may have; and as what is root's does not count, few names of a file are theirs.
    pub fn check_name(&self, view: &View, caller: Caller, object: &Object) -> Result<()> {
        let owner = object.attributes.uid;
        if caller.uid == owner || caller.is_trusted() {
            return self.check(view, owner, NAME_TAKES);
        }
        if object.names() >= NAMES {
            return Err(Fault::bound(libc::EMLINK));
        }
        let (own, _) = view.taken_by(owner);
        self.check(view, owner, own.saturating_add(NAME_TAKES))
    }

    /// Where the next record of a file begins that has so many bytes now: it goes on with the last one where there may
    /// be no more.
    pub fn next_record(&self, view: &View, object: &Object, size: u64) -> u64 {
        let has = self.has(view, object.attributes.uid, RECORD);
        if has { object.next_record(size) } else { object.last_record(size) }
    }
}
