//! The chain: what a file has grown by when it is made durable is a record of its own, and stays one.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tensorfs_tests::{Mount, Setup, on_mounts, safetensors, xattr};

on_mounts!(
    an_append_that_was_made_durable_is_a_record_and_stays_one,
    a_record_says_what_made_it_when_and_how_far_it_has_come,
    what_sealing_cuts_is_of_one_transaction,
    short_appends_share_a_record,
    a_cut_file_keeps_the_records_in_front_of_the_cut,
    a_file_is_followed_record_by_record,
);

fn append(path: &Path, bytes: &[u8]) -> File {
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
    file
}

/// What `tensorfs records --json` says of a path, on a mount or in a pool.
fn records_of(mount: &Mount, path: &str) -> Vec<Value> {
    let output = mount.tensorfs(["records", "--json", path]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn records(mount: &Mount, name: &str) -> Vec<Value> {
    records_of(mount, mount.at(name).to_str().unwrap())
}

/// Where records are, and what made them: what stays as it is.
fn places(records: &[Value]) -> Vec<(u64, u64, u64, String)> {
    let number = |value: &Value| value.as_u64().unwrap();
    let place = |record: &Value| {
        let (offset, len, transaction) = (&record["offset"], &record["len"], &record["transaction"]);
        (number(offset), number(len), number(transaction), record["time"].to_string())
    };
    records.iter().map(place).collect()
}

fn states(records: &[Value]) -> Vec<&str> {
    records.iter().map(|record| record["state"].as_str().unwrap()).collect()
}

/// Proves C8.
fn an_append_that_was_made_durable_is_a_record_and_stays_one(setup: Setup) {
    let mut mount = setup.mount();
    // One whose bytes are in the log, and one whose bytes are not.
    for (name, len) in [("small", 5000), ("large", 200_000)] {
        for n in 0..3 {
            append(&mount.at(name), &vec![n; len]);
        }
    }
    let expected = |len: u64| (0..3).map(|n| (n * len, len)).collect::<Vec<_>>();
    let ranges = |places: &[(u64, u64, u64, String)]| places.iter().map(|place| (place.0, place.1)).collect::<Vec<_>>();
    let (small, large) = (places(&records(&mount, "small")), places(&records(&mount, "large")));
    assert_eq!(ranges(&small), expected(5000));
    assert_eq!(ranges(&large), expected(200_000));
    mount.kill9();
    mount.mount();
    assert_eq!((places(&records(&mount, "small")), places(&records(&mount, "large"))), (small.clone(), large.clone()));
    let same = |mount: &Mount, when: &str| {
        assert_eq!(places(&records(mount, "small")), small, "{when}");
        assert_eq!(places(&records(mount, "large")), large, "{when}");
        assert_eq!(xattr::get(&mount.at("large"), "user.tensorfs.records").unwrap(), b"3", "{when}");
    };
    mount.wait_for_seals(2);
    same(&mount, "sealed");
    for name in ["small", "large"] {
        let found = records(&mount, name);
        assert_eq!(states(&found), ["sealed"; 3]);
        let bytes = fs::read(mount.at(name)).unwrap();
        for record in &found {
            let (offset, len) = (record["offset"].as_u64().unwrap() as usize, record["len"].as_u64().unwrap() as usize);
            let crc = format!("{:08x}", tensorfs_formats::crc32c(&bytes[offset..offset + len]));
            assert_eq!(record["crc32c"], crc);
        }
    }
    // Opened to be written, which voids what is sealed, and closed as it was.
    drop(OpenOptions::new().append(true).open(mount.at("large")).unwrap());
    same(&mount, "opened");
    mount.remount();
    same(&mount, "mounted again");
    mount.sync();
    mount.kill9();
    mount.mount();
    same(&mount, "killed");
    mount.sync();
    mount.power_loss();
    mount.mount();
    same(&mount, "power lost");
    append(&mount.at("large"), &[9; 100_000]);
    let grown = places(&records(&mount, "large"));
    assert_eq!((&grown[..3], grown[3].0, grown[3].1, grown.len()), (&large[..], 600_000, 100_000, 4));
    mount.umount();
    assert_eq!(places(&records_of(&mount, &format!("{}:/large", mount.pool().display()))), grown, "in the pool");
}

/// Proves C8.
fn a_record_says_what_made_it_when_and_how_far_it_has_come(setup: Setup) {
    let mut mount = setup.mount_with(["--commit", "3600"]).mount();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let before = now();
    let mut file = append(&mount.at("f"), &[1; 10_000]);
    file.write_all(&[2; 10_000]).unwrap();
    // A new name has the file recorded, and nothing durable.
    fs::rename(mount.at("f"), mount.at("g")).unwrap();
    let found = records(&mount, "g");
    assert_eq!(states(&found), ["committed", "open"]);
    let [first, second] = &found[..] else { panic!("{found:?}") };
    assert!(first["transaction"].as_u64() < second["transaction"].as_u64(), "{found:?}");
    for record in &found {
        // The clock of files runs a tick behind.
        assert!((before - 1.0..now() + 1.0).contains(&record["time"].as_f64().unwrap()), "{record}");
        assert_eq!((&record["kind"], &record["crc32c"]), (&"data".into(), &Value::Null));
    }
    mount.sync();
    assert_eq!(states(&records(&mount, "g")), ["committed", "committed"]);
    drop(file);
    fs::write(mount.at("t.npy"), npy(6000)).unwrap();
    mount.sync();
    mount.wait_for_seals(2);
    let found = records(&mount, "t.npy");
    let tensor = found.iter().find(|record| record["kind"] == "tensor").unwrap();
    assert_eq!((&tensor["state"], tensor["tensors"].as_array().unwrap().len()), (&"sealed".into(), 1));
    mount.umount();
}

/// One append of three large tensors.
///
/// Proves C8.
fn what_sealing_cuts_is_of_one_transaction(setup: Setup) {
    let mut mount = setup.mount();
    let tensors = [1, 2, 3].map(|n| vec![n; 300_000]);
    let named: Vec<(&str, &[u8])> = ["a", "b", "c"].into_iter().zip(tensors.iter().map(Vec::as_slice)).collect();
    let bytes = safetensors(&named);
    append(&mount.at("f"), &bytes);
    let [whole] = &places(&records(&mount, "f"))[..] else { panic!("it is one record") };
    assert_eq!((whole.0, whole.1), (0, bytes.len() as u64));
    mount.wait_for_seals(1);
    let cut = places(&records(&mount, "f"));
    assert!(cut.len() >= 4, "a header and three tensors: {cut:?}");
    let mut end = 0;
    for (offset, len, transaction, time) in &cut {
        assert_eq!((*offset, transaction, time), (end, &whole.2, &whole.3), "{cut:?}");
        end += len;
    }
    assert_eq!(end, whole.1);
    // What is appended then has its own.
    append(&mount.at("f"), &[0; 100_000]);
    let grown = places(&records(&mount, "f"));
    assert_eq!(&grown[..cut.len()], &cut[..]);
    assert!(grown[cut.len()..].iter().all(|place| place.2 > whole.2), "{grown:?}");
    mount.umount();
}

fn npy(len: usize) -> Vec<u8> {
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({len},), }}\n");
    let mut bytes = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
    bytes.extend((0..len).map(|n| n as u8));
    bytes
}

/// Proves C8.
fn short_appends_share_a_record(setup: Setup) {
    let mut mount = setup.mount();
    let found = |mount: &Mount| -> Vec<(u64, u64)> {
        places(&records(mount, "f")).into_iter().map(|(offset, len, ..)| (offset, len)).collect()
    };
    for _ in 0..256 {
        append(&mount.at("f"), b"alone");
    }
    let alone: Vec<_> = (0..256).map(|n| (n * 5, 5)).collect();
    assert_eq!(found(&mount), alone);
    // There are enough: the next ones share.
    for n in 0..10 {
        append(&mount.at("f"), &[n; 1000]);
    }
    let shared = [&alone[..255], &[(1275, 5005), (6280, 5000)]].concat();
    assert_eq!(found(&mount), shared);
    mount.remount();
    assert_eq!(found(&mount), shared);
    mount.kill9();
    mount.mount();
    assert_eq!(found(&mount), shared);
    mount.umount();
}

/// Proves C8.
fn a_cut_file_keeps_the_records_in_front_of_the_cut(setup: Setup) {
    let mut mount = setup.mount();
    for n in 0..3 {
        append(&mount.at("f"), &[n; 100_000]);
    }
    let whole = places(&records(&mount, "f"));
    OpenOptions::new().write(true).open(mount.at("f")).unwrap().set_len(150_000).unwrap();
    mount.sync();
    mount.remount();
    let cut = places(&records(&mount, "f"));
    assert_eq!(cut[0], whole[0]);
    assert_eq!(cut.iter().map(|(_, len, ..)| len).sum::<u64>(), 150_000);
    assert_eq!(fs::read(mount.at("f")).unwrap().len(), 150_000);
    mount.umount();
}

/// Ended with the test.
struct Follower(std::process::Child);

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Proves C8.
fn a_file_is_followed_record_by_record(setup: Setup) {
    let mut mount = setup.mount();
    append(&mount.at("f"), &[0; 5000]);
    let mut command = mount.program();
    command.args(["records", "--json", "--follow"]).arg(mount.at("f")).stdout(Stdio::piped());
    let mut follower = Follower(command.spawn().unwrap());
    let mut lines = BufReader::new(follower.0.stdout.take().unwrap()).lines();
    for n in 0..4 {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!((&line["offset"], &line["len"]), (&(n * 5000).into(), &5000.into()));
        append(&mount.at("f"), &[n as u8; 5000]);
    }
    fs::remove_file(mount.at("f")).unwrap();
    // It ends with the file.
    assert!(lines.all(|line| line.is_ok()));
    assert!(follower.0.wait().unwrap().success());
    mount.umount();
}
