//! A simulated medium, and pools on it: what a killed server leaves, what a power loss may leave, and syncs that fail.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;

use tensorfs_layout::log::{Attributes, Origin, Record, Transaction};
use tensorfs_layout::medium::{Domain, Medium};
use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};
use tensorfs_layout::tree::View;
use tensorfs_layout::{Error, Ino, ROOT, SegmentId, Timestamp, TxId};

/// What a power loss may tear a store into.
const SECTOR: usize = 512;

#[derive(Debug, Default)]
struct Image {
    stored: Vec<u8>,
    durable: Vec<u8>,
    /// Stores since the last persist: offset and bytes.
    unpersisted: Vec<(usize, Vec<u8>)>,
    persists: u64,
    segment_syncs: u64,
    fail_persist: bool,
    fail_store: bool,
    fail_persist_behind: Option<usize>,
    fail_persist_number: Option<u64>,
    fail_segment: bool,
    fail_write_out: bool,
    fail_sync_all: bool,
    fail_directory: bool,
    host_full: bool,
    /// The log when the medium was made, and everything that happened to it since.
    base: Vec<u8>,
    events: Vec<Event>,
    /// Every call, for tests of their order.
    calls: Vec<Call>,
}

#[derive(Clone, Debug)]
enum Event {
    Store(usize, Vec<u8>),
    Persist,
    Grow(usize),
}

/// All that happened to a log, to build the image of a crash at any point of it.
pub struct History {
    base: Vec<u8>,
    events: Vec<Event>,
}

impl History {
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// The log of a server that was killed behind the first `count` events.
    pub fn killed(&self, count: usize) -> Vec<u8> {
        self.power_lost(count, || true)
    }

    /// The log after a power loss behind the first `count` events; `choose` as for [`SimMedium::after_power_loss`].
    pub fn power_lost(&self, count: usize, mut choose: impl FnMut() -> bool) -> Vec<u8> {
        let events = &self.events[..count];
        let durable = events.iter().rposition(|event| matches!(event, Event::Persist)).map_or(0, |at| at + 1);
        let mut image = self.base.clone();
        for (at, event) in events.iter().enumerate() {
            match event {
                Event::Store(offset, bytes) if at < durable => {
                    image[*offset..offset + bytes.len()].copy_from_slice(bytes);
                }
                Event::Store(offset, bytes) => store_sectors(&mut image, *offset, bytes, &mut choose),
                Event::Persist => {}
                Event::Grow(len) => image.resize(*len, 0),
            }
        }
        image
    }
}

fn store_sectors(image: &mut [u8], offset: usize, bytes: &[u8], mut choose: impl FnMut() -> bool) {
    let (mut at, end) = (offset, offset + bytes.len());
    while at < end {
        let until = ((at / SECTOR + 1) * SECTOR).min(end);
        if choose() {
            image[at..until].copy_from_slice(&bytes[at - offset..until - offset]);
        }
        at = until;
    }
}

/// A call that went through the seam.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Store { offset: u64, len: usize },
    Persist,
    SyncSegment,
    WriteOut { wait: bool },
    SyncDirectory,
    SyncAll,
    Grow,
    Shrink,
}

/// What happens while a segment is being synced.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// A log in memory that remembers what is durable. Segments are real files; only their syncs are seen here.
#[derive(Default)]
pub struct SimMedium(Mutex<Image>, Mutex<Option<Meanwhile>>);

impl std::fmt::Debug for SimMedium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimMedium").finish_non_exhaustive()
    }
}

impl SimMedium {
    pub fn new(image: Vec<u8>) -> Arc<Self> {
        let (stored, durable) = (image.clone(), image.clone());
        Arc::new(Self(Mutex::new(Image { stored, durable, base: image, ..Image::default() }), Mutex::default()))
    }

    /// During the next sync of a segment this happens.
    pub fn during_next_segment_sync(&self, meanwhile: Meanwhile) {
        *self.1.lock().unwrap() = Some(meanwhile);
    }

    /// The log as a killed server leaves it.
    pub fn stored(&self) -> Vec<u8> {
        self.0.lock().unwrap().stored.clone()
    }

    /// The log as a power loss may leave it: of each sector that was stored to since the last persist, `choose` says
    /// whether its newest, or only an older content, reached the medium.
    pub fn after_power_loss(&self, mut choose: impl FnMut() -> bool) -> Vec<u8> {
        let image = self.0.lock().unwrap();
        let mut bytes = image.durable.clone();
        bytes.resize(image.stored.len(), 0);
        for (offset, store) in &image.unpersisted {
            store_sectors(&mut bytes, *offset, store, &mut choose);
        }
        bytes
    }

    pub fn fail_next_persist(&self) {
        self.0.lock().unwrap().fail_persist = true;
    }

    /// The next store is not made.
    pub fn fail_next_store(&self) {
        self.0.lock().unwrap().fail_store = true;
    }

    /// Fails the next persist that comes right behind a store of so many bytes.
    pub fn fail_next_persist_behind(&self, len: usize) {
        self.0.lock().unwrap().fail_persist_behind = Some(len);
    }

    /// Fails the persist that comes after `count` others on this medium, and all behind it.
    pub fn fail_persist_number(&self, count: u64) {
        self.0.lock().unwrap().fail_persist_number = Some(count);
    }

    pub fn fail_next_directory_sync(&self) {
        self.0.lock().unwrap().fail_directory = true;
    }

    pub fn fail_next_sync_all(&self) {
        self.0.lock().unwrap().fail_sync_all = true;
    }

    /// From now on the host has, or has not, room for the log to grow.
    pub fn set_host_full(&self, full: bool) {
        self.0.lock().unwrap().host_full = full;
    }

    pub fn history(&self) -> History {
        let image = self.0.lock().unwrap();
        History { base: image.base.clone(), events: image.events.clone() }
    }

    pub fn fail_next_segment_sync(&self) {
        self.0.lock().unwrap().fail_segment = true;
    }

    /// The next time that the host is to begin writing a segment's bytes, that fails, and nothing else does.
    pub fn fail_next_write_out(&self) {
        self.0.lock().unwrap().fail_write_out = true;
    }

    pub fn persists(&self) -> u64 {
        self.0.lock().unwrap().persists
    }

    pub fn segment_syncs(&self) -> u64 {
        self.0.lock().unwrap().segment_syncs
    }

    /// The calls since the last time this was asked.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.0.lock().unwrap().calls)
    }
}

impl Medium for SimMedium {
    fn domain(&self) -> Domain {
        Domain::Cached
    }
    fn log_len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().stored.len() as u64)
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let image = self.0.lock().unwrap();
        let from = image.stored.get(offset as usize..offset as usize + bytes.len());
        bytes.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut image = self.0.lock().unwrap();
        let offset = offset as usize;
        image.calls.push(Call::Store { offset: offset as u64, len: bytes.len() });
        if std::mem::take(&mut image.fail_store) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        image.stored.get_mut(offset..offset + bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(bytes);
        image.unpersisted.push((offset, bytes.to_vec()));
        image.events.push(Event::Store(offset, bytes.to_vec()));
        Ok(())
    }
    fn persist(&self) -> io::Result<()> {
        let mut image = self.0.lock().unwrap();
        let behind = match image.calls.last() {
            Some(Call::Store { len, .. }) => Some(*len),
            _ => None,
        };
        image.calls.push(Call::Persist);
        let last = image.fail_persist_number == Some(image.persists);
        let fail = std::mem::take(&mut image.fail_persist) || last;
        if fail || image.fail_persist_behind.is_some() && image.fail_persist_behind == behind {
            // What was to be written is lost, and the next sync of the file would report success.
            image.fail_persist_behind = None;
            image.unpersisted.clear();
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        image.persists += 1;
        for (offset, bytes) in std::mem::take(&mut image.unpersisted) {
            image.durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        image.events.push(Event::Persist);
        Ok(())
    }
    fn grow(&self, from: u64, len: u64) -> io::Result<()> {
        let mut image = self.0.lock().unwrap();
        if image.host_full {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        image.calls.push(Call::Grow);
        image.events.push(Event::Grow(len as usize));
        image.stored.truncate(from as usize);
        image.stored.resize(len as usize, 0);
        image.durable.truncate(from as usize);
        image.durable.resize(len as usize, 0);
        Ok(())
    }
    fn shrink(&self, len: u64) -> io::Result<()> {
        let mut image = self.0.lock().unwrap();
        image.calls.push(Call::Shrink);
        let len = len as usize;
        // Nothing that is still to be persisted lies behind the new end.
        assert!(image.unpersisted.iter().all(|(offset, bytes)| offset + bytes.len() <= len));
        image.stored.truncate(len);
        image.durable.truncate(len);
        Ok(())
    }
    fn sync_segment(&self, _segment: BorrowedFd<'_>) -> io::Result<()> {
        let mut image = self.0.lock().unwrap();
        image.calls.push(Call::SyncSegment);
        if std::mem::take(&mut image.fail_segment) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        image.segment_syncs += 1;
        drop(image);
        let meanwhile = self.1.lock().unwrap().take();
        meanwhile.into_iter().for_each(|meanwhile| meanwhile());
        Ok(())
    }
    fn write_out(&self, _segment: BorrowedFd<'_>, wait: bool) -> io::Result<()> {
        let mut image = self.0.lock().unwrap();
        image.calls.push(Call::WriteOut { wait });
        match std::mem::take(&mut image.fail_write_out) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    }
    fn sync_directory(&self, _directory: BorrowedFd<'_>) -> io::Result<()> {
        let mut image = self.0.lock().unwrap();
        image.calls.push(Call::SyncDirectory);
        match std::mem::take(&mut image.fail_directory) {
            true => Err(io::Error::from_raw_os_error(libc::EROFS)),
            false => Ok(()),
        }
    }
    fn sync_all(&self, _directory: BorrowedFd<'_>) -> io::Result<()> {
        let mut image = self.0.lock().unwrap();
        image.calls.push(Call::SyncAll);
        if std::mem::take(&mut image.fail_sync_all) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }
}

pub const BOOT: [u8; 16] = [1; 16];
pub const NEXT_BOOT: [u8; 16] = [2; 16];

/// A pool directory of a test, removed with it.
pub struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    /// A new pool with small log blocks, so that growth and cleaning happen.
    pub fn new(block_size: u32) -> Self {
        Self::with(CreateOptions { block_size, ..CreateOptions::default() })
    }

    pub fn with(options: CreateOptions) -> Self {
        let shm = Path::new("/dev/shm");
        let dir = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap();
        let scratch = Self { dir };
        Pool::create(&scratch.pool(), &options).unwrap();
        scratch
    }

    pub fn pool(&self) -> PathBuf {
        self.dir.path().join("pool")
    }

    pub fn log(&self) -> Vec<u8> {
        fs::read(self.pool().join("log")).unwrap()
    }

    /// A copy of the pool directory without its log: segments, quarantine and lock as they are now.
    pub fn copy(&self) -> Self {
        let shm = self.dir.path().parent().unwrap();
        let dir = tempfile::tempdir_in(shm).unwrap();
        copy_tree(&self.pool(), &dir.path().join("pool"));
        Self { dir }
    }

    pub fn open(&self, image: Vec<u8>, boot: [u8; 16]) -> (Pool, Arc<SimMedium>) {
        let (pool, medium) = self.try_open(image, boot);
        (pool.unwrap(), medium)
    }

    pub fn try_open(&self, image: Vec<u8>, boot: [u8; 16]) -> (tensorfs_layout::Result<Pool>, Arc<SimMedium>) {
        let medium = SimMedium::new(image);
        (self.open_on(medium.clone(), boot), medium)
    }

    /// Opens the pool on a medium that was told what to do.
    pub fn open_on(&self, medium: Arc<SimMedium>, boot: [u8; 16]) -> tensorfs_layout::Result<Pool> {
        self.open_as(medium, &OpenOptions { boot_id: Some(boot), ..OpenOptions::default() })
    }

    /// Opens the pool as that says.
    pub fn open_as(&self, medium: Arc<SimMedium>, options: &OpenOptions) -> tensorfs_layout::Result<Pool> {
        loop {
            match Pool::open_with_medium(&self.pool(), options, medium.clone()) {
                // A program that another test is just starting holds this one's lock until it is executed.
                Err(Error::Busy { pid, .. }) if pid == std::process::id() => std::thread::yield_now(),
                opened => return opened,
            }
        }
    }

    /// A fresh pool, opened on a simulated medium.
    pub fn first_open(&self) -> (Pool, Arc<SimMedium>) {
        self.open(self.log(), BOOT)
    }
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else if entry.file_name() != "log" {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub fn attributes(mode: u32) -> Attributes {
    let now = Timestamp::new(1_700_000_000, 1);
    Attributes {
        mode,
        uid: 0,
        gid: 0,
        rdev: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        segment: None,
        damaged: false,
    }
}

/// Stores a transaction.
pub fn store(pool: &Pool, records: impl IntoIterator<Item = Record>) -> TxId {
    try_store(pool, records).unwrap()
}

pub fn try_store(pool: &Pool, records: impl IntoIterator<Item = Record>) -> tensorfs_layout::Result<TxId> {
    let mut transaction = Transaction::new(0);
    for record in records {
        transaction.push(record);
    }
    pool.edit().store(transaction)
}

/// Creates an object under a name in the root.
pub fn make(pool: &Pool, name: &str, mode: u32) -> Ino {
    let ino = Ino(pool.edit().next_id());
    store(pool, [Record::Attributes { ino, attributes: attributes(mode) }, named(ROOT, name, ino)]);
    ino
}

pub fn named(dir: Ino, name: &str, ino: Ino) -> Record {
    Record::Name { dir, name: name.as_bytes().into(), ino }
}

pub fn removal(dir: Ino, name: &str) -> Record {
    Record::Removal { dir, name: name.as_bytes().into() }
}

/// Creates a file with a segment that holds `bytes`, recorded and not yet synced.
pub fn make_file(pool: &Pool, name: &str, bytes: &[u8]) -> (Ino, SegmentId) {
    let (ino, segment) = {
        let mut edit = pool.edit();
        (Ino(edit.next_id()), SegmentId(edit.next_id()))
    };
    pool.segments().create(segment).unwrap();
    let attributes = Attributes { segment: Some(segment), ..attributes(libc::S_IFREG | 0o644) };
    store(pool, [Record::Attributes { ino, attributes }, named(ROOT, name, ino)]);
    append(pool, ino, segment, bytes);
    (ino, segment)
}

/// Writes bytes at the end of a segment and records them.
pub fn append(pool: &Pool, ino: Ino, segment: SegmentId, bytes: &[u8]) -> TxId {
    write_unrecorded(pool, segment, bytes);
    let size = pool.segments().stat(segment).unwrap().size;
    let offset = pool.view().object(ino).unwrap().tail().0;
    store(pool, [Record::Data { ino, segment, offset, len: size - offset, allocated: 4096, origin: Origin::default() }])
}

/// A file whose bytes were stored with their record, and committed.
pub fn file_by_value(pool: &Pool, name: &str, bytes: &[u8]) -> (Ino, SegmentId) {
    let ino = make(pool, name, libc::S_IFREG | 0o644);
    let segment = SegmentId(pool.edit().next_id());
    pool.segments().create(segment).unwrap();
    let attributes = Attributes { segment: Some(segment), ..attributes(libc::S_IFREG | 0o644) };
    store(pool, [Record::Attributes { ino, attributes }]);
    pool.allow_values().unwrap();
    write_unrecorded(pool, segment, bytes);
    let len = bytes.len() as u64;
    let mut tx = Transaction::new(0).with(Record::Data {
        ino,
        segment,
        offset: 0,
        len,
        allocated: 4096,
        origin: Origin::default(),
    });
    tx.push(Record::Value { ino, segment, bytes: bytes.into() });
    tx.bytes_are_durable(segment);
    pool.edit().store(tx).unwrap();
    pool.commit(pool.newest()).unwrap();
    (ino, segment)
}

/// Of the segment nothing is left.
pub fn lose(pool: &Pool, segment: SegmentId) {
    fs::remove_file(pool.path().join(format!("segments/00/{segment}"))).unwrap();
}

/// Writes bytes at the end of a segment, as a client does through the kernel.
pub fn write_unrecorded(pool: &Pool, segment: SegmentId, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    pool.segments().begin_write(segment).unwrap();
    let file = fs::File::from(pool.segments().open(segment, libc::O_RDWR).unwrap());
    let size = file.metadata().unwrap().len();
    file.write_all_at(bytes, size).unwrap();
    drop(file);
    pool.segments().end_write(segment);
}

pub fn read_segment(pool: &Pool, segment: SegmentId) -> Vec<u8> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let file = pool.segments().open(segment, libc::O_RDONLY).unwrap();
    fs::File::from(file).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The tree as text: path to everything that a user could see.
pub fn tree(view: &View) -> BTreeMap<String, String> {
    let mut tree = BTreeMap::new();
    walk(view, ROOT, String::new(), &mut tree, 0);
    tree
}

fn walk(view: &View, ino: Ino, path: String, tree: &mut BTreeMap<String, String>, depth: usize) {
    assert!(depth < 64, "a directory contains itself");
    let object = view.object(ino).unwrap_or_else(|| panic!("{path} names object {ino}, which does not exist"));
    let xattrs: Vec<_> = object
        .xattrs()
        .map(|(name, value)| format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)))
        .collect();
    let target = object.target().map(|target| String::from_utf8_lossy(target).into_owned());
    let size = if object.is_dir() { 0 } else { object.size() };
    let runs = object.chain().map_or(&[][..], |chain| chain.runs());
    let sealed: Vec<u64> = runs.iter().filter(|run| run.seal().is_some()).map(|run| run.len).collect();
    let text = format!(
        "{ino} mode {:o} uid {} links {} size {size} target {target:?} xattrs {xattrs:?} sealed {sealed:?}",
        object.attributes.mode,
        object.attributes.uid,
        object.links(),
    );
    if object.is_dir() {
        let mut last = 15;
        for (cookie, name, child) in view.entries_after(ino, 0) {
            assert!(cookie > last, "cookies of {path} are not in order");
            last = cookie;
            let name = String::from_utf8_lossy(name);
            assert_eq!(view.lookup(ino, name.as_bytes()), Some(child));
            if let Some(parent) = view.object(child).and_then(|child| child.parent()) {
                assert_eq!(parent, ino, "parent of {path}/{name}");
            }
            walk(view, child, format!("{path}/{name}"), tree, depth + 1);
        }
    }
    tree.insert(if path.is_empty() { "/".into() } else { path }, text);
}

pub const DIR: u32 = libc::S_IFDIR | 0o755;

pub const THIRD_BOOT: [u8; 16] = [3; 16];

/// Choices of a power loss: a sequence that looks random and is the same in every run.
pub fn chance(seed: u64) -> impl FnMut() -> bool {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state & 1 == 0
    }
}

pub fn set_uid(pool: &Pool, ino: Ino, uid: u32) {
    let attributes = Attributes { uid, ..pool.view().object(ino).unwrap().attributes.clone() };
    store(pool, [Record::Attributes { ino, attributes }]);
}

pub fn xattr(ino: Ino, n: usize, len: usize) -> Record {
    Record::Xattr { ino, name: format!("user.{n}").into_bytes().into(), value: vec![7; len].into() }
}

pub fn store_from_reserve(pool: &Pool, record: Record) -> tensorfs_layout::Result<()> {
    pool.edit().store_from_reserve(Transaction::new(0).with(record)).map(drop)
}

/// A pool whose log has several blocks, most of them half dead, and what it holds.
pub fn churned(scratch: &Scratch) -> (Pool, std::sync::Arc<SimMedium>, BTreeMap<String, String>) {
    let (pool, medium) = scratch.first_open();
    let mut live = Vec::new();
    for n in 0..24 {
        live.push(make(&pool, &format!("live {n}"), DIR));
        make(&pool, &format!("gone {n}"), DIR);
    }
    for n in 0..24 {
        let name = format!("gone {n}");
        let ino = pool.view().lookup(ROOT, name.as_bytes()).unwrap();
        let mut edit = pool.edit();
        edit.store(Transaction::new(0).with(removal(ROOT, &name))).unwrap();
        edit.reap(ino);
    }
    for round in 0..140u32 {
        set_uid(&pool, live[round as usize % live.len()], round);
    }
    pool.commit(pool.newest()).unwrap();
    let expected = tree(&pool.view());
    (pool, medium, expected)
}

pub fn assert_whole(
    scratch: &Scratch,
    image: Vec<u8>,
    boot: [u8; 16],
    expected: &BTreeMap<String, String>,
    what: &str,
) -> History {
    let (pool, medium) = scratch.open(image, boot);
    assert_eq!(pool.is_read_only(), None, "{what}");
    assert_eq!(tree(&pool.view()), *expected, "{what}");
    medium.history()
}
