//! The measures, by family.

mod clients;
mod data;
mod durability;
mod files;
mod metadata;
mod scale;

use crate::measure::Measure;

/// All measures, in the order in which they run.
pub fn all() -> impl Iterator<Item = &'static Measure> {
    [data::MEASURES, metadata::MEASURES, durability::MEASURES, clients::MEASURES, scale::MEASURES].into_iter().flatten()
}
