//! The numbers that name things in a pool: objects, segments and transactions.
//!
//! Objects and segments draw from one counter that only ever grows, so neither number is reused in the life of a pool.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

id!(
    /// The number of an object (inode). Also the node id that the kernel knows it by.
    Ino,
    "{}"
);
id!(
    /// The number of a segment: the backing file of one regular file. Its host name is this number in hexadecimal.
    SegmentId,
    "{:016x}"
);
id!(
    /// The dense number of a transaction: the first one of a pool is 1.
    TxId,
    "{}"
);

/// The chain of the pool itself: records that belong to no object.
pub const POOL: Ino = Ino(0);

/// The root directory.
pub const ROOT: Ino = Ino(1);

/// Where the tier is in a segment's number. What is below is drawn from the shared counter.
const TIER_SHIFT: u32 = 56;

impl SegmentId {
    /// A segment in a tier; 0 is the pool's own directory. None if the counter has come too far, which it never does.
    pub fn in_tier(tier: u8, serial: u64) -> Option<Self> {
        (serial >> TIER_SHIFT == 0 && tier <= TIER_MAX).then_some(Self(u64::from(tier) << TIER_SHIFT | serial))
    }

    /// The segment whose file has this name.
    pub fn of_name(name: &str) -> Option<Self> {
        let id = Self(u64::from_str_radix(name, 16).ok()?);
        (id.to_string() == name && id.0 < NUMBER_LIMIT).then_some(id)
    }

    /// The tier that the segment is in.
    pub fn tier(self) -> u8 {
        (self.0 >> TIER_SHIFT) as u8
    }

    /// What it got from the shared counter: of two segments the younger one has the larger.
    pub fn serial(self) -> u64 {
        self.0 & ((1 << TIER_SHIFT) - 1)
    }
}

/// The largest number of a tier.
pub const TIER_MAX: u8 = 126;

/// All numbers that a log counts with stay below this, so that counting on from any that was read cannot overflow.
pub(crate) const NUMBER_LIMIT: u64 = 1 << 63;

/// The first number that the shared counter hands out.
pub(crate) const FIRST_ID: u64 = 2;
