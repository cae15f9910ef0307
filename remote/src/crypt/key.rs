//! The key of remotes, and the file that it is in.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use nix::sys::prctl::set_dumpable;
use nix::unistd::geteuid;

use crate::crypt::random;
use crate::error::{Error, Result};

/// What stands before the key in its line. The number is of how it is written, and used.
const WORD: &str = "tensorfs-remote-key-1:";
/// What else is in the file.
const SAYS: &str = "\
# The key of one or more tensorfs remotes. Who has it can read them, and without it nobody can, nor mend that.
# Keep a copy of this file where neither the pool nor the remote is.
";
/// A file of a key has no more bytes.
const LONGEST: u64 = 4096;

/// A key: 32 bytes that nobody can guess. Of it, all is made that encrypts a remote.
#[derive(PartialEq, Eq)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// A new one, in a new file that its owner alone can read.
    pub fn make(path: &Path) -> Result<()> {
        let host = |what| move |source| Error::Host { path: path.display().to_string(), what, source };
        no_dumps();
        let key = BASE64_STANDARD.encode(random::<32>()?);
        let mut file = match File::options().write(true).create_new(true).mode(0o600).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let path = path.display();
                return Err(Error::Refused(format!("{path}: it is there already, and no key is written over it")));
            }
            file => file.map_err(host("make"))?,
        };
        let written = writeln!(file, "{SAYS}{WORD}{key}").and_then(|()| file.sync_all());
        written.inspect_err(|_| drop(fs::remove_file(path))).map_err(host("write"))?;
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = match File::open(above) {
            // Who may make names in a directory need not be one who may read it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                nix::unistd::syncfs(&file).map_err(io::Error::from)
            }
            directory => directory.and_then(|directory| directory.sync_all()),
        };
        synced.map_err(host("sync"))
    }

    /// The one in a file. One that others can read is nobody's secret, and is not used.
    pub fn read(path: &Path) -> Result<Self> {
        let refused = |what: String| Error::Refused(format!("{}: {what}", path.display()));
        let host = |source| Error::Host { path: path.display().to_string(), what: "read the key", source };
        // Whoever can write above it says what is at that path. To open a device does something, and whoever has the
        // other end of a FIFO hears of it: what is there is looked at before it is opened.
        let there = File::options().read(true).custom_flags(libc::O_PATH).open(path).map_err(host)?;
        let found = there.metadata().map_err(host)?;
        if !found.is_file() {
            return Err(refused("the key is not in a regular file".into()));
        }
        // Who owns it can read and change it, whatever its mode says.
        if found.uid() != geteuid().as_raw() && found.uid() != 0 {
            let what = "it is neither root's nor that of whoever runs this, and its owner can change it";
            return Err(refused(format!("the key belongs to user {}: {what}; chown it", found.uid())));
        }
        let mode = found.mode() & 0o7777;
        if mode & 0o077 != 0 {
            let what = format!("others than its owner may read or change the key (mode {mode:03o}); chmod 600 it");
            return Err(refused(what));
        }
        // The very file that was looked at, whatever has its path by now.
        let again = format!("/proc/self/fd/{}", there.as_raw_fd());
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = File::options().read(true).custom_flags(flags).open(again).map_err(host)?;
        no_dumps();
        let mut text = String::new();
        match file.take(LONGEST).read_to_string(&mut text) {
            Err(error) if error.kind() != io::ErrorKind::InvalidData => return Err(host(error)),
            _ => {}
        }
        Self::of(&text).ok_or_else(|| refused("holds no key such as `tensorfs remote key` makes".into()))
    }

    /// The one in a text, beside comments and empty lines.
    fn of(text: &str) -> Option<Self> {
        let lines = text.lines().map(str::trim);
        let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let key = BASE64_STANDARD.decode(lines.next()?.strip_prefix(WORD)?).ok()?;
        let key = Self(key.try_into().ok()?);
        lines.next().is_none().then_some(key)
    }

    /// What is made of it for one purpose, in one remote.
    pub(super) fn derived(&self, purpose: &'static str, of: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        hasher.update(&self.0).update(of);
        *hasher.finalize().as_bytes()
    }

    /// One of the tests.
    #[cfg(test)]
    pub(super) fn with(byte: u8) -> Self {
        Self([byte; 32])
    }
}

/// From now on a crash writes nothing of this process to a file, and no other one without root's rights looks into it.
fn no_dumps() {
    set_dumpable(false)
        .unwrap_or_else(|errno| log::warn!("what is in memory may be dumped where this crashes: {errno}"));
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_comes_back_from_its_file_and_from_no_other_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        Key::make(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        let key = Key::read(&path).unwrap();
        assert!(Key::of(&text).unwrap() == key && format!("{key:?}") == "Key");
        let line = text.lines().last().unwrap();
        assert!(Key::of(line).unwrap() == key && Key::of(&format!("\n # mine\n{line}\r\n\n")).unwrap() == key);
        let strange = [
            String::new(),
            line.replace("key-1", "key-2"),
            line[..line.len() - 4].to_owned(),
            format!("{line}AAAA"),
            format!("{line}\n{line}\n"),
            format!("{line} # mine"),
        ];
        for strange in strange {
            assert!(Key::of(&strange).is_none(), "{strange}");
        }
        // There is one already.
        let said = Key::make(&path).unwrap_err().to_string();
        assert!(said.contains("there already") && fs::read_to_string(&path).unwrap() == text, "{said}");
    }

    /// Proves E19.
    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        Key::make(&path).unwrap();
        for mode in [0o400, 0o600, 0o700] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Key::read(&path).unwrap();
        }
        for mode in [0o640, 0o604, 0o620, 0o602, 0o610, 0o644] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let said = Key::read(&path).unwrap_err().to_string();
            assert!(said.contains("others") && said.contains(&format!("{mode:o}")) && !said.contains('\n'), "{said}");
        }
    }

    /// Proves E19.
    #[test]
    fn a_key_of_another_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        Key::make(&path).unwrap();
        if !geteuid().is_root() {
            return;
        }
        std::os::unix::fs::chown(&path, Some(1000), None).unwrap();
        let said = Key::read(&path).unwrap_err().to_string();
        assert!(said.contains("belongs to user 1000") && !said.contains('\n'), "{said}");
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        Key::read(&path).unwrap();
    }

    #[test]
    fn what_has_a_key_in_memory_is_not_dumped() {
        let dir = tempfile::tempdir().unwrap();
        Key::make(&dir.path().join("key")).unwrap();
        assert!(!nix::sys::prctl::get_dumpable().unwrap());
        set_dumpable(true).unwrap();
        Key::read(&dir.path().join("key")).unwrap();
        assert!(!nix::sys::prctl::get_dumpable().unwrap());
    }

    /// Proves E19.
    #[test]
    fn what_holds_no_key_is_not_even_opened() {
        use nix::sys::stat::{Mode, SFlag, makedev, mknod};
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        let only_mine = Mode::S_IRUSR | Mode::S_IWUSR;
        nix::unistd::mkfifo(&place("fifo"), only_mine).unwrap();
        Key::make(&place("open to others")).unwrap();
        fs::set_permissions(place("open to others"), fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink("fifo", place("link")).unwrap();
        Key::make(&place("key")).unwrap();
        // Only root makes devices.
        let has_device = mknod(&place("device"), SFlag::S_IFCHR, only_mine, makedev(1, 5)).is_ok();
        // SAFETY: plain system call.
        let number = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
        assert!(number >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: a new descriptor, of which nobody else knows.
        let mut told = unsafe { File::from_raw_fd(number) };
        let watched = std::ffi::CString::new(dir.path().as_os_str().as_bytes()).unwrap();
        // SAFETY: a path that ends with NUL and lives for the call.
        let watch = unsafe { libc::inotify_add_watch(told.as_raw_fd(), watched.as_ptr(), libc::IN_OPEN) };
        assert!(watch >= 0);
        let mut is_opened = move || told.read(&mut [0; 4096]).is_ok();
        for name in ["fifo", "link", "open to others", "device"] {
            if name != "device" || has_device {
                Key::read(&place(name)).unwrap_err();
                assert!(!is_opened(), "{name}");
            }
        }
        Key::read(&place("key")).unwrap();
        assert!(is_opened());
    }

    #[test]
    fn what_is_no_file_of_a_key_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        let noise = dir.path().join("noise");
        File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&noise)
            .unwrap()
            .write_all(&[0xff; 9999])
            .unwrap();
        for (path, expected) in [
            (fifo.as_path(), "not in a regular file"),
            (dir.path(), "not in a regular file"),
            (&noise, "holds no key"),
            (&dir.path().join("none"), "No such file"),
        ] {
            let said = Key::read(path).unwrap_err().to_string();
            assert!(said.contains(expected) && !said.contains('\n'), "{said}");
        }
    }
}
