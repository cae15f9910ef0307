//! Extended attributes of files on a mount.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The longest value that is asked for.
const SIZE: usize = 256;

/// An attribute whose value is a short text. None if there is none, or its filesystem has no attributes. A link is
/// followed.
///
/// # Errors
/// Whatever else the host says: nobody knows then whether there is one.
pub fn get(path: &Path, name: &str) -> io::Result<Option<String>> {
    let (path, name) = (CString::new(path.as_os_str().as_bytes())?, CString::new(name)?);
    let mut value = vec![0; SIZE];
    // SAFETY: both names end with NUL, and at most as many bytes are written as the buffer has.
    let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    let Ok(len) = usize::try_from(len) else {
        let error = io::Error::last_os_error();
        let is_none = [libc::ENODATA, libc::ENOTSUP].map(Some).contains(&error.raw_os_error());
        return if is_none { Ok(None) } else { Err(error) };
    };
    value.truncate(len);
    let value = String::from_utf8(value).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some(value))
}
