//! `check` of a pool that is in use, from within: nothing waits for it for longer than it takes to read the log, and
//! what changes meanwhile is no finding.
//!
//! The log is read up to the transaction that is the newest at the beginning, while nothing of it is cleaned, and
//! everything is made anew from it: that is how the next mount would see the pool. It must agree with itself and, where
//! nothing has changed since, with what is in memory. Segments come and go beside that, so what looks odd about one is
//! looked at again, with the file kept still.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::check::checker::Checker;
use crate::check::report::{Finding, Progress, Report, Subject};
use crate::error::{Error, Result};
use crate::ids::{Ino, SegmentId};
use crate::log::blocks::{Block, Log};
use crate::log::census::Census;
use crate::log::file::LOG;
use crate::log::filled::{BlockBytes, Filled};
use crate::log::record::Record;
use crate::log::scan::{self, ScannedBlock};
use crate::log::superblock::Superblock;
use crate::medium::domain::Medium;
use crate::parallel::parallel;
use crate::pool::opened::Pool;
use crate::segment::home::SEGMENTS;
use crate::segment::place::QUARANTINE;
use crate::segment::stat::SegmentStat;
use crate::time::Timestamp;
use crate::tree::load;
use crate::tree::object::Object;
use crate::tree::paths::{Paths, spelled};
use crate::tree::view::View;

/// A segment that no file has may be about to be given to one, if it changed less than so many seconds ago.
const YOUNG: i64 = 60;
/// So many objects are compared before others get their turn.
const LOT: usize = 1024;

/// Calls back with a file kept still, and says whether something may be writing its segment all the same.
pub type KeepStill<'a> = &'a dyn Fn(Ino, &mut dyn FnMut(bool));

/// Checks everything but the bytes of files. Takes as much memory as the pool's view does. `None` if `go_on` said no.
pub fn check_in_use(
    pool: &Pool,
    keep_still: KeepStill<'_>,
    now: Timestamp,
    progress: Progress<'_>,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Result<Option<Report>> {
    let superblock = pool.superblock();
    let mut checker = Checker { superblock: &superblock, report: Report::default(), paths: Paths::default() };
    {
        // Whoever writes one of them holds this.
        let _current = pool.keep_superblock();
        checker.superblocks(&*pool.medium());
        let len = pool.medium().log_len().map_err(|error| Error::in_pool(pool.path(), LOG, "stat", error))?;
        if len < pool.superblock().log_len() {
            let meaning = "what the missing blocks hold is lost, and the pool cannot be mounted again";
            checker.log_finding(Subject::Transactions, None, "the log is cut short".into(), meaning);
            return Ok(Some(checker.report));
        }
    }
    checker.parts(pool.dir());
    let Some(mut view) = checker.log_in_use(pool, progress, go_on)? else { return Ok(None) };
    for ino in view.unreachable() {
        view.drop_object(ino);
    }
    checker.report.records = view.records();
    checker.tree(&view);
    checker.compare(pool, &view);
    let io = |error| Error::in_pool(pool.path(), SEGMENTS, "read", error);
    let (present, foreign) = pool.segments().scan().map_err(io)?;
    checker.tiers(&pool.tiers());
    if !checker.files_in_use(pool, &view, &present, keep_still, progress, go_on) {
        return Ok(None);
    }
    checker.unowned_in_use(pool, &view, &present, now);
    checker.foreign(&foreign);
    checker.quarantine_in_use(pool, now)?;
    Ok(Some(checker.report))
}

impl Checker<'_> {
    /// Every frame up to the newest one, that none is missing, and that a free block is free. Returns the view that
    /// they make.
    fn log_in_use(
        &mut self,
        pool: &Pool,
        progress: Progress<'_>,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<View>> {
        let io = |error| Error::in_pool(pool.path(), LOG, "read", error);
        // Without cleaning, what is in a block stays there, and frames are only ever added behind it.
        let _cleaner = pool.keep_blocks();
        let medium: Arc<dyn Medium> = pool.medium();
        let mut superblock = self.superblock.clone();
        let (blocks, newest, horizon, next_id, filled) = loop {
            let (blocks, newest, horizon, next_id) = {
                let state = pool.live();
                (state.log().blocks().to_vec(), state.log().newest(), state.log().horizon(), state.view().next_id())
            };
            superblock.blocks = blocks.len() as u32;
            // All that these blocks hold is there by now.
            match Filled::of_all(&*medium, &superblock) {
                // Free ones at the end of the log go at any time, and whoever cuts it says so before.
                Err(error) if is_behind_end(&error) && pool.live().log().blocks().len() < blocks.len() => {}
                filled => break (blocks, newest, horizon, next_id, filled.map_err(io)?),
            }
        };
        let total = blocks.len() as u64;
        let done = std::sync::atomic::AtomicU64::new(0);
        let scanned = parallel(blocks.len(), scan::BLOCKS_PER_THREAD, |index| {
            if !go_on() {
                return Ok(None);
            }
            progress("log", done.fetch_add(1, std::sync::atomic::Ordering::Relaxed), total);
            match blocks[index] {
                Block::InUse { used, .. } => {
                    let bytes = BlockBytes::read(&*medium, &superblock, index, &filled)?;
                    Ok(Some(scan::scan_block(&bytes.cut(used), index as u32, &superblock)))
                }
                Block::Free => {
                    let garbage = !is_free(pool, &superblock, index, &filled);
                    Ok(Some(ScannedBlock { garbage, ..ScannedBlock::default() }))
                }
            }
        });
        let Some(scanned) = scanned.map_err(io)?.into_iter().collect::<Option<Vec<ScannedBlock>>>() else {
            return Ok(None);
        };
        let census = Census::new(&scanned);
        self.report.frames = scanned.iter().map(|block| block.frames.len() as u64).sum();
        let mark = self.superblock.read_mark(&*medium);
        if mark.max(horizon) > pool.newest().0 {
            let what = format!("transactions up to {mark} are called durable, and {newest} is the newest");
            self.log_finding(Subject::HorizonMark, None, what, "the next mount will miss transactions");
        }
        self.missing(&census, &scanned, newest);
        for (index, (block, known)) in scanned.iter().zip(&blocks).enumerate() {
            let wrong = match known {
                Block::Free => block.garbage,
                Block::InUse { incarnation, first, last, .. } => {
                    let ids = block.frames.iter().map(|found| found.header.id);
                    let whole = *last + 1 < *first || ids.eq(*first..=*last);
                    block.garbage || block.header.map(|header| header.incarnation) != Some(*incarnation) || !whole
                }
            };
            if wrong {
                let what = format!("log block {index} does not hold what was written there");
                let meaning = "if no transaction is missing, nothing is lost";
                self.log_finding(Subject::LogBlock, Some(self.block_offset(index)), what, meaning);
            }
        }
        let log = Log::new(medium.clone(), &superblock, blocks, newest, horizon);
        match load::load(&*medium, &superblock, &scanned, &log, next_id, &mut HashSet::new()) {
            Ok(view) => Ok(Some(view)),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                let meaning = "the pool cannot be mounted again; a newer tensorfs may know more";
                self.log_finding(Subject::Transactions, None, format!("a record does not parse: {error}"), meaning);
                Ok(Some(View::default()))
            }
            Err(error) => Err(io(error)),
        }
    }

    /// What is in memory is what the log says, for every object that has not changed since the log was read.
    fn compare(&mut self, pool: &Pool, view: &View) {
        let mut all: Vec<Ino> = view.objects().map(|(ino, _)| ino).collect();
        all.sort_unstable();
        let mut differ = Vec::new();
        for lot in all.chunks(LOT) {
            let live = pool.view();
            for ino in lot {
                let (Some(logged), Some(object)) = (view.object(*ino), live.object(*ino)) else { continue };
                if logged.last_seq() != object.last_seq() {
                    continue;
                }
                let records = |object: &Object| {
                    let mut records = Vec::new();
                    object.export(*ino, &mut records);
                    // The log has them until they are cleaned away; the server forgets them as soon as the segment has
                    // the bytes.
                    records.retain(|(record, _)| !matches!(record, Record::Value { .. }));
                    // Names come in no order.
                    records.sort_by_key(|(_, seq)| *seq);
                    records
                };
                if records(logged) != records(object) {
                    differ.push(*ino);
                }
            }
        }
        let paths = Paths::default();
        for ino in differ {
            let (path, path_bytes) = spelled(paths.bytes_of(view, ino));
            self.report.findings.push(Finding {
                subject: Subject::Tree,
                path,
                path_bytes,
                ino: Some(ino),
                host_file: "log".into(),
                offset: None,
                tensors: Vec::new(),
                what: "what the log says of it is not what the server knows".into(),
                meaning: "after the next mount it may not be what it is now".into(),
            });
        }
    }

    /// Every file has its segment to itself, and the segment has what the file says. False if it was not wanted any
    /// more.
    fn files_in_use(
        &mut self,
        pool: &Pool,
        view: &View,
        present: &HashMap<SegmentId, SegmentStat>,
        keep_still: KeepStill<'_>,
        progress: Progress<'_>,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> bool {
        let mut owners: HashMap<SegmentId, Ino> = HashMap::new();
        let total = view.totals().files;
        for (done, (ino, object)) in view.objects().filter(|(_, object)| object.is_file()).enumerate() {
            if done % LOT == 0 {
                if !go_on() {
                    return false;
                }
                progress("files", done as u64, total);
            }
            let Some(segment) = object.attributes.segment else { continue };
            if let Some(other) = owners.insert(segment, ino) {
                let what = format!("shares its segment with object {other}");
                self.file(view, ino, segment, None, what, "writing one of them changes the other");
            }
            let plain = present.get(&segment).is_some_and(|found| found.size == object.size());
            let gone = pool.segments().gone(segment);
            if plain && !object.attributes.damaged && gone.is_none() {
                continue;
            }
            if let Some(gone) = gone {
                // It may have been replaced by now, or removed.
                let live = pool.view();
                if live.object(ino).is_some_and(|object| object.attributes.segment == Some(segment)) {
                    self.gone(&live, ino, segment, &gone);
                }
                continue;
            }
            keep_still(ino, &mut |may_be_written| {
                let host = pool.segments().stat(segment);
                let live = pool.view();
                let Some(object) = live.object(ino).filter(|object| object.attributes.segment == Some(segment)) else {
                    return;
                };
                if object.attributes.damaged {
                    self.marked_as_damaged(&live, ino, segment);
                }
                if host.is_err() && self.fails(&live, ino, segment, pool.segments()) {
                    return;
                }
                // Bytes behind the recorded end are a writer's that are not recorded yet, or of a file that was removed
                // and closed, of which nothing is recorded any more: it goes when the kernel has forgotten it.
                let growing = may_be_written || object.is_cut_unconfirmed() || object.names() == 0;
                self.segment_of(&live, ino, object, segment, host.ok().as_ref(), growing);
            });
        }
        progress("files", total, total);
        self.report.segments = present.len() as u64;
        true
    }

    fn unowned_in_use(&mut self, pool: &Pool, view: &View, present: &HashMap<SegmentId, SegmentStat>, now: Timestamp) {
        let owned = |view: &View| -> HashSet<SegmentId> {
            let of = |object: &Object| [object.attributes.segment, object.pending_replace()];
            view.objects().flat_map(|(_, object)| of(object)).flatten().collect()
        };
        let then = owned(view);
        let old = |stat: &SegmentStat| stat.ctime.sec.saturating_add(YOUNG) < now.sec;
        let mut left: Vec<SegmentId> =
            present.iter().filter(|(id, stat)| !then.contains(id) && old(stat)).map(|(id, _)| *id).collect();
        if left.is_empty() {
            return;
        }
        // In this order: what no file has any more is in the list of those to be removed, and leaves it once it is
        // gone.
        let owned = owned(&pool.view());
        // A spare that has become a file's got new times before that.
        left.retain(|id| !pool.segments().is_spare(*id) && pool.segments().stat(*id).is_ok_and(|stat| old(&stat)));
        left.retain(|id| !owned.contains(id) && !pool.is_freed(*id) && pool.segments().stat(*id).is_ok());
        left.sort_unstable();
        for id in left {
            self.unowned(id);
        }
    }

    fn quarantine_in_use(&mut self, pool: &Pool, now: Timestamp) -> Result<()> {
        // What is there instead is said of the pool's parts.
        if !pool.quarantine().has_own() {
            return Ok(());
        }
        let io = |error| Error::in_pool(pool.path(), QUARANTINE, "read", error);
        self.strays(pool.quarantine()).map_err(io)?;
        for entry in pool.quarantine().list().map_err(io)? {
            // The note comes behind the entry. The entry may be a second name of an old segment: what changes when it
            // gets that is its ctime.
            let old = || {
                let changed = pool.quarantine().entry_changed(&entry.name);
                changed.is_some_and(|changed| changed.sec.saturating_add(YOUNG) < now.sec)
            };
            if entry.note.is_none() && old() {
                self.noteless(pool.quarantine().shown(&entry.name));
            }
        }
        Ok(())
    }
}

fn is_behind_end(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::UnexpectedEof
}

/// True if a block that was free is so still, and holds nothing but zeroes; or is in use by now, or gone.
fn is_free(pool: &Pool, superblock: &Superblock, index: usize, filled: &Filled) -> bool {
    if BlockBytes::read(&*pool.medium(), superblock, index, filled).is_ok_and(|bytes| bytes.is_zero()) {
        return true;
    }
    // Who takes it stores its header first, and says so before anybody else may change the log. None is cleaned
    // meanwhile.
    !matches!(pool.live_unchanging().log().blocks().get(index), Some(Block::Free))
}
