//! What recovery cannot bring in order after a power loss: it is left as it is, and nothing of it is lost by what comes
//! next.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use tensorfs_tests::{Call, HostCalls, Injected, Mount, Pattern, Rule, Setup, on_mounts, wait_until, xattr};

on_mounts!(
    what_one_recovery_left_after_a_power_loss_the_next_judges_so_too,
    a_version_that_was_not_complete_keeps_nobody_from_the_one_before,
    a_full_host_keeps_nobody_from_the_pool_after_a_power_loss,
    a_host_that_is_full_and_has_no_links_keeps_nobody_from_the_pool,
    a_cut_that_could_not_be_recorded_as_done_is_not_done_again,
    a_file_of_which_the_host_has_less_than_was_recorded_has_no_early_end,
);

const OLD: usize = 70_000;
const TAIL: usize = 5000;
const NEW: usize = 50_000;
const UNKNOWN: usize = 6000;

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    Pattern(seed).bytes(0, len)
}

/// A pool that lost power: `replaced` was being replaced, `grown` had grown, and `new` had just been made.
fn after_a_power_loss(setup: Setup, calls: &HostCalls) -> Option<Mount> {
    let mut mount = setup.host_calls(calls).mount_with(["--commit", "3600", "--durability", "fsync"]).mount();
    if mount.is_plain() {
        return None;
    }
    fs::write(mount.at("replaced"), bytes(1, OLD)).unwrap();
    fs::write(mount.at("grown"), bytes(2, OLD)).unwrap();
    fs::write(mount.at("other"), bytes(3, OLD)).unwrap();
    mount.sync();
    let replacing = File::create(mount.at("replaced")).unwrap();
    replacing.write_all_at(&bytes(4, NEW), 0).unwrap();
    // That it is being replaced is durable, and what with is not.
    mount.sync();
    let grown = OpenOptions::new().append(true).open(mount.at("grown")).unwrap();
    grown.write_all_at(&bytes(5, TAIL), OLD as u64).unwrap();
    let new = File::create(mount.at("new")).unwrap();
    new.write_all_at(&bytes(6, UNKNOWN), 0).unwrap();
    mount.kill9();
    drop((replacing, grown, new));
    mount.power_loss();
    Some(mount)
}

fn set_aside(mount: &Mount) -> Vec<(String, Vec<u8>)> {
    let entries = mount.quarantine();
    let of = |entry: &serde_json::Value| {
        let name = entry["name"].as_str().unwrap();
        // What found no room for a note has none.
        let reason = entry["reason"].as_str().unwrap_or("unknown-segment");
        (reason.to_owned(), fs::read(mount.pool().join("quarantine").join(name)).unwrap())
    };
    let mut found: Vec<_> = entries.iter().map(of).collect();
    found.sort();
    found
}

fn state(path: &Path) -> String {
    String::from_utf8(xattr::get(path, "user.tensorfs.state").unwrap()).unwrap()
}

/// The files hold what was promised, and what was not is in quarantine.
#[track_caller]
fn is_in_order(mount: &Mount) {
    assert!(fs::read(mount.at("replaced")).unwrap() == bytes(1, OLD), "the old version is not whole");
    assert!(fs::read(mount.at("grown")).unwrap() == bytes(2, OLD), "{}", mount.at("grown").metadata().unwrap().len());
    let expected = [
        ("uncommitted-tail".to_owned(), bytes(5, TAIL)),
        ("unfinished-replace".to_owned(), bytes(4, NEW)),
        ("unknown-segment".to_owned(), bytes(6, UNKNOWN)),
    ];
    let found = set_aside(mount);
    let shown = found.iter().map(|(reason, bytes)| (reason, bytes.len())).collect::<Vec<_>>();
    assert!(found == expected, "{shown:?}");
    assert_eq!(mount.info()["damaged_files"], serde_json::json!([]));
    mount.tensorfs_ok(["check".as_ref(), mount.path().as_os_str()]);
}

/// The host fails over every segment while the pool is mounted, as a disk does that comes back too late, and is well
/// when it is mounted next, in the same boot of the machine: orderly in between, or killed.
///
/// Proves D10, D12, R3.
fn what_one_recovery_left_after_a_power_loss_the_next_judges_so_too(setup: Setup) {
    for (call, killed) in [(Call::Fstat, false), (Call::Fstat, true), (Call::Open, false)] {
        let calls = HostCalls::new();
        let Some(mut mount) = after_a_power_loss(setup.clone(), &calls) else { return };
        let failing = calls.add(Rule::of(call).on("/segments/00/0").error(libc::EIO));
        mount.mount();
        assert!(failing.hits() > 0);
        drop(failing);
        // Nothing is read, or written, of what nobody can tell from what a power loss left.
        for of in ["replaced", "grown"] {
            let path = mount.at(of);
            if call == Call::Open && of == "replaced" {
                continue;
            }
            assert_eq!(state(&path), "damaged", "{call:?} {of}");
            let said = [
                File::open(&path).map(drop),
                OpenOptions::new().write(true).open(&path).map(drop),
                File::create(&path).map(drop),
                nix::unistd::truncate(&path, 0).map_err(std::io::Error::from),
            ];
            let said = said.map(|said| said.err().and_then(|error| error.raw_os_error()));
            assert_eq!(said, [Some(libc::EIO); 4], "{call:?} {of}");
            assert_eq!(fs::metadata(&path).unwrap().len(), OLD as u64);
        }
        fs::write(mount.at("made"), "since").unwrap();
        if killed {
            mount.kill9();
        } else {
            mount.umount();
        }
        mount.mount();
        is_in_order(&mount);
        assert_eq!(fs::read(mount.at("made")).unwrap(), b"since");
        // It is over.
        mount.remount();
        is_in_order(&mount);
    }
}

/// As the old version is what the file holds, nobody waits for what becomes of the other.
///
/// Proves R3.
fn a_version_that_was_not_complete_keeps_nobody_from_the_one_before(setup: Setup) {
    for call in [Call::Fstat, Call::Open] {
        let calls = HostCalls::new();
        let Some(mut mount) = after_a_power_loss(setup.clone(), &calls) else { return };
        let replacing = segment_of(&mount, &bytes(4, NEW));
        let failing = calls.add(Rule::of(call).on(replacing).error(libc::EIO));
        mount.mount();
        assert!(failing.hits() > 0);
        assert!(fs::read(mount.at("replaced")).unwrap() == bytes(1, OLD));
        assert_eq!(set_aside(&mount).len(), 2);
        drop(failing);
        mount.kill9();
        mount.mount();
        is_in_order(&mount);
    }
}

fn segment_of(mount: &Mount, bytes: &[u8]) -> String {
    let shards = fs::read_dir(mount.pool().join("segments")).unwrap();
    let segments = shards.flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap());
    let mut paths = segments.map(|entry| entry.unwrap().path());
    let path = paths.find(|path| fs::read(path).unwrap() == bytes).expect("a segment with these bytes");
    format!("/{}", path.strip_prefix(mount.pool()).unwrap().display())
}

fn no_room(calls: &HostCalls, of: impl IntoIterator<Item = Call>) -> Injected {
    calls.add(Rule::of_any(of).on("/quarantine").error(libc::ENOSPC))
}

/// Whoever is to make room has to get at the rest: what cannot be set aside is left, and the next mount does that.
///
/// Proves D10, D12.
fn a_full_host_keeps_nobody_from_the_pool_after_a_power_loss(setup: Setup) {
    let calls = HostCalls::new();
    let Some(mut mount) = after_a_power_loss(setup, &calls) else { return };
    let full = no_room(&calls, [Call::Write, Call::Copy]);
    mount.mount();
    assert!(full.hits() > 0);
    // A second name needs no room.
    assert!(fs::read(mount.at("replaced")).unwrap() == bytes(1, OLD));
    assert_eq!(File::open(mount.at("grown")).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(mount.info()["damaged_files"], serde_json::json!(["/grown"]));
    assert!(mount.log().contains("no room"), "{}", mount.log());
    fs::remove_file(mount.at("other")).unwrap();
    mount.sync();
    // Still no room.
    mount.remount();
    assert_eq!(File::open(mount.at("grown")).unwrap_err().raw_os_error(), Some(libc::EIO));
    drop(full);
    mount.kill9();
    mount.mount();
    is_in_order(&mount);
}

/// Where nothing can have a second name, what is set aside is copied.
///
/// Proves D12, R3.
fn a_host_that_is_full_and_has_no_links_keeps_nobody_from_the_pool(setup: Setup) {
    let calls = HostCalls::new();
    let Some(mut mount) = after_a_power_loss(setup, &calls) else { return };
    let no_links = calls.add(Rule::of(Call::Link).on("/quarantine").error(libc::EPERM));
    let full = no_room(&calls, [Call::Write, Call::Copy]);
    mount.mount();
    assert!(fs::read(mount.at("replaced")).unwrap() == bytes(1, OLD));
    fs::remove_file(mount.at("other")).unwrap();
    mount.umount();
    drop(full);
    mount.mount();
    is_in_order(&mount);
    drop(no_links);
}

/// The host has cut the file, and then fails to tell of it. A program that heard of that error has written the file
/// anew, to the byte as long as it was, and the server is killed.
///
/// Proves D9.
fn a_cut_that_could_not_be_recorded_as_done_is_not_done_again(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount_with(["--commit", "3600", "--durability", "fsync"]).mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("f");
    fs::write(&path, bytes(1, OLD)).unwrap();
    mount.sync();
    let segment = segment_of(&mount, &bytes(1, OLD));
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let cutting = calls.add(Rule::of(Call::Ftruncate).on(&segment).after().held());
    let cut = std::thread::spawn(move || (file.set_len(0), file));
    cutting.wait_for_waiting(1);
    let failing = calls.add(Rule::of(Call::Fstat).on(&segment).error(libc::EIO));
    drop(cutting);
    let (said, file) = cut.join().unwrap();
    assert_eq!(said.unwrap_err().raw_os_error(), Some(libc::EIO));
    // What the kernel writes for the program needs nobody who can tell of the file.
    if mount.passthrough() == tensorfs_tests::Passthrough::Off {
        failing.no_more();
    }
    file.write_all_at(&bytes(2, OLD), 0).unwrap();
    drop(file);
    mount.kill9();
    drop(failing);
    mount.mount();
    assert!(fs::read(&path).unwrap() == bytes(2, OLD), "{} bytes", fs::metadata(&path).unwrap().len());
}

/// Its segment was cut while no server ran, or was left so by one that was killed.
///
/// Proves D12, T7.
fn a_file_of_which_the_host_has_less_than_was_recorded_has_no_early_end(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let no_bytes = |result: std::io::Result<()>, what: &str| {
        assert_eq!(result.map_err(|error| error.raw_os_error()), Err(Some(libc::EIO)), "{what}");
    };
    for (round, killed) in [false, true].into_iter().enumerate() {
        // After a kill a small file gets its bytes from the log, if that has them yet.
        for (n, len) in [(0, 200_000), (1, if killed { 100_000 } else { 1000 })] {
            let (name, other) = (format!("f{round}{n}"), format!("other{round}{n}"));
            fs::write(mount.at(&name), bytes(10 * round as u64 + n, len)).unwrap();
            fs::write(mount.at(&other), bytes(10 * round as u64 + n + 5, len)).unwrap();
            mount.sync();
            let segment = mount.pool().join(&segment_of(&mount, &bytes(10 * round as u64 + n, len))[1..]);
            if killed {
                mount.kill9()
            } else {
                mount.umount()
            }
            // Who has it open is taken for a program that goes on to write it: it is another process, and ends.
            let half = len / 2;
            let (pool, segment) = (mount.pool().to_owned(), segment.to_str().unwrap().to_owned());
            let change = |how: &str| tensorfs_tests::shell(&pool, &how.replace("SEGMENT", &segment));
            change(&format!("truncate -s {half} SEGMENT"));
            mount.mount();
            let path = mount.at(&name);
            assert_eq!(fs::metadata(&path).unwrap().len(), len as u64);
            no_bytes(fs::read(&path).map(drop), "read");
            no_bytes(OpenOptions::new().append(true).open(&path).map(drop), "append");
            no_bytes(nix::unistd::truncate(&path, 10).map_err(std::io::Error::from), "cut");
            assert_eq!(xattr::get(&path, "user.tensorfs.state").unwrap(), b"damaged");
            assert!(fs::read(mount.at(&other)).unwrap() == bytes(10 * round as u64 + n + 5, len));
            // It is whole again as its segment is.
            let whole = mount.host().join("whole");
            fs::write(&whole, bytes(10 * round as u64 + n, len)).unwrap();
            change(&format!("cat '{}' >SEGMENT", whole.display()));
            assert!(fs::read(&path).unwrap() == bytes(10 * round as u64 + n, len));
            change(&format!("truncate -s {half} SEGMENT"));
            fs::write(&path, b"new").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
            wait_until("it is closed", || xattr::get(&path, "user.tensorfs.state").unwrap() != b"damaged");
            fs::remove_file(&path).unwrap();
        }
    }
}
