//! Numbers for what has none, which nobody outside can foresee.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::OnceLock;

static SECRET: OnceLock<(u64, u64)> = OnceLock::new();

/// Numbers are as those of the server before, which made them from this. Only what is said first counts.
pub(super) fn agree(secret: (u64, u64)) {
    let _ = SECRET.set(secret);
}

/// A hash that stays the same for as long as the server runs, and those that take over from it.
pub(super) fn number(of: impl Hash) -> u64 {
    let secret = SECRET.get_or_init(|| {
        let random = RandomState::new();
        (random.hash_one(0), random.hash_one(1))
    });
    let mut hasher = DefaultHasher::new();
    secret.hash(&mut hasher);
    of.hash(&mut hasher);
    hasher.finish()
}
