//! Paths as the kernel sees them.

use std::io;
use std::path::{Path, PathBuf};

use crate::show::failure::{At, Failure};

/// The kernel follows no more.
const LINKS_MAX: usize = 40;

/// The absolute path without symbolic links. Works on the root of a mount whose server is dead.
pub fn real(path: &Path) -> Result<PathBuf, Failure> {
    match path.canonicalize() {
        Err(error) if is_dead(&error) => {
            let (parent, name) = split(path).ok_or(error).at(path)?;
            Ok(parent.canonicalize().at(path)?.join(name))
        }
        result => result.at(path),
    }
}

/// Like [`real`], for a path whose last parts need not exist yet.
pub fn future(path: &Path) -> Result<PathBuf, Failure> {
    let mut existing = std::path::absolute(path).at(path)?;
    let mut missing = Vec::new();
    loop {
        match existing.canonicalize() {
            Err(error) if is_dead(&error) || error.kind() == io::ErrorKind::NotFound => {
                let (parent, name) = split(&existing).ok_or(error).at(path)?;
                missing.push(name);
                existing = parent;
            }
            result => {
                let mut whole = result.at(path)?;
                whole.extend(missing.iter().rev());
                return Ok(whole);
            }
        }
    }
}

fn is_dead(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

fn split(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let parent = path.parent()?;
    let name = path.file_name()?;
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    Some((parent.to_owned(), name.into()))
}

/// Why a pool cannot be mounted above itself.
pub const INSIDE: &str = "the pool is inside its mount point, which would hide it; choose another mount point";

/// How a path leads into a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leads {
    /// To the root of it.
    Root,
    Below,
}

/// Which of some mount points (real) a path comes to first, and whether it ends there. Nothing is asked of what is
/// mounted at any of them.
pub fn leads_into<'a>(path: &Path, mountpoints: &[&'a Path]) -> Result<Option<(&'a Path, Leads)>, Failure> {
    if mountpoints.is_empty() {
        // The path may lead into another mount, where nobody answers.
        return Ok(None);
    }
    let whole = std::path::absolute(path).at(path)?;
    let parts = |path: &Path| path.components().rev().map(|part| PathBuf::from(part.as_os_str())).collect::<Vec<_>>();
    let (mut at, mut left, mut links) = (PathBuf::from("/"), parts(&whole), 0);
    while let Some(part) = left.pop() {
        if part == Path::new("..") {
            at.pop();
            continue;
        }
        // The root, of a link, too, takes the place of all.
        at.push(part);
        if let Some(mountpoint) = mountpoints.iter().find(|mountpoint| at.starts_with(mountpoint)) {
            return Ok(Some((mountpoint, if left.is_empty() { Leads::Root } else { Leads::Below })));
        }
        // Else it is no link, or whoever opens it hears of the error.
        if let Ok(target) = at.read_link()
            && links < LINKS_MAX
        {
            links += 1;
            at.pop();
            left.extend(parts(&target));
        }
    }
    Ok(None)
}

/// Why a pool cannot be mounted at this place, as far as the two paths go (both real).
pub fn conflict(pool: &Path, mountpoint: &Path) -> Option<&'static str> {
    if pool == mountpoint {
        Some("a pool cannot be mounted on itself; give another directory as mount point")
    } else if mountpoint.starts_with(pool) {
        Some("the mount point is inside the pool; choose one outside")
    } else if pool.starts_with(mountpoint) {
        Some(INSIDE)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_links_and_what_is_not_there_yet() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("real")).unwrap();
        std::os::unix::fs::symlink("real", root.join("link")).unwrap();
        assert_eq!(real(&root.join("link")).unwrap(), root.join("real"));
        assert_eq!(future(&root.join("link/a/b")).unwrap(), root.join("real/a/b"));
        let missing = real(&root.join("none")).unwrap_err().to_string();
        assert!(missing.ends_with("none: No such file or directory"), "{missing}");
        assert!(future(Path::new("")).is_err());
    }

    #[test]
    fn a_path_leads_into_a_mount_point_through_links_too() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("mnt")).unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        for (target, link) in [("../mnt", "a/up"), ("/", "a/root"), ("up/pool", "a/on"), ("loop", "a/loop")] {
            std::os::unix::fs::symlink(target, root.join(link)).unwrap();
        }
        let mnt = root.join("mnt");
        let leads = |path: &Path| leads_into(&root.join(path), &[&mnt]).unwrap().is_some();
        let through = Path::new("a/root").join(root.strip_prefix("/").unwrap()).join("mnt/x");
        for path in ["mnt", "mnt/x/y", "a/up", "a/up/pool", "a/on", "a/b/../../mnt/x"].map(Path::new) {
            assert!(leads(path), "{path:?}");
        }
        assert!(leads(&through));
        let other = root.join("a/b");
        let how = |path: &str| leads_into(&root.join(path), &[&other, &mnt]).unwrap();
        assert_eq!((how("a/up"), how("a/on")), (Some((&*mnt, Leads::Root)), Some((&*mnt, Leads::Below))));
        for path in ["", "a/b", "mnt2", "none/x", "a/loop", "mnt/../a", "a/root"].map(Path::new).into_iter().skip(1) {
            assert_eq!(leads(path), path.starts_with("mnt"), "{path:?}");
        }
        assert_eq!(leads_into(&root, &[&mnt]).unwrap(), None);
    }

    #[test]
    fn refuses_nesting_but_not_likeness() {
        let conflict = |a: &str, b: &str| conflict(Path::new(a), Path::new(b)).is_some();
        assert!(conflict("/a", "/a"));
        assert!(conflict("/a", "/a/b"));
        assert!(conflict("/a/b", "/a"));
        assert!(!conflict("/a", "/ab"));
        assert!(!conflict("/ab", "/a"));
    }
}
