//! What tensors a file holds: said by its seals, known from an earlier look, or seen in its bytes.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use tensorfs_formats::Format;
use tensorfs_layout::Ino;
use tensorfs_layout::tree::FileChain;

use crate::clock;
use crate::error::Result;
use crate::file::Version;
use crate::reader::Broken;

use super::Content;
use super::bytes::{SegmentBytes, fault, has_spent_all};
use super::tensors::Tensors;

/// The most tensors that are taken from seals, which costs a copy of them.
const SEALED_MAX: u64 = 1 << 16;

impl Content {
    /// The tensors of a file, if that can be said without reading it.
    pub(super) fn known_tensors(&self, ino: Ino) -> Option<Arc<Tensors>> {
        let (tensors, settled) = self.cache.get(ino)?;
        let version = self.files.version(ino).ok()?;
        Some(tensors).filter(|tensors| settled && tensors.version == version)
    }

    /// The tensors of a file; none if it is not a file that has some. Reads the file if need be.
    pub(super) fn tensors_of(&self, ino: Ino) -> Result<Option<Arc<Tensors>>> {
        let mut left = 3;
        loop {
            let looked = clock::now();
            let version = self.files.version(ino)?;
            let earlier = match self.cache.get(ino) {
                Some((tensors, true)) if tensors.version == version => return Ok(Some(tensors)),
                earlier => earlier.map(|(tensors, _)| tensors),
            };
            if version.size == 0 || self.cache.verdicts.of(ino, &version) == Some(false) {
                return Ok(None);
            }
            let source = self.bytes_of(ino, &version);
            let found = self.look_into(ino, &source, version, earlier);
            source.close();
            let unchanged = self.files.version(ino).is_ok_and(|now| now == version);
            let settled = unchanged && version.is_settled(looked);
            left -= 1;
            match found {
                // It was replaced or removed while it was read.
                Err(_) if !unchanged && left > 0 => {}
                Err(error) => return Err(fault(error)),
                Ok(None) => {
                    if settled {
                        self.cache.verdicts.note(ino, version, false);
                    }
                    return Ok(None);
                }
                Ok(Some(tensors)) => {
                    let tensors = Arc::new(tensors);
                    self.cache.put(ino, tensors.clone(), settled);
                    return Ok(Some(tensors));
                }
            }
        }
    }

    /// The tensors of a file whose bytes are away, if it is known from its seals what they are and where.
    pub(super) fn tensors_of_away(&self, ino: Ino) -> Option<Arc<Tensors>> {
        let version = self.files.version(ino).ok()?;
        if let Some((tensors, _)) = self.cache.get(ino).filter(|(tensors, _)| tensors.version == version) {
            return Some(tensors);
        }
        let tensors = Arc::new(self.sealed_tensors(ino, version)?);
        self.cache.put(ino, tensors.clone(), false);
        Some(tensors)
    }

    fn look_into(
        &self,
        ino: Ino,
        source: &SegmentBytes,
        version: Version,
        earlier: Option<Arc<Tensors>>,
    ) -> io::Result<Option<Tensors>> {
        if let Some(mut sealed) = self.sealed_tensors(ino, version) {
            if let Some(earlier) = earlier.filter(|earlier| earlier.may_grow_to(&version)) {
                sealed.stamp = earlier.stamp;
            }
            return Ok(Some(sealed));
        }
        if let Some(earlier) = earlier
            && let Some(grown) = earlier.grown(source, version)?
        {
            return Ok(Some(grown));
        }
        Tensors::recognise(source, version)
    }

    /// What the seals of a file say, if they say all.
    fn sealed_tensors(&self, ino: Ino, version: Version) -> Option<Tensors> {
        let chain = {
            let view = self.files.store().view();
            let object = view.object(ino).filter(|object| object.attributes.segment == Some(version.segment))?;
            let chain = object.chain().filter(|chain| says_all(chain, version))?;
            let summary = chain.summary().filter(|summary| summary.complete)?;
            if !(1..=SEALED_MAX).contains(&summary.tensors) {
                return None;
            }
            // Decoded without the lock.
            chain.clone()
        };
        let format = chain.summary()?.format;
        let mut entries: Vec<_> = chain.tensors().collect();
        entries.sort_by_key(|entry| entry.index);
        let whole = (0..).zip(&entries).all(|(index, entry)| entry.index == index);
        let tensors = entries.into_iter().map(|entry| entry.tensor);
        if whole { Tensors::of_seals(tensors, format, version) } else { None }
    }

    /// How many tensors the seals of a file say that it has, and whether that is all of them. None if it is not sealed.
    fn sealed_count(&self, ino: Ino, version: Version) -> Option<(u64, bool)> {
        let view = self.files.store().view();
        // A file that is being replaced shows the new bytes, and its seals are of the old ones.
        let object = view.object(ino).filter(|object| object.attributes.segment == Some(version.segment))?;
        let chain = object.chain().filter(|chain| says_all(chain, version))?;
        match chain.summary() {
            // Versions before this one did not look into it.
            Some(summary) if summary.format == Format::Hdf5 && summary.tensors == 0 => None,
            // Nobody got through it.
            Some(summary) if summary.format == Format::Opaque && !summary.complete => None,
            Some(summary) => Some((summary.tensors, summary.complete)),
            None => {
                let first = chain.runs().first().and_then(|run| run.seal())?;
                first.description.is_empty().then_some((0, true))
            }
        }
    }

    /// How many tensors a file holds. None if it has to be read for that, and `may_read` is false.
    pub(super) fn count_tensors(&self, ino: Ino, may_read: bool) -> Result<Option<u64>> {
        let version = match self.files.version(ino) {
            // Made by mknod, and never opened.
            Err(fault) if fault.errno == libc::ENOENT => return Ok(Some(0)),
            version => version?,
        };
        if let Some((count, true)) = self.sealed_count(ino, version) {
            return Ok(Some(count));
        }
        if version.size == 0 || self.cache.verdicts.of(ino, &version) == Some(false) {
            return Ok(Some(0));
        }
        match self.known_tensors(ino) {
            Some(tensors) => Ok(Some(tensors.count)),
            None if !may_read => Ok(None),
            None => Ok(Some(self.tensors_of(ino)?.map_or(0, |tensors| tensors.count))),
        }
    }

    /// True if a file holds tensors. Reads as little of it as will do. Nothing can be said of what would have to be
    /// read without `may_read`, or as who asks has had as much read as he may.
    pub(super) fn has_tensors(&self, ino: Ino, may_read: bool) -> Option<bool> {
        let looked = clock::now();
        let Ok(version) = self.files.version(ino) else { return Some(false) };
        if version.size == 0 {
            return Some(false);
        }
        if let Some((count, whole)) = self.sealed_count(ino, version) {
            return Some(count > 0 || !whole);
        }
        let known = self.cache.verdicts.of(ino, &version);
        if known.is_some() || !may_read {
            return known;
        }
        let source = self.bytes_of(ino, &version);
        let found = source.recognise_first(&mut |_| ControlFlow::Break(()));
        source.close();
        let verdict = found.tensors > 0;
        if found.error.as_ref().is_some_and(|error| Broken::of(error).is_none()) && has_spent_all() {
            return None;
        }
        // Not if it was changed while it was read.
        let unchanged = || self.files.version(ino).is_ok_and(|now| now == version);
        if found.error.is_none() && version.is_settled(looked) && unchanged() {
            self.cache.verdicts.note(ino, version, verdict);
        }
        Some(verdict)
    }
}

/// True if the seals are of all that the file has: what is appended to a sealed file is recorded only a little later.
fn says_all(chain: &FileChain, version: Version) -> bool {
    chain.is_sealed() && chain.size() == version.size
}
