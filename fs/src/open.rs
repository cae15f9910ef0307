//! Opening, creating and releasing regular files.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuser::FopenFlags;
use parking_lot::MutexGuard;
use tensorfs_layout::{Attributes, Ino, Record, SegmentId, Transaction};

use crate::attributes::Stat;
use crate::backing::Backing;
use crate::clock;
use crate::control;
use crate::error::{Fault, Host, Result};
use crate::filesystem::{Caller, Filesystem, Watched};
use crate::handles::{Handle, Opened};
use crate::host;
use crate::learn::{Learned, Made, Switch, Synced};
use crate::mode::{Access, Mode, Told, Wish, choose, executes, fopen_flags, is_synchronous, is_unheard};
use crate::namespace::New;
use crate::nodes::{NodeRef, Seen, State};
use crate::options::Durability;
use crate::replace::is_dying;

/// How an open is answered.
pub(crate) struct OpenReply {
    pub handle: u64,
    pub flags: FopenFlags,
    /// In passthrough, the kernel's name of the segment.
    pub backing: Option<Arc<Backing>>,
}

impl Filesystem {
    /// Opens an existing file.
    pub fn open(&self, caller: Caller, ino: Ino, flags: i32) -> Result<OpenReply> {
        if control::is_control(ino) {
            return self.open_control(caller, ino, flags);
        }
        let node = self.nodes.take(ino);
        let mut state = node.lock();
        state.opening += 1;
        let result = self.open_in(caller, &node, &mut state, flags);
        state.opening -= 1;
        if result.is_err() {
            self.settle(&node, &mut state, caller.unique);
        }
        result
    }

    fn open_in(
        &self,
        caller: Caller,
        node: &NodeRef,
        state: &mut MutexGuard<'_, State>,
        flags: i32,
    ) -> Result<OpenReply> {
        let access = Access::of(flags);
        let writes = access.write || flags & libc::O_TRUNC != 0;
        if writes {
            self.check_writable()?;
        }
        // For an open that can write, the kernel itself has looked before it asks here.
        if writes && !access.write && self.is_executed(node, state) {
            return Err(Fault::new(libc::ETXTBSY));
        }
        if state.sealing && self.wants_to_see_bytes(flags) {
            self.interrupt_seal(node, state);
        }
        if flags & libc::O_TRUNC != 0 && state.segment.is_none() && self.gone(node.ino).is_some() {
            self.start_anew(caller, node.ino)?;
        }
        let segment = self.attach(caller, node.ino, state)?;
        if writes {
            self.drop_privileges(caller, node.ino)?;
        }
        if flags & libc::O_TRUNC != 0 {
            // An open that fails must not have emptied the file.
            if access.write && state.mode == Some(Mode::Passthrough) && self.nearly_full() && self.is_full() {
                return Err(Fault::new(libc::ENOSPC));
            }
            self.truncate_at_open(caller, node, state, segment, access)?;
        }
        self.finish_open(node, state, flags)
    }

    /// Gives a file that is about to be used its segment, with the times that are recorded.
    pub fn attach(&self, caller: Caller, ino: Ino, state: &mut State) -> Result<SegmentId> {
        if let Some(segment) = state.segment {
            return Ok(segment);
        }
        let attributes = self.regular(ino)?;
        self.check_gone(ino)?;
        let segment = match attributes.segment {
            Some(segment) => segment,
            None => self.first_segment(caller, ino)?,
        };
        state.segment = Some(segment);
        if let Err(fault) = self.align(&attributes, state, segment) {
            state.segment = None;
            return Err(fault);
        }
        Ok(segment)
    }

    fn regular(&self, ino: Ino) -> Result<Attributes> {
        let view = self.pool.view();
        let object = view.object(ino).ok_or(Fault::stale())?;
        match object.kind() {
            libc::S_IFREG => Ok(object.attributes.clone()),
            libc::S_IFDIR => Err(Fault::new(libc::EISDIR)),
            _ => Err(Fault::new(libc::EINVAL)),
        }
    }

    /// A file made by mknod gets its segment when it is first opened.
    fn first_segment(&self, caller: Caller, ino: Ino) -> Result<SegmentId> {
        self.check_writable()?;
        let segment = self.new_segment_in(self.place_again(ino), None)?.segment;
        // Also for who only wants to read: a full pool can be read.
        let stored = self.edit(|edit| {
            let object = edit.object(ino).ok_or(Fault::stale())?;
            let attributes = Attributes { segment: Some(segment), ..object.attributes.clone() };
            edit.store_from_reserve(Transaction::new(caller.unique).with(Record::Attributes { ino, attributes }))?;
            Ok(())
        });
        if let Err(fault) = stored {
            self.pool.discard_segment(segment);
            return Err(fault);
        }
        Ok(segment)
    }

    /// Times set while the file was closed are in the records alone; from now on the segment's count.
    fn align(&self, recorded: &Attributes, state: &mut State, segment: SegmentId) -> Result<()> {
        let mut host = self.look(state)?;
        if host.mtime != recorded.mtime || host.atime != recorded.atime {
            let fd = self.pool.segments().open(segment, libc::O_RDONLY).host("opening a segment")?;
            host::set_times(&fd, Some(recorded.atime), Some(recorded.mtime)).host("setting a segment's times")?;
            host = host::stat(&fd).host("looking at a segment")?;
        }
        state.seen = Some(Seen { ctime: host.ctime, size: host.size, at: clock::now() });
        Ok(())
    }

    /// Puts a file on the list of writers, before the first byte can be written. `unheard` if bytes can be changed, or made
    /// durable, without our hearing of it.
    pub fn start_watching(&self, node: &NodeRef, state: &mut State, segment: SegmentId, unheard: bool) -> Result<()> {
        if state.writing.is_some() {
            if unheard {
                self.thaw(node.ino, segment, true)?;
                (state.valued, state.unheard) = (None, true);
            }
            return Ok(());
        }
        // What a program has mapped or open since an earlier mount is not among our handles.
        let unheard = unheard || !self.pool.segments().quiescent(segment);
        node.writes_begun.fetch_add(1, Ordering::Relaxed);
        self.thaw(node.ino, segment, unheard)?;
        let fd = self.begin_write(segment)?;
        (state.valued, state.unheard) = (None, unheard);
        self.watch(node, state, segment, fd);
        Ok(())
    }

    /// The same, with the segment's descriptor already there.
    pub fn watch(&self, node: &NodeRef, state: &mut State, segment: SegmentId, fd: Arc<OwnedFd>) {
        node.writes_begun.fetch_add(1, Ordering::Relaxed);
        state.writing = Some(fd.clone());
        self.writers.lock().insert(node.ino, Watched { node: node.clone(), segment, fd });
    }

    /// True if a file that is opened so should be in server mode: every write is to be durable, or the limit is near.
    fn wants_to_see_bytes(&self, flags: i32) -> bool {
        self.durability == Durability::Write || is_synchronous(flags) || (Access::of(flags).write && self.nearly_full())
    }

    /// Decides who moves the bytes, and makes the handle.
    fn finish_open(&self, node: &NodeRef, state: &mut State, flags: i32) -> Result<OpenReply> {
        let access = Access::of(flags);
        let segment = state.segment.ok_or(Fault::new(libc::EIO))?;
        // In passthrough nobody asks again before the host says that it is full.
        if access.write && self.is_tight() {
            self.relieve();
        }
        if access.write {
            self.start_watching(node, state, segment, is_unheard(flags))?;
        }
        let granted = self.has_passthrough() && self.tiers.refused(segment.tier()).is_none();
        let wish = Wish { passthrough: granted, see_bytes: self.wants_to_see_bytes(flags) };
        let mapped = || {
            self.fds.forget(segment);
            let _claim = self.readings.claim(segment);
            !self.pool.segments().exclusive(segment)
        };
        let mut mode = choose(state.mode, wish, mapped);
        if mode == Mode::Passthrough && access.write && flags & libc::O_TRUNC == 0 && self.is_full() {
            return Err(Fault::new(libc::ENOSPC));
        }
        if mode == Mode::Passthrough && state.backing.is_none() {
            match self.give_to_kernel(state, segment) {
                Ok(backing) => state.backing = Some(Arc::new(backing)),
                Err(error) => {
                    log::warn!("inode {}: no passthrough for this open: {error}", node.ino);
                    mode = Mode::Server;
                }
            }
        }
        if mode == Mode::Server {
            // A new segment may have been given to the kernel early.
            state.backing = None;
        }
        state.mode = Some(mode);
        if access.write {
            state.writers += 1;
            state.mappable |= access.read && mode == Mode::Passthrough;
        } else {
            state.readers += 1;
        }
        match mode {
            Mode::Passthrough => self.counters.opened_passthrough.add(1),
            Mode::Server => self.counters.opened_server.add(1),
        }
        let told = Told {
            mode,
            access,
            hear_close: self.durability != Durability::Fsync || state.replace.is_some(),
            // Where the mode is always the server's, the kernel's cache has seen every change.
            keep_cache: !self.has_passthrough() || self.durability == Durability::Write,
        };
        self.accesses.opened(node.ino);
        let executes = executes(flags);
        state.executing += u32::from(executes);
        let handle = Handle { node: node.clone(), access, mode, executes };
        let handle = self.handles.insert(Opened::File(Arc::new(handle)));
        let backing = state.backing.clone().filter(|_| mode == Mode::Passthrough);
        Ok(OpenReply { handle, flags: fopen_flags(told), backing })
    }

    fn give_to_kernel(&self, state: &State, segment: SegmentId) -> io::Result<Backing> {
        match &state.writing {
            Some(fd) => self.register(&**fd),
            None => self.register(self.pool.segments().open(segment, libc::O_RDONLY)?),
        }
    }

    /// Creates and opens a file.
    pub fn create(&self, caller: Caller, dir: Ino, name: &[u8], new: New, flags: i32) -> Result<(Stat, OpenReply)> {
        self.check_new_name(dir, name)?;
        self.check_writable()?;
        // Asked again when it is stored; here it saves making a segment in vain.
        if self.pool.view().lookup(dir, name).is_some() {
            return Err(Fault::new(libc::EEXIST));
        }
        let now = clock::coarse();
        let new_segment = self.new_segment_in(self.place(dir, name), None)?;
        let segment = new_segment.segment;
        let ino = Ino(self.pool.edit().next_id());
        self.placement.saw(dir, name, ino);
        let node = self.nodes.take(ino);
        let mut state = node.lock();
        state.segment = Some(segment);
        let result = self.begin_first_write(&new_segment).and_then(|fd| {
            self.watch(&node, &mut state, segment, fd);
            self.edit(|edit| {
                let tx = self.new_object(edit, caller, ino, dir, name, &new, now, Some(segment))?;
                edit.store(tx)?;
                Ok(())
            })
        });
        if let Err(fault) = result {
            self.stop_watching(ino, &mut state);
            state.segment = None;
            self.pool.discard_segment(segment);
            return Err(fault);
        }
        state.backing = new_segment.backing.map(Arc::new);
        if !Access::of(flags).write {
            // Made to be read only: nothing can write it through this handle.
            self.stop_watching(ino, &mut state);
        }
        let host = self.look(&state)?;
        state.seen = Some(Seen { ctime: host.ctime, size: host.size, at: now });
        let reply = self.finish_open(&node, &mut state, flags);
        if reply.is_err() {
            self.settle(&node, &mut state, caller.unique);
        }
        let stat = self.stat_with(ino, &state, &host)?;
        Ok((stat, reply?))
    }

    /// A handle is closed by one of the processes that share it.
    pub fn flush(&self, caller: Caller, who: control::Who, handle: u64) -> Result<()> {
        let handle = match self.handles.get(handle)? {
            Opened::File(handle) => handle,
            Opened::Draft(draft) => return self.finish_draft(caller, &draft, control::Moment::Closed(who)),
            Opened::Control(_) | Opened::Tensor(_) => return Ok(()),
        };
        if !handle.access.write {
            return Ok(());
        }
        let mut state = handle.node.lock();
        if let Some(replace) = &mut state.replace {
            replace.dying = is_dying(caller.pid);
            (replace.closed, replace.flushed) = (true, true);
        }
        if self.flush_commits() {
            // It may be a descriptor that a child of the writer closes as it executes a program: the writer is told, too.
            let tell = if unchecked(&handle) { Tell::Always } else { Tell::Never };
            return self.make_durable(caller, &handle.node, state, tell);
        }
        Ok(())
    }

    /// True if closing a file commits.
    pub fn flush_commits(&self) -> bool {
        self.durability == Durability::Close
    }

    /// Makes everything durable that was done through this mount, except what is still replacing something.
    pub fn sync_all(&self) -> Result<()> {
        self.wait_for_closed_replaces();
        let learned = self.learn_all(Switch::Leave);
        self.commit_for_client()?;
        self.pool.unlink_covered();
        learned.map(|_| ())
    }

    /// `fsync` of a file.
    pub fn fsync(&self, caller: Caller, ino: Ino, handle: u64) -> Result<()> {
        if control::is_control(ino) {
            return match self.handles.get(handle)? {
                Opened::Draft(draft) => self.finish_draft(caller, &draft, control::Moment::Synced),
                _ => Ok(()),
            };
        }
        let handle = self.handles.file(handle)?;
        let state = handle.node.lock();
        let tell = if unchecked(&handle) { Tell::Once } else { Tell::Never };
        self.make_durable(caller, &handle.node, state, tell)
    }

    /// Records what a file has become, and waits until that is durable.
    pub fn make_durable(
        &self,
        caller: Caller,
        node: &NodeRef,
        mut state: MutexGuard<'_, State>,
        tell: Tell,
    ) -> Result<()> {
        let learned = self.make_and_learn(node, &mut state, caller.unique)?;
        let segment = state.segment;
        let grew = state.grew;
        state.grew &= tell == Tell::Always;
        drop(state);
        if learned.durable {
            self.commit_stored_for_client()?;
        } else {
            self.commit_for_client()?;
        }
        if segment.is_some_and(|segment| self.pool.segments().failed(segment)) {
            return Err(Fault::warn(libc::EIO, "the file's segment could not be synced"));
        }
        // The kernel wrote past the limit, and this is the first that is heard of it.
        if tell != Tell::Never && grew {
            if self.is_over() {
                return Err(Fault::new(libc::ENOSPC));
            }
            if tell == Tell::Always {
                // It fitted. Who passes the limit later grows again.
                node.lock().grew = false;
            }
        }
        Ok(())
    }

    /// Makes the bytes of a file durable and records them: the log's next flush is all that is missing then.
    fn make_and_learn(&self, node: &NodeRef, state: &mut MutexGuard<'_, State>, unique: u64) -> Result<Learned> {
        if let Some(value) = self.read_value(node.ino, state) {
            match self.learn_made(node, state, unique, Switch::Store, Some(value)) {
                // The log may have room for less.
                Err(fault) if fault.errno == libc::ENOSPC => {}
                learned => return learned,
            }
        }
        let synced = self.sync_early(state).map(Made::Synced);
        self.learn_made(node, state, unique, Switch::Store, synced)
    }

    /// Syncs the segment of a file that is open for writing, before it is known what is to be recorded of it: so nobody else's
    /// commit waits for these bytes. Lets go of the inode's lock meanwhile. Returns what the file was before.
    pub fn sync_early(&self, state: &mut MutexGuard<'_, State>) -> Option<Synced> {
        let segment = state.segment.filter(|_| state.writing.is_some())?;
        let before = self.look(state).ok()?;
        // Also if it looks as it did after the last sync: a write that was under way then shows the time at which it began.
        let done = MutexGuard::unlocked(state, || self.pool.sync_early(segment));
        done.unwrap_or(false).then_some(Synced { segment, before })
    }

    /// The last use of a handle is over.
    pub fn release(&self, caller: Caller, handle: u64) {
        match self.handles.remove(handle) {
            Some(Opened::File(handle)) => self.release_file(caller.unique, &handle),
            Some(Opened::Draft(draft)) => {
                if let Err(fault) = self.finish_draft(caller, &draft, control::Moment::Released) {
                    log::warn!("the placement map stays as it was: {fault}");
                }
            }
            Some(Opened::Control(_) | Opened::Tensor(_)) | None => {}
        }
    }

    /// The same for a handle that is already off the table.
    pub fn release_file(&self, unique: u64, handle: &Handle) {
        let node = &handle.node;
        let mut state = node.lock();
        let before = state.seen.map(|seen| seen.ctime);
        if handle.access.write {
            state.writers = state.writers.saturating_sub(1);
        } else {
            state.readers = state.readers.saturating_sub(1);
            state.executing = state.executing.saturating_sub(u32::from(handle.executes));
            self.learn_access_time(node.ino, &state, unique);
        }
        state.staying = state.staying.min(state.handles());
        let mapped = handle.access.write && state.mappable;
        self.settle(node, &mut state, unique);
        let stale = mapped && state.seen.map(|seen| seen.ctime) != before;
        drop(state);
        node.released.notify_all();
        if stale {
            self.forget_attributes(node.ino);
        }
    }

    /// Records that a file was read, once it is closed: writers record it with the rest.
    fn learn_access_time(&self, ino: Ino, state: &State, unique: u64) {
        if self.options.noatime || state.handles() > 0 || state.writing.is_some() {
            return;
        }
        let Ok(host) = self.look(state) else { return };
        let stored = self.edit(|edit| {
            let Some(object) = edit.object(ino).filter(|object| object.names() > 0) else { return Ok(()) };
            if object.attributes.atime == host.atime {
                return Ok(());
            }
            let attributes = Attributes { atime: host.atime, ..object.attributes.clone() };
            edit.store(Transaction::new(unique).with(Record::Attributes { ino, attributes }))?;
            Ok(())
        });
        if let Err(fault) = stored {
            log::debug!("inode {ino}: access time not recorded: {}", fault);
        }
    }
}

/// Whether who waits for a file to be durable hears that it has grown past the limit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tell {
    /// Each write was kept within the limit.
    Never,
    /// Not again, unless it has grown again.
    Once,
    /// And everybody else.
    Always,
}

/// True if the kernel takes this handle's writes, and so lets it pass the limit.
fn unchecked(handle: &Handle) -> bool {
    handle.access.write && handle.mode == Mode::Passthrough
}
