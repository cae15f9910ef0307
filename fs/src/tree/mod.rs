//! The tree: names, attributes, and listings of what users make.

mod create;
mod listing;
mod names;
mod rename;
mod setattr;
mod xattr;

use std::sync::Arc;

use tensorfs_layout::pool::Edit;
use tensorfs_layout::tree::Object;
use tensorfs_layout::{Ino, ROOT};

use crate::error::{Fault, Result};
use crate::file::Files;
use crate::store::{Store, project};

pub(crate) use create::New;
pub(crate) use listing::Whole;
pub(crate) use setattr::{Change, When};

/// The tree over the files in use.
pub(crate) struct Tree {
    files: Arc<Files>,
}

impl Tree {
    /// The tree of a pool.
    pub fn new(files: Arc<Files>) -> Self {
        Self { files }
    }

    /// True of a regular file.
    pub fn is_regular(&self, ino: Ino) -> bool {
        self.store().view().object(ino).is_some_and(Object::is_file)
    }

    fn store(&self) -> &Store {
        self.files.store()
    }
}

/// Objections to a name in a directory that counts for a project, of what does not, as on ext4 and XFS: mv(1) copies
/// it.
fn check_project(edit: &Edit<'_>, dir: Ino, object: &Object) -> Result<()> {
    let takes = edit.object(dir).map_or(0, project);
    let counts = object.is_dir() || object.is_file();
    if takes != 0 && counts && project(object) != takes { Err(Fault::new(libc::EXDEV)) } else { Ok(()) }
}

/// A directory that can take new names.
fn living_directory<'a>(edit: &'a Edit<'_>, dir: Ino) -> Result<&'a Object> {
    let object = edit.object(dir).ok_or(Fault::new(libc::ENOENT))?;
    if !object.is_dir() {
        return Err(Fault::new(libc::ENOTDIR));
    }
    if object.names() == 0 && dir != ROOT {
        return Err(Fault::new(libc::ENOENT));
    }
    Ok(object)
}
