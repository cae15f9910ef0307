//! Projects, which quotas of directories stand on (B18). A directory has the number of one as an attribute, and so has
//! what is made in it; the host counts the segments of files for it.

use std::os::fd::AsFd;
use std::sync::Once;

use tensorfs_layout::medium::set_project;
use tensorfs_layout::tree::Object;
use tensorfs_layout::{Ino, SegmentId, reason};

use crate::error::{Fault, Host, Result};

use super::Store;
use super::reserved::PROJECT;

/// The project of an object; 0 for none.
pub(crate) fn project(object: &Object) -> u32 {
    object.xattr(PROJECT).and_then(parse_project).unwrap_or(0)
}

/// A number as it is written in the attribute. 0 is no project's.
pub(crate) fn parse_project(value: &[u8]) -> Option<u32> {
    std::str::from_utf8(value).ok()?.parse().ok().filter(|number| *number != 0)
}

impl Store {
    /// The project of a file, or of what is made in a directory; 0 for none.
    pub fn project_of(&self, ino: Ino) -> u32 {
        self.view().object(ino).map_or(0, project)
    }

    /// Has the host count a segment for a project. One that cannot be had now gets it with its bytes, when they come.
    pub fn count_for(&self, segment: SegmentId, number: u32) -> Result<()> {
        if self.segments().gone(segment).is_some() {
            return Ok(());
        }
        let opened = self.segments().open(segment, libc::O_RDONLY | libc::O_NONBLOCK).host("opening a segment")?;
        set_project(&opened, number).host("giving a segment to a project")
    }

    /// Has the host count a new segment for a project. A pool that is on another host by now, which has no projects,
    /// goes on without.
    pub(super) fn count_new_for(&self, segment: impl AsFd, number: u32) -> Result<()> {
        match set_project(segment, number) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EDQUOT | libc::ENOSPC)) => {
                Err(Fault::new(error.raw_os_error().unwrap_or(libc::EDQUOT)))
            }
            Err(error) => {
                static TOLD: Once = Once::new();
                let why = reason(&error);
                TOLD.call_once(|| log::warn!("quotas of directories do not count what is new: {why}"));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_are_projects() {
        assert_eq!(parse_project(b"1048576"), Some(1 << 20));
        for value in ["0", "", "-1", "4294967296", "x", "1 "] {
            assert_eq!(parse_project(value.as_bytes()), None, "{value}");
        }
    }
}
