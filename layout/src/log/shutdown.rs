//! How a pool was left by whoever used it last.

use serde::{Deserialize, Serialize};

/// How the pool was left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shutdown {
    /// It was closed.
    #[default]
    Clean,
    /// Its server ended without closing it; the machine stayed up.
    ServerKilled,
    /// The machine went down.
    PowerLoss,
}
