//! Decoders of tensors whose bytes do not stand in a file as they are to be read, kept from one read to the next.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use crate::reader::Decoder;

use super::bytes::SegmentBytes;

/// What has to be decoded is decoded in blocks of this size, so that requests that arrive out of order do not start
/// the decoder anew.
const BLOCK: usize = 1 << 20;
/// The last blocks that are kept.
const BLOCKS: usize = 4;
/// Decoders that are kept for open files nobody reads from right now. A further one has to begin again.
const IDLE: usize = 4;

/// The place of an open tensor's decoder. Held while one request is decoding.
pub(super) type Held = Arc<Mutex<Option<Decoding>>>;

/// A decoder, and the blocks that it gave last.
pub(super) struct Decoding {
    decoder: Decoder,
    blocks: VecDeque<(u64, Vec<u8>)>,
}

/// Who has a decoder, the newest last.
#[derive(Default)]
pub(super) struct Decoders(Mutex<VecDeque<Weak<Mutex<Option<Decoding>>>>>);

impl Decoders {
    /// Has a tensor's decoder do something, or a new one if it has none just then. One that fails does no more.
    pub fn with<T>(
        &self,
        held: &Held,
        new: impl FnOnce() -> Decoding,
        work: impl FnOnce(&mut Decoding) -> io::Result<T>,
    ) -> io::Result<T> {
        self.note(held, None);
        let mut place = held.lock();
        let mut decoding = place.take().unwrap_or_else(new);
        let done = work(&mut decoding);
        *place = done.is_ok().then_some(decoding);
        // Meanwhile it was not to be taken away, by whoever found that there are too many.
        self.note(held, Some(place));
        done
    }

    /// Notes that a tensor has a decoder, and takes the oldest ones away if there are too many. Whoever has its `place`
    /// lets go of it in one step with that: what is there is noted, and what is noted is there.
    fn note(&self, decoding: &Held, place: Option<MutexGuard<Option<Decoding>>>) {
        let mut all = self.0.lock();
        let this = Arc::downgrade(decoding);
        all.retain(|other| !other.ptr_eq(&this) && other.strong_count() > 0);
        all.push_back(this);
        let oldest = if all.len() > IDLE { all.pop_front().and_then(|oldest| oldest.upgrade()) } else { None };
        drop(place);
        drop(all);
        // One that is decoding right now notes itself again.
        if let Some(mut held) = oldest.as_ref().and_then(|oldest| oldest.try_lock()) {
            *held = None;
        }
    }
}

impl Decoding {
    /// Nothing is decoded yet.
    pub fn new(decoder: Decoder) -> Self {
        Self { decoder, blocks: VecDeque::new() }
    }

    /// Reads decoded bytes from an offset on.
    pub fn read(&mut self, source: &SegmentBytes, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let start = at / BLOCK as u64 * BLOCK as u64;
            let block = self.block(source, start)?;
            let rest = block.get((at - start) as usize..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            let count = rest.len().min(buffer.len() - done);
            buffer[done..done + count].copy_from_slice(&rest[..count]);
            done += count;
        }
        Ok(done)
    }

    fn block(&mut self, source: &SegmentBytes, start: u64) -> io::Result<&[u8]> {
        if let Some(at) = self.blocks.iter().position(|(known, _)| *known == start) {
            return Ok(&self.blocks[at].1);
        }
        let mut block = if self.blocks.len() == BLOCKS { self.blocks.pop_front() } else { None }.unwrap_or_default().1;
        block.resize(BLOCK, 0);
        let count = source.decode(&mut self.decoder, start, &mut block)?;
        block.truncate(count);
        self.blocks.push_back((start, block));
        Ok(self.blocks.back().map_or(&[], |(_, block)| block))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use tensorfs_formats::{Dtype, Location, Tensor};

    use crate::reader::Readers;

    use super::*;

    fn decoding() -> Decoding {
        let location = Location::Raw { offset: 0, len: 1 };
        let tensor = Tensor::new(b"t".to_vec(), Dtype::U8, vec![1], location);
        Decoding::new(Readers::default().decoder(Arc::new(tensor)))
    }

    /// Proves B9.
    #[test]
    fn however_many_decode_at_once_few_decoders_are_kept_when_they_are_done() {
        let (decoders, all) = (Decoders::default(), (0..20).map(|_| Held::default()).collect::<Vec<_>>());
        for some in all.chunks(10) {
            let started = Barrier::new(some.len());
            std::thread::scope(|scope| {
                for held in some {
                    scope.spawn(|| {
                        let work = |_: &mut Decoding| Ok(started.wait());
                        decoders.with(held, decoding, work).map(drop).unwrap();
                    });
                }
            });
            let kept = all.iter().filter(|held| held.lock().is_some()).count();
            assert_eq!(kept, IDLE);
        }
        // One that fails is not kept.
        let last = all.iter().rfind(|held| held.lock().is_some()).unwrap();
        decoders.with(last, decoding, |_| Err::<(), _>(io::ErrorKind::Other.into())).unwrap_err();
        assert!(last.lock().is_none());
    }
}
