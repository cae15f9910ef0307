//! What is done with a chunk before it is stored, in words.

use serde_json::Value;

use crate::limits::excerpt;

use super::json::{named, numbers};

/// The most codecs, and how often they may have others in them.
const CODECS_MAX: usize = 32;
const WITHIN_MAX: usize = 4;
/// What makes bytes of elements, and nothing else.
const BYTES: &str = "bytes";
/// A block of n5 with nothing done to it: it has a header all the same.
pub(super) const RAW: &str = "raw";

/// zarr 2: filters, then a compressor.
pub(super) fn of_zarr2(filters: Option<&Value>, compressor: Option<&Value>) -> Result<Vec<String>, String> {
    let filters = match filters {
        None => &[],
        Some(Value::Array(filters)) if filters.len() <= CODECS_MAX => filters.as_slice(),
        Some(_) => return Err("filters that are no list, or too many".to_owned()),
    };
    let name = |codec: &Value| {
        let id = codec.get("id").and_then(Value::as_str).ok_or("a codec without a name")?;
        let of = codec.get("cname").and_then(Value::as_str).map(|name| format!("({})", excerpt(name)));
        Ok(excerpt(id).to_owned() + &of.unwrap_or_default())
    };
    filters.iter().chain(compressor).map(name).collect()
}

/// zarr 3: a list in which one makes bytes of elements. That is left out, and its byte order told beside: it is big.
pub(super) fn of_zarr3(codecs: Option<&Value>) -> Result<(Vec<String>, bool), String> {
    let mut big_endian = false;
    let names = list(codecs, WITHIN_MAX, &mut big_endian)?;
    Ok((names, big_endian))
}

fn list(codecs: Option<&Value>, within: usize, big_endian: &mut bool) -> Result<Vec<String>, String> {
    let all = codecs.and_then(Value::as_array).ok_or("codecs that are no list")?;
    if all.len() > CODECS_MAX || within == 0 {
        return Err("too many codecs".to_owned());
    }
    let mut names = Vec::new();
    for codec in all {
        let (name, settings) = named(Some(codec)).ok_or("a codec without a name")?;
        let setting = |key: &str| settings.and_then(|settings| settings.get(key));
        let text = |key: &str| setting(key).and_then(Value::as_str);
        match name {
            BYTES => *big_endian = text("endian") == Some("big"),
            "sharding_indexed" => {
                let chunk = setting("chunk_shape").and_then(numbers).ok_or("shards that say no chunk_shape")?;
                let chunk: Vec<String> = chunk.iter().map(u64::to_string).collect();
                let chunk = if chunk.is_empty() { "()".to_owned() } else { chunk.join("x") };
                let inner = list(setting("codecs"), within - 1, big_endian)?;
                let inner = if inner.is_empty() { String::new() } else { format!(": {}", inner.join("+")) };
                names.push(format!("shards({chunk}{inner})"));
            }
            name => {
                let of = text("cname").map(|name| format!("({})", excerpt(name)));
                names.push(excerpt(name).to_owned() + &of.unwrap_or_default());
            }
        }
    }
    Ok(names)
}

/// n5: one of a type, or, as it was before, its name alone.
pub(super) fn of_n5(compression: Option<&Value>, before: Option<&Value>) -> Result<Vec<String>, String> {
    let of_type = compression.map(|compression| compression.get("type").unwrap_or(compression));
    match of_type.or(before).map(Value::as_str) {
        None | Some(Some(RAW)) => Ok(vec![RAW.to_owned()]),
        Some(Some(name)) => Ok(vec![excerpt(name).to_owned()]),
        Some(None) => Err("a compression without a name".to_owned()),
    }
}
