//! Who may read what several files have together: whoever may read each of them. Where that cannot be said by an owner,
//! a group and a mode, those are left out who may not be able to.

use tensorfs_layout::Ino;
use tensorfs_layout::log::Attributes;
use tensorfs_layout::tree::{Object, View};

use crate::acl::{self, Acl};
use crate::content::hash::number;
use crate::content::kept::Kept;

use super::rights::Role;

/// What lists of rights come to takes so much at most: that of 40,000 files.
const LISTS_MAX: usize = 8 << 20;
/// A shorter list is read sooner than looked up.
const SHORT: usize = 256;

/// Who may read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MayRead {
    uid: u32,
    gid: u32,
    owner: bool,
    group: bool,
    others: bool,
    /// A list of who may, which says more than the mode.
    list: Option<List>,
}

/// What a list of who may read comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct List {
    /// Two numbers that no other list has.
    value: (u64, u64),
    /// Everybody but the owner may, of whom it says nothing here.
    everybody: bool,
}

/// What lists of rights come to. One has up to 64 KiB, and looking at a tensor asks for those of thousands of files.
pub(super) struct Lists(Kept<(u64, Option<List>)>);

impl Default for Lists {
    fn default() -> Self {
        Self(Kept::new(LISTS_MAX))
    }
}

impl Lists {
    fn of(&self, ino: Ino, object: &Object) -> Option<List> {
        let (value, seq) = object.xattr_numbered(acl::ACCESS)?;
        if value.len() < SHORT {
            return List::of(value, object.is_dir());
        }
        // A list that is set again is another record.
        if let Some((_, list)) = self.0.get(ino, |(of, _)| *of == seq) {
            return list;
        }
        let list = List::of(value, object.is_dir());
        self.0.put(ino, (seq, list), 0);
        list
    }
}

impl List {
    fn of(value: &[u8], is_dir: bool) -> Option<Self> {
        let list = readers(value, is_dir)?;
        let value = list.to_value();
        Some(Self { value: (number(&value), number((&value, &value.len()))), everybody: list.grants_others(4) })
    }
}

/// The list of who may read a file, or may enter a directory.
fn readers(value: &[u8], is_dir: bool) -> Option<Acl> {
    let bit = if is_dir { 1 } else { 4 };
    Some(Acl::parse(value)?.reduced(|bits| if bits & bit != 0 { 4 } else { 0 }))
}

impl MayRead {
    /// Who may read a file, or may enter a directory.
    fn of(ino: Ino, object: &Object, lists: &Lists) -> Self {
        let Attributes { uid, gid, mode, .. } = object.attributes;
        let bit = if object.is_dir() { 1 } else { 4 };
        let may = |shift: u32| mode >> shift & bit != 0;
        Self { uid, gid, owner: may(6), group: may(3), others: may(0), list: lists.of(ino, object) }
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
        match self.list {
            None => self,
            Some(List { everybody, .. }) => Self { group: everybody, others: everybody, list: None, ..self },
        }
    }

    /// True if nobody may.
    fn is_nobody(&self) -> bool {
        !(self.owner || self.group || self.others) && self.list.is_none()
    }

    fn mode(&self, role: Role, list: Option<&Acl>) -> u32 {
        let class = |may: bool, shift: u32| u32::from(role.rights(if may { 4 } else { 0 })) << shift;
        let rights = list.map(Acl::permissions);
        role.kind() | rights.unwrap_or_else(|| class(self.owner, 6) | class(self.group, 3) | class(self.others, 0))
    }
}

/// Who may read what files have together, and what it looks like.
#[derive(Clone)]
pub(super) struct Rights {
    may: MayRead,
    attributes: Attributes,
    /// The file whose list it is, if it is one.
    like: Ino,
}

impl Rights {
    /// To what the files have together, the first of which is the directory of the others. None if there are no such
    /// files any more: of what is gone nobody knows who might have read it.
    pub fn to_all(view: &View, files: &[Ino], lists: &Lists) -> Option<Self> {
        let [dir, like, others @ ..] = files else { return None };
        let first = view.object(*like)?;
        let mut before = MayRead::of(*dir, view.object(*dir)?, lists);
        let mut may = MayRead::of(*like, first, lists).and(&before);
        for other in others {
            let other = MayRead::of(*other, view.object(*other)?, lists);
            // As a rule they are all alike; and nobody is added.
            if !may.is_nobody() && before != other {
                may = may.and(&other);
            }
            before = other;
        }
        Some(Self { may, attributes: first.attributes.clone(), like: *like })
    }

    /// Those that are left as some of the files are gone: what each that is there grants now.
    pub fn still_granted(mut self, view: &View, files: &[Ino], lists: &Lists) -> Self {
        if view.object(self.like).is_none() {
            self.may = self.may.without_list();
        }
        for ino in files {
            let Some(file) = view.object(*ino) else { continue };
            self.may = self.may.and(&MayRead::of(*ino, file, lists));
        }
        self
    }

    /// Attributes, and the access list if there is one.
    pub fn shown(&self, role: Role, view: &View) -> (Attributes, Option<Vec<u8>>) {
        let like = self.may.list.and_then(|_| view.object(self.like));
        let list = like.and_then(|like| readers(like.xattr(acl::ACCESS)?, like.is_dir()));
        let list = list.map(|list| list.reduced(|bits| role.rights(bits)));
        let may = if list.is_some() { &self.may } else { &self.may.clone().without_list() };
        let mode = may.mode(role, list.as_ref());
        let attributes = Attributes { mode, rdev: 0, segment: None, damaged: false, ..self.attributes.clone() };
        (attributes, list.map(|list| list.to_value()))
    }
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
