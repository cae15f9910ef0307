//! Segments and records are brought to agree, and all that is kept is made durable.

use std::collections::{HashMap, HashSet};
use std::io;

use crate::error::{Error, Result};
use crate::ids::{Ino, SegmentId};
use crate::log::blocks::Reserve;
use crate::log::draft::Draft;
use crate::log::shutdown::Shutdown;
use crate::log::superblock::PoolState;
use crate::pool::opened::Pool;
use crate::pool::recover::file::Settler;
use crate::pool::recover::look::Files;
use crate::pool::recover::tiers::Tiers;
use crate::pool::recover::unowned::settle_unowned;
use crate::pool::recovery::Recovery;
use crate::segment::home::SEGMENTS;
use crate::segment::host_errors::is_of_segment;
use crate::segment::sync::FileSegment;
use crate::time::Timestamp;
use crate::tree::chain::FileChain;
use crate::tree::object::Object;
use crate::tree::paths::Paths;

/// Brings segments and records to agree, and makes all that is kept durable. What is `open` stays without a name.
pub(crate) fn settle(
    pool: &Pool,
    recovery: &mut Recovery,
    owned: &HashSet<SegmentId>,
    open: &HashSet<Ino>,
    paths: &Paths,
    now: Timestamp,
) -> Result<()> {
    let mut unreachable = pool.view().unreachable();
    unreachable.retain(|ino| !open.contains(ino));
    let tiers = Tiers::of(pool, recovery.kind);
    if recovery.kind == Shutdown::Clean {
        // Closing it made every segment durable, but for those that could not be.
        pool.state.write().view.settle_values(|object| !object.attributes.damaged);
        // What is left of objects that were removed before the pool was closed. Most of their segments are gone; that
        // of a file that was still open then is not.
        for ino in unreachable.drain(..) {
            pool.edit().drop_unreachable(ino);
        }
        restore_damaged(pool, recovery, &tiers, paths, now)?;
        if tiers.back.is_empty() {
            return tiers.note(pool);
        }
    }
    let io = |what| move |error| Error::in_pool(&pool.path, SEGMENTS, what, error);
    recovery.orphans = unreachable.len() as u64;
    for ino in unreachable {
        pool.edit().drop_unreachable(ino);
    }
    if recovery.kind == Shutdown::ServerKilled {
        // Nobody knows any more which segments had not been synced. What is recorded comes under the horizon before
        // anything is done to the segments (rule 5).
        pool.segments.sync_host(&segments_of_files(pool, open)).map_err(io("sync"))?;
        pool.commit(pool.newest())?;
    }
    let counted = pool.view().next_id();
    let (mut present, foreign) = pool.segments.names().map_err(io("read"))?;
    for stray in foreign {
        log::warn!("{}: {}; left alone", pool.path.display(), stray);
    }
    forget_in_use(pool).map_err(io("quarantine"))?;
    let mut files = Files::of(pool, &tiers);
    while let Some(batch) = files.next(&mut present)? {
        let mut settler = Settler::new(pool, &tiers, recovery, &batch.looks, paths, now);
        for (ino, attributes) in &batch.files {
            settler.settle_file(*ino, attributes, &batch.failing)?;
            settler.commit_some()?;
        }
    }
    // What is left is no file's.
    for segment in present.into_keys() {
        let Some(kind) = tiers.kind(segment) else { continue };
        settle_unowned(pool, recovery, kind, owned, segment, now).map_err(io("quarantine"))?;
    }
    tiers.note(pool)?;
    if pool.view().next_id() > counted {
        // Numbers of segments that are about to be removed: the log has to say that they are taken.
        pool.append(&mut pool.state.upgradable_read(), Draft::new(0), Reserve::Cleaning, |_, _| ())?;
    }
    pool.commit(pool.newest())?;
    pool.unlink_covered();
    pool.idle()
}

/// In a pool that was closed: gives files whose segments could not be synced the bytes that the log holds of them.
fn restore_damaged(pool: &Pool, recovery: &mut Recovery, tiers: &Tiers, paths: &Paths, now: Timestamp) -> Result<()> {
    let held: Vec<Ino> = {
        let view = pool.view();
        let held = |object: &Object| object.chain().is_some_and(|chain| chain.value().is_some());
        view.objects().filter(|(_, object)| held(object)).map(|(ino, _)| ino).collect()
    };
    if held.is_empty() {
        return Ok(());
    }
    // It is as if it had not been closed from now on. Should this be interrupted, the log still has them for the next
    // recovery.
    pool.set_open()?;
    let nothing = HashMap::new();
    let mut settler = Settler::new(pool, tiers, recovery, &nothing, paths, now);
    for ino in held {
        let found = pool.view().object(ino).and_then(|object| {
            let (seq, bytes) = object.chain()?.to_restore()?;
            Some((object.attributes.clone(), object.attributes.segment?, seq, bytes))
        });
        if let Some((attributes, segment, seq, bytes)) = found {
            match settler.restore(ino, &attributes, segment, seq, &bytes) {
                // The log still has them for the next mount.
                Err(Error::Io { path, what, source }) if is_of_segment(&source) => {
                    log::error!("{}: {what}: {source}; left for the next mount", path.display());
                    pool.upkeep.ending.lock().at_least(PoolState::Left);
                }
                restored => {
                    restored?;
                }
            }
        }
        settler.commit_some()?;
    }
    pool.commit(pool.newest())
}

/// The segments that files have, or are about to have; programs have some `open`.
fn segments_of_files(pool: &Pool, open: &HashSet<Ino>) -> Vec<FileSegment> {
    let view = pool.view();
    let of = |(ino, object): (Ino, &Object)| {
        let sealed = object.chain().filter(|chain| chain.is_sealed()).map(FileChain::size);
        let is_held = open.contains(&ino) || object.chain().and_then(FileChain::to_restore).is_some();
        let written = (!is_held).then_some(object.attributes.mtime);
        let own = object.attributes.segment.map(|id| FileSegment { id, sealed, written });
        // Whatever it has was written at a time that the log does not know.
        let written = (!open.contains(&ino)).then(Timestamp::default);
        [own, object.pending_replace().map(|id| FileSegment { id, sealed: None, written })]
    };
    view.objects().flat_map(of).flatten().filter(|segment| pool.segments.is_there(segment.id.tier())).collect()
}

/// Takes back what was set aside of files that have it still.
fn forget_in_use(pool: &Pool) -> io::Result<()> {
    let set_aside = pool.quarantine().segments()?;
    if set_aside.is_empty() {
        return Ok(());
    }
    let in_use: HashSet<SegmentId> = {
        let view = pool.view();
        let own = view.objects().filter(|(_, object)| object.is_file()).filter_map(|(_, one)| one.attributes.segment);
        own.filter(|segment| set_aside.contains(segment)).collect()
    };
    pool.quarantine().forget_in_use(&pool.segments, |segment| in_use.contains(&segment))
}
