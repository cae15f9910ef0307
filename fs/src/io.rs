//! Bytes that go through the server: files in server mode, and what the kernel sends here in every mode.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuser::WriteFlags;
use nix::fcntl::FallocateFlags;
use nix::unistd::Whence;
use tensorfs_layout::{Ino, Record, SegmentId, Transaction};

use crate::control::Who;
use crate::error::{Fault, Host, Result, is_no_space};
use crate::filesystem::{Caller, Filesystem};
use crate::handles::{Handle, Opened};
use crate::host;
use crate::mode::{Mode, is_synchronous};
use crate::nodes::Seen;
use crate::open::Tell;
use crate::options::Durability;

/// A copy that the host cannot share moves so much per request, so that a client can be interrupted in between.
const COPY_STEP: u64 = 128 << 20;

/// Sharing goes by whole blocks of the host: this is what ext4, XFS and Btrfs use on common machines.
const HOST_BLOCK: u64 = 4096;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A write as the kernel sends it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteRequest {
    /// Whose files the handle is among, if the kernel says.
    pub who: Option<Who>,
    pub handle: u64,
    pub offset: u64,
    pub write_flags: WriteFlags,
    /// The handle's flags, as they are now.
    pub flags: i32,
}

/// What became of a write.
pub(crate) struct Written {
    pub count: u32,
    /// The file to make durable before the write is answered.
    pub durable: Option<Arc<Handle>>,
}

impl Filesystem {
    /// Reads, and hands what was read to `take`. `flags` are the handle's, as they are now.
    pub fn read<T>(&self, handle: u64, offset: u64, size: u32, flags: i32, take: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let handle = match self.handles.get(handle)? {
            Opened::File(handle) => handle,
            Opened::Control(content) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
                let end = start.saturating_add(size as usize).min(content.len());
                return Ok(take(&content[start..end]));
            }
            Opened::Tensor(tensor) => return Ok(take(&tensor.read(self, offset, size)?)),
            Opened::Draft(draft) => return Ok(take(&draft.read(offset, size))),
        };
        let fd = if flags & libc::O_NOATIME != 0 {
            let segment = handle.node.lock().segment.ok_or(Fault::new(libc::EIO))?;
            let unnoticed = self.pool.segments().open(segment, libc::O_RDONLY | libc::O_NOATIME);
            Arc::new(unnoticed.host("opening a segment")?)
        } else {
            self.segment_of(&handle, false)?.1
        };
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size as usize {
                buffer.resize(size as usize, 0);
            }
            let read = host::read_at(&fd, &mut buffer[..size as usize], offset).host("reading a segment")?;
            drop(fd);
            self.counters.read_bytes.add(read as u64);
            self.accesses.read(handle.node.ino, read as u64);
            Ok(take(&buffer[..read]))
        })
    }

    /// The segment behind a handle, opened. Descriptors of passthrough files are not kept: they would stand in the way
    /// of leases.
    fn segment_of(&self, handle: &Handle, write: bool) -> Result<(SegmentId, Arc<OwnedFd>)> {
        let segment = handle.node.lock().segment.ok_or(Fault::new(libc::EIO))?;
        let fd = match handle.mode {
            Mode::Server => self.fds.get(&self.pool, segment, write)?,
            Mode::Passthrough => {
                let flags = if write { libc::O_RDWR } else { libc::O_RDONLY };
                Arc::new(self.pool.segments().open(segment, flags).host("opening a segment")?)
            }
        };
        Ok((segment, fd))
    }

    /// Writes. If what is written must be durable, the caller sees to that before it answers.
    pub fn write(&self, caller: Caller, request: WriteRequest, data: &[u8]) -> Result<Written> {
        let handle = match self.handles.get(request.handle)? {
            Opened::File(handle) => handle,
            Opened::Draft(draft) => {
                let append = request.flags & libc::O_APPEND != 0;
                let count = draft.write(request.who, request.offset, data, append)?;
                return Ok(Written { count, durable: None });
            }
            Opened::Control(_) | Opened::Tensor(_) => return Err(Fault::new(libc::EBADF)),
        };
        let from_cache = request.write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        if request.write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            // The kernel asks for it only if the writer lacks the privilege.
            self.drop_privileges(Caller { uid: caller.uid.max(1), ..caller }, handle.node.ino)?;
        }
        let (segment, fd) = self.segment_of(&handle, true)?;
        let appends = request.flags & libc::O_APPEND != 0 && !from_cache;
        let written = if appends {
            // The kernel works out the end from what it last heard of the size.
            let _state = handle.node.lock();
            let end = host::stat(&fd).host("looking at a segment")?.size;
            self.write_segment(&fd, end, data)?
        } else {
            self.write_segment(&fd, request.offset, data)?
        };
        drop(fd);
        self.pool.segments().touch(segment).host("opening a segment to sync it")?;
        self.counters.write_bytes.add(written as u64);
        self.accesses.written(handle.node.ino, written as u64);
        // The kernel follows a synchronous write to a cached file with an FSYNC of its own.
        let waits = self.durability == Durability::Write || (is_synchronous(request.flags) && !handle.access.read);
        Ok(Written { count: written as u32, durable: waits.then_some(handle) })
    }

    /// Makes a write durable.
    pub fn finish_write(&self, caller: Caller, handle: &Handle) -> Result<()> {
        let state = handle.node.lock();
        self.make_durable(caller, &handle.node, state, Tell::Never)
    }

    fn write_segment(&self, fd: impl AsFd, offset: u64, data: &[u8]) -> Result<usize> {
        let (fits, gate) = self.admit(&fd, offset, data.len() as u64)?;
        let data = &data[..fits as usize];
        if data.is_empty() {
            return Err(Fault::new(libc::ENOSPC));
        }
        let written = match host::write_at(&fd, data, offset) {
            Err(errno) if is_no_space(errno as i32) && self.relieve() => host::write_at(&fd, data, offset),
            other => other,
        };
        drop(gate);
        written.host("writing a segment")
    }

    /// `fallocate(2)`.
    pub fn fallocate(&self, caller: Caller, handle: u64, offset: u64, len: u64, mode: i32) -> Result<()> {
        let handle = self.handles.file(handle)?;
        let flags = FallocateFlags::from_bits(mode).ok_or(Fault::new(libc::EOPNOTSUPP))?;
        let keep = FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE;
        let zero = FallocateFlags::FALLOC_FL_ZERO_RANGE;
        let allocates = flags.is_empty() || flags == keep || flags == zero || flags == zero | keep;
        let destroys = flags == punch | keep || flags == zero || flags == zero | keep;
        if !allocates && !destroys {
            return Err(Fault::new(libc::EOPNOTSUPP));
        }
        self.check_writable()?;
        self.drop_privileges(caller, handle.node.ino)?;
        let mut state = handle.node.lock();
        let segment = state.segment.ok_or(Fault::new(libc::EIO))?;
        if destroys && state.replace.is_none() {
            self.announce_thaw(caller, handle.node.ino, offset, len)?;
        }
        let fd = self.pool.segments().open(segment, libc::O_RDWR).host("opening a segment")?;
        let gate = if allocates {
            let (fits, gate) = self.admit(&fd, offset, len)?;
            if fits < len {
                return Err(Fault::new(libc::ENOSPC));
            }
            gate
        } else {
            None
        };
        let done = match host::fallocate(&fd, flags, offset, len) {
            Err(errno) if is_no_space(errno as i32) && self.relieve() => host::fallocate(&fd, flags, offset, len),
            other => other,
        };
        drop(gate);
        drop(fd);
        // The next learning shall not take the file for unchanged.
        state.seen = done.is_ok().then_some(Seen::CHANGED);
        self.pool.segments().touch(segment).host("opening a segment to sync it")?;
        done.host("allocating space in a segment")
    }

    /// Committed bytes that are about to change in place are announced first, and durably.
    fn announce_thaw(&self, caller: Caller, ino: Ino, offset: u64, len: u64) -> Result<()> {
        let announced = self.edit(|edit| {
            let Some(object) = edit.object(ino).filter(|object| object.names() > 0 && object.size() > offset) else {
                return Ok(false);
            };
            let Some(segment) = object.attributes.segment else { return Ok(false) };
            let len = len.min(object.size() - offset);
            let record = Record::Thaw { ino, segment, offset, len };
            edit.store_from_reserve(Transaction::new(caller.unique).with(record))?;
            Ok(true)
        })?;
        if announced { self.commit() } else { Ok(()) }
    }

    /// `lseek(2)` to data or to a hole.
    pub fn lseek(&self, handle: u64, offset: i64, whence: i32) -> Result<i64> {
        let handle = self.handles.file(handle)?;
        let whence = match whence {
            libc::SEEK_DATA => Whence::SeekData,
            libc::SEEK_HOLE => Whence::SeekHole,
            _ => return Err(Fault::new(libc::EINVAL)),
        };
        let (_, fd) = self.segment_of(&handle, false)?;
        host::seek(&fd, offset, whence).host("seeking in a segment")
    }

    /// `copy_file_range(2)`: shares the bytes where the host can, copies a part of them else.
    pub fn copy_file_range(&self, caller: Caller, from: (u64, u64), to: (u64, u64), len: u64) -> Result<u32> {
        let Opened::File(source) = self.handles.get(from.0)? else {
            // The kernel then reads and writes.
            return Err(Fault::new(libc::EXDEV));
        };
        let target = self.handles.file(to.0)?;
        self.check_writable()?;
        self.drop_privileges(caller, target.node.ino)?;
        let (_, from_fd) = self.segment_of(&source, false)?;
        let (segment, to_fd) = self.segment_of(&target, true)?;
        let size = host::stat(&from_fd).host("looking at a segment")?.size;
        // The answer has 32 bits; what is left over is asked for again.
        let len = len.min(size.saturating_sub(from.1)).min(u64::from(u32::MAX) & !0xf_ffff);
        if len == 0 {
            return Ok(0);
        }
        let copied = self.copy_segment(&from_fd, (from.1, size), &to_fd, to.1, len);
        self.pool.segments().touch(segment).host("opening a segment to sync it")?;
        target.node.lock().seen = copied.is_ok().then_some(Seen::CHANGED);
        let copied = copied?;
        if self.durability == Durability::Write {
            self.finish_write(caller, &target)?;
        }
        Ok(copied as u32)
    }

    fn copy_segment(&self, from: &OwnedFd, (start, size): (u64, u64), to: &OwnedFd, at: u64, len: u64) -> Result<u64> {
        let (fits, _gate) = self.admit(to, at, len)?;
        if fits == 0 {
            return Err(Fault::new(libc::ENOSPC));
        }
        let len = fits;
        let whole = |n: u64| n.is_multiple_of(HOST_BLOCK);
        let aligned = whole(start) && whole(at) && (whole(len) || start + len == size);
        if aligned && !self.no_clone.load(Ordering::Relaxed) {
            match host::clone_range(from.as_fd(), start, to.as_fd(), at, len) {
                Ok(()) => {
                    self.counters.shared_bytes.add(len);
                    return Ok(len);
                }
                Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EXDEV)) => {
                    self.give_up_cloning();
                }
                // Such as EINVAL for a host with larger blocks: copying is always right.
                Err(_) => {}
            }
        }
        let copied = host::copy(from.as_fd(), start, to.as_fd(), at, len.min(COPY_STEP));
        let copied = copied.host("copying between segments")?;
        self.counters.copied_bytes.add(copied);
        Ok(copied)
    }
}
