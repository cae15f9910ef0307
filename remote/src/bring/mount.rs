//! The mount of a pool, and how its server is asked.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstat;
use nix::unistd::{Whence, lseek};
use tensorfs_layout::pool::{Bring, BringReply, ToBring, bring};
use tensorfs_layout::{Ino, SegmentId};

use crate::error::Error;
use crate::fetch::{Fetcher, PACKS_OF_MANY, Target, Written};
use crate::repository::{Content, Newest, Part};

/// So many threads fetch whatever is next, and so many what somebody waits for.
pub(super) const THREADS: usize = 2;
pub(super) const THREADS_WAITED_FOR: usize = 2;
/// So long a mount is waited for, and as long as whoever is to serve it lives.
pub(super) const MOUNTED: Duration = Duration::from_secs(120);
/// How often it is asked for the next file where there is none: by who fetches what is waited for, and by others.
pub(super) const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// After an attempt that failed.
pub(super) const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The server hears so often that somebody is at work.
pub(super) const SIGN: Duration = Duration::from_secs(5);
/// And so often that bytes have come.
pub(super) const TOLD: Duration = Duration::from_millis(500);
/// So many bytes are looked at at a time.
const ZEROES: usize = 1 << 20;
/// So often, and at these times, it is looked whether somebody else has done writing a part.
const LOOKS: u32 = 30;
const LOOK: Duration = Duration::from_millis(100);
/// Of so many objects it is kept in mind where they were written: some 25 MiB, and the bytes of 256 GiB or more.
const IN_MIND: usize = 1 << 18;
/// Bytes of a reason at most.
pub(super) const REASON: usize = 600;

/// What is to be fetched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) ino: Ino,
    /// Where it is to be written.
    pub(super) segment: SegmentId,
    /// Its number in its remote.
    pub(super) number: u64,
    /// Its bytes.
    pub(super) size: u64,
    /// Where the portion begins that is to be fetched, and its bytes; none if all is.
    pub(super) portion: Option<(u64, u64)>,
}

/// What came of it.
pub(super) type Fetched = std::result::Result<(), Why>;

/// Why something does not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Why {
    text: String,
    /// It is of no use to try again.
    for_good: bool,
    /// No portion of the file can come to the segment, so that what has come there is of no use either.
    of_file: bool,
}

impl Why {
    /// What was to be fetched may come later, and costs nothing of what has come.
    pub(super) fn for_now(text: impl Into<String>) -> Self {
        Self { text: text.into(), for_good: false, of_file: false }
    }

    /// The file does not come to this segment.
    pub(super) fn of_file(text: impl Into<String>, for_good: bool) -> Self {
        Self { text: text.into(), for_good, of_file: true }
    }

    fn of_segment(error: &io::Error) -> Self {
        Self::of_file(format!("its segment: {error}"), false)
    }
}

/// A file that is on its way, or a portion of one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct OnItsWay {
    ino: Ino,
    segment: SegmentId,
    /// The portion that was asked for, and what comes instead.
    portion: Option<((u64, u64), (u64, u64))>,
}

impl OnItsWay {
    fn of(job: Job) -> Self {
        Self { ino: job.ino, segment: job.segment, portion: job.portion.map(|asked| (asked, asked)) }
    }

    fn is_of(&self, job: Job) -> bool {
        (self.ino, self.segment, self.portion.map(|(asked, _)| asked)) == (job.ino, job.segment, job.portion)
    }

    /// How the server hears that it is.
    fn sign(&self) -> Bring {
        let Self { ino, segment, portion } = *self;
        match portion {
            Some((asked, takes)) => Bring::Takes { ino, segment, asked, takes },
            None => Bring::Coming { ino, segment, bytes: 0 },
        }
    }
}

/// What keeps from going on.
pub(super) enum Stop {
    /// There is no mount any more.
    Unmounted,
    /// All files are here.
    Done,
}

/// The mount of a pool.
pub(super) struct Mount {
    pub(super) pool: PathBuf,
    pub(super) at: PathBuf,
    pub(super) to: Arc<ToBring>,
    pub(super) uuid: String,
    /// The files that are on their way.
    pub(super) coming: Mutex<Vec<OnItsWay>>,
    pub(super) over: AtomicBool,
}

impl Mount {
    /// What those have written who fetch files from one remote beside each other. A file that was written may be
    /// another one by now: what is read from it is compared with its name.
    pub(super) fn written(&self) -> Written {
        let to = self.to.clone();
        let open = move |segment| to.open_to_read(segment).ok().map(File::from);
        Written::new(open, PACKS_OF_MANY).of_newest(IN_MIND)
    }

    pub(super) fn is_there_within(&self, patience: Duration) -> bool {
        let begun = Instant::now();
        // Of no file, so that nothing comes of it.
        let request = Bring::Coming { ino: Ino(0), segment: SegmentId(0), bytes: 0 };
        while File::open(&self.at).and_then(|at| bring(&at, &request)).is_err() {
            if begun.elapsed() > patience && (patience.is_zero() || !is_to_come()) {
                return false;
            }
            thread::sleep(Duration::from_millis(50));
        }
        true
    }

    fn ask(&self, request: &Bring) -> std::result::Result<BringReply, Stop> {
        self.asked(|at| bring(at, request))
    }

    /// Asks the server. Nothing of the mount is held open meanwhile, so that it can be unmounted.
    pub(super) fn asked<T>(&self, ask: impl Fn(&File) -> io::Result<T>) -> std::result::Result<T, Stop> {
        let begun = Instant::now();
        loop {
            return match File::open(&self.at).and_then(|at| ask(&at)) {
                Ok(reply) => Ok(reply),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Too many files are open, or the like.
                Err(error) if [Some(libc::EMFILE), Some(libc::ENFILE), Some(libc::ENOMEM)].contains(&os(&error)) => {
                    thread::sleep(AFTER_FAILURE);
                    continue;
                }
                // That one request was not answered does not say that none will be.
                Err(error) if os(&error) == Some(libc::EIO) && begun.elapsed() < MOUNTED => {
                    thread::sleep(AFTER_FAILURE);
                    continue;
                }
                Err(_) => Err(Stop::Unmounted),
            };
        }
    }

    pub(super) fn next(&self, waited_for: bool) -> std::result::Result<Option<Job>, Stop> {
        let job = match self.ask(&Bring::Portion { pool: self.uuid.clone(), waited_for })? {
            BringReply::File { ino, number, size, segment } => Job { ino, segment, number, size, portion: None },
            BringReply::Portion { ino, number, size, segment, offset, len } => {
                Job { ino, segment, number, size, portion: Some((offset, len)) }
            }
            BringReply::Nothing { away: 0 } => return Err(Stop::Done),
            _ => return Ok(None),
        };
        self.coming().push(OnItsWay::of(job));
        Ok(Some(job))
    }

    pub(super) fn coming(&self) -> std::sync::MutexGuard<'_, Vec<OnItsWay>> {
        locked(&self.coming)
    }

    /// Fetches a file, or a portion of one.
    pub(super) fn fetch(&self, fetcher: &mut Fetcher<'_>, newest: &Newest, job: Job) -> Fetched {
        self.fetch_content(fetcher, newest.tree.entry(job.number).and_then(|entry| entry.file.as_ref()), job)
    }

    /// Fetches a file that has this content, or a portion of it.
    pub(super) fn fetch_content(&self, fetcher: &mut Fetcher<'_>, content: Option<&Content>, job: Job) -> Fetched {
        let Job { ino, segment, size, portion, .. } = job;
        let content = content.filter(|content| content.bytes() == size);
        let content = content.ok_or_else(|| Why::of_file("its remote has no such file", true))?;
        let file = self.to.open(segment).map_err(|error| Why::for_now(format!("its segment: {error}")))?;
        let file = File::from(file);
        fetcher.hurry(portion.is_some());
        if let Some(portion) = portion {
            check_size(&file, size).map_err(|error| Why::of_segment(&error))?;
            let fetched = self.fetch_portion(fetcher, content, (job, file), portion);
            // Else it would keep others from being asked for ahead.
            fetcher.forget();
            return fetched;
        }
        check_new(&file, size).map_err(|error| Why::of_segment(&error))?;
        // From now on others may write portions of it there, too.
        let _ = self.ask(&Bring::Coming { ino, segment, bytes: 0 });
        let (mut told, mut begin, mut end) = (Instant::now(), 0, 0);
        let each = |len| {
            end += len;
            if told.elapsed() >= TOLD {
                // What comes of it is heard at the end.
                let _ = self.ask(&Bring::Got { ino, segment, offset: begin, len: end - begin });
                (told, begin) = (Instant::now(), end);
            }
        };
        let shown = format!("inode {ino}");
        let fetched = fetcher.file(content, None, (&mut Target::Segment(&file, segment), &shown), each);
        // Closed before that is said.
        drop(file);
        fetched.map(drop).map_err(|error| {
            fetcher.forget();
            let for_good = matches!(error, Error::Damaged { .. });
            Why::of_file(error.to_string(), for_good)
        })
    }

    /// Fetches the parts of a file that a portion is within. Each can be read as soon as that is told. What one of them
    /// lacks is told, too, and the others come all the same if they can.
    fn fetch_portion(
        &self,
        fetcher: &mut Fetcher<'_>,
        content: &Content,
        (job, file): (Job, File),
        (offset, len): (u64, u64),
    ) -> Fetched {
        let Job { ino, segment, .. } = job;
        let end = offset.saturating_add(len);
        let places = content.parts.iter().scan(0_u64, |at, part| {
            let start = *at;
            *at = start.saturating_add(part.len());
            Some((start, part))
        });
        let within = |(start, part): &(u64, &Part)| *start < end && offset < start.saturating_add(part.len());
        let parts: Vec<(u64, &Part)> = places.filter(within).collect();
        let (Some((start, _)), Some((last, part))) = (parts.first(), parts.last()) else { return Ok(()) };
        let takes = (*start, last.saturating_add(part.len()) - start);
        self.coming()
            .iter_mut()
            .filter(|one| one.is_of(job))
            .for_each(|one| one.portion = Some(((offset, len), takes)));
        // Of one that the server knows no more nothing comes.
        if self.is_unknown(&Bring::Takes { ino, segment, asked: (offset, len), takes }) {
            return Ok(());
        }
        let mut ahead = parts.iter().filter(|(at, part)| !has_bytes(&file, *at, part.len()));
        let mut next = ahead.next();
        for (at, part) in &parts {
            while next.is_some_and(|(_, next)| fetcher.ask(next)) {
                next = ahead.next();
            }
            let there = is_there(fetcher, &file, part, *at);
            let fetched = if there == Some(true) { Ok(None) } else { fetcher.part(part) };
            match fetched {
                Err(error) => {
                    let for_good = matches!(error, Error::Damaged { .. });
                    let (why, bytes) = (shortened(error.to_string()), (*at, part.len()));
                    let _ = self.ask(&Bring::Lacks { ino, segment, bytes, why, for_good });
                    if !for_good {
                        // Nor would the others come now.
                        thread::sleep(AFTER_FAILURE);
                        break;
                    }
                    continue;
                }
                Ok(Some(bytes)) if there.is_none() || is_begun(&file, &bytes, *at) => {
                    file.write_all_at(&bytes, *at).map_err(|error| Why::of_segment(&error))?;
                    fetcher.has_written(part, (segment, *at));
                }
                Ok(_) if there == Some(false) => return Err(Why::of_file("its segment: it has other bytes", false)),
                Ok(_) => {}
            }
            if self.is_unknown(&Bring::Got { ino, segment, offset: *at, len: part.len() }) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Tells the server something; true if it knows nothing of what that is about, or is there no more.
    fn is_unknown(&self, request: &Bring) -> bool {
        !matches!(self.ask(request), Ok(BringReply::Noted))
    }

    /// Says what came of it.
    pub(super) fn said(&self, job: Job, fetched: Fetched) -> std::result::Result<(), Stop> {
        let Job { ino, segment, portion, .. } = job;
        let mut coming = self.coming();
        // Another portion may be on its way.
        if let Some(at) = coming.iter().position(|one| one.is_of(job)) {
            coming.swap_remove(at);
        }
        drop(coming);
        sayings((ino, segment), portion, fetched).iter().try_for_each(|request| self.ask(request).map(drop))
    }

    /// A large part may take long: until it has come, the server hears that somebody fetches it.
    pub(super) fn give_signs(&self) {
        let mut given = Instant::now();
        while !self.over.load(Ordering::SeqCst) {
            thread::sleep(PAUSES[1]);
            if given.elapsed() >= SIGN {
                given = Instant::now();
                let coming = self.coming().clone();
                coming.iter().for_each(|one| drop(self.ask(&one.sign())));
            }
        }
    }
}

/// What is said of what came of a file, or of a portion of one.
fn sayings((ino, segment): (Ino, SegmentId), portion: Option<(u64, u64)>, fetched: Fetched) -> Vec<Bring> {
    let failed = |why: Why| Bring::Failed { ino, segment, why: shortened(why.text), for_good: why.for_good };
    let over = |asked| Bring::Over { ino, segment, asked };
    match (portion, fetched) {
        (None, Ok(())) => vec![Bring::Come { ino, segment }],
        (None, Err(why)) => vec![failed(why)],
        (Some(asked), Ok(())) => vec![over(asked)],
        (Some(asked), Err(why)) if why.of_file => vec![over(asked), failed(why)],
        (Some(asked), Err(why)) => {
            let (for_good, why) = (why.for_good, shortened(why.text));
            vec![Bring::Lacks { ino, segment, bytes: asked, why, for_good }, over(asked)]
        }
    }
}

/// True if standard input is a pipe that somebody has open yet: who has started this one, and is to serve the mount.
fn is_to_come() -> bool {
    let stdin = io::stdin();
    let is_pipe = fstat(&stdin).is_ok_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFIFO);
    let mut polled = [PollFd::new(stdin.as_fd(), PollFlags::empty())];
    is_pipe && poll(&mut polled, PollTimeout::ZERO).is_ok_and(|found| found == 0)
}

fn shortened(mut why: String) -> String {
    while why.len() > REASON {
        why.pop();
    }
    why
}

/// That a segment can be one in which a file comes in portions.
fn check_size(segment: &File, size: u64) -> io::Result<()> {
    let found = segment.metadata()?;
    if found.is_file() && found.len() == size {
        return Ok(());
    }
    Err(io::Error::other("it is not one that the server has made for it"))
}

/// Whether a segment has the bytes of a part in their place; none if it has none at all there. Somebody who fetches the
/// whole file may be writing just these.
fn is_there(fetcher: &Fetcher<'_>, segment: &File, part: &Part, at: u64) -> Option<bool> {
    if !has_bytes(segment, at, part.len()) {
        return None;
    }
    let mut looks = 0..LOOKS;
    let has_them = || fetcher.read_part(segment, part, at).is_some();
    let is_there = has_them()
        || looks.any(|_| {
            thread::sleep(LOOK);
            has_them()
        });
    Some(is_there)
}

/// True if a segment has other bytes than zeroes there, or if that cannot be told.
fn has_bytes(segment: &File, at: u64, len: u64) -> bool {
    let end = at.saturating_add(len);
    let Ok(from) = i64::try_from(at) else { return true };
    let data = match lseek(segment, from, Whence::SeekData) {
        Err(Errno::ENXIO) => return false,
        Ok(data) => (data as u64).max(at),
        Err(_) => at,
    };
    let (mut at, mut buffer) = (data, vec![0; ZEROES]);
    while at < end {
        let now = (end - at).min(buffer.len() as u64) as usize;
        let is_zero = segment.read_exact_at(&mut buffer[..now], at).is_ok() && buffer[..now].iter().all(|it| *it == 0);
        if !is_zero {
            return true;
        }
        at += now as u64;
    }
    false
}

/// True if a segment has nothing but zeroes and these bytes in their place: whoever was killed had begun to write them.
fn is_begun(segment: &File, bytes: &[u8], at: u64) -> bool {
    let (mut at, mut found) = (at, vec![0; ZEROES]);
    bytes.chunks(ZEROES).all(|bytes| {
        let found = &mut found[..bytes.len()];
        let is_read = segment.read_exact_at(found, at).is_ok();
        at += bytes.len() as u64;
        is_read && found.iter().zip(bytes).all(|(found, byte)| *found == 0 || found == byte)
    })
}

/// That nothing is in a segment yet. Whoever says which one it is need not be the server of this pool.
fn check_new(segment: &File, size: u64) -> io::Result<()> {
    let found = segment.metadata()?;
    // Attributes may take a block.
    let is_hole = || found.blocks() == 0 || lseek(segment, 0, Whence::SeekData) == Err(Errno::ENXIO);
    if found.is_file() && found.len() == size && is_hole() {
        return Ok(());
    }
    Err(io::Error::other("it is not one that the server has just made"))
}

fn os(error: &io::Error) -> Option<i32> {
    error.raw_os_error().filter(|errno| *errno != Errno::UnknownErrno as i32)
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_bytes_is_not_written() {
        let scratch = tempfile::tempdir().unwrap();
        let file = File::create(scratch.path().join("segment")).unwrap();
        file.set_len(1 << 20).unwrap();
        assert!(check_new(&file, 1 << 20).is_ok());
        assert!(check_new(&file, 1 << 21).is_err());
        std::os::unix::fs::FileExt::write_all_at(&file, b"bytes", 0).unwrap();
        assert!(check_new(&file, 1 << 20).is_err());
        assert!(check_new(&File::open("/dev/null").unwrap(), 0).is_err());
    }

    /// Proves E22.
    #[test]
    fn what_somebody_had_begun_to_write_is_written_to_its_end() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..3 * ZEROES / 2).map(|n| n as u8 | 1).collect();
        file.set_len(10 + bytes.len() as u64).unwrap();
        assert!(is_begun(&file, &bytes, 10));
        file.write_all_at(&bytes[..ZEROES + 5], 10).unwrap();
        assert!(has_bytes(&file, 10, bytes.len() as u64) && is_begun(&file, &bytes, 10));
        assert!(!is_begun(&file, &bytes, 11), "beyond its end");
        file.write_all_at(&[bytes[ZEROES + 9] ^ 2], 10 + ZEROES as u64 + 9).unwrap();
        assert!(!is_begun(&file, &bytes, 10));
    }

    /// Proves E21, E22.
    #[test]
    fn what_cannot_come_now_is_said_of_the_portion_alone() {
        let (of, asked) = ((Ino(7), SegmentId(9)), (10, 20));
        let is_of_file = |said: &[Bring]| said.iter().any(|said| matches!(said, Bring::Failed { .. }));
        let is_over = |said: &Bring| matches!(said, Bring::Over { asked: (10, 20), .. });
        let said = sayings(of, Some(asked), Err(Why::for_now("others come from its remote")));
        assert!(matches!(said[0], Bring::Lacks { bytes: (10, 20), for_good: false, .. }) && is_over(&said[1]));
        assert!(!is_of_file(&said));
        let said = sayings(of, Some(asked), Err(Why::of_file("its segment: it has other bytes", false)));
        assert!(is_over(&said[0]) && is_of_file(&said));
        assert!(is_of_file(&sayings(of, None, Err(Why::for_now("503")))));
        let signs = OnItsWay { ino: of.0, segment: of.1, portion: Some((asked, (0, 64))) };
        assert!(matches!(signs.sign(), Bring::Takes { asked: (10, 20), takes: (0, 64), .. }));
    }
}
