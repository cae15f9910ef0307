//! What several processes do to the same few names at the same time, and what one after the other would come of it.

use crate::random::Random;
use nix::errno::Errno;
use nix::fcntl::{self, AtFlags, OFlag, RenameFlags};
use nix::sys::stat::{self, Mode};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{self, UnlinkatFlags};
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// Operations of each worker in a burst.
pub const OPS: usize = 6;
/// What is appended at a time.
pub const RECORD: usize = 16;
/// Names that nobody touches; a listing must have them, each once.
pub const STATIC: [&str; 3] = ["s0", "s1", "s2"];

/// A name: the directory, and which of the names in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name(u8, u8);

impl Name {
    /// The directory's number, and the name's.
    pub fn new(dir: u8, name: u8) -> Name {
        Name(dir, name)
    }

    /// As [`Final`] has it.
    pub fn key(self) -> (u8, u8) {
        (self.0, self.1)
    }
}

const DIRS: [&str; 2] = ["x", "y"];
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Something done to the shared names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SharedOp {
    /// `O_CREAT | O_EXCL`.
    Create(Name),
    Mkdir(Name),
    Symlink(Name),
    Unlink(Name),
    Rmdir(Name),
    Rename(Name, Name),
    RenameNoreplace(Name, Name),
    Exchange(Name, Name),
    Link(Name, Name),
    Stat(Name),
    /// Opens the file with `O_APPEND` and writes a record, which is the writer's own.
    Append(Name),
    Truncate(Name),
    List(u8),
}

impl SharedOp {
    /// The names it changes; the last is where what it moves or makes is found.
    fn changes(&self) -> Vec<Name> {
        match *self {
            SharedOp::Create(name) | SharedOp::Mkdir(name) | SharedOp::Symlink(name) => vec![name],
            SharedOp::Unlink(name) | SharedOp::Rmdir(name) | SharedOp::Link(_, name) => vec![name],
            SharedOp::Rename(from, to) | SharedOp::RenameNoreplace(from, to) | SharedOp::Exchange(from, to) => {
                vec![from, to]
            }
            SharedOp::Stat(_) | SharedOp::Append(_) | SharedOp::Truncate(_) | SharedOp::List(_) => vec![],
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Answer {
    Done,
    /// It made a file with this inode number.
    Made {
        ino: u64,
    },
    Seen {
        kind: u32,
        ino: u64,
        links: u32,
        size: usize,
    },
    Failed(Errno),
    /// The server was killed meanwhile: it was done or not.
    Unknown,
    /// A listing that is wrong by itself.
    BadList,
}

/// An operation in a history, with the time it took.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Event {
    pub worker: u64,
    pub op: SharedOp,
    pub from: u64,
    pub to: u64,
    pub answer: Answer,
    /// What `Append` writes.
    pub record: u16,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>9}..{:>9} us, worker {}: {:?}: {:?}",
            self.from / 1000,
            self.to / 1000,
            self.worker,
            self.op,
            self.answer
        )
    }
}

/// What a worker does in a burst.
pub fn ops(seed: u64, burst: u64, worker: u64) -> Vec<SharedOp> {
    let mut random = Random::of(&[seed, burst, worker, 99]);
    let name = |random: &mut Random| Name(random.below(2) as u8, random.below(NAMES.len() as u64) as u8);
    (0..OPS)
        .map(|_| {
            let (a, b) = (name(&mut random), name(&mut random));
            match random.below(22) {
                0..4 => SharedOp::Create(a),
                4 => SharedOp::Mkdir(a),
                5 => SharedOp::Symlink(a),
                6 | 7 => SharedOp::Unlink(a),
                8 => SharedOp::Rmdir(a),
                9..11 => SharedOp::Rename(a, b),
                11 => SharedOp::RenameNoreplace(a, b),
                12 => SharedOp::Exchange(a, b),
                13 | 14 => SharedOp::Link(a, b),
                15..18 => SharedOp::Stat(a),
                18..20 => SharedOp::Append(a),
                20 => SharedOp::Truncate(a),
                _ => SharedOp::List(a.0),
            }
        })
        .collect()
}

/// The number of an operation, which makes its record.
pub fn record_of(worker: u64, op: usize) -> u16 {
    (worker as u16) << 8 | op as u16
}

fn record_bytes(record: u16) -> [u8; RECORD] {
    let mut bytes = [0xa5; RECORD];
    bytes[..2].copy_from_slice(&record.to_le_bytes());
    bytes[2] = 1;
    bytes
}

impl Answer {
    /// As a word, to be sent to another process.
    pub fn to_word(self) -> String {
        match self {
            Answer::Done => "done".to_owned(),
            Answer::Made { ino } => format!("made:{ino}"),
            Answer::Unknown => "unknown".to_owned(),
            Answer::BadList => "badlist".to_owned(),
            Answer::Failed(errno) => format!("failed:{}", errno as i32),
            Answer::Seen { kind, ino, links, size } => format!("seen:{kind}:{ino}:{links}:{size}"),
        }
    }

    fn of_word(word: &str) -> Option<Answer> {
        let numbers: Vec<u64> = word.split(':').skip(1).map_while(|number| number.parse().ok()).collect();
        match (word.split(':').next()?, &numbers[..]) {
            ("done", []) => Some(Answer::Done),
            ("unknown", []) => Some(Answer::Unknown),
            ("badlist", []) => Some(Answer::BadList),
            ("made", [ino]) => Some(Answer::Made { ino: *ino }),
            ("failed", [errno]) => Some(Answer::Failed(Errno::from_raw(*errno as i32))),
            ("seen", [kind, ino, links, size]) => {
                Some(Answer::Seen { kind: *kind as u32, ino: *ino, links: *links as u32, size: *size as usize })
            }
            _ => None,
        }
    }
}

/// A worker's events, as words.
pub fn to_words(events: &[Event]) -> String {
    let words =
        events.iter().map(|event| format!("{}={},{},{}", event.worker, event.from, event.to, event.answer.to_word()));
    words.collect::<Vec<_>>().join(" ")
}

/// Reads the words of all workers of a burst.
pub fn of_words(words: &str, seed: u64, burst: u64) -> Vec<Event> {
    let mut counts = BTreeMap::<u64, usize>::new();
    let event = |word: &str| {
        let (worker, rest) = word.split_once('=')?;
        let worker = worker.parse().ok()?;
        let number = counts.entry(worker).or_default();
        let op = ops(seed, burst, worker)[*number];
        let record = record_of(worker, *number);
        *number += 1;
        let mut parts = rest.split(',');
        let mut time = || parts.next()?.parse().ok();
        let (from, to) = (time()?, time()?);
        Some(Event { worker, op, from, to, answer: Answer::of_word(parts.next()?)?, record })
    };
    words.split(' ').filter(|word| !word.is_empty()).map(event).collect::<Option<_>>().expect("the actors' words")
}

/// Makes the directories of a burst.
pub fn prepare(path: &Path) {
    std::fs::create_dir(path).unwrap();
    for dir in DIRS {
        std::fs::create_dir_all(path.join(dir)).unwrap();
        for name in STATIC {
            std::fs::write(path.join(dir).join(name), name).unwrap();
        }
    }
    for name in ["x/a", "y/b"] {
        std::fs::write(path.join(name), b"").unwrap();
    }
}

/// Nanoseconds of a clock that all processes share.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// Does a worker's operations, from a time on.
pub fn work(path: &Path, seed: u64, burst: u64, worker: u64, start: u64) -> Vec<Event> {
    let open = |dir| fcntl::open(&path.join(dir), OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
    let dirs = DIRS.map(open);
    let dirs = match &dirs {
        [Ok(x), Ok(y)] => Ok([x.as_fd(), y.as_fd()]),
        [Err(errno), _] | [_, Err(errno)] => Err(*errno),
    };
    let mut random = Random::of(&[seed, burst, worker, 7]);
    while now() < start {
        std::hint::spin_loop();
    }
    let events = ops(seed, burst, worker).into_iter().enumerate().map(|(number, op)| {
        let pause = now() + random.below(60_000);
        while now() < pause {
            std::hint::spin_loop();
        }
        let record = record_of(worker, number);
        let from = now();
        let result = dirs.and_then(|dirs| run(dirs, op, record));
        let answer = match result {
            Ok(answer) => answer,
            Err(Errno::ENOTCONN | Errno::ECONNABORTED | Errno::ECONNREFUSED | Errno::EIO) => Answer::Unknown,
            Err(errno) => Answer::Failed(errno),
        };
        Event { worker, op, from, to: now(), answer, record }
    });
    events.collect()
}

fn run(dirs: [BorrowedFd<'_>; 2], op: SharedOp, record: u16) -> nix::Result<Answer> {
    let at = |name: Name| (dirs[usize::from(name.0)], NAMES[usize::from(name.1)]);
    let rename = |from: Name, to: Name, flags| {
        let ((from_dir, from), (to_dir, to)) = (at(from), at(to));
        fcntl::renameat2(from_dir, from, to_dir, to, flags)
    };
    let open = |name: Name, flags| {
        let (dir, name) = at(name);
        fcntl::openat(dir, name, flags | OFlag::O_CLOEXEC, Mode::from_bits_truncate(0o644))
    };
    match op {
        SharedOp::Create(name) => {
            let fd = open(name, OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY)?;
            return Ok(Answer::Made { ino: stat::fstat(&fd)?.st_ino });
        }
        SharedOp::Mkdir(name) => {
            let (dir, name) = at(name);
            stat::mkdirat(dir, name, Mode::from_bits_truncate(0o755))?;
        }
        SharedOp::Symlink(name) => {
            let (dir, name) = at(name);
            unistd::symlinkat("nowhere", dir, name)?;
        }
        SharedOp::Unlink(name) => {
            let (dir, name) = at(name);
            unistd::unlinkat(dir, name, UnlinkatFlags::NoRemoveDir)?;
        }
        SharedOp::Rmdir(name) => {
            let (dir, name) = at(name);
            unistd::unlinkat(dir, name, UnlinkatFlags::RemoveDir)?;
        }
        SharedOp::Rename(from, to) => rename(from, to, RenameFlags::empty())?,
        SharedOp::RenameNoreplace(from, to) => rename(from, to, RenameFlags::RENAME_NOREPLACE)?,
        SharedOp::Exchange(from, to) => rename(from, to, RenameFlags::RENAME_EXCHANGE)?,
        SharedOp::Link(from, to) => {
            let ((from_dir, from), (to_dir, to)) = (at(from), at(to));
            unistd::linkat(from_dir, from, to_dir, to, AtFlags::empty())?;
        }
        SharedOp::Stat(name) => {
            let (dir, name) = at(name);
            return seen(dir, name);
        }
        SharedOp::Append(name) => {
            let fd = open(name, OFlag::O_WRONLY | OFlag::O_APPEND)?;
            let written = unistd::write(&fd, &record_bytes(record))?;
            assert_eq!(written, RECORD);
        }
        SharedOp::Truncate(name) => {
            let fd = open(name, OFlag::O_WRONLY)?;
            unistd::ftruncate(&fd, 0)?;
        }
        SharedOp::List(dir) => {
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dirs[usize::from(dir)]));
            let entries = std::fs::read_dir(path).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
            let entries = entries.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))?;
            let names: Vec<String> =
                entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            let once = STATIC.iter().all(|name| names.iter().filter(|found| found == name).count() == 1);
            let known = names.iter().all(|name| STATIC.contains(&&**name) || NAMES.contains(&&**name));
            return Ok(if once && known { Answer::Done } else { Answer::BadList });
        }
    }
    Ok(Answer::Done)
}

fn seen(dir: BorrowedFd<'_>, name: &str) -> nix::Result<Answer> {
    let stat = stat::fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    let kind = stat.st_mode & libc::S_IFMT;
    let size = if kind == libc::S_IFREG { stat.st_size as usize } else { 0 };
    // How many links a directory has is not what this is about.
    let links = if kind == libc::S_IFDIR { 2 } else { stat.st_nlink as u32 };
    Ok(Answer::Seen { kind, ino: stat.st_ino, links, size })
}

/// What is there when all is over: of each name, what it shows, and the records in it.
pub type Final = BTreeMap<(u8, u8), (Answer, Vec<u16>)>;

/// Reads it. Fails if a file holds anything but whole records, each once.
pub fn read_final(path: &Path) -> Result<Final, String> {
    let mut all = Final::new();
    for (d, dir) in DIRS.iter().enumerate() {
        let fd = fcntl::open(&path.join(dir), OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|e| e.to_string())?;
        for (n, name) in NAMES.iter().enumerate() {
            let answer = match seen(fd.as_fd(), name) {
                Err(Errno::ENOENT) => continue,
                other => other.map_err(|error| format!("{dir}/{name}: {error}"))?,
            };
            let mut records = Vec::new();
            if matches!(answer, Answer::Seen { kind: libc::S_IFREG, .. }) {
                let bytes =
                    std::fs::read(path.join(dir).join(name)).map_err(|error| format!("{dir}/{name}: {error}"))?;
                for chunk in bytes.chunks(RECORD) {
                    let record = u16::from_le_bytes([chunk[0], *chunk.get(1).unwrap_or(&0)]);
                    if chunk != record_bytes(record) || records.contains(&record) {
                        return Err(format!("{dir}/{name}: not a record, or there twice: {chunk:02x?}"));
                    }
                    records.push(record);
                }
            }
            all.insert((d as u8, n as u8), (answer, records));
        }
    }
    Ok(all)
}

/// How the names are before a burst.
pub fn initial() -> State {
    let mut state = State::default();
    for name in [Name(0, 0), Name(1, 1)] {
        state.add(name, libc::S_IFREG);
    }
    state
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Object {
    kind: u32,
    links: u32,
    records: Vec<u16>,
    /// Its inode number, once somebody has seen it.
    ino: Option<u64>,
}

/// The names, in the model: one operation after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct State {
    names: [[Option<u8>; NAMES.len()]; DIRS.len()],
    objects: Vec<Object>,
    /// The directories in which an operation is [`Progress::Counted`]: the others that change names wait for it.
    locked: [bool; DIRS.len()],
}

/// How far an operation is: those that go by a path find an object first, and then do something to it; those that give
/// a file a name or take it away change its link count first, and then the name. The kernel does so on every
/// filesystem (`vfs_unlink` has the inode's count lowered, and then drops the name from its cache), and who looks in
/// between sees a name and a count that does not include it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Progress {
    Begun,
    Found(u8),
    /// The count is changed, the name is to follow; the number is what the name is to lead to.
    Counted(Option<u8>),
    Over,
}

impl State {
    fn get(&self, name: Name) -> Option<u8> {
        self.names[usize::from(name.0)][usize::from(name.1)]
    }

    fn set(&mut self, name: Name, id: Option<u8>) {
        self.names[usize::from(name.0)][usize::from(name.1)] = id;
    }

    fn object(&mut self, id: u8) -> &mut Object {
        &mut self.objects[usize::from(id)]
    }

    fn add(&mut self, name: Name, kind: u32) {
        self.objects.push(Object { kind, links: 1, records: Vec::new(), ino: None });
        self.set(name, Some(self.objects.len() as u8 - 1));
    }

    /// Begins to change where a name leads, with the count of what it led to. The name itself follows.
    fn count(&mut self, event: &Event, name: Name, id: Option<u8>) -> (Progress, Option<Answer>) {
        if let Some(old) = self.get(name) {
            self.object(old).links -= 1;
        }
        self.lock(event, true);
        (Progress::Counted(id), None)
    }

    fn lock(&mut self, event: &Event, locked: bool) {
        event.op.changes().iter().for_each(|name| self.locked[usize::from(name.0)] = locked);
    }

    fn kind(&mut self, name: Name) -> Option<u32> {
        self.get(name).map(|id| self.object(id).kind)
    }

    /// Does the next part of an operation. Tells how far it is then, and what it answers if it is over; `None` if the
    /// answer, which may be unknown, was another one.
    pub fn advance(&mut self, event: &Event, progress: Progress) -> Option<Progress> {
        let waits = event.op.changes().iter().any(|name| self.locked[usize::from(name.0)]);
        // A link looks for its file before it locks the directory of the new name.
        let looks = matches!((event.op, progress), (SharedOp::Link(..), Progress::Begun));
        if waits && !looks && !matches!(progress, Progress::Counted(_)) {
            return None;
        }
        let (progress, answer) = self.next(event, progress);
        let fits = match (event.answer, answer) {
            (_, None) | (Answer::Unknown, _) => true,
            (Answer::Seen { kind, ino, links, size }, Some(Answer::Seen { kind: k, ino: id, links: l, size: s })) => {
                (kind, links, size) == (k, l, s) && self.is(id as u8, ino)
            }
            (Answer::Made { ino }, Some(Answer::Made { ino: id })) => self.is(id as u8, ino),
            (told, Some(expected)) => told == expected,
        };
        fits.then_some(progress)
    }

    /// Whether an object can have this inode number.
    fn is(&mut self, id: u8, ino: u64) -> bool {
        *self.object(id).ino.get_or_insert(ino) == ino
    }

    fn next(&mut self, event: &Event, progress: Progress) -> (Progress, Option<Answer>) {
        let over = |answer: Answer| (Progress::Over, Some(answer));
        let failed = |errno: Errno| over(Answer::Failed(errno));
        let done = over(Answer::Done);
        let dir = Some(libc::S_IFDIR);
        match (event.op, progress) {
            (op, Progress::Counted(id)) => {
                self.lock(event, false);
                if let Some((to, rest)) = op.changes().split_last() {
                    rest.iter().for_each(|from| self.set(*from, None));
                    self.set(*to, id);
                }
                done
            }
            (SharedOp::Create(name), _) | (SharedOp::Mkdir(name), _) | (SharedOp::Symlink(name), _) => {
                if self.get(name).is_some() {
                    return failed(Errno::EEXIST);
                }
                let kind = match event.op {
                    SharedOp::Create(_) => libc::S_IFREG,
                    SharedOp::Mkdir(_) => libc::S_IFDIR,
                    _ => libc::S_IFLNK,
                };
                self.add(name, kind);
                match self.get(name) {
                    Some(id) if kind == libc::S_IFREG => over(Answer::Made { ino: u64::from(id) }),
                    _ => done,
                }
            }
            (SharedOp::Unlink(name), _) => match self.kind(name) {
                None => failed(Errno::ENOENT),
                kind if kind == dir => failed(Errno::EISDIR),
                _ => self.count(event, name, None),
            },
            (SharedOp::Rmdir(name), _) => match self.kind(name) {
                None => failed(Errno::ENOENT),
                kind if kind != dir => failed(Errno::ENOTDIR),
                _ => self.count(event, name, None),
            },
            (SharedOp::Exchange(from, to), _) => match (self.get(from), self.get(to)) {
                (Some(a), Some(b)) => {
                    self.set(from, Some(b));
                    self.set(to, Some(a));
                    done
                }
                _ => failed(Errno::ENOENT),
            },
            (SharedOp::Rename(from, to) | SharedOp::RenameNoreplace(from, to), _) => {
                let Some(moved) = self.get(from) else { return failed(Errno::ENOENT) };
                let Some(met) = self.get(to) else {
                    self.set(from, None);
                    self.set(to, Some(moved));
                    return done;
                };
                if matches!(event.op, SharedOp::RenameNoreplace(..)) {
                    return failed(Errno::EEXIST);
                }
                if moved == met {
                    return done;
                }
                match (self.kind(from) == dir, self.kind(to) == dir) {
                    (true, false) => return failed(Errno::ENOTDIR),
                    (false, true) => return failed(Errno::EISDIR),
                    _ => {}
                }
                self.count(event, to, Some(moved))
            }
            (SharedOp::List(_), _) => done,
            (SharedOp::Link(name, _), Progress::Begun)
            | (SharedOp::Stat(name), Progress::Begun)
            | (SharedOp::Append(name), Progress::Begun)
            | (SharedOp::Truncate(name), Progress::Begun) => match self.get(name) {
                None => failed(Errno::ENOENT),
                Some(id) => (Progress::Found(id), None),
            },
            (SharedOp::Link(_, to), Progress::Found(id)) => {
                if self.get(to).is_some() {
                    return failed(Errno::EEXIST);
                }
                if self.object(id).kind == libc::S_IFDIR {
                    return failed(Errno::EPERM);
                }
                if self.object(id).links == 0 {
                    return failed(Errno::ENOENT);
                }
                self.object(id).links += 1;
                self.count(event, to, Some(id))
            }
            (SharedOp::Stat(_), Progress::Found(id)) => {
                let object = self.object(id).clone();
                let links = if object.kind == libc::S_IFDIR { 2 } else { object.links };
                over(Answer::Seen { kind: object.kind, ino: u64::from(id), links, size: object.records.len() * RECORD })
            }
            (SharedOp::Append(_) | SharedOp::Truncate(_), Progress::Found(id)) => match self.object(id).kind {
                libc::S_IFDIR => failed(Errno::EISDIR),
                // It leads nowhere.
                libc::S_IFLNK => failed(Errno::ENOENT),
                _ if matches!(event.op, SharedOp::Truncate(_)) => {
                    self.object(id).records.clear();
                    done
                }
                _ => {
                    self.object(id).records.push(event.record);
                    done
                }
            },
            (_, Progress::Over) => unreachable!("it is over"),
        }
    }

    /// Whether this is what was there in the end.
    pub fn is_final(&mut self, found: &Final) -> bool {
        for d in 0..DIRS.len() as u8 {
            for n in 0..NAMES.len() as u8 {
                let same = match (self.get(Name(d, n)), found.get(&(d, n))) {
                    (None, None) => true,
                    (Some(id), Some((Answer::Seen { kind, ino, links, .. }, records))) => {
                        let object = self.object(id).clone();
                        let fits = object.kind == *kind && object.records == *records;
                        fits && (object.kind == libc::S_IFDIR || object.links == *links) && self.is(id, *ino)
                    }
                    _ => false,
                };
                if !same {
                    return false;
                }
            }
        }
        true
    }
}
