//! Files of the control tree that are open.

use std::collections::HashSet;
use std::sync::Arc;

use tensorfs_layout::Ino;

use crate::caller::{Caller, Ending};
use crate::error::{Fault, Result};
use crate::file::{Manner, OpenReply};
use crate::lane::Lane;

use super::Control;
use super::accesses::Accesses;
use super::draft::{Draft, Moment, Who};
use super::fixed::{ACCESSES, INFO, METRICS, PLACEMENT, README, README_TEXT, TRACE, is_slow};
use super::info::Info;
use super::metrics;
use super::opened::{Npy, Open, Opened};
use super::origin::Origin;
use super::trace::Requests;
use crate::content::assembled::Assembled;
use crate::content::bytes::fault;
use crate::content::checkpoint::Checkpoint;
use crate::content::checkpoints::Parts;
use crate::content::npy::OpenTensor;
use crate::content::tensors::Tensors;

/// The size that the kernel was told of a text is not to be gone by: it is made when it is opened.
const TEXT: Manner = Manner { direct_io: true, no_flush: false, keep_cache: false };

/// How the kernel is to treat what is open.
pub(super) fn manner_of(what: &Opened) -> Manner {
    match what {
        Opened::Tensor(_) | Opened::Left(_) => Manner::default(),
        Opened::Text(_) | Opened::Accesses(_) | Opened::Requests(_) | Opened::Draft(_) => TEXT,
    }
}

impl Control {
    /// Where [`Control::open`] is done.
    pub fn open_lane(&self, ino: Ino) -> Lane {
        match ino {
            // All objects of the pool may be counted for them.
            INFO | METRICS | ACCESSES => Lane::Worker,
            ino if is_slow(ino) => Lane::Reader,
            _ => Lane::Here,
        }
    }

    /// Opens a file.
    pub fn open(&self, caller: Caller, ino: Ino, flags: i32) -> Result<OpenReply> {
        if let Some(opened) = self.opened_before(caller) {
            return Ok(opened);
        }
        if flags & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY {
            return if ino == PLACEMENT { self.open_draft(caller, flags) } else { Err(Fault::new(libc::EACCES)) };
        }
        let text: Arc<[u8]> = match ino {
            INFO => Arc::from(self.info(caller)?),
            METRICS => {
                let text = metrics::text(self.content.files());
                Arc::from(text.map_err(|error| Fault::warn(libc::EIO, error.to_string()))?.as_bytes())
            }
            README => Arc::from(README_TEXT),
            PLACEMENT => Arc::from(self.content.files().store().view().placement().as_bytes()),
            ACCESSES | TRACE if !caller.is_trusted() => return Err(Fault::new(libc::EACCES)),
            TRACE => {
                let watch = self.content.files().store().trace().watch().ok_or(Fault::new(libc::ENFILE))?;
                return Ok(self.opened((caller, ino), Opened::Requests(Arc::new(Requests::new(watch)))));
            }
            ACCESSES => {
                let accesses = Arc::new(Accesses::new(self.content.files()));
                return Ok(self.opened((caller, ino), Opened::Accesses(accesses)));
            }
            _ => {
                let tensor = Opened::Tensor(Arc::new(self.open_tensor(caller, ino)?));
                return Ok(self.opened((caller, ino), tensor));
            }
        };
        let text = self.texts.keep(caller, text)?;
        Ok(self.opened((caller, ino), Opened::Text(text)))
    }

    fn opened(&self, (caller, ino): (Caller, Ino), what: Opened) -> OpenReply {
        let (handle, manner) = (self.handles.next_number(), manner_of(&what));
        let kept = self.keep(caller, (ino, handle), &what).map(Arc::new);
        self.handles.insert_as(handle, Open { what, _kept: kept });
        OpenReply { handle, manner, backing: None }
    }

    /// What there is to know about the pool and the mount, as a text.
    fn info(&self, caller: Caller) -> Result<Vec<u8>> {
        let info = Info::gather(self.content.files(), caller.is_trusted());
        let text = serde_json::to_vec_pretty(&info);
        let mut text = text.map_err(|error| Fault::warn(libc::EIO, error.to_string()))?;
        text.push(b'\n');
        Ok(text)
    }

    /// Begins to write the placement map.
    fn open_draft(&self, caller: Caller, flags: i32) -> Result<OpenReply> {
        let store = self.content.files().store();
        store.check_writable()?;
        if !caller.is_trusted() {
            return Err(Fault::new(libc::EACCES));
        }
        let emptied = flags & libc::O_TRUNC != 0;
        let text = if emptied { Vec::new() } else { store.view().placement().as_bytes().to_vec() };
        Ok(self.opened((caller, PLACEMENT), Opened::Draft(Arc::new(Draft::new(text, emptied)))))
    }

    fn open_tensor(&self, caller: Caller, ino: Ino) -> Result<Npy> {
        let (origin, look) = self.origin(ino)?;
        // The kernel looks the name up again if what it knows is out of date.
        let stale = || Fault::new(libc::ESTALE);
        match origin {
            Origin::Tensor { file, stamp, ordinal, .. } => {
                let tensors =
                    self.content.tensors_of(file)?.filter(|tensors| tensors.stamp == stamp).ok_or_else(stale)?;
                self.open_one(file, tensors, ordinal).map(Npy::OfFile)
            }
            Origin::Assembled { dir, stamp, ordinal } => {
                // The kernel has asked who may read these.
                let files = self.numbers.files(ino).ok_or_else(stale)?;
                let (opened, checkpoint) = self.open_assembled(Some(caller), dir, stamp, ordinal)?;
                let asked: HashSet<Ino> = files.files().iter().copied().collect();
                // What is beside the chunks' keys is told by whatever file the plan was read from.
                let are_among = opened.files().chain(checkpoint.read_from.inos()).all(|file| asked.contains(&file));
                if are_among && opened.len() == look.size { Ok(Npy::OfParts(opened)) } else { Err(stale()) }
            }
            Origin::Mirror(_) | Origin::Directory { .. } | Origin::Checkpoint { .. } => Err(Fault::new(libc::EISDIR)),
        }
    }

    /// Opens one of the tensors of a checkpoint in parts, if plan and parts are as that stamp says. All of them are it
    /// at one moment. Tells what the plan was read from, too.
    pub(super) fn open_assembled(
        &self,
        caller: Option<Caller>,
        dir: Ino,
        stamp: u64,
        ordinal: u32,
    ) -> Result<(Assembled, Arc<Checkpoint>)> {
        let now = self.content.checkpoint_in(dir)?.ok_or(Fault::new(libc::ESTALE))?;
        let mut parts = Parts::new(&self.content, &now);
        if parts.stamp(ordinal) != stamp {
            return Err(Fault::new(libc::ESTALE));
        }
        let opened = Assembled::open(&self.content, caller, &now, ordinal, &mut parts);
        let is_same = self.content.is_as_read(&now);
        if !is_same || Parts::new(&self.content, &now).stamp(ordinal) != stamp {
            return Err(Fault::new(libc::ESTALE));
        }
        Ok((opened?, now))
    }

    /// Opens one of the tensors of a file.
    pub(super) fn open_one(&self, file: Ino, tensors: Arc<Tensors>, ordinal: u32) -> Result<OpenTensor> {
        let tensor = self.read_tensor(file, &tensors, ordinal)?;
        let source = self.content.bytes_of(file, &tensors.version);
        let opened = OpenTensor::new(file, tensors.format, tensors.version, tensor, source.clone());
        source.close();
        opened.map_err(fault)
    }

    /// Where [`Control::read`] is done.
    pub fn read_lane(&self, ino: Ino) -> Lane {
        if is_slow(ino) { Lane::Reader } else { Lane::waiting(ino == ACCESSES || ino == TRACE) }
    }

    /// Reads, and hands what was read to `take`.
    pub fn read<T>(&self, handle: u64, offset: u64, size: u32, take: impl FnOnce(&[u8]) -> T) -> Result<T> {
        match self.handles.get(handle)?.what {
            Opened::Text(text) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
                let end = start.saturating_add(size as usize).min(text.len());
                Ok(take(&text[start..end]))
            }
            Opened::Tensor(tensor) => Ok(take(&tensor.read(&self.content, offset, size)?)),
            Opened::Left(left) => Ok(take(&self.open_left(&left)?.read(&self.content, offset, size)?)),
            Opened::Accesses(accesses) => Ok(take(&accesses.read(self.content.files(), offset, size))),
            Opened::Requests(requests) => Ok(take(&requests.read(self.content.files().store(), size))),
            Opened::Draft(draft) => Ok(take(&draft.read(offset, size))),
        }
    }

    /// Writes at an offset, or at the end. `who` has the handle among its files, if the kernel says.
    pub fn write(&self, handle: u64, who: Option<Who>, offset: u64, data: &[u8], append: bool) -> Result<u32> {
        match self.handles.get(handle)?.what {
            Opened::Draft(draft) => draft.write(who, offset, data, append),
            Opened::Text(_) | Opened::Accesses(_) | Opened::Requests(_) | Opened::Tensor(_) | Opened::Left(_) => {
                Err(Fault::new(libc::EBADF))
            }
        }
    }

    /// Where [`Control::flush`] and [`Control::release`] are done: what was written becomes the placement map, durably.
    pub fn close_lane(&self, ino: Ino) -> Lane {
        Lane::waiting(ino == PLACEMENT)
    }

    /// A handle is closed by one of the processes that share it.
    pub fn flush(&self, caller: Caller, who: Who, handle: u64) -> Result<()> {
        match self.handles.get(handle)?.what {
            Opened::Draft(draft) => {
                let killed = caller.ending() == Ending::BySignal;
                let moment = if killed { Moment::Killed } else { Moment::Closed(who) };
                self.finish_draft(&draft, moment)
            }
            Opened::Text(_) | Opened::Accesses(_) | Opened::Requests(_) | Opened::Tensor(_) | Opened::Left(_) => Ok(()),
        }
    }

    /// `fsync` of a file.
    pub fn fsync(&self, handle: u64) -> Result<()> {
        match self.handles.get(handle)?.what {
            Opened::Draft(draft) => self.finish_draft(&draft, Moment::Synced),
            Opened::Text(_) | Opened::Accesses(_) | Opened::Requests(_) | Opened::Tensor(_) | Opened::Left(_) => Ok(()),
        }
    }

    /// The last use of a handle is over.
    pub fn release(&self, handle: u64) {
        if let Some(Open { what: Opened::Draft(draft), .. }) = self.handles.remove(handle)
            && let Err(fault) = self.finish_draft(&draft, Moment::Released)
        {
            log::warn!("the placement map stays as it was: {fault}");
        }
    }

    /// What was written becomes the placement map, if this is the moment for it.
    fn finish_draft(&self, draft: &Draft, moment: Moment) -> Result<()> {
        draft.finish(moment, |text| self.content.files().store().replace_placement(text))
    }
}
