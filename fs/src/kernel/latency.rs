//! Processors that sleep deeply answer late: going to sleep between a client's request and its answer costs more than
//! both. While requests arrive one after the other, the processors are asked to sleep lightly, by what is written to
//! `/dev/cpu_dma_latency`, which root may open (the kernel's PM QoS interface). What that costs is power, so it is
//! taken back as soon as there are no requests.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
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
/// The microseconds that waking up may take: none, and as long as it likes (`PM_QOS_CPU_LATENCY_DEFAULT_VALUE` of the
/// kernel's `include/linux/pm_qos.h`).
const NONE: i32 = 0;
const ANY: i32 = 2_000_000_000;
/// Without a request for so long, the processors may sleep as they like again. Two requests that are not further apart
/// belong together.
const QUIET: Duration = Duration::from_millis(20);

/// Keeps the processors from sleeping deeply while requests arrive.
pub(crate) struct Latency {
    /// Open as long as the server serves, who may have given up the right to open it.
    device: Option<File>,
    /// Why the processors are left alone, if they are.
    reason: Option<String>,
    /// When the last request came, in milliseconds.
    last: AtomicU64,
    /// They are kept from it, or about to be.
    held: AtomicBool,
    stop: Mutex<bool>,
    rung: Condvar,
    /// How often they were.
    holds: Counter,
}

impl Latency {
    /// Finds out whether it can be done.
    pub fn new(mode: LatencyMode) -> Self {
        match mode {
            LatencyMode::Off => Self::on(Err("switched off".to_owned())),
            LatencyMode::Auto => {
                Self::on(open(DEVICE.as_ref()).map_err(|error| format!("{DEVICE}: {}", reason(&error))))
            }
        }
    }

    fn on(device: Result<File, String>) -> Self {
        let (device, reason) = match device {
            Ok(device) => (Some(device), None),
            Err(reason) => (None, Some(reason)),
        };
        Self {
            device,
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
            self.ask_for(NONE);
            self.holds.add(1);
            stop = self.stop.lock();
            while !*stop && is_recent(self.last.load(Relaxed), now()) {
                self.rung.wait_for(&mut stop, QUIET);
            }
            self.ask_for(ANY);
            self.held.store(false, Relaxed);
        }
    }

    /// Waking up may take so many microseconds.
    fn ask_for(&self, microseconds: i32) {
        let written = self.device.iter().try_for_each(|mut device| device.write_all(&microseconds.to_ne_bytes()));
        if let Err(error) = written {
            log::debug!("{DEVICE}: {error}");
        }
    }
}

/// The thread that writes to the device; it ends when this is dropped.
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

/// Opens the device, and asks for nothing yet.
fn open(device: &Path) -> io::Result<File> {
    let mut file = File::options().write(true).open(device)?;
    file.write_all(&ANY.to_ne_bytes())?;
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
        let latency = Arc::new(Latency::on(Ok(open(device.path()).unwrap())));
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
        let written = std::fs::read(device.path()).unwrap();
        let asked: Vec<_> = written.chunks(4).map(|bytes| i32::from_ne_bytes(bytes.try_into().unwrap())).collect();
        assert_eq!(asked, [ANY, NONE, ANY, NONE, ANY]);
    }

    #[test]
    fn a_request_on_its_own_holds_nothing() {
        let device = tempfile::NamedTempFile::new().unwrap();
        let latency = Latency::on(Ok(open(device.path()).unwrap()));
        latency.last.store(0, Relaxed);
        latency.note();
        assert!(!latency.held.load(Relaxed));
    }

    #[test]
    fn says_why_it_does_nothing() {
        assert_eq!(Latency::new(LatencyMode::Off).reason(), Some("switched off"));
        let missing = open(Path::new("/nonexistent")).unwrap_err();
        assert_eq!(reason(&missing), "the kernel has no such device");
    }
}
