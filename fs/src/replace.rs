//! `open(O_TRUNC)`: a file that nobody else uses gets a new segment, and keeps its old content until the new one is
//! complete. A process that has the old one mapped keeps it.
//!
//! The switch to the new segment is stored at the first fsync, before a rename or link, when the last writer closes,
//! or after the time in [`Options::replace`](crate::Options): a pending replace does not hold back a file that stays open,
//! such as a log, for longer. A power loss before that leaves the old content. Where the writer is killed by a signal, the
//! new content stands, as POSIX has it, and the old version goes to quarantine.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use tensorfs_layout::{Attributes, Ino, Note, Reason, Record, SegmentId, Transaction};

use crate::clock;
use crate::error::{Fault, Host, Result};
use crate::filesystem::{Caller, Filesystem};
use crate::learn::{Made, Switch};
use crate::mode::Access;
use crate::nodes::{Node, NodeRef, Replace, Seen, State};

/// RELEASE comes after `close` has returned: so long is waited for one that may be on its way.
const RELEASES: Duration = Duration::from_millis(2);
/// The same where a close is known of and much depends on it.
const LATE_RELEASES: Duration = Duration::from_millis(50);

impl Filesystem {
    /// Empties a file that is being opened with `O_TRUNC`.
    pub fn truncate_at_open(
        &self,
        caller: Caller,
        node: &NodeRef,
        state: &mut MutexGuard<'_, State>,
        segment: SegmentId,
        access: Access,
    ) -> Result<()> {
        if self.look(state)?.size == 0 {
            return self.stamp(node.ino, state, caller);
        }
        // Who can only read never says when the new content is complete.
        if access.write && self.wait_until_alone(node, state, segment) {
            match self.start_replace(caller, node, state, segment) {
                Err(fault) if fault.errno != libc::EROFS => {
                    log::debug!("inode {}: truncating in place: {}", node.ino, fault);
                }
                done => return done,
            }
        }
        self.counters.truncated_in_place.add(1);
        self.truncate(node, state, caller, 0)
    }

    /// True if a program runs from the file.
    pub fn is_executed(&self, node: &Node, state: &mut MutexGuard<'_, State>) -> bool {
        // The RELEASE of one that has ended may be on its way. Hardly anybody else comes here: the kernel asks us only where
        // no write access is wanted.
        let deadline = Instant::now() + LATE_RELEASES;
        while state.executing > 0 && !node.released.wait_until(state, deadline).timed_out() {}
        state.executing > 0
    }

    /// Waits a moment for the file's other handles to go, and for a pending replace with them; true if nothing else uses
    /// the segment then. A RELEASE can be late on a busy machine. Handles that have been waited for once stay open for
    /// good, as far as anybody knows: the next one who empties the file does not wait as long for them.
    fn wait_until_alone(&self, node: &Node, state: &mut MutexGuard<'_, State>, segment: SegmentId) -> bool {
        let begun = Instant::now();
        let mut alone_since = None;
        loop {
            if state.segment != Some(segment) {
                return false;
            }
            let alone = state.handles() == 0 && state.replace.is_none();
            if alone {
                self.fds.forget(segment);
                // A mapping to read keeps the old segment and is not in the way; one to write must go on to be seen.
                if self.pool.segments().quiescent(segment) {
                    return true;
                }
            }
            let now = Instant::now();
            let deadline = match alone {
                true => *alone_since.get_or_insert(now) + RELEASES,
                false if state.handles() > state.staying => begun + LATE_RELEASES,
                false => begun + RELEASES,
            };
            if now >= deadline {
                state.staying = state.handles();
                return false;
            }
            // The lease can also be held up by the kernel's own last close, which signals nobody.
            let step = if alone { Duration::from_micros(100) } else { deadline - now };
            node.released.wait_for(state, step.min(deadline - now));
        }
    }

    /// Waits for the RELEASE of files being replaced that were closed before this was called: what a client did before it
    /// asks for all to be durable is durable then. Other descriptors may hold it back, which is found out once.
    pub fn wait_for_closed_replaces(&self) {
        let nodes: Vec<NodeRef> = self.writers.lock().values().map(|watched| watched.node.clone()).collect();
        let deadline = Instant::now() + LATE_RELEASES;
        for node in nodes {
            let mut state = node.lock();
            while state.replace.is_some_and(|replace| replace.closed) {
                let now = Instant::now();
                if now >= deadline {
                    state.replace.iter_mut().for_each(|replace| replace.closed = false);
                    break;
                }
                node.released.wait_for(&mut state, deadline - now);
            }
        }
    }

    fn start_replace(&self, caller: Caller, node: &NodeRef, state: &mut State, old: SegmentId) -> Result<()> {
        let ino = node.ino;
        // The old version is to be whole, also if it was closed just before.
        self.learn(node, state, caller.unique, Switch::Store)?;
        let made = self.new_segment_in(self.place_again(ino), Some(old))?;
        let new = made.segment;
        // The file counts as written from now on, whatever it is opened for: who closes it last stores the switch.
        let watch = self.begin_first_write(&made).inspect_err(|_| self.pool.discard_segment(new))?;
        let stored = self.edit(|edit| {
            if edit.object(ino).is_none_or(|object| object.names() == 0) {
                return Err(Fault::new(libc::ENOENT));
            }
            Ok(edit.store(Transaction::new(caller.unique).with(Record::Replace { ino, segment: new }))?)
        });
        if let Err(fault) = stored {
            drop(watch);
            self.pool.segments().end_write(new);
            self.pool.discard_segment(new);
            return Err(fault);
        }
        self.stop_watching(ino, state);
        state.segment = Some(new);
        state.backing = made.backing.map(Arc::new);
        self.watch(node, state, new, watch);
        (state.seen, state.valued, state.unheard) = (Some(Seen::CHANGED), None, false);
        state.replace = Some(Replace { old, since: Instant::now(), dying: false, closed: false, flushed: false });
        self.counters.replaced.add(1);
        Ok(())
    }

    /// Makes the new segment of a pending replace the file's own. True if its bytes are durable as soon as the log is.
    pub fn store_switch(&self, node: &Node, state: &mut State, unique: u64, made: Option<Made>) -> Result<bool> {
        let (Some(replace), Some(segment)) = (state.replace, state.segment) else { return Ok(false) };
        let at = clock::now();
        let host = self.look(state)?;
        // The kernel asks security modules (such as Landlock) about the truncation after it has asked us to open the file.
        let refused = state.writers == 0 && !replace.flushed && host.size == 0;
        if (replace.dying || refused) && self.pool.view().object(node.ino).is_some_and(|object| object.names() > 0) {
            let why = if replace.dying { "its writer was killed" } else { "who emptied it never closed it" };
            self.quarantine(node.ino, replace.old, why);
        }
        let made = made.and_then(|made| made.if_covers(segment, &host));
        let durable = made.is_some();
        let stored = self.edit(|edit| {
            let Some(object) = edit.object(node.ino).filter(|object| object.names() > 0) else {
                return Ok(false);
            };
            let attributes = Attributes {
                segment: Some(segment),
                damaged: false,
                ..self.observed(&object.attributes, &host, state)
            };
            let ino = node.ino;
            let mut tx = Transaction::new(unique).with(Record::Attributes { ino, attributes }).with(Record::Data {
                ino,
                segment,
                offset: 0,
                len: host.size,
                allocated: host.allocated,
            });
            if let Some(Made::Value(_, bytes)) = &made {
                tx.push(Record::Value { ino, segment, bytes: (**bytes).into() });
            }
            if durable {
                tx.bytes_are_durable(segment);
            }
            // What is kept for deletion is not for bytes of files.
            let by_value = matches!(made, Some(Made::Value(..)));
            if by_value { edit.store(tx) } else { edit.store_from_reserve(tx) }?;
            Ok(true)
        })?;
        if !durable {
            self.pool.segments().touch(segment).host("opening a segment to sync it")?;
        }
        state.valued = match made {
            Some(Made::Value(_, bytes)) if stored => Some(bytes),
            _ => None,
        };
        if stored {
            state.replace = None;
            state.seen = Some(Seen { ctime: host.ctime, size: host.size, at });
            self.counters.learned.add(1);
        }
        Ok(durable)
    }

    fn quarantine(&self, ino: Ino, old: SegmentId, why: &str) {
        let path = self.pool.view().path_of(ino).map(|path| String::from_utf8_lossy(&path).into_owned());
        let shown = path.clone().unwrap_or_else(|| format!("inode {ino}"));
        let note = Note { ino: Some(ino), path, reason: Reason::InterruptedReplace, offset: 0, time: clock::now() };
        match self.pool.quarantine().keep(self.pool.segments(), old, &note) {
            Ok(entry) => log::warn!("{shown}: {why}; the old version is in quarantine as {entry}"),
            Err(error) => log::error!("{shown}: {why}; the old version is lost: {error}"),
        }
    }

    /// An `O_TRUNC` of an empty file changes its times alone.
    fn stamp(&self, ino: Ino, state: &mut State, caller: Caller) -> Result<()> {
        let now = clock::coarse();
        if let Some(segment) = state.segment {
            // Its times are the ones that count while the file is open.
            let fd = self.pool.segments().open(segment, libc::O_RDONLY).host("opening a segment")?;
            crate::host::set_times(&fd, None, Some(now)).host("setting a segment's times")?;
            state.seen = None;
        }
        self.edit(|edit| {
            let Some(object) = edit.object(ino) else { return Err(Fault::new(libc::ENOENT)) };
            let attributes = Attributes { mtime: now, ctime: now, ..object.attributes.clone() };
            edit.store(Transaction::new(caller.unique).with(Record::Attributes { ino, attributes }))?;
            Ok(())
        })
    }
}

/// True if a signal is killing the process (or thread) that sends a request.
///
/// `/proc/PID/stat` would tell, but it waits for a lock that a process holds while it executes another program, and one
/// that closes files in doing so waits for our answer. So it is read only of a process that has given up its memory,
/// which one that executes a program never has; `/proc/PID/status` tells that and waits for nothing.
pub(crate) fn is_dying(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    if status.is_empty() || has_memory(&status) {
        return false;
    }
    fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(|stat| exit_signal(&stat)).is_some()
}

fn has_memory(status: &str) -> bool {
    status.lines().any(|line| line.starts_with("VmSize:"))
}

/// The signal in the exit code, the 52nd field of `/proc/PID/stat`, while its process exits.
fn exit_signal(stat: &str) -> Option<i32> {
    // The second field is the program's name, which may hold blanks and brackets.
    let rest = &stat[stat.rfind(')')? + 1..];
    let code: i32 = rest.split_whitespace().nth(49)?.parse().ok()?;
    Some(code & 0x7f).filter(|signal| *signal != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_signal_of_an_exiting_process() {
        let stat = |code: i32| {
            let mut fields = vec!["0".to_owned(); 49];
            fields[0] = "X".into();
            format!("7 (a) b (c)) {} {code}\n", fields.join(" "))
        };
        assert_eq!(exit_signal(&stat(9)), Some(9));
        assert_eq!(exit_signal(&stat(0x80 | 11)), Some(11));
        assert_eq!(exit_signal(&stat(0)), None);
        assert_eq!(exit_signal(&stat(3 << 8)), None);
        assert_eq!(exit_signal("nonsense"), None);
        assert_eq!(exit_signal("1 (x) R 1"), None);
    }

    #[test]
    fn a_process_that_exits_has_no_memory() {
        assert!(has_memory("Name:\tx\nVmPeak:\t1 kB\nVmSize:\t1 kB\n"));
        assert!(!has_memory("Name:\tVmSize:\nState:\tX (dead)\n"));
    }

    #[test]
    fn a_living_process_is_not_dying() {
        assert!(!is_dying(std::process::id()));
    }
}
