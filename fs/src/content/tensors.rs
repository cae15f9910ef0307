//! The tensors of one version of a file.
//!
//! Of an event file that has grown only what is new is read. Memory is bounded whatever a file says: tensors are kept
//! only while they are few, else read again from the file.

use std::io;
use std::ops::{ControlFlow, Range};

use tensorfs_formats::{Format, Source, Tensor, is_stored_as_read};

use crate::file::Version;

use super::bytes::SegmentBytes;
use super::hash::number;
use super::index::Index;
use super::packed::Packed;

/// Every 64th tensor of an event file is a place to begin reading at.
const CHUNK: u64 = 64;
/// So many bytes in front of where an event file was read to must still be there when it is gone on with.
const TAIL: u64 = 64;

/// The tensors of one version of a file.
pub(super) struct Tensors {
    pub version: Version,
    /// It stays for as long as what was there is still there: an event file keeps it as it grows.
    pub stamp: u64,
    pub format: Format,
    /// How many there are.
    pub count: u64,
    /// Where they are in the control tree.
    pub index: Index,
    by_ordinal: ByOrdinal,
    /// Event files: up to here they are understood, and the bytes in front of that.
    end: u64,
    tail: Vec<u8>,
}

/// How to get at a tensor by its ordinal.
enum ByOrdinal {
    Kept(Packed),
    /// An event file: ordinals and places to begin reading at.
    Frames(Vec<(u32, u64)>),
    /// By recognising the file again.
    Again,
}

/// What is done with a tensor, and whether to go on.
pub(super) type See<'a> = &'a mut dyn FnMut(u32, &Tensor) -> ControlFlow<()>;

impl Tensors {
    /// Looks into a file. None if it holds no tensors.
    pub fn recognise(source: &SegmentBytes, version: Version) -> io::Result<Option<Self>> {
        let first = source.recognise_first(&mut |_| ControlFlow::Break(()));
        if let Some(error) = first.error {
            return Err(error);
        }
        if first.tensors == 0 {
            return Ok(None);
        }
        let stamp = number((version.segment, version.size, version.mtime.sec, version.mtime.nsec));
        let (index, tail) = (Index::default(), Vec::new());
        let by_ordinal = ByOrdinal::Frames(Vec::new());
        let mut this = Tensors { version, stamp, format: first.format, count: 0, index, by_ordinal, end: 0, tail };
        if first.format == Format::TfRecord {
            this.go_on(source)?;
            return Ok(Some(this));
        }
        let mut known = this.index.directories();
        let mut kept = Some(Packed::default());
        let found = source.recognise(&mut |tensor| {
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
        this.by_ordinal = kept.map_or(ByOrdinal::Again, ByOrdinal::Kept);
        Ok(Some(this))
    }

    /// The tensors of a sealed file, which need not be read for it. None if they take too much memory.
    pub fn of_seals(tensors: impl Iterator<Item = Tensor>, format: Format, version: Version) -> Option<Self> {
        let stamp = number((version.segment, version.size, version.mtime.sec, version.mtime.nsec));
        let (mut index, mut kept) = (Index::default(), Packed::default());
        let mut known = index.directories();
        for (ordinal, tensor) in (0..).zip(tensors) {
            index.add(ordinal, &tensor, &mut known);
            if !kept.push(&tensor) {
                return None;
            }
        }
        index.finish();
        let count = kept.len() as u64;
        Some(Tensors {
            version,
            stamp,
            format,
            count,
            index,
            by_ordinal: ByOrdinal::Kept(kept),
            end: 0,
            tail: Vec::new(),
        })
    }

    /// True if a tensor can be read without any other bytes than its own.
    pub fn is_alone(&self, ordinal: u32) -> bool {
        let ByOrdinal::Kept(tensors) = &self.by_ordinal else { return false };
        self.format != Format::TfRecord && tensors.get(ordinal).is_some_and(|tensor| is_stored_as_read(&tensor))
    }

    /// True of an event file that may have these tensors still, and more behind them.
    pub fn may_grow_to(&self, version: &Version) -> bool {
        let longer = version.segment == self.version.segment && version.size > self.version.size;
        self.format == Format::TfRecord && (longer || version.has_bytes_of(&self.version))
    }

    /// The tensors of an event file that has grown, if it has only grown. Only what is new is read.
    pub fn grown(&self, source: &SegmentBytes, version: Version) -> io::Result<Option<Self>> {
        let ByOrdinal::Frames(frames) = &self.by_ordinal else { return Ok(None) };
        if !self.may_grow_to(&version) || self.tail.is_empty() {
            return Ok(None);
        }
        if tail(source, self.end)? != self.tail {
            return Ok(None);
        }
        let mut this = Tensors {
            version,
            index: self.index.clone(),
            by_ordinal: ByOrdinal::Frames(frames.clone()),
            tail: Vec::new(),
            ..*self
        };
        this.go_on(source)?;
        Ok(Some(this))
    }

    /// Reads an event file on from where it is understood.
    fn go_on(&mut self, source: &SegmentBytes) -> io::Result<()> {
        let mut known = self.index.directories();
        let mut starts = Vec::new();
        let had = self.count;
        loop {
            let before = self.count;
            let found = source.resume(self.end, CHUNK, &mut |tensor| {
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
        if let ByOrdinal::Frames(frames) = &mut self.by_ordinal {
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
        let (mut ordinal, at) = match &self.by_ordinal {
            ByOrdinal::Kept(tensors) => {
                let rest = (from..=u32::MAX).map_while(|ordinal| Some((ordinal, tensors.get(ordinal)?)));
                let _ = { rest }.try_for_each(|(ordinal, tensor)| see(ordinal, &tensor));
                return Ok(());
            }
            ByOrdinal::Frames(frames) => match frames[..chunk_of(frames, from)].last() {
                Some(&(first, at)) => (first, Some(at)),
                None => return Ok(()),
            },
            ByOrdinal::Again => (0, None),
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
            Some(at) => source.resume(at, u64::MAX, &mut sink),
            None => source.recognise(&mut sink),
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
        match &self.by_ordinal {
            ByOrdinal::Kept(_) => to == from + 1,
            ByOrdinal::Frames(frames) => chunk_of(frames, to) <= chunk_of(frames, from) + 1,
            ByOrdinal::Again => true,
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

    /// The tensor that begins within these bytes, if it is the only one. Where tensors follow each other as their bytes
    /// do, few are looked at.
    pub fn only_one_in(&self, source: &SegmentBytes, bytes: Range<u64>) -> io::Result<Option<Tensor>> {
        if let ByOrdinal::Kept(kept) = &self.by_ordinal {
            let start = |nth: u32| kept.get(nth).map(|tensor| tensor.range().0);
            let (mut low, mut high) = (0, kept.len() as u32);
            while low < high {
                let middle = low + (high - low) / 2;
                if start(middle).is_some_and(|start| start < bytes.start) { low = middle + 1 } else { high = middle }
            }
            let is_in = |nth: u32| start(nth).is_some_and(|start| bytes.contains(&start));
            if is_in(low) && !is_in(low + 1) && low.checked_sub(1).is_none_or(|before| !is_in(before)) {
                return Ok(kept.get(low));
            }
        }
        let (mut found, mut count) = (None, 0);
        self.visit(source, 0, &mut |_, tensor| {
            if bytes.contains(&tensor.range().0) {
                found = Some(tensor.clone());
                count += 1;
            }
            if count < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(found.filter(|_| count == 1))
    }

    /// Bytes of memory that they take.
    pub fn memory(&self) -> usize {
        let kept = match &self.by_ordinal {
            ByOrdinal::Kept(tensors) => tensors.memory(),
            ByOrdinal::Frames(frames) => frames.capacity() * size_of::<(u32, u64)>(),
            ByOrdinal::Again => 0,
        };
        size_of::<Tensors>() + self.index.bytes() + kept
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
