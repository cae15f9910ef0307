//! Mending a sealed file whose bytes are damaged, or gone: somebody has fetched them from elsewhere into another file
//! of the mount. They are copied to a new segment, and if the copy has the checksums that the file was sealed with, it
//! becomes the file's own.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use tensorfs_formats::Source;
use tensorfs_layout::log::{Attributes, PM};
use tensorfs_layout::medium::Direct;
use tensorfs_layout::{Ino, SegmentId};

use crate::caller::Caller;
use crate::error::{Fault, Host, Result};
use crate::file::Files;
use crate::protocol::{IS_WHOLE, Moving};
use crate::store::{Scrub, Store};

use super::checksums::{Checksum, bad_runs, checksums};
use super::mover::{
    Copied, Mover, Switch, busy, cannot_be_synced, give_copy, make_copy, make_room, own_segment, wait_until_unused,
};
use super::moves::Gift;

/// Whoever has fetched the bytes had the file open for that, and RELEASE comes after `close` has returned.
const RELEASES: Duration = Duration::from_secs(1);

impl Mover {
    /// Has a file mended with the bytes of another one, its `donor`; or, if that was begun before, says what came of
    /// it. Both have to be the caller's own, unless he is root.
    pub fn ask_for_mend(self: &Arc<Self>, caller: Caller, ino: Ino, donor: Ino, begin: bool) -> Result<Moving> {
        let mend = move |mover: &Mover, report: &dyn Fn(u64, u64)| mend(mover.files(), ino, donor, report);
        match self.check_owner(caller, ino).and_then(|()| self.check_owner(caller, donor)) {
            Ok(()) => self.ask(caller, (ino, Gift::Mend), begin, mend),
            Err(fault) => Ok(Moving::Refused(fault.to_string())),
        }
    }
}

/// What a file was sealed with.
struct Sealed {
    size: u64,
    checksums: Vec<Checksum>,
    attributes: Attributes,
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
    let from = wait_until_unused(files, &mut file, RELEASES)?;
    if store.is_in_log_alone(ino) {
        return Err(cannot_be_synced());
    }
    let (Some(from), Some(sealed)) = (from, sealed(store, ino)) else {
        return Err(refused("not all of it has checksums, so that nobody can know its bytes"));
    };
    let tier = Some(from.tier()).filter(|tier| store.segments().is_there(*tier)).unwrap_or(PM);
    let copy = files.new_segment(tier, Some(from))?.segment;
    let make = |undisturbed: &dyn Fn() -> bool| {
        check_damaged(store, from, &sealed, undisturbed)?;
        let copied = Copied { ino, from: bytes, copy, size: Some(sealed.size), recorded: &sealed.attributes };
        make_mended(files, &copied, &sealed, undisturbed, report)
    };
    let given = give_copy(files, file, &Switch { from, copy, whole: true, make: &make });
    if own_segment(store, ino) == Some(copy) {
        // The kernel may have pages of what it was.
        store.link().forget_bytes(ino, 0, 0);
        store.keep_damage(Scrub::Unchanged);
    }
    given?;
    store.counters().mended.add(1);
    tell(store, ino, copy);
    Ok(())
}

/// A file of which every byte has a checksum.
fn sealed(store: &Store, ino: Ino) -> Option<Sealed> {
    let view = store.view();
    let object = view.object(ino).filter(|object| object.names() > 0)?;
    let chain = object.chain().filter(|chain| chain.is_sealed() && chain.size() > 0)?;
    let (size, attributes) = (chain.size(), object.attributes.clone());
    drop(view);
    Some(Sealed { size, checksums: checksums(store, ino), attributes })
}

/// Fails if the bytes of a segment are those that were sealed: nobody changes what is whole.
fn check_damaged(store: &Store, segment: SegmentId, sealed: &Sealed, undisturbed: &dyn Fn() -> bool) -> Result<()> {
    let Ok(bytes) = open(store, segment) else { return Ok(()) };
    let is_whole = Source::size(&bytes).is_ok_and(|size| size == sealed.size)
        && bad_runs(&bytes, &sealed.checksums, undisturbed).is_empty();
    if is_whole && undisturbed() { Err(refused(IS_WHOLE)) } else { Ok(()) }
}

fn make_mended(
    files: &Files,
    copied: &Copied<'_>,
    sealed: &Sealed,
    undisturbed: &dyn Fn() -> bool,
    report: &dyn Fn(u64, u64),
) -> Result<u64> {
    let store = files.store();
    // Held until they are there.
    let target = store.segments().open(copied.copy, libc::O_RDWR).host("opening a segment")?;
    let _room = make_room(files, copied.ino, &target, sealed.size)?;
    let size = make_copy(store, copied, undisturbed, report)?;
    // As they are on the disk, whatever was handed to it.
    let bad = bad_runs(&open(store, copied.copy).host("opening a segment")?, &sealed.checksums, undisturbed);
    if let Some(bad) = bad.first() {
        let what = format!("the bytes for it are not those that were sealed: {}", bad.what);
        return Err(Fault { level: Level::Info, ..Fault::warn(libc::EINVAL, what) });
    }
    match undisturbed() {
        true => Ok(size),
        false => Err(busy("it was opened meanwhile")),
    }
}

fn open(store: &Store, segment: SegmentId) -> std::io::Result<Direct> {
    Direct::open(|flags| store.segments().open(segment, libc::O_RDONLY | libc::O_NOATIME | flags).map(File::from))
}

fn tell(store: &Store, ino: Ino, segment: SegmentId) {
    let path = store.view().path_of(ino).map(|path| String::from_utf8_lossy(&path).into_owned());
    let path = path.as_deref().unwrap_or("a file without a name");
    log::warn!("{}: mended: its bytes are those that were sealed, in segment {segment}", path.escape_debug());
}

fn refused(why: &'static str) -> Fault {
    Fault { level: Level::Info, ..busy(why) }
}
