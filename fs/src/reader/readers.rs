//! The readers that there are, and what is asked of them.

use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tensorfs_formats::ocdbt::{Asked, Told};
use tensorfs_formats::{self as formats, Metadata, Node, Planned, Recognised, Sink, Tensor};

use crate::budget::BUDGET;
use crate::waits::{self, Wait};

use super::ask::{Ask, Mark};
use super::check;
use super::hear::{
    Hear, Take, converse, head, of_bytes, of_others, of_tensors, taking_nodes, taking_pieces, taking_told,
};
use super::process::{Process, Spent, Unwanted, Watch};
use super::protocol::{Answer, DECODE_MAX, Order, Wanted};

/// There are no more than so many. Who has one at work, or has it kept for an open tensor, are fewer: 24 threads that
/// answer users, four tensors that nobody reads from, and what seals and moves files.
const MOST: usize = 33;
/// So many are kept while there is nothing to do, so that hardly anybody waits for one to start.
const IDLE: usize = 4;
/// A file that readers did not survive so often is left alone.
const STRIKES: u8 = 3;
/// So many such files are kept in mind.
const STRUCK_MAX: usize = 4096;

/// Why there is no answer, though somebody wants to know and the file can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    /// There is none this time.
    #[error("the reader that looked into it failed")]
    Once,
    /// There will be none.
    #[error("looking into it took more than it may, or no reader survived it")]
    ForGood,
}

impl Broken {
    /// What an error says of it.
    pub fn of(error: &io::Error) -> Option<Self> {
        let inner = error.get_ref()?;
        inner.downcast_ref().copied().or_else(|| inner.is::<NotStarted>().then_some(Self::Once))
    }
}

/// There are not enough processes, descriptors or memory, or the program is gone: which says nothing about the file.
#[derive(Debug, thiserror::Error)]
#[error("a reader could not be started: {0}")]
struct NotStarted(io::Error);

/// The readers that there are.
#[derive(Clone, Default)]
pub(crate) struct Readers(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// The program to start; by default this one.
    program: Option<PathBuf>,
    budget: Budget,
    /// Nobody hostile is near: no process is needed.
    here: AtomicBool,
    /// A command looks into files of its user's: who keeps a server hears how well readers are locked in, he does not.
    of_a_command: AtomicBool,
    starter: Mutex<Option<Sender<Sender<io::Result<Process>>>>>,
    /// Those that have nothing to do, and whose files they have seen.
    idle: Mutex<Vec<(u32, Process)>>,
    struck: Mutex<HashMap<Mark, u8>>,
    missing: Mutex<Option<Vec<String>>>,
    /// Each process has one of these, and this is one more.
    counted: Arc<()>,
    started: AtomicU64,
    failed: AtomicU64,
    given_up: AtomicU64,
}

impl Shared {
    /// Starts a process. Where there are as many as there may be, one that has nothing to do makes room for it. Called
    /// by one thread.
    fn start(&self) -> io::Result<Process> {
        while Arc::strong_count(&self.counted) > MOST {
            let idle = {
                let mut idle = self.idle.lock();
                if idle.is_empty() { None } else { Some(idle.remove(0)) }
            };
            if idle.is_none() {
                return Err(io::Error::other("there are as many as there may be"));
            }
        }
        let program = self.program.as_deref().unwrap_or(Path::new("/proc/self/exe"));
        Process::start(program, self.counted.clone())
    }
}

/// What a request may take of the processor.
struct Budget(Duration);

impl Default for Budget {
    fn default() -> Self {
        Self(BUDGET)
    }
}

/// What there is to know of readers since this server began.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReaderInfo {
    /// Processes that were started.
    pub started: u64,
    /// Those that failed, or took more than they may.
    pub failed: u64,
    /// Those that were ended as nobody wanted to know any more.
    pub given_up: u64,
    /// What they are not kept from, as the kernel cannot, and why.
    pub not_locked: Vec<String>,
}

/// A tensor that is decoded by a reader, which goes on where it was.
pub(crate) struct Decoder {
    readers: Readers,
    tensor: Arc<Tensor>,
    at_work: Option<Process>,
    /// Whose file it is.
    owner: u32,
}

impl Readers {
    /// Does everything in this process: for those who drive the filesystem without a kernel, and trust the files.
    pub fn stay_here(&self) {
        self.0.here.store(true, Relaxed);
    }

    /// Those of a command.
    pub fn of_a_command() -> Self {
        let readers = Self::default();
        readers.0.of_a_command.store(true, Relaxed);
        readers
    }

    /// Those that are this program instead, and have so much of the processor.
    #[cfg(test)]
    pub fn of(program: PathBuf, budget: Duration) -> Self {
        Self(Arc::new(Shared { program: Some(program), budget: Budget(budget), ..Shared::default() }))
    }

    /// What one question may take of the processor, as a rule.
    pub fn budget(&self) -> Duration {
        self.0.budget.0
    }

    /// What there is to know of them.
    pub fn describe(&self) -> ReaderInfo {
        ReaderInfo {
            started: self.0.started.load(Relaxed),
            failed: self.0.failed.load(Relaxed),
            given_up: self.0.given_up.load(Relaxed),
            not_locked: self.0.missing.lock().clone().unwrap_or_default(),
        }
    }

    /// Says what a file is, and gives each tensor that is wanted to `sink`: as [`formats::recognise()`] does, or, from
    /// a place on, as [`formats::resume_some`] or [`formats::resume_behind`].
    pub fn recognise(&self, ask: &Ask<'_>, wanted: Wanted, sink: &mut Sink<'_>) -> Recognised {
        if self.0.here.load(Relaxed) {
            return match wanted {
                Wanted::All => formats::recognise(ask.source, sink),
                Wanted::First => formats::recognise(ask.source, &mut |tensor| {
                    let _ = sink(tensor);
                    ControlFlow::Break(())
                }),
                Wanted::Shards => formats::shards(ask.source),
                Wanted::Plan | Wanted::Pieces | Wanted::Nodes(_) | Wanted::Tree(_) => formats::planned(ask.source),
                Wanted::Block(asked) => formats::block(ask.source, asked, sink),
                Wanted::Part => formats::part(ask.source),
                Wanted::From { at, limit } => formats::resume_some(ask.source, at, limit, sink),
                Wanted::Behind { at, front } => formats::resume_behind(ask.source, at, front, sink),
            };
        }
        let mut tensors = 0;
        let found = self.try_to_recognise(ask, wanted, &mut tensors, sink);
        let end = wanted.start();
        found.unwrap_or_else(|error| Recognised { tensors, end, ..Recognised::unread(error) })
    }

    fn try_to_recognise(
        &self,
        ask: &Ask<'_>,
        wanted: Wanted,
        tensors: &mut u64,
        sink: &mut Sink<'_>,
    ) -> io::Result<Recognised> {
        let size = ask.source.size()?;
        let order = (Order::Recognise { size, wanted }, head(ask.source, wanted.start(), size));
        let mut process = None;
        let found = self.request(ask, &mut process, order, &mut of_tensors(size, wanted, tensors, sink));
        self.put(ask.owner, process);
        found
    }

    /// Reads a plan or an index in full, and gives each piece of it to `sink`: as [`formats::pieces`] does.
    pub fn pieces(&self, ask: &Ask<'_>, sink: &mut dyn FnMut(Planned) -> ControlFlow<()>) -> io::Result<Recognised> {
        if self.0.here.load(Relaxed) {
            return Ok(formats::pieces(ask.source, sink));
        }
        self.each_said(ask, Wanted::Pieces, &mut taking_pieces(sink))
    }

    /// Reads the metadata of a hierarchy of arrays, and gives each directory that it tells of to `sink`: as
    /// [`formats::nodes`] does.
    pub fn nodes(
        &self,
        ask: &Ask<'_>,
        metadata: Metadata,
        sink: &mut dyn FnMut(Node) -> ControlFlow<()>,
    ) -> io::Result<Recognised> {
        if self.0.here.load(Relaxed) {
            return Ok(formats::nodes(ask.source, metadata, sink));
        }
        self.each_said(ask, Wanted::Nodes(metadata), &mut taking_nodes(sink))
    }

    /// Has what is at a place of a file of a database read, and gives all that it says to `sink`: as [`formats::tree`]
    /// does.
    pub fn tree(
        &self,
        ask: &Ask<'_>,
        asked: Asked,
        sink: &mut dyn FnMut(Told) -> ControlFlow<()>,
    ) -> io::Result<Recognised> {
        if self.0.here.load(Relaxed) {
            return Ok(formats::tree(ask.source, asked, sink));
        }
        self.each_said(ask, Wanted::Tree(asked), &mut taking_told(sink))
    }

    /// Has a file read that says something other than tensors. `take` is given what is said, and says whether more is
    /// wanted.
    fn each_said(&self, ask: &Ask<'_>, wanted: Wanted, take: Take<'_>) -> io::Result<Recognised> {
        let size = ask.source.size()?;
        let mut process = None;
        let order = (Order::Recognise { size, wanted }, head(ask.source, wanted.start(), size));
        let found = self.request(ask, &mut process, order, &mut of_others(size, take));
        self.put(ask.owner, process);
        found
    }

    /// A decoder of a tensor whose bytes do not stand in the file as they are to be read.
    pub fn decoder(&self, tensor: Arc<Tensor>) -> Decoder {
        Decoder { readers: self.clone(), tensor, at_work: None, owner: 0 }
    }

    /// Has a reader do something. It is left in `process` if it can do more.
    fn request<T>(
        &self,
        ask: &Ask<'_>,
        process: &mut Option<Process>,
        order: (Order, Vec<u8>),
        hear: Hear<'_, T>,
    ) -> io::Result<T> {
        (ask.wanted)()?;
        if self.0.struck.lock().get(&ask.version).is_some_and(|strikes| *strikes >= STRIKES) {
            return Err(io::Error::other(Broken::ForGood));
        }
        let taken = match process.take() {
            Some(process) => process,
            None => self.take(ask.owner)?,
        };
        let budget = self.0.budget.0 + ask.for_bytes;
        let watch = Watch { pause: ask.pause, wanted: ask.wanted, budget, at_leisure: ask.at_leisure };
        // What reading the file gave: the reader is not asked what it made of it.
        let mut unreadable = None;
        let mut talk = taken.talk(watch);
        let said = waits::during(Wait::Reader, || converse(ask.source, talk.wire(), order, hear, &mut unreadable));
        (ask.took)(talk.spent());
        drop(talk);
        match said {
            Ok(done) => {
                *process = Some(taken);
                match unreadable {
                    Some(error) => Err(error),
                    None => Ok(done),
                }
            }
            Err(error) => Err(unreadable.unwrap_or_else(|| self.judge(ask, taken, error))),
        }
    }

    /// What it means that a conversation ended with an error, and with it the reader.
    fn judge(&self, ask: &Ask<'_>, process: Process, error: io::Error) -> io::Error {
        let error = match error.downcast::<Unwanted>() {
            Ok(Unwanted(why)) => {
                self.0.given_up.fetch_add(1, Relaxed);
                return why;
            }
            Err(error) => error,
        };
        let spent = error.get_ref().is_some_and(|error| error.is::<Spent>());
        let its_own = matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::InvalidData
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::WriteZero
        );
        if !spent && !its_own {
            return error;
        }
        self.0.failed.fetch_add(1, Relaxed);
        let strikes = {
            let mut struck = self.0.struck.lock();
            if struck.len() >= STRUCK_MAX && !struck.contains_key(&ask.version) {
                struck.clear();
            }
            let strikes = struck.entry(ask.version).or_default();
            *strikes = strikes.saturating_add(1);
            *strikes
        };
        let how = if spent { "took more than it may".to_owned() } else { format!("{}: {error}", process.end()) };
        let then = if strikes >= STRIKES { "; nobody looks into it any more until it changes" } else { "" };
        (ask.tell)(&format!("the reader that looked into it {how}{then}"));
        io::Error::other(if spent { Broken::ForGood } else { Broken::Once })
    }

    fn take(&self, owner: u32) -> io::Result<Process> {
        let found = || {
            let mut idle = self.0.idle.lock();
            let at = idle.iter().rposition(|(of, _)| *of == owner)?;
            Some(idle.remove(at).1)
        };
        while let Some(mut process) = found() {
            if process.is_ready() {
                return Ok(process);
            }
        }
        self.start().map_err(|error| {
            if !self.0.of_a_command.load(Relaxed) {
                log::warn!("a reader could not be started: {error}");
            }
            io::Error::other(NotStarted(error))
        })
    }

    fn put(&self, owner: u32, process: Option<Process>) {
        let mut idle = self.0.idle.lock();
        idle.extend(process.map(|process| (owner, process)));
        let more = if idle.len() > IDLE { Some(idle.remove(0)) } else { None };
        drop(idle);
        drop(more);
    }

    /// Starts a reader, on a thread that lives as long as the server: a reader ends with the thread that started it.
    fn start(&self) -> io::Result<Process> {
        let (tell, hear) = channel();
        let mut starter = self.0.starter.lock();
        if starter.is_none() {
            let (ask, asked) = channel::<Sender<io::Result<Process>>>();
            // Not so that it would keep alive whoever it waits for.
            let shared = Arc::downgrade(&self.0);
            thread::Builder::new().name("tensorfs-readers".into()).spawn(move || {
                for tell in asked {
                    let Some(shared) = shared.upgrade() else { return };
                    // Nobody may wait for it any more.
                    let _ = tell.send(shared.start());
                }
            })?;
            *starter = Some(ask);
        }
        let asked = starter.as_ref().is_some_and(|starter| starter.send(tell).is_ok());
        drop(starter);
        let gone = || io::Error::other("nobody starts readers");
        let process = if asked { hear.recv().map_err(|_| gone())?? } else { return Err(gone()) };
        let watch = Watch { pause: &|| (), wanted: &|| Ok(()), budget: self.0.budget.0, at_leisure: false };
        let missing = match process.talk(watch).wire().receive() {
            Ok((Answer::Ready(missing), _)) => missing,
            Ok(_) => return Err(check::nonsense("a reader that is none")),
            Err(error) => {
                let how = process.end();
                return Err(io::Error::other(format!("it {how}: {error}")));
            }
        };
        self.0.started.fetch_add(1, Relaxed);
        let mut known = self.0.missing.lock();
        if known.is_none() {
            let level = if self.0.of_a_command.load(Relaxed) { log::Level::Info } else { log::Level::Warn };
            for missing in &missing {
                log::log!(level, "readers of files are locked in less than they could be: {missing}");
            }
            *known = Some(missing);
        }
        Ok(process)
    }
}

impl Decoder {
    /// Fills `buffer` with decoded bytes from `offset` on, as far as there are any. Fast only from front to back.
    pub fn read_at(&mut self, ask: &Ask<'_>, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.readers.0.here.load(Relaxed) {
            return formats::TensorReader::new(ask.source, &*self.tensor)?.read_at(offset, buffer);
        }
        self.owner = ask.owner;
        let size = ask.source.size()?;
        let len = buffer.len().min(DECODE_MAX);
        let tensor = self.at_work.is_none().then(|| Box::new(Tensor::clone(&self.tensor)));
        let order = Order::Decode { size, tensor, offset, len: len as u32 };
        self.readers.request(ask, &mut self.at_work, (order, Vec::new()), &mut of_bytes(&mut buffer[..len]))?
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        self.readers.put(self.owner, self.at_work.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    use serde::Serialize;
    use tensorfs_formats::{Dtype, Format, Location};
    use tensorfs_layout::segment::start_apart;

    use super::super::protocol::{Summary, Wire};

    /// A message as it is sent.
    fn message(message: &impl Serialize, bytes: &[u8]) -> Vec<u8> {
        let encoded = postcard::to_stdvec(message).unwrap();
        let lengths = [(encoded.len() as u32).to_le_bytes(), (bytes.len() as u32).to_le_bytes()].concat();
        [&lengths, &encoded[..], bytes].concat()
    }

    /// A program that says this, whatever it hears, and then does something.
    fn says(dir: &std::path::Path, bytes: &[u8], then: &str) -> PathBuf {
        let (said, program) = (dir.join("said"), dir.join("program"));
        fs::write(&said, bytes).unwrap();
        let script = format!("#!/bin/sh\necho $$ > '{}/pid'\ncat '{}' >&0\n{then}\n", dir.display(), said.display());
        // Nobody else has it open to write when it is started.
        start_apart(|| fs::write(&program, script)).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        program
    }

    /// Asks a reader about this version of a file of 100 bytes. Says what it was told, how many tensors it was given,
    /// what is said of the reader, and what it took.
    fn ask_of(readers: &Readers, version: Mark) -> (Recognised, u64, String, Duration) {
        let file = [7_u8; 100];
        let (source, mut given) = (&file[..], 0);
        let (told, took) = (RefCell::default(), Cell::default());
        let until = Instant::now() + Duration::from_secs(60);
        let ask = Ask {
            source: &source,
            version,
            owner: 0,
            for_bytes: Duration::ZERO,
            tell: &|what| *told.borrow_mut() = what.to_owned(),
            // Nothing but what the reader takes of the processor is limited; and a test that fails ends.
            at_leisure: true,
            took: &|time| took.set(time),
            pause: &|| (),
            wanted: &|| if Instant::now() < until { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) },
        };
        let found = readers.recognise(&ask, Wanted::All, &mut |tensor| {
            assert_eq!(tensor.fault(100), None);
            given += 1;
            std::ops::ControlFlow::Continue(())
        });
        (found, given, told.take(), took.get())
    }

    const VERSION: Mark = (1, 2, 3, 4);

    /// Asks a reader that says this. It stays for a while, so that what it said is heard.
    fn ask(bytes: &[u8]) -> (Recognised, u64) {
        let dir = tempfile::tempdir().unwrap();
        let readers = Readers::of(says(dir.path(), bytes, "exec sleep 1"), BUDGET);
        let (found, given, ..) = ask_of(&readers, VERSION);
        (found, given)
    }

    fn broken(found: &Recognised) -> Option<Broken> {
        found.error.as_ref().and_then(Broken::of)
    }

    fn is_gone(dir: &std::path::Path) -> bool {
        let pid = fs::read_to_string(dir.join("pid")).unwrap().trim().parse().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_err()
    }

    /// Proves T11.
    #[test]
    fn a_reader_that_takes_more_of_the_processor_than_it_may_is_ended() {
        let ready = message(&Answer::Ready(Vec::new()), &[]);
        let (dir, budget) = (tempfile::tempdir().unwrap(), Duration::from_millis(300));
        let readers = Readers::of(says(dir.path(), &ready, "while :; do :; done"), budget);
        let (found, _, told, took) = ask_of(&readers, VERSION);
        assert_eq!(broken(&found), Some(Broken::ForGood));
        assert!(took > budget && told.ends_with("took more than it may"), "{told} {took:?}");
        assert_eq!(readers.describe().failed, 1);
        assert!(is_gone(dir.path()));
        // One that waits, such as for a disk, takes nothing of it.
        let dir = tempfile::tempdir().unwrap();
        let (said, end) = (dir.path().join("end"), message(&summary(100), &[]));
        fs::write(&said, end).unwrap();
        let program = says(dir.path(), &ready, &format!("sleep 1\ncat '{}' >&0\nexec sleep 1", said.display()));
        let readers = Readers::of(program, budget);
        let (found, _, told, took) = ask_of(&readers, VERSION);
        assert!(found.error.is_none() && took < budget, "{:?} {told} {took:?}", found.error);
    }

    /// Proves B9.
    #[test]
    fn there_are_so_many_and_one_that_is_idle_makes_room_for_another() {
        let ready = message(&Answer::Ready(Vec::new()), &[]);
        let dir = tempfile::tempdir().unwrap();
        let readers = Readers::of(says(dir.path(), &ready, "exec sleep 1000"), BUDGET);
        let there_are = || Arc::strong_count(&readers.0.counted) - 1;
        let mut at_work: Vec<Process> = (0..MOST as u32).map(|owner| readers.take(owner).unwrap()).collect();
        assert_eq!(there_are(), MOST);
        let refused = readers.take(1000).err().unwrap();
        assert_eq!((Broken::of(&refused), there_are()), (Some(Broken::Once), MOST));
        // Each owner has his own: there are as many as before.
        for owner in 0..IDLE as u32 {
            readers.put(owner, at_work.pop());
        }
        assert_eq!((there_are(), readers.0.idle.lock().len()), (MOST, IDLE));
        for left in (0..IDLE).rev() {
            at_work.push(readers.take(1000).unwrap());
            assert_eq!((there_are(), readers.0.idle.lock().len()), (MOST, left));
        }
        assert!(readers.take(1000).is_err());
        drop(at_work);
        assert_eq!(there_are(), 0);
    }

    /// Proves T10.
    #[test]
    fn what_three_readers_did_not_survive_is_left_alone() {
        let ready = message(&Answer::Ready(Vec::new()), &[]);
        let dir = tempfile::tempdir().unwrap();
        let readers = Readers::of(says(dir.path(), &ready, "kill -SEGV $$"), BUDGET);
        for time in 1..=3 {
            let (found, _, told, _) = ask_of(&readers, VERSION);
            assert_eq!(broken(&found), Some(Broken::Once));
            assert_eq!(told.ends_with("nobody looks into it any more until it changes"), time == 3, "{told}");
            let known = readers.describe();
            assert_eq!((known.started, known.failed), (time, time));
        }
        let (found, _, told, _) = ask_of(&readers, VERSION);
        assert_eq!((broken(&found), &*told, readers.describe().started), (Some(Broken::ForGood), "", 3));
        let (found, ..) = ask_of(&readers, (1, 2, 3, 5));
        assert_eq!((broken(&found), readers.describe().started), (Some(Broken::Once), 4));
    }

    fn tensor(offset: u64, len: u64) -> Vec<u8> {
        let location = Location::Raw { offset, len };
        postcard::to_stdvec(&Tensor::new(b"t".to_vec(), Dtype::U8, vec![len], location)).unwrap()
    }

    fn summary(end: u64) -> Answer {
        Answer::Recognised(Summary {
            format: Format::Npy,
            frames: 0,
            bad_frames: 0,
            end,
            cut: false,
            reason: None,
            beyond: false,
            metadata: Vec::new(),
            calls: Vec::new(),
            stopped: false,
            failed: None,
        })
    }

    /// What is empty takes a byte of a message, and more of the server's memory.
    #[test]
    fn no_more_is_taken_in_than_a_file_may_say() {
        let pairs = |count| vec![(String::new(), String::new()); count];
        let hears = |pairs: Vec<(String, String)>, calls: usize| {
            let Answer::Recognised(summary) = summary(100) else { unreachable!() };
            let said = Answer::Recognised(Summary { metadata: pairs, calls: vec![String::new(); calls], ..summary });
            let mut wire = Wire::new(io::Cursor::new(message(&said, &[])));
            wire.receive::<Answer>().is_ok()
        };
        assert!(hears(pairs(1 << 17), 32));
        assert!(!hears(pairs((1 << 17) + 1), 0) && !hears(pairs(2_000_000), 0));
        assert!(!hears(pairs(0), 33));
    }

    #[test]
    fn what_a_reader_says_is_believed_only_if_it_can_be() {
        let ready = message(&Answer::Ready(Vec::new()), &[]);
        let end = message(&summary(100), &[]);
        let good = message(&Answer::Tensors(1), &tensor(90, 10));
        let (found, given) = ask(&[&ready[..], &good, &end].concat());
        assert_eq!((found.error.map(|error| error.to_string()), found.tensors, given), (None, 1, 1));
        for bad in [
            message(&Answer::Tensors(1), &tensor(91, 10)),
            message(&Answer::Tensors(1), &tensor(u64::MAX, 10)),
            message(&Answer::Tensors(2), &tensor(0, 1)),
            message(&Answer::Tensors(0), &[]),
            message(&Answer::Tensors(u32::MAX), &tensor(0, 1)),
            message(&summary(101), &[]),
            message(&Answer::Decoded, &[1, 2, 3]),
            message(&Answer::Ready(Vec::new()), &[]),
            vec![255; 8],
            vec![1, 0, 0, 0, 0, 0, 0, 0, 99],
        ] {
            let (found, given) = ask(&[&ready[..], &bad, &end].concat());
            assert_eq!(found.error.as_ref().and_then(Broken::of), Some(Broken::Once), "{bad:?}");
            assert_eq!(given, u64::from(bad[8..] == message(&Answer::Tensors(2), &tensor(0, 1))[8..]));
        }
        // One that never says that it is ready is none.
        assert!(ask(&[]).0.error.is_some() && ask(&end).0.error.is_some());
    }

    #[test]
    fn no_answer_makes_the_server_panic() {
        let ready = message(&Answer::Ready(Vec::new()), &[]);
        let good = [message(&Answer::Tensors(1), &tensor(0, 10)), message(&summary(100), &[])].concat();
        let mut random = 88_172_645_463_325_252_u64;
        for _ in 0..20 {
            let mut said = good.clone();
            for _ in 0..4 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let at = random as usize % said.len();
                said[at] = (random >> 32) as u8;
            }
            let (found, given) = ask(&[&ready[..], &said].concat());
            assert!(found.error.is_some() || found.tensors == given);
        }
    }
}
