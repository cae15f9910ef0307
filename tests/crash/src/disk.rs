//! A pool's directory on a simulated medium: what the running machine sees, and what of it is durable.
//!
//! Nothing is assumed of the host but what docs/RELIABILITY.md says under "Assumptions about the medium": bytes, sizes
//! and names become durable independently of each other, at any time before the sync that makes them so.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};

use tensorfs_layout::testing::cache_lines;

use crate::blob::{Blob, Choice};
use crate::cell::Cell;

/// How stores become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// 512-byte sectors behind a page cache: log, segments and directories alike.
    Cached,
    /// The log in cache lines that are written back and fenced, torn ones included; segments in lines, too, until they
    /// are synced.
    Dax,
}

impl Kind {
    /// Bytes that become durable as a whole.
    pub fn unit(self) -> usize {
        match self {
            Self::Cached => 512,
            Self::Dax => 64,
        }
    }
}

/// A file that has or had a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// What a name in a host directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// A file.
    File(FileId),
    /// A directory.
    Directory,
}

/// Something that happened to the medium.
#[derive(Clone, Debug)]
pub enum Event {
    /// Bytes were stored in the log.
    Store(u64, Vec<u8>),
    /// The log was synced, or that failed.
    SyncLog(bool),
    /// Write-back of the cache lines of a range of the log was started.
    WriteBack(u64, usize),
    /// Write-backs were waited for.
    Fence,
    /// The log became longer, durably.
    Grow(u64, u64),
    /// The log became shorter.
    Shrink(u64),
    /// A file was made.
    NewFile(FileId),
    /// A name in a host directory changed.
    Name(String, String, Option<Node>),
    /// Bytes were stored in a file.
    Write(FileId, u64, Vec<u8>),
    /// The first bytes of a file, as many as these, were dropped and written again as they are seen now. No kill comes
    /// between the two.
    Rewrite(FileId, usize),
    /// A file's size changed.
    Size(FileId, u64),
    /// A file was synced, or that failed.
    SyncFile(FileId, bool),
    /// A directory was synced, or that failed.
    SyncDirectory(String, bool),
    /// The whole host was synced, or that failed.
    SyncAll(bool),
}

impl Event {
    /// True if a power loss behind the event can leave less than one before it.
    pub fn settles(&self) -> bool {
        matches!(
            self,
            Self::SyncLog(_)
                | Self::Fence
                | Self::SyncFile(..)
                | Self::SyncDirectory(..)
                | Self::SyncAll(_)
                | Self::Grow(..)
        )
    }
}

/// A pool's directory.
#[derive(Clone, Debug)]
pub struct Disk {
    /// Its kind.
    pub kind: Kind,
    /// The file `log`.
    pub log: Blob,
    /// All other files.
    pub files: BTreeMap<FileId, Blob>,
    /// Names below the pool, by directory.
    pub names: BTreeMap<(String, String), Cell<Option<Node>>>,
}

impl Disk {
    /// A pool with a log and nothing else in it but its two directories.
    pub fn new(kind: Kind, log: &[u8]) -> Self {
        Self { kind, log: Blob::with(kind.unit(), log), files: BTreeMap::new(), names: BTreeMap::new() }
    }

    /// What a name stands for now.
    pub fn lookup(&self, dir: &str, name: &str) -> Option<Node> {
        self.names.get(&(dir.to_owned(), name.to_owned())).and_then(|cell| *cell.now())
    }

    /// Lets an event happen.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Store(offset, bytes) => self.log.store(*offset as usize, bytes),
            Event::SyncLog(true) => self.log.sync(),
            Event::SyncLog(false) => self.log.fail(),
            Event::WriteBack(offset, len) => self.log.write_back(cache_lines(*offset as usize, *len)),
            Event::Fence => self.log.fence(),
            Event::Grow(from, len) => {
                self.log.put(*from as usize, &vec![0; (len - from) as usize]);
                self.log.len = Cell::new(*len);
                // The growing synced the file: all of it on a host with a page cache, new extents alone on `dax`.
                if self.kind == Kind::Cached {
                    self.log.sync();
                }
            }
            Event::Shrink(len) => self.log.len.set(*len),
            Event::NewFile(id) => {
                self.files.insert(*id, Blob::new(self.kind.unit()));
            }
            Event::Name(dir, name, node) => {
                self.names.entry((dir.clone(), name.clone())).or_insert_with(|| Cell::new(None)).set(*node);
            }
            Event::Write(id, offset, bytes) => self.file(*id).store(*offset as usize, bytes),
            Event::Rewrite(id, len) => {
                let file = self.file(*id);
                let mut bytes = file.bytes();
                bytes.truncate(*len);
                file.store(0, &vec![0; bytes.len()]);
                file.store(0, &bytes);
            }
            Event::Size(id, len) => self.file(*id).set_len(*len),
            Event::SyncFile(id, true) => self.file(*id).sync(),
            Event::SyncFile(id, false) => self.file(*id).fail(),
            Event::SyncDirectory(dir, done) => {
                for (_, cell) in self.names.iter_mut().filter(|((of, _), _)| of == dir) {
                    if *done { cell.sync() } else { cell.fail() }
                }
                self.forget_gone();
            }
            Event::SyncAll(done) => {
                self.names.values_mut().for_each(|cell| if *done { cell.sync() } else { cell.fail() });
                self.files.values_mut().for_each(|file| if *done { file.sync() } else { file.fail() });
                if *done {
                    self.log.sync()
                } else {
                    self.log.fail()
                }
                self.forget_gone();
            }
        }
    }

    fn file(&mut self, id: FileId) -> &mut Blob {
        self.files.get_mut(&id).expect("a file is made before it is used")
    }

    /// Files that no name can lead to any more.
    fn forget_gone(&mut self) {
        self.names.retain(|_, cell| !cell.is_settled() || cell.now().is_some());
        let held: BTreeSet<FileId> = self
            .names
            .values()
            .flat_map(|cell| cell.versions())
            .filter_map(|node| match node {
                Some(Node::File(id)) => Some(*id),
                _ => None,
            })
            .collect();
        self.files.retain(|id, _| held.contains(id));
    }

    /// Everything as seen now, and durable.
    pub fn settled(&self) -> Self {
        self.after_power_loss(&self.newest())
    }

    /// How many versions there are of each thing that a power loss may change, in the order of
    /// [`Disk::after_power_loss`].
    pub fn axes(&self) -> Vec<usize> {
        let mut axes: Vec<usize> = self.log.axes().collect();
        axes.push(self.log.len.versions().len());
        for file in self.files.values() {
            axes.extend(file.axes());
            axes.push(file.len.versions().len());
        }
        axes.extend(self.names.values().map(|cell| cell.versions().len()));
        axes
    }

    /// How many of the axes, from the first on, are units of the log.
    pub fn log_axes(&self) -> usize {
        self.log.axes().count()
    }

    /// The choices that leave everything as the running machine sees it.
    pub fn newest(&self) -> Vec<Choice> {
        self.axes().into_iter().map(|versions| Choice::Whole(versions - 1)).collect()
    }

    /// What a power loss leaves, by one choice for each axis.
    pub fn after_power_loss(&self, choices: &[Choice]) -> Self {
        let mut choices = choices.iter().copied();
        let log = choose_blob(&self.log, &mut choices);
        let files = self.files.iter().map(|(id, file)| (*id, choose_blob(file, &mut choices))).collect();
        let mut names = BTreeMap::new();
        for (key, cell) in &self.names {
            let node = cell.versions()[version(choices.next())];
            if node.is_some() {
                names.insert(key.clone(), Cell::new(node));
            }
        }
        let mut disk = Self { kind: self.kind, log, files, names };
        // What lies in a directory that has no name itself is lost.
        let lost =
            |dir: &str| dir.split_once('/').is_some_and(|(of, name)| disk.lookup(of, name) != Some(Node::Directory));
        let gone: Vec<_> = disk.names.keys().filter(|(dir, _)| lost(dir)).cloned().collect();
        for key in gone {
            disk.names.remove(&key);
        }
        disk.forget_gone();
        disk
    }

    /// A number for what can be seen.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.log.digest(&mut hasher);
        for ((dir, name), cell) in &self.names {
            hasher.write(dir.as_bytes());
            hasher.write(name.as_bytes());
            match cell.now() {
                Some(Node::File(id)) => {
                    // A second name of one file is told from a copy of it.
                    hasher.write_u32(id.0);
                    self.files[id].digest(&mut hasher);
                }
                Some(Node::Directory) => hasher.write_u8(1),
                None => hasher.write_u8(0),
            }
        }
        hasher.finish()
    }
}

fn version(choice: Option<Choice>) -> usize {
    match choice {
        Some(Choice::Whole(version) | Choice::Torn(version, _)) => version,
        None => 0,
    }
}

fn choose_blob(blob: &Blob, choices: &mut impl Iterator<Item = Choice>) -> Blob {
    let units: Vec<Choice> = choices.take(blob.axes().count()).collect();
    let len = version(choices.next());
    let mut units = units.into_iter();
    blob.after_power_loss(|_| units.next().unwrap_or(Choice::Whole(0)), len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_written_again_as_they_were_are_synced() {
        let mut disk = Disk::new(Kind::Cached, &[]);
        let id = FileId(1);
        let settled = |disk: &Disk| disk.files[&id].axes().all(|versions| versions == 1);
        let written = [Event::NewFile(id), Event::Size(id, 700), Event::Write(id, 0, vec![1; 512])];
        written.iter().for_each(|event| disk.apply(event));
        disk.apply(&Event::SyncFile(id, false));
        disk.apply(&Event::SyncFile(id, true));
        assert!(!settled(&disk), "the host calls them clean");
        disk.apply(&Event::Rewrite(id, 64 << 10));
        assert!(!settled(&disk));
        disk.apply(&Event::SyncFile(id, true));
        assert!(settled(&disk));
        assert_eq!(disk.files[&id].bytes(), [[1; 512].as_slice(), &[0; 188]].concat());
    }
}
