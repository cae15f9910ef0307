//! What becomes of a call.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::place::Places;
use crate::real::Real;
use crate::table::{ALWAYS, Call, Rule, Table, VARIABLE};

/// How often a call that is kept waiting looks whether the rule is still on.
const LOOK: Duration = Duration::from_millis(1);

/// Makes a call, unless a rule says otherwise. `failed` is what the function returns beside an error.
pub fn call<R>(call: Call, places: impl FnOnce() -> Places, failed: R, real: impl FnOnce() -> R) -> R {
    let Some(table) = table().filter(|table| table.wanted.load(Ordering::Acquire) & call.bit() != 0) else {
        return real();
    };
    let places = places();
    // Every rule counts the call; the first that has something to say of it is heard.
    let about = table.rules.iter().filter(|rule| is_about(rule, call, &places));
    let Some(rule) = about.fold(None, |heard, rule| if acts(rule) { heard.or(Some(rule)) } else { heard }) else {
        return real();
    };
    if rule.after.load(Ordering::Relaxed) == 1 {
        let done = real();
        let errno = errno();
        wait(rule);
        return match rule.errno.load(Ordering::Relaxed) {
            0 => {
                set_errno(errno);
                done
            }
            errno => {
                set_errno(errno as i32);
                failed
            }
        };
    }
    // Before it waits: a rule that is switched off while a call waits lets that call do what it came for.
    let errno = rule.errno.load(Ordering::Relaxed);
    wait(rule);
    match errno {
        0 => real(),
        errno => {
            set_errno(errno as i32);
            failed
        }
    }
}

/// Whether a rule is about any of these calls.
pub fn is_wanted(calls: &[Call]) -> bool {
    let wanted = table().map_or(0, |table| table.wanted.load(Ordering::Acquire));
    calls.iter().any(|call| wanted & call.bit() != 0)
}

/// By how many seconds time has gone on for this process.
pub fn forward() -> u64 {
    // Of most processes nobody asks that, and a clock is read often.
    let is_this = |table: &&Table| match table.forward_of.load(Ordering::Acquire) {
        0 => false,
        pid => pid == std::process::id(),
    };
    table().filter(is_this).map_or(0, |table| table.forward.load(Ordering::Acquire))
}

fn is_about(rule: &Rule, call: Call, places: &Places) -> bool {
    let fits = |path: &Path| {
        let path = path.as_os_str().as_bytes();
        rule.under.rest_of(path).is_some_and(|rest| rule.part.is_in(rest))
    };
    let pid = rule.pid.load(Ordering::Relaxed);
    rule.is_on()
        && (pid == 0 || pid == std::process::id())
        && rule.calls.load(Ordering::Relaxed) & call.bit() != 0
        && places.iter().flatten().any(|path| fits(path))
}

/// Counts the call. Whether the rule acts on it.
fn acts(rule: &Rule) -> bool {
    let before = rule.arrived.fetch_add(1, Ordering::AcqRel);
    if before < rule.skip.load(Ordering::Relaxed) {
        return false;
    }
    let one_less = |times| match times {
        0 => None,
        ALWAYS => Some(ALWAYS),
        times => Some(times - 1),
    };
    let acts = update(&rule.times, one_less);
    if acts {
        rule.hits.fetch_add(1, Ordering::AcqRel);
    }
    acts
}

fn update(value: &AtomicU64, change: impl FnMut(u64) -> Option<u64>) -> bool {
    value.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
}

fn wait(rule: &Rule) {
    let delay = Duration::from_millis(rule.delay.load(Ordering::Relaxed));
    if delay.is_zero() {
        return;
    }
    rule.waiting.fetch_add(1, Ordering::AcqRel);
    let since = Instant::now();
    while rule.is_on() && since.elapsed() < delay {
        std::thread::sleep(LOOK);
    }
    rule.waiting.fetch_sub(1, Ordering::AcqRel);
}

fn errno() -> i32 {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

fn set_errno(errno: i32) {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno };
}

/// The table of this process, if a test gave it one. It stays mapped until the process ends.
fn table() -> Option<&'static Table> {
    static TABLE: OnceLock<Option<&'static Table>> = OnceLock::new();
    *TABLE.get_or_init(map)
}

/// Calls libc itself: our own functions would ask for the table again.
fn map() -> Option<&'static Table> {
    static OPEN: Real = Real::new(c"open64");
    static MMAP: Real = Real::new(c"mmap64");
    type Open = unsafe extern "C" fn(*const libc::c_char, libc::c_int, libc::mode_t) -> libc::c_int;
    type Mmap = unsafe extern "C" fn(*mut libc::c_void, usize, i32, i32, i32, i64) -> *mut libc::c_void;
    // SAFETY: this is the type of libc's function, in the way that variadic ones are called.
    let open: Open = unsafe { std::mem::transmute(OPEN.get()) };
    // SAFETY: this is the type of libc's function.
    let mmap: Mmap = unsafe { std::mem::transmute(MMAP.get()) };
    let mut name = [0; 64];
    name[..VARIABLE.len()].copy_from_slice(VARIABLE.as_bytes());
    // SAFETY: the name ends with NUL.
    let path = unsafe { libc::getenv(name.as_ptr().cast()) };
    if path.is_null() {
        return None;
    }
    // SAFETY: the path ends with NUL, as all that the environment holds.
    let fd = unsafe { open(path, libc::O_RDWR | libc::O_CLOEXEC, 0) };
    if fd < 0 {
        return None;
    }
    let (protection, len) = (libc::PROT_READ | libc::PROT_WRITE, size_of::<Table>());
    // SAFETY: a new mapping, of a file that the test has made large enough.
    let at = unsafe { mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
    // SAFETY: the descriptor is ours.
    unsafe { libc::close(fd) };
    // SAFETY: the mapping is as large as a table, aligned to a page, and stays; a table is made of atomics alone, for
    // which any bytes will do.
    (at != libc::MAP_FAILED).then(|| unsafe { &*at.cast::<Table>() })
}
