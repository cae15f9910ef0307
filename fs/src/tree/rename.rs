//! Moving names.

use tensorfs_layout::Ino;
use tensorfs_layout::log::{Record, Transaction};
use tensorfs_layout::pool::Edit;
use tensorfs_layout::tree::Object;

use crate::caller::Caller;
use crate::clock;
use crate::error::{Fault, Result};
use crate::store::{changed, touched, with};

use super::names::check_new_name;
use super::{Tree, check_project, living_directory};

/// What renameat2(2) is asked to do where the new name is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Replace,
    NoReplace,
    Exchange,
}

impl How {
    /// Reads the flags of renameat2(2).
    fn of(flags: u32) -> Result<Self> {
        match flags {
            0 => Ok(Self::Replace),
            libc::RENAME_NOREPLACE => Ok(Self::NoReplace),
            libc::RENAME_EXCHANGE => Ok(Self::Exchange),
            _ => Err(Fault::new(libc::EINVAL)),
        }
    }
}

impl Tree {
    /// Moves a name, or exchanges two. Returns what is still to be retired.
    pub fn rename(&self, caller: Caller, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: u32) -> Result<Option<Ino>> {
        check_new_name(to.1)?;
        let how = How::of(flags)?;
        self.files.pay_unlinks();
        let exchange = how == How::Exchange;
        loop {
            let (moved, met) = {
                let view = self.store().view();
                (view.lookup(from.0, from.1), view.lookup(to.0, to.1))
            };
            let moved = moved.ok_or(Fault::new(libc::ENOENT))?;
            self.learn_before_moving(moved)?;
            if let (true, Some(met)) = (exchange, met) {
                self.learn_before_moving(met)?;
            }
            let done = self.files.edit(|edit| {
                // Learning was done without the lock; what it was done for must still be what is moved.
                if edit.lookup(from.0, from.1) != Some(moved) || edit.lookup(to.0, to.1) != met {
                    return Ok(false);
                }
                move_name(edit, caller, from, to, moved, met, how)?;
                Ok(true)
            })?;
            if done {
                self.store().moved([Some(moved), met].into_iter().flatten());
                let gone = met.filter(|met| !exchange && *met != moved);
                return Ok(gone.and_then(|gone| self.files.try_retire(gone)));
            }
        }
    }

    /// A file's bytes are recorded before its name is. Those below a directory are recorded before its name is durable.
    fn learn_before_moving(&self, ino: Ino) -> Result<()> {
        let is_dir = self.store().view().object(ino).is_some_and(Object::is_dir);
        if is_dir { Ok(()) } else { self.files.learn_before_naming(ino) }
    }
}

fn move_name(
    edit: &mut Edit<'_>,
    caller: Caller,
    from: (Ino, &[u8]),
    to: (Ino, &[u8]),
    moved: Ino,
    met: Option<Ino>,
    how: How,
) -> Result<()> {
    let exchange = how == How::Exchange;
    let object = edit.object(moved).ok_or(Fault::new(libc::ENOENT))?;
    living_directory(edit, to.0)?;
    if object.is_dir() && is_within(edit, to.0, moved) {
        return Err(Fault::new(libc::EINVAL));
    }
    match met {
        None if exchange => return Err(Fault::new(libc::ENOENT)),
        None => {}
        Some(_) if how == How::NoReplace => return Err(Fault::new(libc::EEXIST)),
        // Two names of one object: nothing to do, says POSIX.
        Some(met) if met == moved => return Ok(()),
        Some(met) => {
            let other = edit.object(met).ok_or(Fault::new(libc::ENOENT))?;
            if exchange {
                if other.is_dir() && is_within(edit, from.0, met) {
                    return Err(Fault::new(libc::EINVAL));
                }
            } else if object.is_dir() && !other.is_dir() {
                return Err(Fault::new(libc::ENOTDIR));
            } else if !object.is_dir() && other.is_dir() {
                return Err(Fault::new(libc::EISDIR));
            } else if other.is_dir() && !other.is_empty_dir() {
                return Err(Fault::new(libc::ENOTEMPTY));
            }
        }
    }
    if from.0 != to.0 {
        check_project(edit, to.0, object)?;
        if let Some(met) = met.filter(|_| exchange).and_then(|met| edit.object(met)) {
            check_project(edit, from.0, met)?;
        }
    }
    let now = clock::now();
    // The new name comes first, so that no object is without a name in between.
    let mut tx = Transaction::new(caller.unique).with(Record::Name { dir: to.0, name: to.1.into(), ino: moved });
    tx.push(match met.filter(|_| exchange) {
        Some(met) => Record::Name { dir: from.0, name: from.1.into(), ino: met },
        None => Record::Removal { dir: from.0, name: from.1.into() },
    });
    let tx = with(tx, touched(edit, from.0, now));
    let tx = with(tx, touched(edit, to.0, now).filter(|_| from.0 != to.0));
    let tx = with(tx, changed(edit, moved, now));
    let tx = with(tx, met.and_then(|met| changed(edit, met, now)));
    let directories: Vec<Ino> = [Some(moved), met.filter(|_| exchange)]
        .into_iter()
        .flatten()
        .filter(|ino| edit.object(*ino).is_some_and(Object::is_dir))
        .collect();
    // What is replaced goes with its name.
    edit.store_moved(tx, &directories, met.is_some() && !exchange)?;
    Ok(())
}

/// True if a directory is `ancestor` or lies below it.
fn is_within(edit: &Edit<'_>, dir: Ino, ancestor: Ino) -> bool {
    let mut at = Some(dir);
    while let Some(ino) = at {
        if ino == ancestor {
            return true;
        }
        at = edit.object(ino).and_then(Object::parent);
    }
    false
}
