//! Who may read an object of the control tree: whoever may read what it stands for.

use tensorfs_layout::Ino;
use tensorfs_layout::log::Attributes;
use tensorfs_layout::tree::Object;

use crate::acl::{self, Acl};

use super::origin::Origin;

/// What an object of the pool is in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A directory in the place of a directory.
    Directory,
    /// A directory in the place of a file.
    Inside,
    /// One of its tensors.
    Tensor,
}

/// Whose rights count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// Those to read one object of the pool.
    One(Ino),
    /// Those to read all files of the checkpoint that a directory is.
    Checkpoint(Ino),
}

impl Role {
    /// Whose rights count for an object of the tree, and what it is in the tree.
    pub fn of(origin: &Origin) -> (Of, Self) {
        match *origin {
            Origin::Mirror(dir) => (Of::One(dir), Self::Directory),
            Origin::Directory { file, .. } => (Of::One(file), Self::Inside),
            Origin::Tensor { file, .. } => (Of::One(file), Self::Tensor),
            Origin::Checkpoint { dir, .. } => (Of::Checkpoint(dir), Self::Inside),
            Origin::Assembled { dir, .. } => (Of::Checkpoint(dir), Self::Tensor),
        }
    }

    pub fn kind(self) -> u32 {
        if self == Self::Tensor { libc::S_IFREG } else { libc::S_IFDIR }
    }

    /// What three bits of permission are worth in the tree: nobody writes, and who reads a file may search and list the
    /// directories in its place.
    pub fn rights(self, bits: u16) -> u16 {
        match (self, bits & 4 != 0) {
            (Self::Directory, _) => bits & 5,
            (Self::Inside, true) => 5,
            (Self::Tensor, true) => 4,
            (_, false) => 0,
        }
    }

    fn mode(self, mode: u32, has_list: bool) -> u32 {
        let class = |shift: u32| u32::from(self.rights((mode >> shift & 7) as u16)) << shift;
        let mut rights = class(6) | class(3) | class(0);
        // Without any bit for the group the kernel does not look at a list, and whom that names would count among the
        // others. This bit alone grants nobody anything: it is the list's mask, and its entries have no such bit.
        if has_list && mode & 0o070 != 0 && rights & 0o070 == 0 {
            rights |= 0o020;
        }
        self.kind() | rights
    }

    /// The attributes of an object of the pool in this role.
    pub fn attributes(self, object: &Object) -> Attributes {
        let mode = self.mode(object.attributes.mode, object.xattr(acl::ACCESS).is_some());
        Attributes { mode, rdev: 0, segment: None, damaged: false, ..object.attributes.clone() }
    }

    /// The access list of an object of the pool in this role, if it has one.
    pub fn access_list(self, object: &Object) -> Option<Vec<u8>> {
        let list = Acl::parse(object.xattr(acl::ACCESS)?)?;
        Some(list.reduced(|bits| self.rights(bits)).to_value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_those_to_read() {
        assert_eq!(Role::Directory.mode(0o41777, false), libc::S_IFDIR | 0o555);
        assert_eq!(Role::Directory.mode(0o40731, false), libc::S_IFDIR | 0o511);
        assert_eq!(Role::Inside.mode(0o100640, false), libc::S_IFDIR | 0o550);
        assert_eq!(Role::Tensor.mode(0o104751, false), libc::S_IFREG | 0o440);
        assert_eq!(Role::Tensor.mode(0o100311, false), libc::S_IFREG);
        // A list whose mask grants only writing: named users must not become others.
        assert_eq!(Role::Tensor.mode(0o100624, true), libc::S_IFREG | 0o424);
        assert_eq!(Role::Tensor.mode(0o100604, true), libc::S_IFREG | 0o404);
        assert_eq!(Role::Tensor.mode(0o100624, false), libc::S_IFREG | 0o404);
        assert_eq!(Role::Tensor.mode(0o100644, true), libc::S_IFREG | 0o444);
    }
}
