//! What is recorded of a file, for programs: its state, and its records with what they hold.

use tensorfs_layout::segment::Gone;
use tensorfs_layout::{Ino, SegmentId};

use crate::error::{Fault, Host, Result};
use crate::protocol::{FileState, Part, Place, Records, SIZE};

use super::Content;

/// Bytes that a reply takes beside descriptions, at most.
const OVERHEAD: usize = 128;
/// Bytes that a part takes beside its description, at most.
const PART_OVERHEAD: usize = 80;

impl Content {
    /// The records of a file, from a place on, as many as fit in a reply.
    pub fn records(&self, ino: Ino, from: Place) -> Result<Records> {
        let node = self.files.node(ino);
        let file = self.files.lock(&node);
        let file_state = self.file_state(ino)?;
        let view = self.files.store().view();
        let object = view.object(ino).ok_or(Fault::new(libc::ENOENT))?;
        let chain = object.chain().ok_or(Fault::new(libc::EINVAL))?;
        let segment = object.attributes.segment.unwrap_or(SegmentId(0));
        let sealed = file.is_unwritten() && chain.is_sealed() && chain.size() > 0;
        // The end of a file may be marked by a run of no bytes, and nothing else.
        let runs = match chain.runs() {
            [runs @ .., last] if last.len == 0 => runs,
            runs => runs,
        };
        let horizon = self.files.store().pool().horizon();
        let mut records = Records {
            state: file_state,
            size: chain.size(),
            version: (segment.0, chain.version()),
            sealed,
            runs: runs.len() as u64,
            parts: Vec::new(),
        };
        let mut room = SIZE - OVERHEAD;
        let mut at = usize::try_from(from.at).unwrap_or(usize::MAX);
        let first = usize::try_from(from.run).map_or(runs.len(), |first| first.min(runs.len()));
        for run in &runs[first..] {
            let seal = run.any_seal().filter(|_| !file.is_replacing());
            let provisional = seal.is_some() && run.provisional_seal().is_some();
            let (crc, description) = (seal.map(|seal| seal.crc), seal.map_or(&[][..], |seal| &seal.description));
            let rest = description.get(at..).unwrap_or_default();
            if room <= PART_OVERHEAD {
                break;
            }
            let piece = &rest[..rest.len().min(room - PART_OVERHEAD)];
            room -= piece.len() + PART_OVERHEAD;
            let origin = run.origin.known();
            // What nobody noted was there before this mount, or rests on what was.
            let durable = origin.is_none_or(|(id, _)| id <= horizon);
            records.parts.push(Part {
                offset: run.offset,
                len: run.len,
                crc,
                provisional,
                origin: origin.map(|(id, time)| (id.0, time)),
                durable,
                described: description.len() as u64,
                description: piece.to_vec(),
            });
            if piece.len() < rest.len() {
                break;
            }
            at = 0;
        }
        Ok(records)
    }

    /// How many bytes the host has of a file that is sealed.
    pub fn host_size(&self, ino: Ino) -> Result<Option<u64>> {
        let node = self.files.node(ino);
        let file = self.files.lock(&node);
        let store = self.files.store();
        let segment = {
            let view = store.view();
            let object = view.object(ino).ok_or(Fault::new(libc::ENOENT))?;
            let sealed = object.chain().is_some_and(|chain| chain.is_sealed());
            object.attributes.segment.filter(|_| sealed && file.is_unwritten())
        };
        let Some(segment) = segment.filter(|segment| store.segments().gone(*segment).is_none()) else {
            return Ok(None);
        };
        Ok(Some(store.segments().stat(segment).host("looking at a segment")?.size))
    }

    /// How far a file has come.
    pub fn file_state(&self, ino: Ino) -> Result<FileState> {
        let (segment, damaged, sealed, interrupted) = {
            let view = self.files.store().view();
            let object = view.object(ino).ok_or(Fault::new(libc::ENOENT))?;
            let sealed = object.chain().filter(|chain| chain.is_sealed());
            let cut = sealed.and_then(|chain| chain.summary()).is_some_and(|summary| summary.cut);
            let interrupted = cut || object.is_interrupted();
            (object.attributes.segment, object.attributes.damaged, sealed.is_some(), interrupted)
        };
        let segments = self.files.store().segments();
        match segment.and_then(|segment| segments.gone(segment)) {
            Some(Gone::Lost { .. }) => return Ok(FileState::Lost),
            Some(Gone::Missing { .. }) => return Ok(FileState::Missing),
            Some(Gone::Away { .. }) => return Ok(FileState::Away),
            Some(Gone::Left { .. }) => return Ok(FileState::Damaged),
            None => {}
        }
        Ok(match segment {
            _ if damaged || self.files.store().is_known_damaged(ino) => FileState::Damaged,
            Some(segment) if segments.failed(segment) => FileState::Damaged,
            _ if self.files.store().writers().has(ino) => FileState::Open,
            _ if interrupted => FileState::Interrupted,
            _ if sealed => FileState::Sealed,
            Some(segment) if segments.is_pending(segment) => FileState::Open,
            _ => FileState::Committed,
        })
    }
}
