//! After an answer the thread that gave it watches for the next request for a moment, instead of going to sleep at
//! once: waking it up again takes longer than the moment. Only one thread does so at a time, and none if it has been in
//! vain: where client and server share a processor, or requests come with pauses between them.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// So long one waits for the next request: a bit longer than it takes a client to come back.
const MOMENT: Duration = Duration::from_micros(50);
/// After it has been in vain it is left out so many times, and up to so many times if it is in vain again and again.
const LEFT_OUT: (u32, u32) = (16, 1024);

/// What is known of the chances.
#[derive(Default)]
pub(crate) struct Linger {
    busy: AtomicBool,
    /// How often it is still left out.
    skip: AtomicU32,
    /// How often it was left out the last time.
    skipped: AtomicU32,
}

impl Linger {
    /// Waits a moment for the next request to arrive at the device. Takes nothing from it.
    pub fn wait(&self, device: impl AsFd) {
        let skip = self.skip.load(Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Relaxed);
            return;
        }
        if self.busy.swap(true, Relaxed) {
            return;
        }
        let begun = Instant::now();
        let arrived = loop {
            let mut fds = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::ZERO) {
                Ok(0) if begun.elapsed() < MOMENT => std::hint::spin_loop(),
                Ok(0) => break false,
                _ => break true,
            }
        };
        let skip = if arrived { 0 } else { (2 * self.skipped.load(Relaxed)).clamp(LEFT_OUT.0, LEFT_OUT.1) };
        self.skipped.store(skip, Relaxed);
        self.skip.store(skip, Relaxed);
        self.busy.store(false, Relaxed);
    }
}
