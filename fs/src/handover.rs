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

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Pid, getppid};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tensorfs_layout::pool::Pool;
use tensorfs_layout::{Ino, SegmentId, TxId};

/// What the file says of itself.
const FORMAT: &str = "tensorfs handover 1";
/// The head takes so many bytes at most.
const HEAD: u64 = 4096;
const NUMBERS: Region = Region { start: HEAD, size: 8, most: 1 << 20 };
const HANDLES: Region = Region { start: 16 << 20, size: 64, most: 1 << 20 };
/// So many damaged files are noted.
const DAMAGED: usize = 64;
/// Each server gives out handles with another number above this bit: none of one before is mistaken for its own.
const SERVER_SHIFT: u32 = 40;
/// So many servers may follow each other.
const SERVERS: u32 = 1 << 20;

/// Places of one kind.
#[derive(Clone, Copy, Debug)]
struct Region {
    start: u64,
    size: usize,
    /// So many places are there; what finds none cannot be taken over.
    most: u32,
}

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
}

/// What is to be known of the pool as it was when the mount began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beginning {
    /// The newest transaction.
    since: TxId,
    /// Files that were damaged already, as many as there is room for.
    damaged: Vec<Ino>,
}

impl Beginning {
    /// That of a mount that begins now.
    pub fn of(pool: &Pool) -> Self {
        Self { since: pool.newest(), damaged: pool.view().damaged().take(DAMAGED).collect() }
    }
}

/// A handle that the kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The request that it was made for.
    pub unique: u64,
    pub handle: u64,
    pub ino: Ino,
    pub segment: SegmentId,
    /// Those of `open`.
    pub flags: i32,
    /// The kernel's number of the segment.
    pub backing: Option<u32>,
    /// How the kernel was told to treat it, in bits that only the room of files reads.
    pub manner: u32,
}

impl Entry {
    fn to_bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&self.unique.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.handle.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.ino.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.segment.0.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.flags.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.backing.unwrap_or(0).to_le_bytes());
        bytes[40..44].copy_from_slice(&self.manner.to_le_bytes());
        let sum = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn of(bytes: &[u8; 64]) -> Option<Self> {
        let long = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default();
        let short = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).unwrap_or_default();
        (crc32c::crc32c(&bytes[..60]) == short(60)).then(|| Self {
            unique: long(0),
            handle: long(8),
            ino: Ino(long(16)),
            segment: SegmentId(long(24)),
            flags: short(32) as i32,
            backing: Some(short(36)).filter(|number| *number != 0),
            manner: short(40),
        })
    }
}

/// For tests: what a server might have left. A handle is what [`Entry`] is but for its checksum, and whether that is
/// right.
pub(crate) fn left_behind(head: Option<&[u8]>, handles: &[([u8; 60], bool)], numbers: &[u8]) -> io::Result<OwnedFd> {
    let file = File::from(Handover::create()?);
    let first = Handover::open(file.try_clone()?.into(), None, getppid())?;
    first.begin(vec![0; 8], vec![0; 8], Beginning::default())?;
    if let Some(head) = head {
        file.write_all_at(&head[..head.len().min(HEAD as usize)], 0)?;
    }
    for (place, (bytes, right)) in handles.iter().enumerate() {
        let sum = crc32c::crc32c(bytes).wrapping_add(u32::from(!right));
        file.write_all_at(&[&bytes[..], &sum.to_le_bytes()].concat(), HANDLES.at(place as u32))?;
    }
    file.write_all_at(numbers, NUMBERS.start)?;
    Ok(file.into())
}

fn number_bytes(number: u32) -> [u8; 8] {
    (u64::from(number) | u64::from(!number) << 32).to_le_bytes()
}

fn number_of(bytes: &[u8; 8]) -> Option<u32> {
    let both = u64::from_le_bytes(*bytes);
    (both as u32 == !((both >> 32) as u32)).then_some(both as u32)
}

/// Which places of a region are free.
#[derive(Debug, Default)]
struct Places {
    /// From here on all are.
    next: u32,
    free: Vec<u32>,
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
    numbers: Mutex<Places>,
    handles: Mutex<Places>,
    inherited: Inheritance,
}

/// What the server before left.
#[derive(Debug, Default)]
struct Inheritance {
    handles: Vec<(u32, Entry)>,
    /// The place of each.
    numbers: HashMap<u32, u32>,
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    handover: Arc<Handover>,
    region: Region,
    place: u32,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.handover.clear(self.region, self.place);
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
            Inheritance { handles: read_handles(&file)?, numbers: read_numbers(&file)? }
        };
        let handles = places(inherited.handles.iter().map(|(place, _)| *place));
        let numbers = places(inherited.numbers.values().copied());
        let handover = Self {
            file,
            head: RwLock::default(),
            keeper,
            after,
            numbers: Mutex::new(numbers),
            handles: Mutex::new(handles),
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
            drop(Kept { handover: self.clone(), region: NUMBERS, place });
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

    /// They have shaken hands.
    pub(crate) fn begin(&self, greeting: Vec<u8>, answer: Vec<u8>, pool: Beginning) -> io::Result<()> {
        let head = Head { greeting, answer, pool, ..self.head.read().clone() };
        self.write_head(head)
    }

    /// The handles that the server before left.
    pub(crate) fn inherited(self: &Arc<Self>) -> impl Iterator<Item = (Entry, Kept)> {
        let kept = |place| Kept { handover: self.clone(), region: HANDLES, place };
        self.inherited.handles.iter().map(move |(place, entry)| (*entry, kept(*place)))
    }

    /// The place of a number that the server before left.
    pub(crate) fn inherited_number(self: &Arc<Self>, number: u32) -> Option<Kept> {
        let place = *self.inherited.numbers.get(&number)?;
        Some(Kept { handover: self.clone(), region: NUMBERS, place })
    }

    /// Notes a handle, before the kernel has it. None if there is no place: then it dies with this server.
    pub(crate) fn keep(self: &Arc<Self>, entry: Entry) -> Option<Kept> {
        self.put(HANDLES, &entry.to_bytes())
    }

    /// Notes a number by which the kernel knows a segment.
    pub(crate) fn keep_number(self: &Arc<Self>, number: u32) -> Option<Kept> {
        self.put(NUMBERS, &number_bytes(number))
    }

    fn places(&self, region: Region) -> &Mutex<Places> {
        if region.start == NUMBERS.start { &self.numbers } else { &self.handles }
    }

    fn put(self: &Arc<Self>, region: Region, bytes: &[u8]) -> Option<Kept> {
        let place = {
            let mut places = self.places(region).lock();
            match places.free.pop() {
                Some(place) => place,
                None if places.next < region.most => {
                    places.next += 1;
                    places.next - 1
                }
                None => return None,
            }
        };
        // It is given back if this fails.
        let kept = Kept { handover: self.clone(), region, place };
        match self.file.write_all_at(bytes, region.at(place)) {
            Ok(()) => Some(kept),
            Err(error) => {
                log::warn!("the handover to the next server: {error}");
                None
            }
        }
    }

    fn clear(&self, region: Region, place: u32) {
        match self.file.write_all_at(&[0; 64][..region.size], region.at(place)) {
            Ok(()) => self.places(region).lock().free.push(place),
            // What stands there now, nobody knows: the place is not used again.
            Err(error) => log::warn!("the handover to the next server: {error}"),
        }
    }

    fn write_head(&self, head: Head) -> io::Result<()> {
        let head = Head { format: FORMAT.into(), ..head };
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

impl Region {
    fn at(self, place: u32) -> u64 {
        self.start + u64::from(place) * self.size as u64
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the handover of the server before is none")
}

fn read_head(file: &File) -> io::Result<Head> {
    if file.metadata()?.len() == 0 {
        return Ok(Head::default());
    }
    let mut bytes = [0; HEAD as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|_| damaged())?;
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let head: Head = serde_json::from_slice(text).map_err(|_| damaged())?;
    if head.format == FORMAT { Ok(head) } else { Err(damaged()) }
}

/// What is in the places of a region that are taken.
fn read_places<const SIZE: usize>(file: &File, region: Region) -> io::Result<Vec<(u32, [u8; SIZE])>> {
    let end = file.metadata()?.len().min(region.at(region.most));
    let mut found = Vec::new();
    let mut buffer = vec![0; SIZE << 12];
    let mut at = region.start;
    while at < end {
        let len = buffer.len().min((end - at) as usize);
        file.read_exact_at(&mut buffer[..len], at)?;
        for (n, bytes) in buffer[..len].chunks_exact(SIZE).enumerate() {
            if let Ok(bytes) = <[u8; SIZE]>::try_from(bytes)
                && bytes != [0; SIZE]
            {
                found.push((((at - region.start) / SIZE as u64) as u32 + n as u32, bytes));
            }
        }
        at += len as u64;
    }
    Ok(found)
}

fn read_handles(file: &File) -> io::Result<Vec<(u32, Entry)>> {
    let (mut seen, mut entries) = (HashSet::new(), Vec::new());
    for (place, bytes) in read_places(file, HANDLES)? {
        match Entry::of(&bytes).filter(|entry| seen.insert(entry.handle)) {
            Some(entry) => entries.push((place, entry)),
            None => log::warn!("the handover of the server before: place {place} is damaged; its handle is lost"),
        }
    }
    Ok(entries)
}

fn read_numbers(file: &File) -> io::Result<HashMap<u32, u32>> {
    let places = read_places(file, NUMBERS)?;
    Ok(places.into_iter().filter_map(|(place, bytes)| Some((number_of(&bytes)?, place))).collect())
}

/// All other places are free.
fn places(taken: impl Iterator<Item = u32>) -> Places {
    let taken: HashSet<u32> = taken.collect();
    let next = taken.iter().max().map_or(0, |last| last + 1);
    Places { next, free: (0..next).filter(|place| !taken.contains(place)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(handle: u64) -> Entry {
        let (ino, segment) = (Ino(handle + 1), SegmentId(handle + 2));
        Entry { unique: 2, handle, ino, segment, flags: libc::O_RDWR, backing: Some(3), manner: 5 }
    }

    /// The next server's.
    fn next(handover: &Handover) -> Arc<Handover> {
        Handover::open(handover.file.try_clone().unwrap().into(), None, getppid()).unwrap()
    }

    #[test]
    fn the_next_server_finds_what_is_open() {
        let first = Handover::open(Handover::create().unwrap(), None, getppid()).unwrap();
        assert!(first.is_first() && first.handshake().is_none());
        let pool = Beginning { since: TxId(9), damaged: vec![Ino(7)] };
        first.begin(vec![1, 2], vec![3], pool).unwrap();
        let kept: Vec<_> = (0..1000).map(|n| first.keep(entry(n)).unwrap()).collect();
        let numbers: Vec<_> = [3, 4].map(|number| first.keep_number(number).unwrap()).into();
        // The first half of them is closed.
        let open: Vec<_> = kept.into_iter().skip(500).collect();
        let second = next(&first);
        assert_eq!((second.describe().takeovers, second.since()), (1, TxId(9)));
        assert_eq!(second.damaged(), HashSet::from([Ino(7)]));
        assert_eq!(second.handshake(), Some((vec![1, 2], vec![3])));
        let mut found: Vec<u64> = second.inherited.handles.iter().map(|(_, entry)| entry.handle).collect();
        found.sort_unstable();
        assert_eq!(found, (500..1000).collect::<Vec<_>>());
        assert!(second.inherited.handles.iter().all(|(_, found)| *found == entry(found.handle)));
        assert_eq!(second.unused_numbers(), [(4, 1)]);
        assert!(second.first_handle() > first.first_handle() + (1 << 39));
        std::mem::forget((open, numbers));
    }

    #[test]
    fn a_place_is_used_again() {
        let first = Handover::open(Handover::create().unwrap(), None, getppid()).unwrap();
        for n in 0..10_000 {
            drop(first.keep(entry(n)).unwrap());
        }
        assert_eq!(first.handles.lock().next, 1);
        let _kept = first.keep(entry(1)).unwrap();
        let second = next(&first);
        let other = second.keep(entry(2)).unwrap();
        assert_eq!(other.place, 1, "the first one is taken");
        // Whoever takes a handle over gives its place back when it is closed.
        second.inherited().for_each(|(_, kept)| drop(kept));
        assert_eq!(next(&second).inherited.handles.len(), 1);
    }

    #[test]
    fn bytes_from_anywhere_are_no_handles() {
        let first = Handover::open(Handover::create().unwrap(), None, getppid()).unwrap();
        std::mem::forget((first.keep(entry(1)).unwrap(), first.keep(entry(2)).unwrap()));
        for at in 0..60 {
            let mut bytes = entry(2).to_bytes();
            bytes[at] ^= 0x40;
            first.file.write_all_at(&bytes, HANDLES.at(1)).unwrap();
            assert_eq!(next(&first).inherited.handles.len(), 1, "byte {at}");
        }
        // Twice the same.
        first.file.write_all_at(&entry(1).to_bytes(), HANDLES.at(1)).unwrap();
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
