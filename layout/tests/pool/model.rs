//! Random operations against a plain model: the live view, and the pool reopened after every prefix of them, with the
//! server killed or the power lost at that point, and with syncs that fail on the way.

use std::collections::BTreeMap;

use crate::common::*;
use proptest::prelude::*;
use tensorfs_layout::log::{Attributes, Origin, Record, Seal, Shutdown, Transaction};
use tensorfs_layout::pool::Pool;
use tensorfs_layout::{Ino, ROOT, SegmentId};

/// An operation; numbers pick among what exists.
#[derive(Clone, Debug)]
enum Op {
    MakeDir { parent: usize, name: u8 },
    MakeFile { parent: usize, name: u8 },
    Link { parent: usize, name: u8, target: usize },
    Symlink { parent: usize, name: u8 },
    Remove { pick: usize },
    Rename { pick: usize, parent: usize, name: u8 },
    Exchange { one: usize, other: usize },
    Chown { pick: usize, uid: u32 },
    SetXattr { pick: usize, name: u8, value: u8 },
    RemoveXattr { pick: usize, name: u8 },
    Append { pick: usize, len: u16 },
    Truncate { pick: usize, to: u16 },
    Replace { pick: usize, len: u16 },
    Seal { pick: usize, parts: u8 },
    Thaw { pick: usize },
    Commit,
    CommitWithFailingSegment,
    Maintain,
    Idle,
}

fn op() -> impl Strategy<Value = Op> {
    let pick = || any::<usize>();
    let name = || 0..6u8;
    prop_oneof![
        2 => (pick(), name()).prop_map(|(parent, name)| Op::MakeDir { parent, name }),
        3 => (pick(), name()).prop_map(|(parent, name)| Op::MakeFile { parent, name }),
        1 => (pick(), name(), pick()).prop_map(|(parent, name, target)| Op::Link { parent, name, target }),
        1 => (pick(), name()).prop_map(|(parent, name)| Op::Symlink { parent, name }),
        4 => pick().prop_map(|pick| Op::Remove { pick }),
        3 => (pick(), pick(), name()).prop_map(|(pick, parent, name)| Op::Rename { pick, parent, name }),
        1 => (pick(), pick()).prop_map(|(one, other)| Op::Exchange { one, other }),
        2 => (pick(), any::<u32>()).prop_map(|(pick, uid)| Op::Chown { pick, uid }),
        2 => (pick(), name(), any::<u8>()).prop_map(|(pick, name, value)| Op::SetXattr { pick, name, value }),
        1 => (pick(), name()).prop_map(|(pick, name)| Op::RemoveXattr { pick, name }),
        4 => (pick(), 1..5000u16).prop_map(|(pick, len)| Op::Append { pick, len }),
        2 => (pick(), 0..9000u16).prop_map(|(pick, to)| Op::Truncate { pick, to }),
        1 => (pick(), 0..5000u16).prop_map(|(pick, len)| Op::Replace { pick, len }),
        3 => (pick(), 1..5u8).prop_map(|(pick, parts)| Op::Seal { pick, parts }),
        1 => pick().prop_map(|pick| Op::Thaw { pick }),
        2 => Just(Op::Commit),
        1 => Just(Op::CommitWithFailingSegment),
        2 => Just(Op::Maintain),
        1 => Just(Op::Idle),
    ]
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    mode: u32,
    uid: u32,
    size: u64,
    target: Option<String>,
    xattrs: BTreeMap<String, String>,
    /// The parts that are sealed, and how long each is: all of the file up to some offset.
    sealed: Vec<u64>,
    children: Option<BTreeMap<String, u64>>,
}

/// What a user believes: nodes by number, names in directories.
#[derive(Clone, Debug)]
struct Model {
    nodes: BTreeMap<u64, Node>,
}

impl Model {
    fn new() -> Self {
        let root = Node { mode: libc::S_IFDIR | 0o755, children: Some(BTreeMap::new()), ..Node::default() };
        Self { nodes: BTreeMap::from([(1, root)]) }
    }

    fn dirs(&self) -> Vec<u64> {
        self.nodes.iter().filter(|(_, node)| node.children.is_some()).map(|(ino, _)| *ino).collect()
    }

    fn files(&self) -> Vec<u64> {
        self.nodes.iter().filter(|(_, node)| node.mode & libc::S_IFMT == libc::S_IFREG).map(|(ino, _)| *ino).collect()
    }

    fn names(&self) -> Vec<(u64, String, u64)> {
        let entries = |(dir, node): (&u64, &Node)| -> Vec<(u64, String, u64)> {
            node.children.iter().flatten().map(|(name, ino)| (*dir, name.clone(), *ino)).collect()
        };
        self.nodes.iter().flat_map(entries).collect()
    }

    fn children(&mut self, dir: u64) -> &mut BTreeMap<String, u64> {
        self.nodes.get_mut(&dir).unwrap().children.as_mut().unwrap()
    }

    fn links(&self, ino: u64) -> usize {
        let named = self.names().iter().filter(|(_, _, child)| *child == ino).count();
        match &self.nodes[&ino].children {
            Some(children) => 2 + children.values().filter(|child| self.nodes[child].children.is_some()).count(),
            None => named,
        }
    }

    fn is_below(&self, dir: u64, top: u64) -> bool {
        dir == top || self.names().iter().any(|(parent, _, child)| *child == dir && self.is_below(*parent, top))
    }

    fn drop_unnamed(&mut self, ino: u64) {
        if !self.names().iter().any(|(_, _, child)| *child == ino) {
            self.nodes.remove(&ino);
        }
    }

    fn tree(&self) -> BTreeMap<String, String> {
        let mut tree = BTreeMap::new();
        self.walk(1, String::new(), &mut tree);
        tree
    }

    fn walk(&self, ino: u64, path: String, tree: &mut BTreeMap<String, String>) {
        let node = &self.nodes[&ino];
        let xattrs: Vec<String> = node.xattrs.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let text = format!(
            "{ino} mode {:o} uid {} links {} size {} target {:?} xattrs {xattrs:?} sealed {:?}",
            node.mode,
            node.uid,
            self.links(ino),
            node.size,
            node.target,
            node.sealed,
        );
        for (name, child) in node.children.iter().flatten() {
            self.walk(*child, format!("{path}/{name}"), tree);
        }
        tree.insert(if path.is_empty() { "/".into() } else { path }, text);
    }
}

fn pick<T: Clone>(from: &[T], number: usize) -> Option<T> {
    (!from.is_empty()).then(|| from[number % from.len()].clone())
}

fn segment_of(pool: &Pool, ino: u64) -> SegmentId {
    pool.view().object(Ino(ino)).unwrap().attributes.segment.unwrap()
}

fn set_len(pool: &Pool, segment: SegmentId, len: u64) {
    pool.segments().begin_write(segment).unwrap();
    std::fs::File::from(pool.segments().open(segment, libc::O_RDWR).unwrap()).set_len(len).unwrap();
    pool.segments().end_write(segment);
}

fn change(pool: &Pool, ino: u64, change: impl FnOnce(&mut Attributes)) {
    let mut attributes = pool.view().object(Ino(ino)).unwrap().attributes.clone();
    change(&mut attributes);
    store(pool, [Record::Attributes { ino: Ino(ino), attributes }]);
}

fn create(pool: &Pool, model: &mut Model, parent: u64, name: String, mode: u32, target: Option<&str>) {
    let ino = pool.edit().next_id();
    let mut attributes = attributes(mode);
    if mode & libc::S_IFMT == libc::S_IFREG {
        let segment = SegmentId(pool.edit().next_id());
        pool.segments().create(segment).unwrap();
        attributes.segment = Some(segment);
    }
    let mut records = vec![Record::Attributes { ino: Ino(ino), attributes }];
    if let Some(target) = target {
        records.push(Record::Target { ino: Ino(ino), target: target.as_bytes().into() });
    }
    records.push(named(Ino(parent), &name, Ino(ino)));
    store(pool, records);
    let children = (mode & libc::S_IFMT == libc::S_IFDIR).then(BTreeMap::new);
    let target = target.map(str::to_owned);
    let size = target.as_ref().map_or(0, |target| target.len() as u64);
    model.nodes.insert(ino, Node { mode, target, size, children, ..Node::default() });
    model.children(parent).insert(name, ino);
}

/// Removes `ino`'s object if nothing names it any more.
fn reap(pool: &Pool, model: &mut Model, ino: u64) {
    pool.edit().reap(Ino(ino));
    model.drop_unnamed(ino);
}

/// Does an operation to the pool and to the model. What cannot be done is skipped.
fn apply(pool: &Pool, medium: &SimMedium, model: &mut Model, op: &Op) {
    let dirs = model.dirs();
    let names = model.names();
    let name = |number: &u8| format!("n{number}");
    match op {
        Op::MakeDir { parent, name: n } | Op::MakeFile { parent, name: n } | Op::Symlink { parent, name: n } => {
            let parent = pick(&dirs, *parent).unwrap();
            if model.children(parent).contains_key(&name(n)) {
                return;
            }
            match op {
                Op::MakeDir { .. } => create(pool, model, parent, name(n), libc::S_IFDIR | 0o755, None),
                Op::MakeFile { .. } => create(pool, model, parent, name(n), libc::S_IFREG | 0o644, None),
                _ => create(pool, model, parent, name(n), libc::S_IFLNK | 0o777, Some("some/where")),
            }
        }
        Op::Link { parent, name: n, target } => {
            let parent = pick(&dirs, *parent).unwrap();
            let Some(target) = pick(&model.files(), *target) else { return };
            if model.children(parent).contains_key(&name(n)) {
                return;
            }
            store(pool, [named(Ino(parent), &name(n), Ino(target))]);
            model.children(parent).insert(name(n), target);
        }
        Op::Remove { pick: number } => {
            let Some((dir, name, ino)) = pick(&names, *number) else { return };
            if model.nodes[&ino].children.as_ref().is_some_and(|children| !children.is_empty()) {
                return;
            }
            store(pool, [removal(Ino(dir), &name)]);
            model.children(dir).remove(&name);
            reap(pool, model, ino);
        }
        Op::Rename { pick: number, parent, name: n } => {
            let Some((dir, old, ino)) = pick(&names, *number) else { return };
            let parent = pick(&dirs, *parent).unwrap();
            let new = name(n);
            let over = model.children(parent).get(&new).copied();
            let kinds_differ =
                over.is_some_and(|over| model.nodes[&over].children.is_some() || model.nodes[&ino].children.is_some());
            if model.is_below(parent, ino) || kinds_differ || over == Some(ino) {
                return;
            }
            store(pool, [removal(Ino(dir), &old), named(Ino(parent), &new, Ino(ino))]);
            model.children(dir).remove(&old);
            model.children(parent).insert(new, ino);
            if let Some(over) = over {
                reap(pool, model, over);
            }
        }
        Op::Exchange { one, other } => {
            let (Some(one), Some(other)) = (pick(&names, *one), pick(&names, *other)) else { return };
            if model.is_below(other.0, one.2) || model.is_below(one.0, other.2) {
                return;
            }
            store(pool, [named(Ino(one.0), &one.1, Ino(other.2)), named(Ino(other.0), &other.1, Ino(one.2))]);
            model.children(one.0).insert(one.1, other.2);
            model.children(other.0).insert(other.1, one.2);
        }
        Op::Chown { pick: number, uid } => {
            let ino = names.get(number % names.len().max(1)).map_or(1, |(_, _, ino)| *ino);
            change(pool, ino, |attributes| attributes.uid = *uid);
            model.nodes.get_mut(&ino).unwrap().uid = *uid;
        }
        Op::SetXattr { pick: number, name: n, value } => {
            let ino = names.get(number % names.len().max(1)).map_or(1, |(_, _, ino)| *ino);
            let (key, value) = (format!("user.{n}"), format!("v{value}"));
            let record = Record::Xattr { ino: Ino(ino), name: key.as_bytes().into(), value: value.as_bytes().into() };
            store(pool, [record]);
            model.nodes.get_mut(&ino).unwrap().xattrs.insert(key, value);
        }
        Op::RemoveXattr { pick: number, name: n } => {
            let ino = names.get(number % names.len().max(1)).map_or(1, |(_, _, ino)| *ino);
            let key = format!("user.{n}");
            store(pool, [Record::XattrRemoval { ino: Ino(ino), name: key.as_bytes().into() }]);
            model.nodes.get_mut(&ino).unwrap().xattrs.remove(&key);
        }
        Op::Append { pick: number, len } => {
            let Some(ino) = pick(&model.files(), *number) else { return };
            append(pool, Ino(ino), segment_of(pool, ino), &vec![*len as u8 | 1; usize::from(*len)]);
            model.nodes.get_mut(&ino).unwrap().size += u64::from(*len);
        }
        Op::Truncate { pick: number, to } => {
            let Some(ino) = pick(&model.files(), *number) else { return };
            let (segment, size, to) = (segment_of(pool, ino), model.nodes[&ino].size, u64::from(*to));
            let start = pool.view().object(Ino(ino)).unwrap().tail().0.min(to);
            let (ino_, allocated, offset, len) = (Ino(ino), 4096, start, to - start);
            if to < size {
                let cut = Record::Truncation { ino: ino_, segment, offset, len, allocated, cut_from: size };
                let id = store(pool, [cut]);
                pool.commit(id).unwrap();
            }
            set_len(pool, segment, to);
            store(pool, [Record::Data { ino: ino_, segment, offset, len, allocated, origin: Origin::default() }]);
            let node = model.nodes.get_mut(&ino).unwrap();
            node.size = to;
            // What the records cut into is not sealed any more.
            let mut end = 0;
            node.sealed.retain(|len| {
                end += len;
                end <= start
            });
        }
        Op::Replace { pick: number, len } => {
            let Some(ino) = pick(&model.files(), *number) else { return };
            let segment = SegmentId(pool.edit().next_id());
            pool.segments().create(segment).unwrap();
            store(pool, [Record::Replace { ino: Ino(ino), segment }]);
            set_len(pool, segment, u64::from(*len));
            let mut attributes = pool.view().object(Ino(ino)).unwrap().attributes.clone();
            attributes.segment = Some(segment);
            let data = Record::Data {
                ino: Ino(ino),
                segment,
                offset: 0,
                len: u64::from(*len),
                allocated: 4096,
                origin: Origin::default(),
            };
            store(pool, [Record::Attributes { ino: Ino(ino), attributes }, data]);
            let node = model.nodes.get_mut(&ino).unwrap();
            node.size = u64::from(*len);
            node.sealed.clear();
        }
        Op::Seal { pick: number, parts } => {
            let Some(ino) = pick(&model.files(), *number) else { return };
            let node = model.nodes.get_mut(&ino).unwrap();
            let (segment, part) = (segment_of(pool, ino), node.size.div_ceil(u64::from(*parts)).max(1));
            let mut records = Vec::new();
            node.sealed.clear();
            for offset in (0..node.size).step_by(part as usize) {
                let len = part.min(node.size - offset);
                let seal = Seal { crc: offset as u32, description: vec![7; usize::from(*parts)].into() };
                records.push(Record::Sealed {
                    ino: Ino(ino),
                    segment,
                    offset,
                    len,
                    allocated: 4096,
                    seal,
                    origin: Origin::default(),
                });
                node.sealed.push(len);
            }
            store(pool, records);
        }
        Op::Thaw { pick: number } => {
            let Some(ino) = pick(&model.files(), *number) else { return };
            store(pool, [Record::Thaw { ino: Ino(ino), segment: segment_of(pool, ino), offset: 0, len: u64::MAX }]);
            model.nodes.get_mut(&ino).unwrap().sealed.clear();
        }
        Op::Commit => pool.commit(pool.newest()).unwrap(),
        Op::CommitWithFailingSegment => {
            medium.fail_next_segment_sync();
            pool.commit(pool.newest()).unwrap();
        }
        Op::Maintain => {
            pool.maintain().unwrap();
            pool.unlink_covered();
        }
        Op::Idle => pool.idle().unwrap(),
    }
}

/// Cases are short by default; `PROPTEST_CASES` makes a campaign of them.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(48);
    ProptestConfig { cases, max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// The live view is what the model says, and so is the pool after its server was killed at any point.
    #[test]
    fn the_view_equals_the_model_and_survives_a_killed_server_after_every_prefix(
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let scratch = Scratch::new(4096);
        let (pool, medium) = scratch.first_open();
        let mut model = Model::new();
        for op in &ops {
            apply(&pool, &medium, &mut model, op);
            prop_assert_eq!(tree(&pool.view()), model.tree());
            let copy = scratch.copy();
            let (again, _) = copy.open(medium.stored(), BOOT);
            prop_assert_eq!(again.is_read_only(), None);
            prop_assert_eq!(again.recovery().damaged_files, 0);
            prop_assert_eq!(tree(&again.view()), model.tree());
            prop_assert_eq!(again.usage().objects, model.nodes.len() as u64);
            prop_assert_eq!(again.usage().files, model.files().len() as u64);
            prop_assert_eq!(again.usage().directories, model.dirs().len() as u64);
        }
        pool.close().unwrap();
        drop(pool);
        let (again, _) = scratch.open(medium.after_power_loss(|| false), NEXT_BOOT);
        prop_assert_eq!(again.recovery().kind, Shutdown::Clean);
        prop_assert_eq!(tree(&again.view()), model.tree());
    }

    /// After a power loss the tree is the model's after some prefix, and no earlier than what was acknowledged as
    /// durable.
    ///
    /// Proves D5, D6.
    #[test]
    fn after_a_power_loss_the_tree_is_a_prefix_that_holds_all_that_was_committed(
        ops in prop::collection::vec(op(), 1..40),
        reached in prop::collection::vec(any::<bool>(), 64),
    ) {
        let scratch = Scratch::new(4096);
        let (pool, medium) = scratch.first_open();
        let mut model = Model::new();
        let mut history = vec![(pool.newest(), model.tree())];
        for op in &ops {
            apply(&pool, &medium, &mut model, op);
            history.push((pool.newest(), model.tree()));
            let mut turn = reached.iter().cycle();
            let image = medium.after_power_loss(|| *turn.next().unwrap());
            let copy = scratch.copy();
            let (again, second) = copy.open(image, NEXT_BOOT);
            prop_assert_eq!(again.is_read_only(), None);
            let found = tree(&again.view());
            // The newest prefix whose last transaction is durable has to be there; a later one may be.
            let durable = history.iter().rposition(|(id, _)| *id <= pool.horizon()).unwrap();
            prop_assert!(
                history[durable..].iter().any(|(_, tree)| *tree == found),
                "horizon {}: {:#?} is none of {:#?}", pool.horizon(), found, &history[durable..]
            );
            // Power goes again, in the middle of recovery or right behind it.
            drop(again);
            let image = second.after_power_loss(|| *turn.next().unwrap());
            let (again, _) = copy.open(image, BOOT);
            prop_assert_eq!(again.is_read_only(), None);
            prop_assert_eq!(tree(&again.view()), found);
        }
    }

    /// After a failed log sync nothing is acknowledged, and what was durable before is there.
    #[test]
    fn a_failed_log_sync_loses_nothing_that_was_acknowledged(
        before in prop::collection::vec(op(), 0..25),
        after in prop::collection::vec(op(), 0..10),
    ) {
        let scratch = Scratch::new(4096);
        let (pool, medium) = scratch.first_open();
        let mut model = Model::new();
        for op in &before {
            apply(&pool, &medium, &mut model, op);
        }
        pool.commit(pool.newest()).unwrap();
        let durable = model.tree();
        let commits = |op: &Op| matches!(op, Op::Commit | Op::CommitWithFailingSegment | Op::Truncate { .. }
            | Op::Maintain | Op::Idle);
        for op in after.iter().filter(|op| !commits(op)) {
            apply(&pool, &medium, &mut model, op);
        }
        let unlink = pool.edit().store(Transaction::new(0).with(removal(ROOT, "n0")));
        prop_assert!(unlink.is_ok());
        medium.fail_next_persist();
        prop_assert!(pool.commit(pool.newest()).is_err());
        prop_assert!(pool.is_read_only().is_some());
        let image = medium.after_power_loss(|| false);
        drop(pool);
        let (again, _) = scratch.open(image, NEXT_BOOT);
        prop_assert_eq!(tree(&again.view()), durable);
    }
}
