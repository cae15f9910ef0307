//! Changing attributes: modes, owners, times and sizes.

use tensorfs_layout::{Attributes, Ino, Object, Record, Timestamp, Transaction};

use crate::acl::{self, Acl};
use crate::attributes::Stat;
use crate::clock;
use crate::control;
use crate::error::{Fault, Host, Result};
use crate::filesystem::{Caller, Filesystem};
use crate::host;
use crate::learn::Switch;
use crate::nodes::{Node, NodeRef, Seen, State};
use crate::xattr::groups;

/// The attribute that gives a program capabilities.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

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

impl Filesystem {
    /// Changes attributes.
    pub fn setattr(&self, caller: Caller, ino: Ino, change: Change) -> Result<Stat> {
        if control::is_control(ino) {
            return Err(Fault::new(libc::EPERM));
        }
        self.check_writable()?;
        let node = self.nodes.take(ino);
        let mut state = node.lock();
        let result = self.setattr_in(caller, &node, &mut state, change);
        if state.handles() == 0 {
            self.settle(&node, &mut state, caller.unique);
        }
        result?;
        self.stat_in(ino, &state)
    }

    fn setattr_in(&self, caller: Caller, node: &NodeRef, state: &mut State, change: Change) -> Result<()> {
        let ino = node.ino;
        if let Some(size) = change.size {
            if size == 0 && state.segment.is_none() && self.gone(ino).is_some() {
                self.start_anew(caller, ino)?;
            }
            self.attach(caller, ino, state)?;
            self.drop_privileges(caller, ino)?;
            self.truncate(node, state, caller, size)?;
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
            ctime = now.max(self.set_segment_times(node, state, atime, mtime)?);
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
        let outsider = owner && self.is_outsider(caller, ino);
        self.edit(|edit| {
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

    /// Sets times on a file's segment. There they are looked up while the file is in use, and there recovery sees, if the
    /// server is killed, whether the file was written since they were recorded. Returns the segment's change time.
    pub fn set_segment_times(
        &self,
        node: &Node,
        state: &mut State,
        atime: Option<Timestamp>,
        mtime: Option<Timestamp>,
    ) -> Result<Timestamp> {
        let recorded = || self.pool.view().object(node.ino).and_then(|object| object.attributes.segment);
        let Some(segment) = state.segment.or_else(recorded) else { return Ok(clock::now()) };
        if self.pool.segments().gone(segment).is_some() {
            return Ok(clock::now());
        }
        // What was written before must not be hidden by the times that are set now.
        self.learn(node, state, 0, Switch::Leave)?;
        let fd = self.pool.segments().open(segment, libc::O_RDONLY).host("opening a segment")?;
        host::set_times(&fd, atime, mtime).host("setting a segment's times")?;
        let ctime = host::stat(&fd).host("looking at a segment")?.ctime;
        state.seen = None;
        Ok(ctime)
    }

    /// Sets a file's size in place.
    pub fn truncate(&self, node: &NodeRef, state: &mut State, caller: Caller, size: u64) -> Result<()> {
        let segment = state.segment.ok_or(Fault::new(libc::EIO))?;
        self.start_watching(node, state, segment, false)?;
        let host = self.look(state)?;
        if size < host.size && state.replace.is_none() {
            self.announce_cut(node.ino, caller, size, &host)?;
        }
        let done = self
            .pool
            .segments()
            .open(segment, libc::O_RDWR)
            .host("opening a segment")
            .and_then(|fd| host::truncate(&fd, size).host("truncating a segment"));
        // Whether it was done or not, the records shall say what is there now.
        state.seen = done.is_ok().then_some(Seen::CHANGED);
        let learned = self.learn(node, state, caller.unique, Switch::Leave);
        done.and(learned.map(|_| ()))
    }

    /// Bytes that are recorded are cut in the records first, and durably.
    fn announce_cut(&self, ino: Ino, caller: Caller, size: u64, host: &host::HostStat) -> Result<()> {
        let announced = self.edit(|edit| {
            let Some(object) = edit.object(ino).filter(|object| object.names() > 0 && object.size() > size) else {
                return Ok(false);
            };
            let Some(segment) = object.attributes.segment else { return Ok(false) };
            let offset = object.tail().0.min(size);
            let (len, allocated, cut_from) = (size - offset, host.allocated, host.size);
            let record = Record::Truncation { ino, segment, offset, len, allocated, cut_from };
            edit.store_from_reserve(Transaction::new(caller.unique).with(record))?;
            Ok(true)
        })?;
        if announced { self.commit() } else { Ok(()) }
    }

    /// True if changing the size will wait for a commit.
    pub fn cuts_recorded(&self, ino: Ino, size: u64) -> bool {
        self.is_frozen(ino, false)
            || self.pool.view().object(ino).is_some_and(|object| object.is_file() && object.size() > size)
    }

    fn is_owner(&self, caller: Caller, ino: Ino) -> bool {
        caller.uid == 0 || self.pool.view().object(ino).is_some_and(|object| object.attributes.uid == caller.uid)
    }
}
