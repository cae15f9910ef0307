//! Extended attributes in the control tree: there is none but the access list.

use tensorfs_layout::Ino;

use crate::acl;
use crate::error::{Fault, Result};

use super::Control;
use super::fixed::is_slow;
use super::rights::{Of, Role};

impl Control {
    /// The value of an attribute.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let list = if name == acl::ACCESS { self.access_list(ino) } else { None };
        list.ok_or(Fault::new(libc::ENODATA))
    }

    /// The names of all attributes, each with a NUL behind it.
    pub fn listxattr(&self, ino: Ino) -> Vec<u8> {
        if self.access_list(ino).is_some() { [acl::ACCESS, b"\0"].concat() } else { Vec::new() }
    }

    fn access_list(&self, ino: Ino) -> Option<Vec<u8>> {
        let (origin, _) = self.numbers.get(ino).filter(|_| is_slow(ino))?;
        let (of, role) = Role::of(&origin);
        match of {
            Of::One(of) => role.access_list(self.content.files().store().view().object(of)?),
            Of::Checkpoint(dir) => self.shared(ino, &origin, dir)?.1,
        }
    }
}
