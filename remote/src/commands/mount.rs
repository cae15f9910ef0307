//! Which pool a path on a mount is in.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The pool that is mounted at or above a path, and where.
pub fn pool_of(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    // Of mounts over each other the last one counts.
    let mounts = table.split(|byte| *byte == b'\n').filter_map(mount).filter(|(at, ..)| path.starts_with(at));
    let (at, kind, source) = mounts.max_by_key(|(at, ..)| at.as_os_str().len())?;
    (kind == "fuse.tensorfs").then_some((source, at))
}

/// Mount point, type and source of a line.
fn mount(line: &[u8]) -> Option<(PathBuf, String, PathBuf)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let at = unescaped(fields.nth(4)?);
    fields.find(|field| *field == b"-")?;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    Some((at, kind, unescaped(fields.next()?)))
}

/// Blanks and the like are a backslash and three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), field);
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        let digits =
            behind.get(..3).filter(|digits| *first == b'\\' && digits.iter().all(|d| matches!(d, b'0'..=b'7')));
        match digits {
            Some(digits) => {
                bytes.push(digits.iter().fold(0_u8, |byte, digit| byte.wrapping_shl(3) | (digit - b'0')));
                rest = &behind[3..];
            }
            None => bytes.push(*first),
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// The parts of a path below a mount, from its root.
pub fn within<'a>(path: &'a Path, mount: &Path) -> &'a OsStr {
    path.strip_prefix(mount).map_or(OsStr::from_bytes(b""), Path::as_os_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line = b"36 35 98:0 / /mnt/a\\040b rw,noatime shared:1 - fuse.tensorfs /pools/x\\134y rw";
        let expected = ("/mnt/a b".into(), "fuse.tensorfs".to_owned(), "/pools/x\\y".into());
        assert_eq!(mount(line), Some(expected));
        assert_eq!(mount(b"36 35"), None);
    }
}
