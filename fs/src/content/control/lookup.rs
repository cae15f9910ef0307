//! What names in the control tree stand for.

use std::sync::Arc;

use tensorfs_formats::{Tensor, npy_len};
use tensorfs_layout::log::NAME_MAX;
use tensorfs_layout::tree::Object;
use tensorfs_layout::{Ino, ROOT};

use crate::caller::Caller;
use crate::error::{Fault, Result};
use crate::file::Stat;
use crate::lane::Lane;

use super::Control;
use super::fixed::{CHECKPOINT, DIRECTORY, FIXED, is_slow};
use super::numbers::Look;
use super::origin::Origin;
use crate::content::assembled::Assembled;
use crate::content::bytes::fault;
use crate::content::checkpoint::Checkpoint;
use crate::content::checkpoints::Parts;
use crate::content::hash::number;
use crate::content::index::{Found, TOP};
use crate::content::tensors::Tensors;

/// So often a part is looked into that is replaced meanwhile.
const LOOKS: u32 = 3;

/// What a name stands for.
pub(super) enum Answer {
    Is(Origin, Look),
    /// A tensor of a checkpoint, and whose rights count for it.
    Shared(Origin, Look, Arc<[Ino]>),
    Nothing,
    /// Only the file says; as much was read as may be, if files may be read.
    MustRead,
}

impl Control {
    /// Where [`Control::lookup`] is done, if it may read a file for it.
    pub fn lookup_lane(&self, dir: Ino) -> Lane {
        if is_slow(dir) { Lane::Reader } else { Lane::Here }
    }

    /// What a name in a directory of the tree stands for. The kernel must be told of what is found. `None` if a file
    /// has to be read for it, and `may_read` is false.
    pub fn lookup(&self, caller: Caller, dir: Ino, name: &[u8], may_read: bool) -> Result<Option<Option<Stat>>> {
        // The kernel asks so for what it has no path to, and nothing of the tree is found by its number alone.
        if matches!(name, b"." | b"..") && (may_read || !is_slow(dir)) {
            return Err(Fault::stale());
        }
        if name.len() > NAME_MAX {
            return Err(Fault::new(libc::ENAMETOOLONG));
        }
        if dir == DIRECTORY {
            let fixed = FIXED.iter().find(|(_, fixed, _)| *fixed == name);
            return fixed.map(|(ino, ..)| self.stat(*ino)).transpose().map(Some);
        }
        let (origin, look, files) = match self.find(dir, name, may_read)? {
            Answer::Is(origin, look) => (origin, look, None),
            Answer::Shared(origin, look, files) => (origin, look, Some(files)),
            Answer::Nothing => return Ok(Some(None)),
            Answer::MustRead if may_read => return Err(Fault::new(libc::EIO)),
            Answer::MustRead => return Ok(None),
        };
        let ino = self.numbers.tell(caller.limited(), origin, look, files);
        let shared = if let Origin::Checkpoint { dir, .. } = origin { self.share(dir) } else { Ok(()) };
        let stat = self.stat(ino);
        if stat.is_err() {
            self.numbers.forget(ino, 1);
        }
        match stat {
            // Of what cannot be read nobody knows who may.
            Err(fault) if fault.errno == libc::ENOENT => shared.map(|()| Some(None)),
            stat => stat.map(|stat| Some(Some(stat))),
        }
    }

    fn find(&self, parent: Ino, name: &[u8], may_read: bool) -> Result<Answer> {
        match self.origin(parent)?.0 {
            Origin::Mirror(dir) => {
                let found = {
                    let view = self.content.files().store().view();
                    view.lookup(dir, name).and_then(|ino| Some((ino, view.object(ino)?.kind())))
                };
                Ok(match found {
                    Some((ino, kind)) => self.in_place_of(ino, kind, parent, name, may_read),
                    None => self.find_checkpoint(dir, parent, name, may_read),
                })
            }
            Origin::Directory { file, dir, .. } => {
                let tensors = match self.content.known_tensors(file) {
                    Some(tensors) => tensors,
                    None if !may_read => return Ok(Answer::MustRead),
                    None => match self.content.tensors_of(file)? {
                        Some(tensors) => tensors,
                        None => return Ok(Answer::Nothing),
                    },
                };
                match tensors.index.find(dir, name) {
                    None => Ok(Answer::Nothing),
                    Some(Found::Directory(dir)) => {
                        Ok(Answer::Is(Origin::Directory { file, dir, parent, place: 0 }, Look::default()))
                    }
                    Some(Found::Tensor(ordinal)) => self.find_tensor(file, &tensors, ordinal, may_read),
                }
            }
            Origin::Checkpoint { .. } if !may_read => Ok(Answer::MustRead),
            Origin::Checkpoint { dir, inside, .. } => {
                let Some(checkpoint) = self.content.checkpoint_in(dir)? else { return Ok(Answer::Nothing) };
                match checkpoint.index.find(inside, name) {
                    None => Ok(Answer::Nothing),
                    Some(Found::Directory(inside)) => {
                        Ok(Answer::Is(Origin::Checkpoint { dir, inside, parent }, Look::default()))
                    }
                    Some(Found::Tensor(nth)) => {
                        let mut parts = Parts::new(&self.content, &checkpoint);
                        let found = self.assembled(dir, &checkpoint, nth, &mut parts)?;
                        let shared = |(origin, look)| Answer::Shared(origin, look, parts.shared(nth));
                        Ok(found.map_or(Answer::Nothing, shared))
                    }
                }
            }
            Origin::Tensor { .. } | Origin::Assembled { .. } => Err(Fault::new(libc::ENOTDIR)),
        }
    }

    /// The directory of the tensors of a checkpoint in parts, which stands beside that of the checkpoint itself.
    fn find_checkpoint(&self, dir: Ino, parent: Ino, name: &[u8], may_read: bool) -> Answer {
        let Some(of) = name.strip_suffix(CHECKPOINT) else { return Answer::Nothing };
        let of = {
            let view = self.content.files().store().view();
            let of = if of.is_empty() { Some(dir).filter(|dir| *dir == ROOT) } else { view.lookup(dir, of) };
            of.filter(|of| view.object(*of).is_some_and(Object::is_dir))
        };
        match of {
            Some(_) if !may_read => Answer::MustRead,
            Some(of) => match self.content.has_plan(of) {
                Some(true) => Answer::Is(Origin::Checkpoint { dir: of, inside: TOP, parent }, Look::default()),
                Some(false) => Answer::Nothing,
                None => Answer::MustRead,
            },
            None => Answer::Nothing,
        }
    }

    /// What a tensor of a checkpoint stands for, and what it looks like, unless it is not known what it is.
    pub(super) fn assembled(
        &self,
        dir: Ino,
        checkpoint: &Checkpoint,
        nth: u32,
        parts: &mut Parts<'_>,
    ) -> Result<Option<(Origin, Look)>> {
        let origin = |parts: &mut Parts<'_>| Origin::Assembled { dir, stamp: parts.stamp(nth), ordinal: nth };
        let known = origin(parts);
        if let Some(look) = self.numbers.look(&known) {
            return Ok(Some((known, look)));
        }
        let mut left = LOOKS;
        let tensor = loop {
            left -= 1;
            match Assembled::describe(&self.content, checkpoint, nth, parts) {
                // A part was replaced meanwhile.
                Err(fault) if fault.errno == libc::ESTALE && left > 0 => parts.ask_again(nth),
                tensor => break tensor?,
            }
        };
        let size = tensor.and_then(|tensor| npy_len(&tensor));
        Ok(size.map(|size| (origin(parts), Look { size, mtime: parts.mtime(nth) })))
    }

    /// Notes whose rights count for the directories of a checkpoint.
    fn share(&self, dir: Ino) -> Result<()> {
        let checkpoint = self.content.checkpoint_in(dir);
        let (checkpoint, shared) = checkpoint.map_or_else(|fault| (None, Err(fault)), |found| (found, Ok(())));
        self.numbers.share(dir, checkpoint.map(|checkpoint| self.content.files_of(&checkpoint)));
        shared
    }

    fn find_tensor(&self, file: Ino, tensors: &Tensors, ordinal: u32, may_read: bool) -> Result<Answer> {
        let origin = origin_of(file, tensors, ordinal);
        match self.numbers.look(&origin) {
            Some(look) => Ok(Answer::Is(origin, look)),
            None if !may_read => Ok(Answer::MustRead),
            None => Ok(Answer::Is(origin, look_of(tensors, &self.read_tensor(file, tensors, ordinal)?))),
        }
    }

    /// The directory in the place of an object of the pool, if it has one.
    pub(super) fn in_place_of(&self, ino: Ino, kind: u32, parent: Ino, name: &[u8], may_read: bool) -> Answer {
        match kind {
            libc::S_IFDIR => Answer::Is(Origin::Mirror(ino), Look::default()),
            libc::S_IFREG => match self.content.has_tensors(ino, may_read) {
                Some(true) => {
                    let place = number((parent, name));
                    Answer::Is(Origin::Directory { file: ino, dir: TOP, parent, place }, Look::default())
                }
                Some(false) => Answer::Nothing,
                None => Answer::MustRead,
            },
            _ => Answer::Nothing,
        }
    }

    /// One tensor of a file. Reads the file if need be.
    pub(super) fn read_tensor(&self, file: Ino, tensors: &Tensors, ordinal: u32) -> Result<Tensor> {
        let source = self.content.bytes_of(file, &tensors.version);
        let tensor = tensors.tensor(&source, ordinal);
        source.close();
        tensor.map_err(fault)
    }
}

/// What a tensor's file in the tree stands for.
pub(super) fn origin_of(file: Ino, tensors: &Tensors, ordinal: u32) -> Origin {
    Origin::Tensor { file, segment: tensors.version.segment, stamp: tensors.stamp, ordinal }
}

/// What a tensor's file in the tree looks like.
pub(super) fn look_of(tensors: &Tensors, tensor: &Tensor) -> Look {
    Look { size: npy_len(tensor).unwrap_or(0), mtime: tensors.version.mtime }
}
