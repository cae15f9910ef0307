//! n5: `attributes.json`. Numbers are in big-endian order, and the first dimension runs fastest.

use serde_json::Value;

use crate::dtype::Dtype;
use crate::limits::excerpt;

use super::codecs;
use super::json::Said;
use super::node::{Array, Keys, What};

/// What it says the directory is. None if it is one of any other program's, or says nothing.
pub(super) fn node(said: &Said) -> Option<Result<What, String>> {
    let is_array = said.get("dimensions").is_some() && said.get("dataType").is_some();
    match is_array {
        true => Some(array(said).map(What::Array)),
        false if said.get("n5").is_some_and(Value::is_string) => Some(Ok(What::Group)),
        false => None,
    }
}

fn array(said: &Said) -> Result<Array, String> {
    said.check()?;
    let (shape, chunk) = (said.numbers("dimensions")?, said.numbers("blockSize")?);
    let name = said.get("dataType").and_then(Value::as_str).ok_or("a dataType that is no name")?;
    let mut odd = None;
    let dtype = match name {
        "string" => Dtype::String,
        "object" => Dtype::Object,
        name => Dtype::all().find(|dtype| dtype.name() == name && dtype.size().is_some()).unwrap_or_else(|| {
            odd = Some(format!("the type {:?} is not known", excerpt(name)));
            Dtype::Other
        }),
    };
    Ok(Array {
        dtype,
        descr: (dtype == Dtype::Other).then(|| excerpt(name).to_owned()),
        item_size: dtype.size().unwrap_or(0),
        big_endian: dtype.size().is_some_and(|size| size > 1),
        column_major: shape.len() > 1,
        shape,
        chunk: Some(chunk),
        blocks: true,
        codecs: codecs::of_n5(said.get("compression"), said.get("compressionType"))?,
        keys: Some(Keys { has_prefix: false, is_nested: true }),
        // Nothing says another.
        fill: dtype.size().map(|size| vec![0; usize::try_from(size).unwrap_or(0)]),
        odd,
    })
}
