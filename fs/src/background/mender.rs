//! Mending a sealed file whose bytes are damaged, or gone: somebody has fetched them from elsewhere into another file
//! of the mount. A copy of the file is made in a new segment, with those bytes where its own are not what was sealed.
//! If it has the checksums that the file was sealed with, it becomes the file's own. What has none stays as it is.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use tensorfs_formats::Source;
use tensorfs_layout::log::{Attributes, PM};
use tensorfs_layout::medium::Direct;
use tensorfs_layout::tree::{FileChain, Object};
use tensorfs_layout::{Ino, SegmentId};

use crate::caller::Caller;
use crate::error::{Fault, Host, Result};
use crate::file::Files;
use crate::protocol::{IS_WHOLE, Moving};
use crate::store::{Scrub, Store};

use super::checksums::{Checksum, bad_runs, checksums};
use super::mover::{
    Copied, Made, Mover, Switch, busy, cannot_be_synced, give_copy, make_copy, make_room, own_segment,
    wait_until_unused,
};
use super::moves::Gift;
use super::seal::{Outcome, seal_file};

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
    /// Every byte has one.
    is_all: bool,
    attributes: Attributes,
}

fn mend(files: &Files, ino: Ino, donor: Ino, report: &dyn Fn(u64, u64)) -> Result<()> {
    let store = files.store();
    store.check_writable()?;
    store.settle_value(ino)?;
    // What has no checksum is taken over: that it could not be written is known then.
    store.commit()?;
    let bytes = own_segment(store, donor).filter(|_| donor != ino);
    let bytes = bytes.ok_or_else(|| refused("there are no bytes to mend it with"))?;
    // What was sealed while it was open is compared with what it is now, and told, before it is copied.
    let is_provisional = |object: &Object| object.chain().is_some_and(FileChain::has_provisional_seals);
    if store.view().object(ino).is_some_and(is_provisional)
        && matches!(seal_file(files, ino, false, &|| false)?, Outcome::Later | Outcome::InUse)
    {
        return Err(busy("its checksums could not be compared yet"));
    }
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
        return Err(refused("nothing of it has a checksum, so that nobody can know its bytes"));
    };
    check_rest(store, from, &sealed)?;
    let tier = Some(from.tier()).filter(|tier| store.segments().is_there(*tier)).unwrap_or(PM);
    let copy = files.another_segment(ino, tier, Some(from))?.segment;
    let make = |undisturbed: &dyn Fn() -> bool| {
        let bad = damaged(store, from, &sealed, undisturbed)?;
        // The other one may be as short as the file was when it was carried.
        let (from, others) = bad.as_ref().map_or((bytes, None), |bad| (from, Some((bytes, &**bad))));
        let copied = Copied { ino, from, others, copy, size: Some(sealed.size), recorded: &sealed.attributes };
        make_mended(files, &copied, &sealed, undisturbed, report)
    };
    let given = give_copy(files, file, &Switch { from, copy, whole: true, rests: !sealed.is_all, make: &make });
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

/// A file of which bytes have checksums.
fn sealed(store: &Store, ino: Ino) -> Option<Sealed> {
    let view = store.view();
    let object = view.object(ino).filter(|object| object.names() > 0)?;
    let chain = object.chain().filter(|chain| chain.has_seals() && chain.size() > 0)?;
    let (size, is_all, attributes) = (chain.size(), chain.is_sealed(), object.attributes.clone());
    drop(view);
    Some(Sealed { size, checksums: checksums(store, ino), is_all, attributes })
}

/// Fails if bytes that have no checksum are not to be had: they are nowhere else.
fn check_rest(store: &Store, segment: SegmentId, sealed: &Sealed) -> Result<()> {
    if sealed.is_all {
        return Ok(());
    }
    if sealed.attributes.damaged || store.segments().failed(segment) {
        return Err(refused("not all of it has checksums, and what has none could not be written"));
    }
    match store.segments().stat(segment) {
        Ok(host) if host.size == sealed.size && store.segments().gone(segment).is_none() => Ok(()),
        _ => Err(refused("not all of it has checksums, and its segment is gone, or longer or shorter than the file")),
    }
}

/// The ranges of a segment that are not as they were sealed, if anything is to be had of it. Fails if there are none:
/// nobody changes what is whole.
fn damaged(
    store: &Store,
    segment: SegmentId,
    sealed: &Sealed,
    undisturbed: &dyn Fn() -> bool,
) -> Result<Option<Vec<Range<u64>>>> {
    let bytes = match open(store, segment) {
        Ok(bytes) => bytes,
        // Every byte of the other one is looked at before it is believed.
        Err(_) if sealed.is_all => return Ok(None),
        Err(error) => return Err(error).host("opening a segment"),
    };
    let bad = bad_runs(&bytes, &sealed.checksums, undisturbed);
    let is_whole = bad.is_empty() && Source::size(&bytes).is_ok_and(|size| size == sealed.size);
    match is_whole && undisturbed() {
        true => Err(refused(IS_WHOLE)),
        false => Ok(Some(bad.iter().map(|run| run.offset..run.offset + run.len).collect())),
    }
}

fn make_mended(
    files: &Files,
    copied: &Copied<'_>,
    sealed: &Sealed,
    undisturbed: &dyn Fn() -> bool,
    report: &dyn Fn(u64, u64),
) -> Result<Made> {
    let store = files.store();
    // Held until they are there.
    let target = store.segments().open(copied.copy, libc::O_RDWR).host("opening a segment")?;
    let _room = make_room(files, copied.ino, &target, sealed.size)?;
    let made = make_copy(store, copied, undisturbed, report)?;
    // As they are on the disk, whatever was handed to it.
    let bad = bad_runs(&open(store, copied.copy).host("opening a segment")?, &sealed.checksums, undisturbed);
    if let Some(bad) = bad.first() {
        let what = format!("the bytes for it are not those that were sealed: {}", bad.what);
        return Err(Fault { level: Level::Info, ..Fault::warn(libc::EINVAL, what) });
    }
    match undisturbed() {
        true => Ok(made),
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
