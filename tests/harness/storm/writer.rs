//! Follows a plan on a real mount.

use super::ledger::Entering;
use super::log_writes::Marker;
use super::{Op, Plan, Step};
use std::ffi::CString;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Follows the plan below `mount` until something fails, or for `steps` steps, and enters each step into the ledger
/// once it has returned. With a `marker`, it is marked in the log of the device below as well.
pub fn write(
    mut plan: Plan,
    mount: &Path,
    ledger: &Path,
    steps: usize,
    mut marker: Option<Marker>,
) -> io::Result<Option<io::Error>> {
    let mut entering = Entering::open(ledger)?;
    let mut hand = Hand { root: mount.join(plan.directory()), file: None };
    // Modes are what the plan says.
    // SAFETY: plain system call.
    unsafe { libc::umask(0o022) };
    for n in 0..steps {
        let op = plan.op(n).clone();
        let bytes = match op {
            Op::Write { offset, len } | Op::Store { offset, len } => plan.bytes(n, offset, len),
            _ => Vec::new(),
        };
        let began = monotonic();
        let done = hand.does(&op, &bytes);
        let ended = monotonic();
        if let Err(error) = done {
            entering.error(error.raw_os_error().unwrap_or(0))?;
            let error = io::Error::other(format!("step {n}, {op:?}: {error}"));
            return Ok(Some(error));
        }
        if let Some(marker) = &mut marker {
            marker.mark(&format!("{}:{}", plan.seed(), n + 1))?;
        }
        entering.step(Step { began, ended })?;
    }
    Ok(None)
}

fn monotonic() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(0, |at| at.tv_sec() as u64 * 1_000_000_000 + at.tv_nsec() as u64)
}

struct Hand {
    root: PathBuf,
    file: Option<File>,
}

impl Hand {
    fn at(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.root.clone() } else { self.root.join(name) }
    }

    fn opens(&mut self, name: &str, options: &mut OpenOptions) -> io::Result<()> {
        self.file = Some(options.read(true).write(true).mode(0o644).open(self.at(name))?);
        Ok(())
    }

    fn does(&mut self, op: &Op, bytes: &[u8]) -> io::Result<()> {
        match op {
            Op::Mkdir(name) => std::fs::create_dir(self.at(name)),
            Op::Rmdir(name) => std::fs::remove_dir(self.at(name)),
            Op::Create(name) => self.opens(name, OpenOptions::new().create_new(true)),
            Op::Open(name) => self.opens(name, &mut OpenOptions::new()),
            Op::Replace(name) => self.opens(name, OpenOptions::new().truncate(true)),
            Op::Write { offset, .. } => self.open().write_all_at(bytes, *offset),
            Op::Store { offset, .. } => store(self.open(), *offset, bytes),
            Op::Truncate(size) => self.open().set_len(*size),
            Op::Fsync => self.open().sync_all(),
            Op::Fdatasync => self.open().sync_data(),
            Op::Close => close(self.file.take().expect("the plan has a file open")),
            Op::Rename(from, to) => std::fs::rename(self.at(from), self.at(to)),
            Op::Exchange(a, b) => exchange(&self.at(a), &self.at(b)),
            Op::Link(from, to) => std::fs::hard_link(self.at(from), self.at(to)),
            Op::Unlink(name) => std::fs::remove_file(self.at(name)),
            Op::Chmod(name, mode) => std::fs::set_permissions(self.at(name), Permissions::from_mode(*mode)),
            Op::FsyncDir(name) => File::open(self.at(name))?.sync_all(),
        }
    }

    fn open(&self) -> &File {
        self.file.as_ref().expect("the plan has a file open")
    }
}

/// Closes a file and hears what closing says.
fn close(file: File) -> io::Result<()> {
    nix::unistd::close(file).map_err(io::Error::from)
}

fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    let (a, b) = (CString::new(a.as_os_str().as_bytes())?, CString::new(b.as_os_str().as_bytes())?);
    // SAFETY: two NUL-terminated paths.
    let done = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            a.as_ptr(),
            libc::AT_FDCWD,
            b.as_ptr(),
            libc::RENAME_EXCHANGE,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Stores bytes through a shared mapping, and waits until they are durable.
fn store(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let start = offset & !4095;
    let len = (offset - start) as usize + bytes.len();
    // SAFETY: a fresh mapping of a file that nobody else makes shorter; unmapped below.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            start as i64,
        )
    };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // A page that a dead server cannot give ends the writer with SIGBUS: its ledger says so by ending.
    // SAFETY: inside the mapping.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.cast::<u8>().add((offset - start) as usize), bytes.len());
    }
    // SAFETY: the mapping made above.
    let synced =
        if unsafe { libc::msync(map, len, libc::MS_SYNC) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: the same; nothing refers to it any more.
    unsafe { libc::munmap(map, len) };
    synced
}
