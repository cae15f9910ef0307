//! The reference model: a filesystem in memory, as plain as it can be. It says what comes of an operation by POSIX and
//! Linux rules (names, links, permissions, access lists, bytes), knows nothing of tensorfs, and is held against ext4 in
//! every run. Where an error depends on more than a model should know, such as which of several mistakes is told
//! first, it goes by what ext4 said, and says only what that changes.

use super::op::{ANY, At, MAPS, Op, Outcome, SLOTS, Step, Time};
use super::random::fill;
use super::users::User;
use nix::errno::Errno;
use std::collections::BTreeMap;

type Result<T> = std::result::Result<T, Errno>;

/// An object's number.
pub type Id = usize;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NAME_MAX: usize = 255;
const PAGE: usize = 4096;
/// Files that would be larger are not made, or ext4 refuses to.
const SIZE_MAX: i64 = 1 << 40;

const READ: u32 = 4;
const WRITE: u32 = 2;
const EXECUTE: u32 = 1;

/// A file, directory or other object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    kind: u32,
    /// The twelve bits.
    mode: u32,
    uid: u32,
    gid: u32,
    /// Names; of a directory, 0 once it is removed.
    names: u32,
    entries: BTreeMap<String, Id>,
    parent: Id,
    target: String,
    bytes: Vec<u8>,
    xattrs: BTreeMap<String, Vec<u8>>,
}

#[derive(Debug, Clone)]
struct Open {
    id: Id,
    flags: i32,
    offset: usize,
}

/// The filesystem.
#[derive(Debug, Clone)]
pub struct Reference {
    nodes: BTreeMap<Id, Node>,
    next: Id,
    /// Where the actor starts.
    root: Id,
    slots: [Option<Open>; SLOTS as usize],
    maps: [Option<(Id, usize)>; MAPS as usize],
    umask: u32,
    /// Links are not followed for everybody in directories that anybody can write (`fs.protected_symlinks`).
    protected_symlinks: bool,
}

/// Where a path leads, but for its last name.
#[derive(Debug, Clone)]
struct Parent {
    dir: Id,
    /// `None` if the path ends with `.`.
    name: Option<String>,
    slash: bool,
}

impl Default for Reference {
    fn default() -> Self {
        Self::new()
    }
}

impl Reference {
    /// An actor's two directories, as `System::new` makes them.
    pub fn new() -> Reference {
        let read =
            |name: &str| std::fs::read_to_string(format!("/proc/sys/fs/{name}")).is_ok_and(|text| text.trim() != "0");
        let mut reference = Reference {
            nodes: BTreeMap::new(),
            next: 0,
            root: 0,
            slots: Default::default(),
            maps: Default::default(),
            umask: 0o022,
            protected_symlinks: read("protected_symlinks"),
        };
        let outer = reference.node(libc::S_IFDIR, 0o777, 0, 0, 0);
        reference.root = reference.node(libc::S_IFDIR, 0o777, 0, 0, outer);
        let root = reference.root;
        reference.get_mut(outer).entries.insert("root".to_owned(), root);
        reference
    }

    fn node(&mut self, kind: u32, mode: u32, uid: u32, gid: u32, parent: Id) -> Id {
        let id = self.next;
        self.next += 1;
        let node = Node {
            kind,
            mode,
            uid,
            gid,
            names: 1,
            entries: BTreeMap::new(),
            parent,
            target: String::new(),
            bytes: Vec::new(),
            xattrs: BTreeMap::new(),
        };
        self.nodes.insert(id, node);
        id
    }

    fn get(&self, id: Id) -> &Node {
        &self.nodes[&id]
    }

    fn get_mut(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).expect("ids are never dangling")
    }

    fn is_dir(&self, id: Id) -> bool {
        self.get(id).kind == libc::S_IFDIR
    }

    /// Forgets what is open, when everything was closed.
    pub fn leave(&mut self) {
        self.slots = Default::default();
        self.maps = Default::default();
    }

    /// Forgets mappings.
    pub fn unmap(&mut self) {
        self.maps = Default::default();
    }

    /// Whether there is something to do the operation with.
    fn lacks(&self, op: &Op) -> bool {
        match op {
            Op::CopyRange { from, to, .. } => self.slots[*from].is_none() || self.slots[*to].is_none(),
            Op::Load { map, .. } | Op::Store { map, .. } | Op::Msync { map } | Op::Unmap { map } => {
                self.maps[*map].is_none()
            }
            _ => op.slot().is_some_and(|slot| self.slots[slot].is_none()),
        }
    }

    /// Does a step, and says what comes of it, or nothing where it does not know. `truth` is what came of it on ext4.
    pub fn apply(&mut self, step: &Step, truth: Option<&Outcome>) -> Option<Outcome> {
        if self.lacks(&step.op) {
            return Some(Outcome::Skipped);
        }
        match self.run(step.user, &step.op, truth) {
            Ok(outcome) => outcome,
            Err(errno) => Some(Outcome::Failed(errno)),
        }
    }

    fn run(&mut self, user: User, op: &Op, truth: Option<&Outcome>) -> Result<Option<Outcome>> {
        let happened = matches!(truth, Some(Outcome::Done(..)) | None);
        let done = Ok(Some(Outcome::done()));
        let unknown = Ok(None);
        match op {
            Op::Umask { mask } => {
                self.umask = *mask;
                done
            }
            Op::Open { slot, at, flags, mode } => self.open(user, *slot, at, *flags, *mode, happened),
            Op::Close { slot } => {
                self.slots[*slot] = None;
                done
            }
            Op::Read { slot, len } => {
                let Some(open) = self.regular(*slot, READ)? else { return unknown };
                let (id, start) = (open.id, open.offset);
                let bytes = self.bytes(id, start, *len);
                self.slots[*slot].as_mut().ok_or(Errno::EBADF)?.offset += bytes.len();
                Ok(Some(Outcome::Done(format!("{} bytes", bytes.len()), bytes)))
            }
            Op::Pread { slot, offset, len } => {
                let Some(open) = self.regular(*slot, READ)? else { return unknown };
                let bytes = self.bytes(open.id, usize::try_from(*offset).map_err(|_| Errno::EINVAL)?, *len);
                Ok(Some(Outcome::Done(format!("{} bytes", bytes.len()), bytes)))
            }
            Op::Write { slot, len, seed } => {
                let Some(open) = self.regular(*slot, WRITE)? else { return unknown };
                let (id, append) = (open.id, open.flags & libc::O_APPEND != 0);
                let at = if append { self.get(id).bytes.len() } else { open.offset };
                self.write(id, at, &fill(*seed, *len));
                self.slots[*slot].as_mut().ok_or(Errno::EBADF)?.offset = at + len;
                Ok(Some(Outcome::said(len)))
            }
            Op::Pwrite { slot, offset, len, seed } => {
                let Some(open) = self.regular(*slot, WRITE)? else { return unknown };
                // On Linux, O_APPEND wins over the offset.
                let (id, append) = (open.id, open.flags & libc::O_APPEND != 0);
                let at = if append { self.get(id).bytes.len() } else { *offset as usize };
                self.write(id, at, &fill(*seed, *len));
                Ok(Some(Outcome::said(len)))
            }
            Op::Seek { slot, offset, whence } => {
                let open = self.slots[*slot].clone().ok_or(Errno::EBADF)?;
                if self.is_dir(open.id) {
                    return Ok(Some(Outcome::Skipped));
                }
                if open.flags & libc::O_PATH != 0 {
                    return Err(Errno::EBADF);
                }
                if self.get(open.id).kind != libc::S_IFREG {
                    return unknown;
                }
                let base = match *whence {
                    libc::SEEK_SET => 0,
                    libc::SEEK_CUR => open.offset,
                    libc::SEEK_END => self.get(open.id).bytes.len(),
                    _ => return Err(Errno::EINVAL),
                };
                let to = usize::try_from(base as i64 + offset).map_err(|_| Errno::EINVAL)?;
                self.slots[*slot].as_mut().ok_or(Errno::EBADF)?.offset = to;
                Ok(Some(Outcome::said(to)))
            }
            Op::Ftruncate { slot, size } => {
                let Some(open) = self.slots[*slot].clone() else { return unknown };
                if open.flags & libc::O_PATH != 0 && *size >= 0 {
                    return Err(Errno::EBADF);
                }
                let writable = access(open.flags) & WRITE != 0;
                if *size < 0 || self.get(open.id).kind != libc::S_IFREG || !writable {
                    return Err(Errno::EINVAL);
                }
                self.truncate(user, open.id, *size)
            }
            Op::Truncate { at, size } => {
                self.go(at)?;
                if *size < 0 {
                    return Err(Errno::EINVAL);
                }
                let id = self.resolve(user, at, true)?;
                match self.get(id).kind {
                    libc::S_IFREG => {}
                    libc::S_IFDIR => return Err(Errno::EISDIR),
                    _ => return Err(Errno::EINVAL),
                }
                self.permit(user, id, WRITE)?;
                self.truncate(user, id, *size)
            }
            Op::Fallocate { slot, mode, offset, len } => {
                let Some(open) = self.slots[*slot].clone() else { return unknown };
                if !happened {
                    return unknown;
                }
                let (start, end) = (*offset as usize, (*offset + *len) as usize);
                self.drop_privileges(user, open.id);
                let bytes = &mut self.get_mut(open.id).bytes;
                if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && bytes.len() < end {
                    bytes.resize(end, 0);
                }
                if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 {
                    let len = bytes.len();
                    bytes[start.min(len)..end.min(len)].fill(0);
                }
                done
            }
            Op::CopyRange { from, from_offset, to, to_offset, len } => {
                let (Some(from), Some(to)) = (self.slots[*from].clone(), self.slots[*to].clone()) else {
                    return unknown;
                };
                if !happened {
                    return unknown;
                }
                let (mut at, mut left) = (0, *len);
                // As `System` does it, which asks again for what is left. A file that is copied into itself grows.
                while left > 0 {
                    let (start, end) = (*from_offset as usize + at, *to_offset as usize + at);
                    let bytes = self.bytes(from.id, start, left);
                    let overlaps = from.id == to.id && start < end + bytes.len() && end < start + bytes.len();
                    if bytes.is_empty() || overlaps {
                        break;
                    }
                    self.write(to.id, end, &bytes);
                    at += bytes.len();
                    left -= bytes.len();
                }
                Ok(Some(Outcome::said(at)))
            }
            Op::Map { map, slot, len, .. } => {
                if let (true, Some(open)) = (happened, &self.slots[*slot]) {
                    self.maps[*map] = Some((open.id, *len));
                }
                unknown
            }
            Op::Load { map, offset, len } => {
                let Some((id, size)) = self.maps[*map] else { return unknown };
                if self.get(id).kind != libc::S_IFREG {
                    return unknown;
                }
                // What is there of the last page, though nothing is promised behind the end.
                let there = self.get(id).bytes.len().next_multiple_of(PAGE).min(size);
                let wanted = (*len).min(size - (*offset).min(size));
                let got = wanted.min(there.saturating_sub(*offset));
                if got == 0 && wanted > 0 {
                    return Err(Errno::EFAULT);
                }
                let mut bytes = self.bytes(id, *offset, got);
                bytes.resize(got, 0);
                Ok(Some(Outcome::Done(format!("{got} bytes"), bytes)))
            }
            Op::Store { map, offset, len, seed } => {
                let Some((id, size)) = self.maps[*map] else { return unknown };
                if happened {
                    let bytes = fill(*seed, (*len).min(size - (*offset).min(size)));
                    let file = &mut self.get_mut(id).bytes;
                    let (start, end) = ((*offset).min(file.len()), (offset + bytes.len()).min(file.len()));
                    file[start..end].copy_from_slice(&bytes[..end - start]);
                }
                unknown
            }
            Op::Unmap { map } => {
                self.maps[*map] = None;
                done
            }
            Op::Mkdir { at, mode } => {
                let parent = self.parent(user, at)?;
                self.make(user, &parent, libc::S_IFDIR, mode & 0o1777, true)?;
                done
            }
            Op::Mknod { at, kind, mode } => {
                let parent = self.parent(user, at)?;
                let device = *kind == libc::S_IFCHR || *kind == libc::S_IFBLK;
                if device && user != User::Root {
                    self.vacant(user, &parent, false)?;
                    return Err(Errno::EPERM);
                }
                self.make(user, &parent, *kind, mode & 0o7777, false)?;
                done
            }
            Op::Symlink { target, at } => {
                let parent = self.parent(user, at)?;
                let id = self.make(user, &parent, libc::S_IFLNK, 0o777, false)?;
                self.get_mut(id).target = target.clone();
                done
            }
            Op::Link { from, to, follow } => {
                let id = self.resolve(user, from, *follow)?;
                let parent = self.parent(user, to)?;
                if !happened {
                    // `fs.protected_hardlinks` has objections of its own.
                    self.unused(&parent, false)?;
                    return unknown;
                }
                self.link(user, id, &parent)?;
                done
            }
            Op::Unlink { at } => {
                let parent = self.parent(user, at)?;
                let name = parent.name.clone().ok_or(Errno::EISDIR)?;
                let id = self.lookup(parent.dir, &name)?;
                if parent.slash {
                    return Err(if self.is_dir(id) { Errno::EISDIR } else { Errno::ENOTDIR });
                }
                self.may_delete(user, parent.dir, id)?;
                if self.is_dir(id) {
                    return Err(Errno::EISDIR);
                }
                self.remove(parent.dir, &name);
                done
            }
            Op::Rmdir { at } => {
                let parent = self.parent(user, at)?;
                let name = parent.name.clone().ok_or(Errno::EINVAL)?;
                let id = self.lookup(parent.dir, &name)?;
                self.may_delete(user, parent.dir, id)?;
                if !self.is_dir(id) {
                    return Err(Errno::ENOTDIR);
                }
                if !self.get(id).entries.is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                self.remove(parent.dir, &name);
                done
            }
            Op::Readlink { at } => {
                if at.path.is_empty() {
                    return unknown;
                }
                let id = self.resolve(user, at, false)?;
                match self.get(id).kind {
                    libc::S_IFLNK => Ok(Some(Outcome::Done(String::new(), self.get(id).target.clone().into_bytes()))),
                    _ => Err(Errno::EINVAL),
                }
            }
            Op::Rename { from, to, flags } => {
                self.rename(user, from, to, *flags)?;
                done
            }
            Op::Chmod { at, mode } => {
                let id = self.resolve(user, at, true)?;
                self.chmod(user, id, *mode)?;
                done
            }
            Op::Fchmod { slot, mode } => {
                let open =
                    self.slots[*slot].clone().filter(|open| open.flags & libc::O_PATH == 0).ok_or(Errno::EBADF)?;
                self.chmod(user, open.id, *mode)?;
                done
            }
            Op::Chown { at, uid, gid, follow } => {
                let id = self.resolve(user, at, *follow)?;
                self.chown(user, id, *uid, *gid)?;
                done
            }
            Op::Fchown { slot, uid, gid } => {
                let open =
                    self.slots[*slot].clone().filter(|open| open.flags & libc::O_PATH == 0).ok_or(Errno::EBADF)?;
                self.chown(user, open.id, *uid, *gid)?;
                done
            }
            Op::Utimens { at, atime, mtime, follow } => {
                if (*atime, *mtime) == (Time::Omit, Time::Omit) {
                    return done;
                }
                let id = self.resolve(user, at, *follow)?;
                if user != User::Root && user.ids().0 != self.get(id).uid {
                    if (*atime, *mtime) != (Time::Now, Time::Now) {
                        return Err(Errno::EPERM);
                    }
                    self.permit(user, id, WRITE)?;
                }
                done
            }
            Op::SetXattr { at, name, value, follow, .. } => {
                self.go(at)?;
                if name.len() > NAME_MAX {
                    return Err(Errno::ERANGE);
                }
                let id = self.resolve(user, at, *follow)?;
                if happened {
                    self.set_xattr(user, id, name, value);
                }
                unknown
            }
            Op::FsetXattr { slot, name, value } => {
                if let (true, Some(open)) = (happened, self.slots[*slot].clone()) {
                    self.set_xattr(user, open.id, name, value);
                }
                unknown
            }
            Op::RemoveXattr { at, name, follow } => {
                self.go(at)?;
                if name.len() > NAME_MAX {
                    return Err(Errno::ERANGE);
                }
                let id = self.resolve(user, at, *follow)?;
                if happened {
                    self.get_mut(id).xattrs.remove(name);
                }
                unknown
            }
            Op::GetXattr { at, name, room, follow } => {
                self.go(at)?;
                if name.len() > NAME_MAX {
                    return Err(Errno::ERANGE);
                }
                let id = self.resolve(user, at, *follow)?;
                match self.get(id).xattrs.get(name) {
                    Some(value) if happened => {
                        let shown = if *room == 0 { Vec::new() } else { value.clone() };
                        Ok(Some(Outcome::Done(value.len().to_string(), shown)))
                    }
                    None if happened => Err(Errno::ENODATA),
                    _ => unknown,
                }
            }
            Op::FgetXattr { slot, name } => {
                let Some(open) = self.slots[*slot].clone().filter(|_| happened) else { return unknown };
                let value = self.get(open.id).xattrs.get(name).cloned().ok_or(Errno::ENODATA)?;
                Ok(Some(Outcome::Done(value.len().to_string(), value)))
            }
            Op::ListXattr { at, follow } => {
                self.go(at)?;
                let id = self.resolve(user, at, *follow)?;
                let visible = |name: &&String| user == User::Root || !name.starts_with("trusted.");
                let names: Vec<&String> = self.get(id).xattrs.keys().filter(visible).collect();
                Ok(Some(Outcome::said(format_args!("{names:?}"))))
            }
            Op::Stat { at, follow } => {
                let id = self.resolve(user, at, *follow)?;
                Ok(Some(Outcome::said(self.describe(id))))
            }
            Op::Fstat { slot } => {
                let open = self.slots[*slot].as_ref().ok_or(Errno::EBADF)?;
                Ok(Some(Outcome::said(self.describe(open.id))))
            }
            Op::Access { at, mask } => {
                let id = self.resolve(user, at, true)?;
                self.permit(user, id, *mask as u32)?;
                done
            }
            Op::List { at, .. } => {
                let id = self.resolve(user, at, true)?;
                if !self.is_dir(id) {
                    return Err(Errno::ENOTDIR);
                }
                self.permit(user, id, READ)?;
                let mut entries: BTreeMap<&str, u32> =
                    self.get(id).entries.iter().map(|(name, id)| (name.as_str(), self.get(*id).kind >> 12)).collect();
                if self.get(id).names > 0 {
                    entries.extend([(".", 4), ("..", 4)]);
                }
                let texts: Vec<String> = entries.iter().map(|(name, kind)| format!("{name:?}/{kind}")).collect();
                Ok(Some(Outcome::said(texts.join(" "))))
            }
            Op::SeekHole { .. }
            | Op::Fsync { .. }
            | Op::Msync { .. }
            | Op::Futimens { .. }
            | Op::Statfs { .. }
            | Op::Flock { .. }
            | Op::RangeLock { .. } => unknown,
        }
    }

    // --- names -----------------------------------------------------------------------------------

    fn base(&self, at: &At) -> Id {
        at.dir.and_then(|slot| self.slots[slot].as_ref()).map_or(self.root, |open| open.id)
    }

    /// As `System::go`.
    fn go(&self, at: &At) -> Result<()> {
        if self.is_dir(self.base(at)) { Ok(()) } else { Err(Errno::ENOTDIR) }
    }

    fn lookup(&self, dir: Id, name: &str) -> Result<Id> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        self.get(dir).entries.get(name).copied().ok_or(Errno::ENOENT)
    }

    /// Walks all but the last name.
    fn parent(&self, user: User, at: &At) -> Result<Parent> {
        self.walk(user, self.base(at), &at.path, &mut 0)
    }

    fn walk(&self, user: User, from: Id, path: &str, followed: &mut u32) -> Result<Parent> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() >= 4096 {
            return Err(Errno::ENAMETOOLONG);
        }
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        let (last, before) = names.split_last().ok_or(Errno::EINVAL)?;
        let mut dir = from;
        for name in before {
            dir = self.step(user, dir, name, followed)?;
        }
        if !self.is_dir(dir) {
            return Err(Errno::ENOTDIR);
        }
        self.permit(user, dir, EXECUTE)?;
        let name = (*last != ".").then(|| (*last).to_owned());
        Ok(Parent { dir, name, slash: path.ends_with('/') })
    }

    /// One name, which must be a directory's or lead to one.
    fn step(&self, user: User, dir: Id, name: &str, followed: &mut u32) -> Result<Id> {
        if !self.is_dir(dir) {
            return Err(Errno::ENOTDIR);
        }
        self.permit(user, dir, EXECUTE)?;
        let next = match name {
            "." => dir,
            ".." => self.get(dir).parent,
            _ => self.lookup(dir, name)?,
        };
        let next = self.follow(user, dir, next, followed)?;
        if self.is_dir(next) { Ok(next) } else { Err(Errno::ENOTDIR) }
    }

    fn follow(&self, user: User, dir: Id, id: Id, followed: &mut u32) -> Result<Id> {
        if self.get(id).kind != libc::S_IFLNK {
            return Ok(id);
        }
        *followed += 1;
        if *followed > 40 {
            return Err(Errno::ELOOP);
        }
        self.may_follow(user, dir, id)?;
        let parent = self.walk(user, dir, &self.get(id).target, followed)?;
        let Some(name) = parent.name else { return Ok(parent.dir) };
        let next = if name == ".." { self.get(parent.dir).parent } else { self.lookup(parent.dir, &name)? };
        self.follow(user, parent.dir, next, followed)
    }

    /// In a sticky directory that anybody can write, a link is followed by its owner, or if the directory is of the
    /// same owner.
    fn may_follow(&self, user: User, dir: Id, link: Id) -> Result<()> {
        let (dir, link) = (self.get(dir), self.get(link));
        if !self.protected_symlinks || dir.mode & 0o1002 != 0o1002 || user.ids().0 == link.uid || dir.uid == link.uid {
            return Ok(());
        }
        Err(Errno::EACCES)
    }

    fn resolve(&self, user: User, at: &At, follow: bool) -> Result<Id> {
        let mut followed = 0;
        let parent = self.walk(user, self.base(at), &at.path, &mut followed)?;
        let Some(name) = &parent.name else { return Ok(parent.dir) };
        let mut id = self.lookup(parent.dir, name)?;
        if follow || parent.slash {
            id = self.follow(user, parent.dir, id, &mut followed)?;
        }
        if parent.slash && !self.is_dir(id) {
            return Err(Errno::ENOTDIR);
        }
        Ok(id)
    }

    /// Objections to a new name.
    fn vacant(&self, user: User, parent: &Parent, is_dir: bool) -> Result<String> {
        let name = self.unused(parent, is_dir)?;
        self.may_create(user, parent.dir)?;
        Ok(name)
    }

    fn unused(&self, parent: &Parent, is_dir: bool) -> Result<String> {
        let name = parent.name.as_ref().ok_or(Errno::EEXIST)?;
        match self.lookup(parent.dir, name) {
            Ok(_) => return Err(Errno::EEXIST),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        if parent.slash && !is_dir {
            return Err(Errno::ENOENT);
        }
        Ok(name.clone())
    }

    fn may_create(&self, user: User, dir: Id) -> Result<()> {
        if self.get(dir).names == 0 {
            return Err(Errno::ENOENT);
        }
        self.permit(user, dir, WRITE | EXECUTE)
    }

    fn may_delete(&self, user: User, dir: Id, id: Id) -> Result<()> {
        self.permit(user, dir, WRITE | EXECUTE)?;
        let uid = user.ids().0;
        let (dir, node) = (self.get(dir), self.get(id));
        if dir.mode & 0o1000 != 0 && user != User::Root && uid != dir.uid && uid != node.uid {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// A new object, with what it inherits.
    fn make(&mut self, user: User, parent: &Parent, kind: u32, mode: u32, is_dir: bool) -> Result<Id> {
        let name = self.vacant(user, parent, is_dir)?;
        Ok(self.make_in(user, parent.dir, name, kind, mode))
    }

    fn make_in(&mut self, user: User, dir: Id, name: String, kind: u32, mode: u32) -> Id {
        let (uid, mut gid, _) = user.ids();
        let mut mode = mode;
        let above = self.get(dir).clone();
        if above.mode & libc::S_ISGID != 0 {
            gid = above.gid;
            let runs = libc::S_ISGID | libc::S_IXGRP;
            if kind == libc::S_IFDIR {
                mode |= libc::S_ISGID;
            } else if mode & runs == runs && user != User::Root && !user.is_in(gid) {
                mode &= !libc::S_ISGID;
            }
        }
        let default = above.xattrs.get(DEFAULT).filter(|_| kind != libc::S_IFLNK).cloned();
        let mut access = None;
        match &default {
            Some(default) => {
                let mut list = entries(default);
                let masked = list.iter().any(|entry| entry.tag == MASK);
                for entry in &mut list {
                    let shift = match entry.tag {
                        OWNER => 6,
                        MASK => 3,
                        GROUP if !masked => 3,
                        OTHER => 0,
                        _ => continue,
                    };
                    entry.bits &= (mode >> shift & 7) as u16;
                    mode = mode & !(7 << shift) | u32::from(entry.bits) << shift;
                }
                if list.len() > 3 {
                    access = Some(value(&list));
                }
            }
            None if kind != libc::S_IFLNK => mode &= !self.umask,
            None => {}
        }
        let id = self.node(kind, mode, uid, gid, dir);
        if let Some(access) = access {
            self.get_mut(id).xattrs.insert(ACCESS.to_owned(), access);
        }
        if let Some(default) = default.filter(|_| kind == libc::S_IFDIR) {
            self.get_mut(id).xattrs.insert(DEFAULT.to_owned(), default);
        }
        self.get_mut(dir).entries.insert(name, id);
        id
    }

    fn link(&mut self, user: User, id: Id, parent: &Parent) -> Result<()> {
        let name = self.vacant(user, parent, false)?;
        if self.is_dir(id) {
            return Err(Errno::EPERM);
        }
        if self.get(id).names == 0 {
            return Err(Errno::ENOENT);
        }
        self.get_mut(id).names += 1;
        self.get_mut(parent.dir).entries.insert(name, id);
        Ok(())
    }

    fn remove(&mut self, dir: Id, name: &str) {
        if let Some(id) = self.get_mut(dir).entries.remove(name) {
            self.get_mut(id).names -= 1;
        }
    }

    fn is_within(&self, mut dir: Id, ancestor: Id) -> bool {
        loop {
            if dir == ancestor {
                return true;
            }
            let parent = self.get(dir).parent;
            if parent == dir {
                return false;
            }
            dir = parent;
        }
    }

    fn rename(&mut self, user: User, from: &At, to: &At, flags: u32) -> Result<()> {
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0 || flags.count_ones() > 1 {
            return Err(Errno::EINVAL);
        }
        let from = self.parent(user, from)?;
        let to = self.parent(user, to)?;
        let noreplace = flags & libc::RENAME_NOREPLACE != 0;
        let old = from.name.clone().ok_or(Errno::EBUSY)?;
        let new = to.name.clone().ok_or(if noreplace { Errno::EEXIST } else { Errno::EBUSY })?;
        let moved = self.lookup(from.dir, &old)?;
        let met = match self.lookup(to.dir, &new) {
            Ok(_) if noreplace => return Err(Errno::EEXIST),
            Ok(met) => Some(met),
            Err(Errno::ENOENT) if !exchange => None,
            Err(errno) => return Err(errno),
        };
        if exchange && to.slash && met.is_some_and(|met| !self.is_dir(met)) {
            return Err(Errno::ENOTDIR);
        }
        if !self.is_dir(moved) && (from.slash || (to.slash && !exchange)) {
            return Err(Errno::ENOTDIR);
        }
        if self.is_dir(moved) && self.is_within(to.dir, moved) {
            return Err(Errno::EINVAL);
        }
        if met.is_some_and(|met| self.is_dir(met) && self.is_within(from.dir, met)) {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        if met == Some(moved) {
            return Ok(());
        }
        self.may_delete(user, from.dir, moved)?;
        match met {
            None => self.may_create(user, to.dir)?,
            Some(met) => {
                self.may_delete(user, to.dir, met)?;
                if !exchange && self.is_dir(moved) && !self.is_dir(met) {
                    return Err(Errno::ENOTDIR);
                }
                if !exchange && !self.is_dir(moved) && self.is_dir(met) {
                    return Err(Errno::EISDIR);
                }
            }
        }
        if from.dir != to.dir {
            // `..` changes.
            if self.is_dir(moved) {
                self.permit(user, moved, WRITE)?;
            }
            if let Some(met) = met.filter(|met| exchange && self.is_dir(*met)) {
                self.permit(user, met, WRITE)?;
            }
        }
        if let Some(met) = met.filter(|_| !exchange) {
            if !self.get(met).entries.is_empty() {
                return Err(Errno::ENOTEMPTY);
            }
            self.remove(to.dir, &new);
        }
        self.get_mut(from.dir).entries.remove(&old);
        self.get_mut(to.dir).entries.insert(new, moved);
        if self.is_dir(moved) {
            self.get_mut(moved).parent = to.dir;
        }
        if let Some(met) = met.filter(|_| exchange) {
            self.get_mut(from.dir).entries.insert(old, met);
            if self.is_dir(met) {
                self.get_mut(met).parent = from.dir;
            }
        }
        Ok(())
    }

    // --- opening, and bytes ----------------------------------------------------------------------

    fn open(
        &mut self,
        user: User,
        slot: usize,
        at: &At,
        flags: i32,
        mode: u32,
        happened: bool,
    ) -> Result<Option<Outcome>> {
        let path_only = flags & libc::O_PATH != 0;
        let create = flags & libc::O_CREAT != 0;
        let exclusive = create && flags & libc::O_EXCL != 0;
        let mut followed = 0;
        let mut parent = self.walk(user, self.base(at), &at.path, &mut followed)?;
        let mut created = false;
        let id = loop {
            let Some(name) = parent.name.clone() else { break parent.dir };
            if create && parent.slash {
                return Err(Errno::EISDIR);
            }
            let found = if name == ".." { Ok(self.get(parent.dir).parent) } else { self.lookup(parent.dir, &name) };
            match found {
                Err(Errno::ENOENT) if create => {
                    self.may_create(user, parent.dir)?;
                    created = true;
                    break self.make_in(user, parent.dir, name, libc::S_IFREG, mode & 0o7777);
                }
                Err(errno) => return Err(errno),
                Ok(id) if self.get(id).kind == libc::S_IFLNK && !exclusive => {
                    if flags & libc::O_NOFOLLOW != 0 && !parent.slash {
                        break id;
                    }
                    followed += 1;
                    if followed > 40 {
                        return Err(Errno::ELOOP);
                    }
                    self.may_follow(user, parent.dir, id)?;
                    let slash = parent.slash;
                    parent = self.walk(user, parent.dir, &self.get(id).target.clone(), &mut followed)?;
                    parent.slash |= slash;
                }
                Ok(id) => break id,
            }
        };
        let kind = self.get(id).kind;
        if !created {
            if exclusive {
                return Err(Errno::EEXIST);
            }
            if create && kind == libc::S_IFDIR {
                return Err(Errno::EISDIR);
            }
            if (flags & libc::O_DIRECTORY != 0 || parent.slash) && kind != libc::S_IFDIR {
                return Err(Errno::ENOTDIR);
            }
        }
        if !path_only && !created {
            let mut wanted = access(flags);
            if flags & libc::O_TRUNC != 0 {
                wanted |= WRITE;
            }
            match kind {
                libc::S_IFLNK => return Err(Errno::ELOOP),
                libc::S_IFDIR if wanted & WRITE != 0 => return Err(Errno::EISDIR),
                libc::S_IFREG | libc::S_IFDIR => {}
                // A FIFO may have no other end, a device may not be opened.
                _ => {
                    if happened {
                        self.slots[slot] = Some(Open { id, flags, offset: 0 });
                    }
                    return Ok(None);
                }
            }
            if !happened && create && !self.may_open_in_sticky(user, parent.dir, id) {
                return Ok(None);
            }
            self.permit(user, id, wanted)?;
            if flags & libc::O_NOATIME != 0 && user != User::Root && user.ids().0 != self.get(id).uid {
                return Err(Errno::EPERM);
            }
            if kind == libc::S_IFREG {
                if access(flags) & WRITE != 0 || flags & libc::O_TRUNC != 0 {
                    self.drop_privileges(user, id);
                }
                if flags & libc::O_TRUNC != 0 {
                    self.get_mut(id).bytes.clear();
                }
            }
        }
        self.slots[slot] = Some(Open { id, flags, offset: 0 });
        Ok(Some(Outcome::done()))
    }

    /// What `fs.protected_regular` may object to.
    fn may_open_in_sticky(&self, user: User, dir: Id, id: Id) -> bool {
        let dir = self.get(dir);
        let owner = self.get(id).uid;
        dir.mode & 0o1000 == 0 || owner == dir.uid || owner == user.ids().0
    }

    /// A descriptor of a regular file with this access. `None` if it is of something else.
    fn regular(&self, slot: usize, wanted: u32) -> Result<Option<Open>> {
        let Some(open) = self.slots[slot].clone() else { return Ok(None) };
        if ![libc::S_IFREG, libc::S_IFDIR].contains(&self.get(open.id).kind) {
            return Ok(None);
        }
        if open.flags & libc::O_PATH != 0 || access(open.flags) & wanted == 0 {
            return Err(Errno::EBADF);
        }
        match self.get(open.id).kind {
            libc::S_IFDIR => Err(Errno::EISDIR),
            _ => Ok(Some(open)),
        }
    }

    fn bytes(&self, id: Id, start: usize, len: usize) -> Vec<u8> {
        let bytes = &self.get(id).bytes;
        let start = start.min(bytes.len());
        bytes[start..(start.saturating_add(len)).min(bytes.len())].to_vec()
    }

    fn write(&mut self, id: Id, at: usize, bytes: &[u8]) {
        let file = &mut self.get_mut(id).bytes;
        if file.len() < at + bytes.len() {
            file.resize(at + bytes.len(), 0);
        }
        file[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn truncate(&mut self, user: User, id: Id, size: i64) -> Result<Option<Outcome>> {
        if size > SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        self.drop_privileges(user, id);
        self.get_mut(id).bytes.resize(size as usize, 0);
        Ok(Some(Outcome::done()))
    }

    /// The size of what is mapped.
    pub fn mapped_size(&self, map: usize) -> Option<usize> {
        self.maps[map].map(|(id, _)| self.get(id).bytes.len())
    }

    // --- attributes ------------------------------------------------------------------------------

    fn describe(&self, id: Id) -> String {
        let node = self.get(id);
        let links = match node.kind {
            libc::S_IFDIR if node.names == 0 => 0,
            libc::S_IFDIR => 2 + node.entries.values().filter(|id| self.is_dir(**id)).count() as u32,
            _ => node.names,
        };
        let device = match node.kind {
            libc::S_IFCHR => nix::sys::stat::makedev(1, 3),
            libc::S_IFBLK => nix::sys::stat::makedev(7, 0),
            _ => 0,
        };
        let size = match node.kind {
            libc::S_IFDIR => String::new(),
            libc::S_IFLNK => format!(" size {}", node.target.len()),
            _ => format!(" size {}", node.bytes.len()),
        };
        format!("{:o} {}:{} links {links} rdev {device}{size} mtime {ANY}", node.kind | node.mode, node.uid, node.gid)
    }

    fn permit(&self, user: User, id: Id, wanted: u32) -> Result<()> {
        let node = self.get(id);
        if user == User::Root {
            let runs = node.kind == libc::S_IFDIR || node.mode & 0o111 != 0;
            return if wanted & EXECUTE == 0 || runs { Ok(()) } else { Err(Errno::EACCES) };
        }
        let allowed = |bits: u32| if bits & wanted == wanted { Ok(()) } else { Err(Errno::EACCES) };
        let (owner, group, other) = (node.mode >> 6 & 7, node.mode >> 3 & 7, node.mode & 7);
        let uid = user.ids().0;
        if uid == node.uid {
            return allowed(owner);
        }
        let Some(list) = node.xattrs.get(ACCESS).filter(|_| group != 0) else {
            return allowed(if user.is_in(node.gid) { group } else { other });
        };
        let list = entries(list);
        let mask = list.iter().find(|entry| entry.tag == MASK).map_or(7, |entry| u32::from(entry.bits));
        let mut met = false;
        for entry in &list {
            let bits = u32::from(entry.bits);
            match entry.tag {
                NAMED_USER if entry.id == uid => return allowed(bits & mask),
                GROUP if user.is_in(node.gid) => met = true,
                NAMED_GROUP if user.is_in(entry.id) => met = true,
                _ => continue,
            }
            if bits & wanted == wanted {
                return allowed(bits & mask);
            }
        }
        if met { Err(Errno::EACCES) } else { allowed(other) }
    }

    fn chmod(&mut self, user: User, id: Id, mode: u32) -> Result<()> {
        let node = self.get_mut(id);
        if user != User::Root && user.ids().0 != node.uid {
            return Err(Errno::EPERM);
        }
        node.mode = mode & 0o7777;
        if user != User::Root && !user.is_in(node.gid) {
            node.mode &= !libc::S_ISGID;
        }
        if let Some(list) = node.xattrs.get_mut(ACCESS) {
            let mut changed = entries(list);
            let group = if changed.iter().any(|entry| entry.tag == MASK) { MASK } else { GROUP };
            for entry in &mut changed {
                match entry.tag {
                    OWNER => entry.bits = (mode >> 6 & 7) as u16,
                    OTHER => entry.bits = (mode & 7) as u16,
                    tag if tag == group => entry.bits = (mode >> 3 & 7) as u16,
                    _ => {}
                }
            }
            *list = value(&changed);
        }
        Ok(())
    }

    fn chown(&mut self, user: User, id: Id, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let node = self.get_mut(id);
        let owns = user.ids().0 == node.uid;
        let privileges = node.mode & !without_privileges(user, node);
        if user != User::Root {
            let may_give = uid.is_none_or(|uid| owns && uid == node.uid);
            let may_group = gid.is_none_or(|gid| owns && (user.is_in(gid) || gid == node.gid));
            // Who takes bits away changes the mode.
            let may_take = privileges == 0 || node.kind == libc::S_IFDIR || owns;
            if !may_give || !may_group || !may_take {
                return Err(Errno::EPERM);
            }
        }
        if node.kind != libc::S_IFDIR {
            node.mode &= !privileges;
        }
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
        Ok(())
    }

    fn drop_privileges(&mut self, user: User, id: Id) {
        let node = self.get_mut(id);
        if user != User::Root {
            node.mode = without_privileges(user, node);
        }
    }

    fn set_xattr(&mut self, user: User, id: Id, name: &str, value: &[u8]) {
        let node = self.get_mut(id);
        if name == ACCESS {
            let list = entries(value);
            let bits = |tag| list.iter().find(|entry| entry.tag == tag).map(|entry| u32::from(entry.bits));
            let group = bits(MASK).or(bits(GROUP)).unwrap_or(0);
            node.mode = node.mode & !0o777 | bits(OWNER).unwrap_or(0) << 6 | group << 3 | bits(OTHER).unwrap_or(0);
            if user != User::Root && !user.is_in(node.gid) {
                node.mode &= !libc::S_ISGID;
            }
            if list.iter().all(|entry| [OWNER, GROUP, OTHER].contains(&entry.tag)) {
                node.xattrs.remove(ACCESS);
                return;
            }
        }
        node.xattrs.insert(name.to_owned(), value.to_vec());
    }

    /// Everything below the actor's directory, as `System::snapshot` tells it: path and the part of the description
    /// that the model knows.
    pub fn snapshot(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        let mut todo = vec![(String::new(), 0)];
        while let Some((path, id)) = todo.pop() {
            all.insert(path.clone(), self.describe(id));
            todo.extend(self.get(id).entries.iter().map(|(name, id)| {
                let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                (below, *id)
            }));
        }
        all
    }

    /// Paths of what is there, and whether each is a directory. For a generator that wants to meet something.
    pub fn paths(&self) -> Vec<(String, bool)> {
        let mut all = Vec::new();
        let mut todo = vec![(String::new(), self.root)];
        while let Some((path, id)) = todo.pop() {
            for (name, below) in &self.get(id).entries {
                let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                all.push((path.clone(), self.is_dir(*below)));
                todo.push((path, *below));
            }
        }
        all
    }

    /// Slots and mappings that are in use, and of the slots those of regular files.
    pub fn in_use(&self) -> (Vec<usize>, Vec<usize>, Vec<usize>) {
        let slots: Vec<usize> = (0..self.slots.len()).filter(|slot| self.slots[*slot].is_some()).collect();
        let is_file =
            |slot: &usize| self.slots[*slot].as_ref().is_some_and(|open| self.get(open.id).kind == libc::S_IFREG);
        let files = slots.iter().copied().filter(is_file).collect();
        (slots, files, (0..self.maps.len()).filter(|map| self.maps[*map].is_some()).collect())
    }
}

fn access(flags: i32) -> u32 {
    match flags & libc::O_ACCMODE {
        libc::O_RDONLY => READ,
        libc::O_WRONLY => WRITE,
        _ => READ | WRITE,
    }
}

/// Set-user-id and set-group-id are taken by whoever writes or gives away, unless set-group-id means nothing there.
fn without_privileges(user: User, node: &Node) -> u32 {
    let mode = node.mode & !libc::S_ISUID;
    let outsider = user != User::Root && !user.is_in(node.gid);
    if mode & libc::S_IXGRP != 0 || outsider { mode & !libc::S_ISGID } else { mode }
}

// --- access lists --------------------------------------------------------------------------------

const OWNER: u16 = 0x01;
const NAMED_USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const NAMED_GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

struct Entry {
    tag: u16,
    bits: u16,
    id: u32,
}

fn entries(value: &[u8]) -> Vec<Entry> {
    let entry = |bytes: &[u8]| Entry {
        tag: u16::from_le_bytes([bytes[0], bytes[1]]),
        bits: u16::from_le_bytes([bytes[2], bytes[3]]),
        id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    value.get(4..).unwrap_or_default().chunks_exact(8).map(entry).collect()
}

fn value(entries: &[Entry]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for entry in entries {
        value.extend(entry.tag.to_le_bytes());
        value.extend(entry.bits.to_le_bytes());
        value.extend(entry.id.to_le_bytes());
    }
    value
}
