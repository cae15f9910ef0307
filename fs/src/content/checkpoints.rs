//! Directories that are one checkpoint in parts: what the plan in one says, and which tensors of which files those are.
//!
//! What is known of a directory holds for one version of its plans. Which files are the parts is looked up each time.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use tensorfs_formats::{Format, Tensor};
use tensorfs_layout::tree::View;
use tensorfs_layout::{Ino, Timestamp};

use crate::clock;
use crate::error::{Fault, Result};
use crate::file::Version;

use super::Content;
use super::bytes::fault;
use super::checkpoint::Checkpoint;
use super::hash::number;
use super::index::Index;
use super::plan::{Draft, Place};

/// How torch calls the plan of a distributed checkpoint, and how indexes of checkpoints in parts end.
const DISTRIBUTED: &[u8] = b".metadata";
const INDEXES: [&[u8]; 2] = [b".safetensors.index.json", b".bin.index.json"];
/// So many names of a directory are looked at for indexes, and so many at a time; so many plans count.
const NAMES_MAX: usize = 4096;
const LOT: usize = 256;
const PLANS_MAX: usize = 8;

/// Files that are parts of a checkpoint, by their numbers, as they were when they were asked for first.
pub(super) struct Parts<'a> {
    content: &'a Content,
    checkpoint: &'a Checkpoint,
    known: HashMap<u32, Option<Found>>,
    /// Whose rights count for all of the checkpoint, and the same as a set.
    files: Option<(Arc<[Ino]>, HashSet<Ino>)>,
}

/// A file, and the directories that its name led through.
struct Found {
    file: Ino,
    version: Version,
    above: Vec<Ino>,
}

/// A tensor of a part, which has the format.
pub(super) struct InPart {
    pub tensor: Tensor,
    pub format: Format,
}

impl<'a> Parts<'a> {
    /// Nothing is asked for yet.
    pub fn new(content: &'a Content, checkpoint: &'a Checkpoint) -> Self {
        Self { content, checkpoint, known: HashMap::new(), files: None }
    }

    /// The file that a part is, if it is one.
    pub fn get(&mut self, file: u32) -> Option<(Ino, Version)> {
        self.found(file).map(|found| (found.file, found.version))
    }

    fn found(&mut self, file: u32) -> Option<&Found> {
        let Self { content, checkpoint, known, .. } = self;
        known.entry(file).or_insert_with(|| content.part(checkpoint, file)).as_ref()
    }

    /// Stands for a tensor as long as its plan and parts are what they are.
    pub fn stamp(&mut self, nth: u32) -> u64 {
        let checkpoint = self.checkpoint;
        let bytes = |(ino, version): (Ino, Version)| (ino, version.segment, version.size, version.mtime);
        let parts = checkpoint.plan.pieces(nth as usize).map(|(_, place)| self.get(place.file).map(bytes));
        number((checkpoint.stamp, parts.collect::<Vec<_>>()))
    }

    /// Whose rights count for a tensor: of all that the plan names, and of those that have something of it in any case,
    /// and what their names led through when they were asked for. As a rule it is the same list for all.
    pub fn shared(&mut self, nth: u32) -> Arc<[Ino]> {
        let (content, checkpoint) = (self.content, self.checkpoint);
        let (files, among) = self.files.take().unwrap_or_else(|| {
            let files = content.files_of(checkpoint);
            let among = files.iter().copied().collect();
            (files, among)
        });
        let mut more = Vec::new();
        for (_, place) in checkpoint.plan.pieces(nth as usize) {
            let Some(found) = self.found(place.file) else { continue };
            more.extend(found.above.iter().chain([&found.file]).filter(|ino| !among.contains(ino)));
        }
        let shared = if more.is_empty() { files.clone() } else { [&files[..], &more].concat().into() };
        self.files = Some((files, among));
        shared
    }

    /// When the newest of a tensor's parts was changed.
    pub fn mtime(&mut self, nth: u32) -> Timestamp {
        let checkpoint = self.checkpoint;
        let plans = checkpoint.plans.iter().map(|(_, version)| version.mtime).max().unwrap_or_default();
        let parts = checkpoint.plan.pieces(nth as usize).filter_map(|(_, place)| self.get(place.file));
        parts.map(|(_, version)| version.mtime).fold(plans, Ord::max)
    }
}

/// The file that a name leads to from a directory on, and the directories on the way. Links are not followed.
fn reach(view: &View, dir: Ino, name: &str, on_the_way: &mut Vec<Ino>) -> Option<Ino> {
    let mut at = dir;
    let mut names = name.split('/').peekable();
    while let Some(name) = names.next() {
        at = view.lookup(at, name.as_bytes())?;
        if names.peek().is_some() {
            on_the_way.push(at);
        }
    }
    view.object(at)?.is_file().then_some(at)
}

fn readable(checkpoint: Arc<Checkpoint>) -> Result<Option<Arc<Checkpoint>>> {
    if checkpoint.is_broken { Err(Fault::new(libc::EIO)) } else { Ok(Some(checkpoint)) }
}

fn is_plan(name: &[u8]) -> bool {
    name == DISTRIBUTED || INDEXES.iter().any(|end| name.ends_with(end))
}

impl Content {
    /// True if a directory has a plan that begins as one. May read files.
    pub(super) fn has_plan(&self, dir: Ino) -> bool {
        self.plans_in(dir).into_iter().any(|(ino, version)| {
            let looked = clock::now();
            if let Some(known) = self.checkpoints.verdict(ino, &version) {
                return known;
            }
            let source = self.bytes_of(ino, &version);
            let found = source.pieces(&mut |_| ControlFlow::Break(()));
            source.close();
            let Some(found) = found.ok().filter(|found| found.error.is_none()) else { return false };
            if version.is_settled(looked) && self.files.version(ino).is_ok_and(|now| now == version) {
                self.checkpoints.judge(ino, version, found.stopped);
            }
            found.stopped
        })
    }

    /// The checkpoint that a directory is, if it is one of which the plan can be read. May read files.
    pub(super) fn checkpoint_in(&self, dir: Ino) -> Result<Option<Arc<Checkpoint>>> {
        let mut left = 3;
        loop {
            let looked = clock::now();
            let plans = self.plans_in(dir);
            if plans.is_empty() {
                return Ok(None);
            }
            if let Some(known) = self.checkpoints.get(dir, &plans) {
                return readable(known);
            }
            let read = self.read_plans(dir, &plans);
            let is_same = self.plans_in(dir) == plans;
            left -= 1;
            match read {
                // Something was replaced or removed while it was read.
                Err(_) if !is_same && left > 0 => {}
                Err(error) => return Err(fault(error)),
                Ok(checkpoint) => {
                    let checkpoint = Arc::new(checkpoint);
                    if is_same && plans.iter().all(|(_, version)| version.is_settled(looked)) {
                        self.checkpoints.put(dir, checkpoint.clone());
                    }
                    return readable(checkpoint);
                }
            }
        }
    }

    /// Whose rights count for a checkpoint: of its directory, its plans, and the files that are its parts.
    pub(super) fn files_of(&self, checkpoint: &Checkpoint) -> Arc<[Ino]> {
        let view = self.files.store().view();
        let plans = checkpoint.plans.iter().map(|(ino, _)| *ino);
        let (mut all, mut among) = (Vec::from_iter([checkpoint.dir].into_iter().chain(plans)), HashSet::new());
        for name in checkpoint.plan.files() {
            let mut on_the_way = Vec::new();
            if let Some(part) = reach(&view, checkpoint.dir, name, &mut on_the_way) {
                // A file of many names is one.
                all.extend(on_the_way.into_iter().chain([part]).filter(|ino| among.insert(*ino)));
            }
        }
        all.into()
    }

    /// A directory, its plans, and all other files in it. None if it has no plan, too many files, or directories, in
    /// which parts may be.
    pub(super) fn files_beside_plan(&self, dir: Ino) -> Option<Arc<[Ino]>> {
        let view = self.files.store().view();
        let (mut plans, mut others, mut left) = (vec![dir], Vec::new(), NAMES_MAX);
        for (_, name, ino) in view.entries_after(dir, 0) {
            left = left.checked_sub(1)?;
            if view.object(ino)?.is_dir() {
                return None;
            }
            if view.object(ino)?.is_file() {
                if is_plan(name) { plans.push(ino) } else { others.push(ino) }
            }
        }
        (plans.len() > 1).then(|| [plans, others].concat().into())
    }

    /// Where something is, in print.
    pub(super) fn path_of(&self, ino: Ino) -> String {
        let store = self.files.store();
        let path = store.path_to_show(&store.view(), ino);
        path.map_or_else(|| format!("inode {ino}"), |path| String::from_utf8_lossy(&path).into_owned())
    }

    /// The tensor that is a piece of one of that name. Otherwise why there is none, in words.
    pub(super) fn in_part(
        &self,
        (ino, version): (Ino, Version),
        name: &[u8],
        place: Place,
    ) -> Result<std::result::Result<InPart, &'static str>> {
        let Some(tensors) = self.tensors_of(ino)? else { return Ok(Err("holds no tensors")) };
        if tensors.version != version {
            return Err(Fault::stale());
        }
        let Place { offset, len, .. } = place;
        if len > 0 && offset.checked_add(len).is_none_or(|end| end > version.size) {
            return Ok(Err("is cut short"));
        }
        let source = self.bytes_of(ino, &version);
        let found = match len {
            0 => tensors.index.find_named(name).map(|nth| tensors.tensor(&source, nth)).transpose(),
            _ => tensors.only_one_in(&source, offset..offset + len),
        };
        source.close();
        let found = found.map_err(fault)?.map(|tensor| InPart { tensor, format: tensors.format });
        Ok(found.ok_or("has no such tensor where the plan says"))
    }

    /// The plans in a directory that are regular files, with their versions, in the order of their names.
    fn plans_in(&self, dir: Ino) -> Vec<(Ino, Version)> {
        let mut found: Vec<(Vec<u8>, Ino)> = Vec::new();
        let (mut cookie, mut left) = (0, NAMES_MAX);
        found.extend(self.files.store().view().lookup(dir, DISTRIBUTED).map(|ino| (DISTRIBUTED.to_vec(), ino)));
        while left > 0 {
            let view = self.files.store().view();
            let before = left;
            for (at, name, ino) in view.entries_after(dir, cookie).take(LOT) {
                (cookie, left) = (at, left - 1);
                if name != DISTRIBUTED && is_plan(name) {
                    found.push((name.to_vec(), ino));
                }
            }
            if before - left < LOT {
                break;
            }
        }
        found.sort();
        let with_version = |(_, ino): (Vec<u8>, Ino)| Some((ino, self.files.version(ino).ok()?));
        found.into_iter().filter_map(with_version).filter(|(_, version)| version.size > 0).take(PLANS_MAX).collect()
    }

    fn part(&self, checkpoint: &Checkpoint, file: u32) -> Option<Found> {
        let (name, mut above) = (checkpoint.plan.files().get(file as usize)?, Vec::new());
        let file = reach(&self.files.store().view(), checkpoint.dir, name, &mut above)?;
        Some(Found { file, version: self.files.version(file).ok()?, above })
    }

    fn read_plans(&self, dir: Ino, plans: &[(Ino, Version)]) -> io::Result<Checkpoint> {
        let (mut draft, mut count, mut is_broken) = (Draft::default(), 0, false);
        for (ino, version) in plans {
            // Two checkpoints in one directory have mostly the same names.
            let prefix = if count == 0 { Vec::new() } else { format!("{}/", count + 1).into_bytes() };
            let (tensors, before) = (draft.len(), draft.begin(prefix));
            let mut too_much = false;
            let source = self.bytes_of(*ino, version);
            let found = source.pieces(&mut |piece| {
                too_much = draft.add(piece).is_err();
                if too_much { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            source.close();
            let found = found?;
            let too_much = too_much.then(|| "a plan of too many parts".to_owned());
            // What cannot be read to its end is none.
            if let Some(why) = too_much.or(found.reason) {
                log::warn!("{}: the plan of a checkpoint that cannot be read: {why}", self.path_of(*ino));
                draft.take_back(before);
                is_broken = true;
            }
            if let Some(error) = found.error {
                return Err(error);
            }
            count += usize::from(draft.len() > tensors);
        }
        is_broken &= count == 0;
        let (plan, mut index) = (draft.finish(), Index::default());
        let mut known = index.directories();
        for (nth, tensor) in (0..plan.len()).filter_map(|nth| Some((nth, plan.tensor(nth)?))) {
            index.add(nth as u32, &tensor, &mut known);
        }
        index.finish();
        let versions = plans.iter().map(|(ino, version)| (ino, version.segment, version.size, version.mtime));
        let stamp = number((dir, versions.collect::<Vec<_>>()));
        Ok(Checkpoint { stamp, index, dir, plans: plans.to_vec(), plan, is_broken })
    }
}
