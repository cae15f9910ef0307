//! What a host sets aside in a file ahead of appends, before anybody has asked for it.
//!
//! XFS does: as much again as the file has, for as long as it is open for writing. In a pool with a limit that would
//! count, as it is taken from the host, and would be neither foreseen nor given back. A file that is told how much to
//! take at a time takes no more than that.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `struct fsxattr` of include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

/// `FS_XFLAG_EXTSIZE` of the same file: what is taken at a time is `extsize`.
const EXTSIZE: u32 = 0x800;

nix::ioctl_read!(get_xattr, b'X', 31, FsXattr);
nix::ioctl_write_ptr!(set_xattr, b'X', 32, FsXattr);

/// The bytes that a host takes at least, if it is one that sets aside more.
pub(super) fn block_of(dir: impl AsFd) -> Option<u32> {
    let host = nix::sys::statfs::fstatfs(&dir).ok()?;
    let is_xfs = host.filesystem_type() == nix::sys::statfs::XFS_SUPER_MAGIC;
    is_xfs.then(|| host.block_size() as u32)
}

/// Has the host take no more than a block beyond what an empty file is given.
pub(super) fn take_blocks_alone(file: impl AsFd, block: u32) -> io::Result<()> {
    let file = file.as_fd().as_raw_fd();
    let mut attributes = FsXattr::default();
    // SAFETY: the descriptor is open, and the kernel writes a structure of the size that the call's number says.
    unsafe { get_xattr(file, &raw mut attributes) }?;
    attributes.xflags |= EXTSIZE;
    attributes.extsize = block;
    // SAFETY: as above, and reads one.
    unsafe { set_xattr(file, &raw const attributes) }?;
    Ok(())
}
