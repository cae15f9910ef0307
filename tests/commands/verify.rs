//! Damage: one changed byte on the medium is reported as the tensor that it belongs to, and as no other, by `verify`,
//! `scrub` and `check`, on a mount and in a pool that is not mounted.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tensorfs_tests::{
    Call, HostCalls, Mount, Passthrough, Pattern, Rule, Setup, child, is_root, on_mounts, run_ok, samples, wait_until,
};

on_mounts!(
    one_changed_byte_is_one_tensor,
    a_large_tensor_and_its_neighbours,
    scrub_finds_a_changed_byte_and_it_is_remembered,
    what_a_scrub_found_is_known_to_the_next_mount,
    what_the_host_refuses_is_said_in_words,
    scrub_waits_for_nobody_and_keeps_its_pace,
    a_scrub_that_was_interrupted_goes_on,
    a_scrub_whose_program_is_gone_ends,
    what_is_written_meanwhile_is_not_damaged,
    bytes_behind_the_end_of_a_sealed_file_are_damage,
    unsealed_files_are_said_to_be_so,
    seal_says_what_is_in_use,
    seal_does_not_take_damage_for_the_truth,
    a_mount_that_is_written_has_no_findings,
    check_of_a_mount_finds_what_is_wrong,
    other_users_may_ask_about_their_files_only,
    states_in_listings,
    what_is_not_all_there_is_nowhere_complete,
    a_plan_that_is_cut_short_is_incomplete,
    pools_are_listed_and_sealed_without_a_mount,
);

fn arguments<'a>(list: &[&'a str], path: &'a str) -> Vec<&'a str> {
    let mut all = list.to_vec();
    all.push(path);
    all
}

/// Runs the program on a path. Its status and the lines of JSON that it prints.
#[track_caller]
pub(crate) fn lines(mount: &Mount, list: &[&str], path: &Path) -> (Option<i32>, Vec<Value>) {
    let output = mount.tensorfs(arguments(list, path.to_str().unwrap()));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")));
    (output.status.code(), lines.collect())
}

/// The report that `check` and `scrub` print.
#[track_caller]
pub(crate) fn report(mount: &Mount, list: &[&str], path: &Path) -> (Option<i32>, Value) {
    let output = mount.tensorfs(arguments(list, path.to_str().unwrap()));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {errors}"));
    (output.status.code(), value)
}

#[track_caller]
pub(crate) fn seal(mount: &Mount, path: &Path) {
    mount.tensorfs_ok(["seal", path.to_str().unwrap()]);
}

/// The segment with these bytes: no other file of the test has them.
pub(crate) fn segment(mount: &Mount, bytes: &[u8]) -> PathBuf {
    let mut found = Vec::new();
    for shard in fs::read_dir(mount.pool().join("segments")).unwrap() {
        for entry in fs::read_dir(shard.unwrap().path()).unwrap() {
            let path = entry.unwrap().path();
            if fs::metadata(&path).unwrap().len() == bytes.len() as u64 && fs::read(&path).unwrap() == bytes {
                found.push(path);
            }
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

pub(crate) fn flip(segment: &Path, at: u64) {
    let mut file = File::options().read(true).write(true).open(segment).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&[byte[0] ^ 0x10]).unwrap();
    file.sync_all().unwrap();
}

/// What tells tensors of a file apart in lists.
fn label(tensor: &Value) -> String {
    format!("{} {} {} {}", tensor["name"], tensor["step"], tensor["mode"], tensor["offset"])
}

/// The tensors of a listing that have this byte.
fn having(tensors: &[Value], byte: u64) -> BTreeSet<String> {
    let has = |tensor: &&Value| {
        let (offset, len) = (tensor["offset"].as_u64().unwrap(), tensor["len"].as_u64().unwrap());
        (offset..offset + len).contains(&byte)
    };
    tensors.iter().filter(has).map(label).collect()
}

/// What `verify` calls damaged. The last line is about the file, and must agree.
#[track_caller]
fn damaged(mount: &Mount, path: &Path, expected: usize) -> BTreeSet<String> {
    let (status, lines) = lines(mount, &["verify", "--json"], path);
    let (file, tensors) = lines.split_last().unwrap();
    assert_eq!(tensors.len(), expected, "{path:?}");
    let hurt: BTreeSet<String> = tensors.iter().filter(|t| t["verdict"] == "damaged").map(label).collect();
    let is_damaged = file["verdict"] == "damaged";
    assert_eq!(status, Some(if is_damaged { 4 } else { 0 }), "{file}");
    assert_eq!(is_damaged, !file["damaged_runs"].as_array().unwrap().is_empty());
    assert!(is_damaged || hurt.is_empty());
    assert_eq!(file["damaged_tensors"].as_u64().unwrap(), hurt.len() as u64);
    hurt
}

/// Proves C4.
fn one_changed_byte_is_one_tensor(setup: Setup) {
    const FORMATS: [&str; 7] = [
        "smdebug.tfevents",
        "board.tfevents",
        "torch2-checkpoint.pt",
        "torch1-views.pt",
        "model.safetensors",
        "f4.npy",
        "compressed.npz",
    ];
    let mut mount = setup.mount();
    for name in FORMATS {
        fs::copy(samples().join(name), mount.at(name)).unwrap();
    }
    seal(&mount, mount.path());
    let mut cases = Vec::new();
    for name in FORMATS {
        let (_, tensors) = lines(&mount, &["tensors", "--json"], &mount.at(name));
        let bytes = fs::read(samples().join(name)).unwrap();
        let segment = segment(&mount, &bytes);
        // Each has the checksum of its own bytes, and `verify` says the same.
        let (_, verified) = lines(&mount, &["verify", "--json"], &mount.at(name));
        for (at, tensor) in tensors.iter().enumerate().filter(|(_, tensor)| tensor["len"].as_u64() > Some(0)) {
            let (offset, len) = (tensor["offset"].as_u64().unwrap(), tensor["len"].as_u64().unwrap());
            let crc = tensorfs_formats::crc32c(&bytes[offset as usize..(offset + len) as usize]);
            assert_eq!(tensor["crc32c"], format!("{crc:08x}"), "{name}: {tensor}");
            assert_eq!(verified[at]["crc32c"], tensor["crc32c"], "{name}: {tensor}");
        }
        // A byte of the first, of one in the middle, of the last tensor; and one of the file's beginning, which is
        // nobody's.
        let filled: Vec<&Value> = tensors.iter().filter(|tensor| tensor["len"].as_u64() > Some(0)).collect();
        let inside = |tensor: &Value, part: u64| {
            let (offset, len) = (tensor["offset"].as_u64().unwrap(), tensor["len"].as_u64().unwrap());
            offset + len * part / 3
        };
        let places =
            [inside(filled[0], 0), inside(filled[filled.len() / 2], 1), inside(filled[filled.len() - 1], 2), 0];
        cases.push((name, segment, tensors, places));
    }
    for (name, segment, tensors, places) in &cases {
        for place in places {
            flip(segment, *place);
            assert_eq!(damaged(&mount, &mount.at(name), tensors.len()), having(tensors, *place), "{name} at {place}");
            flip(segment, *place);
        }
        assert!(damaged(&mount, &mount.at(name), tensors.len()).is_empty());
    }
    mount.umount();
    for (name, segment, tensors, places) in &cases {
        let path = PathBuf::from(format!("{}:/{name}", mount.pool().display()));
        flip(segment, places[1]);
        let hurt = damaged(&mount, &path, tensors.len());
        assert_eq!(hurt, having(tensors, places[1]), "{name}");
        // What check says has the same names.
        let (status, report) = report(&mount, &["check", "--data", "--json"], mount.pool());
        assert_eq!(status, Some(4));
        let findings = report["findings"].as_array().unwrap();
        assert_eq!(findings.len(), 1, "{report}");
        assert_eq!(findings[0]["path"], format!("/{name}"));
        assert_eq!(findings[0]["tensors"].as_array().unwrap().len(), hurt.len(), "{report}");
        flip(segment, places[1]);
    }
    let pool = mount.pool().to_owned();
    assert_eq!(lines(&mount, &["verify", "--json"], &pool).0, Some(0));
}

/// Makes a safetensors file of bytes, and returns what is in it.
pub(crate) fn safetensors(path: &Path, tensors: &[(&str, &[u8])]) -> Vec<u8> {
    let file = tensorfs_tests::safetensors(tensors);
    fs::write(path, &file).unwrap();
    file
}

/// Proves C4.
fn a_large_tensor_and_its_neighbours(setup: Setup) {
    let mount = setup.mount();
    let path = mount.at("model.safetensors");
    let large = Pattern(1).bytes(0, 3 << 20);
    let other = Pattern(2).bytes(0, 5000);
    let bytes = safetensors(&path, &[("a", b"small"), ("large", &large), ("b", b"small too"), ("other", &other)]);
    seal(&mount, &path);
    let segment = segment(&mount, &bytes);
    let begin = bytes.len() as u64 - 5000 - 9 - (3 << 20);
    for (byte, name) in [
        (begin, "large"),
        (begin + (3 << 20) - 1, "large"),
        (begin - 1, "a"),
        (begin + (3 << 20), "b"),
        (begin + (3 << 20) + 9, "other"),
    ] {
        flip(&segment, byte);
        let hurt = damaged(&mount, &path, 4);
        assert_eq!(hurt.len(), 1, "{hurt:?}");
        assert!(hurt.first().unwrap().starts_with(&format!("\"{name}\" ")), "{hurt:?} is not {name}");
        flip(&segment, byte);
    }
    assert!(damaged(&mount, &path, 4).is_empty());
}

/// Proves C4, C6.
fn scrub_finds_a_changed_byte_and_it_is_remembered(setup: Setup) {
    let mount = setup.mount();
    let path = mount.at("model.safetensors");
    let bytes = safetensors(&path, &[("a", b"small"), ("b", &Pattern(1).bytes(0, 100_000))]);
    fs::write(mount.at("whole"), Pattern(2).bytes(0, 100_000)).unwrap();
    seal(&mount, mount.path());
    let (status, whole) = report(&mount, &["scrub", "--json"], mount.path());
    assert_eq!((status, &whole["findings"]), (Some(0), &serde_json::json!([])));
    assert_eq!(whole["verified_bytes"], bytes.len() + 100_000);
    flip(&segment(&mount, &bytes), bytes.len() as u64 - 1);
    let (status, found) = report(&mount, &["scrub", "--json", "--no-limit"], mount.path());
    assert_eq!(status, Some(4), "{found}");
    let findings = found["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{found}");
    assert_eq!(
        (&findings[0]["path"], &findings[0]["tensors"]),
        (&"/model.safetensors".into(), &serde_json::json!(["b"]))
    );
    assert!(mount.log().contains("/model.safetensors: "), "{}", mount.log());
    assert_eq!(mount.info()["damage_found"].as_array().unwrap().len(), 1);
    let state = |name: &str| lines(&mount, &["ls", "--json"], &mount.at(name)).1[0]["state"].clone();
    assert_eq!((state("model.safetensors"), state("whole")), ("damaged".into(), "sealed".into()));
    // It can be read, synced and written all the same; then it is no longer damaged.
    assert_eq!(fs::read(&path).unwrap().len(), bytes.len());
    File::options().write(true).open(&path).unwrap().sync_all().unwrap();
    safetensors(&path, &[("a", b"again")]);
    assert_eq!(mount.info()["damage_found"], serde_json::json!([]));
    seal(&mount, &path);
    assert_eq!(state("model.safetensors"), "sealed");
    assert_eq!(report(&mount, &["scrub", "--json"], mount.path()).0, Some(0));
}

/// Damage is known from mount to mount, also to who looks at the pool while nobody has mounted it, until the file is
/// written again; and when the pool was scrubbed last.
///
/// Proves C6.
fn what_a_scrub_found_is_known_to_the_next_mount(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let bytes = safetensors(&mount.at("model"), &[("a", b"small"), ("b", &Pattern(1).bytes(0, 100_000))]);
    fs::write(mount.at("whole"), Pattern(2).bytes(0, 100_000)).unwrap();
    seal(&mount, mount.path());
    assert_eq!(mount.info()["last_scrub"], Value::Null);
    flip(&segment(&mount, &bytes), bytes.len() as u64 - 1);
    assert_eq!(report(&mount, &["scrub", "--json"], mount.path()).0, Some(4));
    let scrubbed = mount.info()["last_scrub"].clone();
    assert_eq!((&scrubbed["findings"], &scrubbed["verified_bytes"]), (&1.into(), &(bytes.len() + 100_000).into()));
    assert!(scrubbed["time"]["sec"].as_u64().unwrap() > 1_700_000_000, "{scrubbed}");
    fs::rename(mount.at("model"), mount.at("moved")).unwrap();
    let known = |mount: &Mount, root: &Path, damaged: bool| {
        let (_, files) = lines(mount, &["ls", "--json"], root);
        let states: Vec<(&str, &str)> = files
            .iter()
            .map(|file| (file["path"].as_str().unwrap().rsplit('/').next().unwrap(), file["state"].as_str().unwrap()))
            .collect();
        assert_eq!(states, [("moved", if damaged { "damaged" } else { "sealed" }), ("whole", "sealed")]);
        let info = report(mount, &["info", "--json"], root).1;
        let paths: Vec<&Value> = info["damage_found"].as_array().unwrap().iter().map(|one| &one["path"]).collect();
        assert_eq!(paths, if damaged { vec!["/moved"] } else { vec![] });
        assert_eq!(info["last_scrub"], scrubbed);
        let (status, check) = report(mount, &["check", "--json"], root);
        let found = check["findings"].as_array().unwrap().len();
        assert_eq!((status, found), if damaged { (Some(4), 1) } else { (Some(0), 0) }, "{check}");
        assert_eq!(check["last_scrub"], scrubbed);
    };
    known(&mount, mount.path(), true);
    mount.umount();
    known(&mount, mount.pool(), true);
    mount.mount();
    known(&mount, mount.path(), true);
    let (status, health) = report(&mount, &["health", "--json"], mount.path());
    assert_eq!((status, &health["last_scrub"]), (Some(1), &scrubbed), "{health}");
    // Also of a server that is killed.
    mount.kill9();
    mount.mount();
    known(&mount, mount.path(), true);
    // A file that was written again is not damaged, whoever asks.
    safetensors(&mount.at("moved"), &[("a", b"again")]);
    seal(&mount, mount.path());
    known(&mount, mount.path(), false);
    mount.umount();
    known(&mount, mount.pool(), false);
}

/// What the host says is told in words, without the numbers that Rust puts behind them, wherever it is kept and by
/// whichever command it is shown.
fn what_the_host_refuses_is_said_in_words(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    fs::write(mount.at("f"), Pattern(1).bytes(0, 100_000)).unwrap();
    seal(&mount, mount.path());
    let unreadable = calls.add(Rule::of(Call::Open).on("/segments/").error(libc::EIO));
    let (status, found) = report(&mount, &["scrub", "--json"], mount.path());
    assert_eq!((status, &found["findings"][0]["what"]), (Some(4), &"its segment cannot be opened: I/O error".into()));
    drop(unreadable);
    let failing = calls.add(Rule::of_any([Call::Fdatasync, Call::Fsync]).on("/log").error(libc::EIO));
    fs::create_dir(mount.at("d")).unwrap();
    assert!(File::open(mount.path()).unwrap().sync_all().is_err());
    assert!(mount.info()["read_only"].as_str().unwrap().contains("failed: I/O error; "), "{}", mount.info());
    for command in [&["info"][..], &["info", "--json"], &["health"], &["check"], &["ls"], &["metrics"]] {
        let output = mount.program().args(command).arg(mount.path()).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(
            !String::from_utf8_lossy(&said).contains("os error"),
            "{command:?}: {}",
            String::from_utf8_lossy(&said)
        );
    }
    assert!(!mount.log().contains("os error"), "{}", mount.log());
    drop(failing);
    mount.end();
}

/// What somebody has written behind a sealed file's end into its segment, past tensorfs, is found by whoever compares
/// the file with its checksums.
///
/// Proves C4.
fn bytes_behind_the_end_of_a_sealed_file_are_damage(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let (grown, empty) = (mount.at("grown"), mount.at("empty"));
    let bytes = Pattern(3).bytes(0, 50_000);
    fs::write(&grown, &bytes).unwrap();
    fs::write(&empty, "").unwrap();
    fs::write(mount.at("whole"), Pattern(4).bytes(0, 60_000)).unwrap();
    seal(&mount, mount.path());
    let segment = segment(&mount, &bytes);
    fs::OpenOptions::new().append(true).open(&segment).unwrap().write_all(&[1; 1000]).unwrap();
    let what = "its segment has 1000 bytes behind the end of the file";
    let verified = |mount: &Mount, path: &Path| {
        let (status, lines) = lines(mount, &["verify", "--json"], path);
        let files: Vec<Value> = lines.into_iter().filter(|line| line["name"].is_null()).collect();
        let damaged = files.iter().filter(|file| file["verdict"] == "damaged");
        let runs: Vec<Value> = damaged.map(|file| file["damaged_runs"].clone()).collect();
        assert_eq!(runs, [serde_json::json!([{"offset": 50_000, "len": 1000, "what": what}])]);
        status
    };
    let found = |list: &[&str], path: &Path| {
        let (status, report) = report(&mount, list, path);
        let findings = report["findings"].as_array().unwrap();
        // A look at the sizes finds it, and so does a look at the bytes: it is told once.
        assert_eq!(findings.len(), 1, "{list:?}: {report}");
        for finding in findings {
            assert_eq!((&finding["path"], &finding["what"]), (&"/grown".into(), &what.into()), "{list:?}");
        }
        status
    };
    assert_eq!(verified(&mount, mount.path()), Some(4));
    assert_eq!(found(&["scrub", "--json", "--no-limit"], mount.path()), Some(4));
    assert_eq!(found(&["check", "--json"], mount.path()), Some(4));
    assert_eq!(found(&["check", "--json", "--data"], mount.path()), Some(4));
    mount.umount();
    assert_eq!(verified(&mount, mount.pool()), Some(4));
    for list in [&["check", "--json"][..], &["check", "--json", "--data"]] {
        assert_eq!(report(&mount, list, mount.pool()).0, Some(4), "{list:?}");
    }
    // Also in a pool that was not closed: no program could write a file that has seals.
    mount.mount();
    mount.kill9();
    let (status, unclean) = report(&mount, &["check", "--json"], mount.pool());
    assert_eq!((status, &unclean["findings"][0]["what"]), (Some(4), &what.into()), "{unclean}");
    // Recovery takes no more of it for data than others do.
    mount.mount();
    assert_eq!(fs::metadata(mount.at("grown")).unwrap().len(), 50_000);
    assert_eq!(verified(&mount, mount.path()), Some(4));
    assert_eq!(report(&mount, &["check", "--json"], mount.path()).0, Some(4));
}

/// While a scrub reads a file slowly, programs open it for writing and re-save it as ever.
///
/// Proves C6.
fn scrub_waits_for_nobody_and_keeps_its_pace(setup: Setup) {
    let mount = setup.mount();
    let path = mount.at("f");
    fs::write(&path, Pattern(1).bytes(0, 4 << 20)).unwrap();
    seal(&mount, &path);
    let begun = std::time::Instant::now();
    let scrub = mount
        .program()
        .args(["scrub", "--json", "--rate", "2M"])
        .arg(mount.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while fs::read_dir("/proc/self").is_ok() && begun.elapsed() < Duration::from_millis(300) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let replaced = mount.info()["counters"]["replaced"].as_u64().unwrap();
    fs::write(&path, b"saved again").unwrap();
    assert_eq!(mount.info()["counters"]["replaced"], replaced + 1, "the scrub was in the way of a replace");
    let output = scrub.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["findings"], serde_json::json!([]));
    assert_eq!(output.status.code(), Some(0));
    // At its own pace, a file takes as long as it says, less what may be read ahead.
    fs::write(&path, Pattern(1).bytes(0, 4 << 20)).unwrap();
    seal(&mount, &path);
    let begun = std::time::Instant::now();
    assert_eq!(self::report(&mount, &["scrub", "--json", "--rate", "8M"], mount.path()).0, Some(0));
    assert!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
}

/// True if a process has taken its interruption into its own hands.
fn blocks_sigint(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap_or("0");
    u64::from_str_radix(blocked.trim(), 16).unwrap() & 1 << (libc::SIGINT - 1) != 0
}

/// True if a signal is still to reach a process.
fn has_pending(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap_or("0");
    u64::from_str_radix(pending.trim(), 16).unwrap() != 0
}

/// True if a server runs a job.
fn has_job(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
    threads.flatten().any(|thread| name(thread).trim_end() == "tensorfs-job")
}

/// What was interrupted goes on where it was, also after another mount, and tells of both parts.
fn a_scrub_that_was_interrupted_goes_on(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let second = Pattern(2).bytes(0, 2 << 20);
    fs::write(mount.at("first"), Pattern(1).bytes(0, 1 << 20)).unwrap();
    fs::write(mount.at("second"), &second).unwrap();
    fs::write(mount.at("third"), Pattern(3).bytes(0, 4 << 20)).unwrap();
    seal(&mount, mount.path());
    let segments = fs::read_dir(mount.pool().join("segments")).unwrap();
    let mut segments = segments.flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap());
    let segment = segments.find(|entry| fs::read(entry.as_ref().unwrap().path()).unwrap() == second).unwrap().unwrap();
    let segment = segment.path().strip_prefix(mount.pool()).unwrap().to_str().unwrap().to_owned();
    let held = calls.add(Rule::of(Call::Open).on(format!("/{segment}")).held());
    let mut command = mount.program();
    command.args(["scrub", "--no-limit"]).arg(mount.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut scrub = command.spawn().unwrap();
    held.wait_for_waiting(1);
    // SAFETY: a plain system call; the child is ours and not waited for yet.
    assert_eq!(unsafe { libc::kill(scrub.id() as i32, libc::SIGINT) }, 0);
    // It has heard of it before the file can be opened: it would go on with the next one.
    wait_until("it has heard", || !has_pending(scrub.id()));
    let asked = |mount: &Mount| mount.info()["counters"]["ioctl"].as_u64().unwrap();
    let before = asked(&mount);
    wait_until("the server has heard", || asked(&mount) > before + 2);
    drop(held);
    assert_eq!(scrub.wait().unwrap().code(), Some(130));
    let unfinished = |mount: &Mount| {
        let text: Value = serde_json::from_slice(&fs::read(mount.pool().join("scrubbed")).unwrap()).unwrap();
        text["unfinished"].clone()
    };
    let ino = fs::metadata(mount.at("second")).unwrap().ino();
    assert_eq!((&unfinished(&mount)["next"], &unfinished(&mount)["verified_bytes"]), (&ino.into(), &(1 << 20).into()));
    assert!(mount.info()["last_scrub"].is_null(), "it has not ended");
    mount.remount();
    let (code, report) = self::report(&mount, &["scrub", "--resume", "--json"], mount.path());
    assert_eq!((code, &report["verified_bytes"]), (Some(0), &(7 << 20).into()), "{report}");
    assert!(unfinished(&mount).is_null());
    assert_eq!(mount.info()["last_scrub"]["verified_bytes"], 7 << 20);
}

/// Interrupted, a scrub says so; and it does not keep the mount from being unmounted.
fn a_scrub_whose_program_is_gone_ends(setup: Setup) {
    let mut mount = setup.mount();
    fs::write(mount.at("f"), Pattern(1).bytes(0, 4 << 20)).unwrap();
    seal(&mount, mount.path());
    let start = || {
        let mut command = mount.program();
        command.args(["scrub", "--rate", "1K"]).arg(mount.path());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It is asked of the program's signals and of the server's threads, which is all that shows from outside.
        while !blocks_sigint(child.id()) || !has_job(mount.pid().unwrap()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    };
    let scrub = start();
    // SAFETY: a plain system call; the child is ours and not waited for yet.
    assert_eq!(unsafe { libc::kill(scrub.id() as i32, libc::SIGINT) }, 0);
    let output = scrub.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
    let mut killed = start();
    let second = mount.tensorfs(["scrub", mount.path().to_str().unwrap()]);
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("being scrubbed or checked already"));
    killed.kill().unwrap();
    killed.wait().unwrap();
    // Its job gives way to the next.
    let ended = (0..600).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        mount.tensorfs(["scrub", mount.path().to_str().unwrap()]).status.success()
    });
    assert!(ended, "the job of a program that was killed goes on and on");
    let mut left = start();
    // A job is no open file, and ends with its server.
    mount.umount();
    let mut text = String::new();
    left.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(left.wait().unwrap().code(), Some(1), "{text}");
}

/// Files are written, truncated, replaced and removed while they are verified again and again.
///
/// Proves C6.
fn what_is_written_meanwhile_is_not_damaged(setup: Setup) {
    let mount = setup.mount();
    for n in 0..8 {
        fs::write(mount.at(format!("f{n}")), Pattern(n).bytes(0, 300_000)).unwrap();
    }
    seal(&mount, mount.path());
    let root = mount.path().to_owned();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let path = root.join(format!("f{}", round % 8));
                match round % 4 {
                    0 => fs::write(&path, Pattern(round).bytes(0, 200_000)).unwrap(),
                    1 => File::options().write(true).open(&path).unwrap().write_all_at(b"in place", 1000).unwrap(),
                    2 => nix::unistd::truncate(&path, 150_000).unwrap(),
                    _ => fs::rename(&path, root.join("f0"))
                        .and_then(|()| fs::copy(root.join("f0"), &path))
                        .map(drop)
                        .unwrap(),
                }
                round += 1;
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        for _ in 0..10 {
            let _ = mount.tensorfs(["seal", root.to_str().unwrap()]);
            let (status, verified) = lines(&mount, &["verify", "--json"], &root);
            // A file may be gone when its turn comes.
            assert!(matches!(status, Some(0 | 1)), "{verified:?}");
            let (status, found) = report(&mount, &["scrub", "--json", "--no-limit"], &root);
            assert_eq!(status, Some(0), "{found}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    seal(&mount, &root);
    assert_eq!(report(&mount, &["check", "--data", "--json"], &root).0, Some(0));
}

fn unsealed_files_are_said_to_be_so(setup: Setup) {
    let mount = setup.mount();
    let path = mount.at("f");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"not done yet").unwrap();
    let (status, found) = lines(&mount, &["verify", "--json"], &path);
    assert_eq!((status, &found[0]["verdict"], &found[0]["state"]), (Some(0), &"unsealed".into(), &"open".into()));
    let text = mount.tensorfs_ok(["verify", path.to_str().unwrap()]);
    assert!(text.contains("f: not sealed (open)") && text.contains("1 without checksums"), "{text}");
    drop(file);
    let (status, found) = lines(&mount, &["verify", "--seal", "--json"], &path);
    assert_eq!((status, &found[0]["verdict"]), (Some(0), &"ok".into()));
    let (status, _) = lines(&mount, &["verify", "--json"], Path::new("/etc/passwd"));
    assert_eq!(status, Some(1), "a file that is on no mount has no checksums");
}

fn seal_says_what_is_in_use(setup: Setup) {
    let mount = setup.mount();
    for name in ["open", "mapped", "idle"] {
        fs::write(mount.at(name), Pattern(1).bytes(0, 10_000)).unwrap();
    }
    let held = File::options().append(true).open(mount.at("open")).unwrap();
    let mut child = child(["do"]);
    assert_eq!(child.ask(&format!("open f rw {}", mount.at("mapped").display())), "ok");
    assert_eq!(child.ask("map f m 10000 w"), "ok");
    assert_eq!(child.ask("close f"), "ok");
    let output = mount.tensorfs(["seal", mount.path().to_str().unwrap()]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("/open: not sealed: it is open for writing"), "{errors}");
    // Without passthrough a mapping keeps the file open.
    let mapped = if mount.passthrough() == Passthrough::On { "mapped" } else { "open" };
    assert!(errors.contains(&format!("/mapped: not sealed: it is {mapped} for writing")), "{errors}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "1 file is sealed, 2 not\n");
    drop((held, child));
    let all = mount.tensorfs_ok(["seal", mount.path().to_str().unwrap()]);
    assert_eq!(all, "3 files are sealed\n");
    // Looking at all of them again stores nothing new.
    let records = |mount: &Mount| mount.info()["records"].clone();
    let before = records(&mount);
    assert_eq!(mount.tensorfs_ok(["seal", "--again", mount.path().to_str().unwrap()]), "3 files are sealed\n");
    assert_eq!(records(&mount), before);
}

/// Sealing again must not give damaged bytes a checksum that fits.
fn seal_does_not_take_damage_for_the_truth(setup: Setup) {
    let mut mount = setup.mount();
    let bytes = Pattern(1).bytes(0, 100_000);
    fs::write(mount.at("f"), &bytes).unwrap();
    seal(&mount, mount.path());
    let segment = segment(&mount, &bytes);
    flip(&segment, 50_000);
    let root = mount.path().to_owned();
    let again = |mount: &Mount, path: &Path| {
        let output = mount.tensorfs(["seal", "--again", path.to_str().unwrap()]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, errors) = again(&mount, &root);
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("its bytes are not those that were sealed"), "{errors}");
    assert_eq!(damaged(&mount, &mount.at("f"), 0).len(), 0);
    mount.umount();
    let pool = mount.pool().to_owned();
    assert_eq!(again(&mount, &pool).0, Some(1));
    assert_eq!(lines(&mount, &["verify", "--json"], &pool).0, Some(4));
    flip(&segment, 50_000);
    assert_eq!(again(&mount, &pool).0, Some(0));
    assert_eq!(lines(&mount, &["verify", "--json"], &pool).0, Some(0));
}

/// Everything at once while the mount is checked again and again: `TENSORFS_CHECK_SECONDS` says for how long.
///
/// Proves C6.
fn a_mount_that_is_written_has_no_findings(setup: Setup) {
    let seconds = std::env::var("TENSORFS_CHECK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let mount = setup.mount_with(["--commit", "0.05"]).mount();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let stopped = || stop.load(std::sync::atomic::Ordering::Relaxed);
    let root = mount.path();
    std::thread::scope(|scope| {
        for writer in 0..3_u64 {
            scope.spawn(move || {
                let dir = root.join(format!("w{writer}"));
                let mut round = 0_u64;
                while !stopped() {
                    fs::create_dir_all(dir.join(format!("d{}", round % 5))).unwrap();
                    let at = |n: u64| dir.join(format!("d{}/f{}", n % 5, n % 60));
                    match round % 9 {
                        0..4 => fs::write(at(round), Pattern(round).bytes(0, (round % 40 * 1000) as usize)).unwrap(),
                        4 => drop(fs::remove_file(at(round / 2))),
                        5 => drop(fs::rename(at(round - 1), at(round))),
                        6 => drop(fs::hard_link(at(round - 3), dir.join(format!("link{}", round % 7)))),
                        7 => drop(fs::remove_file(dir.join(format!("link{}", round % 7)))),
                        _ => {
                            let _ = nix::unistd::truncate(&at(round - 5), (round % 3 * 2000) as i64);
                            let held = File::create(dir.join("gone")).unwrap();
                            fs::remove_file(dir.join("gone")).unwrap();
                            (&held).write_all(b"unlinked and open").unwrap();
                        }
                    }
                    round += 1;
                }
            });
        }
        let begun = std::time::Instant::now();
        let mut checks = 0;
        while begun.elapsed() < Duration::from_secs(seconds) || checks < 3 {
            let list: &[&str] = if checks % 4 == 3 { &["check", "--data", "--json"] } else { &["check", "--json"] };
            let (status, found) = report(&mount, list, root);
            if status != Some(0) {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            assert_eq!(status, Some(0), "{found}");
            assert!(found["frames"].as_u64() > Some(0) && found["objects"].as_u64() > Some(0), "{found}");
            checks += 1;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(mount.info()["read_only"].is_null());
}

fn check_of_a_mount_finds_what_is_wrong(setup: Setup) {
    let mount = setup.mount();
    for n in 0..3 {
        fs::write(mount.at(format!("f{n}")), Pattern(n).bytes(0, 10_000 + n as usize)).unwrap();
    }
    seal(&mount, mount.path());
    let segments: Vec<PathBuf> = (0..3).map(|n| segment(&mount, &Pattern(n).bytes(0, 10_000 + n as usize))).collect();
    let check = |list: &[&str]| {
        let list = [&["check", "--json"], list].concat();
        let (status, found) = report(&mount, &list, mount.path());
        let what = found["findings"].as_array().unwrap().iter();
        let what: Vec<String> = what
            .map(|f| format!("{} {}", f["path"].as_str().unwrap_or_default(), f["what"].as_str().unwrap()))
            .collect();
        assert_eq!(status, Some(if what.is_empty() { 0 } else { 4 }), "{found}");
        what
    };
    assert!(check(&[]).is_empty());
    // A segment that is gone, one that is too short, one with a byte that is not what was written.
    let moved = mount.host().join("moved");
    fs::rename(&segments[0], &moved).unwrap();
    assert_eq!(check(&[]), ["/f0 its segment is missing"]);
    fs::rename(&moved, &segments[0]).unwrap();
    File::options().write(true).open(&segments[1]).unwrap().set_len(5000).unwrap();
    assert_eq!(check(&[]), ["/f1 its segment ends at 5000, the file at 10001"]);
    File::options().write(true).open(&segments[1]).unwrap().set_len(20_000).unwrap();
    assert_eq!(check(&[]), ["/f1 its segment has 9999 bytes behind the end of the file"]);
    let rest = Pattern(1).bytes(0, 10_001);
    fs::write(&segments[1], rest).unwrap();
    flip(&segments[2], 77);
    assert!(check(&[]).is_empty());
    let found = check(&["--data"]);
    assert!(found.len() == 1 && found[0].starts_with("/f2 10002 bytes from offset 0"), "{found:?}");
    flip(&segments[2], 77);
    assert!(check(&["--data"]).is_empty());
    // A superblock, and a byte in a frame.
    let log = mount.pool().join("log");
    flip(&log, 100);
    assert_eq!(check(&[]).len(), 1);
    flip(&log, 100);
    flip(&log, (2 << 20) + 64 + 70);
    let found = check(&[]);
    assert!(found.iter().any(|what| what.contains("cannot be read")), "{found:?}");
    flip(&log, (2 << 20) + 64 + 70);
    // A block that should be free.
    let last = fs::metadata(&log).unwrap().len() - 10;
    flip(&log, last);
    let found = check(&[]);
    assert!(found.len() == 1 && found[0].contains("does not hold what was written"), "{found:?}");
    flip(&log, last);
    assert!(check(&["--data"]).is_empty());
    let output = mount.tensorfs(["check", "--repair", mount.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(8));
    assert!(String::from_utf8_lossy(&output.stderr).contains("unmount it"));
}

fn other_users_may_ask_about_their_files_only(setup: Setup) {
    if !is_root() {
        return setup.skip("needs root to be somebody else");
    }
    let mount = setup.mount();
    use std::os::unix::fs::PermissionsExt;
    for (name, mode) in [("public", 0o644), ("private", 0o600)] {
        fs::write(mount.at(name), Pattern(1).bytes(0, 10_000)).unwrap();
        fs::set_permissions(mount.at(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    seal(&mount, mount.path());
    // The directories of the tests are nobody's business: the program is asked from within the mount.
    let program = mount.host().join("tensorfs");
    // Not by this process: a child that another test starts meanwhile would have it open for writing.
    run_ok(Command::new("cp").arg(mount.program().get_program()).arg(&program));
    for dir in mount.host().ancestors().take_while(|dir| dir.parent().is_some()) {
        let found = fs::metadata(dir).unwrap().permissions().mode();
        if found & 0o011 != 0o011 {
            let reached = fs::set_permissions(dir, fs::Permissions::from_mode(found | 0o011));
            if reached.is_err() {
                return setup_skip(&mount);
            }
        }
    }
    let as_nobody = |list: &[&str]| {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(&program);
        command.args(list).current_dir(mount.path()).uid(65534).gid(65534);
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let (status, text) = as_nobody(&["verify", "--json", "public"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("\"ok\""), "{text}");
    let (status, text) = as_nobody(&["verify", "private"]);
    assert!(status == Some(1) && text.contains("Permission denied"), "{text}");
    let (_, text) = as_nobody(&["ls", "--json", "."]);
    let states: Vec<Value> =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["state"].clone()).collect();
    assert_eq!(states, [Value::Null, "sealed".into()], "{text}");
    for list in [
        &["seal", "public"][..],
        &["scrub", mount.path().to_str().unwrap()],
        &["check", mount.path().to_str().unwrap()],
    ] {
        let (status, text) = as_nobody(list);
        assert!(status != Some(0) && text.contains("only root, or who runs the server"), "{list:?}: {text}");
    }
}

fn setup_skip(mount: &Mount) {
    tensorfs_tests::skip(
        "other_users_may_ask_about_their_files_only",
        &format!("{:?} cannot be reached", mount.host()),
    );
}

fn what_is_not_all_there_is_nowhere_complete(setup: Setup) {
    let mount = setup.mount();
    let sample = |name: &str| fs::read(samples().join(name)).unwrap();
    let (npy, mut events) = (sample("f4.npy"), sample("board.tfevents"));
    fs::write(mount.at("whole.npy"), &npy).unwrap();
    fs::write(mount.at("cut.npy"), &npy[..npy.len() - 1]).unwrap();
    fs::write(mount.at("nothing.safetensors"), [&8_u64.to_le_bytes()[..], b"{} "].concat()).unwrap();
    // One byte of a frame, whose own checksum says so.
    events[60] ^= 1;
    fs::write(mount.at("events"), &events).unwrap();
    seal(&mount, mount.path());
    let complete = |line: &Value| (line["path"].as_str().unwrap().to_owned(), line["complete"].as_bool().unwrap());
    let wanted = ["cut.npy", "events", "nothing.safetensors", "whole.npy"].map(|name| {
        let path = mount.at(name).display().to_string();
        let said = tensorfs_tests::xattr::get(&mount.at(name), "user.tensorfs.complete").unwrap();
        assert_eq!(said == b"complete", name == "whole.npy", "{name}");
        (path, name == "whole.npy")
    });
    let (status, listed) = lines(&mount, &["ls", "--json"], mount.path());
    assert_eq!((status, listed.iter().map(complete).collect::<Vec<_>>()), (Some(0), wanted.to_vec()));
    let (status, verified) = lines(&mount, &["verify", "--json"], mount.path());
    let files: Vec<&Value> = verified.iter().filter(|line| line.get("complete").is_some()).collect();
    assert_eq!((status, files.iter().map(|line| complete(line)).collect::<Vec<_>>()), (Some(5), wanted.to_vec()));
    let verdicts: Vec<_> = files.iter().map(|line| line["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["interrupted", "incomplete", "interrupted", "ok"]);
    let (status, _) = lines(&mount, &["verify", "--json"], &mount.at("events"));
    assert_eq!(status, Some(5));
}

/// A plan that ends too early, and an index: whatever is asked, the checkpoint is incomplete.
fn a_plan_that_is_cut_short_is_incomplete(setup: Setup) {
    let mount = setup.mount();
    let plan = fs::read(samples().join("torch2-dcp.metadata")).unwrap();
    let index = br#"{"weight_map": {"array": "a.safetensors"#;
    for (dir, name, bytes) in [("dcp", ".metadata", &plan[..300]), ("hf", "m.safetensors.index.json", &index[..])] {
        let dir = mount.at(dir);
        fs::create_dir(&dir).unwrap();
        fs::copy(samples().join("torch2-dcp.distcp"), dir.join("__0_0.distcp")).unwrap();
        fs::write(dir.join(name), bytes).unwrap();
        seal(&mount, &dir);
        let (status, verified) = lines(&mount, &["verify", "--json"], &dir);
        let last = verified.last().unwrap();
        assert_eq!(
            (status, last["kind"].as_str(), last["state"].as_str()),
            (Some(5), Some("checkpoint"), Some("incomplete"))
        );
        let (_, listed) = lines(&mount, &["ls", "--json"], &dir);
        for line in [last, listed.last().unwrap()] {
            assert!(line["missing"][0].as_str().unwrap().contains("cannot be read"), "{line}");
        }
        let said = String::from_utf8(mount.tensorfs(["ls", dir.to_str().unwrap()]).stdout).unwrap();
        assert!(said.lines().last().unwrap().contains(": incomplete: "), "{said}");
    }
}

fn states_in_listings(setup: Setup) {
    let mount = setup.mount();
    fs::create_dir(mount.at("dir")).unwrap();
    fs::copy(samples().join("board.tfevents"), mount.at("dir/board.tfevents")).unwrap();
    fs::write(mount.at("opaque\u{1b}"), b"nothing").unwrap();
    seal(&mount, mount.path());
    let held = File::create(mount.at("held")).unwrap();
    let (status, listed) = lines(&mount, &["ls", "-R", "--json"], mount.path());
    assert_eq!(status, Some(0));
    let of = |name: &str| {
        let found = listed.iter().find(|line| line["path"].as_str().unwrap().ends_with(name));
        found.map(|line| (line["state"].clone(), line["tensors"].clone(), line["format"].clone())).unwrap()
    };
    assert_eq!(of("board.tfevents"), ("sealed".into(), 19.into(), "tfrecord".into()));
    assert_eq!(of("opaque\u{1b}"), ("sealed".into(), 0.into(), "opaque".into()));
    assert_eq!(of("held"), ("open".into(), Value::Null, Value::Null));
    drop(held);
    for list in [&["ls"][..], &["ls", "-l"], &["ls", "-lR"]] {
        let text = mount.tensorfs_ok(arguments(list, mount.path().to_str().unwrap()));
        assert!(!text.contains('\u{1b}') && text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("opaque\\u{1b}"), "{text}");
    }
    assert!(mount.tensorfs_ok(["ls", mount.path().to_str().unwrap()]).contains("dir/"));
    let output = mount.tensorfs(["ls", "/etc/passwd"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not on a tensorfs mount"));
}

fn pools_are_listed_and_sealed_without_a_mount(setup: Setup) {
    let mut mount = setup.mount();
    fs::create_dir(mount.at("dir")).unwrap();
    fs::copy(samples().join("model.safetensors"), mount.at("dir/model.safetensors")).unwrap();
    fs::write(mount.at("directory"), Pattern(3).bytes(0, 1000)).unwrap();
    mount.sync();
    let on_mount = lines(&mount, &["tensors", "--json"], &mount.at("dir/model.safetensors")).1;
    // The pool's path stands for its mount, too.
    let pool = mount.pool().to_owned();
    let inside = |path: &str| PathBuf::from(format!("{}:/{path}", pool.display()));
    assert_eq!(lines(&mount, &["ls", "--json"], &inside("dir")).1.len(), 1);
    mount.kill9();
    // What a killed server left is not sealed yet.
    mount.power_loss();
    let states = |mount: &Mount, path: &Path| -> Vec<Value> {
        lines(mount, &["ls", "-R", "--json"], path).1.iter().map(|line| line["state"].clone()).collect()
    };
    assert_eq!(states(&mount, &pool), ["committed", "committed"]);
    assert_eq!(mount.tensorfs_ok(["seal", inside("dir").to_str().unwrap()]), "1 file is sealed\n");
    assert_eq!(states(&mount, &inside("dir")), ["sealed"]);
    assert_eq!(states(&mount, &inside("directory")), ["committed"]);
    assert_eq!(mount.tensorfs_ok(["seal", pool.to_str().unwrap()]), "2 files are sealed\n");
    assert_eq!(states(&mount, &pool), ["sealed", "sealed"]);
    let mut in_pool = lines(&mount, &["tensors", "--json"], &inside("dir/model.safetensors")).1;
    for (tensor, other) in in_pool.iter_mut().zip(&on_mount) {
        tensor["path"] = other["path"].clone();
        // It was not sealed then.
        assert!(!tensor["crc32c"].take().is_null() && other["crc32c"].is_null());
    }
    assert_eq!(in_pool, on_mount);
    let text = mount.tensorfs_ok(["ls", "-l", pool.to_str().unwrap()]);
    assert!(text.lines().all(|line| line.chars().count() <= 80) && text.contains("dir/"), "{text}");
    let output = mount.tensorfs(["ls", inside("nothing").to_str().unwrap()]);
    assert!(output.status.code() == Some(1) && String::from_utf8_lossy(&output.stderr).contains("No such file"));
}
