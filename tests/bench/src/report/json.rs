//! For programs.

use super::{Report, table};
use crate::error::Result;

/// Everything, with what follows from the figures.
pub fn json(report: &Report) -> Result<String> {
    let mut value = serde_json::to_value(report)?;
    value["lines"] = serde_json::to_value(table::lines(report))?;
    Ok(serde_json::to_string(&value)? + "\n")
}
