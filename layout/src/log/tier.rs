//! What is recorded of a tier.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::log::shutdown::Shutdown;

/// The number of the pool's own directory among its tiers.
pub const PM: u8 = 0;

/// Its name.
pub const PM_NAME: &str = "pm";

/// The name of what stands for a remote among the tiers.
pub const REMOTE_NAME: &str = "remote";

/// Bytes of a tier's name at most.
const NAME_LEN: usize = 32;

/// Bytes of the path of a tier's directory at most.
const DIRECTORY_LEN: usize = 4095;

/// Bytes of a placement map at most.
pub const PLACEMENT_MAX: usize = 64 << 10;

/// What is recorded of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Its name; empty once it was removed.
    pub name: Box<str>,
    /// The path of its directory. Of a remote its URL, and behind a line feed what is noted of how it is reached.
    pub directory: Box<[u8]>,
    /// Nothing in it survives the end of the machine's boot.
    pub volatile: bool,
    /// Tells it from an earlier tier of the same number, and in the same place. Of a remote it is zero if the pool was
    /// made from it and its files are to come.
    pub nonce: [u8; 16],
    /// It was not there when the pool was opened, so that nothing in it was recovered: from what it is to be when it is
    /// back.
    pub away: Option<Shutdown>,
    /// It is none, but the place of files whose bytes are in a remote yet.
    pub remote: bool,
}

/// How the note of a remote begins that is followed.
const FOLLOWS: &[u8] = b"{\"follows\":";

const VOLATILE: u8 = 1;

const AWAY: u8 = 2;

const AWAY_KILLED: u8 = 4;

const AWAY_POWER: u8 = 8;

const REMOTE: u8 = 16;

impl Tier {
    pub(crate) fn flags(&self) -> u8 {
        let away = match self.away {
            None => 0,
            Some(Shutdown::Clean) => AWAY,
            Some(Shutdown::ServerKilled) => AWAY | AWAY_KILLED,
            Some(Shutdown::PowerLoss) => AWAY | AWAY_POWER,
        };
        away | if self.volatile { VOLATILE } else { 0 } | if self.remote { REMOTE } else { 0 }
    }

    pub(crate) fn from_flags(
        flags: u8,
        nonce: [u8; 16],
        name: Box<str>,
        directory: Box<[u8]>,
    ) -> std::result::Result<Self, &'static str> {
        let remote = flags == REMOTE;
        let away = match flags & !VOLATILE {
            0 => None,
            REMOTE if remote => None,
            AWAY => Some(Shutdown::Clean),
            f if f == AWAY | AWAY_KILLED => Some(Shutdown::ServerKilled),
            f if f == AWAY | AWAY_POWER => Some(Shutdown::PowerLoss),
            _ => return Err("impossible flags of a tier"),
        };
        Ok(Self { name, directory, volatile: flags & VOLATILE != 0, nonce, away, remote })
    }

    /// True for what is left of a tier that was removed.
    pub(crate) fn is_removed(&self) -> bool {
        self.name.is_empty()
    }

    pub(crate) fn is_sound(&self) -> bool {
        let path = &self.directory;
        let is_place = path.starts_with(b"/") != self.remote && path.len() <= DIRECTORY_LEN && !path.contains(&0);
        let is_alone = !self.remote || (!self.volatile && self.away.is_none() && !path.is_empty());
        is_alone && (self.is_removed() || (Self::is_name(&self.name) && is_place))
    }

    /// True for what can be a tier's name: letters in lower case, digits, `-` and `_`.
    pub(crate) fn is_name(name: &str) -> bool {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        (1..=NAME_LEN).contains(&name.len())
            && name.starts_with(plain)
            && name.chars().all(|c| plain(c) || c == '-' || c == '_')
    }

    /// True for the pool's own remote, which files leave for, and come back from when they are wanted.
    pub fn is_own_remote(&self) -> bool {
        self.remote && self.nonce != [0; 16]
    }

    /// True for a remote whose newest tree the pool's own goes on to be.
    pub fn is_followed(&self) -> bool {
        self.remote && self.note().is_some_and(|note| note.starts_with(FOLLOWS))
    }

    /// The path of its directory, or the URL of a remote.
    pub fn path(&self) -> &Path {
        let end = self.directory.iter().position(|byte| self.remote && *byte == b'\n');
        Path::new(std::ffi::OsStr::from_bytes(&self.directory[..end.unwrap_or(self.directory.len())]))
    }

    /// What is noted of how a remote is reached.
    pub fn note(&self) -> Option<&[u8]> {
        let end = self.directory.iter().position(|byte| self.remote && *byte == b'\n')?;
        Some(&self.directory[end + 1..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_words() {
        for name in ["pm", "dram", "ssd-2", "a_b", "0"] {
            assert!(Tier::is_name(name), "{name}");
        }
        for name in ["", "A", "-a", "_", "a b", "a/b", "..", "a\n", "ä", &"a".repeat(33)] {
            assert!(!Tier::is_name(name), "{name}");
        }
    }
}
