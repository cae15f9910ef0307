//! How a program asks the server for what no file operation tells: an ioctl(2) with a [`Request`], answered by a
//! [`Reply`].
//!
//! Asked on an open file, [`Request::Records`] tells what is recorded of it, and [`Request::HostSize`] what the host
//! has of it, to whoever has it open for reading. The other requests are asked on any directory of the mount, by root
//! or by the user whom the server runs as; [`Request::Move`] and [`Request::Mend`] by a file's owner, too. None of them
//! takes long: what does is a job, which is asked how far it has come, and ends when nobody asks any more.
//!
//! The encoding is postcard's. The number of the ioctl stands for its version.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use serde::{Deserialize, Serialize};
use tensorfs_layout::{Ino, Timestamp};

/// Bytes of a request or a reply, at most.
pub const SIZE: usize = 8184;

/// The ioctl.
pub(crate) const COMMAND: u32 = nix::request_code_readwrite!(0xa7, 3, SIZE) as u32;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// What is recorded of the file that this is asked on, from a place on.
    Records(Place),
    /// Have a file sealed.
    Seal {
        /// The file.
        ino: Ino,
        /// False to ask only what came of it.
        begin: bool,
        /// Recognise what is sealed anew.
        again: bool,
    },
    /// Begin a job.
    Start(Work),
    /// How far a job has come, and what it has said.
    Poll {
        /// The job.
        job: u64,
        /// What was said up to here is known.
        at: u64,
    },
    /// End a job.
    Cancel {
        /// The job.
        job: u64,
    },
    /// Set the pool's size limit, or lift it.
    Resize(Option<u64>),
    /// Have a file moved to a tier. Also for the file's owner.
    Move {
        /// The file.
        ino: Ino,
        /// The tier.
        tier: String,
        /// False to ask only what came of it.
        begin: bool,
    },
    /// How many bytes the host has of the file that this is asked on.
    HostSize,
    /// Have a sealed file mended with the bytes of another one, which are to have its checksums. Also for the owner of
    /// both. Answered as [`Request::Move`] is.
    Mend {
        /// The file.
        ino: Ino,
        /// The file that has the bytes.
        with: Ino,
        /// False to ask only what came of it.
        begin: bool,
    },
    /// Which files are damaged, as far as the server knows: some of those behind this one.
    Damaged(Ino),
}

/// Where the rest of a file's records begins. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The run.
    pub run: u64,
    /// Bytes of its description that are known.
    pub at: u64,
}

/// Work for the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Check the log, the tree, and that each file has its segment.
    pub structure: bool,
    /// Compare the bytes of sealed files with their checksums.
    pub data: bool,
    /// Read so many bytes in a second, at most.
    pub rate: Option<u64>,
    /// Go on where the last scrub was interrupted, if it was. An older program leaves this out, which reads as false.
    pub resume: bool,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Request::Records`].
    Records(Records),
    /// To [`Request::Seal`].
    Sealing(Sealing),
    /// To [`Request::Start`]: the job.
    Started(u64),
    /// To [`Request::Poll`].
    Output(Output),
    /// To [`Request::Cancel`].
    Cancelled,
    /// To [`Request::Resize`]: whether it was done, or why not.
    Resized(std::result::Result<(), String>),
    /// To [`Request::Move`] and [`Request::Mend`].
    Moving(Moving),
    /// To [`Request::HostSize`]; nothing unless the file is sealed.
    HostSize(Option<u64>),
    /// To [`Request::Damaged`]: the pool's uuid, and some of the files, in the order of their numbers. If there are
    /// none, those before are all.
    Damaged(String, Vec<Damaged>),
}

/// A file that can be mended, if somebody has its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damaged {
    /// The file.
    pub ino: Ino,
    /// Its path from the root of the mount on.
    pub path: Vec<u8>,
    /// What is wrong with it: another text if that has changed.
    pub what: String,
}

/// Why a file is not mended that needs it no more: whoever began it anew with another server hears this if the one
/// before had done it.
pub const IS_WHOLE: &str = "its bytes are those that were sealed";

/// Why no file is moved to the pool's remote at a word.
pub const LEAVES: &str = "somebody has to look whether the remote has it, which `tensorfs tier move` does";

/// How it begins why none is moved to a tier that the pool does not have.
pub const NO_TIER: &str = "the pool has no tier";

/// What came of having a file moved to a tier, or mended. That is only asked, and not begun, of a server that knows
/// nothing of it gives `ESRCH`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moving {
    /// It has its bytes there.
    Moved,
    /// It is being copied.
    Working {
        /// Bytes that are.
        done: u64,
        /// Its size.
        total: u64,
    },
    /// It is where it was.
    Refused(String),
}

/// What a file is going through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileState {
    /// Something can write it, or what was written last is not durable yet.
    Open,
    /// It is durable, and has no checksums yet.
    Committed,
    /// It has checksums.
    Sealed,
    /// Bytes of it are known to be lost or damaged.
    Damaged,
    /// Its tier was volatile, and its bytes did not survive that the machine was started anew.
    Lost,
    /// Its tier is not there. Its bytes are back when that is.
    Missing,
    /// It ends before what it promises itself, as one does whose writer was cut short.
    Interrupted,
    /// Its bytes are in a remote yet, and come when they are asked for.
    Away,
}

impl FileState {
    /// Its name in print.
    pub fn name(self) -> &'static str {
        match self {
            FileState::Open => "open",
            FileState::Committed => "committed",
            FileState::Sealed => "sealed",
            FileState::Damaged => "damaged",
            FileState::Lost => "lost",
            FileState::Missing => "missing",
            FileState::Interrupted => "interrupted",
            FileState::Away => "away",
        }
    }
}

/// What is recorded of a file: its chain of records, one for each run of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Records {
    /// What it is going through.
    pub state: FileState,
    /// Its recorded size.
    pub size: u64,
    /// Of two answers of the same version, the runs are the same.
    pub version: (u64, u64),
    /// True if every byte has a checksum that holds.
    pub sealed: bool,
    /// How many runs there are.
    pub runs: u64,
    /// Some of them.
    pub parts: Vec<Part>,
}

/// A run, or part of its description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Checksum of its bytes, if it is sealed.
    pub crc: Option<u32>,
    /// True if it is sealed provisionally: the bytes may have changed since.
    pub provisional: bool,
    /// The transaction that made its bytes part of the file, and when, if that is known.
    pub origin: Option<(u64, Timestamp)>,
    /// True if it is there after a power loss.
    pub durable: bool,
    /// Bytes of its description.
    pub described: u64,
    /// The part of its description from [`Place::at`] on.
    pub description: Vec<u8>,
}

/// What came of having a file sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sealing {
    /// It is sealed.
    Sealed,
    /// It is about to be.
    Waiting,
    /// Something can write it.
    InUse(String),
    /// It cannot be sealed.
    Unfit(String),
}

/// How far a job has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// What it is at.
    pub what: String,
    /// How much of that is done.
    pub done: u64,
    /// How much there is.
    pub total: u64,
    /// What it has said since: lines of JSON, each an [`Event`].
    pub text: Vec<u8>,
    /// It is over, and this is the last it has to say.
    pub ended: bool,
}

/// What a job says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// It found something.
    Finding(tensorfs_layout::check::Finding),
    /// What it counted, at its end. The findings were said before.
    Report(tensorfs_layout::check::Report),
    /// Files that were not verified, because programs wrote them again and again.
    Busy(u64),
    /// It could not go on.
    Failed(String),
}

/// Reads a request.
pub(crate) fn decode(bytes: &[u8]) -> Option<Request> {
    postcard::from_bytes(bytes).ok()
}

/// Asks the server of a file, or of the mount that a directory is in. What is not on a mount of ours gives `ENOTTY`.
///
/// # Errors
/// What the server says, or ioctl(2).
pub fn ask(file: impl AsFd, request: &Request) -> io::Result<Reply> {
    let fd = file.as_fd();
    // An ioctl is only for whom it is meant: another driver could take it for something else.
    let found = nix::sys::statfs::fstatfs(fd)?;
    if found.filesystem_type() != nix::sys::statfs::FUSE_SUPER_MAGIC {
        return Err(io::Error::from_raw_os_error(libc::ENOTTY));
    }
    let mut buffer = vec![0; SIZE];
    postcard::to_slice(request, &mut buffer).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    // SAFETY: the buffer has the size that the number of the ioctl says, which is what the kernel reads and writes.
    let answered = unsafe { libc::ioctl(fd.as_raw_fd(), COMMAND as libc::Ioctl, buffer.as_mut_ptr()) };
    let len = usize::try_from(answered).map_err(|_| io::Error::last_os_error())?;
    let unknown = || io::Error::new(io::ErrorKind::InvalidData, "its server speaks of something unknown here");
    postcard::from_bytes(buffer.get(..len).ok_or_else(unknown)?).map_err(|_| unknown())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_is_asked() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(ask(&file, &Request::Cancel { job: 1 }).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
    }
}
