//! What names lead to from a directory on, below it. Links are not followed.

use tensorfs_layout::Ino;
use tensorfs_layout::tree::View;

use super::Content;

/// The file that a name leads to from a directory on, and the directories on the way. Links are not followed.
pub(super) fn reach(view: &View, dir: Ino, name: &str, on_the_way: &mut Vec<Ino>) -> Option<Ino> {
    let mut at = dir;
    let mut names = name.split('/').peekable();
    while let Some(name) = names.next() {
        at = view.lookup(at, name.as_bytes())?;
        if names.peek().is_some() {
            on_the_way.push(at);
        }
    }
    view.object(at)?.is_file().then_some(at)
}

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum There {
    Nothing,
    File,
    /// A directory, a link, or anything else; or one of these has the name of a directory on the way.
    Other,
}

fn there(view: &View, dir: Ino, name: &str) -> There {
    let mut at = dir;
    let mut names = name.split('/').peekable();
    while let Some(name) = names.next() {
        let Some(found) = view.lookup(at, name.as_bytes()) else { return There::Nothing };
        let object = view.object(found);
        let is_right =
            object.is_some_and(|object| if names.peek().is_some() { object.is_dir() } else { object.is_file() });
        if !is_right {
            return There::Other;
        }
        at = found;
    }
    There::File
}

impl Content {
    /// What a name leads to from a directory on.
    pub(super) fn there(&self, dir: Ino, name: &str) -> There {
        there(&self.files.store().view(), dir, name)
    }

    /// The file that a path leads to from a directory.
    pub(super) fn file_below(&self, dir: Ino, path: &str) -> Option<Ino> {
        reach(&self.files.store().view(), dir, path, &mut Vec::new())
    }
}
