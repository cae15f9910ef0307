//! What a pickle builds: values that refer to each other by index, so that cycles are harmless, and all of it counted
//! against a bound.

use crate::dtype::Dtype;
use crate::fault::{Result, too_much};
use crate::limits::{DIMENSIONS_MAX, push};

/// What the objects may take, in bytes.
const OBJECTS_MAX: usize = 23 << 20;
/// So many attributes of an object are looked at. Those that are looked for have fewer.
const ATTRIBUTES_MAX: usize = 16;
/// What torch's metadata of a tensor says: that it is the conjugate of what is stored, or the negative of it.
const CONJUGATE: &[u8] = b"conj";
const NEGATIVE: &[u8] = b"neg";

/// A value on the stack, in the memo, or in a container.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    /// Something without interest.
    Dull,
    Int(Int),
    Text(Slice),
    /// A name of a module and a name in it.
    Global(Slice),
    Object(u32),
}

/// A number in two halves, which make values smaller: there are very many of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Int([u32; 2]);

impl Int {
    pub fn get(self) -> i64 {
        let Int([low, high]) = self;
        (u64::from(high) << 32 | u64::from(low)) as i64
    }
}

impl<T: Into<i64>> From<T> for Value {
    fn from(number: T) -> Self {
        let number: i64 = number.into();
        Value::Int(Int([number as u32, (number >> 32) as u32]))
    }
}

/// A part of the texts, or of the values of tuples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slice {
    pub start: u32,
    pub len: u32,
}

pub(super) enum Object {
    Tuple(Slice),
    /// A list, a dictionary, or an object of which parts are known: those that may be or hold tensors, with what they
    /// are called, and how many items a list has, dropped ones included.
    Container {
        items: Vec<(Value, Value)>,
        count: u32,
    },
    Storage {
        class: Slice,
        key: Slice,
        len: u64,
    },
    /// A view of a storage, which is another object. Shape and strides are those of tuples.
    Tensor {
        dtype: Dtype,
        storage: u32,
        offset: u64,
        shape: Slice,
        strides: Slice,
        meaning: Meaning,
    },
    /// A part of a plan, its attributes, and how many values tuples had when it was made.
    Part {
        class: Class,
        attributes: Value,
        values: u32,
    },
}

/// What the plan of a distributed checkpoint is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Class {
    /// All of it.
    Plan,
    /// Where something is.
    Place,
    /// What is there.
    Index,
    /// A tensor.
    Tensor,
    /// A part of one.
    Chunk,
    /// What a tensor is, but for its shape.
    Properties,
    /// Anything else.
    Other,
}

/// What the numbers of a tensor are, which torch says by what it calls metadata.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Meaning {
    /// Those that are stored.
    AsStored,
    /// Those with other signs: 1 the numbers', or the real parts', 2 the imaginary parts', 3 both.
    Negated(u8),
    /// Others, which are not known.
    Unknown,
}

/// A tensor as torch rebuilds it: a view of a storage. Offset, shape and strides count elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct View {
    pub dtype: Dtype,
    /// The storage's key.
    pub storage: String,
    /// The storage's bytes, as the pickle says.
    pub storage_len: u64,
    pub offset: u64,
    pub shape: Vec<u64>,
    pub strides: Vec<u64>,
    pub meaning: Meaning,
}

#[derive(Default)]
pub(super) struct Heap {
    pub objects: Vec<Object>,
    /// The values of all tuples.
    values: Vec<Value>,
    texts: Vec<u8>,
    /// The tuple of nothing, of which one is enough.
    empty: Option<Value>,
    taken: usize,
    /// Dictionaries keep all that has a meaning, and not only what may hold tensors.
    keeps_all: bool,
}

impl Heap {
    /// One in which nothing is dropped that has a meaning.
    pub fn keeping_all() -> Self {
        Heap { keeps_all: true, ..Heap::default() }
    }

    /// What there is takes more than it may.
    pub fn is_full(&self) -> bool {
        self.taken > OBJECTS_MAX
    }

    pub fn taken(&self) -> usize {
        self.taken
    }

    pub fn charge(&mut self, bytes: usize) -> Result<()> {
        self.taken += bytes;
        if self.is_full() { too_much("a pickle of too many objects") } else { Ok(()) }
    }

    pub fn uncharge(&mut self, bytes: usize) {
        self.taken -= bytes;
    }

    pub fn object(&mut self, object: Object) -> Result<Value> {
        self.charge(size_of::<Object>())?;
        push(&mut self.objects, object);
        // The charges keep all numbers far below 2^32.
        Ok(Value::Object(self.objects.len() as u32 - 1))
    }

    pub fn container(&mut self) -> Result<Value> {
        self.object(Object::Container { items: Vec::new(), count: 0 })
    }

    pub fn text(&mut self, parts: &[&[u8]]) -> Result<Slice> {
        let (start, len) = (self.texts.len(), parts.iter().map(|part| part.len()).sum());
        self.charge(len)?;
        if self.texts.capacity() - start < len {
            self.texts.reserve_exact(len + start / 2);
        }
        parts.iter().for_each(|part| self.texts.extend_from_slice(part));
        Ok(Slice { start: start as u32, len: len as u32 })
    }

    pub fn tuple(&mut self, values: &[Value]) -> Result<Value> {
        if values.is_empty()
            && let Some(empty) = self.empty
        {
            return Ok(empty);
        }
        self.charge(size_of_val(values))?;
        let start = self.values.len() as u32;
        values.iter().for_each(|&value| push(&mut self.values, value));
        let tuple = self.object(Object::Tuple(Slice { start, len: values.len() as u32 }))?;
        if values.is_empty() {
            self.empty = Some(tuple);
        }
        Ok(tuple)
    }

    pub fn bytes(&self, slice: Slice) -> &[u8] {
        text_of(&self.texts, slice)
    }

    pub fn get(&self, value: Value) -> Option<&Object> {
        let Value::Object(index) = value else { return None };
        self.objects.get(index as usize)
    }

    /// Where the values of a tuple are, and the values.
    pub fn tuple_of(&self, value: Value) -> Option<(Slice, &[Value])> {
        let Some(&Object::Tuple(slice)) = self.get(value) else { return None };
        Some((slice, self.values.get(slice.start as usize..(slice.start + slice.len) as usize)?))
    }

    pub fn values(&self, value: Value) -> Option<&[Value]> {
        self.tuple_of(value).map(|(_, values)| values)
    }

    /// The numbers of a tuple, none of which is negative.
    pub fn numbers(&self, Slice { start, len }: Slice) -> Option<Vec<u64>> {
        let values = self.values.get(start as usize..(start + len) as usize)?;
        values.iter().map(|&value| if let Value::Int(n) = value { u64::try_from(n.get()).ok() } else { None }).collect()
    }

    /// The numbers of a tuple of sizes, none of which is negative.
    pub fn sizes(&self, value: Value) -> Option<Vec<u64>> {
        self.tuple_of(value).filter(|(_, values)| values.len() <= DIMENSIONS_MAX).and_then(|(at, _)| self.numbers(at))
    }

    /// The type of a storage's elements, if it has one, and the bytes of what its length counts.
    pub fn class(&self, class: Slice) -> Option<(Option<Dtype>, u64)> {
        match self.bytes(class) {
            b"torch.storage UntypedStorage" | b"torch UntypedStorage" => Some((None, 1)),
            class => {
                let dtype = class.strip_prefix(b"torch ").and_then(Dtype::of_storage)?;
                Some((Some(dtype), dtype.size()?))
            }
        }
    }

    /// The tensor that an object is.
    pub fn view(&self, value: Value) -> Option<View> {
        let &Object::Tensor { dtype, storage, offset, shape, strides, meaning } = self.get(value)? else { return None };
        let &Object::Storage { class, key, len } = self.objects.get(storage as usize)? else { return None };
        let (_, size) = self.class(class)?;
        Some(View {
            dtype,
            storage: String::from_utf8_lossy(self.bytes(key)).into_owned(),
            storage_len: len.checked_mul(size)?,
            offset,
            shape: self.numbers(shape)?,
            strides: self.numbers(strides)?,
            meaning,
        })
    }

    /// What the numbers of a tensor of that type are, with that metadata.
    pub fn meaning(&self, dtype: Dtype, metadata: Value) -> Meaning {
        let (mut conjugate, mut negative) = (false, false);
        match self.get(metadata) {
            _ if metadata == Value::Dull => return Meaning::AsStored,
            Some(Object::Container { items, .. }) => {
                for &(key, value) in items {
                    // What else it says is the device's, as how that lays out the bytes; torch heeds it there alone.
                    let (Value::Text(key), Value::Int(set)) = (key, value) else { continue };
                    match self.bytes(key) {
                        CONJUGATE => conjugate = set.get() != 0,
                        NEGATIVE => negative = set.get() != 0,
                        _ => {}
                    }
                }
            }
            _ => return Meaning::Unknown,
        }
        let is_complex = matches!(dtype, Dtype::C32 | Dtype::C64 | Dtype::C128);
        let is_real = matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64);
        match (conjugate, negative) {
            (false, false) => Meaning::AsStored,
            (true, false) if is_complex => Meaning::Negated(2),
            (false, true) if is_complex => Meaning::Negated(3),
            (true, true) if is_complex => Meaning::Negated(1),
            (false, true) if is_real => Meaning::Negated(1),
            _ => Meaning::Unknown,
        }
    }

    pub fn add(&mut self, container: Value, item: Option<Value>, value: Value) -> Result<()> {
        let Value::Object(index) = container else { return Ok(()) };
        let texts = &self.texts;
        let Some(Object::Container { items, count }) = self.objects.get_mut(index as usize) else { return Ok(()) };
        let key = item.unwrap_or(Value::from(*count));
        *count = count.saturating_add(item.is_none().into());
        let is_metadata = |key| matches!(key, Value::Text(key) if matches!(text_of(texts, key), CONJUGATE | NEGATIVE));
        let is_kept = match value {
            Value::Object(_) => true,
            Value::Dull => false,
            Value::Int(_) if item.is_some_and(is_metadata) => true,
            _ => self.keeps_all && item.is_some(),
        };
        if !is_kept {
            return Ok(());
        }
        let before = items.capacity();
        if items.len() == before {
            items.reserve_exact((before / 2).max(2));
        }
        items.push((key, value));
        let more = (items.capacity() - before) * size_of::<(Value, Value)>();
        self.charge(more)
    }

    pub fn part(&mut self, class: Class) -> Result<Value> {
        self.object(Object::Part { class, attributes: Value::Dull, values: self.values.len() as u32 })
    }

    /// One of the first items of a dictionary.
    pub fn attribute(&self, dictionary: Value, name: &[u8]) -> Option<Value> {
        let Some(Object::Container { items, .. }) = self.get(dictionary) else { return None };
        let mut items = items.iter().take(ATTRIBUTES_MAX);
        items.find(|(key, _)| matches!(*key, Value::Text(text) if self.bytes(text) == name)).map(|(_, value)| *value)
    }

    /// Takes no more for a part and for all objects that were made since. What still refers to one of them refers to
    /// nothing, or to another.
    pub fn forget(&mut self, part: u32) {
        let Some(&Object::Part { values, .. }) = self.objects.get(part as usize) else { return };
        for object in self.objects.drain(part as usize..) {
            let items = if let Object::Container { items, .. } = &object { items.capacity() } else { 0 };
            self.taken -= size_of::<Object>() + items * size_of::<(Value, Value)>();
        }
        self.taken -= self.values.len().saturating_sub(values as usize) * size_of::<Value>();
        self.values.truncate(values as usize);
        self.empty = self.empty.filter(|empty| self.get(*empty).is_some());
    }
}

fn text_of(texts: &[u8], slice: Slice) -> &[u8] {
    texts.get(slice.start as usize..(slice.start + slice.len) as usize).unwrap_or_default()
}

const _: () = assert!(size_of::<Value>() == 12 && size_of::<Object>() == 32);
