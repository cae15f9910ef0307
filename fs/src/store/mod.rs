//! The store: what changes the pool, and knows no open file.
//!
//! It holds the pool and everything that has to be counted, placed, made or given back for it: capacity, tiers, spare
//! segments, descriptors, counters. Whoever has a `&Store` can lock no inode. Where a change finds no room, the store
//! says so; to make room by letting go of removed files is for [`Files`](crate::file::Files), who tries again then.

mod asking;
mod attributes;
mod awaited;
mod backing;
mod bell;
mod bounds;
mod capacity;
mod carried;
mod counters;
mod damage;
mod descriptors;
mod findings;
mod following;
mod gone;
pub(crate) mod host;
mod in_log;
mod latencies;
mod limit;
mod link;
mod memory;
mod pieces;
mod place;
mod placement;
mod project;
mod records;
mod removed;
pub(crate) mod reserved;
mod second_copy;
mod segments;
mod spares;
mod tiers;
mod touched;
mod trace;
pub(crate) mod writers;

use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::MappedRwLockReadGuard;
use tensorfs_layout::Ino;
use tensorfs_layout::check::Scrubbed;
use tensorfs_layout::medium::Domain;
use tensorfs_layout::pool::{Edit, Pool, Usage};
use tensorfs_layout::segment::Segments;
use tensorfs_layout::tree::View;

pub(crate) use attributes::{check_attributes, frees};
pub(crate) use awaited::{Awaited, Bytes, Had, Wanted};
pub(crate) use backing::Backing;
pub(crate) use bell::{Bell, Bells};
pub(crate) use capacity::{Admitted, Space};
use carried::Carried;
pub(crate) use carried::{Reached, SecondCopy};
pub use counters::Counts;
pub(crate) use counters::{Counter, Counters};
pub(crate) use damage::{BadRun, Scrub};
pub(crate) use descriptors::Descriptors;
pub use following::FollowInfo;
use following::Following;
pub(crate) use latencies::{Latencies, Requests};
pub(crate) use limit::BLOCK;
pub(crate) use link::{Kernel, Link};
pub(crate) use pieces::{Pieces, Ranges};
pub use placement::{check_placement, tiers_of_placement};
pub(crate) use project::{parse_project, project};
pub(crate) use records::{changed, touched, with};
pub(crate) use removed::Removed;
pub(crate) use spares::{NewSegment, Spares};
pub(crate) use trace::{Trace, Traced, Watch};
pub(crate) use writers::Writers;

use crate::error::{Fault, Result};
use crate::options::{Durability, Options};
use crate::waits::{self, Wait};

use asking::Asking;
use bounds::Bounds;
use damage::Damage;
use limit::Limit;
use memory::Memory;
use placement::Placement;
use tiers::Tiers;

/// The pool of a mount, and what it takes to change it.
pub(crate) struct Store {
    pool: Arc<Pool>,
    options: Options,
    durability: Durability,
    link: Link,
    limit: Limit,
    asking: Arc<Asking>,
    tiers: Tiers,
    placement: Placement,
    spares: Spares,
    bounds: Bounds,
    counters: Counters,
    trace: Trace,
    writers: Arc<Writers>,
    removed: Removed,
    damage: Damage,
    bells: Arc<Bells>,
    awaited: Arc<Awaited>,
    following: Following,
    carried: Carried,
}

impl Store {
    /// A pool that is about to be served, by a process that may have so many descriptors.
    pub fn new(pool: Arc<Pool>, options: Options, durability: Durability, descriptors: u64) -> Self {
        let writers = Arc::new(Writers::default());
        let damage = Damage::remembered(Scrubbed::read(&pool));
        let counted = writers.clone();
        pool.when_recorded(Box::new(move |ino| counted.recorded(ino)));
        let bells = Arc::<Bells>::default();
        Self {
            limit: Limit::new(&pool),
            asking: Arc::default(),
            tiers: Tiers::new(&pool),
            placement: Placement::new(&pool),
            awaited: Awaited::new(&pool),
            following: Following::default(),
            carried: Carried::new(&pool),
            pool,
            link: Link::new(options.handover.clone()),
            durability,
            spares: Spares::new(descriptors),
            bounds: Bounds { descriptors: Descriptors::new(descriptors), memory: Memory::new(options.names) },
            options,
            counters: Counters::default(),
            trace: Trace::default(),
            writers,
            removed: Removed::default(),
            damage,
            bells,
        }
    }

    /// The pool. To change it, [`Store::edit`] and [`Store::commit`] are there.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// What all records together say. Nothing that may wait is done while it is held.
    pub fn view(&self) -> MappedRwLockReadGuard<'_, View> {
        self.pool.view()
    }

    /// The files' segments on the host.
    pub fn segments(&self) -> &Segments {
        self.pool.segments()
    }

    /// How the pool is served.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// When bytes and records survive a power loss.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// What the kernel does for this mount.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The spare segments.
    pub fn spares(&self) -> &Spares {
        &self.spares
    }

    /// The descriptors by which the server reads and writes files that are open.
    pub fn descriptors(&self) -> &Descriptors {
        &self.bounds.descriptors
    }

    /// How much of the server's memory users may take.
    pub fn memory(&self) -> &Memory {
        &self.bounds.memory
    }

    /// How often what happened.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The requests, for whoever looks.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The segments that something may still write.
    pub fn writers(&self) -> &Writers {
        &self.writers
    }

    /// What has no name any more, but is known to the kernel.
    pub fn removed(&self) -> &Removed {
        &self.removed
    }

    /// From now on somebody cleans the log, and is called where one waits for room in it.
    pub fn clean_when_out_of_room(&self) {
        let called = self.bells.clone();
        self.pool.when_out_of_room(Box::new(move || called.clean().ring()));
    }

    /// Requests that wait for bytes which are away.
    pub fn awaited(&self) -> &Arc<Awaited> {
        &self.awaited
    }

    /// How the tree goes on to newer ones of its remote.
    pub fn following(&self) -> &Following {
        &self.following
    }

    /// True if it does: then it is nobody else's to change, and the kernel keeps no names.
    pub fn is_followed(&self) -> bool {
        self.options.second_copy.follow.is_some()
    }

    /// Calls whoever works in the background.
    pub fn bells(&self) -> &Bells {
        &self.bells
    }

    /// True if a commit waits for a disk rather than for memory.
    pub fn commits_slowly(&self) -> bool {
        self.pool.domain() == Domain::Cached
    }

    /// Runs a change of the pool.
    pub fn edit<T>(&self, change: impl FnOnce(&mut Edit<'_>) -> Result<T>) -> Result<T> {
        let changed = waits::during(Wait::Log, || change(&mut self.pool.edit()));
        if self.pool.is_short() {
            self.bells.grow().ring();
        }
        changed
    }

    /// What the pool holds and uses, without what is only still known to the kernel.
    pub fn usage(&self) -> Usage {
        self.removed.discount(self.pool.usage())
    }

    /// Makes everything stored so far durable.
    pub fn commit(&self) -> Result<()> {
        self.commit_by(|pool| pool.commit(pool.newest()))
    }

    /// Makes everything stored so far durable, where every segment that the caller waits for was synced before.
    pub fn commit_stored(&self) -> Result<()> {
        self.commit_by(|pool| pool.commit_stored(pool.newest()))
    }

    fn commit_by(&self, commit: impl FnOnce(&Pool) -> tensorfs_layout::Result<()>) -> Result<()> {
        waits::during(Wait::Commit, || commit(&self.pool)).map_err(|error| {
            self.counters.commits_failed.add(1);
            Fault { errno: libc::EIO, ..Fault::from(error) }
        })
    }

    /// `Err` if the pool takes no more changes.
    pub fn check_writable(&self) -> Result<()> {
        match self.pool.is_read_only() {
            Some(_) => Err(Fault::new(libc::EROFS)),
            None => Ok(()),
        }
    }

    /// Tells the kernel that it no longer knows an inode's attributes.
    pub fn forget_attributes(&self, ino: Ino) {
        self.link.forget_attributes(ino);
    }

    /// Gives a segment to the kernel, which reads and writes it as whoever gave it: as the pool's owner.
    pub fn register(&self, segment: impl AsFd) -> std::io::Result<Backing> {
        let _acting = self.pool.act_as_owner();
        self.link.register(segment.as_fd())
    }
}
