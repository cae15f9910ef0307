//! What goes on behind the requests: committing, removing segments, setting versions aside, settling small files,
//! cleaning the log, sealing, writing out, making spare segments; and what programs ask for that takes long: moving
//! files to other tiers, mending them, letting them leave for a remote and bringing those that are away, checks and
//! scrubs.
//!
//! The tasks that run as long as the pool is served are of one kind, [`task::Task`], those that come round of one, too,
//! [`chore::Chore`]; [`Background`] has them all.
//! What they have to do they find in queues of the rooms below; nobody below knows of them.

mod bringer;
mod checksums;
mod chore;
mod cleaner;
mod committer;
mod copy;
mod follower;
mod gone_on;
mod grower;
mod growth;
mod job;
mod jobs;
mod leaver;
mod mender;
mod mover;
mod moves;
mod out_writer;
mod portions;
mod releaser;
mod rester;
mod scrub;
mod seal;
mod seal_open;
mod sealer;
mod setter_aside;
mod settler;
mod spare_maker;
mod task;
mod unlinker;
mod wishes;

use std::io;
use std::sync::Arc;

use crate::file::Files;

pub(crate) use bringer::Bringer;
pub(crate) use committer::commit_if_changed;
pub(crate) use follower::Follower;
pub(crate) use jobs::Jobs;
pub(crate) use leaver::Leaver;
pub(crate) use mover::Mover;
pub use mover::move_in_pool;
pub(crate) use seal::seal_file;
pub use sealer::seal_pool;
pub(crate) use sealer::{ask_for_seal, seal_the_rest};

use chore::Chore;
use task::Running;

/// The tasks that run as long as the pool is served. When this is dropped they are told to stop and waited for, one
/// after the other in the order of the fields: who commits goes last.
pub(crate) struct Background {
    _out_writer: Running,
    _rester: Running,
    _sealer: Running,
    _spare_maker: Running,
    _releaser: Running,
    _unlinker: Running,
    _setter_aside: Running,
    _settler: Running,
    _cleaner: Running,
    _grower: Running,
    _committer: Running,
}

impl Background {
    /// Starts them.
    ///
    /// # Errors
    /// There is no thread to be had for one of them.
    pub fn start(files: &Arc<Files>) -> io::Result<Self> {
        let committer = committer::Committer::default().start(files)?;
        let sealer = sealer::Sealer::start(files)?;
        let spare_maker = spare_maker::SpareMaker::start(files)?;
        let rester = rester::Rester::start(files)?;
        let out_writer = out_writer::OutWriter::start(files)?;
        let releaser = releaser::Releaser.start(files)?;
        let unlinker = unlinker::Unlinker.start(files)?;
        let setter_aside = setter_aside::SetterAside.start(files)?;
        let settler = settler::Settler.start(files)?;
        let cleaner = cleaner::Cleaner.start(files)?;
        files.store().clean_when_out_of_room();
        let grower = grower::Grower.start(files)?;
        Ok(Self {
            _out_writer: out_writer,
            _rester: rester,
            _sealer: sealer,
            _spare_maker: spare_maker,
            _releaser: releaser,
            _unlinker: unlinker,
            _setter_aside: setter_aside,
            _settler: settler,
            _cleaner: cleaner,
            _grower: grower,
            _committer: committer,
        })
    }
}
