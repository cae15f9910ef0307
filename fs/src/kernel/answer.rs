//! What came of a request, in fuser's terms.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::result::Result;
use std::time::Duration;

use fuser::{
    Errno, FileHandle, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};

use crate::content::control;
use crate::file::{LONG, Listed, ListedPlus, OpenReply, Stat};
use crate::store::{BLOCK, Space};

use super::convert::{file_attr, file_type, fopen_flags, nothing};
use super::filesystem::Found;

/// Inode numbers are never used again, so they need no generations.
const GENERATION: Generation = Generation(0);

pub(super) fn lookup(reply: ReplyEntry, found: Result<Found, Errno>) {
    match found {
        Ok(Found::Is(stat)) => entry(reply, Ok(stat)),
        Ok(Found::IsNow(stat)) => reply.entry(&Duration::ZERO, &file_attr(&stat), GENERATION),
        // Node 0 tells the kernel that there is nothing, and that it may remember that.
        Ok(Found::Nothing) => reply.entry(&LONG, &nothing(), GENERATION),
        Ok(Found::NothingYet | Found::MustRead) => reply.error(Errno::ENOENT),
        Err(errno) => reply.error(errno),
    }
}

pub(super) fn entry(reply: ReplyEntry, made: Result<Stat, Errno>) {
    match made {
        Ok(stat) => {
            reply.entry_with_ttls(&stat.ttl(), &control::name_ttl(stat.ino), &file_attr(&stat), GENERATION);
        }
        Err(errno) => reply.error(errno),
    }
}

pub(super) fn attr(reply: ReplyAttr, stat: Result<Stat, Errno>) {
    match stat {
        Ok(stat) => reply.attr(&stat.ttl(), &file_attr(&stat)),
        Err(errno) => reply.error(errno),
    }
}

pub(super) fn empty(reply: ReplyEmpty, done: Result<(), Errno>) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

pub(super) fn open(reply: ReplyOpen, opened: Result<OpenReply, Errno>) {
    match opened {
        Ok(OpenReply { handle, manner, backing: Some(backing) }) => {
            // SAFETY: the number is of this session, and ours until `backing` is dropped; it is not closed here.
            let id = unsafe { reply.wrap_backing(backing.id()) };
            reply.opened_passthrough(FileHandle(handle), fopen_flags(manner), &id);
            id.into_raw();
        }
        Ok(OpenReply { handle, manner, backing: None }) => reply.opened(FileHandle(handle), fopen_flags(manner)),
        Err(errno) => reply.error(errno),
    }
}

/// One time to live counts for the name and the attributes here, and a name's is long: the kernel knows of all writes
/// but those through a mapping, which are told to it.
pub(super) fn create(reply: ReplyCreate, created: Result<(Stat, OpenReply), Errno>) {
    match created {
        Ok((stat, OpenReply { handle, manner, backing: Some(backing) })) => {
            let (attr, flags) = (file_attr(&stat), fopen_flags(manner));
            // SAFETY: the number is of this session, and ours until `backing` is dropped; it is not closed here.
            let id = unsafe { reply.wrap_backing(backing.id()) };
            reply.created_passthrough(&LONG, &attr, GENERATION, FileHandle(handle), flags, &id);
            id.into_raw();
        }
        Ok((stat, OpenReply { handle, manner, backing: None })) => {
            reply.created(&LONG, &file_attr(&stat), GENERATION, FileHandle(handle), fopen_flags(manner));
        }
        Err(errno) => reply.error(errno),
    }
}

pub(super) fn written(reply: ReplyWrite, count: Result<u32, Errno>) {
    match count {
        Ok(count) => reply.written(count),
        Err(errno) => reply.error(errno),
    }
}

pub(super) fn ioctl(reply: ReplyIoctl, answered: Result<Vec<u8>, Errno>) {
    match answered {
        Ok(bytes) => reply.ioctl(bytes.len() as i32, &bytes),
        Err(errno) => reply.error(errno),
    }
}

/// A `size` of 0 asks how long the value is.
pub(super) fn xattr(reply: ReplyXattr, size: u32, value: Result<Vec<u8>, Errno>) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno),
    }
}

pub(super) fn statfs(reply: ReplyStatfs, space: Result<Space, Errno>) {
    match space {
        Ok(space) => reply.statfs(
            space.total / BLOCK,
            space.free / BLOCK,
            space.available / BLOCK,
            space.objects,
            space.free_objects,
            BLOCK as u32,
            tensorfs_layout::log::NAME_MAX as u32,
            BLOCK as u32,
        ),
        Err(errno) => reply.error(errno),
    }
}

/// Adds a name to a listing; true if that is full.
pub(super) fn add_entry(reply: &mut ReplyDirectory, entry: &Listed<'_>) -> bool {
    reply.add(INodeNo(entry.ino.0), entry.cookie, file_type(entry.kind), OsStr::from_bytes(entry.name))
}

/// Adds a name and what it stands for to a listing; true if that is full.
///
/// Where it is not known what that looks like, the kernel is to list the name and nothing else: so it does with what
/// has a size that cannot be (`fuse_direntplus_link` of its `fs/fuse/readdir.c`, since 5.5), and asks for the file
/// itself once somebody wants to know. It sends FORGET for it then, which says
/// nothing.
pub(super) fn add_entry_plus(reply: &mut ReplyDirectoryPlus, entry: &ListedPlus<'_>) -> bool {
    let mut attr = file_attr(entry.stat);
    if !entry.known {
        attr.size = u64::MAX;
    }
    reply.add(attr.ino, entry.cookie, OsStr::from_bytes(entry.name), &entry.stat.ttl(), &attr, GENERATION)
}
