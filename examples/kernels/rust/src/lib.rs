//! `save`, `get` and `delete` of arrays by key, in Rust. Files and C interface (`kernel.h`) are those of the C++
//! operators in the directory above, so that either can stand in for the other.
//!
//! A key is the name of a file in a directory. What one process saves, another maps, without a copy and without a
//! server. The header of a file is read by the recogniser of tensorfs, which trusts nothing in it.

use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapMut, MmapOptions};
use tensorfs_formats::{Format, Location, Order, Tensor, npy_header, recognise};

pub mod c;

/// What an array is: NumPy's name of the type of its elements, its dimensions, and whether the first runs fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// NumPy's name of the type, such as `"<f4"`.
    pub descr: String,
    /// The dimensions.
    pub shape: Vec<u64>,
    /// True if the first dimension runs fastest, as in Fortran.
    pub column_major: bool,
    /// What the numbers are where NumPy has no name for it, such as `"bfloat16"`; else empty.
    pub kind: String,
}

impl Description {
    /// How many bytes the array has; `None` if it is not one of numbers.
    fn bytes(&self) -> Option<u64> {
        let numbers = self.descr.strip_prefix(['<', '|', '='])?.strip_prefix(['b', 'i', 'u', 'f', 'c'])?;
        let item = numbers.parse().ok().filter(|item| (1..=32).contains(item))?;
        self.shape.iter().try_fold(item, |bytes: u64, size| bytes.checked_mul(*size))
    }
}

/// The attribute with an array's `kind`.
const KIND: &CStr = c"user.kernel.type";

/// The longest `kind` that the C interface has room for.
const KIND_MAX: usize = 15;

/// An array that is mapped. It stays as it is if its key is saved again or deleted.
#[derive(Debug)]
pub struct Mapped {
    /// What it is.
    pub description: Description,
    map: MmapMut,
    start: usize,
    len: usize,
}

impl Mapped {
    /// Its bytes, which are the file's.
    pub fn bytes(&self) -> &[u8] {
        &self.map[self.start..self.start + self.len]
    }

    /// Its bytes, which can be changed, for everybody who has them mapped.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.start..self.start + self.len]
    }
}

/// The path of a key: no key leads out of the directory, or to what begins with a dot.
fn path_of(directory: &Path, key: &str) -> io::Result<PathBuf> {
    if key.is_empty() || key.starts_with('.') || key.contains(['/', '\0']) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(directory.join(key))
}

/// Saves an array of numbers under the key, in the place of the one that was there, if any: others see the old array or
/// the new one, whole.
///
/// # Errors
/// `EINVAL` if the key is none, `InvalidInput` if the bytes are not those of such an array of numbers; else what
/// creating, writing or renaming the file gives.
pub fn save(directory: &Path, key: &str, description: &Description, bytes: &[u8]) -> io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let path = path_of(directory, key)?;
    if description.bytes() != Some(bytes.len() as u64) || description.kind.len() > KIND_MAX {
        let why = "is no array of numbers with as many bytes as it has elements";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let temporary = directory.join(format!(".{key}.{}.{number}.rs.tmp", std::process::id()));
    let written = File::create_new(&temporary)
        .and_then(|mut file| {
            file.write_all(&header(description))?;
            file.write_all(bytes)?;
            if description.kind.is_empty() { Ok(()) } else { set_kind(&file, &description.kind) }
        })
        .and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn set_kind(file: &File, kind: &str) -> io::Result<()> {
    // SAFETY: the name ends with a NUL, and so many bytes of the value are read.
    match unsafe { libc::fsetxattr(file.as_raw_fd(), KIND.as_ptr(), kind.as_ptr().cast(), kind.len(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn kind_of(file: &File) -> Option<String> {
    let mut kind = [0; KIND_MAX];
    // SAFETY: the name ends with a NUL, and no more is written than there is room for.
    let len = unsafe { libc::fgetxattr(file.as_raw_fd(), KIND.as_ptr(), kind.as_mut_ptr().cast(), kind.len()) };
    String::from_utf8(kind.get(..usize::try_from(len).ok()?)?.to_vec()).ok()
}

fn header(description: &Description) -> Vec<u8> {
    let Description { descr, shape, column_major, .. } = description;
    let order = if *column_major { "True" } else { "False" };
    let shape: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({shape}), }}");
    // Magic, version and length are 10 bytes; the array begins at a multiple of 64.
    text.extend(std::iter::repeat_n(' ', 63 - (10 + text.len()) % 64));
    text.push('\n');
    [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Maps the key's array.
///
/// # Errors
/// `NotFound` if there is no such key, `InvalidData` if the file is no array of numbers; else what opening or mapping
/// the file gives.
pub fn get(directory: &Path, key: &str) -> io::Result<Mapped> {
    let path = path_of(directory, key)?;
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    let mut found = None;
    let recognised = recognise(&file, &mut |tensor| {
        found = Some(tensor);
        ControlFlow::Break(())
    });
    let no_array = || io::Error::new(io::ErrorKind::InvalidData, "is no array of numbers in .npy format");
    let tensor = found.filter(|_| recognised.format == Format::Npy).ok_or_else(no_array)?;
    let (Location::Raw { offset, len }, Some(descr)) = (&tensor.location, descr(&tensor)) else {
        return Err(no_array());
    };
    let (start, len) = (*offset as usize, *len as usize);
    // SAFETY: others may change the file while it is mapped, but any pattern of bits is a valid number. Nobody shortens
    // these files: they are replaced.
    let map = unsafe { MmapOptions::new().map_mut(&file) }?;
    if start.checked_add(len).is_none_or(|end| end > map.len()) {
        return Err(no_array());
    }
    let column_major = tensor.order == Order::ColumnMajor;
    // Without the attribute, the numbers are what the header says.
    let kind = kind_of(&file).unwrap_or_default();
    Ok(Mapped { description: Description { descr, shape: tensor.shape, column_major, kind }, map, start, len })
}

/// NumPy's name of the type of a tensor's elements, taken from the header that the tensor would have as `.npy`.
fn descr(tensor: &Tensor) -> Option<String> {
    let header = npy_header(tensor)?;
    let text = String::from_utf8_lossy(&header).into_owned();
    Some(text.split_once("'descr': '")?.1.split_once('\'')?.0.to_owned())
}

/// Removes the key. Programs that have its array mapped keep it.
///
/// # Errors
/// `NotFound` if there is no such key.
pub fn delete(directory: &Path, key: &str) -> io::Result<()> {
    fs::remove_file(path_of(directory, key)?)
}
