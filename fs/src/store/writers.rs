//! The segments that something may still write: open for writing, or mapped so since.
//!
//! Nothing is recorded yet of what is written there. In a pool with a limit every write is asked for, and whoever has
//! written asks the host what the file takes now; until that is answered it counts with all that it may have got since.
//! So counting asks the host for nothing: the answer for one file can be late, and who writes others waits for none.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
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
        if self.mapped { self.extent_if_mapped(host) } else { host.allocated }
    }

    /// As [`Written::extent`], where it can be written through a mapping.
    pub fn extent_if_mapped(&self, host: &HostStat) -> u64 {
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

/// What a file takes beyond its records, as it is counted.
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
    /// What it took of the host when that was asked last; if that was never, what is recorded of it.
    extent: Option<u64>,
    /// What it may have got since.
    since: u64,
    /// [`Table::changes`] when it changed last.
    changes: u64,
}

/// All of them, by their file.
#[derive(Default)]
pub(crate) struct Writers(Mutex<Table>);

#[derive(Default)]
struct Table {
    files: FxHashMap<Ino, Entry>,
    /// Those that have changed since they were counted. They are not in the sum.
    changed: FxHashSet<Ino>,
    /// Those that have changed since the host was asked for them, or may have without our hearing of it.
    unknown: FxHashSet<Ino>,
    sum: Beyond,
    /// How often any file has changed: one that went and came back is not taken for what it was.
    changes: u64,
}

/// A file that is to be asked for.
pub(super) struct Changed {
    pub written: Written,
    changes: u64,
}

/// What the files take beyond their records, not less than it is.
pub(super) struct Known {
    /// What they take of the host.
    pub extents: u64,
    /// What of that is recorded.
    pub recorded: u64,
}

impl Entry {
    fn to_ask(&self) -> Changed {
        Changed { written: self.written.clone(), changes: self.changes }
    }
}

impl Table {
    /// The file is not in the sum until it is counted again. It may have got so many bytes, and what it takes is to be
    /// asked for.
    fn change(&mut self, ino: Ino, more: u64) {
        let Some(entry) = self.files.get_mut(&ino) else { return };
        self.changes += 1;
        entry.changes = self.changes;
        entry.since = entry.since.saturating_add(more);
        self.unknown.insert(ino);
        self.recount(ino);
    }

    /// The file is not in the sum until it is counted again.
    fn recount(&mut self, ino: Ino) {
        let Some(entry) = self.files.get_mut(&ino) else { return };
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
        let (beyond, changes) = (Beyond::default(), table.changes);
        let entry = Entry { written, beyond, extent: None, since: 0, changes };
        let before = table.files.insert(ino, entry);
        table.leave_out(before.as_ref().map_or_else(Beyond::default, |before| before.beyond));
        table.changed.insert(ino);
        table.unknown.insert(ino);
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
        table.unknown.remove(&ino);
        drop(table);
        // The descriptor is closed without the lock.
        drop(gone);
    }

    /// What is recorded of a file may be another than it was.
    pub fn recorded(&self, ino: Ino) {
        self.0.lock().recount(ino);
    }

    /// The file may have got so many bytes.
    pub fn written(&self, ino: Ino, more: u64) {
        self.0.lock().change(ino, more);
    }

    /// A file that is to be asked for, as it is now.
    pub(super) fn to_ask(&self, ino: Ino) -> Option<Changed> {
        self.0.lock().files.get(&ino).map(Entry::to_ask)
    }

    /// Those that have changed since the host was asked for them, or may have without our hearing of it.
    pub(super) fn unknown(&self) -> Vec<Changed> {
        let table = self.0.lock();
        table.unknown.iter().filter_map(|ino| Some(table.files.get(ino)?.to_ask())).collect()
    }

    /// For so many of them the host is still to be asked.
    pub(super) fn count_unknown(&self) -> usize {
        self.0.lock().unknown.len()
    }

    /// All of them: the host, too, changes what a file takes.
    pub(super) fn all_to_ask(&self) -> Vec<Changed> {
        self.0.lock().files.values().map(Entry::to_ask).collect()
    }

    /// What all files take together, where `recorded` says what is recorded of one.
    pub(super) fn known(&self, recorded: impl Fn(&Written) -> u64) -> Known {
        let table = &mut *self.0.lock();
        for ino in table.changed.drain() {
            let Some(entry) = table.files.get_mut(&ino) else { continue };
            let recorded = recorded(&entry.written);
            let extent = entry.extent.unwrap_or(recorded).saturating_add(entry.since);
            entry.beyond = Beyond { extent, recorded };
            table.sum.extent += extent;
            table.sum.recorded += recorded;
        }
        Known { extents: table.sum.extent, recorded: table.sum.recorded }
    }

    /// A file was asked for. Unless it has changed since that counts until it changes.
    pub(super) fn asked(&self, asked: &Changed, extent: u64) {
        let mut table = self.0.lock();
        let Some(entry) = table.files.get_mut(&asked.written.ino) else { return };
        let as_it_was = entry.changes == asked.changes && entry.written.segment == asked.written.segment;
        if !as_it_was {
            return;
        }
        (entry.extent, entry.since) = (Some(extent), 0);
        let unasked = entry.written.unasked;
        table.recount(asked.written.ino);
        if !unasked {
            table.unknown.remove(&asked.written.ino);
        }
    }

    /// The file can be mapped for writing from now on, and takes so much with what that may fill.
    pub(super) fn map(&self, ino: Ino, more: u64) {
        self.note(ino, more, |written| written.mapped = true);
    }

    /// The segment is written without asking from now on.
    pub fn let_write_unasked(&self, ino: Ino) {
        self.note(ino, 0, |written| written.unasked = true);
    }

    /// The file may get so many bytes behind its end, up to a place.
    pub fn give_behind(&self, ino: Ino, bytes: u64, reach: u64) {
        self.note(ino, 0, |written| {
            let behind = &mut written.behind;
            (behind.bytes, behind.reach) = (behind.bytes.saturating_add(bytes), behind.reach.max(reach));
        });
    }

    /// The file has so many bytes behind its end, up to a place, as it was found.
    pub(super) fn has_behind(&self, ino: Ino, bytes: u64, reach: u64) {
        self.note(ino, 0, |written| {
            let behind = &mut written.behind;
            (behind.bytes, behind.reach) = (behind.bytes.max(bytes), behind.reach.max(reach));
        });
    }

    /// The file has nothing behind its end: the host frees that when it cuts a file.
    pub fn cut(&self, ino: Ino) {
        self.note(ino, 0, |written| written.behind = Behind::default());
    }

    fn note(&self, ino: Ino, more: u64, note: impl FnOnce(&mut Written)) {
        let mut table = self.0.lock();
        table.change(ino, more);
        if let Some(entry) = table.files.get_mut(&ino) {
            note(&mut entry.written);
        }
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

    fn written() -> Written {
        Written::new(Ino(2), SegmentId(3), Arc::new(tempfile::tempfile().unwrap().into()))
    }

    #[test]
    fn what_was_asked_of_a_file_that_went_and_came_back_does_not_count() {
        let writers = Writers::default();
        writers.insert(written());
        let before = writers.unknown();
        writers.remove(Ino(2));
        writers.insert(written());
        writers.asked(&before[0], 9000);
        let known = writers.known(|_| 5000);
        assert_eq!((known.extents, known.recorded), (5000, 5000));
        writers.asked(&writers.unknown()[0], 8192);
        writers.recorded(Ino(2));
        let known = writers.known(|_| 4096);
        assert_eq!((known.extents, known.recorded, writers.unknown().len()), (8192, 4096, 0));
    }

    #[test]
    fn a_file_counts_with_all_that_it_may_have_got_until_the_host_says() {
        let writers = Writers::default();
        writers.insert(written());
        let extents = || writers.known(|_| 0).extents;
        writers.asked(&writers.to_ask(Ino(2)).unwrap(), 4096);
        assert_eq!(extents(), 4096);
        writers.written(Ino(2), 100);
        let late = writers.to_ask(Ino(2)).unwrap();
        writers.written(Ino(2), 10);
        writers.asked(&late, 1);
        assert_eq!(extents(), 4206, "it was asked for before that was written");
        writers.asked(&writers.to_ask(Ino(2)).unwrap(), 8192);
        assert_eq!(extents(), 8192);
        writers.let_write_unasked(Ino(2));
        writers.asked(&writers.to_ask(Ino(2)).unwrap(), 12288);
        assert_eq!((extents(), writers.unknown().len()), (12288, 1), "who writes unasked says nothing");
    }
}
