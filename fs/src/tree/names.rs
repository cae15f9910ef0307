//! The tree: names come, go and move.

use fuser::RenameFlags;
use tensorfs_layout::{
    Attributes, Edit, Ino, NAME_MAX, Object, ROOT, Record, SegmentId, TARGET_MAX, Timestamp, Transaction,
};

use crate::acl::{self, Acl};
use crate::attributes::Stat;
use crate::clock;
use crate::control;
use crate::error::{Fault, Result};
use crate::file_xattrs::TIER;
use crate::filesystem::{Caller, Filesystem, changed, touched, with};
use crate::learn::Switch;

/// The most names one object can have, as on ext4. Subdirectories, whose `..` are no names, are not counted.
const LINK_MAX: u32 = 65_000;

/// What a client asks a new object to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct New {
    /// Type and permission bits.
    pub mode: u32,
    pub umask: u32,
    /// Device number of a device node.
    pub rdev: u32,
}

impl Filesystem {
    /// What a name in a directory stands for.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<Stat>> {
        if matches!(name, b"." | b"..") {
            return self.lookup_by_handle(dir, name == b"..").map(Some);
        }
        if control::is_control(dir) || is_control_name(dir, name) {
            return Ok(self.control_lookup(dir, name, true)?.flatten());
        }
        if name.len() > NAME_MAX {
            return Err(Fault::new(libc::ENAMETOOLONG));
        }
        loop {
            let Some(ino) = self.pool.view().lookup(dir, name) else { return Ok(None) };
            match self.stat(ino) {
                // Another was renamed over it meanwhile: a name that is always there is always found.
                Err(fault) if fault.errno == libc::ESTALE && self.pool.view().lookup(dir, name) != Some(ino) => {}
                stat => {
                    self.placement.saw(dir, name, ino);
                    return stat.map(Some);
                }
            }
        }
    }

    /// What a file handle (`open_by_handle_at`) stands for, or its parent: the kernel asks for `.` and `..` only of what it
    /// has no path to.
    fn lookup_by_handle(&self, ino: Ino, parent: bool) -> Result<Stat> {
        let ino = {
            let view = self.pool.view();
            let object = view.object(ino).filter(|object| object.links() > 0).ok_or(Fault::stale())?;
            if parent { object.parent().unwrap_or(ROOT) } else { ino }
        };
        self.stat(ino)
    }

    /// Objections to a new name that do not need the directory.
    pub fn check_new_name(&self, dir: Ino, name: &[u8]) -> Result<()> {
        if control::is_control(dir) {
            return Err(Fault::new(libc::EPERM));
        }
        if is_control_name(dir, name) {
            return Err(Fault::new(libc::EEXIST));
        }
        if name.len() > NAME_MAX {
            return Err(Fault::new(libc::ENAMETOOLONG));
        }
        Ok(())
    }

    fn check_old_name(&self, dir: Ino, name: &[u8]) -> Result<()> {
        if control::is_control(dir) || is_control_name(dir, name) {
            return Err(Fault::new(libc::EPERM));
        }
        Ok(())
    }

    /// The records of a new object and of its name, with what it inherits from its directory.
    #[allow(clippy::too_many_arguments)]
    pub fn new_object(
        &self,
        edit: &Edit<'_>,
        caller: Caller,
        ino: Ino,
        dir: Ino,
        name: &[u8],
        new: &New,
        now: Timestamp,
        segment: Option<SegmentId>,
    ) -> Result<Transaction> {
        let parent = living_directory(edit, dir)?;
        if edit.lookup(dir, name).is_some() {
            return Err(Fault::new(libc::EEXIST));
        }
        let kind = new.mode & libc::S_IFMT;
        let default = parent.xattr(acl::DEFAULT).filter(|_| kind != libc::S_IFLNK).map(<[u8]>::to_vec);
        let umask = if kind == libc::S_IFLNK { 0 } else { new.umask };
        let inherited = acl::inherit(default.as_deref().and_then(Acl::parse).as_ref(), new.mode, umask);
        let mut mode = inherited.mode & (libc::S_IFMT | 0o7777);
        let mut gid = caller.gid;
        if parent.attributes.mode & libc::S_ISGID != 0 {
            gid = parent.attributes.gid;
            if kind == libc::S_IFDIR {
                mode |= libc::S_ISGID;
            }
        }
        let attributes = Attributes {
            mode,
            uid: caller.uid,
            gid,
            rdev: new.rdev,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            segment,
            damaged: false,
        };
        let mut tx = Transaction::new(caller.unique).with(Record::Attributes { ino, attributes }).with(Record::Name {
            dir,
            name: name.into(),
            ino,
        });
        if let Some(access) = inherited.access {
            tx.push(Record::Xattr { ino, name: acl::ACCESS.into(), value: access.to_value().into() });
        }
        if let Some(tier) = parent.xattr(TIER).filter(|_| kind == libc::S_IFDIR) {
            tx.push(Record::Xattr { ino, name: TIER.into(), value: tier.into() });
        }
        if let Some(default) = default.filter(|_| kind == libc::S_IFDIR) {
            tx.push(Record::Xattr { ino, name: acl::DEFAULT.into(), value: default.into() });
        }
        Ok(with(tx, touched(edit, dir, clock::now())))
    }

    /// Makes a directory, a special file, or a regular file that is not opened yet.
    pub fn make(&self, caller: Caller, dir: Ino, name: &[u8], new: New) -> Result<Stat> {
        self.make_with(caller, dir, name, new, |_, _| {})
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, caller: Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Stat> {
        if target.len() > TARGET_MAX {
            return Err(Fault::new(libc::ENAMETOOLONG));
        }
        let new = New { mode: libc::S_IFLNK | 0o777, umask: 0, rdev: 0 };
        self.make_with(caller, dir, name, new, |tx, ino| tx.push(Record::Target { ino, target: target.into() }))
    }

    fn make_with(
        &self,
        caller: Caller,
        dir: Ino,
        name: &[u8],
        new: New,
        more: impl Fn(&mut Transaction, Ino),
    ) -> Result<Stat> {
        self.check_new_name(dir, name)?;
        self.edit(|edit| {
            let ino = Ino(edit.next_id());
            let mut tx = self.new_object(edit, caller, ino, dir, name, &new, clock::now(), None)?;
            more(&mut tx, ino);
            edit.store(tx)?;
            edit.object(ino).map(|object| Stat::of(ino, object)).ok_or(Fault::new(libc::EIO))
        })
    }

    /// Where a symbolic link points.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let view = self.pool.view();
        let object = view.object(ino).ok_or(Fault::stale())?;
        Ok(object.target().ok_or(Fault::new(libc::EINVAL))?.to_vec())
    }

    /// Gives an object another name.
    pub fn link(&self, caller: Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Stat> {
        if control::is_control(ino) {
            return Err(Fault::new(libc::EPERM));
        }
        self.check_new_name(dir, name)?;
        self.learn_before_naming(ino, caller.unique)?;
        self.edit(|edit| {
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
            let now = clock::now();
            let tx = Transaction::new(caller.unique).with(Record::Name { dir, name: name.into(), ino });
            let tx = with(with(tx, touched(edit, dir, now)), changed(edit, ino, now));
            edit.store(tx)?;
            Ok(())
        })?;
        self.stat(ino)
    }

    /// Removes a name of anything but a directory.
    pub fn unlink(&self, caller: Caller, dir: Ino, name: &[u8]) -> Result<()> {
        self.remove(caller, dir, name, |object| if object.is_dir() { Err(libc::EISDIR) } else { Ok(()) })
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, caller: Caller, dir: Ino, name: &[u8]) -> Result<()> {
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
    ) -> Result<()> {
        self.check_old_name(dir, name)?;
        let (ino, last) = self.edit(|edit| {
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
        if last {
            // It has asked the host.
            self.retire(ino);
            if self.was_tight() {
                self.bell.commit();
            }
        }
        Ok(())
    }

    /// Moves a name, or exchanges two.
    pub fn rename(&self, caller: Caller, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        self.check_old_name(from.0, from.1)?;
        self.check_old_name(to.0, to.1)?;
        if to.1.len() > NAME_MAX {
            return Err(Fault::new(libc::ENAMETOOLONG));
        }
        let known = RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE;
        if !known.contains(flags) || flags == known {
            return Err(Fault::new(libc::EINVAL));
        }
        let exchange = flags.contains(RenameFlags::RENAME_EXCHANGE);
        loop {
            let (moved, met) = {
                let view = self.pool.view();
                (view.lookup(from.0, from.1), view.lookup(to.0, to.1))
            };
            let moved = moved.ok_or(Fault::new(libc::ENOENT))?;
            self.learn_before_moving(moved, caller.unique)?;
            if let (true, Some(met)) = (exchange, met) {
                self.learn_before_moving(met, caller.unique)?;
            }
            let done = self.edit(|edit| {
                // Learning was done without the lock; what it was done for must still be what is moved.
                if edit.lookup(from.0, from.1) != Some(moved) || edit.lookup(to.0, to.1) != met {
                    return Ok(false);
                }
                move_name(edit, caller, from, to, moved, met, flags)?;
                Ok(true)
            })?;
            if done {
                self.placement.moved(&self.pool, [Some(moved), met].into_iter().flatten());
                if let (false, Some(met)) = (exchange, met.filter(|met| *met != moved)) {
                    self.retire(met);
                }
                return Ok(());
            }
        }
    }

    /// A file's bytes are recorded before its name is; a directory's name may be what makes all that is in it count.
    fn learn_before_moving(&self, ino: Ino, unique: u64) -> Result<()> {
        let is_dir = self.pool.view().object(ino).is_some_and(Object::is_dir);
        if is_dir { self.learn_all(Switch::Leave).map(|_| ()) } else { self.learn_before_naming(ino, unique) }
    }
}

fn is_control_name(dir: Ino, name: &[u8]) -> bool {
    dir == ROOT && name == control::NAME
}

/// A directory that can take new names.
fn living_directory<'a>(edit: &'a Edit<'_>, dir: Ino) -> Result<&'a Object> {
    let object = edit.object(dir).ok_or(Fault::new(libc::ENOENT))?;
    if !object.is_dir() {
        return Err(Fault::new(libc::ENOTDIR));
    }
    if object.names() == 0 && dir != ROOT {
        return Err(Fault::new(libc::ENOENT));
    }
    Ok(object)
}

fn move_name(
    edit: &mut Edit<'_>,
    caller: Caller,
    from: (Ino, &[u8]),
    to: (Ino, &[u8]),
    moved: Ino,
    met: Option<Ino>,
    flags: RenameFlags,
) -> Result<()> {
    let exchange = flags.contains(RenameFlags::RENAME_EXCHANGE);
    let object = edit.object(moved).ok_or(Fault::new(libc::ENOENT))?;
    living_directory(edit, to.0)?;
    if object.is_dir() && is_within(edit, to.0, moved) {
        return Err(Fault::new(libc::EINVAL));
    }
    match met {
        None if exchange => return Err(Fault::new(libc::ENOENT)),
        None => {}
        Some(_) if flags.contains(RenameFlags::RENAME_NOREPLACE) => return Err(Fault::new(libc::EEXIST)),
        // Two names of one object: nothing to do, says POSIX.
        Some(met) if met == moved => return Ok(()),
        Some(met) => {
            let other = edit.object(met).ok_or(Fault::new(libc::ENOENT))?;
            if exchange {
                if other.is_dir() && is_within(edit, from.0, met) {
                    return Err(Fault::new(libc::EINVAL));
                }
            } else if object.is_dir() && !other.is_dir() {
                return Err(Fault::new(libc::ENOTDIR));
            } else if !object.is_dir() && other.is_dir() {
                return Err(Fault::new(libc::EISDIR));
            } else if other.is_dir() && !other.is_empty_dir() {
                return Err(Fault::new(libc::ENOTEMPTY));
            }
        }
    }
    let now = clock::now();
    // The new name comes first, so that no object is without a name in between.
    let mut tx = Transaction::new(caller.unique).with(Record::Name { dir: to.0, name: to.1.into(), ino: moved });
    tx.push(match met.filter(|_| exchange) {
        Some(met) => Record::Name { dir: from.0, name: from.1.into(), ino: met },
        None => Record::Removal { dir: from.0, name: from.1.into() },
    });
    let tx = with(tx, touched(edit, from.0, now));
    let tx = with(tx, touched(edit, to.0, now).filter(|_| from.0 != to.0));
    let tx = with(tx, changed(edit, moved, now));
    let tx = with(tx, met.and_then(|met| changed(edit, met, now)));
    edit.store(tx)?;
    Ok(())
}

/// True if a directory is `ancestor` or lies below it.
fn is_within(edit: &Edit<'_>, dir: Ino, ancestor: Ino) -> bool {
    let mut at = Some(dir);
    while let Some(ino) = at {
        if ino == ancestor {
            return true;
        }
        at = edit.object(ino).and_then(Object::parent);
    }
    false
}
