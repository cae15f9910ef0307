//! An allocator that has memory there before the kernel writes to it.
//!
//! If a thread is killed while the kernel copies a request to it, and the page that it copies to is not there yet, the
//! kernel gives up, and answers the program that waits with `EIO` (`fuse_dev_do_read` in `fs/fuse/dev.c`, by way of
//! `fatal_signal_pending` in `mm/gup.c`). Where a keeper has another server take over, no program is to hear of a
//! server that is killed. fuser allocates the buffers for requests itself, 16 MiB each, and requests use the first
//! part of them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

/// Smaller blocks are no buffers for requests.
const LARGE: usize = 16 << 20;
/// What requests use of them: the largest write, and what goes before it.
const USED: usize = (1 << 20) + (64 << 10);
const PAGE: usize = 4096;

static ON: AtomicBool = AtomicBool::new(false);

/// From now on the memory of buffers for requests is there as soon as they are allocated.
pub fn touch_buffers() {
    ON.store(true, Ordering::Relaxed);
}

/// The system's allocator, but for buffers for requests.
#[derive(Debug)]
pub struct Touching;

// SAFETY: all that is asked is asked of the system's allocator; a block of zeroes is written zeroes to.
unsafe impl GlobalAlloc for Touching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller's.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller's.
        let block = unsafe { System.alloc_zeroed(layout) };
        if layout.size() >= LARGE && ON.load(Ordering::Relaxed) && !block.is_null() {
            for at in (0..USED).step_by(PAGE) {
                // SAFETY: the block is longer than that, and nobody else has it yet.
                unsafe { block.add(at).write_volatile(0) };
            }
        }
        block
    }
}
