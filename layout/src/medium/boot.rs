//! This boot of the machine: what is only in memory does not survive it.

use std::fs;
use std::sync::OnceLock;

/// As it was when it was asked first: who is locked in later may not be able to ask.
static THIS: OnceLock<[u8; 16]> = OnceLock::new();

/// This boot of the machine; zeroes, which no recovery takes for the same boot, if it cannot be known.
pub(crate) fn boot_id(given: Option<[u8; 16]>) -> [u8; 16] {
    given.unwrap_or_else(|| *THIS.get_or_init(asked))
}

fn asked() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text.bytes().filter_map(|c| (c as char).to_digit(16).map(|d| d as u8)).collect();
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    id
}
