//! A directory of segments on the host.
//!
//! A segment lies in one of 256 directories, its *shard*, under its number. Names are made of numbers only, so that
//! nothing a user chooses becomes part of a path of the host.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag};
use nix::sys::stat::Mode;
use nix::unistd::UnlinkatFlags;

use crate::ids::{NUMBER_LIMIT, SegmentId};
use crate::medium::owner::Owner;
use crate::segment::stat::SegmentStat;

/// What was found in directories of segments: segments with what the host says of them, and paths that are none.
pub(super) type Scanned = (HashMap<SegmentId, SegmentStat>, Vec<PathBuf>);

/// A directory of segments.
#[derive(Debug)]
pub(super) struct Home {
    path: PathBuf,
    dir: OwnedFd,
    /// Nothing in it is worth a sync.
    volatile: bool,
    _lock: Option<File>,
}

/// The directory that a segment is in, among those of its home.
pub(super) fn shard(id: SegmentId) -> u8 {
    (id.0 >> 8) as u8
}

/// Where a segment is in its home.
pub(crate) fn path_within(id: SegmentId) -> String {
    format!("{:02x}/{id}", shard(id))
}

fn shard_name(shard: u8) -> CString {
    CString::new(format!("{shard:02x}")).unwrap_or_default()
}

fn name(id: SegmentId) -> CString {
    // Hexadecimal digits and a slash: there is no NUL in it.
    CString::new(path_within(id)).unwrap_or_default()
}

impl Home {
    pub fn open(path: PathBuf, volatile: bool, lock: Option<File>) -> io::Result<Self> {
        let dir = File::open(&path)?.into();
        Ok(Self { path, dir, volatile, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn is_volatile(&self) -> bool {
        self.volatile
    }

    /// The directory itself, to sync the names of its shards.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Opens a segment. No link is followed on the way: in a pool that is somebody else's, it could lead anywhere.
    pub fn open_segment(&self, id: SegmentId, flags: libc::c_int) -> io::Result<OwnedFd> {
        let name = name(id);
        let flags = OFlag::from_bits_retain(flags | libc::O_CLOEXEC | libc::O_NOFOLLOW);
        let mode = if flags.contains(OFlag::O_CREAT) { Mode::S_IRUSR | Mode::S_IWUSR } else { Mode::empty() };
        let how = OpenHow::new().flags(flags).mode(mode).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        match nix::fcntl::openat2(&self.dir, name.as_c_str(), how) {
            // A kernel or a container that lacks the call: the directory is checked before the file is opened in it.
            Err(Errno::ENOSYS | Errno::EPERM) => {
                let shard = self.open_shard(shard(id))?;
                Ok(nix::fcntl::openat(&shard, id.to_string().as_str(), flags, mode)?)
            }
            opened => Ok(opened?),
        }
    }

    pub fn stat(&self, id: SegmentId) -> io::Result<SegmentStat> {
        Ok(nix::sys::stat::fstatat(&self.dir, name(id).as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?.into())
    }

    /// Removes a segment. One that is not there is fine: it was removed before.
    pub fn unlink(&self, id: SegmentId) -> io::Result<()> {
        let removed = self
            .open_shard(shard(id))
            .and_then(|shard| Ok(nix::unistd::unlinkat(&shard, id.to_string().as_str(), UnlinkatFlags::NoRemoveDir)?));
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes a shard, if it is not there.
    pub fn create_shard(&self, shard: u8, owner: Owner) -> io::Result<()> {
        match nix::sys::stat::mkdirat(&self.dir, shard_name(shard).as_c_str(), Mode::S_IRWXU) {
            Ok(()) if !owner.is_self() => owner.give(self.open_shard(shard)?),
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    pub fn open_shard(&self, shard: u8) -> io::Result<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        Ok(nix::fcntl::openat(&self.dir, shard_name(shard).as_c_str(), flags, Mode::empty())?)
    }

    /// The shards that are there.
    pub fn shards(&self) -> io::Result<Vec<u8>> {
        let mut shards = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let shard = name.to_str().and_then(|name| u8::from_str_radix(name, 16).ok());
            let ours = |shard: &u8| name.to_str() == Some(&format!("{shard:02x}"));
            if entry.file_type()?.is_dir() {
                shards.extend(shard.filter(ours));
            }
        }
        Ok(shards)
    }

    /// Adds what is in the directory. `stat` asks the host about a segment.
    pub fn scan(
        &self,
        tier: u8,
        stat: impl Fn(SegmentId) -> io::Result<SegmentStat>,
        (segments, foreign): &mut Scanned,
    ) -> io::Result<()> {
        for shard in self.shards()? {
            let path = self.path.join(format!("{shard:02x}"));
            for entry in std::fs::read_dir(&path)? {
                let entry = entry?;
                let id = entry.file_name().to_str().and_then(|name| {
                    let id = SegmentId(u64::from_str_radix(name, 16).ok()?);
                    let ours = id.to_string() == name && self::shard(id) == shard && id.0 < NUMBER_LIMIT;
                    (ours && id.tier() == tier).then_some(id)
                });
                match id {
                    Some(id) if entry.file_type()?.is_file() => match stat(id) {
                        Ok(stat) => drop(segments.insert(id, stat)),
                        // Removed meanwhile.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(error) => return Err(error),
                    },
                    _ => foreign.push(entry.path()),
                }
            }
        }
        Ok(())
    }
}
