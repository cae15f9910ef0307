//! What a directory that several have lets people do: nothing that one of them does not let them.
//!
//! Whoever is its owner, or of its group, may be anybody in another of them; and where a list of rights says more than
//! the mode, the kernel asks that.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::repository::Entry;

/// Attributes with lists of rights: who may do what, and what is made in the directory gets.
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
/// A list begins with its version, and has entries of a tag, bits and a number.
const VERSION: [u8; 4] = [2, 0, 0, 0];
const ENTRY: usize = 8;
/// The tags of the owner, the group, and all others.
const OWNER: u8 = 1;
const GROUP: u8 = 4;
const OTHERS: u8 = 0x20;

/// Narrows a directory, which has the attributes of all these, to what each of them lets people do.
pub fn narrow(one: &mut Entry, all: &[&Entry]) {
    let Some(first) = all.first() else { return };
    for entry in all {
        let [owner, group, others] = [entry.mode >> 6 & 7, entry.mode >> 3 & 7, entry.mode & 7];
        let anybody = match entry.xattrs.get(ACCESS) {
            None => group & others,
            // With a list the mode has its mask in the place of the group.
            Some(list) => group & others & least(list),
        };
        let is_owner = entry.uid == one.uid;
        // Who is its owner there is of the group here, or another.
        let not_owner = if is_owner { 7 } else { owner };
        let (group, others) = if entry.gid == one.gid { (group, others) } else { (anybody, anybody) };
        let owner = if is_owner { owner } else { anybody };
        one.mode &= !0o777 | owner << 6 | (group & not_owner) << 3 | others & not_owner;
        one.mode |= entry.mode & 0o7000;
    }
    // Lists that are not one and the same cannot be one: then nobody has any right but the owner.
    let is_one = |list| all.iter().all(|entry| entry.xattrs.get(list) == first.xattrs.get(list));
    let are_alike = || {
        let rights = |entry: &Entry| (entry.uid, entry.gid, entry.mode & 0o777);
        all.iter().all(|entry| rights(entry) == rights(first))
    };
    if !is_one(ACCESS) || one.xattrs.contains_key(ACCESS) && !are_alike() {
        one.xattrs.remove(ACCESS);
        one.mode &= !0o77;
    }
    if !is_one(DEFAULT) {
        one.xattrs.insert(DEFAULT.into(), BASE64_STANDARD.encode(of_owner_alone()));
    }
}

/// What a list lets everybody do who is not the owner; nothing if it cannot be read.
fn least(list: &str) -> u32 {
    let bytes = BASE64_STANDARD.decode(list).unwrap_or_default();
    let Some(entries) = bytes.strip_prefix(&VERSION).filter(|entries| entries.len() % ENTRY == 0) else { return 0 };
    let entries = entries.chunks_exact(ENTRY).filter(|entry| entry[..2] != [OWNER, 0]);
    entries.fold(7, |least, entry| least & u32::from(entry[2]))
}

/// The list by which what is made in a directory is its owner's alone.
fn of_owner_alone() -> Vec<u8> {
    let entries = [(OWNER, 7), (GROUP, 0), (OTHERS, 0)];
    let entries = entries.iter().flat_map(|(tag, bits)| [*tag, 0, *bits, 0, 0xff, 0xff, 0xff, 0xff]);
    VERSION.into_iter().chain(entries).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const USER: u8 = 2;
    const NAMED_GROUP: u8 = 8;
    const MASK: u8 = 0x10;

    /// A list of rights, as `setfacl` makes it.
    type List = Vec<(u8, u32, u8)>;

    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % bound
        }
    }

    fn text(list: &List) -> String {
        let entry = |(tag, id, bits): &(u8, u32, u8)| [&[*tag, 0, *bits, 0][..], &id.to_le_bytes()].concat();
        BASE64_STANDARD.encode([VERSION.to_vec(), list.iter().flat_map(entry).collect()].concat())
    }

    fn list_of(entry: &Entry) -> Option<List> {
        let bytes = BASE64_STANDARD.decode(entry.xattrs.get(ACCESS)?).unwrap();
        let of = |bytes: &[u8]| (bytes[0], u32::from_le_bytes(bytes[4..].try_into().unwrap()), bytes[2]);
        Some(bytes[4..].chunks_exact(ENTRY).map(of).collect())
    }

    /// Whether somebody may do this, as the kernel's `acl_permission_check` and `posix_acl_permission` find it.
    fn may(entry: &Entry, (uid, gids): (u32, &[u32]), wanted: u32) -> bool {
        let mode = entry.mode;
        if uid == entry.uid {
            return mode >> 6 & wanted == wanted;
        }
        if let Some(list) = list_of(entry).filter(|_| mode & 0o70 != 0) {
            let bits = |tag: u8| list.iter().find(|(of, ..)| *of == tag).map(|(.., bits)| u32::from(*bits));
            let mask = bits(MASK).unwrap_or(7);
            if let Some((.., bits)) = list.iter().find(|(tag, id, _)| (*tag, *id) == (USER, uid)) {
                return u32::from(*bits) & mask & wanted == wanted;
            }
            let is_mine = |(tag, id, _): &&(u8, u32, u8)| {
                *tag == GROUP && gids.contains(&entry.gid) || *tag == NAMED_GROUP && gids.contains(id)
            };
            let mine: Vec<u32> = list.iter().filter(is_mine).map(|(.., bits)| u32::from(*bits)).collect();
            if !mine.is_empty() {
                return mine.iter().any(|bits| bits & mask & wanted == wanted);
            }
            return bits(OTHERS).unwrap() & wanted == wanted;
        }
        let bits = if gids.contains(&entry.gid) { mode >> 3 } else { mode };
        bits & wanted == wanted
    }

    fn directory(numbers: &mut Numbers) -> Entry {
        let bits = |numbers: &mut Numbers| [7, 5, 7, 0, 1, 4][numbers.below(6) as usize];
        let [owner, group, others] = [(); 3].map(|()| bits(numbers));
        let mut entry = Entry {
            ino: 1,
            mode: libc::S_IFDIR | u32::from(owner) << 6 | u32::from(group) << 3 | u32::from(others),
            uid: 1 + numbers.below(2) as u32,
            gid: 11 + numbers.below(2) as u32,
            rdev: 0,
            atime: (0, 0),
            mtime: (0, 0),
            ctime: (0, 0),
            btime: (0, 0),
            xattrs: BTreeMap::new(),
            target: None,
            file: None,
        };
        if numbers.below(3) == 0 {
            let none = u32::MAX;
            let mask = bits(numbers);
            let (user, named) = (1 + numbers.below(3) as u32, 11 + numbers.below(3) as u32);
            let list = vec![
                (OWNER, none, owner),
                (USER, user, bits(numbers)),
                (GROUP, none, group),
                (NAMED_GROUP, named, bits(numbers)),
                (MASK, none, mask),
                (OTHERS, none, others),
            ];
            entry.mode = entry.mode & !0o70 | u32::from(mask) << 3;
            entry.xattrs.insert(ACCESS.into(), text(&list));
        }
        entry
    }

    /// Proves E29.
    #[test]
    fn nobody_may_do_what_one_of_them_does_not_let_him() {
        let mut numbers = Numbers(7);
        let everybody: Vec<(u32, Vec<u32>)> = (1..=4)
            .flat_map(|uid| (0..16_u32).map(move |of| (uid, of)))
            .map(|(uid, of)| (uid, (0..4).filter(|n| of >> n & 1 == 1).map(|n| 11 + n).collect()))
            .collect();
        let (mut let_in, mut lists) = (0, 0);
        for _ in 0..3_000 {
            let mut all: Vec<Entry> = (0..2 + numbers.below(2)).map(|_| directory(&mut numbers)).collect();
            if numbers.below(8) == 0 {
                let one = all[0].clone();
                all.iter_mut().for_each(|entry| *entry = one.clone());
            }
            // As if the first were the newest.
            let mut one = all[0].clone();
            for entry in &all {
                for (name, value) in &entry.xattrs {
                    one.xattrs.entry(name.clone()).or_insert_with(|| value.clone());
                }
            }
            narrow(&mut one, &all.iter().collect::<Vec<_>>());
            lists += usize::from(one.xattrs.contains_key(ACCESS));
            for ((uid, gids), wanted) in everybody.iter().flat_map(|who| [1, 2, 4, 5, 7].map(|wanted| (who, wanted))) {
                let is_let = may(&one, (*uid, gids), wanted);
                let_in += usize::from(is_let);
                let all_do = all.iter().all(|entry| may(entry, (*uid, gids), wanted));
                assert!(!is_let || all_do, "{uid} {gids:?} {wanted}: {one:?} of {all:?}");
            }
        }
        assert!(let_in > 1_000 && lists > 20, "{let_in} {lists}");
    }

    #[test]
    fn what_is_made_in_a_directory_of_two_default_lists_is_its_owners() {
        let mut numbers = Numbers(9);
        let list = text(&vec![(OWNER, u32::MAX, 7), (GROUP, u32::MAX, 5), (OTHERS, u32::MAX, 5)]);
        let [plain, mut with] = [(); 2].map(|()| directory(&mut numbers));
        with.xattrs.insert(DEFAULT.into(), list.clone());
        let narrowed = |newest: &Entry, all: &[&Entry]| {
            let mut one = newest.clone();
            one.xattrs.entry(DEFAULT.into()).or_insert_with(|| list.clone());
            narrow(&mut one, all);
            one.xattrs.get(DEFAULT).cloned()
        };
        let closed = text(&vec![(OWNER, u32::MAX, 7), (GROUP, u32::MAX, 0), (OTHERS, u32::MAX, 0)]);
        for newest in [&plain, &with] {
            assert_eq!(narrowed(newest, &[&plain, &with]).as_ref(), Some(&closed));
            assert_eq!(narrowed(newest, &[&with, &with]).as_ref(), Some(&list));
        }
    }
}
