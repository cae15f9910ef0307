//! Formats that are not looked into, but tell where their files end: Parquet, and Arrow's file format.

use crate::fault::Result;
use crate::source::{Source, read_exact};

/// What Parquet begins with, and the first byte of a header in Thrift's compact protocol behind it: so no text begins.
const PARQUET: &[u8] = b"PAR1\x15";
const PARQUET_END: &[u8] = b"PAR1";
const ARROW: &[u8] = b"ARROW1\0\0";
const ARROW_END: &[u8] = b"ARROW1";

/// What a file is that begins so, and does not end as all do that do: where to look at them is at their end.
pub(crate) fn without_end(source: &dyn Source, head: &[u8], size: u64) -> Result<Option<&'static str>> {
    let (what, begin, end) = if head.starts_with(PARQUET) {
        ("a Parquet file", PARQUET, PARQUET_END)
    } else if head.starts_with(ARROW) {
        ("an Arrow file", ARROW, ARROW_END)
    } else {
        return Ok(None);
    };
    if size < (begin.len() + end.len()) as u64 {
        return Ok(Some(what));
    }
    let mut last = vec![0; end.len()];
    read_exact(source, size - end.len() as u64, &mut last)?;
    Ok((last != end).then_some(what))
}
