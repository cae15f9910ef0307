//! The reference model: a filesystem in memory, as plain as it can be. It says what comes of an operation by POSIX and
//! Linux rules (names, links, permissions, access lists, bytes), knows nothing of tensorfs, and is held against ext4 in
//! every run. Where an error depends on more than a model should know, such as which of several mistakes is told
//! first, it goes by what ext4 said, and says only what that changes.

mod acl;
mod attributes;
mod bytes;
mod names;

use std::collections::BTreeMap;

use nix::errno::Errno;

use super::op::{MAPS, Op, Outcome, SLOTS, Step};
use super::users::User;

type Result<T> = std::result::Result<T, Errno>;

/// An object's number.
pub type Id = usize;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NAME_MAX: usize = 255;
const PAGE: usize = 4096;
/// Files that would be larger are not made, or ext4 refuses to.
const SIZE_MAX: i64 = 1 << 40;

const READ: u32 = 4;
const WRITE: u32 = 2;
const EXECUTE: u32 = 1;

/// A file, directory or other object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    kind: u32,
    /// The twelve bits.
    mode: u32,
    uid: u32,
    gid: u32,
    /// Names; of a directory, 0 once it is removed.
    names: u32,
    entries: BTreeMap<String, Id>,
    parent: Id,
    target: String,
    bytes: Vec<u8>,
    xattrs: BTreeMap<String, Vec<u8>>,
}

#[derive(Debug, Clone)]
struct Open {
    id: Id,
    flags: i32,
    offset: usize,
}

/// The filesystem.
#[derive(Debug, Clone)]
pub struct Reference {
    nodes: BTreeMap<Id, Node>,
    next: Id,
    /// Where the actor starts.
    root: Id,
    slots: [Option<Open>; SLOTS as usize],
    maps: [Option<(Id, usize)>; MAPS as usize],
    umask: u32,
    /// Links are not followed for everybody in directories that anybody can write (`fs.protected_symlinks`).
    protected_symlinks: bool,
}

/// Where a path leads, but for its last name.
#[derive(Debug, Clone)]
struct Parent {
    dir: Id,
    /// `None` if the path ends with `.`.
    name: Option<String>,
    slash: bool,
}

impl Default for Reference {
    fn default() -> Self {
        Self::new()
    }
}

impl Reference {
    /// An actor's two directories, as `System::new` makes them.
    pub fn new() -> Reference {
        let read =
            |name: &str| std::fs::read_to_string(format!("/proc/sys/fs/{name}")).is_ok_and(|text| text.trim() != "0");
        let mut reference = Reference {
            nodes: BTreeMap::new(),
            next: 0,
            root: 0,
            slots: Default::default(),
            maps: Default::default(),
            umask: 0o022,
            protected_symlinks: read("protected_symlinks"),
        };
        let outer = reference.node(libc::S_IFDIR, 0o777, 0, 0, 0);
        reference.root = reference.node(libc::S_IFDIR, 0o777, 0, 0, outer);
        let root = reference.root;
        reference.get_mut(outer).entries.insert("root".to_owned(), root);
        reference
    }

    fn node(&mut self, kind: u32, mode: u32, uid: u32, gid: u32, parent: Id) -> Id {
        let id = self.next;
        self.next += 1;
        let node = Node {
            kind,
            mode,
            uid,
            gid,
            names: 1,
            entries: BTreeMap::new(),
            parent,
            target: String::new(),
            bytes: Vec::new(),
            xattrs: BTreeMap::new(),
        };
        self.nodes.insert(id, node);
        id
    }

    fn get(&self, id: Id) -> &Node {
        &self.nodes[&id]
    }

    fn get_mut(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).expect("ids are never dangling")
    }

    fn is_dir(&self, id: Id) -> bool {
        self.get(id).kind == libc::S_IFDIR
    }

    /// Forgets what is open, when everything was closed.
    pub fn leave(&mut self) {
        self.slots = Default::default();
        self.maps = Default::default();
    }

    /// Forgets mappings.
    pub fn unmap(&mut self) {
        self.maps = Default::default();
    }

    /// Whether there is something to do the operation with.
    fn lacks(&self, op: &Op) -> bool {
        match op {
            Op::CopyRange { from, to, .. } => self.slots[*from].is_none() || self.slots[*to].is_none(),
            Op::Load { map, .. } | Op::Store { map, .. } | Op::Msync { map } | Op::Unmap { map } => {
                self.maps[*map].is_none()
            }
            _ => op.slot().is_some_and(|slot| self.slots[slot].is_none()),
        }
    }

    /// Does a step, and says what comes of it, or nothing where it does not know. `truth` is what came of it on ext4.
    pub fn apply(&mut self, step: &Step, truth: Option<&Outcome>) -> Option<Outcome> {
        if self.lacks(&step.op) {
            return Some(Outcome::Skipped);
        }
        match self.run(step.user, &step.op, truth) {
            Ok(outcome) => outcome,
            Err(errno) => Some(Outcome::Failed(errno)),
        }
    }

    fn run(&mut self, user: User, op: &Op, truth: Option<&Outcome>) -> Result<Option<Outcome>> {
        let happened = matches!(truth, Some(Outcome::Done(..)) | None);
        match op {
            Op::Umask { mask } => {
                self.umask = *mask;
                Ok(Some(Outcome::done()))
            }
            Op::Open { .. }
            | Op::Close { .. }
            | Op::Read { .. }
            | Op::Pread { .. }
            | Op::Write { .. }
            | Op::Pwrite { .. }
            | Op::Seek { .. }
            | Op::Ftruncate { .. }
            | Op::Truncate { .. }
            | Op::Fallocate { .. }
            | Op::CopyRange { .. }
            | Op::Map { .. }
            | Op::Load { .. }
            | Op::Store { .. }
            | Op::Unmap { .. } => self.run_on_bytes(user, op, happened),
            Op::Mkdir { .. }
            | Op::Mknod { .. }
            | Op::Symlink { .. }
            | Op::Link { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Readlink { .. }
            | Op::Rename { .. }
            | Op::List { .. } => self.run_on_names(user, op, happened),
            Op::Chmod { .. }
            | Op::Fchmod { .. }
            | Op::Chown { .. }
            | Op::Fchown { .. }
            | Op::Utimens { .. }
            | Op::SetXattr { .. }
            | Op::FsetXattr { .. }
            | Op::RemoveXattr { .. }
            | Op::GetXattr { .. }
            | Op::FgetXattr { .. }
            | Op::ListXattr { .. }
            | Op::Stat { .. }
            | Op::Fstat { .. }
            | Op::Access { .. } => self.run_on_attributes(user, op, happened),
            Op::SeekHole { .. }
            | Op::Fsync { .. }
            | Op::Msync { .. }
            | Op::Futimens { .. }
            | Op::Statfs { .. }
            | Op::Flock { .. }
            | Op::RangeLock { .. } => Ok(None),
        }
    }

    /// Everything below the actor's directory, as `System::snapshot` tells it: path and the part of the description
    /// that the model knows.
    pub fn snapshot(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        let mut todo = vec![(String::new(), 0)];
        while let Some((path, id)) = todo.pop() {
            all.insert(path.clone(), self.describe(id));
            todo.extend(self.get(id).entries.iter().map(|(name, id)| {
                let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                (below, *id)
            }));
        }
        all
    }

    /// Paths of what is there, and whether each is a directory. For a generator that wants to meet something.
    pub fn paths(&self) -> Vec<(String, bool)> {
        let mut all = Vec::new();
        let mut todo = vec![(String::new(), self.root)];
        while let Some((path, id)) = todo.pop() {
            for (name, below) in &self.get(id).entries {
                let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                all.push((path.clone(), self.is_dir(*below)));
                todo.push((path, *below));
            }
        }
        all
    }

    /// Slots and mappings that are in use, and of the slots those of regular files.
    pub fn in_use(&self) -> (Vec<usize>, Vec<usize>, Vec<usize>) {
        let slots: Vec<usize> = (0..self.slots.len()).filter(|slot| self.slots[*slot].is_some()).collect();
        let is_file =
            |slot: &usize| self.slots[*slot].as_ref().is_some_and(|open| self.get(open.id).kind == libc::S_IFREG);
        let files = slots.iter().copied().filter(is_file).collect();
        (slots, files, (0..self.maps.len()).filter(|map| self.maps[*map].is_some()).collect())
    }
}
