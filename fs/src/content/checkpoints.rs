//! Directories that are one checkpoint in parts: what the plan in one says, and which tensors of which files those are.
//!
//! What is known of a directory holds for one version of its plans. Which files are the parts is looked up each time.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tensorfs_formats::{Format, Planned, Tensor, is_called_as_plan};
use tensorfs_layout::{Ino, Timestamp};

use crate::caller::Asker;
use crate::clock;
use crate::error::{Fault, Result};
use crate::file::Version;
use crate::reader::Broken;

use super::Content;
use super::bytes::{fault, has_spent_all};
use super::checkpoint::{Checkpoint, READING_MAX, readings};
use super::databases::{ReadFrom, Seen};
use super::hash::number;
use super::index::Index;
use super::plan::{Draft, Place, Plan};
use super::reach::reach;
use super::tensors::Tensors;
use super::values::Why;
use super::whole::DATABASE;

/// So many plans of a directory count, of so many that are called so.
const PLANS_MAX: usize = 8;
const CALLED_MAX: usize = 256;
/// So many files beside a plan are looked at for who may read them.
const NAMES_MAX: usize = 4096;
/// What an entry of the index takes while that is made.
const ENTRY: usize = 64;

/// Files that are parts of a checkpoint, by their numbers, as they were when they were asked for first, or looked into
/// last.
pub(super) struct Parts<'a> {
    content: &'a Content,
    checkpoint: &'a Checkpoint,
    known: HashMap<u32, Option<Found>>,
    /// The tensors of the part that was looked into last: the next tensor is mostly of the same.
    last: Option<(u32, Arc<Tensors>)>,
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
        Self { content, checkpoint, known: HashMap::new(), last: None, files: None }
    }

    /// The file that a part is, if it is one.
    pub fn get(&mut self, file: u32) -> Option<(Ino, Version)> {
        self.found(file).map(|found| (found.file, found.version))
    }

    fn found(&mut self, file: u32) -> Option<&Found> {
        let Self { content, checkpoint, known, .. } = self;
        known.entry(file).or_insert_with(|| content.part(checkpoint, file)).as_ref()
    }

    /// Looks into a part. One that is written all the time is from then on what it is found to be.
    pub fn tensors(&mut self, file: u32) -> Result<Option<(Ino, Arc<Tensors>)>> {
        let Some(ino) = self.found(file).map(|found| found.file) else { return Ok(None) };
        if let Some((_, tensors)) = self.last.as_ref().filter(|(of, _)| *of == file) {
            return Ok(Some((ino, tensors.clone())));
        }
        let Some(tensors) = self.content.tensors_of(ino)? else { return Ok(None) };
        if let Some(Some(found)) = self.known.get_mut(&file) {
            found.version = tensors.version;
        }
        self.last = Some((file, tensors.clone()));
        Ok(Some((ino, tensors)))
    }

    /// Asks for the parts of a tensor again, one of which has become another file.
    pub fn ask_again(&mut self, nth: u32) {
        self.last = None;
        for (_, place) in self.checkpoint.plan.pieces(nth as usize) {
            self.known.remove(&place.file);
        }
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

fn readable(checkpoint: Arc<Checkpoint>) -> Result<Option<Arc<Checkpoint>>> {
    if checkpoint.is_broken { Err(Fault::new(libc::EIO)) } else { Ok(Some(checkpoint)) }
}

/// What the plans in a directory say, and whether that is all they will say.
struct Read {
    checkpoint: Checkpoint,
    is_all: bool,
}

/// What tells other files that plans were read from.
fn marks_of(files: &[(Box<str>, Seen)]) -> Vec<Option<(Ino, Option<impl Hash>)>> {
    let mark = |version: Version| (version.segment, version.size, version.mtime);
    files.iter().map(|(_, seen)| seen.map(|(ino, version)| (ino, version.map(mark)))).collect()
}

fn ids_of(plans: &[(Ino, io::Error)]) -> Vec<Ino> {
    plans.iter().map(|(ino, _)| *ino).collect()
}

/// What plans say together, whether one was left out, which could not be read this time, and of which other files that
/// was read.
struct Together {
    plan: Plan,
    left_out: bool,
    not_now: Vec<(Ino, io::Error)>,
    read_from: ReadFrom,
}

/// What one plan says, or why it says nothing.
enum Said {
    Plan(Plan),
    /// It can be read next time.
    NotNow(io::Error),
    /// In words.
    Nothing(String),
    /// More than there is room for.
    TooMuch,
}

impl Content {
    /// True if a directory has a plan that begins as one. May read files. Nothing can be said as who asks has had as
    /// much read as he may.
    pub(super) fn has_plan(&self, dir: Ino) -> Option<bool> {
        for (ino, version) in self.plans_in(dir) {
            if self.is_plan(dir, ino, version)? {
                return Some(true);
            }
        }
        Some(false)
    }

    fn is_plan(&self, dir: Ino, ino: Ino, version: Version) -> Option<bool> {
        let looked = clock::now();
        let known = self.checkpoints.verdicts.of(ino, &version).or_else(|| self.had_values(dir, ino, &version));
        if known.is_some() {
            return known;
        }
        let (source, mut is_database) = (self.bytes_of(ino, &version), false);
        let found = source.pieces(&mut |said| {
            is_database = said == Planned::Database;
            ControlFlow::Break(())
        });
        source.close();
        let verdict = match found.and_then(|found| found.error.map_or(Ok(found.stopped), Err)) {
            // Other files say that, and what was said is known as long as those are what they were.
            Ok(_) if is_database => match self.has_values(dir, ino, &version) {
                Ok(verdict) => return Some(verdict),
                Err(error) => Err(error),
            },
            found => found,
        };
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(error) if Broken::of(&error).is_none() && has_spent_all() => return None,
            Err(_) => return Some(false),
        };
        if version.is_settled(looked) && self.files.version(ino).is_ok_and(|now| now == version) {
            self.checkpoints.verdicts.note(ino, version, verdict);
        }
        Some(verdict)
    }

    /// The checkpoint that a directory is, if it is one of which the plan can be read. May read files, and wait for who
    /// reads them just then: so nobody has one while he asks for another.
    pub(super) fn checkpoint_in(&self, dir: Ino) -> Result<Option<Arc<Checkpoint>>> {
        let (mut turn, mut left, asker) = (None, 3, Asker::of_this_thread());
        let wanted = || match () {
            () if self.stop.load(Relaxed) => Err(Fault::new(libc::ESHUTDOWN)),
            () if asker.is_some_and(Asker::is_gone) => Err(Fault::new(libc::EINTR)),
            () => Ok(()),
        };
        loop {
            let looked = clock::now();
            let plans = self.plans_in(dir);
            if plans.is_empty() {
                return Ok(None);
            }
            let known = self.checkpoints.get(dir, &plans);
            if let Some(known) = known.filter(|known| self.are_as_seen(dir, &known.read_from.files)) {
                return readable(known);
            }
            if turn.is_none() {
                // Whoever had it before may have left what he found.
                turn = Some(self.checkpoints.turn(dir, wanted)?);
                continue;
            }
            let read = self.read_plans(dir, &plans, wanted);
            let is_same = match &read {
                Ok(read) => self.is_as_read(&read.checkpoint),
                Err(_) => self.plans_in(dir) == plans,
            };
            left -= 1;
            match read {
                // Something was replaced or removed while it was read.
                Err(_) | Ok(Read { is_all: false, .. }) if !is_same && left > 0 => {}
                Err(fault) => return Err(fault),
                Ok(Read { checkpoint, is_all }) => {
                    let others = checkpoint.read_from.files.iter().filter_map(|(_, seen)| seen.as_ref()?.1.as_ref());
                    let mut versions = plans.iter().map(|(_, version)| version).chain(others);
                    let is_kept = is_all && is_same && versions.all(|version| version.is_settled(looked));
                    return readable(self.checkpoints.take_in(checkpoint, is_kept));
                }
            }
        }
    }

    /// True if all that what is known of a checkpoint was read from is as it was.
    pub(super) fn is_as_read(&self, checkpoint: &Checkpoint) -> bool {
        let Checkpoint { dir, plans, read_from, .. } = checkpoint;
        self.plans_in(*dir) == *plans && self.are_as_seen(*dir, &read_from.files)
    }

    /// Whose rights count for a checkpoint: of its directory, its plans, what else these were read from, wherever that
    /// is now, and the files that are its parts.
    pub(super) fn files_of(&self, checkpoint: &Checkpoint) -> Arc<[Ino]> {
        let view = self.files.store().view();
        let plans = checkpoint.plans.iter().map(|(ino, _)| *ino);
        let (mut all, mut among) = (Vec::from_iter([checkpoint.dir].into_iter().chain(plans)), HashSet::new());
        all.extend(checkpoint.read_from.inos().filter(|ino| among.insert(*ino)));
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
                if is_called_as_plan(name) { plans.push(ino) } else { others.push(ino) }
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

    /// The tensor that is a piece of one of that name, in a part of that version. If there is none, why, in words.
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
        self.among(&tensors, ino, name, place)
    }

    /// The tensor that is a piece of one of that name, among those of a part. If there is none, why, in words.
    pub(super) fn among(
        &self,
        tensors: &Tensors,
        ino: Ino,
        name: &[u8],
        place: Place,
    ) -> Result<std::result::Result<InPart, &'static str>> {
        let Place { offset, len, .. } = place;
        if len > 0 && offset.checked_add(len).is_none_or(|end| end > tensors.version.size) {
            return Ok(Err("is cut short"));
        }
        let source = self.bytes_of(ino, &tensors.version);
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
        // That of one process is put together with others.
        let is_part = self.is_called_as_orbax_part(dir);
        let called: Vec<Ino> = {
            let view = self.files.store().view();
            let plans = view.plans_in(dir).filter(|(name, _)| !is_part || *name != DATABASE);
            plans.take(CALLED_MAX).map(|(_, ino)| ino).collect()
        };
        let with_version = |ino: Ino| Some((ino, self.files.version(ino).ok()?));
        called.into_iter().filter_map(with_version).filter(|(_, version)| version.size > 0).take(PLANS_MAX).collect()
    }

    fn part(&self, checkpoint: &Checkpoint, file: u32) -> Option<Found> {
        let (name, mut above) = (checkpoint.plan.files().get(file as usize)?, Vec::new());
        let file = reach(&self.files.store().view(), checkpoint.dir, name, &mut above)?;
        Some(Found { file, version: self.files.version(file).ok()?, above })
    }

    fn read_plans(&self, dir: Ino, plans: &[(Ino, Version)], wanted: impl Fn() -> Result<()>) -> Result<Read> {
        let size = plans.iter().map(|(_, version)| version.size).fold(0, u64::saturating_add);
        let versions = plans.iter().map(|(ino, version)| (ino, version.segment, version.size, version.mtime));
        let stamp = number((dir, versions.collect::<Vec<_>>()));
        for bytes in readings(size) {
            let room = self.checkpoints.room(Asker::user_of_this_thread(), bytes, &wanted)?;
            let Some(together) = self.plans_within(dir, plans, bytes)? else { continue };
            let Together { plan, left_out, not_now, read_from } = together;
            let Some(index) = index_of(&plan, bytes) else { continue };
            // Which tensor has which number depends on the plans that said something.
            let stamp = if not_now.is_empty() { stamp } else { number((stamp, ids_of(&not_now))) };
            let files = &read_from.files;
            let stamp = if files.is_empty() { stamp } else { number((stamp, marks_of(files))) };
            let is_all = not_now.is_empty();
            if let Some((_, error)) = not_now.into_iter().next().filter(|_| plan.len() == 0) {
                return Err(fault(error));
            }
            let is_broken = left_out && plan.len() == 0;
            let checkpoint = Checkpoint { stamp, index, dir, plans: plans.to_vec(), read_from, plan, is_broken, room };
            return Ok(Read { checkpoint, is_all });
        }
        Err(Fault::new(libc::EIO))
    }

    /// What plans say that may take so many bytes while they are read. None if they need more, and may have more. One
    /// that cannot be read is left out, and takes no other with it.
    fn plans_within(&self, dir: Ino, plans: &[(Ino, Version)], bytes: usize) -> Result<Option<Together>> {
        let (most, is_most, mut read_from) = (bytes / 2, bytes == READING_MAX, ReadFrom::default());
        let (mut said, mut left_out, mut not_now) = (Vec::new(), false, Vec::new());
        let mut leave_out = |ino: Ino, why: &str| {
            left_out = true;
            log::warn!("{}: the plan of a checkpoint that cannot be read: {why}", self.path_of(ino));
        };
        for (ino, version) in plans {
            let plan = match self.plan_within((dir, *ino), version, most, &mut read_from)? {
                Said::Plan(plan) => Some(plan),
                Said::TooMuch if !is_most => return Ok(None),
                Said::TooMuch => {
                    leave_out(*ino, "a plan of too many parts");
                    None
                }
                Said::Nothing(why) => {
                    leave_out(*ino, &why);
                    None
                }
                Said::NotNow(error) => {
                    not_now.push((*ino, error));
                    None
                }
            };
            said.push(plan);
            while said.iter().flatten().map(Plan::memory).sum::<usize>() > most {
                if !is_most {
                    return Ok(None);
                }
                let memory = |n: &usize| said[*n].as_ref().map_or(0, Plan::memory);
                let Some(largest) = (0..said.len()).max_by_key(memory) else { break };
                said[largest] = None;
                leave_out(plans[largest].0, "it takes too much memory beside others");
            }
        }
        let (mut plan, mut count) = (Plan::default(), 0);
        for one in said.into_iter().flatten() {
            // Two checkpoints in one directory have mostly the same names.
            let prefix = if count == 0 { Vec::new() } else { format!("{}/", count + 1).into_bytes() };
            count += usize::from(one.len() > 0);
            if plan.append(one, &prefix).is_err() {
                return Err(Fault::new(libc::EIO));
            }
        }
        Ok(Some(Together { plan, left_out, not_now, read_from }))
    }

    /// What one plan in a directory says, if that takes no more than so many bytes. Notes of which other files that was
    /// read.
    fn plan_within(
        &self,
        (dir, ino): (Ino, Ino),
        version: &Version,
        most: usize,
        read_from: &mut ReadFrom,
    ) -> Result<Said> {
        let (mut draft, mut too_much, mut is_database) = (Draft::new(most), false, false);
        let source = self.bytes_of(ino, version);
        let mut take = |piece| {
            is_database |= piece == Planned::Database;
            too_much = draft.add(piece).is_err();
            if too_much { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        // One that takes as long as it may leaves the others what they may take.
        let found = Asker::apart(|| source.pieces(&mut take));
        source.close();
        let mut found = found.and_then(|found| found.error.map_or(Ok(found.reason), Err));
        if is_database && found.is_ok() {
            found = match Asker::apart(|| self.values_of(dir, (ino, version), most, read_from)) {
                Ok(Ok(plan)) => return Ok(Said::Plan(plan)),
                Ok(Err(Why::TooMuch)) => return Ok(Said::TooMuch),
                Ok(Err(Why::Words(why))) => Ok(Some(why)),
                Err(error) => Err(error),
            };
        }
        Ok(match found {
            _ if too_much => Said::TooMuch,
            Ok(Some(why)) => Said::Nothing(why),
            Ok(None) => Said::Plan(draft.finish()),
            Err(error) => match (error.raw_os_error(), Broken::of(&error)) {
                // Nobody wants to know, or it is another file now.
                (Some(libc::EINTR | libc::ESHUTDOWN | libc::ESTALE), _) => return Err(fault(error)),
                (None, None | Some(Broken::ForGood)) => Said::Nothing(error.to_string()),
                _ => Said::NotNow(error),
            },
        })
    }
}

/// Where the tensors of a plan are in the control tree. None if that takes more than plans may that are read. Of more
/// than there may be at most some are left out.
fn index_of(plan: &Plan, bytes: usize) -> Option<Index> {
    let (mut index, most) = (Index::default(), bytes / 2 / ENTRY);
    let mut known = index.directories();
    for (nth, tensor) in (0..plan.len()).filter_map(|nth| Some((nth, plan.tensor(nth)?))) {
        if index.len() >= most {
            if bytes < READING_MAX {
                return None;
            }
            break;
        }
        index.add(nth as u32, &tensor, &mut known);
    }
    index.finish();
    Some(index)
}
