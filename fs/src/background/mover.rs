//! Giving a file its bytes anew, in another tier as a rule: they are copied to a new segment, made durable, and then
//! that becomes the file's own in one transaction. Nothing waits for it: who opens the file meanwhile goes on with the
//! old segment, and the move is given up.

use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::Level;
use parking_lot::Mutex;
use tensorfs_layout::log::{Attributes, Record, Tier, Transaction};
use tensorfs_layout::pool::Pool;
use tensorfs_layout::{Ino, SegmentId, Timestamp};

use crate::caller::Caller;
use crate::error::{Error, Fault, Host, Result};
use crate::file::{Files, Locked, QUIET};
use crate::options::{Durability, Options};
use crate::protocol::{LEAVES, Moving, NO_TIER};
use crate::shares::{Share, Shares};
use crate::store::{Admitted, Store, host};
use crate::workers::Workers;

use super::copy::Copying;
use super::moves::{Gift, Moves};
use super::seal::{Outcome, seal_file};
use super::task::guarded;
use super::wishes::Wishes;

/// Threads that move files.
const THREADS: usize = 2;
/// So many moves may wait or be under way.
const MOST: usize = 4096;
/// RELEASE comes after `close` has returned: so long is waited for one that may be on its way.
const RELEASES: Duration = Duration::from_millis(50);

/// Moves files to other tiers.
pub(crate) struct Mover {
    files: Arc<Files>,
    /// Those that were asked for and are not waited for.
    moves: Moves,
    /// Those who wait for a move, and moves that nobody waits for.
    places: Shares,
    /// They may take as long as they like.
    threads: Workers,
    /// Files that are to leave for the remote.
    wishes: Arc<Wishes>,
}

/// What is said of a file that something uses.
pub(super) fn busy(why: &'static str) -> Fault {
    Fault { level: Level::Debug, ..Fault::warn(libc::EBUSY, why) }
}

pub(super) fn written_meanwhile() -> Fault {
    busy("it was written meanwhile")
}

pub(super) fn cannot_be_synced() -> Fault {
    Fault::warn(libc::EIO, "the file's segment could not be synced")
}

impl Mover {
    /// For the files of a mount.
    pub fn new(files: Arc<Files>) -> Self {
        Self {
            files,
            moves: Moves::default(),
            places: Shares::new(MOST),
            threads: Workers::new(THREADS),
            wishes: Arc::default(),
        }
    }

    /// Files that are to leave for the remote.
    pub fn wishes(&self) -> &Arc<Wishes> {
        &self.wishes
    }

    /// The threads that move files: whoever waits for a move waits there.
    pub fn threads(&self) -> &Workers {
        &self.threads
    }

    /// A place among those who wait for a move, or why there is none.
    pub fn place(&self, caller: Caller) -> Result<Share> {
        let full = || Fault {
            level: Level::Debug,
            ..Fault::warn(libc::EAGAIN, "too many files wait to be moved already; try again later")
        };
        self.places.take(caller.uid).ok_or_else(full)
    }

    /// Has a file moved to a tier; or, if that was begun before, says what came of it. `ESRCH` if this server knows
    /// nothing of that.
    pub fn ask_for_move(self: &Arc<Self>, caller: Caller, ino: Ino, tier: &str, begin: bool) -> Result<Moving> {
        let is_away = self.files.store().awaited().is_away(ino);
        match self.may_place(caller, ino, tier) {
            Ok(tier) if self.is_remote(tier) && is_away => Ok(Moving::Moved),
            Ok(tier) if self.is_remote(tier) => Ok(Moving::Refused(LEAVES.into())),
            Ok(tier) => {
                // It is to stay.
                self.wishes.remove(ino);
                self.ask(caller, (ino, Gift::Tier), begin, move |mover, report| mover.move_file(ino, tier, report))
            }
            Err(fault) => Ok(Moving::Refused(fault.to_string())),
        }
    }

    /// True of what stands for the pool's own remote.
    fn is_remote(&self, tier: u8) -> bool {
        self.files.store().view().tier(tier).is_some_and(Tier::is_own_remote)
    }

    /// Has a file's bytes given to it anew; or, if that was begun before, says what came of it.
    pub(super) fn ask(
        self: &Arc<Self>,
        caller: Caller,
        (ino, gift): (Ino, Gift),
        begin: bool,
        give: impl FnOnce(&Mover, &dyn Fn(u64, u64)) -> Result<()> + Send + 'static,
    ) -> Result<Moving> {
        if let Some(known) = self.moves.ask(ino, gift, begin)? {
            return Ok(known);
        }
        let place = match self.place(caller) {
            Ok(place) => place,
            Err(fault) => {
                self.moves.forget((ino, gift));
                return Ok(Moving::Refused(fault.to_string()));
            }
        };
        let mover = self.clone();
        let run = move || {
            let threads = mover.clone();
            threads.threads.run(ino, move || {
                mover.give_as_asked((ino, gift), give);
                drop(place);
            });
        };
        let awaited = self.files.store().awaited();
        if gift == Gift::Tier && awaited.is_away(ino) {
            // It comes first, and no thread waits for that.
            let mover = self.clone();
            let resume = move |come: Result<()>| match come {
                Ok(()) => run(),
                Err(fault) => mover.moves.end((ino, gift), Err(fault.to_string())),
            };
            awaited.wait(caller, ino, None, Box::new(resume));
        } else {
            run();
        }
        Ok(Moving::Working { done: 0, total: 0 })
    }

    fn give_as_asked(&self, (ino, gift): (Ino, Gift), give: impl FnOnce(&Mover, &dyn Fn(u64, u64)) -> Result<()>) {
        let report = |done, total| self.moves.report((ino, gift), done, total);
        let counters = self.files.store().counters();
        let given = guarded(counters, || format!("inode {ino}: giving it its bytes anew"), || give(self, &report));
        let panicked = || Err("the server panicked; its log says where".into());
        self.moves.end((ino, gift), given.map_or_else(panicked, |given| given.map_err(|fault| fault.to_string())));
    }

    /// Moves a file to the tier that its user wrote into its attribute `user.tensorfs.tier`, and waits for that. The
    /// file always has the attribute, so it cannot be made (`XATTR_CREATE` among the `flags`).
    pub fn set_tier_of_file(&self, caller: Caller, ino: Ino, value: &[u8], flags: i32) -> Result<()> {
        self.files.store().check_writable()?;
        let tier = std::str::from_utf8(value).map_err(|_| Fault::new(libc::EINVAL))?;
        if flags & libc::XATTR_CREATE != 0 {
            return Err(Fault::new(libc::EEXIST));
        }
        let store = self.files.store();
        if store.is_own_remote(tier) {
            self.check_owner(caller, ino)?;
            // Somebody has to look there first, and nobody waits for that.
            return if store.awaited().is_away(ino) { Ok(()) } else { self.wishes.add(caller.uid, ino) };
        }
        let tier = self.may_place(caller, ino, tier)?;
        self.wishes.remove(ino);
        self.move_file(ino, tier, &|_, _| {})
    }

    /// The number of a tier, for whoever may move a file there.
    fn may_place(&self, caller: Caller, ino: Ino, tier: &str) -> Result<u8> {
        self.check_owner(caller, ino)?;
        // Any user can ask for any, as often as he likes.
        let unknown = || Fault { level: Level::Debug, ..Fault::warn(libc::EINVAL, format!("{NO_TIER} {tier:.64}")) };
        self.files.store().view().tier_named(tier).ok_or_else(unknown)
    }

    /// A regular file may be given other bytes by root, and by its owner.
    pub(super) fn check_owner(&self, caller: Caller, ino: Ino) -> Result<()> {
        let view = self.files.store().view();
        let object = view.object(ino).ok_or(Fault::stale())?;
        if caller.uid != 0 && caller.uid != object.attributes.uid {
            return Err(Fault { level: Level::Debug, ..Fault::warn(libc::EPERM, "it belongs to another user") });
        }
        if !object.is_file() {
            return Err(Fault { level: Level::Debug, ..Fault::warn(libc::EINVAL, "it is no regular file") });
        }
        Ok(())
    }

    /// The files of the mount.
    pub(super) fn files(&self) -> &Files {
        &self.files
    }

    /// Moves a file to a tier, durably. `report` hears how much of it is copied.
    fn move_file(&self, ino: Ino, tier: u8, report: &dyn Fn(u64, u64)) -> Result<()> {
        let (files, store) = (&*self.files, self.files.store());
        store.check_writable()?;
        // What was sealed while it was open is compared with what it is now, before the copy is all there is; and so is
        // what was sealed of a file that has grown since, as a copy has the checksums of all of it or of nothing.
        if is_sealed_in_part(store, ino) {
            let mut outcome = seal_file(files, ino, false, &|| false)?;
            if outcome == Outcome::InUse {
                wait_until_unused(files, &mut files.lock(&files.node(ino)), RELEASES)?;
                outcome = seal_file(files, ino, false, &|| false)?;
            }
            match outcome {
                Outcome::Later | Outcome::InUse => return Err(busy("its checksums could not be compared yet")),
                Outcome::Unfit if store.is_known_damaged(ino) => {
                    let what = "its bytes are not those that were sealed, and a copy would hide that";
                    return Err(Fault { level: Level::Info, ..Fault::warn(libc::EIO, what) });
                }
                _ => {}
            }
        }
        store.settle_value(ino)?;
        let node = files.node(ino);
        let mut file = files.lock(&node);
        if file.is_quiet() {
            file.end_quiet();
        }
        store.check_gone(ino)?;
        let from = wait_until_unused(files, &mut file, RELEASES)?;
        if store.is_in_log_alone(ino) {
            let failed = from.is_some_and(|from| store.segments().failed(from));
            return Err(if failed { cannot_be_synced() } else { written_meanwhile() });
        }
        if !store.segments().is_there(tier) {
            let name = store.view().tier_name(tier);
            return Err(Fault::warn(libc::EIO, format!("tier {name} is missing")));
        }
        let recorded = {
            let view = store.view();
            let object = view.object(ino).filter(|object| object.names() > 0).ok_or(Fault::new(libc::ENOENT))?;
            object.attributes.clone()
        };
        if from.map(SegmentId::tier) == Some(tier) {
            return Ok(());
        }
        let copy = files.another_segment(ino, tier, from)?.segment;
        let Some(from) = from else { return give_first(files, file, copy) };
        // Both count until one of them is gone.
        let room = Mutex::new(None);
        let make = |undisturbed: &dyn Fn() -> bool| {
            let target = store.segments().open(copy, libc::O_RDWR).host("opening a segment")?;
            let takes = store.segments().stat(from).host("looking at a segment")?.allocated;
            *room.lock() = Some(make_room(files, ino, &target, takes)?);
            let copied = Copied { ino, from, others: None, copy, size: None, recorded: &recorded };
            make_copy(store, &copied, undisturbed, report)
        };
        let given = give_copy(files, file, &Switch { from, copy, whole: false, rests: true, make: &make });
        drop(room);
        given
    }
}

/// Room in the pool for so many bytes of a copy, until what is returned is let go of.
pub(super) fn make_room<'a>(files: &'a Files, ino: Ino, copy: &OwnedFd, bytes: u64) -> Result<Admitted<'a>> {
    let store = files.store();
    let admitted = store.admit(ino, copy, 0, bytes)?;
    if admitted.fits() == bytes {
        return Ok(admitted);
    }
    drop(admitted);
    files.relieve();
    let admitted = store.admit(ino, copy, 0, bytes)?;
    if admitted.fits() == bytes {
        Ok(admitted)
    } else {
        Err(Fault::warn(libc::ENOSPC, "the pool has no room for a copy of it"))
    }
}

/// True if bytes of a file were sealed while something could write it, and not compared since; or if it has grown since
/// it was sealed.
fn is_sealed_in_part(store: &Store, ino: Ino) -> bool {
    store
        .view()
        .object(ino)
        .and_then(|object| object.chain())
        .is_some_and(|chain| chain.has_provisional_seals() || (chain.has_seals() && !chain.is_sealed()))
}

/// A file that never had bytes gets its segment.
fn give_first(files: &Files, file: Locked<'_>, segment: SegmentId) -> Result<()> {
    let ino = file.ino();
    let stored = files.edit(|edit| {
        let object = edit.object(ino).ok_or(Fault::new(libc::ENOENT))?;
        let attributes = Attributes { segment: Some(segment), ..object.attributes.clone() };
        edit.store(Transaction::new(0).with(Record::Attributes { ino, attributes }))?;
        Ok(())
    });
    drop(file);
    if stored.is_err() {
        files.store().pool().discard_segment(segment);
    }
    stored.and_then(|()| files.store().commit())
}

/// A new segment for a file.
pub(super) struct Switch<'a> {
    /// The segment that it has.
    pub from: SegmentId,
    /// The one that it gets.
    pub copy: SegmentId,
    /// Its bytes are known to be those that were sealed, as far as the file is, whatever became of the old ones.
    pub whole: bool,
    /// Some of them are what the old one has.
    pub rests: bool,
    /// Puts them there, as long as the file is undisturbed.
    pub make: &'a dyn Fn(&dyn Fn() -> bool) -> Result<Made>,
}

/// A new segment that has its bytes.
#[derive(Clone, Copy)]
pub(super) struct Made {
    /// So many of them.
    pub size: u64,
    /// The file's, as the segment has it.
    pub mtime: Timestamp,
}

/// Makes a new segment, and that the file's own. If it fails, the file has what it had.
pub(super) fn give_copy(files: &Files, file: Locked<'_>, switch: &Switch<'_>) -> Result<()> {
    let (store, ino) = (files.store(), file.ino());
    let given = copy_and_switch(files, file, switch);
    if given.is_ok() {
        store.pool().unlink_covered();
        store.forget_attributes(ino);
        let sealed = store.view().object(ino).and_then(|object| object.chain()).is_some_and(|chain| chain.is_sealed());
        if !sealed {
            files.to_seal().add(ino, store.pool().newest(), QUIET);
        }
    } else if own_segment(store, ino) != Some(switch.copy) {
        // That the switch was made may have been heard as an error all the same.
        store.pool().discard_segment(switch.copy);
    }
    given
}

fn copy_and_switch(files: &Files, file: Locked<'_>, switch: &Switch<'_>) -> Result<()> {
    let (store, ino) = (files.store(), file.ino());
    let Switch { from, copy, whole, rests, make } = *switch;
    let (begun, project) = (file.writes_begun(), store.project_of(ino));
    // As for a seal: whoever must have no descriptor of ours in the way says so, and waits. They are opened without
    // the lock, as the copy has to be announced first, and closed before it is taken again.
    let quiet = file.read_quietly(());
    let made = catch_unwind(AssertUnwindSafe(|| make(&|| quiet.is_undisturbed())));
    let (mut file, (), _) = quiet.end();
    let Made { size, mtime } = made.map_err(|_| Fault::warn(libc::EIO, "copying it panicked"))??;
    if wait_until_unused(files, &mut file, RELEASES)? != Some(from) || file.writes_begun() != begun {
        return Err(written_meanwhile());
    }
    if rests && store.segments().failed(from) {
        return Err(cannot_be_synced());
    }
    // Where the segment has others than are recorded, recovery could take it for written since.
    if store.view().object(ino).is_none_or(|object| object.attributes.mtime != mtime) {
        return Err(busy("it was given other times meanwhile"));
    }
    if store.project_of(ino) != project {
        return Err(busy("it was given to another project meanwhile"));
    }
    store.descriptors().forget(from);
    if !store.pool().switch_to_copy(ino, (from, copy), size, whole)? {
        return Err(busy("it was changed meanwhile"));
    }
    file.go_on_with_own();
    drop(file);
    store.commit()?;
    if rests && store.segments().failed(copy) {
        return Err(cannot_be_synced());
    }
    Ok(())
}

/// What is copied for a file.
pub(super) struct Copied<'a> {
    pub ino: Ino,
    /// The segment whose bytes they are.
    pub from: SegmentId,
    /// But for these ranges, which are another one's.
    pub others: Option<(SegmentId, &'a [Range<u64>])>,
    pub copy: SegmentId,
    /// So many of them; all, if it does not say.
    pub size: Option<u64>,
    /// The file's times are its segment's.
    pub recorded: &'a Attributes,
}

/// Makes a durable copy, as long as the file is `undisturbed`.
pub(super) fn make_copy(
    store: &Store,
    copied: &Copied<'_>,
    undisturbed: &dyn Fn() -> bool,
    report: &dyn Fn(u64, u64),
) -> Result<Made> {
    let Copied { ino, from, others, copy, size, recorded } = *copied;
    let segments = store.segments();
    store.pool().announce_copy(ino, copy)?;
    let source = segments.open(from, libc::O_RDONLY | libc::O_NOATIME).host("opening a segment")?;
    let target = segments.open(copy, libc::O_RDWR).host("opening a segment")?;
    let before = host::stat(&source).host("looking at a segment")?;
    let size = size.unwrap_or(before.size);
    let mut copying = Copying::new(&target, size)?;
    let mut at = 0;
    if let Some((other, ranges)) = others {
        let other = segments.open(other, libc::O_RDONLY | libc::O_NOATIME).host("opening a segment")?;
        for range in ranges {
            let is_copied = copying.copy(&source, at..range.start, undisturbed, report)?
                && copying.copy(&other, range.clone(), undisturbed, report)?;
            if !is_copied {
                return Err(written_meanwhile());
            }
            at = range.end;
        }
    }
    if !copying.copy(&source, at..size, undisturbed, report)? {
        return Err(written_meanwhile());
    }
    let after = host::stat(&source).host("looking at a segment")?;
    if !undisturbed() || (after.size, after.mtime) != (before.size, before.mtime) {
        return Err(written_meanwhile());
    }
    host::set_times(&target, Some(recorded.atime), Some(recorded.mtime)).host("setting a segment's times")?;
    segments.sync_copy(copy, None).host("syncing a copy")?;
    Ok(Made { size, mtime: recorded.mtime })
}

/// Waits a moment for a file's last handles to go. The segment that it has then.
pub(super) fn wait_until_unused(files: &Files, file: &mut Locked<'_>, patience: Duration) -> Result<Option<SegmentId>> {
    let store = files.store();
    let deadline = Instant::now() + patience;
    loop {
        if !file.is_open_to_write() && file.is_written() {
            // What kept it from being settled when its last writer closed it may be over.
            file.settle(0);
        }
        let segment = own_segment(store, file.ino());
        // Who reads what comes of it, part by part, goes on with the rest.
        let in_use = (file.is_open() && !file.is_away()) || file.is_opening() || !file.is_unwritten();
        if !in_use {
            let Some(segment) = segment else { return Ok(None) };
            store.descriptors().forget(segment);
            let _claim = files.readings().claim(segment);
            if store.segments().exclusive(segment) || is_absent(store, segment) {
                return Ok(Some(segment));
            }
        }
        let now = Instant::now();
        if now >= deadline {
            return Err(busy(if in_use { "it is open" } else { "it is mapped, or open since before" }));
        }
        file.wait_until(if in_use { deadline } else { deadline.min(now + Duration::from_millis(1)) });
    }
}

/// Nobody has a segment open that is not there.
fn is_absent(store: &Store, segment: SegmentId) -> bool {
    let gone = store.segments().gone(segment).is_some();
    gone || store.segments().stat(segment).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// The segment that is recorded of a file.
pub(super) fn own_segment(store: &Store, ino: Ino) -> Option<SegmentId> {
    store.view().object(ino).and_then(|object| object.attributes.segment)
}

/// Moves a file of a pool that is not mounted to a tier, and closes it.
///
/// # Errors
/// The pool's own; what is in the way of this file comes as text.
pub fn move_in_pool(pool: Pool, ino: Ino, tier: &str) -> std::result::Result<std::result::Result<(), String>, Error> {
    let store = Arc::new(Store::new(Arc::new(pool), Options::default(), Durability::Fsync, 1024));
    let mover = Mover::new(Arc::new(Files::new(store.clone())));
    let number = store.view().tier_named(tier);
    let moved = match number {
        None => Err(format!("the pool has no tier {tier}")),
        Some(number) => mover.move_file(ino, number, &|_, _| {}).map_err(|fault| fault.to_string()),
    };
    store.pool().close()?;
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use tensorfs_layout::ROOT;
    use tensorfs_layout::pool::{CreateOptions, OpenOptions};

    use crate::testing::Direct;

    use super::*;

    /// Proves M6.
    #[test]
    fn times_that_are_given_while_a_file_is_moved_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        Pool::create(&path, &CreateOptions::default()).unwrap();
        let pool = Arc::new(Pool::open(&path, &OpenOptions::default()).unwrap());
        let ino = {
            let direct = Direct::new(pool.clone(), Durability::Fsync);
            let (ino, handle) = direct.create(ROOT, "file", libc::S_IFREG | 0o600).unwrap();
            direct.write(handle, 0, b"bytes").unwrap();
            direct.close(handle).unwrap();
            ino
        };
        let store = Arc::new(Store::new(pool.clone(), Options::default(), Durability::Fsync, 1024));
        let files = Files::new(store.clone());
        let recorded = pool.view().object(ino).unwrap().attributes.clone();
        let from = recorded.segment.unwrap();
        let give = |mtime: Option<Timestamp>| {
            let copy = files.new_segment(0, 0, Some(from)).unwrap().segment;
            let make = |undisturbed: &dyn Fn() -> bool| {
                let copied = Copied { ino, from, others: None, copy, size: None, recorded: &recorded };
                let made = make_copy(&store, &copied, undisturbed, &|_, _| {})?;
                if let Some(mtime) = mtime {
                    let attributes = Attributes { mtime, ..recorded.clone() };
                    pool.edit().store(Transaction::new(0).with(Record::Attributes { ino, attributes }))?;
                }
                Ok(made)
            };
            let switch = Switch { from, copy, whole: false, rests: true, make: &make };
            let node = files.node(ino);
            give_copy(&files, files.lock(&node), &switch).map(|()| copy).map_err(|fault| fault.errno)
        };
        let older = Timestamp { sec: 1_000_000_000, nsec: 0 };
        assert_eq!(give(Some(older)), Err(libc::EBUSY));
        assert_eq!(own_segment(&store, ino), Some(from));
        pool.edit().store(Transaction::new(0).with(Record::Attributes { ino, attributes: recorded.clone() })).unwrap();
        let copy = give(None).unwrap();
        assert_eq!(own_segment(&store, ino), Some(copy));
        pool.close().unwrap();
    }

    /// Proves B10.
    #[test]
    fn moves_that_nobody_waits_for_have_a_bound() {
        const ONE_USERS: usize = 1365;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        Pool::create(&path, &CreateOptions::default()).unwrap();
        let pool = Arc::new(Pool::open(&path, &OpenOptions::default()).unwrap());
        let files: Vec<Ino> = {
            let direct = Direct::new(pool.clone(), Durability::Fsync);
            (0..=ONE_USERS).map(|n| direct.make(ROOT, &format!("f{n}"), libc::S_IFREG | 0o600).unwrap()).collect()
        };
        let store = Arc::new(Store::new(pool.clone(), Options::default(), Durability::Fsync, 1024));
        let mover = Arc::new(Mover::new(Arc::new(Files::new(store))));
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.lock();
        for busy in 0..2 {
            let gate = gate.clone();
            mover.threads().run(Ino(1 << 40 | busy), move || drop(gate.lock()));
        }
        let caller = Caller { unique: 0, again: false, uid: 0, gid: 0, pid: 1 };
        let (last, first) = files.split_last().unwrap();
        for ino in first {
            let begun = mover.ask_for_move(caller, *ino, "pm", true).unwrap();
            assert_eq!(begun, Moving::Working { done: 0, total: 0 });
        }
        let refused = |moving| matches!(moving, Moving::Refused(why) if why.contains("too many"));
        assert!(refused(mover.ask_for_move(caller, *last, "pm", true).unwrap()));
        assert_eq!(mover.place(caller).err().map(|fault| fault.errno), Some(libc::EAGAIN));
        assert!(mover.place(Caller { uid: 7, ..caller }).is_ok(), "another user");
        // What waits is not begun: there is nothing to move, and what is to be shown was seen.
        drop(shut);
        mover.threads().finish();
        pool.close().unwrap();
    }
}
