//! POSIX access control lists, in the form extended attributes carry them.
//!
//! The kernel checks permissions with them; here they are kept in step with the mode, as POSIX.1e draft 17 and the
//! kernel's own `fs/posix_acl.c` ask.

/// The list that says who may do what.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The list that new objects in a directory start with.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A list of permissions: owner, owning group and others, and named users and groups under a mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// Reads the attribute's value. `None` if it is not a well-formed list; an empty list is well-formed.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (version, rest) = value.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION || rest.len() % 8 != 0 {
            return None;
        }
        let entries: Vec<Entry> = rest
            .chunks_exact(8)
            .map(|e| Entry {
                tag: u16::from_le_bytes([e[0], e[1]]),
                perm: u16::from_le_bytes([e[2], e[3]]),
                id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
            })
            .collect();
        let acl = Self { entries };
        (acl.entries.is_empty() || acl.is_valid()).then_some(acl)
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.entries.iter().filter(|e| e.tag == tag).count();
        let named = count(USER) + count(GROUP);
        self.entries.iter().all(|e| e.perm <= 7)
            && count(USER_OBJ) == 1
            && count(GROUP_OBJ) == 1
            && count(OTHER) == 1
            && count(MASK) <= 1
            && (named == 0 || count(MASK) == 1)
            && 3 + named + count(MASK) == self.entries.len()
    }

    /// True for a list without entries, which stands for no list at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The attribute's value.
    pub fn to_value(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for e in &self.entries {
            value.extend_from_slice(&e.tag.to_le_bytes());
            value.extend_from_slice(&e.perm.to_le_bytes());
            value.extend_from_slice(&e.id.to_le_bytes());
        }
        value
    }

    fn entry_mut(&mut self, tag: u16) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|e| e.tag == tag)
    }

    /// The permission bits of a mode that show this list: the group's bits are the mask's if there is one.
    pub fn permissions(&self) -> u32 {
        let perm = |tag| self.entries.iter().find(|e| e.tag == tag).map(|e| u32::from(e.perm & 7));
        let group = perm(MASK).or(perm(GROUP_OBJ)).unwrap_or(0);
        perm(USER_OBJ).unwrap_or(0) << 6 | group << 3 | perm(OTHER).unwrap_or(0)
    }

    /// True if a mode says all that the list says.
    pub fn is_mode_only(&self) -> bool {
        self.entries.iter().all(|e| matches!(e.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// True if it grants that to everybody but the owner, of whom it says nothing here.
    pub fn grants_others(&self, right: u16) -> bool {
        self.entries.iter().all(|e| e.tag == USER_OBJ || e.perm & right != 0)
    }

    /// The list with other rights, which are less; each is worked out from three bits of permission, and none is to
    /// write. A mask that grants nothing any more keeps the bit to write, as the kernel looks at no list with an empty
    /// mask.
    pub fn reduced(mut self, rights: impl Fn(u16) -> u16) -> Self {
        for e in &mut self.entries {
            let left = rights(e.perm);
            e.perm = if e.tag == MASK && left == 0 && e.perm != 0 { 2 } else { left };
        }
        self
    }

    /// What `chmod` does to the list.
    pub fn chmod(&mut self, mode: u32) {
        if let Some(e) = self.entry_mut(USER_OBJ) {
            e.perm = (mode >> 6 & 7) as u16;
        }
        if let Some(e) = self.entry_mut(OTHER) {
            e.perm = (mode & 7) as u16;
        }
        let group = if self.entries.iter().any(|e| e.tag == MASK) { MASK } else { GROUP_OBJ };
        if let Some(e) = self.entry_mut(group) {
            e.perm = (mode >> 3 & 7) as u16;
        }
    }
}

/// The mode of a new object, and its access list if a mode cannot say it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inherited {
    pub mode: u32,
    pub access: Option<Acl>,
}

/// What a new object gets from its directory's default list and the mode the client asked for; the umask counts only
/// where there is no default list.
pub(crate) fn inherit(default: Option<&Acl>, mode: u32, umask: u32) -> Inherited {
    let Some(default) = default else {
        return Inherited { mode: mode & !(umask & 0o777), access: None };
    };
    let mut acl = default.clone();
    let asked = mode;
    let mut bits = mode & 0o777;
    let has_mask = acl.entries.iter().any(|e| e.tag == MASK);
    for e in &mut acl.entries {
        let shift = match e.tag {
            USER_OBJ => 6,
            MASK => 3,
            GROUP_OBJ if !has_mask => 3,
            OTHER => 0,
            _ => continue,
        };
        e.perm &= (asked >> shift & 7) as u16;
        bits = bits & !(7 << shift) | u32::from(e.perm) << shift;
    }
    let access = (!acl.is_mode_only()).then_some(acl);
    Inherited { mode: mode & !0o777 | bits, access }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl { entries: entries.iter().map(|&(tag, perm, id)| Entry { tag, perm, id }).collect() }
    }

    const NONE: u32 = u32::MAX;

    fn with_user() -> Acl {
        acl(&[(USER_OBJ, 7, NONE), (USER, 6, 1000), (GROUP_OBJ, 5, NONE), (MASK, 7, NONE), (OTHER, 0, NONE)])
    }

    #[test]
    fn values_round_trip() {
        let acl = with_user();
        assert_eq!(Acl::parse(&acl.to_value()), Some(acl));
    }

    #[test]
    fn malformed_values_are_refused() {
        assert_eq!(Acl::parse(b""), None);
        assert_eq!(Acl::parse(&[1, 0, 0, 0]), None);
        assert_eq!(Acl::parse(&[2, 0, 0, 0, 1]), None);
        assert!(Acl::parse(&[2, 0, 0, 0]).unwrap().is_empty());
        let two_owners = acl(&[(USER_OBJ, 7, NONE), (USER_OBJ, 7, NONE), (GROUP_OBJ, 5, NONE), (OTHER, 0, NONE)]);
        assert_eq!(Acl::parse(&two_owners.to_value()), None);
        let no_mask = acl(&[(USER_OBJ, 7, NONE), (USER, 7, 1), (GROUP_OBJ, 5, NONE), (OTHER, 0, NONE)]);
        assert_eq!(Acl::parse(&no_mask.to_value()), None);
        let wide = acl(&[(USER_OBJ, 8, NONE), (GROUP_OBJ, 5, NONE), (OTHER, 0, NONE)]);
        assert_eq!(Acl::parse(&wide.to_value()), None);
    }

    #[test]
    fn the_mask_shows_as_the_group_bits() {
        assert_eq!(with_user().permissions(), 0o770);
        assert!(!with_user().is_mode_only());
        let plain = acl(&[(USER_OBJ, 6, NONE), (GROUP_OBJ, 4, NONE), (OTHER, 4, NONE)]);
        assert_eq!(plain.permissions(), 0o644);
        assert!(plain.is_mode_only());
    }

    #[test]
    fn chmod_changes_the_mask_and_leaves_the_group() {
        let mut acl = with_user();
        acl.chmod(0o640);
        assert_eq!(acl.permissions(), 0o640);
        assert_eq!(acl.entries[2].perm, 5);
        assert_eq!(acl.entries[3].perm, 4);
    }

    #[test]
    fn reduced_rights_leave_a_mask_to_be_looked_at() {
        let reduced = with_user().reduced(|bits| bits & 4);
        assert_eq!(reduced.entries.iter().map(|e| e.perm).collect::<Vec<_>>(), [4, 4, 4, 4, 0]);
        let mut masked = with_user();
        masked.chmod(0o730);
        let reduced = masked.reduced(|bits| bits & 4);
        assert_eq!(reduced.entries.iter().map(|e| e.perm).collect::<Vec<_>>(), [4, 4, 4, 2, 0]);
    }

    #[test]
    fn the_umask_counts_only_without_a_default_list() {
        assert_eq!(inherit(None, 0o100666, 0o022), Inherited { mode: 0o100644, access: None });
        let got = inherit(Some(&with_user()), 0o100666, 0o077);
        assert_eq!(got.mode, 0o100660);
        let access = got.access.unwrap();
        assert_eq!(access.permissions(), 0o660);
        assert_eq!(access.entries[1].perm, 6);
    }

    #[test]
    fn a_default_list_without_names_becomes_the_mode() {
        let plain = acl(&[(USER_OBJ, 7, NONE), (GROUP_OBJ, 5, NONE), (OTHER, 0, NONE)]);
        assert_eq!(inherit(Some(&plain), 0o40777, 0o022), Inherited { mode: 0o40750, access: None });
    }
}
