//! What the service manager keeps for a unit: the descriptors that the next keeper goes on with, should this one end
//! and its mount not. Those of a mount have one name, which no other mount's have, and come with one message.
//!
//! systemd.service(5) calls it the file descriptor store; sd_listen_fds(3) says how they come back.

use std::env;
use std::fmt::{self, Display};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::str::FromStr;

use crate::mounting::mountinfo::Table;
use crate::mounting::notify;

/// The first descriptor that comes back.
const FIRST: RawFd = 3;
/// More are never kept for a unit of tensorfs, whoever says so.
const MOST: RawFd = 1024;
/// What names begin with.
const OURS: &str = "tensorfs";

/// What the manager started this process with: descriptors with their names.
#[derive(Clone, Debug, Default)]
pub struct Stored(Vec<(RawFd, String)>);

impl Stored {
    /// From the environment, if that is meant for this process.
    pub fn here() -> Self {
        let is_own = env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string());
        let count = env::var("LISTEN_FDS").ok().filter(|_| is_own).and_then(|count| count.parse::<RawFd>().ok());
        Self::of(count.unwrap_or(0), &env::var("LISTEN_FDNAMES").unwrap_or_default())
    }

    fn of(count: RawFd, names: &str) -> Self {
        let names = names.split(':').map(str::to_owned).chain(std::iter::repeat(String::new()));
        Self((FIRST..FIRST + count.clamp(0, MOST)).zip(names).collect())
    }

    /// Their numbers.
    pub fn numbers(&self) -> impl Iterator<Item = RawFd> {
        self.0.iter().map(|(number, _)| *number)
    }

    /// Each name, and the numbers of what has it.
    pub fn sets(&self) -> Vec<(String, Vec<RawFd>)> {
        let mut sets: Vec<(String, Vec<RawFd>)> = Vec::new();
        for (number, name) in &self.0 {
            match sets.iter_mut().find(|(other, _)| other == name) {
                Some((_, numbers)) => numbers.push(*number),
                None => sets.push((name.clone(), vec![*number])),
            }
        }
        sets
    }
}

/// The name of what is kept of a mount: the minor number of its device, and one that is no other's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    minor: u32,
    own: u64,
}

impl Name {
    fn new(minor: u32) -> Self {
        Self { minor, own: RandomState::new().hash_one(minor) }
    }

    /// The minor number of the mount's device.
    pub fn minor(&self) -> u32 {
        self.minor
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{OURS}-{}-{:016x}", self.minor, self.own)
    }
}

impl FromStr for Name {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Vec<&str> = text.split('-').collect();
        let [OURS, minor, own] = parts[..] else { return Err(()) };
        let name = Self { minor: minor.parse().map_err(drop)?, own: u64::from_str_radix(own, 16).map_err(drop)? };
        if name.to_string() == text { Ok(name) } else { Err(()) }
    }
}

/// The service manager, as a keeper speaks with it.
#[derive(Debug)]
pub struct Manager {
    /// It has not heard yet that it is mounted.
    untold: bool,
    /// It has started this process, whose descriptors are its to keep.
    is_own: bool,
    /// What it keeps of this mount has that name.
    kept: Option<Name>,
}

impl Manager {
    /// One who keeps what has that name. That of another service, in which somebody has mounted, keeps nothing.
    pub fn new(is_own: bool, kept: Option<Name>) -> Self {
        Self { untold: true, is_own, kept }
    }

    /// It is mounted, which is said once.
    pub fn ready(&mut self) {
        if std::mem::take(&mut self.untold) {
            notify::notify("READY=1");
        }
    }

    /// It has descriptors that the next keeper needs.
    pub fn keeps(&self) -> bool {
        self.kept.is_some()
    }

    /// Has it keep what the next keeper needs of a mount, and not ask the kernel about that meanwhile. It asks about
    /// the lock of a pool all the same, now and then: one that may not answer it does not get, as it would stand still.
    pub fn keep(&mut self, device: (u32, u32), [handover, fuse, lock]: [&OwnedFd; 3]) {
        if !self.is_own || self.kept.is_some() || !notify::is_asked_for() {
            return;
        }
        let table = Table::read().unwrap_or_default();
        if let Some(mount) = table.of_open(lock).filter(|mount| mount.may_not_answer()) {
            let what = "the pool is on a filesystem that may not answer, and the service manager would wait for it";
            log::warn!("{what} ({}): a restart unmounts", mount.fs_type().display());
            return;
        }
        let descriptors = [handover, fuse, lock];
        let name = Name::new(device.1);
        let message = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}");
        if notify::notify_with(&message, &descriptors.map(AsFd::as_fd)) {
            self.kept = Some(name);
        }
    }

    /// Has it let go of that: the mount ends.
    pub fn forget(&mut self) {
        self.kept.take().iter().for_each(|name| forget(&name.to_string()));
    }
}

/// Has the manager let go of what has this name.
pub fn forget(name: &str) {
    notify::notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_come_back_by_name() {
        let sets = Stored::of(4, "a:b:a").sets();
        assert_eq!(sets, [("a".to_owned(), vec![3, 5]), ("b".to_owned(), vec![4]), (String::new(), vec![6])]);
        assert_eq!(Stored::of(-1, "a").numbers().count() + Stored::of(0, "").numbers().count(), 0);
        assert_eq!(Stored::of(RawFd::MAX, "").numbers().count(), MOST as usize);
    }

    #[test]
    fn a_name_is_one_mounts() {
        let name = Name::new(53);
        assert_eq!(name.to_string().parse(), Ok(name.clone()));
        assert_ne!(name, Name::new(53));
        for other in ["", "tensorfs", "tensorfs-53", "tensorfs-53-1", "tensorfs-+53-0000000000000001", "x-1-2"] {
            assert_eq!(other.parse::<Name>(), Err(()), "{other}");
        }
    }
}
