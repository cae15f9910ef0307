//! What can go wrong with a pool, each as one line that a person can act on.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// An error of a pool. Its text names the pool and the reason; [`Error::errno`] is what a program gets.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory is not a pool, or no longer one that can be read.
    #[error("{}: not a tensorfs pool ({reason})", pool.display())]
    NotAPool {
        /// The directory.
        pool: PathBuf,
        /// What was found instead.
        reason: String,
    },
    /// The layout name recorded in the pool is not the one that was asked for.
    #[error("{}: layout name is \"{found}\", but \"{wanted}\" was asked for", pool.display())]
    LayoutName {
        /// The directory.
        pool: PathBuf,
        /// The name in the pool.
        found: String,
        /// The name asked for.
        wanted: String,
    },
    /// The pool uses a version or feature that this program does not know.
    #[error("{}: needs a newer tensorfs ({what})", pool.display())]
    Unsupported {
        /// The directory.
        pool: PathBuf,
        /// The version or the feature bits.
        what: String,
    },
    /// Another process has the pool in use.
    #[error("{}: already in use{}{}", pool.display(), by(*pid), at(mountpoint.as_deref()))]
    Busy {
        /// The directory.
        pool: PathBuf,
        /// The process that holds the pool's lock; 0 if it did not say.
        pid: u32,
        /// Where it is mounted, if it is.
        mountpoint: Option<PathBuf>,
    },
    /// `create` found something where the pool should go.
    #[error("{}: {what}; --force destroys it", pool.display())]
    Exists {
        /// The directory.
        pool: PathBuf,
        /// What is there.
        what: String,
    },
    /// A value that was given cannot be used.
    #[error("{}: {what}", pool.display())]
    Invalid {
        /// The directory.
        pool: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The pool's limit or the host's space is used up.
    #[error("{}: no space left ({what})", pool.display())]
    NoSpace {
        /// The directory.
        pool: PathBuf,
        /// Which bound was met.
        what: String,
    },
    /// A transaction is larger than a log block.
    #[error("{}: a transaction of {bytes} bytes does not fit a log block", pool.display())]
    TooLarge {
        /// The directory.
        pool: PathBuf,
        /// The size of its frame.
        bytes: usize,
    },
    /// The pool takes no more changes, because its log could not be made durable or is damaged.
    #[error("{}: read-only: {reason}", pool.display())]
    ReadOnly {
        /// The directory.
        pool: PathBuf,
        /// Why.
        reason: String,
    },
    /// A system call failed.
    #[error("{}: {what}: {}", path.display(), reason(source))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

/// What an error of the system is called, without its number.
pub fn reason(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |number| Errno::from_raw(number).desc().to_owned())
}

fn by(pid: u32) -> String {
    if pid == 0 { " by a process that does not say who it is".to_owned() } else { format!(" by process {pid}") }
}

fn at(mountpoint: Option<&Path>) -> String {
    mountpoint.map(|path| format!(", mounted at {}", path.display())).unwrap_or_default()
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>, what: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.into(), what, source }
    }

    /// As [`Error::io`], for something in a pool's directory.
    pub(crate) fn in_pool(pool: &Path, name: &str, what: &'static str, source: io::Error) -> Self {
        Self::io(pool.join(name), what, source)
    }

    /// The error number that a program gets.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotAPool { .. } | Self::Unsupported { .. } | Self::LayoutName { .. } => libc::EIO,
            Self::Invalid { .. } => libc::EINVAL,
            Self::Busy { .. } => libc::EBUSY,
            Self::Exists { .. } => libc::EEXIST,
            Self::NoSpace { .. } => libc::ENOSPC,
            Self::TooLarge { .. } => libc::E2BIG,
            Self::ReadOnly { .. } => libc::EROFS,
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// The result of an operation on a pool.
pub type Result<T> = std::result::Result<T, Error>;
