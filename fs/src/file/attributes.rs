//! What an inode looks like: what is recorded of it, and what its segment says beyond that while it is in use.

use tensorfs_layout::Ino;

use crate::error::{Fault, Result};
use crate::store::host::HostStat;

use super::Files;
use super::locked::Locked;
use super::stat::Stat;

impl Files {
    /// What an inode looks like now.
    pub fn stat(&self, ino: Ino) -> Result<Stat> {
        match self.node_in_use(ino) {
            Some(node) => self.lock(&node).stat(),
            None => self.at_rest(ino),
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

    fn recorded(&self, ino: Ino) -> Result<Stat> {
        let recorded = self.store().view().object(ino).map(|object| Stat::of(ino, object));
        recorded.or_else(|| self.ghosts.get(ino)).ok_or(Fault::stale())
    }
}

impl Locked<'_> {
    /// What the inode looks like now.
    pub fn stat(&self) -> Result<Stat> {
        if self.is_open() || self.is_written() {
            return self.stat_with(&self.look()?);
        }
        self.files.at_rest(self.ino())
    }

    /// What the inode, which is in use, looks like with what its segment was seen to be.
    pub(super) fn stat_with(&self, host: &HostStat) -> Result<Stat> {
        let mut stat = self.files.recorded(self.ino())?;
        if let Some(serving) = self.serving() {
            stat = stat.overlaid(host, serving);
        }
        if !self.files.store().options().noatime {
            stat.attributes.atime = host.atime;
        }
        Ok(stat)
    }
}
