//! The tensors of the pool's files, recognised when they are asked for and kept for a while.
//!
//! What is known of a file holds for one [`Version`] of it. Of an event file that has grown only what is new is read. Memory
//! is bounded whatever a file says: tensors are kept only while they are few, else read again from the file; and what is
//! kept of all files together is bounded too. Nothing is locked while a file is read.

use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use tensorfs_formats::{self as formats, Format, Source, Tensor};
use tensorfs_layout::{Ino, Pool, SegmentId, Timestamp};

use crate::clock;
use crate::control::{Index, number};
use crate::error::{Fault, Host, Result};
use crate::filesystem::Filesystem;
use crate::host;
use crate::readings::{Reading, Readings};

/// Tensors are kept while those of a file take less than this, encoded: enough for a million of them.
const KEPT_MAX: usize = 64 << 20;
/// The most tensors that are taken from seals, which costs a copy of them.
const SEALED_MAX: u64 = 1 << 16;
/// What is kept of all files, at most, unless a single one takes more.
const CACHE_MAX: usize = 96 << 20;
/// So many files are remembered to have no tensors, or some.
const VERDICTS_MAX: usize = 1 << 16;
/// Event files are gone into at every so manieth tensor.
const CHUNK: u64 = 64;
/// So many bytes in front of where an event file was read to must still be there when it is gone on with.
const TAIL: u64 = 64;
/// Two changes within one tick of the host's clock can leave the same time.
const TICK_NSEC: i64 = 20_000_000;

/// What is seen of a file from outside, which differs if its bytes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub segment: SegmentId,
    pub size: u64,
    pub mtime: Timestamp,
    ctime: Timestamp,
}

impl Version {
    /// True if the bytes are the same, as far as size and modification time tell.
    pub fn has_bytes_of(&self, other: &Version) -> bool {
        (self.segment, self.size, self.mtime) == (other.segment, other.size, other.mtime)
    }

    /// True if a change after `now` would show.
    fn is_settled(&self, now: Timestamp) -> bool {
        let age = (now.sec - self.ctime.sec).saturating_mul(1_000_000_000)
            + (i64::from(now.nsec) - i64::from(self.ctime.nsec));
        age >= TICK_NSEC
    }
}

/// The bytes of a version of a file. The segment is opened when it is first read, and closed by [`SegmentBytes::close`].
pub(crate) struct SegmentBytes {
    pool: Arc<Pool>,
    readings: Readings,
    segment: SegmentId,
    size: u64,
    open: Mutex<Option<Arc<Reading>>>,
    stop: Arc<AtomicBool>,
}

impl SegmentBytes {
    fn reading(&self) -> io::Result<Arc<Reading>> {
        let mut open = self.open.lock();
        if self.readings.is_claimed(self.segment) {
            *open = None;
        }
        if let Some(reading) = &*open {
            return Ok(reading.clone());
        }
        let reading = Arc::new(self.readings.open(&self.pool, self.segment)?);
        *open = Some(reading.clone());
        Ok(reading)
    }

    /// Closes the segment until it is read again.
    pub fn close(&self) {
        let reading = self.open.lock().take();
        drop(reading);
    }
}

impl Source for SegmentBytes {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.load(Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ESHUTDOWN));
        }
        let want = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        Ok(host::read_at(&*self.reading()?, &mut buffer[..want], offset)?)
    }
}

/// The tensors of one version of a file.
pub(crate) struct Tensors {
    pub version: Version,
    /// The same for as long as what was there is still there: an event file keeps it as it grows.
    pub stamp: u64,
    pub format: Format,
    /// How many there are.
    pub count: u64,
    /// Where they are in the control tree.
    pub index: Index,
    store: Store,
    /// Event files: up to here they are understood, and the bytes in front of that.
    end: u64,
    tail: Vec<u8>,
}

/// How to get at a tensor by its ordinal.
enum Store {
    Kept(Packed),
    /// An event file: ordinals and places to begin reading at.
    Frames(Vec<(u32, u64)>),
    /// By recognising the file again.
    Again,
}

/// Tensors, encoded: they take a fifth of the memory this way.
#[derive(Default)]
struct Packed {
    bytes: Vec<u8>,
    /// Where each of them ends.
    ends: Vec<u32>,
}

impl Packed {
    /// Takes a tensor in; false if there is no room for it.
    fn push(&mut self, tensor: &Tensor) -> bool {
        let Ok(bytes) = postcard::to_extend(tensor, std::mem::take(&mut self.bytes)) else { return false };
        self.bytes = bytes;
        let end = u32::try_from(self.bytes.len()).ok().filter(|&end| end as usize <= KEPT_MAX);
        self.ends.extend(end);
        end.is_some()
    }

    fn get(&self, ordinal: u32) -> Option<Tensor> {
        let at = ordinal as usize;
        let end = *self.ends.get(at)? as usize;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        postcard::from_bytes(self.bytes.get(start..end)?).ok()
    }

    fn memory(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>()
    }
}

/// What is done with a tensor, and whether to go on.
pub(crate) type See<'a> = &'a mut dyn FnMut(u32, &Tensor) -> ControlFlow<()>;

impl Tensors {
    /// Looks into a file. None if it holds no tensors.
    fn recognise(source: &SegmentBytes, version: Version) -> io::Result<Option<Self>> {
        let first = formats::recognise(source, &mut |_| ControlFlow::Break(()));
        if let Some(error) = first.error {
            return Err(error);
        }
        if first.tensors == 0 {
            return Ok(None);
        }
        let stamp = number((version.segment, version.size, version.mtime.sec, version.mtime.nsec));
        let (index, tail) = (Index::default(), Vec::new());
        let store = Store::Frames(Vec::new());
        let mut this = Tensors { version, stamp, format: first.format, count: 0, index, store, end: 0, tail };
        if first.format == Format::TfRecord {
            this.go_on(source)?;
            return Ok(Some(this));
        }
        let mut known = this.index.known();
        let mut kept = Some(Packed::default());
        let found = formats::recognise(source, &mut |tensor| {
            let Ok(ordinal) = u32::try_from(this.count) else { return ControlFlow::Break(()) };
            this.index.add(ordinal, &tensor, &mut known);
            this.count += 1;
            kept = kept.take().and_then(|mut kept| kept.push(&tensor).then_some(kept));
            ControlFlow::Continue(())
        });
        if let Some(error) = found.error {
            return Err(error);
        }
        this.index.finish();
        this.store = kept.map_or(Store::Again, Store::Kept);
        Ok(Some(this))
    }

    /// The tensors of a sealed file, which need not be read for it. None if they take too much memory.
    fn of_seals(tensors: impl Iterator<Item = Tensor>, format: Format, version: Version) -> Option<Self> {
        let stamp = number((version.segment, version.size, version.mtime.sec, version.mtime.nsec));
        let (mut index, mut kept) = (Index::default(), Packed::default());
        let mut known = index.known();
        for (ordinal, tensor) in (0..).zip(tensors) {
            index.add(ordinal, &tensor, &mut known);
            if !kept.push(&tensor) {
                return None;
            }
        }
        index.finish();
        let count = kept.ends.len() as u64;
        Some(Tensors { version, stamp, format, count, index, store: Store::Kept(kept), end: 0, tail: Vec::new() })
    }

    /// True of an event file that may have these tensors still, and more behind them.
    fn may_grow_to(&self, version: &Version) -> bool {
        let longer = version.segment == self.version.segment && version.size > self.version.size;
        self.format == Format::TfRecord && (longer || version.has_bytes_of(&self.version))
    }

    /// The same of an event file that has grown, if it has only grown.
    fn grown(&self, source: &SegmentBytes, version: Version) -> io::Result<Option<Self>> {
        let Store::Frames(frames) = &self.store else { return Ok(None) };
        if !self.may_grow_to(&version) || self.tail.is_empty() {
            return Ok(None);
        }
        if tail(source, self.end)? != self.tail {
            return Ok(None);
        }
        let mut this = Tensors {
            version,
            index: self.index.clone(),
            store: Store::Frames(frames.clone()),
            tail: Vec::new(),
            ..*self
        };
        this.go_on(source)?;
        Ok(Some(this))
    }

    /// Reads an event file on from where it is understood.
    fn go_on(&mut self, source: &SegmentBytes) -> io::Result<()> {
        let mut known = self.index.known();
        let mut starts = Vec::new();
        let had = self.count;
        loop {
            let before = self.count;
            let found = formats::resume_some(source, self.end, CHUNK, &mut |tensor| {
                let Ok(ordinal) = u32::try_from(self.count) else { return ControlFlow::Break(()) };
                self.index.add(ordinal, &tensor, &mut known);
                self.count += 1;
                ControlFlow::Continue(())
            });
            if let Some(error) = found.error {
                return Err(error);
            }
            if self.count > before {
                starts.push((before as u32, self.end));
            }
            let advanced = found.end > self.end;
            self.end = found.end;
            if !found.stopped || !advanced {
                break;
            }
        }
        if let Store::Frames(frames) = &mut self.store {
            frames.append(&mut starts);
        }
        if self.count > had {
            self.index.finish();
        }
        self.tail = tail(source, self.end)?;
        Ok(())
    }

    /// Gives the tensors from an ordinal on.
    fn visit(&self, source: &SegmentBytes, from: u32, see: See<'_>) -> io::Result<()> {
        let (mut ordinal, at) = match &self.store {
            Store::Kept(tensors) => {
                let rest = (from..).map_while(|ordinal| Some((ordinal, tensors.get(ordinal)?)));
                let _ = { rest }.try_for_each(|(ordinal, tensor)| see(ordinal, &tensor));
                return Ok(());
            }
            Store::Frames(frames) => match frames[..chunk_of(frames, from)].last() {
                Some(&(first, at)) => (first, Some(at)),
                None => return Ok(()),
            },
            Store::Again => (0, None),
        };
        let mut sink = |tensor: Tensor| {
            let this = ordinal;
            ordinal += 1;
            match this {
                _ if u64::from(this) >= self.count => ControlFlow::Break(()),
                _ if this < from => ControlFlow::Continue(()),
                _ => see(this, &tensor),
            }
        };
        let found = match at {
            Some(at) => formats::resume(source, at, &mut sink),
            None => formats::recognise(source, &mut sink),
        };
        found.error.map_or(Ok(()), Err)
    }

    /// Gives the tensors of these ordinals, which must rise.
    pub fn each(&self, source: &SegmentBytes, ordinals: &[u32], see: See<'_>) -> io::Result<()> {
        let mut rest = ordinals;
        while let Some(&first) = rest.first() {
            let before = rest.len();
            let mut done = false;
            self.visit(source, first, &mut |ordinal, tensor| {
                let Some((&next, behind)) = rest.split_first() else { return ControlFlow::Break(()) };
                if next != ordinal {
                    return ControlFlow::Continue(());
                }
                rest = behind;
                done = see(ordinal, tensor).is_break();
                match behind.first() {
                    Some(&next) if !done && self.is_near(ordinal, next) => ControlFlow::Continue(()),
                    _ => ControlFlow::Break(()),
                }
            })?;
            if done {
                return Ok(());
            }
            if rest.len() == before {
                return Err(io::Error::from_raw_os_error(libc::ESTALE));
            }
        }
        Ok(())
    }

    /// True if reading on gets there sooner than starting anew.
    fn is_near(&self, from: u32, to: u32) -> bool {
        match &self.store {
            Store::Kept(_) => to == from + 1,
            Store::Frames(frames) => chunk_of(frames, to) <= chunk_of(frames, from) + 1,
            Store::Again => true,
        }
    }

    /// One tensor.
    pub fn tensor(&self, source: &SegmentBytes, ordinal: u32) -> io::Result<Tensor> {
        let mut found = None;
        self.each(source, &[ordinal], &mut |_, tensor| {
            found = Some(tensor.clone());
            ControlFlow::Break(())
        })?;
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    fn memory(&self) -> usize {
        let store = match &self.store {
            Store::Kept(tensors) => tensors.memory(),
            Store::Frames(frames) => frames.capacity() * size_of::<(u32, u64)>(),
            Store::Again => 0,
        };
        size_of::<Tensors>() + self.index.bytes() + store
    }
}

/// The number of chunks that begin at or before a tensor.
fn chunk_of(frames: &[(u32, u64)], ordinal: u32) -> usize {
    frames.partition_point(|&(first, _)| first <= ordinal)
}

/// The last bytes in front of `end`.
fn tail(source: &dyn Source, end: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; end.min(TAIL) as usize];
    let read = source.read_at(end - bytes.len() as u64, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// What a client gets for it. What is wrong with the bytes of a file is no fault of the host.
pub(crate) fn fault(error: io::Error) -> Fault {
    match error.raw_os_error() {
        None => Fault::new(libc::EIO),
        Some(libc::ESTALE) => Fault::new(libc::ESTALE),
        Some(_) => Err::<(), _>(error).host("reading a segment").err().unwrap_or(Fault::new(libc::EIO)),
    }
}

/// What is known of the tensors of files.
#[derive(Default)]
pub(crate) struct TensorCache {
    known: Mutex<Known>,
    stop: Arc<AtomicBool>,
}

#[derive(Default)]
struct Known {
    files: HashMap<Ino, Slot>,
    clock: u64,
    bytes: usize,
    /// Files that have tensors, or none.
    verdicts: HashMap<Ino, (Version, bool)>,
}

struct Slot {
    tensors: Arc<Tensors>,
    bytes: usize,
    used: u64,
    /// A later change would have shown in the version.
    settled: bool,
}

impl TensorCache {
    fn get(&self, ino: Ino) -> Option<(Arc<Tensors>, bool)> {
        let mut known = self.known.lock();
        known.clock += 1;
        let now = known.clock;
        let slot = known.files.get_mut(&ino)?;
        slot.used = now;
        Some((slot.tensors.clone(), slot.settled))
    }

    fn put(&self, ino: Ino, tensors: Arc<Tensors>, settled: bool) {
        let bytes = tensors.memory();
        let mut dropped = Vec::new();
        let mut known = self.known.lock();
        let used = known.clock;
        known.bytes += bytes;
        let old = known.files.insert(ino, Slot { tensors, bytes, used, settled });
        known.bytes -= old.as_ref().map_or(0, |slot| slot.bytes);
        dropped.extend(old);
        while known.bytes > CACHE_MAX && known.files.len() > 1 {
            let coldest = known.files.iter().filter(|(other, _)| **other != ino).min_by_key(|(_, slot)| slot.used);
            let Some(coldest) = coldest.map(|(ino, _)| *ino) else { break };
            let slot = known.files.remove(&coldest);
            known.bytes -= slot.as_ref().map_or(0, |slot| slot.bytes);
            dropped.extend(slot);
        }
        drop(known);
        drop(dropped);
    }

    fn verdict(&self, ino: Ino, version: &Version) -> Option<bool> {
        let known = self.known.lock();
        known.verdicts.get(&ino).filter(|(of, _)| of == version).map(|(_, verdict)| *verdict)
    }

    fn judge(&self, ino: Ino, version: Version, verdict: bool) {
        let mut known = self.known.lock();
        if known.verdicts.len() >= VERDICTS_MAX && !known.verdicts.contains_key(&ino) {
            known.verdicts.clear();
        }
        known.verdicts.insert(ino, (version, verdict));
    }

    /// Whatever is being read is not wanted any more.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }
}

impl Filesystem {
    /// What a regular file looks like now, if it has a segment.
    pub fn file_version(&self, ino: Ino) -> Result<Version> {
        let (stat, segment) = match self.nodes.peek(ino) {
            Some(node) => {
                let state = node.lock();
                (self.stat_in(ino, &state)?, state.segment)
            }
            None => (self.stat(ino)?, None),
        };
        let attributes = &stat.attributes;
        let segment = segment.or(attributes.segment).filter(|_| attributes.mode & libc::S_IFMT == libc::S_IFREG);
        let segment = segment.ok_or(Fault::new(libc::ENOENT))?;
        Ok(Version { segment, size: stat.size, mtime: attributes.mtime, ctime: attributes.ctime })
    }

    /// The bytes of a version of a file.
    pub fn bytes_of(&self, version: &Version) -> Arc<SegmentBytes> {
        let (segment, size) = (version.segment, version.size);
        let (pool, readings, stop) = (self.pool.clone(), self.readings.clone(), self.tensors.stop.clone());
        Arc::new(SegmentBytes { pool, readings, segment, size, open: Mutex::default(), stop })
    }

    /// The tensors of a file, if that can be said without reading it.
    pub fn known_tensors(&self, ino: Ino) -> Option<Arc<Tensors>> {
        let (tensors, settled) = self.tensors.get(ino)?;
        let version = self.file_version(ino).ok()?;
        Some(tensors).filter(|tensors| settled && tensors.version == version)
    }

    /// The tensors of a file; none if it is not a file that has some. Reads the file if need be.
    pub fn tensors_of(&self, ino: Ino) -> Result<Option<Arc<Tensors>>> {
        let mut left = 3;
        loop {
            let looked = clock::now();
            let version = self.file_version(ino)?;
            let earlier = match self.tensors.get(ino) {
                Some((tensors, true)) if tensors.version == version => return Ok(Some(tensors)),
                earlier => earlier.map(|(tensors, _)| tensors),
            };
            if version.size == 0 || self.tensors.verdict(ino, &version) == Some(false) {
                return Ok(None);
            }
            let source = self.bytes_of(&version);
            let found = self.look_into(ino, &source, version, earlier);
            source.close();
            let unchanged = self.file_version(ino).is_ok_and(|now| now == version);
            let settled = unchanged && version.is_settled(looked);
            left -= 1;
            match found {
                // It was replaced or removed while it was read.
                Err(_) if !unchanged && left > 0 => {}
                Err(error) => return Err(fault(error)),
                Ok(None) => {
                    if settled {
                        self.tensors.judge(ino, version, false);
                    }
                    return Ok(None);
                }
                Ok(Some(tensors)) => {
                    let tensors = Arc::new(tensors);
                    self.tensors.put(ino, tensors.clone(), settled);
                    return Ok(Some(tensors));
                }
            }
        }
    }

    fn look_into(
        &self,
        ino: Ino,
        source: &SegmentBytes,
        version: Version,
        earlier: Option<Arc<Tensors>>,
    ) -> io::Result<Option<Tensors>> {
        if let Some(mut sealed) = self.sealed_tensors(ino, version) {
            if let Some(earlier) = earlier.filter(|earlier| earlier.may_grow_to(&version)) {
                sealed.stamp = earlier.stamp;
            }
            return Ok(Some(sealed));
        }
        if let Some(earlier) = earlier
            && let Some(grown) = earlier.grown(source, version)?
        {
            return Ok(Some(grown));
        }
        Tensors::recognise(source, version)
    }

    /// What the seals of a file say, if they say all.
    fn sealed_tensors(&self, ino: Ino, version: Version) -> Option<Tensors> {
        let chain = {
            let view = self.pool.view();
            let object = view.object(ino).filter(|object| object.attributes.segment == Some(version.segment))?;
            let chain = object.chain().filter(|chain| chain.is_sealed())?;
            let summary = chain.summary().filter(|summary| summary.complete)?;
            if !(1..=SEALED_MAX).contains(&summary.tensors) {
                return None;
            }
            // Decoded without the lock.
            chain.clone()
        };
        let format = chain.summary()?.format;
        let mut entries: Vec<_> = chain.tensors().collect();
        entries.sort_by_key(|entry| entry.index);
        let whole = (0..).zip(&entries).all(|(index, entry)| entry.index == index);
        let tensors = entries.into_iter().map(|entry| entry.tensor);
        if whole { Tensors::of_seals(tensors, format, version) } else { None }
    }

    /// How many tensors the seals of a file say that it has, and whether that is all of them. None if it is not sealed.
    fn sealed_count(&self, ino: Ino, segment: SegmentId) -> Option<(u64, bool)> {
        let view = self.pool.view();
        // A file that is being replaced shows the new bytes, and its seals are of the old ones.
        let object = view.object(ino).filter(|object| object.attributes.segment == Some(segment))?;
        let chain = object.chain().filter(|chain| chain.is_sealed())?;
        let first = chain.runs().first().and_then(|run| run.seal.as_ref())?;
        if first.description.is_empty() {
            return Some((0, true));
        }
        chain.summary().map(|summary| (summary.tensors, summary.complete))
    }

    /// How many tensors a file holds.
    pub fn count_tensors(&self, ino: Ino) -> Result<u64> {
        let version = match self.file_version(ino) {
            // Made by mknod, and never opened.
            Err(fault) if fault.errno == libc::ENOENT => return Ok(0),
            version => version?,
        };
        match self.sealed_count(ino, version.segment) {
            Some((count, true)) => Ok(count),
            _ => Ok(self.tensors_of(ino)?.map_or(0, |tensors| tensors.count)),
        }
    }

    /// True if a file holds tensors. Reads as little of it as will do, and without `may_read` nothing: then it may be
    /// that nothing can be said.
    pub fn has_tensors(&self, ino: Ino, may_read: bool) -> Option<bool> {
        let looked = clock::now();
        let Ok(version) = self.file_version(ino) else { return Some(false) };
        if version.size == 0 {
            return Some(false);
        }
        if let Some((count, whole)) = self.sealed_count(ino, version.segment) {
            return Some(count > 0 || !whole);
        }
        let known = self.tensors.verdict(ino, &version);
        if known.is_some() || !may_read {
            return known;
        }
        let source = self.bytes_of(&version);
        let found = formats::recognise(&*source, &mut |_| ControlFlow::Break(()));
        source.close();
        let verdict = found.tensors > 0;
        if found.error.is_none() && version.is_settled(looked) {
            self.tensors.judge(ino, version, verdict);
        }
        Some(verdict)
    }
}
