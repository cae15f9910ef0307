//! Delays and errors of the host, injected into a server (or into any other `tensorfs`) while it runs.
//!
//! A library that is preloaded (the package `tensorfs-preload`) stands between the program and libc. A test tells it by
//! [`Rule`]s which calls, on which files of the pool, are to wait or to fail:
//!
//! ```no_run
//! # use std::time::Duration;
//! # use tensorfs_tests::{Call, HostCalls, Rule, Setup};
//! # fn test(setup: Setup) {
//! let calls = HostCalls::new();
//! let mount = setup.host_calls(&calls).mount();
//! // The next fdatasync of any segment fails, once.
//! let failing = calls.add(Rule::of(Call::Fdatasync).on("/segments/").times(1).error(libc::EIO));
//! // ... what makes the server sync a segment ...
//! assert_eq!(failing.hits(), 1);
//! // From now on every open of a segment waits, until the test lets it go.
//! let held = calls.add(Rule::of(Call::Open).on("/segments/").held());
//! // ... start, in another thread or process, what opens one ...
//! held.wait_for_waiting(1);
//! // ... what must not wait for it ...
//! drop(held);
//! // A rule that does nothing counts. So a test can tell that the call it is about is reached at all.
//! let counting = calls.add(Rule::of(Call::Syncfs));
//! # let late = Duration::from_secs(5);
//! # calls.add(Rule::of(Call::Write).on("/log").skip(1).delay(late));
//! # let _ = counting.arrived();
//! # }
//! ```
//!
//! A rule counts until its [`Injected`] is dropped; what it holds goes on then. The path of a rule is that of the file
//! at the moment of the call, below the pool: `/log`, `/segments/3f/…`, `/quarantine/…`; a tier is another directory
//! ([`Rule::below`]). [`HostCalls::preload`] puts any other command (`check`, `info`, …) under the same rules.
//!
//! What this cannot do: what the kernel does for a program in passthrough is no call of the server. An error that is
//! injected says that a call failed, but nothing has failed: `fdatasync` drops no page, as a real disk's error does
//! (`FailingDisk` and the like do that). Stores into the log's mapping (`dax`) are no calls.

// The library has the same file, and uses the other half of it.
#[allow(dead_code)]
#[path = "../../preload/src/table.rs"]
mod table;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::built::built;
use crate::children::wait_until;
pub use table::Call;
use table::{ALWAYS, Table, VARIABLE};

/// So long at the most a call is held, should a test forget it.
const HELD: Duration = Duration::from_secs(300);

/// The means to disturb the calls that programs make of their host; see the top of this file.
#[derive(Debug, Clone)]
pub struct HostCalls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    table: &'static Table,
    file: tempfile::NamedTempFile,
    pool: Mutex<PathBuf>,
    /// Taken by whoever looks for a free rule.
    adding: Mutex<()>,
}

/// Which calls, and what becomes of them. Without [`Rule::delay`], [`Rule::held`] and [`Rule::error`] it only counts.
#[derive(Debug, Clone)]
pub struct Rule {
    calls: u64,
    below: Option<PathBuf>,
    part: String,
    skip: u64,
    times: u64,
    errno: i32,
    delay: Duration,
    after: bool,
    pid: i32,
}

/// A rule that counts until this is dropped.
#[derive(Debug)]
#[must_use = "the rule is off as soon as this is dropped"]
pub struct Injected {
    calls: HostCalls,
    at: usize,
}

impl Rule {
    /// About this call, on any file of the pool.
    pub fn of(call: Call) -> Rule {
        Rule::of_any([call])
    }

    /// About any of these calls.
    pub fn of_any(calls: impl IntoIterator<Item = Call>) -> Rule {
        Rule {
            calls: calls.into_iter().fold(0, |set, call| set | call.bit()),
            below: None,
            part: String::new(),
            skip: 0,
            times: ALWAYS,
            errno: 0,
            delay: Duration::ZERO,
            after: false,
            pid: 0,
        }
    }

    /// Only of this process, and not of others that it starts.
    pub fn by(mut self, pid: i32) -> Rule {
        self.pid = pid;
        self
    }

    /// Only on files whose path, from the pool's directory on, contains this.
    pub fn on(mut self, part: impl Into<String>) -> Rule {
        self.part = part.into();
        self
    }

    /// On files below another directory than the pool's: a tier, or one file by its path.
    pub fn below(mut self, path: &Path) -> Rule {
        self.below = Some(path.canonicalize().expect("a path that is there"));
        self
    }

    /// About requests of a kind, by its number in `enum fuse_opcode` of linux/fuse.h: for [`Call::Request`] and
    /// [`Call::Answer`].
    pub fn kind(mut self, kind: u32) -> Rule {
        self.below = Some(PathBuf::from("/dev/fuse"));
        self.part = format!("/{kind}/");
        self
    }

    /// Lets so many calls pass first.
    pub fn skip(mut self, calls: u64) -> Rule {
        self.skip = calls;
        self
    }

    /// Acts on so many calls, and then no more.
    pub fn times(mut self, times: u64) -> Rule {
        self.times = times;
        self
    }

    /// The call gives this error, and is not made.
    pub fn error(mut self, errno: i32) -> Rule {
        self.errno = errno;
        self
    }

    /// The call is made so much later.
    pub fn delay(mut self, delay: Duration) -> Rule {
        self.delay = delay;
        self
    }

    /// The call waits until the rule is dropped.
    pub fn held(self) -> Rule {
        self.delay(HELD)
    }

    /// The call is made first. It waits, or gives an error all the same, when it is done.
    pub fn after(mut self) -> Rule {
        self.after = true;
        self
    }
}

impl Default for HostCalls {
    fn default() -> Self {
        HostCalls::new()
    }
}

impl HostCalls {
    /// Without any rule.
    pub fn new() -> HostCalls {
        let file = tempfile::NamedTempFile::new().expect("a file for the rules");
        file.as_file().set_len(size_of::<Table>() as u64).expect("a file for the rules");
        let table = map(file.as_file());
        HostCalls(Arc::new(Shared { table, file, pool: Mutex::default(), adding: Mutex::default() }))
    }

    /// Rules are about files below this directory, from now on.
    pub fn set_pool(&self, pool: &Path) {
        *self.0.pool.lock().unwrap() = pool.canonicalize().expect("the pool is there");
    }

    /// Puts a command, and whatever it starts, under the rules.
    pub fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", library()).env(VARIABLE, self.0.file.path());
    }

    /// Has the clock of any other command be wrong by so many seconds.
    pub fn clock_off(command: &mut Command, seconds: i64) {
        command.env("LD_PRELOAD", library()).env("TENSORFS_CLOCK_OFF", seconds.to_string());
    }

    /// Has so much time go by for a process under the rules, at once: what it waits for in a call of the kernel comes
    /// no sooner. One process at a time.
    pub fn go_by(&self, pid: i32, time: Duration) {
        let (table, pid) = (self.0.table, pid.cast_unsigned());
        if table.forward_of.load(Ordering::Acquire) != pid {
            table.forward.store(0, Ordering::Release);
            table.forward_of.store(pid, Ordering::Release);
        }
        table.forward.fetch_add(time.as_secs(), Ordering::AcqRel);
    }

    /// Adds a rule. Of several that are about one call, the first that is not over decides.
    pub fn add(&self, rule: Rule) -> Injected {
        let _adding = self.0.adding.lock().unwrap();
        let free = |rule: &table::Rule| !rule.is_on() && rule.waiting.load(Ordering::Acquire) == 0;
        let at = self.0.table.rules.iter().position(free).expect("fewer rules at a time");
        let slot = &self.0.table.rules[at];
        let below = rule.below.unwrap_or_else(|| self.0.pool.lock().unwrap().clone());
        slot.under.set(below.as_os_str().as_bytes());
        slot.part.set(rule.part.as_bytes());
        slot.calls.store(rule.calls, Ordering::Relaxed);
        slot.skip.store(rule.skip, Ordering::Relaxed);
        slot.times.store(rule.times, Ordering::Relaxed);
        slot.errno.store(rule.errno as u32, Ordering::Relaxed);
        slot.after.store(rule.after.into(), Ordering::Relaxed);
        slot.pid.store(rule.pid.cast_unsigned(), Ordering::Relaxed);
        slot.delay.store(rule.delay.as_millis() as u64, Ordering::Relaxed);
        slot.arrived.store(0, Ordering::Relaxed);
        slot.hits.store(0, Ordering::Relaxed);
        slot.on.store(1, Ordering::Release);
        self.tell_wanted();
        Injected { calls: self.clone(), at }
    }

    fn tell_wanted(&self) {
        let on = self.0.table.rules.iter().filter(|rule| rule.is_on());
        let wanted = on.fold(0, |set, rule| set | rule.calls.load(Ordering::Relaxed));
        self.0.table.wanted.store(wanted, Ordering::Release);
    }
}

impl Injected {
    fn rule(&self) -> &table::Rule {
        &self.calls.0.table.rules[self.at]
    }

    /// How many calls came that it is about.
    pub fn arrived(&self) -> u64 {
        self.rule().arrived.load(Ordering::Acquire)
    }

    /// On how many of them it acted.
    pub fn hits(&self) -> u64 {
        self.rule().hits.load(Ordering::Acquire)
    }

    /// How many it keeps waiting at the moment.
    pub fn waiting(&self) -> u64 {
        self.rule().waiting.load(Ordering::Acquire)
    }

    /// Acts on no more calls; those that it keeps waiting go on to wait.
    pub fn no_more(&self) {
        self.rule().times.store(0, Ordering::Release);
    }

    /// Those that it kept waiting were of a program that was killed, and wait no more.
    pub fn were_killed(&self) {
        self.rule().waiting.store(0, Ordering::Release);
    }

    /// Waits until it keeps so many calls waiting.
    #[track_caller]
    pub fn wait_for_waiting(&self, calls: u64) {
        wait_until("a call of the host that is held", || self.waiting() >= calls);
    }

    /// Waits until it has acted on so many calls.
    #[track_caller]
    pub fn wait_for_hits(&self, calls: u64) {
        wait_until("a call of the host that is disturbed", || self.hits() >= calls);
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        let _adding = self.calls.0.adding.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.rule().on.store(0, Ordering::Release);
        self.calls.tell_wanted();
    }
}

/// The library, built once.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| built("tensorfs-preload", "libtensorfs_preload.so"))
}

fn map(file: &File) -> &'static Table {
    let (protection, len) = (libc::PROT_READ | libc::PROT_WRITE, size_of::<Table>());
    // SAFETY: a new mapping of a file that is as long as a table.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    // SAFETY: the mapping is as large as a table, aligned to a page, and stays; a table is made of atomics alone, for
    // which any bytes will do.
    unsafe { &*at.cast::<Table>() }
}
