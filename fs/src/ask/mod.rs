//! What programs ask the server by ioctl(2), and its answers. How they ask is said by [`crate::protocol`].

use std::sync::Arc;

use tensorfs_layout::Ino;

use crate::background::{Jobs, Mover, ask_for_seal};
use crate::caller::Caller;
use crate::content::Content;
use crate::error::{Fault, Result};
use crate::file::Files;
use crate::protocol::{Reply, Request, SIZE};

/// Answers programs.
pub(crate) struct Answers {
    files: Arc<Files>,
    content: Arc<Content>,
    jobs: Arc<Jobs>,
    mover: Arc<Mover>,
}

impl Answers {
    /// Answers from what there is to ask.
    pub fn new(content: Arc<Content>, jobs: Arc<Jobs>, mover: Arc<Mover>) -> Self {
        Self { files: content.files().clone(), content, jobs, mover }
    }

    /// Answers a request that was asked on an open file or directory.
    pub fn answer(&self, caller: Caller, on: Ino, handle: u64, request: Request) -> Result<Vec<u8>> {
        let reply = match request {
            Request::Records(_) | Request::HostSize if !self.files.handle(handle)?.reads(on) => {
                return Err(Fault::new(libc::EBADF));
            }
            Request::Records(from) => Reply::Records(self.content.records(on, from)?),
            Request::HostSize => Reply::HostSize(self.content.host_size(on)?),
            Request::Move { ino, tier, begin } => Reply::Moving(self.mover.ask_for_move(caller, ino, &tier, begin)?),
            Request::Mend { ino, with, begin } => Reply::Moving(self.mover.ask_for_mend(caller, ino, with, begin)?),
            _ if !caller.is_trusted() => return Err(Fault::new(libc::EPERM)),
            Request::Seal { ino, begin, again } => Reply::Sealing(ask_for_seal(&self.files, ino, begin, again)?),
            Request::Damaged(behind) => Reply::Damaged(
                self.files.store().pool().superblock().uuid_text(),
                self.files.store().damaged_behind(behind, SIZE / 2),
            ),
            Request::Start(work) => Reply::Started(self.jobs.start(work)?),
            Request::Poll { job, at } => Reply::Output(self.jobs.poll(job, at)?),
            Request::Cancel { job } => {
                self.jobs.cancel(job)?;
                Reply::Cancelled
            }
            Request::Resize(limit) => {
                let resize = || self.files.store().resize(limit);
                // What nobody needs any more may count still.
                let resized = resize().or_else(|refused| if self.files.relieve() { resize() } else { Err(refused) });
                Reply::Resized(resized.map_err(|error| error.to_string()))
            }
        };
        postcard::to_stdvec(&reply).map_err(|error| Fault::warn(libc::EIO, error.to_string()))
    }
}
