//! A server that is killed again and again, whatever goes on at its mount: its keeper has another one take over.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::statvfs::statvfs;

use crate::random::Random;

/// How often the servers of all tests are to be killed, on average, if they are (`TENSORFS_TEST_KILLS`, milliseconds).
pub fn wanted() -> Option<Duration> {
    let text = std::env::var("TENSORFS_TEST_KILLS").ok()?;
    Some(Duration::from_millis(text.parse().expect("TENSORFS_TEST_KILLS: milliseconds")))
}

/// Whoever kills them, until it ends.
#[derive(Debug)]
pub struct Killing {
    stop: Sender<()>,
    killer: Option<JoinHandle<u64>>,
}

impl Killing {
    /// Begins to kill the servers of a pool and its mount, each when it has served for a time that is this long on
    /// average; some while they have just begun to take over.
    pub fn begin(pool: &Path, at: &Path, average: Duration) -> Self {
        let (stop, stopped) = channel();
        let (pool, at) = (pool.to_owned(), at.to_owned());
        let mut random = Random::of(&[std::process::id().into(), average.as_micros() as u64]);
        let killer = thread::spawn(move || {
            let (mut kills, mut tries) = (0, 0);
            let mut wait = || Duration::from_micros(random.below(2 * average.as_micros() as u64 + 1));
            while stopped.recv_timeout(wait()) == Err(RecvTimeoutError::Timeout) {
                kills += u64::from(kill(&pool));
                tries += 1;
                assert!(kills > 0 || tries < 100, "no server of {} is found to kill", pool.display());
                if kills % 5 != 0 {
                    // This is answered by the next one: on a machine that is busy none would get to serve else.
                    let _ = statvfs(&at);
                }
            }
            kills
        });
        Self { stop, killer: Some(killer) }
    }

    /// How many were killed. None is from now on.
    pub fn end(mut self) -> u64 {
        self.join()
    }

    fn join(&mut self) -> u64 {
        // It may have ended of a panic.
        let _ = self.stop.send(());
        self.killer.take().map_or(0, |killer| killer.join().expect("whoever kills servers"))
    }
}

impl Drop for Killing {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.join();
        }
    }
}

/// Kills who has the pool. False if nobody serves it at the moment.
fn kill(pool: &Path) -> bool {
    let Ok(Some(holder)) = tensorfs_layout::pool::holder(pool) else { return false };
    // Between two servers the pool's lock names the one that has ended.
    let name = PathBuf::from(format!("/proc/{}/comm", holder.pid));
    if holder.pid == 0 || std::fs::read_to_string(name).ok().as_deref() != Some("tensorfs\n") {
        return false;
    }
    // SAFETY: plain system call. The process is a server, and held the pool a moment ago.
    unsafe { libc::kill(holder.pid as i32, libc::SIGKILL) == 0 }
}
