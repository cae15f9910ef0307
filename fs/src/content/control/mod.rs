//! The control tree: `.tensorfs` in the root of the mount, found by name and not listed there.
//!
//! `info`, `metrics`, `README`, `placement` and `accesses` are made when they are opened, `trace` as it is read;
//! `placement` can be written, too. Below `tensors` are the directories of the pool again, with a directory in
//! the place of each file that holds tensors, and in that its tensors as `.npy` files; and beside each that is a
//! checkpoint in parts one of the tensors that it has as a whole.
//!
//! Nobody reads a byte through the tree that is kept from him outside of it: each object shows owner, mode and access
//! list of what it stands for, as far as they say who may read, and the kernel checks every step of a path by them. It
//! is told to keep none of it, so that a change counts at once.

mod accesses;
mod draft;
mod fixed;
mod info;
mod inherit;
mod listing;
mod lookup;
mod metrics;
mod numbers;
mod open;
mod opened;
mod origin;
mod paths;
mod rights;
mod second_copy;
mod shared;
mod stat;
mod trace;
mod xattr;

use std::sync::Arc;

use tensorfs_layout::Ino;

use crate::error::{Fault, Result};
use crate::file::Handles;
use crate::store::Bytes;

use super::Content;

use numbers::{Look, Numbers};
use opened::{Inherited, Open, Opened, Texts};
use origin::Origin;
use shared::Lists;

pub(crate) use draft::Who;
pub(crate) use fixed::{is_control, is_trace};
pub use info::{Info, State};
pub(crate) use numbers::right_number;
pub use second_copy::{SecondCopy, Unmended};
pub(crate) use stat::name_ttl;

/// The control tree. Its numbers and handles are its own: whoever asks knows that an inode, or what a handle is of,
/// [is of the control tree](is_control).
pub(crate) struct Control {
    content: Arc<Content>,
    /// What the kernel knows of the tree.
    numbers: Numbers,
    /// What lists of rights come to.
    lists: Lists,
    handles: Handles<Open>,
    texts: Texts,
    inherited: Inherited,
}

impl Control {
    /// The tree of what these files hold.
    pub fn new(content: Arc<Content>) -> Self {
        // None of a server before is taken for one of these.
        let handover = content.files().store().link().handover().cloned();
        let first = handover.as_ref().map(|handover| handover.first_handle());
        let handles = first.map_or_else(Handles::default, Handles::starting_at);
        let (numbers, texts, inherited) = (Numbers::new(handover), Texts::default(), Inherited::default());
        let control = Self { content, numbers, lists: Lists::default(), handles, texts, inherited };
        control.inherit();
        control
    }

    /// The kernel is gone: whatever is still open is forgotten.
    pub fn close_all(&self) {
        self.handles.drain();
    }

    /// The kernel has forgotten so many of the times that it was told of an object.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        self.numbers.forget(ino, lookups);
    }

    /// Lets go of what the kernel has forgotten while a server before died, if it has not known it twice. Returns how
    /// much it did not know once.
    pub fn let_go_of_forgotten(&self) -> usize {
        let link = self.content.files().store().link();
        self.numbers.let_go_of_forgotten(|ino| link.knows(ino))
    }

    /// A file whose bytes are away and that an object of the tree is read from; none if those that it is read from can
    /// come alone.
    pub fn away_behind(&self, ino: Ino) -> Option<Ino> {
        if !fixed::is_slow(ino) {
            return None;
        }
        let awaited = self.content.files().store().awaited();
        match self.numbers.get(ino)?.0 {
            Origin::Tensor { file, stamp, ordinal, .. } => {
                let is_alone = |file| {
                    let tensors = self.content.tensors_of_away(file).filter(|tensors| tensors.stamp == stamp);
                    tensors.is_some_and(|tensors| tensors.is_alone(ordinal))
                };
                Some(file).filter(|file| awaited.is_away(*file) && !is_alone(*file))
            }
            Origin::Assembled { .. } => {
                self.numbers.files(ino)?.files().iter().copied().find(|file| awaited.is_away(*file))
            }
            Origin::Mirror(_) | Origin::Directory { .. } | Origin::Checkpoint { .. } => None,
        }
    }

    /// Bytes of a file that a read of what is open needs, and that are away.
    pub fn lacks(&self, handle: u64, offset: u64, size: u32) -> Option<(Ino, Bytes)> {
        let awaited = self.content.files().store().awaited();
        let is_away = |ino| {
            let origin = self.numbers.get(ino)?.0;
            Some(matches!(origin, Origin::Tensor { file, .. } if awaited.is_away(file)))
        };
        let tensor = match self.handles.get(handle).ok()?.what {
            Opened::Tensor(tensor) => tensor,
            Opened::Left(left) if is_away(left.ino)? => self.open_left(&left).ok()?,
            _ => return None,
        };
        tensor.lacks(&self.content, offset, size)
    }

    /// What an object of the changing part stands for.
    fn origin(&self, ino: Ino) -> Result<(Origin, Look)> {
        self.numbers.get(ino).ok_or(Fault::new(libc::ESTALE))
    }
}
