//! What the plans of a checkpoint in parts say, in little memory: its tensors, of which pieces each consists, and in
//! which bytes of which files those are.

use std::collections::HashMap;

use tensorfs_formats::{Array, Dtype, Location, Order, Planned, Tensor, npy_len};

use super::boxes::{Part, place_of};
use super::hash::number;

/// The most files that a plan names, and pieces of a tensor.
const PARTS_MAX: usize = 4096;
const PIECES_MAX: usize = 4096;
/// The most memory that it takes.
pub(super) const MEMORY_MAX: usize = 64 << 20;
/// So often a piece is looked for that is not where it is expected.
const TRIES_MAX: usize = 1 << 26;
/// In the place of a file: the plan does not say.
const NOWHERE: u32 = u32::MAX;
/// In that place, of a value of a database: the plan has its bytes; and there is none, which stands for the fill value.
const HERE: u32 = u32::MAX - 1;
const LACKING: u32 = u32::MAX - 2;

/// What plans say.
#[derive(Default)]
pub(super) struct Plan {
    names: Vec<u8>,
    numbers: Vec<u64>,
    wholes: Vec<Whole>,
    pieces: Vec<Piece>,
    files: Vec<Box<str>>,
    /// What is known of tensors whose pieces are chunks, and what that takes beside.
    arrays: Vec<Chunked>,
    arrays_bytes: usize,
    /// Bytes of chunks that stand in no file as they are.
    here: Vec<u8>,
}

/// An array, and whether its chunks are values of a database, or else files.
struct Chunked {
    array: Array,
    in_database: bool,
}

/// A tensor: its name, its dimensions, if they are said, and its pieces. The dimension that runs fastest is the last.
struct Whole {
    /// Where it begins, where what the plan says begins, and where that ends.
    name: [u32; 3],
    shape: Option<(u32, u32)>,
    dtype: Option<Dtype>,
    pieces: (u32, u32),
    /// Which of the arrays it is, if its pieces are chunks.
    array: Option<u32>,
}

/// A piece of a tensor: where its first element and its sizes are among the numbers, and in which bytes of which file
/// it is.
#[derive(Clone, Copy)]
struct Piece {
    file: u32,
    at: u32,
    dims: u32,
    offset: u64,
    len: u64,
}

/// A chunk in a database: a value of it.
pub(super) enum Value<'a> {
    /// It is in so many bytes of a file, from a place on.
    In(&'a str, u64, u64),
    /// It is that.
    Here(&'a [u8]),
}

/// Where the value is that a chunk of an array in a database is.
pub(super) enum Found<'a> {
    /// At the place of the piece.
    There,
    /// It is that.
    Here(&'a [u8]),
    /// There is none.
    Nowhere,
}

/// Where a piece of a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of the file, or that of none.
    pub file: u32,
    /// Bytes of it in which the piece stands in a format of its own. None of them are said by an index.
    pub offset: u64,
    pub len: u64,
}

/// A plan that is being read.
pub(super) struct Draft {
    plan: Plan,
    /// What it may take.
    most: usize,
    /// Tensors by their names, and what else the plan has a place for.
    named: HashMap<u64, u32>,
    numbers: HashMap<Box<str>, u32>,
    /// Pieces in front of this one belong to a tensor.
    taken: usize,
    /// Where the next piece is expected.
    next: usize,
    tries: usize,
}

/// It is more than can be.
#[derive(Debug)]
pub(super) struct TooMuch;

impl Draft {
    /// One that may take so much memory, if that is not more than any may.
    pub fn new(most: usize) -> Self {
        Self {
            plan: Plan::default(),
            most: most.min(MEMORY_MAX),
            named: HashMap::new(),
            numbers: HashMap::new(),
            taken: 0,
            next: 0,
            tries: 0,
        }
    }

    /// Takes in what a plan says next.
    pub fn add(&mut self, piece: Planned) -> Result<(), TooMuch> {
        match piece {
            Planned::Chunk { offsets, sizes } => {
                let at = self.note(&offsets)?;
                self.note(&sizes)?;
                let dims = offsets.len() as u32;
                self.plan.pieces.push(Piece { file: NOWHERE, at, dims, offset: 0, len: 0 });
            }
            Planned::Tensor { name, dtype, shape } => {
                let at = self.note(&shape)?;
                self.whole(&name, dtype, Some((at, shape.len() as u32)))?;
            }
            Planned::Place { name, offsets, chunk, file, offset, len } => {
                let file = self.file(&file)?;
                match self.named.get(&number(&name)).copied() {
                    Some(whole) => self.place(whole, offsets.as_deref(), chunk, Place { file, offset, len })?,
                    // An index has nothing but places, each of a whole tensor.
                    None if len == 0 => {
                        self.plan.pieces.push(Piece { file, at: 0, dims: 0, offset, len });
                        self.whole(&name, None, None)?;
                    }
                    None => {}
                }
            }
            Planned::Array { name, array } => {
                let len = array.plain_elements().ok_or(TooMuch)?;
                let each = |draft: &mut Draft, key: &str| Ok(Place { file: draft.file(key)?, offset: 0, len });
                self.array(&name, *array, false, each)?;
            }
            // What is in one is put in otherwise.
            Planned::Database => {}
        }
        self.check()
    }

    /// Takes in an array in a database, the chunks of which are what is found by their keys.
    pub fn add_values<'v>(
        &mut self,
        name: &[u8],
        array: Array,
        mut find: impl FnMut(&str) -> Option<Value<'v>>,
    ) -> Result<(), TooMuch> {
        let each = |draft: &mut Draft, key: &str| {
            Ok(match find(key) {
                Some(Value::In(file, offset, len)) => Place { file: draft.file(file)?, offset, len },
                Some(Value::Here(bytes)) => {
                    let offset = draft.plan.here.len() as u64;
                    draft.plan.here.extend(bytes);
                    draft.check()?;
                    Place { file: HERE, offset, len: bytes.len() as u64 }
                }
                None => Place { file: LACKING, offset: 0, len: 0 },
            })
        };
        self.array(name, array, true, each)?;
        self.check()
    }

    /// Takes in a file that what the plan says was read from.
    pub fn add_file(&mut self, path: &str) -> Result<(), TooMuch> {
        self.file(path).map(drop)
    }

    fn check(&self) -> Result<(), TooMuch> {
        if self.memory() > self.most { Err(TooMuch) } else { Ok(()) }
    }

    /// All that was said.
    pub fn finish(mut self) -> Plan {
        self.plan.names.shrink_to_fit();
        self.plan.numbers.shrink_to_fit();
        self.plan.wholes.shrink_to_fit();
        self.plan.pieces.shrink_to_fit();
        self.plan.arrays.shrink_to_fit();
        self.plan.here.shrink_to_fit();
        self.plan
    }

    fn memory(&self) -> usize {
        self.plan.memory() + self.named.len() * 3 * size_of::<u64>()
    }

    fn note(&mut self, numbers: &[u64]) -> Result<u32, TooMuch> {
        let at = u32::try_from(self.plan.numbers.len()).map_err(|_| TooMuch)?;
        self.plan.numbers.extend(numbers);
        Ok(at)
    }

    fn whole(&mut self, name: &[u8], dtype: Option<Dtype>, shape: Option<(u32, u32)>) -> Result<(), TooMuch> {
        let place = |at: usize| u32::try_from(at).map_err(|_| TooMuch);
        let plan = &mut self.plan;
        let from = plan.names.len();
        plan.names.extend(name);
        self.named.insert(number(name), place(plan.wholes.len())?);
        let name = [place(from)?, place(from)?, place(plan.names.len())?];
        let pieces = (place(self.taken)?, place(plan.pieces.len())?);
        plan.wholes.push(Whole { name, shape, dtype, pieces, array: None });
        self.taken = plan.pieces.len();
        Ok(())
    }

    /// Takes in an array: its chunks are its pieces, but for what of those is behind its end. Where each is, is said by
    /// what it is called.
    fn array(
        &mut self,
        name: &[u8],
        array: Array,
        in_database: bool,
        mut each: impl FnMut(&mut Draft, &str) -> Result<Place, TooMuch>,
    ) -> Result<(), TooMuch> {
        let (Some(grid), Some(chunk), Some(keys)) = (array.grid(), array.chunk.clone(), array.keys) else {
            return Ok(());
        };
        for nth in 0..grid.iter().product() {
            let key = place_of(&grid, nth);
            let Place { file, offset, len } = each(self, &keys.path(&key))?;
            let starts: Vec<u64> = key.iter().zip(&chunk).map(|(at, size)| at * size).collect();
            let ends = starts.iter().zip(&chunk).zip(&array.shape).map(|((start, size), end)| (*size).min(end - start));
            let ends = array.as_stored(ends.collect());
            let at = self.note(&array.as_stored(starts))?;
            self.note(&ends)?;
            let dims = ends.len() as u32;
            self.plan.pieces.push(Piece { file, at, dims, offset, len });
        }
        let shape = (self.note(&array.as_stored(array.shape.clone()))?, array.shape.len() as u32);
        self.whole(name, Some(array.dtype), Some(shape))?;
        let number = u32::try_from(self.plan.arrays.len()).map_err(|_| TooMuch)?;
        if let Some(whole) = self.plan.wholes.last_mut() {
            whole.array = Some(number);
        }
        let fill = array.fill.as_ref().map_or(0, Vec::capacity);
        self.plan.arrays_bytes += array.shape.len() * 16 + fill;
        self.plan.arrays.push(Chunked { array, in_database });
        Ok(())
    }

    fn file(&mut self, name: &str) -> Result<u32, TooMuch> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        let number = self.plan.files.len();
        if number == PARTS_MAX {
            return Err(TooMuch);
        }
        self.plan.files.push(name.into());
        self.numbers.insert(name.into(), number as u32);
        Ok(number as u32)
    }

    /// Notes where a piece of a tensor is: the one of that number, if it begins there, else the one that does.
    fn place(&mut self, whole: u32, starts: Option<&[u64]>, nth: Option<u64>, to: Place) -> Result<(), TooMuch> {
        let plan = &mut self.plan;
        let (from, end) = plan.wholes[whole as usize].pieces;
        let (from, end) = (from as usize, end as usize);
        let begins = |plan: &Plan, at: usize| starts.is_none_or(|starts| starts == plan.part(&plan.pieces[at]).starts);
        let nth = nth.and_then(|nth| from.checked_add(usize::try_from(nth).ok()?)).filter(|at| *at < end);
        let found = match nth.filter(|at| begins(plan, *at)) {
            Some(at) => Some(at),
            None if starts.is_none() => (end == from + 1).then_some(from),
            None => {
                // Mostly they come in the same order.
                let next = if (from..end).contains(&self.next) { self.next } else { from };
                let found = (next..end).chain(from..next).find(|at| {
                    self.tries += 1;
                    begins(plan, *at)
                });
                if self.tries > TRIES_MAX {
                    return Err(TooMuch);
                }
                found
            }
        };
        if let Some(at) = found {
            let Place { file, offset, len } = to;
            plan.pieces[at] = Piece { file, offset, len, ..plan.pieces[at] };
            self.next = at + 1;
        }
        Ok(())
    }
}

impl Plan {
    /// Puts another one behind it, with something in front of each of its names.
    pub fn append(&mut self, other: Plan, prefix: &[u8]) -> Result<(), TooMuch> {
        let place = |at: usize| u32::try_from(at).map_err(|_| TooMuch);
        let (files, numbers, pieces) = (self.files.len(), self.numbers.len(), self.pieces.len());
        // All numbers in it have room beside these, and those of no file.
        place(files + other.files.len() + 3)?;
        place(numbers + other.numbers.len())?;
        place(pieces + other.pieces.len())?;
        place(self.names.len() + other.names.len() + other.wholes.len() * prefix.len())?;
        let (files, numbers, pieces) = (files as u32, numbers as u32, pieces as u32);
        let arrays = place(self.arrays.len())?;
        place(self.arrays.len() + other.arrays.len())?;
        let here = self.here.len() as u64;
        for whole in &other.wholes {
            let from = self.names.len();
            self.names.extend(prefix);
            self.names.extend(&other.names[whole.name[0] as usize..whole.name[2] as usize]);
            let name = [from, from + prefix.len(), self.names.len()].map(|at| at as u32);
            let shape = whole.shape.map(|(at, dims)| (numbers + at, dims));
            let pieces = (pieces + whole.pieces.0, pieces + whole.pieces.1);
            let array = whole.array.map(|array| arrays + array);
            self.wholes.push(Whole { name, shape, dtype: whole.dtype, pieces, array });
        }
        self.arrays.extend(other.arrays);
        self.arrays_bytes += other.arrays_bytes;
        self.here.extend(other.here);
        let moved = |piece: &Piece| {
            let (file, offset) = match piece.file {
                HERE => (HERE, here + piece.offset),
                NOWHERE | LACKING => (piece.file, piece.offset),
                file => (files + file, piece.offset),
            };
            Piece { file, offset, at: numbers + piece.at, ..*piece }
        };
        self.pieces.extend(other.pieces.iter().map(moved));
        self.numbers.extend(&other.numbers);
        self.files.extend(other.files);
        Ok(())
    }

    /// The names of the files.
    pub fn files(&self) -> &[Box<str>] {
        &self.files
    }

    /// How many tensors there are.
    pub fn len(&self) -> usize {
        self.wholes.len()
    }

    /// A tensor as the plan describes it: without type and dimensions if it says none. None if it cannot be put
    /// together from what it says.
    pub fn tensor(&self, nth: usize) -> Option<Tensor> {
        let whole = self.wholes.get(nth)?;
        let [from, _, end] = whole.name;
        let name = self.names[from as usize..end as usize].to_vec();
        let Some((at, dims)) = whole.shape else {
            return Some(Tensor::new(name, Dtype::U8, vec![], Location::Raw { offset: 0, len: 1 }));
        };
        let stored = &self.numbers[at as usize..][..dims as usize];
        let (dtype, array) = (whole.dtype?, self.array(nth));
        let shape = array.map_or_else(|| stored.to_vec(), |array| array.as_stored(stored.to_vec()));
        let len = count(stored)?.checked_mul(dtype.size()?)?;
        let mut tensor = Tensor::new(name, dtype, shape, Location::Raw { offset: 0, len });
        if let Some(array) = array {
            tensor.big_endian = array.big_endian;
            tensor.order = if array.column_major { Order::ColumnMajor } else { Order::RowMajor };
        }
        npy_len(&tensor).filter(|_| self.makes_up(whole, stored)).map(|_| tensor)
    }

    /// The name of a tensor as its plan has it, and its part, if it is all there.
    pub fn name_in_part(&self, nth: usize) -> &[u8] {
        let of = |whole: &Whole| &self.names[whole.name[1] as usize..whole.name[2] as usize];
        self.wholes.get(nth).map_or(&[], of)
    }

    /// What is known of a tensor whose pieces are chunks.
    pub fn array(&self, nth: usize) -> Option<&Array> {
        self.chunked(nth).map(|chunked| &chunked.array)
    }

    /// True if the chunks of a tensor are values of a database.
    pub fn is_in_database(&self, nth: usize) -> bool {
        self.chunked(nth).is_some_and(|chunked| chunked.in_database)
    }

    /// Where the value is that a piece of such a tensor is.
    pub fn find(&self, place: Place) -> Found<'_> {
        match place.file {
            // It was put there with its length.
            HERE => Found::Here(&self.here[place.offset as usize..][..place.len as usize]),
            LACKING => Found::Nowhere,
            _ => Found::There,
        }
    }

    fn chunked(&self, nth: usize) -> Option<&Chunked> {
        Some(&self.arrays[self.wholes.get(nth)?.array? as usize])
    }

    /// True if the plan says of which dimensions a tensor is.
    pub fn says_shape(&self, nth: usize) -> bool {
        self.wholes.get(nth).is_some_and(|whole| whole.shape.is_some())
    }

    /// The pieces of a tensor that have elements, each with its place.
    pub fn pieces(&self, nth: usize) -> impl Iterator<Item = (Part<'_>, Place)> {
        let (from, end) = self.wholes.get(nth).map_or((0, 0), |whole| whole.pieces);
        let pieces = self.pieces[from as usize..end as usize].iter();
        let place = |piece: &Piece| Place { file: piece.file, offset: piece.offset, len: piece.len };
        pieces.map(move |piece| (self.part(piece), place(piece))).filter(|(part, _)| !part.sizes.contains(&0))
    }

    /// Bytes of memory that it takes.
    pub fn memory(&self) -> usize {
        self.names.capacity()
            + self.numbers.capacity() * size_of::<u64>()
            + self.wholes.capacity() * size_of::<Whole>()
            + self.pieces.capacity() * size_of::<Piece>()
            + self.files.len() * 3 * size_of::<Piece>()
            + self.arrays.capacity() * size_of::<Chunked>()
            + self.arrays_bytes
            + self.here.capacity()
    }

    fn part(&self, piece: &Piece) -> Part<'_> {
        let (at, dims) = (piece.at as usize, piece.dims as usize);
        let (starts, sizes) = self.numbers[at..][..2 * dims].split_at(dims);
        Part { starts, sizes }
    }

    /// Whether it is known where the pieces of a tensor are, and they lie in it and have as many elements.
    fn makes_up(&self, whole: &Whole, shape: &[u64]) -> bool {
        let (from, end) = whole.pieces;
        let mut left = count(shape);
        for piece in &self.pieces[from as usize..end as usize] {
            let Part { starts, sizes } = self.part(piece);
            let mut dims = starts.iter().zip(sizes).zip(shape);
            let within = |((start, size), whole): ((&u64, &u64), &u64)| {
                start.checked_add(*size).is_some_and(|end| end <= *whole)
            };
            if sizes.len() != shape.len() || !dims.all(within) {
                return false;
            }
            let elements = count(sizes);
            if elements != Some(0) && piece.file == NOWHERE {
                return false;
            }
            left = left.zip(elements).and_then(|(left, elements)| left.checked_sub(elements));
        }
        left == Some(0) && (end - from) as usize <= PIECES_MAX
    }
}

/// How many elements there are.
fn count(sizes: &[u64]) -> Option<u64> {
    if sizes.contains(&0) { Some(0) } else { sizes.iter().try_fold(1_u64, |count, size| count.checked_mul(*size)) }
}

#[cfg(test)]
mod tests {
    use tensorfs_formats::Keys;

    use super::*;

    fn chunk(offsets: &[u64], sizes: &[u64]) -> Planned {
        Planned::Chunk { offsets: offsets.to_vec(), sizes: sizes.to_vec() }
    }

    fn tensor(name: &str, shape: &[u64]) -> Planned {
        Planned::Tensor { name: name.into(), dtype: Some(Dtype::F32), shape: shape.to_vec() }
    }

    fn place(name: &str, offsets: Option<&[u64]>, chunk: Option<u64>, file: &str, offset: u64, len: u64) -> Planned {
        let offsets = offsets.map(<[u64]>::to_vec);
        Planned::Place { name: name.into(), offsets, chunk, file: file.to_owned(), offset, len }
    }

    fn plan(said: Vec<Planned>) -> Plan {
        let mut draft = Draft::new(MEMORY_MAX);
        said.into_iter().for_each(|piece| draft.add(piece).unwrap());
        draft.finish()
    }

    fn places(plan: &Plan, nth: usize) -> Vec<(u32, u64)> {
        plan.pieces(nth).map(|(_, place)| (place.file, place.offset)).collect()
    }

    #[test]
    fn pieces_are_placed_by_number_and_by_where_they_begin() {
        let said = vec![
            chunk(&[0, 0], &[2, 3]),
            chunk(&[2, 0], &[2, 3]),
            chunk(&[4, 0], &[0, 3]),
            tensor("a", &[4, 3]),
            chunk(&[], &[]),
            tensor("b", &[]),
            place("a", Some(&[2, 0]), Some(0), "x", 1, 9),
            place("a", None, Some(0), "y", 2, 9),
            place("b", None, None, "x", 3, 9),
            place("step", None, None, "z", 0, 9),
        ];
        let plan = plan(said);
        assert_eq!((plan.len(), plan.files().len()), (2, 3));
        assert_eq!((places(&plan, 0), places(&plan, 1)), (vec![(1, 2), (0, 1)], vec![(0, 3)]));
        let a = plan.tensor(0).unwrap();
        assert_eq!((&a.name[..], &a.shape[..], npy_len(&a)), (&b"a"[..], &[4, 3][..], Some(128 + 48)));
        assert!(plan.tensor(1).is_some() && plan.says_shape(1) && plan.tensor(2).is_none());
    }

    fn array(shape: &[u64], chunk: &[u64]) -> Array {
        Array {
            dtype: Dtype::U8,
            descr: None,
            item_size: 1,
            big_endian: false,
            shape: shape.to_vec(),
            column_major: false,
            chunk: Some(chunk.to_vec()),
            codecs: Vec::new(),
            blocks: false,
            keys: Some(Keys { has_prefix: false, is_nested: false }),
            fill: None,
            odd: None,
        }
    }

    #[test]
    fn values_of_databases_are_where_they_are_found_behind_other_plans_too() {
        let of = |name: &str, first: &'static [u8]| {
            let mut draft = Draft::new(MEMORY_MAX);
            draft.add_file("node").unwrap();
            let find = |key: &str| match key {
                "0" => Some(Value::Here(first)),
                "1" => Some(Value::In("data", 7, 2)),
                _ => None,
            };
            draft.add_values(name.as_bytes(), array(&[5], &[2]), find).unwrap();
            draft.finish()
        };
        let mut plan = Plan::default();
        plan.append(of("a", b"12"), b"").unwrap();
        plan.append(of("b", b"3"), b"2/").unwrap();
        assert_eq!(
            plan.files(),
            ["node".into(), "data".into(), "node".into(), "data".into()].map(|name: Box<str>| name)
        );
        for (nth, name, first, file) in [(0, "a", &b"12"[..], 1), (1, "2/b", b"3", 3)] {
            let tensor = plan.tensor(nth).unwrap();
            assert!(tensor.name == name.as_bytes() && tensor.shape == [5] && plan.is_in_database(nth), "{tensor:?}");
            let pieces: Vec<_> = plan.pieces(nth).map(|(part, place)| (part.sizes.to_vec(), place)).collect();
            assert!(pieces.iter().map(|(sizes, _)| sizes[0]).eq([2, 2, 1]), "{pieces:?}");
            assert!(matches!(plan.find(pieces[0].1), Found::Here(bytes) if bytes == first));
            assert_eq!(pieces[1].1, Place { file, offset: 7, len: 2 });
            assert!(matches!((plan.find(pieces[1].1), plan.find(pieces[2].1)), (Found::There, Found::Nowhere)));
        }
        // As much of them as there is room for.
        let mut draft = Draft::new(1 << 20);
        let value = vec![1; 1 << 10];
        let added = (0..10_000).position(|n: u32| {
            draft.add_values(&n.to_be_bytes(), array(&[1024], &[1024]), |_| Some(Value::Here(&value))).is_err()
        });
        assert!(added.is_some_and(|added| added < 1024) && draft.plan.memory() < 4 << 20);
    }

    #[test]
    fn an_index_says_no_shapes() {
        let plan = plan(vec![place("a", None, None, "x", 0, 0), place("b", None, None, "x", 0, 0)]);
        assert_eq!((plan.len(), places(&plan, 1), plan.says_shape(1)), (2, vec![(0, 0)], false));
        assert_eq!(plan.tensor(1).unwrap().name, b"b");
    }

    #[test]
    fn what_does_not_make_up_a_tensor_is_none() {
        let huge = 1 << 62;
        type Case<'a> = (&'a [u64], &'a [(&'a [u64], &'a [u64])]);
        let cases: [Case<'_>; 9] = [
            (&[4, 3], &[(&[0, 0], &[2, 3])]),
            (&[4, 3], &[(&[0, 0], &[4, 3]), (&[2, 0], &[2, 3])]),
            (&[4, 3], &[(&[1, 0], &[4, 3])]),
            (&[4, 3], &[(&[0], &[12])]),
            (&[4], &[(&[u64::MAX], &[4])]),
            (&[huge, huge], &[(&[0, 0], &[huge, huge])]),
            (&[huge], &[(&[0], &[huge])]),
            (&[4], &[]),
            (&[0, 3], &[(&[0, 0], &[1, 3])]),
        ];
        for (shape, chunks) in cases {
            let mut said: Vec<_> = chunks.iter().map(|(offsets, sizes)| chunk(offsets, sizes)).collect();
            said.push(tensor("a", shape));
            said.extend((0..).zip(chunks).map(|(nth, _)| place("a", None, Some(nth), "x", nth, 1)));
            assert_eq!(plan(said).tensor(0), None, "{shape:?} {chunks:?}");
        }
        // The plan does not say where a piece is.
        assert_eq!(plan(vec![chunk(&[0], &[4]), tensor("a", &[4])]).tensor(0), None);
        assert!(plan(vec![chunk(&[0], &[0]), tensor("a", &[0])]).tensor(0).is_some(), "nothing is nowhere");
    }

    #[test]
    fn a_plan_has_bounds() {
        let mut draft = Draft::new(MEMORY_MAX);
        let added = |n: usize| draft.add(place(&n.to_string(), None, None, &n.to_string(), 0, 0)).is_ok();
        assert_eq!((0..2 * PARTS_MAX).map(added).filter(|added| *added).count(), PARTS_MAX);
        // Pieces that are told in another order than they are placed in take a while, and not forever.
        let mut draft = Draft::new(MEMORY_MAX);
        let many = 1_u64 << 15;
        (0..many).for_each(|n| draft.add(chunk(&[n], &[1])).unwrap());
        draft.add(tensor("a", &[many])).unwrap();
        let mut placed = (0..many).rev().map(|n| draft.add(place("a", Some(&[n]), None, "x", n, 1)));
        assert!(placed.any(|placed| placed.is_err()));
        let mut draft = Draft::new(MEMORY_MAX);
        let mut chunks = (0..1 << 20).map(|n| draft.add(chunk(&[n; 8], &[1; 8])));
        assert!(chunks.any(|chunk| chunk.is_err()), "a million pieces of eight dimensions");
        // A tensor of more pieces than can be put together is left out.
        let mut said: Vec<_> = (0..=PIECES_MAX as u64).map(|n| chunk(&[n], &[1])).collect();
        said.push(tensor("a", &[PIECES_MAX as u64 + 1]));
        said.extend((0..=PIECES_MAX as u64).map(|n| place("a", Some(&[n]), Some(n), "x", n, 1)));
        assert_eq!(plan(said).tensor(0), None);
    }
}
