//! Exit statuses that several commands share.

/// It is unmounted, but its server goes on.
pub const GOES_ON: u8 = 3;

/// A file is as it was written, and was not written to its end.
pub const INTERRUPTED: u8 = 5;

/// Something is damaged.
pub const DAMAGED: u8 = 4;
