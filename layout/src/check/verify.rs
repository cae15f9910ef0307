//! Verifying: do a file's bytes still have the checksums that they were sealed with, and if not, which tensors are
//! hurt?

use std::fs::File;
use std::io;

use tensorfs_formats::{Source, crc32c, crc32c_append, crc32c_zeroes, read_exact};

use crate::error::reason;
use crate::ids::SegmentId;
use crate::log::description::TensorEntry;
use crate::segment::examine::LARGE;
use crate::segment::segments::Segments;
use crate::tree::chain::FileChain;

/// What is read at a time.
const PIECE: usize = 1 << 20;
/// So many hurt tensors of one run are named.
const NAMED: usize = 16;

/// What came of verifying one sealed run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// First byte of the run.
    pub offset: u64,
    /// Bytes in the run.
    pub len: u64,
    /// What is wrong with it; nothing if its bytes are what was sealed.
    pub fault: Option<String>,
    /// The tensors that have damaged bytes in the run: name and step, the first few of them.
    pub tensors: Vec<String>,
}

/// Reads the sealed runs of a file and compares their checksums. `read` hears of all bytes that were read.
pub fn verify_runs(segments: &Segments, id: SegmentId, chain: &FileChain, read: &dyn Fn(u64)) -> Vec<Verdict> {
    // Looking at a file is no access to it.
    let file = segments.open(id, libc::O_RDONLY | libc::O_NOATIME).map(File::from);
    let sealed = chain.runs().iter().filter_map(|run| Some((run, run.seal()?.crc)));
    let verdict = |(offset, len, crc)| {
        let fault = match &file {
            Ok(file) => fault_of_run(file, offset, len, crc, read),
            Err(error) => Some(format!("cannot be opened: {}", reason(error))),
        };
        let tensors = match (&fault, &file) {
            (Some(_), Ok(file)) => {
                let hurt = chain.tensors().filter(|entry| is_hurt(file, entry, offset, len));
                hurt.take(NAMED).map(|entry| entry.tensor.label()).collect()
            }
            _ => Vec::new(),
        };
        Verdict { offset, len, fault, tensors }
    };
    sealed.map(|(run, crc)| verdict((run.offset, run.len, crc))).collect()
}

/// What is wrong with a run that was sealed with this checksum, if anything.
pub fn fault_of_run(source: &dyn Source, offset: u64, len: u64, crc: u32, read: &dyn Fn(u64)) -> Option<String> {
    match crc_of_run(source, offset, len, read) {
        Err(error) => Some(format!("cannot be read: {}", reason(&error))),
        Ok(found) if found != crc => Some(other_checksum(offset, len)),
        Ok(_) => None,
    }
}

/// What is said of a run whose bytes are not those that were sealed.
pub fn other_checksum(offset: u64, len: u64) -> String {
    format!("{len} bytes from offset {offset} do not have the checksum they were sealed with")
}

/// The checksum of a run as it is. `read` hears of all bytes that were read.
///
/// # Errors
/// What reading it gives.
pub fn crc_of_run(source: &dyn Source, offset: u64, len: u64, read: &dyn Fn(u64)) -> io::Result<u32> {
    let mut buffer = vec![0; usize::try_from(len).unwrap_or(PIECE).min(PIECE)];
    let (mut at, mut found) = (offset, 0);
    let end = offset.saturating_add(len);
    while at < end {
        // Holes are not read, however large they are.
        let hole = source.hole(at).unwrap_or(0).min(end - at);
        if hole > 0 {
            found = crc32c_zeroes(found, hole);
            at += hole;
            read(hole);
            continue;
        }
        let piece = &mut buffer[..(end - at).min(PIECE as u64) as usize];
        read_exact(source, at, piece)?;
        found = crc32c_append(found, piece);
        at += piece.len() as u64;
        read(piece.len() as u64);
    }
    Ok(found)
}

/// What is wrong with a sealed file whose host file has not the size that is recorded, if anything: where, how many
/// bytes, and in words. Of one that is too short, its runs say so.
pub fn fault_of_size(found: u64, recorded: u64) -> Option<(u64, u64, String)> {
    let more = found.checked_sub(recorded).filter(|more| *more > 0)?;
    Some((recorded, more, format!("its segment has {more} bytes behind the end of the file")))
}

/// True if a tensor of the file has damaged bytes in a run that is damaged.
pub fn is_hurt(source: &dyn Source, entry: &TensorEntry, offset: u64, len: u64) -> bool {
    let (start, size) = entry.tensor.range();
    if start >= offset.saturating_add(len) || start.saturating_add(size) <= offset {
        return false;
    }
    let Some(crc) = entry.crc else { return true };
    // Only small tensors have a checksum of their own; the log does not get to choose how much memory this takes.
    let mut bytes = vec![0; size.min(LARGE) as usize];
    read_exact(source, start, &mut bytes).is_err() || crc32c(&bytes) != crc
}
