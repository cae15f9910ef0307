//! What is sealed gets other records when a file is completed: then it is compared with the checksums that it had, and
//! no bytes that are damaged come to one that fits them.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tensorfs_tests::{Mount, Pattern, Setup, child, npy, on_mounts, safetensors, samples, xattr};

use crate::grown::{frames, read_by_server, records, seal, sealed_bytes};

on_mounts!(
    damage_is_no_truth_for_a_file_that_is_completed,
    damage_of_what_says_where_tensors_are_is_no_truth_either,
    damage_is_no_truth_for_a_file_that_is_moved,
    all_of_a_file_is_read_once_to_find_that_it_is_damaged,
    damage_in_a_sealed_hole_is_found_when_it_is_cut_anew,
    who_wrote_it_himself_has_damaged_nothing,
);

/// A file as its writer left it, in durable pieces, and what it is completed with.
struct Case {
    name: &'static str,
    pieces: Vec<Vec<u8>>,
    rest: Vec<u8>,
    /// A byte that is damaged in between.
    at: usize,
    /// A tensor that it is in, if completing the file has its bytes sealed anew.
    told: Option<&'static str>,
}

impl Case {
    /// Of one piece, cut at a place.
    fn of(name: &'static str, whole: &[u8], cut: usize, at: usize, told: Option<&'static str>) -> Self {
        Self { name, pieces: vec![whole[..cut].to_vec()], rest: whole[cut..].to_vec(), at, told }
    }

    fn first(&self) -> Vec<u8> {
        self.pieces.concat()
    }
}

fn model(count: usize, len: usize) -> Vec<u8> {
    let tensors: Vec<(String, Vec<u8>)> =
        (0..count).map(|n| (format!("t{n}"), Pattern(n as u64).bytes(0, len))).collect();
    let tensors: Vec<(&str, &[u8])> = tensors.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
    safetensors(&tensors)
}

fn array(len: usize, seed: u64) -> Vec<u8> {
    npy("|u1", false, &[len as u64], &Pattern(seed).bytes(0, len))
}

/// An archive of arrays, and where its directory begins.
fn archive(count: usize, len: usize) -> (Vec<u8>, usize) {
    let (mut locals, mut centrals) = (Vec::new(), Vec::new());
    for n in 0..count {
        let (name, bytes) = (format!("t{n}.npy"), array(len, n as u64));
        let size = (bytes.len() as u32).to_le_bytes();
        let name_len = [name.len() as u8, 0, 0, 0];
        // Version, flags, stored, time, date; no checksum; sizes; lengths of the name and of what is extra.
        let common = [&[20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &size, &size, &name_len].concat();
        let at = (locals.len() as u32).to_le_bytes();
        locals.extend([&b"PK\x03\x04"[..], &common, name.as_bytes(), &bytes].concat());
        centrals.extend([&b"PK\x01\x02\x14\x00"[..], &common, &[0; 10], &at, name.as_bytes()].concat());
    }
    let (at, len) = (locals.len(), centrals.len());
    let count = (count as u16).to_le_bytes();
    let sizes = [(len as u32).to_le_bytes(), (at as u32).to_le_bytes()].concat();
    let end = [&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &sizes, &[0, 0]].concat();
    ([locals, centrals, end].concat(), at)
}

fn cases() -> Vec<Case> {
    let (small, large) = (model(200, 300), model(20, 10_000));
    let begin = |bytes: &[u8]| 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let (in_small, in_large) = (begin(&small), begin(&large));
    // Records whose border is inside of a small tensor, the second half of which is damaged.
    let middle = in_small + 120 * 300 + 150;
    let across = Case {
        name: "across.safetensors",
        pieces: vec![small[..middle].to_vec(), small[middle..middle + 9000].to_vec()],
        rest: small[middle + 9000..].to_vec(),
        at: middle + 20,
        told: Some("t120"),
    };
    let arrays = |len: usize, count: u64| (0..count).flat_map(|seed| array(len, seed)).collect::<Vec<u8>>();
    let ((small_zip, _), (large_zip, _)) = (archive(150, 400), archive(10, 10_000));
    let checkpoint = fs::read(samples().join("torch2-tensor.pt")).unwrap();
    let checkpoints = checkpoint.repeat(50);
    let (many, few) = (frames(0..100, 600), frames(0..12, 8192));
    let last = checkpoints.len() - checkpoint.len();
    vec![
        Case::of("small.safetensors", &small, in_small + 45_000, in_small + 10 * 300 + 7, Some("t10")),
        Case::of("large.safetensors", &large, in_large + 105_000, in_large + 30_007, Some("t3")),
        across,
        Case::of("small.npz", &small_zip, 50_000, 20_000, Some("t")),
        Case::of("large.npz", &large_zip, 55_000, 25_000, Some("t2")),
        Case::of("small arrays", &arrays(3000, 20), 48_000, 47_900, Some("")),
        Case::of("large arrays", &arrays(9000, 10), 50_000, 49_900, Some("")),
        Case::of("checkpoints", &checkpoints, last + 1000, last + 750, Some("")),
        // Frames tell of their damage themselves, and are no tensors then.
        Case::of("many frames", &many, many.len() - 300, many.len() - 400, None),
        Case::of("few frames", &few, few.len() - 3000, few.len() - 4000, None),
        Case::of("nothing known", &Pattern(5).bytes(0, 150_000), 100_000, 5000, None),
    ]
}

fn append(path: &Path, bytes: &[u8]) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

/// The host's file with these bytes.
fn segment(mount: &Mount, bytes: &[u8]) -> PathBuf {
    let shards = fs::read_dir(mount.pool().join("segments")).unwrap().map(|shard| shard.unwrap().path());
    let mut files = shards.flat_map(|shard| fs::read_dir(shard).unwrap().map(|file| file.unwrap().path()));
    let is_it =
        |path: &PathBuf| fs::metadata(path).unwrap().len() == bytes.len() as u64 && fs::read(path).unwrap() == bytes;
    files.find(is_it).unwrap()
}

/// Changes a byte behind the server's back, by another process: what a test beside this one starts has a copy of each
/// descriptor of this one for a moment, and the server would take that for a program that writes.
fn flip(segment: &Path, at: usize) {
    let byte = fs::read(segment).unwrap()[at] ^ 0x10;
    let mut dd = Command::new("dd");
    dd.args(["bs=1", "conv=notrunc,fsync", "status=none", &format!("seek={at}")]);
    dd.arg(format!("of={}", segment.display())).stdin(Stdio::piped());
    let mut writer = dd.spawn().unwrap();
    writer.stdin.take().unwrap().write_all(&[byte]).unwrap();
    assert!(writer.wait().unwrap().success());
}

fn state(mount: &Mount, name: &str) -> String {
    String::from_utf8(xattr::get(&mount.at(name), "user.tensorfs.state").unwrap()).unwrap()
}

fn verify(mount: &Mount, name: &str) -> Value {
    let output = mount.tensorfs(["verify".as_ref(), "--json".as_ref(), mount.at(name).as_os_str()]);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).next_back().unwrap()
}

/// The record that a byte is in: first byte, length, checksum.
fn record_of(mount: &Mount, name: &str, at: usize) -> (u64, u64, Value) {
    let records = records(mount, name);
    let number = |record: &Value, key: &str| record[key].as_u64().unwrap();
    let is_in = |record: &&Value| number(record, "offset") + number(record, "len") > at as u64;
    let record = records.iter().find(is_in).unwrap();
    (number(record, "offset"), number(record, "len"), record["crc32c"].clone())
}

/// What comes of sealing a file whose byte was damaged: the record that it is in is as it was.
#[track_caller]
fn is_told(mount: &Mount, case: &Case, name: &str, before: &(u64, u64, Value)) {
    let output = mount.tensorfs(["seal".as_ref(), mount.at(name).as_os_str()]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(before.2.is_string(), "{name}: {before:?}");
    assert_eq!(&record_of(mount, name, case.at), before, "{name}");
    let verdict = verify(mount, name);
    assert_eq!(verdict["verdict"], "damaged", "{name}: {verdict}");
    assert_eq!(verdict["damaged_runs"].as_array().unwrap().len(), 1, "{name}: {verdict}");
    let Some(tensor) = case.told else { return };
    assert_eq!(output.status.code(), Some(1), "{name}: {errors}");
    assert!(errors.contains("its bytes are not those that were sealed"), "{name}: {errors}");
    assert_eq!(state(mount, name), "damaged", "{name}");
    let log = mount.log();
    let place = format!("{} bytes from offset {}", before.1, before.0);
    let said = log.lines().rfind(|line| line.contains(&format!("{name}: ")) && line.contains(&place));
    let said = said.unwrap_or_else(|| panic!("{name}: {log}"));
    let tensors = said.rsplit("tensors: ").next().unwrap();
    assert!(tensors != "none that is known" && tensors.contains(tensor), "{name}: {said}");
}

/// A file that was interrupted got, once it was completed, checksums of what its bytes were then.
///
/// Proves C4, C8.
fn damage_is_no_truth_for_a_file_that_is_completed(setup: Setup) {
    let mut mount = setup.mount();
    let cases = cases();
    let names = |case: &Case| [1, 2, 3].map(|n| format!("{} {n}", case.name));
    for case in &cases {
        for name in names(case) {
            for piece in &case.pieces {
                append(&mount.at(&name), piece);
            }
        }
    }
    mount.tensorfs_ok(["seal".as_ref(), mount.path().as_os_str()]);
    let before: Vec<_> = cases.iter().map(|case| record_of(&mount, &names(case)[0], case.at)).collect();
    // Two of three that are the same, whichever they are, are damaged: the first while the pool is in use.
    for case in &cases {
        flip(&segment(&mount, &case.first()), case.at);
    }
    mount.umount();
    for case in &cases {
        flip(&segment(&mount, &case.first()), case.at);
    }
    mount.mount();
    for (case, before) in cases.iter().zip(&before) {
        let first = case.first();
        for name in names(case) {
            let is_damaged = fs::read(mount.at(&name)).unwrap() != first;
            append(&mount.at(&name), &case.rest);
            if is_damaged {
                is_told(&mount, case, &name, before);
            } else {
                seal(&mount, &name);
                assert_eq!(state(&mount, &name), "sealed", "{name}");
                assert_eq!(sealed_bytes(&mount, &name), (first.len() + case.rest.len()) as u64);
            }
        }
        let damaged = names(case).iter().filter(|name| verify(&mount, name)["verdict"] == "damaged").count();
        assert_eq!(damaged, 2, "{}", case.name);
    }
    // Nor does a server that was killed, or another one, make them whole.
    mount.sync();
    mount.kill9();
    mount.mount();
    for (case, before) in cases.iter().zip(&before) {
        for name in names(case).iter().filter(|name| verify(&mount, name)["verdict"] == "damaged") {
            is_told(&mount, case, name, before);
        }
    }
    mount.umount();
    let output = mount.tensorfs(["check", "--data", "--json", mount.pool().to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["findings"].as_array().unwrap().len(), 2 * cases.len(), "{report}");
}

/// Files whose headers are damaged, between the half of them and the rest.
fn headers() -> Vec<Case> {
    let gguf = |count: u64| {
        let len = 10_016_u64;
        let mut file = [&b"GGUF\x03\0\0\0"[..], &count.to_le_bytes(), &0_u64.to_le_bytes()].concat();
        for n in 0..count {
            let name = format!("t{n}");
            file.extend([&(name.len() as u64).to_le_bytes(), name.as_bytes(), &1_u32.to_le_bytes()].concat());
            // Bytes, and where they are.
            file.extend([&len.to_le_bytes()[..], &24_u32.to_le_bytes(), &(n * len).to_le_bytes()].concat());
        }
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(Pattern(9).bytes(0, (count * len) as usize));
        file
    };
    // As many tensors as no other one has.
    let [short, long, named] = [20, 21, 22].map(|count| model(count, 10_000));
    let [array, other] = [9, 10].map(|seed| array(200_000, seed));
    let ((first, _), (small, in_small), (large, in_large)) =
        (archive(151, 400), archive(150, 400), archive(900, 10_000));
    let hdf5 = fs::read(samples().join("many.h5")).unwrap();
    // A schema of 600 bytes, and batches of which each takes 1,176.
    let arrow = fs::read(samples().join("streams.arrow")).unwrap();
    let stream = |batches| [&arrow[..600], &arrow[600..1776].repeat(batches)].concat();
    let half = |name, whole: &[u8], at| Case::of(name, whole, whole.len() / 2, at, None);
    vec![
        half("length of a header", &short, 1),
        // By which it ends too early.
        half("length of a header that goes on", &long, 2),
        half("header in JSON", &named, 9),
        half("magic of GGUF", &gguf(20), 1),
        half("list of GGUF", &gguf(21), 34),
        half("magic of NumPy", &array, 1),
        half("header of NumPy", &other, 12),
        half("magic of HDF5", &hdf5, 1),
        half("mark of a stream", &stream(100), 1),
        half("schema of a stream", &stream(101), 40),
        half("first zip entry", &first, 1),
        Case::of("directory of a short zip", &small, in_small + 400, in_small + 1, None),
        Case::of("directory of a long zip", &large, in_large + 40_000, in_large + 20_001, None),
    ]
}

/// A file in which nothing was recognised for that was sealed as one that has nothing, and stayed so when it was
/// mended.
///
/// Proves C4.
fn damage_of_what_says_where_tensors_are_is_no_truth_either(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let cases = headers();
    let whole = |case: &Case| format!("whole {}", case.name);
    for case in &cases {
        append(&mount.at(case.name), &case.first());
        fs::write(mount.at(whole(case)), [case.first(), case.rest.clone()].concat()).unwrap();
    }
    mount.tensorfs_ok(["seal".as_ref(), mount.path().as_os_str()]);
    let before: Vec<_> = cases.iter().map(|case| record_of(&mount, case.name, case.at)).collect();
    let tensors = |mount: &Mount, name: &str| xattr::get(&mount.at(name), "user.tensorfs.tensors").unwrap();
    let all: Vec<_> = cases.iter().map(|case| tensors(&mount, &whole(case))).collect();
    let segments: Vec<PathBuf> = cases.iter().map(|case| segment(&mount, &case.first())).collect();
    let flip_all = |mount: &mut Mount| {
        cases.iter().zip(&segments).for_each(|(case, segment)| flip(segment, case.at));
        // What another test starts just then may have a segment open for a moment, and could write it.
        mount.remount();
    };
    flip_all(&mut mount);
    for (case, before) in cases.iter().zip(&before) {
        append(&mount.at(case.name), &case.rest);
        for _ in 0..2 {
            let output = mount.tensorfs(["seal".as_ref(), mount.at(case.name).as_os_str()]);
            let errors = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{}: {errors}", case.name);
            assert!(errors.contains("its bytes are not those that were sealed"), "{}: {errors}", case.name);
        }
        is_told(&mount, case, case.name, before);
        assert_eq!(state(&mount, case.name), "damaged", "{}", case.name);
    }
    // As they were.
    flip_all(&mut mount);
    for (case, all) in cases.iter().zip(all) {
        assert_ne!(all, b"0", "{}", case.name);
        seal(&mount, case.name);
        assert_eq!((tensors(&mount, case.name), state(&mount, case.name)), (all, "sealed".into()), "{}", case.name);
        assert_eq!(verify(&mount, case.name)["verdict"], "ok", "{}", case.name);
    }
    mount.umount();
    mount.tensorfs_ok(["check", "--data", mount.pool().to_str().unwrap()]);
}

/// What is appended behind damage later costs no more than looking at that.
///
/// Proves C4.
fn all_of_a_file_is_read_once_to_find_that_it_is_damaged(setup: Setup) {
    const PIECE: usize = 1 << 20;
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    // Each record has small tensors, which get checksums.
    let whole = model(14_000, 1000);
    let (pieces, path) = (12, mount.at("f"));
    whole[..pieces * PIECE].chunks(PIECE).for_each(|piece| append(&path, piece));
    seal(&mount, "f");
    flip(&segment(&mount, &whole[..pieces * PIECE]), 3 * PIECE + 5);
    mount.remount();
    let mut read = Vec::new();
    for part in [&whole[pieces * PIECE..], b"more", b"and more"] {
        append(&path, part);
        let before = read_by_server(&mount);
        let output = mount.tensorfs(["seal".as_ref(), path.as_os_str()]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(state(&mount, "f"), "damaged");
        read.push(read_by_server(&mount) - before);
        let log = mount.log();
        assert!(log.lines().rfind(|line| line.contains("tensors: ")).unwrap().contains("t2"), "{log}");
    }
    assert!(read[0] > (pieces * PIECE) as u64, "{read:?}");
    assert!(read[1..].iter().all(|more| *more < read[0] / 2), "{read:?}");
}

/// A copy has the checksums of all of a file, or none, and would be sealed as it is.
///
/// Proves C4.
fn damage_is_no_truth_for_a_file_that_is_moved(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    mount.umount();
    mount.add_tier("ssd", &mount.host().join("ssd"));
    mount.mount();
    let case = &cases()[0];
    let names = ["damaged", "whole"];
    for name in names {
        for piece in &case.pieces {
            append(&mount.at(name), piece);
        }
    }
    mount.tensorfs_ok(["seal".as_ref(), mount.path().as_os_str()]);
    flip(&segment(&mount, &case.first()), case.at);
    mount.remount();
    for name in names {
        let is_damaged = fs::read(mount.at(name)).unwrap() != case.first();
        append(&mount.at(name), &case.rest);
        let moved = xattr::set(&mount.at(name), "user.tensorfs.tier", b"ssd", 0);
        if is_damaged {
            assert_eq!(moved, Err(nix::errno::Errno::EIO), "{name}");
            assert_eq!(verify(&mount, name)["verdict"], "damaged", "{name}");
        } else {
            moved.unwrap();
            seal(&mount, name);
            assert_eq!(state(&mount, name), "sealed", "{name}");
        }
    }
}

/// Proves C4, C7.
fn damage_in_a_sealed_hole_is_found_when_it_is_cut_anew(setup: Setup) {
    let mut mount = setup.mount();
    let whole = model(4, 1 << 20);
    let begin = whole.len() - (4 << 20);
    let (hole, end) = (begin + (1 << 20), begin + (7 << 19));
    for name in ["stored", "kept"] {
        let file = File::create(mount.at(name)).unwrap();
        file.write_all_at(&whole[..hole], 0).unwrap();
        file.set_len(end as u64).unwrap();
        file.sync_all().unwrap();
        drop(file);
        seal(&mount, name);
    }
    let before = record_of(&mount, "stored", hole + (1 << 20));
    let sealed = fs::read(mount.at("stored")).unwrap();
    let segment = segment(&mount, &sealed);
    let file = OpenOptions::new().write(true).open(&segment).unwrap();
    file.write_all_at(&[1], (hole + (1 << 20)) as u64).unwrap();
    file.sync_all().unwrap();
    drop(file);
    for name in ["stored", "kept"] {
        append(&mount.at(name), &whole[end..]);
        let is_whole = fs::read(mount.at(name)).unwrap()[..end] == sealed;
        let output = mount.tensorfs(["seal".as_ref(), mount.at(name).as_os_str()]);
        assert_eq!(
            (output.status.success(), state(&mount, name)),
            match is_whole {
                true => (true, "sealed".to_owned()),
                false => (false, "damaged".to_owned()),
            }
        );
        if !is_whole {
            assert_eq!(record_of(&mount, name, hole + (1 << 20)), before);
        }
    }
    assert_eq!(["stored", "kept"].iter().filter(|name| state(&mount, name) == "damaged").count(), 1);
    mount.end();
}

/// Who opens a file to write it in place voids its seals: what he makes of it is what it is.
///
/// Proves C2, C6.
fn who_wrote_it_himself_has_damaged_nothing(setup: Setup) {
    let mut mount = setup.mount();
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.told.is_some()).collect();
    type Change = fn(&mut Mount, &str, usize);
    let changes: [(&str, Change); 7] = [
        ("written", |mount, name, at| {
            let file = OpenOptions::new().write(true).open(mount.at(name)).unwrap();
            file.write_all_at(b"x", at as u64).unwrap();
        }),
        ("written and sealed", |mount, name, at| {
            let file = OpenOptions::new().read(true).write(true).open(mount.at(name)).unwrap();
            file.write_all_at(b"x", at as u64).unwrap();
            drop(file);
            seal(mount, name);
        }),
        ("written through a mapping", |mount, name, at| {
            let mut child = child(["do"]);
            assert_eq!(child.ask(&format!("open f rw {}", mount.at(name).display())), "ok");
            assert_eq!(child.ask(&format!("map f m {} w", at + 1)), "ok");
            assert_eq!(child.ask(&format!("store m {at} 77 1")), "ok");
        }),
        ("cut and rewritten", |mount, name, at| {
            let bytes = fs::read(mount.at(name)).unwrap();
            let file = OpenOptions::new().write(true).open(mount.at(name)).unwrap();
            file.set_len(at as u64).unwrap();
            file.write_all_at(&bytes[at..], at as u64).unwrap();
            file.write_all_at(b"x", at as u64).unwrap();
        }),
        ("cut, rewritten and its server killed", |mount, name, at| {
            let bytes = fs::read(mount.at(name)).unwrap();
            let file = OpenOptions::new().write(true).open(mount.at(name)).unwrap();
            file.set_len(at as u64).unwrap();
            file.write_all_at(&[b"x", &bytes[at + 1..]].concat(), at as u64).unwrap();
            file.sync_all().unwrap();
            mount.kill9();
            drop(file);
            mount.mount();
        }),
        ("written before power was lost", |mount, name, at| {
            let file = OpenOptions::new().write(true).open(mount.at(name)).unwrap();
            file.write_all_at(b"x", at as u64).unwrap();
            file.sync_all().unwrap();
            drop(file);
            mount.power_loss();
            mount.mount();
        }),
        ("written over damage", |mount, name, at| {
            let bytes = fs::read(mount.at(name)).unwrap();
            flip(&segment(mount, &bytes), at);
            let file = OpenOptions::new().write(true).open(mount.at(name)).unwrap();
            file.write_all_at(b"x", at as u64).unwrap();
        }),
    ];
    for (n, (what, change)) in changes.iter().enumerate() {
        for case in &cases[n % 2 * 3..][..5] {
            let name = format!("{} {what}", case.name).replace(' ', "-");
            for piece in &case.pieces {
                append(&mount.at(&name), piece);
            }
            seal(&mount, &name);
            let first = case.first();
            change(&mut mount, &name, case.at);
            let mut expected = fs::read(mount.at(&name)).unwrap();
            assert!(expected.len() == first.len() && expected[case.at] != first[case.at], "{name}");
            append(&mount.at(&name), &case.rest);
            expected.extend(&case.rest);
            assert!(fs::read(mount.at(&name)).unwrap() == expected, "{name}");
            seal(&mount, &name);
            assert_eq!((state(&mount, &name), sealed_bytes(&mount, &name)), ("sealed".into(), expected.len() as u64));
            assert_eq!(verify(&mount, &name)["verdict"], "ok", "{name}");
            fs::remove_file(mount.at(&name)).unwrap();
        }
    }
    mount.umount();
    let output = mount.tensorfs(["check", "--data", "--json", mount.pool().to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["findings"], serde_json::json!([]), "{report}");
}
