//! What `stat` shows: the chain's word, and the segment's while the file is in use.

use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo};
use tensorfs_layout::{Attributes, Ino, Object, Timestamp};

use crate::error::{Fault, Host, Result};
use crate::filesystem::Filesystem;
use crate::host::{self, HostStat};
use crate::nodes::State;

/// How long the kernel may keep what it was told: the server is the only writer, and the kernel knows of all that
/// is done through it.
pub(crate) const LONG: Duration = Duration::from_secs(86_400);

/// What an inode looks like.
#[derive(Clone, Debug)]
pub(crate) struct Stat {
    pub ino: Ino,
    pub attributes: Attributes,
    pub links: u32,
    pub size: u64,
    pub allocated: u64,
    /// The file can change without the kernel knowing (through a mapping of its segment).
    pub volatile: bool,
}

impl Stat {
    /// What the pool records of an object.
    pub fn of(ino: Ino, object: &Object) -> Self {
        Self {
            ino,
            attributes: object.attributes.clone(),
            links: object.links(),
            size: object.size(),
            allocated: object.allocated(),
            volatile: false,
        }
    }

    /// What a segment in use says beyond that.
    pub fn overlay(&mut self, host: &HostStat, state: &State) {
        self.size = host.size;
        self.allocated = host.allocated;
        if state.writing.is_some() {
            self.attributes.ctime = change_time(&self.attributes, host, state);
            self.attributes.mtime = host.mtime;
            self.volatile = true;
        }
    }

    /// How long the kernel may keep these attributes.
    pub fn ttl(&self) -> Duration {
        if self.volatile { Duration::ZERO } else { LONG }
    }

    /// In the kernel's terms.
    pub fn file_attr(&self) -> FileAttr {
        let a = &self.attributes;
        FileAttr {
            ino: INodeNo(self.ino.0),
            size: self.size,
            blocks: self.allocated / 512,
            atime: a.atime.into(),
            mtime: a.mtime.into(),
            ctime: a.ctime.into(),
            crtime: a.btime.into(),
            kind: file_type(a.mode),
            perm: (a.mode & 0o7777) as u16,
            nlink: self.links,
            uid: a.uid,
            gid: a.gid,
            rdev: a.rdev,
            blksize: 4096,
            flags: 0,
        }
    }
}

/// The later of the recorded change time and the segment's, if the segment has changed since the record was made.
pub(crate) fn change_time(recorded: &Attributes, host: &HostStat, state: &State) -> Timestamp {
    match state.seen {
        // The host's clock for files runs a tick behind the one for records, or more, and a change moves the time.
        Some(seen) if seen.ctime != host.ctime => recorded.ctime.next().max(host.ctime),
        Some(_) if host.mtime == recorded.mtime => recorded.ctime,
        _ => recorded.ctime.max(host.ctime),
    }
}

/// The type that a mode names.
pub(crate) fn file_type(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

/// A time as the client gave it. fuser 0.18 turns seconds before 1970 into a distance to the epoch and then takes the
/// nanoseconds away too, where they count forward; this puts them back.
pub(crate) fn client_time(time: SystemTime) -> Timestamp {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(_) => Timestamp::from(time),
        Err(before) => {
            let distance = before.duration();
            Timestamp::new((distance.as_secs() as i64).wrapping_neg(), distance.subsec_nanos())
        }
    }
}

impl Filesystem {
    /// What an inode looks like now.
    pub fn stat(&self, ino: Ino) -> Result<Stat> {
        match self.nodes.peek(ino) {
            Some(node) => {
                let state = node.lock();
                self.stat_in(ino, &state)
            }
            None => self.at_rest(ino),
        }
    }

    /// The same, of an inode whose lock is held.
    pub fn stat_in(&self, ino: Ino, state: &State) -> Result<Stat> {
        if state.handles() > 0 || state.writing.is_some() {
            return self.stat_with(ino, state, &self.look(state)?);
        }
        self.at_rest(ino)
    }

    /// The same, of an inode in use whose segment was looked at already.
    pub fn stat_with(&self, ino: Ino, state: &State, host: &HostStat) -> Result<Stat> {
        let mut stat = self.recorded(ino)?;
        stat.overlay(host, state);
        if !self.options.noatime {
            stat.attributes.atime = host.atime;
        }
        Ok(stat)
    }

    /// What an inode that nothing has open looks like.
    fn at_rest(&self, ino: Ino) -> Result<Stat> {
        let mut stat = self.recorded(ino)?;
        // Nothing is recorded of what is written to a file without a name.
        if stat.links == 0
            && let Some(Ok(host)) = stat.attributes.segment.map(|segment| self.pool.segments().stat(segment))
        {
            (stat.size, stat.allocated) = (host.size, host.allocated);
            stat.attributes.mtime = host.mtime;
            stat.attributes.ctime = stat.attributes.ctime.max(host.ctime);
        }
        Ok(stat)
    }

    fn recorded(&self, ino: Ino) -> Result<Stat> {
        let recorded = self.pool.view().object(ino).map(|object| Stat::of(ino, object));
        recorded.or_else(|| self.ghosts.get(ino)).ok_or(Fault::stale())
    }

    /// Asks the host about the segment of a file in use.
    pub fn look(&self, state: &State) -> Result<HostStat> {
        if let Some(fd) = &state.writing {
            return host::stat(fd).host("looking at a segment");
        }
        let segment = state.segment.ok_or(Fault::new(libc::ENOENT))?;
        self.pool.segments().stat(segment).host("looking at a segment")
    }
}

#[cfg(test)]
mod tests {
    use tensorfs_layout::SegmentId;

    use super::*;
    use crate::nodes::Seen;

    /// What fuser 0.18 makes of a `struct timespec`.
    fn as_fuser_decodes(sec: i64, nsec: u32) -> SystemTime {
        if sec >= 0 {
            SystemTime::UNIX_EPOCH + Duration::new(sec as u64, nsec)
        } else {
            SystemTime::UNIX_EPOCH - Duration::new(sec.unsigned_abs(), nsec)
        }
    }

    #[test]
    fn times_before_1970_survive_fuser() {
        for (sec, nsec) in [(0, 0), (5, 1), (-1, 0), (-1, 1), (-1, 999_999_999), (-86_400, 500_000_000)] {
            assert_eq!(client_time(as_fuser_decodes(sec, nsec)), Timestamp::new(sec, nsec));
        }
    }

    /// Found by the model test on a machine whose timer was late.
    #[test]
    fn a_change_that_the_hosts_clock_dates_before_the_last_one_moves_the_change_time() {
        let at = |nsec| Timestamp::new(5, nsec);
        let (zero, segment) = (at(0), Some(SegmentId(7)));
        let host = |ctime, mtime| HostStat { size: 0, allocated: 0, atime: zero, mtime, ctime };
        let recorded = Attributes {
            mode: libc::S_IFREG,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: zero,
            mtime: at(10),
            ctime: at(90),
            btime: zero,
            segment,
            damaged: false,
        };
        let seen = |ctime| State { seen: Some(Seen { ctime, size: 0, at: at(0) }), ..State::default() };
        assert_eq!(change_time(&recorded, &host(at(50), at(50)), &seen(at(10))), at(91));
        assert_eq!(change_time(&recorded, &host(at(95), at(95)), &seen(at(10))), at(95));
        assert_eq!(change_time(&recorded, &host(at(10), at(10)), &seen(at(10))), at(90));
        assert_eq!(change_time(&recorded, &host(at(50), at(10)), &State::default()), at(90));
    }
}
