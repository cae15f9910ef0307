//! Moving a file's bytes to another tier: they are copied to a new segment there, made durable, and then that becomes the file's
//! own in one transaction. Nothing waits for it: who opens the file meanwhile goes on with the old segment, and the move is given
//! up.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use log::Level;
use nix::unistd::Whence;
use parking_lot::{Mutex, MutexGuard};
use tensorfs_layout::{Attributes, Ino, Pool, Record, SegmentId, Transaction};

use crate::ask::Moving;
use crate::error::{Error, Fault, Host, Result};
use crate::filesystem::{Caller, Filesystem};
use crate::host;
use crate::nodes::{Node, NodeRef, State};
use crate::options::{Durability, Options};
use crate::seal::QUIET;

/// RELEASE comes after `close` has returned: so long is waited for one that may be on its way.
const RELEASES: Duration = Duration::from_millis(50);
/// So many bytes are copied at a time.
const STEP: u64 = 8 << 20;
/// So many are copied before they are synced.
const SYNC_STEP: u64 = 64 << 20;
/// Results that nobody asked for are kept for so many files.
const UNHEARD: usize = 1024;

/// The moves that programs have asked for.
#[derive(Default)]
pub(crate) struct Moves(Mutex<HashMap<Ino, Move>>);

enum Move {
    UnderWay { done: u64, total: u64 },
    Ended(std::result::Result<(), String>),
}

/// What is said of a file that something uses.
fn busy(why: &'static str) -> Fault {
    Fault { level: Level::Debug, ..Fault::warn(libc::EBUSY, why) }
}

impl Filesystem {
    /// Has a file moved to a tier; or, if that was begun before, says what came of it.
    pub fn ask_for_move(self: &Arc<Self>, caller: Caller, ino: Ino, tier: &str, begin: bool) -> Result<Moving> {
        let number = match self.may_place(caller, ino, tier) {
            Ok(number) => number,
            Err(fault) => return Ok(Moving::Refused(fault.to_string())),
        };
        let mut moves = self.moves.0.lock();
        match moves.get(&ino) {
            Some(Move::UnderWay { done, total }) => return Ok(Moving::Working { done: *done, total: *total }),
            Some(Move::Ended(_)) if !begin => {
                return Ok(match moves.remove(&ino) {
                    Some(Move::Ended(Err(why))) => Moving::Refused(why),
                    _ => Moving::Moved,
                });
            }
            _ if !begin => return Ok(Moving::Refused("it was not begun, or is over for long".into())),
            _ => {}
        }
        if moves.len() >= UNHEARD {
            moves.retain(|_, one| matches!(one, Move::UnderWay { .. }));
        }
        moves.insert(ino, Move::UnderWay { done: 0, total: 0 });
        drop(moves);
        let fs = self.clone();
        self.movers.run(move || {
            let report = |done, total| drop(fs.moves.0.lock().insert(ino, Move::UnderWay { done, total }));
            let moved = catch_unwind(AssertUnwindSafe(|| fs.move_file(ino, number, &report)));
            let ended = match moved {
                Ok(moved) => moved.map_err(|fault| fault.to_string()),
                Err(_) => {
                    fs.counters.panics.add(1);
                    log::error!("inode {ino}: moving it panicked");
                    Err("the server panicked; its log says where".into())
                }
            };
            fs.moves.0.lock().insert(ino, Move::Ended(ended));
        });
        Ok(Moving::Working { done: 0, total: 0 })
    }

    /// The number of a tier, for whoever may move a file there: root, and the file's owner.
    pub fn may_place(&self, caller: Caller, ino: Ino, tier: &str) -> Result<u8> {
        let view = self.pool.view();
        let object = view.object(ino).ok_or(Fault::stale())?;
        if caller.uid != 0 && caller.uid != object.attributes.uid {
            return Err(Fault { level: Level::Debug, ..Fault::warn(libc::EPERM, "it belongs to another user") });
        }
        if !object.is_file() {
            return Err(Fault { level: Level::Debug, ..Fault::warn(libc::EINVAL, "it is no regular file") });
        }
        let unknown =
            || Fault { level: Level::Info, ..Fault::warn(libc::EINVAL, format!("the pool has no tier {tier}")) };
        view.tier_named(tier).ok_or_else(unknown)
    }

    /// Moves a file to a tier, durably. `report` hears how much of it is copied.
    pub fn move_file(&self, ino: Ino, tier: u8, report: &dyn Fn(u64, u64)) -> Result<()> {
        self.check_writable()?;
        let node = self.nodes.take(ino);
        let mut state = node.lock();
        if state.sealing {
            self.interrupt_seal(&node, &mut state);
        }
        self.check_gone(ino)?;
        let from = self.wait_until_unused(&node, &mut state)?;
        if !self.pool.segments().is_there(tier) {
            let name = self.pool.view().tier_name(tier);
            return Err(Fault::warn(libc::EIO, format!("tier {name} is missing")));
        }
        let recorded = {
            let view = self.pool.view();
            let object = view.object(ino).filter(|object| object.names() > 0).ok_or(Fault::new(libc::ENOENT))?;
            object.attributes.clone()
        };
        if from.map(SegmentId::tier) == Some(tier) {
            return Ok(());
        }
        let copy = self.new_segment_in(tier, from)?.segment;
        let Some(from) = from else {
            return self.give_first(ino, copy);
        };
        let begun = node.writes_begun.load(Ordering::Relaxed);
        // As for a seal: whoever must have no descriptor of ours in the way says so, and waits.
        state.sealing = true;
        drop(state);
        let moved = self.copy_and_switch(&node, (from, copy), &recorded, begun, report);
        match &moved {
            Ok(()) => {
                self.pool.unlink_covered();
                self.forget_attributes(ino);
                if !self
                    .pool
                    .view()
                    .object(ino)
                    .and_then(|object| object.chain())
                    .is_some_and(|chain| chain.is_sealed())
                {
                    self.sealing.add(ino, self.pool.newest(), QUIET);
                }
            }
            Err(_) => {
                // That the switch was made may have been heard as an error all the same.
                let own = self.pool.view().object(ino).and_then(|object| object.attributes.segment);
                if own != Some(copy) {
                    self.pool.discard_segment(copy);
                }
            }
        }
        moved
    }

    /// A file that never had bytes gets its segment.
    fn give_first(&self, ino: Ino, segment: SegmentId) -> Result<()> {
        let stored = self.edit(|edit| {
            let object = edit.object(ino).ok_or(Fault::new(libc::ENOENT))?;
            let attributes = Attributes { segment: Some(segment), ..object.attributes.clone() };
            edit.store(Transaction::new(0).with(Record::Attributes { ino, attributes }))?;
            Ok(())
        });
        if stored.is_err() {
            self.pool.discard_segment(segment);
        }
        stored.and_then(|()| self.commit())
    }

    fn copy_and_switch(
        &self,
        node: &NodeRef,
        (from, copy): (SegmentId, SegmentId),
        recorded: &Attributes,
        begun: u64,
        report: &dyn Fn(u64, u64),
    ) -> Result<()> {
        let segments = self.pool.segments();
        let undisturbed = || node.writes_begun.load(Ordering::Relaxed) == begun;
        let copied = catch_unwind(AssertUnwindSafe(|| {
            self.pool.announce_copy(node.ino, copy)?;
            let source = segments.open(from, libc::O_RDONLY | libc::O_NOATIME).host("opening a segment")?;
            let target = segments.open(copy, libc::O_RDWR).host("opening a segment")?;
            let before = host::stat(&source).host("looking at a segment")?;
            copy_all(&source, &target, before.size, &undisturbed, report)?;
            let after = host::stat(&source).host("looking at a segment")?;
            if !undisturbed() || (after.size, after.mtime) != (before.size, before.mtime) {
                return Err(busy("it was written meanwhile"));
            }
            host::set_times(&target, Some(recorded.atime), Some(recorded.mtime)).host("setting a segment's times")?;
            segments.sync_copy(copy).host("syncing a copy")?;
            Ok(before.size)
        }));
        let mut state = node.lock();
        state.sealing = false;
        node.released.notify_all();
        let size = copied.map_err(|_| Fault::warn(libc::EIO, "copying it panicked"))??;
        if self.wait_until_unused(node, &mut state)? != Some(from) || !undisturbed() {
            return Err(busy("it was written meanwhile"));
        }
        if segments.failed(from) {
            return Err(Fault::warn(libc::EIO, "the file's segment could not be synced"));
        }
        self.fds.forget(from);
        if !self.pool.switch_to_copy(node.ino, from, copy, size)? {
            return Err(busy("it was changed meanwhile"));
        }
        state.segment = None;
        state.seen = None;
        drop(state);
        self.commit()
    }

    /// Waits a moment for a file's last handles to go. The segment that it has then.
    fn wait_until_unused(&self, node: &Node, state: &mut MutexGuard<'_, State>) -> Result<Option<SegmentId>> {
        let deadline = Instant::now() + RELEASES;
        loop {
            if state.writers == 0 && state.writing.is_some() {
                // What kept it from being settled when its last writer closed it may be over.
                self.settle(node, state, 0);
            }
            let segment = self.pool.view().object(node.ino).and_then(|object| object.attributes.segment);
            let in_use = state.handles() > 0 || state.opening > 0 || state.writing.is_some() || state.replace.is_some();
            if !in_use {
                let Some(segment) = segment else { return Ok(None) };
                self.fds.forget(segment);
                let _claim = self.readings.claim(segment);
                if self.pool.segments().exclusive(segment) {
                    return Ok(Some(segment));
                }
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(busy(if in_use { "it is open" } else { "it is mapped, or open since before" }));
            }
            let step = if in_use { deadline - now } else { Duration::from_millis(1) };
            node.released.wait_for(state, step.min(deadline - now));
        }
    }
}

/// Copies what the host has allocated, and leaves the holes.
fn copy_all(
    from: &OwnedFd,
    to: &OwnedFd,
    size: u64,
    go_on: &dyn Fn() -> bool,
    report: &dyn Fn(u64, u64),
) -> Result<()> {
    host::truncate(to, size).host("making a copy")?;
    let mut buffer = Vec::new();
    let mut at = 0;
    let mut synced = 0;
    while at < size {
        let data = match host::seek(from, at as i64, Whence::SeekData) {
            Ok(data) => (data as u64).min(size),
            Err(nix::errno::Errno::ENXIO) => size,
            Err(errno) => return Err(errno).host("making a copy"),
        };
        let end = match data {
            data if data >= size => break,
            data => host::seek(from, data as i64, Whence::SeekHole).host("making a copy")? as u64,
        };
        at = data;
        while at < end.min(size) {
            if !go_on() {
                return Err(busy("it was written meanwhile"));
            }
            report(at, size);
            at += copy_some(from, to, at, (end.min(size) - at).min(STEP), &mut buffer)?;
            // Whoever removes the file waits until the copy is given up, so there must never be much left to sync.
            if at - synced >= SYNC_STEP {
                nix::unistd::fdatasync(to).host("syncing a copy")?;
                synced = at;
            }
        }
    }
    Ok(())
}

fn copy_some(from: &OwnedFd, to: &OwnedFd, at: u64, len: u64, buffer: &mut Vec<u8>) -> Result<u64> {
    match host::copy(from.as_fd(), at, to.as_fd(), at, len) {
        Ok(copied) if copied > 0 => return Ok(copied),
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => return Err(error).host("making a copy"),
        // Between filesystems that cannot.
        _ => {}
    }
    buffer.resize(len as usize, 0);
    let read = host::read_at(from, buffer, at).host("making a copy")?;
    let mut done = 0;
    while done < read {
        let written = host::write_at(to, &buffer[done..read], at + done as u64).host("making a copy")?;
        if written == 0 {
            return Err(Fault::new(libc::ENOSPC));
        }
        done += written;
    }
    if read == 0 { Err(Fault::warn(libc::EIO, "the segment is shorter than it was")) } else { Ok(read as u64) }
}

/// Moves a file of a pool that is not mounted to a tier, and closes it.
///
/// # Errors
/// The pool's own; what is in the way of this file comes as text.
pub fn move_in_pool(pool: Pool, ino: Ino, tier: &str) -> std::result::Result<std::result::Result<(), String>, Error> {
    let fs = Filesystem::new(Arc::new(pool), Options::default(), Durability::Fsync, 1024);
    let number = fs.pool.view().tier_named(tier);
    let moved = match number {
        None => Err(format!("the pool has no tier {tier}")),
        Some(number) => fs.move_file(ino, number, &|_, _| {}).map_err(|fault| fault.to_string()),
    };
    fs.pool.close()?;
    Ok(moved)
}
