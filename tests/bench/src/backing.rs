//! The filesystems that everything is measured on.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::mount::{MntFlags, umount2};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::process::run;

/// A kind of host filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backing {
    /// the filesystem of --dir
    Host,
    /// ext4 with a journal, in a file of --dir
    Ext4,
    /// XFS with reflinks, in a file of --dir
    Xfs,
    /// tmpfs
    Tmpfs,
    /// tmpfs mounted huge=always
    TmpfsHuge,
}

/// All of them.
pub const ALL: &[Backing] = &[Backing::Host, Backing::Ext4, Backing::Xfs, Backing::Tmpfs, Backing::TmpfsHuge];
/// Those in memory.
pub const MEMORY: &[Backing] = &[Backing::Tmpfs, Backing::TmpfsHuge];
/// Those whose `fsync` reaches a disk.
pub const DISKS: &[Backing] = &[Backing::Host, Backing::Ext4, Backing::Xfs];

/// Most that a loop-mounted filesystem and a tmpfs may hold.
const IMAGE_BYTES: u64 = 6 << 30;
const MEMORY_BYTES: u64 = 6 << 30;

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Backing::Host => "host",
            Backing::Ext4 => "ext4, journal",
            Backing::Xfs => "XFS",
            Backing::Tmpfs => "tmpfs",
            Backing::TmpfsHuge => "tmpfs, huge",
        })
    }
}

/// A backing, there until this is dropped.
pub struct Mounted {
    pub kind: Backing,
    pub path: PathBuf,
}

impl Mounted {
    /// Makes the filesystem below the room.
    pub fn new(kind: Backing, room: &Path, steady: bool) -> Result<Mounted> {
        let name = kind.to_possible_value().expect("a name").get_name().to_owned();
        let path = room.join(&name);
        std::fs::create_dir(&path)?;
        let mounted = Mounted { kind, path };
        let image = mounted.image();
        if steady && matches!(kind, Backing::Ext4 | Backing::Xfs) {
            fill(&image)?;
        }
        match kind {
            Backing::Host => {}
            // The image is all zeroes, so nothing need initialise its tables; inodes enough for a million files.
            Backing::Ext4 => mounted.mount_image(
                &["mkfs.ext4", "-q", "-F", "-N", "2500000", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"],
                "noinit_itable",
                &image,
            )?,
            Backing::Xfs => {
                mounted.mount_image(&["mkfs.xfs", "-q", "-f", "-K", "-m", "reflink=1"], "defaults", &image)?
            }
            Backing::Tmpfs => mounted.mount_memory("huge=never")?,
            Backing::TmpfsHuge => mounted.mount_memory("huge=always")?,
        }
        Ok(mounted)
    }

    fn image(&self) -> PathBuf {
        self.path.with_extension("image")
    }

    fn mount_image(&self, mkfs: &[&str], options: &str, image: &Path) -> Result<()> {
        File::options().write(true).create(true).truncate(false).open(image)?.set_len(IMAGE_BYTES)?;
        run(Command::new(mkfs[0]).args(&mkfs[1..]).arg(image))?;
        // Direct I/O, so that nothing is cached twice. The loop device goes with the mount.
        let made = run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(image))?;
        let device = made.trim();
        let mounted = run(Command::new("mount").args(["-o", options, device]).arg(&self.path));
        // From now on it lives as long as the mount.
        let _ = run(Command::new("losetup").args(["--detach", device]));
        mounted.map(|_| ())
    }

    fn mount_memory(&self, huge: &str) -> Result<()> {
        let options = format!("{huge},size={MEMORY_BYTES},nr_inodes=4m");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&self.path)).map(|_| ())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.kind != Backing::Host {
            for _ in 0..50 {
                match umount2(&self.path, MntFlags::empty()) {
                    Err(nix::Error::EBUSY) => std::thread::sleep(Duration::from_millis(100)),
                    _ => break,
                }
            }
            let _ = std::fs::remove_file(self.image());
        }
        // What is still in it, or mounted, is the room's to sweep.
        let _ = std::fs::remove_dir(&self.path).or_else(|_| match self.kind {
            Backing::Host => std::fs::remove_dir_all(&self.path),
            _ => Ok(()),
        });
    }
}

/// Writes an image in full, so that no `fsync` on it has to wait until the host has found room for it.
fn fill(image: &Path) -> Result<()> {
    let mut file = File::create(image)?;
    let piece = vec![0; 1 << 20];
    for n in 0..IMAGE_BYTES >> 20 {
        file.write_all(&piece)?;
        if n % 256 == 255 {
            file.sync_data()?;
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        }
    }
    Ok(())
}

/// Gives everybody the same memory to start from: free, and in large pieces.
pub fn free_memory() {
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "1");
    compact_memory();
}

/// Has the kernel put free memory together, so that who comes later gets pieces as large as who came first.
pub fn compact_memory() {
    let _ = std::fs::write("/proc/sys/vm/compact_memory", "1");
}
