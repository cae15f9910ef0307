//! New objects, with what they inherit from their directory.

use tensorfs_layout::log::{Attributes, Record, TARGET_MAX, Transaction};
use tensorfs_layout::pool::Edit;
use tensorfs_layout::tree::OBJECT_TAKES;
use tensorfs_layout::{Ino, SegmentId, Timestamp};

use crate::acl::{self, Acl};
use crate::caller::Caller;
use crate::clock;
use crate::error::{Fault, Result};
use crate::file::{OpenReply, Stat};
use crate::store::reserved::{PROJECT, TIER};
use crate::store::{check_attributes, touched, with};

use super::names::check_new_name;
use super::{Tree, living_directory};

/// What a client asks a new object to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct New {
    /// Type and permission bits.
    pub mode: u32,
    pub umask: u32,
    /// Device number of a device node.
    pub rdev: u32,
}

impl Tree {
    /// Makes a directory, a special file, or a regular file that is not opened yet.
    pub fn make(&self, caller: Caller, dir: Ino, name: &[u8], new: New) -> Result<Stat> {
        self.make_with(caller, (dir, name), new, OBJECT_TAKES, |_, _| {})
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, caller: Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Stat> {
        if target.len() > TARGET_MAX {
            return Err(Fault::new(libc::ENAMETOOLONG));
        }
        let new = New { mode: libc::S_IFLNK | 0o777, umask: 0, rdev: 0 };
        let takes = OBJECT_TAKES + target.len() as u64;
        let push = |tx: &mut Transaction, ino| tx.push(Record::Target { ino, target: target.into() });
        self.make_with(caller, (dir, name), new, takes, push)
    }

    /// Makes what takes so much memory.
    fn make_with(
        &self,
        caller: Caller,
        (dir, name): (Ino, &[u8]),
        new: New,
        takes: u64,
        more: impl Fn(&mut Transaction, Ino),
    ) -> Result<Stat> {
        check_new_name(name)?;
        self.files.edit(|edit| {
            self.store().memory().check(edit, caller.uid, takes)?;
            let ino = Ino(edit.next_id());
            let mut tx = new_object(edit, caller, ino, (dir, name), &new, clock::now(), None)?;
            more(&mut tx, ino);
            edit.store(tx)?;
            edit.object(ino).map(|object| Stat::of(ino, object)).ok_or(Fault::new(libc::EIO))
        })
    }

    /// Creates and opens a file.
    pub fn create(&self, caller: Caller, dir: Ino, name: &[u8], new: New, flags: i32) -> Result<(Stat, OpenReply)> {
        check_new_name(name)?;
        self.store().check_writable()?;
        // Asked again when it is stored; here it saves making a segment in vain.
        if self.store().view().lookup(dir, name).is_some() {
            return Err(Fault::new(libc::EEXIST));
        }
        let memory = self.store().memory();
        memory.check(&self.store().view(), caller.uid, OBJECT_TAKES)?;
        self.files.create(caller, (dir, name), flags, |edit, ino, segment, now| {
            memory.check(edit, caller.uid, OBJECT_TAKES)?;
            new_object(edit, caller, ino, (dir, name), &new, now, Some(segment))
        })
    }
}

/// The records of a new object and of its name, with what it inherits from its directory.
fn new_object(
    edit: &Edit<'_>,
    caller: Caller,
    ino: Ino,
    (dir, name): (Ino, &[u8]),
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
    // What has no bytes on the host counts for none.
    if let Some(project) = parent.xattr(PROJECT).filter(|_| matches!(kind, libc::S_IFDIR | libc::S_IFREG)) {
        tx.push(Record::Xattr { ino, name: PROJECT.into(), value: project.into() });
    }
    if let Some(default) = default.filter(|_| kind == libc::S_IFDIR) {
        tx.push(Record::Xattr { ino, name: acl::DEFAULT.into(), value: default.into() });
    }
    check_attributes(edit, &tx)?;
    Ok(with(tx, touched(edit, dir, clock::now())))
}
