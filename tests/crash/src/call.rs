//! What a client asks of the filesystem.

/// One call. Paths are absolute; a slot is an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `mkdir`.
    Mkdir(&'static str),
    /// A FIFO.
    Mkfifo(&'static str),
    /// A symbolic link.
    Symlink(&'static str),
    /// A second name of the first path.
    Link(&'static str, &'static str),
    /// `unlink`.
    Unlink(&'static str),
    /// `rmdir`.
    Rmdir(&'static str),
    /// `rename`.
    Rename(&'static str, &'static str),
    /// `rename` with `RENAME_EXCHANGE`.
    Exchange(&'static str, &'static str),
    /// `open(O_CREAT | O_EXCL)`.
    Create(u8, &'static str),
    /// `open(O_RDWR)`.
    Open(u8, &'static str),
    /// `open(O_RDWR | O_TRUNC)`.
    OpenTruncate(u8, &'static str),
    /// So many bytes at an offset.
    Write(u8, u64, usize),
    /// So many bytes at the end.
    Append(u8, usize),
    /// `fsync`.
    Fsync(u8),
    /// `close`.
    Close(u8),
    /// `truncate`.
    Truncate(&'static str, u64),
    /// `fallocate` to punch a hole.
    Punch(u8, u64, u64),
    /// `fallocate` to zero a range.
    Zero(u8, u64, u64),
    /// `fallocate` of a range, which leaves the size as it is.
    Reserve(u8, u64, u64),
    /// `fallocate` of so many bytes behind the end, which become part of the file.
    Extend(u8, u64),
    /// `chmod`.
    Chmod(&'static str, u32),
    /// `chown`.
    Chown(&'static str, u32),
    /// `setxattr` of a value of that many bytes.
    SetXattr(&'static str, &'static str, usize),
    /// `removexattr`.
    RemoveXattr(&'static str, &'static str),
    /// `fsync` of a directory.
    Sync,
    /// A round of the background commit, with its housekeeping.
    Round,
    /// What a round does when nothing has changed since the one before.
    Idle,
    /// The next numbers of objects and segments are taken, up to this one.
    Burn(u64),
    /// Removes what was deleted from the host, and cleans the log as a full one is.
    Reclaim,
    /// Commits, and seals a file if nothing can write it.
    Seal(&'static str),
    /// Commits, and seals provisionally what a file that is open has grown by.
    SealOpen(&'static str),
}
