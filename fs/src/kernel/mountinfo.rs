//! Which device a mount point is, without asking the filesystem mounted there.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// The `major:minor` of the newest mount at a path, from the text of `/proc/self/mountinfo`.
pub(crate) fn device_at(mountinfo: &str, mountpoint: &Path) -> Option<String> {
    mountinfo.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let device = fields.next()?;
        let path = unescape(fields.nth(1)?);
        (path == mountpoint.as_os_str()).then(|| device.to_owned())
    })
}

/// The kernel writes blank, tab, newline and backslash as three octal digits behind a backslash.
fn unescape(field: &str) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|d| byte == b'\\' && d.iter().all(|d| (b'0'..=b'7').contains(d)));
        match octal {
            Some(d) => {
                out.push(d.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_newest_mount_at_a_path() {
        let text = "22 1 0:21 / /mnt/a rw - tmpfs t rw\n23 1 0:52 / /mnt/a\\040b rw,nosuid - fuse x rw\n\
                    24 1 0:53 / /mnt/a rw - fuse y rw\n";
        assert_eq!(device_at(text, Path::new("/mnt/a")).as_deref(), Some("0:53"));
        assert_eq!(device_at(text, Path::new("/mnt/a b")).as_deref(), Some("0:52"));
        assert_eq!(device_at(text, Path::new("/mnt")), None);
    }
}
