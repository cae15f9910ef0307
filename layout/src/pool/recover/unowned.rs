//! Segments that no file has.

use std::collections::HashSet;
use std::io::{self};

use crate::ids::SegmentId;
use crate::log::shutdown::Shutdown;
use crate::log::superblock::PoolState;
use crate::medium::foreign::Foreign;
use crate::pool::opened::Pool;
use crate::pool::recover::file::{even_if_full, is_full};
use crate::pool::recovery::Recovery;
use crate::segment::host_errors::is_of_segment;
use crate::segment::note::{Note, Reason};
use crate::time::Timestamp;

/// A segment that no file has. It was removed from its file and not yet from the host; or, after a power loss, it is
/// newer than what is kept.
pub(super) fn settle_unowned(
    pool: &Pool,
    recovery: &mut Recovery,
    kind: Shutdown,
    owned: &HashSet<SegmentId>,
    segment: SegmentId,
    now: Timestamp,
) -> io::Result<()> {
    let newer = kind == Shutdown::PowerLoss && !owned.contains(&segment);
    let size = match pool.segments.stat(segment) {
        Ok(stat) => stat.size,
        // It is no segment of the pool's, and nothing of it is kept or removed.
        Err(error) if Foreign::of(&error).is_some() || is_of_segment(&error) => {
            leave_alone(pool, segment, newer, &error);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if newer && size > 0 {
        let note =
            Note { ino: None, path: None, path_bytes: None, reason: Reason::UnknownSegment, offset: 0, time: now };
        let kept = pool.quarantine().keep(&pool.segments, segment, &note);
        match even_if_full(pool, segment, None, &note, kept) {
            Err(error) if is_full(&error) || pool.segments.fails(segment, &error) => {
                leave_alone(pool, segment, newer, &error);
                return Ok(());
            }
            kept => recovery.quarantined.push(kept?),
        }
    }
    pool.discard_segment(segment);
    // The counter may have fallen back behind it, and its number must not be given out again.
    let mut state = pool.state.write();
    state.view.raise_next_id(segment.serial() + 1);
    Ok(())
}

fn leave_alone(pool: &Pool, segment: SegmentId, newer: bool, error: &io::Error) {
    if Foreign::of(error).is_none() {
        // It may be known the next time what it is, or there is room for it.
        pool.upkeep.ending.lock().at_least(PoolState::Left);
        if newer {
            pool.segments.leave(segment, None, &error.to_string());
        }
    }
    log::warn!("{}: {error}; left alone", pool.segments.path_of(segment).display());
    pool.state.write().view.raise_next_id(segment.serial() + 1);
}
