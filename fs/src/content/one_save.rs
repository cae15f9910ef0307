//! Whether files of a checkpoint are of the same save as what is written behind all of them.
//!
//! A save over an older one empties the files that are there, and writes what names them last. So a file that was there
//! before that, and was emptied after it, is of a save that did not come to its end. Times of change tell nothing: who
//! copies a checkpoint makes them, in any order. But copies are new files, and those were never emptied.

use tensorfs_layout::Ino;
use tensorfs_layout::tree::FileChain;

use crate::error::Result;

use super::Content;
use super::checkpoint_names::is_called_as_trainers;
use super::complete::End;

/// Each process writes its own, and waits for nobody.
const OF_EACH_PROCESS: &[u8] = b"rng_state";

impl Content {
    /// True if a file that was there before another one was made has been emptied since that was written.
    pub(super) fn is_of_later_save(&self, part: Ino, last: Ino) -> bool {
        let view = self.files.store().view();
        let (Some(part_of), Some(last_of)) = (view.object(part), view.object(last)) else { return false };
        let [part_runs, last_runs] = [part_of, last_of].map(|object| object.chain().map_or(&[][..], FileChain::runs));
        // When the first bytes of the one, and the last ones of the other, became part of it.
        let began = part_runs.first().and_then(|run| run.origin.known());
        let ended = last_runs.last().and_then(|run| run.origin.known());
        let (Some((began, _)), Some((ended, at))) = (began, ended) else { return false };
        // Numbers of objects are given once, one after the other.
        part < last && part_of.attributes.btime > at && began > ended
    }

    /// True if tensors of a trainer's directory were written anew, and not what it writes last.
    pub(super) fn has_tensors_of_later_save<'a>(
        &self,
        dir: Ino,
        last: Ino,
        files: impl Iterator<Item = (&'a [u8], Ino)>,
    ) -> Result<bool> {
        // Others write what is called so when they like.
        if !self.files.store().view().name_of_directory(dir).is_some_and(is_called_as_trainers) {
            return Ok(false);
        }
        for (_, file) in files.filter(|(name, _)| !name.starts_with(OF_EACH_PROCESS)) {
            if self.is_of_later_save(file, last) && !matches!(self.end_of(file)?, End::Opaque) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
