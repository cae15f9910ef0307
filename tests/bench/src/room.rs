//! The one directory that a run works in, and its end.
//!
//! Pools, images, mounts and scratch files all lie below it, so cleaning up needs to know nothing else: unmount what is
//! mounted below it, newest first, and remove it. That happens at the end of a run, at a panic, at ctrl-C and at
//! SIGTERM; what a run that was killed left behind is swept by the next one in the same place. Loop devices go with
//! their mounts.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, umount2};

use crate::error::Result;

const PREFIX: &str = "tensorfs-bench.";

/// The room of this run, for the handler of signals.
static CURRENT: Mutex<Option<PathBuf>> = Mutex::new(None);

/// A directory of our own, gone when this is dropped.
pub struct Room {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Room {
    /// Sweeps what killed runs left in `parent`, and makes a new room there.
    pub fn new(parent: &Path) -> Result<Room> {
        std::fs::create_dir_all(parent).map_err(|e| format!("{}: {e}", parent.display()))?;
        let parent = parent.canonicalize().map_err(|e| format!("{}: {e}", parent.display()))?;
        for entry in parent.read_dir()?.flatten() {
            // A lock that can be had is one that nobody holds any more.
            if entry.file_name().to_string_lossy().starts_with(PREFIX) && lock(&entry.path()).is_ok() {
                eprintln!("sweeping what a killed run left: {}", entry.path().display());
                sweep(&entry.path());
            }
        }
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let lock = lock(&path)?;
        *CURRENT.lock().unwrap() = Some(path.clone());
        Ok(Room { path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if CURRENT.lock().unwrap_or_else(|e| e.into_inner()).take().is_some() {
            sweep(&self.path);
        }
    }
}

/// A lock on a room itself, held for as long as its run lives.
fn lock(path: &Path) -> Result<Flock<File>> {
    let directory = File::open(path)?;
    Flock::lock(directory, FlockArg::LockExclusiveNonblock)
        .map_err(|(_, error)| format!("{}: {error}", path.display()).into())
}

/// Whether the user or the system has asked for the end.
static STOP: AtomicBool = AtomicBool::new(false);

/// Whether the run is to end after this turn, with a report of what it has.
pub fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// At the first signal the run ends after its turn; at the second, at once. Both clean up.
pub fn end_on_signals() -> Result<()> {
    ctrlc::set_handler(|| {
        if !STOP.swap(true, Ordering::Relaxed) {
            eprintln!("\nending after this turn; once more to end at once");
            return;
        }
        // Held until the process ends, so that nothing else cleans up meanwhile.
        let mut room = CURRENT.lock().unwrap_or_else(|e| e.into_inner());
        eprintln!("\ncleaning up");
        if let Some(path) = room.take() {
            sweep(&path);
        }
        std::process::exit(130);
    })
    .map_err(|e| format!("signals: {e}").into())
}

/// Unmounts everything below a directory, and removes it.
fn sweep(path: &Path) {
    // What a measure in another thread mounts or makes meanwhile is caught in the next turn.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        for mount in mounts_below(path).iter().rev() {
            // What a measure still has open goes with this process.
            if umount2(mount, MntFlags::empty()).is_err() && Instant::now() + Duration::from_secs(58) > deadline {
                let _ = umount2(mount, MntFlags::MNT_DETACH);
            }
        }
        if mounts_below(path).is_empty() && std::fs::remove_dir_all(path).is_ok() {
            return;
        }
        if !path.exists() {
            return;
        }
        if Instant::now() > deadline {
            eprintln!("{}: could not be cleaned up", path.display());
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Mount points below a directory, oldest first.
fn mounts_below(path: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(mount_point).filter(|mount| mount.starts_with(path)).collect()
}

/// The mount point in a line of mountinfo.
fn mount_point(line: &str) -> Option<PathBuf> {
    let field = line.split(' ').nth(4)?;
    let plain = field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\");
    Some(PathBuf::from(plain))
}
