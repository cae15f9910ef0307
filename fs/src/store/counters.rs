//! How often what happened.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use super::latencies::{Latencies, Requests};

macro_rules! counters {
    ($($(#[$doc:meta])* $kind:ident $name:ident,)*) => {
        /// The live counters.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub $name: counters!(@type $kind),)* }

        /// The counters at one moment, since this server began.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// The counters now.
            pub fn read(&self) -> Counts {
                Counts { $($name: self.$name.get(),)* }
            }

            /// How long the requests of each kind took.
            pub fn latencies(&self) -> Vec<(&'static str, Latencies)> {
                [$(counters!(@if_timed $kind $name self),)*].into_iter().flatten().collect()
            }
        }

        impl Counts {
            /// How many requests of each kind the kernel sent.
            pub fn requests(&self) -> Vec<(&'static str, u64)> {
                [$(counters!(@if_request $kind $name self),)*].into_iter().flatten().collect()
            }
        }
    };
    (@type request) => { Requests };
    (@type other) => { Counter };
    (@if_timed request $name:ident $counters:ident) => { Some((stringify!($name), $counters.$name.latencies())) };
    (@if_timed other $name:ident $counters:ident) => { None };
    (@if_request request $name:ident $counts:ident) => { Some((stringify!($name), $counts.$name)) };
    (@if_request other $name:ident $counts:ident) => { None };
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

counters! {
    /// LOOKUP requests.
    request lookup,
    /// FORGET requests; those that the kernel sends together are counted each.
    request forget,
    /// GETATTR requests.
    request getattr,
    /// SETATTR requests.
    request setattr,
    /// READLINK requests.
    request readlink,
    /// MKNOD requests.
    request mknod,
    /// MKDIR requests.
    request mkdir,
    /// UNLINK requests.
    request unlink,
    /// RMDIR requests.
    request rmdir,
    /// SYMLINK requests.
    request symlink,
    /// RENAME requests.
    request rename,
    /// LINK requests.
    request link,
    /// CREATE requests.
    request create,
    /// OPEN requests.
    request open,
    /// READ requests.
    request read,
    /// Bytes answered to READ requests.
    other read_bytes,
    /// WRITE requests.
    request write,
    /// Bytes taken from WRITE requests.
    other write_bytes,
    /// FLUSH requests.
    request flush,
    /// RELEASE requests.
    request release,
    /// FSYNC requests.
    request fsync,
    /// FSYNCDIR requests.
    request fsyncdir,
    /// READDIR requests.
    request readdir,
    /// READDIRPLUS requests.
    request readdirplus,
    /// STATFS requests.
    request statfs,
    /// SETXATTR requests.
    request setxattr,
    /// GETXATTR requests.
    request getxattr,
    /// LISTXATTR requests.
    request listxattr,
    /// REMOVEXATTR requests.
    request removexattr,
    /// FALLOCATE requests.
    request fallocate,
    /// LSEEK requests.
    request lseek,
    /// COPY_FILE_RANGE requests.
    request copy_file_range,
    /// Bytes that COPY_FILE_RANGE requests copied.
    other copied_bytes,
    /// Bytes that COPY_FILE_RANGE requests had the host share.
    other shared_bytes,
    /// IOCTL requests.
    request ioctl,
    /// OPENDIR requests.
    request opendir,
    /// ACCESS requests.
    request access,
    /// GETLK requests.
    request getlk,
    /// SETLK requests, those that may wait among them.
    request setlk,
    /// Other requests: POLL and BMAP.
    request other,
    /// Requests that ended in a panic and were answered with an I/O error.
    other panics,
    /// Opens that were given to the kernel (passthrough).
    other opened_passthrough,
    /// Opens that go through the server.
    other opened_server,
    /// Files replaced by `open(O_TRUNC)`.
    other replaced,
    /// Files truncated in place by `open(O_TRUNC)`.
    other truncated_in_place,
    /// Times that what was written to a file was recorded.
    other learned,
    /// Commits that a client waited for.
    other commits_waited,
    /// Commits in the background.
    other commits_background,
    /// Commits that failed.
    other commits_failed,
    /// Files that were sealed.
    other sealed,
    /// Bytes of files that were sealed.
    other sealed_bytes,
    /// Files that were away and have come.
    other brought,
    /// Files that left for the remote.
    other evicted,
    /// Damaged files that were mended.
    other mended,
    /// Times that what a file had grown by was sealed while it was open for writing.
    other sealed_open,
    /// Files of which bytes had changed since they were sealed while it was open for writing.
    other changed_open,
    /// Sealed files that were opened for writing.
    other thawed,
    /// Bytes of large files that the host was asked to write out before a commit had to wait for them.
    other written_out_bytes,
    /// Segments that were made before they were needed.
    other spares_made,
    /// Segments that were needed and had been made before.
    other spares_used,
}
