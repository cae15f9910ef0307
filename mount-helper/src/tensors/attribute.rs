//! Extended attributes of files on a mount.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The longest value that is asked for.
const SIZE: usize = 256;

/// An attribute whose value is a short text. None if there is none, or it may not be read. A link is followed.
pub fn get(path: &Path, name: &str) -> Option<String> {
    let (path, name) = (CString::new(path.as_os_str().as_bytes()).ok()?, CString::new(name).ok()?);
    let mut value = vec![0; SIZE];
    // SAFETY: both names end with NUL, and at most as many bytes are written as the buffer has.
    let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(usize::try_from(len).ok()?);
    String::from_utf8(value).ok()
}
