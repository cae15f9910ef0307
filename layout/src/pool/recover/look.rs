//! Looking at the segments of files, a few files at a time: there may be millions.

use std::collections::HashMap;
use std::io;

use crate::error::{Error, Result};
use crate::ids::{Ino, SegmentId};
use crate::log::record::Attributes;
use crate::log::shutdown::Shutdown;
use crate::medium::foreign::Foreign;
use crate::parallel::parallel;
use crate::pool::opened::Pool;
use crate::pool::recover::tiers::Tiers;
use crate::segment::home::SEGMENTS;
use crate::segment::host_errors::is_of_segment;
use crate::segment::stat::SegmentStat;
use crate::tree::chain::FileChain;
use crate::tree::object::Object;

/// So many files are looked at, and brought to agree, before the next ones are.
const BATCH: usize = 1024;

/// A thread is worth it for so many segments.
const SHARE: usize = 64;

/// What recovery finds a segment to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub stat: SegmentStat,
    /// A program that outlived its server may still write it, so that this is not the last word.
    pub writable: bool,
}

/// Some files, and what their segments are that are there.
pub(super) struct Batch {
    pub files: Vec<(Ino, Attributes)>,
    pub looks: HashMap<SegmentId, Look>,
    /// Segments that the host fails to tell anything of, and how.
    pub failing: HashMap<SegmentId, io::Error>,
}

/// The files of a pool, a few at a time.
pub(super) struct Files<'a> {
    pool: &'a Pool,
    tiers: &'a Tiers,
    inos: std::vec::IntoIter<Ino>,
}

impl<'a> Files<'a> {
    pub fn of(pool: &'a Pool, tiers: &'a Tiers) -> Self {
        let view = pool.view();
        let mut inos: Vec<Ino> = view.objects().filter(|(_, object)| object.is_file()).map(|(ino, _)| ino).collect();
        // What was made together lies together on the host.
        inos.sort_unstable();
        Self { pool, tiers, inos: inos.into_iter() }
    }

    /// The next files. What nobody has any more is left in `present`.
    pub fn next(&mut self, present: &mut HashMap<SegmentId, ()>) -> Result<Option<Batch>> {
        let mut files = Vec::with_capacity(BATCH.min(self.inos.len()));
        let mut wanted = Vec::new();
        {
            let view = self.pool.view();
            for ino in self.inos.by_ref().take(BATCH) {
                let Some(object) = view.object(ino) else { continue };
                files.push((ino, object.attributes.clone()));
                let own = object.attributes.segment.map(|segment| (segment, is_sealed(object)));
                let replacing = object.pending_replace().map(|segment| (segment, false));
                for (segment, sealed) in own.into_iter().chain(replacing) {
                    // Only what was found to be a plain file is opened.
                    if present.remove(&segment).is_some()
                        && let Some(kind) = self.tiers.kind(segment)
                    {
                        wanted.push((segment, kind == Shutdown::ServerKilled && !sealed));
                    }
                }
            }
        }
        if files.is_empty() && self.inos.len() == 0 {
            return Ok(None);
        }
        let segments = &self.pool.segments;
        let look = |index: usize| {
            let (segment, outlived) = wanted[index];
            let looked = if outlived {
                segments.look(segment).map(|(stat, writable)| Look { stat, writable })
            } else {
                segments.stat(segment).map(|stat| Look { stat, writable: false })
            };
            match looked {
                Ok(look) => Ok(Some((segment, Ok(look)))),
                Err(error) if is_of_segment(&error) => Ok(Some((segment, Err(error)))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                // Something else stands there.
                Err(error) if Foreign::of(&error).is_some() => {
                    log::error!("{}: {error}", segments.path_of(segment).display());
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        };
        let looks = parallel(wanted.len(), SHARE, look);
        let looks = looks.map_err(|error| Error::in_pool(&self.pool.path, SEGMENTS, "read", error))?;
        let (mut batch, mut failing) = (HashMap::new(), HashMap::new());
        for (segment, looked) in looks.into_iter().flatten() {
            match looked {
                Ok(look) => drop(batch.insert(segment, look)),
                Err(error) => drop(failing.insert(segment, error)),
            }
        }
        Ok(Some(Batch { files, looks: batch, failing }))
    }
}

/// True if nothing but its server can have been able to write the file when that was killed: its seals would have been
/// voided before.
pub(super) fn is_sealed(object: &Object) -> bool {
    object.chain().is_some_and(FileChain::has_seals)
}
