//! This boot of the machine: what is only in memory does not survive it.

use std::fs::{self};

/// This boot of the machine; zeroes, which no recovery takes for the same boot, if it cannot be known.
pub(crate) fn boot_id(given: Option<[u8; 16]>) -> [u8; 16] {
    given.unwrap_or_else(|| {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: Vec<u8> = text.bytes().filter_map(|c| (c as char).to_digit(16).map(|d| d as u8)).collect();
        let mut id = [0; 16];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        id
    })
}
