//! Open files and their bytes.

use nix::errno::Errno;

use super::{Id, Open, PAGE, READ, Reference, Result, SIZE_MAX, WRITE};
use crate::model::fill::fill;
use crate::model::op::{At, Op, Outcome};
use crate::model::users::User;

impl Reference {
    /// Does a step that is about an open file, or about bytes.
    pub(super) fn run_on_bytes(&mut self, user: User, op: &Op, happened: bool) -> Result<Option<Outcome>> {
        let done = Ok(Some(Outcome::done()));
        let unknown = Ok(None);
        match op {
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
            _ => Ok(None),
        }
    }

    pub(super) fn open(
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
                // Where `fs.protected_regular` has its say, that comes first, of links as well.
                libc::S_IFLNK if create && !self.may_open_in_sticky(user, parent.dir, id) => return Ok(None),
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
    pub(super) fn may_open_in_sticky(&self, user: User, dir: Id, id: Id) -> bool {
        let dir = self.get(dir);
        let owner = self.get(id).uid;
        dir.mode & 0o1000 == 0 || owner == dir.uid || owner == user.ids().0
    }

    /// A descriptor of a regular file with this access. `None` if it is of something else.
    pub(super) fn regular(&self, slot: usize, wanted: u32) -> Result<Option<Open>> {
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

    pub(super) fn bytes(&self, id: Id, start: usize, len: usize) -> Vec<u8> {
        let bytes = &self.get(id).bytes;
        let start = start.min(bytes.len());
        bytes[start..(start.saturating_add(len)).min(bytes.len())].to_vec()
    }

    pub(super) fn write(&mut self, id: Id, at: usize, bytes: &[u8]) {
        let file = &mut self.get_mut(id).bytes;
        if file.len() < at + bytes.len() {
            file.resize(at + bytes.len(), 0);
        }
        file[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn truncate(&mut self, user: User, id: Id, size: i64) -> Result<Option<Outcome>> {
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
}

fn access(flags: i32) -> u32 {
    match flags & libc::O_ACCMODE {
        libc::O_RDONLY => READ,
        libc::O_WRONLY => WRITE,
        _ => READ | WRITE,
    }
}
