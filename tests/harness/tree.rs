//! A directory tree with everything that copying programs are to keep.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::xattr;

/// Everything below a directory, and the directory itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree(BTreeMap<Vec<u8>, Entry>);

#[derive(Clone, PartialEq, Eq)]
struct Entry {
    mode: u32,
    uid: u32,
    gid: u32,
    rdev: u64,
    size: u64,
    mtime: (i64, i64),
    /// The first name of the same inode.
    link_to: Vec<u8>,
    links: u64,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    hash: u64,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:o} {}:{} rdev {} size {} mtime {}.{:09} link to {:?} of {} -> {:?} hash {:x} xattrs {:?}",
            self.mode,
            self.uid,
            self.gid,
            self.rdev,
            self.size,
            self.mtime.0,
            self.mtime.1,
            String::from_utf8_lossy(&self.link_to),
            self.links,
            String::from_utf8_lossy(&self.target),
            self.hash,
            self.xattrs
                .iter()
                .map(|(n, v)| (String::from_utf8_lossy(n), String::from_utf8_lossy(v)))
                .collect::<Vec<_>>(),
        )
    }
}

impl Tree {
    /// Reads everything below `root`.
    #[track_caller]
    pub fn read(root: &Path) -> Tree {
        let mut tree = Tree::default();
        let mut inodes = HashMap::new();
        let mut todo = vec![PathBuf::new()];
        while let Some(relative) = todo.pop() {
            let path = root.join(&relative);
            let path = if relative.as_os_str().is_empty() { root.to_owned() } else { path };
            let meta = std::fs::symlink_metadata(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let name = relative.as_os_str().as_bytes().to_vec();
            let mut entry = Entry {
                mode: meta.mode(),
                uid: meta.uid(),
                gid: meta.gid(),
                rdev: meta.rdev(),
                size: meta.size(),
                mtime: (meta.mtime(), meta.mtime_nsec()),
                link_to: name.clone(),
                links: meta.nlink(),
                target: Vec::new(),
                xattrs: xattrs(&path),
                hash: 0,
            };
            let kind = meta.file_type();
            if kind.is_dir() {
                // These two are the filesystem's own business.
                (entry.size, entry.links) = (0, 0);
                let mut names: Vec<_> = std::fs::read_dir(&path)
                    .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
                    .map(|entry| entry.unwrap().file_name())
                    .collect();
                // The last pushed is visited first: names come in order, for `link_to`.
                names.sort_by(|a, b| b.cmp(a));
                todo.extend(names.iter().map(|name| relative.join(name)));
            } else {
                entry.link_to = inodes.entry(meta.ino()).or_insert(name.clone()).clone();
                if kind.is_symlink() {
                    let target = std::fs::read_link(&path).unwrap();
                    entry.target = target.as_os_str().as_bytes().to_vec();
                } else if kind.is_file() {
                    entry.hash = hash(&std::fs::read(&path).unwrap());
                }
            }
            tree.0.insert(name, entry);
        }
        tree
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is nothing at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// This tree without modification times.
    pub fn without_times(mut self) -> Tree {
        self.0.values_mut().for_each(|e| e.mtime = (0, 0));
        self
    }

    /// This tree without the names that begin with `prefix`.
    pub fn without(mut self, prefix: &str) -> Tree {
        self.0.retain(|name, _| !name.starts_with(prefix.as_bytes()));
        self
    }
}

/// Fails, and says in what, if two trees differ.
#[track_caller]
pub fn assert_same_tree(got: &Tree, want: &Tree) {
    assert_same_tree_but(got, want, |_| false);
}

/// Fails, and says in what, if two trees differ in names for which `ignore` is false.
#[track_caller]
pub fn assert_same_tree_but(got: &Tree, want: &Tree, ignore: impl Fn(&[u8]) -> bool) {
    let mut differences = Vec::new();
    for (name, want) in &want.0 {
        match got.0.get(name) {
            _ if ignore(name) => {}
            None => differences.push(format!("{:?} is missing", String::from_utf8_lossy(name))),
            Some(got) if got != want => differences
                .push(format!("{:?}\n   is        {got:?}\n   should be {want:?}", String::from_utf8_lossy(name))),
            Some(_) => {}
        }
    }
    for name in got.0.keys() {
        if !want.0.contains_key(name) && !ignore(name) {
            differences.push(format!("{:?} is too much", String::from_utf8_lossy(name)));
        }
    }
    let count = differences.len();
    differences.truncate(20);
    assert!(count == 0, "{count} differences:\n{}", differences.join("\n"));
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let names = xattr::list(path)
        .unwrap_or_else(|error| panic!("{}: listxattr: {error}", path.display()))
        .into_iter()
        .filter(|name| !name.starts_with(b"security."));
    names
        .map(|name| {
            (
                name.clone(),
                xattr::get(path, &name).unwrap_or_else(|error| panic!("{}: getxattr: {error}", path.display())),
            )
        })
        .collect()
}

/// FNV-1a over words: enough to tell files apart.
fn hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64 ^ bytes.len() as u64;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        hash = (hash ^ u64::from_le_bytes(word.try_into().unwrap())).wrapping_mul(0x100_0000_01b3);
        hash ^= hash >> 29;
    }
    for &byte in words.remainder() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    hash
}
