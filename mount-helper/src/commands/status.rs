//! Exit statuses that several commands share.

/// It is unmounted, but its server goes on.
pub const GOES_ON: u8 = 3;

/// Something is damaged.
pub const DAMAGED: u8 = 4;
