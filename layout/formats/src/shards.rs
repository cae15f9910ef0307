//! JSON beside a checkpoint: the index of one that was saved in parts, `model.safetensors.index.json`, of which only
//! the names of the parts are of interest, what a trainer writes last, of which only that it is whole, and what Orbax
//! says of its own.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, BufReader, Read};

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::de::IoRead;

use crate::fault::{Fault, Result, malformed, short, too_much};
use crate::found::Out;
use crate::limits::excerpt;
use crate::names::{PATH_MAX, is_below};
use crate::orbax::Said;
use crate::safetensors::Strings;
use crate::source::{Part, Source};

/// The longest JSON that is read.
const JSON_MAX: u64 = 256 << 20;
/// The most parts.
const SHARDS_MAX: usize = 4096;

pub(crate) fn read(source: &dyn Source, out: &mut Out<'_, '_>) -> Result<()> {
    read_with(source, out, &mut |_, _| Ok(()))
}

/// Who is given the name of each tensor, and of the part that it is in.
type Each<'a> = dyn FnMut(&str, &str) -> Result<()> + 'a;

pub(crate) fn read_with(source: &dyn Source, out: &mut Out<'_, '_>, each: &mut Each<'_>) -> Result<()> {
    let size = source.size()?;
    if size > JSON_MAX {
        return too_much(format!("JSON of {size} bytes"));
    }
    let (mut shards, mut needs, mut refused) = (BTreeMap::new(), Vec::new(), None);
    let mut json = json(source, size);
    let index = Index(&mut shards, &mut needs, each, &mut refused);
    let read = index.deserialize(&mut json).and_then(|()| json.end());
    if let Some(fault) = refused {
        return Err(fault);
    }
    judge(read, out)?;
    out.found.end = size;
    let shards = shards.into_iter().map(|(name, tensors)| (tensors.to_string(), name));
    out.found.metadata = shards.chain(needs).collect();
    Ok(())
}

/// Reads JSON as Python writes it, without strings that are too long to be held.
pub(crate) fn json<'a>(source: &'a dyn Source, size: u64) -> serde_json::Deserializer<IoRead<impl Read + 'a>> {
    let strings = Strings::of(Part { source, at: 0, end: size });
    let words = Words::of(BufReader::with_capacity(64 << 10, strings));
    serde_json::Deserializer::from_reader(words)
}

/// What came of reading it.
pub(crate) fn judge(read: serde_json::Result<()>, out: &mut Out<'_, '_>) -> Result<()> {
    match read {
        Ok(()) => Ok(()),
        Err(error) if error.is_io() => Err(std::io::Error::from(error).into()),
        Err(error) if error.is_eof() => {
            out.found.cut = true;
            short("JSON that is cut short")
        }
        Err(error) => malformed(format!("JSON: {}", excerpt(&error.to_string()))),
    }
}

/// What Python's `json` writes for numbers that JSON does not have, such as a loss that is not finite.
const WORDS: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];

/// Passes JSON on with an empty string in the place of each of those words: nobody needs the number.
struct Words<R> {
    inner: R,
    inside: bool,
    escaped: bool,
    /// What was read ahead, and is to be passed on as it is.
    ahead: VecDeque<u8>,
}

impl<R: Read> Words<R> {
    fn of(inner: R) -> Self {
        Words { inner, inside: false, escaped: false, ahead: VecDeque::new() }
    }

    fn read_one(&mut self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        Ok(if self.inner.read(&mut byte)? == 0 { None } else { Some(byte[0]) })
    }

    /// The next byte that is passed on.
    fn next(&mut self) -> io::Result<Option<u8>> {
        if let Some(byte) = self.ahead.pop_front() {
            return Ok(Some(byte));
        }
        let Some(byte) = self.read_one()? else { return Ok(None) };
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = self.inside,
            b'"' => self.inside = !self.inside,
            _ if self.inside => {}
            _ => return self.word(byte),
        }
        Ok(Some(byte))
    }

    /// What is passed on for what begins with a byte outside of strings. A word that is cut short is as good as none:
    /// the end comes where it began.
    fn word(&mut self, first: u8) -> io::Result<Option<u8>> {
        let Some(word) = WORDS.iter().find(|word| word[0] == first) else { return Ok(Some(first)) };
        for (n, expected) in word.iter().enumerate().skip(1) {
            match self.read_one()? {
                None => return Ok(None),
                Some(byte) if byte == *expected => {}
                // No word begins with what is in the middle of one, nor does a string begin there.
                Some(other) => {
                    self.ahead.extend(&word[1..n]);
                    self.ahead.push_back(other);
                    self.inside = other == b'"';
                    return Ok(Some(first));
                }
            }
        }
        self.ahead.push_back(b'"');
        Ok(Some(b'"'))
    }
}

impl<R: Read> Read for Words<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        for (n, to) in buffer.iter_mut().enumerate() {
            let Some(byte) = self.next()? else { return Ok(n) };
            *to = byte;
        }
        Ok(buffer.len())
    }
}

/// The whole of it.
struct Index<'a, 'b>(
    &'a mut BTreeMap<String, u64>,
    &'a mut Vec<(String, String)>,
    &'a mut Each<'b>,
    &'a mut Option<Fault>,
);

impl<'de> DeserializeSeed<'de> for Index<'_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Index<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dictionary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "weight_map" => map.next_value_seed(Shards(&mut *self.0, &mut *self.2, &mut *self.3))?,
                key if Said::is_in(key) => *self.1 = map.next_value::<Said>()?.needs(key).collect(),
                _ => map.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        Ok(())
    }
}

/// Which tensor is in which part.
struct Shards<'a, 'b>(&'a mut BTreeMap<String, u64>, &'a mut Each<'b>, &'a mut Option<Fault>);

impl<'de> DeserializeSeed<'de> for Shards<'_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Shards<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the names of files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((tensor, name)) = map.next_entry::<String, String>()? {
            if name.len() > PATH_MAX {
                *self.2 = Some(Fault::TooMuch(format!("a part with a path of {} bytes", name.len()).into()));
                return Err(de::Error::custom("refused"));
            }
            if !is_below(&name) {
                return Err(de::Error::custom("a part that cannot be the name of a file"));
            }
            if let Err(fault) = (self.1)(&tensor, &name) {
                *self.2 = Some(fault);
                return Err(de::Error::custom("refused"));
            }
            *self.0.entry(name).or_default() += 1;
            if self.0.len() > SHARDS_MAX {
                *self.2 = Some(Fault::TooMuch(format!("an index of more than {SHARDS_MAX} parts").into()));
                return Err(de::Error::custom("refused"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::recognise::shards;

    fn names(json: &str) -> Result<Vec<String>, (String, bool)> {
        let found = shards(&json.as_bytes());
        match found.reason {
            None => Ok(found.metadata.into_iter().map(|(_, name)| name).collect()),
            Some(why) => Err((why, found.cut)),
        }
    }

    #[test]
    fn parts_are_named_once() {
        let index = r#"{"metadata":{"n":9},"weight_map":{"a":"1.bin","b":"2.bin","c":"1.bin"}}"#;
        assert_eq!(names(index).unwrap(), ["1.bin", "2.bin"]);
        let counts: Vec<_> = shards(&index.as_bytes()).metadata.into_iter().map(|(count, _)| count).collect();
        assert_eq!(counts, ["2", "1"]);
        assert_eq!(names("{\"global_step\": 5, \"log_history\": [{}]}\n").unwrap(), [""; 0]);
        for end in 0..index.len() {
            assert!(names(&index[..end]).unwrap_err().1, "{end}");
        }
    }

    /// As Python writes them.
    #[test]
    fn losses_need_not_be_finite() {
        let state = r#"{"best": NaN, "log": [{"loss":-Infinity,"NaN":"Infinity \"NaN"}, Infinity,-5,NaN],"last":NaN}"#;
        assert_eq!(names(state).unwrap(), [""; 0]);
        for end in 0..state.len() {
            assert!(names(&state[..end]).unwrap_err().1, "{end}");
        }
        let both = r#"{"x":NaN,"weight_map":{"NaN":"Infinity","b":"-Infinity"},"y":-Infinity}"#;
        assert_eq!(names(both).unwrap(), ["-Infinity", "Infinity"]);
        let wrong = ["Nan", "nan", "-NaN", "1NaN", "NaN1", "NaNNaN", "-Inf", "--Infinity", "N\"a\"N", "Inf\"", "N,"];
        for wrong in wrong {
            assert!(names(&format!("{{\"x\":{wrong}}}")).is_err(), "{wrong}");
        }
        assert!(names(r#"{"weight_map":{"a":NaN}}"#).is_err());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let one = |name: &str| names(&format!("{{\"weight_map\":{{\"a\":{name}}}}}")).unwrap_err();
        let paths = ["\"../x\"", "\"/x\"", "\"x/\"", "\"x//y\"", "\"x/./y\"", "\"x/..\"", "\"x/y\\u0000\""];
        let deep = format!("\"{}x\"", "x/".repeat(512));
        for name in
            paths.into_iter().chain(["\"\"", "5", "null", "[\"x\"]", &deep, &format!("\"{}\"", "x".repeat(256))])
        {
            assert!(!one(name).1, "{name}");
        }
        assert_eq!(names(r#"{"weight_map":{"a":"x/y/..z"}}"#).unwrap(), ["x/y/..z"]);
        assert!(!names("[]").unwrap_err().1 && !names("{} {}").unwrap_err().1);
        assert!(names(&format!("{{\"x\":{}", "[".repeat(100_000))).is_err());
        let many: Vec<String> = (0..5000).map(|n| format!("\"{n}\":\"{n}\"")).collect();
        assert!(
            names(&format!("{{\"weight_map\":{{{}}}}}", many.join(",")))
                .unwrap_err()
                .0
                .contains("more than 4096 parts")
        );
    }
}
