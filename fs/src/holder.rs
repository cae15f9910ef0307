//! Whether a process has a file open to write, and on which device a file is, without asking its filesystem.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// So many descriptors of a process are looked at: looking takes the time of who runs the server.
const MOST: usize = 1 << 18;
/// And no longer than this.
const LONGEST: Duration = Duration::from_secs(1);
/// What is looked for stands at the beginning of what the kernel says of a descriptor, of which some have very much.
const BEGINNING: u64 = 512;
/// Of the mounts of a process so many bytes are read: anybody can mount very much for himself.
const MOUNTS: u64 = 4 << 20;

/// True if a process is seen to have the file of this number, on the filesystem of this device, open to write. If the
/// device is not known, any without a disk of its own may be it. Nothing is asked of the filesystem itself, so that
/// whoever answers for it may ask this. That takes a few microseconds for each descriptor. An error if it is not seen,
/// and the process is there, or has more descriptors than are looked at, or it takes long.
///
/// The links in `/proc/PID/fd` would tell, but they wait for a lock that a process holds while it executes another
/// program, and one that closes files in doing so waits for our answer. `fdinfo` and `mountinfo` wait for nothing.
pub(crate) fn has_open_to_write(pid: u32, device: Option<(u32, u32)>, ino: u64) -> io::Result<bool> {
    let infos = Path::new("/proc").join(format!("{pid}/fdinfo"));
    let descriptors = match fs::read_dir(&infos) {
        Err(error) if has_ended(&error) => return Ok(false),
        descriptors => descriptors?,
    };
    let (mut mounts, begun) = (None, Instant::now());
    for (count, descriptor) in descriptors.enumerate() {
        if count == MOST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if begun.elapsed() > LONGEST {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let descriptor = match descriptor {
            Err(error) if has_ended(&error) => return Ok(false),
            descriptor => descriptor?.path(),
        };
        let text = beginning(&descriptor).unwrap_or_default();
        if is_writable(&text, ino) {
            let mounts = mounts.get_or_insert_with(|| mounts_of(pid));
            let found = field(&text, "mnt_id:").and_then(|mount| mounts.get(mount).copied());
            // Of a mount that is in nobody's sight any more only the number is known.
            if found.is_none_or(|found| device.map_or(found.0 == 0, |device| found == device)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// What the kernel says first of a descriptor.
fn beginning(info: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(info)?.take(BEGINNING).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The devices of what is mounted where a process is, and where this one is, as a descriptor may have come from there;
/// by the numbers of the mounts.
fn mounts_of(pid: u32) -> HashMap<Box<str>, (u32, u32)> {
    let mut devices = HashMap::new();
    for path in ["/proc/self/mountinfo".to_owned(), format!("/proc/{pid}/mountinfo")] {
        let Ok(file) = File::open(path) else { continue };
        // Paths need not be UTF-8.
        for line in BufReader::new(file.take(MOUNTS)).split(b'\n').map_while(Result::ok) {
            devices.extend(mounted(&String::from_utf8_lossy(&line)));
        }
    }
    devices
}

/// The number of a mount, and its device: the first and the third word of its line, `major:minor`.
fn mounted(line: &str) -> Option<(Box<str>, (u32, u32))> {
    let mut words = line.split(' ');
    let (mount, device) = (words.next()?, words.nth(1)?);
    let (major, minor) = device.split_once(':')?;
    Some((mount.into(), (major.parse().ok()?, minor.parse().ok()?)))
}

/// What /proc says of a process that is not there, or has given up its descriptors.
fn has_ended(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Whether what the kernel says of a descriptor is of this file, and lets its holder write.
fn is_writable(text: &str, ino: u64) -> bool {
    let flags = field(text, "flags:").and_then(|flags| i32::from_str_radix(flags, 8).ok()).unwrap_or(0);
    field(text, "ino:").and_then(|ino| ino.parse().ok()) == Some(ino)
        && matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// The device, as major and minor number, of what a path or a link in /proc stands for, by what the kernel knows
/// without asking the filesystem, whose server may not answer.
pub fn device_of(path: &Path) -> Option<(u32, u32)> {
    known_of(path).map(|found| (found.stx_dev_major, found.stx_dev_minor))
}

/// The device and the number of the file that a path or a link in /proc stands for, known in the same way.
pub fn file_of(path: &Path) -> Option<(u64, u64)> {
    known_of(path).map(|found| (libc::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

fn known_of(path: &Path) -> Option<libc::statx> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: all bytes zero are a value of it.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    // SAFETY: a path that ends with NUL, and a structure for the answer.
    let done = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, libc::STATX_INO, &raw mut found) };
    (done == 0).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn this_process_has_open_what_it_opened() {
        let path = std::env::temp_dir().join(format!("holder-{}", std::process::id()));
        let file = fs::File::create(&path).unwrap();
        let meta = file.metadata().unwrap();
        let (major, minor) = (nix::sys::stat::major(meta.dev()) as u32, nix::sys::stat::minor(meta.dev()) as u32);
        let has = |device, ino| has_open_to_write(std::process::id(), Some(device), ino).unwrap();
        assert!(has((major, minor), meta.ino()));
        assert!(!has((major, minor + 1), meta.ino()));
        assert!(!has((major, minor), meta.ino() + 1));
        drop(file);
        let reader = fs::File::open(&path).unwrap();
        assert!(!has((major, minor), meta.ino()));
        drop(reader);
        fs::remove_file(&path).unwrap();
        assert!(!has_open_to_write(0, Some((major, minor)), meta.ino()).unwrap());
    }

    /// As where a mount was handed over, and the kernel does not say which.
    #[test]
    fn a_file_is_found_by_its_number_if_the_device_is_not_known() {
        let file =
            fs::File::from(nix::sys::memfd::memfd_create(c"holder", nix::sys::memfd::MFdFlags::empty()).unwrap());
        let ino = file.metadata().unwrap().ino();
        let has = |ino| has_open_to_write(std::process::id(), None, ino).unwrap();
        assert!(has(ino));
        assert!(!has(ino + 1_000_000));
        drop(file);
        assert!(!has(ino));
    }
}
