//! A whole run, and the forms in which it is told.

mod json;
mod machine;
mod markdown;
mod numbers;
mod plot;
mod table;
mod text;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::measure::Scale;
use crate::outcome::{Figure, Left};

pub use json::json;
pub use machine::machine;
pub use markdown::markdown;
pub use plot::plots;
pub use text::text;

/// A whole run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    pub machine: BTreeMap<String, String>,
    /// The arguments it was started with.
    pub command: String,
    pub seconds: f64,
    pub scale: Scale,
    pub figures: Vec<Figure>,
    pub left: Vec<Left>,
}

impl Report {
    /// Reads what [`json()`] wrote.
    pub fn load(file: &Path) -> Result<Report> {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()).into())
    }
}
