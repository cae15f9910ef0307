//! What a writer does, and what the tree is after each step of it.

use crate::Pattern;
use crate::random::Random;
use std::collections::BTreeMap;
use std::rc::Rc;

/// One system call (with [`Op::Store`], the few that belong together). A writer has at most one file open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// `mkdir`.
    Mkdir(String),
    /// `rmdir`.
    Rmdir(String),
    /// `open(O_RDWR|O_CREAT|O_EXCL)`.
    Create(String),
    /// `open(O_RDWR)`.
    Open(String),
    /// `open(O_RDWR|O_TRUNC)`.
    Replace(String),
    /// `pwrite` of the step's own pattern.
    Write {
        /// Where.
        offset: u64,
        /// How much.
        len: u64,
    },
    /// The step's own pattern through a shared mapping, with `msync`.
    Store {
        /// Where.
        offset: u64,
        /// How much.
        len: u64,
    },
    /// `ftruncate`.
    Truncate(u64),
    /// `fsync`.
    Fsync,
    /// `fdatasync`.
    Fdatasync,
    /// `close`.
    Close,
    /// `rename`, of a file or a directory, perhaps over another file.
    Rename(String, String),
    /// `renameat2(RENAME_EXCHANGE)` of two files.
    Exchange(String, String),
    /// `link`.
    Link(String, String),
    /// `unlink`.
    Unlink(String),
    /// `chmod`.
    Chmod(String, u32),
    /// `fsync` of a directory.
    FsyncDir(String),
}

impl Op {
    /// Whether it changes names or modes: those come back after a power loss as some prefix left them.
    pub fn is_of_names(&self) -> bool {
        !matches!(
            self,
            Op::Open(_)
                | Op::Replace(_)
                | Op::Write { .. }
                | Op::Store { .. }
                | Op::Truncate(_)
                | Op::Fsync
                | Op::Fdatasync
                | Op::Close
                | Op::FsyncDir(_)
        )
    }
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A directory.
    Dir,
    /// A file: its number in the plan, and its mode.
    File(usize, u32),
}

/// All names below the writer's directory, which itself is the empty one.
pub type Names = BTreeMap<String, Entry>;

/// Something that happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It was written: the pattern is that of the step.
    Write { offset: u64, len: u64 },
    /// It was written through a mapping and `msync`: durable of itself.
    Store { offset: u64, len: u64 },
    /// It was given a size.
    Size(u64),
    /// It was opened with `O_TRUNC`.
    Replace,
    /// It was synced.
    Sync,
    /// It was closed.
    Close,
    /// It got a name.
    Named,
}

/// A file's history: which step did what to it.
pub type History = Vec<(usize, Event)>;

/// The steps of one writer.
#[derive(Debug, Clone)]
pub struct Plan {
    seed: u64,
    random: Random,
    ops: Vec<Op>,
    /// Names after each step; the first is from before the first step.
    names: Vec<Rc<Names>>,
    files: Vec<History>,
    sizes: Vec<u64>,
    open: Option<usize>,
    /// No file grows much beyond this.
    largest: u64,
}

impl Plan {
    /// The plan that follows from a number.
    pub fn new(seed: u64) -> Plan {
        Plan {
            seed,
            random: Random::new(seed ^ 0x7e05_0fc4),
            ops: Vec::new(),
            names: vec![Rc::new(Names::new())],
            files: Vec::new(),
            sizes: Vec::new(),
            open: None,
            largest: 400_000,
        }
    }

    /// The number it follows from.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The name of the writer's directory.
    pub fn directory(&self) -> String {
        format!("w{}", self.seed)
    }

    /// Step `n`, counted from 0.
    pub fn op(&mut self, n: usize) -> &Op {
        while self.ops.len() <= n {
            let op = self.next();
            self.apply(op);
        }
        &self.ops[n]
    }

    /// Names after the first `n` steps.
    pub fn names(&mut self, n: usize) -> Rc<Names> {
        if n > 0 {
            self.op(n - 1);
        }
        self.names[n].clone()
    }

    /// What happened to a file, as far as the plan has been worked out.
    pub fn history(&self, file: usize) -> &History {
        &self.files[file]
    }

    /// The bytes that step `n` writes at `offset`.
    pub fn bytes(&self, n: usize, offset: u64, len: u64) -> Vec<u8> {
        Pattern(self.seed << 32 | n as u64).bytes(offset, len as usize)
    }

    fn now(&self) -> &Names {
        self.names.last().unwrap()
    }

    fn paths(&self, wanted: impl Fn(&str, &Entry) -> bool) -> Vec<String> {
        self.now().iter().filter(|(name, entry)| wanted(name, entry)).map(|(name, _)| name.clone()).collect()
    }

    fn next(&mut self) -> Op {
        if self.now().is_empty() {
            return Op::Mkdir(String::new());
        }
        match self.open {
            Some(file) => self.next_of_file(file),
            None => self.next_of_names(),
        }
    }

    fn length(&mut self) -> u64 {
        match self.random.below(8) {
            0..=2 => 1 + self.random.below(64),
            3..=4 => 4096,
            5..=6 => 1 + self.random.below(12_000),
            _ => 1 + self.random.below(120_000),
        }
    }

    fn next_of_file(&mut self, file: usize) -> Op {
        let size = self.sizes[file];
        let len = self.length();
        loop {
            return match self.random.below(100) {
                0..=41 if size < self.largest => Op::Write { offset: size, len },
                42..=50 if size > 0 => {
                    let offset = self.random.below(size);
                    Op::Write { offset, len: len.min(self.largest - offset.min(self.largest - 1)) }
                }
                51..=60 => Op::Fsync,
                61..=63 => Op::Fdatasync,
                64..=67 if size > 0 => Op::Truncate(self.random.below(size)),
                68..=70 if size < self.largest => Op::Truncate(size + len),
                71..=75 if size > 0 => {
                    let offset = self.random.below(size);
                    Op::Store { offset, len: len.min(size - offset) }
                }
                76..=78 => match self.paths(|_, entry| matches!(entry, Entry::File(one, _) if *one == file)) {
                    names if names.is_empty() => continue,
                    names => {
                        let from = self.random.pick(&names).clone();
                        self.rename(from)
                    }
                },
                79..=99 => Op::Close,
                _ => continue,
            };
        }
    }

    fn rename(&mut self, from: String) -> Op {
        loop {
            let to = self.new_name();
            // Two names of one file: rename does nothing then, which says little.
            if self.now().get(&to) != self.now().get(&from) {
                return Op::Rename(from, to);
            }
        }
    }

    /// A name for a file, which may be taken by another file.
    fn new_name(&mut self) -> String {
        let directories = self.paths(|_, entry| *entry == Entry::Dir);
        let directory = self.random.pick(&directories).clone();
        let name = format!("f{}", self.random.below(8));
        if directory.is_empty() { name } else { format!("{directory}/{name}") }
    }

    fn next_of_names(&mut self) -> Op {
        let files = self.paths(|_, entry| matches!(entry, Entry::File(..)));
        let temporary: Vec<String> = files.iter().filter(|name| name.ends_with(".tmp")).cloned().collect();
        let directories = self.paths(|name, entry| *entry == Entry::Dir && !name.is_empty());
        let any = |random: &mut Random, from: &[String]| random.pick(from).clone();
        loop {
            let op = match self.random.below(100) {
                0..=17 => {
                    let name = self.new_name() + ".tmp";
                    if self.now().contains_key(&name) { Op::Replace(name) } else { Op::Create(name) }
                }
                18..=22 => match self.new_name() {
                    name if self.now().contains_key(&name) => continue,
                    name => Op::Create(name),
                },
                23..=44 if !files.is_empty() => Op::Replace(any(&mut self.random, &files)),
                45..=60 if !files.is_empty() => Op::Open(any(&mut self.random, &files)),
                61..=76 if !temporary.is_empty() => {
                    let from = any(&mut self.random, &temporary);
                    let to = from.trim_end_matches(".tmp").to_owned();
                    if self.now().get(&to) == self.now().get(&from) {
                        continue;
                    }
                    Op::Rename(from, to)
                }
                77..=79 if !files.is_empty() => {
                    let from = any(&mut self.random, &files);
                    self.rename(from)
                }
                80..=81 if files.len() > 1 => {
                    let (a, b) = (any(&mut self.random, &files), any(&mut self.random, &files));
                    if self.now()[&a] == self.now()[&b] {
                        continue;
                    }
                    Op::Exchange(a, b)
                }
                82..=84 if !files.is_empty() => {
                    let (from, to) = (any(&mut self.random, &files), self.new_name());
                    if self.now().contains_key(&to) {
                        continue;
                    }
                    Op::Link(from, to)
                }
                85..=89 if files.len() > 3 => Op::Unlink(any(&mut self.random, &files)),
                90..=91 => match format!("d{}", self.random.below(3)) {
                    name if self.now().contains_key(&name) => continue,
                    name => Op::Mkdir(name),
                },
                92 if !directories.is_empty() => {
                    let name = any(&mut self.random, &directories);
                    if self.now().keys().any(|other| other.starts_with(&format!("{name}/"))) {
                        continue;
                    }
                    Op::Rmdir(name)
                }
                93 if !directories.is_empty() => {
                    let (from, to) = (any(&mut self.random, &directories), format!("d{}", self.random.below(3)));
                    if self.now().contains_key(&to) {
                        continue;
                    }
                    Op::Rename(from, to)
                }
                94..=96 if !files.is_empty() => {
                    let mode = *self.random.pick(&[0o600, 0o640, 0o644, 0o666, 0o700, 0o755]);
                    Op::Chmod(any(&mut self.random, &files), mode)
                }
                97..=99 => {
                    let all = self.paths(|_, entry| *entry == Entry::Dir);
                    Op::FsyncDir(any(&mut self.random, &all))
                }
                _ => continue,
            };
            return op;
        }
    }

    fn happens(&mut self, file: usize, event: Event) {
        let step = self.ops.len();
        self.files[file].push((step, event));
    }

    fn file(&self, name: &str) -> usize {
        match self.now()[name] {
            Entry::File(file, _) => file,
            Entry::Dir => panic!("{name} is a directory"),
        }
    }

    fn apply(&mut self, op: Op) {
        let mut names = (**self.names.last().unwrap()).clone();
        match &op {
            Op::Mkdir(name) => {
                names.insert(name.clone(), Entry::Dir);
            }
            Op::Rmdir(name) => {
                names.remove(name);
            }
            Op::Create(name) => {
                let file = self.files.len();
                self.files.push(Vec::new());
                self.sizes.push(0);
                self.open = Some(file);
                names.insert(name.clone(), Entry::File(file, 0o644));
            }
            Op::Open(name) => self.open = Some(self.file(name)),
            Op::Replace(name) => {
                let file = self.file(name);
                self.open = Some(file);
                // There is nothing to replace in an empty file.
                if self.sizes[file] > 0 {
                    self.sizes[file] = 0;
                    self.happens(file, Event::Replace);
                }
            }
            Op::Write { offset, len } | Op::Store { offset, len } => {
                let (file, offset, len) = (self.open.unwrap(), *offset, *len);
                let event = match op {
                    Op::Write { .. } => Event::Write { offset, len },
                    _ => Event::Store { offset, len },
                };
                self.happens(file, event);
                self.sizes[file] = self.sizes[file].max(offset + len);
            }
            Op::Truncate(size) => {
                let file = self.open.unwrap();
                self.sizes[file] = *size;
                self.happens(file, Event::Size(*size));
            }
            Op::Fsync | Op::Fdatasync => {
                let file = self.open.unwrap();
                self.happens(file, Event::Sync);
            }
            Op::Close => {
                let file = self.open.unwrap();
                self.happens(file, Event::Close);
                self.open = None;
            }
            Op::Rename(from, to) => match self.now()[from] {
                Entry::File(file, _) => {
                    self.happens(file, Event::Named);
                    let entry = names.remove(from).unwrap();
                    names.insert(to.clone(), entry);
                }
                Entry::Dir => {
                    let moved = |name: &String| {
                        let rest = name.strip_prefix(from.as_str())?;
                        (rest.is_empty() || rest.starts_with('/')).then(|| format!("{to}{rest}"))
                    };
                    names = names.into_iter().map(|(name, entry)| (moved(&name).unwrap_or(name), entry)).collect();
                }
            },
            Op::Exchange(a, b) => {
                for name in [a, b] {
                    let file = self.file(name);
                    self.happens(file, Event::Named);
                }
                let (one, other) = (names[a], names[b]);
                names.insert(a.clone(), other);
                names.insert(b.clone(), one);
            }
            Op::Link(from, to) => {
                let file = self.file(from);
                self.happens(file, Event::Named);
                names.insert(to.clone(), names[from]);
            }
            Op::Unlink(name) => {
                names.remove(name);
            }
            Op::Chmod(name, mode) => {
                let file = self.file(name);
                for entry in names.values_mut() {
                    match entry {
                        Entry::File(one, old) if *one == file => *old = *mode,
                        _ => {}
                    }
                }
            }
            Op::FsyncDir(_) => {}
        }
        let same = *self.now() == names;
        let names = if same { self.names.last().unwrap().clone() } else { Rc::new(names) };
        self.names.push(names);
        self.ops.push(op);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_gives_the_same_plan() {
        let mut one = Plan::new(7);
        one.op(500);
        let mut other = Plan::new(7);
        for n in 0..500 {
            assert_eq!(one.op(n).clone(), *other.op(n));
        }
        assert_ne!(one.ops[..500], *{
            let mut third = Plan::new(8);
            third.op(499);
            third.ops
        });
    }

    #[test]
    fn a_plan_has_everything_in_it() {
        let mut kinds = std::collections::BTreeSet::new();
        for seed in 0..20 {
            let mut plan = Plan::new(seed);
            for n in 0..500 {
                kinds.insert(format!("{:?}", plan.op(n)).split(['(', ' ']).next().unwrap().to_owned());
            }
        }
        assert_eq!(kinds.len(), 17, "{kinds:?}");
    }
}
