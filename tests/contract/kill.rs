//! The server is killed while the machine stays up: nothing that was accepted is lost.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tensorfs_tests::{Call, Child, HostCalls, Mount, Passthrough, Pattern, Rule, Setup, child, on_mounts, run, run_ok};

on_mounts!(
    fifty_writers,
    killed_again_and_again,
    a_writer_that_outlives_the_server,
    what_is_written_and_closed_during_recovery_is_seen,
    what_is_written_after_an_orderly_unmount_by_who_outlived_the_server_is_seen,
    what_could_not_be_recorded_at_the_end_is_recorded_by_the_next_mount,
    a_server_that_ended_on_a_failed_disk_was_not_killed,
    what_outlives_a_server_with_passthrough_is_seen_without,
    who_opens_a_file_behind_the_look_of_recovery_is_seen_later,
    a_mapping_that_outlives_the_server,
    killed_while_idle,
    times_set_on_a_closed_file_outlive_the_server,
    power_loss_keeps_what_was_synced,
    power_loss_keeps_a_prefix_of_the_tree,
    power_loss_leaves_no_new_name_without_its_bytes,
    power_loss_after_a_truncation_finds_it_recorded,
    a_file_that_grew_again_after_a_truncation_is_not_cut_by_recovery,
    one_segment_that_the_host_fails_over_does_not_stop_recovery,
);

/// What a writer's ledger says of one of its files.
#[derive(Debug, Default, Clone)]
struct Expected {
    size: u64,
    renamed: bool,
    removing: bool,
    removed: bool,
}

struct Writer {
    seed: u64,
    ledger: PathBuf,
}

impl Writer {
    fn start(seed: u64, mount: &Mount) -> (Writer, Child) {
        let ledger = mount.host().join(format!("ledger-{seed}"));
        let child = child(["write".as_ref(), ledger.as_os_str(), mount.path().as_os_str(), seed.to_string().as_ref()]);
        (Writer { seed, ledger }, child)
    }

    fn steps(&self) -> usize {
        std::fs::read(&self.ledger).map_or(0, |text| text.iter().filter(|&&b| b == b'\n').count())
    }

    fn expected(&self) -> BTreeMap<String, Expected> {
        let mut files: BTreeMap<String, Expected> = BTreeMap::new();
        for line in std::fs::read_to_string(&self.ledger).unwrap().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let file = files.entry(words[1].to_owned()).or_default();
            match words[0] {
                "create" => {}
                "size" => file.size = words[2].parse().unwrap(),
                "rename" => file.renamed = true,
                "removing" => file.removing = true,
                "remove" => file.removed = true,
                _ => panic!("{line}"),
            }
        }
        files
    }

    /// Compares the mount with the ledger. What the ledger says was accepted, so it must be there;
    /// one more step may have been accepted behind it.
    fn verify(&self, directory: &Path) -> usize {
        let expected = self.expected();
        let mut next = 0;
        for (name, file) in &expected {
            let number: u64 = name.split_once('-').unwrap().1.parse().unwrap();
            next = next.max(number + 1);
            let temporary = directory.join(format!("{name}.tmp"));
            let last = directory.join(name);
            let path = match (temporary.exists(), last.exists()) {
                (true, true) => panic!("{name} has both its names"),
                (true, false) => {
                    assert!(!file.renamed && !file.removed, "{name} is back at its old name: {file:?}");
                    temporary
                }
                (false, true) => {
                    assert!(!file.removing, "{name} was to be removed, not renamed: {file:?}");
                    last
                }
                (false, false) => {
                    assert!(file.removing, "{name} is gone: {file:?}");
                    continue;
                }
            };
            let bytes = std::fs::read(&path).unwrap();
            assert!(bytes.len() as u64 >= file.size, "{name} has {} bytes of {}", bytes.len(), file.size);
            let pattern = Pattern(self.seed << 32 | number);
            assert_eq!(pattern.mismatch(0, &bytes), None, "{name} ({} bytes, {file:?})", bytes.len());
        }
        // The step behind the ledger: at most one new file, and nothing of it is known.
        let ours = format!("w{}-", self.seed);
        for entry in std::fs::read_dir(directory).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let Some(rest) = name.strip_prefix(&ours) else { continue };
            let number: u64 = rest.trim_end_matches(".tmp").parse().unwrap();
            if !expected.contains_key(name.trim_end_matches(".tmp")) {
                assert_eq!(name, format!("{ours}{next}.tmp"), "a file nobody made");
                let bytes = std::fs::read(directory.join(&name)).unwrap();
                assert_eq!(Pattern(self.seed << 32 | number).mismatch(0, &bytes), None, "{name}");
            }
        }
        expected.len()
    }
}

/// Starts writers, and kills the server once they have made `steps` steps all together.
fn write_and_kill(mount: &mut Mount, seeds: std::ops::Range<u64>, steps: usize) -> Vec<Writer> {
    let (writers, children): (Vec<_>, Vec<_>) = seeds.map(|seed| Writer::start(seed, mount)).unzip();
    while writers.iter().map(Writer::steps).sum::<usize>() < steps || writers.iter().any(|w| w.steps() == 0) {
        std::thread::sleep(Duration::from_millis(1));
    }
    if mount.is_plain() {
        children.into_iter().for_each(|child| child.kill(libc::SIGKILL));
        return writers;
    }
    mount.kill9();
    for child in children {
        // Each of them runs into the dead mount and ends; none hangs.
        assert!(child.wait().success());
    }
    writers
}

/// Proves D8, D9.
fn fifty_writers(setup: Setup) {
    let mut mount = setup.mount();
    let writers = write_and_kill(&mut mount, 1..51, 4000);
    if !mount.is_plain() {
        let info = mount.info();
        assert_eq!(info["state"], "unsafe shutdown", "{info}");
    }
    mount.mount();
    let files: usize = writers.iter().map(|writer| writer.verify(mount.path())).sum();
    assert!(files > 100, "only {files} files");
    if !mount.is_plain() {
        let info = mount.info();
        assert_eq!(info["unsafe_shutdowns"], 1, "{info}");
        assert_eq!(info["recovery"]["kind"], "server-killed", "{info}");
        assert_eq!(info["damaged_files"], serde_json::json!([]), "{info}");
        assert_eq!(info["quarantine"], serde_json::json!([]), "{info}");
        mount.umount();
        assert_eq!(mount.info()["state"], "clean");
    }
    mount.remount();
    if !mount.is_plain() {
        let info = mount.info();
        assert_eq!(info["recovery"]["kind"], "clean", "{info}");
        assert_eq!(info["unsafe_shutdowns"], 1, "{info}");
    }
    for writer in &writers {
        writer.verify(mount.path());
    }
}

fn killed_again_and_again(setup: Setup) {
    let mut mount = setup.mount();
    let mut writers = Vec::new();
    for round in 0..5 {
        writers.extend(write_and_kill(&mut mount, round * 8 + 100..round * 8 + 108, 300));
        // Killed once more before anything happened.
        mount.mount();
        mount.kill9();
        mount.mount();
        for writer in &writers {
            writer.verify(mount.path());
        }
    }
    if !mount.is_plain() {
        assert_eq!(mount.info()["unsafe_shutdowns"], 10);
    }
    mount.remount();
    for writer in &writers {
        writer.verify(mount.path());
    }
}

fn a_writer_that_outlives_the_server(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("f");
    let mut writer = child(["do"]);
    assert_eq!(writer.ask(&format!("open f wca {}", path.display())), "ok");
    assert_eq!(writer.ask("append f 1 0 100000"), "ok");
    mount.kill9();
    let mut size = 100_000;
    if mount.passthrough() == Passthrough::On {
        // The kernel needs no server to write.
        assert_eq!(writer.ask("append f 1 100000 50000"), "ok");
        size = 150_000;
    } else {
        assert_ne!(writer.ask("append f 1 100000 50000"), "ok");
    }
    mount.mount();
    let read = |mount: &Mount, size: usize| {
        let bytes = std::fs::read(mount.at("f")).unwrap();
        assert_eq!(bytes.len(), size);
        assert_eq!(Pattern(1).mismatch(0, &bytes), None);
    };
    read(&mount, size);
    let open = mount.info()["open_segments"].as_array().map(Vec::len);
    if mount.passthrough() == Passthrough::On {
        assert_eq!(open, Some(1), "a segment is still open elsewhere: {}", mount.info());
        // And it goes on writing to the file, past the server that has come back.
        assert_eq!(writer.ask("append f 1 150000 70000"), "ok");
        mount.sync();
        read(&mount, 220_000);
        size = 220_000;
        // In-place truncation, not a new segment: somebody has it open.
        assert_eq!(std::fs::metadata(mount.at("f")).unwrap().len(), 220_000);
    } else {
        assert_eq!(open, Some(0), "{}", mount.info());
    }
    writer.end();
    mount.remount();
    read(&mount, size);
    assert_eq!(mount.info()["open_segments"], serde_json::json!([]));
}

/// Recovery looked at the files first, and asked then whether something could still write them.
///
/// Proves D9.
fn what_is_written_and_closed_during_recovery_is_seen(setup: Setup) {
    const FILES: usize = 300;
    let mut mount = setup.mount();
    if mount.is_plain() || mount.passthrough() != Passthrough::On {
        return;
    }
    // What makes recovery take its time.
    std::fs::create_dir(mount.at("others")).unwrap();
    for n in 0..3000 {
        std::fs::write(mount.at(format!("others/{n}")), "some bytes").unwrap();
    }
    let pattern = |n: usize| Pattern(n as u64);
    let mut lengths = vec![1000; FILES];
    for n in 0..FILES {
        std::fs::write(mount.at(format!("f{n}")), pattern(n).bytes(0, 1000)).unwrap();
    }
    let compare = |mount: &Mount, lengths: &[usize], round: usize| {
        let wrong = |n: &usize| {
            let path = mount.at(format!("f{n}"));
            let size = std::fs::metadata(&path).unwrap().len() as usize;
            let bytes = std::fs::read(&path).unwrap();
            size != lengths[*n] || bytes != pattern(*n).bytes(0, lengths[*n])
        };
        let wrong: Vec<usize> = (0..FILES).filter(wrong).collect();
        assert!(
            wrong.is_empty(),
            "round {round}: {} of {FILES} files are not what was written: {wrong:?}",
            wrong.len()
        );
    };
    let mut took = Duration::from_millis(100);
    for round in 0..3 {
        let open: Vec<File> =
            (0..FILES).map(|n| OpenOptions::new().append(true).open(mount.at(format!("f{n}"))).unwrap()).collect();
        mount.kill9();
        let begun = std::time::Instant::now();
        let before = lengths.clone();
        let writing = std::thread::spawn(move || {
            for (n, file) in open.into_iter().enumerate() {
                std::thread::sleep((took * (n as u32 + 1) / FILES as u32).saturating_sub(begun.elapsed()));
                std::io::Write::write_all(&mut &file, &pattern(n).bytes(before[n] as u64, 500)).unwrap();
            }
        });
        mount.mount();
        took = begun.elapsed();
        writing.join().unwrap();
        lengths.iter_mut().for_each(|length| *length += 500);
        compare(&mount, &lengths, round);
    }
    mount.remount();
    compare(&mount, &lengths, 3);
    assert_eq!(mount.info()["recovery"]["kind"], "clean");
}

/// A pool that is closed is taken at its word.
///
/// Proves D9.
fn what_is_written_after_an_orderly_unmount_by_who_outlived_the_server_is_seen(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() || mount.passthrough() != Passthrough::On {
        return;
    }
    let path = mount.at("f");
    let mut file = File::create(&path).unwrap();
    let mut append = |from: u64| std::io::Write::write_all(&mut file, &Pattern(1).bytes(from, 1000)).unwrap();
    append(0);
    mount.kill9();
    mount.mount();
    append(1000);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 2000);
    for size in [3000, 4000] {
        mount.umount();
        append(size as u64 - 1000);
        assert_eq!(mount.info()["state"], "clean");
        mount.mount();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((std::fs::metadata(&path).unwrap().len(), bytes.len()), (size as u64, size));
        assert_eq!(Pattern(1).mismatch(0, &bytes), None);
    }
    assert_eq!(mount.info()["unsafe_shutdowns"], 1);
    drop(file);
    // Nobody is left: from here on it is closed as any other.
    mount.remount();
    mount.remount();
    assert_eq!(mount.info()["recovery"]["kind"], "clean");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 4000);
}

/// The host does not say what became of a segment for as long as the server runs. Who closed and renamed the file has
/// heard of nothing that it would have to do again.
///
/// Proves D9.
fn what_could_not_be_recorded_at_the_end_is_recorded_by_the_next_mount(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    let names = ["closed", "replaced", "renamed"];
    for name in names {
        std::fs::write(mount.at(name), Pattern(1).bytes(0, 100_000)).unwrap();
    }
    mount.sync();
    let mut files =
        names.map(|name| OpenOptions::new().append(name != "replaced").write(true).open(mount.at(name)).unwrap());
    files[1] = File::create(mount.at("replaced")).unwrap();
    for file in &mut files {
        std::io::Write::write_all(file, &Pattern(2).bytes(0, 50_000)).unwrap();
    }
    let failing = calls.add(Rule::of(Call::Fstat).on("/segments/").error(libc::EIO));
    drop(files);
    let now = if std::fs::rename(mount.at("renamed"), mount.at("named")).is_ok() { "named" } else { "renamed" };
    let umount = run(mount.program().arg("umount").arg(mount.path()));
    assert!(umount.status.success());
    let said = String::from_utf8_lossy(&umount.stderr).into_owned();
    assert!(said.contains("could not close it"), "{said}");
    assert!(mount.end() && failing.hits() > 0);
    assert_eq!(mount.info()["state"], "unsafe shutdown");
    drop(failing);
    let said = String::from_utf8_lossy(&mount.try_mount().0.stderr).into_owned();
    assert!(said.contains("could not bring everything to order") && !said.contains("killed"), "{said}");
    mount.adopt();
    let grown = [Pattern(1).bytes(0, 100_000), Pattern(2).bytes(0, 50_000)].concat();
    for (name, want) in [("closed", &grown), (now, &grown), ("replaced", &Pattern(2).bytes(0, 50_000))] {
        assert!(std::fs::read(mount.at(name)).unwrap() == *want, "{name}");
        assert_eq!(std::fs::metadata(mount.at(name)).unwrap().len(), want.len() as u64, "{name}");
    }
    assert_eq!(mount.info()["unsafe_shutdowns"], 0);
    mount.remount();
    assert_eq!(mount.info()["recovery"]["kind"], "clean");
}

/// Nothing but a name was stored, so that nothing is noted of files that could not be synced.
fn a_server_that_ended_on_a_failed_disk_was_not_killed(setup: Setup) {
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return;
    }
    std::fs::create_dir(mount.at("dir")).unwrap();
    let failing = calls.add(Rule::of_any([Call::Fdatasync, Call::Fsync]).on("/log").error(libc::EIO));
    assert!(mount.end() && failing.hits() > 0);
    drop(failing);
    let said = String::from_utf8_lossy(&mount.try_mount().0.stderr).into_owned();
    mount.adopt();
    assert!(said.contains("its disk failed before its server ended"), "{said}");
    assert!(!said.contains("killed") && !said.contains("nothing that was accepted is lost"), "{said}");
    assert!(mount.at("dir").is_dir());
    let text = mount.tensorfs_ok(["info".as_ref(), mount.path().as_os_str()]);
    assert!(text.contains("the disk failed before") && !text.contains("killed"), "{text}");
    // What was noted of that does not count for the next one.
    mount.kill9();
    let said = String::from_utf8_lossy(&mount.try_mount().0.stderr).into_owned();
    mount.adopt();
    assert!(said.contains("its server was killed"), "{said}");
}

/// The killed server has answered, and the kernel lets the program go on only when the next one has recovered. Here the
/// segment itself is written, as the kernel would for that program.
fn who_opens_a_file_behind_the_look_of_recovery_is_seen_later(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at("f");
    let in_time = (0..20).any(|_| {
        std::fs::write(&path, Pattern(1).bytes(0, 1000)).unwrap();
        mount.kill9();
        mount.mount();
        let mut segments = Vec::new();
        for directory in std::fs::read_dir(mount.pool().join("segments")).unwrap() {
            let inside = std::fs::read_dir(directory.unwrap().path()).unwrap();
            segments
                .extend(inside.map(|entry| entry.unwrap().path()).filter(|path| path.metadata().unwrap().len() > 0));
        }
        let [segment] = &segments[..] else { panic!("{segments:?}") };
        let late = OpenOptions::new().write(true).open(segment).unwrap();
        // While it is open here it is not sealed.
        let unsealed = mount.info()["counters"]["sealed"] == 0;
        if unsealed {
            late.write_all_at(&Pattern(1).bytes(1000, 500), 1000).unwrap();
        }
        unsealed
    });
    assert!(in_time, "it was sealed at once");
    mount.wait_for_seals(1);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((std::fs::metadata(&path).unwrap().len(), bytes.len()), (1500, 1500));
    assert_eq!(Pattern(1).mismatch(0, &bytes), None);
}

/// The kernel's cache of the next mount does not see what the program writes.
///
/// Proves D9.
fn what_outlives_a_server_with_passthrough_is_seen_without(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() || mount.passthrough() != Passthrough::On {
        return;
    }
    let path = mount.at("f");
    let mut want = Pattern(1).bytes(0, 10_000);
    std::fs::write(&path, &want).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    mount.kill9();
    run_ok(mount.program().args(["mount", "--passthrough", "off"]).args([mount.pool(), mount.path()]));
    for n in 0..3 {
        assert!(std::fs::read(&path).unwrap() == want);
        let (at, more) = (100 + n * 3000, Pattern(2).bytes(0, 1000));
        file.write_all_at(&more, at as u64).unwrap();
        want[at..at + 1000].copy_from_slice(&more);
        let end = want.len();
        file.write_all_at(&more, end as u64).unwrap();
        want.extend(&more);
    }
    drop(file);
    assert!(std::fs::read(&path).unwrap() == want);
    run_ok(mount.program().arg("umount").arg(mount.path()));
    mount.mount();
    assert!(std::fs::read(&path).unwrap() == want);
}

fn a_mapping_that_outlives_the_server(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    const SIZE: usize = 1 << 20;
    std::fs::write(mount.at("f"), Pattern(1).bytes(0, SIZE)).unwrap();
    let mut client = child(["do"]);
    assert_eq!(client.ask(&format!("open f rw {}", mount.at("f").display())), "ok");
    assert_eq!(client.ask(&format!("map f m {SIZE} w")), "ok");
    assert_eq!(client.ask(&format!("check m 0 1 {SIZE}")), "ok");
    mount.kill9();
    assert_eq!(client.ask(&format!("check m 0 1 {SIZE}")), "ok");
    let mut want = Pattern(1).bytes(0, SIZE);
    if mount.passthrough() == Passthrough::On {
        assert_eq!(client.ask("store m 70000 2 5000"), "ok");
        want[70_000..75_000].copy_from_slice(&Pattern(2).bytes(70_000, 5000));
    }
    mount.mount();
    assert!(std::fs::read(mount.at("f")).unwrap() == want);
    if mount.passthrough() == Passthrough::On {
        assert_eq!(client.ask("store m 200000 3 5000"), "ok");
        want[200_000..205_000].copy_from_slice(&Pattern(3).bytes(200_000, 5000));
        assert!(std::fs::read(mount.at("f")).unwrap() == want);
    }
    client.end();
    mount.remount();
    assert!(std::fs::read(mount.at("f")).unwrap() == want);
}

/// Proves N4.
fn killed_while_idle(setup: Setup) {
    let mut mount = setup.mount();
    std::fs::create_dir_all(mount.at("a/b/c")).unwrap();
    std::fs::write(mount.at("a/b/c/f"), "content").unwrap();
    let unlinked = File::create(mount.at("unlinked")).unwrap();
    std::fs::remove_file(mount.at("unlinked")).unwrap();
    mount.sync();
    mount.kill9();
    drop(unlinked);
    mount.mount();
    assert_eq!(std::fs::read_to_string(mount.at("a/b/c/f")).unwrap(), "content");
    assert!(!mount.at("unlinked").exists());
    // The orphan's space is back: no segment is left but that of `f`.
    mount.umount();
    if !mount.is_plain() {
        assert_eq!(segments(mount.pool()), 1);
    }
    mount.mount();
}

fn segments(pool: &Path) -> usize {
    let mut count = 0;
    let mut todo = vec![pool.join("segments")];
    while let Some(directory) = todo.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => todo.push(entry.path()),
                false => count += 1,
            }
        }
    }
    count
}

/// Proves D3, D4, D10.
fn power_loss_keeps_what_was_synced(setup: Setup) {
    // No commit of its own accord for an hour.
    let mut mount = setup.mount_with(["--commit", "3600"]).mount();
    let synced = Pattern(1).bytes(0, 300_000);
    std::fs::write(mount.at("fsynced"), &synced).unwrap();
    File::open(mount.at("fsynced")).unwrap().sync_all().unwrap();
    std::fs::create_dir(mount.at("d")).unwrap();
    std::fs::write(mount.at("d/committed"), &synced).unwrap();
    mount.sync();
    std::fs::rename(mount.at("d/committed"), mount.at("d/renamed")).unwrap();
    File::open(mount.at("d")).unwrap().sync_all().unwrap();
    let mut appended = File::options().append(true).open(mount.at("fsynced")).unwrap();
    std::io::Write::write_all(&mut appended, b"and more that was never synced").unwrap();
    drop(appended);
    std::fs::write(mount.at("never"), "synced").unwrap();
    mount.power_loss();
    if mount.is_plain() {
        return;
    }
    assert_eq!(mount.info()["state"], "unsafe shutdown");
    mount.mount();
    let info = mount.info();
    assert_eq!(info["recovery"]["kind"], "power-loss", "{info}");
    let kept = std::fs::read(mount.at("fsynced")).unwrap();
    assert!(kept == synced, "{} bytes", kept.len());
    assert!(std::fs::read(mount.at("d/renamed")).unwrap() == synced);
    assert!(!mount.at("d/committed").exists());
    assert!(!mount.at("never").exists());
    // The bytes behind the horizon are not thrown away.
    let quarantine = mount.quarantine();
    assert!(!quarantine.is_empty(), "nothing in quarantine: {info}");
    mount.remount();
    assert_eq!(mount.info()["recovery"]["kind"], "clean");
    assert!(std::fs::read(mount.at("fsynced")).unwrap() == synced);
}

/// Proves D5, D7, D8.
fn power_loss_keeps_a_prefix_of_the_tree(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    // One program does one thing after another; whatever survives, survives as a prefix, and a
    // file that has its final name has all its bytes.
    const FILES: u64 = 400;
    for n in 0..FILES {
        let temporary = mount.at(format!("{n:04}.tmp"));
        std::fs::write(&temporary, Pattern(n).bytes(0, 1000 + n as usize * 50)).unwrap();
        std::fs::rename(&temporary, mount.at(format!("{n:04}"))).unwrap();
    }
    mount.power_loss();
    mount.mount();
    let mut names: Vec<String> = std::fs::read_dir(mount.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let whole = names.iter().filter(|name| !name.ends_with(".tmp")).count() as u64;
    for n in 0..whole {
        let bytes = std::fs::read(mount.at(format!("{n:04}"))).unwrap();
        assert!(bytes == Pattern(n).bytes(0, 1000 + n as usize * 50), "{n} of {whole}");
    }
    let rest: Vec<&String> = names.iter().filter(|name| name.ends_with(".tmp")).collect();
    assert!(rest.is_empty() || rest == [&format!("{whole:04}.tmp")], "{rest:?} beside {whole}");
    if let [last] = rest[..] {
        let bytes = std::fs::read(mount.at(last)).unwrap();
        assert_eq!(Pattern(whole).mismatch(0, &bytes), None, "{last} shows bytes never written");
    }
    eprintln!("{whole} of {FILES} files were committed");
}

/// What is written and then renamed or linked has its bytes, although nobody synced it, or even closed it.
///
/// Proves D7.
fn power_loss_leaves_no_new_name_without_its_bytes(setup: Setup) {
    // Only the fsync of another file makes the names durable.
    let mut mount = setup.mount_with(["--commit", "3600"]).mount();
    let bytes = Pattern(1).bytes(0, 300_000);
    let mut open = Vec::new();
    for name in ["renamed", "linked"] {
        let mut file = File::create(mount.at(format!("{name}.tmp"))).unwrap();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        open.push(file);
    }
    std::fs::rename(mount.at("renamed.tmp"), mount.at("renamed")).unwrap();
    std::fs::hard_link(mount.at("linked.tmp"), mount.at("linked")).unwrap();
    let other = File::create(mount.at("other")).unwrap();
    other.sync_all().unwrap();
    mount.power_loss();
    drop((open, other));
    if mount.is_plain() {
        return;
    }
    mount.mount();
    for name in ["renamed", "linked"] {
        let kept = std::fs::read(mount.at(name)).unwrap();
        assert!(kept == bytes, "{name}: {} bytes", kept.len());
    }
}

/// A truncation destroys what was durable: unless it is durable itself by then, a power loss leaves a file that is
/// damaged.
fn power_loss_after_a_truncation_finds_it_recorded(setup: Setup) {
    let mut mount = setup.mount_with(["--commit", "3600"]).mount();
    let bytes = Pattern(1).bytes(0, 300_000);
    std::fs::write(mount.at("f"), &bytes).unwrap();
    mount.sync();
    File::options().write(true).open(mount.at("f")).unwrap().set_len(1000).unwrap();
    mount.power_loss();
    if mount.is_plain() {
        return;
    }
    mount.mount();
    assert!(std::fs::read(mount.at("f")).unwrap() == bytes[..1000]);
    let info = mount.info();
    assert_eq!((info["damaged_files"].as_array().unwrap().len(), mount.quarantine().len()), (0, 0), "{info}");
}

/// Recovery took the older time of the two for the time of a write that it had not been told of. Found by
/// the model test.
///
/// Proves D9.
fn times_set_on_a_closed_file_outlive_the_server(setup: Setup) {
    let mut mount = setup.mount();
    let path = mount.at("restored-by-tar");
    std::fs::write(&path, "some bytes").unwrap();
    mount.remount();
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    run_ok(std::process::Command::new("touch").args(["-d", "@1000000000"]).arg(&path));
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), old);
    mount.kill9();
    mount.mount();
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), old);
}

/// A truncation is recorded ahead. Recovery does it again only if it was not done, and not if the file has grown since.
fn a_file_that_grew_again_after_a_truncation_is_not_cut_by_recovery(setup: Setup) {
    let mut mount = setup.mount_with(["--commit", "3600"]).mount();
    let path = mount.at("f");
    std::fs::write(&path, Pattern(1).bytes(0, 1000)).unwrap();
    mount.sync();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    // The block stays, so nothing but the size tells of it.
    file.set_len(500).unwrap();
    file.write_all_at(&Pattern(1).bytes(500, 1500), 500).unwrap();
    if mount.is_plain() {
        return;
    }
    mount.kill9();
    drop(file);
    mount.mount();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len(), Pattern(1).mismatch(0, &bytes)), (2000, None));
}

/// The host fails over one segment, as where a sector of its own tables is bad. The rest of the pool is served.
///
/// Proves D9, D12.
fn one_segment_that_the_host_fails_over_does_not_stop_recovery(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    let calls = HostCalls::new();
    let mut mount = setup.host_calls(&calls).mount();
    let (hurt, other) = (mount.at("hurt"), mount.at("other"));
    let bytes = |of: u8| vec![of; 100_000];
    std::fs::write(&hurt, bytes(1)).unwrap();
    mount.sync();
    let found = run(std::process::Command::new("find").arg(mount.pool().join("segments")).args(["-size", "+40k"]));
    let segment = String::from_utf8(found.stdout).unwrap();
    let part = segment.trim().rsplit_once("/segments/").unwrap().1.to_owned();
    std::fs::write(&other, bytes(2)).unwrap();
    mount.kill9();
    let failing = calls.add(Rule::of(Call::Fstat).on(&part).error(libc::EIO));
    mount.mount();
    assert!(failing.hits() > 0);
    assert!(std::fs::read(&other).unwrap() == bytes(2));
    std::fs::write(&other, bytes(3)).unwrap();
    let info = mount.info();
    assert_eq!(info["damaged_files"], serde_json::json!(["/hurt"]), "{info}");
    let says_so = |mount: &Mount, target: &Path| {
        let said = mount.tensorfs(["check".as_ref(), target.as_os_str()]);
        assert_eq!(said.status.code(), Some(4), "{said:?}");
        assert!(String::from_utf8_lossy(&said.stdout).contains("hurt"), "{said:?}");
    };
    says_so(&mount, mount.path());
    mount.umount();
    says_so(&mount, mount.pool());
    drop(failing);
    // The next server finds it again, and it is whoever uses it to say that it is whole.
    mount.mount();
    assert!(std::fs::read(&hurt).unwrap() == bytes(1) && std::fs::read(&other).unwrap() == bytes(3));
    assert_eq!(mount.info()["damaged_files"], serde_json::json!(["/hurt"]));
    std::fs::write(&hurt, bytes(4)).unwrap();
    mount.sync();
    assert_eq!(mount.info()["damaged_files"], serde_json::json!([]));
    mount.remount();
    assert!(std::fs::read(&hurt).unwrap() == bytes(4));
}
