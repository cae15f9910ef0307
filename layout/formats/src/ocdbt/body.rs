//! What manifests and nodes are wrapped in: what they are, their length, how they are compressed, and a checksum.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use crate::fault::{Fault, Result, malformed, short, too_much};
use crate::source::{Part, Source, read_exact};

use super::columns::Columns;
use super::told::{Give, Told};

/// What each begins with, then its length; and its end.
const HEAD: u64 = 12;
const CHECKSUM: u64 = 4;
/// Numbers of at most so many bytes, seven bits in each.
const VARINT: usize = 10;
/// The longest that is read.
const LEN_MAX: u64 = 256 << 20;
/// What is read at once.
const PIECE: usize = 64 << 10;
/// How far back a compressed byte may refer: what each reader of the format has to know.
const WINDOW_MAX: u64 = 8 << 20;
/// So much may come of one that is compressed, and so much more for each byte of it.
const INFLATED: u64 = 16 << 20;
const INFLATED_FOR_EACH: u64 = 256;
const INFLATED_MAX: u64 = 1 << 30;

/// One that has its checksum.
pub(super) enum Body<'s> {
    Known(Columns<'s>),
    /// It is of a version that is not known, or compressed in another way: why.
    Unknown(String),
}

impl<'s> Body<'s> {
    /// What is in a file at a place, begins so, and is called that in words.
    pub fn open(source: &'s dyn Source, (at, len): (u64, u64), magic: [u8; 4], what: &str) -> Result<Body<'s>> {
        let size = source.size()?;
        let found = size.saturating_sub(at);
        if found < 4.min(len) {
            return short(format!("{what} that is not there: the file has {size} bytes, and it begins at {at}"));
        }
        let mut begins = [0; 4];
        read_exact(source, at, &mut begins[..4.min(len as usize)])?;
        if begins != magic {
            return malformed(format!("no {}", what.trim_start_matches("a ")));
        }
        if found < HEAD {
            return short(format!("{what} that is cut short"));
        }
        let mut said = [0; 8];
        read_exact(source, at + 4, &mut said)?;
        let said = u64::from_le_bytes(said);
        // One that goes to the end of its file may go on behind it.
        let whole = if len == found { said.max(len) } else { len };
        if whole > found {
            return short(format!("{what} that is cut short: it has {found} bytes of {whole}"));
        }
        if said != len || len < HEAD + CHECKSUM {
            return malformed(format!("{what} that is not as long as it says"));
        }
        if len > LEN_MAX {
            return too_much(format!("{what} of {len} bytes"));
        }
        let end = at + len - CHECKSUM;
        if crc_of(source, at, end)? != checksum(source, end)? {
            return malformed(format!("{what} whose checksum is not that of its bytes"));
        }
        // Behind the head there are at least the checksum's bytes.
        let mut numbers = vec![0; VARINT.min(usize::try_from(end - at - HEAD).unwrap_or(VARINT))];
        read_exact(source, at + HEAD, &mut numbers)?;
        let (version, first) = number(&numbers)?;
        if version != 0 {
            return Ok(Body::Unknown(format!("{what} of version {version}, which is not known")));
        }
        let (compression, second) = number(&numbers[first..])?;
        let from = at + HEAD + (first + second) as u64;
        let failed = Rc::new(Cell::new(false));
        let bytes = Noting { part: Part { source, at: from, end }, failed: failed.clone() };
        let bytes = io::BufReader::with_capacity(PIECE, bytes);
        match compression {
            // It ends where its bytes do.
            0 => Ok(Body::Known(Columns::new(Box::new(bytes), u64::MAX, failed))),
            1 => {
                let mut decoder = FrameDecoder::new();
                decoder.set_max_window_size(WINDOW_MAX);
                match StreamingDecoder::new_with_decoder(bytes, decoder) {
                    Ok(bytes) => {
                        let most = (INFLATED + (end - from) * INFLATED_FOR_EACH).min(INFLATED_MAX);
                        let bytes = io::BufReader::with_capacity(PIECE, bytes);
                        Ok(Body::Known(Columns::new(Box::new(bytes), most, failed)))
                    }
                    Err(FrameDecoderError::WindowSizeTooBig { requested, .. }) => Ok(Body::Unknown(format!(
                        "{what} that needs {requested} bytes to inflate it, which is too much"
                    ))),
                    Err(_) if failed.get() => Err(Fault::Io(io::Error::other("it cannot be read"))),
                    Err(error) => malformed(format!("{what} that cannot be inflated: {error}")),
                }
            }
            other => Ok(Body::Unknown(format!("{what} that is compressed in a way that is not known: {other}"))),
        }
    }

    /// Has it read, if that is known how.
    pub fn told(
        self,
        give: &mut Give<'_>,
        read: impl FnOnce(&mut Columns<'_>, &mut Give<'_>) -> Result<()>,
    ) -> Result<()> {
        match self {
            Body::Known(mut columns) => read(&mut columns, give),
            Body::Unknown(why) => give(Told::Unknown(why)),
        }
    }
}

/// A number, and how many bytes it takes.
fn number(bytes: &[u8]) -> Result<(u64, usize)> {
    let mut number = 0;
    for (at, byte) in bytes.iter().enumerate().take(VARINT) {
        number |= u64::from(byte & 0x7f) << (7 * at).min(63);
        if byte & 0x80 == 0 {
            return Ok((number, at + 1));
        }
    }
    malformed("a number that does not end")
}

fn crc_of(source: &dyn Source, mut at: u64, end: u64) -> Result<u32> {
    let (mut crc, mut piece) = (0, vec![0; PIECE]);
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
        read_exact(source, at, &mut piece[..want])?;
        crc = crc32c::crc32c_append(crc, &piece[..want]);
        at += want as u64;
    }
    Ok(crc)
}

fn checksum(source: &dyn Source, at: u64) -> Result<u32> {
    let mut checksum = [0; CHECKSUM as usize];
    read_exact(source, at, &mut checksum)?;
    Ok(u32::from_le_bytes(checksum))
}

/// Notes that the file cannot be read: what inflates it says of nothing else, but that it cannot.
struct Noting<R> {
    part: R,
    failed: Rc<Cell<bool>>,
}

impl<R: Read> Read for Noting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.part.read(buffer);
        if read.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted) {
            self.failed.set(true);
        }
        read
    }
}
