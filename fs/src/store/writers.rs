//! The segments that something may still write: open for writing, or mapped so since.
//!
//! Whoever counts space asks their sizes of the host, as nothing is recorded yet of what the kernel writes there. A
//! file is asked for again only if something may have changed since: the server wrote it, or something of it was
//! recorded.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorfs_layout::{Ino, SegmentId};

use super::host::HostStat;
use super::limit::BLOCK;

/// A segment that something may still write.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub ino: Ino,
    pub segment: SegmentId,
    /// The descriptor that will sync it.
    pub fd: Arc<OwnedFd>,
    /// It can be written through a mapping, which fills holes without asking.
    mapped: bool,
    /// A handle writes it without asking.
    unasked: bool,
    /// What it was given behind its end, which stays there as its holes are filled.
    behind: Behind,
}

/// What a file may have been given behind its end, by `fallocate` with `FALLOC_FL_KEEP_SIZE`.
#[derive(Clone, Copy, Debug, Default)]
struct Behind {
    /// So many bytes.
    bytes: u64,
    /// All of it is in front of this place.
    reach: u64,
}

impl Written {
    /// A segment that nothing has opened yet.
    pub fn new(ino: Ino, segment: SegmentId, fd: Arc<OwnedFd>) -> Self {
        Self { ino, segment, fd, mapped: false, unasked: false, behind: Behind::default() }
    }

    /// True if it can be written through a mapping, and there is room for what that fills.
    pub fn is_mapped(&self) -> bool {
        self.mapped
    }

    /// What it takes of the host, or may take without asking.
    pub fn extent(&self, host: &HostStat) -> u64 {
        if !self.mapped {
            return host.allocated;
        }
        host.allocated.max(self.with_behind(host.size.next_multiple_of(BLOCK), host.allocated))
    }

    /// Up to where a file that can be mapped may be made larger if so much is free.
    pub fn end_within(&self, host: &HostStat, free: u64) -> u64 {
        let size = host.size.next_multiple_of(BLOCK);
        let most = self.with_behind(size, host.allocated).saturating_add(free);
        // What it grows into of what it was given is not behind its end any more.
        if most >= self.behind.reach { most } else { size.saturating_add(free) }
    }

    /// What a file of a size takes if it has no holes, with what it has behind its end: the host says how much it has
    /// in all, but not where.
    fn with_behind(&self, size: u64, allocated: u64) -> u64 {
        let Behind { bytes, reach } = self.behind;
        size.saturating_add(bytes.min(reach.saturating_sub(size)).min(allocated))
    }
}

/// What a file takes beyond its records.
#[derive(Clone, Copy, Debug, Default)]
struct Beyond {
    /// What it takes of the host.
    extent: u64,
    /// What of that is recorded.
    recorded: u64,
}

/// A file of the list.
struct Entry {
    written: Written,
    beyond: Beyond,
    /// [`Table::changes`] when it changed last.
    changes: u64,
}

/// All of them, by their file.
#[derive(Default)]
pub(crate) struct Writers(Mutex<Table>);

#[derive(Default)]
struct Table {
    files: HashMap<Ino, Entry>,
    /// Those that have changed since they were asked for. They are not in the sum.
    changed: HashSet<Ino>,
    sum: Beyond,
    /// How often any file has changed: one that went and came back is not taken for what it was.
    changes: u64,
}

/// A file that is to be asked for.
pub(super) struct Changed {
    pub written: Written,
    /// What is recorded of it.
    pub recorded: u64,
    changes: u64,
}

/// What is known of what the files take beyond their records.
pub(super) struct Known {
    /// What those take of the host that have not changed.
    pub extents: u64,
    /// What of that is recorded.
    pub recorded: u64,
    /// The others.
    pub changed: Vec<Changed>,
}

impl Table {
    /// The file is not in the sum until it was asked for again.
    fn change(&mut self, ino: Ino) {
        let Some(entry) = self.files.get_mut(&ino) else { return };
        self.changes += 1;
        entry.changes = self.changes;
        let before = std::mem::take(&mut entry.beyond);
        self.changed.insert(ino);
        self.leave_out(before);
    }

    fn leave_out(&mut self, beyond: Beyond) {
        self.sum.extent -= beyond.extent;
        self.sum.recorded -= beyond.recorded;
    }
}

impl Writers {
    /// Something may write the file's segment from now on.
    pub fn insert(&self, written: Written) {
        let mut table = self.0.lock();
        let ino = written.ino;
        table.changes += 1;
        let changes = table.changes;
        let before = table.files.insert(ino, Entry { written, beyond: Beyond::default(), changes });
        table.leave_out(before.as_ref().map_or_else(Beyond::default, |before| before.beyond));
        table.changed.insert(ino);
        drop(table);
        // The descriptor is closed without the lock.
        drop(before);
    }

    /// Nothing can write the file any more.
    pub fn remove(&self, ino: Ino) {
        let mut table = self.0.lock();
        let gone = table.files.remove(&ino);
        table.leave_out(gone.as_ref().map_or_else(Beyond::default, |gone| gone.beyond));
        table.changed.remove(&ino);
        drop(table);
        // The descriptor is closed without the lock.
        drop(gone);
    }

    /// What the file takes of the host, or what is recorded of that, may be another than it was.
    pub fn changed(&self, ino: Ino) {
        self.0.lock().change(ino);
    }

    /// What any file takes of the host may be another than it was: the host changes it, too.
    pub(super) fn all_changed(&self) {
        let mut table = self.0.lock();
        let inos: Vec<Ino> = table.files.keys().copied().collect();
        inos.into_iter().for_each(|ino| table.change(ino));
    }

    /// What is known of all files together, where `recorded` says what is recorded of one.
    pub(super) fn known(&self, recorded: impl Fn(&Written) -> u64) -> Known {
        let table = self.0.lock();
        let changed = table.changed.iter().filter_map(|ino| {
            let Entry { written, changes, .. } = table.files.get(ino)?;
            Some(Changed { written: written.clone(), recorded: recorded(written), changes: *changes })
        });
        Known { extents: table.sum.extent, recorded: table.sum.recorded, changed: changed.collect() }
    }

    /// A file that had changed was asked for. Unless it has changed since, or is written by whoever does not ask, that
    /// counts until it changes.
    pub(super) fn asked(&self, changed: &Changed, extent: u64) {
        let mut table = self.0.lock();
        let Some(entry) = table.files.get_mut(&changed.written.ino) else { return };
        let as_it_was = entry.changes == changed.changes && entry.written.segment == changed.written.segment;
        if !as_it_was || entry.written.unasked || entry.written.is_mapped() != changed.written.is_mapped() {
            return;
        }
        let before = std::mem::replace(&mut entry.beyond, Beyond { extent, recorded: changed.recorded });
        table.leave_out(before);
        table.sum.extent += extent;
        table.sum.recorded += changed.recorded;
        table.changed.remove(&changed.written.ino);
    }

    /// True if something may write the file.
    pub fn has(&self, ino: Ino) -> bool {
        self.0.lock().files.contains_key(&ino)
    }

    /// The segment of a file that something may write: the file's own, or the one that is to replace it.
    pub fn segment(&self, ino: Ino) -> Option<SegmentId> {
        self.0.lock().files.get(&ino).map(|entry| entry.written.segment)
    }

    /// A segment that something may write.
    pub fn get(&self, ino: Ino) -> Option<Written> {
        self.0.lock().files.get(&ino).map(|entry| entry.written.clone())
    }

    /// The file can be mapped for writing from now on.
    pub fn map(&self, ino: Ino) {
        self.note(ino, |written| written.mapped = true);
    }

    /// The segment is written without asking from now on.
    pub fn let_write_unasked(&self, ino: Ino) {
        self.note(ino, |written| written.unasked = true);
    }

    /// The file may get so many bytes behind its end, up to a place.
    pub fn give_behind(&self, ino: Ino, bytes: u64, reach: u64) {
        self.note(ino, |written| {
            let behind = &mut written.behind;
            (behind.bytes, behind.reach) = (behind.bytes.saturating_add(bytes), behind.reach.max(reach));
        });
    }

    /// The file has nothing behind its end: the host frees that when it cuts a file.
    pub fn cut(&self, ino: Ino) {
        self.note(ino, |written| written.behind = Behind::default());
    }

    fn note(&self, ino: Ino, note: impl FnOnce(&mut Written)) {
        let mut table = self.0.lock();
        table.change(ino);
        if let Some(entry) = table.files.get_mut(&ino) {
            note(&mut entry.written);
        }
    }

    /// How many are written without asking.
    pub fn unasked(&self) -> usize {
        self.0.lock().files.values().filter(|entry| entry.written.unasked).count()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.lock().files.len()
    }

    /// Their files.
    pub fn inos(&self) -> Vec<Ino> {
        self.0.lock().files.keys().copied().collect()
    }

    /// All of them, as they are now.
    pub fn all(&self) -> Vec<Written> {
        self.0.lock().files.values().map(|entry| entry.written.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_of_a_file_that_went_and_came_back_does_not_count() {
        let writers = Writers::default();
        let written = || Written::new(Ino(2), SegmentId(3), Arc::new(tempfile::tempfile().unwrap().into()));
        writers.insert(written());
        let known = writers.known(|_| 1000);
        writers.remove(Ino(2));
        writers.insert(written());
        writers.asked(&known.changed[0], 9000);
        let known = writers.known(|_| 5000);
        assert_eq!((known.extents, known.recorded), (0, 0));
        writers.asked(&known.changed[0], 8192);
        let known = writers.known(|_| 0);
        assert_eq!((known.extents, known.recorded, known.changed.len()), (8192, 5000, 0));
    }
}
