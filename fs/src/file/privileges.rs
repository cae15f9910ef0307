//! What writing a file takes away from it: set-user-id, set-group-id, and a program's capabilities. The kernel moves
//! the bytes and leaves this to us.

use tensorfs_layout::Ino;
use tensorfs_layout::log::{Attributes, Record, Transaction};
use tensorfs_layout::tree::Object;

use crate::caller::Caller;
use crate::clock;
use crate::error::Result;
use crate::store::Store;

use super::Files;

/// The attribute that gives a program capabilities.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

impl Files {
    /// What writing a file takes away from it, done before the first byte can be written: the kernel moves the bytes
    /// and leaves this to us. Set-user-id goes where the writer is not root, capabilities always, as on any Linux
    /// filesystem.
    pub fn drop_privileges(&self, caller: Caller, ino: Ino) -> Result<()> {
        let needed = |object: &Object| {
            let special = object.attributes.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
            caller.uid != 0 && special || object.xattr(CAPABILITY).is_some()
        };
        if !self.store().view().object(ino).is_some_and(needed) {
            return Ok(());
        }
        let outsider = self.store().is_outsider(caller, ino);
        self.edit(|edit| {
            let Some(object) = edit.object(ino) else { return Ok(()) };
            let mut mode = object.attributes.mode;
            if caller.uid != 0 {
                mode = without_privileges(mode, outsider);
            }
            let capable = object.xattr(CAPABILITY).is_some();
            if mode == object.attributes.mode && !capable {
                return Ok(());
            }
            let attributes = Attributes { ctime: clock::now(), mode, ..object.attributes.clone() };
            let mut tx = Transaction::new(caller.unique).with(Record::Attributes { ino, attributes });
            if capable {
                tx.push(Record::XattrRemoval { ino, name: CAPABILITY.into() });
            }
            edit.store(tx)?;
            Ok(())
        })?;
        self.store().forget_attributes(ino);
        Ok(())
    }
}

impl Store {
    /// True if the caller is not in the group of a file that has the set-group-id bit. Asked only where that counts.
    pub fn is_outsider(&self, caller: Caller, ino: Ino) -> bool {
        let asked = self.view().object(ino).map(|object| (object.attributes.mode, object.attributes.gid));
        let Some((mode, gid)) = asked.filter(|_| caller.uid != 0) else { return false };
        mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID && !caller.groups().contains(&gid)
    }
}

/// A mode without set-user-id, and without set-group-id where that means something, or where the caller is not in the
/// group and could not have set it.
pub(crate) fn without_privileges(mode: u32, outsider: bool) -> u32 {
    let mode = mode & !libc::S_ISUID;
    if mode & libc::S_IXGRP != 0 || outsider { mode & !libc::S_ISGID } else { mode }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_group_id_without_execute_is_no_privilege() {
        assert_eq!(without_privileges(0o106_755, false), 0o100_755);
        assert_eq!(without_privileges(0o102_644, false), 0o102_644);
        assert_eq!(without_privileges(0o102_644, true), 0o100_644);
        assert_eq!(without_privileges(0o104_644, false), 0o100_644);
    }
}
