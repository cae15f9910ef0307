//! Which pool a path on a mount is in. Whoever mounts says so himself: root believes no other user.

use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use tensorfs_layout::pool::holder;

/// Where on a mount a path is.
#[derive(Debug, PartialEq, Eq)]
pub struct OnMount {
    /// The pool that is mounted.
    pub pool: PathBuf,
    /// Where.
    pub at: PathBuf,
    /// The path from the root of the pool's tree on: what is mounted may be a directory in it.
    pub within: PathBuf,
}

/// The pool that is meant by its own path, or by that of its mount if whoever serves the pool says so, too: anybody
/// may mount something and call it as he likes, and a bind mount of a directory is not all of a pool.
pub fn pool_of(path: &Path) -> PathBuf {
    let at = std::fs::canonicalize(path).ok();
    let place = at.and_then(|at| on_mount(&at).filter(|place| place.at == at && place.within == Path::new("/")));
    let is_served_there = |place: &OnMount| {
        let holder = holder(&place.pool).ok().flatten();
        holder.and_then(|holder| holder.mountpoint).is_some_and(|mountpoint| mountpoint == place.at)
    };
    place.filter(is_served_there).map_or_else(|| path.to_owned(), |place| place.pool)
}

/// Where on a mount a path is, if it is on one.
pub fn on_mount(path: &Path) -> Option<OnMount> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    // Of mounts over each other the last one counts.
    let mounts = table.split(|byte| *byte == b'\n').filter_map(mount).filter(|mount| path.starts_with(&mount.at));
    let mount = mounts.max_by_key(|mount| mount.at.as_os_str().len())?;
    let is_believed = !geteuid().is_root() || mount.user.is_none_or(|user| user == 0);
    let within = mount.root.join(path.strip_prefix(&mount.at).ok()?);
    (mount.kind == "fuse.tensorfs" && is_believed).then_some(OnMount { pool: mount.source, at: mount.at, within })
}

/// One of them.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    at: PathBuf,
    /// What of the filesystem is there.
    root: PathBuf,
    kind: String,
    source: PathBuf,
    user: Option<u32>,
}

/// That of a line.
fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let root = unescaped(fields.nth(3)?);
    let at = unescaped(fields.next()?);
    fields.find(|field| *field == b"-")?;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescaped(fields.next()?);
    let options = String::from_utf8_lossy(fields.next().unwrap_or_default());
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    Some(Mount { at, root, kind, source, user })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line =
            b"36 35 98:0 /in\\040it /mnt/a\\040b rw shared:1 - fuse.tensorfs /pools/x\\134y rw,user_id=12,allow_other";
        let (at, kind) = ("/mnt/a b".into(), "fuse.tensorfs".to_owned());
        let (root, source) = ("/in it".into(), "/pools/x\\y".into());
        let expected = Mount { at, root, kind, source, user: Some(12) };
        assert_eq!(mount(line), Some(expected));
        assert_eq!(mount(b"36 35"), None);
    }
}
