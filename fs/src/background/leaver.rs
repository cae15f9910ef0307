//! Files leave for the pool's remote. A process beside has looked there ([`tensorfs_layout::pool::Leave`]) that the
//! remote has all of a file, and says which records of the file that was. Here nothing is believed of the file itself:
//! it leaves if these are what it has, and nobody uses it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorfs_layout::Ino;
use tensorfs_layout::pool::{Known, Leave, LeaveReply};
use tensorfs_layout::segment::Gone;

use crate::caller::Caller;
use crate::error::{Fault, Result};
use crate::file::Files;

use super::bringer::Bringer;
use super::mover::wait_until_unused;
use super::wishes::Wishes;

/// RELEASE comes after `close` has returned: so long is waited for one that may be on its way.
const RELEASES: Duration = Duration::from_millis(50);

/// So long is waited for who reads it behind everybody's back.
const QUIET: Duration = Duration::from_secs(1);
/// One that is to leave and has no bytes is forgotten after so long.
const EMPTY: Duration = Duration::from_secs(60);

/// Why one stays that nobody has asked to leave.
const LATELY: &str = "it has come back a moment ago";
/// Why one stays that is read behind everybody's back, which ends if somebody has asked.
const READ: &str = "it is being sealed, scrubbed or mended";

/// Lets files leave.
pub(crate) struct Leaver {
    files: Arc<Files>,
    bringer: Arc<Bringer>,
    wishes: Arc<Wishes>,
}

impl Leaver {
    /// For the files of a mount, which come back by `bringer`.
    pub fn new(files: Arc<Files>, bringer: Arc<Bringer>, wishes: Arc<Wishes>) -> Self {
        Self { files, bringer, wishes }
    }

    /// Answers the process that knows the remote.
    pub fn answer(&self, caller: Caller, request: Leave) -> Result<LeaveReply> {
        if !caller.is_trusted() {
            return Err(Fault::new(libc::EPERM));
        }
        let store = self.files.store();
        let done = match request {
            Leave::To { pool, .. } | Leave::Which { pool, .. } if pool != store.pool().superblock().uuid_text() => {
                return Ok(LeaveReply::Refused("another pool is mounted there".into()));
            }
            Leave::To { place, note, .. } => {
                let number = store.check_writable().and_then(|()| Ok(store.pool().own_remote(&place, &note)?));
                number.map(|_| LeaveReply::Fetched(self.bringer.is_asked()))
            }
            Leave::Go { ino, by_itself: true, .. } if self.bringer.has_come_lately(ino) => {
                Ok(LeaveReply::Refused(LATELY.into()))
            }
            // Whoever wants it back would wait in vain.
            Leave::Go { .. } if !self.bringer.is_asked() => Ok(LeaveReply::Again),
            Leave::Go { ino, known, place, time, by_itself } => self.let_go(ino, &known, (&place, time), by_itself),
            Leave::Which { tell, .. } => Ok(self.which(tell)),
        };
        Ok(done.unwrap_or_else(|fault| LeaveReply::Refused(fault.to_string())))
    }

    fn which(&self, tell: bool) -> LeaveReply {
        let store = self.files.store();
        self.wishes.heard();
        let is_wanted = |ino, since: Instant| {
            let view = store.view();
            let object = view.object(ino).filter(|object| object.names() > 0);
            // One without bytes may be about to get some.
            object.is_some_and(|object| object.size() > 0 || since.elapsed() < EMPTY) && !store.awaited().is_away(ino)
        };
        let files = if tell { self.wishes.told(is_wanted) } else { Vec::new() };
        LeaveReply::Which { files, evict_at: store.options().second_copy.evict_at }
    }

    fn let_go(&self, ino: Ino, known: &Known, (place, time): (&str, u64), by_itself: bool) -> Result<LeaveReply> {
        let (files, store) = (&*self.files, self.files.store());
        store.check_writable()?;
        let node = files.node(ino);
        let mut file = files.lock(&node);
        if file.is_quiet() && (by_itself || !file.end_quiet_until(Instant::now() + QUIET)) {
            return Ok(LeaveReply::Refused(READ.into()));
        }
        if matches!(store.gone(ino), Some(Gone::Away { .. })) {
            return Ok(LeaveReply::Gone);
        }
        store.check_gone(ino)?;
        let from = wait_until_unused(files, &mut file, RELEASES)?;
        let is_empty = || store.view().object(ino).is_some_and(|object| object.size() == 0);
        let Some(from) = from.filter(|_| !is_empty()) else { return Ok(LeaveReply::Empty) };
        store.descriptors().forget(from);
        // From here on the carrier decides nothing, until it is durable.
        let Some((tier, turn)) = store.pool().may_leave(place, time)? else { return Ok(LeaveReply::Again) };
        if let Err(why) = store.pool().let_go(ino, known, tier)? {
            return Ok(LeaveReply::Refused(why));
        }
        file.come_to_rest();
        drop(file);
        self.wishes.remove(ino);
        store.forget_attributes(ino);
        store.counters().evicted.add(1);
        store.commit()?;
        drop(turn);
        store.pool().unlink_covered();
        Ok(LeaveReply::Gone)
    }
}
