//! A file of the control tree that is being written: what is written is kept until the file is closed or synced, and
//! then counts as a whole or not at all.

use parking_lot::Mutex;
use tensorfs_layout::log::PLACEMENT_MAX;

use crate::error::{Fault, Result};

/// What was written so far.
pub(super) struct Draft(Mutex<Text>);

struct Text {
    bytes: Vec<u8>,
    /// It was emptied when it was opened, and nothing has been written since.
    emptied: bool,
    /// Something was written that does not count yet.
    written: bool,
    /// Who wrote last, if the kernel says.
    writer: Option<Who>,
    /// Something could not be written: what there is is not what was meant.
    failed: bool,
}

/// Who has a file open: the kernel's number for a process and its threads.
pub(crate) type Who = u64;

/// What has happened to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// A descriptor of it was closed; there may be others. A shell does so before it writes, and so does every program
    /// that the writer starts meanwhile, which is somebody else.
    Closed(Who),
    /// A signal is killing who has it open: what is written so far is not meant.
    Killed,
    /// It was synced.
    Synced,
    /// The last descriptor is closed.
    Released,
}

impl Draft {
    /// A text that is about to be written, or was emptied for that.
    pub fn new(bytes: Vec<u8>, emptied: bool) -> Self {
        Self(Mutex::new(Text { bytes, emptied, written: false, writer: None, failed: false }))
    }

    /// What stands there now.
    pub fn read(&self, offset: u64, size: u32) -> Vec<u8> {
        let text = self.0.lock();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(text.bytes.len());
        let end = start.saturating_add(size as usize).min(text.bytes.len());
        text.bytes[start..end].to_vec()
    }

    /// Writes at an offset, or at the end.
    pub fn write(&self, who: Option<Who>, offset: u64, data: &[u8], append: bool) -> Result<u32> {
        let mut text = self.0.lock();
        let at = if append { text.bytes.len() } else { usize::try_from(offset).unwrap_or(usize::MAX) };
        let Some(end) = at.checked_add(data.len()).filter(|end| *end <= PLACEMENT_MAX) else {
            text.failed = true;
            return Err(Fault::new(libc::EFBIG));
        };
        if text.bytes.len() < end {
            text.bytes.resize(end, 0);
        }
        text.bytes[at..end].copy_from_slice(data);
        (text.emptied, text.written) = (false, true);
        text.writer = who;
        Ok(data.len() as u32)
    }

    /// Gives what was written to `take`, if this is the moment for it.
    pub fn finish(&self, moment: Moment, take: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
        let mut text = self.0.lock();
        let counts = match moment {
            _ if text.failed => false,
            Moment::Killed => {
                (text.emptied, text.written) = (false, false);
                false
            }
            Moment::Closed(who) => text.written && text.writer.is_none_or(|writer| writer == who),
            Moment::Synced | Moment::Released => text.written || text.emptied,
        };
        if !counts {
            return Ok(());
        }
        // A wrong one is said to be wrong once; what is written to it then is looked at anew.
        (text.emptied, text.written) = (false, false);
        take(&text.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_counts_once_and_whole() {
        let draft = Draft::new(b"old".to_vec(), false);
        draft.finish(Moment::Released, |_| panic!("nothing was written")).unwrap();
        draft.write(Some(1), 3, b"+", false).unwrap();
        draft.write(Some(1), 0, b"+", true).unwrap();
        assert_eq!(draft.read(1, 100), b"ld++");
        let mut taken = Vec::new();
        let mut take = |text: &[u8]| {
            taken.extend_from_slice(text);
            Ok(())
        };
        draft.finish(Moment::Closed(2), |_| panic!("a child of the writer")).unwrap();
        draft.finish(Moment::Closed(1), &mut take).unwrap();
        assert_eq!(taken, b"old++");
        draft.finish(Moment::Released, |_| panic!("once")).unwrap();
        assert_eq!(draft.write(Some(1), u64::MAX, b"x", false).unwrap_err().errno, libc::EFBIG);
        assert_eq!(draft.write(Some(1), PLACEMENT_MAX as u64, b"x", false).unwrap_err().errno, libc::EFBIG);
    }

    #[test]
    fn what_was_only_emptied_counts_when_nobody_can_write_it_any_more() {
        let draft = Draft::new(Vec::new(), true);
        draft.finish(Moment::Closed(1), |_| panic!("a shell has made its copy of the descriptor")).unwrap();
        let mut taken = None;
        let mut take = |text: &[u8]| {
            taken = Some(text.len());
            Ok(())
        };
        draft.finish(Moment::Released, &mut take).unwrap();
        assert_eq!(taken, Some(0));
        let large = Draft::new(Vec::new(), true);
        assert_eq!(large.write(Some(1), 0, &[b'#'; PLACEMENT_MAX + 1], false).unwrap_err().errno, libc::EFBIG);
        large.finish(Moment::Released, |_| panic!("it could not be written")).unwrap();
        let killed = Draft::new(Vec::new(), true);
        killed.write(Some(1), 0, b"half a li", false).unwrap();
        killed.finish(Moment::Killed, |_| panic!("half of it")).unwrap();
        killed.finish(Moment::Released, |_| panic!("half of it")).unwrap();
    }
}
