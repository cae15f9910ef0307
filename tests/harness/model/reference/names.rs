//! Names: where paths lead, and what makes, moves, removes and lists them.

use std::collections::BTreeMap;

use nix::errno::Errno;

use super::acl::{GROUP, MASK, OTHER, OWNER, entries, value};
use super::{ACCESS, DEFAULT, EXECUTE, Id, NAME_MAX, Parent, READ, Reference, Result, WRITE};
use crate::model::op::{At, Op, Outcome};
use crate::model::users::User;

impl Reference {
    /// Does a step that is about names.
    pub(super) fn run_on_names(&mut self, user: User, op: &Op, happened: bool) -> Result<Option<Outcome>> {
        let done = Ok(Some(Outcome::done()));
        let unknown = Ok(None);
        match op {
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
            _ => Ok(None),
        }
    }

    pub(super) fn base(&self, at: &At) -> Id {
        at.dir.and_then(|slot| self.slots[slot].as_ref()).map_or(self.root, |open| open.id)
    }

    /// As `System::go`.
    pub(super) fn go(&self, at: &At) -> Result<()> {
        if self.is_dir(self.base(at)) { Ok(()) } else { Err(Errno::ENOTDIR) }
    }

    pub(super) fn lookup(&self, dir: Id, name: &str) -> Result<Id> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        self.get(dir).entries.get(name).copied().ok_or(Errno::ENOENT)
    }

    /// Walks all but the last name.
    pub(super) fn parent(&self, user: User, at: &At) -> Result<Parent> {
        self.walk(user, self.base(at), &at.path, &mut 0)
    }

    pub(super) fn walk(&self, user: User, from: Id, path: &str, followed: &mut u32) -> Result<Parent> {
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
    pub(super) fn step(&self, user: User, dir: Id, name: &str, followed: &mut u32) -> Result<Id> {
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

    pub(super) fn follow(&self, user: User, dir: Id, id: Id, followed: &mut u32) -> Result<Id> {
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
    pub(super) fn may_follow(&self, user: User, dir: Id, link: Id) -> Result<()> {
        let (dir, link) = (self.get(dir), self.get(link));
        if !self.protected_symlinks || dir.mode & 0o1002 != 0o1002 || user.ids().0 == link.uid || dir.uid == link.uid {
            return Ok(());
        }
        Err(Errno::EACCES)
    }

    pub(super) fn resolve(&self, user: User, at: &At, follow: bool) -> Result<Id> {
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
    pub(super) fn vacant(&self, user: User, parent: &Parent, is_dir: bool) -> Result<String> {
        let name = self.unused(parent, is_dir)?;
        self.may_create(user, parent.dir)?;
        Ok(name)
    }

    pub(super) fn unused(&self, parent: &Parent, is_dir: bool) -> Result<String> {
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

    pub(super) fn may_create(&self, user: User, dir: Id) -> Result<()> {
        if self.get(dir).names == 0 {
            return Err(Errno::ENOENT);
        }
        self.permit(user, dir, WRITE | EXECUTE)
    }

    pub(super) fn may_delete(&self, user: User, dir: Id, id: Id) -> Result<()> {
        self.permit(user, dir, WRITE | EXECUTE)?;
        let uid = user.ids().0;
        let (dir, node) = (self.get(dir), self.get(id));
        if dir.mode & 0o1000 != 0 && user != User::Root && uid != dir.uid && uid != node.uid {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// A new object, with what it inherits.
    pub(super) fn make(&mut self, user: User, parent: &Parent, kind: u32, mode: u32, is_dir: bool) -> Result<Id> {
        let name = self.vacant(user, parent, is_dir)?;
        Ok(self.make_in(user, parent.dir, name, kind, mode))
    }

    pub(super) fn make_in(&mut self, user: User, dir: Id, name: String, kind: u32, mode: u32) -> Id {
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

    pub(super) fn link(&mut self, user: User, id: Id, parent: &Parent) -> Result<()> {
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

    pub(super) fn remove(&mut self, dir: Id, name: &str) {
        if let Some(id) = self.get_mut(dir).entries.remove(name) {
            self.get_mut(id).names -= 1;
        }
    }

    pub(super) fn is_within(&self, mut dir: Id, ancestor: Id) -> bool {
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

    pub(super) fn rename(&mut self, user: User, from: &At, to: &At, flags: u32) -> Result<()> {
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
}
