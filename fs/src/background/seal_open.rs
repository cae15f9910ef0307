//! Sealing what a file of frames has grown by while something can still write it. The seals are provisional: whoever
//! writes may change the bytes without our hearing of it, so they are compared once nobody can any more.

use std::cell::Cell;
use std::io;
use std::ops::ControlFlow;

use tensorfs_formats::{Format, Sink, Source};
use tensorfs_layout::Ino;
use tensorfs_layout::segment::{Before, GoneOn, Known, NotAsSealed, SealedRun, examine};
use tensorfs_layout::tree::{Object, Run};

use crate::error::{Host, Result};
use crate::file::{Files, Grown, NodeRef, Reading};
use crate::reader::{Broken, Wanted};
use crate::store::{Store, host};

use super::gone_on::{goes_on_behind_seals, newest_part};
use super::growth::{Growth, Header, Window};
use super::seal::{Outcome, Reader, has_memory};

/// Seals what a file has grown by, if it consists of frames: up to the end of the last complete one that is durable.
pub(super) fn seal_open_file(files: &Files, ino: Ino, stopped: &dyn Fn() -> bool) -> Result<Outcome> {
    let store = files.store();
    store.check_writable()?;
    store.settle_value(ino)?;
    let node = files.node(ino);
    let Some(grown) = files.lock(&node).grown() else { return Ok(Outcome::InUse) };
    let segment = grown.segment;
    let reading = files.readings().open(store.pool(), segment).host("opening a segment")?;
    // Whoever tests whether the segment is open elsewhere does not wait for this.
    let go_on = || !stopped() && !files.readings().is_claimed(segment);
    let mut sealing = Sealing { files, ino, node, grown, growth: Growth::new(reading), go_on: &go_on };
    loop {
        match sealing.seal_some()? {
            Came::On => {}
            Came::ToEnd => break,
            Came::Later => return Ok(Outcome::Later),
            Came::Nowhere => {
                files.lock(&sealing.node).is_frameless();
                return Ok(Outcome::InUse);
            }
        }
    }
    let size = store.view().object(ino).map_or(0, Object::size);
    if size > sealing.grown.to {
        files.to_seal().add_open(ino, store.pool().newest());
    }
    Ok(Outcome::InUse)
}

/// What came of a part.
enum Came {
    /// It is sealed, and there may be more.
    On,
    /// What there is more of is no complete frame, or not durable.
    ToEnd,
    /// Something was in the way.
    Later,
    /// It does not consist of frames, or something is wrong with them: it is looked at when nothing can write it.
    Nowhere,
}

/// What was seen in a window.
struct Look {
    runs: Vec<SealedRun>,
    is_of_frames: bool,
    /// It ends inside a frame.
    is_cut: bool,
}

struct Sealing<'a> {
    files: &'a Files,
    ino: Ino,
    node: NodeRef,
    grown: Grown,
    growth: Growth<Reading>,
    go_on: &'a dyn Fn() -> bool,
}

impl Sealing<'_> {
    /// Seals the frames that there are in a part of what the file has grown by.
    fn seal_some(&mut self) -> Result<Came> {
        for start in [Start::BehindSeals, Start::NewestPart] {
            let Some(before) = before(self.files.store(), self.ino, self.grown, start) else { continue };
            if self.ends_inside_frame(&before)? {
                return Ok(Came::ToEnd);
            }
            let look = match self.look(&before)? {
                Ok(look) => look,
                Err(came) => return Ok(came),
            };
            if !look.is_of_frames || (look.runs.is_empty() && !look.is_cut) {
                // Its seals may end inside a frame: where an append shares the run of its end.
                continue;
            }
            if look.runs.is_empty() {
                return Ok(Came::ToEnd);
            }
            return self.store(look.runs);
        }
        Ok(Came::Nowhere)
    }

    /// True if the next frame goes on behind what is durable, by its header: it is not read over and over.
    fn ends_inside_frame(&self, before: &Before) -> Result<bool> {
        let (at, end) = (start(before), self.grown.to);
        let seen = self.growth.stat().host("looking at a segment")?;
        let reader = Reader::new(self.files, (self.ino, self.grown.segment), &seen, self.go_on);
        let header = Header::new(self.growth.upto(end), at);
        let found = reader.recognise((&header, end), Wanted::From { at, limit: 1 }, &mut |_| ControlFlow::Break(()));
        Ok(found.cut && found.frames == 0)
    }

    /// Looks at the smallest window in which there is a complete frame.
    fn look(&mut self, before: &Before) -> Result<std::result::Result<Look, Came>> {
        let from = start(before);
        let mut window = if from == 0 { Window::Glance } else { Window::Held };
        loop {
            let upto = self.grown.to.min(window.end(from));
            let seen = self.growth.stat().host("looking at a segment")?;
            match self.growth.hold(from, upto, window) {
                // It was cut.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Err(Came::Later)),
                held => held.host("reading a segment")?,
            }
            let look = match self.examine(before, upto, &seen)? {
                Ok(look) => look,
                Err(came) => return Ok(Err(came)),
            };
            if !window.is_held() {
                let now = self.growth.stat().host("looking at a segment")?;
                if (now.size, now.mtime, now.ctime) != (seen.size, seen.mtime, seen.ctime) {
                    // It would be read again and again.
                    return Ok(Err(Came::Nowhere));
                }
            }
            match window.wider().filter(|_| look.runs.is_empty() && look.is_cut && upto < self.grown.to) {
                Some(wider) => window = wider,
                None => return Ok(Ok(look)),
            }
        }
    }

    fn examine(&self, before: &Before, upto: u64, seen: &host::HostStat) -> Result<std::result::Result<Look, Came>> {
        let Self { files, ino, grown, growth, go_on, .. } = self;
        let reader = Reader::new(files, (*ino, grown.segment), seen, go_on);
        let wanted = before
            .gone_on
            .as_ref()
            .map_or(Wanted::All, |GoneOn { from, .. }| Wanted::From { at: *from, limit: u64::MAX });
        let found = Cell::new((Format::Opaque, false));
        let recognise = |source: &dyn Source, sink: &mut Sink<'_>| {
            let recognised = reader.recognise((source, upto), wanted, sink);
            found.set((recognised.format, recognised.cut));
            recognised
        };
        let runs =
            examine(&growth.upto(upto), upto, files.store().pool().description_room(), before, go_on, &recognise);
        let runs = match runs {
            // It is tried again, until it is known that no reader will do.
            Err(error) if Broken::of(&error).is_some() || !go_on() => return Ok(Err(Came::Later)),
            // What it is to be told as is seen when nothing can write it.
            Err(error) if NotAsSealed::of(&error).is_some() => return Ok(Err(Came::Nowhere)),
            runs => runs.host("reading a segment")?,
        };
        let (format, is_cut) = found.get();
        Ok(runs.map(|runs| Look { runs, is_of_frames: format == Format::TfRecord, is_cut }).ok_or(Came::Later))
    }

    /// Stores the seals, if the file has not been cut or replaced meanwhile.
    fn store(&mut self, runs: Vec<SealedRun>) -> Result<Came> {
        let store = self.files.store();
        let end = runs.last().map_or(0, |run| run.offset + run.len);
        let file = self.files.lock(&self.node);
        let is_same =
            |now: &Grown| (now.segment, now.from) == (self.grown.segment, self.grown.from) && now.to >= self.grown.to;
        // A seal ends what the log holds of it.
        if !file.grown().as_ref().is_some_and(is_same) || store.is_in_log_alone(self.ino) {
            return Ok(Came::Later);
        }
        let sealable = has_memory(store, self.ino, &runs, 0);
        if !sealable || !store.pool().seal_provisionally(self.ino, self.grown.segment, runs)? {
            return Ok(Came::Nowhere);
        }
        store.counters().sealed_open.add(1);
        store.counters().sealed_bytes.add(end.saturating_sub(self.grown.from));
        match file.grown() {
            Some(now) if now.from > self.grown.from => {
                drop(file);
                self.grown = now;
                Ok(if (self.go_on)() { Came::On } else { Came::Later })
            }
            _ => Ok(Came::ToEnd),
        }
    }
}

/// Where frames are looked for.
fn start(before: &Before) -> u64 {
    before.gone_on.as_ref().map_or(0, |gone_on| gone_on.from)
}

/// Where frames may go on behind what is sealed, the likeliest first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    BehindSeals,
    NewestPart,
}

/// What is known of a file from where frames may go on.
fn before(store: &Store, ino: Ino, grown: Grown, start: Start) -> Option<Before> {
    let view = store.view();
    let chain = view.object(ino).and_then(Object::chain)?;
    let gone_on = match start {
        Start::BehindSeals if grown.from == 0 => None,
        Start::BehindSeals => Some(goes_on_behind_seals(chain)?),
        Start::NewestPart if grown.from == 0 => return None,
        Start::NewestPart => newest_part(chain)?,
    };
    let from = gone_on.as_ref().map_or(0, |gone_on| gone_on.from);
    let runs = chain.runs_behind(from).iter().filter(|run| run.len > 0);
    let known = |run: &Run| Known { offset: run.offset, len: run.len, seal: run.any_seal().cloned() };
    Some(Before { records: runs.map(known).collect(), gone_on, is_open: true, is_compared: false })
}
