//! Files that lie, loop, nest and swell: recognising them never panics, always ends, and stays within its bounds of
//! memory and reading.
//!
//! `TENSORFS_SHOW=1` prints what each file took; `TENSORFS_FUZZ=N` makes N mutants of each sample.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;

use proptest::prelude::*;
use tensorfs_formats::{
    Format, Location, MEMORY, Recognised, Source, Tensor, TensorReader, crc32c, npy_header, read_tensor, recognise,
    resume,
};

#[path = "hostile_formats/arrays.rs"]
mod arrays;
#[path = "hostile_formats/arrow.rs"]
mod arrow;
#[path = "hostile_formats/bare.rs"]
mod bare;
#[path = "hostile_formats/behind.rs"]
mod behind;
#[path = "hostile_formats/beyond.rs"]
mod beyond;
#[path = "hostile_formats/exported.rs"]
mod exported;
#[path = "hostile_formats/hdf5.rs"]
mod hdf5;
#[path = "hostile_formats/keras.rs"]
mod keras;
#[path = "hostile_formats/ocdbt.rs"]
mod ocdbt;

// --- the measure -----------------------------------------------------------------------------------

/// The system's allocator, which counts what each thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let held = HELD.get() + bytes;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

// SAFETY: everything is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as this function's caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as this function's caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as this function's caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both are held while the bytes are copied.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: as this function's caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most memory held at once while `work` ran, beyond what was held before.
fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let result = work();
    (result, (PEAK.get() - before).max(0) as usize)
}

/// A source that counts what is read of it.
struct Counted<'a> {
    inner: &'a dyn Source,
    bytes: Cell<u64>,
    calls: Cell<u64>,
}

impl Source for Counted<'_> {
    fn size(&self) -> io::Result<u64> {
        self.inner.size()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read_at(offset, buffer)?;
        self.bytes.set(self.bytes.get() + count as u64);
        self.calls.set(self.calls.get() + 1);
        Ok(count)
    }
}

/// Recognises, within the bounds, and returns the first tensors.
fn bounded(source: &dyn Source) -> (Recognised, Vec<Tensor>) {
    let counted = Counted { inner: source, bytes: Cell::new(0), calls: Cell::new(0) };
    let mut count = 0;
    let (found, held) = peak(|| {
        recognise(&counted, &mut |tensor| {
            // Given away at once, as to a file of records.
            drop(tensor);
            count += 1;
            ControlFlow::Continue(())
        })
    });
    if std::env::var_os("TENSORFS_SHOW").is_some() {
        eprintln!("{held} held, {} of {} read", counted.bytes.get(), source.size().unwrap());
    }
    let size = source.size().unwrap();
    assert!(held <= MEMORY, "{held} bytes held");
    assert!(counted.bytes.get() <= 10 * size + (1 << 20), "{} bytes read of {size}", counted.bytes.get());
    assert!(counted.calls.get() <= 10 * size + 1000, "{} reads of {size} bytes", counted.calls.get());
    assert_eq!(found.tensors, count);
    assert!(found.end <= size && found.error.is_none());
    if found.format == Format::Opaque {
        assert!(count == 0 && found.reason.is_some());
    }
    let mut tensors = Vec::new();
    if count == 0 {
        return (found, tensors);
    }
    recognise(source, &mut |tensor| {
        tensors.push(tensor);
        if tensors.len() < 1000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    (found, tensors)
}

/// Recognises, then reads what was found.
fn survives(bytes: &[u8]) -> Recognised {
    let (found, tensors) = bounded(&bytes);
    for tensor in tensors.iter().take(50) {
        if let Location::Raw { offset, len }
        | Location::Encoded { offset, len }
        | Location::Negated { offset, len, .. }
        | Location::Deflated { offset, len, .. } = tensor.location
        {
            assert!(offset.checked_add(len).is_some_and(|end| end <= bytes.len() as u64), "{tensor:?}");
        }
        assert_eq!(npy_header(tensor).is_some(), TensorReader::new(&bytes, tensor).is_ok(), "{tensor:?}");
        let Ok(mut reader) = TensorReader::new(&bytes, tensor) else { continue };
        let (_, held) = peak(|| {
            if reader.len() <= 1 << 20 {
                // Compressed bytes may be other ones than they should.
                let _ = read_tensor(&bytes, tensor, &mut |_| ControlFlow::Continue(()));
            }
            let mut part = [0; 100];
            for at in [0, 1, reader.len() / 2, reader.len().saturating_sub(10), u64::MAX] {
                if at < 1 << 24 || !matches!(tensor.location, Location::Deflated { .. }) {
                    let _ = reader.read_at(at, &mut part);
                }
            }
        });
        assert!(held <= MEMORY, "{held} bytes held");
    }
    let _ = resume(&bytes, bytes.len() as u64 / 2, &mut |_| ControlFlow::Continue(()));
    found
}

fn opaque(bytes: &[u8], reason: &str) {
    let found = survives(bytes);
    assert_eq!(found.format, Format::Opaque, "{:?}", found.reason);
    let why = found.reason.unwrap();
    assert!(why.contains(reason), "{why:?} is not {reason:?}");
}

// --- files -----------------------------------------------------------------------------------------

fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + data, 0);
    file
}

fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u64).to_le_bytes();
    [&len, &masked(&len).to_le_bytes()[..], payload, &masked(payload).to_le_bytes()].concat()
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut len = bytes.len();
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend_from_slice(bytes);
    out
}

/// A member of a zip, which may lie.
#[derive(Clone, Default)]
struct Member {
    name: String,
    data: Vec<u8>,
    method: u16,
    size: Option<u32>,
    header: Option<u32>,
}

fn member(name: &str, data: &[u8]) -> Member {
    Member { name: name.into(), data: data.into(), ..Member::default() }
}

fn zip(members: &[Member]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for m in members {
        let at = m.header.unwrap_or(file.len() as u32);
        let (stored, size, name) = (m.data.len() as u32, m.size.unwrap_or(m.data.len() as u32), m.name.len() as u16);
        let common = |out: &mut Vec<u8>| {
            out.extend(20_u16.to_le_bytes());
            out.extend([0; 2]);
            out.extend(m.method.to_le_bytes());
            out.extend([0; 8]);
            out.extend(stored.to_le_bytes());
            out.extend(size.to_le_bytes());
            out.extend(name.to_le_bytes());
            out.extend([0; 2]);
        };
        directory.extend(b"PK\x01\x02\x14\0");
        common(&mut directory);
        directory.extend([0; 10]);
        directory.extend(at.to_le_bytes());
        directory.extend(m.name.bytes());
        file.extend(b"PK\x03\x04");
        common(&mut file);
        file.extend(m.name.bytes());
        file.extend_from_slice(&m.data);
    }
    let (at, len, count) = (file.len() as u32, directory.len() as u32, members.len() as u16);
    file.extend(directory);
    file.extend(b"PK\x05\x06\0\0\0\0");
    file.extend(count.to_le_bytes());
    file.extend(count.to_le_bytes());
    file.extend(len.to_le_bytes());
    file.extend(at.to_le_bytes());
    file.extend([0; 2]);
    file
}

fn npy(descr: &str, shape: &str, data: usize) -> Vec<u8> {
    let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}");
    let mut file = b"\x93NUMPY\x02\0".to_vec();
    file.extend((text.len() as u32).to_le_bytes());
    file.extend(text.bytes());
    file.resize(file.len() + data, 0);
    file
}

fn torch(pickle: &[u8], storages: &[(&str, usize)]) -> Vec<u8> {
    let mut members = vec![member("a/data.pkl", pickle)];
    members.extend(storages.iter().map(|(key, len)| member(&format!("a/data/{key}"), &vec![0; *len])));
    zip(&members)
}

/// A pickle's program for a tensor of shape (a, b) and strides over the storage "0" of `len` floats.
fn tensor(len: u32, offset: u32, shape: [u32; 2], strides: [u32; 2]) -> Vec<u8> {
    let int = |n: u32| [b"J", &n.to_le_bytes()[..]].concat();
    let pair = |[a, b]: [u32; 2]| [int(a), int(b), b"\x86".to_vec()].concat();
    let mut out = b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n".to_vec();
    out.extend(b"X\x01\0\0\x000X\x03\0\0\0cpu");
    out.extend(int(len));
    out.extend(b"tQ");
    out.extend([int(offset), pair(shape), pair(strides), b"\x89NtR".to_vec()].concat());
    out
}

// --- what they do ----------------------------------------------------------------------------------

/// Arrays behind each other: bounded however many there are, and whatever the pickles between them do.
#[test]
fn arrays_behind_each_other() {
    let small = npy("'<f4'", "(4,)", 16);
    let found = survives(&small.repeat(50_000));
    assert_eq!((found.format, found.tensors, found.reason), (Format::Npy, 50_000, None));
    // Larger than what is read ahead.
    let large = npy("'<f4'", "(20000,)", 80_000);
    assert_eq!(survives(&large.repeat(30)).tensors, 30);

    // What follows is no whole array: those before it stay.
    for (behind, reason) in [
        (&b"more"[..], "4 bytes follow the array"),
        (b"\x93NUMPY", "cut short"),
        (&small[..small.len() - 1], "larger than the file"),
        (b"\x93NUMPY\x02\0\xff\xff\xff\xff", "header of"),
        (&npy("'<f8'", "(4611686018427387904,)", 100), "larger than the file"),
    ] {
        let found = survives(&[&small, behind].concat());
        assert_eq!((found.format, found.tensors, found.end), (Format::Npy, 1, small.len() as u64));
        assert!(found.reason.as_ref().unwrap().contains(reason), "{:?} is not {reason:?}", found.reason);
    }

    // Objects end where their pickle does; one without an end takes the rest.
    let object = |pickle: &[u8]| [npy("'|O'", "()", 0), pickle.to_vec()].concat();
    assert_eq!(survives(&[object(b"N."), small.clone()].concat().repeat(1000)).tensors, 2000);
    assert_eq!(survives(&[object(b"N"), small.clone()].concat()).tensors, 1);
    // Short pickles that ask for much, many times.
    let put = |n: u32| [b"r", &(n * 4095).to_le_bytes()[..]].concat();
    let greedy = object(&[b"N".to_vec(), (1..400).flat_map(put).collect(), b".".to_vec()].concat());
    let found = survives(&greedy.repeat(200));
    assert!(found.tensors > 5 && found.tensors < 20, "{}", found.tensors);
}

/// Checkpoints behind each other: bounded however many there are, and none if one of them is none.
#[test]
fn checkpoints_behind_each_other() {
    let one = torch(&[tensor(4, 0, [2, 2], [2, 1]), b".".to_vec()].concat(), &[("0", 16)]);
    let found = survives(&one.repeat(5000));
    assert_eq!((found.format, found.tensors, found.reason), (Format::Torch, 5000, None));
    let empty = zip(&[]);
    let other = zip(&[member("text", b"")]);
    for (file, reason) in [
        ([&one[..], b"x", &one].concat(), "without its directory"),
        ([b"PK\x03\x04", &one[..]].concat(), "without its directory"),
        ([&one[..], &one[..one.len() - 1]].concat(), "without its directory"),
        ([&one[..], &one[1..]].concat(), "wrong place"),
        ([&one[..], &empty].concat(), "wrong place"),
        ([&other[..], &one].concat(), "in front of"),
        ([&one[..], &other].concat(), "without arrays"),
    ] {
        opaque(&file, reason);
    }
    // A short pickle of many paths, many times: each list has the one before it twice.
    let mut paths = b"]q\0".to_vec();
    for n in 0..17_u8 {
        paths.extend([&b"](h"[..], &[n], b"h", &[n], b"eq", &[n + 1]].concat());
    }
    paths.push(b'.');
    opaque(&torch(&paths, &[]).repeat(20), "too many paths");
    // Short pickles that ask for much.
    let put = |n: u32| [b"r", &(n * 4095).to_le_bytes()[..]].concat();
    let greedy = torch(&[b"N".to_vec(), (1..400).flat_map(put).collect(), b".".to_vec()].concat(), &[]);
    opaque(&greedy.repeat(200), "too many objects");
}

#[test]
fn lengths_past_the_end() {
    for len in [1, 100, u64::MAX, i64::MAX as u64, 1 << 40, 100_000_001] {
        let mut file = safetensors("{}", 0);
        file[..8].copy_from_slice(&len.to_le_bytes());
        assert_eq!(survives(&file).format, Format::Opaque);
        // A frame with a true checksum of a false length: an event file whose end is still to come.
        let len = len.to_le_bytes();
        let found = survives(&[&len[..], &masked(&len).to_le_bytes(), b"abc"].concat());
        assert_eq!((found.format, found.end, found.tensors), (Format::TfRecord, 0, 0));
    }
    opaque(&npy("'<f4'", "(1000000,)", 100), "larger than the file");
    opaque(&npy("'<f8'", "(4611686018427387904,)", 100), "larger than the file");
    opaque(&npy("'<f8'", "(4294967296, 4294967296)", 100), "more elements");
    opaque(&npy("'|V9223372036854775807'", "(2,)", 100), "larger than the file");
    for (len, shape, strides) in
        [(4, [5, 1], [1, 1]), (4, [2, 2], [3, 1]), (4, [2, 2], [u32::MAX >> 1, 1]), (400, [1, 1], [1, 1])]
    {
        opaque(&torch(&[tensor(len, 0, shape, strides), b".".to_vec()].concat(), &[("0", 16)]), "storage");
    }
    opaque(&torch(&[tensor(4, 0, [2, 2], [2, 1]), b".".to_vec()].concat(), &[]), "not there");
    let mut lies = member("a.npy", &npy("'<f4'", "(4,)", 16));
    lies.size = Some(1 << 31);
    opaque(&zip(&[lies.clone()]), "two sizes");
    lies.size = None;
    lies.header = Some(1 << 31);
    opaque(&zip(&[lies]), "outside");
}

#[test]
fn deep_nesting() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        for depth in [100, 1_000_000] {
            opaque(&safetensors(&format!("{{\"a\":{}1{}}}", open.repeat(depth), close.repeat(depth)), 0), "header");
            opaque(
                &safetensors(&format!("{{\"a\":{{\"x\":{}1{}}}}}", open.repeat(depth), close.repeat(depth)), 0),
                "header",
            );
        }
    }
    let deep =
        |open: &str, middle: &str, close: &str| format!("{}{middle}{}", open.repeat(50_000), close.repeat(50_000));
    opaque(&npy(&deep("[", "'<f4'", "]"), "()", 4), "nests deeper");
    opaque(&npy(&deep("[('a', ", "'<f4'", ")]"), "()", 4), "nests deeper");
    opaque(&npy("'<f4'", &deep("(", "1", ",)"), 4), "nests deeper");
    opaque(
        &torch(
            &[b"]".repeat(30_000), tensor(4, 0, [2, 2], [2, 1]), b"a".repeat(30_000), b".".to_vec()].concat(),
            &[("0", 16)],
        ),
        "deeper",
    );
    // Messages in messages in messages: those that matter do not nest.
    let mut message = field(8, b"");
    for _ in 0..10_000 {
        message = field(5, &message);
    }
    survives(&frame(&message));
}

#[test]
fn huge_headers() {
    let names: Vec<String> =
        (0..1_100_000).map(|n| format!("\"{n}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}")).collect();
    opaque(&safetensors(&format!("{{{}}}", names.join(",")), 0), "more than");
    let found = survives(&safetensors(&format!("{{{}}}", names[..400_000].join(",")), 0));
    assert_eq!((found.format, found.tensors), (Format::Safetensors, 400_000));
    for text in ["a", "\\\""] {
        let long = text.repeat(20_000_000 / text.len());
        opaque(&safetensors(&format!("{{\"{long}\":1}}"), 0), "too long");
        opaque(&safetensors(&format!("{{\"__metadata__\":{{\"k\":\"{long}\"}}}}"), 0), "too long");
    }
    opaque(&safetensors(&format!("{{{}", " ".repeat(20_000_000)), 0), "header");
    let metadata: Vec<String> = (0..200_000).map(|n| format!("\"{n}\":\"{n}\"")).collect();
    let found = survives(&safetensors(&format!("{{\"__metadata__\":{{{}}}}}", metadata.join(",")), 0));
    assert!(found.format == Format::Safetensors && found.metadata.len() < 100_000);
    let numbers = "1,".repeat(5_000_000);
    opaque(&safetensors(&format!("{{\"a\":{{\"dtype\":\"U8\",\"shape\":[{numbers}1]}}}}"), 0), "without dtype");
    opaque(&npy(&"[".repeat(2 << 20), "()", 0), "header of");
    opaque(&npy("'<f4'", &format!("({})", "1,".repeat(500_000)), 4), "dimensions");
    opaque(&npy(&format!("[{}]", "('a','|u1'),".repeat(80_000)), "(1,)", 4), "larger than");
}

#[test]
fn pickles_with_code() {
    opaque(&torch(b"\x80\x02cposix\nsystem\nX\x04\0\0\0true\x85R.", &[]), "posix.system");
    opaque(&torch(b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.", &[]), "builtins.eval");
    opaque(&torch(b"(S'true'\nios\nsystem\n.", &[]), "pickle");
    opaque(&torch(b"(cos\nsystem\nS'true'\no.", &[]), "os.system");
    // Beside tensors, a call is told, and is not made.
    let both =
        [&b"\x80\x02}(X\x01\0\0\0w"[..], &tensor(4, 0, [2, 2], [2, 1]), b"X\x01\0\0\0xcos\nsystem\n)Ru."].concat();
    let found = survives(&torch(&both, &[("0", 16)]));
    assert_eq!((found.format, found.tensors, found.calls), (Format::Torch, 1, vec!["os.system".to_owned()]));
}

/// The format before 1.6: nothing is believed of its storages, and what stands behind it is left alone.
#[test]
fn checkpoints_before_zips() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/torch2-legacy.pt");
    let good = fs::read(path).unwrap();
    let found = survives(&good);
    assert_eq!((found.format, found.tensors, found.end), (Format::Torch, 1, good.len() as u64), "{:?}", found.reason);
    let twice = survives(&[&good[..], &good[..]].concat());
    assert_eq!((twice.format, twice.tensors, twice.end), (Format::Torch, 1, good.len() as u64));
    assert!(twice.reason.unwrap().contains("585 bytes follow the checkpoint"));
    for len in 12..good.len() {
        opaque(&good[..len], "cut short");
    }
    // The keys are at 309, the storage's number of elements at 337, its elements at 345.
    let with = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        bad
    };
    opaque(&with(337, 61), "another length");
    opaque(&with(320, b'x'), "nothing needs");
    opaque(&with(311, b'}'), "list of storages");
    let keys = &good[309..337];
    let none = [&good[..309], b"\x80\x02]q\0.", &good[337..]].concat();
    opaque(&none, "not there");
    let again = [&good[..336], &keys[5..27], &good[336..]].concat();
    opaque(&again, "twice");
}

/// The class of a tensor's class, and so on: what makes it is found without going down.
#[test]
fn calls_within_calls() {
    let global = b"ctorch._tensor\n_rebuild_from_type_v2\n";
    let nested = |depth: usize, inner: &[u8]| {
        let level = [b"(", &global[..], b"Nh\0Ntq\x000"].concat();
        let (function, arguments) = inner.split_at(inner.iter().position(|byte| *byte == b'(').unwrap());
        let inner = [b"(", function, b"N", arguments, b"Ntq\x000"].concat();
        torch(&[b"\x80\x02", &inner[..], &level.repeat(depth), global, b"h\0R."].concat(), &[("0", 16)])
    };
    let plain = tensor(4, 0, [2, 2], [2, 1]);
    let inner = plain.strip_suffix(b"R").unwrap();
    let found = survives(&nested(1, inner));
    assert_eq!((found.format, found.tensors), (Format::Torch, 1), "{:?}", found.reason);
    opaque(&nested(80_000, inner), "calls within calls");
}

#[test]
fn a_zip_with_two_large_directories() {
    let plain = zip(&[
        member("a/data.pkl", &[tensor(4, 0, [2, 2], [2, 1]), b".".to_vec()].concat()),
        member("a/data/0", &[0; 16]),
    ]);
    let (before, end) = plain.split_at(plain.len() - 22);
    let field = |at: usize| u64::from(u32::from_le_bytes(end[at..at + 4].try_into().unwrap()));
    let (len, offset) = (field(12), field(16));
    let record = |more: u64| {
        let mut record = b"PK\x06\x06".to_vec();
        record.extend((44 + more).to_le_bytes());
        record.extend([0; 12]);
        [2, 2, len, offset].iter().for_each(|number: &u64| record.extend(number.to_le_bytes()));
        record
    };
    let with = |records: &[Vec<u8>]| {
        let locator = [b"PK\x06\x07\0\0\0\0", &(before.len() as u64).to_le_bytes()[..], b"\x01\0\0\0"].concat();
        [before, &records.concat(), &locator, end].concat()
    };
    assert_eq!(survives(&with(&[record(0)])).format, Format::Torch);
    // The first one reaches over the second, so that each of them ends where it should.
    opaque(&with(&[record(56), record(0)]), "two directories");
}

/// What a file says is repeated in part where it is said what is wrong with it.
#[test]
fn reasons_are_short() {
    let long = "x".repeat(900_000);
    let said = |bytes: &[u8]| survives(bytes).reason.unwrap();
    let header = format!("{{'{long}': 1}}");
    let other = [b"\x93NUMPY\x02\0", &(header.len() as u32).to_le_bytes()[..], header.as_bytes()].concat();
    for reason in [said(&npy(&format!("'{long}'"), "(1,)", 4)), said(&other)] {
        assert!(reason.contains("xxxx") && reason.len() < 1000, "{} bytes", reason.len());
    }
    opaque(&npy("'|O'", "(2305843009213693952,)", 10), "more elements");
    opaque(&npy("'|O'", "(1152921504606846976,)", 10), "more elements");
}

#[test]
fn bombs() {
    let deflate = |bytes: &mut dyn Iterator<Item = Vec<u8>>| {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        bytes.for_each(|bytes| encoder.write_all(&bytes).unwrap());
        encoder.finish().unwrap()
    };
    let zeroes = || std::iter::repeat_n(vec![0; 1 << 20], 256);
    // A true array of 256 MiB, in 256 KiB; and one that has no header.
    let head = npy("'|u1'", "(268435456,)", 0);
    let array = deflate(&mut std::iter::once(head.clone()).chain(zeroes()));
    let mut bomb = member("bomb.npy", &array);
    (bomb.method, bomb.size) = (8, Some(head.len() as u32 + (256 << 20)));
    let found = survives(&zip(&[bomb.clone()]));
    assert_eq!((found.format, found.tensors), (Format::Npz, 1));
    bomb.data = deflate(&mut zeroes());
    opaque(&zip(&[bomb.clone()]), "no .npy");
    // A header that swells.
    let mut head = b"\x93NUMPY\x02\0\xff\xff\xff\xff".to_vec();
    head.resize(16 << 20, b' ');
    bomb.data = deflate(&mut std::iter::once(head));
    opaque(&zip(&[bomb.clone()]), "header of");
    // What promises more than there is.
    bomb.data = array[..array.len() / 2].to_vec();
    assert_eq!(survives(&zip(&[bomb])).format, Format::Npz);
    // Many names for the same bytes.
    let one = member("0.npy", &npy("'<f4'", "(4,)", 16));
    let overlapping: Vec<_> =
        (0..1000).map(|n| Member { name: format!("{n}.npy"), header: Some(0), ..one.clone() }).collect();
    opaque(&zip(&overlapping), "overlap");
    let same: Vec<_> = (0..3).map(|_| one.clone()).collect();
    opaque(&zip(&same), "same name");
    // An archive of nothing but members.
    let many: Vec<_> = (0..60_000).map(|n| member(&format!("{n}.npy"), b"")).collect();
    opaque(&zip(&many), "cut short");
    let many: Vec<_> = (0..60_000).map(|n| member(&format!("{n}"), b"")).collect();
    opaque(&zip(&many), "without arrays");
    let storages: Vec<_> =
        (0..60_000).map(|n| member(&format!("a/data/{n}"), b"")).chain([member("a/data.pkl", b".")]).collect();
    opaque(&zip(&storages), "pickle");
}

#[test]
fn cycles() {
    let one = tensor(4, 0, [2, 2], [2, 1]);
    let cycle = [b"]q\0(h\0", &one[..], b"h\0}q\x01(X\x01\0\0\0ah\0X\x01\0\0\0bh\x01ue."].concat();
    assert_eq!(survives(&torch(&cycle, &[("0", 16)])).tensors, 1);
    // One tensor at a thousand million places.
    let mut laughs = one;
    for _ in 0..9 {
        laughs.extend(b"q\0](h\0h\0h\0h\0h\0h\0h\0h\0h\0h\0e");
    }
    laughs.push(b'.');
    opaque(&torch(&laughs, &[("0", 16)]), "too many paths");
    // Tensors that are far larger than their bytes are tensors.
    let wide = [tensor(4, 0, [1 << 30, 1 << 30], [0, 0]), b".".to_vec()].concat();
    let found = survives(&torch(&wide, &[("0", 16)]));
    assert_eq!(found.tensors, 1);
}

#[test]
fn pickles_that_swell() {
    for part in [
        &b"]0"[..],
        b"}q\0",
        b")0",
        b"](NNNNNNNNNNNNe",
        b"}(NNNNNNNN)u",
        b"X\x04\0\0\0abcd0",
        b"\x8c\x010\x94",
        b"cos\na\n)R0",
        b"((((tttt0",
        b"]2a0",
    ] {
        for len in [1 << 20, 30 << 20] {
            survives(&torch(&part.repeat(len / part.len()), &[]));
        }
    }
    // Beside as many storages as there can be, as far as this zip has numbers for them.
    let mut members = vec![member("a/data.pkl", &b"}(NNNNNNNN)u".repeat(3_000_000))];
    members.extend((0..65_000).map(|n| member(&format!("a/data/{n}"), b"")));
    survives(&zip(&members));
    let mut large = b"(".to_vec();
    let one = tensor(4, 0, [2, 2], [2, 1]);
    (0..100_000).for_each(|_| large.extend(&one));
    large.extend(b"t.");
    survives(&torch(&large, &[("0", 16)]));
}

#[test]
fn events_that_swell() {
    let value = |bytes: &[u8]| frame(&[&[0x10, 1][..], &field(5, bytes)].concat());
    let tag = field(1, b"t");
    let many = value(&field(1, &tag).repeat(1_000_000));
    assert_eq!(survives(&many).tensors, 0);
    let scalars = value(&field(1, &[&tag[..], &[0x15, 0, 0, 0x80, 0x3f]].concat()).repeat(1_000_000));
    assert_eq!(survives(&scalars).tensors, 1_000_000);
    let tensor = |bytes: &[u8]| value(&field(1, &[&tag[..], &field(8, bytes)].concat()));
    for tensor in [
        // Dimensions, elements, and lengths beyond counting.
        tensor(&field(2, &field(2, &[8, 1]).repeat(1_000_000))),
        tensor(&[&[8, 3][..], &field(2, &field(2, &[8, 0x7f])), &[0x38, 1].repeat(3_000_000)].concat()),
        tensor(&[&[8, 3][..], &field(2, &field(2, &[8, 0x7f])), &field(7, &[1; 5_000_000])].concat()),
        tensor(&[&[8, 1][..], &field(2, &field(2, b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f").repeat(3))].concat()),
        tensor(&[&[8, 1][..], &field(2, &field(2, b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))].concat()),
        tensor(&[&[8, 7][..], &field(8, b"x").repeat(1_000_000)].concat()),
        value(&field(
            1,
            &[&tag[..], &field(5, &[&field(6, &[0; 8_000_000])[..], &field(7, &[0; 8_000_000])].concat())].concat(),
        )),
        value(&field(1, &[&field(1, &[b'n'; 1_000_000])[..], &[0x15, 0, 0, 0x80, 0x3f]].concat())),
        value(&field(
            1,
            &[
                &tag[..],
                &field(
                    9,
                    &field(1, &[&field(1, b"mode")[..], &field(2, b"99999999999999999999")].concat()).repeat(100_000),
                ),
                &[0x15, 0, 0, 0, 0],
            ]
            .concat(),
        )),
        frame(&field(5, b"").repeat(1_000_000)),
    ] {
        assert_eq!(survives(&tensor).format, Format::TfRecord);
    }
}

/// A million events, which are nowhere but in their numbers.
struct Million {
    frame: Vec<u8>,
    count: u64,
}

impl Source for Million {
    fn size(&self) -> io::Result<u64> {
        Ok(self.frame.len() as u64 * self.count)
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let left = (self.size()? - offset.min(self.size()?)).min(buffer.len() as u64) as usize;
        let start = (offset % self.frame.len() as u64) as usize;
        for (byte, value) in buffer[..left].iter_mut().zip(self.frame.iter().cycle().skip(start)) {
            *byte = *value;
        }
        Ok(left)
    }
}

#[test]
fn a_million_records_take_no_memory() {
    let value = field(1, &[&field(1, b"loss")[..], &[0x15, 0, 0, 0x80, 0x3f]].concat());
    let frame = frame(&[&[0x10, 1][..], &field(5, &value)].concat());
    let source = Million { frame, count: 1_000_000 };
    let mut count = 0_u64;
    let (found, held) = peak(|| {
        recognise(&source, &mut |_| {
            count += 1;
            ControlFlow::Continue(())
        })
    });
    assert_eq!((found.tensors, count, found.frames), (1_000_000, 1_000_000, 1_000_000));
    assert_eq!(found.end, source.size().unwrap());
    assert!(held < 2 << 20, "{held} bytes held");
}

// --- at random -------------------------------------------------------------------------------------

/// A generator of numbers that are the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound.max(1) as u64) as usize
    }
}

const STRANGE: [u64; 10] =
    [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, u64::MAX, 1 << 32];

fn mutate(file: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(file.len());
        match random.below(7) {
            0 => file[at] ^= 1 << random.below(8),
            1 => file[at] = random.below(256) as u8,
            2 => file.truncate(at.max(1)),
            3 => {
                let len = 1 << random.below(4);
                let strange = STRANGE[random.below(STRANGE.len())].to_le_bytes();
                let end = (at + len).min(file.len());
                file[at..end].copy_from_slice(&strange[..end - at]);
            }
            4 => drop(file.drain(at..(at + random.below(16)).min(file.len()))),
            5 => {
                let (from, len) = (random.below(file.len()), random.below(64));
                let copy = file[from..(from + len).min(file.len())].to_vec();
                file.splice(at..at, copy);
            }
            _ => {
                let byte = random.below(256) as u8;
                file.splice(at..at, std::iter::repeat_n(byte, random.below(8)));
            }
        }
        if file.is_empty() {
            file.push(0);
        }
    }
    // Half of the frames get a true checksum again, so that what is inside is looked at.
    if file.len() > 12 && random.below(2) == 0 {
        let len = u64::from_le_bytes(file[..8].try_into().unwrap());
        let crc = masked(&file[..8]).to_le_bytes();
        file[8..12].copy_from_slice(&crc);
        if let Some(end) =
            usize::try_from(len).ok().and_then(|len| len.checked_add(12)).filter(|end| end + 4 <= file.len())
        {
            let crc = masked(&file[12..end]).to_le_bytes();
            file[end..end + 4].copy_from_slice(&crc);
        }
    }
}

#[test]
fn mutated_samples() {
    let rounds = std::env::var("TENSORFS_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(150);
    let mut random = Random(42);
    let mut paths: Vec<_> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_none_or(|extension| extension != "json"))
        .collect();
    paths.sort();
    for path in paths {
        let file = fs::read(&path).unwrap();
        for round in 0..rounds {
            let mut mutant = if file.is_empty() { vec![0] } else { file.clone() };
            mutate(&mut mutant, &mut random);
            let result = std::panic::catch_unwind(|| survives(&mutant));
            assert!(result.is_ok(), "{} in round {round}", path.display());
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        survives(&bytes);
    }

    #[test]
    fn any_pickle(
        program in prop::collection::vec(
            prop::sample::select(
                b"().0123(FGIJKLMNPQRSTUVX\x80\x85\x86\x87\x88\x89\x8a\x8c\x93\x94\
                ]}abcdeghijloqrtu\0\x01\x02\n"
                    .to_vec(),
            ),
            0..300,
        ),
    ) {
        survives(&torch(&program, &[("0", 16)]));
    }

    #[test]
    fn any_event(
        payload in prop::collection::vec(
            prop::sample::select(
                b"\x08\x09\x0a\x10\x12\x15\x22\x29\x2a\x32\x38\x3a\x42\x4a\
                \0\x01\x02\x03\x04\x05\x07\x08\x0c\x10\x80\xff".to_vec(),
            ),
            0..200,
        ),
    ) {
        survives(&frame(&payload));
    }

    #[test]
    fn any_header(text in "[{}\\[\\]\"':,0-9a-z\\\\()<_ ]{0,200}") {
        survives(&safetensors(&text, 10));
        survives(&safetensors(&format!("{{{text}}}"), 10));
        survives(&npy(&text, &text, 10));
        survives(&npy("'<f4'", &text, 10));
    }
}
