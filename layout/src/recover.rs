//! Recovery: from whatever stands in the pool's directory to a tree that is as it was after some prefix of the operations.
//!
//! [`read`] decides which transactions are kept and builds the view from them:
//!
//! * the pool was closed, or its server was killed while the machine stayed up (same boot): all complete frames;
//! * power was lost (another boot): the frames up to the newest horizon whose frames are all there.
//!
//! Anything missing in front of that is damage: the pool is then opened read-only and nothing in it is changed.
//! [`settle`] then brings the segments and the records to agree. Everything it does may be interrupted and done again:
//! the superblock still says what it said before, until the caller writes it as the last step (rule 8).

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::chain::FileChain;
use crate::domain::Medium;
use crate::error::{Error, Result};
use crate::ids::{Ino, ROOT, SegmentId, TxId};
use crate::load;
use crate::log::{Block, Draft, Log, Reserve};
use crate::object::Object;
use crate::pool::Pool;
use crate::quarantine::{Note, Reason};
use crate::record::{Attributes, Record, Transaction};
use crate::scan::{self, ScannedBlock};
use crate::segments::SegmentStat;
use crate::superblock::{State, Superblock};
use crate::tier::PM;
use crate::time::Timestamp;
use crate::view::View;

/// So many segments are to be synced before they are.
const DESCRIPTORS: usize = 256;

/// How the pool was left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// It was closed.
    #[default]
    Clean,
    /// Its server ended without closing it; the machine stayed up.
    ServerKilled,
    /// The machine went down.
    PowerLoss,
}

/// A segment that something can still write, although no server has given it out: a program that outlived its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSegment {
    /// The file.
    pub ino: Ino,
    /// Its segment.
    pub segment: SegmentId,
}

/// What opening a pool found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// How the pool was left.
    pub kind: Kind,
    /// Transactions behind the horizon that a power loss undid.
    pub dropped_transactions: u64,
    /// Files whose newest bytes or times no record had told of yet.
    pub learned_files: u64,
    /// Objects without a name that were removed.
    pub orphans: u64,
    /// Files whose bytes are missing on the host.
    pub damaged_files: u64,
    /// Names of what was put into quarantine.
    pub quarantined: Vec<String>,
    /// Files that programs of a killed server can still write.
    pub open_segments: Vec<OpenSegment>,
}

impl Recovery {
    /// True unless the pool had been closed.
    pub fn unsafe_shutdown(&self) -> bool {
        self.kind != Kind::Clean
    }
}

/// What [`read`] found.
#[derive(Debug)]
pub(crate) struct Found {
    pub view: View,
    pub log: Log,
    pub recovery: Recovery,
    /// What is missing, in words.
    pub damage: Option<String>,
    /// Segments that belonged to some file according to a kept record.
    pub owned: HashSet<SegmentId>,
    /// Blocks that hold something behind what is kept, and from which byte on.
    rest: Vec<(usize, usize)>,
}

/// Which transactions the blocks hold.
pub(crate) struct Census<'a> {
    blocks: &'a [ScannedBlock],
    /// Transactions whose frames are sound, in order.
    sound: Vec<u64>,
}

impl<'a> Census<'a> {
    pub(crate) fn new(blocks: &'a [ScannedBlock]) -> Self {
        let frames = blocks.iter().flat_map(|block| &block.frames);
        let mut sound: Vec<u64> = frames.filter(|found| found.sound).map(|found| found.header.id).collect();
        sound.sort_unstable();
        sound.dedup();
        Self { blocks, sound }
    }

    pub(crate) fn headers(&self) -> impl Iterator<Item = &crate::frame::Header> {
        self.blocks.iter().flat_map(|block| &block.frames).map(|found| &found.header)
    }

    /// Ranges that frames up to `upto` say are retired.
    pub(crate) fn retired(&self, upto: u64) -> Vec<(TxId, TxId)> {
        let all = self.blocks.iter().flat_map(|block| &block.retired);
        let mut ranges: Vec<_> = all.filter(|(id, ..)| *id <= upto).map(|(_, first, last)| (*first, *last)).collect();
        ranges.sort_unstable();
        ranges
    }

    /// The transactions up to `upto` that are neither there nor retired, as ranges.
    pub(crate) fn missing(&self, upto: u64) -> Vec<(u64, u64)> {
        let mut missing: Vec<(u64, u64)> = Vec::new();
        let retired = self.retired(upto);
        let mut sound = self.sound.iter().copied().peekable();
        let mut next = 1;
        while next <= upto {
            while sound.next_if(|id| *id < next).is_some() {}
            if sound.next_if_eq(&next).is_some() {
                next += 1;
            } else if let Some((_, last)) = retired.iter().find(|(first, last)| first.0 <= next && next <= last.0) {
                next = last.0 + 1;
            } else {
                // Missing up to the next transaction that is there, or retired.
                let behind = sound.peek().copied().unwrap_or(u64::MAX);
                let retired = retired.iter().map(|(first, _)| first.0).filter(|first| *first > next).min();
                let end = behind.min(retired.unwrap_or(u64::MAX)).min(upto + 1) - 1;
                missing.push((next, end));
                next = end + 1;
            }
        }
        missing
    }

    /// The newest horizon that the log itself and the two fixed places vouch for.
    pub(crate) fn horizon(&self, mark: u64) -> u64 {
        self.headers().map(|header| header.horizon).max().unwrap_or(0).max(mark)
    }

    /// The newest horizon after a power loss: proposed by a frame, with all frames up to it there; or vouched for.
    pub(crate) fn horizon_after_power_loss(&self, mark: u64) -> u64 {
        let horizon = self.horizon(mark);
        let mut proposed: Vec<u64> = self
            .blocks
            .iter()
            .flat_map(|block| &block.frames)
            .filter(|found| found.sound && found.header.proposal > horizon)
            .map(|found| found.header.proposal)
            .collect();
        proposed.sort_unstable();
        proposed.into_iter().rev().find(|upto| self.missing(*upto).is_empty()).unwrap_or(horizon)
    }

    /// The newest transaction of a log whose server stored every frame whole, but perhaps the last.
    pub(crate) fn newest_complete(&self) -> u64 {
        self.sound.last().copied().unwrap_or(0)
    }
}

/// Reads the log and decides what is kept. Changes nothing.
pub(crate) fn read(dir: &Path, medium: &Arc<dyn Medium>, superblock: &Superblock, boot_id: [u8; 16]) -> Result<Found> {
    let path = dir.join("log");
    let io = |what| {
        let path = path.clone();
        move |error| Error::io(path, what, error)
    };
    let len = medium.log_len().map_err(io("stat"))?;
    if len < superblock.log_len() {
        let reason = format!("log is cut short: {len} of {} bytes", superblock.log_len());
        return Err(Error::NotAPool { pool: dir.into(), reason });
    }
    let kind = match superblock.state {
        State::Clean => Kind::Clean,
        State::Dirty if superblock.boot_id == boot_id && boot_id != [0; 16] => Kind::ServerKilled,
        State::Dirty => Kind::PowerLoss,
    };
    let blocks = scan::scan(&**medium, superblock).map_err(io("read"))?;
    let census = Census::new(&blocks);
    let mark = superblock.read_mark(&**medium);
    let (keep, horizon) = match kind {
        Kind::Clean => (census.newest_complete().max(census.horizon(mark)), census.newest_complete()),
        Kind::ServerKilled => (census.newest_complete().max(census.horizon(mark)), census.horizon(mark)),
        Kind::PowerLoss => {
            let horizon = census.horizon_after_power_loss(mark);
            (horizon, horizon)
        }
    };
    let missing = census.missing(keep);
    let mut damage = describe_missing(&missing);
    // A block whose cleaning the horizon does not cover stays: should power be lost next, it is needed.
    let (uses, rest) = decide_blocks(&blocks, &census.retired(horizon), keep);
    let mut log = Log::new(medium.clone(), superblock, uses, keep, horizon);
    log.raise_incarnation(blocks.iter().filter_map(|block| block.header).map(|one| one.incarnation).max().unwrap_or(0));
    let next_id = census.headers().filter(|header| header.id <= keep).map(|header| header.next_id).max().unwrap_or(0);
    let dropped = if kind == Kind::PowerLoss { census.headers().filter(|header| header.id > keep).count() } else { 0 };
    let mut owned = HashSet::new();
    let view = match load::load(&**medium, superblock, &blocks, &log, next_id, &mut owned) {
        Ok(view) => view,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            damage.get_or_insert_with(|| format!("a record cannot be read ({error})"));
            View::default()
        }
        Err(error) => return Err(Error::io(path, "read", error)),
    };
    if view.object(ROOT).is_none_or(|root| !root.is_dir()) {
        let reason = damage.unwrap_or_else(|| "its log holds no root directory".into());
        return Err(Error::NotAPool { pool: dir.into(), reason });
    }
    let recovery = Recovery { kind, dropped_transactions: dropped as u64, ..Recovery::default() };
    Ok(Found { view, log, recovery, damage, owned, rest })
}

/// Zeroes what stands behind the kept transactions, durably, before the first new id is given out.
pub(crate) fn cut_off(found: &Found, medium: &dyn Medium, superblock: &Superblock) -> io::Result<()> {
    if found.rest.is_empty() {
        return Ok(());
    }
    // The proof of the horizon may stand in a frame that is about to go.
    superblock.store_mark(medium, found.log.horizon)?;
    medium.persist()?;
    for (index, from) in &found.rest {
        let zeroes = vec![0; superblock.block_size as usize - from];
        medium.store(found.log.block_offset(*index) + *from as u64, &zeroes)?;
    }
    medium.persist()
}

fn describe_missing(missing: &[(u64, u64)]) -> Option<String> {
    let (first, last) = *missing.first()?;
    let count: u64 = missing.iter().map(|(first, last)| last - first + 1).sum();
    let range = if first == last { format!("transaction {first}") } else { format!("transactions {first} to {last}") };
    let more = if missing.len() > 1 { ", among others" } else { "" };
    Some(format!("the log is damaged: {count} of its transactions cannot be read ({range}{more})"))
}

/// What each block holds of the kept transactions, and which blocks have to be zeroed from which byte on.
pub(crate) fn decide_blocks(
    blocks: &[ScannedBlock],
    retired: &[(TxId, TxId)],
    keep: u64,
) -> (Vec<Block>, Vec<(usize, usize)>) {
    let mut zero = Vec::new();
    let mut decide = |index: usize, block: &ScannedBlock| {
        let kept = block.frames.iter().rfind(|found| found.header.id <= keep && found.sound);
        if let (Some(header), Some(last_kept)) = (block.header, kept) {
            let last = last_kept.header.id;
            // A block whose cleaning was done but for the zeroing.
            let gone = retired.iter().any(|(first, end)| first.0 <= header.first && last <= end.0);
            if !gone {
                let used = last_kept.offset + last_kept.header.length;
                let behind = block.frames.last().is_some_and(|found| found.header.id > last);
                if behind || block.garbage && last == keep {
                    zero.push((index, used));
                }
                return Block::InUse { incarnation: header.incarnation, first: header.first, last, used };
            }
        }
        if !block.empty {
            zero.push((index, 0));
        }
        Block::Free
    };
    let uses = blocks.iter().enumerate().map(|(index, block)| decide(index, block)).collect();
    (uses, zero)
}

/// Brings segments and records to agree, and makes all that is kept durable.
pub(crate) fn settle(pool: &Pool, recovery: &mut Recovery, owned: &HashSet<SegmentId>, now: Timestamp) -> Result<()> {
    let mut unreachable = pool.view().unreachable();
    let tiers = Tiers::of(pool, recovery.kind);
    if recovery.kind == Kind::Clean {
        // Closing it made every segment durable, but for those that could not be.
        pool.state.write().view.settle_values(|object| !object.attributes.damaged);
        // What is left of objects that were removed before the pool was closed. Most of their segments are gone; that of a
        // file that was still open then is not.
        for ino in unreachable.drain(..) {
            pool.edit().drop_unreachable(ino);
        }
        restore_damaged(pool, recovery, &tiers, now)?;
        if tiers.back.is_empty() {
            return tiers.note(pool);
        }
    }
    let path = pool.path.join("segments");
    let io = |what| {
        let path = path.clone();
        move |error| Error::io(path, what, error)
    };
    recovery.orphans = unreachable.len() as u64;
    for ino in unreachable {
        pool.edit().drop_unreachable(ino);
    }
    if recovery.kind == Kind::ServerKilled {
        // Nobody knows any more which segments had not been synced. What is recorded comes under the horizon before
        // anything is done to the segments (rule 5).
        pool.segments.sync_host().map_err(io("sync"))?;
        pool.commit(pool.newest())?;
    }
    let counted = pool.view().next_id;
    let (present, foreign) = pool.segments.scan().map_err(io("read"))?;
    for path in foreign {
        log::warn!("{}: not a segment; left alone", path.display());
    }
    let files: Vec<(Ino, Attributes)> = {
        let view = pool.view();
        view.objects().filter(|(_, object)| object.is_file()).map(|(ino, one)| (ino, one.attributes.clone())).collect()
    };
    let in_use: HashSet<SegmentId> = files.iter().filter_map(|(_, attributes)| attributes.segment).collect();
    pool.quarantine().forget_in_use(&pool.segments, |segment| in_use.contains(&segment)).map_err(io("quarantine"))?;
    let mut settler = Settler { pool, recovery, present: &present, now, tiers: &tiers, replacements: HashSet::new() };
    for (ino, attributes) in &files {
        settler.settle_file(*ino, attributes)?;
        settler.commit_some()?;
    }
    let replacements = settler.replacements;
    for (segment, stat) in &present {
        if in_use.contains(segment) || replacements.contains(segment) {
            continue;
        }
        let Some(kind) = tiers.kind(*segment) else { continue };
        settle_unowned(pool, recovery, kind, owned, *segment, stat, now).map_err(io("quarantine"))?;
    }
    tiers.note(pool)?;
    if recovery.kind == Kind::ServerKilled {
        recovery.open_segments = open_segments(pool);
    }
    if pool.view().next_id > counted {
        // Numbers of segments that are about to be removed: the log has to say that they are taken.
        pool.append(&mut pool.state.write(), Draft::new(0), Reserve::Cleaning)?;
    }
    pool.commit(pool.newest())?;
    pool.unlink_covered();
    pool.idle()
}

/// In a pool that was closed: gives files whose segments could not be synced the bytes that the log holds of them.
fn restore_damaged(pool: &Pool, recovery: &mut Recovery, tiers: &Tiers, now: Timestamp) -> Result<()> {
    let held: Vec<Ino> = {
        let view = pool.view();
        let held = |object: &Object| object.chain().is_some_and(|chain| chain.value().is_some());
        view.objects().filter(|(_, object)| held(object)).map(|(ino, _)| ino).collect()
    };
    if held.is_empty() {
        return Ok(());
    }
    // It is as if it had not been closed from now on. Should this be interrupted, the log still has them for the next recovery.
    pool.set_open()?;
    let mut settler = Settler { pool, recovery, present: &HashMap::new(), now, tiers, replacements: HashSet::new() };
    for ino in held {
        let found = pool.view().object(ino).and_then(|object| {
            let (seq, bytes) = object.chain()?.to_restore()?;
            Some((object.attributes.clone(), object.attributes.segment?, seq, bytes))
        });
        if let Some((attributes, segment, seq, bytes)) = found {
            settler.restore(ino, &attributes, segment, seq, &bytes)?;
        }
        settler.commit_some()?;
    }
    pool.commit(pool.newest())
}

/// From what each tier is to be recovered.
struct Tiers {
    kind: Kind,
    /// Those that were away before and are here now.
    back: HashMap<u8, Kind>,
    /// Those that are away now, and what that is to be recorded as.
    away: HashMap<u8, Kind>,
    /// What has to be recorded of them.
    changed: Vec<Record>,
}

impl Tiers {
    fn of(pool: &Pool, kind: Kind) -> Self {
        let mut tiers = Self { kind, back: HashMap::new(), away: HashMap::new(), changed: Vec::new() };
        for (number, tier) in pool.view().tiers() {
            let worst = tier.away.map_or(kind, |before| worse(before, kind));
            let away = if pool.segments.is_there(number) {
                if tier.away.is_some() {
                    tiers.back.insert(number, worst);
                }
                None
            } else {
                tiers.away.insert(number, worst);
                Some(worst)
            };
            if away != tier.away {
                let tier = crate::tier::Tier { away, ..tier.clone() };
                tiers.changed.push(Record::Tier { number, tier });
            }
        }
        tiers
    }

    /// From what a segment is to be recovered: nothing if its tier is away, or was in order all the time.
    fn kind(&self, segment: SegmentId) -> Option<Kind> {
        let tier = segment.tier();
        match self.back.get(&tier) {
            Some(kind) => Some(*kind),
            None => Some(self.kind).filter(|kind| *kind != Kind::Clean && !self.away.contains_key(&tier)),
        }
    }

    /// Records which tiers are away: what happens to their files meanwhile, they have to be brought to agree with.
    fn note(&self, pool: &Pool) -> Result<()> {
        self.changed.iter().try_for_each(|record| store(pool, Transaction::new(0).with(record.clone())))
    }
}

fn worse(one: Kind, other: Kind) -> Kind {
    match (one, other) {
        (Kind::PowerLoss, _) | (_, Kind::PowerLoss) => Kind::PowerLoss,
        (Kind::ServerKilled, _) | (_, Kind::ServerKilled) => Kind::ServerKilled,
        _ => Kind::Clean,
    }
}

fn store(pool: &Pool, transaction: Transaction) -> Result<()> {
    let store = |transaction, reserve| pool.edit().store_with(transaction, reserve).map(drop);
    match store(transaction.clone(), Reserve::Deletion) {
        Err(Error::NoSpace { .. }) => {
            // Before the last block is taken, as cleaning may need it.
            pool.clean_for_room()?;
            store(transaction, Reserve::Cleaning)
        }
        other => other,
    }
}

struct Settler<'a> {
    pool: &'a Pool,
    tiers: &'a Tiers,
    recovery: &'a mut Recovery,
    present: &'a HashMap<SegmentId, SegmentStat>,
    now: Timestamp,
    /// Replacements that were completed or set aside here.
    replacements: HashSet<SegmentId>,
}

impl Settler<'_> {
    fn store(&self, transaction: Transaction) -> Result<()> {
        store(self.pool, transaction)
    }

    fn note(&self, ino: Ino, reason: Reason, offset: u64) -> Note {
        let path = self.pool.view().path_of(ino).map(|path| String::from_utf8_lossy(&path).into_owned());
        Note { ino: Some(ino), path, reason, offset, time: self.now }
    }

    fn settle_file(&mut self, ino: Ino, attributes: &Attributes) -> Result<()> {
        let (size, cut_from, replacing) = {
            let view = self.pool.view();
            let Some(object) = view.object(ino) else { return Ok(()) };
            let cut_from = object.chain().and_then(|chain| chain.runs().last()).and_then(|run| run.cut_from);
            (object.size(), cut_from, object.pending_replace())
        };
        if let Some(segment) = replacing {
            let kind = self.tiers.kind(segment);
            if let (Some(stat), Some(kind)) = (self.present.get(&segment), kind) {
                self.settle_replace(ino, attributes, segment, kind, stat)?;
                if kind == Kind::ServerKilled {
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
        let mut present = self.present.get(&segment).copied();
        let mut attributes = attributes;
        let whole;
        let value = self.pool.view().object(ino).and_then(Object::chain).and_then(FileChain::to_restore);
        if let Some((seq, bytes)) = value {
            let intact = present.filter(|stat| !attributes.damaged && stat.size >= bytes.len() as u64);
            match intact.filter(|_| kind == Kind::ServerKilled) {
                // What the segment holds is what was written, and newer than what the log has.
                Some(stat) => self.learn(ino, attributes, segment, &stat)?,
                None => {
                    whole = self.restore(ino, attributes, segment, seq, &bytes)?;
                    attributes = &whole;
                    present = Some(self.pool.segments.stat(segment).map_err(at("stat"))?);
                }
            }
        }
        let Some(stat) = present else {
            if size > 0 {
                return self.mark_damaged(ino, attributes, "its segment is missing");
            }
            return self.pool.segments.create(segment).map(drop).map_err(at("create"));
        };
        if let Some(cut_from) = cut_from
            && stat.size >= cut_from
        {
            // The truncation was recorded, and not yet done.
            self.cut(segment, size).map_err(at("truncate"))?;
            let stat = self.pool.segments.stat(segment).map_err(at("stat"))?;
            return self.learn(ino, attributes, segment, &stat);
        }
        if kind == Kind::Clean {
            return Ok(());
        }
        if kind == Kind::ServerKilled {
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
            return self.mark_damaged(ino, attributes, "its segment is too short");
        }
        if stat.size > size {
            if self.has_data(segment, size).map_err(at("read"))? {
                let note = self.note(ino, Reason::UncommittedTail, size);
                let kept = self.pool.quarantine().keep_tail(&self.pool.segments, segment, stat.size, &note);
                self.recovery.quarantined.push(kept.map_err(at("copy its uncommitted tail to quarantine"))?);
            }
            self.cut(segment, size).map_err(at("truncate"))?;
            let stat = self.pool.segments.stat(segment).map_err(at("stat"))?;
            let attributes = attributes.clone();
            self.store(describe(self.pool, ino, &attributes, segment, &stat))?;
        }
        Ok(())
    }

    /// A replace had begun. While the machine stayed up its bytes are what the file holds now; after a power loss the old
    /// version is.
    fn settle_replace(
        &mut self,
        ino: Ino,
        attributes: &Attributes,
        segment: SegmentId,
        kind: Kind,
        stat: &SegmentStat,
    ) -> Result<()> {
        let pool = self.pool;
        self.replacements.insert(segment);
        if kind == Kind::ServerKilled {
            if let Some(old) = attributes.segment {
                let note = self.note(ino, Reason::InterruptedReplace, 0);
                match pool.quarantine().keep(&pool.segments, old, &note) {
                    Ok(name) => self.recovery.quarantined.push(name),
                    Err(error) => log::error!("{}: quarantine: {error}", pool.segments.path_of(old).display()),
                }
            }
            self.recovery.learned_files += 1;
            let attributes = Attributes { segment: Some(segment), ..attributes.clone() };
            return self.learn(ino, &attributes, segment, stat);
        }
        if stat.size > 0 {
            let note = self.note(ino, Reason::UnfinishedReplace, 0);
            let kept = pool.quarantine().keep(&pool.segments, segment, &note);
            let kept = kept.map_err(|error| Error::io(pool.segments.path_of(segment), "quarantine", error))?;
            self.recovery.quarantined.push(kept);
        }
        pool.discard_segment(segment);
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
        let path = self.pool.view().path_of(ino).unwrap_or_default();
        log::error!("{}: {}: {why}", self.pool.path.display(), String::from_utf8_lossy(&path));
        if attributes.damaged {
            return Ok(());
        }
        let attributes = Attributes { damaged: true, ..attributes.clone() };
        self.store(Transaction::new(0).with(Record::Attributes { ino, attributes }))
    }

    /// Gives a segment the bytes that the log holds of it: it was not known to hold them itself. Other ones in their place are
    /// set aside; what is behind them stays, to be looked at. Returns what the file is then, which is not damaged.
    fn restore(
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
        segments.begin_restore(segment, ino, seq).map_err(at("open"))?;
        let file = File::from(segments.open(segment, libc::O_RDWR).map_err(at("open"))?);
        let mut found = Vec::new();
        (&file).take(bytes.len() as u64).read_to_end(&mut found).map_err(at("read"))?;
        // After a failed sync the host may have bytes in memory that it takes for written, and that are not.
        if found != bytes || attributes.damaged {
            let differ = found.iter().zip(bytes).any(|(found, byte)| found != byte && *found != 0);
            // Others are what was there before.
            let newer = host_mtime(&file).map_err(at("stat"))? > attributes.mtime;
            if differ && newer {
                let note = self.note(ino, Reason::UncommittedBytes, 0);
                match self.pool.quarantine().keep_tail(segments, segment, found.len() as u64, &note) {
                    Ok(name) => self.recovery.quarantined.push(name),
                    // The bytes that were promised need no room.
                    Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => {
                        log::warn!(
                            "{}: no room in quarantine for bytes that were not durable",
                            self.pool.path.display()
                        );
                    }
                    Err(error) => return Err(at("copy its bytes to quarantine")(error)),
                }
            }
            file.write_all_at(bytes, 0).map_err(at("write what the log has of"))?;
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

    /// Each segment that is to be synced holds a descriptor, and there may be more of them than descriptors.
    fn commit_some(&self) -> Result<()> {
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

fn host_mtime(file: &File) -> io::Result<Timestamp> {
    Ok(SegmentStat::from(nix::sys::stat::fstat(file)?).mtime)
}

/// The records that say what a file's segment is now: its attributes, and its last run up to the segment's size.
fn describe(pool: &Pool, ino: Ino, attributes: &Attributes, segment: SegmentId, stat: &SegmentStat) -> Transaction {
    let view = pool.view();
    let same = view.object(ino).is_some_and(|object| object.attributes.segment == Some(segment));
    let start = view.object(ino).filter(|_| same).map_or(0, |object| Object::tail(object).0).min(stat.size);
    Transaction::new(0).with(Record::Attributes { ino, attributes: attributes.clone() }).with(Record::Data {
        ino,
        segment,
        offset: start,
        len: stat.size - start,
        allocated: stat.allocated,
    })
}

/// A segment that no file has. It was removed from its file and not yet from the host; or, after a power loss, it is newer
/// than what is kept.
fn settle_unowned(
    pool: &Pool,
    recovery: &mut Recovery,
    kind: Kind,
    owned: &HashSet<SegmentId>,
    segment: SegmentId,
    stat: &SegmentStat,
    now: Timestamp,
) -> io::Result<()> {
    let newer = kind == Kind::PowerLoss && !owned.contains(&segment) && stat.size > 0;
    if newer {
        let note = Note { ino: None, path: None, reason: Reason::UnknownSegment, offset: 0, time: now };
        recovery.quarantined.push(pool.quarantine().keep(&pool.segments, segment, &note)?);
    }
    pool.discard_segment(segment);
    // The counter may have fallen back behind it, and its number must not be given out again.
    let mut state = pool.state.write();
    state.view.next_id = state.view.next_id.max(segment.serial() + 1);
    Ok(())
}

fn open_segments(pool: &Pool) -> Vec<OpenSegment> {
    let files: Vec<OpenSegment> = {
        let view = pool.view();
        let segment = |(ino, object): (Ino, &Object)| Some(OpenSegment { ino, segment: object.attributes.segment? });
        let here = |open: &OpenSegment| open.segment.tier() == PM || pool.segments.stat(open.segment).is_ok();
        view.objects().filter_map(segment).filter(here).collect()
    };
    let probe = |index: usize| Ok(!pool.segments.quiescent(files[index].segment));
    let open = scan::parallel(files.len(), 64, probe).unwrap_or_default();
    files.iter().zip(open).filter(|(_, open)| *open).map(|(file, _)| *file).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::{self, block};
    use crate::pool::{CreateOptions, OpenOptions, open_log};
    use crate::record::tests::{number, record};

    #[derive(Clone, Debug)]
    struct Forged {
        header: block::Header,
        frames: Vec<(frame::Header, Vec<(Record, u64)>)>,
    }

    fn forged() -> impl Strategy<Value = Forged> {
        let header = (number(), number()).prop_map(|(incarnation, first)| (incarnation.max(1), first));
        let numbers = (number(), number(), number(), number());
        let frame = (numbers, prop::collection::vec((record(), number()), 0..4), any::<bool>());
        let frames = prop::collection::vec(frame, 0..4);
        (header, frames).prop_map(|((incarnation, first), frames)| Forged {
            header: block::Header { incarnation, first, index: 0 },
            frames: frames
                .into_iter()
                .map(|((id, horizon, proposal, next_id), records, pool)| {
                    let flags = if pool { frame::FLAG_POOL } else { 0 };
                    let (records_count, id) = (records.len() as u16, id.max(1));
                    let header = frame::Header {
                        id,
                        horizon,
                        proposal,
                        next_id,
                        records: records_count,
                        flags,
                        ..Default::default()
                    };
                    (header, records)
                })
                .collect(),
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whoever knows the pool's secret can write a log with right checksums that says anything.
        #[test]
        fn no_forged_log_breaks_recovery(
            blocks in prop::collection::vec(forged(), 1..4),
            same_boot in any::<bool>(),
            in_order in any::<bool>(),
        ) {
            let mut id = 1;
            let dir = tempfile::tempdir().unwrap();
            let pool = dir.path().join("pool");
            Pool::create(&pool, &CreateOptions { block_size: 16384, ..CreateOptions::default() }).unwrap();
            let first = OpenOptions { boot_id: Some([1; 16]), ..OpenOptions::default() };
            // Left open, as by a killed server.
            drop(Pool::open(&pool, &first).unwrap());
            {
                let medium = crate::domain::open(open_log(&pool, true).unwrap()).unwrap();
                let (superblock, _) = Superblock::read(&pool, &*medium).unwrap();
                for (index, forged) in blocks.iter().enumerate().map(|(index, forged)| (index + 1, forged)) {
                    let mut header = block::Header { index: index as u32, ..forged.header };
                    if in_order {
                        header = block::Header { incarnation: index as u64 + 1, first: id + 1, ..header };
                    }
                    let seed = superblock.seed(header.incarnation);
                    let mut bytes = block::encode(header, seed).to_vec();
                    for (header, records) in &forged.frames {
                        let mut frame = vec![0; frame::HEADER];
                        for (record, seq) in records {
                            record.encode(*seq, &mut frame);
                        }
                        if bytes.len() + frame.len() > 16384 {
                            break;
                        }
                        let mut header = *header;
                        if in_order {
                            // A log that is whole, but for what its records say.
                            id += 1;
                            header = frame::Header { id, horizon: 0, proposal: 0, next_id: header.next_id >> 1, ..header };
                        }
                        frame::finish(&mut frame, &header, seed);
                        bytes.extend_from_slice(&frame);
                    }
                    medium.store(crate::superblock::BLOCKS_OFFSET + index as u64 * 16384, &bytes).unwrap();
                }
            }
            let second = OpenOptions { boot_id: Some([if same_boot { 1 } else { 2 }; 16]), ..OpenOptions::default() };
            let _ = crate::inspect::inspect(&pool);
            if let Ok(pool) = Pool::open(&pool, &second) {
                let ino = Ino(pool.edit().next_id());
                let name: Box<[u8]> = b"new".as_slice().into();
                let _ = pool.edit().store(Transaction::new(0).with(Record::Name { dir: ROOT, name, ino }));
                let _ = (pool.usage(), pool.commit(pool.newest()), pool.maintain(), pool.reclaim(), pool.close());
            }
        }
    }
}
