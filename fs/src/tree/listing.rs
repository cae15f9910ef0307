//! Reading directories.

use tensorfs_layout::{Ino, ROOT};

use crate::attributes::{Stat, file_type};
use crate::control;
use crate::error::{Fault, Result};
use crate::filesystem::Filesystem;

/// Names are taken from the view in lots of this size, so that a long listing does not keep changes waiting.
const LOT: usize = 128;

/// The cookies of `.` and `..`; names have larger ones.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// One name of a listing. Its cookie says where the next part of the listing starts.
pub(crate) struct Listed<'a> {
    pub cookie: u64,
    pub name: &'a [u8],
    pub ino: Ino,
    pub kind: fuser::FileType,
}

/// The same with what the name stands for.
pub(crate) struct ListedPlus<'a> {
    pub cookie: u64,
    pub name: &'a [u8],
    pub stat: &'a Stat,
}

impl Filesystem {
    /// Lists a directory from behind a cookie. `take` says whether it is full, and what it refused comes again.
    pub fn readdir(&self, dir: Ino, cookie: u64, mut take: impl FnMut(Listed<'_>) -> bool) -> Result<()> {
        let directory = fuser::FileType::Directory;
        if control::is_control(dir) {
            return self.control_readdir(dir, cookie, take);
        }
        let parent = self.parent_of(dir)?;
        for (at, name, ino) in [(DOT, &b"."[..], dir), (DOT_DOT, b"..", parent)] {
            if cookie < at && take(Listed { cookie: at, name, ino, kind: directory }) {
                return Ok(());
            }
        }
        let mut cookie = cookie.max(DOT_DOT);
        loop {
            let view = self.pool.view();
            let mut count = 0;
            for (at, name, ino) in view.entries_after(dir, cookie).take(LOT) {
                count += 1;
                if let Some(object) = view.object(ino)
                    && take(Listed { cookie: at, name, ino, kind: file_type(object.attributes.mode) })
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
        if control::is_control(dir) {
            return self.control_readdirplus(dir, cookie, take);
        }
        let parent = self.parent_of(dir)?;
        for (at, name, ino) in [(DOT, &b"."[..], dir), (DOT_DOT, b"..", parent)] {
            if cookie < at && take(ListedPlus { cookie: at, name, stat: &self.stat(ino)? }) {
                return Ok(());
            }
        }
        let mut cookie = cookie.max(DOT_DOT);
        loop {
            let lot: Vec<(u64, Box<[u8]>, Stat)> = {
                let view = self.pool.view();
                let known =
                    |(at, name, ino): (u64, &[u8], Ino)| Some((at, name.into(), Stat::of(ino, view.object(ino)?)));
                view.entries_after(dir, cookie).filter_map(known).take(LOT).collect()
            };
            let count = lot.len();
            for (at, name, mut stat) in lot {
                // Files in use are asked one by one, without the view's lock.
                if let Some(node) = self.nodes.peek(stat.ino) {
                    let state = node.lock();
                    stat = self.stat_in(stat.ino, &state).unwrap_or(stat);
                }
                if take(ListedPlus { cookie: at, name: &name, stat: &stat }) {
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
        let view = self.pool.view();
        let object = view.object(dir).ok_or(Fault::new(libc::ENOENT))?;
        if !object.is_dir() {
            return Err(Fault::new(libc::ENOTDIR));
        }
        Ok(object.parent().unwrap_or(ROOT))
    }
}
