//! A directory of segments on the host.
//!
//! A segment lies in one of 256 directories, its *shard*, under its number. Names are made of numbers only, so that
//! nothing a user chooses becomes part of a path of the host.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::stat::{FileStat, SFlag};

use crate::error::reason;
use crate::ids::SegmentId;
use crate::medium::dir::{Dir, Entry};
use crate::medium::foreign::{Foreign, kind_name};
use crate::segment::ahead;
use crate::segment::host_errors::{HostErrors, Mark};
use crate::segment::stat::SegmentStat;

/// The directory of a pool, and of a tier, that segments are in.
pub(crate) const SEGMENTS: &str = "segments";

/// What was found in directories of segments: segments with what was asked of each, and what else is there.
pub(super) type Scanned<T> = (HashMap<SegmentId, T>, Vec<Stray>);

/// Something in a directory of segments that is none of the pool's.
#[derive(Clone, Debug)]
pub(crate) struct Stray {
    /// Where it is: below the pool, or the whole path if it is in a tier.
    pub place: String,
    /// What it is instead, if that is known.
    pub what: Option<String>,
}

impl fmt::Display for Stray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what.as_deref().unwrap_or("not a segment"))
    }
}

/// A directory of segments.
#[derive(Debug)]
pub(super) struct Home {
    dir: Dir,
    /// How what is in it is called in messages: below the pool, or by its whole path in a tier.
    called: String,
    /// Nothing in it is worth a sync.
    volatile: bool,
    errors: HostErrors,
    /// The host takes more than was asked for, unless it is told to take so many bytes at a time.
    block: Option<u32>,
    doubtful: AtomicBool,
    /// Keeps others from using it, if it is a tier's.
    lock: Option<File>,
}

/// The directory that a segment is in, among those of its home.
pub(super) fn shard(id: SegmentId) -> u8 {
    (id.0 >> 8) as u8
}

/// Where a segment is in its home.
pub(crate) fn path_within(id: SegmentId) -> String {
    format!("{:02x}/{id}", shard(id))
}

fn shard_name(shard: u8) -> String {
    format!("{shard:02x}")
}

/// The shard of a name, if it is that of one.
pub(super) fn shard_of(name: Option<&str>) -> Option<u8> {
    let shard = u8::from_str_radix(name?, 16).ok()?;
    (name == Some(&shard_name(shard))).then_some(shard)
}

/// The segment that an entry of a shard is of, by its name.
fn segment_of(entry: &Entry, of: u8) -> Option<SegmentId> {
    SegmentId::of_name(entry.text()?).filter(|id| shard(*id) == of)
}

impl Home {
    pub fn new(dir: Dir, called: String, volatile: bool, lock: Option<File>) -> Self {
        let (errors, block) = (HostErrors::of(&dir), ahead::block_of(&dir));
        Self { dir, called, volatile, errors, block, doubtful: AtomicBool::new(false), lock }
    }

    /// For messages.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// For messages: where a segment is.
    pub fn path_of(&self, id: SegmentId) -> PathBuf {
        self.dir.path_of(path_within(id))
    }

    pub fn is_volatile(&self) -> bool {
        self.volatile
    }

    /// The file that is locked while it is in use, if it is a tier's.
    pub fn lock(&self) -> Option<&File> {
        self.lock.as_ref()
    }

    /// Has the host set nothing aside in a new segment of it for what may be appended.
    pub fn take_blocks_alone(&self, made: impl AsFd) -> io::Result<()> {
        self.block.map_or(Ok(()), |block| ahead::take_blocks_alone(made, block))
    }

    /// The space of the filesystem that it is on.
    pub fn space(&self) -> io::Result<nix::sys::statvfs::Statvfs> {
        self.dir.space()
    }

    /// How many errors the host's filesystem has met, if some of them were not heeded yet, so that a sync that
    /// succeeded may not have. An error says that nothing on it is made durable any more.
    pub fn new_errors(&self) -> io::Result<Option<u64>> {
        self.errors.new_ones(&self.dir)
    }

    /// True if a host like this one may say that bytes are durable which it has dropped.
    pub fn may_drop_bytes(&self) -> bool {
        self.errors.may_drop_bytes()
    }

    /// Everything that so many errors may have hurt is known to have failed.
    pub fn heed_errors(&self, count: u64) {
        self.errors.heed(count);
    }

    /// What the next server is to know of the host's errors.
    pub fn heeded_errors(&self) -> Option<Mark> {
        self.errors.heeded()
    }

    /// What a server before has left of that.
    pub fn recall_errors(&self, left: Mark) {
        self.errors.recall(left);
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

    /// Opens a segment.
    pub fn open_segment(&self, id: SegmentId, flags: libc::c_int) -> io::Result<OwnedFd> {
        self.dir.open_file(path_within(id).as_str(), flags)
    }

    pub fn stat(&self, id: SegmentId) -> io::Result<SegmentStat> {
        self.look(id).map(SegmentStat::from)
    }

    /// What the host says of what has a segment's name, if it is one.
    pub fn look(&self, id: SegmentId) -> io::Result<FileStat> {
        let found = self.dir.stat(path_within(id).as_str())?;
        self.dir.check_file(&found)?;
        Ok(found)
    }

    /// Gives a segment that was opened as `file` a second name in another directory of the pool.
    pub fn link(&self, id: SegmentId, file: impl AsFd, to: &Dir, name: &str) -> io::Result<()> {
        self.open_shard(shard(id))?.link(id.to_string().as_str(), file, to, name)
    }

    /// Removes a segment. One that is not there is fine: it was removed before.
    pub fn unlink(&self, id: SegmentId) -> io::Result<()> {
        // What is somebody else's loses no name by us: whose pool it is could have put it there.
        if self.dir.owner().is_other() && self.look(id).is_err_and(|error| Foreign::of(&error).is_some()) {
            return Ok(());
        }
        let removed = self.open_shard(shard(id)).and_then(|shard| shard.unlink(id.to_string().as_str()));
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes a shard, if it is not there.
    pub fn create_shard(&self, shard: u8) -> io::Result<()> {
        let is_segment = |entry: &Entry| entry.kind == SFlag::S_IFREG && segment_of(entry, shard).is_some();
        match self.dir.make_dir_for(shard_name(shard).as_str(), is_segment) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    pub fn open_shard(&self, shard: u8) -> io::Result<Dir> {
        self.dir.below(shard_name(shard).as_str())
    }

    /// The shards that are there.
    pub fn shards(&self) -> io::Result<Vec<u8>> {
        self.list().map(|(shards, _)| shards)
    }

    /// Calls back with its own directory, and then with those of the shards that are there.
    pub fn each_directory(&self, each: &mut dyn FnMut(BorrowedFd<'_>)) {
        each(self.dir.as_fd());
        for shard in self.shards().unwrap_or_default() {
            if let Ok(shard) = self.open_shard(shard) {
                each(shard.as_fd());
            }
        }
    }

    /// The shards that are there, and what else is beside them.
    fn list(&self) -> io::Result<(Vec<u8>, Vec<Stray>)> {
        let (mut shards, mut strays) = (Vec::new(), Vec::new());
        for entry in self.dir.entries()? {
            match shard_of(entry.text()) {
                Some(shard) if entry.kind == SFlag::S_IFDIR => shards.push(shard),
                _ => strays.push(self.stray(&entry.shown(), entry.kind)),
            }
        }
        Ok((shards, strays))
    }

    fn place(&self, within: &str) -> String {
        format!("{}/{within}", self.called)
    }

    fn stray(&self, within: &str, kind: SFlag) -> Stray {
        let what = (kind != SFlag::S_IFREG).then(|| format!("it is {}", kind_name(kind)));
        Stray { place: self.place(within), what }
    }

    /// Adds what is in the directory. `ask` asks the host about a segment.
    pub fn scan<T>(
        &self,
        tier: u8,
        ask: impl Fn(SegmentId) -> io::Result<T>,
        (segments, strays): &mut Scanned<T>,
    ) -> io::Result<()> {
        let (shards, beside) = self.list()?;
        strays.extend(beside);
        for shard in shards {
            let name = shard_name(shard);
            let entries = match self.open_shard(shard) {
                // Somebody else's, or another filesystem.
                Err(error) if Foreign::of(&error).is_some() => {
                    strays.push(Stray { place: self.place(&name), what: Some(reason(&error)) });
                    continue;
                }
                opened => opened?.entries()?,
            };
            for entry in entries {
                let id = segment_of(&entry, shard).filter(|id| id.tier() == tier);
                let within = || format!("{name}/{}", entry.shown());
                match id {
                    Some(id) if entry.kind == SFlag::S_IFREG => match ask(id) {
                        Ok(answer) => drop(segments.insert(id, answer)),
                        Err(error) if Foreign::of(&error).is_some() => {
                            strays.push(Stray { place: self.place(&within()), what: Some(reason(&error)) });
                        }
                        // Removed meanwhile.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        // Whose file it is finds out for himself.
                        Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                            log::warn!("{}: {error}", self.path_of(id).display());
                        }
                        Err(error) => return Err(error),
                    },
                    _ => strays.push(self.stray(&within(), entry.kind)),
                }
            }
        }
        Ok(())
    }
}
