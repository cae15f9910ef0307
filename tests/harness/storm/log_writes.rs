//! The kernel's device-mapper target `log-writes`: marks put into its log, and the log read and replayed.
//!
//! The target writes all that goes to a device into a log as well, in an order that a real device with a volatile cache
//! could have made durable: a write only once a flush followed it, or if it was one that waits (FUA). A prefix of the
//! log is thus what a power loss at that moment leaves. The format is in the kernel's
//! `Documentation/admin-guide/device-mapper/log-writes.rst` and `drivers/md/dm-log-writes.c`.

use crate::random::Random;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// Puts marks into the log of a mapped device.
#[derive(Debug)]
pub struct Marker {
    control: File,
    name: String,
}

impl Marker {
    /// For the mapped device of this name.
    pub fn open(name: &str) -> io::Result<Marker> {
        Ok(Marker { control: File::options().read(true).write(true).open("/dev/mapper/control")?, name: name.into() })
    }

    /// What is in the log before the mark was there when the mark was made.
    pub fn mark(&mut self, text: &str) -> io::Result<()> {
        // `struct dm_ioctl` (312 bytes) and behind it `struct dm_target_msg`: a sector, and the message.
        const HEAD: usize = 312;
        const TARGET_MESSAGE: libc::c_ulong = 0xC138_FD0E;
        let mut request = [0u8; 1024];
        let size = request.len() as u32;
        for (at, word) in [(0, 4), (12, size), (16, HEAD as u32)] {
            request[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        request[48..48 + self.name.len()].copy_from_slice(self.name.as_bytes());
        let message = format!("mark {text}");
        request[HEAD + 8..HEAD + 8 + message.len()].copy_from_slice(message.as_bytes());
        // SAFETY: the buffer is as long as it says, and ends in zeroes.
        let done = unsafe { libc::ioctl(self.control.as_raw_fd(), TARGET_MESSAGE, request.as_mut_ptr()) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged {
    flags: u64,
    /// Where on the device, in bytes.
    to: u64,
    len: u64,
    /// Where in the log the data is.
    from: u64,
    /// The text of a mark.
    pub mark: Option<String>,
}

impl Logged {
    /// Whether what is before this entry is durable: a flush, a write that waits, or a mark.
    pub fn is_boundary(&self) -> bool {
        self.flags & (FLUSH | FUA | MARK) != 0
    }

    /// Whether it is a flush.
    pub fn is_flush(&self) -> bool {
        self.flags & FLUSH != 0
    }

    /// A write that a flush has to follow.
    pub fn is_volatile(&self) -> bool {
        self.flags & (FLUSH | FUA | MARK | DISCARD) == 0
    }
}

/// A log of writes.
#[derive(Debug)]
pub struct WriteLog {
    file: File,
    /// Its entries, in order.
    pub entries: Vec<Logged>,
}

impl WriteLog {
    /// Reads the entries of a log; their data is read when it is replayed.
    pub fn open(path: &Path) -> io::Result<WriteLog> {
        let file = File::open(path)?;
        let wrong = |text: String| io::Error::other(format!("{}: {text}", path.display()));
        let mut head = [0u8; 28];
        file.read_exact_at(&mut head, 0)?;
        let long = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        if long(&head, 0) != MAGIC || long(&head, 8) != 1 {
            return Err(wrong("not a log of writes".into()));
        }
        let count = long(&head, 16);
        let sector = u64::from(u32::from_le_bytes(head[24..28].try_into().unwrap()));
        if !sector.is_power_of_two() || !(512..=65536).contains(&sector) {
            return Err(wrong(format!("sectors of {sector} bytes")));
        }
        let mut entries = Vec::new();
        let mut at = sector;
        let mut raw = vec![0u8; sector as usize];
        for n in 0..count {
            file.read_exact_at(&mut raw, at)?;
            let (to, sectors, flags, text) = (long(&raw, 0), long(&raw, 8), long(&raw, 16), long(&raw, 24));
            if flags >= 32 || text > sector - 32 {
                return Err(wrong(format!("entry {n} is none")));
            }
            let mark = (flags & MARK != 0).then(|| {
                let text = &raw[32..32 + text as usize];
                String::from_utf8_lossy(text).trim_end_matches('\0').to_owned()
            });
            at += sector;
            entries.push(Logged { flags, to: to * sector, len: sectors * sector, from: at, mark });
            if flags & DISCARD == 0 {
                at += sectors * sector;
            }
        }
        Ok(WriteLog { file, entries })
    }

    /// Does to a device's image what an entry says.
    pub fn apply(&self, entry: usize, image: &File) -> io::Result<()> {
        let entry = &self.entries[entry];
        self.copy(entry, entry.len, image)
    }

    /// Does to a device's image a part of what an entry says: some of its sectors, from the first on.
    pub fn apply_torn(&self, entry: usize, image: &File, random: &mut Random) -> io::Result<()> {
        let entry = &self.entries[entry];
        self.copy(entry, random.below(entry.len / 512 + 1) * 512, image)
    }

    fn copy(&self, entry: &Logged, len: u64, image: &File) -> io::Result<()> {
        if entry.flags & MARK != 0 || len == 0 {
            return Ok(());
        }
        let mut bytes = vec![0; len as usize];
        if entry.flags & DISCARD == 0 {
            self.file.read_exact_at(&mut bytes, entry.from)?;
        }
        image.write_all_at(&bytes, entry.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_and_replayed() {
        let directory = tempfile::tempdir().unwrap();
        let (log, image) = (directory.path().join("log"), directory.path().join("image"));
        let mut bytes = Vec::new();
        let mut sector = |words: &[u64], text: &[u8]| {
            let start = bytes.len();
            words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
            bytes.extend(text);
            bytes.resize(start + 512, 0);
        };
        sector(&[MAGIC, 1, 4, 512], b"");
        sector(&[2, 1, 0, 0], b"");
        sector(&[], &[7; 512]);
        sector(&[0, 0, FLUSH, 0], b"");
        sector(&[0, 0, MARK, 4], b"3:17");
        sector(&[2, 1, DISCARD, 0], b"");
        std::fs::write(&log, bytes).unwrap();
        let log = WriteLog::open(&log).unwrap();
        let boundaries: Vec<bool> = log.entries.iter().map(Logged::is_boundary).collect();
        assert_eq!(boundaries, [false, true, true, false]);
        assert_eq!(log.entries[2].mark.as_deref(), Some("3:17"));
        let file = File::create_new(&image).unwrap();
        file.set_len(4096).unwrap();
        for (n, want) in [(0, 7), (1, 7), (2, 7), (3, 0)] {
            log.apply(n, &file).unwrap();
            let now = std::fs::read(&image).unwrap();
            assert_eq!((now[1023], now[1024], now[1535], now[1536]), (0, want, want, 0), "entry {n}");
        }
    }
}
