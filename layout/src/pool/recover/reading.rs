//! Which transactions are kept, and the view that they make.

use std::collections::HashSet;
use std::io::{self};
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::{ROOT, SegmentId, TxId};
use crate::log::blocks::Log;
use crate::log::census::{Census, decide_blocks};
use crate::log::file::LOG;
use crate::log::filled::{self, Filled};
use crate::log::scan;
use crate::log::shutdown::Shutdown;
use crate::log::superblock::{PoolState, Superblock};
use crate::medium::domain::Medium;
use crate::pool::recovery::Recovery;
use crate::tree::load;
use crate::tree::view::View;

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
    /// Blocks with transactions that are kept and may not be on the disk.
    unproved: Vec<usize>,
}

/// Reads the log and decides what is kept. Changes nothing. Tells which requests the transactions were of that came
/// behind `since`.
pub(crate) fn read(
    dir: &Path,
    medium: &Arc<dyn Medium>,
    superblock: &Superblock,
    boot_id: [u8; 16],
    since: Option<TxId>,
) -> Result<Found> {
    let io = |what| move |error| Error::in_pool(dir, LOG, what, error);
    let len = medium.log_len().map_err(io("stat"))?;
    if len < superblock.log_len() {
        let reason = format!("log is cut short: {len} of {} bytes", superblock.log_len());
        return Err(Error::NotAPool { pool: dir.into(), reason });
    }
    let kind = match superblock.state {
        PoolState::Clean => Shutdown::Clean,
        _ if superblock.boot_id == boot_id && boot_id != [0; 16] => Shutdown::ServerKilled,
        _ => Shutdown::PowerLoss,
    };
    let blocks = scan::scan(&**medium, superblock).map_err(io("read"))?;
    let census = Census::new(&blocks);
    let mark = superblock.read_mark(&**medium);
    let (keep, horizon) = match kind {
        Shutdown::Clean => (census.newest_complete().max(census.horizon(mark)), census.newest_complete()),
        Shutdown::ServerKilled => (census.newest_complete().max(census.horizon(mark)), census.horizon(mark)),
        Shutdown::PowerLoss => {
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
    let is_unproved = |id: u64| kind == Shutdown::ServerKilled && (horizon + 1..=keep).contains(&id);
    let holds_unproved = |index: &usize| blocks[*index].frames.iter().any(|frame| is_unproved(frame.header.id));
    let unproved = (0..blocks.len()).filter(holds_unproved).collect();
    let next_id = census.headers().filter(|header| header.id <= keep).map(|header| header.next_id).max().unwrap_or(0);
    let dropped =
        if kind == Shutdown::PowerLoss { census.headers().filter(|header| header.id > keep).count() } else { 0 };
    let of_requests = census
        .headers()
        .filter(|header| header.unique != 0 && header.id <= keep && since.is_some_and(|since| header.id > since.0));
    let requests = Arc::new(of_requests.map(|header| header.unique).collect());
    let mut owned = HashSet::new();
    let view = match load::load(&**medium, superblock, &blocks, &log, next_id, &mut owned) {
        Ok(view) => view,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            damage.get_or_insert_with(|| format!("a record cannot be read ({error})"));
            View::default()
        }
        Err(error) => return Err(io("read")(error)),
    };
    if view.object(ROOT).is_none_or(|root| !root.is_dir()) {
        let reason = damage.unwrap_or_else(|| "its log holds no root directory".into());
        return Err(Error::NotAPool { pool: dir.into(), reason });
    }
    let outlived = superblock.state == PoolState::Outlived;
    let left = superblock.state == PoolState::Left;
    let dropped_transactions = dropped as u64;
    let recovery = Recovery { kind, outlived, left, dropped_transactions, requests, ..Recovery::default() };
    Ok(Found { view, log, recovery, damage, owned, rest, unproved })
}

/// Zeroes what stands behind the kept transactions, durably, before the first new id is given out.
pub(crate) fn cut_off(found: &Found, medium: &dyn Medium, superblock: &Superblock) -> io::Result<()> {
    if found.rest.is_empty() {
        return Ok(());
    }
    // The proof of the horizon may stand in a frame that is about to go.
    superblock.store_mark(medium, found.log.horizon())?;
    medium.persist()?;
    let filled = Filled::of_all(medium, superblock)?;
    for (index, from) in &found.rest {
        filled::zero_behind(medium, superblock, *index, *from, &filled)?;
    }
    medium.persist()
}

/// Stores again what is kept and not proved to be durable: where a persist failed, the host may have it in memory and
/// take it for written. Whoever commits persists it.
pub(crate) fn store_again(found: &Found, medium: &dyn Medium, superblock: &Superblock) -> io::Result<()> {
    if found.unproved.is_empty() {
        return Ok(());
    }
    let filled = Filled::of_all(medium, superblock)?;
    for index in &found.unproved {
        filled::store_again(medium, superblock, *index, &filled)?;
    }
    Ok(())
}

fn describe_missing(missing: &[(u64, u64)]) -> Option<String> {
    let (first, last) = *missing.first()?;
    let count: u64 = missing.iter().map(|(first, last)| last - first + 1).sum();
    let range = if first == last { format!("transaction {first}") } else { format!("transactions {first} to {last}") };
    let more = if missing.len() > 1 { ", among others" } else { "" };
    Some(format!("the log is damaged: {count} of its transactions cannot be read ({range}{more})"))
}
