//! What project a file counts for on the host, which quotas of directories stand on.

use tensorfs_layout::Ino;
use tensorfs_layout::log::{Record, Transaction};

use crate::caller::Caller;
use crate::clock;
use crate::error::{Fault, Result};
use crate::store::reserved::PROJECT;
use crate::store::{changed, with};

use super::Files;
use super::locked::Locked;

impl Files {
    /// Has a file count for a project, or what is made in a directory; 0 for none. Only root comes here: the kernel
    /// sees to it.
    pub fn set_project(&self, caller: Caller, ino: Ino, number: u32) -> Result<()> {
        self.store().check_writable()?;
        let node = self.node(ino);
        let mut file = self.lock(&node);
        let set = file.set_project(caller, number);
        if !file.is_open() {
            file.settle(caller.unique);
        }
        set
    }
}

impl Locked<'_> {
    /// With the lock held nobody makes another segment for the file.
    fn set_project(&mut self, caller: Caller, number: u32) -> Result<()> {
        let (store, ino) = (self.files.store(), self.ino());
        let own = {
            let view = store.view();
            let object = view.object(ino).ok_or(Fault::stale())?;
            if !object.is_dir() && !object.is_file() {
                return Err(Fault::new(libc::EPERM));
            }
            object.attributes.segment
        };
        let other = self.segment().filter(|segment| Some(*segment) != own);
        for segment in own.into_iter().chain(other) {
            store.count_for(segment, number)?;
        }
        self.files.edit(|edit| {
            let object = edit.object(ino).ok_or(Fault::stale())?;
            let record = match (number, object.xattr(PROJECT).is_some()) {
                (0, false) => return Ok(()),
                (0, true) => Record::XattrRemoval { ino, name: PROJECT.into() },
                _ => Record::Xattr { ino, name: PROJECT.into(), value: number.to_string().into_bytes().into() },
            };
            let tx = with(Transaction::new(caller.unique).with(record), changed(edit, ino, clock::now()));
            if number == 0 { edit.store_from_reserve(tx) } else { edit.store(tx) }?;
            Ok(())
        })
    }
}
