//! What a run finds: figures, and what it had to leave out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::backing::Backing;
use crate::error::Missing;
use crate::measure::Unit;
use crate::target::Kind;

/// What came of a run.
#[derive(Default)]
pub struct Outcome {
    pub figures: Vec<Figure>,
    pub left: Vec<Left>,
}

/// The rounds of one row of a measure, on one target.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figure {
    pub measure: String,
    pub row: String,
    pub unit: Unit,
    pub backing: Backing,
    /// Whether everybody was on one processor.
    pub pinned: bool,
    pub target: Kind,
    /// What was not measured is null.
    #[serde(deserialize_with = "with_null")]
    pub rounds: Vec<f64>,
    /// What the server counted, for each operation, in the last round.
    pub counts: BTreeMap<String, f64>,
}

/// What was left out.
#[derive(Debug, Serialize, Deserialize)]
pub struct Left {
    pub what: String,
    pub reason: String,
    /// Whether it should have worked.
    pub failed: bool,
}

impl Left {
    pub fn new(what: String, error: &(dyn std::error::Error + 'static)) -> Left {
        Left { what, reason: error.to_string(), failed: !error.is::<Missing>() }
    }
}

fn with_null<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    let values = Vec::<Option<f64>>::deserialize(from)?;
    Ok(values.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect())
}
