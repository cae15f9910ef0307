//! What is asked of a reader.

use std::io;
use std::time::Duration;

use tensorfs_formats::Source;

/// The number of a segment, its size, and when it was changed last: seconds and nanoseconds.
pub(crate) type Mark = (u64, u64, i64, u32);

/// A question about a file.
pub(crate) struct Ask<'a> {
    /// Its bytes.
    pub source: &'a dyn Source,
    /// What stands for this version of the file.
    pub version: Mark,
    /// Whose file it is: no reader sees files of two users.
    pub owner: u32,
    /// What it may take of the processors for the bytes that it is about, beyond what each question may.
    pub for_bytes: Duration,
    /// Hears what became of a reader that failed, or took more than it may.
    pub tell: &'a dyn Fn(&str),
    /// Whoever asks may wait for a person who reads what he prints: then only what the reader computes has a limit.
    pub at_leisure: bool,
    /// Done now and then while the reader thinks.
    pub pause: &'a dyn Fn(),
    /// Why nobody wants to know any more, if so. Asked several times a second.
    pub wanted: &'a dyn Fn() -> io::Result<()>,
    /// Hears what a question took of the processors.
    pub took: &'a dyn Fn(Duration),
}
