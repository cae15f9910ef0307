//! A clock that is wrong: so many seconds are added to the time of day as the host has it; and time that goes by at
//! once, for one process, as a test says.

use std::sync::atomic::{AtomicI64, Ordering};

use libc::{c_int, clockid_t, timespec};

use crate::judge;
use crate::real::Real;

/// Nobody has looked yet at what the environment says.
const UNKNOWN: i64 = i64::MIN;

static OFF: AtomicI64 = AtomicI64::new(UNKNOWN);

/// Whoever asks for the time may not ask for memory: libc's own functions look, and nothing is kept but the number.
fn off() -> i64 {
    let known = OFF.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known;
    }
    // SAFETY: the name ends with NUL, and nobody changes the environment of a program that was just started.
    let said = unsafe { libc::getenv(c"TENSORFS_CLOCK_OFF".as_ptr()) };
    // SAFETY: a value of the environment ends with NUL.
    let off = if said.is_null() { 0 } else { unsafe { libc::atoll(said) } };
    OFF.store(off, Ordering::Relaxed);
    off
}

// SAFETY: takes the place of libc's function of this name and type, as a preloaded library is meant to.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, to: *mut timespec) -> c_int {
    static REAL: Real = Real::new(c"clock_gettime");
    // SAFETY: the function has this type.
    let real: unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int = unsafe { std::mem::transmute(REAL.get()) };
    // SAFETY: the arguments are handed on as they came.
    let done = unsafe { real(clock, to) };
    let more = match clock {
        libc::CLOCK_REALTIME => off(),
        libc::CLOCK_MONOTONIC => judge::forward() as i64,
        _ => 0,
    };
    if done == 0 && more != 0 {
        // SAFETY: the call has just filled it.
        unsafe { (*to).tv_sec += more };
    }
    done
}
