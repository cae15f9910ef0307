//! zarr 2: `.zarray`, and `.zmetadata`, which has those of all that is below.

use serde_json::Value;

use crate::dtype::Dtype;
use crate::limits::excerpt;
use crate::npy;

use super::codecs;
use super::fill::fill;
use super::json::Said;
use super::node::{Array, Keys, Metadata, What};

/// What a name in `.zmetadata` stands for: a directory, and an array or a group. Nothing for what users say of them.
pub(super) fn entry(name: &str) -> Option<(&str, Metadata)> {
    let (path, file) = name.rsplit_once('/').unwrap_or(("", name));
    let found = [Metadata::Zarr2Array, Metadata::Zarr2Group].into_iter().find(|metadata| metadata.name() == file)?;
    Some((path, found))
}

pub(super) fn group(said: &Said) -> Result<What, String> {
    said.check()?;
    if said.is_number("zarr_format", 2) { Ok(What::Group) } else { Err("it is not of zarr_format 2".to_owned()) }
}

pub(super) fn array(said: &Said) -> Result<What, String> {
    group(said)?;
    let (shape, chunk) = (said.numbers("shape")?, said.numbers("chunks")?);
    let mut odd = None;
    let element = match said.get("dtype") {
        Some(Value::String(code)) => element(code).unwrap_or_else(|| {
            odd = Some(format!("the type {:?} is not known", excerpt(code)));
            Element { dtype: Dtype::Other, size: 0, big_endian: false, descr: Some(excerpt(code).to_owned()) }
        }),
        // How long they are does not matter for what is not read.
        Some(Value::Array(_)) => Element { dtype: Dtype::Structured, size: 0, big_endian: false, descr: None },
        _ => return Err("it says no dtype".to_owned()),
    };
    let codecs = codecs::of_zarr2(said.get("filters"), said.get("compressor"))?;
    let is_nested = match said.get("dimension_separator").map(Value::as_str) {
        None | Some(Some(".")) => false,
        Some(Some("/")) => true,
        _ => return Err("a dimension_separator that is not known".to_owned()),
    };
    let fill = said.get("fill_value").and_then(|value| fill(element.dtype, element.big_endian, value));
    Ok(What::Array(Array {
        dtype: element.dtype,
        descr: element.descr,
        item_size: element.size,
        big_endian: element.big_endian,
        column_major: said.get("order").and_then(Value::as_str) == Some("F") && shape.len() > 1,
        shape,
        chunk: Some(chunk),
        codecs,
        blocks: false,
        keys: Some(Keys { has_prefix: false, is_nested }),
        fill,
        odd,
    }))
}

struct Element {
    dtype: Dtype,
    size: u64,
    big_endian: bool,
    descr: Option<String>,
}

/// A type by NumPy's code, or, as TensorStore writes those that have none, by its name.
fn element(code: &str) -> Option<Element> {
    let known = npy::simple(code, code.to_owned()).ok();
    let of = |known: npy::Element| match known.dtype {
        Dtype::Object => Element { dtype: Dtype::Object, size: 0, big_endian: false, descr: None },
        dtype => Element { dtype, size: known.size, big_endian: known.big_endian, descr: known.descr },
    };
    known.map(of).or_else(|| {
        let dtype = Dtype::all().find(|dtype| dtype.name() == code)?;
        Some(Element { dtype, size: dtype.size()?, big_endian: false, descr: None })
    })
}
