//! What goes wrong: errors of the server for people, and faults of one request for the client and the log.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

use log::Level;

/// Why a mount cannot be served, or stopped being served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel and this program did not agree on how to talk.
    #[error("{}: FUSE handshake failed: {source}", mountpoint.display())]
    Handshake {
        /// The mount point.
        mountpoint: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Passthrough was demanded and is not to be had.
    #[error("{}: kernel passthrough is not available: {reason}", mountpoint.display())]
    NoPassthrough {
        /// The mount point.
        mountpoint: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Requests can no longer be read or answered.
    #[error("{}: FUSE session failed: {source}", mountpoint.display())]
    Session {
        /// The mount point.
        mountpoint: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The server could not get a thread.
    #[error("{}: cannot start a thread: {source}", mountpoint.display())]
    Thread {
        /// The mount point.
        mountpoint: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Something could not be made durable.
    #[error("{}: commit failed: {reason}", pool.display())]
    Commit {
        /// The pool's directory.
        pool: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The pool.
    #[error(transparent)]
    Pool(#[from] tensorfs_layout::Error),
}

/// Why a request fails: what the client gets, how loudly the log says so, and what there is to say.
#[derive(Debug)]
pub(crate) struct Fault {
    pub errno: i32,
    pub level: Level,
    pub cause: Cow<'static, str>,
    /// It is a bound that no space changes which could be made.
    pub bound: bool,
}

/// The result of a request.
pub(crate) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    /// An answer that a working filesystem gives every day.
    pub fn new(errno: i32) -> Self {
        Self { errno, level: Level::Debug, cause: Cow::Borrowed(""), bound: false }
    }

    /// The answer to who wants more than there may be of something.
    pub fn bound(errno: i32) -> Self {
        Self { bound: true, ..Self::new(errno) }
    }

    /// True if there was no space, and there may be some once what is deleted was given back.
    pub fn wants_space(&self) -> bool {
        is_no_space(self.errno) && !self.bound
    }

    /// The object has lost its last name since the kernel looked it up. It looks the name up again then, and finds what
    /// is there now: to say that nothing is there would make a rename over the name look like a removal.
    pub fn stale() -> Self {
        Self::new(libc::ESTALE)
    }

    /// An answer that the operator should know of.
    pub fn warn(errno: i32, cause: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, level: Level::Warn, cause: cause.into(), bound: false }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.cause {
            "" => io::Error::from_raw_os_error(self.errno).fmt(f),
            cause => f.write_str(cause),
        }
    }
}

impl From<tensorfs_layout::Error> for Fault {
    fn from(error: tensorfs_layout::Error) -> Self {
        let level = match error {
            tensorfs_layout::Error::NoSpace { .. } | tensorfs_layout::Error::ReadOnly { .. } => Level::Debug,
            _ => Level::Error,
        };
        Self { errno: for_clients(error.errno()), level, cause: Cow::Owned(error.to_string()), bound: false }
    }
}

/// Names the step of a request that a failed call of the host belongs to.
pub(crate) trait Host<T> {
    fn host(self, doing: &'static str) -> Result<T>;
}

impl<T> Host<T> for io::Result<T> {
    fn host(self, doing: &'static str) -> Result<T> {
        self.map_err(|error| fault(error.raw_os_error().unwrap_or(libc::EIO), doing))
    }
}

impl<T> Host<T> for nix::Result<T> {
    fn host(self, doing: &'static str) -> Result<T> {
        self.map_err(|errno| fault(errno as i32, doing))
    }
}

/// True if the host refused for lack of space: of its own, or of what the server's user may have of it.
pub(crate) fn is_no_space(errno: i32) -> bool {
    matches!(errno, libc::ENOSPC | libc::EDQUOT)
}

fn fault(errno: i32, doing: &'static str) -> Fault {
    let level = match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::ENXIO | libc::EOPNOTSUPP | libc::EINVAL => Level::Debug,
        _ => Level::Error,
    };
    let cause = Cow::Owned(format!("{doing}: {}", io::Error::from_raw_os_error(errno)));
    Fault { errno: for_clients(errno), level, cause, bound: false }
}

/// The host's answer to the server, as a client may understand it.
fn for_clients(errno: i32) -> i32 {
    match errno {
        // A client knows nothing of segments, so what is wrong with one is an I/O error to it.
        libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EACCES | libc::EPERM | libc::EBADF | libc::ESTALE => {
            libc::EIO
        }
        // It is the server that has too many files open, not the client.
        libc::EMFILE => libc::ENFILE,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quota cannot be set up everywhere, so the way of its error is tested here too; tests/crash/storms/quotas.rs
    /// has a real one.
    ///
    /// Proves B4, B6.
    #[test]
    fn a_client_hears_of_the_hosts_bounds_but_not_of_the_servers_own() {
        let heard = |errno| Err::<(), _>(io::Error::from_raw_os_error(errno)).host("writing").unwrap_err().errno;
        for errno in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
            assert_eq!(heard(errno), errno);
        }
        assert_eq!(heard(libc::EMFILE), libc::ENFILE);
        for errno in [libc::ENOENT, libc::EACCES, libc::EBADF] {
            assert_eq!(heard(errno), libc::EIO);
        }
        let pool = tensorfs_layout::Error::Io {
            path: "/pool".into(),
            what: "open",
            source: io::Error::from_raw_os_error(libc::EMFILE),
        };
        assert_eq!(Fault::from(pool).errno, libc::ENFILE);
    }
}
