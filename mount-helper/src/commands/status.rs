//! Exit statuses that several commands share.

/// Something is damaged.
pub const DAMAGED: u8 = 4;
