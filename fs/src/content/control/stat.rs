//! What an object of the control tree looks like.

use std::sync::Arc;
use std::time::Duration;

use tensorfs_layout::log::Attributes;
use tensorfs_layout::tree::View;
use tensorfs_layout::{Ino, ROOT, Timestamp};

use crate::clock;
use crate::error::{Fault, Result};
use crate::file::{LONG, Stat};

use super::Control;
use super::fixed::{ACCESSES, DIRECTORY, PLACEMENT, README, README_TEXT, TRACE, is_slow};
use super::numbers::{List, Look};
use super::origin::Origin;
use super::rights::{Of, Role};
use super::shared::Rights;

/// Space is counted in blocks of this size.
const BLOCK: u64 = 512;

/// How long the kernel may keep what a name stands for, in either tree.
pub(crate) fn name_ttl(ino: Ino) -> Duration {
    if is_slow(ino) { Duration::ZERO } else { LONG }
}

impl Control {
    /// The control directory, which its name in the root of the mount stands for.
    pub fn root(&self) -> Result<Stat> {
        self.stat(DIRECTORY)
    }

    /// What an object looks like.
    pub fn stat(&self, ino: Ino) -> Result<Stat> {
        if !is_slow(ino) {
            return self.fixed_stat(ino);
        }
        let (origin, look) = self.origin(ino)?;
        let (of, role) = Role::of(&origin);
        let attributes = match of {
            Of::One(of) => self.content.files().store().view().object(of).map(|object| role.attributes(object)),
            Of::Checkpoint(dir) => self.shared(ino, &origin, dir).map(|(attributes, _)| attributes),
        };
        let Some(attributes) = attributes else {
            // A tensor of a file that is gone, which somebody has open.
            return match role {
                Role::Tensor => Ok(orphan(ino, look)),
                _ => Err(Fault::new(libc::ENOENT)),
            };
        };
        // The kernel keeps a listing for as long as a directory's time stays the same, and what is listed may change
        // with the bytes of a file.
        let mtime = if role == Role::Tensor { look.mtime } else { clock::now() };
        let attributes = Attributes { mtime, ..attributes };
        Ok(Stat { ino, attributes, links: 1, size: look.size, allocated: allocated(look), volatile: true })
    }

    /// The number and the kind of a directory of a checkpoint, if that is there.
    pub(super) fn unread(&self, ino: Ino, origin: &Origin) -> Option<Stat> {
        let (Of::Checkpoint(dir), role @ Role::Inside) = Role::of(origin) else { return None };
        let view = self.content.files().store().view();
        let attributes = role.attributes(view.object(dir)?);
        Some(Stat { ino, attributes, links: 1, size: 0, allocated: 0, volatile: true })
    }

    /// Attributes and access list of what there is of a checkpoint. As long as it is not known which files are its
    /// parts, the rights to all that are beside its plan count.
    pub(super) fn shared(&self, ino: Ino, origin: &Origin, dir: Ino) -> Option<(Attributes, Option<Vec<u8>>)> {
        let role = Role::of(origin).1;
        let view = || self.content.files().store().view();
        let to_all = |files: Arc<[Ino]>| Rights::to_all(&view(), &files, &self.lists);
        let beside = || self.content.files_beside_plan(dir).and_then(to_all);
        let rights = match origin {
            // Whoever may not read one of its parts gains nothing by removing another one.
            Origin::Assembled { .. } => match self.numbers.files(ino) {
                Some(list) => self.rights_to(&view(), &list),
                None => beside(),
            },
            _ => self.numbers.shared(dir).and_then(to_all).or_else(beside),
        };
        rights.map(|rights| rights.shown(role, &view()))
    }

    /// The rights to a tensor of a checkpoint for which those to these files count, also if one of them is gone.
    fn rights_to(&self, view: &View, list: &List) -> Option<Rights> {
        let files = list.files();
        match Rights::to_all(view, files, &self.lists) {
            Some(rights) => {
                list.note(rights.clone());
                Some(rights)
            }
            None => Some(list.noted()?.still_granted(view, files, &self.lists)),
        }
    }

    /// An object of the part that does not change: its owner and times are the root's.
    fn fixed_stat(&self, ino: Ino) -> Result<Stat> {
        let root = self.content.files().store().view().object(ROOT).map(|root| root.attributes.clone());
        let root = root.ok_or(Fault::new(libc::ENOENT))?;
        let (mode, links, size) = match ino {
            DIRECTORY => (libc::S_IFDIR | 0o555, 2, 0),
            README => (libc::S_IFREG | 0o444, 1, README_TEXT.len() as u64),
            PLACEMENT | ACCESSES | TRACE => return Ok(self.private_stat(ino, root)),
            // Its size is not known before it is opened.
            _ => (libc::S_IFREG | 0o444, 1, 0),
        };
        Ok(Stat { ino, attributes: Attributes { mode, ..root }, links, size, allocated: 0, volatile: false })
    }

    /// What belongs to whoever runs the server: the placement map, which others may read, the uses of files, and
    /// who asks for what.
    fn private_stat(&self, ino: Ino, root: Attributes) -> Stat {
        let (mode, size) = match ino {
            PLACEMENT => (0o644, self.content.files().store().view().placement().len() as u64),
            _ => (0o400, 0),
        };
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        let attributes = Attributes { mode: libc::S_IFREG | mode, uid, gid, ..root };
        Stat { ino, attributes, links: 1, size, allocated: 0, volatile: true }
    }

    /// `lseek(2)` to data or to a hole in a file, which has none.
    pub fn seek(&self, ino: Ino, offset: i64, whence: i32) -> Result<i64> {
        let size = self.stat(ino)?.size as i64;
        match whence {
            _ if offset < 0 || offset >= size => Err(Fault::new(libc::ENXIO)),
            libc::SEEK_DATA => Ok(offset),
            libc::SEEK_HOLE => Ok(size),
            _ => Err(Fault::new(libc::EINVAL)),
        }
    }
}

/// A tensor whose file is gone.
fn orphan(ino: Ino, look: Look) -> Stat {
    let never = Timestamp::default();
    let attributes = Attributes {
        mode: libc::S_IFREG,
        uid: 0,
        gid: 0,
        rdev: 0,
        atime: never,
        mtime: look.mtime,
        ctime: never,
        btime: never,
        segment: None,
        damaged: false,
    };
    Stat { ino, attributes, links: 0, size: look.size, allocated: allocated(look), volatile: true }
}

fn allocated(look: Look) -> u64 {
    look.size.div_ceil(BLOCK) * BLOCK
}
