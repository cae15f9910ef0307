//! How often what happened.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The live counters.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub $name: Counter,)* }

        /// The counters at one moment, since the mount.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// The counters now.
            pub fn read(&self) -> Counts {
                Counts { $($name: self.$name.get(),)* }
            }
        }
    };
}

impl Counts {
    /// How many requests of each kind the kernel sent.
    pub fn requests(&self) -> Vec<(&'static str, u64)> {
        macro_rules! kinds {
            ($($name:ident,)*) => { vec![$((stringify!($name), self.$name),)*] };
        }
        kinds![
            lookup,
            forget,
            getattr,
            setattr,
            readlink,
            mknod,
            mkdir,
            unlink,
            rmdir,
            symlink,
            rename,
            link,
            create,
            open,
            read,
            write,
            flush,
            release,
            fsync,
            fsyncdir,
            readdir,
            readdirplus,
            statfs,
            setxattr,
            getxattr,
            listxattr,
            removexattr,
            fallocate,
            lseek,
            copy_file_range,
            ioctl,
            opendir,
            access,
            other,
        ]
    }
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
    lookup,
    /// FORGET requests; those that the kernel sends together are counted each.
    forget,
    /// GETATTR requests.
    getattr,
    /// SETATTR requests.
    setattr,
    /// READLINK requests.
    readlink,
    /// MKNOD requests.
    mknod,
    /// MKDIR requests.
    mkdir,
    /// UNLINK requests.
    unlink,
    /// RMDIR requests.
    rmdir,
    /// SYMLINK requests.
    symlink,
    /// RENAME requests.
    rename,
    /// LINK requests.
    link,
    /// CREATE requests.
    create,
    /// OPEN requests.
    open,
    /// READ requests.
    read,
    /// Bytes answered to READ requests.
    read_bytes,
    /// WRITE requests.
    write,
    /// Bytes taken from WRITE requests.
    write_bytes,
    /// FLUSH requests.
    flush,
    /// RELEASE requests.
    release,
    /// FSYNC requests.
    fsync,
    /// FSYNCDIR requests.
    fsyncdir,
    /// READDIR requests.
    readdir,
    /// READDIRPLUS requests.
    readdirplus,
    /// STATFS requests.
    statfs,
    /// SETXATTR requests.
    setxattr,
    /// GETXATTR requests.
    getxattr,
    /// LISTXATTR requests.
    listxattr,
    /// REMOVEXATTR requests.
    removexattr,
    /// FALLOCATE requests.
    fallocate,
    /// LSEEK requests.
    lseek,
    /// COPY_FILE_RANGE requests.
    copy_file_range,
    /// Bytes that COPY_FILE_RANGE requests copied.
    copied_bytes,
    /// Bytes that COPY_FILE_RANGE requests had the host share.
    shared_bytes,
    /// IOCTL requests.
    ioctl,
    /// OPENDIR requests.
    opendir,
    /// ACCESS requests.
    access,
    /// Other requests: POLL and BMAP.
    other,
    /// Requests that ended in a panic and were answered with an I/O error.
    panics,
    /// Opens that were given to the kernel (passthrough).
    opened_passthrough,
    /// Opens that go through the server.
    opened_server,
    /// Files replaced by `open(O_TRUNC)`.
    replaced,
    /// Files truncated in place by `open(O_TRUNC)`.
    truncated_in_place,
    /// Times that what was written to a file was recorded.
    learned,
    /// Commits that a client waited for.
    commits_waited,
    /// Commits in the background.
    commits_background,
    /// Commits that failed.
    commits_failed,
    /// Files that were sealed.
    sealed,
    /// Bytes of files that were sealed.
    sealed_bytes,
    /// Sealed files that were opened for writing.
    thawed,
    /// Bytes of large files that the host was asked to write out before a commit had to wait for them.
    written_out_bytes,
    /// Segments that were made before they were needed.
    spares_made,
    /// Segments that were needed and had been made before.
    spares_used,
}
