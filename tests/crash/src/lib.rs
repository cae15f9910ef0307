//! What a crash may leave of a pool, and whether a mount makes the right thing of it.
//!
//! A *case* is a sequence of calls on a small tree. It runs once, through the code of the filesystem itself, on a
//! simulated medium ([`disk`], [`medium`]) that logs every store, cache-line write-back, fence, sync and every change
//! of the host's directories. [`explore`] then crashes it at every event: it builds the images that a power loss or a
//! killed server may leave there, has each recovered, and compares the tree with a plain model of the calls
//! ([`model`]), bytes of files included. [`generations`] goes on with what a crash left, and crashes again. All
//! that is left of chance comes from a seed, so that a failure is found again.
//!
//! docs/RELIABILITY.md says what was tried and how to try more.

pub mod blob;
pub mod call;
pub mod case;
pub mod cell;
pub mod disk;
pub mod explore;
pub mod generations;
pub mod image;
pub mod medium;
pub mod model;
pub mod observer;
pub mod random;
pub mod scratch;
pub mod snapshot;
