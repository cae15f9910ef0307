//! The bytes of an array whose elements are in chunks, each a file that has nothing else.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;

use tensorfs_formats::Array;
use tensorfs_fs::Inspector;

use crate::show::size;
use crate::tensors::account::Account;
use crate::tensors::chunks::{ChunkBytes, Chunks, number_of};

/// So many chunks are open at a time: a row of an array goes through several, and so does the next one.
const OPEN_MAX: usize = 64;
/// So long is a chunk at most that is kept.
const KEPT_MAX: u64 = 512 << 10;
/// So many bytes of an array are read whatever is stored of it, and so many for each that is.
const ALWAYS_READ: u64 = 1 << 40;
const READ_FOR_STORED: u64 = 1024;

/// An array, read in the order of its chunks. Dimensions are so that the last one runs fastest.
pub struct Grid {
    array: Rc<Array>,
    chunks: Rc<Chunks>,
    inspector: Inspector,
    how: How,
    shape: Vec<u64>,
    chunk: Vec<u64>,
    grid: Vec<u64>,
    len: u64,
    /// Chunks that were read, the newest last. None of those that are not there.
    open: Vec<(u64, Option<Open>)>,
    /// What blocks of n5's say of themselves: of each that was open once, as its file was then.
    blocks: HashMap<u64, (Version, Block)>,
}

/// How an array is read.
pub struct How {
    /// Row by row, though it is stored column by column.
    pub is_across: bool,
    /// What it takes.
    pub account: Rc<Account>,
}

/// A chunk that is there, and how large it is, if that is not as large as others. One that is not long is kept when it
/// is read across.
struct Open {
    bytes: ChunkBytes,
    block: Option<Block>,
    kept: Option<Vec<u8>>,
}

impl Open {
    fn read(&self, buffer: &mut [u8], from: u64) -> io::Result<()> {
        let Some(kept) = &self.kept else { return self.bytes.read_exact_at(buffer, from) };
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let bytes = from.checked_add(buffer.len()).and_then(|end| kept.get(from..end));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A block of n5's: where its elements begin, and how many it has in each dimension.
#[derive(Clone)]
struct Block {
    start: u64,
    sizes: Rc<[u64]>,
}

/// Which file a block was in, and when that was changed last.
#[derive(Clone, Copy, PartialEq)]
struct Version {
    file: (u64, u64),
    size: u64,
    mtime: (i64, i64),
}

impl Version {
    fn of(file: &File) -> io::Result<Version> {
        let about = file.metadata()?;
        let (file, mtime) = ((about.dev(), about.ino()), (about.mtime(), about.mtime_nsec()));
        Ok(Version { file, size: about.len(), mtime })
    }
}

/// Why an array cannot be read, if it cannot.
pub fn why_not(array: &Array, chunks: Option<&Chunks>) -> Option<String> {
    let lacks = |chunks: &Chunks| array.fill.is_none() && chunks.there < chunks.of;
    let most = |chunks: &Chunks| chunks.bytes().saturating_mul(READ_FOR_STORED).saturating_add(ALWAYS_READ);
    let is_hollow = |chunks: &Chunks| array.bytes().is_none_or(|bytes| bytes > most(chunks));
    match chunks {
        _ if !array.codecs.is_empty() && array.plain_elements().is_none() => {
            Some(format!("its chunks are encoded ({}), which is not undone here", array.codecs.join("+")))
        }
        _ if array.plain_elements().is_none() => Some("its elements are not stored as plain bytes".to_owned()),
        Some(chunks) if array.blocks && chunks.are_in_database() => {
            Some("its blocks are in a database, where they are not looked into".to_owned())
        }
        None => Some("it is not known how its chunks are called".to_owned()),
        Some(chunks) if lacks(chunks) => Some("chunks are not there, and what is in those is not known".to_owned()),
        // Whoever reads it would read the fill value for as long as somebody says it is.
        Some(chunks) if is_hollow(chunks) => {
            let (bytes, stored) = (size::humane(array.bytes().unwrap_or(u64::MAX)), size::humane(chunks.bytes()));
            Some(format!("it is said to have {bytes}, of which {stored} are stored: more of a fill value is not read"))
        }
        Some(_) => None,
    }
}

impl Grid {
    /// An array of which nothing says why it could not be read.
    pub fn new(array: Rc<Array>, chunks: Rc<Chunks>, inspector: Inspector, how: How) -> Option<Grid> {
        let (chunk, grid, len) = (array.as_stored(array.chunk.clone()?), array.grid()?, array.bytes()?);
        let shape = array.as_stored(array.shape.clone());
        let (open, blocks) = (Vec::new(), HashMap::new());
        Some(Grid { array, chunks, inspector, how, shape, chunk, grid, len, open, blocks })
    }

    /// Bytes of the whole array.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Fills `buffer` with the bytes from `offset` on, as far as there are any. Both are to be whole elements.
    pub fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let item = self.array.item_size;
        let want = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        if !offset.is_multiple_of(item) || !(want as u64).is_multiple_of(item) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let account = self.how.account.clone();
        account.during(|| self.read_elements(offset, &mut buffer[..want]))?;
        Ok(want)
    }

    fn read_elements(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (item, mut done, want) = (self.array.item_size, 0, buffer.len());
        while done < want {
            self.how.account.look()?;
            let (key, from, run) = self.find((offset + done as u64) / item);
            let count = usize::try_from(run * item).unwrap_or(usize::MAX).min(want - done);
            self.read_chunk(key, from, &mut buffer[done..done + count])?;
            done += count;
        }
        Ok(())
    }

    /// Fills `buffer` with elements of a chunk, from one on.
    fn read_chunk(&mut self, key: Vec<u64>, from: u64, buffer: &mut [u8]) -> io::Result<()> {
        let number = number_of(&self.array.as_stored(key), &self.grid);
        let at = match self.open.iter().rposition(|(open, _)| *open == number) {
            Some(at) => at,
            None => {
                let opened = self.chunks.open(number).map_err(io::Error::other)?;
                let opened = opened.map(|bytes| self.opened(number, bytes)).transpose()?;
                if self.open.len() == OPEN_MAX {
                    self.open.remove(0);
                }
                self.open.push((number, opened));
                self.open.len() - 1
            }
        };
        match &self.open[at] {
            (_, Some(open @ Open { block: None, .. })) => open.read(buffer, from * self.array.item_size),
            (_, Some(open @ Open { block: Some(block), .. })) if *block.sizes == *self.chunk => {
                open.read(buffer, block.start + from * self.array.item_size)
            }
            (_, Some(open @ Open { block: Some(block), .. })) => {
                self.fill(buffer)?;
                let (from, to) = (from, from + buffer.len() as u64 / self.array.item_size);
                self.read_block((open, block), (from, to), buffer)
            }
            (_, None) => self.fill(buffer),
        }
    }

    fn fill(&self, buffer: &mut [u8]) -> io::Result<()> {
        let fill = self.array.fill.as_ref().ok_or(io::ErrorKind::NotFound)?;
        buffer.chunks_mut(fill.len()).for_each(|element| element.copy_from_slice(&fill[..element.len()]));
        Ok(())
    }

    /// Reads what a block has of some elements of a chunk that is larger: row by row.
    fn read_block(&self, (open, block): (&Open, &Block), (from, to): (u64, u64), buffer: &mut [u8]) -> io::Result<()> {
        let item = self.array.item_size;
        let (Some(row), Some(own)) = (self.chunk.last(), block.sizes.last()) else { return Ok(()) };
        let mut at = from;
        while at < to {
            self.how.account.look()?;
            let within = at % row;
            let end = to.min(at - within + row);
            let (mut rest, mut before, mut inner, mut has) = (at / row, 0, *own, within < *own);
            for (size, own) in self.chunk.iter().zip(&*block.sizes).rev().skip(1) {
                has &= rest % size < *own;
                before += rest % size * inner;
                (rest, inner) = (rest / size, inner * own);
            }
            if has {
                let count = (end - at).min(own - within);
                let to = ((at - from) * item) as usize;
                let piece = &mut buffer[to..to + (count * item) as usize];
                open.read(piece, block.start + (before + within) * item)?;
            }
            at = end;
        }
        Ok(())
    }

    /// A chunk that was opened, and what it says of itself if it is a block.
    fn opened(&mut self, number: u64, bytes: ChunkBytes) -> io::Result<Open> {
        let (Some(asked), ChunkBytes::File { file, .. }) = (self.array.block(), &bytes) else {
            return self.kept(bytes, None);
        };
        let version = Version::of(file)?;
        if let Some((known, block)) = self.blocks.get(&number)
            && *known == version
        {
            let block = Some(block.clone());
            return self.kept(bytes, block);
        }
        let mut found = None;
        let said = self.inspector.block(file, asked, &mut |tensor| {
            found = Some(tensor);
            ControlFlow::Continue(())
        });
        said.error.map_or(Ok(()), Err)?;
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("block {number}: {why}"));
        let Some(tensor) = found else { return Err(invalid(said.reason.as_deref().unwrap_or("no block"))) };
        let sizes: Rc<[u64]> = tensor.shape.split_last().map(|(_, sizes)| sizes).unwrap_or_default().into();
        if sizes.len() != self.chunk.len() || sizes.iter().zip(&self.chunk).any(|(own, most)| own > most) {
            return Err(invalid("it is larger than its array says that blocks are"));
        }
        let block = Block { start: tensor.range().0, sizes };
        self.blocks.insert(number, (version, block.clone()));
        self.kept(bytes, Some(block))
    }

    fn kept(&self, bytes: ChunkBytes, block: Option<Block>) -> io::Result<Open> {
        if let ChunkBytes::File { file, .. } = &bytes {
            self.how.account.count(file)?;
        }
        let mut kept = None;
        if self.how.is_across && bytes.len() <= KEPT_MAX {
            let mut all = vec![0; usize::try_from(bytes.len()).unwrap_or(0)];
            bytes.read_exact_at(&mut all, 0)?;
            kept = Some(all);
        }
        Ok(Open { bytes, block, kept })
    }

    /// The chunk that has an element, which of its elements that is, and how many follow each other in both.
    fn find(&self, element: u64) -> (Vec<u64>, u64, u64) {
        let (shape, chunk) = (&self.shape, &self.chunk);
        if self.how.is_across {
            // The dimension that runs fastest here is the first one, and of that no two stand beside each other there.
            let (mut key, mut rest, mut from) = (vec![0; shape.len()], element, 0);
            let mut inner: u64 = chunk.iter().product();
            for dim in 0..shape.len() {
                let at = rest % shape[dim];
                (rest, inner) = (rest / shape[dim], inner / chunk[dim]);
                key[dim] = at / chunk[dim];
                from += at % chunk[dim] * inner;
            }
            return (key, from, 1);
        }
        let (mut key, mut rest) = (vec![0; shape.len()], element);
        let (mut from, mut run, mut inner, mut is_whole) = (0, 1, 1, true);
        for dim in (0..shape.len()).rev() {
            let at = rest % shape[dim];
            rest /= shape[dim];
            key[dim] = at / chunk[dim];
            from += at % chunk[dim] * inner;
            // From the last dimension on, as long as a chunk has all of a dimension, the next one goes on.
            if is_whole {
                run = inner * chunk[dim].min(shape[dim] - key[dim] * chunk[dim]) - from;
                is_whole = chunk[dim] == shape[dim];
            }
            inner *= chunk[dim];
        }
        (key, from, run)
    }
}

#[cfg(test)]
mod tests {
    use tensorfs_formats::Dtype;

    use super::*;

    #[test]
    fn elements_are_found_in_their_chunks() {
        let array = |shape: &[u64], chunk: &[u64]| Array {
            dtype: Dtype::U8,
            descr: None,
            item_size: 1,
            big_endian: false,
            shape: shape.to_vec(),
            column_major: false,
            chunk: Some(chunk.to_vec()),
            codecs: vec![],
            blocks: false,
            keys: None,
            fill: Some(vec![9]),
            odd: None,
        };
        let grid = |shape: &[u64], chunk: &[u64]| {
            let how = How { is_across: false, account: Rc::new(Account::endless()) };
            Grid::new(Rc::new(array(shape, chunk)), Rc::new(Chunks::default()), Inspector::default(), how).unwrap()
        };
        let rows = grid(&[5, 4], &[2, 4]);
        assert_eq!((rows.find(0), rows.find(9)), ((vec![0, 0], 0, 8), (vec![1, 0], 1, 7)));
        assert_eq!(rows.find(17), (vec![2, 0], 1, 3), "what is behind the end of the array is no part of it");
        let tiles = grid(&[3, 5], &[2, 2]);
        assert_eq!(
            (tiles.find(0), tiles.find(4), tiles.find(8)),
            ((vec![0, 0], 0, 2), (vec![0, 2], 0, 1), (vec![0, 1], 3, 1))
        );
        assert_eq!(grid(&[], &[]).find(0), (vec![], 0, 1));
        let mut bytes = [0; 20];
        assert_eq!(grid(&[5, 4], &[2, 3]).read_at(3, &mut bytes).unwrap(), 17);
        assert_eq!((bytes[16], bytes[17]), (9, 0));
    }
}
