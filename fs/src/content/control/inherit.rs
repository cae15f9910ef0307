//! Files of the control tree that are open as this server takes the place of one that died: texts are what they were,
//! and tensors are opened again when they are read next.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorfs_layout::{Ino, Timestamp};

use crate::caller::Caller;
use crate::content::npy::TensorMark;
use crate::error::{Fault, Result};
use crate::file::OpenReply;
use crate::handover::{Kept, Slip, long, short};

use super::Control;
use super::open::manner_of;
use super::opened::{Left, Npy, Open, Opened};
use super::origin::Origin;

/// In the place of the length of a text: it is a tensor.
const TENSOR: u32 = u32::MAX;

/// What the next server has to know of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct View {
    unique: u64,
    handle: u64,
    ino: Ino,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A text of that length.
    Text(u32),
    Tensor(TensorMark),
}

impl View {
    fn to_slip(self) -> Slip {
        let mut slip = [0; 60];
        let never = TensorMark { size: 0, mtime: Timestamp::default(), guard: 0 };
        let (len, mark) = match self.what {
            What::Text(len) => (len, never),
            What::Tensor(mark) => (TENSOR, mark),
        };
        let longs = [self.unique, self.handle, self.ino.0, mark.size, mark.mtime.sec as u64];
        for (place, word) in slip.chunks_exact_mut(8).zip(longs) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        for (place, word) in slip[40..].chunks_exact_mut(4).zip([mark.mtime.nsec, mark.guard, len]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        slip
    }

    fn of(slip: &Slip) -> Self {
        let mtime = Timestamp { sec: long(slip, 32) as i64, nsec: short(slip, 40) };
        let what = match short(slip, 48) {
            TENSOR => What::Tensor(TensorMark { size: long(slip, 24), mtime, guard: short(slip, 44) }),
            len => What::Text(len),
        };
        Self { unique: long(slip, 0), handle: long(slip, 8), ino: Ino(long(slip, 16)), what }
    }
}

impl Control {
    /// Notes an open file for the next server, before the kernel has it. None if that will not have it.
    pub(super) fn keep(&self, caller: Caller, (ino, handle): (Ino, u64), opened: &Opened) -> Option<Kept> {
        let handover = self.content.files().store().link().handover()?;
        let (what, text) = match opened {
            Opened::Text(text) => (What::Text(u32::try_from(text.len()).ok()?), &text[..]),
            Opened::Tensor(tensor) => (What::Tensor(tensor.mark()), &[][..]),
            // Uses are counted anew, and what is being written is not there until it has been.
            Opened::Left(_) | Opened::Accesses(_) | Opened::Requests(_) | Opened::Draft(_) => return None,
        };
        handover.keep_view(caller.limited(), &View { unique: caller.unique, handle, ino, what }.to_slip(), text)
    }

    /// Takes over what the kernel has open.
    pub(super) fn inherit(&self) {
        let Some(handover) = self.content.files().store().link().handover() else { return };
        for (slip, kept) in handover.inherited_views() {
            let view = View::of(&slip);
            match self.left(view, &kept) {
                Ok(what) => {
                    self.handles.insert_as(view.handle, Open { what, _kept: Some(Arc::new(kept)) });
                    self.inherited.lock().insert(view.unique, view.handle);
                }
                Err(error) => log::error!("{}: an open file of the control tree is lost: {error}", view.ino),
            }
        }
    }

    fn left(&self, view: View, kept: &Kept) -> io::Result<Opened> {
        Ok(match view.what {
            What::Text(len) if self.texts.have_room(len as usize) => {
                Opened::Text(self.texts.keep_left(kept.text(len as usize)?.into()))
            }
            What::Text(_) => return Err(io::Error::other("the server before left more than a server keeps")),
            What::Tensor(mark) => Opened::Left(Arc::new(Left { ino: view.ino, mark, opened: Mutex::default() })),
        })
    }

    /// What was opened already for a request that comes again.
    pub(super) fn opened_before(&self, caller: Caller) -> Option<OpenReply> {
        if !caller.again {
            return None;
        }
        let handle = *self.inherited.lock().get(&caller.unique)?;
        let open = self.handles.get(handle).ok()?;
        Some(OpenReply { handle, manner: manner_of(&open.what), backing: None })
    }

    /// A tensor that a server before had open, if its bytes are there as they were then.
    pub(super) fn open_left(&self, left: &Left) -> Result<Arc<Npy>> {
        if let Some(opened) = &*left.opened.lock() {
            return Ok(opened.clone());
        }
        let stale = || Fault::new(libc::ESTALE);
        let (origin, look) = self.origin(left.ino)?;
        let opened = match origin {
            Origin::Tensor { file, segment, ordinal, .. } => {
                let tensors = self.content.tensors_of(file).map_err(|fault| match fault.errno {
                    libc::ENOENT => stale(),
                    _ => fault,
                })?;
                let tensors = tensors.filter(|tensors| tensors.version.segment == segment).ok_or_else(stale)?;
                let opened = self.open_one(file, tensors, ordinal)?;
                Npy::OfFile(if opened.has_mark(&left.mark) { opened } else { return Err(stale()) })
            }
            Origin::Assembled { dir, stamp, ordinal } => {
                Npy::OfParts(self.open_assembled(None, dir, stamp, ordinal)?.0)
            }
            Origin::Mirror(_) | Origin::Directory { .. } | Origin::Checkpoint { .. } => {
                return Err(Fault::new(libc::EISDIR));
            }
        };
        if opened.len() != look.size {
            return Err(stale());
        }
        Ok(left.opened.lock().insert(Arc::new(opened)).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_told_to_the_next_server() {
        let mark = TensorMark { size: 3, mtime: Timestamp { sec: -4, nsec: 5 }, guard: 6 };
        for what in [What::Text(0), What::Text(7), What::Tensor(mark)] {
            let view = View { unique: 1, handle: 2, ino: Ino(u64::MAX), what };
            assert_eq!(View::of(&view.to_slip()), view);
        }
    }
}
