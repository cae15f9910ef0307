//! Extended attributes of a path itself: links are not followed.

use std::ffi::CString;
use std::path::Path;

use nix::errno::Errno;

use crate::c_path;

/// More than an attribute, or a list of names, can be long.
const LONGEST: usize = 70_000;

fn c_name(name: impl AsRef<[u8]>) -> CString {
    CString::new(name.as_ref()).expect("no NUL in a name")
}

/// Sets an attribute. `flags` are `XATTR_CREATE`, `XATTR_REPLACE` or 0.
pub fn set(path: &Path, name: impl AsRef<[u8]>, value: &[u8], flags: i32) -> Result<(), Errno> {
    let (path, name) = (c_path(path), c_name(name));
    // SAFETY: C strings, and a value that is as long as said.
    let done = unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) };
    Errno::result(done).map(drop)
}

/// An attribute's value.
pub fn get(path: &Path, name: impl AsRef<[u8]>) -> Result<Vec<u8>, Errno> {
    let (path, name) = (c_path(path), c_name(name));
    let mut value = vec![0; LONGEST];
    // SAFETY: C strings, and a buffer that is as long as said.
    let len = unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(Errno::result(len)? as usize);
    Ok(value)
}

/// Removes an attribute.
pub fn remove(path: &Path, name: impl AsRef<[u8]>) -> Result<(), Errno> {
    let (path, name) = (c_path(path), c_name(name));
    // SAFETY: C strings.
    Errno::result(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) }).map(drop)
}

/// The names of all attributes.
pub fn list(path: &Path) -> Result<Vec<Vec<u8>>, Errno> {
    let path = c_path(path);
    let mut names = vec![0_u8; LONGEST];
    // SAFETY: a C string, and a buffer that is as long as said.
    let len = unsafe { libc::llistxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    names.truncate(Errno::result(len)? as usize);
    Ok(names.split(|&byte| byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}
