//! What lies below a directory. Each directory is gone through once, whatever the log says, and a path is put together
//! when it is asked for: no more is kept of a name than the name.

use std::collections::HashSet;

use crate::ids::Ino;
use crate::tree::object::Object;
use crate::tree::view::View;

/// A directory is gone into up to a path of so many bytes, twice as long as any that a call takes: whoever has a
/// directory open can go deeper than a path does.
pub const DEEPEST: usize = 8190;

/// What was found below a directory, in the order of their paths.
#[derive(Debug)]
pub struct Below {
    /// Those that were gone through, each with the one that it is in, by its place in this list.
    directories: Vec<(usize, Box<[u8]>)>,
    found: Vec<Found>,
}

/// One name.
#[derive(Debug)]
pub struct Found {
    dir: usize,
    name: Box<[u8]>,
    ino: Ino,
    is_left_out: Option<LeftOut>,
}

/// Why a directory was not gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// It was before, under another name.
    Again,
    /// Its path is longer than [`DEEPEST`].
    TooDeep,
}

impl Found {
    /// What has the name.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Of a directory, why it was not gone through, if that is so.
    pub fn left_out(&self) -> Option<LeftOut> {
        self.is_left_out
    }
}

impl Below {
    /// Goes through all that is below a directory. A hard link comes under each name.
    pub fn of(view: &View, top: Ino) -> Below {
        let mut below = Below { directories: vec![(0, Box::default())], found: Vec::new() };
        let mut entered = HashSet::from([top]);
        // What is left, the next one last: its directory, how long that one's path is, its name, and what it is.
        let mut left: Vec<(usize, usize, Box<[u8]>, Ino)> = Vec::new();
        let enter = |dir: usize, len: usize, ino: Ino, left: &mut Vec<_>| {
            let from = left.len();
            left.extend(view.entries_after(ino, 0).map(|(_, name, ino)| (dir, len, Box::from(name), ino)));
            // A directory's name goes on with a slash.
            let is_dir = |ino: Ino| view.object(ino).is_some_and(Object::is_dir);
            left[from..].sort_by_cached_key(|(_, _, name, ino): &(usize, usize, Box<[u8]>, Ino)| {
                std::cmp::Reverse([&name[..], if is_dir(*ino) { b"/" } else { b"" }].concat())
            });
        };
        enter(0, 0, top, &mut left);
        while let Some((dir, len, name, ino)) = left.pop() {
            let len = len + 1 + name.len();
            let is_dir = view.object(ino).is_some_and(Object::is_dir);
            let is_left_out = match is_dir {
                true if len > DEEPEST => Some(LeftOut::TooDeep),
                true if !entered.insert(ino) => Some(LeftOut::Again),
                _ => None,
            };
            if is_dir && is_left_out.is_none() {
                below.directories.push((dir, name.clone()));
                enter(below.directories.len() - 1, len, ino, &mut left);
            }
            below.found.push(Found { dir, name, ino, is_left_out });
        }
        below
    }

    /// All of it.
    pub fn found(&self) -> &[Found] {
        &self.found
    }

    /// The path of one of them from the directory.
    pub fn path(&self, found: &Found) -> Vec<u8> {
        let mut parts: Vec<&[u8]> = vec![&found.name];
        let mut dir = found.dir;
        while dir != 0 {
            let (above, name) = &self.directories[dir];
            parts.push(name);
            dir = *above;
        }
        let mut path = Vec::new();
        for part in parts.into_iter().rev() {
            path.extend((!path.is_empty()).then_some(b'/'));
            path.extend_from_slice(part);
        }
        path
    }
}
