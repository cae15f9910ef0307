//! Whether a checkpoint is all there: a file, or a directory of parts.
//!
//! A directory is a checkpoint if there is an index in it that names parts, metadata of a distributed checkpoint, the
//! manifest of a database, or what a trainer writes last; or if it is called as a trainer calls its own.

use std::cell::LazyCell;
use std::collections::HashMap;

use tensorfs_layout::Ino;

use crate::error::{Fault, Result};

use super::Content;
use super::checkpoint_names::{is_called_as_trainers, is_unfinished_by_orbax};
use super::complete::End;
use super::weights::{have_the_optimizer, is_beside_weights, lack_their_index, may_be_weights, needs_its_optimizer};

/// The most names that are looked at below a directory.
const NAMES_MAX: usize = 65_536;
/// Names are gone through in lots, so that others may change the tree in between.
const LOT: usize = 4096;
/// The plan of a distributed checkpoint, and how its parts end.
const PLAN: &[u8] = b".metadata";
const PLANNED: &[u8] = b".distcp";
/// What Lightning writes behind the plan, without which it takes a directory for no checkpoint; how it calls its own;
/// and so many directories beside one are looked at that may be of the same run.
const LIGHTNINGS: &[u8] = b"meta.pt";
const LIGHTNING: &[u8] = b".ckpt";
const BESIDE: usize = 256;
/// How indexes of checkpoints in parts end.
const INDEXES: [&[u8]; 2] = [b".safetensors.index.json", b".bin.index.json"];
/// What Megatron writes before a distributed checkpoint, and behind it.
const MEGATRON: &[u8] = b"common.pt";
const MEGATRONS: &[u8] = b"metadata.json";
/// What is in the names of event files.
const EVENTS: &[u8] = b".tfevents";
/// What is looked for before its like in another format.
const SAFETENSORS: &[u8] = b"model.safetensors";
const BIN_INDEX: &[u8] = b".bin.index.json";
/// What a trainer writes last.
const TRAINER_STATE: &[u8] = b"trainer_state.json";
/// Each process of Accelerate writes one of these, and the main one writes its own behind all that it has to save. The
/// others have theirs written while that goes on.
const STATES: &[u8] = b"random_states_";
const STATE_OF_MAIN: &[u8] = b"random_states_0.pkl";

/// What Orbax has in each checkpoint. It gives a directory its name when all is in it, and until then has this in that.
const ORBAX: &[u8] = b"_CHECKPOINT_METADATA";
/// What its trees have, and what it writes into directories on hosts that rename none: that alone is nothing.
const ORBAX_TREE: &[u8] = b"_METADATA";
const ORBAX_DONE: &[u8] = b"commit_success.txt";
/// What each process of it writes, and what is made of that behind all of them.
const ORBAX_PART: &[u8] = b"ocdbt.process_";
/// What an OCDBT database has, which leads to all of it.
pub(super) const DATABASE: &[u8] = b"manifest.ocdbt";

/// What lies in a directory.
struct Inside {
    dir: Ino,
    files: HashMap<Vec<u8>, Ino>,
    directories: Vec<(Vec<u8>, Ino)>,
}

impl Inside {
    fn file(&self, name: &[u8]) -> Option<Ino> {
        self.files.get(name).copied()
    }

    fn indexes(&self) -> impl Iterator<Item = (&[u8], Ino)> {
        let is_index = |name: &[u8]| INDEXES.iter().any(|end| name.ends_with(end));
        self.files.iter().filter(move |(name, _)| is_index(name)).map(|(name, ino)| (&**name, *ino))
    }

    fn has_states(&self) -> bool {
        self.files.keys().any(|name| name.starts_with(STATES))
    }
}

/// What the files of a checkpoint have, as far as they tell.
#[derive(Default)]
struct Held {
    tensors: bool,
    /// One of a format that does not tell where it ends.
    untold: bool,
    weights: bool,
}

impl Content {
    /// Whether a file or directory is a checkpoint that is all there. None if it has to be read for it, and `may_read`
    /// is false.
    ///
    /// # Errors
    /// `ENODATA` if it is no checkpoint, as far as is known.
    pub(super) fn is_complete(&self, ino: Ino, may_read: bool) -> Result<Option<bool>> {
        if !may_read {
            return Ok(None);
        }
        let is_dir = self.files.store().view().object(ino).is_some_and(|object| object.is_dir());
        let known = if is_dir { self.is_whole_directory(ino)? } else { self.is_whole_file(ino)? };
        known.map(Some).ok_or(Fault::new(libc::ENODATA))
    }

    fn is_whole_file(&self, ino: Ino) -> Result<Option<bool>> {
        Ok(match self.end_of(ino)? {
            End::There { .. } => Some(true),
            End::Missing => Some(false),
            End::Untold | End::Opaque => None,
        })
    }

    /// Whether all of a directory that is a checkpoint is there. None if it is not one.
    fn is_whole_directory(&self, dir: Ino) -> Result<Option<bool>> {
        let mut names = 0;
        let inside = self.inside(dir, &mut names);
        let is_called = self.is_called_as_trainers(dir);
        if self.is_called_as_orbax_part(dir) {
            return Ok(None);
        }
        if !is_called && !inside.files.keys().any(|name| is_mark(name)) {
            return Ok(None);
        }
        check_count(names)?;
        if self.is_unfinished_by_orbax(dir) {
            return Ok(Some(false));
        }
        let distributed = inside.file(PLAN).is_some();
        // Others call theirs as trainers do.
        let ends = distributed || [TRAINER_STATE, ORBAX].iter().any(|name| inside.file(name).is_some());
        if is_called && !ends && !inside.has_states() {
            return Ok(Some(false));
        }
        // All that there is below it has to be whole, and something has to have tensors. What is planned may be
        // numbers alone.
        let has_all = [ORBAX, DATABASE].iter().any(|name| inside.file(name).is_some());
        let mut held = Held { tensors: distributed || has_all, ..Held::default() };
        let needs_weights = inside.file(TRAINER_STATE).is_some() || inside.has_states();
        if needs_weights && lack_their_index(&inside.files) {
            return Ok(Some(false));
        }
        // What lies below something beside the weights is beside them, too.
        let mut left = vec![(inside, false)];
        while let Some((inside, is_beside)) = left.pop() {
            if !self.is_as_it_says(&inside)? {
                return Ok(Some(false));
            }
            held.weights |= !is_beside && [PLAN, ORBAX, DATABASE].iter().any(|name| inside.file(name).is_some());
            let has_optimizer = have_the_optimizer(&inside.files);
            for (name, ino) in inside.files.into_iter().filter(|(name, _)| !is_of_events(name)) {
                let end = self.end_of(ino)?;
                if end == End::Missing {
                    return Ok(Some(false));
                }
                held.tensors |= matches!(end, End::There { tensors } if tensors > 0);
                held.untold |= end == End::Untold;
                let is_without = is_beside || needs_its_optimizer(&name) && !has_optimizer;
                held.weights |= !is_without && may_be_weights(&name, end) && self.has_bytes(Some(ino));
            }
            for (name, dir) in inside.directories {
                if is_unfinished_by_orbax(&name) {
                    return Ok(Some(false));
                }
                // A trainer's own are checkpoints by themselves.
                if !is_called_as_trainers(&name) {
                    left.push((self.inside(dir, &mut names), is_beside || is_beside_weights(&name)));
                    check_count(names)?;
                }
            }
        }
        Ok(match (held.tensors, held.untold) {
            _ if needs_weights && !held.weights => Some(false),
            (false, true) => None,
            (has_tensors, _) => Some(has_tensors),
        })
    }

    /// Whether all is there that the plans in a directory name, and what is written last.
    fn is_as_it_says(&self, inside: &Inside) -> Result<bool> {
        for state in [TRAINER_STATE, ORBAX].into_iter().filter_map(|name| inside.file(name)) {
            if self.parts_of(state)?.is_none() {
                return Ok(false);
            }
        }
        if let Some(last) = inside.file(TRAINER_STATE) {
            let files = inside.files.iter().map(|(name, ino)| (&**name, *ino));
            if self.has_tensors_of_later_save(inside.dir, last, files)? {
                return Ok(false);
            }
        }
        if !self.has_all_that_orbax_names(inside)? {
            return Ok(false);
        }
        let has_orbax_parts = inside.directories.iter().any(|(name, _)| name.starts_with(ORBAX_PART));
        match inside.file(DATABASE) {
            None if has_orbax_parts => return Ok(false),
            // What those are put together to has all that counts of them.
            Some(manifest) if !self.is_called_as_orbax_part(inside.dir) => {
                let names: Vec<&[u8]> = inside.files.keys().map(|name| &**name).collect();
                if !self.is_whole_database(inside.dir, manifest, &names)? {
                    return Ok(false);
                }
            }
            _ => {}
        }
        if inside.has_states() && !self.has_bytes(inside.file(STATE_OF_MAIN)) {
            return Ok(false);
        }
        match inside.file(PLAN) {
            Some(plan) if !self.is_as_planned(inside, plan)? => return Ok(false),
            Some(_) if !self.has_bytes(inside.file(LIGHTNINGS)) && self.is_lightnings(inside.dir) => return Ok(false),
            Some(_) if inside.file(MEGATRON).is_some() && !self.has_bytes(inside.file(MEGATRONS)) => return Ok(false),
            // It is written last.
            None if inside.files.keys().any(|name| name.ends_with(PLANNED)) => return Ok(false),
            _ => {}
        }
        self.has_all_that_indexes_name(inside)
    }

    /// Whether there is beside what Orbax says of a checkpoint and of its trees what that says.
    fn has_all_that_orbax_names(&self, inside: &Inside) -> Result<bool> {
        if inside.file(ORBAX).is_some() && !has_more_of_orbax(&inside.files, &inside.directories) {
            return Ok(false);
        }
        let items = LazyCell::new(|| inside.directories.iter().map(|(name, dir)| (&**name, *dir)).collect());
        let items: &LazyCell<HashMap<&[u8], Ino>, _> = &items;
        for file in [ORBAX, ORBAX_TREE].into_iter().filter_map(|name| inside.file(name)) {
            let named = self.named_in(file, |source| source.shards())?;
            for (kind, name) in named.into_iter().flatten() {
                let item = || items.get(name.as_bytes()).copied();
                let has_it = match (&*kind, &*name) {
                    ("database", _) => inside.file(DATABASE).is_some(),
                    ("tree", "") => self.has_bytes(inside.file(ORBAX_TREE)),
                    ("tree", _) => item().is_some_and(|dir| self.has_bytes(self.file_below(dir, "_METADATA"))),
                    ("item", _) => item().is_some_and(|dir| self.has_something_of_orbax(dir)),
                    _ => true,
                };
                if !has_it {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn has_something_of_orbax(&self, dir: Ino) -> bool {
        self.files.store().view().entries_after(dir, 0).any(|(_, name, _)| name != ORBAX_DONE)
    }

    fn has_bytes(&self, file: Option<Ino>) -> bool {
        file.is_some_and(|ino| self.files.version(ino).is_ok_and(|version| version.size > 0))
    }

    /// Whether each part is there that an index in a directory names; it may name more tensors than are in them. Of a
    /// model that there is in two formats the one that is looked for last may not have been fetched, and its index
    /// counts for nothing.
    fn has_all_that_indexes_name(&self, inside: &Inside) -> Result<bool> {
        let (mut are_met, mut are_unused) = (false, false);
        for (name, index) in inside.indexes() {
            let Some(parts) = self.parts_of(index)? else { return Ok(false) };
            let parts: Vec<Option<Ino>> = parts.iter().map(|part| self.file_below(inside.dir, part)).collect();
            if name.ends_with(BIN_INDEX) && !parts.is_empty() && parts.iter().all(Option::is_none) {
                are_unused = true;
                continue;
            }
            for part in parts {
                let Some(part) = part else { return Ok(false) };
                if !self.is_whole_part(part)? {
                    return Ok(false);
                }
            }
            are_met = true;
        }
        if are_met || !are_unused {
            return Ok(true);
        }
        inside.file(SAFETENSORS).map_or(Ok(false), |file| self.is_whole_part(file))
    }

    /// Whether all is there that the plan of a distributed checkpoint names.
    fn is_as_planned(&self, inside: &Inside, plan: Ino) -> Result<bool> {
        let Some(parts) = self.planned_in(plan)?.filter(|parts| !parts.is_empty()) else { return Ok(false) };
        for (name, len) in parts {
            let Some(part) = inside.file(name.as_bytes()) else { return Ok(false) };
            let is_whole = match self.end_of(part)? {
                End::There { .. } => true,
                End::Missing => false,
                End::Untold | End::Opaque => self.named_in(part, |source| source.part())?.is_some(),
            };
            // What is longer is another one, of which the plan says nothing.
            let fits = self.files.version(part).is_ok_and(|version| version.size == len);
            if !is_whole || !fits || self.is_of_later_save(part, plan) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a distributed checkpoint is one of Lightning's, by its name or by those beside it.
    fn is_lightnings(&self, dir: Ino) -> bool {
        let view = self.files.store().view();
        if view.name_of_directory(dir).is_some_and(|name| name.ends_with(LIGHTNING)) {
            return true;
        }
        let Some(parent) = view.object(dir).and_then(|object| object.parent()) else { return false };
        let is_one = |ino: Ino| [PLAN, LIGHTNINGS].iter().all(|name| view.lookup(ino, name).is_some());
        view.entries_after(parent, 0).take(BESIDE).any(|(_, _, ino)| is_one(ino))
    }

    /// The names of parts that an index has, if it is one that is whole.
    fn parts_of(&self, ino: Ino) -> Result<Option<Vec<String>>> {
        let named = self.named_in(ino, |source| source.shards())?;
        // Behind the parts is what Orbax says.
        let parts =
            |named: Vec<(String, String)>| named.into_iter().filter(|(tensors, _)| tensors.parse::<u64>().is_ok());
        Ok(named.map(|named| parts(named).map(|(_, name)| name).collect()))
    }

    /// The files that the plan of a distributed checkpoint names, and how long each is, if it is one that is
    /// whole.
    fn planned_in(&self, ino: Ino) -> Result<Option<Vec<(String, u64)>>> {
        let named = self.named_in(ino, |source| source.planned())?;
        let with_len = |(name, len): (String, String)| Some((name, len.parse().ok()?));
        Ok(named.and_then(|named| named.into_iter().map(with_len).collect()))
    }

    /// Whether a directory is called as a trainer calls its own.
    fn is_called_as_trainers(&self, dir: Ino) -> bool {
        self.files.store().view().name_of_directory(dir).is_some_and(is_called_as_trainers)
    }

    /// Whether a directory is called as that of one process of Orbax's, whose database is put together with others.
    pub(super) fn is_called_as_orbax_part(&self, dir: Ino) -> bool {
        self.files.store().view().name_of_directory(dir).is_some_and(|name| name.starts_with(ORBAX_PART))
    }

    fn is_unfinished_by_orbax(&self, dir: Ino) -> bool {
        self.files.store().view().name_of_directory(dir).is_some_and(is_unfinished_by_orbax)
    }

    /// Files and directories in a directory. Only those that tell that it is a checkpoint, if there are too many.
    fn inside(&self, dir: Ino, names: &mut usize) -> Inside {
        let mut inside = Inside { dir, files: HashMap::new(), directories: Vec::new() };
        let mut cookie = Some(0);
        while let Some(from) = cookie.take() {
            let view = self.files.store().view();
            for (at, name, ino) in view.entries_after(dir, from).take(LOT) {
                cookie = Some(at);
                *names += 1;
                if *names == NAMES_MAX + 1 {
                    inside.directories = Vec::new();
                    inside.files.retain(|name, _| is_mark(name));
                }
                let is_kept = *names <= NAMES_MAX || (inside.files.len() < LOT && is_mark(name));
                match view.object(ino) {
                    Some(object) if is_kept && object.is_file() => drop(inside.files.insert(name.to_vec(), ino)),
                    Some(object) if *names <= NAMES_MAX && object.is_dir() => {
                        inside.directories.push((name.to_vec(), ino));
                    }
                    _ => {}
                }
            }
        }
        inside
    }
}

/// Whether there is anything of a checkpoint of Orbax's but what says that it is one.
fn has_more_of_orbax(files: &HashMap<Vec<u8>, Ino>, directories: &[(Vec<u8>, Ino)]) -> bool {
    !directories.is_empty() || files.keys().any(|name| ![ORBAX, ORBAX_DONE].contains(&&**name))
}

/// Whether a file of that name in it makes a directory a checkpoint.
fn is_mark(name: &[u8]) -> bool {
    let is_index = INDEXES.iter().any(|end| name.ends_with(end));
    is_index || [PLAN, TRAINER_STATE, ORBAX, DATABASE].contains(&name) || name.starts_with(STATES)
}

/// Whether a file is called as event files are, which go on being written beside a checkpoint and are no part of it.
fn is_of_events(name: &[u8]) -> bool {
    name.windows(EVENTS.len()).any(|part| part == EVENTS)
}

fn check_count(names: usize) -> Result<()> {
    if names > NAMES_MAX { Err(Fault::new(libc::E2BIG)) } else { Ok(()) }
}
