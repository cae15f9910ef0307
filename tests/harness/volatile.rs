//! A disk whose cache is lost with the power, and whose reads, writes and flushes can be made to fail.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};

use tempfile::TempDir;

use crate::children::{Child, run, run_ok, start, wait_until};
use crate::disk::{Disk, extents};
use crate::mount::{is_root, scratch};
use crate::mounted::Mounted;

/// Everything of a disk, or of a file.
pub const EVERYTHING: Range<u64> = 0..u64::MAX;

/// What can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Reading sectors.
    Read,
    /// Writing them, to the cache at least.
    Write,
    /// Writing the cache out.
    Flush,
}

impl Request {
    fn name(self) -> &'static str {
        match self {
            Request::Read => "read",
            Request::Write => "write",
            Request::Flush => "flush",
        }
    }
}

/// A filesystem on a loop device on a file that a program serves (`harness/bin/disk`): device-mapper is not needed.
///
/// Whoever has a file of it open must be gone before it is dropped; else what they write fails from then on.
#[derive(Debug)]
pub struct VolatileDisk {
    // In the order in which they end.
    above: Option<Mounted>,
    _below: Mounted,
    program: Mutex<Child>,
    room: TempDir,
    is_xfs: bool,
}

impl VolatileDisk {
    /// A disk of so many mebibytes with a filesystem of this kind, or why there is none.
    pub fn new(mkfs: &[&str], mebibytes: u64) -> Result<VolatileDisk, String> {
        VolatileDisk::mounted_with(mkfs, mebibytes, "loop")
    }

    /// With options of its mount, `loop` among them; otherwise as [`VolatileDisk::new`].
    pub fn mounted_with(mkfs: &[&str], mebibytes: u64, options: &str) -> Result<VolatileDisk, String> {
        if !is_root() {
            return Err("needs root, to mount a filesystem".to_owned());
        }
        // Of the same name as the disk that it is an image of, it could not be mounted beside that.
        let is_xfs = mkfs[0].ends_with("xfs");
        let room = scratch();
        let image = room.path().join("image");
        std::fs::File::create(&image).and_then(|image| image.set_len(mebibytes << 20)).map_err(|e| e.to_string())?;
        let made = Command::new(mkfs[0]).args(&mkfs[1..]).arg(&image).output();
        if !made.is_ok_and(|output| output.status.success()) {
            return Err(format!("{} cannot make a filesystem here", mkfs[0]));
        }
        let (below, above) = (room.path().join("below"), room.path().join("above"));
        std::fs::create_dir(&below).and_then(|()| std::fs::create_dir(&above)).map_err(|error| error.to_string())?;
        let mut program = start("tensorfs-test-disk", [&below, &image]);
        let ready = program.try_answer()?;
        let below = Mounted::adopt(&below);
        assert_eq!(ready, "ready");
        std::fs::remove_file(&image).map_err(|error| error.to_string())?;
        let mut disk = VolatileDisk { above: None, _below: below, program: Mutex::new(program), room, is_xfs };
        disk.mount(options)?;
        Ok(disk)
    }

    fn mount(&mut self, options: &str) -> Result<(), String> {
        let (file, at) = (self.room.path().join("below/disk"), self.room.path().join("above"));
        self.above = Some(Mounted::new(Command::new("mount").args(["-o", options]).arg(file), &at)?);
        Ok(())
    }

    /// Unmounts it, and mounts it again: nothing of it is in memory then.
    pub fn remount(&mut self, options: &str) {
        let above = self.above.take().expect("a mounted disk");
        wait_until("the disk can be unmounted", || nix::mount::umount(above.path()).is_ok());
        std::mem::forget(above);
        self.mount(options).expect("what could be mounted before");
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.room.path().join("above")
    }

    /// A path on it.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// From now on such requests that touch these bytes fail with `EIO`, so many of them, or all.
    pub fn fail(&self, request: Request, bytes: Range<u64>, times: Option<u64>) {
        self.ask(&format!("fail {} {} {} {}", request.name(), bytes.start, bytes.end, times.unwrap_or(0)));
    }

    /// From now on writes of sectors fail that hold a text without spaces, whatever else the filesystem writes.
    pub fn fail_writes_of(&self, text: &str, times: Option<u64>) {
        self.ask(&format!("fail write 0 {} {} {text}", u64::MAX, times.unwrap_or(0)));
    }

    /// From now on such requests fail that touch these bytes of a file, which are on the disk already.
    pub fn fail_in(&self, request: Request, path: &Path, bytes: &Range<u64>) {
        let mut hit = 0;
        for (logical, physical, len) in extents(path) {
            let (start, end) = (bytes.start.max(logical), bytes.end.min(logical + len));
            if start < end {
                self.fail(request, physical + start - logical..physical + end - logical, None);
                hit += end - start;
            }
        }
        assert!(hit > 0, "{} has no extents there", path.display());
    }

    /// From now on such requests are answered so much later.
    pub fn slow(&self, request: Request, by: std::time::Duration) {
        self.ask(&format!("slow {} {}", request.name(), by.as_millis()));
    }

    /// Nothing fails or is slow any more.
    pub fn mend(&self) {
        self.ask("work");
    }

    /// How many such requests failed so far.
    pub fn failed(&self, request: Request) -> u64 {
        self.ask(&format!("failed {}", request.name())).parse().expect("a number")
    }

    /// What is left if power is lost now: of what no flush has followed nothing (0), everything (1), or a part that the
    /// seed chooses, sector by sector.
    pub fn after_power_loss(&self, seed: u64) -> Disk {
        /// XFS may find one of its own directories torn, and mount nothing: another part is lost then.
        const OTHERS: u64 = 5;
        let others = if self.is_xfs { OTHERS } else { 0 };
        let mut found = self.after_losing(seed);
        for n in 1..=others {
            found = found.or_else(|why| {
                eprintln!("seed {seed}: {why}");
                self.after_losing(n * 1_000_000 + seed)
            });
        }
        found.expect("what another disk could do")
    }

    fn after_losing(&self, seed: u64) -> Result<Disk, String> {
        let copy = scratch();
        let image = copy.path().join("image");
        self.ask(&format!("lose {seed} {}", image.display()));
        if !self.is_xfs && !run(Command::new("dumpe2fs").arg("-h").arg(&image)).status.success() {
            // ext4 writes its superblock by itself when something fails. That is two sectors, of which one may be old:
            // nothing mounts before it is checked.
            let checked = run(Command::new("e2fsck").arg("-fy").arg(&image));
            assert!(matches!(checked.status.code(), Some(0 | 1)), "{checked:?}");
        }
        let options = if self.is_xfs { "loop,nouuid" } else { "loop" };
        Disk::mount_with(copy, options)
    }

    fn ask(&self, order: &str) -> String {
        let answer = self.program().ask(order);
        assert!(!answer.starts_with("error"), "{order}: {answer}");
        answer
    }

    fn program(&self) -> MutexGuard<'_, Child> {
        self.program.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Has the kernel forget what it has of files in memory, but for what is not written out yet.
pub fn forget_cached_files() {
    run_ok(Command::new("sh").args(["-c", "echo 3 > /proc/sys/vm/drop_caches"]));
}
