//! What `stat` shows: the chain's word, and the segment's while the file is in use.

use std::time::Duration;

use tensorfs_layout::log::Attributes;
use tensorfs_layout::tree::Object;
use tensorfs_layout::{Ino, Timestamp};

use crate::store::host::HostStat;

use super::state::{Seen, Sight};

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

    /// What an inode looks like with what a segment in use says beyond its records.
    pub(super) fn overlaid(self, host: &HostStat, sight: &Sight) -> Self {
        let stat = Self { size: host.size, allocated: host.allocated, ..self };
        if sight.fd.is_none() {
            return stat;
        }
        let ctime = change_time(&stat.attributes, host, sight.seen);
        let attributes = Attributes { ctime, mtime: host.mtime, ..stat.attributes };
        Self { attributes, volatile: true, ..stat }
    }

    /// How long the kernel may keep these attributes.
    pub fn ttl(&self) -> Duration {
        if self.volatile { Duration::ZERO } else { LONG }
    }
}

/// The later of the recorded change time and the segment's, if the segment has changed since the record was made.
pub(super) fn change_time(recorded: &Attributes, host: &HostStat, seen: Option<Seen>) -> Timestamp {
    match seen {
        // The host's clock for files runs a tick behind the one for records, or more, and a change moves the time.
        Some(seen) if seen.ctime != host.ctime => recorded.ctime.next().max(host.ctime),
        // What else moved the segment's change time was the server, as when it sets times.
        _ if host.mtime == recorded.mtime => recorded.ctime,
        // The server that had seen it is gone. A new segment may be a tick older than its file.
        None if host.mtime > recorded.mtime => recorded.ctime.next().max(host.ctime),
        _ => recorded.ctime.max(host.ctime),
    }
}

#[cfg(test)]
mod tests {
    use tensorfs_layout::SegmentId;

    use super::*;

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
        let seen = |ctime| Some(Seen { ctime, size: 0, at: at(0) });
        assert_eq!(change_time(&recorded, &host(at(50), at(50)), seen(at(10))), at(91));
        assert_eq!(change_time(&recorded, &host(at(95), at(95)), seen(at(10))), at(95));
        assert_eq!(change_time(&recorded, &host(at(10), at(10)), seen(at(10))), at(90));
        assert_eq!(change_time(&recorded, &host(at(50), at(10)), None), at(90));
        assert_eq!(change_time(&recorded, &host(at(95), at(10)), None), at(90));
        assert_eq!(change_time(&recorded, &host(at(50), at(50)), None), at(91));
        assert_eq!(change_time(&recorded, &host(at(9), at(9)), None), at(90));
    }
}
