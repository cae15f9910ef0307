//! Names that are tensorfs' own, and that users cannot give to anything.

use tensorfs_layout::{Ino, ROOT};

/// The name of the control tree. Users cannot make, remove or move an object of that name in the root.
const CONTROL: &[u8] = b".tensorfs";

/// Attributes whose names begin like this are worked out by tensorfs when they are read.
pub(crate) const OWN_XATTRS: &[u8] = b"user.tensorfs.";

/// The tier that a file's bytes are in; of a directory, the one that files made in it go to. With [`REMOTE`] and
/// [`PROJECT`] the only attribute of tensorfs' own that can be set.
pub(crate) const TIER: &[u8] = b"user.tensorfs.tier";

/// Whether the pool's second copy has it as it is. Set to `no` on a directory, what is below that is left out; the
/// carrier looks for it.
pub(crate) const REMOTE: &[u8] = b"user.tensorfs.remote";

/// The project that a file, or what is made in a directory, counts for, which `tensorfs quota` sets. One of the names
/// that the kernel keeps for root.
pub(crate) const PROJECT: &[u8] = b"trusted.tensorfs.project";

/// True for the name of the control tree in the root.
pub(crate) fn is_control_name(dir: Ino, name: &[u8]) -> bool {
    dir == ROOT && name == CONTROL
}

/// True for a name that users cannot give to an attribute.
pub(crate) fn is_own_xattr(name: &[u8]) -> bool {
    name.starts_with(OWN_XATTRS) || name == PROJECT
}
