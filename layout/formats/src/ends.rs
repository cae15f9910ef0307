//! A format that is not looked into, but tells where its files end: Parquet.

use crate::fault::Result;
use crate::source::{Source, read_exact};

/// What Parquet begins with, and the first byte of a header in Thrift's compact protocol behind it: so no text begins.
pub(crate) const PARQUET: &[u8] = b"PAR1\x15";
const END: &[u8] = b"PAR1";

/// Whether a file that begins as Parquet's ends so, too: where to look at them is at their end.
pub(crate) fn is_there(source: &dyn Source, size: u64) -> Result<bool> {
    if size < (PARQUET.len() + END.len()) as u64 {
        return Ok(false);
    }
    let mut last = vec![0; END.len()];
    read_exact(source, size - END.len() as u64, &mut last)?;
    Ok(last == END)
}
