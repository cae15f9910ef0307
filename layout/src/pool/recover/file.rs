//! A file and its segment are brought to agree.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use crate::error::{Error, Result};
use crate::ids::{Ino, SegmentId};
use crate::log::Origin;
use crate::log::record::{Attributes, Record};
use crate::log::shutdown::Shutdown;
use crate::log::superblock::PoolState;
use crate::log::transaction::Transaction;
use crate::medium::domain::Medium;
use crate::pool::opened::Pool;
use crate::pool::recover::look::{Look, is_sealed};
use crate::pool::recover::store::store;
use crate::pool::recover::tiers::Tiers;
use crate::pool::recovery::{OpenSegment, Recovery};
use crate::segment::host_errors::is_of_segment;
use crate::segment::note::{Note, Reason};
use crate::segment::stat::SegmentStat;
use crate::time::Timestamp;
use crate::tree::chain::{FileChain, Stands};
use crate::tree::object::Object;
use crate::tree::paths::{Paths, spelled};

/// What cannot be done without: the pool is not opened otherwise.
const SET_ASIDE: &str = "set aside in quarantine";

/// So many segments are to be synced before they are.
const DESCRIPTORS: usize = 256;

pub(super) struct Settler<'a> {
    pool: &'a Pool,
    tiers: &'a Tiers,
    recovery: &'a mut Recovery,
    looks: &'a HashMap<SegmentId, Look>,
    paths: &'a Paths,
    now: Timestamp,
}

impl<'a> Settler<'a> {
    pub fn new(
        pool: &'a Pool,
        tiers: &'a Tiers,
        recovery: &'a mut Recovery,
        looks: &'a HashMap<SegmentId, Look>,
        paths: &'a Paths,
        now: Timestamp,
    ) -> Self {
        Self { pool, tiers, recovery, looks, paths, now }
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        self.paths.of(&self.pool.view(), ino)
    }

    fn store(&self, transaction: Transaction) -> Result<()> {
        store(self.pool, transaction)
    }

    fn note(&self, ino: Ino, reason: Reason, offset: u64) -> Note {
        let (path, path_bytes) = spelled(self.paths.bytes_of(&self.pool.view(), ino));
        Note { ino: Some(ino), path, path_bytes, reason, offset, time: self.now }
    }

    /// Brings a file and its segment to agree, and notes if a program that outlived its server can still write it.
    ///
    /// Where the host fails over a segment of it, or has no room for what has to be set aside of it, it is left as it
    /// is: the next mount tries again.
    pub(super) fn settle_file(
        &mut self,
        ino: Ino,
        attributes: &Attributes,
        failing: &HashMap<SegmentId, io::Error>,
    ) -> Result<()> {
        let replacing = self.pool.view().object(ino).and_then(Object::pending_replace);
        // What is to be replaced is needed no more.
        let own = attributes.segment.filter(|_| !replacing.is_some_and(|segment| self.replaces(ino, segment)));
        // Neither is what was to replace it, where that did not stand when power was lost.
        let undone = own.and(replacing).filter(|segment| self.is_undone(ino, *segment));
        if let Some((segment, error)) = undone.and_then(|segment| Some((segment, failing.get(&segment)?))) {
            self.leave_replacement(segment, error);
        }
        let replacing = replacing.filter(|segment| undone != Some(*segment));
        let failed = own.into_iter().chain(replacing).find_map(|segment| failing.get(&segment));
        if let Some(error) = failed {
            return self.leave(ino, &format!("the host fails to tell of its segment: {error}"));
        }
        match self.bring_to_agree(ino, attributes) {
            // Whoever is to make room has to get at the rest.
            Err(Error::Io { what, source, .. }) if is_full(&source) && self.is_left_by_power_loss(ino) => {
                return self.leave_closed(ino, &format!("the host has no room: {what}: {source}"));
            }
            Err(Error::Io { what, source, .. }) if what != SET_ASIDE && is_of_segment(&source) => {
                return self.leave(ino, &format!("the host fails over its segment: {what}: {source}"));
            }
            settled => settled?,
        }
        let segment = self.pool.view().object(ino).and_then(|object| object.attributes.segment);
        if let Some(segment) = segment.filter(|segment| self.looks.get(segment).is_some_and(|look| look.writable)) {
            self.recovery.open_segments.push(OpenSegment { ino, segment });
        }
        Ok(())
    }

    /// True if a replacement that had begun is what the file holds from now on.
    fn replaces(&self, ino: Ino, segment: SegmentId) -> bool {
        let stands = || self.pool.view().object(ino).and_then(Object::chain).and_then(FileChain::stands).is_some();
        match self.tiers.kind(segment) {
            Some(Shutdown::ServerKilled) => self.looks.contains_key(&segment),
            Some(Shutdown::PowerLoss) => self.looks.contains_key(&segment) && stands(),
            Some(Shutdown::Clean) | None => false,
        }
    }

    /// True if power was lost before a replacement stood: the file holds what it held before.
    fn is_undone(&self, ino: Ino, segment: SegmentId) -> bool {
        let stands = || self.pool.view().object(ino).and_then(Object::chain).and_then(FileChain::stands).is_some();
        self.tiers.kind(segment) == Some(Shutdown::PowerLoss) && !stands()
    }

    /// What was to replace a file, and was undone, cannot be set aside now.
    fn leave_replacement(&self, segment: SegmentId, error: &io::Error) {
        let path = self.pool.segments.path_of(segment);
        log::error!("{}: cannot be set aside, and is left for the next mount: {error}", path.display());
        self.pool.upkeep.ending.lock().at_least(PoolState::Left);
        self.pool.segments.leave(segment, None, &error.to_string());
    }

    /// A file that cannot be brought to agree with its segment now, as the host fails over that. Where power was lost,
    /// nobody gets to it before it can: what he wrote could not be told from what a power loss left there.
    fn leave(&mut self, ino: Ino, why: &str) -> Result<()> {
        if self.is_left_by_power_loss(ino) {
            return self.leave_closed(ino, why);
        }
        self.pool.upkeep.ending.lock().at_least(PoolState::Left);
        let attributes = self.pool.view().object(ino).map(|object| object.attributes.clone());
        attributes.map_or(Ok(()), |attributes| self.mark_damaged(ino, &attributes, why))
    }

    /// Leaves a file as it is, and nobody opens it until the pool is opened again.
    fn leave_closed(&mut self, ino: Ino, why: &str) -> Result<()> {
        self.pool.upkeep.ending.lock().at_least(PoolState::Left);
        self.recovery.damaged_files += 1;
        let path = self.path_of(ino).unwrap_or_default();
        log::error!("{}: {path}: cannot be opened, and is left for the next mount: {why}", self.pool.path.display());
        self.segments_of(ino).into_iter().for_each(|segment| self.pool.segments.leave(segment, Some(ino), why));
        Ok(())
    }

    fn is_left_by_power_loss(&self, ino: Ino) -> bool {
        self.segments_of(ino).into_iter().any(|segment| self.tiers.kind(segment) == Some(Shutdown::PowerLoss))
    }

    /// What a file has, and what was to replace that.
    fn segments_of(&self, ino: Ino) -> Vec<SegmentId> {
        let view = self.pool.view();
        let of = |object: &Object| [object.attributes.segment, object.pending_replace()];
        view.object(ino).into_iter().flat_map(of).flatten().collect()
    }

    fn bring_to_agree(&mut self, ino: Ino, attributes: &Attributes) -> Result<()> {
        let (size, cut_from, replacing, stands) = {
            let view = self.pool.view();
            let Some(object) = view.object(ino) else { return Ok(()) };
            let stands = object.chain().and_then(FileChain::stands);
            (object.size(), object.unconfirmed_cut(), object.pending_replace(), stands)
        };
        if let Some(segment) = replacing {
            let kind = self.tiers.kind(segment);
            let is_there = kind == Some(Shutdown::PowerLoss) && self.looks.contains_key(&segment);
            if let Some(stands) = stands.filter(|_| is_there) {
                let attributes = self.let_stand(ino, attributes, segment, stands)?;
                return self.bring_to_agree(ino, &attributes);
            }
            if let (Some(look), Some(kind)) = (self.looks.get(&segment), kind) {
                self.settle_replace(ino, attributes, segment, kind, &look.stat)?;
                if kind == Shutdown::ServerKilled {
                    return Ok(());
                }
            } else if let (None, Some(own)) = (kind, attributes.segment) {
                // Its tier is away: the file stays what it was, whatever becomes of it meanwhile.
                self.store(Transaction::new(0).with(Record::Replace { ino, segment: own }))?;
            }
        }
        let Some(segment) = attributes.segment else { return Ok(()) };
        let Some(kind) = self.tiers.kind(segment).filter(|_| self.pool.segments.gone(segment).is_none()) else {
            return Ok(());
        };
        let at = |what| {
            let path = self.pool.segments.path_of(segment);
            move |error| Error::io(path, what, error)
        };
        let look = self.looks.get(&segment).copied();
        if look.is_none()
            && let Some(why) = self.pool.segments.stranger(segment)
        {
            return self.mark_damaged(ino, attributes, &format!("its segment is none: {why}"));
        }
        let mut present = look.map(|look| look.stat);
        let mut attributes = attributes;
        let whole;
        let value = self.pool.view().object(ino).and_then(Object::chain).and_then(FileChain::to_restore);
        if let Some((seq, bytes)) = value {
            let lost = |stat: &SegmentStat| {
                let segments = &self.pool.segments;
                stat.size < bytes.len() as u64 || segments.failed(segment) || segments.has_lost(segment, &bytes)
            };
            let intact = present.filter(|stat| !attributes.damaged && !lost(stat));
            match intact.filter(|_| kind == Shutdown::ServerKilled) {
                // Just what the log has: the file has not changed, whatever was done to its segment since.
                Some(stat) if stat.mtime == attributes.mtime && self.pool.segments.holds(segment, &bytes) => {
                    self.store(describe(self.pool, ino, attributes, segment, &stat))?;
                }
                // What the segment holds is what was written, and newer than what the log has.
                Some(stat) => self.learn(ino, attributes, segment, &stat)?,
                None => {
                    whole = self.restore(ino, attributes, segment, seq, &bytes)?;
                    attributes = &whole;
                    present = Some(self.pool.segments.stat(segment).map_err(at("stat"))?);
                }
            }
        }
        if self.pool.segments.failed(segment) {
            self.mark_damaged(ino, attributes, "the host could not write its bytes")?;
        }
        let Some(stat) = present else {
            if size > 0 {
                return self.mark_damaged(ino, attributes, "its segment is missing");
            }
            return self.pool.segments.create(segment).map(drop).map_err(at("create"));
        };
        // A truncation that was recorded, and of which nobody was told that it was done, undoes no write behind it.
        // With it was recorded when the segment had last been written.
        let outwritten = |cut_from| {
            let changed = stat.size > cut_from || stat.mtime != attributes.mtime;
            kind == Shutdown::ServerKilled && (changed || look.is_some_and(|look| look.writable))
        };
        if let Some(cut_from) = cut_from
            && stat.size >= cut_from
            && !outwritten(cut_from)
        {
            // It was recorded, and not yet done; or it was done, and what was written since is as long again.
            if kind == Shutdown::PowerLoss {
                let from = if stat.mtime > attributes.mtime { size } else { cut_from };
                self.set_tail_aside(ino, segment, from, stat.size)?;
            }
            self.cut(segment, size).map_err(at("truncate"))?;
            let stat = self.pool.segments.stat(segment).map_err(at("stat"))?;
            return self.learn(ino, attributes, segment, &stat);
        }
        if kind == Shutdown::Clean {
            return Ok(());
        }
        if kind == Shutdown::ServerKilled {
            // Where no file has ever grown behind its seals, they are void before anything can write it.
            let sealed = || self.pool.view().object(ino).is_some_and(is_sealed);
            if stat.size > size && !self.pool.allows_growth() && sealed() {
                let path = self.pool.segments.path_of(segment);
                log::error!("{}: it is longer than its file, which is sealed; left as it is", path.display());
                return Ok(());
            }
            if stat.size < size && cut_from.is_none() {
                return self.mark_damaged(ino, attributes, "its segment is too short");
            }
            if stat.size != size || stat.mtime > attributes.mtime || cut_from.is_some() {
                self.learn(ino, attributes, segment, &stat)?;
                self.recovery.learned_files += 1;
            }
            return Ok(());
        }
        if stat.size < size {
            // Who cuts a file waits for no commit, but for the one that voids the seals of what is cut off.
            let sealed = self.pool.view().object(ino).and_then(Object::chain).map_or(0, FileChain::sealed_end);
            if stat.size < sealed {
                return self.mark_damaged(ino, attributes, "its segment is too short");
            }
            // Or the host lost what it had promised to keep, which looks the same.
            let path = self.path_of(ino).unwrap_or_default();
            log::warn!(
                "{}: {}: ends at {} and not at {size}, as recorded: it was cut before power was lost",
                self.pool.path.display(),
                path,
                stat.size
            );
            self.recovery.learned_files += 1;
            return self.learn(ino, attributes, segment, &stat);
        }
        if stat.size > size {
            self.set_tail_aside(ino, segment, size, stat.size)?;
            self.cut(segment, size).map_err(at("truncate"))?;
            let stat = self.pool.segments.stat(segment).map_err(at("stat"))?;
            let attributes = attributes.clone();
            self.store(describe(self.pool, ino, &attributes, segment, &stat))?;
        }
        Ok(())
    }

    /// Copies what a segment has from a place on, unless that is a hole.
    fn set_tail_aside(&mut self, ino: Ino, segment: SegmentId, from: u64, end: u64) -> Result<()> {
        let pool = self.pool;
        let at = |what| move |error| Error::io(pool.segments.path_of(segment), what, error);
        if from < end && self.has_data(segment, from).map_err(at("read"))? {
            let note = self.note(ino, Reason::UncommittedTail, from);
            let kept = pool.quarantine().keep_tail(&pool.segments, segment, end, &note);
            let kept = kept.map_err(at("copy its uncommitted tail to quarantine"))?;
            self.recovery.quarantined.push(kept);
        }
        Ok(())
    }

    /// A replace had begun. While the machine stayed up its bytes are what the file holds now; after a power loss the
    /// old version is.
    fn settle_replace(
        &mut self,
        ino: Ino,
        attributes: &Attributes,
        segment: SegmentId,
        kind: Shutdown,
        stat: &SegmentStat,
    ) -> Result<()> {
        let pool = self.pool;
        if kind == Shutdown::ServerKilled {
            self.keep_old(ino, attributes, segment)?;
            self.recovery.learned_files += 1;
            // What was wrong with the version before is nothing of this one.
            let btime = attributes.btime.max(stat.mtime);
            let attributes = Attributes { segment: Some(segment), damaged: false, btime, ..attributes.clone() };
            return self.learn(ino, &attributes, segment, stat);
        }
        if stat.size > 0 {
            let note = self.note(ino, Reason::UnfinishedReplace, 0);
            let kept = pool.quarantine().keep(&pool.segments, segment, &note);
            match even_if_full(pool, segment, None, &note, kept) {
                // What was to replace the file was not promised to anybody, and keeps nobody from the file.
                Err(error)
                    if attributes.segment.is_some() && (is_full(&error) || pool.segments.fails(segment, &error)) =>
                {
                    self.leave_replacement(segment, &error);
                    return Ok(());
                }
                kept => self.recovery.quarantined.push(kept.map_err(|error| cannot_keep(pool, segment, error))?),
            }
        }
        pool.discard_segment(segment);
        Ok(())
    }

    /// Power was lost when a replacement stood already, though it was not known yet whether its writers were done. It
    /// is what the file holds now, as far as it stood; the version before is set aside.
    fn let_stand(
        &mut self,
        ino: Ino,
        attributes: &Attributes,
        segment: SegmentId,
        stands: Stands,
    ) -> Result<Attributes> {
        self.keep_old(ino, attributes, segment)?;
        let mut attributes = Attributes { segment: Some(segment), damaged: false, ..attributes.clone() };
        if let Some(look) = self.looks.get(&segment) {
            attributes.mtime = look.stat.mtime;
            attributes.btime = attributes.btime.max(look.stat.mtime);
            attributes.ctime = attributes.ctime.max(look.stat.ctime);
        }
        let (len, allocated, origin) = (stands.size, stands.allocated, stands.origin);
        let data = Record::Data { ino, segment, offset: 0, len, allocated, origin };
        let described = Transaction::new(0).with(Record::Attributes { ino, attributes: attributes.clone() }).with(data);
        self.store(described)?;
        Ok(attributes)
    }

    /// Sets aside the version of a file that is about to be replaced by the segment that is `left`. Where that cannot
    /// be done, nothing is: the next recovery finds the same again. One that the host cannot give is lost anyway,
    /// unless the log has it.
    fn keep_old(&mut self, ino: Ino, attributes: &Attributes, left: SegmentId) -> Result<()> {
        let Some(old) = attributes.segment else { return Ok(()) };
        let value = self.pool.view().object(ino).and_then(Object::chain).and_then(FileChain::to_restore);
        if let Some((seq, bytes)) = value
            && (self.tiers.kind(old) == Some(Shutdown::PowerLoss)
                || attributes.damaged
                || !self.pool.segments.keeps(old, &bytes))
        {
            self.restore(ino, attributes, old, seq, &bytes)?;
        }
        let (pool, note) = (self.pool, self.note(ino, Reason::InterruptedReplace, 0));
        let kept = pool.quarantine().keep_version(&pool.segments, old, left, &note, None);
        if let Err(error) = &kept
            && (pool.segments.is_not_there(old, error) || pool.segments.fails(old, error))
        {
            log::error!("{}: quarantine: {error}", pool.segments.path_of(old).display());
            return Ok(());
        }
        let kept = even_if_full(pool, old, Some(left), &note, kept);
        self.recovery.quarantined.push(kept.map_err(|error| cannot_keep(pool, old, error))?);
        Ok(())
    }

    fn learn(&self, ino: Ino, attributes: &Attributes, segment: SegmentId, stat: &SegmentStat) -> Result<()> {
        let mut attributes = attributes.clone();
        if attributes.mtime != stat.mtime {
            // The host's clock for files may be behind the one that dated the record.
            attributes.ctime = attributes.ctime.next();
        }
        attributes.mtime = stat.mtime;
        attributes.ctime = attributes.ctime.max(stat.ctime);
        self.store(describe(self.pool, ino, &attributes, segment, stat))
    }

    fn mark_damaged(&mut self, ino: Ino, attributes: &Attributes, why: &str) -> Result<()> {
        self.recovery.damaged_files += 1;
        let path = self.path_of(ino).unwrap_or_default();
        log::error!("{}: {path}: {why}", self.pool.path.display());
        if attributes.damaged {
            return Ok(());
        }
        let attributes = Attributes { damaged: true, ..attributes.clone() };
        self.store(Transaction::new(0).with(Record::Attributes { ino, attributes }))
    }

    /// Gives a segment the bytes that the log holds of it: it was not known to hold them itself. Other ones in their
    /// place are set aside, with what is behind them; behind the same ones it stays, to be looked at. Returns what the
    /// file is then, which is not damaged.
    pub(super) fn restore(
        &mut self,
        ino: Ino,
        attributes: &Attributes,
        segment: SegmentId,
        seq: u64,
        bytes: &[u8],
    ) -> Result<Attributes> {
        let segments = &self.pool.segments;
        let at = |what| move |error| Error::io(segments.path_of(segment), what, error);
        match segments.create(segment) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at("create")(error)),
            _ => {}
        }
        let failed = attributes.damaged || segments.failed(segment);
        segments.begin_restore(segment, ino, seq).map_err(at("open"))?;
        let file = File::from(segments.open(segment, libc::O_RDWR).map_err(at("open"))?);
        let mut found = Vec::new();
        (&file).take(bytes.len() as u64).read_to_end(&mut found).map_err(at("read"))?;
        // After a failed sync the host may have bytes in memory that it takes for written, and that are not.
        if found != bytes || failed {
            let differ = found.iter().zip(bytes).any(|(found, byte)| found != byte && *found != 0);
            // Others are what was there before.
            let newer = host_mtime(&file).map_err(at("stat"))? > attributes.mtime;
            let (len, size) = (bytes.len() as u64, file.metadata().map_err(at("stat"))?.len());
            let mut mixed = found != bytes && size > len && self.keeps_what_is_behind(segment);
            if differ && newer || mixed && self.has_data(segment, len).map_err(at("read"))? {
                let note = self.note(ino, Reason::UncommittedBytes, 0);
                let end = if mixed { size } else { found.len() as u64 };
                match self.pool.quarantine().keep_tail(segments, segment, end, &note) {
                    Ok(name) => self.recovery.quarantined.push(name),
                    // The bytes that were promised need no room. What is behind them has no other place.
                    Err(error) if is_full(&error) => {
                        mixed = false;
                        log::warn!(
                            "{}: no room in quarantine for bytes that were not durable",
                            self.pool.path.display()
                        );
                    }
                    Err(error) => return Err(at("copy its bytes to quarantine")(error)),
                }
            }
            // Before the bytes are there: should this be interrupted, they would be taken for those that it belongs to.
            if mixed {
                self.cut(segment, len).map_err(at("truncate"))?;
            }
            let written = if failed { self.pool.medium.write_anew(&file, bytes) } else { file.write_all_at(bytes, 0) };
            written.map_err(at("write what the log has of"))?;
            // That they were written now is nobody's business.
            let time = |time: Timestamp| nix::sys::time::TimeSpec::new(time.sec, time.nsec.into());
            let timed = nix::sys::stat::futimens(&file, &time(attributes.atime), &time(attributes.mtime));
            timed.map_err(|errno| at("set the times of")(errno.into()))?;
        }
        let whole = Attributes { damaged: false, ..attributes.clone() };
        if attributes.damaged {
            self.store(Transaction::new(0).with(Record::Attributes { ino, attributes: whole.clone() }))?;
        }
        Ok(whole)
    }

    /// True if what is in a segment behind the bytes that the log has would be the file's, too. After a power loss it
    /// is not; and under who can still write it nothing is cut off.
    fn keeps_what_is_behind(&self, segment: SegmentId) -> bool {
        let writable = self.looks.get(&segment).is_some_and(|look| look.writable);
        !writable && self.tiers.kind(segment) != Some(Shutdown::PowerLoss)
    }

    /// Each segment that is to be synced holds a descriptor, and there may be more of them than descriptors.
    pub(super) fn commit_some(&self) -> Result<()> {
        if self.pool.segments.dirty_count() >= DESCRIPTORS {
            self.pool.commit(self.pool.newest())?;
        }
        Ok(())
    }

    fn cut(&self, segment: SegmentId, size: u64) -> io::Result<()> {
        self.pool.segments.touch(segment)?;
        File::from(self.pool.segments.open(segment, libc::O_RDWR)?).set_len(size)
    }

    /// True unless everything from `offset` on is a hole.
    fn has_data(&self, segment: SegmentId, offset: u64) -> io::Result<bool> {
        let file = self.pool.segments.open(segment, libc::O_RDONLY)?;
        match nix::unistd::lseek(&file, offset as i64, nix::unistd::Whence::SeekData) {
            Ok(_) => Ok(true),
            Err(nix::errno::Errno::ENXIO) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// A segment is set aside without its note if there is no room for one: who has none cannot make any before the pool is
/// mounted.
pub(super) fn even_if_full(
    pool: &Pool,
    segment: SegmentId,
    left: Option<SegmentId>,
    note: &Note,
    kept: io::Result<String>,
) -> io::Result<String> {
    let Err(error) = kept else { return kept };
    if !is_full(&error) {
        return Err(error);
    }
    let kept = pool.quarantine().keep_without_note(&pool.segments, segment, left, note);
    let name = kept.map_err(|_| error)?;
    let (place, what) = (pool.quarantine().shown(&name), "has no note until the host has room for one");
    log::warn!("{}: {place} {what}", pool.path.display());
    Ok(name)
}

pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Nobody gets to the file: that would be the end of these bytes.
fn cannot_keep(pool: &Pool, segment: SegmentId, error: io::Error) -> Error {
    let what = match is_full(&error) {
        true => "set aside in quarantine (make room on the host, or discard what is there with tensorfs restore)",
        false => SET_ASIDE,
    };
    Error::io(pool.segments.path_of(segment), what, error)
}

fn host_mtime(file: &File) -> io::Result<Timestamp> {
    Ok(SegmentStat::from(nix::sys::stat::fstat(file)?).mtime)
}

/// The records that say what a file's segment is now: its attributes, and its last run up to the segment's size.
fn describe(pool: &Pool, ino: Ino, attributes: &Attributes, segment: SegmentId, stat: &SegmentStat) -> Transaction {
    let view = pool.view();
    let same = view.object(ino).is_some_and(|object| object.attributes.segment == Some(segment));
    let start = view.object(ino).filter(|_| same).map_or(0, |object| Object::next_record(object, stat.size));
    // One that is only described again is the record that it was.
    let again = view.object(ino).filter(|object| same && object.size() == stat.size).map(Object::tail_origin);
    let origin = again.filter(|origin| origin.known().is_some()).unwrap_or_else(|| Origin::at(stat.mtime));
    Transaction::new(0).with(Record::Attributes { ino, attributes: attributes.clone() }).with(Record::Data {
        ino,
        segment,
        offset: start,
        len: stat.size - start,
        allocated: stat.allocated,
        origin,
    })
}
