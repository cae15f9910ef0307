//! Which versions of a file stay in quarantine: few enough that a program that dies again and again does not fill the
//! pool with what it left.
//!
//! Of each file and reason two entries stay, the newest and one more. Of the versions before replaces that were
//! interrupted that is the newest one that was complete; of others it is the one before. And of the versions before
//! replaces of files of one user, which he may remove, [`MOST`] stay.

use std::collections::{BTreeSet, HashMap};

use crate::ids::{Ino, SegmentId};
use crate::segment::note::Reason;
use crate::time::Timestamp;

/// So many versions a user has in quarantine by replaces that were interrupted while a server ran.
pub(super) const MOST: usize = 1000;

/// An entry, as far as it matters here.
#[derive(Clone, Debug)]
pub(super) struct Version {
    /// The entry.
    pub name: String,
    /// The segment whose bytes it has; nothing if that cannot be told.
    pub segment: Option<SegmentId>,
    /// Why it is there.
    pub reason: Reason,
    /// When it was set aside.
    pub time: Timestamp,
    /// The segment that the file had from then on, if its writer had died.
    pub left: Option<SegmentId>,
    /// It is itself what a writer that died had left.
    pub partial: bool,
    /// Whose it is, if that counts.
    pub user: Option<u32>,
}

impl Version {
    /// Among those of its file: a segment that replaces another has a larger number, whatever clocks say.
    fn age(&self) -> (Option<u64>, Timestamp) {
        (self.segment.map(SegmentId::serial), self.time)
    }

    /// Among those of its user, of whose files the one that is replaced now may have the oldest segment of all.
    fn of_user(&self, ino: Ino) -> OfUser {
        (self.time, self.segment.map(SegmentId::serial), ino, self.name.clone())
    }
}

/// An entry of a user: the first that were set aside come first.
type OfUser = (Timestamp, Option<u64>, Ino, String);

/// The entries of each file, and of each user.
#[derive(Debug, Default)]
pub(super) struct Versions {
    files: HashMap<Ino, Vec<Version>>,
    users: HashMap<u32, BTreeSet<OfUser>>,
}

impl Versions {
    /// Takes note of one.
    pub fn add(&mut self, ino: Ino, version: Version) {
        self.strike(ino, &version.name);
        if let Some(user) = version.user {
            self.users.entry(user).or_default().insert(version.of_user(ino));
        }
        self.files.entry(ino).or_default().push(version);
    }

    /// One is not there any more.
    fn strike(&mut self, ino: Ino, name: &str) {
        let Some(of_file) = self.files.get_mut(&ino) else { return };
        for version in of_file.extract_if(.., |version| version.name == name) {
            if let Some(of_user) = version.user.and_then(|user| self.users.get_mut(&user)) {
                of_user.remove(&version.of_user(ino));
            }
        }
        if of_file.is_empty() {
            self.files.remove(&ino);
        }
    }

    /// Strikes what others have removed of what a file has, and of what a user has who seems to have too many.
    pub fn strike_removed(&mut self, ino: Ino, user: Option<u32>, is_there: impl Fn(&str) -> bool) {
        let of_file = self.files.get(&ino).into_iter().flatten().map(|version| (ino, &version.name));
        let of_user = user.and_then(|user| self.users.get(&user)).filter(|of_user| of_user.len() > MOST);
        let of_user = of_user.into_iter().flatten().map(|(_, _, ino, name)| (*ino, name));
        let gone: Vec<_> = of_file.chain(of_user).filter(|(_, name)| !is_there(name)).collect();
        for (ino, name) in gone.into_iter().map(|(ino, name)| (ino, name.clone())).collect::<Vec<_>>() {
            self.strike(ino, &name);
        }
    }

    /// True if a file's segment, which changed last at a time, is what a writer that died had left, and nobody has
    /// written it since.
    pub fn is_left(&self, ino: Ino, segment: SegmentId, changed: Timestamp) -> bool {
        let of_file = self.files.get(&ino).into_iter().flatten();
        of_file.clone().any(|version| version.left == Some(segment) && changed <= version.time)
    }

    /// Strikes those of a file and reason that need not stay now that one was added. Returns their names.
    pub fn take_surplus(&mut self, ino: Ino, reason: Reason, added: &str) -> Vec<String> {
        let Some(of_file) = self.files.get(&ino) else { return Vec::new() };
        let mut ours: Vec<_> = of_file.iter().filter(|version| version.reason == reason).collect();
        ours.sort_by_key(|version| std::cmp::Reverse((version.name == added, version.age())));
        let second = match reason {
            Reason::InterruptedReplace => ours.iter().position(|version| !version.partial),
            _ => Some(1),
        };
        let surplus = ours.iter().enumerate().filter(|(n, _)| *n > 0 && Some(*n) != second);
        let surplus: Vec<String> = surplus.map(|(_, version)| version.name.clone()).collect();
        for name in &surplus {
            self.strike(ino, name);
        }
        surplus
    }

    /// Strikes the one of a user who has too many that was set aside first; never the one that was added now, whatever
    /// clocks say. Returns its name.
    pub fn take_oldest(&mut self, user: Option<u32>, added: &str) -> Option<String> {
        let of_user = self.users.get(&user?).filter(|of_user| of_user.len() > MOST)?;
        let (_, _, ino, name) = of_user.iter().find(|(_, _, _, name)| name != added)?.clone();
        self.strike(ino, &name);
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);

    fn name(segment: u64) -> String {
        SegmentId(segment).to_string()
    }

    fn version(segment: u64, reason: Reason, partial: bool) -> Version {
        let (segment, time) = (SegmentId(segment), Timestamp::new(segment as i64, 0));
        let left = Some(SegmentId(segment.0 + 1));
        Version { name: name(segment.0), segment: Some(segment), reason, time, left, partial, user: Some(5) }
    }

    fn left(versions: &Versions) -> Vec<u64> {
        versions.files[&FILE].iter().filter_map(|version| Some(version.segment?.0)).collect()
    }

    #[test]
    fn the_last_complete_version_stays_however_often_its_successors_are_cut_short() {
        let mut versions = Versions::default();
        let reason = Reason::InterruptedReplace;
        for n in 10..20 {
            let partial = versions.is_left(FILE, SegmentId(n), Timestamp::new(0, 0));
            assert_eq!(partial, n > 10);
            versions.add(FILE, version(n, reason, partial));
            versions.take_surplus(FILE, reason, &name(n));
        }
        assert_eq!(left(&versions), [10, 19]);
        // Written once more in order, or in place: that is a complete one again.
        versions.add(FILE, version(30, reason, versions.is_left(FILE, SegmentId(30), Timestamp::new(0, 0))));
        assert_eq!(versions.take_surplus(FILE, reason, &name(30)).len(), 2);
        assert_eq!(left(&versions), [30]);
        assert!(!versions.is_left(FILE, SegmentId(31), Timestamp::new(31, 0)), "it was written since");
    }

    #[test]
    fn of_other_reasons_the_two_newest_stay() {
        let mut versions = Versions::default();
        versions.add(FILE, version(1, Reason::InterruptedReplace, false));
        for n in 2..6 {
            versions.add(FILE, version(n, Reason::UncommittedTail, false));
            versions.take_surplus(FILE, Reason::UncommittedTail, &name(n));
        }
        assert_eq!(left(&versions), [1, 4, 5]);
    }

    /// Proves B15.
    #[test]
    fn of_a_user_so_many_stay_whatever_becomes_of_the_files() {
        let mut versions = Versions::default();
        let reason = Reason::InterruptedReplace;
        for n in 0..MOST as u64 {
            versions.add(Ino(n), version(n, reason, false));
            assert_eq!(versions.take_oldest(Some(5), &name(n)), None);
        }
        // What goes for newer ones of its file counts no more.
        versions.add(Ino(3), version(5000, reason, false));
        assert_eq!(versions.take_surplus(Ino(3), reason, &name(5000)), [name(3)]);
        assert_eq!(versions.take_oldest(Some(5), &name(5000)), None);
        versions.add(Ino(9000), version(9000, reason, false));
        assert_eq!(versions.take_oldest(None, &name(9000)), None);
        assert_eq!(versions.take_oldest(Some(6), &name(9000)), None);
        assert_eq!(versions.take_oldest(Some(5), &name(9000)), Some(name(0)));
        assert_eq!(versions.take_oldest(Some(5), &name(9000)), None);
        assert!(!versions.files.contains_key(&Ino(0)));
    }

    /// Also where the clock was set back since the others were.
    #[test]
    fn what_was_set_aside_just_now_stays() {
        let mut versions = Versions::default();
        let reason = Reason::InterruptedReplace;
        for n in 0..MOST as u64 {
            versions.add(Ino(n), version(100 + n, reason, false));
        }
        let just_now = Version { time: Timestamp::new(1, 0), ..version(7, reason, false) };
        versions.add(Ino(5000), just_now);
        assert_eq!(versions.take_oldest(Some(5), &name(7)), Some(name(100)));
        let just_now = Version { time: Timestamp::new(0, 0), ..version(8, reason, true) };
        versions.add(Ino(1), just_now);
        assert_eq!(versions.take_surplus(Ino(1), reason, &name(8)), [""; 0], "and the newest that was whole");
    }

    #[test]
    fn what_others_have_removed_does_not_count() {
        let mut versions = Versions::default();
        let reason = Reason::InterruptedReplace;
        for n in 0..=MOST as u64 {
            versions.add(Ino(n), version(n, reason, false));
        }
        versions.strike_removed(Ino(0), Some(5), |other| other != name(700));
        assert_eq!(versions.take_oldest(Some(5), &name(MOST as u64)), None);
        for n in 2000..2002 {
            versions.add(FILE, version(n, Reason::UncommittedTail, false));
        }
        versions.strike_removed(FILE, None, |other| other != name(2001));
        versions.add(FILE, version(2002, Reason::UncommittedTail, false));
        assert_eq!(versions.take_surplus(FILE, Reason::UncommittedTail, &name(2002)), [""; 0]);
    }
}
