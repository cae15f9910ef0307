//! The bytes of a tensor whose parts are in several files.

use std::io;
use std::rc::Rc;

use tensorfs_formats::{Order, Tensor};
use tensorfs_fs::TensorBytes;

use crate::tensors::account::Account;

/// How a part is opened when it is needed.
pub type Open = Box<dyn Fn() -> io::Result<TensorBytes>>;

/// So many parts are kept open.
const OPEN_MAX: usize = 200;

/// The bytes of a tensor, in row-major order, read from its parts.
pub struct Assembled {
    shape: Vec<u64>,
    item: u64,
    len: u64,
    parts: Vec<Part>,
    /// The part that was read last: what comes next is mostly in it, or in the next one.
    last: usize,
    open: usize,
    account: Rc<Account>,
}

/// A part: where it begins, elements in each dimension, and its bytes in row-major order.
pub struct Part {
    /// The first element, in each dimension.
    pub offsets: Vec<u64>,
    /// Elements in each dimension.
    pub sizes: Vec<u64>,
    /// How to open it.
    pub open: Open,
    /// It is open.
    pub bytes: Option<TensorBytes>,
}

impl Assembled {
    /// A tensor of this shape, with elements of `item` bytes.
    pub fn new(shape: Vec<u64>, item: u64, parts: Vec<Part>, account: Rc<Account>) -> Self {
        let len = shape.iter().fold(item, |len, size| len.saturating_mul(*size));
        Assembled { shape, item, len, parts, last: 0, open: 0, account }
    }

    /// Bytes of the whole tensor.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Fills `buffer` with the bytes from `offset` on, as far as there are any. Both are to be whole elements.
    pub fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        let is_whole = |bytes: u64| self.item > 0 && bytes.is_multiple_of(self.item);
        if !is_whole(offset) || !is_whole(want as u64) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let account = self.account.clone();
        account.during(|| self.read_elements(offset, &mut buffer[..want]))?;
        Ok(want)
    }

    fn read_elements(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (mut done, want) = (0, buffer.len());
        while done < want {
            self.account.look()?;
            let element = (offset + done as u64) / self.item;
            let (part, from, run) = self.find(element).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("no part of the tensor has its element {element}"))
            })?;
            let count = usize::try_from(run * self.item).unwrap_or(usize::MAX).min(want - done);
            self.read_part(part, from * self.item, &mut buffer[done..done + count])?;
            done += count;
        }
        Ok(())
    }

    fn read_part(&mut self, number: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if self.parts[number].bytes.is_none() {
            if self.open >= OPEN_MAX {
                self.parts.iter_mut().for_each(|part| part.bytes = None);
                self.open = 0;
            }
            let opened = (self.parts[number].open)()?;
            self.account.count(opened.file())?;
            self.parts[number].bytes = Some(opened);
            self.open += 1;
        }
        let Some(bytes) = &mut self.parts[number].bytes else { return Err(io::ErrorKind::NotFound.into()) };
        match bytes.read_at(offset, buffer)? {
            count if count == buffer.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// The part that has an element, which of its elements that is, and how many follow each other in both.
    fn find(&mut self, element: u64) -> Option<(usize, u64, u64)> {
        let mut at = vec![0; self.shape.len()];
        let mut rest = element;
        for (at, size) in at.iter_mut().zip(&self.shape).rev() {
            (*at, rest) = (rest % size, rest / size);
        }
        let has = |part: &Part| {
            part.offsets
                .iter()
                .zip(&part.sizes)
                .zip(&at)
                .all(|((offset, size), at)| at >= offset && at - offset < *size)
        };
        let count = self.parts.len();
        let found = (0..count).map(|n| (self.last + n) % count).find(|number| has(&self.parts[*number]))?;
        self.last = found;
        let Part { offsets, sizes, .. } = &self.parts[found];
        // From the last dimension on, as long as the part has all of a dimension, the next one goes on.
        let (mut from, mut run, mut inner, mut is_whole) = (0, 1, 1, true);
        for dim in (0..at.len()).rev() {
            let within = at[dim] - offsets[dim];
            from += within * inner;
            if is_whole {
                run = inner * sizes[dim] - from;
                is_whole = sizes[dim] == self.shape[dim];
            }
            inner *= sizes[dim];
        }
        Some((found, from, run))
    }
}

/// The tensor, to be read in row-major order. None if it cannot be: it is stored column by column, and compressed.
pub fn by_rows(tensor: &Tensor) -> Option<Tensor> {
    let mut tensor = tensor.clone();
    if tensor.order == Order::ColumnMajor {
        let steps = tensor.shape.iter().scan(1_u64, |stride, &size| {
            let this = *stride;
            *stride = stride.saturating_mul(size);
            Some(this)
        });
        tensor.order = Order::Strides(steps.collect());
        return Some(tensor).filter(|tensor| tensor.is_laid_out());
    }
    Some(tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(shape: Vec<u64>, item: u64, parts: Vec<Part>) -> Assembled {
        Assembled::new(shape, item, parts, Rc::new(Account::endless()))
    }

    fn part(offsets: &[u64], sizes: &[u64]) -> Part {
        let open = Box::new(|| Err(io::ErrorKind::Unsupported.into()));
        Part { offsets: offsets.to_vec(), sizes: sizes.to_vec(), open, bytes: None }
    }

    #[test]
    fn elements_are_found_in_their_parts() {
        let mut rows = whole(vec![5, 4], 4, vec![part(&[0, 0], &[3, 4]), part(&[3, 0], &[2, 4])]);
        assert_eq!((rows.len(), rows.find(0), rows.find(11)), (80, Some((0, 0, 12)), Some((0, 11, 1))));
        assert_eq!((rows.find(12), rows.find(19)), (Some((1, 0, 8)), Some((1, 7, 1))));
        let mut columns = whole(vec![2, 5], 2, vec![part(&[0, 0], &[2, 3]), part(&[0, 3], &[2, 2])]);
        let found: Vec<_> = [0, 1, 3, 4, 5, 7, 8].map(|n| columns.find(n)).into_iter().flatten().collect();
        assert_eq!(found, [(0, 0, 3), (0, 1, 2), (1, 0, 2), (1, 1, 1), (0, 3, 3), (0, 5, 1), (1, 2, 2)]);
        // A part in the middle of three dimensions, and nothing around it.
        let mut middle = whole(vec![2, 3, 4], 1, vec![part(&[0, 1, 0], &[2, 1, 4])]);
        assert_eq!((middle.find(0), middle.find(5), middle.find(17)), (None, Some((0, 1, 3)), Some((0, 5, 3))));
        let mut scalar = whole(vec![], 8, vec![part(&[], &[])]);
        assert_eq!((scalar.len(), scalar.find(0)), (8, Some((0, 0, 1))));
    }

    #[test]
    fn what_no_part_has_is_an_error() {
        let mut gap = whole(vec![4], 1, vec![part(&[2], &[2])]);
        assert_eq!(gap.read_at(0, &mut [0; 4]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(gap.read_at(2, &mut [0; 2]).unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert_eq!(gap.read_at(4, &mut [0; 2]).unwrap(), 0);
        assert_eq!(whole(vec![4], 4, vec![]).read_at(1, &mut [0; 4]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    /// Elements one by one, each in a part of its own that is far from the last one.
    ///
    /// Proves T11.
    #[test]
    fn looking_for_parts_has_an_end() {
        let many = 1_u64 << 14;
        let parts = (0..many).rev().map(|n| part(&[n], &[1])).collect();
        let account = Rc::new(Account::of(std::time::Duration::from_millis(20)));
        let mut all = Assembled::new(vec![many], 1, parts, account.clone());
        let endless = || (0..).try_for_each(|n| account.look().map(|()| _ = all.find(n % many)));
        let why = account.during(endless).unwrap_err();
        assert!(why.to_string().contains("not looked into"), "{why}");
        assert!(all.read_at(0, &mut [0]).unwrap_err().to_string().contains("not looked into"));
    }
}
