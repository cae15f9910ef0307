//! safetensors: the length of a JSON header, the header, and the tensors' bytes without gaps.

use std::fmt;
use std::io::{self, BufReader, Read};

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::claims::Claims;
use crate::dtype::Dtype;
use crate::fault::{Fault, Result, malformed, too_much};
use crate::format::Format;
use crate::found::Out;
use crate::limits::{DIMENSIONS_MAX, NAME_MAX};
use crate::source::{Part, Source, read_exact};
use crate::tensor::{Location, Tensor, elements, packed_bytes};

/// The longest header, as in the format's own library.
const HEADER_MAX: u64 = 100_000_000;
/// The longest string in it.
const STRING_MAX: usize = 8 << 20;
/// Metadata is kept up to so many bytes.
const METADATA_MAX: usize = 1 << 20;
const METADATA: &str = "__metadata__";

/// Whether a file of `size` bytes may be one: a header that fits, and begins as JSON objects do.
pub(crate) fn starts(head: &[u8], size: u64) -> bool {
    let Some((len, rest)) = head.split_first_chunk() else { return false };
    let len = u64::from_le_bytes(*len);
    (2..=HEADER_MAX).contains(&len) && len <= size.saturating_sub(8) && rest.first() == Some(&b'{')
}

/// Whether a file of `size` bytes may be one that ends inside its header.
pub(crate) fn ends_in_header(head: &[u8], size: u64) -> bool {
    let Some((len, rest)) = head.split_first_chunk() else { return false };
    let len = u64::from_le_bytes(*len);
    // Without tensors nothing is in it, and spaces make it as long as it is to be.
    let is_empty = || rest.strip_prefix(b"{}").is_some_and(|rest| rest.iter().all(|byte| *byte == b' '));
    let begins = rest.starts_with(b"{\"") || rest == b"{" || is_empty();
    (2..=HEADER_MAX).contains(&len) && len > size.saturating_sub(8) && begins
}

pub(crate) fn recognise(source: &dyn Source, out: &mut Out<'_, '_>) -> Result<()> {
    let mut len = [0; 8];
    read_exact(source, 0, &mut len)?;
    let data = u64::from_le_bytes(len).saturating_add(8);
    let Some(room) = source.size()?.checked_sub(data) else { return malformed("cut short") };

    // First everything is checked, then given out: the header is read twice rather than kept.
    let mut claims = Claims::default();
    let mut metadata = Vec::new();
    each(source, data, &mut metadata, &mut |name, entry| {
        entry.check(name)?;
        claims.add(name.as_bytes(), entry.begin, entry.end)
    })?;
    let mut covered = 0;
    for &(begin, end) in claims.settle()? {
        if begin != covered {
            return malformed("a gap between tensors");
        }
        covered = end;
    }
    if covered != room {
        out.found.cut = covered > room;
        return malformed(format!("the tensors take {covered} bytes, and the file has {room} for them"));
    }
    drop(claims);
    out.found.format = Format::Safetensors;
    out.found.end = data + room;
    out.found.metadata = metadata;
    each(source, data, &mut Vec::new(), &mut |name, entry| {
        // The file may be another one by now.
        entry.check(name)?;
        if entry.end > room {
            return malformed("the file changes while it is read");
        }
        let location = Location::Raw { offset: data + entry.begin, len: entry.end - entry.begin };
        out.tensor(Tensor::new(name.as_bytes().to_vec(), entry.dtype, entry.shape, location))
    })
}

/// What the header says of one tensor.
struct Entry {
    dtype: Dtype,
    shape: Vec<u64>,
    begin: u64,
    end: u64,
}

impl Entry {
    fn check(&self, name: &str) -> Result<()> {
        if name.len() > NAME_MAX {
            return too_much(format!("a name longer than {NAME_MAX} bytes"));
        }
        if self.shape.len() > DIMENSIONS_MAX {
            return too_much(format!("a tensor of more than {DIMENSIONS_MAX} dimensions"));
        }
        let len = elements(&self.shape).zip(self.dtype.bits()).and_then(|(count, bits)| packed_bytes(count, bits));
        match self.end.checked_sub(self.begin) {
            Some(given) if Some(given) == len => Ok(()),
            _ => malformed("a tensor whose shape does not take its bytes"),
        }
    }
}

type Visit<'a> = &'a mut dyn FnMut(&str, Entry) -> Result<()>;

/// Calls `visit` for each tensor in the header, which ends where the `data` begins.
fn each(source: &dyn Source, data: u64, metadata: &mut Vec<(String, String)>, visit: Visit<'_>) -> Result<()> {
    let strings = Strings::of(Part { source, at: 8, end: data });
    let mut json = serde_json::Deserializer::from_reader(BufReader::with_capacity(64 << 10, strings));
    let mut fault = None;
    let result = Header { metadata, visit, fault: &mut fault }.deserialize(&mut json).and_then(|()| json.end());
    match (fault, result) {
        (Some(fault), _) => Err(fault),
        (None, Err(error)) if error.is_io() => Err(io::Error::from(error).into()),
        (None, Err(error)) => malformed(format!("the header: {error}")),
        (None, Ok(())) => Ok(()),
    }
}

/// Passes JSON on, unless it has a string that is too long: the parser would hold it.
pub(crate) struct Strings<R> {
    inner: R,
    inside: bool,
    escaped: bool,
    len: usize,
}

impl<R> Strings<R> {
    pub fn of(inner: R) -> Self {
        Strings { inner, inside: false, escaped: false, len: 0 }
    }
}

impl<R: Read> Read for Strings<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        for &byte in &buffer[..count] {
            self.len = if self.inside { self.len + 1 } else { 0 };
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = self.inside,
                b'"' => self.inside = !self.inside,
                _ => {}
            }
            if self.len > STRING_MAX {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, "a string that is too long to be looked at"));
            }
        }
        Ok(count)
    }
}

struct Header<'a, 'v> {
    metadata: &'a mut Vec<(String, String)>,
    visit: Visit<'v>,
    /// What is wrong beyond JSON.
    fault: &'a mut Option<Fault>,
}

impl<'de> DeserializeSeed<'de> for Header<'_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Header<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dictionary of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                map.next_value_seed(Metadata(self.metadata))?;
                continue;
            }
            let entry = map.next_value_seed(EntrySeed)?;
            if let Err(fault) = (self.visit)(&name, entry) {
                *self.fault = Some(fault);
                return Err(de::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

struct Metadata<'a>(&'a mut Vec<(String, String)>);

impl<'de> DeserializeSeed<'de> for Metadata<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Metadata<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dictionary of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut room = METADATA_MAX;
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            let taken = key.len() + value.len() + 2 * size_of::<String>();
            if taken <= room {
                room -= taken;
                self.0.push((key, value));
            }
        }
        Ok(())
    }
}

struct EntrySeed;

impl<'de> DeserializeSeed<'de> for EntrySeed {
    type Value = Entry;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Entry, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EntrySeed {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dtype, shape and data_offsets of a tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            let again = match key.as_str() {
                "dtype" => {
                    let name: String = map.next_value()?;
                    let found = Dtype::of_safetensors(&name);
                    dtype.replace(found.ok_or_else(|| de::Error::custom("an unknown dtype"))?).is_some()
                }
                "shape" => shape.replace(map.next_value_seed(Numbers(DIMENSIONS_MAX))?).is_some(),
                "data_offsets" => offsets.replace(map.next_value_seed(Numbers(2))?).is_some(),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    false
                }
            };
            if again {
                return Err(de::Error::custom("a tensor that says something twice"));
            }
        }
        match (dtype, shape, offsets.as_deref()) {
            (Some(dtype), Some(shape), Some(&[begin, end])) => Ok(Entry { dtype, shape, begin, end }),
            _ => Err(de::Error::custom("a tensor without dtype, shape or data_offsets")),
        }
    }
}

/// A list of numbers, of which no more than one beyond so many is kept.
struct Numbers(usize);

impl<'de> DeserializeSeed<'de> for Numbers {
    type Value = Vec<u64>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<u64>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Numbers {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u64>, A::Error> {
        let mut numbers = Vec::new();
        while let Some(number) = list.next_element()? {
            if numbers.len() <= self.0 {
                numbers.push(number);
            }
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recognise::recognise;
    use std::ops::ControlFlow;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.bytes());
        file.resize(file.len() + data, 7);
        file
    }

    fn names(header: &str, data: usize) -> Result<Vec<String>, String> {
        let mut names = Vec::new();
        let found = recognise(&&file(header, data)[..], &mut |tensor| {
            names.push(tensor.name_text().into_owned());
            ControlFlow::Continue(())
        });
        match found.format {
            Format::Safetensors => Ok(names),
            _ => Err(found.reason.unwrap()),
        }
    }

    #[test]
    fn lists_in_order() {
        let header = r#"{"__metadata__":{"k":"v"},
            "b":{"dtype":"F32","shape":[2],"data_offsets":[2,10]},
            "a\u00e9":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},
            "e":{"dtype":"U8","shape":[0,9],"data_offsets":[10,10]}}   "#;
        assert_eq!(names(header, 8 + 2).unwrap(), ["b", "aé", "e"]);
        assert_eq!(names("{}", 0).unwrap(), [""; 0]);
        assert_eq!(names(r#"{"x":{"dtype":"F4","shape":[6],"data_offsets":[0,3]}}"#, 3).unwrap(), ["x"]);
    }

    #[test]
    fn a_file_without_tensors_that_ends_in_its_header_is_cut_short() {
        let whole = [&8_u64.to_le_bytes()[..], b"{}      "].concat();
        for len in 9..whole.len() {
            let found = crate::recognise(&&whole[..len], &mut |_| unreachable!());
            assert!(found.cut, "{len}");
        }
        let found = crate::recognise(&&whole[..], &mut |_| unreachable!());
        assert_eq!((found.format, found.cut, found.reason), (Format::Safetensors, false, None));
        assert!(!ends_in_header(&[&8_u64.to_le_bytes()[..], b"{}x"].concat(), 11));
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let one = |shape: &str, offsets: &str, data| {
            names(&format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#), data).unwrap_err()
        };
        assert!(one("[2]", "[0,8]", 7).contains("8 bytes"));
        assert!(one("[2]", "[0,8]", 9).contains("8 bytes"));
        assert!(one("[1]", "[4,8]", 8).contains("gap"));
        assert!(one("[2]", "[8,0]", 8).contains("shape"));
        assert!(one("[2,3]", "[0,8]", 8).contains("shape"));
        assert!(one("[4294967296,4294967296]", "[0,0]", 0).contains("shape"));
        assert!(one("[-1]", "[0,8]", 8).contains("header"));
        assert!(one("[1e3]", "[0,8]", 8).contains("header"));
        assert!(one("[2]", "[0,8,16]", 8).contains("without dtype, shape or data_offsets"));
        let twice = concat!(
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"#,
            r#""a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#
        );
        assert!(names(twice, 2).unwrap_err().contains("same name"));
        let overlap = concat!(
            r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"#,
            r#""b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#
        );
        assert!(names(overlap, 2).unwrap_err().contains("overlap"));
        assert!(names(&format!("{{\"a\":{}", "[".repeat(100_000)), 0).is_err());
        assert!(names(r#"{"a":1}"#, 0).is_err() && names("{} {}", 0).is_err() && names("{", 0).is_err());
    }
}
