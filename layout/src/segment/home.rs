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
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::UnlinkatFlags;

use crate::ids::{NUMBER_LIMIT, SegmentId};
use crate::medium::owner::Owner;
use crate::medium::regular;
use crate::segment::host_errors::HostErrors;
use crate::segment::stat::SegmentStat;

/// What was found in directories of segments: segments with what was asked of each, and paths that are none.
pub(super) type Scanned<T> = (HashMap<SegmentId, T>, Vec<PathBuf>);

/// A directory of segments.
#[derive(Debug)]
pub(super) struct Home {
    path: PathBuf,
    dir: OwnedFd,
    /// Nothing in it is worth a sync.
    volatile: bool,
    errors: HostErrors,
    doubtful: AtomicBool,
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
        let dir = regular::open_directory(&path)?.into();
        let errors = HostErrors::of(&dir);
        Ok(Self { path, dir, volatile, errors, doubtful: AtomicBool::new(false), _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn is_volatile(&self) -> bool {
        self.volatile
    }

    /// True if the host's filesystem met errors since the last time this was asked, so that a sync that succeeded may
    /// not have. An error says that nothing on it is made durable any more.
    pub fn has_new_errors(&self) -> io::Result<bool> {
        self.errors.are_new(&self.dir)
    }

    /// The host told of a failure that may have been anybody's: it is not told twice.
    pub fn doubt(&self) {
        self.doubtful.store(true, Ordering::Relaxed);
    }

    /// True if there was such a failure since the pool was opened.
    pub fn is_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Relaxed)
    }

    /// The directory itself, to sync the names of its shards.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Opens a segment. No link is followed on the way: in a pool that is somebody else's, it could lead anywhere.
    pub fn open_segment(&self, id: SegmentId, flags: libc::c_int) -> io::Result<OwnedFd> {
        match regular::open_beneath(&self.dir, name(id).as_c_str(), flags) {
            // A kernel or a container that lacks the call: the directory is checked before the file is opened in it.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                regular::open_at(self.open_shard(shard(id))?, id.to_string().as_str(), flags)
            }
            opened => opened,
        }
    }

    pub fn stat(&self, id: SegmentId) -> io::Result<SegmentStat> {
        let found = nix::sys::stat::fstatat(&self.dir, name(id).as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
        match regular::other_kind(found.st_mode) {
            None => Ok(found.into()),
            Some(kind) => Err(regular::wrong_kind(kind)),
        }
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
        self.list().map(|(shards, _)| shards)
    }

    /// The shards that are there, and what else is beside them.
    fn list(&self) -> io::Result<(Vec<u8>, Vec<PathBuf>)> {
        let (mut shards, mut foreign) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let shard = name.to_str().and_then(|name| u8::from_str_radix(name, 16).ok());
            let ours = |shard: &u8| name.to_str() == Some(&format!("{shard:02x}"));
            match shard.filter(ours) {
                Some(shard) if entry.file_type()?.is_dir() => shards.push(shard),
                _ => foreign.push(entry.path()),
            }
        }
        Ok((shards, foreign))
    }

    /// Adds what is in the directory. `ask` asks the host about a segment.
    pub fn scan<T>(
        &self,
        tier: u8,
        ask: impl Fn(SegmentId) -> io::Result<T>,
        (segments, foreign): &mut Scanned<T>,
    ) -> io::Result<()> {
        let (shards, beside) = self.list()?;
        foreign.extend(beside);
        for shard in shards {
            let path = self.path.join(format!("{shard:02x}"));
            for entry in std::fs::read_dir(&path)? {
                let entry = entry?;
                let id = entry.file_name().to_str().and_then(|name| {
                    let id = SegmentId(u64::from_str_radix(name, 16).ok()?);
                    let ours = id.to_string() == name && self::shard(id) == shard && id.0 < NUMBER_LIMIT;
                    (ours && id.tier() == tier).then_some(id)
                });
                match id {
                    Some(id) if entry.file_type()?.is_file() => match ask(id) {
                        Ok(answer) => drop(segments.insert(id, answer)),
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
