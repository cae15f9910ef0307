//! Which files are worth writing out before a commit, and what is recorded when that is done.

use std::ops::Range;

use tensorfs_layout::medium::Domain;
use tensorfs_layout::tree::Object;
use tensorfs_layout::{Ino, SegmentId};

use crate::options::Durability;
use crate::store::host;

use super::Files;
use super::learn::Switch;
use super::locked::Locked;
use super::to_write_out::Part;

/// What has grown by less is left to the commit.
const LARGE: u64 = 16 << 20;

impl Locked<'_> {
    /// Up to where a file that is being closed is recorded, if what it has grown by since may be worth writing out.
    pub(super) fn recorded_end(&self) -> Option<u64> {
        let (store, segment) = (self.files.store(), self.segment()?);
        let fsync = store.durability() == Durability::Fsync;
        if store.pool().domain() != Domain::Cached || !fsync || !self.files.to_write_out().is_on() {
            return None;
        }
        let view = store.view();
        // A segment that replaces another is all new.
        let recorded = |object: &Object| if object.attributes.segment == Some(segment) { object.size() } else { 0 };
        view.object(self.ino()).filter(|object| object.names() > 0).map(recorded)
    }
}

impl Files {
    /// Has what a file has grown by written out once it is closed, if that is much.
    pub(super) fn write_out_closed(&self, ino: Ino, segment: SegmentId, bytes: Range<u64>) {
        if bytes.end.saturating_sub(bytes.start) >= LARGE {
            self.to_write_out().add(Part { ino, segment, bytes });
        }
    }

    /// Has a file that has grown much since it was recorded written out, and recorded then. False if it has not, and if
    /// it has waited for that since the last time.
    pub(super) fn write_out_grown(&self, ino: Ino) -> bool {
        let store = self.store();
        if store.pool().domain() != Domain::Cached || !self.to_write_out().is_on() {
            return false;
        }
        let Some(written) = store.writers().get(ino) else { return false };
        let segment = written.segment;
        let size = host::stat(&*written.fd).map_or(0, |host| host.size);
        // Of a segment that is to replace another nothing is recorded while it is open.
        let own = |object: &&Object| object.attributes.segment == Some(segment);
        let Some(from) = store.view().object(ino).filter(own).map(Object::size) else { return false };
        size.saturating_sub(from) >= LARGE && self.to_write_out().add(Part { ino, segment, bytes: from..size })
    }

    /// Records what was written out of a file.
    pub fn learn_written_out(&self, ino: Ino) {
        let Some(node) = self.node_in_use(ino) else { return };
        let mut file = self.lock(&node);
        if let Err(fault) = file.learn(0, Switch::Leave) {
            // The background tries again.
            log::log!(fault.level, "inode {ino}: not recorded: {fault}");
        }
        if !file.is_open_to_write() {
            file.settle(0);
        }
        drop(file);
        self.store().forget_attributes(ino);
    }
}
