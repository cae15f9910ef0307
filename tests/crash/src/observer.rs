//! What happens to the host's files while a pool is in use, found by looking: whatever differs from the simulated disk
//! since the last look has happened in between. As none of it is synced before the next call of the medium, which looks
//! first, the order of what is found does not matter.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::disk::{Disk, Event, FileId, Node};

/// Watches one pool's directory.
#[derive(Debug)]
pub struct Observer {
    pool: PathBuf,
    /// Files and directories by their host's inode number.
    files: HashMap<u64, FileId>,
    directories: HashMap<u64, String>,
    next: u32,
}

impl Observer {
    /// Watches a directory into which a disk was just written, under these inode numbers.
    pub fn new(pool: &Path, files: HashMap<u64, FileId>) -> Self {
        let next = files.values().map(|id| id.0 + 1).max().unwrap_or(1);
        Self { pool: pool.to_owned(), files, directories: HashMap::new(), next }
    }

    /// The file of an inode number.
    pub fn file(&self, ino: u64) -> Option<FileId> {
        self.files.get(&ino).copied()
    }

    /// The directory of an inode number.
    pub fn directory(&self, ino: u64) -> Option<&str> {
        self.directories.get(&ino).map(String::as_str)
    }

    /// What has changed since `disk` was the truth.
    pub fn look(&mut self, disk: &Disk) -> io::Result<Vec<Event>> {
        let mut events = Vec::new();
        let mut seen: BTreeMap<(String, String), Node> = BTreeMap::new();
        let mut looked = Vec::new();
        for top in ["segments", "quarantine"] {
            self.directory_entries(top, &mut seen, &mut looked)?;
        }
        let known: Vec<String> = seen
            .iter()
            .filter(|(_, node)| **node == Node::Directory)
            .map(|((dir, name), _)| format!("{dir}/{name}"))
            .collect();
        for dir in known {
            self.directory_entries(&dir, &mut seen, &mut looked)?;
        }
        for (key, node) in &seen {
            if disk.lookup(&key.0, &key.1) != Some(*node) {
                if let Node::File(id) = node
                    && !disk.files.contains_key(id)
                    && !events.iter().any(|event| matches!(event, Event::NewFile(new) if new == id))
                {
                    events.push(Event::NewFile(*id));
                }
                events.push(Event::Name(key.0.clone(), key.1.clone(), Some(*node)));
            }
        }
        for (key, cell) in &disk.names {
            if cell.now().is_some() && !seen.contains_key(key) {
                events.push(Event::Name(key.0.clone(), key.1.clone(), None));
            }
        }
        looked.sort_by_key(|(id, _)| *id);
        looked.dedup_by_key(|(id, _)| *id);
        for (id, path) in looked {
            let bytes = fs::read(path)?;
            let before = disk.files.get(&id).map(crate::blob::Blob::bytes).unwrap_or_default();
            if before.len() != bytes.len() {
                events.push(Event::Size(id, bytes.len() as u64));
            }
            let unit = disk.kind.unit();
            for at in (0..bytes.len()).step_by(unit) {
                let end = (at + unit).min(bytes.len());
                let old = |index: usize| before.get(index).copied().unwrap_or(0);
                if (at..end).any(|index| bytes[index] != old(index)) {
                    events.push(Event::Write(id, at as u64, bytes[at..end].to_vec()));
                }
            }
        }
        Ok(events)
    }

    fn directory_entries(
        &mut self,
        dir: &str,
        seen: &mut BTreeMap<(String, String), Node>,
        looked: &mut Vec<(FileId, PathBuf)>,
    ) -> io::Result<()> {
        let path = self.pool.join(dir);
        self.directories.insert(fs::metadata(&path)?.ino(), dir.to_owned());
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let metadata = entry.metadata()?;
            let node = if metadata.is_dir() {
                Node::Directory
            } else {
                let next = &mut self.next;
                let id = *self.files.entry(metadata.ino()).or_insert_with(|| {
                    *next += 1;
                    FileId(*next - 1)
                });
                looked.push((id, entry.path()));
                Node::File(id)
            };
            seen.insert((dir.to_owned(), name), node);
        }
        Ok(())
    }
}
