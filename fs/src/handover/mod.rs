//! What a server leaves to the one that takes its place when it dies: a file in memory that outlives it, as somebody
//! else has it open, too.
//!
//! It says how the kernel and the first server shook hands, and has a place for each open handle and for each number by
//! which the kernel knows a segment. A place is taken before the kernel is told, and given back when it has let go, so
//! that at any moment the file is true of all that the kernel knows.
//!
//! Nobody trusts it: whoever takes over looks at each place as at bytes from anywhere, and a handle that is not one of
//! a file as the pool has it is none.
//!
//! | from byte | what |
//! |---|---|
//! | 0 | the head, as JSON, with zeroes behind it |
//! | 4096 | numbers of segments, 8 bytes each: the number and its complement |
//! | 16777216 | handles, 64 bytes each: those of [`Entry`] and their CRC-32C |
//! | 100663296 | objects of the control tree that the kernel knows, 64 bytes each, with their CRC-32C |
//! | 201326592 | open files of the control tree, the same |
//! | 1073741824 | the texts of those that have one, each in 16 MiB of its own |

mod entry;
mod left;
mod places;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Pid, getppid};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tensorfs_layout::pool::Pool;
use tensorfs_layout::{Ino, TxId};

use crate::shares::{Share, Shares};

use entry::{number_bytes, number_of, sealed};
use places::{
    HANDLES, KINDS, NUMBERS, Places, Region, SHOWN, TEXT_MAX, VIEWS, drop_text, read_places, read_slips, text_at,
};

pub use left::{KEEPER_DIED, STARTED_AGAIN, TOLD_TO_LEAVE, UPGRADE, has_left};

pub(crate) use entry::{Entry, Slip, long, short};

/// What the file says of itself, with its version behind it.
const FORMAT: &str = "tensorfs handover ";
/// Versions that this program reads. A mount goes on with the one that it began with, whoever serves it: so it can also
/// go back to an older program.
const OLDEST: u32 = 1;
/// The version that a mount begins with.
const NEWEST: u32 = 1;
/// The head takes so many bytes at most.
const HEAD: u64 = 4096;
/// So many damaged files are noted.
const DAMAGED: usize = 64;
/// Each server gives out handles with another number above this bit: none of one before is mistaken for its own.
const SERVER_SHIFT: u32 = 40;
/// So many servers may follow each other.
const SERVERS: u32 = 1 << 20;

/// What has been said since the mount began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    format: String,
    /// Which server this is, from 1.
    server: u32,
    /// The pool when the mount began.
    pool: Beginning,
    /// How the kernel began to shake hands.
    greeting: Vec<u8>,
    /// What it was answered.
    answer: Vec<u8>,
    /// What numbers are made from that nobody outside can foresee.
    #[serde(default)]
    secret: (u64, u64),
}

/// What is to be known of the pool as it was when the mount began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beginning {
    /// The newest transaction.
    since: TxId,
    /// Files that were damaged already, as many as there is room for.
    damaged: Vec<Ino>,
    /// Which one it is. A server of an older program says nothing of that.
    #[serde(default)]
    uuid: String,
}

impl Beginning {
    /// That of a mount that begins now.
    pub fn of(pool: &Pool) -> Self {
        Self {
            since: pool.newest(),
            damaged: pool.view().damaged().take(DAMAGED).collect(),
            uuid: pool.superblock().uuid_text(),
        }
    }

    /// True unless it is known to be of another pool than that of the number.
    fn may_be_of(&self, uuid: &str) -> bool {
        self.uuid.is_empty() || self.uuid == uuid
    }
}

/// For tests: what a server might have left. What stands in a place has no checksum here, but whether that is right.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeftBehind<'a> {
    /// None is one that is right.
    pub head: Option<&'a [u8]>,
    /// Open files.
    pub handles: &'a [([u8; 60], bool)],
    /// Numbers of segments.
    pub numbers: &'a [u8],
    /// Objects of the control tree.
    pub shown: &'a [([u8; 60], bool)],
    /// Open files of the control tree.
    pub views: &'a [([u8; 60], bool)],
    /// The texts behind them.
    pub texts: &'a [&'a [u8]],
}

impl LeftBehind<'_> {
    pub(crate) fn write(self) -> io::Result<OwnedFd> {
        let file = File::from(Handover::create()?);
        let first = Handover::open(file.try_clone()?.into(), None, getppid())?;
        first.begin(vec![0; 8], vec![0; 8], Beginning::default())?;
        if let Some(head) = self.head {
            file.write_all_at(&head[..head.len().min(HEAD as usize)], 0)?;
        }
        for (region, slips) in [(&HANDLES, self.handles), (&SHOWN, self.shown), (&VIEWS, self.views)] {
            for (place, (bytes, right)) in slips.iter().enumerate() {
                let sum = crc32c::crc32c(bytes).wrapping_add(u32::from(!right));
                file.write_all_at(&[&bytes[..], &sum.to_le_bytes()].concat(), region.at(place as u32))?;
            }
        }
        for (place, text) in self.texts.iter().enumerate() {
            file.write_all_at(&text[..text.len().min(TEXT_MAX)], text_at(place as u32))?;
        }
        file.write_all_at(self.numbers, NUMBERS.start)?;
        Ok(file.into())
    }
}

/// Who keeps watch over the server of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperInfo {
    /// Its process. `null` if it has died: nobody keeps watch any more.
    pub pid: Option<u32>,
    /// How often a server has taken the place of one that died.
    pub takeovers: u32,
    /// How the last one died.
    pub reason: Option<String>,
}

/// The file, and what the server before left in it.
#[derive(Debug)]
pub struct Handover {
    file: File,
    head: RwLock<Head>,
    keeper: Pid,
    /// How the server before died.
    after: Option<String>,
    places: [Mutex<Places>; KINDS],
    /// Whose the places of each kind are.
    shares: [Shares; KINDS],
    /// It was said that there is no place for something.
    is_short: AtomicBool,
    /// Another server goes on, and finds all as it is.
    is_left: AtomicBool,
    inherited: Inheritance,
}

/// What the server before left.
#[derive(Debug, Default)]
struct Inheritance {
    handles: Vec<(u32, Entry)>,
    /// The place of each.
    numbers: HashMap<u32, u32>,
    shown: Vec<(u32, Slip)>,
    views: Vec<(u32, Slip)>,
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    handover: Arc<Handover>,
    region: &'static Region,
    place: u32,
    _share: Option<Share>,
}

impl Kept {
    fn with(mut self, share: Share) -> Self {
        self._share = Some(share);
        self
    }

    /// True if another server goes on with what it stands for.
    pub fn is_left(&self) -> bool {
        self.handover.is_left.load(Ordering::Relaxed)
    }

    /// The text behind it, if it is as long as that.
    pub fn text(&self, len: usize) -> io::Result<Vec<u8>> {
        if !self.region.has_texts || len > TEXT_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut text = vec![0; len];
        self.handover.file.read_exact_at(&mut text, text_at(self.place))?;
        Ok(text)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !self.is_left() {
            self.handover.clear(self.region, self.place);
        }
    }
}

impl Handover {
    /// A new file, for a mount that is yet to be made.
    pub fn create() -> io::Result<OwnedFd> {
        Ok(memfd_create(c"tensorfs-handover", MFdFlags::MFD_CLOEXEC)?)
    }

    /// The file as a server finds it that starts, which is the next one from now on.
    ///
    /// `after` says how the one before died. The process `keeper` keeps watch over this one while that is its child.
    pub fn open(file: OwnedFd, after: Option<String>, keeper: Pid) -> io::Result<Arc<Self>> {
        let file = File::from(file);
        let mut head = read_head(&file)?;
        if head.server >= SERVERS {
            return Err(io::Error::other("too many servers have followed each other"));
        }
        head.server += 1;
        let inherited = if head.server == 1 {
            Inheritance::default()
        } else {
            Inheritance {
                handles: read_handles(&file)?,
                numbers: read_numbers(&file)?,
                shown: read_slips(&file, &SHOWN)?,
                views: read_slips(&file, &VIEWS)?,
            }
        };
        if head.secret == (0, 0) {
            let random = RandomState::new();
            head.secret = (random.hash_one(0), random.hash_one(1));
        }
        let of_slips = |slips: &[(u32, Slip)]| Places::without(slips.iter().map(|(place, _)| *place));
        let places = [
            Places::without(inherited.numbers.values().copied()),
            Places::without(inherited.handles.iter().map(|(place, _)| *place)),
            of_slips(&inherited.shown),
            of_slips(&inherited.views),
        ];
        let handover = Self {
            file,
            head: RwLock::default(),
            keeper,
            after,
            places: places.map(Mutex::new),
            shares: [&NUMBERS, &HANDLES, &SHOWN, &VIEWS].map(|region| Shares::new(region.most as usize)),
            is_short: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
            inherited,
        };
        handover.write_head(head)?;
        Ok(Arc::new(handover))
    }

    /// True unless there was a server before.
    pub fn is_first(&self) -> bool {
        self.head.read().server <= 1
    }

    /// True if its keeper keeps watch over it.
    pub fn is_watched(&self) -> bool {
        getppid() == self.keeper
    }

    /// This server serves no more, and another one goes on with all that the kernel has: what is let go of from now on
    /// stays in its place.
    pub fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    /// For a keeper who takes the place of one that has died.
    pub fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Who keeps watch.
    pub(crate) fn describe(&self) -> KeeperInfo {
        KeeperInfo {
            pid: self.is_watched().then_some(self.keeper.as_raw() as u32),
            takeovers: self.head.read().server.saturating_sub(1),
            reason: self.after.clone(),
        }
    }

    /// The newest transaction when the mount began.
    pub fn since(&self) -> TxId {
        self.head.read().pool.since
    }

    /// Files that were damaged when the mount began.
    pub fn damaged(&self) -> HashSet<Ino> {
        self.head.read().pool.damaged.iter().copied().collect()
    }

    /// Files that are open.
    pub fn open_files(&self) -> HashSet<Ino> {
        self.inherited.handles.iter().map(|(_, entry)| entry.ino).collect()
    }

    /// Has the kernel let go of segments that belong to no handle: whoever gave them to it has died. Else they would
    /// look as if a program had them open.
    pub(crate) fn close_unused(self: &Arc<Self>, close: impl Fn(u32)) {
        for (number, place) in self.unused_numbers() {
            close(number);
            drop(self.kept(&NUMBERS, place));
        }
    }

    /// Numbers that the kernel has and that belong to no handle, with their places.
    fn unused_numbers(&self) -> Vec<(u32, u32)> {
        let used: HashSet<u32> = self.inherited.handles.iter().filter_map(|(_, entry)| entry.backing).collect();
        let numbers = self.inherited.numbers.iter().map(|(number, place)| (*number, *place));
        numbers.filter(|(number, _)| !used.contains(number)).collect()
    }

    /// The first number that this server gives a handle.
    pub(crate) fn first_handle(&self) -> u64 {
        u64::from(self.head.read().server) << SERVER_SHIFT | 1
    }

    /// How the kernel and the first server shook hands: what it said, and what it was answered.
    pub(crate) fn handshake(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let head = self.head.read();
        (!head.greeting.is_empty()).then(|| (head.greeting.clone(), head.answer.clone()))
    }

    /// That what is left is of this pool.
    pub(crate) fn is_of(&self, pool: &Beginning) -> io::Result<()> {
        if self.head.read().pool.may_be_of(&pool.uuid) { Ok(()) } else { Err(of_another_pool()) }
    }

    /// They have shaken hands.
    pub(crate) fn begin(&self, greeting: Vec<u8>, answer: Vec<u8>, pool: Beginning) -> io::Result<()> {
        let head = Head { greeting, answer, pool, ..self.head.read().clone() };
        self.write_head(head)
    }

    /// The handles that the server before left.
    pub(crate) fn inherited(self: &Arc<Self>) -> impl Iterator<Item = (Entry, Kept)> {
        self.inherited.handles.iter().map(|(place, entry)| (*entry, self.nobodys(&HANDLES, *place)))
    }

    /// The objects of the control tree that the kernel knows from the server before.
    pub(crate) fn inherited_shown(self: &Arc<Self>) -> impl Iterator<Item = (Slip, Kept)> {
        self.inherited.shown.iter().map(|(place, slip)| (*slip, self.nobodys(&SHOWN, *place)))
    }

    /// The open files of the control tree that the server before left.
    pub(crate) fn inherited_views(self: &Arc<Self>) -> impl Iterator<Item = (Slip, Kept)> {
        self.inherited.views.iter().map(|(place, slip)| (*slip, self.nobodys(&VIEWS, *place)))
    }

    /// The place of a number that the server before left.
    pub(crate) fn inherited_number(self: &Arc<Self>, number: u32) -> Option<Kept> {
        let place = *self.inherited.numbers.get(&number)?;
        Some(self.kept(&NUMBERS, place))
    }

    /// Notes a handle, before the kernel has it: of a user, or of one who may have any number. None if there is no
    /// place for it: then it dies with this server.
    pub(crate) fn keep(self: &Arc<Self>, uid: Option<u32>, entry: Entry) -> Option<Kept> {
        let share = self.shared(&HANDLES, uid)?;
        Some(self.put(&HANDLES, &sealed(&entry.to_slip()))?.with(share))
    }

    /// Notes an object of the control tree, before the kernel knows it. See [`Handover::keep`].
    pub(crate) fn keep_shown(self: &Arc<Self>, uid: Option<u32>, slip: &Slip) -> Option<Kept> {
        let share = self.shared(&SHOWN, uid)?;
        Some(self.put(&SHOWN, &sealed(slip))?.with(share))
    }

    /// Notes an open file of the control tree, before the kernel has it, with its text. See [`Handover::keep`].
    pub(crate) fn keep_view(self: &Arc<Self>, uid: Option<u32>, slip: &Slip, text: &[u8]) -> Option<Kept> {
        if text.len() > TEXT_MAX {
            return None;
        }
        let share = self.shared(&VIEWS, uid)?;
        let place = self.places[VIEWS.kind].lock().take(&VIEWS)?;
        let kept = self.kept(&VIEWS, place).with(share);
        let written = self.file.write_all_at(text, text_at(place));
        self.said(written.and_then(|()| self.file.write_all_at(&sealed(slip), VIEWS.at(place)))).then_some(kept)
    }

    /// What numbers are made from that nobody outside can foresee, and that stay the same from server to server.
    pub(crate) fn secret(&self) -> (u64, u64) {
        self.head.read().secret
    }

    fn kept(self: &Arc<Self>, region: &'static Region, place: u32) -> Kept {
        Kept { handover: self.clone(), region, place, _share: None }
    }

    /// A place that a server before has taken, for whom nobody knows.
    fn nobodys(self: &Arc<Self>, region: &'static Region, place: u32) -> Kept {
        self.kept(region, place).with(self.shares[region.kind].take_for_nobody(1))
    }

    /// A share for a user, or for one who needs none.
    fn shared(&self, region: &Region, uid: Option<u32>) -> Option<Share> {
        let shares = &self.shares[region.kind];
        let Some(uid) = uid else { return Some(shares.take_for_nobody(1)) };
        let share = shares.take(uid);
        if share.is_none() && !self.is_short.swap(true, Ordering::Relaxed) {
            log::warn!("user {uid} has more files open, or tensors listed, than the server can leave to the next one");
        }
        share
    }

    /// Notes a number by which the kernel knows a segment.
    pub(crate) fn keep_number(self: &Arc<Self>, number: u32) -> Option<Kept> {
        self.put(&NUMBERS, &number_bytes(number))
    }

    fn put(self: &Arc<Self>, region: &'static Region, bytes: &[u8]) -> Option<Kept> {
        let place = self.places[region.kind].lock().take(region)?;
        // It is given back if this fails.
        let kept = self.kept(region, place);
        self.said(self.file.write_all_at(bytes, region.at(place))).then_some(kept)
    }

    fn clear(&self, region: &Region, place: u32) {
        let cleared = if region.has_texts { drop_text(&self.file, place) } else { Ok(()) };
        // If it cannot be cleared, nobody knows what stands there now: the place is not used again.
        if self.said(cleared.and_then(|()| self.file.write_all_at(&[0; 64][..region.size], region.at(place)))) {
            self.places[region.kind].lock().give_back(place);
        }
    }

    fn said(&self, done: io::Result<()>) -> bool {
        done.inspect_err(|error| log::warn!("the handover to the next server: {error}")).is_ok()
    }

    fn write_head(&self, head: Head) -> io::Result<()> {
        let mut text = serde_json::to_vec(&head)?;
        if text.len() as u64 > HEAD {
            return Err(io::Error::other("the handshake is too long"));
        }
        text.resize(HEAD as usize, 0);
        self.file.write_all_at(&text, 0)?;
        *self.head.write() = head;
        Ok(())
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the handover of the server before is none")
}

fn read_head(file: &File) -> io::Result<Head> {
    if file.metadata()?.len() == 0 {
        return Ok(Head { format: format!("{FORMAT}{NEWEST}"), ..Head::default() });
    }
    let mut bytes = [0; HEAD as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|_| damaged())?;
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let head: Head = serde_json::from_slice(text).map_err(|_| damaged())?;
    let version = head.format.strip_prefix(FORMAT).and_then(|version| version.parse().ok());
    if version.is_some_and(|version: u32| (OLDEST..=NEWEST).contains(&version)) {
        return Ok(head);
    }
    // What it says it is may be anything.
    let other: String = head.format.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(64).collect();
    let reads = if OLDEST == NEWEST { format!("{NEWEST}") } else { format!("{OLDEST} to {NEWEST}") };
    let why = format!("what the server before leaves is \"{other}\", and this program reads \"{FORMAT}{reads}\"");
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

fn of_another_pool() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what the server before leaves is of another pool")
}

/// How the kernel and the first server of a pool shook hands, as a handover says that somebody else still has. None if
/// they have not.
pub(crate) fn handshake_of(handover: OwnedFd, uuid: &str) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let head = read_head(&File::from(handover))?;
    if !head.pool.may_be_of(uuid) {
        return Err(of_another_pool());
    }
    Ok((!head.greeting.is_empty()).then_some((head.greeting, head.answer)))
}

fn read_handles(file: &File) -> io::Result<Vec<(u32, Entry)>> {
    let mut seen = HashSet::new();
    let entries = read_slips(file, &HANDLES)?.into_iter().map(|(place, slip)| (place, Entry::of(&slip)));
    Ok(entries.filter(|(_, entry)| seen.insert(entry.handle)).collect())
}

fn read_numbers(file: &File) -> io::Result<HashMap<u32, u32>> {
    let places = read_places(file, &NUMBERS)?;
    Ok(places.into_iter().filter_map(|(place, bytes)| Some((number_of(&bytes)?, place))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(handle: u64) -> Entry {
        let (ino, segment) = (Ino(handle + 1), tensorfs_layout::SegmentId(handle + 2));
        Entry { unique: 2, handle, ino, segment, flags: libc::O_RDWR, backing: Some(3), manner: 5, opener: 6 }
    }

    /// The next server's.
    fn next(handover: &Handover) -> Arc<Handover> {
        Handover::open(handover.file.try_clone().unwrap().into(), None, getppid()).unwrap()
    }

    #[test]
    fn the_next_server_finds_what_is_open() {
        let first = Handover::open(Handover::create().unwrap(), None, getppid()).unwrap();
        assert!(first.is_first() && first.handshake().is_none());
        let pool = Beginning { since: TxId(9), damaged: vec![Ino(7)], uuid: "one".into() };
        first.begin(vec![1, 2], vec![3], pool).unwrap();
        let kept: Vec<_> = (0..1000).map(|n| first.keep(Some(1000), entry(n)).unwrap()).collect();
        let numbers: Vec<_> = [3, 4].map(|number| first.keep_number(number).unwrap()).into();
        // The first half of them is closed.
        let open: Vec<_> = kept.into_iter().skip(500).collect();
        let second = next(&first);
        assert_eq!((second.describe().takeovers, second.since()), (1, TxId(9)));
        assert_eq!(second.damaged(), HashSet::from([Ino(7)]));
        assert_eq!(second.handshake(), Some((vec![1, 2], vec![3])));
        let of = |uuid: &str| Beginning { uuid: uuid.into(), ..Beginning::default() };
        assert!(second.is_of(&of("one")).is_ok() && second.is_of(&of("other")).is_err());
        assert!(handshake_of(first.share().unwrap(), "other").is_err());
        let mut found: Vec<u64> = second.inherited.handles.iter().map(|(_, entry)| entry.handle).collect();
        found.sort_unstable();
        assert_eq!(found, (500..1000).collect::<Vec<_>>());
        assert!(second.inherited.handles.iter().all(|(_, found)| *found == entry(found.handle)));
        assert_eq!(second.unused_numbers(), [(4, 1)]);
        assert!(second.first_handle() > first.first_handle() + (1 << 39));
        std::mem::forget((open, numbers));
    }

    /// Proves K6.
    #[test]
    fn one_user_leaves_places_for_the_files_of_the_next() {
        let first = Handover::open(Handover::create().unwrap(), None, getppid()).unwrap();
        let all_of = |uid| (0..).map_while(|n| first.keep_view(Some(uid), &[n as u8; 60], b"")).collect::<Vec<_>>();
        let greedy = all_of(1000);
        assert_eq!(greedy.len(), 21845, "a third");
        let other = all_of(1001);
        assert!(other.len() > 14_000);
        let second = next(&first);
        let left: Vec<_> = second.inherited_views().collect();
        assert_eq!(left.len(), greedy.len() + other.len());
        let of_second: Vec<_> = (0..).map_while(|n| second.keep_view(Some(1000), &[n as u8; 60], b"")).collect();
        assert!((1..11_000).contains(&of_second.len()), "{}: what the next one found counts", of_second.len());
        drop((left, of_second));
        assert!(second.keep_view(Some(1000), &[1; 60], b"").is_some());
        std::mem::forget((greedy, other));
    }

    /// Proves K6.
    #[test]
    fn one_user_leaves_places_for_the_tensors_that_the_next_one_lists() {
        let first = Handover::open(Handover::create().unwrap(), None, getppid()).unwrap();
        let shown: Vec<_> = (0..).map_while(|n| first.keep_shown(Some(1000), &[n as u8; 60])).collect();
        assert_eq!(shown.len() as u32, SHOWN.most / 3);
        assert!(first.keep_shown(Some(1001), &[1; 60]).is_some() && first.keep_shown(None, &[1; 60]).is_some());
        let second = next(&first);
        let left: Vec<_> = second.inherited_shown().collect();
        let of_second: Vec<_> = (0..).map_while(|n| second.keep_shown(Some(1000), &[n as u8; 60])).collect();
        let third = (SHOWN.most as usize - left.len()) / 3;
        assert!(of_second.len().abs_diff(third) <= 1, "what the next one found counts");
        drop(left);
        assert!(second.keep_shown(Some(1000), &[1; 60]).is_some());
        std::mem::forget((shown, of_second));
    }

    #[test]
    fn texts_are_there_until_they_are_closed() {
        let first = Handover::open(Handover::create().unwrap(), None, getppid()).unwrap();
        let slip = |number| [number; 60];
        let blocks = || std::os::unix::fs::MetadataExt::blocks(&first.file.metadata().unwrap());
        let before = blocks();
        let closed = first.keep_view(Some(1000), &slip(1), &[7; 1 << 20]).unwrap();
        let open = first.keep_view(Some(1000), &slip(2), b"text").unwrap();
        let known = first.keep_shown(None, &slip(3)).unwrap();
        drop(closed);
        assert!(blocks() < before + 100, "what is closed takes no memory");
        assert!(first.keep_view(Some(1000), &slip(4), &vec![0; TEXT_MAX + 1]).is_none());
        let second = next(&first);
        assert_eq!(second.secret(), first.secret());
        let (left, kept) = second.inherited_views().next().unwrap();
        assert_eq!((left, kept.text(4).unwrap()), (slip(2), b"text".to_vec()));
        assert!(kept.text(TEXT_MAX + 1).is_err() && kept.text(TEXT_MAX).is_err());
        assert_eq!((second.inherited_views().count(), second.inherited_shown().next().unwrap().0), (1, slip(3)));
        std::mem::forget((open, known));
    }

    #[test]
    fn a_place_is_used_again() {
        let first = Handover::open(Handover::create().unwrap(), None, getppid()).unwrap();
        for n in 0..10_000 {
            drop(first.keep(Some(1000), entry(n)).unwrap());
        }
        assert_eq!(first.places[HANDLES.kind].lock().next, 1);
        let _kept = first.keep(Some(1000), entry(1)).unwrap();
        let second = next(&first);
        let other = second.keep(Some(1000), entry(2)).unwrap();
        assert_eq!(other.place, 1, "the first one is taken");
        // Whoever takes a handle over gives its place back when it is closed.
        second.inherited().for_each(|(_, kept)| drop(kept));
        assert_eq!(next(&second).inherited.handles.len(), 1);
    }

    /// Proves K1, K7.
    #[test]
    fn a_server_that_comes_to_nothing_leaves_what_it_found() {
        let first = Handover::open(Handover::create().unwrap(), None, getppid()).unwrap();
        std::mem::forget((first.keep(None, entry(1)).unwrap(), first.keep_shown(None, &[1; 60]).unwrap()));
        let second = next(&first);
        let taken = (second.inherited().collect::<Vec<_>>(), second.inherited_shown().collect::<Vec<_>>());
        second.leave();
        drop(taken);
        let third = next(&first);
        assert_eq!((third.inherited().count(), third.inherited_shown().count()), (1, 1));
    }

    /// Proves K7.
    #[test]
    fn a_mount_goes_on_with_the_version_that_it_began_with() {
        let first = Handover::open(Handover::create().unwrap(), None, getppid()).unwrap();
        let with = |version: u32| {
            let head = Head { format: format!("{FORMAT}{version}"), ..first.head.read().clone() };
            first.write_head(head).unwrap();
            Handover::open(first.file.try_clone().unwrap().into(), None, getppid())
        };
        for version in OLDEST..=NEWEST {
            assert_eq!(with(version).unwrap().head.read().format, format!("{FORMAT}{version}"));
        }
        for version in [OLDEST - 1, NEWEST + 1] {
            let refused = with(version).err().unwrap();
            assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
            assert!(refused.to_string().contains(&format!("leaves is \"{FORMAT}{version}\"")), "{refused}");
        }
    }

    #[test]
    fn bytes_from_anywhere_are_no_handles() {
        let first = Handover::open(Handover::create().unwrap(), None, getppid()).unwrap();
        std::mem::forget((first.keep(Some(1000), entry(1)).unwrap(), first.keep(Some(1000), entry(2)).unwrap()));
        for at in 0..60 {
            let mut bytes = sealed(&entry(2).to_slip());
            bytes[at] ^= 0x40;
            first.file.write_all_at(&bytes, HANDLES.at(1)).unwrap();
            assert_eq!(next(&first).inherited.handles.len(), 1, "byte {at}");
        }
        // Twice the same.
        first.file.write_all_at(&sealed(&entry(1).to_slip()), HANDLES.at(1)).unwrap();
        assert_eq!(next(&first).inherited.handles.len(), 1);
        first.file.write_all_at(&[7; 8], NUMBERS.at(0)).unwrap();
        assert_eq!(next(&first).unused_numbers().len(), 0);
        for head in [&b"{}"[..], b"nonsense", b"{\"format\":\"tensorfs handover 1\"}"] {
            let mut bytes = head.to_vec();
            bytes.resize(HEAD as usize, 0);
            first.file.write_all_at(&bytes, 0).unwrap();
            assert!(Handover::open(first.file.try_clone().unwrap().into(), None, getppid()).is_err());
        }
        first.file.set_len(100).unwrap();
        assert!(Handover::open(first.file.try_clone().unwrap().into(), None, getppid()).is_err());
    }
}
