//! Changing attributes: modes, owners, times and sizes.

use tensorfs_layout::log::{Attributes, Record, Transaction};
use tensorfs_layout::{Ino, Timestamp};

use crate::acl::{self, Acl};
use crate::caller::Caller;
use crate::clock;
use crate::error::{Fault, Result};
use crate::file::{CAPABILITY, Locked, Stat, without_privileges};
use crate::lane::Lane;

use super::Tree;

/// A time to set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    Now,
    At(Timestamp),
}

/// What to change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<When>,
    pub mtime: Option<When>,
}

impl Tree {
    /// Where [`Tree::setattr`] is done.
    pub fn setattr_lane(&self, ino: Ino, change: &Change) -> Lane {
        change.size.map_or(Lane::Here, |_| self.files.resize_lane(ino))
    }

    /// Changes attributes.
    pub fn setattr(&self, caller: Caller, ino: Ino, change: Change) -> Result<Stat> {
        self.store().check_writable()?;
        let node = self.files.node(ino);
        let mut file = self.files.lock(&node);
        let result = self.change(caller, &mut file, change);
        if !file.is_open() {
            file.settle(caller.unique);
        }
        result?;
        file.stat()
    }

    fn change(&self, caller: Caller, file: &mut Locked<'_>, change: Change) -> Result<()> {
        let ino = file.ino();
        if let Some(size) = change.size {
            file.resize(caller, size)?;
        }
        let now = clock::now();
        let time = |when: Option<When>| {
            when.map(|when| match when {
                When::Now => now,
                When::At(time) => time,
            })
        };
        let (atime, mtime) = (time(change.atime), time(change.mtime));
        let mut ctime = now;
        if atime.is_some() || mtime.is_some() {
            ctime = now.max(file.set_times(atime, mtime)?);
        }
        // The kernel sends `chown` with neither user nor group as a change of nothing; from somebody else than the
        // owner, it stands for taking privileges away before a write, which is done when that comes.
        let nothing = change.mode.is_none() && atime.is_none() && mtime.is_none();
        let owner = change.uid.is_some() || change.gid.is_some() || (nothing && change.size.is_none());
        if nothing && !owner {
            return Ok(());
        }
        if nothing && change.uid.is_none() && change.gid.is_none() && !self.is_owner(caller, ino) {
            return Ok(());
        }
        let outsider = owner && self.store().is_outsider(caller, ino);
        self.files.edit(|edit| {
            let object = edit.object(ino).ok_or(Fault::stale())?;
            let mut tx = Transaction::new(caller.unique);
            let mut a = Attributes { ctime, ..object.attributes.clone() };
            if let Some(mode) = change.mode {
                a.mode = a.mode & libc::S_IFMT | mode & 0o7777;
                if let Some(mut access) = object.xattr(acl::ACCESS).and_then(Acl::parse) {
                    access.chmod(mode);
                    tx.push(Record::Xattr { ino, name: acl::ACCESS.into(), value: access.to_value().into() });
                }
            }
            if owner {
                a.uid = change.uid.unwrap_or(a.uid);
                a.gid = change.gid.unwrap_or(a.gid);
                if !object.is_dir() && change.mode.is_none() {
                    a.mode = without_privileges(a.mode, outsider);
                }
                if object.xattr(CAPABILITY).is_some() {
                    tx.push(Record::XattrRemoval { ino, name: CAPABILITY.into() });
                }
            }
            a.atime = atime.unwrap_or(a.atime);
            a.mtime = mtime.unwrap_or(a.mtime);
            tx.push(Record::Attributes { ino, attributes: a });
            edit.store(tx)?;
            Ok(())
        })
    }

    fn is_owner(&self, caller: Caller, ino: Ino) -> bool {
        caller.uid == 0 || self.store().view().object(ino).is_some_and(|object| object.attributes.uid == caller.uid)
    }
}
