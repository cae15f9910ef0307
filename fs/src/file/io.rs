//! Bytes that go through the server: files in server mode, and what the kernel sends here in every mode.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::fcntl::FallocateFlags;
use nix::unistd::Whence;
use tensorfs_layout::tree::Object;
use tensorfs_layout::{Ino, SegmentId};

use crate::caller::Caller;
use crate::error::{Fault, Host, Result, is_no_space};
use crate::lane::Lane;
use crate::options::Durability;
use crate::store::{Admitted, Pieces, host};
use crate::waits::{self, Wait};

use super::Files;
use super::mode::is_synchronous;
use super::open::Handle;

/// A copy that the host cannot share moves so much per request, so that a client can be interrupted in between.
const COPY_STEP: u64 = 128 << 20;

/// A copy of no more than this is done at once.
const COPY_HERE: u64 = 1 << 20;

/// Sharing goes by whole blocks of the host: this is what ext4, XFS and Btrfs use on common machines.
const HOST_BLOCK: u64 = 4096;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A write as the kernel sends it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteRequest {
    pub handle: u64,
    pub offset: u64,
    /// The kernel writes back what a program has put into its cache.
    pub from_cache: bool,
    /// The kernel asks for it only if the writer lacks the privilege: set-user-id and the like go.
    pub drops_privileges: bool,
    /// The handle's flags, as they are now.
    pub flags: i32,
}

impl WriteRequest {
    /// True if it goes to the end of the file, wherever that is by then.
    fn appends(&self) -> bool {
        self.flags & libc::O_APPEND != 0 && !self.from_cache
    }
}

/// What became of a write.
pub(crate) struct Written {
    pub count: u32,
    /// The file to make durable before the write is answered.
    pub durable: Option<Arc<Handle>>,
}

/// Where to append what a server may have appended already that died, in part or as a whole: `offset` is where the
/// kernel saw the end before. What is there already is written again, with the same bytes.
fn appended_before(fd: impl AsFd, offset: u64, end: u64, data: &[u8]) -> Result<u64> {
    let begun = |at: u64| -> Result<bool> {
        let mut found = vec![0; (end - at) as usize];
        let read = host::read_at(&fd, &mut found, at).host("reading a segment")?;
        Ok(read == found.len() && data.starts_with(&found))
    };
    let len = data.len() as u64;
    if end > offset && end - offset <= len && begun(offset)? {
        return Ok(offset);
    }
    if end >= offset.saturating_add(len) && begun(end - len)? {
        return Ok(end - len);
    }
    Ok(end)
}

impl Files {
    /// Reads, and hands what was read to `take`. `flags` are the handle's, as they are now.
    pub fn read<T>(&self, handle: u64, offset: u64, size: u32, flags: i32, take: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let handle = self.handles.get(handle)?;
        let fd = if flags & libc::O_NOATIME != 0 {
            let segment = self.serving_segment(&handle)?;
            let unnoticed = self.store().segments().open(segment, libc::O_RDONLY | libc::O_NOATIME);
            Arc::new(unnoticed.host("opening a segment")?)
        } else {
            self.segment_of(&handle, false)?.1
        };
        self.hand_over(&handle, fd, (offset, size.into()), take)
    }

    /// Reads what has come of a file whose bytes are away: no more than what follows the first byte without a gap.
    pub fn read_pieces<T>(
        &self,
        handle: u64,
        pieces: Arc<Pieces>,
        (offset, size): (u64, u32),
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let handle = self.handles.get(handle)?;
        let size = pieces.in_front((offset, offset.saturating_add(size.into())));
        self.hand_over(&handle, pieces, (offset, size), take)
    }

    /// Reads so many bytes, and hands them to `take`.
    fn hand_over<T>(
        &self,
        handle: &Handle,
        fd: Arc<impl AsFd>,
        (offset, size): (u64, u64),
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let read = waits::during(Wait::Host, || host::read_at(&*fd, &mut buffer[..size], offset));
            let read = read.host("reading a segment")?;
            waits::note(|notes| notes.bytes = Some(read as u64));
            drop(fd);
            self.store().counters().read_bytes.add(read as u64);
            self.accesses().read(handle.node.ino(), read as u64);
            Ok(take(&buffer[..read]))
        })
    }

    /// The segment behind a handle.
    pub fn serving_segment(&self, handle: &Handle) -> Result<SegmentId> {
        self.lock(&handle.node).segment().ok_or(Fault::new(libc::EIO))
    }

    /// The segment behind a handle, opened. Descriptors of passthrough files are not kept: they would stand in the way
    /// of leases.
    fn segment_of(&self, handle: &Handle, write: bool) -> Result<(SegmentId, Arc<OwnedFd>)> {
        let segment = self.serving_segment(handle)?;
        let fd = if handle.served {
            self.store().descriptors().get(self.store().pool(), segment, write)?
        } else {
            let flags = if write { libc::O_RDWR } else { libc::O_RDONLY };
            Arc::new(self.store().segments().open(segment, flags).host("opening a segment")?)
        };
        Ok((segment, fd))
    }

    /// Where [`Files::write`] is done: the first change of what is sealed waits for a commit, and what comes beside
    /// much that is removed for its removal from the host.
    pub fn write_lane(&self, request: &WriteRequest) -> Lane {
        let changes_sealed = |handle: Arc<Handle>| !request.appends() && request.offset < handle.node.sealed_end();
        let store = self.store();
        let waits = store.commits_slowly() && self.handles.get(request.handle).is_ok_and(changes_sealed);
        Lane::waiting(waits || store.may_wait_for_removals())
    }

    /// Has the seals of a file void before its bytes behind this place are changed through a handle.
    pub fn thaw_before(&self, handle: &Handle, place: u64) -> Result<()> {
        if place >= handle.node.sealed_end() {
            return Ok(());
        }
        self.lock(&handle.node).thaw_before(place)
    }

    /// Writes. If what is written must be durable, the caller sees to that before it answers.
    pub fn write(&self, caller: Caller, request: WriteRequest, data: &[u8]) -> Result<Written> {
        let handle = self.handles.get(request.handle)?;
        if request.drops_privileges {
            self.drop_privileges(Caller { uid: caller.uid.max(1), ..caller }, handle.node.ino())?;
        }
        let appends = request.appends();
        if !appends {
            self.thaw_before(&handle, request.offset)?;
        }
        let (segment, fd) = self.segment_of(&handle, true)?;
        let written = if appends {
            // The kernel works out the end from what it last heard of the size.
            let _end = handle.node.end.lock();
            let end = host::stat(&fd).host("looking at a segment")?.size;
            let place = if caller.again { appended_before(&fd, request.offset, end, data)? } else { end };
            self.write_segment(handle.node.ino(), &fd, place, data)?
        } else if request.from_cache {
            let written = self.write_all(handle.node.ino(), &fd, request.offset, data);
            if written.is_err() {
                self.lock(&handle.node).note_not_kept(segment);
                self.store().segments().touch(segment).host("opening a segment to sync it")?;
            }
            written?
        } else {
            self.write_segment(handle.node.ino(), &fd, request.offset, data)?
        };
        drop(fd);
        self.store().segments().touch(segment).host("opening a segment to sync it")?;
        self.store().counters().write_bytes.add(written as u64);
        waits::note(|notes| notes.bytes = Some(written as u64));
        self.accesses().written(handle.node.ino(), written as u64);
        // The kernel follows a synchronous write to a cached file with an FSYNC of its own.
        let waits = self.store().durability() == Durability::Write || (is_synchronous(request.flags) && handle.direct);
        Ok(Written { count: written as u32, durable: waits.then_some(handle) })
    }

    /// Makes a write durable.
    pub fn finish_write(&self, caller: Caller, handle: &Handle) -> Result<()> {
        self.lock(&handle.node).make_durable(caller)
    }

    /// Writes all of `data`, or says why not. When the kernel writes back what it has in its cache, it heeds the error
    /// alone: what an answer lacks is gone without a word (`fuse_writepage_end` in `fs/fuse/file.c` of Linux).
    fn write_all(&self, ino: Ino, fd: impl AsFd, offset: u64, data: &[u8]) -> Result<usize> {
        let mut written = 0;
        while written < data.len() {
            match self.write_segment(ino, &fd, offset + written as u64, &data[written..])? {
                // The host gives no reason.
                0 => return Err(Fault::new(libc::EIO)),
                more => written += more,
            }
        }
        Ok(written)
    }

    fn write_segment(&self, ino: Ino, fd: impl AsFd, offset: u64, data: &[u8]) -> Result<usize> {
        let admitted = self.admit(ino, &fd, offset, data.len() as u64)?;
        let data = &data[..admitted.fits() as usize];
        if data.is_empty() {
            return Err(Fault::new(libc::ENOSPC));
        }
        let written = waits::during(Wait::Host, || match host::write_at(&fd, data, offset) {
            Err(errno) if is_no_space(errno as i32) && self.relieve() => host::write_at(&fd, data, offset),
            other => other,
        });
        admitted.done();
        written.host("writing a segment")
    }

    /// Where [`Files::fallocate`] is done: punching and zeroing large ranges take their time.
    pub fn fallocate_lane(&self, handle: u64, mode: i32) -> Lane {
        let takes_long = self.store().commits_slowly() && mode & !libc::FALLOC_FL_KEEP_SIZE != 0;
        let beside = self.store().may_wait_for_removals();
        Lane::waiting(
            takes_long || beside || self.handles.get(handle).is_ok_and(|handle| self.is_durable_at_once(&handle)),
        )
    }

    /// True if what is changed through this handle is durable before it is answered. After writes the kernel asks for
    /// it by itself, and after other changes it does not.
    fn is_durable_at_once(&self, handle: &Handle) -> bool {
        self.store().durability() == Durability::Write || handle.synchronous
    }

    /// `fallocate(2)`.
    pub fn fallocate(&self, caller: Caller, handle: u64, offset: u64, len: u64, mode: i32) -> Result<()> {
        let handle = self.handles.get(handle)?;
        let flags = FallocateFlags::from_bits(mode).ok_or(Fault::new(libc::EOPNOTSUPP))?;
        let keep = FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE;
        let zero = FallocateFlags::FALLOC_FL_ZERO_RANGE;
        let allocates = flags.is_empty() || flags == keep || flags == zero || flags == zero | keep;
        let destroys = flags == punch | keep || flags == zero || flags == zero | keep;
        if !allocates && !destroys {
            return Err(Fault::new(libc::EOPNOTSUPP));
        }
        self.store().check_writable()?;
        self.drop_privileges(caller, handle.node.ino())?;
        if allocates {
            self.wait_for_removals(len);
        }
        let allocate = || {
            let mut file = self.lock(&handle.node);
            if destroys {
                file.thaw_before(offset)?;
            }
            let segment = file.segment().ok_or(Fault::new(libc::EIO))?;
            let fd = self.store().segments().open(segment, libc::O_RDWR).host("opening a segment")?;
            let admitted = match allocates {
                true => Some(self.admit_allocation(handle.node.ino(), &fd, (offset, len), flags.contains(keep))?),
                false => None,
            };
            let done = host::fallocate(&fd, flags, offset, len);
            drop((admitted, fd));
            file.changed_by_us(done.is_ok());
            self.store().segments().touch(segment).host("opening a segment to sync it")?;
            done.host("allocating space in a segment")
        };
        // Who makes room waits for others: not with the file locked.
        match allocate() {
            Err(fault) if fault.wants_space() && self.makes_room() => allocate()?,
            done => done?,
        }
        if self.is_durable_at_once(&handle) { self.finish_write(caller, &handle) } else { Ok(()) }
    }

    /// Leave to allocate a range, with the file's size `kept` or not.
    fn admit_allocation(&self, ino: Ino, fd: &OwnedFd, range: (u64, u64), kept: bool) -> Result<Admitted<'_>> {
        let store = self.store();
        let admitted = self.admit_range(ino, fd, range, kept)?;
        if admitted.fits() < range.1 {
            return Err(Fault::new(libc::ENOSPC));
        }
        if kept {
            store.writers().give_behind(ino, range.1, range.0.saturating_add(range.1));
        }
        Ok(admitted)
    }

    /// `lseek(2)` to data or to a hole.
    pub fn lseek(&self, handle: u64, offset: i64, whence: i32) -> Result<i64> {
        let handle = self.handles.get(handle)?;
        let whence = match whence {
            libc::SEEK_DATA => Whence::SeekData,
            libc::SEEK_HOLE => Whence::SeekHole,
            _ => return Err(Fault::new(libc::EINVAL)),
        };
        if self.store().awaited().is_away_yet(handle.node.ino()) {
            return self.seek_in_what_comes(&handle, offset, whence);
        }
        let (_, fd) = self.segment_of(&handle, false)?;
        host::seek(&fd, offset, whence).host("seeking in a segment")
    }

    /// Of a file whose bytes are away it is not known where it has holes: as if it had none.
    fn seek_in_what_comes(&self, handle: &Handle, offset: i64, whence: Whence) -> Result<i64> {
        let size = self.store().view().object(handle.node.ino()).map_or(0, Object::size);
        let beyond = u64::try_from(offset).map_or(true, |offset| offset >= size);
        match whence {
            _ if beyond => Err(Fault::new(libc::ENXIO)),
            Whence::SeekHole => Ok(size as i64),
            _ => Ok(offset),
        }
    }

    /// Where [`Files::copy_file_range`] to a place of an open file is done.
    pub fn copy_lane(&self, (to, at): (u64, u64), len: u64) -> Lane {
        let waits = |handle: Arc<Handle>| at < handle.node.sealed_end() || self.is_durable_at_once(&handle);
        let beside = self.store().may_wait_for_removals();
        Lane::waiting(len > COPY_HERE || beside || self.handles.get(to).is_ok_and(waits))
    }

    /// `copy_file_range(2)`: shares the bytes where the host can, copies a part of them else.
    pub fn copy_file_range(&self, caller: Caller, from: (u64, u64), to: (u64, u64), len: u64) -> Result<u32> {
        let source = self.handles.get(from.0)?;
        let target = self.handles.get(to.0)?;
        self.store().check_writable()?;
        if self.store().awaited().is_away_yet(source.node.ino()) {
            // The kernel reads and writes then.
            return Err(Fault::new(libc::EXDEV));
        }
        self.drop_privileges(caller, target.node.ino())?;
        self.thaw_before(&target, to.1)?;
        let (_, from_fd) = self.segment_of(&source, false)?;
        let (segment, to_fd) = self.segment_of(&target, true)?;
        let size = host::stat(&from_fd).host("looking at a segment")?.size;
        // The answer has 32 bits; what is left over is asked for again.
        let len = len.min(size.saturating_sub(from.1)).min(u64::from(u32::MAX) & !0xf_ffff);
        if len == 0 {
            return Ok(0);
        }
        let copied = self.copy_segment((&from_fd, from.1, size), (target.node.ino(), &to_fd, to.1), len);
        self.store().segments().touch(segment).host("opening a segment to sync it")?;
        self.lock(&target.node).changed_by_us(copied.is_ok());
        let copied = copied?;
        if self.is_durable_at_once(&target) {
            self.finish_write(caller, &target)?;
        }
        Ok(copied as u32)
    }

    /// The host cannot share bytes between segments.
    fn give_up_cloning(&self) {
        if !self.cannot_clone.swap(true, Ordering::Relaxed) {
            log::debug!("the host cannot share bytes between files; copying them instead");
        }
    }

    fn copy_segment(
        &self,
        (from, start, size): (&OwnedFd, u64, u64),
        (ino, to, at): (Ino, &OwnedFd, u64),
        len: u64,
    ) -> Result<u64> {
        let admitted = self.admit(ino, to, at, len)?;
        let len = admitted.fits();
        if len == 0 {
            return Err(Fault::new(libc::ENOSPC));
        }
        let whole = |n: u64| n.is_multiple_of(HOST_BLOCK);
        let aligned = whole(start) && whole(at) && (whole(len) || start + len == size);
        if aligned && !self.cannot_clone.load(Ordering::Relaxed) {
            match host::clone_range(from.as_fd(), start, to.as_fd(), at, len) {
                Ok(()) => {
                    self.store().counters().shared_bytes.add(len);
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
        self.store().counters().copied_bytes.add(copied);
        waits::note(|notes| notes.bytes = Some(copied));
        Ok(copied)
    }
}
