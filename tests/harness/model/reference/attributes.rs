//! Attributes: modes, owners, times, extended attributes, and who may do what.

use nix::errno::Errno;

use super::acl::{GROUP, MASK, NAMED_GROUP, NAMED_USER, OTHER, OWNER, entries, value};
use super::{ACCESS, EXECUTE, Id, NAME_MAX, Node, Reference, Result, WRITE};
use crate::model::op::{ANY, Op, Outcome, Time};
use crate::model::users::User;

impl Reference {
    /// Does a step that is about attributes.
    pub(super) fn run_on_attributes(&mut self, user: User, op: &Op, happened: bool) -> Result<Option<Outcome>> {
        let done = Ok(Some(Outcome::done()));
        let unknown = Ok(None);
        match op {
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
            _ => Ok(None),
        }
    }

    pub(super) fn describe(&self, id: Id) -> String {
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

    pub(super) fn permit(&self, user: User, id: Id, wanted: u32) -> Result<()> {
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

    pub(super) fn chmod(&mut self, user: User, id: Id, mode: u32) -> Result<()> {
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

    pub(super) fn chown(&mut self, user: User, id: Id, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
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

    pub(super) fn drop_privileges(&mut self, user: User, id: Id) {
        let node = self.get_mut(id);
        if user != User::Root {
            node.mode = without_privileges(user, node);
        }
    }

    pub(super) fn set_xattr(&mut self, user: User, id: Id, name: &str, value: &[u8]) {
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
}

/// Set-user-id and set-group-id are taken by whoever writes or gives away, unless set-group-id means nothing there.
fn without_privileges(user: User, node: &Node) -> u32 {
    let mode = node.mode & !libc::S_ISUID;
    let outsider = user != User::Root && !user.is_in(node.gid);
    if mode & libc::S_IXGRP != 0 || outsider { mode & !libc::S_ISGID } else { mode }
}
