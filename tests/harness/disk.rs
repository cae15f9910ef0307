//! A disk of a test's own: an image file with a filesystem in it, mounted on a loop device.
//!
//! What has reached the image is what a machine would find after a power loss: the bytes that are only in the memory of
//! the mounted filesystem are not in it. [`Disk::after_power_loss`] mounts a copy of it, taken at that moment.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

use crate::children::{run, run_ok};
use crate::mount::{is_root, scratch};
use crate::mounted::Mounted;

/// A mounted image; unmounted and removed when it goes out of scope.
#[derive(Debug)]
pub struct Disk {
    mounted: Mounted,
    room: TempDir,
}

impl Disk {
    /// A disk of so many mebibytes with a filesystem of this kind, or why there is none.
    pub fn new(mkfs: &[&str], mebibytes: u64) -> Result<Disk, String> {
        Disk::in_room(scratch(), mkfs, mebibytes)
    }

    /// A disk whose image lies in a directory of one's choice; otherwise as [`Disk::new`].
    pub fn in_room(room: TempDir, mkfs: &[&str], mebibytes: u64) -> Result<Disk, String> {
        if !is_root() {
            return Err("needs root, to mount a filesystem".to_owned());
        }
        let image = image_in(&room);
        std::fs::File::create(&image).and_then(|image| image.set_len(mebibytes << 20)).map_err(|e| e.to_string())?;
        let made = Command::new(mkfs[0]).args(&mkfs[1..]).arg(&image).output();
        if !made.is_ok_and(|output| output.status.success()) {
            return Err(format!("{} cannot make a filesystem here", mkfs[0]));
        }
        Disk::mount(room)
    }

    /// Mounts the image in a directory.
    fn mount(room: TempDir) -> Result<Disk, String> {
        Disk::mount_with(room, "loop")
    }

    /// With options of the mount, `loop` among them.
    pub(crate) fn mount_with(room: TempDir, options: &str) -> Result<Disk, String> {
        let path = room.path().join("disk");
        std::fs::create_dir_all(&path).map_err(|error| error.to_string())?;
        let mounted = Mounted::new(Command::new("mount").args(["-o", options]).arg(image_in(&room)), &path)?;
        Ok(Disk { mounted, room })
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.mounted.path().to_owned()
    }

    /// The file that holds it.
    pub fn image(&self) -> PathBuf {
        image_in(&self.room)
    }

    /// What is left of it if power is lost now.
    pub fn after_power_loss(&self) -> Disk {
        let copy = scratch();
        let image = image_in(&copy);
        // Of one moment: whoever writes meanwhile would be in one part of it and not in the other.
        for _ in 0..20 {
            run_ok(Command::new("cp").arg("--sparse=always").args([&self.image(), &image]));
            if run(Command::new("cmp").arg("-s").args([&self.image(), &image])).status.success() {
                break;
            }
        }
        Disk::mount(copy).expect("what another disk could do")
    }

    /// A path on it.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }
}

fn image_in(room: &TempDir) -> PathBuf {
    room.path().join("image")
}

/// A [`Disk`] that can be made to fail: its image lies on a small filesystem in memory, which can run out of space.
#[derive(Debug)]
pub struct FailingDisk {
    disk: Disk,
    memory: Mounted,
    _room: TempDir,
}

const MEBIBYTES: u64 = 96;

impl FailingDisk {
    /// A disk that works so far, or why there is none.
    pub fn new() -> Result<FailingDisk, String> {
        if !is_root() {
            return Err("needs root, to mount a filesystem".to_owned());
        }
        let below = scratch();
        let memory = Mounted::tmpfs(below.path(), Some(MEBIBYTES + 8))?;
        let room = tempfile::tempdir_in(memory.path()).map_err(|error| error.to_string())?;
        let disk = Disk::in_room(
            room,
            &["mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "nodiscard,lazy_itable_init=0"],
            MEBIBYTES,
        )?;
        Ok(FailingDisk { disk, memory, _room: below })
    }

    /// A path on it.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.disk.at(name)
    }

    /// From now on no write to these bytes of a file reaches the disk. They must have been written, and synced, before.
    pub fn fail_writes(&self, path: &Path, bytes: std::ops::Range<u64>) {
        let image = std::fs::File::options().read(true).write(true).open(self.disk.image()).unwrap();
        // Everything gets its space, so that nothing else fails. The filesystem on it may be writing.
        let len = image.metadata().unwrap().len();
        // SAFETY: plain system call on an open descriptor.
        let done = unsafe { libc::fallocate(image.as_raw_fd(), 0, 0, len as i64) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        let mut hit = 0;
        for (logical, physical, len) in extents(path) {
            let (start, end) = (bytes.start.max(logical), bytes.end.min(logical + len));
            if start < end {
                let (mode, at) = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, physical + start - logical);
                // SAFETY: plain system call on an open descriptor.
                let done = unsafe { libc::fallocate(image.as_raw_fd(), mode, at as i64, (end - start) as i64) };
                assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
                hit += end - start;
            }
        }
        assert!(hit > 0, "{} has no extents there", path.display());
        // What the holes have freed, and the rest, is taken by something else.
        let mut filler = std::fs::File::create(self.filler()).unwrap();
        let full = std::io::copy(&mut std::io::repeat(1), &mut filler).unwrap_err();
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    }

    /// The disk works again; what could not be written stays unwritten.
    pub fn mend(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.memory.path().join("filler")
    }
}

/// Where a file's bytes are on its disk: offset in the file, offset on the disk, length.
pub(crate) fn extents(path: &Path) -> Vec<(u64, u64, u64)> {
    let text = run_ok(Command::new("filefrag").args(["-v", "-b4096"]).arg(path));
    let mut extents = Vec::new();
    for line in text.lines() {
        // "   0:        0..     255:      34816..     35071:    256:             last,eof"
        let numbers: Vec<u64> =
            line.split([':', '.', ' ']).filter(|word| !word.is_empty()).map_while(|word| word.parse().ok()).collect();
        if let [_, first, _, physical, _, count, ..] = numbers[..] {
            extents.push((first * 4096, physical * 4096, count * 4096));
        }
    }
    extents
}
