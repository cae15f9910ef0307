//! Numbers for what has none, which nobody outside can foresee.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::OnceLock;

/// A hash that stays the same for as long as the server runs.
pub(super) fn number(of: impl Hash) -> u64 {
    static HASHER: OnceLock<RandomState> = OnceLock::new();
    HASHER.get_or_init(RandomState::new).hash_one(of)
}
