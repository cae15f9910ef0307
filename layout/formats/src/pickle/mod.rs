//! Pickles, read without doing what they say.
//!
//! A pickle is a program that builds objects by calling whatever it names. Here nothing is called: the few functions
//! that tensors are made of (and ordered dictionaries) are known by their names, and their arguments are looked at; any
//! other call makes an object of which only its parts are known. Numbers, strings and other values that hold no
//! tensors are dropped as soon as they can no longer be an argument or a key.
//!
//! The plan of a distributed checkpoint is a pickle too, of objects whose attributes are looked at. It may have very
//! many of them: each is dropped as soon as it was seen whole.

mod heap;
mod memo;

use std::collections::HashSet;
use std::io;

use crate::cursor::{Cursor, WINDOW};
use crate::dtype::Dtype;
use crate::fault::{Fault, Result, malformed, too_much};
use crate::limits::{DIMENSIONS_MAX, NAME_MAX};

use heap::{Class, Heap, Object, Slice, Value};
use memo::Memo;

pub(crate) use heap::{Meaning, View};

/// What the objects of the pickles of one file may take together, one pickle after the other. A short pickle can ask
/// for many; so this is a bound of time.
pub(crate) const BUDGET: usize = 256 << 20;
/// The most values on the stack.
const STACK_MAX: usize = 1 << 16;
/// The longest string that is kept: no name, key or global is longer.
const TEXT_MAX: u64 = 4096;
/// The deepest nesting of dictionaries and lists in which tensors are looked for.
const DEPTH_MAX: usize = 100;
/// The most places that are looked at for tensors.
pub(crate) const PLACES_MAX: u64 = 1 << 20;
/// Calls that are remembered for a person.
pub(crate) const CALLS_MAX: usize = 32;
/// Calls whose callable is given to another call. PyTorch writes one.
const CALL_DEPTH_MAX: usize = 64;

/// What a pickle holds.
pub(crate) struct Pickle {
    heap: Heap,
    root: Value,
    /// What was called, or would have been, beyond what tensors need.
    pub calls: Vec<String>,
}

/// Reads a pickle. `cursor` ends where it does, or later.
pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Pickle> {
    let mut machine = Machine::new(cursor, Heap::default(), Memo::all());
    let root = machine.run()?;
    Ok(Pickle { heap: machine.heap, root, calls: machine.calls })
}

/// Bytes of a file that something is in, as a plan says.
pub(crate) struct Place<'a> {
    /// What is there: a name, and which part of what has it.
    pub of: Option<(&'a [u8], &'a Index)>,
    /// The file's name.
    pub file: &'a [u8],
    pub offset: u64,
    pub len: u64,
}

/// Which part of a tensor something is: where it begins in it, and its number. Either may be unknown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    name: Option<Slice>,
    pub offsets: Option<Vec<u64>>,
    pub number: Option<u64>,
}

/// What a plan says, piece by piece.
pub(crate) enum Said<'a> {
    Place(Place<'a>),
    /// A part of the tensor that comes next.
    Chunk {
        offsets: Vec<u64>,
        sizes: Vec<u64>,
    },
    Tensor {
        name: &'a [u8],
        dtype: Option<Dtype>,
        shape: Vec<u64>,
    },
}

/// Who is given what a plan says.
type Visit<'v> = dyn FnMut(Said<'_>) -> Result<()> + 'v;

/// Reads the plan of a distributed checkpoint, and gives each place in it to `visit`; in full, its tensors and their
/// parts, too.
///
/// # Errors
/// [`Fault::Io`] if it may be a plan, but takes more than it may or is of another kind.
pub(crate) fn plan<'v>(cursor: &'v mut Cursor<'_>, in_full: bool, visit: &'v mut Visit<'v>) -> Result<()> {
    let mut machine = Machine { visit: Some(visit), in_full, ..Machine::new(cursor, Heap::keeping_all(), Memo::few()) };
    let root = match machine.run() {
        Err(_) if machine.heap.is_full() => return Err(Fault::Io(io::Error::other("a plan of too many objects"))),
        root => root?,
    };
    let heap = &machine.heap;
    let Some(&Object::Part { class: Class::Plan, attributes, .. }) = heap.get(root) else {
        return malformed("a pickle that is no plan of a distributed checkpoint");
    };
    match heap.attribute(attributes, b"storage_data").map(|places| heap.get(places)) {
        Some(Some(Object::Container { items, .. })) if items.is_empty() => Ok(()),
        _ => Err(Fault::Io(io::Error::other("a plan that says where things are in a way that is not known"))),
    }
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
                    return too_much("a key that is too long");
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
    memo: Memo,
    /// If a plan is read.
    visit: Option<&'c mut Visit<'c>>,
    in_full: bool,
    /// What was seen last of what the next place or tensor is told with: an index, and the type of elements.
    index: Option<Index>,
    dtype: Option<Dtype>,
    /// Hashes of the calls that were seen.
    known: HashSet<String>,
    calls: Vec<String>,
}

impl<'c, 's> Machine<'c, 's> {
    fn new(cursor: &'c mut Cursor<'s>, heap: Heap, memo: Memo) -> Self {
        let (stack, marks, known, calls) = (Vec::new(), Vec::new(), HashSet::new(), Vec::new());
        Machine {
            cursor,
            heap,
            stack,
            marks,
            memo,
            visit: None,
            in_full: false,
            index: None,
            dtype: None,
            known,
            calls,
        }
    }

    fn run(&mut self) -> Result<Value> {
        loop {
            let opcode = self.cursor.u8()?;
            if opcode == b'.' {
                return self.pop();
            }
            self.step(opcode)?;
        }
    }

    fn push(&mut self, value: Value) -> Result<()> {
        if self.stack.len() >= STACK_MAX {
            return too_much("a pickle with a stack that is too deep");
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
                _ => return too_much("a pickle with a line that is too long"),
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
        self.memo.store(index, value, &mut self.heap)
    }

    fn load(&mut self, index: usize) -> Result<()> {
        match self.memo.load(index) {
            Some(value) => self.push(value),
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
                    return too_much("a pickle with too many marks");
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
                if let Value::Object(index) = object
                    && let Some(&Object::Part { class, .. }) = self.heap.get(object)
                {
                    return self.build(index, class, state);
                }
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

    /// Gives a part of a plan, which is on top of the stack, its attributes.
    fn build(&mut self, part: u32, class: Class, state: Value) -> Result<()> {
        match class {
            Class::Plan => {
                if let Some(Object::Part { attributes, .. }) = self.heap.objects.get_mut(part as usize) {
                    *attributes = state;
                }
                return Ok(());
            }
            Class::Place => self.place(state)?,
            Class::Other => {}
            _ if !self.in_full => {}
            Class::Index => self.index = Some(self.index_of(state)),
            Class::Properties => self.dtype = self.dtype_of(state),
            Class::Chunk => self.chunk(state)?,
            Class::Tensor => self.tensor(state)?,
        }
        self.pop()?;
        self.memo.forget(part, &mut self.heap);
        self.heap.forget(part);
        self.push(Value::Dull)
    }

    fn place(&mut self, state: Value) -> Result<()> {
        let index = self.index.take();
        let heap = &self.heap;
        let number = |name| match heap.attribute(state, name) {
            Some(Value::Int(number)) => u64::try_from(number.get()).ok(),
            _ => None,
        };
        match (heap.attribute(state, b"relative_path"), number(b"offset"), number(b"length")) {
            (Some(Value::Text(file)), Some(offset), Some(len)) => {
                let of = index.as_ref().and_then(|index| Some((heap.bytes(index.name?), index)));
                let place = Place { of, file: heap.bytes(file), offset, len };
                self.visit.as_mut().map_or(Ok(()), |visit| visit(Said::Place(place)))
            }
            _ => malformed("a plan with a place that is none"),
        }
    }

    fn index_of(&self, state: Value) -> Index {
        let attribute = |name| self.heap.attribute(state, name);
        Index {
            name: if let Some(Value::Text(name)) = attribute(b"fqn") { Some(name) } else { None },
            offsets: attribute(b"offset").and_then(|offsets| self.heap.sizes(offsets)),
            number: match attribute(b"index") {
                Some(Value::Int(number)) => u64::try_from(number.get()).ok(),
                _ => None,
            },
        }
    }

    /// The type of a tensor's elements, which comes first, as the plan has it.
    fn dtype_of(&self, state: Value) -> Option<Dtype> {
        let named = |value| match value {
            Value::Global(name) => self.heap.bytes(name).strip_prefix(b"torch ").and_then(Dtype::of_torch),
            _ => None,
        };
        match self.heap.values(state) {
            Some(&[first, ..]) => named(first),
            _ => self.heap.attribute(state, b"dtype").and_then(named),
        }
    }

    fn chunk(&mut self, state: Value) -> Result<()> {
        let heap = &self.heap;
        let sizes = |name| heap.attribute(state, name).and_then(|sizes| heap.sizes(sizes));
        match (sizes(b"offsets"), sizes(b"sizes"), &mut self.visit) {
            (Some(offsets), Some(sizes), Some(visit)) if offsets.len() == sizes.len() => {
                visit(Said::Chunk { offsets, sizes })
            }
            _ => malformed("a plan with a part of a tensor that is none"),
        }
    }

    fn tensor(&mut self, state: Value) -> Result<()> {
        let dtype = self.dtype.take();
        let heap = &self.heap;
        // The key that it is to stand under came before it.
        let name = match self.stack.iter().rev().nth(1) {
            Some(Value::Text(name)) => Some(heap.bytes(*name)),
            _ => None,
        };
        let shape = heap.attribute(state, b"size").and_then(|size| heap.sizes(size));
        match (name, shape, &mut self.visit) {
            (Some(name), Some(shape), Some(visit)) => visit(Said::Tensor { name, dtype, shape }),
            _ => malformed("a plan with a tensor that is none"),
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
        too_much("a pickle of calls within calls")
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
                &[storage, offset, shape, strides, ref more @ ..],
            ) => self.view([storage, offset, shape, strides], None, more.get(2)),
            ("torch._utils _rebuild_tensor_v3", &[storage, offset, shape, strides, _, _, dtype, ref more @ ..]) => {
                self.view([storage, offset, shape, strides], Some(dtype), more.first())
            }
            ("torch._utils _rebuild_parameter" | "torch._utils _rebuild_parameter_with_state", &[data, ..]) => Ok(data),
            ("torch Size" | "builtins tuple" | "__builtin__ tuple", &[values @ Value::Object(_)]) => Ok(values),
            _ if self.visit.is_some()
                && let Some(class) = class_of(&name) =>
            {
                self.heap.part(class)
            }
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
        [storage, offset, shape, strides]: [Value; 4],
        dtype: Option<Value>,
        metadata: Option<&Value>,
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
        if shape.len != strides.len {
            return none();
        }
        if sizes.len() > DIMENSIONS_MAX {
            return too_much(format!("a tensor of more than {DIMENSIONS_MAX} dimensions"));
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
        let meaning = heap.meaning(dtype, metadata.copied().unwrap_or(Value::Dull));
        self.heap.object(Object::Tensor { dtype, storage: index, offset, shape, strides, meaning })
    }
}

/// Which part of a plan a class is of.
fn class_of(name: &str) -> Option<Class> {
    let name = name.strip_prefix("torch.distributed.")?;
    Some(match name.rsplit_once(' ')?.1 {
        "Metadata" => Class::Plan,
        "_StorageInfo" => Class::Place,
        "MetadataIndex" => Class::Index,
        "TensorStorageMetadata" => Class::Tensor,
        "TensorProperties" => Class::Properties,
        "ChunkStorageMetadata" => Class::Chunk,
        "BytesStorageMetadata" => Class::Other,
        _ => return None,
    })
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
        match budget.checked_sub(self.heap.taken()) {
            Some(rest) => {
                *budget = rest;
                Ok(())
            }
            None => too_much("pickles of too many objects"),
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
    /// `places` counts what was looked at.
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
                return too_much("a pickle with too many paths through it");
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
                    return too_much(format!("a pickle that nests deeper than {DEPTH_MAX}"));
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
        if path.len() > NAME_MAX { too_much("a path that is too long") } else { Ok(()) }
    }
}

const _: () = assert!(TEXT_MAX as usize <= WINDOW);

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
    fn metadata_says_which_signs_are_others() {
        let meaning = |metadata: &[u8]| {
            let mut program = TENSOR[..TENSOR.len() - 2].to_vec();
            program.extend([metadata, b"tR."].concat());
            let bytes = &program[..];
            let pickle = read(&mut Cursor::new(&bytes, 0, u64::MAX).unwrap()).unwrap();
            let mut all = Vec::new();
            let visited = pickle.tensors(&mut 0, &mut |_, view| {
                all.push(view.meaning);
                Ok(())
            });
            visited.unwrap();
            all
        };
        let said = |text: &str, value: &[u8]| {
            [b"}X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes(), value, b"s"].concat()
        };
        // What a device says of how it had the bytes is nothing to anybody else.
        let npu = said("npu_format_/2/", b"\x88");
        for plain in [&b""[..], b"N", b"}", &said("neg", b"\x89"), &npu] {
            assert_eq!(meaning(plain), [Meaning::AsStored]);
        }
        assert_eq!(meaning(&said("neg", b"\x88")), [Meaning::Negated(1)]);
        // Of numbers that are not complex there is no conjugate.
        for unknown in [&said("conj", b"\x88")[..], b"K\x01"] {
            assert_eq!(meaning(unknown), [Meaning::Unknown], "{unknown:?}");
        }
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
