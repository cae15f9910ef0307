//! Whether a process has a file open to write, and on which device a file is, without asking its filesystem.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// So many descriptors of a process are looked at: looking takes the time of who runs the server.
const MOST: usize = 1 << 18;

/// True if a process is seen to have the file of this number, on the filesystem of this device, open to write. If the
/// device is not known, any without a disk of its own may be it. Nothing is asked of the filesystem itself, so that
/// whoever answers for it may ask this. That takes a few microseconds for each descriptor. An error if it is not seen,
/// and the process is there, or has more descriptors than are looked at.
///
/// The links in `/proc/PID/fd` would tell, but they wait for a lock that a process holds while it executes another
/// program, and one that closes files in doing so waits for our answer. `fdinfo` and `mountinfo` wait for nothing.
pub(crate) fn has_open_to_write(pid: u32, device: Option<(u32, u32)>, ino: u64) -> io::Result<bool> {
    let infos = Path::new("/proc").join(format!("{pid}/fdinfo"));
    let descriptors = match fs::read_dir(&infos) {
        Err(error) if has_ended(&error) => return Ok(false),
        descriptors => descriptors?,
    };
    let mut mounts = None;
    for (count, descriptor) in descriptors.enumerate() {
        if count == MOST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let descriptor = match descriptor {
            Err(error) if has_ended(&error) => return Ok(false),
            descriptor => descriptor?.path(),
        };
        let text = fs::read_to_string(descriptor).unwrap_or_default();
        if is_writable(&text, ino) {
            let mounts = mounts.get_or_insert_with(|| Mounts::of(pid));
            let found = field(&text, "mnt_id:").and_then(|mount| mounts.device(mount));
            // Of a mount that is in nobody's sight any more only the number is known.
            if found.is_none_or(|found| device.map_or(found.0 == 0, |device| found == device)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// What is mounted where a process is, and where this one is: a descriptor may have come from there.
struct Mounts([String; 2]);

impl Mounts {
    fn of(pid: u32) -> Self {
        Self([format!("/proc/{pid}/mountinfo"), "/proc/self/mountinfo".into()].map(|path| {
            let text = fs::read(path).unwrap_or_default();
            String::from_utf8_lossy(&text).into_owned()
        }))
    }

    /// The device of a mount, by its number there. The first three words of each line are the mount, its parent and
    /// `major:minor`.
    fn device(&self, mount: &str) -> Option<(u32, u32)> {
        self.0.iter().flat_map(|text| text.lines()).find_map(|line| {
            let mut words = line.split(' ');
            let (major, minor) = words.next().filter(|of| *of == mount).and(words.nth(1))?.split_once(':')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        })
    }
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
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: all bytes zero are a value of it.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    // SAFETY: a path that ends with NUL, and a structure for the answer.
    let done = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, 0, &raw mut found) };
    (done == 0).then_some((found.stx_dev_major, found.stx_dev_minor))
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
