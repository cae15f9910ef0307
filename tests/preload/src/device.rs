//! Requests as they come from `/dev/fuse`, and the answers to them: `struct fuse_in_header` and
//! `struct fuse_out_header` of linux/fuse.h.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::place::{self, Places};

const DEVICE: &str = "/dev/fuse";

/// Set in the number of a request that the kernel sends again.
const SENT_AGAIN: u64 = 1 << 63;

/// Which kind the requests that are being answered are of: the number of the request, and its kind in the highest bits.
/// More at a time than there are places here would be taken for each other.
static ASKED: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];

const KIND: u32 = 48;

/// Whether a descriptor is of the device.
pub fn is(fd: c_int) -> bool {
    place::of(fd)[0].as_deref() == Some(Path::new(DEVICE))
}

/// Which kind of request this is.
pub fn asked(request: &[u8]) -> Option<u32> {
    let kind = u32::from_ne_bytes(request.get(4..8)?.try_into().ok()?);
    let unique = unique(request)?;
    slot(unique).store(unique & ((1 << KIND) - 1) | u64::from(kind) << KIND, Ordering::Release);
    Some(kind)
}

/// Which kind of request this answers.
pub fn answered(answer: &[u8]) -> Option<u32> {
    let unique = unique(answer)?;
    let asked = slot(unique).load(Ordering::Acquire);
    (asked & ((1 << KIND) - 1) == unique & ((1 << KIND) - 1)).then_some((asked >> KIND) as u32)
}

/// Where rules look for a kind.
pub fn place(kind: u32) -> Places {
    [Some(PathBuf::from(format!("{DEVICE}/{kind}/"))), None]
}

/// In both headers at the same place.
fn unique(header: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(header.get(8..16)?.try_into().ok()?) & !SENT_AGAIN)
}

/// The kernel counts requests in steps of two.
fn slot(unique: u64) -> &'static AtomicU64 {
    &ASKED[(unique / 2) as usize % ASKED.len()]
}
