//! The control tree: `.tensorfs` in the root of the mount, found by name and not listed there. Its files are made when
//! they are opened.

use std::sync::Arc;

use fuser::{FileType, FopenFlags};
use tensorfs_layout::{Attributes, Ino};

use crate::attributes::Stat;
use crate::error::{Fault, Result};
use crate::filesystem::Filesystem;
use crate::handles::Opened;
use crate::open::OpenReply;

/// The name of the control tree. Users cannot make, remove or move an object of that name in the root.
pub(crate) const NAME: &[u8] = b".tensorfs";

/// Numbers of the control tree's objects are above all that a pool hands out.
const FIRST: u64 = 1 << 63;
const DIRECTORY: Ino = Ino(FIRST);

/// The files: number, name.
const FILES: [(Ino, &[u8]); 1] = [(Ino(FIRST + 1), b"info")];

/// True for an object of the control tree.
pub(crate) fn is_control(ino: Ino) -> bool {
    ino.0 >= FIRST
}

/// What the control directory holds: cookie, name, object, type.
pub(crate) fn listing() -> Vec<(u64, &'static [u8], Ino, FileType)> {
    let mut list: Vec<(u64, &[u8], Ino, FileType)> =
        vec![(1, b".", DIRECTORY, FileType::Directory), (2, b"..", tensorfs_layout::ROOT, FileType::Directory)];
    list.extend((16..).zip(FILES).map(|(cookie, (ino, name))| (cookie, name, ino, FileType::RegularFile)));
    list
}

impl Filesystem {
    /// What a name in the control tree stands for, or the name of the control tree itself in the root.
    pub fn control_lookup(&self, dir: Ino, name: &[u8]) -> Option<Stat> {
        if dir != DIRECTORY {
            return self.control_stat(DIRECTORY);
        }
        FILES.iter().find(|(_, file)| *file == name).and_then(|(ino, _)| self.control_stat(*ino))
    }

    /// What an object of the control tree looks like: its owner and times are the root's.
    pub fn control_stat(&self, ino: Ino) -> Option<Stat> {
        let root = self.pool.view().object(tensorfs_layout::ROOT)?.attributes.clone();
        let mode = match ino {
            DIRECTORY => libc::S_IFDIR | 0o555,
            _ if FILES.iter().any(|(file, _)| *file == ino) => libc::S_IFREG | 0o444,
            _ => return None,
        };
        let links = if ino == DIRECTORY { 2 } else { 1 };
        Some(Stat { ino, attributes: Attributes { mode, ..root }, links, size: 0, allocated: 0, volatile: false })
    }

    /// Opens a file of the control tree; its content is what is true now.
    pub fn open_control(&self, ino: Ino, flags: i32) -> Result<OpenReply> {
        if flags & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY {
            return Err(Fault::new(libc::EACCES));
        }
        if !FILES.iter().any(|(file, _)| *file == ino) {
            return Err(Fault::new(libc::EISDIR));
        }
        let mut text =
            serde_json::to_vec_pretty(&self.info()).map_err(|error| Fault::warn(libc::EIO, error.to_string()))?;
        text.push(b'\n');
        let handle = self.handles.insert(Opened::Control(Arc::from(text)));
        // Its size is not known before it is opened, so the kernel must not go by it.
        Ok(OpenReply { handle, flags: FopenFlags::FOPEN_DIRECT_IO, backing: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_tree_is_apart_from_the_pool() {
        assert!(!is_control(tensorfs_layout::ROOT));
        assert!(listing().iter().all(|(_, _, ino, _)| is_control(*ino) || *ino == tensorfs_layout::ROOT));
    }
}
