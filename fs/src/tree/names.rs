//! Names: what they stand for, a further name of an object, and the removal of one.

use tensorfs_layout::log::{NAME_MAX, Record, Transaction};
use tensorfs_layout::tree::Object;
use tensorfs_layout::{Ino, ROOT};

use crate::caller::Caller;
use crate::clock;
use crate::error::{Fault, Result};
use crate::file::Stat;
use crate::lane::Lane;
use crate::store::{changed, touched, with};

use super::{Tree, check_project, living_directory};

/// The most names one object can have, as on ext4. Subdirectories, whose `..` are no names, are not counted.
const LINK_MAX: u32 = 65_000;

/// Objections to a new name that do not need the directory.
pub(super) fn check_new_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX { Err(Fault::new(libc::ENAMETOOLONG)) } else { Ok(()) }
}

impl Tree {
    /// What a name in a directory stands for.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<Stat>> {
        if matches!(name, b"." | b"..") {
            return self.lookup_by_handle(dir, name == b"..").map(Some);
        }
        if name.len() > NAME_MAX {
            return Err(Fault::new(libc::ENAMETOOLONG));
        }
        loop {
            let Some(ino) = self.store().view().lookup(dir, name) else { return Ok(None) };
            match self.files.stat(ino) {
                // Another was renamed over it meanwhile: a name that is always there is always found.
                Err(fault) if fault.errno == libc::ESTALE && self.store().view().lookup(dir, name) != Some(ino) => {}
                stat => {
                    self.store().saw(dir, name, ino);
                    return stat.map(Some);
                }
            }
        }
    }

    /// What a file handle (`open_by_handle_at`) stands for, or its parent: the kernel asks for `.` and `..` only of
    /// what it has no path to.
    fn lookup_by_handle(&self, ino: Ino, parent: bool) -> Result<Stat> {
        let ino = {
            let view = self.store().view();
            let object = view.object(ino).filter(|object| object.links() > 0).ok_or(Fault::stale())?;
            if parent { object.parent().unwrap_or(ROOT) } else { ino }
        };
        self.files.stat(ino)
    }

    /// Where a symbolic link points.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let view = self.store().view();
        let object = view.object(ino).ok_or(Fault::stale())?;
        Ok(object.target().ok_or(Fault::new(libc::EINVAL))?.to_vec())
    }

    /// Gives an object another name.
    pub fn link(&self, caller: Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Stat> {
        check_new_name(name)?;
        self.files.learn_before_naming(ino)?;
        self.files.edit(|edit| {
            let object = edit.object(ino).filter(|object| object.names() > 0).ok_or(Fault::new(libc::ENOENT))?;
            if object.is_dir() {
                return Err(Fault::new(libc::EPERM));
            }
            if object.names() >= LINK_MAX {
                return Err(Fault::new(libc::EMLINK));
            }
            living_directory(edit, dir)?;
            if edit.lookup(dir, name).is_some() {
                return Err(Fault::new(libc::EEXIST));
            }
            check_project(edit, dir, object)?;
            self.store().memory().check_name(edit, caller, object)?;
            let now = clock::now();
            let tx = Transaction::new(caller.unique).with(Record::Name { dir, name: name.into(), ino });
            let tx = with(with(tx, touched(edit, dir, now)), changed(edit, ino, now));
            edit.store(tx)?;
            Ok(())
        })?;
        self.files.stat(ino)
    }

    /// Where [`Tree::unlink`] is done, and [`Tree::rename`].
    pub fn removal_lane(&self) -> Lane {
        if self.files.owes_unlinks() { Lane::Worker } else { Lane::Records }
    }

    /// Removes a name of anything but a directory. Returns what is still to be retired.
    pub fn unlink(&self, caller: Caller, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        self.files.pay_unlinks();
        self.remove(caller, dir, name, |object| if object.is_dir() { Err(libc::EISDIR) } else { Ok(()) })
    }

    /// Removes an empty directory. Returns what is still to be retired.
    pub fn rmdir(&self, caller: Caller, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        self.remove(caller, dir, name, |object| match (object.is_dir(), object.is_empty_dir()) {
            (false, _) => Err(libc::ENOTDIR),
            (true, false) => Err(libc::ENOTEMPTY),
            (true, true) => Ok(()),
        })
    }

    fn remove(
        &self,
        caller: Caller,
        dir: Ino,
        name: &[u8],
        allowed: impl Fn(&Object) -> std::result::Result<(), i32>,
    ) -> Result<Option<Ino>> {
        let (ino, last) = self.files.edit(|edit| {
            let ino = edit.lookup(dir, name).ok_or(Fault::new(libc::ENOENT))?;
            let object = edit.object(ino).ok_or(Fault::new(libc::ENOENT))?;
            allowed(object).map_err(Fault::new)?;
            let last = object.names() <= 1;
            let now = clock::now();
            let tx = Transaction::new(caller.unique).with(Record::Removal { dir, name: name.into() });
            let tx = with(with(tx, touched(edit, dir, now)), changed(edit, ino, now));
            edit.store_from_reserve(tx)?;
            Ok((ino, last))
        })?;
        if !last {
            return Ok(None);
        }
        let held = self.files.try_retire(ino);
        // It has asked the host.
        if self.store().was_tight() {
            self.store().bells().commit().ring();
        }
        Ok(held)
    }
}
