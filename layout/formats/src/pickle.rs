//! Pickles, read without doing what they say.
//!
//! A pickle is a program that builds objects by calling whatever it names. Here nothing is called: the few functions
//! that tensors are made of (and ordered dictionaries) are known by their names, and their arguments are looked at; any
//! other call makes an object of which only its parts are known. Numbers, strings and other values that hold no
//! tensors are dropped as soon as they can no longer be an argument or a key.
//!
//! What is built lives in vectors and refers to itself by index, so cycles are harmless, and all of it is counted
//! against a bound.

use std::collections::HashSet;

use crate::cursor::{Cursor, WINDOW};
use crate::dtype::Dtype;
use crate::fault::{Result, malformed};
use crate::limits::{DIMENSIONS_MAX, NAME_MAX, push};

/// What the objects may take, in bytes.
const OBJECTS_MAX: usize = 23 << 20;
/// What the objects of all pickles of one file may take together, one pickle after the other. A short pickle can ask
/// for many; so this is a bound of time.
pub(crate) const BUDGET: usize = 256 << 20;
/// The most values on the stack.
const STACK_MAX: usize = 1 << 16;
/// The longest string that is kept: no name, key or global is longer.
const TEXT_MAX: u64 = 4096;
/// How much further than the last one a memo's number may be.
const MEMO_GAP: usize = 4096;
/// The deepest nesting of dictionaries and lists in which tensors are looked for.
const DEPTH_MAX: usize = 100;
/// The most places that are looked at for tensors.
const PLACES_MAX: u64 = 1 << 20;
/// Calls that are remembered for a person.
pub(crate) const CALLS_MAX: usize = 32;
/// Calls whose callable is given to another call. PyTorch writes one.
const CALL_DEPTH_MAX: usize = 64;

/// A value on the stack, in the memo, or in a container.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
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
struct Int([u32; 2]);

impl Int {
    fn get(self) -> i64 {
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
struct Slice {
    start: u32,
    len: u32,
}

enum Object {
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
    },
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
}

/// What a pickle holds.
pub(crate) struct Pickle {
    heap: Heap,
    root: Value,
    /// What was called, or would have been, beyond what tensors need.
    pub calls: Vec<String>,
}

#[derive(Default)]
struct Heap {
    objects: Vec<Object>,
    /// The values of all tuples.
    values: Vec<Value>,
    texts: Vec<u8>,
    /// The tuple of nothing, of which one is enough.
    empty: Option<Value>,
    taken: usize,
}

impl Heap {
    fn charge(&mut self, bytes: usize) -> Result<()> {
        self.taken += bytes;
        if self.taken > OBJECTS_MAX { malformed("a pickle of too many objects") } else { Ok(()) }
    }

    fn object(&mut self, object: Object) -> Result<Value> {
        self.charge(size_of::<Object>())?;
        push(&mut self.objects, object);
        // The charges keep all numbers far below 2^32.
        Ok(Value::Object(self.objects.len() as u32 - 1))
    }

    fn container(&mut self) -> Result<Value> {
        self.object(Object::Container { items: Vec::new(), count: 0 })
    }

    fn text(&mut self, parts: &[&[u8]]) -> Result<Slice> {
        let (start, len) = (self.texts.len(), parts.iter().map(|part| part.len()).sum());
        self.charge(len)?;
        if self.texts.capacity() - start < len {
            self.texts.reserve_exact(len + start / 2);
        }
        parts.iter().for_each(|part| self.texts.extend_from_slice(part));
        Ok(Slice { start: start as u32, len: len as u32 })
    }

    fn tuple(&mut self, values: &[Value]) -> Result<Value> {
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

    fn bytes(&self, slice: Slice) -> &[u8] {
        self.texts.get(slice.start as usize..(slice.start + slice.len) as usize).unwrap_or_default()
    }

    fn get(&self, value: Value) -> Option<&Object> {
        let Value::Object(index) = value else { return None };
        self.objects.get(index as usize)
    }

    /// Where the values of a tuple are, and the values.
    fn tuple_of(&self, value: Value) -> Option<(Slice, &[Value])> {
        let Some(&Object::Tuple(slice)) = self.get(value) else { return None };
        Some((slice, self.values.get(slice.start as usize..(slice.start + slice.len) as usize)?))
    }

    fn values(&self, value: Value) -> Option<&[Value]> {
        self.tuple_of(value).map(|(_, values)| values)
    }

    /// The numbers of a tuple, none of which is negative.
    fn numbers(&self, Slice { start, len }: Slice) -> Option<Vec<u64>> {
        let values = self.values.get(start as usize..(start + len) as usize)?;
        values.iter().map(|&value| if let Value::Int(n) = value { u64::try_from(n.get()).ok() } else { None }).collect()
    }

    /// The type of a storage's elements, if it has one, and the bytes of what its length counts.
    fn class(&self, class: Slice) -> Option<(Option<Dtype>, u64)> {
        match self.bytes(class) {
            b"torch.storage UntypedStorage" | b"torch UntypedStorage" => Some((None, 1)),
            class => {
                let dtype = class.strip_prefix(b"torch ").and_then(Dtype::of_storage)?;
                Some((Some(dtype), dtype.size()?))
            }
        }
    }

    /// The tensor that an object is.
    fn view(&self, value: Value) -> Option<View> {
        let &Object::Tensor { dtype, storage, offset, shape, strides } = self.get(value)? else { return None };
        let &Object::Storage { class, key, len } = self.objects.get(storage as usize)? else { return None };
        let (_, size) = self.class(class)?;
        Some(View {
            dtype,
            storage: String::from_utf8_lossy(self.bytes(key)).into_owned(),
            storage_len: len.checked_mul(size)?,
            offset,
            shape: self.numbers(shape)?,
            strides: self.numbers(strides)?,
        })
    }

    fn add(&mut self, container: Value, item: Option<Value>, value: Value) -> Result<()> {
        let Value::Object(index) = container else { return Ok(()) };
        let Some(Object::Container { items, count }) = self.objects.get_mut(index as usize) else { return Ok(()) };
        let key = item.unwrap_or(Value::from(*count));
        *count = count.saturating_add(item.is_none().into());
        if !matches!(value, Value::Object(_)) {
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
}

/// Reads a pickle. `cursor` ends where it does, or later.
pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Pickle> {
    Machine {
        cursor,
        heap: Heap::default(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        known: HashSet::new(),
        calls: Vec::new(),
    }
    .run()
}

/// Reads a pickle that is a list of texts, as Python 3 writes it, and gives each to `visit`.
pub(crate) fn texts(cursor: &mut Cursor<'_>, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    loop {
        match cursor.u8()? {
            b'.' => return Ok(()),
            // A list, a mark, what is appended; the memo.
            b']' | b'(' | b'a' | b'e' | 0x94 => {}
            0x80 | b'q' => cursor.skip(1)?,
            b'r' => cursor.skip(4)?,
            0x95 => cursor.skip(8)?,
            opcode @ (b'X' | 0x8c) => {
                let len = if opcode == b'X' { u64::from(cursor.u32()?) } else { u64::from(cursor.u8()?) };
                if len > TEXT_MAX {
                    return malformed("a key that is too long");
                }
                visit(cursor.take(len as usize)?)?;
            }
            _ => return malformed("a list of storages that is none"),
        }
    }
}

struct Machine<'c, 's> {
    cursor: &'c mut Cursor<'s>,
    heap: Heap,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: Vec<Value>,
    /// Hashes of the calls that were seen.
    known: HashSet<String>,
    calls: Vec<String>,
}

impl Machine<'_, '_> {
    fn run(mut self) -> Result<Pickle> {
        loop {
            let opcode = self.cursor.u8()?;
            if opcode == b'.' {
                let root = self.pop()?;
                return Ok(Pickle { heap: self.heap, root, calls: self.calls });
            }
            self.step(opcode)?;
        }
    }

    fn push(&mut self, value: Value) -> Result<()> {
        if self.stack.len() >= STACK_MAX {
            return malformed("a pickle with a stack that is too deep");
        }
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.pop() {
            Some(value) if self.stack.len() >= floor => Ok(value),
            _ => malformed("a pickle that takes what is not there"),
        }
    }

    fn top(&self) -> Result<Value> {
        self.stack.last().copied().map_or_else(|| malformed("a pickle that takes what is not there"), Ok)
    }

    /// Everything down to the last mark.
    fn pop_mark(&mut self) -> Result<Vec<Value>> {
        match self.marks.pop() {
            Some(mark) if mark <= self.stack.len() => Ok(self.stack.split_off(mark)),
            _ => malformed("a pickle without a mark"),
        }
    }

    fn line(&mut self) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            match self.cursor.u8()? {
                b'\n' => return Ok(line),
                byte if line.len() < TEXT_MAX as usize => line.push(byte),
                _ => return malformed("a pickle with a line that is too long"),
            }
        }
    }

    /// A string of `len` bytes, kept if it can be a key or a name.
    fn text(&mut self, len: u64) -> Result<()> {
        if len > TEXT_MAX {
            self.cursor.skip(len)?;
            return self.push(Value::Dull);
        }
        let slice = self.heap.text(&[self.cursor.take(len as usize)?])?;
        self.push(Value::Text(slice))
    }

    fn skip(&mut self, len: u64) -> Result<()> {
        self.cursor.skip(len)?;
        self.push(Value::Dull)
    }

    fn store(&mut self, index: usize) -> Result<()> {
        let value = self.top()?;
        if index >= self.memo.len() {
            let more = index - self.memo.len() + 1;
            if more > MEMO_GAP {
                return malformed("a pickle with a strange memo");
            }
            self.heap.charge(more * size_of::<Value>())?;
            (0..more).for_each(|_| push(&mut self.memo, Value::Dull));
        }
        self.memo[index] = value;
        Ok(())
    }

    fn load(&mut self, index: usize) -> Result<()> {
        match self.memo.get(index) {
            Some(&value) => self.push(value),
            None => malformed("a pickle that remembers what it has not seen"),
        }
    }

    fn number(line: &[u8]) -> Result<usize> {
        let text = std::str::from_utf8(line).ok().map(str::trim);
        text.and_then(|text| text.parse().ok()).map_or_else(|| malformed("a pickle with a bad number"), Ok)
    }

    fn step(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            // Protocol, frames.
            0x80 => self.cursor.skip(1),
            0x95 => self.cursor.skip(8),
            // None, floats.
            b'N' => self.push(Value::Dull),
            b'F' => self.line().and_then(|_| self.push(Value::Dull)),
            b'G' => self.skip(8),
            // Booleans and integers.
            0x88 => self.push(Value::from(1)),
            0x89 => self.push(Value::from(0)),
            b'I' | b'L' => {
                let line = self.line()?;
                let text = String::from_utf8_lossy(&line);
                self.push(
                    text.trim().trim_end_matches('L').parse().map_or(Value::Dull, |number: i64| Value::from(number)),
                )
            }
            b'J' => self.cursor.u32().and_then(|number| self.push(Value::from(number as i32))),
            b'K' => self.cursor.u8().and_then(|number| self.push(Value::from(number))),
            b'M' => self.cursor.array().and_then(|bytes| self.push(Value::from(u16::from_le_bytes(bytes)))),
            0x8a => self.cursor.u8().and_then(|len| self.long(len.into())),
            0x8b => self.cursor.u32().and_then(|len| self.long(len.into())),
            // Strings and bytes.
            b'X' => self.cursor.u32().and_then(|len| self.text(len.into())),
            0x8c => self.cursor.u8().and_then(|len| self.text(len.into())),
            0x8d => self.cursor.u64().and_then(|len| self.text(len)),
            b'T' => self.cursor.u32().and_then(|len| self.text(len.into())),
            b'U' => self.cursor.u8().and_then(|len| self.text(len.into())),
            b'V' | b'S' => {
                let line = self.line()?;
                let text = if opcode == b'S' { line.trim_ascii().trim_quotes() } else { &line };
                let slice = self.heap.text(&[text])?;
                self.push(Value::Text(slice))
            }
            b'B' => self.cursor.u32().and_then(|len| self.skip(len.into())),
            b'C' => self.cursor.u8().and_then(|len| self.skip(len.into())),
            0x8e | 0x96 => self.cursor.u64().and_then(|len| self.skip(len)),
            // Buffers outside of the pickle.
            0x97 => self.push(Value::Dull),
            0x98 => Ok(()),
            // Tuples.
            b')' => self.heap.tuple(&[]).and_then(|tuple| self.push(tuple)),
            0x85 => self.tuple(1),
            0x86 => self.tuple(2),
            0x87 => self.tuple(3),
            b't' => {
                let values = self.pop_mark()?;
                let tuple = self.heap.tuple(&values)?;
                self.push(tuple)
            }
            // Lists.
            b']' => self.heap.container().and_then(|list| self.push(list)),
            b'l' => {
                let values = self.pop_mark()?;
                let list = self.heap.container()?;
                values.into_iter().try_for_each(|value| self.heap.add(list, None, value))?;
                self.push(list)
            }
            b'a' => {
                let value = self.pop()?;
                let list = self.top()?;
                self.heap.add(list, None, value)
            }
            b'e' => {
                let values = self.pop_mark()?;
                let list = self.top()?;
                values.into_iter().try_for_each(|value| self.heap.add(list, None, value))
            }
            // Dictionaries.
            b'}' => self.heap.container().and_then(|dictionary| self.push(dictionary)),
            b'd' => {
                let values = self.pop_mark()?;
                let dictionary = self.heap.container()?;
                self.items(dictionary, &values)?;
                self.push(dictionary)
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                let dictionary = self.top()?;
                self.heap.add(dictionary, Some(key), value)
            }
            b'u' => {
                let values = self.pop_mark()?;
                let dictionary = self.top()?;
                self.items(dictionary, &values)
            }
            // Sets cannot hold tensors that differ.
            0x8f => self.push(Value::Dull),
            0x90 => self.pop_mark().map(drop),
            0x91 => self.pop_mark().and_then(|_| self.push(Value::Dull)),
            // The stack.
            b'0' => match (self.marks.last(), self.stack.len()) {
                (Some(&mark), len) if mark == len => {
                    self.marks.pop();
                    Ok(())
                }
                _ => self.pop().map(drop),
            },
            b'1' => self.pop_mark().map(drop),
            b'2' => self.top().and_then(|value| self.push(value)),
            b'(' => {
                if self.marks.len() >= STACK_MAX {
                    return malformed("a pickle with too many marks");
                }
                self.marks.push(self.stack.len());
                Ok(())
            }
            // The memo.
            b'p' => self.line().and_then(|line| self.store(Self::number(&line)?)),
            b'q' => self.cursor.u8().and_then(|index| self.store(index.into())),
            b'r' => self.cursor.u32().and_then(|index| self.store(index as usize)),
            0x94 => self.store(self.memo.len()),
            b'g' => self.line().and_then(|line| self.load(Self::number(&line)?)),
            b'h' => self.cursor.u8().and_then(|index| self.load(index.into())),
            b'j' => self.cursor.u32().and_then(|index| self.load(index as usize)),
            // Names of things in modules.
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                let global = self.heap.text(&[&module, b" ", &name])?;
                self.push(Value::Global(global))
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Value::Text(name), Value::Text(module)) = (name, module) else {
                    return malformed("a pickle that names something without a name");
                };
                let both = [self.heap.bytes(module), b" ", self.heap.bytes(name)].concat();
                let global = self.heap.text(&[&both])?;
                self.push(Value::Global(global))
            }
            0x82 => self.skip(1),
            0x83 => self.skip(2),
            0x84 => self.skip(4),
            // Calls.
            b'R' | 0x81 => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                let value = self.call(callable, arguments)?;
                self.push(value)
            }
            0x92 => {
                let (_keywords, arguments, callable) = (self.pop()?, self.pop()?, self.pop()?);
                let value = self.call(callable, arguments)?;
                self.push(value)
            }
            b'i' => {
                let (module, name) = (self.line()?, self.line()?);
                let global = self.heap.text(&[&module, b" ", &name])?;
                let values = self.pop_mark()?;
                let arguments = self.heap.tuple(&values)?;
                let value = self.call(Value::Global(global), arguments)?;
                self.push(value)
            }
            b'o' => {
                let values = self.pop_mark()?;
                let Some((&callable, arguments)) = values.split_first() else {
                    return malformed("a pickle that calls nothing");
                };
                let arguments = self.heap.tuple(arguments)?;
                let value = self.call(callable, arguments)?;
                self.push(value)
            }
            b'b' => {
                let state = self.pop()?;
                let object = self.top()?;
                // A state is the dictionary of an object's attributes: its items are the object's.
                self.heap.add(object, Some(Value::Dull), state)
            }
            b'Q' => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.push(storage)
            }
            b'P' => self.line().and_then(|_| self.push(Value::Dull)),
            _ => malformed(format!("a pickle with the unknown opcode {opcode:#04x}")),
        }
    }

    fn long(&mut self, len: u64) -> Result<()> {
        if len > 8 {
            return self.skip(len);
        }
        let bytes = self.cursor.take(len as usize)?;
        let sign = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
        let mut number = [sign; 8];
        number[..bytes.len()].copy_from_slice(bytes);
        self.push(Value::from(i64::from_le_bytes(number)))
    }

    fn tuple(&mut self, len: usize) -> Result<()> {
        let mut values = [Value::Dull; 3];
        for value in values[..len].iter_mut().rev() {
            *value = self.pop()?;
        }
        let tuple = self.heap.tuple(&values[..len])?;
        self.push(tuple)
    }

    fn items(&mut self, dictionary: Value, values: &[Value]) -> Result<()> {
        values.chunks(2).try_for_each(|pair| match pair {
            [key, value] => self.heap.add(dictionary, Some(*key), *value),
            _ => malformed("a pickle with a key without a value"),
        })
    }

    /// What `torch.save` writes in the place of a storage: its class, its key, where it was, and its length.
    fn storage(&mut self, id: Value) -> Result<Value> {
        let Some(&[Value::Text(tag), Value::Global(class), Value::Text(key), _, Value::Int(len), ref view @ ..]) =
            self.heap.values(id)
        else {
            return Ok(Value::Dull);
        };
        // The format before 1.6 has one part more: nothing, or of which other storage this is a part.
        if !matches!(view, [] | [Value::Dull]) {
            return malformed("a storage that is a part of another");
        }
        match u64::try_from(len.get()) {
            Ok(len) if self.heap.bytes(tag) == b"storage" => self.heap.object(Object::Storage { class, key, len }),
            _ => malformed("a storage that is none"),
        }
    }

    /// What a call gives, which is not done.
    fn call(&mut self, callable: Value, arguments: Value) -> Result<Value> {
        let (mut callable, mut arguments) = (callable, arguments);
        for _ in 0..CALL_DEPTH_MAX {
            let values = self.heap.values(arguments).unwrap_or_default();
            match (callable, values) {
                // A tensor of a class of its own: what makes it, and of what.
                (Value::Global(name), &[function, _, inner, _])
                    if self.heap.bytes(name) == b"torch._tensor _rebuild_from_type_v2" && function != callable =>
                {
                    (callable, arguments) = (function, inner);
                }
                _ => return self.call_plain(callable, arguments),
            }
        }
        malformed("a pickle of calls within calls")
    }

    fn call_plain(&mut self, callable: Value, arguments: Value) -> Result<Value> {
        let name = match callable {
            Value::Global(name) => String::from_utf8_lossy(self.heap.bytes(name)).into_owned(),
            _ => "something without a name".to_owned(),
        };
        let values = self.heap.values(arguments).unwrap_or_default().to_vec();
        match (name.as_str(), values.as_slice()) {
            (
                "torch._utils _rebuild_tensor" | "torch._utils _rebuild_tensor_v2",
                &[storage, offset, shape, strides, ..],
            ) => self.view(storage, offset, shape, strides, None),
            ("torch._utils _rebuild_tensor_v3", &[storage, offset, shape, strides, _, _, dtype, ..]) => {
                self.view(storage, offset, shape, strides, Some(dtype))
            }
            ("torch._utils _rebuild_parameter" | "torch._utils _rebuild_parameter_with_state", &[data, ..]) => Ok(data),
            ("torch Size" | "builtins tuple" | "__builtin__ tuple", &[values @ Value::Object(_)]) => Ok(values),
            (_, values) => {
                if !HARMLESS.contains(&name.as_str()) {
                    self.note(name);
                }
                let object = self.heap.container()?;
                values.iter().try_for_each(|&value| self.heap.add(object, None, value))?;
                Ok(object)
            }
        }
    }

    fn note(&mut self, name: String) {
        if self.calls.len() < CALLS_MAX && !self.known.contains(&name) {
            let text = name.replacen(' ', ".", 1);
            self.calls.push(text);
            self.known.insert(name);
        }
    }

    fn view(
        &mut self,
        storage: Value,
        offset: Value,
        shape: Value,
        strides: Value,
        dtype: Option<Value>,
    ) -> Result<Value> {
        let heap = &self.heap;
        let none = || malformed("a tensor that is none");
        let (Value::Object(index), Some(&Object::Storage { class, len, .. })) = (storage, heap.get(storage)) else {
            return none();
        };
        let (Some((shape, _)), Some((strides, _)), Value::Int(offset)) =
            (heap.tuple_of(shape), heap.tuple_of(strides), offset)
        else {
            return none();
        };
        let (Some(sizes), Some(_), Ok(offset)) =
            (heap.numbers(shape), heap.numbers(strides), u64::try_from(offset.get()))
        else {
            return none();
        };
        if shape.len != strides.len || sizes.len() > DIMENSIONS_MAX {
            return none();
        }
        let of_argument = match dtype {
            Some(Value::Global(name)) => heap.bytes(name).strip_prefix(b"torch ").and_then(Dtype::of_torch),
            _ => None,
        };
        let of_class = heap.class(class);
        let (Some(dtype), Some((_, size))) =
            (if dtype.is_some() { of_argument } else { of_class.and_then(|(dtype, _)| dtype) }, of_class)
        else {
            // Quantized tensors and the like: not known well enough to be listed.
            return Ok(Value::Dull);
        };
        if len.checked_mul(size).is_none() {
            return none();
        }
        self.heap.object(Object::Tensor { dtype, storage: index, offset, shape, strides })
    }
}

trait TrimQuotes {
    fn trim_quotes(&self) -> &[u8];
}

impl TrimQuotes for [u8] {
    fn trim_quotes(&self) -> &[u8] {
        match self {
            [b'\'', text @ .., b'\''] | [b'"', text @ .., b'"'] => text,
            text => text,
        }
    }
}

/// Calls that checkpoints make for things that hold no tensors, or only as items.
const HARMLESS: &[&str] = &[
    "collections OrderedDict",
    "collections defaultdict",
    "collections Counter",
    "builtins set",
    "builtins frozenset",
    "builtins list",
    "builtins dict",
    "builtins complex",
    "builtins slice",
    "builtins bytearray",
    "__builtin__ set",
    "__builtin__ complex",
    "_codecs encode",
    "copyreg _reconstructor",
    "copy_reg _reconstructor",
    "datetime datetime",
    "datetime timedelta",
    "pathlib PosixPath",
    "numpy dtype",
    "numpy.core.multiarray scalar",
    "numpy.core.multiarray _reconstruct",
    "numpy._core.multiarray scalar",
    "numpy._core.multiarray _reconstruct",
    "torch device",
    "torch._utils _rebuild_sparse_tensor",
    "torch._utils _rebuild_qtensor",
    "torch._utils _rebuild_device_tensor_from_numpy",
    "torch._utils _rebuild_meta_tensor_no_storage",
    "torch.serialization _get_layout",
    "torch._C Generator",
];

impl Pickle {
    /// Takes what its objects took off the budget of its file.
    pub fn spend(&self, budget: &mut usize) -> Result<()> {
        match budget.checked_sub(self.heap.taken) {
            Some(rest) => {
                *budget = rest;
                Ok(())
            }
            None => malformed("pickles of too many objects"),
        }
    }

    /// The storages: key, number of elements, and the bytes of each if the type is known.
    pub fn storages(&self) -> impl Iterator<Item = (&[u8], u64, Option<u64>)> {
        self.heap.objects.iter().filter_map(|object| match *object {
            Object::Storage { class, key, len } => {
                Some((self.heap.bytes(key), len, self.heap.class(class).map(|(_, size)| size)))
            }
            _ => None,
        })
    }

    /// Calls `visit` for each tensor, with its path: keys and indices, joined by dots.
    ///
    /// `places` counts what was looked at, in all pickles of the file.
    pub fn tensors(&self, places: &mut u64, visit: &mut dyn FnMut(&[u8], &View) -> Result<()>) -> Result<()> {
        // Nothing recurses: a level is a value, how many of its items are done, and how long its path is.
        let mut levels = vec![(self.root, 0_usize, 0_usize)];
        let mut path = Vec::new();
        if let Some(view) = self.heap.view(self.root) {
            return visit(b"tensor", &view);
        }
        while let Some((value, done, len)) = levels.last_mut() {
            path.truncate(*len);
            let Some((key, item)) = self.item(*value, *done) else {
                levels.pop();
                continue;
            };
            *done += 1;
            *places += 1;
            if *places > PLACES_MAX {
                return malformed("a pickle with too many paths through it");
            }
            let view = self.heap.view(item);
            let is_open = matches!(self.heap.get(item), Some(Object::Container { .. } | Object::Tuple(_)));
            if view.is_none() && !is_open {
                continue;
            }
            self.extend(&mut path, key)?;
            match view {
                Some(view) => visit(&path, &view)?,
                // What holds itself is not opened again inside of itself.
                _ if levels.iter().any(|(value, ..)| *value == item) => {}
                _ if levels.len() >= DEPTH_MAX => {
                    return malformed(format!("a pickle that nests deeper than {DEPTH_MAX}"));
                }
                _ => levels.push((item, 0, path.len())),
            }
        }
        Ok(())
    }

    fn item(&self, value: Value, index: usize) -> Option<(Value, Value)> {
        match self.heap.get(value)? {
            Object::Container { items, .. } => items.get(index).copied(),
            Object::Tuple(_) => self.heap.values(value)?.get(index).map(|&item| (Value::from(index as i64), item)),
            _ => None,
        }
    }

    fn extend(&self, path: &mut Vec<u8>, key: Value) -> Result<()> {
        let start = path.len();
        if start > 0 && !matches!(key, Value::Dull) {
            path.push(b'.');
        }
        match key {
            Value::Text(text) => path.extend_from_slice(self.heap.bytes(text)),
            Value::Int(number) => path.extend_from_slice(number.get().to_string().as_bytes()),
            Value::Global(_) | Value::Object(_) => path.push(b'?'),
            Value::Dull => {}
        }
        if path.len() > NAME_MAX { malformed("a path that is too long") } else { Ok(()) }
    }
}

const _: () = assert!(TEXT_MAX as usize <= WINDOW && size_of::<Value>() == 12 && size_of::<Object>() == 32);

#[cfg(test)]
mod tests {
    use super::*;

    fn run(bytes: &[u8]) -> Result<(Vec<String>, Vec<String>)> {
        let mut cursor = Cursor::new(&bytes, 0, u64::MAX)?;
        let pickle = read(&mut cursor)?;
        let mut names = Vec::new();
        pickle.tensors(&mut 0, &mut |name, view| {
            names.push(format!("{} {:?}", String::from_utf8_lossy(name), view.shape));
            Ok(())
        })?;
        Ok((names, pickle.calls))
    }

    /// What rebuilds a tensor of two floats from the storage "0".
    const TENSOR: &[u8] = b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n\
        X\x01\0\0\x000X\x03\0\0\0cpuK\x02tQK\0K\x02\x85K\x01\x85\x89NtR";

    #[test]
    fn finds_tensors_at_their_paths() {
        let pickle = [
            b"\x80\x02}(X\x01\0\0\0a",
            TENSOR,
            b"X\x01\0\0\0b](K\x05",
            TENSOR,
            b"G\0\0\0\0\0\0\0\0eK\x07",
            TENSOR,
            b"u.",
        ]
        .concat();
        assert_eq!(run(&pickle).unwrap().0, ["a [2]", "b.1 [2]", "7 [2]"]);
        assert_eq!(run(&[TENSOR, b"."].concat()).unwrap().0, ["tensor [2]"]);
    }

    #[test]
    fn calls_nothing() {
        let (names, calls) = run(b"\x80\x02cos\nsystem\nX\x06\0\0\0rm -rf\x85R.").unwrap();
        assert_eq!((names, calls), (vec![], vec!["os.system".to_owned()]));
        // The parts of an unknown object are found.
        let object = [b"\x80\x02cmine\nThing\n)\x81}X\x01\0\0\0w", TENSOR, b"sb."].concat();
        assert_eq!(run(&object).unwrap(), (vec!["w [2]".to_owned()], vec!["mine.Thing".to_owned()]));
    }

    #[test]
    fn survives_cycles_and_explosions() {
        // A list that holds itself, and a tensor.
        let cycle = [b"\x80\x02]q\0(h\0", TENSOR, b"e."].concat();
        assert_eq!(run(&cycle).unwrap().0, ["1 [2]"]);
        // Lists of ten of the list before, sixty times.
        let mut laughs = [b"\x80\x02", TENSOR].concat();
        for _ in 0..60 {
            laughs.extend(b"q\0](h\0h\0h\0h\0h\0h\0h\0h\0h\0h\0e");
        }
        laughs.push(b'.');
        assert!(run(&laughs).is_err());
        for hostile in [
            b"]".repeat(10_000_000),
            b"(".repeat(10_000_000),
            b"}q\0".repeat(10_000_000),
            b")0".repeat(10_000_000),
            b"N2".repeat(10_000_000),
            [&b"]q\0(".repeat(50_000)[..], b"."].concat(),
            b"X\xff\xff\xff\xff".to_vec(),
            b"j\xff\xff\xff\xff".to_vec(),
            b"Nr\xff\xff\xff\xff.".to_vec(),
            b"0".to_vec(),
            b"t".to_vec(),
            b"(0N0.".to_vec(),
            b"".to_vec(),
        ] {
            assert!(run(&hostile).is_err());
        }
    }
}
