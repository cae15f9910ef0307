//! Mending a sealed file whose bytes are damaged, or gone: somebody has fetched them from elsewhere into another file
//! of the mount. They are copied to a new segment, and if the copy has the checksums that the file was sealed with, it
//! becomes the file's own.

use std::sync::Arc;

use log::Level;
use tensorfs_layout::log::PM;
use tensorfs_layout::{Ino, SegmentId};

use crate::caller::Caller;
use crate::error::{Fault, Result};
use crate::file::Files;
use crate::protocol::Moving;
use crate::store::Scrub;

use super::checksums::{Checksum, checksums};
use super::mover::{Copied, Mover, Source, busy, give_copy, own_segment, wait_until_unused, written_meanwhile};

impl Mover {
    /// Has a file mended with the bytes of another one, its `donor`; or, if that was begun before, says what came of
    /// it. Both have to be the caller's own, unless he is root.
    pub fn ask_for_mend(self: &Arc<Self>, caller: Caller, ino: Ino, donor: Ino, begin: bool) -> Moving {
        match self.check_owner(caller, ino).and_then(|()| self.check_owner(caller, donor)) {
            Ok(()) => self.ask(caller, ino, begin, move |mover, report| mend(mover.files(), ino, donor, report)),
            Err(fault) => Moving::Refused(fault.to_string()),
        }
    }
}

fn mend(files: &Files, ino: Ino, donor: Ino, report: &dyn Fn(u64, u64)) -> Result<()> {
    let store = files.store();
    store.check_writable()?;
    store.settle_value(ino)?;
    let bytes = own_segment(store, donor).filter(|_| donor != ino);
    let bytes = bytes.ok_or_else(|| refused("there are no bytes to mend it with"))?;
    let node = files.node(ino);
    let mut file = files.lock(&node);
    if file.is_quiet() {
        file.end_quiet();
    }
    let from = wait_until_unused(files, &mut file)?;
    if store.is_in_log_alone(ino) {
        return Err(written_meanwhile());
    }
    let (Some(from), Some(checksums)) = (from, whole(files, ino)) else {
        return Err(refused("not all of it has checksums, so that nobody can know its bytes"));
    };
    let recorded = {
        let view = store.view();
        let object = view.object(ino).filter(|object| object.names() > 0).ok_or(Fault::new(libc::ENOENT))?;
        object.attributes.clone()
    };
    let tier = Some(from.tier()).filter(|tier| store.segments().is_there(*tier)).unwrap_or(PM);
    let copy = files.new_segment(tier, Some(from))?.segment;
    give_copy(files, file, &Copied { from, copy, source: Source::Other(bytes, checksums), recorded }, report)?;
    // The kernel may have pages of what it was.
    store.link().forget_bytes(ino, 0, 0);
    store.settle_damage(ino, &&[][..], &[]);
    store.keep_damage(Scrub::Unchanged);
    store.counters().mended.add(1);
    tell(files, ino, copy);
    Ok(())
}

/// The checksums of a file of which every byte has one.
fn whole(files: &Files, ino: Ino) -> Option<Vec<Checksum>> {
    let store = files.store();
    let view = store.view();
    let object = view.object(ino).filter(|object| !object.attributes.damaged)?;
    let sealed = object.chain().is_some_and(|chain| chain.is_sealed() && chain.size() > 0);
    drop(view);
    sealed.then(|| checksums(store, ino))
}

fn tell(files: &Files, ino: Ino, segment: SegmentId) {
    let path = files.store().view().path_of(ino).map(|path| String::from_utf8_lossy(&path).into_owned());
    let path = path.as_deref().unwrap_or("a file without a name");
    log::warn!("{}: mended: its bytes are those that were sealed, in segment {segment}", path.escape_debug());
}

fn refused(why: &'static str) -> Fault {
    Fault { level: Level::Info, ..busy(why) }
}
