//! Entries of directories, as listings give them.

use tensorfs_layout::Ino;

use super::stat::Stat;

/// One name of a listing.
pub(crate) struct Listed<'a> {
    /// Says where the next part of the listing starts.
    pub cookie: u64,
    pub name: &'a [u8],
    pub ino: Ino,
    /// The type bits of a mode (`S_IFMT`).
    pub kind: u32,
}

/// One name of a listing, with what it stands for.
pub(crate) struct ListedPlus<'a> {
    /// Says where the next part of the listing starts.
    pub cookie: u64,
    pub name: &'a [u8],
    pub stat: &'a Stat,
    /// That is what it looks like. Else only the host knows, and what there is says no more than its number and kind.
    pub known: bool,
}
