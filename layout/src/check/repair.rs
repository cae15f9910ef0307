//! `check --repair`: makes a pool whole again without throwing anything away.
//!
//! A log with damage is written anew from what can be read of it, and the old one kept in quarantine. Then the pool is
//! opened as after a power loss, which sets aside every byte and every segment that no record speaks of. What is
//! lost is noted in quarantine too. Repairing again finds nothing to do; an interrupted repair is simply done again.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::check::closed::{Depth, check_in};
use crate::check::report::{NOT_A_SEGMENT, NOT_OURS, NOTELESS, Progress, Report, Subject};
use crate::error::{Error, Result};
use crate::ids::{Ino, POOL};
use crate::log::Origin;
use crate::log::blocks::{Block, Full, Log, Reserve};
use crate::log::census::{Census, decide_blocks};
use crate::log::draft::Draft;
use crate::log::file::{LOG, NEW_LOG, open_log, open_pool};
use crate::log::record::{Attributes, Record};
use crate::log::scan;
use crate::log::superblock::{BLOCKS_OFFSET, PoolState, Superblock};
use crate::log::transaction::Transaction;
use crate::medium::domain::Medium;
use crate::medium::file_lock::is_open_elsewhere;
use crate::medium::foreign::Foreign;
use crate::medium::{self, dir::Dir};
use crate::pool::lock::{Holder, LOCK, PoolLock};
use crate::pool::open::OpenOptions;
use crate::pool::opened::Pool;
use crate::segment::note::{Note, Reason};
use crate::segment::place::QUARANTINE;
use crate::segment::quarantine::Quarantine;
use crate::time::Timestamp;
use crate::tree::load;
use crate::tree::paths::{Paths, spelled};
use crate::tree::view::View;

/// Free blocks of a log that was written anew.
const SPARE_BLOCKS: u64 = 4;
/// Records are written in frames of about this many bytes.
const BATCH: usize = 64 << 10;

/// What a repair found and did.
#[derive(Clone, Debug, Serialize)]
pub struct Repair {
    /// The pool before.
    pub before: Report,
    /// What was done, a sentence each.
    pub actions: Vec<String>,
    /// The pool now.
    pub after: Report,
}

/// Repairs a pool that is not in use. A pool without findings is left as it is.
pub fn repair(path: &Path, now: Timestamp, progress: Progress<'_>) -> Result<Repair> {
    let dir = &Arc::new(open_pool(path)?);
    let lock = || PoolLock::take(dir.clone(), &Holder { pid: std::process::id(), mountpoint: None });
    let before = check_in(dir, Depth::Metadata, progress)?;
    let mut actions = Vec::new();
    replace_odd_parts(dir, &before, now, &mut actions)?;
    {
        // First, as it may stand where recovery is about to put something.
        let _lock = lock()?;
        set_aside_foreign(dir, &before, now, &mut actions)?;
        lengthen_log(dir, &mut actions)?;
    }
    if before.unclean {
        recover_now(path, now, &mut actions)?;
    }
    let found = if actions.is_empty() { before.clone() } else { check_in(dir, Depth::Metadata, progress)? };
    if !found.findings.is_empty() {
        let about = |subjects: &[Subject]| found.findings.iter().any(|finding| subjects.contains(&finding.subject));
        let log = about(&[Subject::Transactions, Subject::LogBlock, Subject::Tree]);
        {
            let _lock = lock()?;
            set_aside_foreign(dir, &found, now, &mut actions)?;
            if log {
                rewrite_log(dir, now, &mut actions)?;
            } else {
                mark_power_loss(dir)?;
            }
        }
        if about(&[Subject::Superblock, Subject::HorizonMark]) {
            actions.push("wrote the superblocks and the horizon again".into());
        }
        settle(path, &found, now, &mut actions)?;
    }
    let after = check_in(dir, Depth::Metadata, progress)?;
    Ok(Repair { before, actions, after })
}

fn io_at<'a>(dir: &'a Path, what: &'static str) -> impl Fn(io::Error) -> Error + 'a {
    move |error| Error::io(dir, what, error)
}

/// Moves what stands in the place of a file of the pool, and is none, out of the way, and makes the quarantine and the
/// lock again.
fn replace_odd_parts(dir: &Arc<Dir>, found: &Report, now: Timestamp, actions: &mut Vec<String>) -> Result<()> {
    let odd = || found.findings.iter().filter(|one| one.subject == Subject::Part && one.what != NOT_OURS);
    // First, as the rest goes there.
    if odd().any(|one| one.host_file == QUARANTINE) {
        make_quarantine(dir, now, actions)?;
    }
    for name in odd().map(|one| &one.host_file).filter(|name| *name != QUARANTINE) {
        if name == LOCK && is_open_elsewhere(&open_log(dir, true)?) {
            let what = "its lock is not a file any more, and another process has its log open; end that first".into();
            return Err(Error::Invalid { pool: dir.path().into(), what });
        }
        if let Some(kept) = set_aside(dir, name, now)? {
            actions.push(format!("moved {name} to quarantine/{kept}"));
        }
        if name == LOCK {
            PoolLock::make(dir.clone(), &Holder { pid: std::process::id(), mountpoint: None })?;
            actions.push("made the lock again".into());
        }
    }
    Ok(())
}

/// Makes the directory of the quarantine again. What stands in its place is moved there, if it is the pool owner's.
fn make_quarantine(dir: &Arc<Dir>, now: Timestamp, actions: &mut Vec<String>) -> Result<()> {
    let io = |error| Error::in_pool(dir.path(), QUARANTINE, "make", error);
    let instead = match dir.stat(QUARANTINE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        found => {
            let found = found.map_err(io)?;
            dir.owner().check(&found).map_err(|why| io(why.into()))?;
            // It is there, and what is in it is wanted, though it cannot be looked at now.
            if found.st_mode & libc::S_IFMT == libc::S_IFDIR {
                return Ok(());
            }
            let free = (1..).map(|number| format!("{QUARANTINE}.{number}")).find(|name| !dir.has(name.as_str()));
            let aside = free.unwrap_or_default();
            dir.rename(QUARANTINE, dir, aside.as_str()).map_err(io)?;
            Some(aside)
        }
    };
    dir.make_dir(QUARANTINE).map_err(io)?;
    dir.sync().map_err(io)?;
    actions.push("made the directory quarantine again".into());
    if let Some(aside) = instead
        && let Some(kept) = set_aside(dir, &aside, now)?
    {
        actions.push(format!("moved what stood there to quarantine/{kept}"));
    }
    Ok(())
}

/// Moves something that tensorfs did not put there to quarantine. Where it is none of the pool owner's, or gone by now,
/// it stays as it is.
fn set_aside(dir: &Arc<Dir>, place: &str, now: Timestamp) -> Result<Option<String>> {
    let io = |error| Error::in_pool(dir.path(), place, "move to quarantine", error);
    let (parent, name) = match dir.walk(Path::new(place)) {
        Err(error) if Foreign::of(&error).is_some() || error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found.map_err(io)?,
    };
    match parent.stat(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if Foreign::of(&error).is_some() => return Ok(None),
        // A second name of somebody's file would change even by being moved.
        Ok(there) if parent.owner().check(&there).is_err() => return Ok(None),
        found => found.map_err(io)?,
    };
    let note = Note { ino: None, path: None, path_bytes: None, reason: Reason::UnknownSegment, offset: 0, time: now };
    Quarantine::of(dir.clone()).adopt(&parent, name, &note).map(Some).map_err(io)
}

/// Gives a log that was cut short its length again. What its end held is lost; often that was nothing yet.
fn lengthen_log(dir: &Dir, actions: &mut Vec<String>) -> Result<()> {
    let path = dir.path();
    let log = open_log(dir, true)?;
    let file = log.try_clone().map_err(io_at(path, "open the log"))?;
    let medium = medium::open(log).map_err(io_at(path, "open the log"))?;
    let (superblock, _) = Superblock::read(path, &*medium)?;
    let found = medium.log_len().map_err(io_at(path, "stat the log"))?;
    if found < superblock.log_len() {
        file.set_len(superblock.log_len()).map_err(io_at(path, "lengthen the log"))?;
        file.sync_all().map_err(io_at(path, "sync the log"))?;
        actions.push(format!("made the log {} bytes long again, which had been cut to {found}", superblock.log_len()));
    }
    Ok(())
}

/// What the next mount would do.
fn recover_now(dir: &Path, now: Timestamp, actions: &mut Vec<String>) -> Result<()> {
    let pool = match Pool::open(dir, &OpenOptions { now, ..OpenOptions::default() }) {
        // Too little is left to recover; what there is, a new log is made of.
        Err(Error::NotAPool { .. }) => return Ok(()),
        opened => opened?,
    };
    if pool.is_read_only().is_none() {
        actions.push("recovered the pool, which had not been closed".into());
        pool.close()?;
    }
    Ok(())
}

/// Has the next open look at every segment, and set aside what it cannot explain.
fn mark_power_loss(dir: &Dir) -> Result<()> {
    let path = dir.path();
    let medium = medium::open(open_log(dir, true)?).map_err(io_at(path, "open the log"))?;
    let (mut superblock, _) = Superblock::read(path, &*medium)?;
    as_after_power_loss(&mut superblock);
    superblock.write(&*medium).map_err(io_at(path, "write the superblock"))
}

fn as_after_power_loss(superblock: &mut Superblock) {
    if superblock.state == PoolState::Clean {
        // Opening it will count this as an unsafe shutdown, which it was not.
        superblock.unsafe_shutdowns = superblock.unsafe_shutdowns.saturating_sub(1);
    }
    superblock.state = PoolState::Dirty;
    superblock.boot_id = [0; 16];
}

/// Moves what tensorfs did not put into the segments directory out of it, and gives every entry a note.
fn set_aside_foreign(dir: &Arc<Dir>, found: &Report, now: Timestamp, actions: &mut Vec<String>) -> Result<()> {
    let quarantine = Quarantine::of(dir.clone());
    let note = Note { ino: None, path: None, path_bytes: None, reason: Reason::UnknownSegment, offset: 0, time: now };
    for finding in &found.findings {
        let place = &finding.host_file;
        match finding.subject {
            Subject::Part if finding.what == NOT_OURS => {
                if let Some(name) = set_aside(dir, place, now)? {
                    actions.push(format!("moved {place} to quarantine/{name}"));
                }
            }
            // What is in a tier stays there: it may be on another filesystem.
            Subject::Segment if finding.what.starts_with(NOT_A_SEGMENT) && !place.starts_with('/') => {
                if let Some(name) = set_aside(dir, place, now)? {
                    actions.push(format!("moved {place} to quarantine/{name}"));
                }
            }
            // A note that is none.
            // So it is with what is in the quarantine of a tier; notes are written there when the pool is open.
            Subject::Quarantine if place.starts_with('/') => {}
            Subject::Quarantine if place.ends_with(".json") => {
                if let Some(name) = set_aside(dir, place, now)? {
                    actions.push(format!("moved {place} to quarantine/{name}"));
                }
            }
            Subject::Quarantine => {
                let name = place.trim_start_matches("quarantine/");
                if quarantine.is_anothers(name) {
                    continue;
                }
                quarantine.write_note(name, &note).map_err(io_at(dir.path(), "quarantine"))?;
                actions.push(format!("wrote a note for {place}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes a new log from all that can be read of the old one, and puts it in its place.
fn rewrite_log(dir: &Arc<Dir>, now: Timestamp, actions: &mut Vec<String>) -> Result<()> {
    let io = |what| io_at(dir.path(), what);
    let old = open_log(dir, false)?;
    let medium: Arc<dyn Medium> = medium::open(open_log(dir, true)?).map_err(io("open the log"))?.into();
    let (mut superblock, _) = Superblock::read(dir.path(), &*medium)?;
    let mut view = salvage(&medium, &superblock).map_err(io("read the log"))?;
    let dropped = view.drop_dangling_names();
    let note = Note { ino: None, path: None, path_bytes: None, reason: Reason::DamagedLog, offset: 0, time: now };
    let kept = Quarantine::of(dir.clone()).copy(&old, LOG, &note).map_err(io("copy the log to quarantine"))?;
    let file = dir.create_anew(NEW_LOG);
    let records = view.export();
    let bytes: u64 = records.iter().map(|(record, _)| record.encoded_len() as u64).sum();
    let block = u64::from(superblock.block_size);
    superblock.blocks = u32::try_from(bytes * 5 / 4 / block + SPARE_BLOCKS).unwrap_or(u32::MAX);
    as_after_power_loss(&mut superblock);
    let written = file.and_then(|file| write_log(file, &mut superblock, &records, view.next_id()));
    written.map_err(io("write a new log"))?;
    dir.rename(NEW_LOG, dir, LOG).map_err(io("put the new log in place"))?;
    dir.sync().map_err(io("sync"))?;
    actions.push(format!("wrote the log anew from {} records; the old one is quarantine/{kept}", records.len()));
    if dropped > 0 {
        actions.push(format!("removed {dropped} names of objects of which there is no record"));
    }
    Ok(())
}

/// The view that the readable frames give.
fn salvage(medium: &Arc<dyn Medium>, superblock: &Superblock) -> io::Result<View> {
    let blocks = scan::scan(&**medium, superblock)?;
    let census = Census::new(&blocks);
    let keep = census.newest_complete();
    let next_id = census.headers().map(|header| header.next_id).max().unwrap_or(0);
    let (uses, _) = decide_blocks(&blocks, &census.retired(keep), keep);
    let log = Log::new(medium.clone(), superblock, uses, keep, keep);
    let mut view = load::load(&**medium, superblock, &blocks, &log, next_id, &mut Default::default())?;
    if superblock.state == PoolState::Clean {
        // The segments hold all of it. Records that are lost could have said that a value does not count any more.
        view.settle_values(|object| !object.attributes.damaged);
    }
    view.ensure_root();
    for ino in view.unreachable() {
        view.drop_object(ino);
    }
    Ok(view)
}

fn write_log(file: File, superblock: &mut Superblock, records: &[(Record, u64)], next_id: u64) -> io::Result<()> {
    file.set_len(BLOCKS_OFFSET)?;
    let medium: Arc<dyn Medium> = medium::open(file)?.into();
    medium.grow(0, superblock.log_len())?;
    let mut log = Log::new(medium.clone(), superblock, vec![Block::Free; superblock.blocks as usize], 0, 0);
    let mut rest = records;
    while !rest.is_empty() {
        let mut draft = Draft::new(0);
        while let Some(((record, seq), behind)) = rest.split_first() {
            let full = draft.len() + record.encoded_len() > BATCH.min(log.largest_frame());
            if full && !draft.is_empty() || draft.is_crowded() {
                break;
            }
            draft.push(record, *seq);
            rest = behind;
        }
        append(&mut log, draft, next_id)?;
    }
    let mut last = Draft::new(0);
    last.propose(log.newest());
    append(&mut log, last, next_id)?;
    superblock.store_mark(&*medium, log.newest())?;
    medium.persist()?;
    superblock.write(&*medium)
}

fn append(log: &mut Log, draft: Draft, next_id: u64) -> io::Result<()> {
    if log.reserve(draft.len(), Reserve::Cleaning)? == Err(Full) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    log.append(draft, next_id).map(drop)
}

/// Opens the pool, which sets aside what no record explains, and takes leave of bytes that are lost.
fn settle(dir: &Path, found: &Report, now: Timestamp, actions: &mut Vec<String>) -> Result<()> {
    let pool = Pool::open(dir, &OpenOptions { now, ..OpenOptions::default() })?;
    let quarantine = pool.quarantine();
    for name in &pool.recovery().quarantined {
        actions.push(format!("set aside {}", quarantine.shown(name)));
    }
    let noteless = found.findings.iter().filter(|finding| finding.what == NOTELESS).map(|finding| &finding.host_file);
    for place in noteless.filter(|place| place.starts_with('/')) {
        let name = place.rsplit('/').next().unwrap_or_default();
        let note =
            Note { ino: None, path: None, path_bytes: None, reason: Reason::UnknownSegment, offset: 0, time: now };
        if !quarantine.is_anothers(name) {
            quarantine.write_note(name, &note).map_err(io_at(dir, "quarantine"))?;
            actions.push(format!("wrote a note for {place}"));
        }
    }
    let damaged: Vec<(Ino, Attributes, u64)> = {
        let view = pool.view();
        let here = |attributes: &Attributes| attributes.segment.is_none_or(|id| pool.segments().gone(id).is_none());
        let damaged = view.objects().filter(|(_, object)| object.attributes.damaged && here(&object.attributes));
        damaged.map(|(ino, object)| (ino, object.attributes.clone(), object.size())).collect()
    };
    let paths = Paths::default();
    for (ino, attributes, size) in damaged {
        let (path, path_bytes) = spelled(paths.bytes_of(&pool.view(), ino));
        let shown = path.clone().unwrap_or_else(|| format!("object {ino}"));
        let mut transaction = Transaction::new(0);
        let mut there = size;
        if let Some(segment) = attributes.segment {
            if pool.segments().stat(segment).is_err() {
                match pool.segments().create(segment) {
                    // What has its name is another user's, and stays; so does what was found about the file.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                    made => drop(made.map_err(io_at(dir, "create a segment"))?),
                }
            }
            let stat = pool.segments().stat(segment).map_err(io_at(dir, "look at a segment"))?;
            there = there.min(stat.size);
            let allocated = stat.allocated;
            let origin = Origin::default();
            transaction.push(Record::Data { ino, segment, offset: 0, len: there, allocated, origin });
        }
        let note = Note { ino: Some(ino), path, path_bytes, reason: Reason::LostBytes, offset: there, time: now };
        pool.quarantine().note_only(ino, &note).map_err(io_at(dir, "quarantine"))?;
        transaction.push(Record::Attributes { ino, attributes: Attributes { damaged: false, ..attributes } });
        pool.edit().store(transaction)?;
        actions.push(match size - there {
            0 => format!("{shown}: a sync of it had failed; noted in quarantine, and cleared"),
            lost => format!("{shown}: {lost} bytes are lost; it ends at {there} now, noted in quarantine"),
        });
    }
    pool.close()
}

impl View {
    /// All live records with their sequence numbers, those of one object together.
    fn export(&self) -> Vec<(Record, u64)> {
        let mut records = Vec::new();
        for (ino, object) in self.objects() {
            if ino != POOL {
                object.export(ino, &mut records);
            }
        }
        self.export_pool(&mut records);
        records
    }
}
