//! The log: records, blocks, and whole pools.
//!
//! A pool is fuzzed as the parts of its log that say something, one behind the other: superblock, horizon mark, then
//! the blocks. Checksums are put right, so that what stands behind them is tested and not only they.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use tensorfs_formats::Source;
use tensorfs_layout::check::{Depth, Subject, check, repair};
use tensorfs_layout::log::{Attributes, Origin, Record, Shutdown, Tier, Transaction};
use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};
use tensorfs_layout::segment::{Before, examine};
use tensorfs_layout::{Ino, ROOT, SegmentId, Timestamp, testing};

const BLOCK: usize = 4096;
const SUPERBLOCK: usize = 512;
const MARK: usize = 64;
/// Where the superblock, the mark and the first block are.
const PLACES: [(u64, usize); 3] = [(0, SUPERBLOCK), (4096, MARK), (2 << 20, usize::MAX)];
const BOOT: [u8; 16] = [1; 16];

/// A pool that holds a bit of everything, with its segments, as files.
struct Seeds {
    dir: tempfile::TempDir,
    pools: Vec<Vec<u8>>,
}

fn seeds() -> &'static Seeds {
    static SEEDS: OnceLock<Seeds> = OnceLock::new();
    SEEDS.get_or_init(|| {
        let dir = scratch();
        let pools = vec![sample(&dir.path().join("clean"), true), sample(&dir.path().join("dirty"), false)];
        Seeds { dir, pools }
    })
}

fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    dir.expect("a scratch directory")
}

fn options(boot_id: [u8; 16]) -> OpenOptions {
    OpenOptions { boot_id: Some(boot_id), ..OpenOptions::default() }
}

fn sample(dir: &Path, close: bool) -> Vec<u8> {
    let create = CreateOptions { block_size: BLOCK as u32, ..CreateOptions::default() };
    Pool::create(dir, &create).expect("a pool");
    let pool = Pool::open(dir, &options(BOOT)).expect("the pool");
    fill(&pool);
    if close {
        pool.close().expect("closed");
    }
    drop(pool);
    let log = fs::read(dir.join("log")).expect("the log");
    PLACES.iter().flat_map(|(at, len)| log[*at as usize..].iter().take(*len).copied()).collect()
}

fn fill(pool: &Pool) {
    let store = |records: Vec<Record>| {
        let transaction = records.into_iter().fold(Transaction::new(7), Transaction::with);
        pool.edit().store(transaction).expect("stored");
    };
    let time = Timestamp::new(1_700_000_000, 5);
    let attributes = |mode: u32, segment| Attributes {
        mode,
        uid: 0,
        gid: 5,
        rdev: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        segment,
        damaged: false,
    };
    let make = |dir: Ino, name: &[u8], mode: u32, segment| {
        let ino = Ino(pool.edit().next_id());
        let attributes = Record::Attributes { ino, attributes: attributes(mode, segment) };
        store(vec![attributes, Record::Name { dir, name: name.into(), ino }]);
        ino
    };
    let file = |dir: Ino, name: &[u8], bytes: &[u8]| {
        let segment = SegmentId(pool.edit().next_id());
        pool.segments().create(segment).expect("a segment");
        fs::write(pool.segments().path_of(segment), bytes).expect("written");
        let ino = make(dir, name, libc::S_IFREG | 0o644, Some(segment));
        let (offset, len, allocated) = (0, bytes.len() as u64, 4096);
        let origin = Origin::at(Timestamp::new(1, 2));
        store(vec![Record::Data { ino, segment, offset, len, allocated, origin }]);
        (ino, segment)
    };
    let dir = make(ROOT, b"dir", libc::S_IFDIR | 0o755, None);
    let link = make(dir, b"link", libc::S_IFLNK | 0o777, None);
    store(vec![Record::Target { ino: link, target: b"../target"[..].into() }]);
    make(dir, b"fifo", libc::S_IFIFO | 0o600, None);
    let (a, b) =
        (r#"{"dtype":"U8","shape":[5],"data_offsets":[0,5]}"#, r#"{"dtype":"F32","shape":[2],"data_offsets":[5,13]}"#);
    let header = format!(r#"{{"a":{a},"b":{b}}}"#);
    let model = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[3; 13]].concat();
    let (model_ino, model_segment) = file(ROOT, b"model", &model);
    pool.commit(pool.newest()).expect("committed");
    let source: &dyn Source = &&model[..];
    let runs = examine(
        source,
        model.len() as u64,
        pool.description_room(),
        &Before::default(),
        &|| true,
        &tensorfs_formats::recognise,
    )
    .expect("read")
    .expect("sealed");
    pool.seal(model_ino, model_segment, 4096, runs).expect("stored");
    let (ino, segment) = file(dir, b"thawed", &model);
    let runs = examine(
        source,
        model.len() as u64,
        pool.description_room(),
        &Before::default(),
        &|| true,
        &tensorfs_formats::recognise,
    )
    .expect("read")
    .expect("sealed");
    pool.seal(ino, segment, 4096, runs).expect("stored");
    store(vec![Record::Thaw { ino, segment, offset: 0, len: 10 }]);
    store(vec![Record::Truncation { ino, segment, offset: 0, len: 5, allocated: 4096, cut_from: model.len() as u64 }]);
    let (replaced, _) = file(ROOT, b"replaced", b"old");
    let new = SegmentId(pool.edit().next_id());
    pool.segments().create(new).expect("a segment");
    store(vec![Record::Replace { ino: replaced, segment: new }]);
    store(vec![Record::Xattr { ino: dir, name: b"user.a"[..].into(), value: b"value"[..].into() }]);
    store(vec![Record::XattrRemoval { ino: dir, name: b"user.a"[..].into() }]);
    store(vec![Record::Name { dir: ROOT, name: b"hard"[..].into(), ino: model_ino }]);
    store(vec![Record::Removal { dir, name: b"fifo"[..].into() }]);
    pool.set_placement("*.bin dram\n/run/** pm\n").expect("stored");
    let tier = Tier {
        name: "dram".into(),
        directory: b"/nowhere/dram"[..].into(),
        volatile: true,
        nonce: [7; 16],
        away: Some(Shutdown::ServerKilled),
        remote: false,
    };
    store(vec![Record::Tier { number: 1, tier }]);
    let moved = make(ROOT, b"moved", libc::S_IFDIR | 0o700, None);
    store(vec![
        Record::Removal { dir: ROOT, name: b"moved"[..].into() },
        Record::Name { dir, name: b"here"[..].into(), ino: moved },
    ]);
    // Enough that the log is cleaned.
    for n in 0..60_u8 {
        make(ROOT, &[b'n', n % 10 + b'0'], libc::S_IFDIR | 0o700, None);
        if n % 20 == 19 {
            pool.commit(pool.newest()).expect("committed");
            pool.maintain().expect("cleaned");
        }
    }
}

/// Records.
pub fn records() -> Vec<Vec<u8>> {
    // They stand behind a block's header and a frame's.
    blocks().iter().map(|block| block[128.min(block.len())..].to_vec()).collect()
}

/// Descriptions of seals.
pub fn descriptions() -> Vec<Vec<u8>> {
    let mut found = vec![vec![1, 0]];
    for block in blocks() {
        // A version and a summary of a safetensors file without a reason; what follows ends with the record.
        let starts = block.windows(3).enumerate().filter(|(_, bytes)| *bytes == [1, 1, 2]).map(|(at, _)| at);
        found.extend(starts.map(|at| block[at..(at + 120).min(block.len())].to_vec()));
    }
    found
}

/// Log blocks.
pub fn blocks() -> Vec<Vec<u8>> {
    let parts = |pool: &Vec<u8>| pool[SUPERBLOCK + MARK..].chunks(BLOCK).map(<[u8]>::to_vec).collect::<Vec<_>>();
    seeds().pools.iter().flat_map(parts).collect()
}

/// Whole pools.
pub fn pools() -> Vec<Vec<u8>> {
    seeds().pools.clone()
}

/// A block of a log.
pub fn block(bytes: &[u8]) {
    testing::decode_block(&mut bytes.to_vec());
}

/// A pool with this log: checked, opened as after a kill and as after a power loss, used, closed, repaired.
pub fn pool(bytes: &[u8]) {
    let mut image = vec![0; 2 << 20];
    let mut rest = bytes;
    for (at, len) in PLACES {
        let part = rest.split_off(..len.min(rest.len())).unwrap_or_default();
        image.resize(image.len().max(at as usize + part.len()), 0);
        image[at as usize..at as usize + part.len()].copy_from_slice(part);
    }
    // The second superblock is left damaged. A log that ends early is one that does not fit its superblock.
    image.resize(image.len().next_multiple_of(BLOCK).min((2 << 20) + 64 * BLOCK), 0);
    testing::vouch_for(&mut image);
    for boot in [BOOT, [2; 16]] {
        let scratch = scratch();
        let dir = scratch.path().join("pool");
        lay_out(&dir, &image);
        let _ = check(&dir, Depth::Data, &|_, _, _| {});
        use_it(&dir, boot);
    }
    let scratch = scratch();
    let dir = scratch.path().join("pool");
    lay_out(&dir, &image);
    if repair(&dir, Timestamp::new(1, 0), &|_, _, _| {}).is_ok() {
        let report = check(&dir, Depth::Metadata, &|_, _, _| {}).expect("a repaired pool can be checked");
        // A directory that a log speaks of is not for a repair to make.
        let left: Vec<_> = report.findings.iter().filter(|finding| finding.subject != Subject::Tier).collect();
        assert!(left.is_empty(), "after a repair: {left:?}");
        assert!(use_it(&dir, [3; 16]), "a repaired pool can be used");
    }
}

/// Opens the pool and uses it; false if it cannot be opened for writing.
fn use_it(dir: &Path, boot: [u8; 16]) -> bool {
    let Ok(pool) = Pool::open(dir, &options(boot)) else { return false };
    let view = pool.view();
    for (ino, object) in view.objects() {
        let _ = (view.path_of(ino), object.links(), object.size());
        let _ = object.chain().map(|chain| (chain.summary(), chain.tensors().count()));
    }
    drop(view);
    let added = Record::Xattr { ino: ROOT, name: b"user.fuzz"[..].into(), value: b"x"[..].into() };
    let stored = pool.edit().store(Transaction::new(0).with(added)).is_ok();
    let _ = (pool.commit(pool.newest()), pool.maintain(), pool.close());
    let writable = stored && pool.is_read_only().is_some_and(|reason| reason == "the pool is closed");
    drop(pool);
    if writable {
        let again = Pool::open(dir, &options(boot)).expect("a pool that was closed opens");
        let kept = again.view().object(ROOT).is_some_and(|root| root.xattr(b"user.fuzz") == Some(b"x"));
        assert!(kept, "what was stored is there");
    }
    writable
}

fn lay_out(dir: &Path, image: &[u8]) {
    for part in ["segments", "quarantine"] {
        fs::create_dir_all(dir.join(part)).expect("a directory");
    }
    copy(&seeds().dir.path().join("clean/segments"), &dir.join("segments"));
    let log = File::create(dir.join("log")).expect("a log");
    log.set_len(image.len() as u64).expect("its length");
    // Holes stay holes: two mebibytes of zeroes each time would be all that this does.
    for (n, page) in image.chunks(BLOCK).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0)) {
        log.write_all_at(page, (n * BLOCK) as u64).expect("written");
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("its type").is_dir() {
            fs::create_dir_all(&to).expect("a directory");
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("copied");
        }
    }
}
