//! Makes way for those who write to the pool's files.
//!
//! The lowest priority is not enough: what is read, hashed and sent uses the memory's and the caches' pace, and who
//! saves has less of it. So while bytes are carried it is watched whether files of the pool are written to at a pace,
//! and what is not about to end stands still then. inotify(7) tells which segments are opened or written to, also by
//! the kernel past the server, and their lengths tell how much: one event is told of a write however long that takes.

use std::collections::VecDeque;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tensorfs_layout::check::Committed;
use tensorfs_layout::{SegmentId, Timestamp};

use crate::error::{Error, Result};
use crate::locked_in::{Needs, lock_in_thread};

/// So often it is looked.
const TICK: Duration = Duration::from_millis(4);
/// What has grown by so many bytes from one look to the next is written to at a pace,
const GROWTH: u64 = 256 << 10;
/// and so is what was written to at so many looks in a row.
const ROW: u32 = 4;
/// Way is made until nothing was written at a pace for so long: a save ends with a sync.
const QUIET: Duration = Duration::from_millis(150);
/// Who writes for longer is not made way for all the while: for so long,
const LONGEST: Duration = Duration::from_secs(5);
/// and then it is gone on for so long. No store waits for the next bytes of an object for less than LONGEST.
const LEAST: Duration = Duration::from_secs(1);
/// So many files are looked at, those that were opened or written to last,
const MOST: usize = 32;
/// as long as that is not so many looks ago.
const STILL: u32 = 250;
/// So many events are heard at a look.
const EVENTS: usize = 4096;
/// What is told of: files that are opened, and directories that are made,
const TOLD: WatchFlags = WatchFlags::OPEN.union(WatchFlags::CREATE).union(WatchFlags::ONLYDIR);
/// and at one look of so many which files are written to: that costs who writes half a microsecond each time. There is
/// another one for each so many directories.
const SELDOM: usize = 4;

/// Where files are that are watched.
pub trait Place: Send + 'static {
    /// Calls back with each of its directories.
    fn each_directory(&self, each: &mut dyn FnMut(BorrowedFd<'_>));

    /// The state of one of the files in these, by its name. It is not opened: that would be told of, too.
    fn state(&self, name: &str) -> Option<State>;
}

/// Bytes of a file, and when it was written to.
type State = (u64, Timestamp);

impl Place for Arc<Committed> {
    fn each_directory(&self, each: &mut dyn FnMut(BorrowedFd<'_>)) {
        Committed::each_directory(self, each);
    }

    fn state(&self, name: &str) -> Option<State> {
        let found = self.stat(SegmentId::of_name(name)?).ok()?;
        Some((found.allocated.max(found.size), found.mtime))
    }
}

/// Knows whether way is to be made.
#[derive(Clone)]
pub struct Way {
    shared: Arc<Shared>,
    asks: Sender<Asked>,
}

#[derive(Default)]
struct Shared {
    is_held: Mutex<bool>,
    is_free: Condvar,
}

/// What its thread is asked for.
enum Asked {
    /// To lock itself in, and to say when that is done.
    LockIn(Needs, Sender<()>),
    Watch(Watched),
}

/// What is watched, and for how long.
struct Watched {
    place: Box<dyn Place>,
    /// Has what goes on beside stand still until it may go on.
    halt: Box<dyn Fn(&Way) + Send>,
    has_ended: Arc<AtomicBool>,
}

/// While this is there, way is made.
pub struct Making(Arc<AtomicBool>);

impl Drop for Making {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Way")
    }
}

impl Way {
    /// It is looked with the priority that the caller has now.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn new() -> Result<Self> {
        let (asks, asked) = channel();
        let way = Self { shared: Arc::default(), asks };
        let shared = way.shared.clone();
        let begun = thread::Builder::new().name("way".to_owned()).spawn(move || watch_all(&shared, &asked));
        let failed = |source| Error::Host { path: "tensorfs-carrier".into(), what: "start a thread of", source };
        begun.map(|_| way).map_err(failed)
    }

    /// Way is made for who writes to files of a place, as long as what is returned is there. `halt` has others call
    /// [`Way::wait`] who carry, too.
    pub fn make(&self, place: impl Place, halt: impl Fn(&Way) + Send + 'static) -> Making {
        let has_ended = Arc::new(AtomicBool::new(false));
        let (place, halt) = (Box::new(place), Box::new(halt));
        // Where nobody watches any more, no way is made.
        let _ = self.asks.send(Asked::Watch(Watched { place, halt, has_ended: has_ended.clone() }));
        Making(has_ended)
    }

    /// Locks its thread in, which was there before its caller was.
    pub fn lock_in(&self, needs: Needs) {
        let (tells, told) = channel();
        // There is nobody to lock in any more where it cannot be asked, or ends before it says so.
        if self.asks.send(Asked::LockIn(needs, tells)).is_ok() {
            let _ = told.recv();
        }
    }

    /// Returns once there is nobody to make way for, or the one who sees to that is not to be relied on.
    pub fn wait(&self) {
        let (is_held, is_free) = (locked(&self.shared.is_held), &self.shared.is_free);
        drop(is_free.wait_timeout_while(is_held, LONGEST * 2, |is_held| *is_held));
    }
}

impl Shared {
    fn hold(&self, holds: bool) {
        *locked(&self.is_held) = holds;
        if !holds {
            self.is_free.notify_all();
        }
    }
}

fn watch_all(shared: &Arc<Shared>, asked: &Receiver<Asked>) {
    // It asks for nothing itself.
    let way = Way { shared: shared.clone(), asks: channel().0 };
    let mut is_locked_in = false;
    for asked in asked {
        let watched = match asked {
            Asked::Watch(watched) => watched,
            Asked::LockIn(needs, tells) => {
                if !std::mem::replace(&mut is_locked_in, true) {
                    lock_in_thread(&needs);
                }
                let _ = tells.send(());
                continue;
            }
        };
        if let Some(mut watch) = Watch::of(&*watched.place) {
            watched.make_way(&way, &mut watch);
        }
        shared.hold(false);
    }
}

impl Watched {
    fn make_way(&self, way: &Way, watch: &mut Watch<'_>) {
        let mut turns = Turns::default();
        while !self.has_ended.load(Ordering::Relaxed) {
            let (was_held, now) = (turns.is_held(), Instant::now());
            let is_busy = watch.is_busy();
            if turns.turn(is_busy, now) != was_held {
                way.shared.hold(!was_held);
                if !was_held {
                    log::debug!("stands still while files of the pool are written");
                    (self.halt)(way);
                }
            }
            sleep(TICK);
        }
    }
}

/// Whose turn it is.
#[derive(Default)]
struct Turns {
    /// Since when way is made, and when there was a reason for it last.
    held: Option<(Instant, Instant)>,
    /// Until then it is gone on, whoever writes.
    goes_on: Option<Instant>,
}

impl Turns {
    fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Whether way is made from now on.
    fn turn(&mut self, is_busy: bool, now: Instant) -> bool {
        match &mut self.held {
            None if is_busy && self.goes_on.is_none_or(|until| now >= until) => self.held = Some((now, now)),
            None => {}
            Some((since, _)) if now.duration_since(*since) >= LONGEST => {
                (self.held, self.goes_on) = (None, Some(now + LEAST));
            }
            Some((_, last)) if is_busy => *last = now,
            Some((_, last)) if now.duration_since(*last) >= QUIET => self.held = None,
            Some(_) => {}
        }
        self.is_held()
    }
}

/// A file that may be written to, as it was found.
struct Found {
    /// As its directory has it.
    name: String,
    state: State,
    /// So many looks in a row it had been written to,
    row: u32,
    /// or not.
    still: u32,
}

struct Watch<'a> {
    place: &'a dyn Place,
    inotify: OwnedFd,
    /// Those that were told of last come last.
    files: VecDeque<Found>,
    /// How many directories are watched, and how many looks there were.
    directories: usize,
    looks: usize,
}

impl<'a> Watch<'a> {
    /// `None` where nothing can be watched.
    fn of(place: &'a dyn Place) -> Option<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        let mut watch = Self { place, inotify, files: VecDeque::new(), directories: 0, looks: 0 };
        watch.hear_of(TOLD);
        (watch.directories > 0).then_some(watch)
    }

    /// Has this be told from now on of all directories that are there by now.
    fn hear_of(&mut self, told: WatchFlags) {
        let mut count = 0;
        self.place.each_directory(&mut |directory| {
            // The very one that was opened, whatever has its name.
            let it = format!("/proc/self/fd/{}", directory.as_raw_fd());
            count += usize::from(inotify::add_watch(&self.inotify, it, told).is_ok());
        });
        self.directories = count;
    }

    /// True if something was written to at a pace since this was asked last.
    fn is_busy(&mut self) -> bool {
        self.hear();
        match self.looks % (SELDOM + self.directories / SELDOM) {
            0 => self.hear_of(TOLD.union(WatchFlags::MODIFY)),
            1 => self.hear_of(TOLD),
            _ => {}
        }
        self.looks += 1;
        let mut is_busy = false;
        for found in &mut self.files {
            let Some(now) = self.place.state(&found.name) else {
                found.still = STILL;
                continue;
            };
            let (before, row) = (std::mem::replace(&mut found.state, now), found.row);
            (found.row, found.still) = if now == before { (0, found.still + 1) } else { (row + 1, 0) };
            is_busy |= found.row >= ROW || now.0 >= before.0.saturating_add(GROWTH);
        }
        self.files.retain(|found| found.still < STILL);
        is_busy
    }

    /// Hears which files were opened or written to.
    fn hear(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut is_made = false;
        // A reader of an empty queue is told so. What is told beyond that is heard at the next look.
        for _ in 0..EVENTS {
            let Ok(event) = events.next() else { break };
            let of_directory = event.events().contains(ReadFlags::ISDIR);
            is_made |= of_directory && event.events().contains(ReadFlags::CREATE);
            let name = event.file_name().filter(|_| !of_directory).and_then(|name| name.to_str().ok());
            let Some(name) = name.filter(|name| self.files.iter().all(|found| found.name != *name)) else { continue };
            // What it has grown by until now is not known.
            let Some(state) = self.place.state(name) else { continue };
            self.files.push_back(Found { name: name.to_owned(), state, row: 0, still: 0 });
            if self.files.len() > MOST {
                // Those that are read, as by the carrier itself, make room for those that are written to.
                let still = self.files.iter().position(|found| found.row == 0);
                self.files.remove(still.unwrap_or(0));
            }
        }
        if is_made {
            self.hear_of(TOLD);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, create_dir, read_dir};
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    use super::*;

    /// Directories in a directory.
    impl Place for PathBuf {
        fn each_directory(&self, each: &mut dyn FnMut(BorrowedFd<'_>)) {
            each(File::open(self).unwrap().as_fd());
            read_dir(self).unwrap().for_each(|dir| each(File::open(dir.unwrap().path()).unwrap().as_fd()));
        }

        fn state(&self, name: &str) -> Option<State> {
            let found = read_dir(self).unwrap().find_map(|dir| dir.unwrap().path().join(name).metadata().ok())?;
            Some(((found.blocks() * 512).max(found.len()), Timestamp::new(found.mtime(), found.mtime_nsec() as u32)))
        }
    }

    /// What is to be at each tenth of a second, given whether somebody is busy then.
    fn turns(seconds: u64, is_busy: impl Fn(u64) -> bool) -> Vec<bool> {
        let (mut turns, begun) = (Turns::default(), Instant::now());
        let at = |tenth| begun + Duration::from_millis(100 * tenth);
        (0..10 * seconds).map(|tenth| turns.turn(is_busy(tenth), at(tenth))).collect()
    }

    /// Proves E33.
    #[test]
    fn way_is_made_until_it_has_been_quiet() {
        assert_eq!(
            turns(1, |tenth| (2..5).contains(&tenth)),
            [false, false, true, true, true, true, false, false, false, false]
        );
    }

    /// Who writes without end does not have what is carried end.
    ///
    /// Proves E33.
    #[test]
    fn who_writes_for_long_is_not_made_way_for_all_the_while() {
        let turns = turns(60, |_| true);
        let goes_on = turns.iter().filter(|held| !**held).count();
        assert!((90..=110).contains(&goes_on), "{goes_on} of 600");
        let longest = turns.split(|held| !held).map(<[bool]>::len).max();
        assert_eq!(longest, Some(50));
    }

    /// Files that are written to are told from those that are read, and from those to which little is added now and
    /// then.
    ///
    /// Proves E33.
    #[test]
    fn who_writes_at_a_pace_is_busy() {
        let dir = tempfile::tempdir().unwrap();
        let shard = dir.path().join("00");
        create_dir(&shard).unwrap();
        std::fs::write(shard.join("old"), [1; 4096]).unwrap();
        let place = dir.path().to_owned();
        let mut before = File::options().append(true).open(shard.join("old")).unwrap();
        let mut watch = Watch::of(&place).unwrap();
        assert!(!watch.is_busy() && watch.files.is_empty());
        // One that was open is found as it is written to.
        let is_found = (0..SELDOM).any(|_| {
            before.write_all(&[1]).unwrap();
            watch.is_busy();
            !watch.files.is_empty()
        });
        assert!(is_found);
        watch.files.clear();
        drop(std::fs::read(shard.join("old")).unwrap());
        assert!(!watch.is_busy() && watch.files.len() == 1);
        // A large one, from its first bytes on, in a directory that is made for it.
        let shard = dir.path().join("01");
        create_dir(&shard).unwrap();
        assert!(!watch.is_busy());
        let mut large = File::create(shard.join("large")).unwrap();
        assert!(!watch.is_busy());
        large.write_all(&vec![1; 1 << 20]).unwrap();
        assert!(watch.is_busy());
        assert!(!watch.is_busy());
        // A little, and then nothing.
        large.write_all(&[1; 100]).unwrap();
        assert!(!watch.is_busy() && !watch.is_busy());
        // A little each time, as who saves small files.
        let busy: Vec<bool> = (0..2 * ROW)
            .map(|_| {
                sleep(Duration::from_millis(20));
                large.write_all(&[1; 100]).unwrap();
                watch.is_busy()
            })
            .collect();
        assert_eq!(busy, (1..=2 * ROW).map(|n| n >= ROW).collect::<Vec<_>>());
        for _ in 0..=STILL {
            watch.is_busy();
        }
        assert!(watch.files.is_empty());
    }

    /// However many files are opened at the same time, a look ends, and who writes is seen.
    ///
    /// Proves E33.
    #[test]
    fn a_look_at_very_many_files_ends() {
        let dir = tempfile::tempdir().unwrap();
        let shard = dir.path().join("00");
        create_dir(&shard).unwrap();
        let names: Vec<PathBuf> = (0..20 * MOST).map(|n| shard.join(n.to_string())).collect();
        names.iter().for_each(|name| std::fs::write(name, b"x").unwrap());
        let place = dir.path().to_owned();
        let mut watch = Watch::of(&place).unwrap();
        for _ in 0..3 {
            names.iter().for_each(|name| drop(File::open(name).unwrap()));
            assert!(!watch.is_busy());
            assert!(watch.files.len() <= MOST);
        }
        let mut large = File::create(shard.join("large")).unwrap();
        watch.is_busy();
        large.write_all(&vec![1; 1 << 20]).unwrap();
        assert!(watch.is_busy());
    }

    /// Who carries stands still from when somebody writes to when he has ended.
    #[test]
    fn who_carries_stands_still_while_somebody_writes() {
        let dir = tempfile::tempdir().unwrap();
        let shard = dir.path().join("00");
        create_dir(&shard).unwrap();
        let way = Way::new().unwrap();
        let (tells, told) = channel();
        let making = way.make(dir.path().to_owned(), move |_| tells.send(()).unwrap());
        let mut file = File::create(shard.join("file")).unwrap();
        // Until it is watched, and he is heard.
        let is_heard = (0..5000).any(|_| {
            file.write_all(&vec![1; 1 << 20]).unwrap();
            // No more of the host's room than it takes.
            file.set_len(file.metadata().unwrap().len() % (64 << 20)).unwrap();
            sleep(TICK);
            told.try_recv().is_ok()
        });
        assert!(is_heard, "nobody hears who writes");
        assert!(*locked(&way.shared.is_held));
        way.wait();
        drop(making);
        // Nobody is made way for by whoever has ended.
        file.write_all(&vec![1; 8 << 20]).unwrap();
        way.wait();
    }
}
