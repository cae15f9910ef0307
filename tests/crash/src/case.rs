//! Cases: a medium, a tree to start from, and operations on it.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tensorfs_fs::Durability;
use tensorfs_fs::testing::{Direct, Handle};
use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};
use tensorfs_layout::{Ino, ROOT};

use crate::call::Call;
use crate::disk::{Disk, Kind};
use crate::medium::{Failing, Simulation};
use crate::model::{Model, Moment};
use crate::scratch::Scratch;

/// The boot in which calls are made.
pub const BOOT: [u8; 16] = [1; 16];

/// The tree that a case starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Base {
    /// Nothing but the root.
    Empty,
    /// Directories, files, a second name, a symbolic link, attributes: all durable.
    Tree,
    /// As [`Base::Tree`], and the next segments come into a host directory that is not there yet.
    Edge,
}

/// The names of the operations that cases are made of, and the calls of each.
pub const OPERATIONS: &[(&str, &[Call])] = &[
    ("mkdir", &[Call::Mkdir("/d/n")]),
    ("rmdir", &[Call::Rmdir("/e")]),
    ("mkfifo", &[Call::Mkfifo("/e/p")]),
    ("symlink", &[Call::Symlink("/d/s")]),
    ("link", &[Call::Link("/b", "/e/l")]),
    ("unlink", &[Call::Unlink("/b")]),
    ("unlink-last", &[Call::Unlink("/d/a")]),
    ("rename", &[Call::Rename("/b", "/e/r")]),
    ("rename-over", &[Call::Rename("/b", "/d/a")]),
    ("rename-dir", &[Call::Rename("/d", "/e")]),
    ("rename-into", &[Call::Rename("/e", "/d/e")]),
    ("exchange", &[Call::Exchange("/b", "/d/a")]),
    ("exchange-dirs", &[Call::Exchange("/d", "/e")]),
    ("chmod", &[Call::Chmod("/b", 0o600)]),
    ("chown", &[Call::Chown("/d", 7)]),
    ("setxattr", &[Call::SetXattr("/d/a", "user.n", 40)]),
    ("resetxattr", &[Call::SetXattr("/d/a", "user.x", 300)]),
    ("removexattr", &[Call::RemoveXattr("/d/a", "user.x")]),
    ("create", &[Call::Create(1, "/d/c"), Call::Write(1, 0, 700), Call::Close(1)]),
    ("create-fsync", &[Call::Create(1, "/e/f"), Call::Write(1, 0, 900), Call::Fsync(1), Call::Close(1)]),
    ("create-open", &[Call::Create(2, "/o"), Call::Write(2, 0, 600)]),
    ("append", &[Call::Open(1, "/b"), Call::Append(1, 800), Call::Close(1)]),
    ("append-fsync", &[Call::Open(1, "/b"), Call::Append(1, 100), Call::Fsync(1), Call::Close(1)]),
    ("append-open", &[Call::Open(3, "/b"), Call::Append(3, 300)]),
    ("overwrite", &[Call::Open(1, "/b"), Call::Write(1, 300, 600), Call::Close(1)]),
    ("overwrite-fsync", &[Call::Open(1, "/b"), Call::Write(1, 100, 500), Call::Fsync(1), Call::Close(1)]),
    ("cut", &[Call::Truncate("/b", 500)]),
    ("empty", &[Call::Truncate("/d/a", 0)]),
    ("extend", &[Call::Truncate("/d/a", 2000)]),
    ("replace", &[Call::OpenTruncate(1, "/b"), Call::Write(1, 0, 650), Call::Close(1)]),
    ("replace-fsync", &[Call::OpenTruncate(1, "/d/a"), Call::Write(1, 0, 550), Call::Fsync(1), Call::Close(1)]),
    ("replace-open", &[Call::OpenTruncate(4, "/b"), Call::Write(4, 0, 520)]),
    ("save", &[Call::Create(1, "/t"), Call::Write(1, 0, 800), Call::Close(1), Call::Rename("/t", "/b")]),
    ("punch", &[Call::Open(1, "/b"), Call::Punch(1, 200, 700), Call::Close(1)]),
    ("zero", &[Call::Open(1, "/b"), Call::Zero(1, 600, 1200), Call::Close(1)]),
    ("sync", &[Call::Sync]),
    ("round", &[Call::Round]),
    ("idle", &[Call::Round, Call::Idle]),
    ("reclaim", &[Call::Reclaim]),
    ("seal", &[Call::Seal("/b"), Call::Seal("/d/a")]),
    ("value", &[Call::Create(1, "/d/v"), Call::Write(1, 0, 640), Call::Fsync(1), Call::Close(1)]),
    (
        "value-save",
        &[Call::Create(1, "/t"), Call::Write(1, 0, 777), Call::Close(1), Call::Rename("/t", "/b"), Call::Sync],
    ),
    (
        "value-twice",
        &[
            Call::Create(1, "/v2"),
            Call::Write(1, 0, 900),
            Call::Fsync(1),
            Call::Write(1, 100, 300),
            Call::Fsync(1),
            Call::Append(1, 200),
            Call::Close(1),
        ],
    ),
    (
        "value-open",
        &[
            Call::Create(5, "/v3"),
            Call::Write(5, 0, 600),
            Call::Fsync(5),
            Call::Write(5, 50, 200),
            Call::Append(5, 100),
        ],
    ),
    (
        "value-thaw",
        &[
            Call::Create(1, "/e/v4"),
            Call::Write(1, 0, 1000),
            Call::Fsync(1),
            Call::Close(1),
            Call::Open(1, "/e/v4"),
            Call::Write(1, 200, 500),
            Call::Fsync(1),
            Call::Write(1, 0, 100),
            Call::Close(1),
        ],
    ),
    (
        "value-cut",
        &[Call::Create(1, "/v5"), Call::Write(1, 0, 900), Call::Fsync(1), Call::Close(1), Call::Truncate("/v5", 300)],
    ),
    (
        "value-punch",
        &[Call::Create(1, "/v6"), Call::Write(1, 0, 800), Call::Fsync(1), Call::Punch(1, 100, 300), Call::Close(1)],
    ),
    (
        "value-replace",
        &[
            Call::Create(1, "/v7"),
            Call::Write(1, 0, 500),
            Call::Fsync(1),
            Call::Close(1),
            Call::OpenTruncate(1, "/v7"),
            Call::Write(1, 0, 800),
            Call::Fsync(1),
            Call::Close(1),
        ],
    ),
    (
        "value-seal",
        &[Call::Create(1, "/v8"), Call::Write(1, 0, 700), Call::Fsync(1), Call::Close(1), Call::Seal("/v8")],
    ),
    (
        "grow",
        &[
            Call::Create(1, "/g"),
            Call::Write(1, 0, 3000),
            Call::Close(1),
            Call::Sync,
            Call::Seal("/g"),
            Call::Open(1, "/g"),
            Call::Append(1, 500),
            Call::Fsync(1),
            Call::Append(1, 300),
            Call::Close(1),
        ],
    ),
    ("grow-more", &[Call::Seal("/g"), Call::Open(1, "/g"), Call::Append(1, 700), Call::Close(1)]),
    (
        "grow-change",
        &[Call::Seal("/g"), Call::Open(1, "/g"), Call::Append(1, 200), Call::Write(1, 50, 100), Call::Close(1)],
    ),
    (
        "grow-open",
        &[
            Call::Create(6, "/p"),
            Call::Write(6, 0, 700),
            Call::SealOpen("/p"),
            Call::Append(6, 900),
            Call::Fsync(6),
            Call::SealOpen("/p"),
            Call::Append(6, 200),
        ],
    ),
    ("grow-open-change", &[Call::Open(7, "/b"), Call::Append(7, 300), Call::SealOpen("/b"), Call::Write(7, 20, 900)]),
    ("grow-named", &[Call::Create(8, "/k"), Call::Write(8, 0, 600), Call::Link("/k", "/e/k"), Call::Append(8, 200)]),
    ("grow-cut", &[Call::Seal("/g"), Call::Truncate("/g", 3100)]),
    ("reserve", &[Call::Open(1, "/b"), Call::Reserve(1, 0, 9000), Call::Append(1, 700), Call::Close(1)]),
    (
        "reserve-fsync",
        &[
            Call::Create(1, "/e/q"),
            Call::Reserve(1, 0, 5000),
            Call::Write(1, 0, 900),
            Call::Fsync(1),
            Call::Append(1, 600),
            Call::Fsync(1),
            Call::Close(1),
        ],
    ),
    (
        "reserve-sealed",
        &[
            Call::Seal("/b"),
            Call::Open(1, "/b"),
            Call::Reserve(1, 1300, 6000),
            Call::Append(1, 300),
            Call::Fsync(1),
            Call::Close(1),
        ],
    ),
    ("reserve-open", &[Call::Create(9, "/w"), Call::Reserve(9, 0, 8192), Call::Write(9, 0, 800), Call::SealOpen("/w")]),
    (
        "extend-fsync",
        &[Call::Open(1, "/b"), Call::Extend(1, 1500), Call::Fsync(1), Call::Append(1, 200), Call::Close(1)],
    ),
    ("close-5", &[Call::Close(5)]),
    ("close-2", &[Call::Close(2)]),
    ("close-3", &[Call::Close(3)]),
    ("close-4", &[Call::Close(4)]),
];

/// The calls that make [`Base::Tree`].
pub const TREE: &[Call] = &[
    Call::Mkdir("/d"),
    Call::Mkdir("/e"),
    Call::Create(1, "/b"),
    Call::Write(1, 0, 1300),
    Call::Close(1),
    Call::Create(1, "/d/a"),
    Call::Write(1, 0, 700),
    Call::Close(1),
    Call::Link("/b", "/d/l"),
    Call::Symlink("/s"),
    Call::SetXattr("/d/a", "user.x", 20),
    Call::Sync,
];

/// The calls of an operation.
pub fn operation(name: &str) -> Option<&'static [Call]> {
    OPERATIONS.iter().find(|(known, _)| *known == name).map(|(_, calls)| *calls)
}

/// Something to crash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    /// On what.
    pub kind: Kind,
    /// Mounted how.
    pub close_commits: bool,
    /// From what.
    pub base: Base,
    /// The operations, by name; what they cannot do is refused, and they go on.
    pub operations: Vec<&'static str>,
    /// A sync that fails: which kind, and during which operation.
    pub failing: Option<(Failing, usize)>,
}

impl Hash for Failing {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (*self as u8).hash(state);
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.kind == Kind::Dax { "dax" } else { "cached" };
        let durability = if self.close_commits { "close" } else { "fsync" };
        let base = match self.base {
            Base::Empty => "empty",
            Base::Tree => "tree",
            Base::Edge => "edge",
        };
        write!(f, "{kind}:{durability}:{base}:{}", self.operations.join(","))?;
        match self.failing {
            Some((Failing::Segment, at)) => write!(f, ":segment@{at}"),
            Some((Failing::Log, at)) => write!(f, ":log@{at}"),
            None => Ok(()),
        }
    }
}

impl Case {
    /// Reads a case as it is printed.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split(':');
        let kind = match parts.next()? {
            "dax" => Kind::Dax,
            "cached" => Kind::Cached,
            _ => return None,
        };
        let close_commits = parts.next()? == "close";
        let base = match parts.next()? {
            "empty" => Base::Empty,
            "tree" => Base::Tree,
            "edge" => Base::Edge,
            _ => return None,
        };
        let known = |name: &str| OPERATIONS.iter().find(|(known, _)| *known == name).map(|(known, _)| *known);
        let operations = parts.next()?.split(',').map(known).collect::<Option<Vec<_>>>()?;
        let failing = match parts.next().and_then(|text| text.split_once('@')) {
            Some(("segment", at)) => Some((Failing::Segment, at.parse().ok()?)),
            Some(("log", at)) => Some((Failing::Log, at.parse().ok()?)),
            _ => None,
        };
        Some(Self { kind, close_commits, base, operations, failing })
    }

    /// A seed that belongs to the case.
    pub fn seed(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.to_string().hash(&mut hasher);
        hasher.finish()
    }
}

/// A disk with a closed pool, and the model of it.
#[derive(Clone, Debug)]
pub struct Start {
    /// The disk: all of it durable.
    pub disk: Disk,
    /// The tree.
    pub model: Model,
}

impl Start {
    /// Makes a pool with a base tree.
    pub fn new(kind: Kind, base: Base, scratch: &mut Scratch) -> Self {
        let calls: &[Call] = match base {
            Base::Empty => &[],
            Base::Tree | Base::Edge => TREE,
        };
        let mut all = calls.to_vec();
        if base == Base::Edge {
            all.extend([Call::Burn(255), Call::Sync]);
        }
        Self::after(kind, &all, scratch)
    }

    /// Makes a pool and does calls on it.
    pub fn after(kind: Kind, calls: &[Call], scratch: &mut Scratch) -> Self {
        let made = scratch.fresh();
        // The smallest blocks, so that the log grows and is cleaned.
        let options = CreateOptions { block_size: 4096, ..CreateOptions::default() };
        Pool::create(&made, &options).expect("a pool is made");
        let disk = Disk::new(kind, &std::fs::read(made.join("log")).expect("its log"));
        let start = Self { disk, model: Model::new() };
        let mut run = Run::new(&start, false, scratch);
        for call in calls {
            run.perform(*call).expect("the base tree is made");
        }
        let (pool, simulation, mut model) = run.into_parts();
        pool.close().expect("the pool is closed");
        simulation.look();
        model.forget_history();
        Self { disk: simulation.disk().settled(), model }
    }
}

/// How far the medium and the model were when a call was answered.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// The call.
    pub call: Call,
    /// Events so far.
    pub events: usize,
    /// The model's.
    pub moment: Moment,
    /// The newest step that was acknowledged as durable.
    pub durable: usize,
}

/// A pool in use, with its model.
pub struct Run {
    direct: Direct,
    pool: Arc<Pool>,
    simulation: Simulation,
    /// The model.
    pub model: Model,
    handles: std::collections::BTreeMap<u8, (Ino, Handle)>,
    durable: usize,
    /// Calls may fail that should not.
    lenient: bool,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done, or refused as the model says.
    Done,
    /// It failed because the medium did.
    Failed,
}

impl Run {
    /// Opens a pool that was closed.
    pub fn new(start: &Start, close_commits: bool, scratch: &mut Scratch) -> Self {
        Self::in_boot(BOOT, start, close_commits, scratch).expect("a closed pool opens")
    }

    /// Opens a pool in a boot of the machine, and recovers it if it was not closed.
    pub fn in_boot(
        boot: [u8; 16],
        start: &Start,
        close_commits: bool,
        scratch: &mut Scratch,
    ) -> Result<Self, tensorfs_layout::Error> {
        let (path, files) = scratch.write(&start.disk).expect("a scratch directory can be written");
        let simulation = Simulation::watched(start.disk.clone(), &path, files);
        let options = OpenOptions { boot_id: Some(boot), ..OpenOptions::default() };
        let pool = Arc::new(Pool::open_with_medium(&path, &options, simulation.medium())?);
        let durability = if close_commits { Durability::Close } else { Durability::Fsync };
        let mut model = start.model.clone();
        model.close_commits = close_commits;
        Ok(Self {
            direct: Direct::new(pool.clone(), durability),
            pool,
            simulation,
            model,
            handles: Default::default(),
            durable: 0,
            lenient: false,
        })
    }

    /// From now on calls may fail because the medium does.
    pub fn allow_failures(&mut self) {
        self.lenient = true;
    }

    /// The medium.
    pub fn simulation(&self) -> &Simulation {
        &self.simulation
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// How far things are.
    pub fn answered(&self, call: Call) -> Answered {
        Answered { call, events: self.simulation.look(), moment: self.model.moment(), durable: self.durable }
    }

    fn into_parts(self) -> (Arc<Pool>, Simulation, Model) {
        (self.pool, self.simulation, self.model)
    }

    /// Does a call on both sides. An error says how the filesystem's answer differs from the model's.
    pub fn perform(&mut self, call: Call) -> Result<Outcome, String> {
        let (expected, got, durable) = self.both(call);
        match (expected, got) {
            (true, Ok(())) => {
                if durable {
                    self.durable = self.model.moment().step;
                }
                Ok(Outcome::Done)
            }
            (false, Err(_)) => Ok(Outcome::Done),
            (true, Err(libc::EIO | libc::EROFS)) if self.lenient => Ok(Outcome::Failed),
            (expected, got) => Err(format!(
                "{call:?} was answered {got:?}, and should have {}",
                if expected { "succeeded" } else { "failed" }
            )),
        }
    }

    /// Whether the call should succeed, the answer, and whether success makes everything durable.
    fn both(&mut self, call: Call) -> (bool, Result<(), i32>, bool) {
        let Self { direct, model, handles, .. } = self;
        let absent = |model: &Model, path: &str| model.place(path).is_some() && model.lookup(path).is_none();
        // A call on a path whose directory is not there does not come to the filesystem at all.
        let skipped = (true, Ok(()), false);
        match call {
            Call::Mkdir(path) | Call::Mkfifo(path) | Call::Symlink(path) => {
                let Some((dir, name)) = model.place(path) else { return skipped };
                let possible = absent(model, path);
                let (mode, made) = match call {
                    Call::Mkdir(_) => (libc::S_IFDIR | 0o755, direct.make(Ino(dir), name, libc::S_IFDIR | 0o755)),
                    Call::Mkfifo(_) => (libc::S_IFIFO | 0o644, direct.make(Ino(dir), name, libc::S_IFIFO | 0o644)),
                    _ => (libc::S_IFLNK | 0o777, direct.symlink(Ino(dir), name, "some/where")),
                };
                if let (true, Ok(ino)) = (possible, made) {
                    let target = matches!(call, Call::Symlink(_)).then_some("some/where");
                    model.make(path, ino.0, mode, target);
                }
                (possible, made.map(drop), false)
            }
            Call::Link(from, to) => {
                let (Some(ino), Some((dir, name))) = (model.lookup(from), model.place(to)) else { return skipped };
                let possible = absent(model, to) && model.node(ino).children.is_none();
                model.learn_before_naming(ino);
                let got = direct.link(Ino(ino), Ino(dir), name);
                if possible && got.is_ok() {
                    model.link(ino, to);
                }
                (possible, got, false)
            }
            Call::Unlink(path) => {
                let (Some(ino), Some((dir, name))) = (model.lookup(path), model.place(path)) else { return skipped };
                let possible = model.node(ino).children.is_none();
                let got = direct.unlink(Ino(dir), name);
                if possible && got.is_ok() {
                    model.remove(path);
                }
                (possible, got, false)
            }
            Call::Rmdir(path) => {
                let (Some(ino), Some((dir, name))) = (model.lookup(path), model.place(path)) else { return skipped };
                let possible = model.node(ino).children.as_ref().is_some_and(|children| children.is_empty());
                let got = direct.rmdir(Ino(dir), name);
                if possible && got.is_ok() {
                    model.remove(path);
                }
                (possible, got, false)
            }
            Call::Rename(from, to) => {
                let (Some(ino), Some(old), Some(new)) = (model.lookup(from), model.place(from), model.place(to)) else {
                    return skipped;
                };
                let is_dir = model.node(ino).children.is_some();
                let met = model.lookup(to);
                let fits = met.is_none_or(|met| {
                    met == ino
                        || match &model.node(met).children {
                            Some(children) => is_dir && children.is_empty(),
                            None => !is_dir,
                        }
                });
                let possible = fits && !(is_dir && model.is_within(new.0, ino));
                model.learn_before_naming(ino);
                let got = direct.rename((Ino(old.0), old.1), (Ino(new.0), new.1), false);
                if possible && got.is_ok() && met != Some(ino) {
                    model.rename(from, to);
                }
                (possible, got, false)
            }
            Call::Exchange(one, other) => {
                let (Some(first), Some(second)) = (model.lookup(one), model.lookup(other)) else { return skipped };
                let (Some(p1), Some(p2)) = (model.place(one), model.place(other)) else { return skipped };
                let loops =
                    |moved: u64, into: u64| model.node(moved).children.is_some() && model.is_within(into, moved);
                let possible = first == second || !loops(first, p2.0) && !loops(second, p1.0);
                model.learn_before_naming(first);
                model.learn_before_naming(second);
                let got = direct.rename((Ino(p1.0), p1.1), (Ino(p2.0), p2.1), true);
                if possible && got.is_ok() && first != second {
                    model.exchange(one, other);
                }
                (possible, got, false)
            }
            Call::Create(slot, path) => {
                let Some((dir, name)) = model.place(path) else { return skipped };
                if model.slot(slot).is_some() {
                    return skipped;
                }
                let possible = absent(model, path);
                let made = direct.create(Ino(dir), name, 0o644);
                if let (true, Ok((ino, handle))) = (possible, made) {
                    model.make(path, ino.0, libc::S_IFREG | 0o644, None);
                    model.open(slot, ino.0);
                    handles.insert(slot, (ino, handle));
                }
                (possible, made.map(drop), false)
            }
            Call::Open(slot, path) | Call::OpenTruncate(slot, path) => {
                let Some(ino) = model.lookup(path) else { return skipped };
                if model.slot(slot).is_some() || model.node(ino).file.is_none() {
                    return skipped;
                }
                let truncates = matches!(call, Call::OpenTruncate(..));
                let flags = if truncates { libc::O_WRONLY | libc::O_TRUNC } else { libc::O_RDWR };
                let opened = direct.open(Ino(ino), flags);
                if let Ok(handle) = opened {
                    if truncates && model.replaces(ino) {
                        model.start_replace(ino);
                    } else if truncates && model.size(ino) > 0 {
                        model.truncate(ino, 0);
                    }
                    model.open(slot, ino);
                    handles.insert(slot, (Ino(ino), handle));
                }
                (true, opened.map(drop), false)
            }
            Call::Write(slot, ..) | Call::Append(slot, _) => {
                let Some((ino, handle)) = handles.get(&slot).copied() else { return skipped };
                let (offset, len) = match call {
                    Call::Write(_, offset, len) => (offset, len),
                    Call::Append(_, len) => (model.size(ino.0), len),
                    _ => return skipped,
                };
                let bytes = model.write(ino.0, offset, len);
                (true, direct.write(handle, offset, &bytes), false)
            }
            Call::Fsync(slot) => {
                let Some((ino, handle)) = handles.get(&slot).copied() else { return skipped };
                model.learn(ino.0, true);
                (true, direct.fsync(ino, handle), true)
            }
            Call::Close(slot) => {
                let Some((_, handle)) = handles.remove(&slot) else { return skipped };
                model.close(slot);
                (true, direct.close(handle), model.close_commits)
            }
            Call::Truncate(path, size) => {
                let Some(ino) = model.lookup(path) else { return skipped };
                if model.node(ino).file.is_none() {
                    return skipped;
                }
                model.truncate(ino, size);
                (true, direct.truncate(Ino(ino), size), false)
            }
            Call::Punch(slot, offset, len) | Call::Zero(slot, offset, len) => {
                let Some((ino, handle)) = handles.get(&slot).copied() else { return skipped };
                let keep = libc::FALLOC_FL_KEEP_SIZE;
                let how = match call {
                    Call::Punch(..) => libc::FALLOC_FL_PUNCH_HOLE | keep,
                    _ => libc::FALLOC_FL_ZERO_RANGE | keep,
                };
                let got = direct.fallocate(handle, offset, len, how);
                // tmpfs has no zero-range.
                if got != Err(libc::EOPNOTSUPP) {
                    model.zero(ino.0, offset, len);
                }
                (got != Err(libc::EOPNOTSUPP), got, false)
            }
            Call::Reserve(slot, offset, len) => {
                let Some((_, handle)) = handles.get(&slot).copied() else { return skipped };
                (true, direct.fallocate(handle, offset, len, libc::FALLOC_FL_KEEP_SIZE), false)
            }
            Call::Extend(slot, len) => {
                let Some((ino, handle)) = handles.get(&slot).copied() else { return skipped };
                let got = direct.fallocate(handle, model.size(ino.0), len, 0);
                model.extend(ino.0, len);
                (true, got, false)
            }
            Call::Chmod(path, mode) => {
                let Some(ino) = model.lookup(path) else { return skipped };
                let got = direct.change(Ino(ino), Some(mode), None);
                model.change(ino, |node| node.mode = node.mode & libc::S_IFMT | mode);
                (true, got, false)
            }
            Call::Chown(path, uid) => {
                let Some(ino) = model.lookup(path) else { return skipped };
                let got = direct.change(Ino(ino), None, Some(uid));
                model.change(ino, |node| node.uid = uid);
                (true, got, false)
            }
            Call::SetXattr(path, name, len) => {
                let Some(ino) = model.lookup(path) else { return skipped };
                let got = direct.set_xattr(Ino(ino), name, &vec![b'v'; len]);
                model.change(ino, |node| drop(node.xattrs.insert(name.to_owned(), vec![b'v'; len])));
                (true, got, false)
            }
            Call::RemoveXattr(path, name) => {
                let Some(ino) = model.lookup(path) else { return skipped };
                let possible = model.node(ino).xattrs.contains_key(name);
                let got = direct.remove_xattr(Ino(ino), name);
                if possible {
                    model.change(ino, |node| drop(node.xattrs.remove(name)));
                }
                (possible, got, false)
            }
            Call::Sync => {
                model.learn_all();
                (true, direct.sync(), true)
            }
            Call::Round => {
                model.learn_all();
                (true, direct.round(true).map(drop), true)
            }
            Call::Idle => {
                model.learn_all();
                (true, direct.round(false).map(drop), true)
            }
            Call::Burn(upto) => {
                while direct.pool().edit().next_id() < upto {}
                // A record that carries the counter.
                let got = direct.change(ROOT, Some(0o755), None);
                model.change(ROOT.0, |_| {});
                (true, got, false)
            }
            Call::Reclaim => {
                let got = direct.pool().reclaim().map(drop).map_err(|error| error.errno());
                (true, got, true)
            }
            Call::Seal(path) => {
                let Some(ino) = model.lookup(path) else { return skipped };
                (true, direct.seal(Ino(ino)), true)
            }
            Call::SealOpen(path) => {
                let Some(ino) = model.lookup(path) else { return skipped };
                (true, direct.seal_open(Ino(ino)), true)
            }
        }
    }
}
