//! What is measured: the bare directory, tensorfs in its modes, and its peers, each on one backing.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backing;
use crate::error::{Missing, Result};
use crate::process::{find, run};
use crate::server::Server;

/// A kind of target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// the bare directory
    Native,
    /// tensorfs with passthrough and durability=fsync
    Tensorfs,
    /// tensorfs with durability=close
    Close,
    /// tensorfs with durability=write
    Write,
    /// tensorfs without passthrough
    Server,
    /// tensorfs with latency=off
    LatencyOff,
    /// bindfs
    Bindfs,
    /// mergerfs over one directory
    Mergerfs,
    /// files as linked lists in a pool of libpmemobj
    Ancestor,
}

/// Other filesystems in user space.
pub const PEERS: &[Kind] = &[Kind::Bindfs, Kind::Mergerfs];

impl Kind {
    /// Whether it is tensorfs in some mode.
    pub fn is_tensorfs(self) -> bool {
        matches!(self, Kind::Tensorfs | Kind::Close | Kind::Write | Kind::Server | Kind::LatencyOff)
    }

    /// Whether every byte goes through a server.
    pub fn copies(self) -> bool {
        matches!(self, Kind::Server | Kind::Write | Kind::Bindfs | Kind::Mergerfs)
    }

    fn name(self) -> String {
        self.to_possible_value().expect("a name").get_name().to_owned()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Kind::Native => "native",
            Kind::Tensorfs => "tensorfs",
            Kind::Close => "durability=close",
            Kind::Write => "durability=write",
            Kind::Server => "passthrough=off",
            Kind::LatencyOff => "latency=off",
            Kind::Bindfs => "bindfs",
            Kind::Mergerfs => "mergerfs",
            Kind::Ancestor => "libpmemobj",
        })
    }
}

/// The programs that targets are made with.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The `tensorfs` to measure.
    pub tensorfs: PathBuf,
    /// Whether it knows the option `latency`.
    pub latency: bool,
    /// The program over libpmemobj, or why there is none.
    pub ancestor: std::result::Result<PathBuf, String>,
}

/// A target on a backing, until this is dropped.
pub struct Target {
    pub kind: Kind,
    /// Where programs write.
    pub dir: PathBuf,
    /// Where the bytes lie on the backing.
    pub host: PathBuf,
    /// Programs to measure with.
    pub programs: Programs,
    server: Option<Server>,
}

impl Target {
    /// Makes and mounts it, or says why that cannot be.
    pub fn new(kind: Kind, backing: &backing::Mounted, room: &Path, programs: &Programs) -> Result<Target> {
        let host = backing.path.join(kind.name());
        std::fs::create_dir(&host)?;
        let mountpoint = room.join(format!("{}.mnt", kind.name()));
        let log = room.join(format!("{}.log", kind.name()));
        let path = |name: &str| find(name).ok_or_else(|| Missing(format!("{name} is not installed")));
        let command = match kind {
            Kind::Native => None,
            Kind::Ancestor => {
                programs.ancestor.as_ref().map_err(|reason| Missing(reason.clone()))?;
                None
            }
            Kind::LatencyOff if !programs.latency => {
                return Err(Missing("this tensorfs has no option latency".to_owned()).into());
            }
            Kind::Bindfs => {
                let mut command = Command::new(path("bindfs")?);
                command.args([
                    "-f",
                    "--multithreaded",
                    "-o",
                    "attr_timeout=3600,entry_timeout=3600,kernel_cache,big_writes",
                ]);
                command.arg(&host).arg(&mountpoint);
                Some(command)
            }
            Kind::Mergerfs => {
                let mut command = Command::new(path("mergerfs")?);
                let options = "cache.files=auto-full,cache.attr=3600,cache.entry=3600,cache.negative_entry=3600,\
                    cache.readdir=true,cache.symlinks=true,cache.statfs=3600,category.create=ff,minfreespace=0,\
                    security_capability=false";
                command.args(["-f", "-o", options]).arg(&host).arg(&mountpoint);
                Some(command)
            }
            Kind::Tensorfs | Kind::Close | Kind::Write | Kind::Server | Kind::LatencyOff => {
                run(Command::new(&programs.tensorfs).arg("create").arg(&host))?;
                let durability = match kind {
                    Kind::Close => "close",
                    Kind::Write => "write",
                    _ => "fsync",
                };
                let mut command = Command::new(&programs.tensorfs);
                command.args(["mount", "-f", "--durability", durability, "--log"]).arg(&log);
                command.args(["--passthrough", if kind == Kind::Server { "off" } else { "on" }]);
                if kind == Kind::LatencyOff {
                    command.args(["--latency", "off"]);
                }
                command.arg(&host).arg(&mountpoint);
                Some(command)
            }
        };
        let (dir, server) = match command {
            Some(command) => (mountpoint.clone(), Some(Server::start(command, &mountpoint, &log)?)),
            None => (host.clone(), None),
        };
        Ok(Target { kind, dir, host, programs: programs.clone(), server })
    }

    /// The server's process.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Server::pid)
    }

    /// Processor time of the server so far, in seconds; none without a server.
    pub fn cpu(&self) -> Result<f64> {
        self.server.as_ref().map_or(Ok(0.0), Server::cpu)
    }

    /// Makes everything durable, so that nothing of the last measure weighs on the next.
    pub fn settle(&self) -> Result<()> {
        // A commit, on tensorfs; it also removes from the host what was deleted.
        File::open(&self.dir)?.sync_all()?;
        nix::unistd::syncfs(File::open(&self.host)?)?;
        // The processors fall idle again, and what is done behind an answer is done.
        std::thread::sleep(Duration::from_millis(25));
        Ok(())
    }

    /// Waits until tensorfs has nothing more to do by itself (checksums of files that were closed).
    pub fn quiet(&self) -> Result<()> {
        self.settle()?;
        if self.kind.is_tensorfs() {
            let deadline = Instant::now() + Duration::from_secs(30);
            while self.info()?["unsealed_files"].as_u64() != Some(0) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// `tensorfs info --json`.
    pub fn info(&self) -> Result<Value> {
        let text = run(Command::new(&self.programs.tensorfs).arg("info").arg(&self.host).arg("--json"))?;
        serde_json::from_str(&text).map_err(|e| format!("info --json: {e}").into())
    }

    /// Removes a measure's directory.
    pub fn remove(&self, name: &str) -> Result<()> {
        let removed = std::fs::remove_dir_all(self.dir.join(name));
        if removed.is_err() && !self.kind.is_tensorfs() {
            // A listing that mergerfs has cached may be old.
            std::fs::remove_dir_all(self.host.join(name))?;
            return Ok(());
        }
        Ok(removed?)
    }

    /// Throws the target's clean pages out of memory, on the mount and behind it.
    pub fn evict(&self) -> Result<()> {
        self.settle()?;
        evict(&self.dir)?;
        evict(&self.host)
    }
}

fn evict(path: &Path) -> Result<()> {
    for entry in path.read_dir()? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            evict(&entry.path())?;
        } else if kind.is_file() {
            let file = File::open(entry.path())?;
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        }
    }
    Ok(())
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.server.take());
        let _ = std::fs::remove_dir_all(&self.host);
    }
}
