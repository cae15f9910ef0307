//! What is true of a file in use, beyond what the pool records.
//!
//! Only this room sees these fields. A file is at rest when nothing serves it: [`State::serving`] is `None`, and
//! everything that was true of its segment went with it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorfs_layout::{SegmentId, Timestamp, TxId};

use crate::caller::Ending;
use crate::clock;
use crate::store::Backing;
use crate::store::host::HostStat;

use super::mode::{Access, Mode};

/// One file in use.
#[derive(Default)]
pub(super) struct State {
    pub opens: Opens,
    /// The segment that serves reads and writes. `None` while the file is at rest.
    pub serving: Option<Serving>,
    /// Somebody reads the file behind everybody's back.
    pub quiet: bool,
    /// What was announced of it, which has to be durable before its bytes change in place.
    pub announced: Option<TxId>,
}

impl State {
    /// True if something may write the file.
    pub fn is_written(&self) -> bool {
        self.serving.as_ref().is_some_and(|serving| serving.writing.is_some())
    }

    /// What there is to see of it.
    pub fn sight(&self) -> Option<Sight> {
        let serving = self.serving.as_ref().filter(|serving| !serving.away)?;
        let fd = serving.writing.as_ref().map(|writing| writing.fd.clone());
        (self.opens.handles() > 0 || fd.is_some()).then_some(Sight { segment: serving.segment, seen: serving.seen, fd })
    }
}

/// What takes part in `stat` of a file that is open or written: what it takes to ask the host about its segment, and to
/// tell what that means.
#[derive(Clone)]
pub(super) struct Sight {
    pub segment: SegmentId,
    pub seen: Option<Seen>,
    /// If something may write it.
    pub fd: Option<Arc<OwnedFd>>,
}

/// Handles, and opens that are under way.
#[derive(Default)]
pub(super) struct Opens {
    /// Handles that can only read.
    pub readers: u32,
    /// Those of them that the kernel has for programs that run.
    pub executing: u32,
    /// Handles that can write.
    pub writers: u32,
    /// So many handles did not go when somebody waited for them.
    pub staying: u32,
    /// Opens that are under way; one may let go of the lock to wait for releases.
    pub opening: u32,
}

impl Opens {
    /// Open handles.
    pub fn handles(&self) -> u32 {
        self.readers + self.writers
    }

    /// One handle more.
    pub fn count(&mut self, access: Access, executes: bool) {
        if access.write {
            self.writers += 1;
        } else {
            self.readers += 1;
        }
        self.executing += u32::from(executes);
    }
}

/// The segment behind an open file: the file's own, or the one that is to replace it.
pub(super) struct Serving {
    pub segment: SegmentId,
    pub route: Route,
    /// What the segment looked like when the records were last brought up to date with it.
    pub seen: Option<Seen>,
    /// Something may write it.
    pub writing: Option<Writing>,
    /// `open(O_TRUNC)` gave the file this segment, which is not recorded as its own yet.
    pub replacing: Option<Replace>,
    /// A handle could map the segment for writing, which changes times without the kernel knowing, and outlives the
    /// handle. So may descriptors of processes of an earlier mount.
    pub mappable: bool,
    /// Who had such handles.
    pub mappers: Mappers,
    /// Whoever writes it asks the server, also where the kernel could do without: it was sealed when it was opened to
    /// be appended to, and what is appended to by both would be written by both in one place.
    pub asked: bool,
    /// It is not there: those who have the file open read what comes of it, and the records say all else.
    pub away: bool,
}

impl Serving {
    /// A segment that nothing has open yet.
    pub fn new(segment: SegmentId) -> Self {
        Self {
            segment,
            route: Route::Closed { ready: None },
            seen: None,
            writing: None,
            replacing: None,
            mappable: false,
            mappers: Mappers::default(),
            asked: false,
            away: false,
        }
    }
}

/// Processes that may have a file mapped for writing: what they store into pages that are to be written to the host yet
/// changes no time there.
#[derive(Debug, Default)]
pub(super) struct Mappers(Vec<u32>);

/// So many are told apart.
const MAPPERS: usize = 16;

impl Mappers {
    /// A process may; 0 stands for one that is not known.
    pub fn note(&mut self, process: u32) {
        if !self.0.contains(&process) {
            self.0.push(if self.0.len() < MAPPERS { process } else { 0 });
        }
        self.0.truncate(MAPPERS + 1);
    }

    /// True if nobody may.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if one of these processes may.
    pub fn may_be(&self, processes: &[u32]) -> bool {
        self.0.iter().any(|mapper| *mapper == 0 || processes.contains(mapper))
    }
}

/// Who moves the bytes. The same for all handles of a file.
pub(super) enum Route {
    /// Nobody: nothing is open. The segment may have been given to the kernel ahead.
    Closed { ready: Option<Arc<Backing>> },
    /// The kernel, which knows the segment by a number.
    Kernel(Arc<Backing>),
    /// The server.
    Server,
}

impl Route {
    /// The mode of the handles, if there are any.
    pub fn mode(&self) -> Option<Mode> {
        match self {
            Self::Closed { .. } => None,
            Self::Kernel(_) => Some(Mode::Passthrough),
            Self::Server => Some(Mode::Server),
        }
    }

    /// The kernel's number for the segment, if it has one.
    pub fn backing(&self) -> Option<&Arc<Backing>> {
        match self {
            Self::Closed { ready } => ready.as_ref(),
            Self::Kernel(backing) => Some(backing),
            Self::Server => None,
        }
    }
}

/// A segment that something may write.
pub(super) struct Writing {
    /// The descriptor that will sync the segment: held from before the first possible write until none is possible.
    pub fd: Arc<OwnedFd>,
    /// The bytes as they were last committed by value.
    pub valued: Option<Arc<[u8]>>,
    /// A handle could change bytes, or make them durable, without our hearing of it: through a mapping, or as one
    /// opened with `O_SYNC` does. Then a copy of them in the log could be older than what is durable in the segment.
    pub unheard: bool,
    /// What the segment looked like before the first possible write. None if it had no bytes, or if that is not known.
    pub began: Option<Seen>,
    /// A process was killed since then that had it open to write.
    pub interrupted: bool,
    /// It has been looked at: it does not consist of frames, so that nothing of it is sealed while it is open.
    pub frameless: bool,
}

impl Writing {
    /// Nobody has written it so far.
    pub fn new(fd: Arc<OwnedFd>, unheard: bool) -> Self {
        Self { fd, valued: None, unheard, began: None, interrupted: false, frameless: false }
    }
}

/// How long the background waits before it tries again to set a version aside; twice as long each time, up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// A file being replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replace {
    pub old: SegmentId,
    pub since: Instant,
    /// When the file was emptied, by the time of day.
    pub emptied: Timestamp,
    /// The process that began it, where closing commits.
    pub opener: Option<u32>,
    /// A process that had it open to write was killed by a signal, or ended where it cannot be seen how.
    pub ended: Ending,
    /// A writer has closed its descriptor. If that was the last one, RELEASE is on its way.
    pub closed: bool,
    /// A writer has closed its descriptor at least once: somebody had one.
    pub flushed: bool,
    /// Where the version before is set aside (R4), how far that is.
    pub aside: Aside,
    /// The version before could not be set aside so often, and when the background tries that again.
    pub refused: Option<(u32, Instant)>,
}

/// How far the version before is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aside {
    /// Not at all.
    No,
    /// Somebody is about it, with the inode's lock let go of.
    UnderWay,
    /// It is in quarantine.
    Done,
}

impl Replace {
    /// The replacing of a segment that begins now.
    pub fn of(old: SegmentId, opener: Option<u32>) -> Self {
        let (since, emptied, ended) = (Instant::now(), clock::now(), Ending::OfItself);
        Self { old, since, emptied, opener, ended, closed: false, flushed: false, aside: Aside::No, refused: None }
    }

    /// The version before could not be set aside: the next time is later and later.
    pub fn refuse(&mut self) {
        let times = self.refused.map_or(0, |(times, _)| times);
        let pause = (FIRST_PAUSE * 2_u32.saturating_pow(times)).min(LAST_PAUSE);
        self.refused = Some((times + 1, Instant::now() + pause));
    }

    /// The background does not wait with the next time.
    pub fn hurry(&mut self) {
        self.refused = self.refused.map(|(times, _)| (times, Instant::now()));
    }

    /// True if it could not, and the background is not to try it yet.
    pub fn is_to_wait(&self) -> bool {
        self.refused.is_some_and(|(_, again)| Instant::now() < again)
    }
}

/// What a segment was when a program opened it to write, before it could.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    pub segment: SegmentId,
    pub seen: Seen,
    /// Where the host tells each change behind a look, the look need not have been late.
    pub tells: bool,
}

impl Before {
    /// True if it is known that the segment has not changed since.
    pub fn still(&self, segment: SegmentId, stat: &HostStat) -> bool {
        let same = (self.segment, self.seen.ctime, self.seen.size) == (segment, stat.ctime, stat.size);
        same && (self.tells || self.seen.still(stat))
    }
}

/// A look at a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub ctime: Timestamp,
    pub size: u64,
    pub at: Timestamp,
}

impl Seen {
    /// Stands for a look before a change that the server made itself: whatever the segment looks like now is newer.
    pub const CHANGED: Self = {
        let never = Timestamp::new(i64::MIN, 0);
        Self { ctime: never, size: 0, at: never }
    };

    /// What was seen at a time.
    pub fn of(host: &HostStat, at: Timestamp) -> Self {
        Self { ctime: host.ctime, size: host.size, at }
    }

    /// True if the segment has not changed since: nothing differs, and this look was late enough to tell.
    pub fn still(&self, stat: &HostStat) -> bool {
        self.ctime == stat.ctime && self.size == stat.size && clock::is_past_tick(self.ctime, self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_mappers_than_are_told_apart_may_be_anybody() {
        let mut mappers = Mappers::default();
        assert!(mappers.is_empty() && !mappers.may_be(&[7]));
        (1..=MAPPERS as u32).for_each(|process| mappers.note(process));
        assert!(mappers.may_be(&[7, 70]) && !mappers.may_be(&[70]));
        (50..90).for_each(|process| mappers.note(process));
        assert!(mappers.may_be(&[700]) && mappers.0.len() == MAPPERS + 1);
    }

    #[test]
    fn a_young_look_is_enough_where_the_host_tells_each_change() {
        let t = Timestamp::new(100, 0);
        let stat = HostStat { size: 1, allocated: 0, atime: t, mtime: t, ctime: t };
        let (segment, seen) = (SegmentId(1), Seen { ctime: t, size: 1, at: Timestamp::new(100, 1_000_000) });
        let before = |tells| Before { segment, seen, tells };
        assert!(before(true).still(segment, &stat));
        assert!(!before(false).still(segment, &stat));
        assert!(!before(true).still(SegmentId(2), &stat));
        assert!(!before(true).still(segment, &HostStat { size: 2, ..stat }));
        assert!(!before(true).still(segment, &HostStat { ctime: Timestamp::new(100, 1), ..stat }));
    }

    #[test]
    fn a_look_within_the_same_tick_proves_nothing() {
        let t = Timestamp::new(100, 0);
        let stat = HostStat { size: 1, allocated: 0, atime: t, mtime: t, ctime: t };
        let seen = |nsec| Seen { ctime: t, size: 1, at: Timestamp::new(100, nsec) };
        assert!(!seen(1_000_000).still(&stat));
        assert!(seen(500_000_000).still(&stat));
        assert!(!seen(500_000_000).still(&HostStat { size: 2, ..stat }));
        assert!(!seen(500_000_000).still(&HostStat { ctime: Timestamp::new(100, 1), ..stat }));
    }
}
