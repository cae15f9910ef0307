//! Processors that sleep deeply answer late: going to sleep between a client's request and its answer costs more than
//! both. While requests arrive one after the other, the processors are asked to sleep lightly, which root may ask for
//! as long as it keeps `/dev/cpu_dma_latency` open (the kernel's PM QoS interface). What that costs is power, so it is
//! let go of as soon as there are no requests.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use parking_lot::{Condvar, Mutex};

use crate::options::LatencyMode;
use crate::store::Counter;

/// The kernel's interface.
const DEVICE: &str = "/dev/cpu_dma_latency";
/// Without a request for so long, the processors may sleep as they like again. Two requests that are not further apart
/// belong together.
const QUIET: Duration = Duration::from_millis(20);

/// Keeps the processors from sleeping deeply while requests arrive.
pub(crate) struct Latency {
    device: PathBuf,
    /// Why the processors are left alone, if they are.
    reason: Option<String>,
    /// When the last request came, in milliseconds.
    last: AtomicU64,
    /// The device is open, or about to be.
    held: AtomicBool,
    stop: Mutex<bool>,
    rung: Condvar,
    /// How often the device was opened.
    holds: Counter,
}

impl Latency {
    /// Finds out whether it can be done.
    pub fn new(mode: LatencyMode) -> Self {
        match mode {
            LatencyMode::Off => Self::on(DEVICE.as_ref(), Some("switched off".to_owned())),
            LatencyMode::Auto => {
                let tried = hold(DEVICE.as_ref());
                Self::on(DEVICE.as_ref(), tried.err().map(|error| format!("{DEVICE}: {}", reason(&error))))
            }
        }
    }

    fn on(device: &Path, reason: Option<String>) -> Self {
        Self {
            device: device.into(),
            reason,
            last: AtomicU64::new(0),
            held: AtomicBool::new(false),
            stop: Mutex::new(false),
            rung: Condvar::new(),
            holds: Counter::default(),
        }
    }

    /// Why the processors are left alone, if they are.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// A request was answered.
    pub fn note(&self) {
        if self.reason.is_some() {
            return;
        }
        let now = now();
        let before = self.last.swap(now, Relaxed);
        if !self.held.load(Relaxed) && is_recent(before, now) && !self.held.swap(true, Relaxed) {
            let _stop = self.stop.lock();
            self.rung.notify_one();
        }
    }

    fn serve(&self) {
        let mut stop = self.stop.lock();
        while !*stop {
            if !self.held.load(Relaxed) {
                self.rung.wait(&mut stop);
                continue;
            }
            drop(stop);
            let device = hold(&self.device).inspect_err(|error| log::debug!("{}: {error}", self.device.display()));
            self.holds.add(1);
            stop = self.stop.lock();
            while !*stop && is_recent(self.last.load(Relaxed), now()) {
                self.rung.wait_for(&mut stop, QUIET);
            }
            drop(device);
            self.held.store(false, Relaxed);
        }
    }
}

/// The thread that opens and closes the device; it ends when this is dropped.
pub(crate) struct Vigil {
    latency: Arc<Latency>,
    thread: Option<JoinHandle<()>>,
}

impl Vigil {
    /// Starts it, if there is anything to do for it.
    pub fn start(latency: Arc<Latency>) -> io::Result<Self> {
        let served = latency.clone();
        let start = || thread::Builder::new().name("tensorfs-awake".into()).spawn(move || served.serve());
        let thread = if latency.reason.is_none() { Some(start()?) } else { None };
        Ok(Self { latency, thread })
    }
}

impl Drop for Vigil {
    fn drop(&mut self) {
        *self.latency.stop.lock() = true;
        self.latency.rung.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Asks for no sleep that takes time to wake up from, until what is returned is dropped.
fn hold(device: &Path) -> io::Result<File> {
    let mut file = File::options().write(true).open(device)?;
    file.write_all(&0i32.to_ne_bytes())?;
    Ok(file)
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "the kernel has no such device".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => tensorfs_layout::reason(error),
    }
}

/// A clock that is cheap to read, in milliseconds.
fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE);
    // It cannot fail on Linux.
    time.map_or(0, |time| Duration::from(time).as_millis() as u64)
}

fn is_recent(then: u64, now: u64) -> bool {
    u128::from(now.saturating_sub(then)) < QUIET.as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_until(what: impl Fn() -> bool) {
        while !what() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn requests_in_a_row_hold_the_device_and_quiet_lets_go() {
        let device = tempfile::NamedTempFile::new().unwrap();
        let latency = Arc::new(Latency::on(device.path(), None));
        let vigil = Vigil::start(latency.clone()).unwrap();
        for holds in 1..3 {
            // The first of a row is not enough: nobody knows yet that there will be another one.
            wait_until(|| {
                latency.note();
                latency.holds.get() == holds
            });
            wait_until(|| !latency.held.load(Relaxed));
        }
        drop(vigil);
        assert_eq!(std::fs::read(device.path()).unwrap(), 0i32.to_ne_bytes());
    }

    #[test]
    fn a_request_on_its_own_holds_nothing() {
        let latency = Latency::on(Path::new("/nonexistent"), None);
        latency.last.store(0, Relaxed);
        latency.note();
        assert!(!latency.held.load(Relaxed));
    }

    #[test]
    fn says_why_it_does_nothing() {
        assert_eq!(Latency::new(LatencyMode::Off).reason(), Some("switched off"));
        let missing = hold(Path::new("/nonexistent")).unwrap_err();
        assert_eq!(reason(&missing), "the kernel has no such device");
    }
}
