//! Links: the names that groups have for objects.
//!
//! <https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html>, IV.A.2.g

use crate::fault::{Result, malformed, too_much};
use crate::hdf5::file::File;
use crate::limits::{NAME_MAX, push};

/// The most that is kept of links at a time, in bytes.
const LINKS_MAX: usize = 16 << 20;

/// A name for an object.
pub(crate) struct Link {
    pub name: Box<[u8]>,
    /// Where its header is.
    pub at: u64,
}

impl Link {
    /// About how many bytes of memory it takes.
    fn taken(name: &[u8]) -> usize {
        size_of::<Link>() + 16 + name.len()
    }
}

/// Links of a group, and of others that are not gone through yet.
#[derive(Default)]
pub(crate) struct Links {
    pub all: Vec<Link>,
    taken: usize,
}

impl Links {
    /// Those of a group inside of others that take so much.
    pub fn beside(taken: usize) -> Self {
        Links { taken, ..Links::default() }
    }

    /// Links to names, and to other files, which have no place, are not followed.
    pub fn add(&mut self, name: &[u8], at: Option<u64>) -> Result<()> {
        let Some(at) = at else { return Ok(()) };
        if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) || name.contains(&b'/') {
            return malformed("a link with a name that cannot be");
        }
        self.taken += Link::taken(name);
        if self.taken > LINKS_MAX {
            return too_much(format!("links that take more than {LINKS_MAX} bytes"));
        }
        push(&mut self.all, Link { name: name.into(), at });
        Ok(())
    }

    /// What all of them take.
    pub fn taken(&self) -> usize {
        self.taken
    }
}

/// A link message, which may be in a header or in a heap.
pub(crate) fn link(file: &mut File<'_>, end: u64, links: &mut Links) -> Result<()> {
    let (version, flags) = (file.u8()?, file.u8()?);
    if version != 1 {
        return malformed(format!("a link of the unknown version {version}"));
    }
    let is_hard = if flags & 8 != 0 { file.u8()? == 0 } else { true };
    // Its number; its character set.
    file.skip(if flags & 4 != 0 { 8 } else { 0 } + if flags & 16 != 0 { 1 } else { 0 })?;
    let len = file.number(1 << (flags & 3))?;
    if len > NAME_MAX as u64 || len > end.saturating_sub(file.at()) {
        return malformed("a link with a name that cannot be");
    }
    let name = file.cursor.take(len as usize)?.to_vec();
    let at = if is_hard { file.address()? } else { None };
    links.add(&name, at)
}
