//! Files of frames that are sealed while something can still write them.

use tensorfs_layout::tree::{FileChain, Run};
use tensorfs_layout::{SegmentId, TxId};

use super::locked::Locked;

/// The shortest frame.
const FRAME: u64 = 16;
/// A file that has more records behind what is sealed is not sealed before it is closed: they are stored again.
const RECORDS: usize = 2048;

/// What of a file is to be sealed though it can still be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grown {
    pub segment: SegmentId,
    /// Its seals end here.
    pub from: u64,
    /// It is durable up to here.
    pub to: u64,
}

impl Locked<'_> {
    /// What the file has grown by since it was sealed last, as far as that is durable. None if it is not to be sealed.
    pub fn grown(&self) -> Option<Grown> {
        let store = self.files.store();
        if !self.is_written() || self.is_replacing() || self.is_quiet() || self.writing()?.frameless {
            return None;
        }
        let segment = self.segment()?;
        let segments = store.segments();
        if segments.failed(segment) || segments.gone(segment).is_some() {
            return None;
        }
        let horizon = store.pool().horizon();
        let view = store.view();
        let object = view.object(self.ino()).filter(|object| {
            let sound = object.names() > 0 && !object.attributes.damaged && !object.is_cut_unconfirmed();
            sound && object.attributes.segment == Some(segment)
        })?;
        let chain = object.chain()?;
        let (from, to) = (chain.seals_end(), durable_end(chain, horizon));
        let fits = from + FRAME <= to && chain.runs_behind(from).len() <= RECORDS;
        fits.then_some(Grown { segment, from, to })
    }

    /// The file does not consist of frames.
    pub fn is_frameless(&mut self) {
        if let Some(writing) = self.serving_mut().and_then(|serving| serving.writing.as_mut()) {
            writing.frameless = true;
        }
    }
}

/// Up to here the records of a file are durable. What nobody noted the origin of was there before this mount.
fn durable_end(chain: &FileChain, horizon: TxId) -> u64 {
    let durable = |run: &&Run| run.origin.known().is_none_or(|(id, _)| id <= horizon);
    chain.runs().iter().rev().find(durable).map_or(0, Run::end)
}
