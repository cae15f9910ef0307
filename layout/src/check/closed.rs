//! `check`: everything in a pool that can be compared with something else is. Changes nothing.
//!
//! A pool that was closed must agree in everything. One that was left open (its server was killed, or power was lost)
//! is checked as recovery would find it: what recovery puts right by itself is no finding.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::check::checker::Checker;
use crate::check::report::{Progress, Report, Subject};
use crate::check::scrubbed::Scrubbed;
use crate::check::verify::verify_runs;
use crate::error::{Error, Result};
use crate::ids::{Ino, SegmentId};
use crate::log::blocks::Log;
use crate::log::census::{Census, decide_blocks};
use crate::log::file::{LOG, open_log, open_pool};
use crate::log::scan::{self, ScannedBlock};
use crate::log::superblock::{INCOMPAT_GROWTH, PoolState, Superblock};
use crate::medium;
use crate::medium::boot::boot_id;
use crate::medium::dir::Dir;
use crate::medium::domain::Medium;
use crate::medium::read_only::ReadOnly;
use crate::parallel::parallel;
use crate::pool::lock::{LOCK, check_unused};
use crate::pool::untold;
use crate::segment::home::SEGMENTS;
use crate::segment::place::QUARANTINE;
use crate::segment::quarantine::Quarantine;
use crate::segment::segments::Segments;
use crate::segment::stat::SegmentStat;
use crate::segment::tier::Whose;
use crate::segment::tiers;
use crate::tree::chain::FileChain;
use crate::tree::load;
use crate::tree::paths::Paths;
use crate::tree::view::View;

/// How much to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Everything but the bytes of files.
    Metadata,
    /// The bytes of sealed runs too, against their checksums.
    Data,
}

/// Checks a pool that is not in use. One that is gives [`Error::Busy`]; what cannot even be read as a pool gives the
/// error that a mount would give.
pub fn check(path: &Path, depth: Depth, progress: Progress<'_>) -> Result<Report> {
    let (mut report, scrubbed) = look_in(&Arc::new(open_pool(path)?), depth, progress)?;
    report.last_scrub = scrubbed.last().cloned();
    // Who reads the bytes himself knows better.
    if depth == Depth::Metadata {
        report = report.with_known(&scrubbed.findings());
    }
    Ok(report)
}

/// As [`check`], of a pool whose directory is open.
pub(crate) fn check_in(pool: &Arc<Dir>, depth: Depth, progress: Progress<'_>) -> Result<Report> {
    Ok(look_in(pool, depth, progress)?.0)
}

/// What is found now, and what the last scrub found.
fn look_in(pool: &Arc<Dir>, depth: Depth, progress: Progress<'_>) -> Result<(Report, Scrubbed)> {
    let dir = pool.path();
    // Without a lock that can be taken, nobody has it in use.
    if pool.stat(LOCK).is_ok_and(|found| pool.check_file(&found).is_ok()) {
        check_unused(pool)?;
    }
    let io = |what| move |error| Error::in_pool(dir, LOG, what, error);
    let medium: Arc<dyn Medium> = Arc::new(ReadOnly(medium::open_to_read(open_log(pool, false)?).map_err(io("open"))?));
    let (superblock, _) = Superblock::read(dir, &*medium)?;
    let mut checker = Checker { superblock: &superblock, report: Report::default(), paths: Paths::default() };
    checker.report.unclean = superblock.state != PoolState::Clean;
    checker.parts(pool);
    checker.superblocks(&*medium);
    if medium.log_len().map_err(io("stat"))? < superblock.log_len() {
        checker.log_finding(
            Subject::Transactions,
            None,
            "the log is cut short".into(),
            "the pool cannot be mounted; what the missing blocks held is lost",
        );
        return Ok((checker.report, Scrubbed::default()));
    }
    progress("log", 0, u64::from(superblock.blocks));
    let blocks = scan::scan(&*medium, &superblock).map_err(io("read"))?;
    progress("log", u64::from(superblock.blocks), u64::from(superblock.blocks));
    let view = checker.log(&medium, &blocks).map_err(io("read"))?;
    let segments = Segments::open_all(pool, medium.clone());
    let mut segments = segments.map_err(|error| Error::in_pool(dir, SEGMENTS, "open", error))?;
    let whose = Whose { pool: superblock.uuid, boot: boot_id(None) };
    let opened = segments.open_tiers(&view, whose, false);
    opened.map_err(|error| Error::in_pool(dir, SEGMENTS, "look into the tiers", error))?;
    if checker.report.unclean {
        untold::hear(pool, &superblock, whose.boot, &segments);
    }
    let scanned = segments.scan().map_err(|error| Error::in_pool(dir, SEGMENTS, "read", error))?;
    checker.tree(&view);
    checker.tiers(&tiers::describe(pool, &view, &segments));
    checker.files(&view, &segments, &scanned.0, progress);
    if depth == Depth::Data {
        checker.data(&view, &scanned.0, &segments, progress);
    }
    checker.foreign(&scanned.1);
    checker.quarantine(dir, &Quarantine::of(pool.clone()).with(&segments))?;
    let scrubbed = Scrubbed::read_in(pool, &superblock.uuid_text(), &view);
    Ok((checker.report, scrubbed))
}

impl Checker<'_> {
    /// Every frame, and that none is missing. Returns the view of what is there.
    fn log(&mut self, medium: &Arc<dyn Medium>, blocks: &[ScannedBlock]) -> std::io::Result<View> {
        let census = Census::new(blocks);
        let keep = census.newest_complete().max(census.horizon(self.superblock.read_mark(&**medium)));
        self.report.frames = blocks.iter().map(|block| block.frames.len() as u64).sum();
        self.missing(&census, blocks, keep);
        let (uses, _) = decide_blocks(blocks, &census.retired(keep), keep);
        let log = Log::new(medium.clone(), self.superblock, uses, keep, keep);
        for (index, block) in blocks.iter().enumerate() {
            // What a torn or half-zeroed block of an unclean pool looks like; recovery zeroes it.
            if block.garbage && !self.report.unclean {
                let what = format!("log block {index} holds bytes that belong to no frame");
                let meaning = "if no transaction is missing, nothing is lost";
                self.log_finding(Subject::LogBlock, Some(self.block_offset(index)), what, meaning);
            }
        }
        let mut owned = HashSet::new();
        match load::load(&**medium, self.superblock, blocks, &log, 0, &mut owned) {
            Ok(mut view) => {
                for ino in view.unreachable() {
                    view.drop_object(ino);
                }
                self.report.records = view.records();
                Ok(view)
            }
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                let meaning = "the pool cannot be mounted; a newer tensorfs may know more";
                self.log_finding(Subject::Transactions, None, format!("a record does not parse: {error}"), meaning);
                Ok(View::default())
            }
            Err(error) => Err(error),
        }
    }

    /// Every file has its segment to itself, and the segment has what the file says.
    fn files(
        &mut self,
        view: &View,
        segments: &Segments,
        present: &HashMap<SegmentId, SegmentStat>,
        progress: Progress<'_>,
    ) {
        let mut owners: HashMap<SegmentId, Ino> = HashMap::new();
        let mut replacements = HashSet::new();
        let total = view.totals().files;
        let files = view.objects().filter(|(_, object)| object.is_file());
        for (done, (ino, object)) in files.enumerate() {
            if done % 4096 == 0 {
                progress("files", done as u64, total);
            }
            replacements.extend(object.pending_replace());
            let Some(segment) = object.attributes.segment else { continue };
            if let Some(other) = owners.insert(segment, ino) {
                let what = format!("shares its segment with object {other}");
                self.file(view, ino, segment, None, what, "writing one of them changes the other");
            }
            // Where the log has the bytes, recovery writes them.
            if object.attributes.damaged || segments.failed(segment) && !object.has_value() {
                self.marked_as_damaged(view, ino, segment);
            }
            // Where no file has ever grown behind its seals, they are void before anything can write it.
            let grows = self.superblock.features.incompat & INCOMPAT_GROWTH != 0;
            let sealed = !grows && object.chain().is_some_and(FileChain::has_seals);
            let growing = (self.report.unclean && !sealed) || object.is_cut_unconfirmed();
            match segments.gone(segment) {
                Some(gone) => self.gone(view, ino, segment, &gone),
                None => match present.get(&segment) {
                    None if self.fails(view, ino, segment, segments) => {}
                    found => self.segment_of(view, ino, object, segment, found, growing),
                },
            }
        }
        progress("files", total, total);
        self.report.segments = present.len() as u64;
        if self.report.unclean {
            return;
        }
        // A tier that was away holds what was removed meanwhile; the next mount removes it there.
        let back = |id: &SegmentId| view.tier(id.tier()).is_some_and(|tier| tier.away.is_some());
        for segment in present.keys().filter(|segment| !owners.contains_key(segment) && !back(segment)) {
            self.unowned(*segment);
        }
    }

    /// The bytes of sealed runs, several files at once.
    fn data(
        &mut self,
        view: &View,
        present: &HashMap<SegmentId, SegmentStat>,
        segments: &Segments,
        progress: Progress<'_>,
    ) {
        let files: Vec<(Ino, SegmentId, &FileChain)> = view
            .objects()
            .filter_map(|(ino, object)| Some((ino, object.attributes.segment?, object.chain()?)))
            .filter(|(_, segment, _)| present.contains_key(segment))
            .collect();
        let total: u64 = files.iter().map(|(_, _, chain)| chain.size()).sum();
        let done = AtomicU64::new(0);
        // A few bytes are not worth a thread.
        let share = if total < 1 << 20 { files.len().max(1) } else { 1 };
        let verified = parallel(files.len(), share, |index| {
            let (_, segment, chain) = &files[index];
            let verdicts = verify_runs(segments, *segment, chain, &|bytes| {
                progress("data", done.fetch_add(bytes, Ordering::Relaxed) + bytes, total);
            });
            Ok(verdicts)
        });
        for ((ino, segment, chain), verdicts) in files.iter().zip(verified.unwrap_or_default()) {
            for run in chain.runs().iter().filter(|run| run.seal().is_none()) {
                self.report.unsealed_bytes += run.len;
            }
            for verdict in verdicts {
                self.report.verified_bytes += verdict.len;
                if let Some(what) = verdict.fault {
                    let meaning = "these bytes are not what was written; other parts of the file are not affected";
                    self.file(view, *ino, *segment, Some(verdict.offset), what, meaning);
                    if let Some(finding) = self.report.findings.last_mut() {
                        finding.tensors = verdict.tensors;
                    }
                }
            }
        }
    }

    fn quarantine(&mut self, dir: &Path, quarantine: &Quarantine) -> Result<()> {
        // What is there instead is said of the pool's parts.
        if !quarantine.has_own() {
            return Ok(());
        }
        let io = |error| Error::in_pool(dir, QUARANTINE, "read", error);
        self.strays(quarantine).map_err(io)?;
        for entry in quarantine.list().map_err(io)? {
            if entry.note.is_none() {
                self.noteless(quarantine.shown(&entry.name));
            }
        }
        Ok(())
    }
}
