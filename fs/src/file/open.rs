//! Opening, creating and releasing regular files.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorfs_layout::log::{Attributes, Record, Transaction};
use tensorfs_layout::pool::Edit;
use tensorfs_layout::tree::View;
use tensorfs_layout::{Ino, SegmentId, Timestamp};

use crate::caller::{Caller, Ending};
use crate::error::{Fault, Result};
use crate::handover::{Entry, Kept};
use crate::lane::Lane;
use crate::options::Durability;
use crate::shares::Share;
use crate::store::{Backing, Store, project};
use crate::waits;

use super::Files;
use super::locked::{Locked, Opening};
use super::mode::{Access, Changer, Manner, Mode, Told, Wish, choose, executes, is_synchronous, manner};
use super::node::NodeRef;
use super::stat::Stat;
use super::state::{Before, Route, Seen, Serving};

/// Who closes a file waits so long at most for others who change the pool, to record when it was read.
const FOR_ACCESS_TIME: Duration = Duration::from_millis(10);

/// An open of a regular file.
pub(crate) struct Handle {
    pub(super) node: NodeRef,
    pub(super) access: Access,
    /// Reads and writes through it come here.
    pub(super) served: bool,
    /// The kernel keeps none of its bytes meanwhile: it asks here each time.
    pub(super) direct: bool,
    /// Each change through it is durable before it is answered (`O_SYNC`, `O_DSYNC`).
    pub(super) synchronous: bool,
    /// The kernel opened it to execute it, and keeps it as long as the program runs.
    pub(super) executes: bool,
    /// Who opened it, a process or one of its threads. 0 if that is not known.
    pub(super) opener: u32,
    /// What the file was then. None if it was made or emptied by that, or if it is not known.
    pub(super) before: Option<Before>,
    /// The file was being replaced, so that each close may say something.
    pub(super) replaces: bool,
    /// What it takes of the descriptors, by who has opened it.
    pub(super) _share: Option<Share>,
    /// The next server is to know of it.
    pub(super) kept: Mutex<Option<Kept>>,
}

impl Handle {
    /// The file that it is of.
    pub fn ino(&self) -> Ino {
        self.node.ino()
    }

    /// True if the file can be read through it.
    pub fn reads(&self, ino: Ino) -> bool {
        self.access.read && self.node.ino() == ino
    }

    /// True if the kernel must not keep what it reads through it.
    pub fn is_uncached(&self) -> bool {
        // Who only reads is told to ask here as what he reads is away: what the kernel keeps of it stays true.
        self.direct && self.access.read && self.access.write
    }
}

/// Where a file comes from that is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// It was there.
    Existed,
    /// What opens it has made it.
    Made,
}

/// How an open is answered.
pub(crate) struct OpenReply {
    pub handle: u64,
    pub manner: Manner,
    /// In passthrough, the kernel's name of the segment.
    pub backing: Option<Arc<Backing>>,
}

impl Files {
    /// Where [`Files::open`] is done.
    pub fn open_lane(&self, ino: Ino, flags: i32) -> Lane {
        // Emptying a file that is in use may wait for its other handles, whose release must find a thread.
        let empties = flags & libc::O_TRUNC != 0;
        let writes = empties || flags & libc::O_ACCMODE != libc::O_RDONLY;
        // So may one that is about to be mapped where there is no room for its holes.
        let maps = flags & libc::O_ACCMODE == libc::O_RDWR && self.store().is_limited();
        // And a sealed file may have to be thawed first.
        Lane::waiting(
            ((empties || maps) && self.node_in_use(ino).is_some())
                || (writes && self.store().commits_slowly() && self.store().may_be_frozen(ino, Changer::Handle(flags))),
        )
    }

    /// Opens an existing file.
    pub fn open(&self, caller: Caller, ino: Ino, flags: i32) -> Result<OpenReply> {
        self.open_as(Origin::Existed, caller, ino, flags)
    }

    /// Opens a file for the request that has made it, before the server died that was asked.
    pub fn open_made(&self, caller: Caller, ino: Ino, flags: i32) -> Result<OpenReply> {
        self.open_as(Origin::Made, caller, ino, flags)
    }

    fn open_as(&self, origin: Origin, caller: Caller, ino: Ino, flags: i32) -> Result<OpenReply> {
        let node = self.node(ino);
        let mut file = self.lock(&node);
        let result = Opening::of(&mut file).open(origin, caller, flags);
        if result.is_err() {
            file.settle(caller.unique);
        }
        result
    }

    /// Creates and opens a file, at a time of the host's clock for files. `describe` gives the records of the new
    /// object and of its name.
    pub fn create(
        &self,
        caller: Caller,
        (dir, name): (Ino, &[u8]),
        flags: i32,
        describe: impl Fn(&Edit<'_>, Ino, SegmentId, Timestamp) -> Result<Transaction>,
    ) -> Result<(Stat, OpenReply)> {
        let store = self.store();
        let share = self.share(caller, flags)?;
        if Access::of(flags).write && store.is_tight() {
            self.relieve();
        }
        let counts_for = store.project_of(dir);
        let new_segment = self.new_segment(store.place(dir, name), counts_for, None)?;
        // What the host says of it: whoever takes over would take a later time for a change. Since Linux 6.13 it can be
        // ahead of the host's clock with ticks, if another file has just been stamped by the one without.
        let (segment, now) = (new_segment.segment, new_segment.since);
        let ino = Ino(store.pool().edit().next_id());
        store.saw(dir, name, ino);
        let node = self.node(ino);
        let mut file = self.lock(&node);
        file.state.serving = Some(Serving::new(segment));
        let result = self.make_room_to_sync().and_then(|()| {
            file.watch(self.begin_first_write(&new_segment), false);
            self.edit(|edit| {
                let tx = describe(edit, ino, segment, now)?;
                edit.store(tx)?;
                Ok(edit.object(dir).map_or(0, project))
            })
        });
        match result {
            Err(fault) => {
                file.stop_watching();
                file.state.serving = None;
                store.pool().discard_segment(segment);
                return Err(fault);
            }
            // The directory was given to another one in between.
            Ok(now) if now != counts_for => {
                let counted = store.count_for(segment, now);
                counted.unwrap_or_else(|fault| log::log!(fault.level, "inode {ino}: not counted: {fault}"));
            }
            Ok(_) => {}
        }
        if !Access::of(flags).write {
            // Made to be read only: nothing can write it through this handle.
            file.stop_watching();
        }
        if let Some(serving) = file.serving_mut() {
            serving.route = Route::Closed { ready: new_segment.backing.map(Arc::new) };
        }
        let opened = file.look().and_then(|host| {
            if let Some(serving) = file.serving_mut() {
                serving.seen = Some(Seen::of(&host, now));
            }
            Ok((file.stat_with(&host)?, file.finish_open(caller, flags, true, share)?))
        });
        if opened.is_err() {
            file.settle(caller.unique);
        }
        opened
    }

    /// What an open takes of the descriptors.
    fn share(&self, caller: Caller, flags: i32) -> Result<Option<Share>> {
        if Access::of(flags).write { self.store().descriptors().share(caller) } else { Ok(None) }
    }

    /// Where [`Files::flush`] is done.
    pub fn flush_lane(&self) -> Lane {
        Lane::waiting(self.store().commits_slowly() && self.close_commits())
    }

    /// A handle is closed by one of the processes that share it.
    pub fn flush(&self, caller: Caller, handle: u64) -> Result<()> {
        let handle = self.handles.get(handle)?;
        if !handle.access.write {
            return Ok(());
        }
        let ending = caller.ending();
        // As a rule nothing follows from it, and nobody waits.
        if ending == Ending::OfItself && !handle.replaces && !self.close_commits() {
            return Ok(());
        }
        let mut file = self.lock(&handle.node);
        file.note_close(ending);
        if ending == Ending::BySignal && file.can_be_interrupted(&handle) && file.was_its_writer(&handle, caller) {
            file.note_interrupted(&handle);
        }
        if self.close_commits() {
            return file.make_durable_at_close(caller);
        }
        Ok(())
    }

    /// Where what waits for a commit is done.
    pub fn commit_lane(&self) -> Lane {
        Lane::waiting(self.store().commits_slowly())
    }

    /// `fsync` of a file.
    pub fn fsync(&self, caller: Caller, handle: u64) -> Result<()> {
        let handle = self.handles.get(handle)?;
        self.lock(&handle.node).make_durable(caller)
    }

    /// An open file.
    pub fn handle(&self, number: u64) -> Result<Arc<Handle>> {
        self.handles.get(number)
    }

    /// The last use of a handle is over.
    pub fn release(&self, caller: Caller, handle: u64) {
        if let Some(handle) = self.handles.remove(handle) {
            self.release_handle(caller.unique, &handle);
        }
    }

    /// The last use of a handle that is already off the table is over.
    pub(super) fn release_handle(&self, unique: u64, handle: &Handle) {
        let mut file = self.lock(&handle.node);
        // First: the next server must take over no handle of which the kernel no longer knows the segment.
        handle.kept.lock().take();
        let before = file.change_time_seen();
        let opens = &mut file.state.opens;
        if handle.access.write {
            opens.writers = opens.writers.saturating_sub(1);
        } else {
            opens.readers = opens.readers.saturating_sub(1);
            opens.executing = opens.executing.saturating_sub(u32::from(handle.executes));
            file.learn_access_time(unique);
        }
        let opens = &mut file.state.opens;
        opens.staying = opens.staying.min(opens.handles());
        let mapped = handle.access.write && file.is_mappable();
        file.settle(unique);
        let stale = mapped && file.change_time_seen() != before;
        drop(file);
        handle.node.notify();
        if stale {
            self.store().forget_attributes(handle.node.ino());
        }
    }
}

impl Store {
    /// True if a file that is opened so should be in server mode: every write is to be durable.
    fn wants_to_see_bytes(&self, flags: i32) -> bool {
        self.durability() == Durability::Write || is_synchronous(flags)
    }
}

impl Locked<'_> {
    fn open(&mut self, origin: Origin, caller: Caller, flags: i32) -> Result<OpenReply> {
        let store = self.files.store();
        let access = Access::of(flags);
        let empties = flags & libc::O_TRUNC != 0;
        let writes = access.write || empties;
        if writes {
            store.check_writable()?;
        }
        let share = self.files.share(caller, flags)?;
        // For an open that can write, the kernel itself has looked before it asks here.
        if writes && !access.write && self.is_executed() {
            return Err(Fault::new(libc::ETXTBSY));
        }
        let reads_what_comes = !writes && store.awaited().is_away_yet(self.ino());
        if self.is_quiet() && store.wants_to_see_bytes(flags) && !reads_what_comes {
            self.end_quiet();
        }
        // In passthrough nobody asks again before the host says that it is full. And before the file is emptied, as it
        // would look meanwhile as if whoever emptied it had never written it.
        if access.write && store.is_tight() {
            let files = self.files;
            self.unlocked_in_use(|| files.relieve());
        }
        if empties {
            self.start_anew_if_gone(caller)?;
        }
        let segment = if writes { self.attach(caller)? } else { self.attach_to_read(caller)? };
        if !empties && !self.is_away() {
            self.check_whole()?;
        }
        // What is new keeps the mode that it was made with.
        if writes && origin == Origin::Existed {
            self.files.drop_privileges(caller, self.ino())?;
        }
        if empties {
            self.truncate_at_open(caller, segment, access)?;
        }
        self.finish_open(caller, flags, empties || origin == Origin::Made, share)
    }

    /// Who moves the bytes of an open file.
    fn mode(&self) -> Option<Mode> {
        self.serving().and_then(|serving| serving.route.mode())
    }

    /// Decides who moves the bytes, and makes the handle. This open may have made the file, or emptied it, `anew`.
    fn finish_open(&mut self, caller: Caller, flags: i32, anew: bool, share: Option<Share>) -> Result<OpenReply> {
        let (files, ino) = (self.files, self.ino());
        let store = files.store();
        let access = Access::of(flags);
        let maps = access.read && access.write;
        let (begun, mut may_wait) = (Instant::now(), true);
        let (segment, mode) = loop {
            if access.write {
                self.start_watching(Changer::Handle(flags))?;
            }
            let segment = self.segment().ok_or(Fault::new(libc::EIO))?;
            let granted = store.has_passthrough_in(segment.tier()) && !self.is_away();
            let wish = Wish { passthrough: granted, see_bytes: store.wants_to_see_bytes(flags) };
            let mapped = || {
                store.descriptors().forget(segment);
                let _claim = files.readings().claim(segment);
                !store.segments().exclusive(segment)
            };
            let mode = choose(self.mode(), wish, mapped);
            // Where the server writes a mapping's pages it can still say no, but to nobody who stores into them.
            if !maps || files.reserve_holes(ino)? || mode == Mode::Server {
                break (segment, mode);
            }
            if std::mem::take(&mut may_wait) && self.unlocked_in_use(|| files.let_go_for_space()) {
                continue;
            }
            // A mapping could fill them without asking, unless the kernel writes its pages back through the server.
            if choose(self.mode(), Wish { see_bytes: true, ..wish }, mapped) == Mode::Server {
                break (segment, Mode::Server);
            }
            if !self.wait_to_be_alone(begun) {
                return Err(Fault::new(libc::ENOSPC));
            }
        };
        let route = match mode {
            Mode::Passthrough => self.give_to_kernel(segment),
            // A new segment may have been given to the kernel early.
            Mode::Server => Route::Server,
        };
        if access.write && flags & libc::O_DIRECT != 0 {
            store.segments().expect_collisions(segment);
        }
        // What is sealed stays so: each change of it is to come here.
        let sealed = self.node.sealed_end() > 0;
        let backing = route.backing().cloned();
        let mode = if backing.is_some() { Mode::Passthrough } else { Mode::Server };
        if maps && mode == Mode::Passthrough && !self.is_mappable() {
            // It does not see what is stored through a mapping, and would go on to show the times from before.
            store.forget_attributes(ino);
        }
        if let Some(serving) = self.serving_mut() {
            serving.route = route;
            serving.asked |= access.write && sealed;
        }
        let asked = self.serving().is_some_and(|serving| serving.asked);
        let asks = access.write && mode == Mode::Passthrough && (asked || store.asks_of_writes(ino));
        let replacing = self.is_replacing();
        let executes = executes(flags);
        self.state.opens.count(access, executes);
        waits::note(|notes| notes.passthrough = Some(mode == Mode::Passthrough));
        match mode {
            Mode::Passthrough => store.counters().opened_passthrough.add(1),
            Mode::Server => store.counters().opened_server.add(1),
        }
        let told = Told {
            mode,
            access,
            asks,
            away: self.is_away() && store.link().maps_uncached(),
            // Where the mode is always the server's, the kernel's cache has seen every change, but for those of
            // programs that have had files in passthrough since an earlier mount.
            keep_cache: (!store.link().has_passthrough() || store.durability() == Durability::Write)
                && store.pool().recovery().open_segments.is_empty(),
        };
        files.accesses().opened(ino);
        let before = if access.write && !anew { self.before_writing(caller) } else { None };
        if maps && mode == Mode::Passthrough {
            let process = caller.process();
            if let Some(serving) = self.serving_mut() {
                serving.mappable = true;
                serving.mappers.note(process);
            }
        }
        let manner = manner(told);
        let served = asks || mode == Mode::Server;
        let number = files.handles.next_number();
        let entry = Entry {
            unique: caller.unique,
            handle: number,
            ino,
            segment,
            flags,
            backing: backing.as_ref().map(|backing| backing.id()),
            manner: manner.to_bits(),
            opener: caller.pid,
        };
        let kept = store.link().handover().and_then(|handover| handover.keep(caller.limited(), entry));
        let direct = manner.direct_io;
        let handle = Handle {
            node: self.node.clone(),
            access,
            served,
            direct,
            synchronous: is_synchronous(flags),
            executes,
            opener: caller.pid,
            before,
            replaces: replacing,
            _share: share,
            kept: Mutex::new(kept),
        };
        files.handles.insert_as(number, Arc::new(handle));
        Ok(OpenReply { handle: number, manner, backing })
    }

    /// The kernel's way to a segment, or the server's where the kernel does not take it.
    fn give_to_kernel(&self, segment: SegmentId) -> Route {
        let serving = self.serving();
        if let Some(backing) = serving.and_then(|serving| serving.route.backing()) {
            return Route::Kernel(backing.clone());
        }
        let store = self.files.store();
        let registered: io::Result<Backing> = match self.writing() {
            Some(writing) => store.register(&*writing.fd),
            None => store.segments().open(segment, libc::O_RDONLY).and_then(|fd| store.register(fd)),
        };
        match registered {
            Ok(backing) => Route::Kernel(Arc::new(backing)),
            Err(error) => {
                log::warn!("inode {}: no passthrough for this open: {error}", self.ino());
                Route::Server
            }
        }
    }

    /// The change time of the segment when the records were last brought up to date with it.
    pub(super) fn change_time_seen(&self) -> Option<Timestamp> {
        self.serving()?.seen.map(|seen| seen.ctime)
    }

    /// True if a handle could have mapped the segment for writing.
    pub(super) fn is_mappable(&self) -> bool {
        self.serving().is_some_and(|serving| serving.mappable)
    }

    /// Records that a file was read, once it is closed: writers record it with the rest.
    fn learn_access_time(&self, unique: u64) {
        let (files, ino) = (self.files, self.ino());
        if files.store().options().noatime || self.is_open() || self.is_written() {
            return;
        }
        let Ok(host) = self.look() else { return };
        let pool = files.store().pool();
        let is_recorded = |view: &View| {
            view.object(ino).is_none_or(|object| object.names() == 0 || object.attributes.atime == host.atime)
        };
        if is_recorded(&pool.view()) {
            return;
        }
        // Who opens the file next waits for this.
        let Some(mut edit) = pool.edit_within(FOR_ACCESS_TIME) else { return };
        let attributes = edit.object(ino).filter(|_| !is_recorded(&edit)).map(|object| object.attributes.clone());
        let Some(attributes) = attributes else { return };
        let attributes = Attributes { atime: host.atime, ..attributes };
        if let Err(error) = edit.store(Transaction::new(unique).with(Record::Attributes { ino, attributes })) {
            log::debug!("inode {ino}: access time not recorded: {error}");
        }
    }
}
