//! What an inode looks like: what is recorded of it, and what its segment says beyond that while it is in use.

use std::time::{Duration, Instant};

use tensorfs_layout::{Ino, SegmentId};

use crate::error::{Fault, Result};
use crate::store::host::HostStat;

use super::Files;
use super::locked::Locked;
use super::stat::Stat;
use super::state::Sight;

/// Longer than this nobody holds a file's lock who does not wait for the host, or for a processor.
const HELD: Duration = Duration::from_millis(2);

impl Files {
    /// What an inode looks like now.
    pub fn stat(&self, ino: Ino) -> Result<Stat> {
        Ok(self.look_at(ino)?.0)
    }

    /// What an inode looks like now, and the segment that serves it if something does. Whoever holds its lock is not
    /// waited for if that takes longer than it ever takes without waiting for the host: then it looks as it did before.
    pub(super) fn look_at(&self, ino: Ino) -> Result<(Stat, Option<SegmentId>)> {
        let Some(node) = self.node_in_use(ino) else { return Ok((self.at_rest(ino)?, None)) };
        let locked = self.lock_until(&node, Instant::now() + HELD);
        let sight = locked.as_ref().map_or_else(|| node.sight(), |file| file.state.sight());
        match sight {
            Some(sight) => Ok((self.seen(ino, &sight, &self.look(&sight)?)?, Some(sight.segment))),
            None => Ok((self.at_rest(ino)?, None)),
        }
    }

    /// What an inode that nothing has open looks like.
    fn at_rest(&self, ino: Ino) -> Result<Stat> {
        let mut stat = self.recorded(ino)?;
        // Nothing is recorded of what is written to a file without a name.
        if stat.links == 0
            && let Some(Ok(host)) = stat.attributes.segment.map(|segment| self.store().segments().stat(segment))
        {
            (stat.size, stat.allocated) = (host.size, host.allocated);
            stat.attributes.mtime = host.mtime;
            stat.attributes.ctime = stat.attributes.ctime.max(host.ctime);
        }
        Ok(stat)
    }

    /// What an inode that is in use looks like with what its segment was seen to be.
    fn seen(&self, ino: Ino, sight: &Sight, host: &HostStat) -> Result<Stat> {
        let mut stat = self.recorded(ino)?.overlaid(host, sight);
        if !self.store().options().noatime {
            stat.attributes.atime = host.atime;
        }
        Ok(stat)
    }

    fn recorded(&self, ino: Ino) -> Result<Stat> {
        let recorded = self.store().view().object(ino).map(|object| Stat::of(ino, object));
        recorded.or_else(|| self.ghosts.get(ino)).ok_or(Fault::stale())
    }
}

impl Locked<'_> {
    /// What the inode looks like now.
    pub fn stat(&self) -> Result<Stat> {
        match self.state.sight() {
            Some(sight) => self.files.seen(self.ino(), &sight, &self.files.look(&sight)?),
            None => self.files.at_rest(self.ino()),
        }
    }

    /// What the inode, which is in use, looks like with what its segment was seen to be.
    pub(super) fn stat_with(&self, host: &HostStat) -> Result<Stat> {
        match self.state.sight() {
            Some(sight) => self.files.seen(self.ino(), &sight, host),
            None => self.files.at_rest(self.ino()),
        }
    }
}
