//! zarr 3: `zarr.json`, of an array or a group, in which all may be told that is below.

use serde_json::Value;

use crate::dtype::Dtype;
use crate::limits::excerpt;

use super::codecs;
use super::fill::fill;
use super::json::{Said, named, numbers};
use super::node::{Array, Keys, What};

pub(super) fn node(said: &Said) -> Result<What, String> {
    said.check()?;
    if !said.is_number("zarr_format", 3) {
        return Err("it is not of zarr_format 3".to_owned());
    }
    match said.get("node_type").and_then(Value::as_str) {
        Some("group") => Ok(What::Group),
        Some("array") => array(said).map(What::Array),
        _ => Err("a node_type that is neither array nor group".to_owned()),
    }
}

fn array(said: &Said) -> Result<Array, String> {
    let shape = said.numbers("shape")?;
    let mut odd = None;
    let mut strange = |what: String| {
        odd.get_or_insert(what);
    };
    let (name, settings) = named(said.get("data_type")).ok_or("it says no data_type")?;
    let (dtype, item_size) = element(name, settings).unwrap_or_else(|| {
        strange(format!("the type {:?} is not known", excerpt(name)));
        (Dtype::Other, 0)
    });
    let descr = (dtype == Dtype::Other).then(|| excerpt(name).to_owned());
    let (grid, settings) = named(said.get("chunk_grid")).ok_or("it says no chunk_grid")?;
    let chunk = match grid {
        "regular" => {
            let chunk = settings.and_then(|settings| settings.get("chunk_shape")).and_then(numbers);
            Some(chunk.ok_or("a chunk_grid that says no chunk_shape")?)
        }
        grid => {
            strange(format!("the grid of chunks {:?} is not known", excerpt(grid)));
            None
        }
    };
    let (encoding, settings) = named(said.get("chunk_key_encoding")).ok_or("it says no chunk_key_encoding")?;
    let separator = settings.and_then(|settings| settings.get("separator")).map(Value::as_str);
    let keys = match (encoding, separator) {
        ("default", None | Some(Some("/"))) => Some(Keys { has_prefix: true, is_nested: true }),
        ("default", Some(Some("."))) => Some(Keys { has_prefix: true, is_nested: false }),
        ("v2", None | Some(Some("."))) => Some(Keys { has_prefix: false, is_nested: false }),
        ("v2", Some(Some("/"))) => Some(Keys { has_prefix: false, is_nested: true }),
        (encoding, _) => {
            strange(format!("how chunks are called, {:?}, is not known", excerpt(encoding)));
            None
        }
    };
    let transformers = said.get("storage_transformers").and_then(Value::as_array);
    if transformers.is_some_and(|transformers| !transformers.is_empty()) {
        strange("what its storage_transformers do is not known".to_owned());
    }
    let (codecs, big_endian) = codecs::of_zarr3(said.get("codecs"))?;
    let fill = said.get("fill_value").and_then(|value| fill(dtype, big_endian, value));
    Ok(Array {
        dtype,
        descr,
        item_size,
        big_endian,
        shape,
        column_major: false,
        chunk,
        codecs,
        blocks: false,
        keys,
        fill,
        odd,
    })
}

/// A type, and bytes of an element.
fn element(name: &str, settings: Option<&Value>) -> Option<(Dtype, u64)> {
    // Elements of less than a byte have one each.
    let of_name = Dtype::all().find(|dtype| dtype.name() == name && dtype.bits().is_some());
    if let Some(dtype) = of_name {
        return Some(dtype.size().map_or((Dtype::Other, 1), |size| (dtype, size)));
    }
    let settings = |key: &str| settings.and_then(|settings| settings.get(key)).and_then(Value::as_u64);
    match name {
        "string" | "bytes" | "variable_length_bytes" | "variable_length_utf8" => Some((Dtype::String, 0)),
        "struct" | "structured" => Some((Dtype::Structured, 0)),
        "null_terminated_bytes" | "fixed_length_utf32" => Some((Dtype::String, settings("length_bytes")?)),
        "raw_bytes" => Some((Dtype::Other, settings("length_bytes")?)),
        "numpy.datetime64" | "numpy.timedelta64" => Some((Dtype::Other, 8)),
        "int2" | "int4" | "uint2" | "uint4" => Some((Dtype::Other, 1)),
        _ => {
            let bits: u64 = name.strip_prefix('r')?.parse().ok()?;
            bits.is_multiple_of(8).then_some((Dtype::Other, bits / 8))
        }
    }
}
