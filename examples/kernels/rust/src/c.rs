//! The C interface of `kernel.h`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::path::Path;
use std::ptr::null_mut;

use crate::{Description, Mapped};

const RANK_MAX: usize = 16;
const DESCR_MAX: usize = 16;

/// `struct kernel_array`.
#[repr(C)]
#[derive(Debug)]
pub struct Array {
    descr: [u8; DESCR_MAX],
    rank: i32,
    column_major: i32,
    shape: [i64; RANK_MAX],
    data: *mut c_void,
    bytes: u64,
    mapping: *mut c_void,
    mapped: u64,
    kind: [u8; DESCR_MAX],
}

impl Array {
    const EMPTY: Array = Array {
        descr: [0; DESCR_MAX],
        rank: 0,
        column_major: 0,
        shape: [0; RANK_MAX],
        data: null_mut(),
        bytes: 0,
        mapping: null_mut(),
        mapped: 0,
        kind: [0; DESCR_MAX],
    };

    fn description(&self) -> Option<Description> {
        let text = |bytes: &[u8; DESCR_MAX]| {
            let end = bytes.iter().position(|byte| *byte == 0)?;
            Some(std::str::from_utf8(&bytes[..end]).ok()?.to_owned())
        };
        let (descr, kind) = (text(&self.descr)?, text(&self.kind)?);
        let shape = self.shape.get(..usize::try_from(self.rank).ok()?)?;
        let shape = shape.iter().map(|size| u64::try_from(*size).ok()).collect::<Option<_>>()?;
        Some(Description { descr, shape, column_major: self.column_major != 0, kind })
    }

    fn of(mapped: Mapped) -> Option<Self> {
        let Description { descr, shape, column_major, kind } = mapped.description.clone();
        let mut array = Array { rank: shape.len() as i32, column_major: column_major.into(), ..Self::EMPTY };
        array.descr.get_mut(..descr.len()).filter(|_| descr.len() < DESCR_MAX)?.copy_from_slice(descr.as_bytes());
        for (to, from) in array.shape.get_mut(..shape.len())?.iter_mut().zip(shape) {
            *to = i64::try_from(from).ok()?;
        }
        array.kind.get_mut(..kind.len()).filter(|_| kind.len() < DESCR_MAX)?.copy_from_slice(kind.as_bytes());
        let mut mapped = Box::new(mapped);
        array.data = mapped.bytes_mut().as_mut_ptr().cast();
        array.bytes = mapped.bytes().len() as u64;
        array.mapping = Box::into_raw(mapped).cast();
        Some(array)
    }
}

/// The strings that every function takes.
///
/// # Safety
/// Each is null or a C string that outlives the result.
unsafe fn strings<'a>(directory: *const c_char, key: *const c_char) -> Option<(&'a Path, &'a str)> {
    if directory.is_null() || key.is_null() {
        return None;
    }
    // SAFETY: neither is null, and the caller vouches for them.
    let (directory, key) = unsafe { (CStr::from_ptr(directory), CStr::from_ptr(key)) };
    Some((Path::new(directory.to_str().ok()?), key.to_str().ok()?))
}

/// What a function returns: 0, or an errno value, whose reason is written into `why`.
///
/// # Safety
/// `why` is null or has room for `room` bytes.
unsafe fn answer(result: io::Result<()>, why: *mut c_char, room: usize) -> c_int {
    let Err(error) = result else { return 0 };
    let text = error.to_string();
    if !why.is_null() && room > 0 {
        let len = text.len().min(room - 1);
        // SAFETY: the caller gave us `room` bytes, and `len` and the NUL behind it are not more.
        unsafe {
            why.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), len);
            why.add(len).write(0);
        }
    }
    error.raw_os_error().unwrap_or(libc::EINVAL)
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// See `kernel.h`.
///
/// # Safety
/// Pointers are null or as `kernel.h` says.
// SAFETY: no other symbol of that name is linked with this one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn save_tensor(
    directory: *const c_char,
    key: *const c_char,
    array: *const Array,
    why: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: the caller vouches for all of them.
    let result = unsafe { strings(directory, key) }.ok_or_else(invalid).and_then(|(directory, key)| {
        // SAFETY: the caller vouches that the pointer is null or one to an array.
        let array = unsafe { array.as_ref() }.ok_or_else(invalid)?;
        let description = array.description().ok_or_else(invalid)?;
        let len = usize::try_from(array.bytes).map_err(|_| invalid())?;
        let bytes = match array.data.is_null() {
            true if len > 0 => return Err(invalid()),
            true => &[],
            // SAFETY: the caller vouches for `len` bytes behind the pointer, which is not null.
            false => unsafe { std::slice::from_raw_parts(array.data.cast::<u8>(), len) },
        };
        crate::save(directory, key, &description, bytes)
    });
    // SAFETY: the caller vouches for it.
    unsafe { answer(result, why, room) }
}

/// See `kernel.h`.
///
/// # Safety
/// Pointers are null or as `kernel.h` says.
// SAFETY: no other symbol of that name is linked with this one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_tensor(
    directory: *const c_char,
    key: *const c_char,
    array: *mut Array,
    why: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: the caller vouches for all of them.
    let result = unsafe { strings(directory, key) }.ok_or_else(invalid).and_then(|(directory, key)| {
        if array.is_null() {
            return Err(invalid());
        }
        let found = Array::of(crate::get(directory, key)?).ok_or_else(invalid)?;
        // SAFETY: it is not null, and the caller vouches for it.
        unsafe { array.write(found) };
        Ok(())
    });
    // SAFETY: the caller vouches for it.
    unsafe { answer(result, why, room) }
}

/// See `kernel.h`.
///
/// # Safety
/// The array is null or one that [`get_tensor`] of this library gave.
// SAFETY: no other symbol of that name is linked with this one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn release_tensor(array: *mut Array) {
    // SAFETY: the caller vouches for it.
    let Some(array) = (unsafe { array.as_mut() }) else { return };
    let mapping = std::mem::replace(array, Array::EMPTY).mapping.cast::<Mapped>();
    if !mapping.is_null() {
        // SAFETY: `Array::of` made the pointer from such a box, and nothing else has it any more.
        drop(unsafe { Box::from_raw(mapping) });
    }
}

/// See `kernel.h`.
///
/// # Safety
/// Pointers are null or as `kernel.h` says.
// SAFETY: no other symbol of that name is linked with this one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn delete_tensor(
    directory: *const c_char,
    key: *const c_char,
    why: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: the caller vouches for all of them.
    let result = unsafe { strings(directory, key) }.ok_or_else(invalid);
    let result = result.and_then(|(directory, key)| crate::delete(directory, key));
    // SAFETY: the caller vouches for it.
    unsafe { answer(result, why, room) }
}
