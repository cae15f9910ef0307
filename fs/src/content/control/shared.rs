//! Who may read what several files have together: whoever may read each of them. Where that cannot be said by an owner,
//! a group and a mode, those are left out who may not be able to.

use tensorfs_layout::Ino;
use tensorfs_layout::log::Attributes;
use tensorfs_layout::tree::{Object, View};

use crate::acl::{self, Acl};

use super::rights::Role;

/// Who may read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MayRead {
    uid: u32,
    gid: u32,
    owner: bool,
    group: bool,
    others: bool,
    /// A list of who may, which says more than the mode.
    list: Option<Acl>,
}

impl MayRead {
    /// Who may read a file, or may enter a directory.
    fn of(object: &Object) -> Self {
        let Attributes { uid, gid, mode, .. } = object.attributes;
        let bit = if object.is_dir() { 1 } else { 4 };
        let may = |shift: u32| mode >> shift & bit != 0;
        let list = object.xattr(acl::ACCESS).and_then(Acl::parse);
        let list = list.map(|list| list.reduced(|bits| if u32::from(bits) & bit != 0 { 4 } else { 0 }));
        Self { uid, gid, owner: may(6), group: may(3), others: may(0), list }
    }

    /// Who may read this, and the other, too.
    fn and(self, other: &Self) -> Self {
        let (same_owner, same_group) = (self.uid == other.uid, self.gid == other.gid);
        if same_owner && same_group && self.list == other.list {
            let (owner, group, others) = (other.owner, other.group, other.others);
            let both = |one, other| one && other;
            return Self {
                owner: both(self.owner, owner),
                group: both(self.group, group),
                others: both(self.others, others),
                ..self
            };
        }
        let (this, other) = (self.without_list(), other.clone().without_list());
        // Anybody may be the other's owner, or in its group, who is not said to be somebody else.
        let to_owner = same_owner || other.owner;
        let to_group = same_group || other.group;
        let owner = if same_owner { other.owner } else { other.group && other.others };
        let group = other.group && (same_group || other.others);
        Self {
            owner: this.owner && owner,
            group: this.group && group && to_owner,
            others: this.others && other.others && to_group && to_owner,
            ..this
        }
    }

    /// What a list grants to everybody, and to the owner.
    fn without_list(self) -> Self {
        match &self.list {
            None => self,
            Some(list) => {
                let all = list.grants_others(4);
                Self { group: all, others: all, list: None, ..self }
            }
        }
    }

    /// True if nobody may.
    fn is_nobody(&self) -> bool {
        !(self.owner || self.group || self.others) && self.list.is_none()
    }

    fn mode(&self, role: Role) -> u32 {
        let class = |may: bool, shift: u32| u32::from(role.rights(if may { 4 } else { 0 })) << shift;
        let list = self.list.clone().map(|list| list.reduced(|bits| role.rights(bits)).permissions());
        let rights = list.unwrap_or_else(|| class(self.owner, 6) | class(self.group, 3) | class(self.others, 0));
        role.kind() | rights
    }
}

/// Attributes of what the files have together, the first of which is the directory of the others; and the access list,
/// if there is one. None if there are no such files any more.
pub(super) fn of_all(role: Role, view: &View, files: &[Ino]) -> Option<(Attributes, Option<Vec<u8>>)> {
    // Of what is gone nobody knows who might have read it.
    let [dir, first, others @ ..] = files else { return None };
    let first = view.object(*first)?;
    let mut before = view.object(*dir)?;
    let mut may = MayRead::of(first).and(&MayRead::of(before));
    for other in others {
        let other = view.object(*other)?;
        // As a rule they are all alike; and nobody is added.
        if !may.is_nobody() && !are_alike(before, other) {
            may = may.and(&MayRead::of(other));
        }
        before = other;
    }
    let attributes =
        Attributes { mode: may.mode(role), rdev: 0, segment: None, damaged: false, ..first.attributes.clone() };
    Some((attributes, may.list.map(|list| list.reduced(|bits| role.rights(bits)).to_value())))
}

/// True if the same may read both.
fn are_alike(one: &Object, other: &Object) -> bool {
    let rights = |object: &Object| {
        let Attributes { uid, gid, mode, .. } = object.attributes;
        (uid, gid, mode, object.is_dir())
    };
    rights(one) == rights(other) && one.xattr(acl::ACCESS) == other.xattr(acl::ACCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would say to a user in some groups.
    fn may(rights: &MayRead, uid: u32, groups: &[u32]) -> bool {
        match () {
            () if rights.uid == uid => rights.owner,
            () if groups.contains(&rights.gid) => rights.group,
            () => rights.others,
        }
    }

    /// Two files of all modes, of two owners and groups, and users in all groups: nobody may read both who may not read
    /// each, and with the same owner and group everybody may who may read each.
    #[test]
    fn who_may_read_all_may_read_each() {
        let all = |uid, gid| {
            (0..8).map(move |bits| MayRead {
                uid,
                gid,
                owner: bits & 4 != 0,
                group: bits & 2 != 0,
                others: bits & 1 != 0,
                list: None,
            })
        };
        let each = || [(1, 1), (1, 2), (2, 1), (2, 2)].into_iter().flat_map(|(uid, gid)| all(uid, gid));
        for (one, other) in each().flat_map(|one| each().map(move |other| (one.clone(), other))) {
            let both = one.clone().and(&other);
            assert_eq!((both.uid, both.gid), (one.uid, one.gid));
            for uid in [1, 2, 3] {
                for groups in [&[][..], &[1], &[2], &[1, 2]] {
                    let of_each = may(&one, uid, groups) && may(&other, uid, groups);
                    let of_both = may(&both, uid, groups);
                    assert!(of_each || !of_both, "{one:?} {other:?} {uid} {groups:?}");
                    if (one.uid, one.gid) == (other.uid, other.gid) {
                        assert_eq!(of_each, of_both, "{one:?} {other:?} {uid} {groups:?}");
                    }
                    let is_open = one.owner && one.group && one.others && other.owner && other.group && other.others;
                    assert!(of_both || !is_open);
                }
            }
        }
    }
}
