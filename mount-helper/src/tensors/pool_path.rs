//! How something in a pool that is not mounted is called: `POOL:/path`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tensorfs_layout::pool::looks_like_pool;

/// `POOL` and a name become `POOL:/name`, `POOL:/dir` and a name `POOL:/dir/name`.
pub fn joined(path: &Path, name: &OsStr) -> PathBuf {
    let mut whole = path.as_os_str().to_owned();
    whole.push(separator(path));
    whole.push(Path::new(name).strip_prefix("/").map_or(name, Path::as_os_str));
    PathBuf::from(whole)
}

/// What comes between a path and a name.
pub fn separator(path: &Path) -> &'static str {
    let inside = path.as_os_str().as_bytes().windows(2).any(|pair| pair == b":/");
    if inside { "/" } else { ":/" }
}

/// The two parts of `POOL:/path`.
pub fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    let bytes = path.as_os_str().as_bytes();
    let colons = bytes.windows(2).enumerate().filter(|(_, pair)| *pair == b":/");
    let mut parts = colons.map(|(at, _)| (OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(&bytes[at + 1..])));
    parts.find(|(pool, _)| looks_like_pool(Path::new(pool))).map(|(pool, inside)| (Path::new(pool), inside))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn pools_and_what_is_in_them() {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("a:/b").join("pool");
        for part in ["segments", "quarantine"] {
            fs::create_dir_all(pool.join(part)).unwrap();
        }
        assert!(!looks_like_pool(&pool));
        fs::write(pool.join("log"), b"").unwrap();
        assert!(looks_like_pool(&pool));
        let named = PathBuf::from(format!("{}:/x/y", pool.display()));
        assert_eq!(split(&named), Some((pool.as_path(), OsStr::new("/x/y"))));
        assert_eq!(split(&pool.join("x")), None);
        assert_eq!(joined(Path::new("p"), OsStr::new("x")), Path::new("p:/x"));
        assert_eq!(joined(Path::new("p:/x"), OsStr::new("y")), Path::new("p:/x/y"));
        assert_eq!(joined(Path::new("p"), OsStr::new("/x/y")), Path::new("p:/x/y"));
    }
}
