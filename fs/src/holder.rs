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
/// whoever answers for it may ask this. That takes two microseconds for each descriptor that is of another filesystem.
/// An error if it is not seen, and the process is there, or has more descriptors than are looked at.
pub(crate) fn has_open_to_write(pid: u32, device: Option<(u32, u32)>, ino: u64) -> io::Result<bool> {
    let is_it = |found: (u32, u32)| device.map_or(found.0 == 0, |device| found == device);
    let (names, infos) =
        (Path::new("/proc").join(format!("{pid}/fd")), Path::new("/proc").join(format!("{pid}/fdinfo")));
    let descriptors = match fs::read_dir(&infos) {
        Err(error) if has_ended(&error) => return Ok(false),
        descriptors => descriptors?,
    };
    for (count, descriptor) in descriptors.enumerate() {
        if count == MOST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let descriptor = match descriptor {
            Err(error) if has_ended(&error) => return Ok(false),
            descriptor => descriptor?.file_name(),
        };
        if device_of(&names.join(&descriptor)).is_some_and(is_it) {
            let text = fs::read_to_string(infos.join(&descriptor)).unwrap_or_default();
            if is_writable(&text, ino) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// What /proc says of a process that is not there, or has given up its descriptors.
fn has_ended(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Whether what the kernel says of a descriptor is of this file, and lets its holder write.
fn is_writable(text: &str, ino: u64) -> bool {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let flags = field("flags:").and_then(|flags| i32::from_str_radix(flags, 8).ok()).unwrap_or(0);
    field("ino:").and_then(|ino| ino.parse().ok()) == Some(ino)
        && matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
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
