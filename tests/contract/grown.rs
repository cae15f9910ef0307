//! Growth: what is sealed of a file stays so while it is appended to, and is not read again.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, copy_file_range, fallocate, fcntl};
use serde_json::Value;
use tensorfs_tests::{Mount, Passthrough, Pattern, Setup, child, on_mounts, samples, xattr};

on_mounts!(
    what_is_appended_is_read_and_what_was_sealed_is_not,
    what_is_sealed_stays_so_while_it_is_appended_to,
    a_change_of_what_is_sealed_waits_until_its_seals_are_void,
    a_mapping_voids_what_an_appender_keeps,
    appends_to_a_sealed_file_outlive_the_server,
    a_cut_behind_what_is_sealed_is_no_damage,
    two_append_to_a_sealed_file_at_the_same_time,
    an_event_file_is_gone_on_with,
    a_chain_of_arrays_or_checkpoints_is_gone_on_with,
    a_chain_that_grew_is_what_a_copy_of_it_is,
    an_empty_array_in_front_of_half_a_one_is_not_lost,
    what_something_may_write_yet_is_not_called_sealed,
    holes_of_what_was_sealed_are_not_read_for_what_is_appended,
    what_was_just_appended_is_among_the_tensors,
    damage_of_what_is_sealed_is_told_while_the_file_grows,
);

const SIZE: usize = 4 << 20;
const PIECE: usize = 128 << 10;

/// A sealed file of [`SIZE`] bytes.
fn sealed(mount: &Mount, name: &str) {
    fs::write(mount.at(name), Pattern(1).bytes(0, SIZE)).unwrap();
    seal(mount, name);
}

pub(crate) fn seal(mount: &Mount, name: &str) {
    mount.tensorfs_ok(["seal".as_ref(), mount.at(name).as_os_str()]);
}

fn appender(path: &Path) -> File {
    OpenOptions::new().append(true).open(path).unwrap()
}

fn append_no_more(file: &File) {
    fcntl(file, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
}

/// Bytes that the server has read so far.
pub(crate) fn read_by_server(mount: &Mount) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", mount.pid().unwrap())).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).unwrap()
}

pub(crate) fn records(mount: &Mount, name: &str) -> Vec<Value> {
    let text = mount.tensorfs_ok(["records".as_ref(), "--json".as_ref(), mount.at(name).as_os_str()]);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// How many bytes from the first one on have checksums, and those are right.
#[track_caller]
pub(crate) fn sealed_bytes(mount: &Mount, name: &str) -> u64 {
    let bytes = fs::read(mount.at(name)).unwrap();
    let mut end = 0;
    for record in records(mount, name).iter().take_while(|record| record["crc32c"].is_string()) {
        let (offset, len) = (record["offset"].as_u64().unwrap(), record["len"].as_u64().unwrap());
        let crc = tensorfs_formats::crc32c(&bytes[offset as usize..(offset + len) as usize]);
        assert_eq!(record["crc32c"], format!("{crc:08x}"), "{record}");
        end = offset + len;
    }
    end
}

/// Unmounts, and has everything checked: all is sealed, and as it was sealed.
#[track_caller]
pub(crate) fn checked(mount: &mut Mount) {
    mount.umount();
    let output = mount.tensorfs(["check", "--data", "--json", mount.pool().to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["findings"], &report["unsealed_bytes"]), (&serde_json::json!([]), &0.into()), "{report}");
}

/// 1 MiB appended to 256 MiB had the server read 260 MiB again.
///
/// Proves C2, C8.
fn what_is_appended_is_read_and_what_was_sealed_is_not(setup: Setup) {
    let mut mount = setup.mount();
    sealed(&mount, "f");
    let mut expected = Pattern(1).bytes(0, SIZE);
    // Some room for what else it reads meanwhile, such as what this test asks it.
    let slack = 512 << 10;
    let before = read_by_server(&mount);
    for n in 2..10 {
        let piece = Pattern(n).bytes(0, PIECE);
        let mut file = appender(&mount.at("f"));
        file.write_all(&piece).unwrap();
        file.sync_all().unwrap();
        drop(file);
        expected.extend(piece);
        seal(&mount, "f");
    }
    let read = read_by_server(&mount) - before;
    assert!(read <= 2 * 8 * PIECE as u64 + slack, "{read} bytes read for {} that were appended", 8 * PIECE);
    assert_eq!(sealed_bytes(&mount, "f"), expected.len() as u64);
    let places: Vec<_> = records(&mount, "f").iter().map(|record| record["len"].as_u64().unwrap()).collect();
    assert_eq!(&places[places.len() - 8..], [PIECE as u64; 8], "each is a record of its own: {places:?}");
    assert_eq!(fs::read(mount.at("f")).unwrap(), expected);
    checked(&mut mount);
}

/// Proves C2, C3.
fn what_is_sealed_stays_so_while_it_is_appended_to(setup: Setup) {
    let mut mount = setup.mount();
    sealed(&mount, "f");
    let mut file = appender(&mount.at("f"));
    assert_eq!(sealed_bytes(&mount, "f"), SIZE as u64);
    file.write_all(&[7; PIECE]).unwrap();
    file.sync_all().unwrap();
    assert_eq!(sealed_bytes(&mount, "f"), SIZE as u64);
    // A verify meanwhile says what it can: no damage.
    let output = mount.tensorfs(["verify".as_ref(), "--json".as_ref(), mount.at("f").as_os_str()]);
    let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&verdict["verdict"], &verdict["verified_bytes"]), (&"unsealed".into(), &SIZE.into()), "{verdict}");
    mount.tensorfs_ok(["check".as_ref(), mount.path().as_os_str()]);
    // The power goes: what was synced is there, and what was sealed is.
    file.write_all(&[8; PIECE]).unwrap();
    drop(file);
    mount.power_loss();
    mount.mount();
    assert!(sealed_bytes(&mount, "f") >= SIZE as u64);
    assert!(fs::metadata(mount.at("f")).unwrap().len() >= (SIZE + PIECE) as u64);
    checked(&mut mount);
}

/// A descriptor that could only append can lose that, and there are other ways to change a file through it.
///
/// Proves C2.
fn a_change_of_what_is_sealed_waits_until_its_seals_are_void(setup: Setup) {
    let mut mount = setup.mount_with(["--commit", "3600"]).mount();
    for change in 0..5 {
        let name = format!("f{change}");
        sealed(&mount, &name);
        mount.sync();
        let mut file = appender(&mount.at(&name));
        file.write_all(&[7; 10_000]).unwrap();
        match change {
            0 => {
                append_no_more(&file);
                file.write_all_at(b"changed", 1000).unwrap();
            }
            1 => {
                let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                fallocate(&file, punch, 0, 5000).unwrap();
            }
            2 => {
                append_no_more(&file);
                let (source, mut from, mut to) = (File::open(mount.at(&name)).unwrap(), 1 << 20, 4096);
                assert!(copy_file_range(source, Some(&mut from), &file, Some(&mut to), 8192).unwrap() > 0);
            }
            3 => file.set_len(SIZE as u64 - 1000).unwrap(),
            _ => {
                let other = OpenOptions::new().write(true).open(mount.at(&name)).unwrap();
                other.write_all_at(b"changed", 1000).unwrap();
            }
        }
        drop(file);
        // Before the server commits anything: what is durable now must not call these bytes sealed.
        mount.power_loss();
        mount.mount();
        seal(&mount, &name);
        checked(&mut mount);
        mount.mount();
    }
}

/// Proves C2, C3.
fn a_mapping_voids_what_an_appender_keeps(setup: Setup) {
    let mut mount = setup.mount();
    sealed(&mount, "f");
    let mut file = appender(&mount.at("f"));
    let mut child = child(["do"]);
    assert_eq!(child.ask(&format!("open f rw {}", mount.at("f").display())), "ok");
    assert_eq!(child.ask(&format!("map f m {} w", SIZE / 2)), "ok");
    assert_eq!(child.ask("store m 5 1 100"), "ok");
    file.write_all(&[7; 10_000]).unwrap();
    file.sync_all().unwrap();
    if mount.passthrough() == Passthrough::On {
        assert_eq!(sealed_bytes(&mount, "f"), 0);
    }
    drop((child, file));
    seal(&mount, "f");
    assert_eq!(sealed_bytes(&mount, "f"), (SIZE + 10_000) as u64);
    checked(&mut mount);
}

/// Proves C2, D9.
fn appends_to_a_sealed_file_outlive_the_server(setup: Setup) {
    let mut mount = setup.mount_with(["--commit", "3600"]).mount();
    sealed(&mount, "f");
    mount.sync();
    let mut file = appender(&mount.at("f"));
    file.write_all(&[7; PIECE]).unwrap();
    mount.kill9();
    drop(file);
    // Not recorded yet is not damaged.
    let pool = format!("{}:/f", mount.pool().display());
    let verified = mount.tensorfs(["verify", &pool]);
    assert!(verified.status.success(), "{verified:?}");
    mount.mount();
    assert_eq!(fs::metadata(mount.at("f")).unwrap().len(), (SIZE + PIECE) as u64);
    assert!(sealed_bytes(&mount, "f") >= SIZE as u64);
    assert_eq!(fs::read(mount.at("f")).unwrap()[SIZE..], [7; PIECE]);
    seal(&mount, "f");
    checked(&mut mount);
}

/// Proves C2, D10.
fn a_cut_behind_what_is_sealed_is_no_damage(setup: Setup) {
    let mut mount = setup.mount_with(["--commit", "3600"]).mount();
    sealed(&mount, "f");
    let mut file = appender(&mount.at("f"));
    file.write_all(&[7; PIECE]).unwrap();
    file.sync_all().unwrap();
    file.set_len((SIZE + 1000) as u64).unwrap();
    assert_eq!(sealed_bytes(&mount, "f"), SIZE as u64);
    drop(file);
    mount.power_loss();
    mount.mount();
    let len = fs::metadata(mount.at("f")).unwrap().len() as usize;
    assert!([SIZE + 1000, SIZE + PIECE].contains(&len), "{len}");
    assert!(sealed_bytes(&mount, "f") >= SIZE as u64);
    seal(&mount, "f");
    checked(&mut mount);
}

/// Proves O2.
fn two_append_to_a_sealed_file_at_the_same_time(setup: Setup) {
    let mut mount = setup.mount();
    sealed(&mount, "f");
    let first = appender(&mount.at("f"));
    // Would be given to the kernel, which would append by itself.
    let second = OpenOptions::new().read(true).append(true).open(mount.at("f")).unwrap();
    std::thread::scope(|scope| {
        for (mut file, byte) in [(first, 1_u8), (second, 2)] {
            scope.spawn(move || (0..500).for_each(|_| file.write_all(&[byte; 100]).unwrap()));
        }
    });
    let bytes = fs::read(mount.at("f")).unwrap();
    assert_eq!(bytes.len(), SIZE + 1000 * 100);
    assert!(bytes[SIZE..].chunks(100).all(|chunk| chunk.iter().all(|byte| *byte == chunk[0])), "mixed");
    assert_eq!(bytes[SIZE..].iter().filter(|byte| **byte == 1).count(), 500 * 100);
    seal(&mount, "f");
    checked(&mut mount);
}

/// Frames as TFRecord has them, each of an event that holds one scalar.
pub(crate) fn frames(steps: std::ops::Range<u64>, pad: usize) -> Vec<u8> {
    let masked =
        |bytes: &[u8]| tensorfs_formats::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let field = |tag: u8, bytes: &[u8]| {
        let mut out = vec![tag << 3 | 2];
        let mut len = bytes.len();
        while len > 0x7f {
            out.push(len as u8 | 0x80);
            len >>= 7;
        }
        out.push(len as u8);
        [out, bytes.to_vec()].concat()
    };
    let mut out = Vec::new();
    for step in steps {
        let content = vec![step as u8; pad];
        let shape = field(2, &[8, 0x80 | (pad & 0x7f) as u8, (pad >> 7) as u8]);
        let tensor = [vec![8, 4], field(2, &shape), field(4, &content)].concat();
        let value = [field(1, format!("t{step}").as_bytes()), field(8, &tensor)].concat();
        let event = [vec![16, step as u8 & 0x7f], field(5, &field(1, &value))].concat();
        let len = (event.len() as u64).to_le_bytes();
        out.extend([&len[..], &masked(&len), &event, &masked(&event)].concat());
    }
    out
}

/// What is in an event file is known up to where it was sealed: it is gone on with there.
///
/// Proves C2, T7.
fn an_event_file_is_gone_on_with(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("events.out.tfevents.1");
    fs::write(&path, frames(0..100, 8192)).unwrap();
    seal(&mount, "events.out.tfevents.1");
    let before = read_by_server(&mount);
    let more = frames(100..110, 8192);
    appender(&path).write_all(&more).unwrap();
    seal(&mount, "events.out.tfevents.1");
    let read = read_by_server(&mount) - before;
    assert!(read < 400_000, "{read} bytes read for {}", more.len());
    let list = |mount: &Mount| mount.tensorfs_ok(["tensors".as_ref(), "--json".as_ref(), path.as_os_str()]);
    let tensors = list(&mount);
    assert_eq!(tensors.lines().filter(|line| line.contains("\"name\":\"t")).count(), 110, "{tensors}");
    // What does not begin with a frame.
    appender(&path).write_all(b"no frame").unwrap();
    seal(&mount, "events.out.tfevents.1");
    mount.remount();
    assert_eq!(list(&mount).lines().filter(|line| line.contains("\"name\":\"t")).count(), 110);
    checked(&mut mount);
}

/// An array of this length as NumPy writes it.
fn npy(len: usize, seed: u64) -> Vec<u8> {
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({len},), }}\n");
    let start = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
    [start, Pattern(seed).bytes(0, len)].concat()
}

fn sample(name: &str) -> Vec<u8> {
    fs::read(samples().join(name)).unwrap()
}

/// What is said of a file's tensors, but for its name. Where nothing is recognised, that is no success.
fn listed(mount: &Mount, name: &str) -> Vec<Value> {
    let output = mount.tensorfs(["tensors".as_ref(), "--json".as_ref(), mount.at(name).as_os_str()]);
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in lines.iter_mut().filter_map(Value::as_object_mut) {
        ["path", "file"].into_iter().for_each(|key| drop(line.remove(key)));
    }
    lines.push(output.status.code().into());
    lines
}

/// One more array or checkpoint had the server look at all that are there already: at half of a file of small arrays.
///
/// Proves C2.
fn a_chain_of_arrays_or_checkpoints_is_gone_on_with(setup: Setup) {
    let mut mount = setup.mount();
    let (array, checkpoint) = (npy(8192, 1), sample("torch2-tensor.pt"));
    let header = sample("model.safetensors");
    for (name, piece, count, tensors) in
        [("arrays", &array, 2000, 1), ("checkpoints", &checkpoint, 4000, 1), ("others", &header, 2000, 0)]
    {
        fs::write(mount.at(name), piece.repeat(count)).unwrap();
        seal(&mount, name);
        // For what else is asked and read meanwhile, among that what a reader asks for: a third of a KiB a checkpoint.
        let slack = 3 << 20;
        let before = read_by_server(&mount);
        let more = piece.repeat((100 << 10) / piece.len());
        for _ in 0..8 {
            appender(&mount.at(name)).write_all(&more).unwrap();
            seal(&mount, name);
        }
        let (read, grown) = (read_by_server(&mount) - before, 8 * more.len());
        assert!(read <= 2 * grown as u64 + slack, "{name}: {read} bytes read for {grown}");
        let count = tensors * (count + grown / piece.len());
        assert_eq!(listed(&mount, name).iter().filter(|line| line["dtype"].is_string()).count(), count, "{name}");
        assert_eq!(xattr::get(&mount.at(name), "user.tensorfs.tensors").unwrap(), count.to_string().into_bytes());
        assert_eq!(sealed_bytes(&mount, name), fs::metadata(mount.at(name)).unwrap().len());
    }
    checked(&mut mount);
}

/// Whatever it is appended to with, and wherever what is appended ends: it is gone on with where that can be, and
/// looked at as a whole where not.
///
/// Proves C2, C8.
fn a_chain_that_grew_is_what_a_copy_of_it_is(setup: Setup) {
    let mut mount = setup.mount();
    let (array, checkpoint) = (npy(300, 1), sample("torch2-tensor.pt"));
    let pieces = [
        npy(10_000, 2),
        sample("objects.npy"),
        sample("torch2-several.pt"),
        sample("arrays.npz"),
        b"no format".to_vec(),
    ];
    let firsts = [array.repeat(300), checkpoint.repeat(60), sample("arrays.npz").repeat(20), vec![7; 50_000]];
    for (n, first) in firsts.iter().enumerate() {
        for (m, piece) in pieces.iter().enumerate() {
            let (name, path) = (format!("{n} {m}"), mount.at(format!("{n} {m}")));
            fs::write(&path, first).unwrap();
            seal(&mount, &name);
            let same = &first[..first.len() / [300, 60, 20, 10][n]];
            let half = piece.len() / 2;
            for (step, more) in [same, &piece[..half], &piece[half..], same].into_iter().enumerate() {
                appender(&path).write_all(more).unwrap();
                seal(&mount, &name);
                let copy = format!("copy {n} {m}");
                fs::copy(&path, mount.at(&copy)).unwrap();
                seal(&mount, &copy);
                let said = |name: &str| {
                    let attribute = |what: &str| xattr::get(&mount.at(name), format!("user.tensorfs.{what}"));
                    let all = ["tensors", "state", "checksum", "complete"].map(|what| attribute(what).ok());
                    (all, listed(&mount, name))
                };
                let (grown, copied) = (said(&name), said(&copy));
                assert_eq!(grown, copied, "{name} after {step}");
                fs::remove_file(mount.at(&copy)).unwrap();
            }
            assert_eq!(sealed_bytes(&mount, &name), fs::metadata(&path).unwrap().len());
        }
    }
    checked(&mut mount);
}

/// It begins where the record does that half of the next one is in, which is gone on with.
///
/// Proves C2.
fn an_empty_array_in_front_of_half_a_one_is_not_lost(setup: Setup) {
    let mut mount = setup.mount();
    let (array, empty, next) = (npy(40_000, 1), npy(0, 2), npy(800, 3));
    for (n, rest) in [&next[300..], b"no array"].into_iter().enumerate() {
        let (name, copy) = (format!("f{n}"), format!("copy{n}"));
        let file = File::create(mount.at(&name)).unwrap();
        for part in [&[&array[..], &array, &empty].concat(), &next[..300]] {
            (&file).write_all(part).unwrap();
            file.sync_all().unwrap();
        }
        drop(file);
        seal(&mount, &name);
        appender(&mount.at(&name)).write_all(rest).unwrap();
        seal(&mount, &name);
        mount.remount();
        fs::copy(mount.at(&name), mount.at(&copy)).unwrap();
        seal(&mount, &copy);
        let tree = |name: &str| {
            let listed = fs::read_dir(mount.at(".tensorfs/tensors").join(name)).unwrap();
            let mut names: Vec<_> = listed.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(tree(&name), tree(&copy));
        assert_eq!(listed(&mount, &name), listed(&mount, &copy));
        assert_eq!(tree(&name).len(), [4, 3][n]);
    }
    checked(&mut mount);
}

/// It was closed, and nothing of what was written is recorded: of what is, all is sealed.
///
/// Proves C2.
fn what_something_may_write_yet_is_not_called_sealed(setup: Setup) {
    let mount = setup.mount_with(["--commit", "3600"]).mount();
    let path = mount.at("f");
    let file = File::create(&path).unwrap();
    file.write_all_at(&[7; 100_000], 0).unwrap();
    // As the kernel may have it for a moment after the last close.
    let yet = OpenOptions::new().write(true).open(segment_of(&mount, 100_000)).unwrap();
    drop(file);
    let output = mount.tensorfs(["seal".as_ref(), path.as_os_str()]);
    let state = xattr::get(&path, "user.tensorfs.state").unwrap();
    assert_eq!(output.status.success(), state == b"sealed", "{output:?}");
    drop(yet);
    seal(&mount, "f");
    assert_eq!(xattr::get(&path, "user.tensorfs.state").unwrap(), b"sealed");
}

/// An archive of one array of so many bytes, all of which are a hole.
fn sparse_archive(path: &Path, len: u32) {
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({len},), }}\n");
    let array = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
    let size = (array.len() as u32 + len).to_le_bytes();
    // Version, flags, stored, time, date; no checksum; sizes; lengths of the name and of what is extra.
    let common = [&[20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &size, &size, &[5, 0, 0, 0]].concat();
    let local = [&b"PK\x03\x04"[..], &common, b"a.npy"].concat();
    let central = [&b"PK\x01\x02\x14\x00"[..], &common, &[0; 14], b"a.npy"].concat();
    let at = local.len() as u64 + array.len() as u64 + u64::from(len);
    let sizes = [(central.len() as u32).to_le_bytes(), (at as u32).to_le_bytes()].concat();
    let end = [&b"PK\x05\x06\0\0\0\0\x01\0\x01\0"[..], &sizes, &[0, 0]].concat();
    let file = File::create(path).unwrap();
    file.write_all_at(&[local, array].concat(), 0).unwrap();
    file.write_all_at(&[central, end].concat(), at).unwrap();
}

/// A small archive behind a sparse one had the server read the holes of that, and nothing else be sealed meanwhile.
///
/// Proves C2, C7.
fn holes_of_what_was_sealed_are_not_read_for_what_is_appended(setup: Setup) {
    let mut mount = setup.mount();
    sparse_archive(&mount.at("f"), 3 << 30);
    seal(&mount, "f");
    assert_eq!(xattr::get(&mount.at("f"), "user.tensorfs.tensors").unwrap(), b"1");
    let before = read_by_server(&mount);
    appender(&mount.at("f")).write_all(&sample("arrays.npz")).unwrap();
    seal(&mount, "f");
    let read = read_by_server(&mount) - before;
    assert!(read < 32 << 20, "{read} bytes read");
    assert!(records(&mount, "f").iter().all(|record| record["crc32c"].is_string()));
    checked(&mut mount);
}

/// They were those that were sealed, for good, where somebody had asked before the growth was recorded.
///
/// Proves T4.
fn what_was_just_appended_is_among_the_tensors(setup: Setup) {
    let mut mount = setup.mount_with(["--commit", "3600"]).mount();
    let name = "events.out.tfevents.1";
    fs::write(mount.at(name), frames(0..20, 8192)).unwrap();
    seal(&mount, name);
    let mut file = appender(&mount.at(name));
    file.write_all(&frames(20..25, 8192)).unwrap();
    let listed = || fs::read_dir(mount.at(".tensorfs/tensors").join(name)).unwrap().count();
    let counted = || tensorfs_tests::xattr::get(&mount.at(name), "user.tensorfs.tensors").unwrap();
    assert_eq!((listed(), counted()), (25, b"25".to_vec()));
    file.sync_all().unwrap();
    drop(file);
    assert_eq!((listed(), counted()), (25, b"25".to_vec()));
    seal(&mount, name);
    assert_eq!((listed(), counted()), (25, b"25".to_vec()));
    checked(&mut mount);
}

/// Proves C4, C6.
fn damage_of_what_is_sealed_is_told_while_the_file_grows(setup: Setup) {
    let mut mount = setup.mount();
    sealed(&mount, "f");
    let mut file = appender(&mount.at("f"));
    file.write_all(&[7; PIECE]).unwrap();
    file.sync_all().unwrap();
    let segment = segment_of(&mount, (SIZE + PIECE) as u64);
    let byte = Pattern(1).bytes(0, SIZE)[5000] ^ 1;
    OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_SYNC)
        .open(segment)
        .unwrap()
        .write_all_at(&[byte], 5000)
        .unwrap();
    let output = mount.tensorfs(["verify".as_ref(), "--json".as_ref(), mount.at("f").as_os_str()]);
    let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(verdict["verdict"], "damaged", "{verdict}");
    drop(file);
    mount.end();
}

/// The one segment of so many bytes.
fn segment_of(mount: &Mount, size: u64) -> std::path::PathBuf {
    let shards = fs::read_dir(mount.pool().join("segments")).unwrap().map(|shard| shard.unwrap().path());
    let mut files = shards.flat_map(|shard| fs::read_dir(shard).unwrap().map(|file| file.unwrap().path()));
    files.find(|file| fs::metadata(file).unwrap().len() == size).unwrap()
}
