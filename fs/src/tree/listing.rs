//! Reading directories.

use tensorfs_layout::{Ino, ROOT};

use crate::error::{Fault, Result};
use crate::file::{Listed, ListedPlus, Stat};

use super::Tree;

/// Names are taken from the view in lots of this size, so that a long listing does not keep changes waiting.
const LOT: usize = 128;

/// No more names are taken at one time.
const WHOLE: usize = 1 << 16;

/// The cookies of `.` and `..`; names have larger ones.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// A name with its cookie, what the records say of what it stands for, and whether that is in use.
type Entry = (u64, Box<[u8]>, Stat, bool);

/// All names of a directory, as they were at one time.
#[derive(Debug)]
pub(crate) struct Whole(Vec<(u64, Box<[u8]>, Ino, u32)>);

impl Whole {
    /// What it takes of the memory, about.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(_, name, ..)| name.len() + 64).sum()
    }

    /// Lists it from behind a cookie, as [`Tree::readdir`] does.
    pub fn list(&self, cookie: u64, mut take: impl FnMut(Listed<'_>) -> bool) {
        let first = self.0.partition_point(|(at, ..)| *at <= cookie);
        let mut rest = self.0[first..].iter();
        let _ = rest.any(|(at, name, ino, kind)| take(Listed { cookie: *at, name, ino: *ino, kind: *kind }));
    }

    /// One with these names.
    #[cfg(test)]
    pub fn of_names(names: &[&str]) -> Self {
        let named = names.iter().zip(1..).map(|(name, at)| (at, name.as_bytes().into(), Ino(at), libc::S_IFREG));
        Self(named.collect())
    }
}

impl Tree {
    /// Lists a directory as it is now, unless it has more names than are taken at one time.
    pub fn whole(&self, dir: Ino) -> Result<Option<Whole>> {
        let parent = self.parent_of(dir)?;
        let view = self.store().view();
        let dots = [(DOT, &b"."[..], dir), (DOT_DOT, b"..", parent)];
        let dots = dots.map(|(at, name, ino)| (at, name.into(), ino, libc::S_IFDIR));
        let names = view.entries_after(dir, DOT_DOT).take(WHOLE + 1);
        let names = names.filter_map(|(at, name, ino)| Some((at, name.into(), ino, view.object(ino)?.kind())));
        let all: Vec<_> = dots.into_iter().chain(names).collect();
        Ok((all.len() <= WHOLE + 2).then_some(Whole(all)))
    }

    /// Lists a directory from behind a cookie. `take` says whether it is full, and what it refused comes again.
    pub fn readdir(&self, dir: Ino, cookie: u64, mut take: impl FnMut(Listed<'_>) -> bool) -> Result<()> {
        let directory = libc::S_IFDIR;
        let parent = self.parent_of(dir)?;
        for (at, name, ino) in [(DOT, &b"."[..], dir), (DOT_DOT, b"..", parent)] {
            if cookie < at && take(Listed { cookie: at, name, ino, kind: directory }) {
                return Ok(());
            }
        }
        let mut cookie = cookie.max(DOT_DOT);
        loop {
            let view = self.store().view();
            let mut count = 0;
            for (at, name, ino) in view.entries_after(dir, cookie).take(LOT) {
                count += 1;
                if let Some(object) = view.object(ino)
                    && take(Listed { cookie: at, name, ino, kind: object.kind() })
                {
                    return Ok(());
                }
                cookie = at;
            }
            if count < LOT {
                return Ok(());
            }
        }
    }

    /// Lists a directory with the attributes of what is in it.
    pub fn readdirplus(&self, dir: Ino, cookie: u64, mut take: impl FnMut(ListedPlus<'_>) -> bool) -> Result<()> {
        let parent = self.parent_of(dir)?;
        for (at, name, ino) in [(DOT, &b"."[..], dir), (DOT_DOT, b"..", parent)] {
            if cookie < at && take(ListedPlus { cookie: at, name, stat: &self.files.stat(ino)?, known: true }) {
                return Ok(());
            }
        }
        let mut cookie = cookie.max(DOT_DOT);
        loop {
            let lot: Vec<Entry> = {
                let view = self.store().view();
                // Who is in use as its records are read may have been written since they were made; a moment later it
                // may be at rest, and the records others.
                let known = |(at, name, ino): (u64, &[u8], Ino)| {
                    Some((at, name.into(), Stat::of(ino, view.object(ino)?), self.files.node_in_use(ino).is_some()))
                };
                view.entries_after(dir, cookie).filter_map(known).take(LOT).collect()
            };
            let count = lot.len();
            for (at, name, stat, in_use) in lot {
                // Of a file in use the host would have to be asked, and a listing waits for no file.
                if take(ListedPlus { cookie: at, name: &name, stat: &stat, known: !in_use }) {
                    return Ok(());
                }
                cookie = at;
            }
            if count < LOT {
                return Ok(());
            }
        }
    }

    fn parent_of(&self, dir: Ino) -> Result<Ino> {
        let view = self.store().view();
        let object = view.object(dir).ok_or(Fault::new(libc::ENOENT))?;
        if !object.is_dir() {
            return Err(Fault::new(libc::ENOTDIR));
        }
        Ok(object.parent().unwrap_or(ROOT))
    }
}
