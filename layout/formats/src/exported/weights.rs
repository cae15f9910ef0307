//! Weights of an exported program as torch writes them since 2.8: each storage is a member of the archive, and JSON
//! says of each weight which member has its storage, and which view of that it is.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::arrays::json::Room;
use crate::dtype::Dtype;
use crate::fault::{Fault, Result, malformed, too_much};
use crate::format::Format;
use crate::found::Out;
use crate::limits::{DIMENSIONS_MAX, NAME_MAX, TENSORS_MAX, excerpt};
use crate::pickle::{Meaning, View};
use crate::shards::json as json_of;
use crate::source::{Source, read_exact};
use crate::tensor::{Location, Storage, Tensor, elements};
use crate::torch;
use crate::within::Slice;
use crate::zip::{Directory, Method};

/// The longest JSON of weights that is read.
const CONFIG_MAX: u64 = 256 << 20;
/// Where the members are, behind the archive's own name, and what says of the order of bytes in them.
const WEIGHTS: &[u8] = b"data/weights/";
const ORDER: &[u8] = b"byteorder";
/// The layout in which elements have strides.
const STRIDED: u64 = 7;

/// Gives all weights to `out`, first checking each.
pub(super) fn recognise(
    source: &dyn Source,
    (directory, root): (&Directory, &[u8]),
    config: Slice,
    out: &mut Out<'_, '_>,
) -> Result<()> {
    let members = Members::of(source, directory, root)?;
    let (hasher, mut names) = (RandomState::new(), HashSet::new());
    let mut left_out = LeftOut::default();
    each(source, config, &mut |name, said| {
        if names.len() == TENSORS_MAX {
            return too_much(format!("more than {TENSORS_MAX} tensors"));
        }
        if !names.insert(hasher.hash_one(name)) {
            return malformed("two weights of one name");
        }
        match members.weight(name, said)? {
            Weight::Tensor(_) => {}
            Weight::Nothing(why) => left_out.add(name, why),
        }
        Ok(())
    })?;
    drop(names);
    out.found.format = Format::Torch;
    out.found.end = source.size()?;
    out.found.reason = left_out.in_words();
    each(source, config, &mut |name, said| match members.weight(name, said)? {
        Weight::Tensor(tensor) => out.tensor(*tensor),
        Weight::Nothing(_) => Ok(()),
    })
}

/// Weights that are not listed: the first, and how many.
#[derive(Default)]
struct LeftOut {
    first: Option<String>,
    count: u64,
}

impl LeftOut {
    fn add(&mut self, name: &str, why: &str) {
        self.count += 1;
        self.first.get_or_insert_with(|| format!("{}: {why}", excerpt(name)));
    }

    fn in_words(self) -> Option<String> {
        let more = self.count.saturating_sub(1);
        let more = if more > 0 { format!("; and {more} more are not listed") } else { String::new() };
        self.first.map(|first| first + &more)
    }
}

/// What a weight is: a tensor, or nothing that is listed, and why.
enum Weight {
    Tensor(Box<Tensor>),
    Nothing(&'static str),
}

/// The members with storages, by the hashes of their names.
struct Members {
    hasher: RandomState,
    /// Hash, first byte, length; no place if it is compressed.
    list: Vec<(u64, Option<u64>, u64)>,
    big_endian: bool,
}

impl Members {
    fn of(source: &dyn Source, directory: &Directory, root: &[u8]) -> Result<Members> {
        let mut members = Members { hasher: RandomState::new(), list: Vec::new(), big_endian: false };
        members.list.reserve_exact(directory.members as usize);
        directory.each(source, &mut |member| {
            let Some(name) = member.name.strip_prefix(root) else { return Ok(()) };
            let is_plain = member.method == Method::Stored && !member.encrypted;
            if name == ORDER && is_plain {
                let (at, mut text) = (directory.data(source, member.header, member.stored)?, [0; 3]);
                if member.stored == 3 {
                    read_exact(source, at, &mut text)?;
                }
                // Torch itself does not look at it, and whatever else it says it writes as this machine would.
                members.big_endian = &text == b"big";
            }
            if let Some(name) = name.strip_prefix(WEIGHTS) {
                let hash = members.hasher.hash_one(name);
                let at = if is_plain { Some(directory.data(source, member.header, member.stored)?) } else { None };
                members.list.push((hash, at, member.stored));
            }
            Ok(())
        })?;
        members.list.sort_unstable();
        Ok(members)
    }

    fn find(&self, name: &str) -> Result<(u64, u64)> {
        let hash = self.hasher.hash_one(name.as_bytes());
        let at = self.list.binary_search_by_key(&hash, |&(hash, ..)| hash).ok();
        match at.and_then(|at| self.list.get(at)) {
            Some(&(_, Some(at), len)) => Ok((at, len)),
            Some(_) => malformed("a program of torch.export's whose weights are compressed"),
            None => malformed("a weight whose member is not there"),
        }
    }

    /// What is said of a weight.
    fn weight(&self, name: &str, said: &Value) -> Result<Weight> {
        let Some(member) = said.get("path_name").and_then(Value::as_str) else {
            return malformed("a weight of no member");
        };
        if name.len() > NAME_MAX || member.len() > NAME_MAX {
            return malformed("a tensor whose name is too long");
        }
        let (offset, len) = self.find(member)?;
        let is_pickled = said.get("use_pickle").and_then(Value::as_bool) == Some(true);
        let Some(meta) = said.get("tensor_meta").filter(|meta| !meta.is_null()) else {
            return Ok(Weight::Nothing("what it is is not said"));
        };
        let code = meta.get("dtype").and_then(Value::as_u64);
        let Some(dtype) = code.and_then(dtype) else { return Ok(Weight::Nothing("its type is not known")) };
        let Some(shape) = numbers(meta.get("sizes"))? else { return Ok(Weight::Nothing("its sizes are no numbers")) };
        let size = dtype.size().unwrap_or(1);
        let bytes = elements(&shape).and_then(|count| count.checked_mul(size));
        let Some(bytes) = bytes.filter(|bytes| *bytes <= i64::MAX as u64) else {
            return malformed("more elements than can be");
        };
        if is_pickled {
            // An object of a class of somebody's, whose own pickle says where its numbers are.
            let place = Location::Encoded { offset, len };
            let mut tensor = Tensor::new(name.as_bytes().to_vec(), dtype, shape, place);
            tensor.descr = Some(format!("{}, pickled", dtype.name()));
            return Ok(Weight::Tensor(Box::new(tensor)));
        }
        if meta.get("layout").and_then(Value::as_u64).is_some_and(|layout| layout != STRIDED) {
            return Ok(Weight::Nothing("its elements are in a layout that is not known"));
        }
        if len == 0 && bytes > 0 {
            return Ok(Weight::Nothing("its elements were not saved"));
        }
        let Some(strides) = numbers(meta.get("strides"))? else {
            return Ok(Weight::Nothing("its strides are no numbers"));
        };
        let Some(start) = meta.get("storage_offset").and_then(number) else {
            return Ok(Weight::Nothing("where it begins is no number"));
        };
        if strides.len() != shape.len() {
            return malformed("a weight with strides of other dimensions");
        }
        let storage = Storage { key: member.to_owned(), offset, len };
        let view = View {
            dtype,
            storage: member.to_owned(),
            storage_len: len,
            offset: start,
            shape,
            strides,
            meaning: Meaning::AsStored,
        };
        torch::place(name.as_bytes(), &view, storage, self.big_endian).map(|tensor| Weight::Tensor(Box::new(tensor)))
    }
}

/// Sizes or strides; none if one of them is a symbol.
fn numbers(list: Option<&Value>) -> Result<Option<Vec<u64>>> {
    let Some(list) = list.and_then(Value::as_array) else { return malformed("a weight without sizes or strides") };
    if list.len() > DIMENSIONS_MAX {
        return malformed("a tensor of too many dimensions");
    }
    Ok(list.iter().map(number).collect())
}

fn number(value: &Value) -> Option<u64> {
    value.get("as_int").unwrap_or(value).as_u64()
}

/// A type by torch's number of it (`torch/_export/serde/schema.py`).
fn dtype(code: u64) -> Option<Dtype> {
    Some(match code {
        1 => Dtype::U8,
        2 => Dtype::I8,
        3 => Dtype::I16,
        4 => Dtype::I32,
        5 => Dtype::I64,
        6 => Dtype::F16,
        7 => Dtype::F32,
        8 => Dtype::F64,
        9 => Dtype::C32,
        10 => Dtype::C64,
        11 => Dtype::C128,
        12 => Dtype::Bool,
        13 => Dtype::Bf16,
        28 => Dtype::U16,
        29 => Dtype::F8E4M3,
        30 => Dtype::F8E5M2,
        31 => Dtype::F8E4M3Fnuz,
        32 => Dtype::F8E5M2Fnuz,
        _ => return None,
    })
}

/// Who is given what is said of each weight.
type Each<'a> = dyn FnMut(&str, &Value) -> Result<()> + 'a;

/// Reads what says which weights there are.
fn each(source: &dyn Source, config: Slice, each: &mut Each<'_>) -> Result<()> {
    let (_, size) = config.place();
    if size > CONFIG_MAX {
        return too_much(format!("weights that are described in {size} bytes"));
    }
    let (inner, mut refused) = (config.inner(source), None);
    let mut json = json_of(&inner, size);
    let read = Config(each, &mut refused).deserialize(&mut json).and_then(|()| json.end());
    match (refused, read) {
        (Some(fault), _) => Err(fault),
        (None, Ok(())) => Ok(()),
        (None, Err(error)) if error.is_io() => Err(io::Error::from(error).into()),
        (None, Err(error)) => malformed(format!("JSON: {}", excerpt(&error.to_string()))),
    }
}

/// The whole of it: a dictionary in which another is called `config`.
struct Config<'a, 'b>(&'a mut Each<'b>, &'a mut Option<Fault>);

impl<'de> DeserializeSeed<'de> for Config<'_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Config<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dictionary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "config" => map.next_value_seed(All(&mut *self.0, &mut *self.1))?,
                _ => map.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        Ok(())
    }
}

/// What is said of each weight, by its name.
struct All<'a, 'b>(&'a mut Each<'b>, &'a mut Option<Fault>);

impl<'de> DeserializeSeed<'de> for All<'_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for All<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dictionary of weights")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let mut room = Room::new();
            let said = map.next_value_seed(room.next())?;
            let given =
                if room.is_cut() { malformed("a weight of which too much is said") } else { (self.0)(&name, &said) };
            if let Err(fault) = given {
                *self.1 = Some(fault);
                return Err(de::Error::custom("refused"));
            }
        }
        Ok(())
    }
}
