//! What is a tensor in these bytes.
//!
//! [`recognise`] looks at any file and says which tensors it holds, where their bytes are and how to read them. It
//! knows the formats of docs/TENSORS.md and calls everything else opaque.
//!
//! The bytes are not trusted. A recogniser never fails and never panics: what is malformed is opaque, with a reason
//! for a person. It believes no length before it has checked it against the file, executes nothing, takes at most
//! [`MEMORY`] bytes whatever the file says, and its time is linear in the bytes it reads, which are not more than a
//! constant times the file's. A file is recognised whole or not at all, except for event files, which grow: they are
//! recognised up to their first bad frame.

mod cursor;
mod dtype;
mod event;
mod npy;
mod npz;
mod pickle;
mod protobuf;
mod pyliteral;
mod read;
mod safetensors;
mod source;
mod tensor;
mod tfrecord;
mod torch;
mod zip;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

pub use crc32c::{crc32c, crc32c_append};
pub use dtype::Dtype;
pub use read::{Reader, TensorReader, npy_header, npy_len, read_tensor};
pub use source::Source;
pub(crate) use source::read_exact;
pub use tensor::{Kind, Location, Mode, Order, Storage, Tensor};

/// The most memory that recognising a file takes, in bytes.
pub const MEMORY: usize = 64 << 20;
/// The most dimensions of a tensor.
pub const DIMENSIONS_MAX: usize = 64;
/// The longest name of a tensor, in bytes.
pub const NAME_MAX: usize = 65_535;
/// The most tensors in a file, event files excepted.
pub const TENSORS_MAX: usize = 1 << 20;

/// How a file is laid out. The log holds its number: new ones go behind the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Format {
    /// Nothing that is recognised.
    Opaque,
    /// TFRecord frames: event files of smdebug and TensorBoard, and data sets.
    TfRecord,
    /// A safetensors file.
    Safetensors,
    /// A NumPy array.
    Npy,
    /// A zip of NumPy arrays.
    Npz,
    /// What `torch.save` writes: a zip of a pickle and of storages.
    Torch,
    /// HDF5, which is told apart but not looked into.
    Hdf5,
}

impl Format {
    /// The format's name in print.
    pub fn name(self) -> &'static str {
        match self {
            Format::Opaque => "opaque",
            Format::TfRecord => "tfrecord",
            Format::Safetensors => "safetensors",
            Format::Npy => "npy",
            Format::Npz => "npz",
            Format::Torch => "torch",
            Format::Hdf5 => "hdf5",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a file turned out to be. Its tensors went to the sink.
#[derive(Debug)]
pub struct Recognised {
    /// The file's format.
    pub format: Format,
    /// Tensors given to the sink.
    pub tensors: u64,
    /// Event files: complete frames looked at.
    pub frames: u64,
    /// Event files: frames whose checksum or content is wrong; their tensors are left out.
    pub bad_frames: u64,
    /// Up to here the file is understood. For event files the end of the last complete frame, from where
    /// [`resume`] goes on.
    pub end: u64,
    /// Why the file is opaque, or what in it is wrong.
    pub reason: Option<String>,
    /// What the file says about itself (safetensors), as far as it fits in 1 MiB.
    pub metadata: Vec<(String, String)>,
    /// Torch: what a program that unpickles the file would import and call, beyond what tensors need. The first 32.
    pub calls: Vec<String>,
    /// The sink wanted no more.
    pub stopped: bool,
    /// The file could not be read.
    pub error: Option<io::Error>,
}

impl Recognised {
    fn new(format: Format) -> Self {
        Recognised {
            format,
            tensors: 0,
            frames: 0,
            bad_frames: 0,
            end: 0,
            reason: None,
            metadata: Vec::new(),
            calls: Vec::new(),
            stopped: false,
            error: None,
        }
    }
}

/// Where tensors go, one by one, in the file's own order. [`ControlFlow::Break`] ends the recognition.
pub type Sink<'a> = dyn FnMut(Tensor) -> ControlFlow<()> + 'a;

/// Says what the file is, and gives each of its tensors to `sink`.
pub fn recognise(source: &dyn Source, sink: &mut Sink<'_>) -> Recognised {
    run(source, sink, |source, out| {
        let mut head = [0; HEAD];
        let size = source.size()?;
        let len = source::read_up_to(source, 0, &mut head)?;
        let head = &head[..len];
        if head.starts_with(npy::MAGIC) {
            npy::recognise(source, out)
        } else if head.starts_with(zip::LOCAL_MAGIC) || head.starts_with(zip::END_MAGIC) {
            of_zip(source, out)
        } else if tfrecord::starts(head) {
            tfrecord::recognise(source, 0, u64::MAX, out)
        } else if safetensors::starts(head, size) {
            safetensors::recognise(source, out)
        } else if is_hdf5(source, size)? {
            out.found.format = Format::Hdf5;
            malformed("HDF5 files are not looked into")
        } else if head.starts_with(LEGACY_TORCH) {
            malformed("a file of torch before 1.6, which holds no directory of its tensors")
        } else {
            malformed("no format that is recognised")
        }
    })
}

/// Goes on with an event file that has grown, at the [`Recognised::end`] of the last time.
pub fn resume(source: &dyn Source, from: u64, sink: &mut Sink<'_>) -> Recognised {
    resume_some(source, from, u64::MAX, sink)
}

/// The same, but it stops behind the frame that makes it `limit` tensors or more. [`Recognised::stopped`] says whether it
/// did.
pub fn resume_some(source: &dyn Source, from: u64, limit: u64, sink: &mut Sink<'_>) -> Recognised {
    run(source, sink, |source, out| tfrecord::recognise(source, from, limit, out))
}

const HEAD: usize = 32;
const HDF5_MAGIC: &[u8] = b"\x89HDF\r\n\x1a\n";
/// The first pickle of the old torch format: protocol 2, its magic number as a long.
const LEGACY_TORCH: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";

/// The superblock of HDF5 is at 0, or behind a user block at 512, 1024, 2048, ...
fn is_hdf5(source: &dyn Source, size: u64) -> Result<bool> {
    let mut at = 0_u64;
    while at.saturating_add(8) <= size {
        let mut magic = [0; 8];
        if source::read_up_to(source, at, &mut magic)? == 8 && magic == HDF5_MAGIC {
            return Ok(true);
        }
        at = (at * 2).max(512);
    }
    Ok(false)
}

fn of_zip(source: &dyn Source, out: &mut Out<'_, '_>) -> Result<()> {
    let directory = zip::Directory::find(source)?;
    match torch::prefix(source, &directory)? {
        Some(prefix) => torch::recognise(source, &directory, &prefix, out),
        None => npz::recognise(source, &directory, out),
    }
}

fn run(
    source: &dyn Source,
    sink: &mut Sink<'_>,
    recogniser: impl FnOnce(&dyn Source, &mut Out<'_, '_>) -> Result<()>,
) -> Recognised {
    let mut out = Out { found: Recognised::new(Format::Opaque), sink };
    let result = recogniser(source, &mut out);
    let mut found = out.found;
    match result {
        Ok(()) => {}
        Err(Fault::Stopped) => found.stopped = true,
        Err(Fault::Malformed(why)) => {
            found.reason = Some(why.into_owned());
            // A recogniser sets the format when it is sure; what then fails is damage behind good tensors.
            if found.tensors == 0 && !matches!(found.format, Format::TfRecord | Format::Hdf5) {
                found.format = Format::Opaque;
                found.metadata.clear();
            }
        }
        Err(Fault::Io(error)) => {
            found.reason = Some(error.to_string());
            found.error = Some(error);
        }
    }
    found
}

/// What a recogniser finds, on its way out.
struct Out<'a, 'b> {
    found: Recognised,
    sink: &'a mut Sink<'b>,
}

impl Out<'_, '_> {
    fn tensor(&mut self, tensor: Tensor) -> Result<()> {
        self.found.tensors += 1;
        match (self.sink)(tensor) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Fault::Stopped),
        }
    }
}

/// Why a recogniser ends early.
#[derive(Debug)]
enum Fault {
    Io(io::Error),
    Malformed(Cow<'static, str>),
    Stopped,
}

type Result<T, E = Fault> = std::result::Result<T, E>;

impl From<io::Error> for Fault {
    /// Readers below `io::Read` say with an error what is wrong with the bytes; that is not a fault of the disk.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Fault::Malformed("cut short".into()),
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput if error.raw_os_error().is_none() => {
                Fault::Malformed(error.to_string().into())
            }
            _ => Fault::Io(error),
        }
    }
}

fn malformed<T>(why: impl Into<Cow<'static, str>>) -> Result<T> {
    Err(Fault::Malformed(why.into()))
}

/// Elements of a shape, if they can be counted in 63 bits.
fn elements(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        // A dimension beside a 0 may be anything, but must not overflow what others compute from it.
        return shape.iter().all(|&n| n <= i64::MAX as u64).then_some(0);
    }
    let count = shape.iter().try_fold(1_u64, |count, &n| count.checked_mul(n))?;
    (count <= i64::MAX as u64).then_some(count)
}

/// Parts of a file that must not overlap, and their names, which must differ.
#[derive(Default)]
struct Claims {
    ranges: Vec<(u64, u64)>,
    names: Vec<u64>,
    hasher: std::hash::RandomState,
}

impl Claims {
    fn add(&mut self, name: &[u8], start: u64, end: u64) -> Result<()> {
        use std::hash::BuildHasher;
        if self.ranges.len() >= TENSORS_MAX {
            return malformed(format!("more than {TENSORS_MAX} entries"));
        }
        push(&mut self.names, self.hasher.hash_one(name));
        push(&mut self.ranges, (start, end));
        Ok(())
    }

    /// The ranges in order, once it is sure that nothing is claimed twice.
    fn settle(&mut self) -> Result<&[(u64, u64)]> {
        self.names.sort_unstable();
        if self.names.windows(2).any(|pair| pair[0] == pair[1]) {
            return malformed("two entries have the same name");
        }
        self.ranges.sort_unstable();
        if self.ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return malformed("entries overlap");
        }
        Ok(&self.ranges)
    }
}

/// `Vec::push` that grows by half rather than doubling, so that memory stays near what is counted.
fn push<T>(vec: &mut Vec<T>, value: T) {
    if vec.len() == vec.capacity() {
        vec.reserve_exact((vec.len() / 2).max(16));
    }
    vec.push(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_elements() {
        assert_eq!(elements(&[]), Some(1));
        assert_eq!(elements(&[2, 3]), Some(6));
        assert_eq!(elements(&[u64::MAX, 0]), None);
        assert_eq!(elements(&[i64::MAX as u64, 0]), Some(0));
        assert_eq!(elements(&[1 << 32, 1 << 32]), None);
        assert_eq!(elements(&[1 << 63]), None);
    }

    #[test]
    fn claims_are_exclusive() {
        let claims = |list: &[(&str, u64, u64)]| {
            let mut claims = Claims::default();
            list.iter().for_each(|(name, start, end)| claims.add(name.as_bytes(), *start, *end).unwrap());
            claims.settle().map(<[_]>::len).ok()
        };
        assert_eq!(claims(&[("b", 4, 8), ("a", 0, 4), ("c", 8, 8)]), Some(3));
        assert_eq!(claims(&[("a", 0, 4), ("a", 4, 8)]), None);
        assert_eq!(claims(&[("a", 0, 5), ("b", 4, 8)]), None);
    }

    #[test]
    fn tells_opaque_files() {
        for (bytes, reason) in [
            (&b""[..], "no format"),
            (b"hello", "no format"),
            (&[0; 4096], "no format"),
            (LEGACY_TORCH, "before 1.6"),
            (b"PK\x03\x04", "zip"),
        ] {
            let found = recognise(&bytes, &mut |_| panic!("a tensor"));
            assert_eq!(found.format, Format::Opaque);
            assert!(found.reason.as_ref().unwrap().contains(reason), "{:?}", found.reason);
        }
        let mut hdf5 = vec![0; 4096];
        hdf5[1024..1032].copy_from_slice(HDF5_MAGIC);
        assert_eq!(recognise(&&hdf5[..], &mut |_| panic!("a tensor")).format, Format::Hdf5);
    }
}
