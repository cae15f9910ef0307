//! What of the JSON of a hierarchy's metadata is looked at, in bounded memory. What users say of their arrays is not.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::fault::{Fault, Result};
use crate::limits::DIMENSIONS_MAX;

/// What is looked at of a directory's metadata; the rest is passed over.
const KEYS: [&str; 19] = [
    "zarr_format",
    "node_type",
    "shape",
    "chunks",
    "dtype",
    "data_type",
    "compressor",
    "filters",
    "order",
    "fill_value",
    "dimension_separator",
    "chunk_grid",
    "chunk_key_encoding",
    "codecs",
    "storage_transformers",
    "n5",
    "dimensions",
    "blockSize",
    "dataType",
];
/// As n5 calls what was done with a chunk, now and before.
const COMPRESSION: [&str; 2] = ["compression", "compressionType"];
/// In which all that is below a group is told, and where in that.
const CONSOLIDATED: &str = "consolidated_metadata";
const INSIDE: &str = "metadata";

/// The most memory that what is looked at of one directory takes, and what a value of it does beside its text.
const SAID_MAX: usize = 256 << 10;
const EACH: usize = 64;
/// The deepest that it is nested.
const DEPTH_MAX: usize = 32;

/// What is said of one directory.
#[derive(Default)]
pub(super) struct Said {
    fields: Map<String, Value>,
    /// There was more than is looked at.
    is_cut: bool,
}

impl Said {
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    pub fn is_number(&self, key: &str, number: u64) -> bool {
        self.get(key).and_then(Value::as_u64) == Some(number)
    }

    /// Why it is not to be relied on.
    pub fn check(&self) -> Result<(), String> {
        if self.is_cut { Err("metadata that is too long or too deep".to_owned()) } else { Ok(()) }
    }

    /// The numbers of dimensions.
    pub fn numbers(&self, key: &str) -> Result<Vec<u64>, String> {
        let list = self.get(key).ok_or_else(|| format!("it says no {key}"))?;
        numbers(list).ok_or_else(|| format!("{key} that are no list of numbers of at most {DIMENSIONS_MAX} dimensions"))
    }
}

pub(super) fn numbers(list: &Value) -> Option<Vec<u64>> {
    let list = list.as_array().filter(|list| list.len() <= DIMENSIONS_MAX)?;
    list.iter().map(Value::as_u64).collect()
}

/// The name of an extension and what it is told: the name alone, or a dictionary of both.
pub(super) fn named(value: Option<&Value>) -> Option<(&str, Option<&Value>)> {
    match value? {
        Value::String(name) => Some((name, None)),
        value => Some((value.get("name")?.as_str()?, value.get("configuration"))),
    }
}

/// Who is given what is said of what is below, by what the metadata calls it.
pub(super) type Each<'a> = dyn FnMut(&str, Said) -> Result<()> + 'a;

/// Where that goes, and what came of it.
pub(super) struct Giving<'a, 'b> {
    pub each: &'a mut Each<'b>,
    pub refused: &'a mut Option<Fault>,
}

/// A directory's metadata. What is below it is given out if there is somebody who takes it.
pub(super) struct Document<'a, 'b, 'c> {
    pub said: &'a mut Said,
    pub below: Option<&'a mut Giving<'b, 'c>>,
}

impl<'de> DeserializeSeed<'de> for Document<'_, '_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Document<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dictionary")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut room = Room::new();
        while let Some(key) = map.next_key::<String>()? {
            match (key.as_str(), &mut self.below) {
                (CONSOLIDATED, Some(below)) => map.next_value_seed(Wrapper(below))?,
                (known, _) if KEYS.contains(&known) || COMPRESSION.contains(&known) => {
                    let value = map.next_value_seed(room.next())?;
                    self.said.fields.insert(key, value);
                }
                _ => map.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        self.said.is_cut = room.is_cut;
        Ok(())
    }
}

/// A dictionary in which all that is below is told, or nothing.
pub(super) struct Wrapper<'a, 'b, 'c>(pub &'a mut Giving<'b, 'c>);

impl<'de> DeserializeSeed<'de> for Wrapper<'_, '_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Wrapper<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dictionary")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                INSIDE => map.next_value_seed(Below(&mut *self.0))?,
                _ => map.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        Ok(())
    }
}

/// What is below, by its name.
struct Below<'a, 'b, 'c>(&'a mut Giving<'b, 'c>);

impl<'de> DeserializeSeed<'de> for Below<'_, '_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Below<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dictionary of directories")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let mut said = Said::default();
            map.next_value_seed(Document { said: &mut said, below: None })?;
            if let Err(fault) = (self.0.each)(&name, said) {
                *self.0.refused = Some(fault);
                return Err(de::Error::custom("refused"));
            }
        }
        Ok(())
    }
}

/// What may still be kept.
pub(crate) struct Room {
    left: usize,
    is_cut: bool,
}

/// A value, of which no more is kept than there is room for.
pub(crate) struct Bounded<'a> {
    room: &'a mut Room,
    depth: usize,
}

impl Room {
    /// Of what is said of one thing.
    pub fn new() -> Room {
        Room { left: SAID_MAX, is_cut: false }
    }

    /// True if there was more than is kept.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The next value.
    pub fn next(&mut self) -> Bounded<'_> {
        Bounded { room: self, depth: DEPTH_MAX }
    }
}

impl Bounded<'_> {
    fn take(&mut self, text: usize) -> bool {
        let taken = self.room.left.checked_sub(EACH + text);
        self.room.is_cut |= taken.is_none();
        self.room.left = taken.unwrap_or(0);
        taken.is_some()
    }

    fn within(&mut self) -> Bounded<'_> {
        Bounded { room: &mut *self.room, depth: self.depth - 1 }
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(mut self, deserializer: D) -> Result<Value, D::Error> {
        self.room.is_cut |= self.depth == 0;
        if self.depth == 0 || !self.take(0) {
            return deserializer.deserialize_ignored_any(IgnoredAny).map(|_| Value::Null);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(mut self, value: &str) -> Result<Value, E> {
        Ok(if self.take(value.len()) { Value::String(value.to_owned()) } else { Value::Null })
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self.within())? {
            if !self.room.is_cut {
                values.push(value);
            }
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let is_room = self.take(key.len());
            let value = map.next_value_seed(self.within())?;
            if is_room && !self.room.is_cut {
                values.insert(key, value);
            }
        }
        Ok(Value::Object(values))
    }
}
