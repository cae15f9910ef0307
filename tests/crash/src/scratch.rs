//! A place on the host where an image is written out, to be recovered.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::blob::PAGE;
use crate::disk::{Disk, FileId, Node};

/// A directory in memory, removed with this.
#[derive(Debug)]
pub struct Scratch {
    dir: tempfile::TempDir,
    used: u64,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    /// A new one.
    pub fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Self { dir: dir.expect("a directory for scratch files"), used: 0 }
    }

    /// A path that nothing is at.
    pub fn fresh(&mut self) -> PathBuf {
        self.used += 1;
        self.dir.path().join(format!("p{}", self.used))
    }

    /// Writes out a disk as the running machine sees it, but for its log. Returns where, and the inode numbers of its
    /// files.
    pub fn write(&mut self, disk: &Disk) -> io::Result<(PathBuf, HashMap<u64, FileId>)> {
        let pool = self.fresh();
        let numbers = Self::write_at(disk, &pool)?;
        Ok((pool, numbers))
    }

    /// Writes out a disk as [`Scratch::write`] does, at a path that nothing is at.
    pub fn write_at(disk: &Disk, pool: &Path) -> io::Result<HashMap<u64, FileId>> {
        fs::create_dir(pool)?;
        fs::create_dir(pool.join("segments"))?;
        fs::create_dir(pool.join("quarantine"))?;
        fs::write(pool.join("lock"), b"")?;
        let mut first: HashMap<FileId, PathBuf> = HashMap::new();
        let mut numbers = HashMap::new();
        let directories_first = |node: &Option<Node>| *node != Some(Node::Directory);
        let mut names: Vec<_> = disk.names.iter().map(|(key, cell)| (key, *cell.now())).collect();
        names.sort_by_key(|(_, node)| directories_first(node));
        for ((dir, name), node) in names {
            let path = pool.join(dir).join(name);
            match node {
                None => {}
                Some(Node::Directory) => fs::create_dir(path)?,
                Some(Node::File(id)) => match first.get(&id) {
                    Some(other) => fs::hard_link(other, path)?,
                    None => {
                        fs::write(&path, disk.files[&id].bytes())?;
                        numbers.insert(fs::metadata(&path)?.ino(), id);
                        first.insert(id, path);
                    }
                },
            }
        }
        Ok(numbers)
    }

    /// Writes out the log of a disk beside the rest of it.
    pub fn write_log(pool: &Path, disk: &Disk) -> io::Result<()> {
        let file = fs::File::create(pool.join("log"))?;
        let len = *disk.log.len.now();
        for (index, page) in disk.log.pages() {
            file.write_all_at(page, (index * PAGE) as u64)?;
        }
        file.set_len(len)
    }
}
