//! Whether a checkpoint is all there: a file, or a directory of parts.
//!
//! What is in a file says its seal, or a reader. A directory is a checkpoint if there is an index in it that names
//! parts, metadata of a distributed checkpoint, or what a trainer writes last; or if it is called as a trainer calls
//! its own.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Duration;

use tensorfs_formats::{Format, Recognised};
use tensorfs_layout::Ino;

use crate::error::{Fault, Result};
use crate::file::Version;
use crate::protocol::FileState;

use super::Content;
use super::checkpoint_names::is_called_as_trainers;

/// The most names that are looked at below a directory.
const NAMES_MAX: usize = 65_536;
/// What a trainer writes last.
const TRAINER_STATE: &[u8] = b"trainer_state.json";

/// A close is waited for so often, and so long each time.
const CLOSE_TRIES: u32 = 20;
const CLOSE_WAIT: Duration = Duration::from_millis(10);

/// What lies in a directory.
struct Inside {
    files: HashMap<Vec<u8>, Ino>,
    directories: Vec<(Vec<u8>, Ino)>,
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
        let known =
            if is_dir { self.is_whole_directory(ino)? } else { self.is_whole_file(ino)?.map(|(whole, _)| whole) };
        known.map(Some).ok_or(Fault::new(libc::ENODATA))
    }

    /// Whether a file is whole, and has tensors. None if it is of no format that says so.
    fn is_whole_file(&self, ino: Ino) -> Result<Option<(bool, bool)>> {
        if matches!(self.file_state(ino)?, FileState::Damaged | FileState::Lost | FileState::Missing) {
            return Ok(Some((false, false)));
        }
        if self.is_being_written(ino) {
            return Ok(Some((false, false)));
        }
        if self.is_interrupted(ino) {
            return Ok(Some((false, false)));
        }
        let version = match self.files.version(ino) {
            // Made by mknod, and never opened.
            Err(fault) if fault.errno == libc::ENOENT => return Ok(None),
            version => version?,
        };
        if let Some(known) = self.sealed_wholeness(ino, version) {
            return Ok(known);
        }
        let found = self.looked_into(ino, version, |source| source.recognise(&mut |_| ControlFlow::Continue(())))?;
        let Some(found) = found else { return Ok(Some((false, false))) };
        Ok(wholeness(found.format, found.cut, found.bad_frames, found.tensors))
    }

    /// True if something has a file open to write. A close that has returned may come a little later.
    fn is_being_written(&self, ino: Ino) -> bool {
        let has = || self.files.store().writers().has(ino);
        let is_over = |_| {
            let over = !has();
            if !over {
                std::thread::sleep(CLOSE_WAIT);
            }
            over
        };
        !(0..CLOSE_TRIES).any(is_over) && has()
    }

    /// True if a process was killed while it had the file open to write, and nobody has written it since.
    fn is_interrupted(&self, ino: Ino) -> bool {
        self.files.store().view().object(ino).is_some_and(|object| object.is_interrupted())
    }

    /// What the seals of a file say, if it is sealed.
    fn sealed_wholeness(&self, ino: Ino, version: Version) -> Option<Option<(bool, bool)>> {
        let view = self.files.store().view();
        let object = view.object(ino).filter(|object| object.attributes.segment == Some(version.segment))?;
        let chain = object.chain().filter(|chain| chain.is_sealed() && chain.size() == version.size)?;
        // Without one it may be opaque, or of an earlier version.
        let summary = chain.summary()?;
        Some(wholeness(summary.format, summary.cut, summary.bad_frames, summary.tensors))
    }

    /// What a reader finds. None if the file was changed meanwhile.
    fn looked_into(
        &self,
        ino: Ino,
        version: Version,
        look: impl FnOnce(&super::bytes::SegmentBytes) -> Recognised,
    ) -> Result<Option<Recognised>> {
        let source = self.bytes_of(ino, &version);
        let found = look(&source);
        source.close();
        if !self.files.version(ino).is_ok_and(|now| now == version) {
            return Ok(None);
        }
        match found.error {
            Some(error) => Err(super::bytes::fault(error)),
            None => Ok(Some(found)),
        }
    }

    /// The names of parts that an index has, if it is one that is whole.
    fn parts_of(&self, ino: Ino) -> Result<Option<Vec<String>>> {
        let named = self.named_in(ino, |source| source.shards())?;
        Ok(named.map(|named| named.into_iter().map(|(_, name)| name).collect()))
    }

    /// The files that the plan of a distributed checkpoint names, and how long each is at least, if it is one that is
    /// whole.
    fn planned_in(&self, ino: Ino) -> Result<Option<Vec<(String, u64)>>> {
        let named = self.named_in(ino, |source| source.planned())?;
        let with_len = |(name, len): (String, String)| Some((name, len.parse().ok()?));
        Ok(named.and_then(|named| named.into_iter().map(with_len).collect()))
    }

    /// What a file that names others says, if it is whole.
    fn named_in(
        &self,
        ino: Ino,
        look: impl FnOnce(&super::bytes::SegmentBytes) -> Recognised,
    ) -> Result<Option<Vec<(String, String)>>> {
        if self.is_being_written(ino) || self.is_interrupted(ino) {
            return Ok(None);
        }
        let Ok(version) = self.files.version(ino) else { return Ok(None) };
        let found = self.looked_into(ino, version, look)?;
        Ok(found.filter(|found| found.reason.is_none()).map(|found| found.metadata))
    }

    /// Whether all is there that the plan of a distributed checkpoint names.
    fn is_as_planned(&self, inside: &Inside, plan: Ino) -> Result<bool> {
        let Some(parts) = self.planned_in(plan)?.filter(|parts| !parts.is_empty()) else { return Ok(false) };
        for (name, len) in parts {
            let Some(&part) = inside.files.get(name.as_bytes()) else { return Ok(false) };
            let is_whole = match self.is_whole_file(part)? {
                Some((whole, _)) => whole,
                None => self.named_in(part, |source| source.part())?.is_some(),
            };
            if !is_whole || !self.files.version(part).is_ok_and(|version| version.size >= len) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether all of a directory that is a checkpoint is there. None if it is not one.
    fn is_whole_directory(&self, dir: Ino) -> Result<Option<bool>> {
        let mut names = 0;
        let inside = self.inside(dir, &mut names)?;
        let file = |name: &[u8]| inside.files.get(name).copied();
        let (distributed, state) = (file(b".metadata"), file(TRAINER_STATE));
        let ends = |name: &[u8], end: &[u8]| name.ends_with(end);
        let indexes: Vec<Ino> = inside
            .files
            .iter()
            .filter(|(name, _)| ends(name, b".safetensors.index.json") || ends(name, b".bin.index.json"))
            .map(|(_, ino)| *ino)
            .collect();
        let accelerated = inside.files.keys().any(|name| name.starts_with(b"random_states_"));
        let trained = state.is_some() || accelerated || self.is_called_as_trainers(dir);
        if distributed.is_none() && indexes.is_empty() && !trained {
            return Ok(None);
        }
        // What is written last.
        if trained && !accelerated && !matches!(state.map(|state| self.parts_of(state)).transpose()?, Some(Some(_))) {
            return Ok(Some(false));
        }
        for index in indexes {
            let Some(parts) = self.parts_of(index)? else { return Ok(Some(false)) };
            for part in parts {
                let Some(part) = file(part.as_bytes()) else { return Ok(Some(false)) };
                if !self.is_whole_file(part)?.is_some_and(|(whole, _)| whole) {
                    return Ok(Some(false));
                }
            }
        }
        if let Some(plan) = distributed
            && !self.is_as_planned(&inside, plan)?
        {
            return Ok(Some(false));
        }
        // Whatever else there is, too, and something that has tensors. What is planned may be numbers alone.
        let mut has_tensors = distributed.is_some();
        let mut left = vec![inside];
        while let Some(inside) = left.pop() {
            for ino in inside.files.into_values() {
                match self.is_whole_file(ino)? {
                    Some((false, _)) => return Ok(Some(false)),
                    Some((true, tensors)) => has_tensors |= tensors,
                    None => {}
                }
            }
            for (name, dir) in inside.directories {
                // A trainer's own are checkpoints by themselves.
                if !is_called_as_trainers(&name) {
                    left.push(self.inside(dir, &mut names)?);
                }
            }
        }
        Ok(Some(has_tensors))
    }

    /// Whether a directory is called as a trainer calls its own.
    fn is_called_as_trainers(&self, dir: Ino) -> bool {
        let view = self.files.store().view();
        let Some(parent) = view.object(dir).and_then(|object| object.parent()) else { return false };
        let mut names = view.entries_after(parent, 0).take(NAMES_MAX);
        names.find(|(_, _, ino)| *ino == dir).is_some_and(|(_, name, _)| is_called_as_trainers(name))
    }

    /// Files and directories in a directory.
    fn inside(&self, dir: Ino, names: &mut usize) -> Result<Inside> {
        let view = self.files.store().view();
        let mut inside = Inside { files: HashMap::new(), directories: Vec::new() };
        for (_, name, ino) in view.entries_after(dir, 0) {
            *names += 1;
            if *names > NAMES_MAX {
                return Err(Fault::new(libc::E2BIG));
            }
            match view.object(ino) {
                Some(object) if object.is_file() => drop(inside.files.insert(name.to_vec(), ino)),
                Some(object) if object.is_dir() => inside.directories.push((name.to_vec(), ino)),
                _ => {}
            }
        }
        Ok(inside)
    }
}

/// Whether a file is whole, and has tensors, by what it was recognised as.
fn wholeness(format: Format, cut: bool, bad_frames: u64, tensors: u64) -> Option<(bool, bool)> {
    match format {
        _ if cut => Some((false, tensors > 0)),
        // These do not tell, or not where they end.
        Format::Opaque | Format::Hdf5 | Format::Protobuf => None,
        _ => Some((bad_frames == 0, tensors > 0)),
    }
}
