//! A directory of segments on the host.
//!
//! A segment lies in one of 256 directories, its *shard*, under its number. Names are made of numbers only, so that nothing
//! a user chooses becomes part of a path of the host.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag};
use nix::sys::stat::Mode;

use crate::ids::{NUMBER_LIMIT, SegmentId};
use crate::segment::segments::Segments;
use crate::segment::stat::SegmentStat;

/// A directory of segments.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) path: PathBuf,
    pub(super) dir: OwnedFd,
    /// Nothing in it is worth a sync.
    pub(super) volatile: bool,
    _lock: Option<std::fs::File>,
}

impl Home {
    pub(super) fn open(path: PathBuf, volatile: bool, lock: Option<std::fs::File>) -> io::Result<Self> {
        let dir = std::fs::File::open(&path)?.into();
        Ok(Self { path, dir, volatile, _lock: lock })
    }
}

pub(crate) fn shard(id: SegmentId) -> u8 {
    (id.0 >> 8) as u8
}

fn shard_name(shard: u8) -> CString {
    CString::new(format!("{shard:02x}")).unwrap_or_default()
}

pub(super) fn name(id: SegmentId) -> CString {
    // Hexadecimal digits and a slash: there is no NUL in it.
    CString::new(format!("{:02x}/{id}", shard(id))).unwrap_or_default()
}

pub(super) fn open_shard(home: &Home, shard: u8) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    Ok(nix::fcntl::openat(&home.dir, shard_name(shard).as_c_str(), flags, Mode::empty())?)
}

pub(super) fn shards(home: &Home) -> io::Result<Vec<u8>> {
    let mut shards = Vec::new();
    for entry in std::fs::read_dir(&home.path)? {
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

impl Segments {
    /// No link is followed on the way: in a pool that is somebody else's, it could lead anywhere.
    pub(super) fn open_with(&self, id: SegmentId, flags: libc::c_int) -> io::Result<OwnedFd> {
        let home = self.home(id.tier())?;
        let name = name(id);
        let flags = OFlag::from_bits_retain(flags | libc::O_CLOEXEC | libc::O_NOFOLLOW);
        let mode = if flags.contains(OFlag::O_CREAT) { Mode::S_IRUSR | Mode::S_IWUSR } else { Mode::empty() };
        let how = OpenHow::new().flags(flags).mode(mode).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        match nix::fcntl::openat2(&home.dir, name.as_c_str(), how) {
            // A kernel or a container that lacks the call: the directory is checked before the file is opened in it.
            Err(Errno::ENOSYS | Errno::EPERM) => {
                let shard = open_shard(home, shard(id))?;
                Ok(nix::fcntl::openat(&shard, id.to_string().as_str(), flags, mode)?)
            }
            opened => Ok(opened?),
        }
    }

    pub(super) fn create_shard(&self, tier: u8, shard: u8) -> io::Result<()> {
        let home = self.home(tier)?;
        // Held so that whoever creates a segment in the new directory finds it noted for the next commit.
        let mut grown = self.grown.lock();
        match nix::sys::stat::mkdirat(&home.dir, shard_name(shard).as_c_str(), Mode::S_IRWXU) {
            Ok(()) if !self.owner.is_self() => self.owner.give(open_shard(home, shard)?)?,
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        grown.entry(tier).or_default().top = true;
        Ok(())
    }

    pub(super) fn scan_home(
        &self,
        tier: u8,
        home: &Home,
        segments: &mut HashMap<SegmentId, SegmentStat>,
        foreign: &mut Vec<PathBuf>,
    ) -> io::Result<()> {
        for shard in shards(home)? {
            let path = home.path.join(format!("{shard:02x}"));
            for entry in std::fs::read_dir(&path)? {
                let entry = entry?;
                let id = entry.file_name().to_str().and_then(|name| {
                    let id = SegmentId(u64::from_str_radix(name, 16).ok()?);
                    let ours = id.to_string() == name && self::shard(id) == shard && id.0 < NUMBER_LIMIT;
                    (ours && id.tier() == tier).then_some(id)
                });
                match id {
                    Some(id) if entry.file_type()?.is_file() => match self.stat(id) {
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
