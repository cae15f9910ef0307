//! Pools to carry, made without a mount; and what is in them, to compare.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tensorfs_formats::{Sink, Source, recognise};
use tensorfs_layout::check::{Committed, Contents, Depth, check};
use tensorfs_layout::log::{Attributes, Origin, Record, Seal, Transaction};
use tensorfs_layout::pool::{Carrying, CreateOptions, OpenOptions, Pool};
use tensorfs_layout::segment::{Before, Known, SealedRun, examine};
use tensorfs_layout::tree::Below;
use tensorfs_layout::{Ino, ROOT, SegmentId, Timestamp};
use tensorfs_remote::carry::{Carrier, Note};
use tensorfs_remote::place::Place;
use tensorfs_remote::repository::Repository;
use tensorfs_remote::restore::{Restored, restore};

/// A pool in a directory that goes away.
pub struct TestPool {
    pub dir: tempfile::TempDir,
    clock: i64,
}

/// What is at a path, all that a user can see of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: Timestamp,
    pub links: u32,
    pub target: Option<Vec<u8>>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub bytes: Option<Vec<u8>>,
    /// Lengths and checksums of what is sealed.
    pub seals: Vec<(u64, u32, usize)>,
}

impl Seen {
    /// Without the number of its links: of a directory, that tells of the directories in it.
    pub fn but_for_links(&self) -> Self {
        Self { links: 0, ..self.clone() }
    }
}

pub type Seens = BTreeMap<Vec<u8>, Seen>;

impl TestPool {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = Self { dir, clock: 1_000_000 };
        Pool::create(&made.path(), &CreateOptions { layout: "run-7".into(), ..CreateOptions::default() }).unwrap();
        made
    }

    /// One in which everything is from then on.
    pub fn since(clock: i64) -> Self {
        Self { clock, ..Self::new() }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("pool")
    }

    /// Changes a closed pool, and closes it.
    pub fn edit<T>(&mut self, change: impl FnOnce(&mut Editor<'_>) -> T) -> T {
        let pool = Pool::open(&self.path(), &OpenOptions::default()).unwrap();
        let done = change(&mut Editor { pool: &pool, clock: &mut self.clock });
        pool.close().unwrap();
        done
    }

    /// Its carrier to a place; the note is as `remote set` leaves it, or as it was left before.
    pub fn carrier(&self, place: Place) -> tensorfs_remote::Result<Carrier> {
        carrier(&self.path(), place)
    }
}

/// The carrier of a pool to a place.
pub fn carrier(pool: &Path, place: Place) -> tensorfs_remote::Result<Carrier> {
    carrier_with(pool, place, |note| note)
}

/// As above, with another note.
pub fn carrier_with(pool: &Path, place: Place, with: impl FnOnce(Note) -> Note) -> tensorfs_remote::Result<Carrier> {
    let uuid = Committed::read(pool)?.superblock().uuid_text();
    let carrying = wait_for_turn(pool)?;
    let note = Note::of(pool, &uuid)?.unwrap_or_else(|| Note { pool: uuid, ..Note::default() });
    Carrier::with(pool, carrying, with(note), place, Duration::ZERO)
}

/// A child that another test is just starting shares the lock of a carrier that is gone, until it executes its program.
fn wait_for_turn(pool: &Path) -> tensorfs_remote::Result<Carrying> {
    for _ in 0..1000 {
        if let Some(carrying) = Carrying::take(pool)? {
            return Ok(carrying);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("another carrier of {}", pool.display());
}

pub struct Editor<'a> {
    pub pool: &'a Pool,
    clock: &'a mut i64,
}

impl Editor<'_> {
    pub fn lookup(&self, path: &str) -> Ino {
        self.pool.view().resolve(path.as_bytes()).unwrap()
    }

    fn attributes(&mut self, mode: u32, segment: Option<SegmentId>) -> Attributes {
        *self.clock += 1;
        let now = Timestamp::new(*self.clock, 5);
        Attributes {
            mode,
            uid: 7,
            gid: 8,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            segment,
            damaged: false,
        }
    }

    pub fn store(&self, tx: Transaction) {
        self.pool.edit().store(tx).unwrap();
    }

    fn next(&self) -> u64 {
        self.pool.edit().next_id()
    }

    pub fn make(&mut self, dir: Ino, name: &[u8], mode: u32, more: impl FnOnce(&mut Transaction, Ino)) -> Ino {
        let ino = Ino(self.next());
        let attributes = self.attributes(mode, None);
        let mut tx = Transaction::new(0).with(Record::Attributes { ino, attributes });
        tx.push(Record::Name { dir, name: name.into(), ino });
        more(&mut tx, ino);
        self.store(tx);
        ino
    }

    /// A file whose runs are these, sealed or not.
    pub fn file(&mut self, dir: Ino, name: &[u8], runs: &[&[u8]], sealed: bool) -> Ino {
        let ino = Ino(self.next());
        self.write(ino, runs, sealed, Some(Record::Name { dir, name: name.into(), ino }));
        ino
    }

    /// A file that is sealed as a server does it, which was written in pieces that end at these places.
    pub fn tensors(&mut self, dir: Ino, name: &[u8], bytes: &[u8], pieces: &[u64]) {
        let ino = self.file(dir, name, &[bytes], false);
        let view = self.pool.view();
        let segment = view.object(ino).unwrap().attributes.segment.unwrap();
        drop(view);
        self.pool.commit(self.pool.newest()).unwrap();
        let starts = [0].iter().chain(pieces).copied();
        let ends = pieces.iter().copied().chain([bytes.len() as u64]);
        let records =
            starts.zip(ends).map(|(start, end)| Known { offset: start, len: end - start, seal: None }).collect();
        let before = Before { records, ..Before::default() };
        let recognise = |source: &dyn Source, sink: &mut Sink<'_>| recognise(source, sink);
        let size = bytes.len() as u64;
        let runs = examine(&bytes, size, self.pool.description_room(), &before, &|| true, &recognise).unwrap().unwrap();
        assert!(runs.len() > 8 + pieces.len(), "{}", runs.len());
        assert!(self.pool.seal(ino, segment, size, runs).unwrap());
    }

    /// New bytes for a file, in a segment of their own.
    pub fn write(&mut self, ino: Ino, runs: &[&[u8]], sealed: bool, name: Option<Record>) {
        let all = runs.concat();
        let fill = |file: &File| file.write_all_at(&all, 0).unwrap();
        let (segment, allocated) = self.fill(ino, all.len() as u64, fill, name);
        if sealed {
            self.seal(ino, segment, allocated, runs);
        }
    }

    /// The file has these bytes from now on, in the segment that it has, and these runs are sealed. The first bytes, so
    /// many, stay sealed: what follows was appended.
    pub fn rewrite(&mut self, ino: Ino, stay: u64, runs: &[&[u8]]) {
        let segment = self.pool.view().object(ino).unwrap().attributes.segment.unwrap();
        if stay == 0 {
            self.store(Transaction::new(0).with(Record::Thaw { ino, segment, offset: 0, len: u64::MAX }));
        }
        let all = runs.concat();
        let file = File::from(self.pool.segments().open(segment, libc::O_RDWR).unwrap());
        file.write_all_at(&all[stay as usize..], stay).unwrap();
        file.set_len(all.len() as u64).unwrap();
        let allocated = file.metadata().unwrap().blocks() * 512;
        let (len, origin) = (all.len() as u64 - stay, Origin::default());
        self.store(Transaction::new(0).with(Record::Data { ino, segment, offset: stay, len, allocated, origin }));
        self.seal(ino, segment, allocated, runs);
    }

    /// A file of this length with these bytes at these offsets, and holes between them.
    pub fn sparse(&mut self, dir: Ino, name: &[u8], len: u64, pieces: &[(u64, Vec<u8>)]) -> Ino {
        let ino = Ino(self.next());
        let fill = |file: &File| {
            file.set_len(len).unwrap();
            pieces.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
        };
        self.fill(ino, len, fill, Some(Record::Name { dir, name: name.into(), ino }));
        ino
    }

    fn fill(&mut self, ino: Ino, len: u64, fill: impl FnOnce(&File), name: Option<Record>) -> (SegmentId, u64) {
        let segment = SegmentId::in_tier(0, self.next()).unwrap();
        drop(self.pool.segments().create(segment).unwrap());
        let file = File::from(self.pool.segments().open(segment, libc::O_RDWR).unwrap());
        fill(&file);
        let allocated = file.metadata().unwrap().blocks() * 512;
        let attributes = self.attributes(libc::S_IFREG | 0o640, Some(segment));
        let mut tx = Transaction::new(0).with(Record::Attributes { ino, attributes });
        let origin = Origin::default();
        tx.push(Record::Data { ino, segment, offset: 0, len, allocated, origin });
        name.into_iter().for_each(|name| tx.push(name));
        self.store(tx);
        (segment, allocated)
    }

    fn seal(&mut self, ino: Ino, segment: SegmentId, allocated: u64, runs: &[&[u8]]) {
        self.pool.commit(self.pool.newest()).unwrap();
        let mut offset = 0;
        let seals = runs.iter().map(|run| {
            let seal = Seal { crc: tensorfs_formats::crc32c(run), description: Box::default() };
            let sealed = SealedRun { offset, len: run.len() as u64, seal, origin: Origin::default() };
            offset += run.len() as u64;
            sealed
        });
        let seals = seals.collect();
        assert!(self.pool.seal(ino, segment, allocated, seals).unwrap());
    }
}

/// Bytes that look like nothing, from a seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let step = |state: &mut u64| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state as u8
    };
    (0..len).map(|_| step(&mut state)).collect()
}

/// A pool with one of everything.
pub fn varied() -> TestPool {
    let mut pool = TestPool::new();
    pool.edit(|edit| {
        let dir = edit.make(ROOT, b"checkpoints", libc::S_IFDIR | 0o2755, |_, _| {});
        let odd = edit.make(dir, b"5% \xff\n", libc::S_IFDIR | 0o700, |_, _| {});
        edit.make(odd, b"link", libc::S_IFLNK | 0o777, |tx, ino| {
            tx.push(Record::Target { ino, target: b"../no\xfewhere".as_slice().into() });
        });
        edit.make(dir, b"fifo", libc::S_IFIFO | 0o600, |_, _| {});
        edit.make(ROOT, b"empty", libc::S_IFREG | 0o600, |tx, ino| {
            tx.push(Record::Xattr { ino, name: b"user.a".as_slice().into(), value: noise(1, 300).into() });
        });
        edit.file(dir, b"small", &[b"a few bytes"], false);
        let (header, tensor, tail) = (noise(2, 100), noise(3, 3 << 20), noise(4, 200_000));
        let file = edit.file(dir, b"model", &[&header, &tensor, &tail], true);
        edit.store(Transaction::new(0).with(Record::Name { dir: odd, name: b"again".as_slice().into(), ino: file }));
        edit.file(odd, b"sparse", &[&vec![0; 1 << 20], &noise(5, 5000), &vec![0; 300_000]], true);
    });
    pool
}

/// All that is in a closed pool.
pub fn seen(pool: &Path) -> Seens {
    let contents = Contents::read(pool).unwrap();
    let view = contents.view();
    let one = |path: Vec<u8>, ino: Ino| {
        let object = view.object(ino).unwrap();
        let bytes = object.is_file().then(|| match object.attributes.segment {
            Some(segment) => {
                let file = File::from(contents.segments().open(segment, libc::O_RDONLY).unwrap());
                let mut bytes = vec![0; object.size() as usize];
                file.read_exact_at(&mut bytes, 0).unwrap();
                bytes
            }
            None => Vec::new(),
        });
        let runs = object.chain().map_or(&[][..], |chain| chain.runs()).iter();
        let seals = runs.filter_map(|run| run.seal().map(|seal| (run.len, seal.crc, seal.description.len())));
        let seen = Seen {
            mode: object.attributes.mode,
            owner: (object.attributes.uid, object.attributes.gid),
            mtime: object.attributes.mtime,
            links: object.links(),
            target: object.target().map(<[u8]>::to_vec),
            xattrs: object.xattrs().map(|(name, value)| (name.to_vec(), value.to_vec())).collect(),
            bytes,
            seals: seals.collect(),
        };
        (path, seen)
    };
    let below = Below::of(view, ROOT);
    let found = below.found().iter().map(|found| (below.path(found), found.ino()));
    found.chain([(Vec::new(), ROOT)]).map(|(path, ino)| one(path, ino)).collect()
}

/// The newest tree at a place as a pool, which is sound.
pub fn restored(place: Place, to: &Path) -> tensorfs_remote::Result<(Restored, Seens)> {
    let repository = Repository::new(place);
    let newest = repository.newest()?;
    let restored = restore(&repository, &newest, to, &|_, _| {})?;
    let report = check(to, Depth::Data, &|_, _, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    Ok((restored, seen(to)))
}
