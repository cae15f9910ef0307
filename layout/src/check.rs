//! `check`: everything in a pool that can be compared with something else is. Changes nothing.
//!
//! A pool that was closed must agree in everything. One that was left open (its server was killed, or power was lost)
//! is checked as recovery would find it: what recovery puts right by itself is no finding.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::chain::FileChain;
use crate::domain::{self, Medium};
use crate::error::{Error, Result};
use crate::ids::{Ino, ROOT, SegmentId};
use crate::inspect::ReadOnly;
use crate::load;
use crate::lock::holder;
use crate::log::Log;
use crate::object::Object;
use crate::pool::{boot_id, open_log};
use crate::quarantine;
use crate::recover::{self, Census};
use crate::scan::{self, ScannedBlock};
use crate::segments::{SegmentStat, Segments};
use crate::superblock::{MARK_OFFSETS, OFFSETS, State, Superblock};
use crate::tier::{Gone, PM, TierInfo, TierState, Whose};
use crate::tiers;
use crate::verify::verify_runs;
use crate::view::View;

/// What is said of a file that tensorfs did not put where it is.
pub(crate) const NOT_A_SEGMENT: &str = "is no segment";

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// One of the two superblocks.
    Superblock,
    /// One of the two horizon marks.
    HorizonMark,
    /// Transactions that should be in the log.
    Transactions,
    /// Bytes in the log that are neither a frame nor zeroes.
    LogBlock,
    /// The tree that the records describe.
    Tree,
    /// A regular file and its segment.
    File,
    /// A file in the segments directory.
    Segment,
    /// An entry of the quarantine.
    Quarantine,
    /// A tier of the pool.
    Tier,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is about.
    pub subject: Subject,
    /// The file or directory on the mount, if one is concerned.
    pub path: Option<String>,
    /// Its object.
    pub ino: Option<Ino>,
    /// The host file, relative to the pool.
    pub host_file: String,
    /// Where in the host file.
    pub offset: Option<u64>,
    /// The tensors that are hurt, as far as that is known: `NAME@STEP`, the first few.
    pub tensors: Vec<String>,
    /// What is wrong.
    pub what: String,
    /// What that means for whoever owns the data.
    pub meaning: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// What was found; nothing if the pool is whole.
    pub findings: Vec<Finding>,
    /// Frames whose checksums were verified.
    pub frames: u64,
    /// Live records.
    pub records: u64,
    /// Objects reached from the root.
    pub objects: u64,
    /// Segments looked at.
    pub segments: u64,
    /// Bytes of files whose checksums were verified.
    pub verified_bytes: u64,
    /// Bytes of files that have no checksum, because they are not sealed.
    pub unsealed_bytes: u64,
    /// True if the pool had not been closed: the next mount recovers it.
    pub unclean: bool,
}

/// How far a check has come: what it does now, and how much of it is done.
pub type Progress<'a> = &'a (dyn Fn(&'static str, u64, u64) + Sync);

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
pub fn check(dir: &Path, depth: Depth, progress: Progress<'_>) -> Result<Report> {
    if let Some(holder) = holder(dir)? {
        return Err(Error::Busy { pool: dir.into(), pid: holder.pid, mountpoint: holder.mountpoint });
    }
    let io = |what| move |error| Error::io(dir.join("log"), what, error);
    let medium: Arc<dyn Medium> = Arc::new(ReadOnly(domain::open_to_read(open_log(dir, false)?).map_err(io("open"))?));
    let (superblock, _) = Superblock::read(dir, &*medium)?;
    let mut checker = Checker { superblock: &superblock, report: Report::default() };
    checker.report.unclean = superblock.state == State::Dirty;
    checker.superblocks(&*medium);
    if medium.log_len().map_err(io("stat"))? < superblock.log_len() {
        checker.log_finding(
            Subject::Transactions,
            None,
            "the log is cut short".into(),
            "the pool cannot be mounted; what the missing blocks held is lost",
        );
        return Ok(checker.report);
    }
    progress("log", 0, u64::from(superblock.blocks));
    let blocks = scan::scan(&*medium, &superblock).map_err(io("read"))?;
    progress("log", u64::from(superblock.blocks), u64::from(superblock.blocks));
    let view = checker.log(&medium, &blocks).map_err(io("read"))?;
    let segments = Segments::open_all(dir, medium.clone());
    let mut segments = segments.map_err(|error| Error::io(dir.join("segments"), "open", error))?;
    let whose = Whose { pool: superblock.uuid, boot: boot_id(None) };
    let opened = segments.open_tiers(&view, whose, false);
    opened.map_err(|error| Error::io(dir.join("segments"), "look into the tiers", error))?;
    let scanned = segments.scan().map_err(|error| Error::io(dir.join("segments"), "read", error))?;
    checker.tree(&view);
    checker.tiers(&tiers::describe(dir, &view, &segments));
    checker.files(&view, &segments, &scanned.0, progress);
    if depth == Depth::Data {
        checker.data(&view, &scanned.0, &segments, progress);
    }
    checker.foreign(dir, &scanned.1);
    checker.quarantine(dir)?;
    Ok(checker.report)
}

/// A check on its way.
pub(crate) struct Checker<'a> {
    pub superblock: &'a Superblock,
    pub report: Report,
}

impl Checker<'_> {
    pub(crate) fn log_finding(&mut self, subject: Subject, offset: Option<u64>, what: String, meaning: &str) {
        self.report.findings.push(Finding {
            subject,
            path: None,
            ino: None,
            host_file: "log".into(),
            offset,
            tensors: Vec::new(),
            what,
            meaning: meaning.into(),
        });
    }

    pub(crate) fn superblocks(&mut self, medium: &dyn Medium) {
        for (offset, what) in OFFSETS.into_iter().zip(Superblock::examine(medium)) {
            if let Some(what) = what {
                let meaning = "the other copy is used; if that is damaged too, the pool is lost";
                self.log_finding(Subject::Superblock, Some(offset), what.into(), meaning);
            }
        }
        for (offset, what) in MARK_OFFSETS.into_iter().zip(self.superblock.examine_marks(medium)) {
            if let Some(what) = what {
                let meaning = "nothing is lost; the log says the same";
                self.log_finding(Subject::HorizonMark, Some(offset), what.into(), meaning);
            }
        }
    }

    /// Every frame, and that none is missing. Returns the view of what is there.
    fn log(&mut self, medium: &Arc<dyn Medium>, blocks: &[ScannedBlock]) -> std::io::Result<View> {
        let census = Census::new(blocks);
        let keep = census.newest_complete().max(census.horizon(self.superblock.read_mark(&**medium)));
        self.report.frames = blocks.iter().map(|block| block.frames.len() as u64).sum();
        self.missing(&census, blocks, keep);
        let (uses, _) = recover::decide_blocks(blocks, &census.retired(keep), keep);
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

    /// That no transaction is missing up to `keep`.
    pub(crate) fn missing(&mut self, census: &Census<'_>, blocks: &[ScannedBlock], keep: u64) {
        for (first, last) in census.missing(keep) {
            let at = blocks.iter().enumerate().find_map(|(index, block)| {
                let found = block.frames.iter().find(|found| found.header.id == first)?;
                Some(self.block_offset(index) + found.offset as u64)
            });
            let what = if first == last {
                format!("transaction {first} cannot be read")
            } else {
                format!("transactions {first} to {last} cannot be read")
            };
            let meaning = "the pool is mounted read-only; names, sizes or attributes that they changed may be wrong";
            self.log_finding(Subject::Transactions, at, what, meaning);
        }
    }

    pub(crate) fn block_offset(&self, index: usize) -> u64 {
        crate::superblock::BLOCKS_OFFSET + index as u64 * u64::from(self.superblock.block_size)
    }

    /// Every name leads to an object, every directory has one name, and all that is reached ends.
    pub(crate) fn tree(&mut self, view: &View) {
        if view.object(ROOT).is_none_or(|root| !root.is_dir()) {
            let meaning = "the pool cannot be mounted";
            self.log_finding(Subject::Tree, None, "there is no root directory".into(), meaning);
            return;
        }
        let mut queue = vec![ROOT];
        let mut directories = HashSet::from([ROOT]);
        let mut objects = HashSet::from([ROOT]);
        // Names that point to an object, and directories in it.
        let mut links: HashMap<Ino, (u32, u32)> = HashMap::new();
        while let Some(dir) = queue.pop() {
            for (_, name, ino) in view.entries_after(dir, 0) {
                let tree = |what: String, meaning: &str| Finding {
                    subject: Subject::Tree,
                    path: Some(join(view, dir, name)),
                    ino: Some(ino),
                    host_file: "log".into(),
                    offset: None,
                    tensors: Vec::new(),
                    what,
                    meaning: meaning.into(),
                };
                let Some(object) = view.object(ino) else {
                    let what = format!("names object {ino}, of which there is no record");
                    self.report.findings.push(tree(what, "the name is there and cannot be opened"));
                    continue;
                };
                objects.insert(ino);
                links.entry(ino).or_default().0 += 1;
                if object.is_dir() {
                    links.entry(dir).or_default().1 += 1;
                    if directories.insert(ino) {
                        queue.push(ino);
                    } else {
                        let what = "a directory that has another name already".to_owned();
                        self.report.findings.push(tree(what, "programs that walk the tree may not end"));
                    }
                }
            }
        }
        for (ino, object) in view.objects().filter(|(ino, _)| objects.contains(ino)) {
            let (names, directories) = links.get(&ino).copied().unwrap_or_default();
            let expected = if object.is_dir() { 2 + directories } else { names };
            if object.links() != expected {
                let path = view.path_of(ino).map(|path| String::from_utf8_lossy(&path).into_owned());
                let what = format!("has {} links, and {expected} lead to it", object.links());
                let meaning = "it may be removed too early, or never".to_owned();
                let (host_file, tensors) = ("log".to_owned(), Vec::new());
                let (subject, ino, offset) = (Subject::Tree, Some(ino), None);
                self.report.findings.push(Finding { subject, path, ino, host_file, offset, tensors, what, meaning });
            }
        }
        self.report.objects = objects.len() as u64;
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
            if object.attributes.damaged {
                self.marked_as_damaged(view, ino, segment);
            }
            let growing = self.report.unclean || object.is_cut_unconfirmed();
            match segments.gone(segment) {
                Some(gone) => self.gone(view, ino, segment, &gone),
                None => self.segment_of(view, ino, object, segment, present.get(&segment), growing),
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

    /// Every tier is there.
    pub(crate) fn tiers(&mut self, tiers: &[TierInfo]) {
        for tier in tiers.iter().filter(|tier| tier.state == TierState::Missing) {
            let (name, reason) = (&tier.name, tier.reason.as_deref().unwrap_or_default());
            let what = format!("tier {name} is missing: {reason}");
            let meaning = match tier.files {
                0 => "no file is in it; new files go to pm".to_owned(),
                files => format!("{files} files cannot be read until it is back and the pool mounted again"),
            };
            self.host_file(Subject::Tier, tier.directory.clone(), what, &meaning);
        }
    }

    /// A file whose bytes cannot be had. Of a tier that is missing only the tier itself is named.
    pub(crate) fn gone(&mut self, view: &View, ino: Ino, id: SegmentId, gone: &Gone) {
        if let Gone::Lost { .. } = gone {
            let meaning = "its bytes did not survive that the machine was started anew; delete it or write it again";
            self.file(view, ino, id, None, gone.to_string(), meaning);
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
        let verified = scan::parallel(files.len(), share, |index| {
            let (_, segment, chain) = &files[index];
            let verdicts = verify_runs(segments, *segment, chain, &|bytes| {
                progress("data", done.fetch_add(bytes, Ordering::Relaxed) + bytes, total);
            });
            Ok(verdicts)
        });
        for ((ino, segment, chain), verdicts) in files.iter().zip(verified.unwrap_or_default()) {
            for run in chain.runs().iter().filter(|run| run.seal.is_none()) {
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

    pub(crate) fn unowned(&mut self, id: SegmentId) {
        let (what, meaning) = ("belongs to no file", "it takes space, and no file misses it");
        self.host_file(Subject::Segment, segment_path(id), what.into(), meaning);
    }

    pub(crate) fn marked_as_damaged(&mut self, view: &View, ino: Ino, id: SegmentId) {
        let what = "is marked as damaged: a sync failed, or bytes were missing".to_owned();
        self.file(view, ino, id, None, what, "what it holds may not be what was written");
    }

    /// Whether a file's segment has the bytes that the file says; and no more, unless it is `growing`.
    pub(crate) fn segment_of(
        &mut self,
        view: &View,
        ino: Ino,
        object: &Object,
        id: SegmentId,
        found: Option<&SegmentStat>,
        growing: bool,
    ) {
        let size = object.size();
        // Then recovery writes them.
        let restored = self.report.unclean && object.has_value();
        let Some(found) = found else {
            if size > 0 && !restored {
                self.file(view, ino, id, None, "its segment is missing".into(), "its bytes are lost");
            }
            return;
        };
        if found.size < size && !restored {
            let what = format!("its segment ends at {}, the file at {size}", found.size);
            self.file(view, ino, id, Some(found.size), what, "the bytes behind that are lost");
        }
        if found.size > size && !growing {
            let what = format!("its segment has {} bytes behind the end of the file", found.size - size);
            self.file(view, ino, id, Some(size), what, "they were never part of the file; readers may see them");
        }
    }

    pub(crate) fn file(
        &mut self,
        view: &View,
        ino: Ino,
        id: SegmentId,
        offset: Option<u64>,
        what: String,
        meaning: &str,
    ) {
        self.report.findings.push(Finding {
            subject: Subject::File,
            path: view.path_of(ino).map(|path| String::from_utf8_lossy(&path).into_owned()),
            ino: Some(ino),
            host_file: segment_path(id),
            offset,
            tensors: Vec::new(),
            what,
            meaning: meaning.into(),
        });
    }

    fn host_file(&mut self, subject: Subject, host_file: String, what: String, meaning: &str) {
        let (path, ino, offset, tensors, meaning) = (None, None, None, Vec::new(), meaning.into());
        self.report.findings.push(Finding { subject, path, ino, host_file, offset, tensors, what, meaning });
    }

    pub(crate) fn foreign(&mut self, dir: &Path, paths: &[std::path::PathBuf]) {
        for path in paths {
            let path = path.strip_prefix(dir).unwrap_or(path).display().to_string();
            let meaning = "tensorfs did not put it there, and leaves it alone";
            self.host_file(Subject::Segment, path, NOT_A_SEGMENT.into(), meaning);
        }
    }

    fn quarantine(&mut self, dir: &Path) -> Result<()> {
        let path = dir.join("quarantine");
        for entry in quarantine::list(&path).map_err(|error| Error::io(path, "read", error))? {
            if entry.note.is_none() {
                self.noteless(&entry.name);
            }
        }
        Ok(())
    }

    pub(crate) fn noteless(&mut self, name: &str) {
        let (host_file, meaning) = (format!("quarantine/{name}"), "it cannot be told whose bytes these are");
        self.host_file(Subject::Quarantine, host_file, "has no note that can be read".into(), meaning);
    }
}

/// Where a segment is in its pool, or in a tier of it.
pub fn segment_path(id: SegmentId) -> String {
    let path = format!("segments/{:02x}/{id}", crate::segments::shard(id));
    if id.tier() == PM { path } else { format!("tier {}: {path}", id.tier()) }
}

fn join(view: &View, dir: Ino, name: &[u8]) -> String {
    let parent = view.path_of(dir).unwrap_or_default();
    let parent = String::from_utf8_lossy(&parent).into_owned();
    format!("{}/{}", parent.trim_end_matches('/'), String::from_utf8_lossy(name))
}
