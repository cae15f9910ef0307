//! What files hold: their tensors, their checksums, and what is recorded of them.
//!
//! The tensors of a file are recognised when they are asked for, and kept for a while. What is known of a file holds
//! for one [`Version`] of it, and memory is bounded whatever a file says. Nothing is locked while a file is read.
//!
//! A tensor of a checkpoint in parts is read from several files, each of them in one version.
//!
//! Below [`control`] is the tree in which users find all of that.

mod assembled;
mod boxes;
mod bytes;
mod cache;
mod carried;
mod checkpoint;
mod checkpoint_names;
mod checkpoints;
mod complete;
pub(crate) mod control;
mod database;
mod databases;
mod decoders;
mod hash;
mod index;
mod kept;
mod names;
mod npy;
mod one_save;
mod own_xattrs;
mod packed;
mod places;
mod plan;
mod reach;
mod recognise;
mod records;
mod tensors;
mod turns;
pub(crate) mod values;
mod weights;
mod whole;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tensorfs_layout::Ino;

use crate::file::{Files, Version};
use crate::shares::Shares;

pub use checkpoint_names::{are_whole, is_called_as_trainers, is_unfinished};

use bytes::SegmentBytes;
use cache::TensorCache;
use checkpoint::Checkpoints;
use databases::Databases;
use decoders::Decoders;

/// 64 MiB.
const PIECES: usize = 16 << 10;

/// The content of all files.
pub(crate) struct Content {
    files: Arc<Files>,
    cache: TensorCache,
    checkpoints: Checkpoints,
    /// Room for the pieces of open tensors of more than a few, in lots.
    pieces: Shares,
    decoders: Decoders,
    databases: Databases,
    /// Nobody wants to know any more.
    stop: Arc<AtomicBool>,
}

impl Content {
    /// Nothing is known of any file yet.
    pub fn new(files: Arc<Files>) -> Self {
        if let Some(handover) = files.store().link().handover() {
            hash::agree(handover.secret());
        }
        Self {
            files,
            cache: TensorCache::default(),
            checkpoints: Checkpoints::default(),
            pieces: Shares::new(PIECES),
            decoders: Decoders::default(),
            databases: Databases::default(),
            stop: Arc::default(),
        }
    }

    /// The files.
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// Nobody wants to know anything any more: whoever waits gets an error.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// The bytes of a version of a file.
    fn bytes_of(&self, ino: Ino, version: &Version) -> Arc<SegmentBytes> {
        Arc::new(SegmentBytes::new(self.files.clone(), ino, version, self.stop.clone()))
    }
}
