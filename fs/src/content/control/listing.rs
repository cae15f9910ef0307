//! Listing the directories of the control tree.

use std::ops::ControlFlow;
use std::sync::Arc;

use tensorfs_layout::log::NAME_MAX;
use tensorfs_layout::tree::Object;
use tensorfs_layout::{Ino, ROOT};

use crate::caller::Asker;
use crate::error::{Fault, Result};
use crate::file::{Listed, ListedPlus};
use crate::lane::Lane;

use super::Control;
use super::fixed::{CHECKPOINT, DIRECTORY, FIXED, TENSORS, is_control, is_slow};
use super::lookup::{Answer, look_of, origin_of};
use super::numbers::{self, Look};
use super::origin::Origin;
use crate::content::bytes::{fault, has_spent_all};
use crate::content::checkpoints::Parts;
use crate::content::index::{DirId, TOP};

/// The cookies of `.` and `..`, and what is below the first one of a name.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
const NAMES: u64 = 16;
/// Checkpoints in parts come behind all names of a directory, in the same order.
const CHECKPOINTS: u64 = 1 << 32;

/// Entries are taken in lots of this size.
const LOT: usize = 128;

/// An entry of a directory: what listing it needs to know.
struct Row {
    cookie: u64,
    name: Vec<u8>,
    origin: Origin,
    look: Look,
    /// Whose rights count, if it is a tensor of a checkpoint.
    files: Option<Arc<[Ino]>>,
}

impl Row {
    fn kind(&self) -> u32 {
        if self.origin.is_tensor() { libc::S_IFREG } else { libc::S_IFDIR }
    }
}

/// What comes behind some entries of a directory.
enum Rest {
    /// What is behind them.
    Next,
    /// There is no room for more.
    Full,
    /// As much was read as may be for one request.
    NotNow,
}

/// What is done with a row. It says whether there is no room for it, or for more.
type Take<'a> = &'a mut dyn FnMut(Row) -> bool;

impl Control {
    /// Where a directory is listed.
    pub fn list_lane(&self, dir: Ino) -> Lane {
        if is_slow(dir) { Lane::Reader } else { Lane::Here }
    }

    /// Lists a directory from behind a cookie. `take` says whether it is full, and what it refused comes again.
    pub fn readdir(&self, dir: Ino, cookie: u64, mut take: impl FnMut(Listed<'_>) -> bool) -> Result<()> {
        for (at, name, ino) in self.dots(dir)? {
            if cookie < at && take(Listed { cookie: at, name, ino, kind: libc::S_IFDIR }) {
                return Ok(());
            }
        }
        if dir == DIRECTORY {
            for (at, (ino, name, kind)) in (NAMES..).zip(FIXED) {
                if cookie < at && take(Listed { cookie: at, name, ino, kind }) {
                    break;
                }
            }
            return Ok(());
        }
        self.rows(dir, cookie, &mut |row| {
            take(Listed { cookie: row.cookie, name: &row.name, ino: numbers::of(&row.origin), kind: row.kind() })
        })
    }

    /// Lists a directory with the attributes of what is in it. The kernel is told of every object that it takes.
    pub fn readdirplus(&self, dir: Ino, cookie: u64, mut take: impl FnMut(ListedPlus<'_>) -> bool) -> Result<()> {
        for (at, name, ino) in self.dots(dir)? {
            let stat = if is_control(ino) { self.stat(ino)? } else { self.content.files().stat(ino)? };
            if cookie < at && take(ListedPlus { cookie: at, name, stat: &stat, known: true }) {
                return Ok(());
            }
        }
        if dir == DIRECTORY {
            for (at, (ino, name, _)) in (NAMES..).zip(FIXED) {
                if cookie < at && take(ListedPlus { cookie: at, name, stat: &self.stat(ino)?, known: true }) {
                    break;
                }
            }
            return Ok(());
        }
        // The kernel begins every listing this way, also if nobody wants attributes. How it goes on says more.
        if cookie < DOT_DOT {
            return Ok(());
        }
        self.rows(dir, cookie, &mut |row| {
            let ino = self.numbers.tell(Asker::user_of_this_thread(), row.origin, row.look, row.files);
            // Of a checkpoint nobody may know yet who may read it.
            let stat = self.stat(ino).ok().map(|stat| (stat, true));
            let stat = stat.or_else(|| Some((self.unread(ino, &row.origin)?, false)));
            let Some((stat, known)) = stat else {
                // Gone meanwhile.
                self.numbers.forget(ino, 1);
                return false;
            };
            let full = take(ListedPlus { cookie: row.cookie, name: &row.name, stat: &stat, known });
            if full {
                self.numbers.forget(ino, 1);
            }
            full
        })
    }

    fn dots(&self, dir: Ino) -> Result<[(u64, &'static [u8], Ino); 2]> {
        let parent = match dir {
            DIRECTORY => ROOT,
            TENSORS => DIRECTORY,
            _ => match self.origin(dir)?.0 {
                Origin::Mirror(dir) => {
                    let view = self.content.files().store().view();
                    let object = view.object(dir).ok_or(Fault::new(libc::ENOENT))?;
                    numbers::of(&Origin::Mirror(object.parent().unwrap_or(ROOT)))
                }
                Origin::Directory { parent, .. } | Origin::Checkpoint { parent, .. } => parent,
                Origin::Tensor { .. } | Origin::Assembled { .. } => return Err(Fault::new(libc::ENOTDIR)),
            },
        };
        Ok([(DOT, b".", dir), (DOT_DOT, b"..", parent)])
    }

    /// Gives the entries of a directory behind a cookie until `take` says that it is full.
    fn rows(&self, parent: Ino, cookie: u64, take: Take<'_>) -> Result<()> {
        match self.origin(parent)?.0 {
            Origin::Mirror(dir) => {
                let mut is_first = true;
                let mut take = |row| {
                    is_first = false;
                    take(row)
                };
                let rest = match cookie >= CHECKPOINTS {
                    false => self.rows_of_directory(parent, dir, cookie, &mut take),
                    true => Rest::Next,
                };
                let rest = match rest {
                    Rest::Next => self.rows_of_checkpoints(parent, dir, cookie.max(CHECKPOINTS), &mut take),
                    rest => rest,
                };
                match rest {
                    // The next request goes on from here.
                    Rest::NotNow if is_first => Err(Fault::new(libc::EIO)),
                    _ => Ok(()),
                }
            }
            Origin::Directory { file, dir, .. } => self.rows_of_file(parent, (file, dir), cookie, take),
            Origin::Checkpoint { dir, inside, .. } => self.rows_of_checkpoint(parent, (dir, inside), cookie, take),
            Origin::Tensor { .. } | Origin::Assembled { .. } => Err(Fault::new(libc::ENOTDIR)),
        }
    }

    /// Gives what is in the place of the entries of one of the pool's directories.
    fn rows_of_directory(&self, parent: Ino, dir: Ino, cookie: u64, take: Take<'_>) -> Rest {
        let mut cookie = cookie.max(DOT_DOT);
        loop {
            let lot: Vec<(u64, Vec<u8>, Ino, u32)> = {
                let view = self.content.files().store().view();
                let known = |(at, name, ino): (u64, &[u8], Ino)| {
                    (at, name.to_vec(), ino, view.object(ino).map_or(0, Object::kind))
                };
                view.entries_after(dir, cookie).map(known).take(LOT).collect()
            };
            let Some(&(last, ..)) = lot.last() else { return Rest::Next };
            for (at, name, ino, kind) in lot {
                match self.in_place_of(ino, kind, parent, &name, true) {
                    Answer::Is(origin, look) if take(Row { cookie: at, name, origin, look, files: None }) => {
                        return Rest::Full;
                    }
                    Answer::MustRead => return Rest::NotNow,
                    _ => {}
                }
            }
            cookie = last;
        }
    }

    /// Gives the checkpoints in parts that directories in one of the pool's directories are, or the root itself.
    fn rows_of_checkpoints(&self, parent: Ino, dir: Ino, cookie: u64, take: Take<'_>) -> Rest {
        let mut cookie = cookie - CHECKPOINTS;
        let root = (dir == ROOT && cookie < DOT).then(|| (DOT, Vec::new(), ROOT, true));
        let mut lot = Vec::from_iter(root);
        loop {
            for (at, mut name, of, is_dir) in lot {
                cookie = at;
                name.extend_from_slice(CHECKPOINT);
                let is_free = || self.content.files().store().view().lookup(dir, &name).is_none();
                if !is_dir || name.len() > NAME_MAX || !is_free() {
                    continue;
                }
                match self.content.has_plan(of) {
                    Some(true) => {}
                    Some(false) => continue,
                    None => return Rest::NotNow,
                }
                let origin = Origin::Checkpoint { dir: of, inside: TOP, parent };
                if take(Row { cookie: CHECKPOINTS + at, name, origin, look: Look::default(), files: None }) {
                    return Rest::Full;
                }
            }
            let view = self.content.files().store().view();
            let known = |(at, name, ino): (u64, &[u8], Ino)| {
                (at, name.to_vec(), ino, view.object(ino).is_some_and(Object::is_dir))
            };
            lot = view.entries_after(dir, cookie).map(known).take(LOT).collect();
            if lot.is_empty() {
                return Rest::Next;
            }
        }
    }

    /// Gives the tensors and directories in a directory of a checkpoint in parts.
    fn rows_of_checkpoint(&self, parent: Ino, (dir, inside): (Ino, DirId), cookie: u64, take: Take<'_>) -> Result<()> {
        let Some(checkpoint) = self.content.checkpoint_in(dir)? else { return Ok(()) };
        let mut parts = Parts::new(&self.content, &checkpoint);
        let from = cookie.checked_sub(NAMES).map_or(0, |ordinal| ordinal + 1);
        let Ok(from) = u32::try_from(from) else { return Ok(()) };
        let mut is_first = true;
        for entry in checkpoint.index.entries(inside, from) {
            let Some(tensor) = checkpoint.tensor(entry.ordinal) else { continue };
            let (name, inside) = entry.name(&tensor);
            let found = match inside {
                Some(inside) => Ok(Some((Origin::Checkpoint { dir, inside, parent }, Look::default()))),
                None => self.assembled(dir, &checkpoint, entry.ordinal, &mut parts),
            };
            let (origin, look) = match found {
                Ok(Some(found)) => found,
                Err(fault) if matches!(fault.errno, libc::EINTR | libc::ESHUTDOWN) => return Err(fault),
                // The next request goes on from here.
                Err(fault) if has_spent_all() => return if is_first { Err(fault) } else { Ok(()) },
                // Only its part says what it is, and does not.
                Ok(None) | Err(_) => continue,
            };
            is_first = false;
            let files = origin.is_tensor().then(|| parts.shared(entry.ordinal));
            if take(Row { cookie: NAMES + u64::from(entry.ordinal), name, origin, look, files }) {
                break;
            }
        }
        Ok(())
    }

    /// Gives the tensors and directories in a directory of a file.
    fn rows_of_file(&self, parent: Ino, (file, dir): (Ino, DirId), cookie: u64, take: Take<'_>) -> Result<()> {
        let Some(tensors) = self.content.tensors_of(file)? else { return Ok(()) };
        let source = self.content.bytes_of(file, &tensors.version);
        // A directory has at most one entry for each tensor.
        let mut next = cookie.checked_sub(NAMES).map_or(0, |ordinal| ordinal + 1);
        while let Ok(from) = u32::try_from(next) {
            let lot: Vec<_> = tensors.index.entries(dir, from).take(LOT).collect();
            let Some(last) = lot.last() else { break };
            next = u64::from(last.ordinal) + 1;
            let ordinals: Vec<u32> = lot.iter().map(|entry| entry.ordinal).collect();
            let (mut entries, mut full) = (lot.iter(), false);
            let read = tensors.each(&source, &ordinals, &mut |ordinal, tensor| {
                let Some(entry) = entries.next() else { return ControlFlow::Break(()) };
                let (name, inside) = entry.name(tensor);
                let (origin, look) = match inside {
                    Some(dir) => (Origin::Directory { file, dir, parent, place: 0 }, Look::default()),
                    None => (origin_of(file, &tensors, ordinal), look_of(&tensors, tensor)),
                };
                full = take(Row { cookie: NAMES + u64::from(ordinal), name, origin, look, files: None });
                if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            source.close();
            read.map_err(fault)?;
            if full {
                break;
            }
        }
        Ok(())
    }
}
