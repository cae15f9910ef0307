//! TFRecord: frames of a length with its checksum, a payload, and the payload's checksum.
//!
//! Files of frames grow, so they are recognised frame by frame, and recognition goes on where it ended. The checksum of
//! the length is what makes a frame: it is always verified. The one of the payload is verified if the payload is an
//! event with tensors; smdebug, to save time, writes the checksum of a constant in its place, which proves nothing.

use crate::checksum::crc32c_zeroes;
use crate::cursor::Cursor;
use crate::event;
use crate::fault::{Fault, Result, malformed};
use crate::format::Format;
use crate::found::Out;
use crate::protobuf::Range;
use crate::source::Source;

/// Length and its checksum, in front of the payload.
const HEADER: u64 = 12;
/// The payload's checksum, behind it.
const FOOTER: u64 = 4;
/// smdebug's footer: the checksum of the text `0x12345678`.
const SMDEBUG_FOOTER: u32 = u32::from_le_bytes([0xb3, 0xc0, 0x2d, 0x06]);
/// A payload is checked in pieces of this size.
const PIECE: u64 = 64 << 10;

/// Whether `head` is the header of a frame.
pub(crate) fn starts(head: &[u8]) -> bool {
    let Some((len, rest)) = head.split_first_chunk::<8>() else { return false };
    rest.first_chunk().is_some_and(|crc| u32::from_le_bytes(*crc) == masked(crc32c::crc32c(len)))
}

/// CRCs of what holds CRCs itself are weak, so TFRecord stores them rotated and shifted.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// From a frame on, up to the end of the frame that makes it `limit` tensors.
pub(crate) fn recognise(source: &dyn Source, from: u64, limit: u64, out: &mut Out<'_, '_>) -> Result<()> {
    out.found.format = Format::TfRecord;
    out.found.end = from;
    let mut cursor = Cursor::new(source, from, u64::MAX)?;
    while cursor.left() > 0 {
        let at = cursor.at();
        if cursor.left() < HEADER {
            out.found.cut = true;
            out.found.reason.get_or_insert_with(|| format!("the frame at {at} is incomplete"));
            break;
        }
        let header: [u8; HEADER as usize] = cursor.array()?;
        if !starts(&header) {
            // Where it goes on inside a frame nobody knows where the next one is.
            out.found.cut = from == 0 || out.found.frames > 0;
            out.found.reason = Some(format!("the bytes at {at} are no frame"));
            break;
        }
        let len = header.first_chunk().map_or(0, |len| u64::from_le_bytes(*len));
        let payload = cursor.at();
        if len.checked_add(FOOTER).is_none_or(|len| len > cursor.left()) {
            out.found.cut = true;
            out.found.reason.get_or_insert_with(|| format!("the frame at {at} is incomplete"));
            break;
        }
        let payload = Range { start: payload, end: payload + len };
        match frame(&mut cursor, payload, out) {
            // What is too much to be looked at is left out.
            Ok(()) | Err(Fault::TooMuch(_)) => {}
            Err(Fault::Malformed(why) | Fault::Short(why)) => {
                out.found.bad_frames += 1;
                out.found.reason.get_or_insert_with(|| format!("the frame at {at}: {why}"));
            }
            Err(fault) => return Err(fault),
        }
        cursor.seek(payload.end + FOOTER);
        out.found.frames += 1;
        out.found.end = cursor.at();
        if out.found.tensors >= limit && cursor.left() > 0 {
            return Err(Fault::Stopped);
        }
    }
    Ok(())
}

fn frame(cursor: &mut Cursor<'_>, payload: Range, out: &mut Out<'_, '_>) -> Result<()> {
    // Other payloads than events are the reader's own business.
    let event = match event::open(cursor, payload) {
        Ok(Some(event)) => event,
        Ok(None) | Err(Fault::Malformed(_) | Fault::Short(_) | Fault::TooMuch(_)) => return Ok(()),
        Err(fault) => return Err(fault),
    };
    cursor.seek(payload.end);
    let footer = cursor.u32()?;
    if footer != SMDEBUG_FOOTER {
        let mut crc = 0;
        cursor.seek(payload.start);
        while cursor.at() < payload.end {
            let count = (payload.end - cursor.at()).min(PIECE) as usize;
            let piece = cursor.take(count)?;
            let blank = piece.iter().all(|byte| *byte == 0);
            crc = crc32c::crc32c_append(crc, piece);
            if blank {
                let hole = cursor.hole()?.min(payload.end - cursor.at());
                crc = crc32c_zeroes(crc, hole);
                cursor.skip(hole)?;
            }
        }
        if masked(crc) != footer {
            return malformed("its checksum is wrong");
        }
    }
    event::tensors(cursor, &event, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found::Recognised;
    use crate::recognise::{recognise, resume, resume_some};
    use crate::tensor::Tensor;
    use std::ops::ControlFlow;

    fn frame(payload: &[u8]) -> Vec<u8> {
        let len = (payload.len() as u64).to_le_bytes();
        let mut frame = len.to_vec();
        frame.extend(masked(crc32c::crc32c(&len)).to_le_bytes());
        frame.extend(payload);
        frame.extend(masked(crc32c::crc32c(payload)).to_le_bytes());
        frame
    }

    /// An event of one simple value, "x".
    fn scalar(step: u8) -> Vec<u8> {
        let mut event = vec![0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, step, 0x2a, 10, 0x0a, 8, 0x0a, 1, b'x', 0x15];
        event.extend(1.5_f32.to_le_bytes());
        event
    }

    fn list(bytes: &[u8], from: u64) -> (Recognised, Vec<Tensor>) {
        let mut all = Vec::new();
        let mut sink = |tensor| {
            all.push(tensor);
            ControlFlow::Continue(())
        };
        let found = if from == 0 { recognise(&bytes, &mut sink) } else { resume(&bytes, from, &mut sink) };
        (found, all)
    }

    #[test]
    fn the_constant_is_smdebugs() {
        assert_eq!(masked(crc32c::crc32c(b"0x12345678")), SMDEBUG_FOOTER);
    }

    #[test]
    fn goes_on_where_it_ended() {
        let mut file = [frame(&scalar(1)), frame(&scalar(2)), frame(&scalar(3))].concat();
        let whole = file.len() as u64;
        let cut = file.len() - 1;
        let (found, tensors) = list(&file[..cut], 0);
        assert_eq!((found.frames, tensors.len()), (2, 2));
        assert!(found.reason.unwrap().contains("incomplete"));
        file.extend(frame(&scalar(4)));
        let (found, tensors) = list(&file, found.end);
        assert_eq!(tensors.iter().map(|tensor| tensor.step).collect::<Vec<_>>(), [Some(3), Some(4)]);
        assert_eq!(found.end, whole + frame(&scalar(4)).len() as u64);
        let (found, tensors) = list(&file, found.end);
        assert_eq!((found.frames, found.reason, tensors.len()), (0, None, 0));
    }

    #[test]
    fn stops_between_frames() {
        let file = [frame(&scalar(1)), frame(&scalar(2)), frame(&scalar(3))].concat();
        let (mut at, mut steps, mut parts) = (0, Vec::new(), 0);
        loop {
            let found = resume_some(&&file[..], at, 2, &mut |tensor| {
                steps.push(tensor.step);
                ControlFlow::Continue(())
            });
            (at, parts) = (found.end, parts + 1);
            if !found.stopped {
                break;
            }
        }
        assert_eq!((steps, at, parts), (vec![Some(1), Some(2), Some(3)], file.len() as u64, 2));
    }

    #[test]
    fn leaves_out_what_is_damaged() {
        let mut file = [frame(&scalar(1)), frame(&scalar(2)), frame(&scalar(3))].concat();
        let len = frame(&scalar(1)).len();
        file[len + 20] ^= 1;
        let (found, tensors) = list(&file, 0);
        assert_eq!((found.format, found.frames, found.bad_frames, tensors.len()), (Format::TfRecord, 3, 1, 2));
        assert!(found.reason.unwrap().contains("checksum"));
        assert!(!found.cut);
        file[2 * len] ^= 1;
        let (found, tensors) = list(&file, 0);
        assert_eq!((found.frames, found.end, tensors.len(), found.cut), (2, 2 * len as u64, 1, true));
        assert!(!list(&file, 2 * len as u64).0.cut, "it may be the middle of one");
        file[0] ^= 1;
        assert_eq!(list(&file, 0).0.format, Format::Opaque);
    }

    #[test]
    fn passes_over_what_is_no_event() {
        let (found, tensors) = list(&[frame(b""), frame(b"\x0a\x03abc"), frame(b"\xff")].concat(), 0);
        assert_eq!((found.format, found.frames, found.bad_frames, tensors.len()), (Format::TfRecord, 3, 0, 0));
    }
}
