//! Files leave a pool for its remote, and what the remote is to have is said, in turns.
//!
//! Whoever carries the pool decides what is in the next batch, and notes that; whoever has a file leave has seen that
//! it is in the newest one. Were both done at once, a file could have left which no batch has any more. So the carrier
//! has a time of its own for that, of which each has a number: who has looked before it has to look again. And the
//! server counts what it lets leave, so that the carrier need not read the pool again where nothing has left.
//!
//! Both are in the file that keeps a second carrier out, of which this locks another byte. They mean nothing once the
//! machine has ended, as nobody is there then who has looked.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use crate::error::{Error, Result};
use crate::log::file::open_pool;
use crate::medium::dir::Dir;
use crate::medium::file_lock::{exclusive, of_byte, shared};
use crate::medium::remote_note::REMOTE_LOCK;

/// The byte of the file that is locked here.
const BYTE: i64 = 1;
/// Where the numbers are: that of the carrier's last time, and how many files were let leave.
const TIME: u64 = 0;
const LEFT: u64 = 8;
/// So long is waited for others, and how often it is tried.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);

/// A lock, until this is dropped.
#[derive(Debug)]
pub struct Turn<'a>(&'a File);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        unlock(self.0);
    }
}

/// That a file may leave, as long as this lives.
#[derive(Debug)]
pub struct MayLeave(File);

impl Drop for MayLeave {
    fn drop(&mut self) {
        unlock(&self.0);
    }
}

/// A process that was forked meanwhile has the file open, too.
fn unlock(file: &File) {
    let free = libc::flock { l_type: libc::F_UNLCK as _, ..of_byte(BYTE, exclusive()) };
    let _ = fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&free));
}

/// The number of the time that the carrier of a pool has taken last. What is noted of the remote afterwards holds as
/// long as there is no later one. Nothing if there is no end of a time.
///
/// # Errors
/// The pool has no carrier and never had one, or that cannot be seen.
pub fn time_of_carrier(pool: &Path) -> Result<Option<u64>> {
    let dir = open_pool(pool)?;
    let file = opened(&dir, libc::O_RDONLY)?;
    let Some(_turn) = within(PATIENCE, || locked(&file, of_byte(BYTE, shared()))).map_err(failed(&dir))? else {
        return Ok(None);
    };
    read(&file, TIME).map(Some).map_err(failed(&dir))
}

/// As of [`time_of_carrier`]: that a file may leave which was looked at then, for as long as the answer lives. Nothing
/// if the carrier has had, or has, a later time.
pub(super) fn may_leave(dir: &Dir, time: u64) -> Result<Option<MayLeave>> {
    let file = opened(dir, libc::O_RDWR)?;
    let Some(turn) = locked(&file, of_byte(BYTE, shared())).map_err(failed(dir))? else { return Ok(None) };
    let is_now = read(&file, TIME).and_then(|now| match now == time {
        true => add(&file, LEFT).map(|()| true),
        false => Ok(false),
    });
    if !is_now.map_err(failed(dir))? {
        return Ok(None);
    }
    // It goes with the file.
    std::mem::forget(turn);
    Ok(Some(MayLeave(file)))
}

/// A time of the carrier's own. Nothing if files leave all the while.
pub(super) fn own_time<'a>(dir: &Dir, file: &'a File) -> Result<Option<Turn<'a>>> {
    let turn = within(PATIENCE, || locked(file, of_byte(BYTE, exclusive()))).map_err(failed(dir))?;
    turn.map(|turn| add(file, TIME).map(|()| turn)).transpose().map_err(failed(dir))
}

/// How many files were let leave.
pub(super) fn left(dir: &Dir, file: &File) -> Result<u64> {
    read(file, LEFT).map_err(failed(dir))
}

/// Room for both numbers: where the host is full, what leaves makes room.
pub(super) fn make_room(file: &File) -> io::Result<()> {
    match file.metadata()?.len() {
        16.. => Ok(()),
        _ => file.write_all_at(&[0; 16], 0),
    }
}

fn opened(dir: &Dir, flags: libc::c_int) -> Result<File> {
    dir.open_only(REMOTE_LOCK, flags).map_err(failed(dir))
}

fn failed(dir: &Dir) -> impl Fn(io::Error) -> Error {
    |error| Error::in_pool(dir.path(), REMOTE_LOCK, "look at", error)
}

fn within<T>(patience: Duration, mut attempt: impl FnMut() -> io::Result<Option<T>>) -> io::Result<Option<T>> {
    let begun = Instant::now();
    loop {
        match attempt()? {
            None if begun.elapsed() < patience => sleep(LOOK),
            done => return Ok(done),
        }
    }
}

fn locked(file: &File, lock: libc::flock) -> io::Result<Option<Turn<'_>>> {
    match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&lock)) {
        Ok(_) => Ok(Some(Turn(file))),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// One that was never written is 0.
fn read(file: &File, at: u64) -> io::Result<u64> {
    let mut number = [0; 8];
    match file.read_exact_at(&mut number, at) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        Err(_) => Ok(0),
        Ok(()) => Ok(u64::from_le_bytes(number)),
    }
}

fn add(file: &File, at: u64) -> io::Result<()> {
    let next = read(file, at)?.wrapping_add(1);
    file.write_all_at(&next.to_le_bytes(), at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{Carrying, CreateOptions, Pool};

    /// Proves E26.
    #[test]
    fn what_was_looked_at_before_a_time_of_the_carriers_does_not_leave() {
        let scratch = tempfile::tempdir().unwrap();
        let pool = scratch.path().join("pool");
        Pool::create(&pool, &CreateOptions::default()).unwrap();
        let dir = open_pool(&pool).unwrap();
        assert!(may_leave(&dir, 0).is_err(), "nobody carries it");
        let carrying = Carrying::take(&pool).unwrap().unwrap();
        let seen = time_of_carrier(&pool).unwrap().unwrap();
        assert_eq!(carrying.left().unwrap(), 0);
        let leaves = may_leave(&dir, seen).unwrap().unwrap();
        assert_eq!(carrying.left().unwrap(), 1);
        // The carrier waits, and others do not.
        let other = may_leave(&dir, seen).unwrap().unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| drop(carrying.own_time().unwrap().unwrap()));
            sleep(LOOK * 4);
            assert!(!waits.is_finished());
            drop((leaves, other));
            waits.join().unwrap();
        });
        assert!(may_leave(&dir, seen).unwrap().is_none(), "it was looked at before");
        let own = carrying.own_time().unwrap().unwrap();
        let now = read(&opened(&dir, libc::O_RDONLY).unwrap(), TIME).unwrap();
        assert!(may_leave(&dir, now).unwrap().is_none(), "it is the carrier's time");
        drop(own);
        assert_eq!(time_of_carrier(&pool).unwrap(), Some(now));
        assert!(may_leave(&dir, now).unwrap().is_some());
        assert_eq!(carrying.left().unwrap(), 3);
        // Another carrier is kept out all the same, and one is seen.
        assert!(Carrying::take(&pool).unwrap().is_none() && Carrying::is_taken(&pool).unwrap());
        let leaves = may_leave(&dir, now).unwrap().unwrap();
        drop(carrying);
        assert!(!Carrying::is_taken(&pool).unwrap(), "what leaves is no carrier");
        assert!(Carrying::take(&pool).unwrap().is_some());
        drop(leaves);
    }
}
