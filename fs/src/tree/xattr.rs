//! Extended attributes, POSIX access control lists among them.

use std::fs;

use tensorfs_layout::{Attributes, Ino, Record, Transaction, XATTR_VALUE_MAX};

use crate::acl::{self, Acl};
use crate::clock;
use crate::control;
use crate::error::{Fault, Result};
use crate::file_xattrs::{TIER, is_own};
use crate::filesystem::{Caller, Filesystem};
use crate::setattr::CAPABILITY;

/// `ls -l` asks every file for this one, unless it hears that there is no such thing; the kernel remembers neither answer.
const LABEL: &[u8] = b"security.selinux";

/// `listxattr` cannot return more.
const LIST_MAX: usize = 65_536;

impl Filesystem {
    /// The value of an attribute.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if control::is_control(ino) {
            let list = if name == acl::ACCESS { self.control_acl(ino) } else { None };
            return list.ok_or(Fault::new(libc::ENODATA));
        }
        if is_own(name) {
            return self.own_xattr(ino, name);
        }
        let view = self.pool.view();
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
        if control::is_control(ino) {
            return if self.control_acl(ino).is_some() { [acl::ACCESS, b"\0"].concat() } else { Vec::new() };
        }
        let view = self.pool.view();
        let mut list = Vec::new();
        for (name, _) in view.object(ino).into_iter().flat_map(|object| object.xattrs()) {
            if !is_own(name) && (caller.uid == 0 || !name.starts_with(b"trusted.")) {
                list.extend_from_slice(name);
                list.push(0);
            }
        }
        list
    }

    /// Sets an attribute.
    pub fn setxattr(&self, caller: Caller, ino: Ino, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        if name == TIER && !control::is_control(ino) {
            return self.set_tier(caller, ino, value, flags);
        }
        if control::is_control(ino) || is_own(name) {
            return Err(Fault::new(libc::EPERM));
        }
        check_name(name)?;
        if name.len() > tensorfs_layout::NAME_MAX {
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
        self.edit(|edit| {
            let object = edit.object(ino).ok_or(Fault::stale())?;
            let exists = object.xattr(name).is_some();
            if exists && flags & libc::XATTR_CREATE != 0 {
                return Err(Fault::new(libc::EEXIST));
            }
            if !exists && flags & libc::XATTR_REPLACE != 0 {
                return Err(Fault::new(libc::ENODATA));
            }
            let listed: usize = object.xattrs().map(|(name, _)| name.len() + 1).sum();
            if !exists && listed + name.len() + 1 > LIST_MAX {
                return Err(Fault::new(libc::ENOSPC));
            }
            let attributes = Attributes { ctime: clock::now(), ..object.attributes.clone() };
            let set = Record::Xattr { ino, name: name.into(), value: value.into() };
            edit.store(Transaction::new(caller.unique).with(set).with(Record::Attributes { ino, attributes }))?;
            Ok(())
        })
    }

    /// Removes an attribute.
    pub fn removexattr(&self, caller: Caller, ino: Ino, name: &[u8]) -> Result<()> {
        if name == TIER && !control::is_control(ino) {
            return self.unset_tier(caller, ino);
        }
        if control::is_control(ino) || is_own(name) {
            return Err(Fault::new(libc::EPERM));
        }
        check_name(name)?;
        self.edit(|edit| {
            let object = edit.object(ino).ok_or(Fault::stale())?;
            if object.xattr(name).is_none() {
                // To have no list is what was asked for.
                let is_list = name == acl::ACCESS || name == acl::DEFAULT;
                return if is_list { Ok(()) } else { Err(Fault::new(libc::ENODATA)) };
            }
            let attributes = Attributes { ctime: clock::now(), ..object.attributes.clone() };
            let removal = Record::XattrRemoval { ino, name: name.into() };
            edit.store(Transaction::new(caller.unique).with(removal).with(Record::Attributes { ino, attributes }))?;
            Ok(())
        })
    }

    /// An access list shows in the mode; one that says no more than a mode is kept as the mode alone.
    fn set_access_acl(&self, caller: Caller, ino: Ino, value: &[u8]) -> Result<()> {
        let access = Acl::parse(value).ok_or(Fault::new(libc::EINVAL))?;
        let groups = if caller.uid == 0 { None } else { Some(groups(caller)) };
        self.edit(|edit| {
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
            edit.store(tx)?;
            Ok(())
        })
    }

    fn set_default_acl(&self, caller: Caller, ino: Ino, value: &[u8]) -> Result<()> {
        let default = Acl::parse(value).ok_or(Fault::new(libc::EINVAL))?;
        self.edit(|edit| {
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
            edit.store(tx)?;
            Ok(())
        })
    }
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

/// The groups of the caller: its own, and those its process is in.
pub(crate) fn groups(caller: Caller) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{}/status", caller.pid)).unwrap_or_default();
    let listed = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let listed = listed.into_iter().flat_map(str::split_whitespace).filter_map(|id| id.parse().ok());
    listed.chain([caller.gid]).collect()
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

    #[test]
    fn the_callers_own_group_counts() {
        let caller = Caller { unique: 0, uid: 1, gid: 4_000_000, pid: std::process::id() };
        assert!(groups(caller).contains(&4_000_000));
    }
}
