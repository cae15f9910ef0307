//! Files of frames, which stay open for hours: they are sealed as they grow, and what changes in place is told.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tensorfs_tests::random::Random;
use tensorfs_tests::{Mount, Setup, on_mounts, wait_until, xattr};

use crate::grown::{checked, frames, records, seal, sealed_bytes};

on_mounts!(
    frames_are_sealed_while_their_writer_has_them_open,
    what_was_sealed_while_it_was_open_is_read_once_more,
    what_a_sealed_event_file_grows_by_is_read_twice,
    a_frame_that_is_written_slowly_is_read_when_it_is_there,
    what_changes_in_a_file_that_is_open_is_told,
    what_a_format_says_is_damaged_is_damaged_in_a_file_that_is_open,
    flips_in_what_is_sealed_of_a_file_that_is_open_are_told,
    a_file_of_another_format_is_sealed_when_it_is_closed,
    seals_of_a_file_that_is_open_outlive_the_server,
    a_short_file_is_sealed_while_it_is_open_and_made_durable,
    records_that_begin_inside_frames_and_share_their_end_go_on_being_sealed,
    a_long_frame_and_much_at_once_are_sealed_while_the_file_is_open,
    seals_of_a_file_that_is_open_take_no_more_memory_than_there_may_be,
);

const NAME: &str = "events.out.tfevents.1";

/// Where what is sealed of the file ends, whether it is open or not.
fn sealed_to(mount: &Mount) -> u64 {
    sealed_to_in(mount, NAME)
}

fn sealed_to_in(mount: &Mount, name: &str) -> u64 {
    let sealed = |record: &&Value| record["crc32c"].is_string();
    let end = |record: &Value| record["offset"].as_u64().unwrap() + record["len"].as_u64().unwrap();
    records(mount, name).iter().take_while(sealed).last().map_or(0, end)
}

/// Bytes that the server has read so far to seal files: not what programs send it, nor what others ask it meanwhile.
fn read_to_seal(mount: &Mount) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", mount.pid().unwrap())).unwrap();
    let is_sealer = |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "tensorfs-seal\n");
    let sealer = tasks.map(|task| task.unwrap().path()).find(is_sealer).unwrap();
    let io = fs::read_to_string(sealer.join("io")).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).unwrap()
}

/// True if each byte was read twice, but for a little at the beginnings of frames.
fn is_twice(read: u64, len: u64) -> bool {
    (2 * len..=2 * len + (512 << 10)).contains(&read)
}

/// What `verify` says of the file.
fn verdict(mount: &Mount) -> Value {
    let output = mount.tensorfs(["verify".as_ref(), "--json".as_ref(), mount.at(NAME).as_os_str()]);
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// As smdebug writes it: with a constant in the place of each checksum.
fn smdebug_frames(steps: std::ops::Range<u64>, pad: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for step in steps {
        let mut frame = frames(step..step + 1, pad);
        let footer = frame.len() - 4;
        frame[footer..].copy_from_slice(&[0xb3, 0xc0, 0x2d, 0x06]);
        all.extend(frame);
    }
    all
}

/// How writers of event files open them, and how they go on.
fn writers(mount: &Mount) -> [(&'static str, File); 3] {
    let open = |name: &str, options: &mut OpenOptions| options.create(true).open(mount.at(name)).unwrap();
    [
        ("wb", open("wb", OpenOptions::new().write(true).truncate(true))),
        ("ab", open("ab", OpenOptions::new().append(true))),
        ("a+", open("a+", OpenOptions::new().read(true).append(true))),
    ]
}

/// Proves C9.
fn frames_are_sealed_while_their_writer_has_them_open(setup: Setup) {
    let mut mount = setup.mount();
    let written = frames(0..40, 8192);
    for (name, mut file) in writers(&mount) {
        fs::rename(mount.at(name), mount.at(NAME)).unwrap();
        // In the middle of a frame it is as if that was not there.
        file.write_all(&written[..written.len() - 100]).unwrap();
        let whole = frames(0..39, 8192).len() as u64;
        wait_until(&format!("{name}: what is complete is sealed"), || sealed_to(&mount) == whole);
        let states: Vec<String> =
            records(&mount, NAME).iter().map(|record| record["state"].as_str().unwrap().to_owned()).collect();
        assert!(states.iter().any(|state| state == "provisional"), "{name}: {states:?}");
        assert_eq!(xattr::get(&mount.at(NAME), "user.tensorfs.state").unwrap(), b"open");
        assert_eq!(verdict(&mount)["verified_bytes"], whole, "{name}");
        file.write_all(&written[written.len() - 100..]).unwrap();
        file.write_all(&frames(40..50, 8192)).unwrap();
        let whole = frames(0..50, 8192).len() as u64;
        wait_until(&format!("{name}: and what comes then"), || sealed_to(&mount) == whole);
        drop(file);
        seal(&mount, NAME);
        assert_eq!(sealed_bytes(&mount, NAME), whole);
        assert_eq!(xattr::get(&mount.at(NAME), "user.tensorfs.state").unwrap(), b"sealed");
        assert!(records(&mount, NAME).iter().all(|record| record["state"] == "sealed"));
        assert_eq!(xattr::get(&mount.at(NAME), "user.tensorfs.tensors").unwrap(), b"50");
        fs::rename(mount.at(NAME), mount.at(format!("{name} done"))).unwrap();
    }
    checked(&mut mount);
}

/// Twice in all: for its seals, and once nothing can write it any more.
///
/// Proves C9.
fn what_was_sealed_while_it_was_open_is_read_once_more(setup: Setup) {
    let mut mount = setup.mount();
    let written = smdebug_frames(0..3000, 8192);
    let mut file = File::create(mount.at(NAME)).unwrap();
    let before = read_to_seal(&mount);
    for (n, piece) in written.chunks(written.len() / 4 + 1).enumerate() {
        file.write_all(piece).unwrap();
        let due = |sealed: u64| sealed > (n * (written.len() / 4)) as u64;
        // Of the last one all: who closes the file does not end a turn then, of which something would be read again.
        let is_last = n == 3;
        wait_until("it is sealed", || {
            let sealed = sealed_to(&mount);
            if is_last { sealed == written.len() as u64 } else { due(sealed) }
        });
    }
    drop(file);
    seal(&mount, NAME);
    let read = read_to_seal(&mount) - before;
    assert!(is_twice(read, written.len() as u64), "{read} bytes read of {}", written.len());
    assert_eq!(sealed_bytes(&mount, NAME), written.len() as u64);
    checked(&mut mount);
}

/// What the server is given to write, it has to take from whoever writes it; that is no reading of the file.
///
/// Proves C9.
fn what_a_sealed_event_file_grows_by_is_read_twice(setup: Setup) {
    let mut mount = setup.mount();
    let (front, pieces) =
        (smdebug_frames(0..2000, 8192), [2000..2500, 2500..3000].map(|steps| smdebug_frames(steps, 8192)));
    fs::write(mount.at(NAME), &front).unwrap();
    seal(&mount, NAME);
    let before = read_to_seal(&mount);
    let mut file = OpenOptions::new().append(true).open(mount.at(NAME)).unwrap();
    let mut end = front.len();
    for piece in &pieces {
        file.write_all(piece).unwrap();
        end += piece.len();
        wait_until("it is sealed", || sealed_to(&mount) == end as u64);
    }
    drop(file);
    seal(&mount, NAME);
    let read = read_to_seal(&mount) - before;
    let grown = (end - front.len()) as u64;
    assert!(is_twice(read, grown), "{read} bytes read of {grown}");
    assert_eq!(sealed_bytes(&mount, NAME), end as u64);
    checked(&mut mount);
}

/// Nor is it read each time that the file is looked at before it is complete.
///
/// Proves C9.
fn a_frame_that_is_written_slowly_is_read_when_it_is_there(setup: Setup) {
    let mut mount = setup.mount();
    let (begun, frame) = (frames(0..3, 8192), opaque_frame(7 << 20));
    let mut file = File::create(mount.at(NAME)).unwrap();
    let before = read_to_seal(&mount);
    file.write_all(&begun).unwrap();
    wait_until("it is sealed", || sealed_to(&mount) == begun.len() as u64);
    let (most, rest) = frame.split_at(frame.len() - (1 << 20));
    for piece in [most, &rest[..1000]] {
        file.write_all(piece).unwrap();
        file.sync_all().unwrap();
        // Each piece has its turn. Nothing tells when it was.
        std::thread::sleep(Duration::from_secs(12));
    }
    file.write_all(&rest[1000..]).unwrap();
    let all = (begun.len() + frame.len()) as u64;
    wait_until("all is sealed", || sealed_to(&mount) == all);
    drop(file);
    seal(&mount, NAME);
    let read = read_to_seal(&mount) - before;
    assert!(is_twice(read, all), "{read} bytes read of {all}");
    checked(&mut mount);
}

/// Proves C9.
fn what_changes_in_a_file_that_is_open_is_told(setup: Setup) {
    let mut mount = setup.mount();
    let written = smdebug_frames(0..20, 8192);
    let mut file = File::create(mount.at(NAME)).unwrap();
    file.write_all(&written).unwrap();
    wait_until("it is sealed", || sealed_to(&mount) == written.len() as u64);
    file.write_at(&[written[5000] ^ 1], 5000).unwrap();
    let found = verdict(&mount);
    assert_eq!(found["verdict"], "changed", "{found}");
    let run = &found["changed_runs"][0];
    let (offset, len) = (run["offset"].as_u64().unwrap(), run["len"].as_u64().unwrap());
    assert!((offset..offset + len).contains(&5000), "{found}");
    // The writer goes on, and what there is in the end is what it has written.
    file.write_all(&smdebug_frames(20..25, 8192)).unwrap();
    drop(file);
    seal(&mount, NAME);
    let len = fs::metadata(mount.at(NAME)).unwrap().len();
    assert_eq!(sealed_bytes(&mount, NAME), len);
    assert_eq!(verdict(&mount)["verdict"], "ok");
    assert_eq!(xattr::get(&mount.at(NAME), "user.tensorfs.tensors").unwrap(), b"25");
    checked(&mut mount);
}

/// Proves C9.
fn what_a_format_says_is_damaged_is_damaged_in_a_file_that_is_open(setup: Setup) {
    let mut mount = setup.mount();
    let written = frames(0..20, 8192);
    let mut file = File::create(mount.at(NAME)).unwrap();
    file.write_all(&written).unwrap();
    wait_until("it is sealed", || sealed_to(&mount) == written.len() as u64);
    file.write_at(&[written[5000] ^ 1], 5000).unwrap();
    let found = verdict(&mount);
    assert_eq!(found["verdict"], "damaged", "{found}");
    drop(file);
    mount.end();
}

/// The only segment that has these bytes.
fn segment_of(mount: &Mount, bytes: &[u8]) -> File {
    let shards = fs::read_dir(mount.pool().join("segments")).unwrap().map(|shard| shard.unwrap().path());
    let mut paths = shards.flat_map(|shard| fs::read_dir(shard).unwrap().map(|segment| segment.unwrap().path()));
    let path = paths.find(|path| fs::read(path).is_ok_and(|found| found == bytes)).unwrap();
    File::options().write(true).open(path).unwrap()
}

/// Each in the segment itself, which the host alone has changed then. `TENSORFS_FLIPS=N` has N times as many.
///
/// Proves C9.
fn flips_in_what_is_sealed_of_a_file_that_is_open_are_told(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let factor = std::env::var("TENSORFS_FLIPS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut random = Random::new(7);
    for written in [smdebug_frames(0..30, 8192), frames(0..30, 8192)] {
        let mut file = File::create(mount.at(NAME)).unwrap();
        file.write_all(&written).unwrap();
        wait_until("it is sealed", || sealed_to(&mount) == written.len() as u64);
        let segment = segment_of(&mount, &written);
        for _ in 0..20 * factor {
            let offset = random.below(written.len() as u64);
            let byte = written[offset as usize];
            segment.write_all_at(&[byte ^ 1 << random.below(8)], offset).unwrap();
            let found = verdict(&mount);
            // What a format's own checksums say is damaged; not so of a frame whose length was hit.
            assert!(["damaged", "changed"].contains(&found["verdict"].as_str().unwrap()), "byte {offset}: {found}");
            segment.write_all_at(&[byte], offset).unwrap();
            let found = verdict(&mount);
            assert_eq!(found["verified_bytes"], written.len(), "{found}");
            assert!(!["damaged", "changed"].contains(&found["verdict"].as_str().unwrap()), "{found}");
        }
        // A segment that the host has open to write is not sealed.
        drop((file, segment));
        seal(&mount, NAME);
        fs::remove_file(mount.at(NAME)).unwrap();
    }
    println!("{} flips in files that are open", 40 * factor);
    checked(&mut mount);
}

/// Proves C3.
fn a_file_of_another_format_is_sealed_when_it_is_closed(setup: Setup) {
    let mut mount = setup.mount();
    let mut other = File::create(mount.at("other")).unwrap();
    other.write_all(&[7; 100_000]).unwrap();
    let written = frames(0..20, 8192);
    let mut file = File::create(mount.at(NAME)).unwrap();
    file.write_all(&written).unwrap();
    wait_until("it is sealed", || sealed_to(&mount) == written.len() as u64);
    assert!(records(&mount, "other").iter().all(|record| record["crc32c"].is_null()));
    drop((file, other));
    seal(&mount, "other");
    seal(&mount, NAME);
    checked(&mut mount);
}

/// Proves C9, D9.
fn seals_of_a_file_that_is_open_outlive_the_server(setup: Setup) {
    let mut mount = setup.mount();
    for power_loss in [false, true] {
        let written = frames(0..20, 8192);
        let mut file = File::create(mount.at(NAME)).unwrap();
        file.write_all(&written).unwrap();
        file.sync_all().unwrap();
        wait_until("it is sealed", || sealed_to(&mount) == written.len() as u64);
        drop(file);
        if power_loss {
            mount.power_loss()
        } else {
            mount.kill9()
        }
        mount.mount();
        assert_eq!(fs::read(mount.at(NAME)).unwrap(), written);
        seal(&mount, NAME);
        assert_eq!(sealed_bytes(&mount, NAME), written.len() as u64);
        checked(&mut mount);
        mount.mount();
        fs::remove_file(mount.at(NAME)).unwrap();
    }
    mount.end();
}

/// Its bytes are durable in the log.
///
/// Proves C9, D3.
fn a_short_file_is_sealed_while_it_is_open_and_made_durable(setup: Setup) {
    let mut mount = setup.mount();
    let mut file = File::create(mount.at(NAME)).unwrap();
    for step in 0..6 {
        file.write_all(&frames(step..step + 1, 2000)).unwrap();
        file.sync_all().unwrap();
        if step == 2 {
            let written = frames(0..3, 2000).len() as u64;
            wait_until("it is sealed", || sealed_to(&mount) == written);
        }
    }
    mount.power_loss();
    drop(file);
    mount.mount();
    assert_eq!(fs::read(mount.at(NAME)).unwrap(), frames(0..6, 2000));
    seal(&mount, NAME);
    checked(&mut mount);
}

/// Many short pieces share a record, and with it a seal: then what is sealed ends inside a frame.
///
/// Proves C9.
fn records_that_begin_inside_frames_and_share_their_end_go_on_being_sealed(setup: Setup) {
    let mut mount = setup.mount();
    let written = frames(0..220, 40);
    let frame = frames(0..1, 40).len();
    let mut file = File::create(mount.at(NAME)).unwrap();
    let (mut from, mut round) = (0, 0);
    for pieces in [300, 1, 2, 3] {
        for _ in 0..pieces {
            let to = (from + frame / 2 + 1).min(written.len());
            file.write_all(&written[from..to]).unwrap();
            file.sync_all().unwrap();
            from = to;
        }
        let whole = (0..=220).map(|count| frames(0..count, 40).len()).take_while(|end| *end <= from).last().unwrap();
        wait_until(&format!("round {round}"), || sealed_to(&mount) == whole as u64);
        round += 1;
    }
    assert!(records(&mount, NAME).len() >= 256, "none share one");
    file.write_all(&written[from..]).unwrap();
    drop(file);
    seal(&mount, NAME);
    assert_eq!(sealed_bytes(&mount, NAME), written.len() as u64);
    assert_eq!(xattr::get(&mount.at(NAME), "user.tensorfs.tensors").unwrap(), b"220");
    checked(&mut mount);
}

/// A frame whose payload is no event.
fn opaque_frame(len: usize) -> Vec<u8> {
    let masked =
        |bytes: &[u8]| tensorfs_formats::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let (payload, len) = (vec![0xff; len], (len as u64).to_le_bytes());
    [&len[..], &masked(&len), &payload, &masked(&payload)].concat()
}

/// More than is held in memory, in one frame and in many.
///
/// Proves C9.
fn a_long_frame_and_much_at_once_are_sealed_while_the_file_is_open(setup: Setup) {
    let mut mount = setup.mount();
    let mut file = File::create(mount.at(NAME)).unwrap();
    let written = [frames(0..3, 8192), opaque_frame(9 << 20), frames(3..2000, 8192)].concat();
    file.write_all(&written).unwrap();
    wait_until("all is sealed", || sealed_to(&mount) == written.len() as u64);
    drop(file);
    seal(&mount, NAME);
    assert_eq!(sealed_bytes(&mount, NAME), written.len() as u64);
    assert_eq!(xattr::get(&mount.at(NAME), "user.tensorfs.tensors").unwrap(), b"2000");
    checked(&mut mount);
}

/// Proves C9, B12.
fn seals_of_a_file_that_is_open_take_no_more_memory_than_there_may_be(setup: Setup) {
    if !tensorfs_tests::is_root() {
        return setup.skip("needs root, to give files to somebody else");
    }
    let mut mount = setup.mount_with(["-o", "names=400K"]).mount();
    if mount.is_plain() {
        return;
    }
    let written = frames(0..20_000, 16);
    let write = |name: &str, owner: u32| {
        let mut file = File::create(mount.at(name)).unwrap();
        std::os::unix::fs::fchown(&file, Some(owner), Some(owner)).unwrap();
        file.write_all(&written).unwrap();
        // It is in the queue before the next one.
        file.sync_all().unwrap();
        file
    };
    let files = [write("others", 54321), write("roots", 0)];
    wait_until("what root has is sealed", || sealed_to_in(&mount, "roots") == written.len() as u64);
    let sealed = sealed_to_in(&mount, "others");
    assert!(sealed < written.len() as u64 / 2, "{sealed} of {}", written.len());
    drop(files);
    mount.end();
}
