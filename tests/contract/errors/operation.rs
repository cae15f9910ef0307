//! What programs do while the host fails, and what their files may hold afterwards.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use tensorfs_tests::{Mount, Pattern, run, xattr};

/// The file that everything is done to.
pub const FILE: &str = "dir/file";
/// What is renamed over it.
const OTHER: &str = "dir/other";
/// What is being replaced while the server is killed.
const REPLACED: &str = "dir/replaced";

/// What a program, or the server for it, does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Makes a file and writes it.
    Create,
    /// Opens a sealed file, and writes a part of it in place.
    Write,
    /// Syncs a file of which a part was written.
    Fsync,
    /// Closes a file that was emptied by `O_TRUNC` and written anew, with `durability=close`.
    Close,
    /// Renames a new file, never synced, over another.
    Rename,
    /// Cuts a sealed file in half.
    Truncate,
    /// Gives a file more room, by `fallocate`.
    Allocate,
    /// Has a file sealed.
    Seal,
    /// Makes everything durable: `fsync` of a directory, after a part of an open file was written.
    Commit,
    /// Mounts after the server was killed when a part of an open file had been written.
    Recover,
    /// Moves a file to a tier.
    Move,
}

use Operation::*;

pub const OPERATIONS: [Operation; 11] =
    [Create, Write, Fsync, Close, Rename, Truncate, Allocate, Seal, Commit, Recover, Move];

/// What a file was found to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum There {
    Absent,
    Old,
    New,
    /// Of each byte the old one or the new one; of a new file the first part.
    Part,
    /// It cannot be read.
    Error(i32),
    /// Bytes that nobody wrote there.
    Wrong(String),
}

/// What is at stake in one cell.
#[derive(Clone)]
pub struct Content {
    pub old: Option<Vec<u8>>,
    pub new: Vec<u8>,
    /// What is written of the new content.
    written: Range<usize>,
}

/// What the program did before the host began to fail.
#[derive(Default)]
pub struct Prepared {
    pub file: Option<File>,
    replacing: Option<File>,
}

impl Operation {
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    pub fn content(self, len: usize) -> Content {
        let old = Pattern(1).bytes(0, len);
        let mut changed = old.clone();
        let part = len / 8..len / 2;
        changed[part.clone()].copy_from_slice(&Pattern(2).bytes(0, part.len()));
        let anew = Pattern(3).bytes(0, len);
        let (old, new, written) = match self {
            Create => (None, anew, 0..len),
            Write | Fsync | Commit | Recover => (Some(old), changed, part),
            Close | Rename => (Some(old), anew, 0..len),
            Truncate => (Some(old.clone()), old[..len / 2].to_vec(), 0..0),
            Allocate => (Some(old.clone()), [old, vec![0; len]].concat(), 0..0),
            Seal | Move => (Some(old.clone()), old, 0..0),
        };
        Content { old, new, written }
    }

    /// Options of the mount: nothing is committed in the background unless it is at stake.
    pub fn options(self) -> [&'static str; 4] {
        ["--commit", "3600", "--durability", if self == Close { "close" } else { "fsync" }]
    }

    /// Brings the file to where the operation begins.
    pub fn prepare(self, mount: &Mount, content: &Content) -> Prepared {
        fs::create_dir(mount.at("dir")).unwrap();
        let path = mount.at(FILE);
        if let Some(old) = &content.old {
            let file = File::create(&path).unwrap();
            file.write_all_at(old, 0).unwrap();
            file.sync_all().unwrap();
            drop(file);
            mount.sync();
            if self != Seal {
                mount.tensorfs_ok(["seal".as_ref(), path.as_os_str()]);
            }
        }
        mount.sync();
        let mut prepared = Prepared::default();
        if self == Recover {
            // The old version of one that was being replaced goes to the quarantine.
            fs::write(mount.at(REPLACED), Pattern(5).bytes(0, content.new.len())).unwrap();
            mount.sync();
            let replacing = File::create(mount.at(REPLACED)).unwrap();
            replacing.write_all_at(&Pattern(6).bytes(0, content.new.len()), 0).unwrap();
            prepared.replacing = Some(replacing);
        }
        match self {
            Create | Write | Truncate | Seal | Move => {}
            Fsync | Commit | Recover | Allocate => {
                let file = File::options().write(true).open(&path).unwrap();
                write(&file, content).unwrap();
                prepared.file = Some(file);
            }
            Close => {
                let file = File::create(&path).unwrap();
                write(&file, content).unwrap();
                prepared.file = Some(file);
            }
            Rename => {
                // Open until the end: nothing of it is recorded before its name is.
                let file = File::create(mount.at(OTHER)).unwrap();
                write(&file, content).unwrap();
                prepared.file = Some(file);
            }
        }
        prepared
    }

    /// Does it. What is left open is closed when what is returned goes.
    pub fn act(self, mount: &Path, content: &Content, prepared: Prepared) -> (io::Result<()>, Prepared) {
        let path = mount.join(FILE);
        match self {
            Create => match File::create(&path) {
                Ok(file) => (write(&file, content), Prepared { file: Some(file), ..prepared }),
                Err(error) => (Err(error), prepared),
            },
            Write => match File::options().write(true).open(&path) {
                Ok(file) => (write(&file, content), Prepared { file: Some(file), ..prepared }),
                Err(error) => (Err(error), prepared),
            },
            Fsync => (prepared.file.as_ref().unwrap().sync_all(), prepared),
            Close => (nix::unistd::close(prepared.file.unwrap()).map_err(io::Error::from), Prepared::default()),
            Rename => (fs::rename(mount.join(OTHER), &path), prepared),
            Truncate => {
                let done = nix::unistd::truncate(&path, content.new.len() as i64);
                (done.map_err(io::Error::from), prepared)
            }
            Allocate => {
                let file = prepared.file.as_ref().unwrap();
                let mode = nix::fcntl::FallocateFlags::empty();
                let done = nix::fcntl::fallocate(file, mode, 0, content.new.len() as i64);
                (done.map_err(io::Error::from), prepared)
            }
            Seal => {
                let sealed = run(tensorfs_tests::tensorfs().arg("seal").arg(&path));
                let failed = || io::Error::from_raw_os_error(libc::EIO);
                (sealed.status.success().then_some(()).ok_or_else(failed), prepared)
            }
            Commit => (File::open(mount.join("dir")).and_then(|directory| directory.sync_all()), prepared),
            Recover => unreachable!("is done by whoever has the mount"),
            Move => (xattr::set(&path, "user.tensorfs.tier", b"tier", 0).map_err(io::Error::from), prepared),
        }
    }

    /// Whether success promises that the new content is durable.
    pub fn promises_durability(self) -> bool {
        matches!(self, Fsync | Close | Commit)
    }

    /// What the file may hold after the operation gave this, once a server that ended somehow was started again.
    /// Whether something of the file is in quarantine counts where the old content has come back.
    pub fn may_be(self, heard: Result<(), i32>, quarantined: bool) -> Vec<There> {
        match (self, heard) {
            // What was accepted before stays accepted. D12: of a file that could not be synced the last value may come
            // back, and then what it held is set aside.
            (Fsync | Commit | Close | Recover, Err(_)) if quarantined => vec![There::New, There::Old],
            (_, Ok(())) | (Fsync | Commit | Close | Recover | Seal | Move, Err(_)) => vec![There::New],
            (Create, Err(_)) => vec![There::Absent, There::Part, There::New],
            (Write, Err(_)) => vec![There::Old, There::Part, There::New],
            (Rename | Truncate | Allocate, Err(_)) => vec![There::Old, There::New],
        }
    }

    /// Whether the rest fits: other files of the directory, and what is in quarantine.
    pub fn others(self, mount: &Mount, there: &There, content: &Content) -> Result<(), String> {
        match self {
            Recover => {
                let replaced = fs::read(mount.at(REPLACED)).ok();
                if replaced != Some(Pattern(6).bytes(0, content.new.len())) {
                    return Err("what was being replaced is not what was written".into());
                }
                let entries = fs::read_dir(mount.pool().join("quarantine")).unwrap();
                let before = Pattern(5).bytes(0, content.new.len());
                let is_kept = |entry: fs::DirEntry| fs::read(entry.path()).is_ok_and(|bytes| bytes == before);
                let kept = entries.flatten().any(is_kept);
                return kept.then_some(()).ok_or("the version before is not in quarantine".into());
            }
            Rename => {}
            _ => return Ok(()),
        }
        match (there, fs::read(mount.at(OTHER))) {
            (There::New, Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            (There::Old, Ok(bytes)) if bytes == content.new => Ok(()),
            (there, other) => Err(format!("the target is {there:?}, the source {:?}", other.map(|bytes| bytes.len()))),
        }
    }
}

fn write(file: &File, content: &Content) -> io::Result<()> {
    file.write_all_at(&content.new[content.written.clone()], content.written.start as u64)
}

/// What the file holds.
pub fn look(path: &Path, content: &Content) -> There {
    let found = match fs::read(path) {
        Ok(found) => found,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return There::Absent,
        Err(error) => return There::Error(error.raw_os_error().unwrap_or(0)),
    };
    if found == content.new {
        return There::New;
    }
    match &content.old {
        Some(old) if found == *old => There::Old,
        Some(old) if found.len() == old.len() && old.len() == content.new.len() => {
            let known = |at: &usize| found[*at] == old[*at] || found[*at] == content.new[*at];
            match (0..found.len()).find(|at| !known(at)) {
                None => There::Part,
                Some(at) => There::Wrong(format!("byte {at} of {} is {}", found.len(), found[at])),
            }
        }
        None if content.new.starts_with(&found) => There::Part,
        _ => There::Wrong(format!("{} bytes, none of its contents", found.len())),
    }
}

/// The errno of a result.
pub fn heard(result: &io::Result<()>) -> Result<(), i32> {
    result.as_ref().map(|_| ()).map_err(|error| error.raw_os_error().unwrap_or(0))
}

/// As a word.
pub fn word(heard: Result<(), i32>) -> String {
    match heard {
        Ok(()) => "ok".into(),
        Err(errno) => format!("{:?}", Errno::from_raw(errno)),
    }
}
