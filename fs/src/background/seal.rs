//! Sealing one file: it is read once, behind everybody's back, for its checksums and tensors. Opening it for writing
//! has that given up; a file that is sealed is thawed, durably, before it can be written (rule 5).

use std::cell::Cell;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tensorfs_formats::{Recognised, Sink, Source};
use tensorfs_layout::segment::{Before, Known, SealedRun, examine};
use tensorfs_layout::tree::{FileChain, Object, Run};
use tensorfs_layout::{Ino, SegmentId};

use crate::budget::for_bytes;
use crate::error::{Fault, Host, Result};
use crate::file::{Files, Locked};
use crate::reader::{Ask, Broken, Wanted};
use crate::store::host::HostStat;
use crate::store::{BadRun, Store, host};

use super::checksums::{Checksum, bad_runs, checksums, have_checksums, not_as_sealed, provisional_checksums};
use super::gone_on::{Start, starts};
use super::growth::{FRAME_HEADER, Growth, HELD, Window};

/// What came of sealing a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is sealed now.
    Sealed,
    /// It was sealed, or has no bytes.
    Already,
    /// It is open for writing, or mapped so: it comes into the queue when that is over.
    InUse,
    /// Something was in the way, such as a process of an earlier mount that can write it: to be tried again.
    Later,
    /// It has no name any more, or is damaged, or its owner's files take too much memory: it is not to be sealed.
    Unfit,
}

/// What a file's bytes are.
enum Found {
    /// These records.
    Runs(Vec<SealedRun>),
    /// Those that were sealed while it was open.
    AsSealed,
    /// Not those that were sealed.
    Bad(Vec<BadRun>),
    /// Not known: reading them was given up.
    GivenUp,
}

/// Reads a committed file that nothing can write, and stores what it is. `stopped` is asked now and then. A file that
/// is sealed already is sealed `again` only if its bytes are those that were sealed, and if there is something new to
/// say of them.
pub(crate) fn seal_file(files: &Files, ino: Ino, again: bool, stopped: &dyn Fn() -> bool) -> Result<Outcome> {
    let store = files.store();
    store.settle_value(ino)?;
    let own = store.view().object(ino).and_then(|object| object.attributes.segment);
    if let Some(segment) = own {
        // Once without the lock, so that the host need not read anything from its disk for the calls that are made with
        // it: whoever wants the file would wait for that.
        drop(files.readings().open(store.pool(), segment));
    }
    let node = files.node(ino);
    let mut file = files.lock(&node);
    if file.watch_if_grown() {
        drop(file);
        store.forget_attributes(ino);
        return Ok(Outcome::InUse);
    }
    let segment = match may_seal(store, &file, again)? {
        // A seal is of what the segment holds, and ends what the log does.
        Ok(_) if store.is_in_log_alone(ino) => return Ok(Outcome::Later),
        Ok(segment) => segment,
        Err(outcome) => return Ok(outcome),
    };
    let bytes = store.segments().open(segment, libc::O_RDONLY | libc::O_NOATIME).host("opening a segment")?;
    let before = host::stat(&bytes).host("looking at a segment")?;
    let quiet = file.read_quietly(File::from(bytes));
    let go_on = || quiet.is_undisturbed() && !stopped();
    let found = catch_unwind(AssertUnwindSafe(|| look(files, (ino, segment), quiet.open(), (&before, again), &go_on)));
    // Closed before the lock is let go of: whoever waited would take it for a program that has the file mapped.
    let (file, bytes, undisturbed) = quiet.end();
    let found = found.map_err(|_| Fault::warn(libc::EIO, "recognising it panicked"))?;
    let after = match may_seal(store, &file, again)? {
        Ok(same) if same == segment => store.segments().stat(segment).host("looking at a segment")?,
        Ok(_) => return Ok(Outcome::Later),
        Err(outcome) => return Ok(outcome),
    };
    if !undisturbed || (after.size, after.ctime) != (before.size, before.ctime) || stopped() {
        return Ok(Outcome::Later);
    }
    let found = match found {
        // It is tried again, until it is known that no reader will do.
        Err(error) if Broken::of(&error).is_some() => return Ok(Outcome::Later),
        found => found,
    };
    let runs = match found.host("reading a segment")? {
        Found::Runs(runs) => Some(runs),
        Found::AsSealed => None,
        Found::GivenUp => return Ok(Outcome::Later),
        Found::Bad(bad) => {
            store.settle_unlike(ino, (segment, &bytes), bad);
            return Ok(Outcome::Unfit);
        }
    };
    drop(bytes);
    let stored = match runs {
        None => store.pool().let_seals_hold(ino, segment, before.size)?,
        Some(runs) if again && says_no_more(store, ino, &runs) => return Ok(Outcome::Already),
        Some(runs) => {
            let taken = store.view().object(ino).map_or(0, Object::taken);
            has_memory(store, ino, &runs, taken) && store.pool().seal(ino, segment, after.allocated, runs)?
        }
    };
    if !stored {
        return Ok(Outcome::Unfit);
    }
    store.counters().sealed.add(1);
    store.counters().sealed_bytes.add(before.size);
    Ok(Outcome::Sealed)
}

/// True if there may be so much in memory of the file's records and tensors, of which so much is there already.
pub(super) fn has_memory(store: &Store, ino: Ino, runs: &[SealedRun], taken: u64) -> bool {
    let view = store.view();
    let Some(object) = view.object(ino) else { return false };
    let said = |run: &SealedRun| (size_of::<Run>() + run.seal.description.len()) as u64;
    let more = runs.iter().map(said).sum::<u64>().saturating_sub(taken);
    let room = store.memory().check(&view, object.attributes.uid, more);
    room.inspect_err(|_| log::debug!("inode {ino}: not sealed: the files of its owner take too much memory")).is_ok()
}

/// The segment of a file that can be sealed now, or why it cannot. A sealed one can be sealed `again`.
pub(super) fn may_seal(
    store: &Store,
    file: &Locked<'_>,
    again: bool,
) -> Result<std::result::Result<SegmentId, Outcome>> {
    store.check_writable()?;
    let (segment, size) = {
        let view = store.view();
        let Some(object) = view.object(file.ino()).filter(|object| object.names() > 0) else {
            return Ok(Err(Outcome::Unfit));
        };
        let Some(chain) = object.chain() else { return Ok(Err(Outcome::Unfit)) };
        match object.attributes.segment {
            _ if object.attributes.damaged => return Ok(Err(Outcome::Unfit)),
            _ if chain.is_sealed() && !(again && chain.has_seals()) => return Ok(Err(Outcome::Already)),
            None => return Ok(Err(Outcome::Already)),
            Some(segment) => (segment, object.size()),
        }
    };
    if !file.is_unwritten() {
        return Ok(Err(Outcome::InUse));
    }
    if file.is_opening() || file.is_quiet() {
        return Ok(Err(Outcome::Later));
    }
    let segments = store.segments();
    if segments.failed(segment) || segments.gone(segment).is_some() {
        return Ok(Err(Outcome::Unfit));
    }
    if !segments.quiescent(segment) {
        return Ok(Err(Outcome::Later));
    }
    let host = segments.stat(segment).host("looking at a segment")?;
    if host.size != size {
        return Err(Fault::warn(libc::EIO, format!("its segment has {} bytes, and the file {size}", host.size)));
    }
    Ok(Ok(segment))
}

/// Finds out what a file's bytes are: a reader says what tensors there are in them. A file that readers do not get
/// through is sealed as one of which that is not known. What is sealed already is not read for its checksum, but where
/// it is to be sealed `again`: then it is compared first; or where it is to be cut otherwise: then it is compared
/// meanwhile.
fn look(
    files: &Files,
    (ino, segment): (Ino, SegmentId),
    bytes: &File,
    (before, again): (&HostStat, bool),
    go_on: &dyn Fn() -> bool,
) -> io::Result<Found> {
    let store = files.store();
    let bad = match again {
        true => bad_runs(bytes, &checksums(store, ino), go_on),
        // However much it has grown since, all of it need not be read to find them once more.
        false => still_unlike(store, (ino, segment), bytes, go_on),
    };
    if !bad.is_empty() {
        return Ok(Found::Bad(bad));
    }
    let provisional = provisional_checksums(store, ino);
    let believed = have_checksums(bytes, &provisional, go_on)?;
    if !go_on() {
        return Ok(Found::GivenUp);
    }
    if !believed {
        store.counters().changed_open.add(1);
        let what = "bytes were changed that had been sealed while it was open; it is sealed as it is now";
        log::warn!("{}: {what}", name_of(store, ino));
    }
    if believed && !again && !provisional.is_empty() && sealed_to(store, ino) == before.size {
        return Ok(Found::AsSealed);
    }
    let (mut known, starts) = known(store, ino, (again, believed));
    match examine_file(files, (ino, segment), (bytes, before), (&mut known, starts), go_on) {
        Ok(runs) => Ok(runs.map_or(Found::GivenUp, Found::Runs)),
        Err(error) => not_as_sealed(&error).map(Found::Bad).ok_or(error),
    }
}

/// What kept a file from being sealed when that was tried last, as far as it is still so.
fn still_unlike(
    store: &Store,
    (ino, segment): (Ino, SegmentId),
    bytes: &File,
    go_on: &dyn Fn() -> bool,
) -> Vec<BadRun> {
    let mut unlike = store.unlike(ino, segment);
    if unlike.is_empty() {
        return unlike;
    }
    let is_unlike = |known: &Checksum| unlike.iter().any(|bad| (bad.offset, bad.len) == (known.offset, known.len));
    let sealed: Vec<Checksum> = checksums(store, ino).into_iter().filter(is_unlike).collect();
    let bad: HashSet<u64> = bad_runs(bytes, &sealed, go_on).iter().map(|bad| bad.offset).collect();
    unlike.retain(|known| bad.contains(&known.offset));
    unlike
}

/// Reads a file and makes seals of it; a reader says what tensors there are in it. It is looked at as a whole where it
/// cannot be gone on with.
fn examine_file(
    files: &Files,
    (ino, segment): (Ino, SegmentId),
    (bytes, host): (&File, &HostStat),
    (known, starts): (&mut Before, Vec<Start>),
    go_on: &dyn Fn() -> bool,
) -> io::Result<Option<Vec<SealedRun>>> {
    let room = files.store().pool().description_room();
    let reader = Reader::new(files, (ino, segment), host, go_on);
    let size = host.size;
    let mut growth = Growth::new(bytes);
    for Start { gone_on, wanted } in starts {
        // What is held is read once, both for what it is and for its checksum.
        let from = wanted.start();
        let window = if size.saturating_sub(from) <= HELD { Window::Held } else { Window::All };
        growth.hold(from, size, window)?;
        let format = gone_on.summary.format;
        known.gone_on = Some(gone_on);
        let goes_on = Cell::new(true);
        let recognise = |source: &dyn Source, sink: &mut Sink<'_>| {
            let found = reader.recognise((source, size), wanted, sink);
            // A shorter rest says nothing.
            let is_begun = found.cut && size.saturating_sub(found.end) >= FRAME_HEADER;
            let goes_on_here = match wanted {
                Wanted::From { .. } => found.frames > 0 || is_begun,
                // Nor is it where no reader gets through.
                _ => !found.stopped && found.format == format,
            };
            goes_on.set(goes_on_here || found.error.is_some());
            if goes_on.get() { found } else { Recognised::unread(io::Error::other("it is not gone on with here")) }
        };
        let runs = examine(&growth.upto(size), size, room, known, go_on, &recognise);
        if goes_on.get() {
            return runs;
        }
        if !go_on() {
            return Ok(None);
        }
    }
    known.gone_on = None;
    let recognise = |source: &dyn Source, sink: &mut Sink<'_>| reader.recognise((source, size), Wanted::All, sink);
    examine(bytes, size, room, known, go_on, &recognise)
}

/// Has readers say what is in a file that is to be sealed. Of one that they do not get through that is said.
pub(super) struct Reader<'a> {
    files: &'a Files,
    ino: Ino,
    segment: SegmentId,
    owner: u32,
    host: &'a HostStat,
    go_on: &'a dyn Fn() -> bool,
}

impl<'a> Reader<'a> {
    pub fn new(
        files: &'a Files,
        (ino, segment): (Ino, SegmentId),
        host: &'a HostStat,
        go_on: &'a dyn Fn() -> bool,
    ) -> Self {
        let owner = files.store().view().object(ino).map_or(0, |object| object.attributes.uid);
        Self { files, ino, segment, owner, host, go_on }
    }

    /// Says what is in a source of so many bytes.
    pub fn recognise(&self, (source, size): (&dyn Source, u64), wanted: Wanted, sink: &mut Sink<'_>) -> Recognised {
        let Self { files, ino, segment, owner, host, go_on } = *self;
        let ask = Ask {
            source,
            version: (segment.0, size, host.ctime.sec, host.ctime.nsec),
            owner,
            for_bytes: for_bytes(host.allocated),
            tell: &|what: &str| log::warn!("{}: {what}", name_of(files.store(), ino)),
            at_leisure: false,
            took: &|_| (),
            pause: &|| (),
            wanted: &|| if go_on() { Ok(()) } else { Err(io::Error::other("no longer wanted")) },
        };
        let mut found = files.readers().recognise(&ask, wanted, sink);
        if found.error.as_ref().and_then(Broken::of) == Some(Broken::ForGood) {
            // Its reason is that of the error.
            (found.error, found.tensors, found.stopped) = (None, 0, true);
        }
        found
    }
}

/// What messages call a file.
fn name_of(store: &Store, ino: Ino) -> String {
    let path = store.path_to_show(&store.view(), ino);
    path.map_or_else(|| format!("inode {ino}"), |path| String::from_utf8_lossy(&path).into_owned())
}

/// What is known of a file before it is sealed, if its provisional seals are to be believed or not, and where it may be
/// gone on with if it has grown.
fn known(store: &Store, ino: Ino, (again, believed): (bool, bool)) -> (Before, Vec<Start>) {
    // Looked through without the view.
    let chain = store.view().object(ino).and_then(Object::chain).cloned();
    let Some(chain) = chain else { return (Before::default(), Vec::new()) };
    let runs = chain.runs().iter().filter(|run| run.len > 0);
    let seal = |run: &Run| if believed { run.any_seal().cloned() } else { run.seal().cloned() };
    let records = runs.map(|run| Known { offset: run.offset, len: run.len, seal: seal(run) }).collect();
    let grown = chain.seals_end() < chain.size() || chain.has_provisional_seals();
    let starts = if grown && believed && !again { starts(&chain) } else { Vec::new() };
    (Before { records, is_compared: again, ..Before::default() }, starts)
}

/// Where the seals of a file end, whether they hold or are provisional.
fn sealed_to(store: &Store, ino: Ino) -> u64 {
    store.view().object(ino).and_then(Object::chain).map_or(0, FileChain::seals_end)
}

/// True if a file has these seals.
fn says_no_more(store: &Store, ino: Ino, runs: &[SealedRun]) -> bool {
    let view = store.view();
    let Some(chain) = view.object(ino).and_then(|object| object.chain()) else { return false };
    let recorded = chain.runs().iter().map(|run| (run.offset, run.len, run.seal()));
    recorded.eq(runs.iter().map(|run| (run.offset, run.len, Some(&run.seal))))
}
