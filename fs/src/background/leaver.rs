//! Files leave for the pool's remote. A process beside has looked there ([`tensorfs_layout::pool::Leave`]) that the
//! remote has all of a file, and says which records of the file that was. Here nothing is believed of the file itself:
//! it leaves if these are what it has, and nobody uses it.

use std::sync::Arc;
use std::time::Duration;

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

/// Why one stays that nobody has asked to leave.
const LATELY: &str = "it has come back a moment ago";

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
            Leave::To { pool, .. } | Leave::Which { pool } if pool != store.pool().superblock().uuid_text() => {
                return Ok(LeaveReply::Refused("another pool is mounted there".into()));
            }
            Leave::To { place, note, .. } => {
                let number = store.check_writable().and_then(|()| Ok(store.pool().own_remote(&place, &note)?));
                number.map(|_| LeaveReply::Fetched(self.bringer.is_asked()))
            }
            Leave::Go { ino, by_itself: true, .. } if self.bringer.has_come_lately(ino) => {
                Ok(LeaveReply::Refused(LATELY.into()))
            }
            Leave::Go { ino, known, .. } => self.let_go(ino, &known),
            Leave::Which { .. } => Ok(self.which()),
        };
        Ok(done.unwrap_or_else(|fault| LeaveReply::Refused(fault.to_string())))
    }

    fn which(&self) -> LeaveReply {
        let store = self.files.store();
        let is_there = |ino| store.view().object(ino).is_some_and(|object| object.names() > 0);
        let files = self.wishes.told(|ino| is_there(ino) && !store.awaited().is_away(ino));
        LeaveReply::Which { files, evict_at: store.options().evict_at }
    }

    fn let_go(&self, ino: Ino, known: &Known) -> Result<LeaveReply> {
        let (files, store) = (&*self.files, self.files.store());
        store.check_writable()?;
        let own = store.view().remote().filter(|(_, tier)| tier.is_own_remote()).map(|(number, _)| number);
        let Some(tier) = own else { return Ok(LeaveReply::Refused("nobody has said where its remote is".into())) };
        let node = files.node(ino);
        let mut file = files.lock(&node);
        if file.is_quiet() {
            file.end_quiet();
        }
        if matches!(store.gone(ino), Some(Gone::Away { .. })) {
            return Ok(LeaveReply::Gone);
        }
        store.check_gone(ino)?;
        let Some(from) = wait_until_unused(files, &mut file, RELEASES)? else { return Ok(LeaveReply::Empty) };
        if store.view().object(ino).is_some_and(|object| object.size() == 0) {
            return Ok(LeaveReply::Empty);
        }
        store.descriptors().forget(from);
        if let Err(why) = store.pool().let_go(ino, known, tier)? {
            return Ok(LeaveReply::Refused(why));
        }
        file.come_to_rest();
        drop(file);
        self.wishes.remove(ino);
        store.forget_attributes(ino);
        store.counters().evicted.add(1);
        store.commit()?;
        store.pool().unlink_covered();
        Ok(LeaveReply::Gone)
    }
}
