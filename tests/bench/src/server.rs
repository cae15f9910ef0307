//! A filesystem's server as a child of ours, mounted from here to the end of its life.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};

use crate::error::Result;
use crate::process::own;

/// A running server.
pub struct Server {
    child: Child,
    mountpoint: PathBuf,
}

impl Server {
    /// Starts a server that stays in the foreground, and waits until it is mounted.
    pub fn start(mut command: Command, mountpoint: &Path, log: &Path) -> Result<Server> {
        // Not its parents: a room that has just been swept must not come back.
        match std::fs::create_dir(mountpoint) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        let before = mountpoint.metadata()?.dev();
        let file = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = own(&mut command).spawn().map_err(|e| format!("{command:?}: {e}"))?;
        let mut server = Server { child, mountpoint: mountpoint.to_owned() };
        let deadline = Instant::now() + Duration::from_secs(60);
        while mountpoint.metadata()?.dev() == before {
            let ended = server.child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(log).unwrap_or_default();
                return Err(format!("no mount: {}", log.lines().last().unwrap_or("no reason given")).into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(server)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time that the server has used, in seconds.
    pub fn cpu(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        // The name, in brackets, may hold anything; utime and stime are the fields 14 and 15.
        let after = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
        let ticks: f64 = after.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum();
        // 100 a second, whatever the kernel is built with.
        Ok(ticks / 100.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for attempt in 0..50 {
            match umount2(&self.mountpoint, MntFlags::empty()) {
                Err(nix::Error::EBUSY) if attempt < 49 => std::thread::sleep(Duration::from_millis(100)),
                Err(nix::Error::EBUSY) => drop(umount2(&self.mountpoint, MntFlags::MNT_DETACH)),
                _ => break,
            }
        }
        // Time to write everything and close.
        for _ in 0..6000 {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
