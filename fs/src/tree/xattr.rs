//! Extended attributes, POSIX access control lists among them.

use tensorfs_layout::Ino;
use tensorfs_layout::log::{Attributes, Record, Transaction, XATTR_VALUE_MAX};
use tensorfs_layout::pool::Edit;

use crate::acl::{self, Acl};
use crate::caller::Caller;
use crate::clock;
use crate::error::{Fault, Result};
use crate::file::CAPABILITY;
use crate::store::reserved::{PROJECT, REMOTE, TIER, is_own_xattr};
use crate::store::{changed, check_attributes, frees, parse_project, with};

use super::Tree;

/// `ls -l` asks every file for this one, unless it hears that there is no such thing; the kernel remembers neither
/// answer.
const LABEL: &[u8] = b"security.selinux";

impl Tree {
    /// The value of an attribute.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let view = self.store().view();
        // Asked before nearly every first write; hardly any file has one.
        let object = view.object(ino);
        if name != CAPABILITY {
            check_name(name)?;
        }
        let none = if name == LABEL { libc::EOPNOTSUPP } else { libc::ENODATA };
        object.and_then(|object| object.xattr(name)).map(<[u8]>::to_vec).ok_or(Fault::new(none))
    }

    /// The names of all attributes that the caller may see, each with a NUL behind it.
    pub fn listxattr(&self, caller: Caller, ino: Ino) -> Vec<u8> {
        let view = self.store().view();
        let mut list = Vec::new();
        for (name, _) in view.object(ino).into_iter().flat_map(|object| object.xattrs()) {
            if !is_own_xattr(name) && (caller.uid == 0 || !name.starts_with(b"trusted.")) {
                list.extend_from_slice(name);
                list.push(0);
            }
        }
        list
    }

    /// Sets an attribute.
    pub fn setxattr(&self, caller: Caller, ino: Ino, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        if name == TIER || name == REMOTE {
            return self.set_of_directory(caller, ino, name, value, flags);
        }
        if name == PROJECT {
            let number = parse_project(value).ok_or(Fault::new(libc::EINVAL))?;
            return self.files.set_project(caller, ino, number);
        }
        if is_own_xattr(name) {
            return Err(Fault::new(libc::EPERM));
        }
        check_name(name)?;
        if name.len() > tensorfs_layout::log::NAME_MAX {
            return Err(Fault::new(libc::ERANGE));
        }
        if value.len() > XATTR_VALUE_MAX {
            return Err(Fault::new(libc::E2BIG));
        }
        match name {
            acl::ACCESS => return self.set_access_acl(caller, ino, value),
            acl::DEFAULT => return self.set_default_acl(caller, ino, value),
            _ => {}
        }
        self.files.edit(|edit| {
            let object = edit.object(ino).ok_or(Fault::stale())?;
            let exists = object.xattr(name).is_some();
            if exists && flags & libc::XATTR_CREATE != 0 {
                return Err(Fault::new(libc::EEXIST));
            }
            if !exists && flags & libc::XATTR_REPLACE != 0 {
                return Err(Fault::new(libc::ENODATA));
            }
            let attributes = Attributes { ctime: clock::now(), ..object.attributes.clone() };
            let set = Record::Xattr { ino, name: name.into(), value: value.into() };
            let tx = Transaction::new(caller.unique).with(set).with(Record::Attributes { ino, attributes });
            store_attributes(edit, ino, tx)
        })
    }

    /// Removes an attribute.
    pub fn removexattr(&self, caller: Caller, ino: Ino, name: &[u8]) -> Result<()> {
        if name == TIER || name == REMOTE {
            return self.unset_of_directory(caller, ino, name);
        }
        if name == PROJECT {
            return self.files.set_project(caller, ino, 0);
        }
        if is_own_xattr(name) {
            return Err(Fault::new(libc::EPERM));
        }
        check_name(name)?;
        self.files.edit(|edit| {
            let object = edit.object(ino).ok_or(Fault::stale())?;
            if object.xattr(name).is_none() {
                // To have no list is what was asked for.
                let is_list = name == acl::ACCESS || name == acl::DEFAULT;
                return if is_list { Ok(()) } else { Err(Fault::new(libc::ENODATA)) };
            }
            let attributes = Attributes { ctime: clock::now(), ..object.attributes.clone() };
            let removal = Record::XattrRemoval { ino, name: name.into() };
            let tx = Transaction::new(caller.unique).with(removal).with(Record::Attributes { ino, attributes });
            store_attributes(edit, ino, tx)
        })
    }

    /// Has new files in a directory made in a tier, or what is below it left out of the second copy.
    fn set_of_directory(&self, caller: Caller, ino: Ino, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        self.store().check_writable()?;
        let word = std::str::from_utf8(value).map_err(|_| Fault::new(libc::EINVAL))?;
        let kind = self.store().view().object(ino).ok_or(Fault::stale())?.kind();
        if kind != libc::S_IFDIR {
            return Err(Fault::new(libc::EPERM));
        }
        let is_remote = name == TIER && self.store().is_own_remote(word);
        self.files.edit(|edit| {
            let is_valid = if name == TIER { is_remote || edit.tier_named(word).is_some() } else { word == "no" };
            if !is_valid {
                return Err(Fault::new(libc::EINVAL));
            }
            let object = edit.object(ino).ok_or(Fault::stale())?;
            match object.xattr(name) {
                Some(_) if flags & libc::XATTR_CREATE != 0 => return Err(Fault::new(libc::EEXIST)),
                None if flags & libc::XATTR_REPLACE != 0 => return Err(Fault::new(libc::ENODATA)),
                _ => {}
            }
            let set = Record::Xattr { ino, name: name.into(), value: value.into() };
            let tx = with(Transaction::new(caller.unique).with(set), changed(edit, ino, clock::now()));
            store_attributes(edit, ino, tx)
        })
    }

    /// New files in a directory go where the placement map says, or what is below it is carried again.
    fn unset_of_directory(&self, caller: Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.files.edit(|edit| {
            let object = edit.object(ino).ok_or(Fault::stale())?;
            if !object.is_dir() {
                return Err(Fault::new(libc::EPERM));
            }
            if object.xattr(name).is_none() {
                return Err(Fault::new(libc::ENODATA));
            }
            let removal = Record::XattrRemoval { ino, name: name.into() };
            let tx = with(Transaction::new(caller.unique).with(removal), changed(edit, ino, clock::now()));
            store_attributes(edit, ino, tx)
        })
    }

    /// An access list shows in the mode; one that says no more than a mode is kept as the mode alone.
    fn set_access_acl(&self, caller: Caller, ino: Ino, value: &[u8]) -> Result<()> {
        let access = Acl::parse(value).ok_or(Fault::new(libc::EINVAL))?;
        let groups = if caller.uid == 0 { None } else { Some(caller.groups()) };
        self.files.edit(|edit| {
            let object = edit.object(ino).ok_or(Fault::stale())?;
            let mut tx = Transaction::new(caller.unique);
            let mut a = Attributes { ctime: clock::now(), ..object.attributes.clone() };
            if !access.is_empty() {
                a.mode = a.mode & !0o777 | access.permissions();
                // As for chmod: who is not in the group cannot leave its set-group-id bit behind.
                if groups.as_ref().is_some_and(|groups| !groups.contains(&a.gid)) {
                    a.mode &= !libc::S_ISGID;
                }
            }
            if !access.is_mode_only() {
                tx.push(Record::Xattr { ino, name: acl::ACCESS.into(), value: access.to_value().into() });
            } else if object.xattr(acl::ACCESS).is_some() {
                tx.push(Record::XattrRemoval { ino, name: acl::ACCESS.into() });
            }
            tx.push(Record::Attributes { ino, attributes: a });
            store_attributes(edit, ino, tx)
        })
    }

    fn set_default_acl(&self, caller: Caller, ino: Ino, value: &[u8]) -> Result<()> {
        let default = Acl::parse(value).ok_or(Fault::new(libc::EINVAL))?;
        self.files.edit(|edit| {
            let object = edit.object(ino).ok_or(Fault::stale())?;
            let mut tx = Transaction::new(caller.unique);
            if !default.is_empty() {
                if !object.is_dir() {
                    return Err(Fault::new(libc::EACCES));
                }
                tx.push(Record::Xattr { ino, name: acl::DEFAULT.into(), value: default.to_value().into() });
            } else if object.xattr(acl::DEFAULT).is_some() {
                tx.push(Record::XattrRemoval { ino, name: acl::DEFAULT.into() });
            } else {
                return Ok(());
            }
            let attributes = Attributes { ctime: clock::now(), ..object.attributes.clone() };
            tx.push(Record::Attributes { ino, attributes });
            store_attributes(edit, ino, tx)
        })
    }
}

/// Stores what changes attributes of an object, if there may be so much of them. What makes them no more than they were
/// also goes into a full log.
fn store_attributes(edit: &mut Edit<'_>, ino: Ino, tx: Transaction) -> Result<()> {
    check_attributes(edit, &tx)?;
    let frees = tx.records().iter().all(|record| match record {
        Record::Xattr { name, value, .. } => frees(edit, ino, name, value),
        _ => true,
    });
    if frees { edit.store_from_reserve(tx) } else { edit.store(tx) }?;
    Ok(())
}

/// The namespaces that are kept. The kernel has checked who may use them.
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Objections to an attribute's name.
fn check_name(name: &[u8]) -> Result<()> {
    if PREFIXES.contains(&name) {
        // A namespace, and no name in it.
        return Err(Fault::new(libc::EINVAL));
    }
    if !is_stored(name) {
        return Err(Fault::new(libc::EOPNOTSUPP));
    }
    Ok(())
}

fn is_stored(name: &[u8]) -> bool {
    let named = |prefix: &&[u8]| name.starts_with(prefix) && name.len() > prefix.len();
    PREFIXES.iter().any(named) || name == acl::ACCESS || name == acl::DEFAULT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_namespaces_are_kept() {
        for name in ["user.a", "trusted.x", "security.capability", "system.posix_acl_access"] {
            assert!(is_stored(name.as_bytes()), "{name}");
        }
        for name in ["user.", "user", "system.nfs4_acl", "btrfs.compression", ""] {
            assert!(!is_stored(name.as_bytes()), "{name}");
        }
    }
}
