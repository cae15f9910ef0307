//! Tensors kept in memory.

use tensorfs_formats::Tensor;

/// Tensors are kept while those of a file take less than this, encoded: enough for a million of them.
const KEPT_MAX: usize = 64 << 20;

/// Tensors, encoded: they take a fifth of the memory this way.
#[derive(Default)]
pub(super) struct Packed {
    bytes: Vec<u8>,
    /// Where each of them ends.
    ends: Vec<u32>,
}

impl Packed {
    /// Takes a tensor in; false if there is no room for it.
    pub fn push(&mut self, tensor: &Tensor) -> bool {
        let Ok(bytes) = postcard::to_extend(tensor, std::mem::take(&mut self.bytes)) else { return false };
        self.bytes = bytes;
        let end = u32::try_from(self.bytes.len()).ok().filter(|&end| end as usize <= KEPT_MAX);
        self.ends.extend(end);
        end.is_some()
    }

    /// The tensor of an ordinal.
    pub fn get(&self, ordinal: u32) -> Option<Tensor> {
        let at = ordinal as usize;
        let end = *self.ends.get(at)? as usize;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        postcard::from_bytes(self.bytes.get(start..end)?).ok()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of memory that they take.
    pub fn memory(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>()
    }
}
