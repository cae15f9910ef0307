//! One flipped bit: opening never panics, hangs, or shows a tree that was never true; a flip in live bytes is found by
//! check; files that it does not concern stay readable; repair and then check come out clean.
//!
//! By default one bit of every byte of a small log, and samples of larger ones. `TENSORFS_FLIPS=N` has N times as many
//! sampled, and all eight bits of every byte of the small log. docs/RELIABILITY.md gives counts.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::*;
use tensorfs_layout::check::{Depth, Report, check, repair};
use tensorfs_layout::log::{Origin, Record, Seal};
use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};
use tensorfs_layout::{ROOT, Timestamp};

const BLOCKS: usize = 2 << 20;

fn factor() -> usize {
    std::env::var("TENSORFS_FLIPS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn bits() -> usize {
    if factor() > 1 { 8 } else { 1 }
}

/// Numbers that look random and are the same in every run.
fn chance(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) as usize % below
    }
}

fn open(scratch: &Scratch, boot: [u8; 16]) -> tensorfs_layout::Result<Pool> {
    Pool::open(&scratch.pool(), &OpenOptions { boot_id: Some(boot), ..OpenOptions::default() })
}

fn verify(scratch: &Scratch) -> tensorfs_layout::Result<Report> {
    check(&scratch.pool(), Depth::Data, &|_, _, _| {})
}

fn content(name: &str, len: usize) -> Vec<u8> {
    name.bytes().cycle().enumerate().map(|(at, byte)| byte ^ (at / 251) as u8).take(len).collect()
}

/// Fills a pool with files of these sizes, all sealed but each third, in directories. Their contents by path.
fn fill(pool: &Pool, sizes: &[usize]) -> BTreeMap<String, Vec<u8>> {
    let mut contents = BTreeMap::new();
    make(pool, "dir", libc::S_IFDIR | 0o755);
    for (n, size) in sizes.iter().enumerate() {
        let name = format!("file {n}");
        let bytes = content(&name, *size);
        let (ino, segment) = make_file(pool, &name, &bytes);
        pool.commit(pool.newest()).unwrap();
        if n % 3 != 2 {
            let parts = bytes.chunks((size / 4).max(1)).scan(0, |at, part| {
                let offset = *at;
                *at += part.len() as u64;
                Some((offset, part))
            });
            let sealed = parts.map(|(offset, part)| Record::Sealed {
                ino,
                segment,
                offset,
                len: part.len() as u64,
                allocated: 4096,
                seal: Seal { crc: crc32c::crc32c(part), description: Box::default() },
                origin: Origin::default(),
            });
            store(pool, sealed.collect::<Vec<_>>());
        }
        contents.insert(format!("/{name}"), bytes);
    }
    contents
}

/// The files that a pool shows, read.
fn read_all(pool: &Pool) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let names: Vec<(String, tensorfs_layout::Ino)> = {
        let view = pool.view();
        let names = view.entries_after(ROOT, 0);
        names.map(|(_, name, ino)| (format!("/{}", String::from_utf8_lossy(name)), ino)).collect()
    };
    for (path, ino) in names {
        let segment = {
            let view = pool.view();
            view.object(ino).filter(|object| object.is_file()).and_then(|object| object.attributes.segment)
        };
        if let Some(segment) = segment {
            all.insert(path, read_segment(pool, segment));
        }
    }
    all
}

/// A log with one bit flipped is opened as after that end of its server.
struct Flips<'a> {
    scratch: &'a Scratch,
    image: &'a [u8],
    contents: &'a BTreeMap<String, Vec<u8>>,
    /// The trees that were true.
    trees: &'a [BTreeMap<String, String>],
    closed: bool,
}

impl Flips<'_> {
    /// True if the flip hit something that counts.
    fn flip(&self, offset: usize, bit: usize, boot: [u8; 16]) -> bool {
        let log = self.scratch.pool().join("log");
        let file = fs::File::options().write(true).open(&log).unwrap();
        let what = || format!("bit {bit} of byte {offset}");
        file.write_all_at(&[self.image[offset] ^ 1 << bit], offset as u64).unwrap();
        let found = match verify(self.scratch) {
            Ok(report) => !report.findings.is_empty(),
            Err(error) => {
                assert!(error.to_string().contains("not a tensorfs pool"), "{}: {error}", what());
                true
            }
        };
        match open(self.scratch, boot) {
            Err(error) => assert!(error.to_string().contains("not a tensorfs pool"), "{}: {error}", what()),
            Ok(pool) => {
                let shown = tree(&pool.view());
                if pool.is_read_only().is_none() {
                    assert!(self.trees.contains(&shown), "{}: this was never true: {shown:#?}", what());
                } else {
                    // What it does not concern is there and can be read.
                    let files = read_all(&pool);
                    let right = files.iter().filter(|(path, bytes)| self.contents.get(*path) == Some(bytes)).count();
                    assert!(right + 1 >= self.contents.len(), "{}: {right} of {} files", what(), self.contents.len());
                    assert!(found || !self.closed, "{}: read-only, and check finds nothing", what());
                }
            }
        }
        drop(file);
        fs::write(&log, self.image).unwrap();
        found
    }
}

#[test]
fn every_byte_of_the_log_of_a_closed_pool() {
    let scratch = Scratch::new(4096);
    let pool = open(&scratch, BOOT).unwrap();
    let contents = fill(&pool, &[40, 300, 20]);
    pool.close().unwrap();
    let trees = [tree(&pool.view())];
    drop(pool);
    let image = scratch.log();
    let flips = Flips { scratch: &scratch, image: &image, contents: &contents, trees: &trees, closed: true };
    let live = [0..512, 4096..4160, 1 << 20..(1 << 20) + 512, (1 << 20) + 4096..(1 << 20) + 4160, BLOCKS..image.len()];
    let mut random = chance(5);
    let mut tried = 0;
    for offset in live.into_iter().flatten() {
        // Of the zeroes behind the last frame of a block a sample will do.
        let zero = image[offset.saturating_sub(64)..(offset + 64).min(image.len())].iter().all(|byte| *byte == 0);
        if zero && random(8 * 4 / bits()) != 0 {
            continue;
        }
        for bit in 0..bits() {
            let bit = if bits() == 8 { bit } else { random(8) };
            assert!(flips.flip(offset, bit, BOOT), "bit {bit} of byte {offset} was not found");
            tried += 1;
        }
    }
    // Between these there is nothing that anybody reads.
    for _ in 0..40 * factor() {
        let offset = 512 + random(BLOCKS - 512);
        let unused = !(4096..4160).contains(&offset) && (offset % (1 << 20) >= 512) && offset % (1 << 20) >= 4160;
        if unused {
            assert!(!flips.flip(offset, random(8), BOOT));
            tried += 1;
        }
    }
    println!("{tried} flips in the log of a closed pool");
}

#[test]
fn every_byte_of_the_log_of_a_pool_that_was_left_open() {
    let scratch = Scratch::new(4096);
    let pool = open(&scratch, BOOT).unwrap();
    let contents = fill(&pool, &[40, 30]);
    pool.idle().unwrap();
    let mut trees = vec![tree(&pool.view())];
    for n in 0..6 {
        make(&pool, &format!("later {n}"), libc::S_IFDIR | 0o700);
        trees.push(tree(&pool.view()));
    }
    drop(pool);
    let image = scratch.log();
    let used = (0..image.len()).rfind(|at| image[*at] != 0).unwrap();
    let mut random = chance(6);
    let mut tried = 0;
    for offset in BLOCKS..=used {
        // The server was killed, or power was lost; each leaves the newest trees that its part of the log vouches for.
        for (boot, trees) in [(BOOT, &trees[..]), (NEXT_BOOT, &trees[..])] {
            let copy = scratch.copy();
            fs::write(copy.pool().join("log"), &image).unwrap();
            let flips = Flips { scratch: &copy, image: &image, contents: &contents, trees, closed: false };
            for bit in 0..bits() {
                let bit = if bits() == 8 { bit } else { random(8) };
                flips.flip(offset, bit, boot);
                tried += 1;
            }
        }
    }
    println!("{tried} flips in the log of a pool that was left open");
}

#[test]
fn sampled_bytes_of_a_large_log() {
    let scratch = Scratch::with(CreateOptions { block_size: 1 << 16, ..CreateOptions::default() });
    let pool = open(&scratch, BOOT).unwrap();
    let contents = fill(&pool, &[100; 12]);
    for n in 0..3000 {
        make(&pool, &format!("directory {n}"), libc::S_IFDIR | 0o755);
    }
    pool.close().unwrap();
    let trees = [tree(&pool.view())];
    drop(pool);
    let image = scratch.log();
    let used: Vec<usize> = (BLOCKS..image.len()).filter(|at| image[*at] != 0).collect();
    let flips = Flips { scratch: &scratch, image: &image, contents: &contents, trees: &trees, closed: true };
    let mut random = chance(7);
    let tries = 60 * factor();
    for _ in 0..tries {
        let (offset, bit) = (used[random(used.len())], random(8));
        assert!(flips.flip(offset, bit, BOOT), "bit {bit} of byte {offset} was not found");
    }
    println!("{tries} flips in a log of {} KiB", image.len() / 1024);
}

#[test]
fn sampled_bytes_of_segments() {
    let scratch = Scratch::new(1 << 20);
    let pool = open(&scratch, BOOT).unwrap();
    let contents = fill(&pool, &[5000, 100_000, 3000, 1 << 20, 1, 64]);
    let segments: BTreeMap<String, std::path::PathBuf> = {
        let view = pool.view();
        let names: Vec<_> = view.entries_after(ROOT, 0).map(|(_, name, ino)| (name.to_vec(), ino)).collect();
        let file = |(name, ino): &(Vec<u8>, _)| {
            let segment = view.object(*ino)?.attributes.segment?;
            Some((format!("/{}", String::from_utf8_lossy(name)), pool.segments().path_of(segment)))
        };
        names.iter().filter_map(file).collect()
    };
    pool.close().unwrap();
    drop(pool);
    assert_eq!(verify(&scratch).unwrap().findings, []);
    let mut random = chance(8);
    let tries = 60 * factor();
    for n in 0..tries {
        let (path, bytes) = contents.iter().nth(n % contents.len()).unwrap();
        let (offset, bit) = (random(bytes.len()), random(8));
        let file = fs::File::options().write(true).open(&segments[path]).unwrap();
        file.write_all_at(&[bytes[offset] ^ 1 << bit], offset as u64).unwrap();
        let report = verify(&scratch).unwrap();
        // Only what is sealed has a checksum.
        let sealed = !path.ends_with(['2', '5', '8']);
        assert_eq!(report.findings.len(), usize::from(sealed), "{path}: {:?}", report.findings);
        for finding in &report.findings {
            assert_eq!(finding.path.as_deref(), Some(&path[..]));
            let run = (bytes.len() / 4).max(1) as u64;
            assert_eq!(finding.offset, Some(offset as u64 / run * run), "{path}, byte {offset}");
        }
        let pool = open(&scratch, BOOT).unwrap();
        let files = read_all(&pool);
        assert_eq!(files.iter().filter(|(path, read)| contents[*path] == **read).count(), contents.len() - 1);
        pool.close().unwrap();
        drop(pool);
        file.write_all_at(&bytes[offset..=offset], offset as u64).unwrap();
    }
    assert_eq!(verify(&scratch).unwrap().findings, []);
    println!("{tries} flips in segments");
}

#[test]
fn a_flip_is_repaired_and_check_with_data_comes_out_clean() {
    let scratch = Scratch::new(4096);
    let pool = open(&scratch, BOOT).unwrap();
    let contents = fill(&pool, &[40, 300, 20]);
    pool.close().unwrap();
    drop(pool);
    let image = scratch.log();
    let used: Vec<usize> = (0..image.len()).filter(|at| image[*at] != 0).collect();
    let mut tried = 0;
    for offset in used.iter().copied().skip(3).step_by((14 / factor()).max(1)) {
        let copy = scratch.copy();
        let mut damaged = image.clone();
        damaged[offset] ^= 1 << (offset % 8);
        fs::write(copy.pool().join("log"), &damaged).unwrap();
        let done = repair(&copy.pool(), Timestamp::new(1_700_000_001, 0), &|_, _, _| {}).unwrap();
        assert!(!done.before.findings.is_empty(), "byte {offset}");
        assert_eq!(verify(&copy).unwrap().findings, [], "byte {offset}: {:?}", done.actions);
        assert_nothing_is_lost(&copy.pool(), &contents, offset);
        tried += 1;
    }
    println!("{tried} flips repaired");
}

/// Every file's bytes are in the tree or in quarantine.
fn assert_nothing_is_lost(pool: &Path, contents: &BTreeMap<String, Vec<u8>>, offset: usize) {
    let opened = Pool::open(pool, &OpenOptions { boot_id: Some(BOOT), ..OpenOptions::default() }).unwrap();
    assert_eq!(opened.is_read_only(), None);
    let mut kept: Vec<Vec<u8>> = read_all(&opened).into_values().collect();
    for entry in opened.quarantine().list().unwrap() {
        kept.push(fs::read(pool.join("quarantine").join(entry.name)).unwrap());
    }
    for (path, bytes) in contents {
        assert!(kept.contains(bytes), "byte {offset}: {path} is lost");
    }
}
