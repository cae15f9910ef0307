//! What a pool's log says of a file: how far it has come, and of a sealed one its checksums and tensors.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;

use tensorfs_formats::{Format, Tensor};
use tensorfs_fs::{FileState, Part, Place as Position, Records, Reply, Request, ask};
use tensorfs_layout::log::{Seal, Summary, TensorEntry};
use tensorfs_layout::segment::LARGE;
use tensorfs_layout::tree::Object;
use tensorfs_layout::{Timestamp, TxId};

/// How often a file is asked for that changes meanwhile.
const TRIES: usize = 5;

/// What is recorded of a file.
#[derive(Clone, Debug)]
pub struct Recorded {
    state: FileState,
    size: u64,
    /// While it stays the same, so do the runs.
    version: (u64, u64),
    /// True if every byte has a checksum.
    sealed: bool,
    /// Its records, in the order of their bytes.
    records: Vec<FileRecord>,
}

/// A record: consecutive bytes of a file that became part of it together.
#[derive(Clone, Debug)]
pub struct FileRecord {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The transaction that made them part of the file, and when, if that was noted.
    pub origin: Option<(TxId, Timestamp)>,
    /// True if it is there after a power loss.
    pub durable: bool,
    /// Checksum, and what the bytes are, if it is sealed.
    pub seal: Option<Seal>,
    /// True if the seal is provisional: the bytes may have changed since.
    pub provisional: bool,
}

impl Recorded {
    /// What the log of a pool that is not mounted says, and whether a scrub has found the file damaged.
    pub fn of(object: &Object, known_damaged: bool) -> Recorded {
        let chain = object.chain();
        let sealed = chain.is_some_and(|chain| chain.is_sealed() && chain.size() > 0);
        let runs = chain.map_or(&[][..], |chain| chain.runs()).iter().filter(|run| run.len > 0);
        let records = runs.map(|run| FileRecord {
            offset: run.offset,
            len: run.len,
            origin: run.origin.known(),
            durable: true,
            seal: run.any_seal().cloned(),
            provisional: run.provisional_seal().is_some(),
        });
        let state = match chain {
            _ if object.attributes.damaged || known_damaged => FileState::Damaged,
            Some(_) if object.is_interrupted() => FileState::Interrupted,
            Some(chain) if chain.is_sealed() && chain.summary().is_some_and(|summary| summary.cut) => {
                FileState::Interrupted
            }
            Some(chain) if chain.is_sealed() => FileState::Sealed,
            _ => FileState::Committed,
        };
        let version = (object.attributes.segment.unwrap_or_default().0, chain.map_or(0, |chain| chain.version()));
        Recorded { state, size: object.size(), version, sealed, records: records.collect() }
    }

    /// Asks the server. Nothing if the file is not on a mount of ours, or its server knows no such question.
    pub fn ask(file: &File) -> io::Result<Option<Recorded>> {
        for _ in 0..TRIES {
            let Some(first) = records(file, Position::default())? else { return Ok(None) };
            match gather(file, first)? {
                Some(recorded) => return Ok(Some(recorded)),
                None => continue,
            }
        }
        Err(io::Error::other("it changes again and again"))
    }

    /// Asks the server how many bytes the host has of a sealed file. Nothing if it does not know, or if the file is not
    /// sealed.
    pub fn ask_host_size(file: &File) -> io::Result<Option<u64>> {
        match answer(file, &Request::HostSize)? {
            Some(Reply::HostSize(size)) => Ok(size),
            _ => Ok(None),
        }
    }

    /// Asks the server once, for as much as fits one answer: of the runs maybe only some.
    pub fn glance(file: &File) -> io::Result<Option<Recorded>> {
        let Some(first) = records(file, Position::default())? else { return Ok(None) };
        let records = first.parts.iter().map(|part| record(part, &part.description)).collect();
        let Records { state, size, version, sealed, .. } = first;
        Ok(Some(Recorded { state, size, version, sealed, records }))
    }

    /// Its recorded size.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How far the file has come.
    pub fn state(&self) -> FileState {
        self.state
    }

    /// Its records, in the order of their bytes.
    pub fn records(&self) -> &[FileRecord] {
        &self.records
    }

    /// Offset, length and seal of the records that have one that holds.
    pub fn sealed(&self) -> impl Iterator<Item = (u64, u64, &Seal)> {
        self.with_seals(false)
    }

    /// Offset, length and seal of the records that are sealed provisionally.
    pub fn provisional(&self) -> impl Iterator<Item = (u64, u64, &Seal)> {
        self.with_seals(true)
    }

    fn with_seals(&self, provisional: bool) -> impl Iterator<Item = (u64, u64, &Seal)> {
        let records = self.records.iter().filter(move |record| record.provisional == provisional);
        records.filter_map(|record| Some((record.offset, record.len, record.seal.as_ref()?)))
    }

    /// True if these bytes were sealed with this checksum, and still are.
    pub fn has_seal(&self, offset: u64, len: u64, crc: u32) -> bool {
        let is = |record: &FileRecord| record.offset == offset && record.len == len;
        self.records.iter().any(|record| is(record) && record.seal.as_ref().is_some_and(|seal| seal.crc == crc))
    }

    /// True if the file was not changed between the two: their runs are the same.
    pub fn is_same_version(&self, other: &Recorded) -> bool {
        self.version == other.version
    }

    /// True if every byte has a checksum.
    pub fn is_sealed(&self) -> bool {
        self.sealed || (self.size == 0 && self.state == FileState::Sealed)
    }

    /// What the file was recognised as. None if it is not sealed, or opaque.
    pub fn summary(&self) -> Option<Summary> {
        self.records.iter().rev().filter(|_| self.sealed).find_map(|record| record.seal.as_ref()?.summary())
    }

    /// True if the tensors are all those that recognising the file now would find.
    pub fn has_all_tensors(&self) -> bool {
        self.is_sealed() && self.summary().is_some_and(|summary| summary.complete && !is_to_be_looked_into(&summary))
    }

    /// The tensors, in the order of their bytes.
    pub fn entries(&self) -> impl Iterator<Item = TensorEntry> {
        self.sealed().filter(|_| self.sealed).flat_map(|(_, _, seal)| seal.tensors())
    }

    /// The tensors in the file's own order. Where that is the order of their bytes, as in event files, none is held
    /// back.
    pub fn each(&self, sink: &mut dyn FnMut(TensorEntry) -> ControlFlow<()>) {
        let mut next = 0;
        let mut early: BTreeMap<u64, TensorEntry> = BTreeMap::new();
        for entry in self.entries() {
            if entry.index != next {
                early.insert(entry.index, entry);
                continue;
            }
            let mut turn = Some(entry);
            while let Some(entry) = turn {
                next += 1;
                if sink(entry).is_break() {
                    return;
                }
                turn = early.remove(&next);
            }
        }
        // Behind a gap.
        for (_, entry) in early {
            if sink(entry).is_break() {
                return;
            }
        }
    }

    /// CRC32C of what a tensor's bytes were when they were sealed.
    pub fn checksum(&self, entry: &TensorEntry) -> Option<u32> {
        let parts = self.checksums(entry);
        (!parts.is_empty()).then(|| tensorfs_formats::crc32c_join(parts))
    }

    /// Lengths and checksums of what a tensor's bytes were when they were sealed.
    pub fn checksums(&self, entry: &TensorEntry) -> Vec<(u64, u32)> {
        checksums(&self.records, &entry.tensor, entry.crc)
    }
}

/// Of a tensor without a checksum of its own: those of its runs.
fn checksums(records: &[FileRecord], tensor: &Tensor, crc: Option<u32>) -> Vec<(u64, u32)> {
    let (start, len) = tensor.range();
    if let Some(crc) = crc {
        return vec![(len, crc)];
    }
    if len < LARGE {
        return Vec::new();
    }
    let first = records.partition_point(|record| record.offset < start);
    let end = start.saturating_add(len);
    let inside = records[first..].iter().take_while(|record| record.offset.saturating_add(record.len) <= end);
    let found: Vec<(u64, u32)> = inside.filter_map(|record| Some((record.len, record.seal.as_ref()?.crc))).collect();
    // What a log says need not fit.
    if found.iter().map(|(len, _)| len).sum::<u64>() == len { found } else { Vec::new() }
}

/// Whether there may be more in a file than its seals say: in HDF5, which versions before this one did not look into.
fn is_to_be_looked_into(summary: &Summary) -> bool {
    !is_looked_into(summary.format) || (summary.format == Format::Hdf5 && summary.tensors == 0)
}

/// Whether files of this format are looked into.
pub fn is_looked_into(format: Format) -> bool {
    format != Format::Opaque
}

/// Why a file is not whole by what it says itself, if its bytes are those that were sealed: frames of an event file
/// that have other checksums than they should.
pub fn wrong_frames(summary: &Summary) -> Option<&str> {
    let is_wrong = summary.bad_frames > 0 || summary.format == Format::TfRecord && summary.reason.is_some();
    is_wrong.then(|| summary.reason.as_deref().unwrap_or("frames with other checksums than they should have"))
}

/// Whether all of a file is there, and all of its tensors are known, as far as it was recorded.
pub fn is_complete(summary: &Summary, state: FileState) -> bool {
    let is_whole = !summary.cut && state != FileState::Interrupted && wrong_frames(summary).is_none();
    summary.complete && is_whole
}

fn record(part: &Part, description: &[u8]) -> FileRecord {
    let &Part { offset, len, crc, provisional, origin, durable, .. } = part;
    let seal = crc.map(|crc| Seal { crc, description: description.into() });
    FileRecord { offset, len, origin: origin.map(|(id, time)| (TxId(id), time)), durable, seal, provisional }
}

fn records(file: &File, from: Position) -> io::Result<Option<Records>> {
    match answer(file, &Request::Records(from))? {
        Some(Reply::Records(records)) => Ok(Some(records)),
        _ => Ok(None),
    }
}

/// Asks the server of a file. Nothing if there is no server that knows the question.
fn answer(file: &File, request: &Request) -> io::Result<Option<Reply>> {
    match ask(file, request) {
        Ok(reply) => Ok(Some(reply)),
        // Not ours, or of another version.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::ENOSYS | libc::EINVAL)) => Ok(None),
        // A file of the control tree.
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(error) => Err(error),
    }
}

/// Asks for the rest. Nothing if the file changed meanwhile.
fn gather(file: &File, first: Records) -> io::Result<Option<Recorded>> {
    let Records { state, size, version, sealed, runs: count, parts } = first;
    let mut known: Vec<FileRecord> = Vec::new();
    let mut open: Option<(Part, Vec<u8>)> = None;
    let mut parts = parts;
    loop {
        if parts.is_empty() && (known.len() as u64) < count {
            return Ok(None);
        }
        for part in parts.drain(..) {
            let mut whole = open.take().map_or_else(Vec::new, |(_, bytes)| bytes);
            whole.extend_from_slice(&part.description);
            if (whole.len() as u64) < part.described {
                open = Some((part, whole));
                break;
            }
            known.push(record(&part, &whole));
        }
        if known.len() as u64 >= count {
            return Ok(Some(Recorded { state, size, version, sealed, records: known }));
        }
        let at = open.as_ref().map_or(0, |(_, bytes)| bytes.len() as u64);
        let more = records(file, Position { run: known.len() as u64, at })?;
        let Some(more) = more.filter(|more| more.version == version && more.runs == count) else { return Ok(None) };
        parts = more.parts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorfs_layout::segment::{Before, SealedRun, examine};

    fn npy(len: usize) -> Vec<u8> {
        let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({len},), }}\n");
        let mut bytes = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
        bytes.extend((0..len).map(|n| n as u8));
        bytes
    }

    fn recorded(bytes: &[u8]) -> Recorded {
        let runs =
            examine(&bytes, bytes.len() as u64, 4096, &Before::default(), &|| true, &tensorfs_formats::recognise)
                .unwrap()
                .unwrap();
        let record = |run: SealedRun| FileRecord {
            offset: run.offset,
            len: run.len,
            origin: None,
            durable: true,
            seal: Some(run.seal),
            provisional: false,
        };
        let records = runs.into_iter().map(record).collect();
        Recorded { state: FileState::Sealed, size: bytes.len() as u64, version: (1, 1), sealed: true, records }
    }

    #[test]
    fn large_and_small_tensors_have_their_checksums() {
        for len in [10, 5000] {
            let bytes = npy(len);
            let found = recorded(&bytes);
            assert!(found.has_all_tensors());
            let entry = found.entries().next().unwrap();
            let data = &bytes[bytes.len() - len..];
            assert_eq!(found.checksums(&entry), [(len as u64, tensorfs_formats::crc32c(data))]);
        }
        assert!(!recorded(b"nothing that is known").has_all_tensors());
    }

    #[test]
    fn tensors_come_in_the_files_own_order() {
        let mut found = recorded(&npy(10));
        let entry = found.entries().next().unwrap();
        let mut order = Vec::new();
        let numbered = [2, 0, 1, 5, 4].map(|index| TensorEntry { index, ..entry.clone() });
        // Runs of another file, each with one tensor.
        let encoded = |entry: &TensorEntry| {
            let mut bytes = vec![1, 0];
            bytes.extend(postcard_of(entry));
            Seal { crc: 0, description: bytes.into() }
        };
        let first = found.records[0].clone();
        let record = |entry| FileRecord { seal: Some(encoded(entry)), ..first.clone() };
        found.records = numbered.iter().map(record).collect();
        found.each(&mut |entry| {
            order.push(entry.index);
            ControlFlow::Continue(())
        });
        assert_eq!(order, [0, 1, 2, 4, 5]);
    }

    fn postcard_of(entry: &TensorEntry) -> Vec<u8> {
        postcard::to_stdvec(entry).unwrap()
    }
}
