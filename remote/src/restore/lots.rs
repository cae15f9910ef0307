//! What was restored is made durable and then sealed, a lot of files at a time, beside what is fetched next: who waits
//! for a disk fetches nothing.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use tensorfs_layout::pool::Pool;
use tensorfs_layout::segment::SealedRun;
use tensorfs_layout::{Ino, SegmentId, TxId};

use crate::error::{Error, Result};

/// So many files, or so many bytes, are committed and sealed together.
const LOT: (usize, u64) = (256, 128 << 20);

/// A file that waits to be committed and sealed.
pub struct Waiting {
    pub ino: Ino,
    pub segment: SegmentId,
    pub allocated: u64,
    pub runs: Vec<SealedRun>,
}

/// Files that have all their bytes and their names, up to a transaction.
struct Lot {
    upto: TxId,
    files: Vec<Waiting>,
}

/// The lots of a pool. One more than is being made durable may wait for that.
pub struct Lots {
    pool: Arc<Pool>,
    files: Vec<Waiting>,
    bytes: u64,
    /// Where lots go; nowhere once the thread that takes them was found to have failed.
    way: Option<(SyncSender<Lot>, JoinHandle<Result<()>>)>,
}

impl Lots {
    pub fn of(pool: Arc<Pool>) -> Result<Self> {
        let (sender, lots) = sync_channel(1);
        let own = pool.clone();
        let thread = thread::Builder::new().spawn(move || make_durable(&own, &lots));
        let host = |source| Error::Host { path: "tensorfs remote restore".into(), what: "start a thread of", source };
        Ok(Self { pool, files: Vec::new(), bytes: 0, way: Some((sender, thread.map_err(host)?)) })
    }

    /// One more file, for which so many bytes were written.
    pub fn add(&mut self, file: Waiting, bytes: u64) -> Result<()> {
        self.files.push(file);
        self.bytes += bytes;
        if self.files.len() >= LOT.0 || self.bytes >= LOT.1 { self.hand_over() } else { Ok(()) }
    }

    /// All that was stored in the pool is durable, and what was added is sealed.
    pub fn end(mut self) -> Result<()> {
        self.hand_over()?;
        match self.way.take() {
            Some((sender, thread)) => {
                drop(sender);
                ended(thread)
            }
            None => Ok(()),
        }
    }

    fn hand_over(&mut self) -> Result<()> {
        self.bytes = 0;
        let lot = Lot { upto: self.pool.newest(), files: std::mem::take(&mut self.files) };
        let Some((sender, _)) = &self.way else { return Ok(()) };
        if sender.send(lot).is_ok() {
            return Ok(());
        }
        // It takes no more as it has failed.
        self.way.take().map_or(Ok(()), |(_, thread)| ended(thread))
    }
}

impl Drop for Lots {
    /// What was begun comes to its end: the pool is somebody else's then.
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.way.take() {
            drop(sender);
            let _ = ended(thread);
        }
    }
}

fn ended(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| Err(Error::Refused("what was restored could not be made durable".into())))
}

fn make_durable(pool: &Pool, lots: &Receiver<Lot>) -> Result<()> {
    for Lot { upto, files } in lots {
        pool.commit(upto)?;
        for Waiting { ino, segment, allocated, runs } in files.into_iter().filter(|file| !file.runs.is_empty()) {
            pool.seal(ino, segment, allocated, runs)?;
        }
    }
    Ok(())
}
