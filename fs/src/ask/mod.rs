//! What programs ask the server by ioctl(2), and its answers. How they ask is said by [`crate::protocol`].

use std::sync::Arc;

use tensorfs_layout::Ino;

use crate::background::{Jobs, Mover, ask_for_seal};
use crate::caller::Caller;
use crate::error::{Fault, Result};
use crate::file::Files;
use crate::protocol::{Place, Records, Reply, Request};

/// Tells what is recorded of a file, from a place on.
pub(crate) type TellRecords = Box<dyn Fn(Ino, Place) -> Result<Records> + Send + Sync>;

/// Answers programs.
pub(crate) struct Answers {
    files: Arc<Files>,
    records: TellRecords,
    jobs: Arc<Jobs>,
    mover: Arc<Mover>,
}

impl Answers {
    /// From these.
    pub fn new(files: Arc<Files>, records: TellRecords, jobs: Arc<Jobs>, mover: Arc<Mover>) -> Self {
        Self { files, records, jobs, mover }
    }

    /// Answers a request that was asked on an open file or directory.
    pub fn answer(&self, caller: Caller, on: Ino, handle: u64, request: Request) -> Result<Vec<u8>> {
        let reply = match request {
            Request::Records(from) => {
                if !self.files.handle(handle)?.reads(on) {
                    return Err(Fault::new(libc::EBADF));
                }
                Reply::Records((self.records)(on, from)?)
            }
            Request::Move { ino, tier, begin } => Reply::Moving(self.mover.ask_for_move(caller, ino, &tier, begin)),
            _ if !caller.is_trusted() => return Err(Fault::new(libc::EPERM)),
            Request::Seal { ino, begin, again } => Reply::Sealing(ask_for_seal(&self.files, ino, begin, again)?),
            Request::Start(work) => Reply::Started(self.jobs.start(work)?),
            Request::Poll { job, at } => Reply::Output(self.jobs.poll(job, at)?),
            Request::Cancel { job } => {
                self.jobs.cancel(job)?;
                Reply::Cancelled
            }
            Request::Resize(limit) => {
                Reply::Resized(self.files.store().resize(limit).map_err(|error| error.to_string()))
            }
        };
        postcard::to_stdvec(&reply).map_err(|error| Fault::warn(libc::EIO, error.to_string()))
    }
}
