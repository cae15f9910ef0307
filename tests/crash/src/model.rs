//! What a user believes: the tree after every step of the calls, and every byte that was ever written.
//!
//! A *step* is what the log records at once. A write is no step: it is a step when the file is *learned* (recorded), at
//! `fsync`, the last `close`, before a name is given to the file, and in each background commit. What a power loss
//! leaves is the tree after some step; of bytes that were changed in place since a file was learned, each may be there
//! or not.
//!
//! A directory is moved in one step, and learns nothing. The commit that makes that durable learns what is open for
//! writing below it, and may learn what is open elsewhere, at a moment that is not known.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::snapshot::{Seen, Snapshot};

const ROOT: u64 = 1;

/// An object.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Where a symbolic link points.
    pub target: Option<String>,
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// The names in a directory.
    pub children: Option<BTreeMap<String, u64>>,
    /// A regular file.
    pub file: Option<FileNode>,
}

/// A regular file as recorded.
#[derive(Clone, Copy, Debug)]
pub struct FileNode {
    segment: usize,
    size: u64,
    /// What was written before this is durable if this step is.
    learned: usize,
    replacing: Option<usize>,
    /// It was open when a directory above it was moved, then: a step with the move has no older state of it.
    moved: Option<usize>,
}

impl FileNode {
    fn current(&self) -> usize {
        self.replacing.unwrap_or(self.segment)
    }
}

#[derive(Clone, Debug)]
struct Write {
    tick: usize,
    offset: u64,
    bytes: Arc<[u8]>,
}

#[derive(Clone, Debug, Default)]
struct Segment {
    writes: Vec<Write>,
    /// When it got which size.
    sizes: Vec<(usize, u64)>,
}

impl Segment {
    fn size(&self) -> u64 {
        self.sizes.last().map_or(0, |(_, size)| *size)
    }

    fn size_at(&self, tick: usize) -> u64 {
        self.sizes.iter().rev().find(|(at, _)| *at <= tick).map_or(0, |(_, size)| *size)
    }
}

type Tree = Arc<BTreeMap<u64, Node>>;

/// The tree after a step.
#[derive(Clone, Debug)]
struct State {
    tree: Tree,
    /// Since when the commit that makes a directory's move durable may have learned open files, if there was one.
    moving: Option<usize>,
}

/// The model of a pool.
#[derive(Clone, Debug)]
pub struct Model {
    /// The tree after every step so far.
    states: Vec<State>,
    now: BTreeMap<u64, Node>,
    moving: Option<usize>,
    segments: Vec<Segment>,
    /// Counts steps and writes.
    tick: usize,
    written: u64,
    /// Open files.
    slots: BTreeMap<u8, u64>,
    /// Closing a file makes it durable.
    pub close_commits: bool,
}

/// A point in the history of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The newest step.
    pub step: usize,
    /// Steps and writes so far.
    pub tick: usize,
}

/// What became of files when the machine stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Power was lost: files are as they were recorded.
    Power,
    /// The server was killed: files are as they were written.
    Killed,
    /// Power was lost while a server that took over from a killed one recovered: either.
    KilledThenPower,
}

/// What may have been left.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The last call that was answered.
    pub answered: Moment,
    /// The end of the call that was being worked on.
    pub latest: Moment,
    /// The newest step that was acknowledged as durable.
    pub durable: usize,
    /// What stopped.
    pub fate: Fate,
    /// Files may be marked as damaged: then nothing is said of their bytes.
    pub damage: bool,
}

/// A byte of a write: never zero, and different from write to write.
fn pattern(write: u64, offset: u64) -> u8 {
    ((write * 61 + offset * 7 + offset / 256 * 13) % 255 + 1) as u8
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

impl Model {
    /// A pool with nothing in it.
    pub fn new() -> Self {
        let root = Node { mode: libc::S_IFDIR | 0o755, children: Some(BTreeMap::new()), ..Node::default() };
        let now = BTreeMap::from([(ROOT, root)]);
        let states = vec![State { tree: Arc::new(now.clone()), moving: None }];
        let (segments, slots) = (Vec::new(), BTreeMap::new());
        Self { states, now, moving: None, segments, tick: 0, written: 0, slots, close_commits: false }
    }

    /// A pool as it was seen, all of which is durable.
    pub fn of(seen: &Snapshot) -> Self {
        let mut model = Self::new();
        model.now.clear();
        for one in seen.values() {
            let file = one.content.as_ref().map(|content| {
                let segment = model.new_segment();
                let (bytes, size) = (content.as_slice().into(), content.len() as u64);
                model.segments[segment] =
                    Segment { writes: vec![Write { tick: 0, offset: 0, bytes }], sizes: vec![(0, size)] };
                FileNode { segment, size, learned: 0, replacing: None, moved: None }
            });
            let children = (one.mode & libc::S_IFMT == libc::S_IFDIR).then(BTreeMap::new);
            let (mode, uid, target, xattrs) = (one.mode, one.uid, one.target.clone(), one.xattrs.clone());
            model.now.entry(one.ino).or_insert(Node { mode, uid, target, xattrs, children, file });
        }
        for (path, one) in seen.iter().filter(|(path, _)| *path != "/") {
            let (dir, name) = split(path);
            let dir = if dir.is_empty() { ROOT } else { seen[dir].ino };
            model.children(dir).insert(name.to_owned(), one.ino);
        }
        model.forget_history();
        model
    }

    /// Now.
    pub fn moment(&self) -> Moment {
        Moment { step: self.states.len() - 1, tick: self.tick }
    }

    /// The tree of now counts as durable, and what was before is forgotten.
    pub fn forget_history(&mut self) {
        self.moving = None;
        self.states = vec![self.state()];
    }

    fn state(&self) -> State {
        State { tree: Arc::new(self.now.clone()), moving: self.moving }
    }

    fn step(&mut self) {
        self.tick += 1;
        self.states.push(self.state());
    }

    /// What a path leads to.
    pub fn lookup(&self, path: &str) -> Option<u64> {
        let mut at = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = *self.now.get(&at)?.children.as_ref()?.get(name)?;
        }
        Some(at)
    }

    /// The directory that a path is in, and its name there.
    pub fn place<'a>(&self, path: &'a str) -> Option<(u64, &'a str)> {
        let (dir, name) = split(path);
        let dir = self.lookup(dir)?;
        self.now.get(&dir)?.children.as_ref()?;
        Some((dir, name))
    }

    /// An object.
    pub fn node(&self, ino: u64) -> &Node {
        &self.now[&ino]
    }

    fn node_mut(&mut self, ino: u64) -> &mut Node {
        self.now.get_mut(&ino).expect("the model knows its objects")
    }

    fn children(&mut self, dir: u64) -> &mut BTreeMap<String, u64> {
        self.node_mut(dir).children.as_mut().expect("a directory")
    }

    /// The file of an open slot.
    pub fn slot(&self, slot: u8) -> Option<u64> {
        self.slots.get(&slot).copied()
    }

    fn is_open(&self, ino: u64) -> bool {
        self.slots.values().any(|open| *open == ino)
    }

    fn is_named(&self, ino: u64) -> bool {
        ino == ROOT || self.now.values().any(|node| node.children.iter().flatten().any(|(_, child)| *child == ino))
    }

    /// True if `dir` is `top` or below it.
    pub fn is_within(&self, dir: u64, top: u64) -> bool {
        dir == top
            || self.now.iter().any(|(parent, node)| {
                node.children.iter().flatten().any(|(_, child)| *child == dir) && self.is_within(*parent, top)
            })
    }

    /// Size of a file as its writers see it.
    pub fn size(&self, ino: u64) -> u64 {
        self.now[&ino].file.map_or(0, |file| self.segments[file.current()].size())
    }

    /// Something new under a name.
    pub fn make(&mut self, path: &str, ino: u64, mode: u32, target: Option<&str>) {
        let (dir, name) = self.place(path).expect("checked before");
        let kind = mode & libc::S_IFMT;
        let file = (kind == libc::S_IFREG).then(|| self.new_segment()).map(|segment| FileNode {
            segment,
            size: 0,
            learned: self.tick,
            replacing: None,
            moved: None,
        });
        let children = (kind == libc::S_IFDIR).then(BTreeMap::new);
        let target = target.map(str::to_owned);
        self.now.insert(ino, Node { mode, children, file, target, ..Node::default() });
        self.children(dir).insert(name.to_owned(), ino);
        self.step();
    }

    fn new_segment(&mut self) -> usize {
        self.segments.push(Segment::default());
        self.segments.len() - 1
    }

    /// A file is opened.
    pub fn open(&mut self, slot: u8, ino: u64) {
        self.slots.insert(slot, ino);
    }

    /// A file that nothing has open is opened to be replaced.
    pub fn start_replace(&mut self, ino: u64) {
        let segment = self.new_segment();
        if let Some(file) = &mut self.node_mut(ino).file {
            file.replacing = Some(segment);
        }
        self.step();
    }

    /// True if opening with `O_TRUNC` replaces rather than truncates.
    pub fn replaces(&self, ino: u64) -> bool {
        !self.is_open(ino) && self.size(ino) > 0
    }

    /// Bytes to write, at an offset.
    pub fn write(&mut self, ino: u64, offset: u64, len: usize) -> Vec<u8> {
        self.written += 1;
        let bytes: Vec<u8> = (0..len as u64).map(|at| pattern(self.written, offset + at)).collect();
        self.put(ino, offset, bytes.clone().into());
        bytes
    }

    fn put(&mut self, ino: u64, offset: u64, bytes: Arc<[u8]>) {
        self.tick += 1;
        let tick = self.tick;
        let Some(file) = self.now[&ino].file else { return };
        let segment = &mut self.segments[file.current()];
        let end = offset + bytes.len() as u64;
        segment.writes.push(Write { tick, offset, bytes });
        if end > segment.size() {
            segment.sizes.push((tick, end));
        }
    }

    /// Bytes become zeroes, in their place as if they were written; the size stays.
    pub fn zero(&mut self, ino: u64, offset: u64, len: u64) {
        let end = (offset + len).min(self.size(ino));
        if end > offset {
            self.put(ino, offset, vec![0; (end - offset) as usize].into());
        }
    }

    /// So many zeroes come behind the file's end.
    pub fn extend(&mut self, ino: u64, len: u64) {
        self.put(ino, self.size(ino), vec![0; len as usize].into());
    }

    /// The file's records are brought up to date.
    pub fn learn(&mut self, ino: u64, switch: bool) {
        if !self.is_named(ino) {
            return;
        }
        let tick = self.tick;
        let Some(mut file) = self.now[&ino].file else { return };
        if file.replacing.is_some() && !switch {
            return;
        }
        file.segment = file.current();
        file.replacing = None;
        file.size = self.segments[file.segment].size();
        (file.learned, file.moved) = (tick, None);
        self.node_mut(ino).file = Some(file);
        self.step();
    }

    /// All open files are learned, in no known order: after some of them is a step, too.
    pub fn learn_all(&mut self) {
        let mut open: Vec<u64> = self.slots.values().copied().collect();
        open.sort_unstable();
        open.dedup();
        let before = self.now.clone();
        for chosen in 1..1u32 << open.len() {
            self.now = before.clone();
            for (index, ino) in open.iter().enumerate() {
                if chosen >> index & 1 != 0 {
                    self.learn(*ino, false);
                }
            }
        }
        self.moving = None;
    }

    /// Learned before it gets a name.
    pub fn learn_before_naming(&mut self, ino: u64) {
        if self.now[&ino].children.is_none() && self.is_open(ino) {
            self.learn(ino, true);
        }
    }

    /// This has another name now. If it is a directory, what is open below it is learned before that is durable.
    fn moved(&mut self, top: u64) {
        if self.now[&top].children.is_none() {
            return;
        }
        self.moving.get_or_insert(self.tick);
        let open: Vec<u64> = self.slots.values().copied().filter(|ino| self.is_within(*ino, top)).collect();
        let tick = self.tick;
        for ino in open {
            if let Some(file) = self.node_mut(ino).file.as_mut().filter(|file| file.replacing.is_none()) {
                file.moved = Some(tick);
            }
        }
    }

    /// `truncate`, in place.
    pub fn truncate(&mut self, ino: u64, size: u64) {
        let Some(file) = self.now[&ino].file else { return };
        let old = self.size(ino);
        if size < old && file.replacing.is_none() && file.size > size && self.is_named(ino) {
            // Recorded first.
            let learned = self.tick;
            self.node_mut(ino).file = Some(FileNode { size, learned, moved: None, ..file });
            self.step();
        }
        if size < old {
            self.put(ino, size, vec![0; (old - size) as usize].into());
        }
        self.tick += 1;
        let tick = self.tick;
        self.segments[file.current()].sizes.push((tick, size));
        self.learn(ino, false);
        if !self.is_open(ino) {
            self.learn(ino, true);
        }
    }

    /// A slot is closed.
    pub fn close(&mut self, slot: u8) {
        let Some(ino) = self.slots.get(&slot).copied() else { return };
        if self.close_commits {
            self.learn(ino, true);
        }
        self.slots.remove(&slot);
        if !self.is_open(ino) {
            self.learn(ino, true);
        }
    }

    /// A name more.
    pub fn link(&mut self, ino: u64, path: &str) {
        let (dir, name) = self.place(path).expect("checked before");
        self.children(dir).insert(name.to_owned(), ino);
        self.step();
    }

    /// A name less.
    pub fn remove(&mut self, path: &str) {
        let (dir, name) = self.place(path).expect("checked before");
        self.children(dir).remove(name);
        self.step();
    }

    /// A name moves.
    pub fn rename(&mut self, from: &str, to: &str) {
        let (old, name) = self.place(from).expect("checked before");
        let ino = self.children(old).remove(name).expect("checked before");
        let (new, name) = self.place(to).expect("checked before");
        self.children(new).insert(name.to_owned(), ino);
        self.moved(ino);
        self.step();
    }

    /// Two names change places.
    pub fn exchange(&mut self, one: &str, other: &str) {
        let ((d1, n1), (d2, n2)) =
            (self.place(one).expect("checked before"), self.place(other).expect("checked before"));
        let (first, second) =
            (self.node(d1).children.as_ref().unwrap()[n1], self.node(d2).children.as_ref().unwrap()[n2]);
        self.children(d1).insert(n1.to_owned(), second);
        self.children(d2).insert(n2.to_owned(), first);
        self.moved(first);
        self.moved(second);
        self.step();
    }

    /// Attributes change.
    pub fn change(&mut self, ino: u64, change: impl FnOnce(&mut Node)) {
        change(self.node_mut(ino));
        self.step();
    }

    /// The newest step within the bounds whose tree this is; else why it is none, for the step that comes closest.
    pub fn find(&self, found: &Snapshot, bounds: &Bounds) -> Result<usize, String> {
        let lowest = if bounds.fate == Fate::Killed { bounds.answered.step } else { bounds.durable };
        let mut closest: Option<(usize, String)> = None;
        for step in (lowest..=bounds.latest.step).rev() {
            match self.differs(step, found, bounds) {
                None => return Ok(step),
                Some((rank, what)) => {
                    if closest.as_ref().is_none_or(|(best, _)| rank > *best) {
                        closest = Some((rank, format!("step {step}: {what}")));
                    }
                }
            }
        }
        let steps = format!("no step of {lowest}..={}", bounds.latest.step);
        Err(format!("{steps} is like this; closest is {}", closest.map_or(String::new(), |(_, what)| what)))
    }

    /// How the tree differs from the one after a step, and how much is alike.
    fn differs(&self, step: usize, found: &Snapshot, bounds: &Bounds) -> Option<(usize, String)> {
        let state = &self.states[step].tree;
        let mut paths = BTreeMap::new();
        walk(state, ROOT, String::new(), &mut paths);
        let mut alike = 0;
        let mut first = None;
        for (path, ino) in &paths {
            let difference = match found.get(path) {
                None => Some("is missing".to_owned()),
                Some(seen) => self.node_differs(step, state, *ino, seen, bounds),
            };
            match difference {
                None => alike += 1,
                Some(what) => {
                    first.get_or_insert(format!("{path} {what}"));
                }
            }
        }
        for path in found.keys().filter(|path| !paths.contains_key(*path)) {
            first.get_or_insert(format!("{path} should not be there"));
        }
        first.map(|what| (alike, what))
    }

    fn node_differs(&self, step: usize, state: &Tree, ino: u64, seen: &Seen, bounds: &Bounds) -> Option<String> {
        let node = &state[&ino];
        let links = match &node.children {
            Some(children) => 2 + children.values().filter(|child| state[child].children.is_some()).count(),
            None => {
                let names = state.values().flat_map(|node| node.children.iter().flatten());
                names.filter(|(_, child)| **child == ino).count()
            }
        } as u32;
        let expected = (ino, node.mode, node.uid, links, &node.target, &node.xattrs);
        let found = (seen.ino, seen.mode, seen.uid, seen.links, &seen.target, &seen.xattrs);
        if expected != found {
            return Some(format!("is {found:?}, not {expected:?}"));
        }
        if seen.damaged {
            return (!bounds.damage).then(|| "is marked as damaged".to_owned());
        }
        let file = node.file.as_ref()?;
        let content = seen.content.as_deref().unwrap_or_default();
        let recorded = || {
            if self.learned_by_commit(*file, content, step, bounds) {
                return None;
            }
            if file.moved.is_some() {
                return Some(format!("has {} bytes, not what it had when its directory was moved", content.len()));
            }
            // A cut may be seen before it is durable that it was done.
            let len = content.len() as u64;
            let cut = |(tick, size): &(usize, u64)| {
                (file.learned + 1..=bounds.latest.tick).contains(tick) && *size == len && len < file.size
            };
            if len != file.size && !self.segments[file.segment].sizes.iter().any(cut) {
                return Some(format!("has {len} bytes, not the {} recorded", file.size));
            }
            self.content_differs(file.segment, content, file.learned, bounds)
        };
        let written = || {
            let segment = &self.segments[file.current()];
            let between =
                segment.sizes.iter().filter(|(at, _)| (bounds.answered.tick..=bounds.latest.tick).contains(at));
            let mut sizes = between.map(|(_, size)| *size).chain([segment.size_at(bounds.answered.tick)]);
            if !sizes.any(|size| size == content.len() as u64) {
                return Some(format!("has {} bytes, not what was written", content.len()));
            }
            self.content_differs(file.current(), content, bounds.answered.tick, bounds)
        };
        match bounds.fate {
            Fate::Power => recorded(),
            Fate::Killed => written(),
            Fate::KilledThenPower => recorded().and_then(|what| written().map(|_| what)),
        }
    }

    /// True if the file is as it was at some moment since a directory was moved, in a tree in which that is so.
    fn learned_by_commit(&self, file: FileNode, content: &[u8], step: usize, bounds: &Bounds) -> bool {
        let Some(moving) = self.states[step].moving.filter(|_| file.replacing.is_none()) else { return false };
        let first = file.moved.unwrap_or(moving).max(file.learned);
        let segment = &self.segments[file.segment];
        let since = segment.writes.iter().map(|write| write.tick).chain(segment.sizes.iter().map(|(tick, _)| *tick));
        let mut moments = since.filter(|tick| (first..=bounds.latest.tick).contains(tick)).chain([first]);
        moments.any(|moment| {
            segment.size_at(moment) == content.len() as u64
                && self.content_differs(file.segment, content, moment, bounds).is_none()
        })
    }

    /// Every byte is what was there at `floor`, or what was written in place since.
    fn content_differs(&self, segment: usize, content: &[u8], floor: usize, bounds: &Bounds) -> Option<String> {
        let mut expected = vec![0; content.len()];
        let writes = &self.segments[segment].writes;
        let (before, since): (Vec<&Write>, Vec<&Write>) = writes.iter().partition(|write| write.tick <= floor);
        for write in before {
            for (index, byte) in write.bytes.iter().enumerate() {
                if let Some(place) = expected.get_mut(write.offset as usize + index) {
                    *place = *byte;
                }
            }
        }
        if expected == content {
            return None;
        }
        let later = |at: usize| {
            since
                .iter()
                .filter(|write| write.tick <= bounds.latest.tick)
                .filter_map(move |write| write.bytes.get(at.checked_sub(write.offset as usize)?).copied())
        };
        let wrong = (0..content.len())
            .find(|at| content[*at] != expected[*at] && !later(*at).any(|byte| byte == content[*at]))?;
        Some(format!("byte {wrong} is {}, not {}, nor what was written since", content[wrong], expected[wrong]))
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

fn walk(state: &Tree, ino: u64, path: String, paths: &mut BTreeMap<String, u64>) {
    for (name, child) in state[&ino].children.iter().flatten() {
        walk(state, *child, format!("{path}/{name}"), paths);
    }
    paths.insert(if path.is_empty() { "/".into() } else { path }, ino);
}
