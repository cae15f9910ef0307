//! A tensor as a command has it, and its bytes.

use std::io;
use std::ops::ControlFlow;

use tensorfs_formats::Tensor;
use tensorfs_fs::TensorBytes;

use crate::tensors::assembled::Assembled;
use crate::tensors::grid::Grid;

/// What is read of a tensor at a time. All sizes of elements divide it.
const PIECE: usize = 1 << 20;

/// A tensor of a file or directory.
#[derive(Clone)]
pub struct Listed {
    /// The tensor.
    pub tensor: Tensor,
    /// Lengths and checksums of its bytes, as far as there are any.
    pub checksums: Vec<(u64, u32)>,
    number: usize,
}

impl Listed {
    /// The tensor of that number in the order in which they are given.
    pub fn new(tensor: Tensor, checksums: Vec<(u64, u32)>, number: usize) -> Self {
        Listed { tensor, checksums, number }
    }

    /// Its number in the order in which they are given.
    pub fn number(&self) -> usize {
        self.number
    }
}

/// What a tensor is read from, so that what that takes counts once for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Thing {
    /// A file, which is known when it is open.
    File,
    /// The plan of that number.
    Plan(usize),
    /// The array of that number.
    Array(usize),
}

/// The bytes of a tensor in the order of its `.npy` header.
pub enum Bytes {
    /// From one file.
    One(TensorBytes),
    /// From several.
    Many(Assembled),
    /// From chunks.
    Chunks(Grid),
}

impl Bytes {
    /// Bytes of the whole tensor.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        match self {
            Bytes::One(bytes) => bytes.len(),
            Bytes::Many(bytes) => bytes.len(),
            Bytes::Chunks(bytes) => bytes.len(),
        }
    }

    /// Fills `buffer` with the bytes from `offset` on, as far as there are any. Both are to be whole elements.
    pub fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Bytes::One(bytes) => bytes.read_at(offset, buffer),
            Bytes::Many(bytes) => bytes.read_at(offset, buffer),
            Bytes::Chunks(bytes) => bytes.read_at(offset, buffer),
        }
    }

    /// Gives all of them to `sink`, piece by piece.
    pub fn each(&mut self, sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> io::Result<()> {
        let mut piece = vec![0; usize::try_from(self.len()).unwrap_or(PIECE).min(PIECE)];
        let mut at = 0;
        while at < self.len() {
            let count = self.read_at(at, &mut piece)?;
            if sink(&piece[..count]).is_break() {
                break;
            }
            at += count as u64;
        }
        Ok(())
    }
}
